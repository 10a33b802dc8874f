//! Where an operation's outcome is stored for its caller.
//!
//! *Invariant*: a slot gets exactly one outcome: [`CallerReply`] stores one even if its task is
//! dropped.
//!
//! *Thread safety*: any number of threads.

use crate::cores::lock;
use crate::data::KeyKind;
use crate::error::{Error, ErrorCause};
use crate::request::RequestOutcome;
use std::sync::{Arc, Mutex};
use std::task::Waker;

#[derive(Debug)]
struct CallerSlotState<K: ?Sized + KeyKind> {
    outcome: Option<RequestOutcome<K>>,
    waker: Option<Waker>,
}

/// The caller's end.
#[derive(Debug)]
pub(crate) struct CallerSlot<K: ?Sized + KeyKind>(Mutex<CallerSlotState<K>>);

// Not derived: the derive would require `K: Default`.
impl<K: ?Sized + KeyKind> Default for CallerSlot<K> {
    fn default() -> Self {
        Self(Mutex::new(CallerSlotState { outcome: None, waker: None }))
    }
}

impl<K: ?Sized + KeyKind> CallerSlot<K> {
    /// Takes the outcome; if there is none yet, `waker` is woken when it comes.
    pub(crate) fn take_or_wake(&self, waker: &Waker) -> Option<RequestOutcome<K>> {
        let mut state = lock(&self.0);
        if state.outcome.is_none() {
            match &mut state.waker {
                Some(held) => held.clone_from(waker),
                held => *held = Some(waker.clone()),
            }
        }
        state.outcome.take()
    }

    /// Takes the outcome, if it is there.
    pub(crate) fn take(&self) -> Option<RequestOutcome<K>> {
        lock(&self.0).outcome.take()
    }
}

/// The executing task's end of the slot.
#[derive(Debug)]
pub(crate) struct CallerReply<K: ?Sized + KeyKind>(Option<Arc<CallerSlot<K>>>);

impl<K: ?Sized + KeyKind> CallerReply<K> {
    pub(crate) fn new(slot: &Arc<CallerSlot<K>>) -> Self {
        Self(Some(Arc::clone(slot)))
    }

    pub(crate) fn send(mut self, outcome: RequestOutcome<K>) {
        self.put(outcome);
    }

    fn put(&mut self, outcome: RequestOutcome<K>) {
        let Some(slot) = self.0.take() else { return };
        let mut state = lock(&slot.0);
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<K: ?Sized + KeyKind> Drop for CallerReply<K> {
    fn drop(&mut self) {
        if self.0.is_some() {
            let why = "the index was dropped, or failed, while the operation was in flight";
            self.put(Err(Error::Indeterminate(ErrorCause::text(why))));
        }
    }
}
