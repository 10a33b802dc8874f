//! The right to answer, which a compute server needs where another one may take its keys over.
//!
//! *Invariant* over.T2 (`docs/internals/takeover.md`): an answer leaves only if the right still
//! held after everything that the answer reports was read. An answered probe proves that at its
//! posting its memory server had not completed a fence, so the right counts from the posting.
//!
//! *Thread safety*: any number of threads.

use farleaf_fabric::sync::{AtomicBool, AtomicU64, Ordering};

/// How compute servers take over the keys of dead ones. All compute servers of an index have the
/// same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeoverOptions {
    /// How long a compute server may answer after the posting of its latest answered probe.
    pub right_ns: u64,
    /// Interval at which a compute server looks which others are registered.
    pub poll_ns: u64,
}

impl Default for TakeoverOptions {
    fn default() -> Self {
        Self { right_ns: 500_000_000, poll_ns: 200_000_000 }
    }
}

/// Probes of each memory server within the time of a right.
const PROBES_IN_A_RIGHT: u64 = 5;
/// After this many times of a right without an answered probe, a compute server asks whether it was
/// fenced.
const RIGHTS_UNTIL_DOUBT: u64 = 4;

/// A compute server's right to answer.
#[derive(Debug)]
pub(super) struct RightToAnswer {
    pub(super) options: TakeoverOptions,
    until_ns: AtomicU64,
    /// Whether the compute server knows that it was declared dead.
    lost: AtomicBool,
    /// Takeovers that this compute server has completed.
    pub(super) takeovers: AtomicU64,
}

impl RightToAnswer {
    pub(super) fn new(options: TakeoverOptions) -> Self {
        let (until_ns, takeovers) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { options, until_ns, lost: AtomicBool::new(false), takeovers }
    }

    /// Whether the right holds. Call it after everything that the answer reports was read.
    #[inline]
    pub(super) fn holds(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns.load(Ordering::Acquire)
    }

    /// Renews the right by an answered probe that was posted at `posted_ns`.
    pub(super) fn renew(&self, posted_ns: u64) {
        self.until_ns.fetch_max(posted_ns.saturating_add(self.options.right_ns), Ordering::AcqRel);
    }

    /// Interval between two probes of a memory server.
    pub(super) fn probe_interval_ns(&self) -> u64 {
        (self.options.right_ns / PROBES_IN_A_RIGHT).max(1)
    }

    /// How long another compute server waits after the last fence, by its own clock, until this
    /// right has ended: clocks may differ by a hundredth.
    pub(super) fn wait_ns(&self) -> u64 {
        self.options.right_ns + self.options.right_ns / 100 + 1
    }

    /// Whether the right ended so long ago that the compute server may have been fenced.
    pub(super) fn is_doubtful(&self, now_ns: u64, began_ns: u64) -> bool {
        let last_ns = self.until_ns.load(Ordering::Acquire).max(began_ns);
        now_ns > last_ns.saturating_add(self.options.right_ns * RIGHTS_UNTIL_DOUBT)
    }

    /// Ends the right for good.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Whether the compute server knows that it was declared dead.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_right_counts_from_the_posting_and_never_goes_back() {
        let right = RightToAnswer::new(TakeoverOptions { right_ns: 100, poll_ns: 10 });
        assert!(!right.holds(0), "there is none before the first answer");
        right.renew(50);
        right.renew(20);
        assert!(right.holds(149) && !right.holds(150));
        assert!(!right.is_doubtful(550, 0) && right.is_doubtful(551, 0));
        assert!(!right.is_doubtful(551, 400));
        assert_eq!((right.wait_ns(), right.probe_interval_ns()), (102, 20));
    }
}
