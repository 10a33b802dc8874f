//! Inspects the pages that clients access one-sided: the trees of the fine-grained design and of
//! Sherman, and the leaves of the hybrid design.
//!
//! *Invariants while no page on the path is held or half written*
//! - fine: B1 and B2 of `farleaf_trees::fine`, as checked by [`super::walk`]. The lists in
//!   heads are hints and are not inspected.
//! - Sherman: the same. No key is in two entries of a leaf (entries.N2), and at the end of a run no
//!   entry is torn and no entry lock is held.
//! - hybrid: Y1 and Y2 of `farleaf_trees::hybrid`: one chain through all shares, in which
//!   each share's first leaf begins at the beginning of the share.
//!
//! *Invariant at every moment* in the hybrid design (Y3): a record of a server's tree names a leaf
//! that begins at its key, even while the leaf is locked, because a change removes the record
//! first.

use super::walk::{Inspection, PageAccess, PagePlace, WalkStop, records, unnamed};
use super::{ExpectedState, NamedRecords};
use farleaf_fabric::{GlobalAddr, Region, RpcService};
use farleaf_page::{NamedLayout, OwnedKey, Page, Superblock};

impl<L: NamedLayout> Inspection<'_, L> {
    pub(super) fn blink(&mut self) -> Result<NamedRecords, WalkStop> {
        let root = Superblock::root(self.superblock(0));
        records(&self.leaves(root, PageAccess::OneSided)?)
    }

    fn superblock(&self, server: usize) -> &[farleaf_fabric::sync::AtomicU64] {
        &Region::words(self.pool.servers[server].region())[..Superblock::WORDS]
    }

    pub(super) fn hybrid(&mut self) -> Result<NamedRecords, WalkStop> {
        let named = self.named()?;
        let firsts = self.firsts()?;
        let leaves = self.chain(firsts[0].1, 0, PageAccess::OneSided)?;
        let place = |leaf: &Page<'_, L>| (L::low(*leaf), leaf.address());
        let missing = firsts.iter().find(|first| !leaves.iter().any(|leaf| place(leaf) == **first));
        if let Some((low, at)) = missing {
            let fault = format!("the first leaf of a share at {at:?} does not begin at {low:?}");
            return Err(WalkStop::Wrong(fault));
        }
        // If a tree could not be inspected, some leaves may be missing in the other trees.
        let Some(mut known) = named else { return records(&leaves) };
        known.extend(firsts);
        known.sort_unstable();
        self.check_known(&known, &leaves, "a memory server")?;
        records(&leaves)
    }

    /// The first leaves of the shares, which no record names.
    fn firsts(&self) -> Result<Vec<PagePlace<L>>, WalkStop> {
        let lows = std::iter::once(L::min_key()).chain(self.pool.boundaries.iter().cloned());
        let firsts = (0..self.pool.servers.len()).map(|server| {
            Superblock::read::<L>(self.superblock(server)).map(|found| found.first_leaf)
        });
        lows.zip(firsts)
            .map(|(low, first)| {
                Ok((low, first.map_err(|error| WalkStop::Wrong(error.to_string()))?))
            })
            .collect()
    }

    /// The leaves that the servers' trees name (Y3), or `None` if one of the trees is being
    /// changed.
    fn named(&mut self) -> Result<Option<Vec<PagePlace<L>>>, WalkStop> {
        let mut named = Some(Vec::new());
        for server in 0..self.pool.servers.len() {
            let Some(leaves) = self.tree_of(server)? else {
                named = None;
                continue;
            };
            for (key, value) in unnamed(&leaves) {
                if self.pool.boundaries.partition_point(|low| *low <= key) != server {
                    let fault = format!("server {server} names a leaf from {key:?} on");
                    return Err(WalkStop::Wrong(fault));
                }
                let at = L::address_of_value(L::value(&value));
                self.check_named(&key, at)?;
                if let Some(all) = &mut named {
                    all.push((key, at));
                }
            }
        }
        Ok(named)
    }

    /// Checks Y3, even for a leaf that is locked.
    fn check_named(&self, key: &OwnedKey<L>, at: GlobalAddr) -> Result<(), WalkStop> {
        let page = self.pool.page(at)?;
        let is_half_written = self.expect == ExpectedState::WellFormed && !page.is_of_one_piece();
        if is_half_written || self.pool.dying.contains(&at.server().number()) {
            return Ok(());
        }
        let what = match page {
            _ if self.is_free(at) => "is free",
            _ if page.address() != at => "has another address in its header",
            _ if page.is_dead() => "is dead",
            _ if page.level() > 0 || page.is_head() => "is not a leaf",
            _ if L::low(page) != *key => "does not begin there",
            _ => return Ok(()),
        };
        let fault = format!("a memory server leads from {key:?} to {at:?}, which {what}: {page:?}");
        Err(WalkStop::Wrong(fault))
    }
}
