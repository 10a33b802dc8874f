//! Which versions survive a compaction of tables.
//!
//! *Invariants*
//! - lsm.J5. A version survives if it is the newest of its key, or the newest at or below a
//!   snapshot. Snapshots that begin later are newer than all inputs.
//! - lsm.J6. A tombstone is dropped only if no deeper level covers its key and no snapshot is older
//!   than it, so that no version is left that it hides.
//!
//! *Thread safety*: plain values.

use super::key::{KeyBuf, TableKey};
use super::record::RecordKind;

/// The key ranges of the levels below the compaction.
#[derive(Clone, Debug)]
pub struct LowerLevels {
    /// Both ends are inclusive. Ascending and disjoint.
    ranges: Vec<(KeyBuf, KeyBuf)>,
    is_everywhere: bool,
}

impl LowerLevels {
    /// Deeper levels may have any key, so no tombstone is dropped.
    pub fn everything() -> Self {
        Self { ranges: Vec::new(), is_everywhere: true }
    }

    /// There are no deeper levels: the compaction is at the bottom.
    pub fn nothing() -> Self {
        Self { ranges: Vec::new(), is_everywhere: false }
    }

    /// The deeper levels have tables with these smallest and largest keys, in any order.
    pub fn tables(mut ranges: Vec<(KeyBuf, KeyBuf)>) -> Self {
        ranges.sort();
        ranges.dedup_by(|next, kept| {
            let overlaps = next.0 <= kept.1;
            if overlaps && next.1 > kept.1 {
                kept.1.set(next.1.key());
            }
            overlaps
        });
        Self { ranges, is_everywhere: false }
    }

    /// Whether a deeper level may have `key`.
    pub fn covers(&self, key: TableKey<'_>) -> bool {
        let next = self.ranges.partition_point(|range| range.1.key() < key);
        self.is_everywhere || self.ranges.get(next).is_some_and(|range| range.0.key() <= key)
    }
}

/// Decides for each record, in table order, whether it survives.
#[derive(Clone, Debug)]
pub struct Survival {
    /// In ascending order.
    snapshots: Vec<u64>,
    below: LowerLevels,
    /// The sequence number of the previous record, if it has the same key.
    newer: Option<u64>,
}

impl Survival {
    /// Creates the decision state. `snapshots` are the bounds of those in use, in any order.
    pub fn new(mut snapshots: Vec<u64>, below: LowerLevels) -> Self {
        snapshots.sort_unstable();
        Self { snapshots, below, newer: None }
    }

    /// Whether the next version stays: that of `key` with this sequence number. `is_first` says
    /// that the version before has another key. A second version with the same key and sequence
    /// number goes.
    #[inline]
    pub fn keeps(
        &mut self,
        key: TableKey<'_>,
        sequence: u64,
        kind: RecordKind,
        is_first: bool,
    ) -> bool {
        let newer = if is_first { None } else { self.newer };
        self.newer = Some(sequence);
        let older_snapshots = self.snapshots.partition_point(|&bound| bound < sequence);
        let is_seen = newer.is_none_or(|newer| {
            self.snapshots.get(older_snapshots).is_some_and(|&bound| bound < newer)
        });
        let hides_nothing = kind == RecordKind::Tombstone
            && older_snapshots == 0
            && is_seen
            && !self.below.covers(key);
        is_seen && !hides_nothing
    }
}
