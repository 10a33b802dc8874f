//! An external source for the addresses of compute servers.
//!
//! *Thread safety*: that of the implementation; a client uses it from its own thread.

use crate::partition::PartitionMap;

/// The source that a client asks after losing a compute server. No call blocks.
pub trait Directory<K>: std::fmt::Debug {
    /// Whether `compute_server` is known to be absent. The client sends it nothing then.
    fn is_absent(&self, compute_server: u16) -> bool;

    /// Starts looking up all compute servers again, because one did not answer.
    fn look_again(&self);

    /// The partition map, if one newer than `epoch` is known.
    fn newer_map(&self, epoch: u64) -> Option<PartitionMap<K>>;
}

/// A directory of compute servers with fixed addresses.
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
