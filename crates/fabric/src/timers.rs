//! The timers of one client thread: tasks that wait for a time of the cluster's clock.
//!
//! *Thread safety*: one thread.

use crate::clock::ClusterClock;
use crate::executor::DriverProgress;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;

/// The clock of one client thread, and the tasks that wait on it.
#[derive(Debug)]
pub struct Timers {
    clock: ClusterClock,
    /// Deadlines in nanoseconds, each with the index of its waker.
    heap: RefCell<BinaryHeap<Reverse<(u64, usize)>>>,
    wakers: RefCell<Vec<Option<Waker>>>,
    vacant: RefCell<Vec<usize>>,
}

impl Timers {
    /// Timers on `clock`, without waiting tasks.
    pub fn new(clock: ClusterClock) -> Self {
        Self {
            clock,
            heap: RefCell::default(),
            wakers: RefCell::default(),
            vacant: RefCell::default(),
        }
    }

    /// The current time.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Wakes `waker` at time `at_ns`.
    pub fn wake_at(&self, at_ns: u64, waker: Waker) {
        let mut wakers = self.wakers.borrow_mut();
        let place = self.vacant.borrow_mut().pop().unwrap_or_else(|| {
            wakers.push(None);
            wakers.len() - 1
        });
        wakers[place] = Some(waker);
        self.heap.borrow_mut().push(Reverse((at_ns, place)));
    }

    /// Wakes the tasks that are due.
    pub fn progress(&self) -> DriverProgress {
        let mut heap = self.heap.borrow_mut();
        self.clock.all_wait(heap.peek().map(|&Reverse((at_ns, _))| at_ns));
        let now = self.now_ns();
        let mut woken = false;
        while let Some(&Reverse((at_ns, place))) = heap.peek() {
            if at_ns > now {
                break;
            }
            heap.pop();
            self.vacant.borrow_mut().push(place);
            if let Some(waker) = self.wakers.borrow_mut()[place].take() {
                waker.wake();
                woken = true;
            }
        }
        if woken {
            return DriverProgress::Advanced;
        }
        let ns = heap.peek().map_or(u64::MAX, |&Reverse((at_ns, _))| at_ns - now);
        DriverProgress::Wait { ns }
    }
}
