//! Merging and borrowing after removals, so that an index that shrinks also gives up nodes.
//!
//! A node that is less than half full joins a neighbour below the same parent if both fit one page.
//! Otherwise it borrows from the neighbour if it is less than a quarter full. Between a quarter and
//! a half it waits: it could borrow from such a full neighbour only once before the next removals
//! made it borrow again. Nodes never join across a boundary: both must be exclusive (D3).
//!
//! *Order of the WRITEs* (D2): the node that gains keys, then the parent. The node that loses keys
//! is freed, or written by a later write-back. If its copy in the pool might have no room for its
//! new fences, its old content is written first (`before_narrowing`).
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use super::descend::DescentNode;
use super::latched::LatchedNode;
use super::split::ParentWrite;
use crate::cache::{OptimisticRef, Restart, is_clean, is_in_pool, mark_clean};
use farleaf_fabric::{Fabric, Work};
use farleaf_index::PartState;
use farleaf_index::{LiveCounters, Ownership};
use farleaf_page::rules;
use farleaf_page::{DescentProbe, Layout, Page, is_sparse, merge, slot_range};
use farleaf_pool::remote::{PageImage, RemoteError};

/// Whether two neighbours fit one page, or one of them has too few entries.
fn can_join<L: Layout>(left: Page<'_, L>, right: Page<'_, L>) -> bool {
    let least = L::weight(left).min(L::weight(right));
    L::fits_merged(left, right) || least < L::full() / 4
}

/// The result of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MergeOutcome {
    /// There was nothing to do, or nothing could be done.
    Nothing,
    /// Entries moved from one node to the other.
    Borrowed,
    /// Two nodes became one: the parent has one entry fewer.
    Merged,
}

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Merges or rebalances the leaf of `key`, and then the nodes above it if they have too few
    /// entries.
    pub(super) async fn merge_underfull(&self, key: &L::Key) -> Result<(), RemoteError> {
        let _unsettled = self.unsettle();
        let probe = DescentProbe::At(key);
        let mut level = 0;
        let mut attempts = self.attempts();
        loop {
            match self.try_tidy(probe, level).await {
                Ok(MergeOutcome::Merged) => {
                    level += 1;
                    attempts = self.attempts();
                }
                Ok(MergeOutcome::Nothing | MergeOutcome::Borrowed) => return Ok(()),
                Err(restart) => self.after(&mut attempts, restart, probe).await?,
            }
        }
    }

    async fn try_tidy(
        &self,
        probe: DescentProbe<'_, L::Key>,
        level: u8,
    ) -> Result<MergeOutcome, Restart> {
        if self.seen_root()?.page.level() <= level {
            return self.try_collapse_root().await;
        }
        let DescentNode { parent, node } = self.find_hot(probe, level).await?;
        let Some((parent, slot)) = parent else { return Ok(MergeOutcome::Nothing) };
        if !is_sparse::<L>(L::weight(node.page)) || self.server.shares(node.page) {
            return if node.is_valid() { Ok(MergeOutcome::Nothing) } else { Err(Restart::Busy) };
        }
        let count = parent.page.count();
        let right = (slot + 1 < count).then_some(slot + 1);
        for other in [right, slot.checked_sub(1)].into_iter().flatten() {
            if !self.is_exclusive_slot(parent, other) {
                continue;
            }
            let low = L::inner_key(parent.page, other);
            let found = self.hot_child(parent, level + 1, DescentProbe::At(L::key(&low))).await;
            let (found, neighbour) = match found {
                Err(Restart::Refresh) => return Err(self.refresh_neighbour(L::key(&low)).await),
                found => found?,
            };
            if found != other || !parent.is_valid() {
                return Err(Restart::Busy);
            }
            if self.server.shares(neighbour.page) && !self.fabric().breaks(rules::SHARED_NOT_MERGED)
            {
                return Err(self.refresh_neighbour(L::key(&low)).await);
            }
            let (pair, right_slot) = match other > slot {
                true => ([node, neighbour], other),
                false => ([neighbour, node], slot),
            };
            if can_join(pair[0].page, pair[1].page) {
                return self.join(parent, pair, right_slot).await;
            }
        }
        if parent.is_valid() { Ok(MergeOutcome::Nothing) } else { Err(Restart::Busy) }
    }

    /// Rereads the path to the neighbour, whose copy dates from when it was shared. That path
    /// differs from the path to the node itself.
    async fn refresh_neighbour(&self, low: &L::Key) -> Restart {
        match self.refresh(DescentProbe::At(low)).await {
            Ok(true) => Restart::Again,
            Ok(false) => Restart::Busy,
            Err(restart) => restart,
        }
    }

    /// Whether the child at a slot lies within the owned range according to its parent.
    pub(super) fn is_exclusive_slot(&self, parent: OptimisticRef<'_, L>, slot: usize) -> bool {
        let (low, high) = slot_range(parent.page, slot);
        self.client.cache().owned().of(&low, high.as_ref()) == Ownership::All
            || self.fabric().breaks(rules::SHARED_NOT_MERGED)
    }

    /// Merges or rebalances two neighbours. `right_slot` is the slot of the right one.
    async fn join(
        &self,
        parent: OptimisticRef<'_, L>,
        [left, right]: [OptimisticRef<'_, L>; 2],
        right_slot: usize,
    ) -> Result<MergeOutcome, Restart> {
        let parent = self.latch(parent)?;
        let left = self.latch_leaf(left).await?;
        let right = self.latch_leaf(right).await?;
        let shared = left.shared || right.shared;
        if (shared && !self.fabric().breaks(rules::SHARED_NOT_MERGED))
            || !can_join(left.page, right.page)
        {
            return Err(Restart::Busy);
        }
        if self.client.acknowledges_written() && right.is_leaf() && !is_in_pool(right.page) {
            // Answers wait for changes of this frame, which a merge frees (ack.A1).
            let frame = right.frame;
            drop((right, left, parent));
            let _ = self.client.write_back(frame).await;
            return Err(Restart::Busy);
        }
        let (lower, upper) = (PageImage::of(left.page), PageImage::of(right.page));
        if left.is_leaf() {
            L::leaf_compact(lower.page());
            L::leaf_compact(upper.page());
        }
        if L::fits_merged(lower.page(), upper.page()) {
            self.merge([parent, left, right], lower, &upper, right_slot).await?;
            Ok(MergeOutcome::Merged)
        } else {
            self.borrow([parent, left, right], [lower, upper], right_slot).await
        }
    }

    async fn merge(
        &self,
        [parent, left, right]: [LatchedNode<'_, L>; 3],
        lower: PageImage<L>,
        upper: &PageImage<L>,
        right_slot: usize,
    ) -> Result<(), Restart> {
        let cache = self.client.cache();
        let lock = self.lock_shared(&parent).await?;
        self.charge(Work::RestructureNode).await;
        let keeps_prefix = self.fabric().breaks(rules::PREFIXES_SHARED);
        merge(lower.page(), upper.page(), keeps_prefix);
        lower.page().set_note(0);
        if !self.fabric().breaks(rules::GAINER_FIRST)
            && let Err(restart) = self.write_exclusive(&left, &cache.image(lower.page())).await
        {
            self.unlock_shared(lock).await;
            return Err(restart);
        }
        let remove = |page: Page<'_, L>| L::inner_remove(page, right_slot);
        let written = match self.write_parent_alone(&parent, lock, remove).await {
            Ok(written) => written,
            Err(restart) => {
                // The pool's copy of the gaining node holds too many keys: the frame's content must
                // replace it before it is read again.
                if !self.fabric().breaks(rules::GAINER_DIRTY) {
                    self.client.mark_dirty(left.frame, left.page, 1..L::page_words());
                }
                return Err(restart);
            }
        };
        LiveCounters::count(&self.client.counters.merges);
        left.page.copy_all_but_latch(lower.page());
        cache.adopt(left.frame);
        remove(parent.page);
        // A flush waits until the parent routes the gained keys to the gaining node.
        self.hold_below(&written, &parent, &[left.frame]);
        let freed = right.at();
        self.server.unsettled().note_merged();
        self.client.keep(cache.discard(right.frame, right.guard));
        drop((left.guard, parent.guard));
        if let ParentWrite::Now = written {
            // Free the node only now: before that WRITE, the pool's parent may still point to it.
            self.free_node(freed).await;
        }
        Ok(())
    }

    async fn borrow(
        &self,
        [parent, left, right]: [LatchedNode<'_, L>; 3],
        [lower, upper]: [PageImage<L>; 2],
        right_slot: usize,
    ) -> Result<MergeOutcome, Restart> {
        let cache = self.client.cache();
        // Y8: check the room in the parent before anything is written.
        let fits = |separator: &L::Key| L::inner_can_set_key(parent.page, right_slot, separator);
        let Some(separator) = L::rebalance(lower.page(), upper.page(), fits) else {
            return Ok(MergeOutcome::Nothing);
        };
        let left_gains = separator > L::low(right.page);
        let (low, high) = (L::low(left.page), L::high(right.page));
        let between = L::key(&separator);
        match left_gains {
            true => self.before_narrowing(&right, between, high.as_ref().map(L::key)).await?,
            false => self.before_narrowing(&left, L::key(&low), Some(between)).await?,
        }
        let lock = self.lock_shared(&parent).await?;
        self.charge(Work::RestructureNode).await;
        lower.page().set_note(0);
        upper.page().set_note(0);
        let (gainer, gained) = if left_gains { (&left, &lower) } else { (&right, &upper) };
        if let Err(restart) = self.write_exclusive(gainer, &cache.image(gained.page())).await {
            self.unlock_shared(lock).await;
            return Err(restart);
        }
        let move_boundary = |page: Page<'_, L>| {
            let there = L::inner_set_key(page, right_slot, L::key(&separator));
            debug_assert!(there, "Y8: the parent was asked for room");
        };
        let written = match self.write_parent_alone(&parent, lock, move_boundary).await {
            Ok(written) => written,
            Err(restart) => {
                // The pool's copy of the gaining node holds extra keys that no parent routes to it.
                self.client.mark_dirty(gainer.frame, gainer.page, 1..L::page_words());
                return Err(restart);
            }
        };
        LiveCounters::count(&self.client.counters.borrows);
        left.page.copy_all_but_latch(lower.page());
        right.page.copy_all_but_latch(upper.page());
        let loser = if left_gains { &right } else { &left };
        if !self.fabric().breaks(rules::LOSER_DIRTY) {
            self.client.mark_dirty(loser.frame, loser.page, 1..L::page_words());
        }
        cache.adopt(left.frame);
        cache.adopt(right.frame);
        move_boundary(parent.page);
        self.hold_below(&written, &parent, &[left.frame, right.frame]);
        Ok(MergeOutcome::Borrowed)
    }

    /// Moves the content of an only child into the root, if the root is exclusive and the child is
    /// not a leaf.
    async fn try_collapse_root(&self) -> Result<MergeOutcome, Restart> {
        let cache = self.client.cache();
        let root = self.seen_root()?;
        let level = root.page.level();
        if level < 2 || root.page.count() != 1 || self.server.shares(root.page) {
            return Ok(MergeOutcome::Nothing);
        }
        let low = L::low(root.page);
        let (_, child) = self.hot_child(root, level, DescentProbe::At(L::key(&low))).await?;
        let root = self.latch(root)?;
        let child = self.latch(child)?;
        if root.shared || child.shared {
            return Err(Restart::Busy);
        }
        if !is_clean(child.page) {
            // Other nodes may be waiting for the root's WRITE (C24).
            return Ok(MergeOutcome::Nothing);
        }
        let content = PageImage::<L>::empty();
        content.page().format_empty(self.root, level - 1, L::key(&low), None);
        content.page().copy_content(child.page);
        content.page().set_note(0);
        // From here on the change will happen: the pool may already have the new root.
        let written = match self.write_exclusive(&root, &cache.image(content.page())).await {
            Ok(()) => ParentWrite::Now,
            Err(_) => ParentWrite::Later,
        };
        root.page.copy_all_but_latch(content.page());
        mark_clean(root.page);
        self.hold_below(&written, &root, &[]);
        cache.adopt(root.frame);
        let freed = child.at();
        self.server.unsettled().note_merged();
        self.client.keep(cache.discard(child.frame, child.guard));
        drop(root.guard);
        if let ParentWrite::Now = written {
            // Free the node only now: before that WRITE, the pool's root may still point to it.
            self.free_node(freed).await;
        }
        Ok(MergeOutcome::Nothing)
    }

    /// Merges or rebalances every leaf of the owned range that has too few records.
    ///
    /// # Errors
    /// [`RemoteError`] if a leaf cannot be read.
    pub async fn collect(&self) -> Result<(), RemoteError> {
        let range = self.server.range();
        if range.is_empty() {
            return Ok(());
        }
        let mut low = range.low;
        loop {
            let look = |page: Page<'_, L>| (L::weight(page), L::high(page));
            let (weight, mut high) = self.read_leaf(DescentProbe::At(L::key(&low)), look).await?;
            if is_sparse::<L>(weight) {
                self.merge_underfull(L::key(&low)).await?;
                // The leaf may have absorbed the next one: continue after its new high fence.
                high = self.read_leaf(DescentProbe::At(L::key(&low)), look).await?.1;
            }
            match high {
                Some(high) if range.high.as_ref().is_none_or(|end| high < *end) => low = high,
                _ => return Ok(()),
            }
        }
    }
}
