//! How callers wait: a task of tokio by a registration with its runtime, a plain thread in poll(2).
//!
//! *Thread safety*: any number of threads.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Id;

/// Locks, also after a panic: what these mutexes protect is consistent at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the descriptor is readable, for at most `ns`.
pub(crate) fn wait_readable(descriptor: impl AsFd, ns: u64) {
    let billion = 1_000_000_000;
    let timeout =
        Timespec { tv_sec: (ns / billion).cast_signed(), tv_nsec: (ns % billion).cast_signed() };
    // An interrupted wait is a short one.
    let _ = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout));
}

/// The task of one runtime that is woken when the descriptor becomes readable: the one that looked
/// last.
#[derive(Debug, Default)]
struct Relay(Mutex<Option<(u64, Waker)>>);

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        let waker = lock(&self.0).as_ref().map(|(_, waker)| waker.clone());
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The descriptor, as registered with one runtime.
#[derive(Debug)]
pub(crate) struct Watch {
    runtime: Id,
    descriptor: AsyncFd<OwnedFd>,
    relay: Arc<Relay>,
    /// The relay's own waker.
    waker: Waker,
}

impl Watch {
    /// Waits for the descriptor in place of another task; returns whether it may be readable
    /// already.
    pub(crate) fn is_readable(&self, id: u64, waker: &Waker) -> bool {
        let before = lock(&self.relay.0).replace((id, waker.clone()));
        drop(before);
        match self.descriptor.poll_read_ready(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(Ok(mut guard)) => {
                guard.clear_ready();
                true
            }
            // The runtime is shutting down.
            Poll::Ready(Err(_)) | Poll::Pending => false,
        }
    }
}

/// The registrations with runtimes: usually one.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<Vec<Arc<Watch>>>);

impl Watches {
    /// The registration with the current runtime, whose id is `runtime`.
    pub(crate) fn of(&self, runtime: Id, descriptor: &OwnedFd) -> io::Result<Arc<Watch>> {
        let mut watches = lock(&self.0);
        if let Some(watch) = watches.iter().find(|watch| watch.runtime == runtime) {
            return Ok(Arc::clone(watch));
        }
        // Runtimes that have ended leave theirs behind.
        watches.retain(|watch| lock(&watch.relay.0).is_some());
        let descriptor = descriptor.try_clone()?;
        #[expect(deprecated, reason = "unsound for types that an `OwnedFd` is none of")]
        let descriptor = AsyncFd::with_interest(descriptor, Interest::READABLE)?;
        let relay = Arc::new(Relay::default());
        let waker = Waker::from(Arc::clone(&relay));
        let watch = Arc::new(Watch { runtime, descriptor, relay, waker });
        watches.push(Arc::clone(&watch));
        Ok(watch)
    }

    /// Stops waking `id`; returns its waker, and whether another task still waits.
    pub(crate) fn leave(&self, id: u64) -> (Option<Waker>, bool) {
        let (mut own, mut others) = (None, false);
        for watch in lock(&self.0).iter() {
            let mut current = lock(&watch.relay.0);
            match &*current {
                Some((of, _)) if *of == id => own = current.take().map(|(_, waker)| waker),
                Some(_) => others = true,
                None => {}
            }
        }
        (own, others)
    }
}

/// A plain thread that waits for an operation.
#[derive(Debug)]
pub(crate) struct Parker {
    state: Mutex<Parked>,
    woken: Condvar,
    /// Ends a wait in poll(2).
    unparker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Parked {
    is_woken: bool,
    is_polling: bool,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        let mut state = lock(&self.state);
        state.is_woken = true;
        match &self.unparker {
            Some(unparker) if state.is_polling => unparker.wake_by_ref(),
            _ => self.woken.notify_one(),
        }
    }
}

impl Parker {
    pub(crate) fn new(unparker: Option<Waker>) -> Self {
        Self { state: Mutex::default(), woken: Condvar::new(), unparker }
    }

    /// Waits for a wake, for at most `ns`.
    pub(crate) fn park(&self, ns: u64) {
        let state = lock(&self.state);
        let limit = Duration::from_nanos(ns);
        let waited = self.woken.wait_timeout_while(state, limit, |state| !state.is_woken);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_woken = false;
    }

    /// Waits for the descriptor or a wake, for at most `ns`.
    pub(crate) fn poll(&self, descriptor: &OwnedFd, ns: u64) {
        let mut state = lock(&self.state);
        if !std::mem::take(&mut state.is_woken) {
            state.is_polling = true;
            drop(state);
            wait_readable(descriptor, ns);
            *lock(&self.state) = Parked::default();
        }
    }
}
