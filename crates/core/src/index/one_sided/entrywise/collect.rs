//! Joining leaves: only one that has no record left is joined, with the leaf on its left, if that
//! has none either, by the client that has removed the last record.
//!
//! Nodes that are joined are dead for good: their memory is not used again, so a cached parent
//! leads to a leaf or to a dead one, never to another node (entrywise.S1). A collection does
//! nothing: sparse leaves stay, as in the papers' programs.
//!
//! *Invariants*
//! - entrywise.J1. The dead leaf had no record when its entry lock was taken, and gets none after
//!   that. It keeps its place in the chain of versions, and ends where it begins, so that its
//!   windows cover no key.
//! - entrywise.J2. The entry locks of both leaves are held, the left one taken first, while the
//!   pages are locked and written (entries.E3).

use super::super::{
    BlinkTree, Collect, CollectCursor, JoinPair, Pair, join_below, lock_all, sparse_pair,
};
use super::EntryTree;
use crate::index::IndexError;
use crate::page::{Layout, OwnedKey, Probe};
use crate::remote::{Change, EntryHold, Image, Miss, PageCopy};
use crate::rules;
use farleaf_fabric::{Fabric, GlobalAddr, Work};

impl<F: Fabric, L: Layout> Collect for EntryTree<F, L> {
    async fn collect_all(&self) -> Result<(), IndexError> {
        self.tree.pages.settle_doubts().await;
        self.end_pass().await
    }

    async fn collect_step(
        &self,
        _cursor: CollectCursor<OwnedKey<L>>,
    ) -> Result<Option<CollectCursor<OwnedKey<L>>>, IndexError> {
        Ok(None)
    }

    /// Returns nodes that were allocated and not used.
    async fn end_pass(&self) -> Result<(), IndexError> {
        Ok(self.tree.pages.share_free_nodes().await?)
    }
}

impl<F: Fabric, L: Layout> JoinPair for EntryTree<F, L> {
    fn tree(&self) -> &BlinkTree<F, L> {
        &self.tree
    }

    async fn join_pair(&self, parent: &PageCopy<L>, slot: usize) -> Result<bool, Miss> {
        if parent.page().level() == 1 {
            return self.join_leaves(parent, slot).await;
        }
        let Some([left, right]) = sparse_pair(self, parent, slot).await? else { return Ok(false) };
        if left.page().sibling() != right.at() {
            return Ok(false);
        }
        let joined = join_below(&self.tree.pages, parent, slot, &left, &right).await?;
        Ok(!matches!(joined, Pair::Untouched))
    }
}

impl<F: Fabric, L: Layout> EntryTree<F, L> {
    /// Joins the leaf behind `slot` with that at `slot`, if it has no record.
    async fn join_leaves(&self, parent: &PageCopy<L>, slot: usize) -> Result<bool, Miss> {
        let leaf = |slot| L::inner_child(parent.page(), slot);
        let (left, right) = (leaf(slot), leaf(slot + 1));
        let seen = self.read(right).await?;
        if seen.page().live_count() > 0 {
            return Ok(false);
        }
        let lows = [slot, slot + 1].map(|slot| L::inner_key(parent.page(), slot));
        let joined = match L::BY_ENTRIES {
            false => {
                let left = self.read(left).await?;
                self.join_copies(parent, slot, &left, &seen).await
            }
            true => {
                let mut left_hold = self.hold_leaf(left, L::key(&lows[0])).await?;
                let mut right_hold = match self.hold_leaf(right, L::key(&lows[1])).await {
                    Ok(hold) => hold,
                    Err(miss) => {
                        self.tree.pages.release_entries(left_hold).await;
                        return Err(miss);
                    }
                };
                // Read again: only the holder of a leaf's lock knows that it stays empty (J1).
                let join = async {
                    let before_locks = self.tree.pages.fabric().breaks(rules::EMPTY_UNDER_LOCK);
                    let lower = self.read(left).await?;
                    let upper = if before_locks { seen } else { self.read(right).await? };
                    self.join_copies(parent, slot, &lower, &upper).await
                };
                let joined = left_hold.rewriting(right_hold.rewriting(join)).await;
                self.tree.pages.end_entries(right_hold).await;
                self.tree.pages.end_entries(left_hold).await;
                joined
            }
        };
        if matches!(joined, Ok(true) | Err(_)) {
            self.forget(Probe::At(L::key(&lows[1])));
        }
        joined
    }

    /// The entry lock of a leaf with this lowest key.
    async fn hold_leaf(&self, at: GlobalAddr, low: &L::Key) -> Result<EntryHold<'_>, Miss> {
        let owner = self.sides.owner_of(Probe::At(low));
        self.tree.pages.hold_entries_by(self.sides.locks(owner), at).await
    }

    /// Joins two leaves, if the right one has no record and both are as the parent says.
    async fn join_copies(
        &self,
        parent: &PageCopy<L>,
        slot: usize,
        left: &PageCopy<L>,
        right: &PageCopy<L>,
    ) -> Result<bool, Miss> {
        let pages = &self.tree.pages;
        let low = L::low(right.page());
        let are_neighbours = left.page().level() == 0
            && right.page().level() == 0
            && left.page().sibling() == right.at()
            && L::low(left.page()) == L::inner_key(parent.page(), slot)
            && low == L::inner_key(parent.page(), slot + 1);
        // A leaf that is empty alone stays: its memory would be lost, and the next insertion of its
        // keys might need more.
        let are_empty = left.page().live_count() == 0 && right.page().live_count() == 0;
        if !are_neighbours || !are_empty {
            return Ok(false);
        }
        let (lower, upper) = (Image::of(left.page()), Image::of(right.page()));
        if L::HAS_HEAP {
            L::leaf_compact(lower.page());
            L::leaf_compact(upper.page());
            if !L::fits_merged(lower.page(), upper.page()) {
                return Ok(false);
            }
            L::merge(lower.page(), upper.page());
        } else {
            L::set_high(lower.page(), L::high(right.page()).as_ref().map(L::key));
            lower.page().set_sibling(right.page().sibling());
            L::set_high(upper.page(), Some(L::key(&low)));
        }
        upper.page().set_dead();
        let above = Image::of(parent.page());
        L::inner_remove(above.page(), slot + 1);
        let [parent_lock, left_lock, right_lock] = lock_all(pages, [parent, left, right]).await?;
        pages.fabric().charge(Work::RestructureNode).await;
        // Readers of the dead leaf start again until the left one covers its keys.
        let changes = vec![
            Change::new(right_lock, right, upper),
            Change::new(parent_lock, parent, above),
            Change::new(left_lock, left, lower),
        ];
        pages.commit_together(changes).await?;
        Ok(true)
    }
}
