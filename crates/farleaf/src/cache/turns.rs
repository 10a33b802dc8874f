//! Turns of operations that have met others again and again.
//!
//! In a cache that has fewer frames than its operations want at once, each can take from the others what they have just brought, and none
//! comes to its end. So who has lost too often goes on only when it has a turn, and there are few.
//!
//! *Invariant* C23: no more turns are taken than there are. Whoever waits for one holds nothing that others wait for, and does not wait for
//! ever.
//!
//! *Thread safety*: any number of threads.

use farleaf_fabric::sync::{AtomicU64, Ordering};

/// So many frames for each turn: more than the ways of two operations have nodes.
const FRAMES_PER_TURN: u64 = 64;

/// The turns of one cache.
#[derive(Debug)]
pub(crate) struct Turns {
    taken: AtomicU64,
    most: u64,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a AtomicU64);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Turns {
    /// The turns of a cache of so many frames.
    pub(crate) fn new(frames: u32) -> Self {
        let most = (u64::from(frames) / FRAMES_PER_TURN).max(1);
        Self { taken: AtomicU64::new(0), most }
    }

    /// A turn, if there is one.
    pub(crate) fn take(&self) -> Option<Turn<'_>> {
        let one_more = |taken| Some(taken + 1).filter(|taken| *taken <= self.most);
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        taken.ok().map(|_| Turn(&self.taken))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_taken_once_and_comes_back() {
        let turns = Turns::new(24);
        let first = turns.take();
        assert!(first.is_some() && turns.take().is_none());
        drop(first);
        assert!(turns.take().is_some());
        let many = Turns::new(640);
        let taken: Vec<_> = std::iter::from_fn(|| many.take()).collect();
        assert_eq!(taken.len(), 10);
    }
}
