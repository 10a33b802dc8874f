//! Which memory servers a compute server can reach, as far as any of its threads knows.
//!
//! All threads of a compute server tell what they meet. A change in a cache is worth no more than the memory servers under it. So no change is acknowledged from the first sign
//! that one of them may be gone until all of them have answered again.
//!
//! *Invariant* Q4: a sign counts until a round of questions that began after it has found every memory server there.
//!
//! *Thread safety*: any number of threads.

use farleaf_fabric::sync::{AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{FabricError, ServerId};
use std::collections::BTreeSet;

/// What is known about the memory servers' being there.
#[derive(Debug, Default)]
pub struct Detector {
    /// Signs that a memory server may be gone, all told.
    signs: AtomicU64,
    /// Up to which sign all is well again.
    settled: AtomicU64,
    /// Whose signs they were.
    missing: Mutex<BTreeSet<u16>>,
}

/// A round of questions that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round(u64);

/// The memory server that an error says may be gone.
fn gone(error: &FabricError) -> Option<ServerId> {
    match error {
        FabricError::Indeterminate { server, .. }
        | FabricError::Restarted { server }
        | FabricError::NotLetIn { server, .. }
        | FabricError::NotSent { server } => Some(*server),
        _ => None,
    }
}

impl Detector {
    /// Whether all memory servers are there, as far as is known.
    #[inline]
    pub fn all_there(&self) -> bool {
        self.signs.load(Ordering::Acquire) == self.settled.load(Ordering::Acquire)
    }

    /// The memory servers that may be gone.
    pub fn missing(&self) -> Vec<u16> {
        lock(&self.missing).iter().copied().collect()
    }

    /// Learns from the outcome of a remote operation.
    pub(crate) fn learn(&self, error: &FabricError) {
        if let Some(server) = gone(error) {
            let mut missing = lock(&self.missing);
            missing.insert(server.number());
            self.signs.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Before every memory server is asked whether it is there.
    pub(crate) fn begin_round(&self) -> Round {
        Round(self.signs.load(Ordering::Acquire))
    }

    /// All of them have answered (Q4).
    pub(crate) fn all_have_answered(&self, round: Round) {
        let mut missing = lock(&self.missing);
        if self.signs.load(Ordering::Acquire) == round.0 {
            missing.clear();
            self.settled.store(round.0, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::Uncertainty;

    #[test]
    fn a_sign_counts_until_all_have_answered_who_were_asked_after_it() {
        let detector = Detector::default();
        let lost = |number| {
            let (server, why) = (ServerId::new(number), Uncertainty::ConnectionLost);
            FabricError::Indeterminate { server, why }
        };
        assert!(detector.all_there());
        detector.learn(&FabricError::QueueFull { depth: 1 });
        assert!(detector.all_there());
        let early = detector.begin_round();
        detector.learn(&lost(3));
        detector.all_have_answered(early);
        assert_eq!((detector.all_there(), detector.missing()), (false, vec![3]));
        let round = detector.begin_round();
        detector.learn(&lost(1));
        detector.all_have_answered(round);
        assert_eq!((detector.all_there(), detector.missing()), (false, vec![1, 3]));
        detector.all_have_answered(detector.begin_round());
        assert_eq!((detector.all_there(), detector.missing()), (true, vec![]));
    }
}
