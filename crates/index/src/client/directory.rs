//! An external source for the addresses of compute servers.
//!
//! *Thread safety*: depends on the implementation; a client uses it from its own thread.

use super::Acknowledged;
use crate::partition::PartitionMap;

/// The source that a client consults after losing a compute server. No call blocks.
pub trait ServerDirectory<K> {
    /// Whether `compute_server` is known to be absent. If so, the client sends it nothing.
    fn is_absent(&self, compute_server: u16) -> bool;

    /// Looks up all compute servers again. Called when one did not answer.
    fn look_again(&self);

    /// The partition map, if a version newer than `epoch` is known.
    fn newer_map(&self, epoch: u64) -> Option<PartitionMap<K>>;

    /// The changes that compute servers have acknowledged to this program.
    fn acknowledged(&self) -> &Acknowledged;
}

/// A directory of compute servers with fixed addresses.
#[derive(Debug, Default)]
pub(super) struct FixedDirectory(Acknowledged);

impl<K> ServerDirectory<K> for FixedDirectory {
    fn is_absent(&self, _compute_server: u16) -> bool {
        false
    }

    fn look_again(&self) {}

    fn newer_map(&self, _epoch: u64) -> Option<PartitionMap<K>> {
        None
    }

    fn acknowledged(&self) -> &Acknowledged {
        &self.0
    }
}
