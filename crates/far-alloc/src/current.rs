//! The scope of the calling thread.
//!
//! *Thread safety*: each thread has its own.

use std::cell::Cell;

thread_local! {
    /// The place of the innermost scope's arena.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The place of the arena that large allocations of this thread go to.
pub(crate) fn current() -> Option<usize> {
    CURRENT.get()
}

/// Changes it, and returns what it was.
pub(crate) fn replace(place: Option<usize>) -> Option<usize> {
    CURRENT.replace(place)
}

/// No scope, while far memory's own code runs.
pub(crate) struct Suspended(Option<usize>);

impl Suspended {
    pub(crate) fn new() -> Self {
        Self(replace(None))
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        replace(self.0);
    }
}
