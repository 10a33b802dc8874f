//! Plain threads that wait for operations. One of them, the leader, waits for the core's descriptor
//! and turns the core; the others are parked. When the leader has its result, it wakes one of them,
//! which becomes the new leader.
//!
//! *Invariants*: threads.A1. While threads wait and none leads, one of them has been unparked.
//! threads.A2. The leader finds its own result even if another thread's turn produces it: `call`
//! ends its wait, and only the leader clears it.
//!
//! *Thread safety*: any number of threads.

use crate::cores::{BegunOperation, EnginePool, lock};
use crate::data::KeyKind;
use crate::request::RequestOutcome;
use farleaf_fabric::listener::start_thread;
use farleaf_fabric::provider::WakeFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};
use std::thread::{Thread, ThreadId};

#[derive(Debug, Default)]
struct WaiterQueue {
    is_led: bool,
    waiting: Vec<Thread>,
}

/// The threads that wait for one core.
#[derive(Debug)]
pub(crate) struct WaitingThreads {
    queue: Mutex<WaiterQueue>,
    call: Arc<LeaderCall>,
    /// Whether the thread of [`ensure_thread`] is running.
    is_helped: AtomicBool,
}

/// Ends the leader's wait when its result comes.
#[derive(Debug)]
struct LeaderCall {
    descriptor: WakeFd,
    is_waiting: AtomicBool,
}

impl Wake for LeaderCall {
    fn wake(self: Arc<Self>) {
        // The leader usually produces its own result, and then does not wait.
        if self.is_waiting.load(Ordering::SeqCst) {
            self.descriptor.wake();
        }
    }
}

struct ThreadUnpark(Thread);

impl Wake for ThreadUnpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl WaitingThreads {
    pub(crate) fn new() -> io::Result<Self> {
        let call = LeaderCall { descriptor: WakeFd::new()?, is_waiting: AtomicBool::new(false) };
        let is_helped = AtomicBool::new(false);
        Ok(Self { queue: Mutex::default(), call: Arc::new(call), is_helped })
    }

    /// Makes `me` the leader, or queues it.
    fn lead(&self, me: &Thread) -> bool {
        let mut queue = lock(&self.queue);
        if queue.is_led {
            if queue.waiting.iter().all(|thread| thread.id() != me.id()) {
                queue.waiting.push(me.clone());
            }
            return false;
        }
        queue.is_led = true;
        queue.waiting.retain(|thread| thread.id() != me.id());
        true
    }

    /// Records that the thread no longer waits.
    fn leave(&self, me: ThreadId, has_led: bool) {
        let mut queue = lock(&self.queue);
        queue.is_led &= !has_led;
        queue.waiting.retain(|thread| thread.id() != me);
        if !queue.is_led
            && let Some(next) = queue.waiting.first()
        {
            next.unpark();
        }
    }
}

/// Ends the wait on drop, even during a panic.
struct LeaderWait<'a> {
    threads: &'a WaitingThreads,
    me: Thread,
    leads: bool,
}

impl Drop for LeaderWait<'_> {
    fn drop(&mut self) {
        self.threads.leave(self.me.id(), self.leads);
    }
}

/// Waits for an operation on the calling thread.
pub(crate) fn wait<K: ?Sized + KeyKind>(
    cores: &EnginePool<K>,
    begun: &BegunOperation<K>,
) -> RequestOutcome<K> {
    if let Some(outcome) = begun.take() {
        return outcome;
    }
    let core = cores.core(begun.core);
    let me = std::thread::current();
    let parked = Waker::from(Arc::new(ThreadUnpark(me.clone())));
    let mut waiting = LeaderWait { threads: &core.threads, me, leads: false };
    loop {
        if let Some(outcome) = begun.take_or_wake(&parked) {
            return outcome;
        }
        if core.threads.lead(&waiting.me) {
            waiting.leads = true;
            return lead(cores, begun);
        }
        std::thread::park();
    }
}

fn lead<K: ?Sized + KeyKind>(
    cores: &EnginePool<K>,
    begun: &BegunOperation<K>,
) -> RequestOutcome<K> {
    let core = cores.core(begun.core);
    let call = &core.threads.call;
    let called = Waker::from(Arc::clone(call));
    // The turn that began the operation either has left nothing to do or has made the descriptor
    // readable.
    let mut is_idle = true;
    loop {
        // Announce the wait before checking, so that a result that arrives now ends the wait.
        call.is_waiting.store(is_idle, Ordering::SeqCst);
        if let Some(outcome) = begun.take_or_wake(&called) {
            call.is_waiting.store(false, Ordering::SeqCst);
            return outcome;
        }
        if is_idle {
            let is_called = wait_for([core.descriptor.as_fd(), call.descriptor.as_fd()], None)[1];
            call.is_waiting.store(false, Ordering::SeqCst);
            if is_called {
                call.descriptor.clear();
            }
        }
        is_idle = cores.turn(begun.core).is_idle;
    }
}

/// Waits until one of the descriptors is readable; returns which are.
fn wait_for<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    at_most: Option<&Timespec>,
) -> [bool; N] {
    let mut polled = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    // Treat an interrupted wait as a short one.
    let _ = poll(&mut polled, at_most);
    polled.map(|fd| fd.revents().contains(PollFlags::IN))
}

/// How long the thread of [`ensure_thread`] waits at a time, and after how many idle waits it ends.
const WAIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const IDLE_WAITS: u32 = 10;

/// Starts a thread, if there is none yet, that turns the core while operations are in flight: for
/// executors whose event loop cannot wait for a descriptor.
pub(crate) fn ensure_thread<K: ?Sized + KeyKind>(
    cores: &Arc<EnginePool<K>>,
    number: usize,
) -> io::Result<()> {
    if cores.core(number).threads.is_helped.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let weak = Arc::downgrade(cores);
    let started = start_thread("farleaf".to_owned(), move || help(&weak, number));
    if started.is_err() {
        cores.core(number).threads.is_helped.store(false, Ordering::Release);
    }
    started.map(drop)
}

fn help<K: ?Sized + KeyKind>(cores: &Weak<EnginePool<K>>, number: usize) {
    let mut idle_waits = 0;
    let Some(descriptor) =
        cores.upgrade().and_then(|cores| cores.core(number).descriptor.try_clone().ok())
    else {
        return;
    };
    loop {
        let Some(cores) = cores.upgrade() else { return };
        let is_idle = cores.turn(number).is_idle;
        idle_waits = if cores.is_busy(number) { 0 } else { idle_waits + 1 };
        if idle_waits > IDLE_WAITS {
            cores.core(number).threads.is_helped.store(false, Ordering::Release);
            // An operation may have begun in the meantime, and relied on this thread.
            if !cores.is_busy(number)
                || cores.core(number).threads.is_helped.swap(true, Ordering::AcqRel)
            {
                return;
            }
            idle_waits = 0;
        }
        drop(cores);
        if is_idle {
            wait_for([descriptor.as_fd()], Some(&WAIT));
        }
    }
}
