//! A signal that tasks of any thread sleep on, until something that they wait for has changed.
//!
//! *Invariants*
//! - lsm.W1. A task that read the signal's count before it looked at what the signal stands for is
//!   woken by every change after that look: a count that has grown is noticed before it sleeps.
//!
//! *Thread safety*: any number of threads; a mutex that is never held across a wait.

use farleaf_fabric::Fabric;
use farleaf_fabric::sync::{Mutex, lock};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// A count of changes, and the tasks that wait for the next one.
#[derive(Debug, Default)]
pub struct ChangeSignal(Mutex<SignalWaiters>);

#[derive(Debug, Default)]
struct SignalWaiters {
    raised: u64,
    asleep: Vec<Waker>,
}

impl ChangeSignal {
    /// How often it was raised.
    pub fn count(&self) -> u64 {
        lock(&self.0).raised
    }

    /// Wakes all tasks that wait.
    pub fn raise(&self) {
        let asleep = {
            let mut waiting = lock(&self.0);
            waiting.raised += 1;
            std::mem::take(&mut waiting.asleep)
        };
        asleep.into_iter().for_each(Waker::wake);
    }

    fn poll(&self, seen: u64, context: &Context<'_>) -> Poll<()> {
        let mut waiting = lock(&self.0);
        if waiting.raised != seen {
            return Poll::Ready(());
        }
        if !waiting.asleep.iter().any(|asleep| asleep.will_wake(context.waker())) {
            waiting.asleep.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until it was raised more than `seen` times, without a timer.
    pub async fn raised(&self, seen: u64) {
        poll_fn(|context| self.poll(seen, context)).await;
    }

    /// Sleeps until it was raised more than `seen` times, at most `most_ns`.
    pub async fn sleep(&self, fabric: &impl Fabric, seen: u64, most_ns: u64) {
        let mut timer = pin!(fabric.sleep(most_ns));
        poll_fn(|context| match self.poll(seen, context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => timer.as_mut().poll(context),
        })
        .await;
    }
}
