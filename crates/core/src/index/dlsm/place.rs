//! Where merges run, and what they have cost there.
//!
//! *Thread safety*: plain values.

/// Where merges run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergePlace {
    /// On compute servers.
    #[default]
    Compute,
    /// On memory servers, if they can.
    Memory,
    /// Where they have taken less time so far.
    ByCost,
}

/// One decision in this many is the contrary one, so that a side that was slow is tried again.
const CONTRARY: u64 = 100;
/// The share of a new measurement in an average: one part in this many.
const SHARE: f64 = 16.0;

/// What merges have cost, in nanoseconds for each word of input. 0 if none was measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MergeCosts {
    near: f64,
    far: f64,
    decisions: u64,
}

impl MergeCosts {
    /// Whether the next merge runs on the memory server.
    pub(super) fn decide(&mut self) -> bool {
        self.decisions += 1;
        match (self.near == 0.0, self.far == 0.0) {
            (true, _) => true,
            (_, true) => false,
            _ => (self.near <= self.far) != self.decisions.is_multiple_of(CONTRARY),
        }
    }

    /// Records the cost of a merge.
    pub(super) fn note(&mut self, is_near: bool, ns_per_word: f64) {
        let average = if is_near { &mut self.near } else { &mut self.far };
        *average = match *average == 0.0 {
            true => ns_per_word.max(f64::MIN_POSITIVE),
            false => *average + (ns_per_word - *average) / SHARE,
        };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn merges_run_where_they_cost_less() {
        let mut costs = MergeCosts::default();
        assert!(costs.decide());
        costs.note(true, 3.0);
        assert!(!costs.decide(), "the other side is not measured yet");
        costs.note(false, 2.0);
        let near = (0..1_000).filter(|_| costs.decide()).count();
        assert_eq!(near, 10, "one decision in 100 is the contrary one");
        (0..50).for_each(|_| costs.note(false, 9.0));
        let near = (0..1_000).filter(|_| costs.decide()).count();
        assert_eq!(near, 990);
    }
}
