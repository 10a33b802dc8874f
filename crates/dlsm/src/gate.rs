//! Whether operations may use a tree, and how many use it now.
//!
//! *Invariant* (`docs/internals/lsm-tree.md`)
//! - lsm.H9. Once a gate is closed and has no visits, no operation uses the tree before the gate is
//!   opened again: a visit counts itself and sees in the same step whether the gate is open.
//!
//! *Thread safety*: any number of threads.

use farleaf_fabric::sync::{AtomicU64, Ordering};

/// The gate is closed. The other bits count visits.
const CLOSED: u64 = 1 << 63;

/// The gate of a tree.
#[derive(Debug)]
pub(super) struct TreeGate(AtomicU64);

/// An operation that uses the tree. Dropping it ends the visit.
#[derive(Debug)]
pub(super) struct TreeVisit<'g>(&'g AtomicU64);

impl TreeGate {
    pub(super) fn new(is_open: bool) -> Self {
        Self(AtomicU64::new(if is_open { 0 } else { CLOSED }))
    }

    /// Begins a visit. `None` if the gate is closed.
    #[inline]
    pub(super) fn enter(&self) -> Option<TreeVisit<'_>> {
        let before = self.0.fetch_add(1, Ordering::Acquire);
        let visit = TreeVisit(&self.0);
        (before & CLOSED == 0).then_some(visit)
    }

    pub(super) fn set_open(&self, is_open: bool) {
        match is_open {
            true => self.0.fetch_and(!CLOSED, Ordering::AcqRel),
            false => self.0.fetch_or(CLOSED, Ordering::AcqRel),
        };
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED == 0
    }

    /// Visits that have not ended, and some that find the gate closed.
    pub(super) fn visits(&self) -> u64 {
        // The visits' ends release what they did.
        self.0.load(Ordering::Acquire) & !CLOSED
    }
}

impl Drop for TreeVisit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_lets_visits_end_and_none_begin() {
        let gate = TreeGate::new(false);
        assert!(gate.enter().is_none() && !gate.is_open());
        gate.set_open(true);
        let (one, two) = (gate.enter(), gate.enter());
        assert_eq!((one.is_some(), gate.visits()), (true, 2));
        gate.set_open(false);
        assert!(gate.enter().is_none());
        assert_eq!(gate.visits(), 2, "one that was refused does not count");
        drop((one, two));
        assert_eq!(gate.visits(), 0);
        gate.set_open(true);
        assert!(gate.enter().is_some());
    }
}
