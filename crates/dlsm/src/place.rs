//! Where compactions run, and what they have cost there.
//!
//! *Thread safety*: plain values.

use farleaf_index::named;

/// Where compactions run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompactionPlace {
    /// On compute servers.
    #[default]
    Compute,
    /// On memory servers, if they can.
    Memory,
    /// On the side that is expected to end first, by the costs measured so far.
    ByCost,
}

named!(CompactionPlace, "compute, memory or by-cost", {
    Compute: "compute",
    Memory: "memory",
    ByCost: "by-cost",
});

/// One decision in this many picks the other side, so that a side that was slow is tried again.
const CONTRARY: u64 = 100;
/// The share of a new measurement in an average: one part in this many.
const SHARE: f64 = 16.0;

/// What compactions have cost, and how much is being merged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompactionCosts {
    near: PlacementSide,
    far: PlacementSide,
    decisions: u64,
}

/// One of the sides.
#[derive(Clone, Copy, Debug, Default)]
struct PlacementSide {
    /// Nanoseconds for each word of input. 0 if none was measured.
    ns_per_word: f64,
    /// Words of input of running compactions.
    under_way: u64,
}

impl CompactionCosts {
    /// Whether the next compaction, of `words` words, runs on the memory server: where it would end
    /// first. A memory server runs `workers` merges at a time. The words count as under way until
    /// [`CompactionCosts::end`].
    pub(super) fn decide(&mut self, words: u64, workers: usize) -> bool {
        self.decisions += 1;
        let ends = |side: &PlacementSide, together: f64| {
            side.ns_per_word * (words as f64 + side.under_way as f64 / together)
        };
        let is_near = match (self.near.ns_per_word == 0.0, self.far.ns_per_word == 0.0) {
            (true, _) => true,
            (_, true) => false,
            _ => {
                let is_first = ends(&self.near, workers.max(1) as f64) <= ends(&self.far, 1.0);
                is_first != self.decisions.is_multiple_of(CONTRARY)
            }
        };
        self.side(is_near).under_way += words;
        is_near
    }

    fn side(&mut self, is_near: bool) -> &mut PlacementSide {
        if is_near { &mut self.near } else { &mut self.far }
    }

    /// A compaction of `words` words is no longer under way.
    pub(super) fn end(&mut self, is_near: bool, words: u64) {
        let side = self.side(is_near);
        side.under_way = side.under_way.saturating_sub(words);
    }

    /// Records the cost of a compaction.
    pub(super) fn note(&mut self, is_near: bool, ns_per_word: f64) {
        let average = &mut self.side(is_near).ns_per_word;
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
    fn merges_run_where_they_would_end_first() {
        let mut costs = CompactionCosts::default();
        let decide = |costs: &mut CompactionCosts| {
            let is_near = costs.decide(10, 2);
            costs.end(is_near, 10);
            is_near
        };
        assert!(decide(&mut costs));
        costs.note(true, 3.0);
        assert!(!decide(&mut costs), "the other side is not measured yet");
        costs.note(false, 2.0);
        let near = (0..1_000).filter(|_| decide(&mut costs)).count();
        assert_eq!(near, 10, "one decision in 100 is the contrary one");
        (0..50).for_each(|_| costs.note(false, 9.0));
        let near = (0..1_000).filter(|_| decide(&mut costs)).count();
        assert_eq!(near, 990);
        // Near the data, the fifth one waits for half of the others, 3 × (10 + 40 / 2) ns, and on
        // the other side it costs some 8.7 × 10 ns. The sixth one would wait for the fifth there.
        let sides: Vec<bool> = (0..6).map(|_| costs.decide(10, 2)).collect();
        assert_eq!(sides, [true, true, true, true, false, true]);
    }
}
