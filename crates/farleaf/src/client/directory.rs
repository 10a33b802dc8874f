//! Where compute servers are, as a client learns it from outside.
//!
//! *Thread safety*: that of the implementation; a client uses it from its own thread.

use crate::partition::PartitionMap;

/// What a client asks after it has lost a compute server. No call waits for anything.
pub trait Directory<K>: std::fmt::Debug {
    /// Whether `compute_server` is known not to be there: nothing is sent to it.
    fn is_absent(&self, compute_server: u16) -> bool;

    /// Starts looking up all compute servers again, because one did not answer.
    fn look_again(&self);

    /// The partition map, if a newer one than that of `epoch` is known.
    fn newer_map(&self, epoch: u64) -> Option<PartitionMap<K>>;
}

/// Compute servers that stay where they are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fixed;

impl<K> Directory<K> for Fixed {
    fn is_absent(&self, _compute_server: u16) -> bool {
        false
    }

    fn look_again(&self) {}

    fn newer_map(&self, _epoch: u64) -> Option<PartitionMap<K>> {
        None
    }
}
