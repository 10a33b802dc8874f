//! Where the entries of a page were inserted last: a hint in the page's header that lets a split
//! leave a page full behind keys that arrive in order.
//!
//! ```text
//! [0:1][confidence:5][descending:1][slot:9]      in the reserved bits of word 4; 0 is no trend
//! ```
//!
//! Each insertion is a vote: one that is next to the last one of its run, by slot, confirms it, and
//! any other one weakens it. A weak run gives way to the newest insertion. So several clients that
//! append at places of their own can share a page, and one of their runs is known when it splits. A
//! page that gets keys in random order has no run: two confirmations in a row are rare.
//!
//! *Invariant*: trend.R1. A trend is only a hint. Any value leads to a split that leaves entries,
//! and room for another one, on both sides. (The fences of byte strings may leave one half empty.)
//!
//! *Thread safety*: plain values.

/// The confidence in a run of one insertion: so many others can come before its second one.
const NEW: u16 = 4;
/// What an insertion that continues the run adds. An insertion elsewhere takes 1 away.
const CONFIRMED: u16 = 6;
const MAX_CONFIDENCE: u16 = 31;
/// From this confidence on, splits follow the run: after two continuations at least.
const CERTAIN: u16 = 14;

const SLOT: u16 = 0x1ff;
const DESCENDING: u16 = 1 << 9;
const CONFIDENCE_SHIFT: u32 = 10;

/// The latest run of insertions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InsertionTrend {
    /// The slot of the run's last entry.
    slot: u16,
    is_descending: bool,
    confidence: u16,
}

impl InsertionTrend {
    pub(super) const fn from_bits(bits: u16) -> Self {
        Self {
            slot: bits & SLOT,
            is_descending: bits & DESCENDING != 0,
            confidence: bits >> CONFIDENCE_SHIFT & MAX_CONFIDENCE,
        }
    }

    pub(super) const fn to_bits(self) -> u16 {
        let descending = if self.is_descending { DESCENDING } else { 0 };
        self.confidence << CONFIDENCE_SHIFT | descending | self.slot & SLOT
    }

    /// The trend after an insertion at `slot`, whose entries have moved up by one.
    pub(super) fn after(self, slot: usize) -> Self {
        let slot = slot as u16 & SLOT;
        // A run of one has no direction yet.
        let is_open = self.confidence <= NEW;
        let ascends = slot == self.slot + 1 && (is_open || !self.is_descending);
        let descends = slot == self.slot && (is_open || self.is_descending);
        match self.confidence {
            0 | 1 if !(self.confidence == 1 && (ascends || descends)) => {
                Self { slot, is_descending: false, confidence: NEW }
            }
            confidence if ascends || descends => Self {
                slot,
                is_descending: descends,
                confidence: (confidence + CONFIRMED).min(MAX_CONFIDENCE),
            },
            confidence => Self {
                // The run's last entry has moved up if the new one is below it.
                slot: (self.slot + u16::from(slot <= self.slot)).min(SLOT),
                confidence: confidence - 1,
                ..self
            },
        }
    }

    /// How many of `count` entries, at least two, a split should leave in the lower half; `None` if
    /// it is not certain that there is a run. `pending` is the number of entries below the one that
    /// waits for the split, if there is one. The lower half ends where the run continues, in either
    /// direction, so that entries above the run take no room from it.
    pub(super) fn divide(self, count: usize, pending: Option<usize>) -> Option<usize> {
        let slot = usize::from(self.slot);
        if self.confidence < CERTAIN || slot >= count || count < 2 {
            return None;
        }
        let (at, is_edge) = match self.is_descending {
            false => (slot + 1, slot + 1 == count),
            true => (slot, slot == 0),
        };
        let at = match pending {
            // At the edge of the page, all but one entry stay behind the run. If another client's
            // entry waits, the split is next to that entry instead.
            Some(pending) if is_edge => pending,
            _ => at,
        };
        Some(at.clamp(1, count - 1))
    }
}

/// Steps of a run whose keys are compared with the gap behind it.
const STEPS: usize = 4;
/// A run ends at a gap of more than so many times its last steps together.
const GAP: u64 = 16;

/// Whether a key seems to be where a run of insertions ends, for pages that do not show in which
/// order their records came. `below` records have lower keys.
///
/// That holds at either end of the page, and where the keys on one side are far closer together
/// than the gap on the other side. Among random keys, one place in 40,000 is like that.
pub(super) fn ends_a_run(records: &[(u64, u64)], below: usize, key: u64) -> bool {
    let key_at = |at: usize| records.get(at).map(|record| record.0);
    let before = |steps: usize| below.checked_sub(steps).and_then(key_at);
    let after = |steps: usize| key_at(below + steps - 1);
    let (Some(last), Some(next)) = (before(1), after(1)) else { return true };
    let is_gap = |gap: u64, run: u64| gap / GAP > run;
    before(STEPS).is_some_and(|first| is_gap(next - key, key - first))
        || after(STEPS).is_some_and(|first| is_gap(key - last, first - key))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn trend(slots: impl IntoIterator<Item = usize>) -> InsertionTrend {
        slots.into_iter().fold(InsertionTrend::default(), InsertionTrend::after)
    }

    #[test]
    fn runs_at_either_end_leave_one_entry_for_the_next_page() {
        let (ascending, descending) = (trend(0..60), trend([0; 60]));
        assert_eq!(ascending.divide(60, Some(60)), Some(59));
        assert_eq!(
            (ascending.divide(60, None), ascending.divide(60, Some(20))),
            (Some(59), Some(20))
        );
        assert_eq!(descending.divide(60, Some(0)), Some(1));
        assert_eq!(descending.divide(60, None), Some(1));
        // The children of an inner node: the first one stays the first.
        assert_eq!(trend([0].into_iter().chain([1; 59])).divide(60, None), Some(1));
    }

    #[test]
    fn runs_within_a_page_are_divided_from_what_follows() {
        // An older run has to be forgotten first. Ten of its entries are above the new one.
        let ascending = trend((0..20).chain(10..50));
        assert_eq!(ascending.divide(60, Some(50)), Some(50));
        assert_eq!(ascending.divide(60, Some(60)), Some(50), "whichever entry waits");
        let descending = trend((0..20).chain([10; 40]));
        assert_eq!(descending.divide(60, Some(10)), Some(10));
    }

    /// Four clients append in turn, each at a place of its own.
    #[test]
    fn a_run_is_known_among_four() {
        let mut ends = [0, 0, 0, 0];
        let mut now = InsertionTrend::default();
        let mut known = 0;
        for insertion in 0..60 {
            let writer = insertion % 4;
            now = now.after(ends[writer]);
            ends[writer..].iter_mut().for_each(|end| *end += 1);
            let at = now.divide(insertion + 1, None);
            // The last writer's run ends with the page, where one entry is left for the next page.
            let is_end = |at: usize| ends.contains(&at) || at == insertion;
            known += usize::from(at.is_some_and(is_end));
            assert!(at.is_none_or(is_end), "{at:?} {ends:?}");
        }
        assert!(known > 30, "{known}");
    }

    #[test]
    fn random_order_has_no_trend() {
        let mut state = 1_u64;
        let mut now = InsertionTrend::default();
        let mut known = 0;
        for insertion in 0..60_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let count = 30 + insertion % 30;
            now = now.after((state >> 33) as usize % (count + 1));
            known += usize::from(now.divide(count + 1, None).is_some());
        }
        assert!(known < 1_200, "{known} of 60000");
    }

    #[test]
    fn gaps_end_runs_and_random_keys_have_none() {
        let series: Vec<(u64, u64)> = (0..40).map(|n| ((n / 20) << 40 | n, 0)).collect();
        let ends = |key: u64| {
            let below = series.partition_point(|record| record.0 < key);
            ends_a_run(&series, below, key)
        };
        assert!(ends(20) && ends(1 << 40 | 40) && ends((1 << 40) + 19), "both runs, either way");
        assert!(!ends(1 << 39), "in the middle of nowhere");
        let apart: Vec<(u64, u64)> = (0..40).map(|n| (n * 1_000, 0)).collect();
        assert!((1..40).all(|below| !ends_a_run(&apart, below, below as u64 * 1_000 - 1)));
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state ^ state >> 31).wrapping_mul(0x94d0_49bb_1331_11eb)
        };
        let mut found = 0;
        for _ in 0..20_000 {
            let mut records: Vec<(u64, u64)> = (0..37).map(|_| (random(), 0)).collect();
            records.sort_unstable();
            let (key, _) = records.remove(18);
            found += usize::from(ends_a_run(&records, 18, key));
        }
        assert!(found <= 5, "{found} of 20000");
    }

    #[test]
    fn any_bits_are_a_trend() {
        for bits in 0..=u16::MAX {
            let now = InsertionTrend::from_bits(bits);
            assert_eq!(now.to_bits(), bits & 0x7fff);
            for (count, pending) in [(2, None), (2, Some(2)), (60, Some(0)), (60, Some(60))] {
                let at = now.divide(count, pending);
                assert!(at.is_none_or(|at| (1..count).contains(&at)), "{bits} {at:?}");
            }
            assert_eq!(InsertionTrend::from_bits(now.after(511).to_bits()), now.after(511));
        }
    }
}
