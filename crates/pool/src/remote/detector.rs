//! Failure detector: which memory servers a compute server can reach, as known to its threads.
//!
//! All threads of a compute server report errors here. A change in a cache is only as durable as
//! the memory servers that will store it. So from the first sign that one of them may be gone, no
//! change is acknowledged until all of them have answered again.
//!
//! *Invariant* Q4: a sign counts until a round of probes that began after it has reached every
//! memory server.
//!
//! *Thread safety*: any number of threads.

use farleaf_fabric::sync::{AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{FabricError, ServerId};
use std::collections::BTreeSet;

/// The known state of the memory servers.
#[derive(Debug, Default)]
pub struct FailureDetector {
    /// Number of signs so far that a memory server may be gone.
    signs: AtomicU64,
    /// Number of signs that a complete round has settled.
    settled: AtomicU64,
    /// The memory servers that unsettled signs refer to.
    missing: Mutex<BTreeSet<u16>>,
}

/// A round of probes that has begun.
#[derive(Clone, Copy, Debug)]
pub struct ProbeRound(u64);

/// The memory server that may be gone, according to an error.
fn gone(error: &FabricError) -> Option<ServerId> {
    match error {
        FabricError::Indeterminate { server, .. }
        | FabricError::Restarted { server }
        | FabricError::NotLetIn { server, .. }
        | FabricError::NotSent { server } => Some(*server),
        _ => None,
    }
}

impl FailureDetector {
    /// Whether all memory servers are reachable, as far as is known.
    #[inline]
    pub fn all_there(&self) -> bool {
        self.signs.load(Ordering::Acquire) == self.settled.load(Ordering::Acquire)
    }

    /// The memory servers that may be gone.
    pub fn missing(&self) -> Vec<u16> {
        lock(&self.missing).iter().copied().collect()
    }

    /// Records a sign if `error` says that a memory server may be gone.
    pub fn learn(&self, error: &FabricError) {
        if let Some(server) = gone(error) {
            let mut missing = lock(&self.missing);
            missing.insert(server.number());
            self.signs.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Begins a round. Call it before probing any memory server.
    pub fn begin_round(&self) -> ProbeRound {
        ProbeRound(self.signs.load(Ordering::Acquire))
    }

    /// Ends a round in which every memory server has answered (Q4).
    pub fn all_have_answered(&self, round: ProbeRound) {
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
        let detector = FailureDetector::default();
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
