//! Where an operation's outcome is stored for its caller.
//!
//! *Invariant*: a slot gets exactly one outcome: [`Reply`] stores one even if its task is dropped.
//!
//! *Thread safety*: any number of threads.

use crate::cores::lock;
use crate::data::Data;
use crate::error::{Cause, Error};
use crate::request::Outcome;
use std::sync::{Arc, Mutex};
use std::task::Waker;

#[derive(Debug)]
struct State<K: ?Sized + Data> {
    outcome: Option<Outcome<K>>,
    waker: Option<Waker>,
}

/// The caller's end.
#[derive(Debug)]
pub(crate) struct Slot<K: ?Sized + Data>(Mutex<State<K>>);

// Not derived: the derive would require `K: Default`.
impl<K: ?Sized + Data> Default for Slot<K> {
    fn default() -> Self {
        Self(Mutex::new(State { outcome: None, waker: None }))
    }
}

impl<K: ?Sized + Data> Slot<K> {
    /// Takes the outcome; if there is none yet, `waker` is woken when it comes.
    pub(crate) fn take_or_wake(&self, waker: &Waker) -> Option<Outcome<K>> {
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
    pub(crate) fn take(&self) -> Option<Outcome<K>> {
        lock(&self.0).outcome.take()
    }
}

/// The executing task's end of the slot.
#[derive(Debug)]
pub(crate) struct Reply<K: ?Sized + Data>(Option<Arc<Slot<K>>>);

impl<K: ?Sized + Data> Reply<K> {
    pub(crate) fn new(slot: &Arc<Slot<K>>) -> Self {
        Self(Some(Arc::clone(slot)))
    }

    pub(crate) fn send(mut self, outcome: Outcome<K>) {
        self.put(outcome);
    }

    fn put(&mut self, outcome: Outcome<K>) {
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

impl<K: ?Sized + Data> Drop for Reply<K> {
    fn drop(&mut self) {
        if self.0.is_some() {
            let why = "the index was dropped, or failed, while the operation was in flight";
            self.put(Err(Error::Indeterminate(Cause::text(why))));
        }
    }
}
