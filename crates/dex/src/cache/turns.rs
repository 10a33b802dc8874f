//! Turns for operations that have repeatedly lost their frames.
//!
//! If a cache has fewer frames than its concurrent operations need, the operations can evict each
//! other's nodes so that none of them finishes. So an operation that has lost its frames too often
//! must take one of a few turns to continue.
//!
//! *Invariant* C23: the number of turns taken never exceeds the number of turns. An operation that
//! waits for a turn holds nothing that others wait for, and gets a turn eventually.
//!
//! *Thread safety*: any number of threads.

use farleaf_fabric::sync::{AtomicU64, Ordering};

/// Frames per turn: more than the nodes on the paths of two operations.
const FRAMES_PER_TURN: u64 = 64;

/// The turns of one cache.
#[derive(Debug)]
pub(crate) struct CacheTurns {
    taken: AtomicU64,
    most: u64,
}

/// A turn. Dropping it ends the turn.
#[derive(Debug)]
pub(crate) struct CacheTurn<'a>(&'a AtomicU64);

impl Drop for CacheTurn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl CacheTurns {
    /// Creates the turns of a cache with `frames` frames: one per [`FRAMES_PER_TURN`], at least
    /// one.
    pub(crate) fn new(frames: u32) -> Self {
        let most = (u64::from(frames) / FRAMES_PER_TURN).max(1);
        Self { taken: AtomicU64::new(0), most }
    }

    /// Takes a turn, if one is left.
    pub(crate) fn take(&self) -> Option<CacheTurn<'_>> {
        let one_more = |taken| Some(taken + 1).filter(|taken| *taken <= self.most);
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        taken.ok().map(|_| CacheTurn(&self.taken))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_taken_once_and_comes_back() {
        let turns = CacheTurns::new(24);
        let first = turns.take();
        assert!(first.is_some() && turns.take().is_none());
        drop(first);
        assert!(turns.take().is_some());
        let many = CacheTurns::new(640);
        let taken: Vec<_> = std::iter::from_fn(|| many.take()).collect();
        assert_eq!(taken.len(), 10);
    }
}
