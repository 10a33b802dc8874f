//! What compactions that run beside one another have claimed (lsm.V7).
//!
//! *Thread safety*: plain values.

use farleaf_page::table::KeyBuf;

/// What a compaction beside others takes, and where it puts it.
#[derive(Clone, Debug, Default)]
pub(super) struct CompactionClaim {
    /// The ids of the tables. None: the lane is taken for a part of a compaction.
    pub(super) inputs: Vec<u64>,
    /// The level of the outputs, which is not 0.
    pub(super) into: usize,
    /// The smallest and the largest key of all inputs.
    pub(super) keys: (KeyBuf, KeyBuf),
}

impl CompactionClaim {
    /// Whether both have an input in common.
    pub(super) fn shares(&self, other: &Self) -> bool {
        self.inputs.iter().any(|input| other.inputs.contains(input))
    }

    /// Whether both cannot run at the same time (V7).
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        let overlap = self.keys.0 <= other.keys.1 && other.keys.0 <= self.keys.1;
        (self.into == other.into && overlap) || self.shares(other)
    }
}
