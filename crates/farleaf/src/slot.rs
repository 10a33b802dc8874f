//! Where an operation's outcome waits for its caller.
//!
//! *Invariant*: a slot gets exactly one outcome: [`Reply`] puts one even if its task is dropped.
//!
//! *Thread safety*: any number of threads.

use crate::cores::lock;
use crate::error::{Cause, Error};
use crate::request::Outcome;
use std::sync::{Arc, Mutex};
use std::task::Waker;

#[derive(Debug, Default)]
struct State {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// The caller's end.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<State>);

impl Slot {
    /// Takes the outcome; if there is none yet, `waker` is woken when it comes.
    pub(crate) fn take_or_wake(&self, waker: &Waker) -> Option<Outcome> {
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
    pub(crate) fn take(&self) -> Option<Outcome> {
        lock(&self.0).outcome.take()
    }
}

/// The executing task's end of the slot.
#[derive(Debug)]
pub(crate) struct Reply(Option<Arc<Slot>>);

impl Reply {
    pub(crate) fn new(slot: &Arc<Slot>) -> Self {
        Self(Some(Arc::clone(slot)))
    }

    pub(crate) fn send(mut self, outcome: Outcome) {
        self.put(outcome);
    }

    fn put(&mut self, outcome: Outcome) {
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

impl Drop for Reply {
    fn drop(&mut self) {
        if self.0.is_some() {
            let why = "the index was dropped, or failed, while the operation was in flight";
            self.put(Err(Error::Indeterminate(Cause::text(why))));
        }
    }
}
