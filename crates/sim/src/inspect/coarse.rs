//! Inspects the memory servers' trees, which are the index of the coarse-grained design, and locate
//! the leaves of the hybrid one.
//!
//! *Invariants while no latch on the path is held*: T1, T2 and T4 of `farleaf_pool::server::tree`,
//! as checked by [`super::walk`]. *At the end*, each node that a tree has allocated is either in
//! the tree or retired, so none leaks.

use super::walk::{Inspection, PageAccess, WalkStop, records};
use super::{ExpectedState, NamedRecords};
use farleaf_fabric::{Region, RpcService};
use farleaf_page::{NamedLayout, Page, Superblock};

impl<'a, L: NamedLayout> Inspection<'a, L> {
    /// The records of all trees, ordered by key.
    pub(super) fn coarse(&mut self) -> Result<NamedRecords, WalkStop> {
        let mut all = Vec::new();
        for number in 0..self.pool.servers.len() {
            all.extend(records(&self.tree_of(number)?.unwrap_or_default())?);
        }
        // Under hash partitioning, each server has keys from the whole key space.
        all.sort_unstable();
        Ok(all)
    }

    /// The leaves of a memory server's tree, or `None` if a page on the path is held.
    pub(super) fn tree_of(&mut self, number: usize) -> Result<Option<Vec<Page<'a, L>>>, WalkStop> {
        let server = &self.pool.servers[number];
        let root = Superblock::root(&Region::words(server.region())[..Superblock::WORDS]);
        let met_before = self.met.len();
        let leaves = match self.leaves(root, PageAccess::OnServer) {
            Err(WalkStop::Held) => return Ok(None),
            leaves => leaves?,
        };
        let (taken, retired) = (server.tree().usage().nodes_in_use, server.tree().retired_nodes());
        let found = (self.met.len() - met_before + retired.len()) as u64;
        if self.expect != ExpectedState::WellFormed && taken != found {
            let fault = format!("the tree of server {number} has {taken} nodes, {found} are there");
            return Err(WalkStop::Wrong(fault));
        }
        Ok(Some(leaves))
    }
}
