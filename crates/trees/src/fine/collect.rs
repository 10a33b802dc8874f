//! Collection removes deleted records, merges or rebalances sparse nodes, and frees nodes. Any
//! client can run it, all at once or step by step alongside its other work; one client at a time is
//! enough.
//!
//! *Invariants*
//! - fine.G1. Two nodes are merged under the locks of their parent and both nodes, taken in this
//!   order, and only if the parent has separators for both. So a separator that is not installed
//!   yet always finds its node unchanged.
//! - fine.G2. Parent, left and right node change together or not at all. Nodes that lose keys are
//!   written first.
//! - fine.G3. A node is dead, and nothing points to it, before it is retired.
//!
//! If a client dies before it installs a separator, the separator stays missing: readers take one
//! more step there, and the collection leaves the two nodes alone.

use super::FineIndex;
use crate::one_sided::{
    BlinkTree, Collect, CollectCursor, CollectOutcome, JoinPair, compact, join_below, lock_all,
    sparse_pair,
};
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_index::IndexError;
use farleaf_page::rules;
use farleaf_page::{DescentProbe, Layout, MAX_LEVEL, OwnedKey, are_too_empty};
use farleaf_pool::remote::{MissCause, PageChange, PageCopy, PageImage, RemoteError};

/// Maximum number of passes of a collection. Each pass empties one more level.
const MAX_PASSES: u32 = 2 * MAX_LEVEL as u32;
/// Maximum number of children of one parent in flight together.
const CHILDREN_AHEAD: usize = 16;

impl<F: Fabric, L: Layout> Collect for FineIndex<F, L> {
    async fn collect_all(&self) -> Result<(), IndexError> {
        self.tree.pages.settle_doubts().await;
        for _ in 0..MAX_PASSES {
            let mut cursor = CollectCursor::default();
            while let Some(next) = self.collect_step(cursor.clone()).await? {
                cursor = next;
            }
            let root_merged = self.tree.pages.attempts(async || self.collect_root().await).await?;
            if cursor.merged == 0 && !root_merged {
                break;
            }
        }
        self.refresh_heads().await?;
        Ok(self.tree.pages.share_free_nodes().await?)
    }

    /// Collects the children of one parent, or some of them; `None` at the end of a pass.
    async fn collect_step(
        &self,
        cursor: CollectCursor<OwnedKey<L>>,
    ) -> Result<Option<CollectCursor<OwnedKey<L>>>, IndexError> {
        let CollectCursor { level, key, mut merged } = cursor;
        let from = key.unwrap_or_else(L::min_key);
        let Some(next) = self
            .tree
            .pages
            .attempts(async || self.collect_if_there(level, L::key(&from), &mut merged).await)
            .await?
        else {
            return Ok(None);
        };
        let level = if next.is_none() { level + 1 } else { level };
        Ok(Some(CollectCursor { level, key: next, merged }))
    }

    /// Completes a pass that ran alongside other work: collects the root, refreshes heads, returns
    /// free nodes.
    async fn end_pass(&self) -> Result<(), IndexError> {
        match self.tree.pages.attempts(async || self.collect_root().await).await {
            Ok(_) | Err(RemoteError::Contended { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.refresh_heads().await?;
        Ok(self.tree.pages.share_free_nodes().await?)
    }
}

impl<F: Fabric, L: Layout> JoinPair for FineIndex<F, L> {
    fn tree(&self) -> &BlinkTree<F, L> {
        &self.tree
    }

    async fn join_pair(&self, parent: &PageCopy<L>, slot: usize) -> Result<bool, MissCause> {
        let Some([left, right]) = sparse_pair(self, parent, slot).await? else { return Ok(false) };
        let joined = self.join(parent, slot, &left, &right).await?;
        Ok(!matches!(joined, CollectOutcome::Untouched))
    }
}

impl<F: Fabric, L: Layout> FineIndex<F, L> {
    /// Like [`FineIndex::collect_below`], but returns `None` if no level is above `level`. Reads
    /// the root each time: another client's collection may have removed a level.
    async fn collect_if_there(
        &self,
        level: u8,
        key: &L::Key,
        merged: &mut u64,
    ) -> Result<Option<Option<OwnedKey<L>>>, MissCause> {
        let root = self.tree.pages.read(self.tree.root_pointer()).await?;
        if root.page().level() <= level {
            return Ok(None);
        }
        drop(root);
        self.collect_below(level, key, merged).await.map(Some)
    }

    /// Collects the children of the parent of `key`'s node at `level`, starting at that node.
    /// Returns where to continue.
    async fn collect_below(
        &self,
        level: u8,
        key: &L::Key,
        merged: &mut u64,
    ) -> Result<Option<OwnedKey<L>>, MissCause> {
        let parent = self.tree.descend(DescentProbe::At(key), level + 1).await?;
        let count = parent.page().count();
        let first = L::inner_slot(parent.page(), DescentProbe::At(key));
        let mut left: Option<PageCopy<L>> = None;
        for start in (first..count).step_by(CHILDREN_AHEAD) {
            let slots = start..(start + CHILDREN_AHEAD).min(count);
            let child = |slot| parent.pointer(L::inner_child(parent.page(), slot));
            let posted = slots.clone().map(|slot| self.tree.pages.post_together(child(slot)));
            let posted: Vec<_> = posted.collect::<Result<_, MissCause>>()?;
            for (slot, read) in slots.zip(posted) {
                let mut copy = self.tree.pages.finish_read(read).await?;
                self.tree.pages.fabric().charge(Work::VisitNode).await;
                if copy.page().level() != level {
                    return Err(MissCause::Restart);
                }
                if level == 0 && copy.page().deleted_count() > 0 {
                    compact(&self.tree.pages, &copy).await?;
                    copy = self.tree.pages.read(copy.itself()).await?;
                }
                if let Some(left) = &left
                    && are_too_empty(left.page(), copy.page())
                {
                    let again = L::inner_key(parent.page(), slot - 1);
                    match self.join(&parent, slot - 1, left, &copy).await? {
                        CollectOutcome::Untouched => {}
                        CollectOutcome::Merged => {
                            *merged += 1;
                            return Ok(Some(again));
                        }
                        CollectOutcome::Rebalanced(separator) => return Ok(Some(separator)),
                    }
                }
                left = Some(copy);
            }
        }
        Ok(L::high(parent.page()))
    }

    /// Merges or rebalances the children at `slot` and `slot + 1` (fine.G1, fine.G2).
    async fn join(
        &self,
        parent: &PageCopy<L>,
        slot: usize,
        left: &PageCopy<L>,
        right: &PageCopy<L>,
    ) -> Result<CollectOutcome<OwnedKey<L>>, MissCause> {
        let unknown = left.page().sibling() != right.at();
        if unknown && !self.tree.pages.fabric().breaks(rules::NEIGHBOURS_ONLY) {
            return self.remove_head_between(left, right).await;
        }
        let joined = join_below(&self.tree.pages, parent, slot, left, right).await?;
        if matches!(joined, CollectOutcome::Merged) {
            self.tree.pages.retire(right.at());
        }
        Ok(joined)
    }

    /// Handles two neighbours in the parent that are not siblings. Removes a head between them, so
    /// that they can be joined later; a node that is missing in the parent stays.
    async fn remove_head_between(
        &self,
        left: &PageCopy<L>,
        right: &PageCopy<L>,
    ) -> Result<CollectOutcome<OwnedKey<L>>, MissCause> {
        let between = self.tree.pages.read(left.pointer(left.page().sibling())).await?;
        let page = between.page();
        if !page.is_head() || page.sibling() != right.at() {
            return Ok(CollectOutcome::Untouched);
        }
        self.remove_head(left, &between).await?;
        // The head is gone as intended, but the copies are outdated now.
        Err(MissCause::Restart)
    }

    /// Removes the head behind `leaf` from the chain.
    pub(super) async fn remove_head(
        &self,
        leaf: &PageCopy<L>,
        head: &PageCopy<L>,
    ) -> Result<(), MissCause> {
        let (before, gone) = (PageImage::of(leaf.page()), PageImage::of(head.page()));
        before.page().set_sibling(head.page().sibling());
        gone.page().set_dead();
        let [leaf_lock, head_lock] = lock_all(&self.tree.pages, [leaf, head]).await?;
        let changes =
            vec![PageChange::new(leaf_lock, leaf, before), PageChange::new(head_lock, head, gone)];
        self.tree.pages.commit_together(changes).await?;
        self.tree.pages.retire(head.at());
        Ok(())
    }

    /// Collects the root at the end of a pass: compacts it if it is a leaf, or moves the content of
    /// an only child into it. Returns whether it did the latter.
    async fn collect_root(&self) -> Result<bool, MissCause> {
        let root = self.tree.pages.read(self.tree.root_pointer()).await?;
        self.tree.set_root_level(root.page().level());
        if root.page().level() == 0 {
            if root.page().deleted_count() > 0 {
                compact(&self.tree.pages, &root).await?;
            }
            return Ok(false);
        }
        if root.page().count() != 1 {
            return Ok(false);
        }
        let child_at: GlobalAddr = L::inner_child(root.page(), 0);
        let child = self.tree.pages.read(root.pointer(child_at)).await?;
        // If the child was split and its sibling is not in the root yet, it is not the only child.
        let split = !child.page().sibling().is_null() || !child.page().high_is_infinite();
        if split && !self.tree.pages.fabric().breaks(rules::WHOLE_CHILD_ONLY) {
            return Ok(false);
        }
        let (top, gone) = (PageImage::of(root.page()), PageImage::of(child.page()));
        top.page().copy_content(child.page());
        gone.page().set_dead();
        let [root_lock, child_lock] = lock_all(&self.tree.pages, [&root, &child]).await?;
        self.tree.pages.fabric().charge(Work::RestructureNode).await;
        let changes =
            vec![PageChange::new(child_lock, &child, gone), PageChange::new(root_lock, &root, top)];
        self.tree.pages.commit_together(changes).await?;
        self.tree.pages.retire(child_at);
        self.tree.set_root_level(root.page().level() - 1);
        Ok(true)
    }
}
