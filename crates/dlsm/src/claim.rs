//! The claims of compactions that run concurrently (lsm.V7).
//!
//! *Thread safety*: plain values.

use farleaf_page::table::KeyBuf;

/// The inputs and the output range of a compaction that runs concurrently with others.
#[derive(Clone, Debug, Default)]
pub(super) struct CompactionClaim {
    /// The ids of the input tables. Empty if the lane is taken for a part of another compaction.
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
