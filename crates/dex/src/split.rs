//! Splits, done eagerly on the way down (Lu et al., §7). A full node gives its upper half to a new
//! node, and its parent gets an entry for the new node in the same step. Before anything is
//! written, the parent is checked for room for the separator (Y8).
//!
//! *Order of the WRITEs* (D2): the new node, then the parent. The lower half is written by a later
//! write-back, or together with the parent if the half is shared. Until then its copy in the pool
//! is the one from before the split: it holds too many keys, which is harmless. But if that copy
//! might have no room for the new fences, the node's old content is written first
//! (`before_narrowing`).
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use super::latched::LatchedNode;
use super::nodes::NewNode;
use crate::cache::{FrameId, OptimisticRef, Restart, Swip, mark_clean};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId, Work};
use farleaf_index::LiveCounters;
use farleaf_page::rules;
use farleaf_page::{
    DescentProbe, Layout, LeafEdit, LockWord, OverflowEntry, OwnedKey, Page, SplitPlan, split_plan,
};
use farleaf_pool::remote::{CommitState, LockedPage, PageChange, PageCopy, PageImage};

/// Whether the change of a parent has reached the pool.
#[derive(Debug)]
pub(super) enum ParentWrite {
    /// It has reached the pool.
    Now,
    /// Perhaps not yet, because a memory server cannot be reached; but it will.
    Later,
}

/// A remote lock on a shared node, with the copy that its CAS expected.
type LockedNode<'a, L> = (LockedPage<'a>, PageCopy<L>);

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Splits the topmost full node on the path of `edit`, if there is one. A leaf without room for
    /// the edit counts as full.
    ///
    /// [`Restart`]; [`Restart::Again`] if a node was split or fetched, so that there may be more to
    /// do.
    pub(super) async fn try_make_room(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<(), Restart> {
        let _unsettled = self.unsettle();
        let mut node = self.seen_root()?;
        let mut level = node.page.level();
        let mut path = vec![node];
        loop {
            if L::is_full(node.page) || (level == 0 && edit.lacks_room(node.page)) {
                self.split_last(&path, edit).await?;
                return Err(Restart::Again);
            }
            if level == 0 {
                return Ok(());
            }
            (_, node) = self.hot_child(node, level, DescentProbe::At(edit.key)).await?;
            path.push(node);
            level -= 1;
        }
    }

    /// Splits the last node of a path from the root. If its parent has no room for the separator,
    /// splits the parent instead, and so on (Y8).
    async fn split_last(
        &self,
        path: &[OptimisticRef<'_, L>],
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<(), Restart> {
        // Nothing is validated here: each split latches its nodes as they were seen.
        let leads_to_leaf = path.last().is_some_and(|node| node.page.level() == 0);
        let mut pending = if leads_to_leaf { edit.new_record() } else { None };
        for pair in path.windows(2).rev() {
            let (parent, child) = (pair[0], pair[1]);
            let plan = self.split_plan(child.page, pending.as_ref());
            if L::inner_has_room(parent.page, L::key(&plan.separator))
                || self.fabric().breaks(rules::PARENTS_ASKED)
            {
                return self.split_child(parent, child, &plan).await;
            }
            pending = Some(OverflowEntry::Child(plan.separator, GlobalAddr::NULL));
        }
        self.split_root(path[0], pending.as_ref()).await
    }

    fn split_plan(
        &self,
        page: Page<'_, L>,
        pending: Option<&OverflowEntry<L>>,
    ) -> SplitPlan<OwnedKey<L>> {
        split_plan(page, pending, self.fabric().breaks(rules::SEPARATORS_ABOVE))
    }

    /// The memory server for the upper half of a node: that of the children that it gets, or that
    /// of the leaf being split.
    fn home_of_upper_half(&self, page: Page<'_, L>, plan: &SplitPlan<OwnedKey<L>>) -> ServerId {
        if page.level() == 0 {
            return page.address().server();
        }
        self.home_of_child(page, plan.slot).unwrap_or(page.address().server())
    }

    /// The memory server of the child at a slot, if the slot has one.
    fn home_of_child(&self, page: Page<'_, L>, slot: usize) -> Option<ServerId> {
        let cache = self.client.cache();
        let child = match cache.swip(page, slot)? {
            Swip::Frame(child) => cache.arena().page(child).address(),
            Swip::Remote(child) => child,
        };
        // The page is read without a latch, so the address may be garbage.
        Some(child.server()).filter(|home| home.number() < self.fabric().memory_servers())
    }

    /// Takes the remote lock of a shared node (D1). [`Restart::Refresh`] means that the cached copy
    /// is old. `None` for an exclusive node, which needs no lock.
    pub(super) async fn lock_shared<'a>(
        &'a self,
        node: &LatchedNode<'_, L>,
    ) -> Result<Option<LockedNode<'a, L>>, Restart> {
        if !node.shared || self.fabric().breaks(rules::SHARED_LOCKED) {
            return Ok(None);
        }
        let copy = self.cached_copy(node)?;
        match self.client.pages().lock(&copy).await {
            Ok(locked) => Ok(Some((locked, copy))),
            Err(miss) => match miss.into() {
                Restart::Busy => Err(Restart::Refresh),
                restart => Err(restart),
            },
        }
    }

    /// Releases a remote lock without having changed the node.
    pub(super) async fn unlock_shared(&self, held: Option<LockedNode<'_, L>>) {
        if let Some((locked, _)) = held {
            self.client.pages().release(locked).await;
        }
    }

    /// WRITEs a new node. Returns its word 0 in the pool, or 0 for a leaf.
    async fn write_new(
        &self,
        node: &NewNode<'_, L>,
        page: Page<'_, L>,
    ) -> Result<LockWord, Restart> {
        if self.fabric().breaks(rules::NEW_NODE_FIRST) {
            return self.client.pages().fresh_word(node.at()).await.map_err(Restart::from);
        }
        if page.level() == 0 {
            // Do not send what the frame held before.
            L::clear_unused(page);
            self.client.write_new_leaf(node.at(), page).await?;
            return Ok(LockWord::from_bits(0));
        }
        // Versions continue from the node's previous use.
        let found = self.client.pages().fresh_word(node.at()).await?;
        let image = self.client.cache().image(page);
        self.client.write_new_inner(node.at(), &image, found).await
    }

    fn count_split(&self, shared: bool) {
        LiveCounters::count(&self.client.counters.splits);
        if shared {
            LiveCounters::count(&self.client.counters.shared_splits);
        }
    }

    async fn split_child(
        &self,
        parent: OptimisticRef<'_, L>,
        child: OptimisticRef<'_, L>,
        plan: &SplitPlan<OwnedKey<L>>,
    ) -> Result<(), Restart> {
        let level = child.page.level();
        let new = self.new_node(level, self.home_of_upper_half(child.page, plan)).await?;
        let free = self.client.free_frame().await?;
        let parent = self.latch(parent)?;
        let child = self.latch_leaf(child).await?;
        let low = L::low(child.page);
        self.before_narrowing(&child, L::key(&low), Some(L::key(&plan.separator))).await?;
        let parent_lock = self.lock_shared(&parent).await?;
        let child_lock = match self.lock_shared(&child).await {
            Ok(lock) => lock,
            Err(restart) => {
                self.unlock_shared(parent_lock).await;
                return Err(restart);
            }
        };
        self.charge(Work::RestructureNode).await;
        L::split_copy(child.page, free.page(), new.at(), plan);
        let separator = L::key(&plan.separator);
        mark_clean(free.page());
        let word = match self.write_new(&new, free.page()).await {
            Ok(word) => word,
            Err(restart) => {
                self.unlock_shared(child_lock).await;
                self.unlock_shared(parent_lock).await;
                new.lost_after(&restart, self.fabric().breaks(rules::NODES_IN_DOUBT_LOST));
                return Err(restart);
            }
        };
        let cache = self.client.cache();
        cache.arena().set_remote_word(free.frame(), word.to_bits());
        let at = new.at();
        let insert = |page: Page<'_, L>| {
            let there = L::inner_insert(page, separator, at);
            debug_assert!(there, "Y8: the parent was asked for room");
        };
        let truncate = |page: Page<'_, L>| {
            L::split_truncate(page, plan);
            L::set_high(page, Some(separator));
        };
        let child_change = child_lock.map(|held| (&child, held, truncate));
        let new = new.about_to_be_used();
        let written = match self.write_parent(&parent, parent_lock, insert, child_change).await {
            Ok(written) => written,
            Err(restart) => {
                new.give_back();
                return Err(restart);
            }
        };
        let mark = new.stays();
        self.count_split(child.shared);
        truncate(child.page);
        if !child.shared {
            self.client.mark_dirty(child.frame, child.page, 1..L::page_words());
        }
        cache.adopt(free.frame());
        let frame = cache.publish_new(free, mark, parent.frame);
        L::inner_insert(parent.page, separator, Swip::Frame(frame).to_word());
        self.hold_below(&written, &parent, &[child.frame, frame]);
        Ok(())
    }

    /// Holds back children that gained or lost keys until their parent is written, if it is still
    /// unwritten. Also holds back a shared parent: until then the pool has its old content (C24).
    pub(super) fn hold_below(
        &self,
        written: &ParentWrite,
        parent: &LatchedNode<'_, L>,
        children: &[FrameId],
    ) {
        match written {
            ParentWrite::Now => return,
            ParentWrite::Later if parent.shared => {
                self.client.hold_for(parent.frame, parent.frame, parent.at());
            }
            // The next write-back writes the frame's content at that time.
            ParentWrite::Later => {
                self.client.mark_dirty(parent.frame, parent.page, 1..L::page_words())
            }
        }
        for child in children {
            self.client.hold_for(*child, parent.frame, parent.at());
        }
    }

    /// WRITEs the change of a latched parent. Does not change its frame.
    pub(super) async fn write_parent_alone(
        &self,
        parent: &LatchedNode<'_, L>,
        lock: Option<LockedNode<'_, L>>,
        edit: impl FnOnce(Page<'_, L>),
    ) -> Result<ParentWrite, Restart> {
        self.write_parent(parent, lock, edit, None::<(_, _, fn(Page<'_, L>))>).await
    }

    /// WRITEs the change of a latched parent, together with that of a shared child. Changes nothing
    /// in their frames but the recorded words of the pool.
    ///
    /// Once the WRITEs are posted, the change will happen, now or later. It cannot be undone: nodes
    /// would lose keys that the parent in the pool may already route to them.
    ///
    /// # Errors
    /// [`Restart`] if nothing has changed, and nothing will.
    async fn write_parent(
        &self,
        parent: &LatchedNode<'_, L>,
        parent_lock: Option<LockedNode<'_, L>>,
        edit: impl FnOnce(Page<'_, L>),
        child: Option<(&LatchedNode<'_, L>, LockedNode<'_, L>, impl FnOnce(Page<'_, L>))>,
    ) -> Result<ParentWrite, Restart> {
        let Some((locked, copy)) = parent_lock else {
            debug_assert!(child.is_none(), "a shared node's parent is shared");
            let image = self.client.cache().image(parent.page);
            edit(image.page());
            return Ok(match self.write_exclusive(parent, &image).await {
                Ok(()) => {
                    mark_clean(parent.page);
                    ParentWrite::Now
                }
                Err(_) => ParentWrite::Later,
            });
        };
        let image = PageImage::of(copy.page());
        edit(image.page());
        // The parent goes first: a reader between the two WRITEs then finds the new node, or a
        // child with too many keys.
        let mut changes = vec![PageChange::new(locked, &copy, image)];
        let mut frames = vec![parent];
        let child_copy;
        if let Some((child, (locked, copy), edit)) = child {
            child_copy = copy;
            let image = PageImage::of(child_copy.page());
            edit(image.page());
            changes.push(PageChange::new(locked, &child_copy, image));
            frames.push(child);
        }
        let words: Vec<LockWord> = changes.iter().map(PageChange::next_word).collect();
        let committed = self.client.pages().commit_surely(changes).await?;
        for (node, word) in frames.into_iter().zip(words) {
            self.set_word(node, word);
        }
        Ok(match committed {
            CommitState::Now => ParentWrite::Now,
            CommitState::Later(_) => ParentWrite::Later,
        })
    }

    /// Splits the root. Its content moves into two new nodes; the root keeps its address and grows
    /// by one level.
    async fn split_root(
        &self,
        root: OptimisticRef<'_, L>,
        pending: Option<&OverflowEntry<L>>,
    ) -> Result<(), Restart> {
        let plan = self.split_plan(root.page, pending);
        let cache = self.client.cache();
        let level = root.page.level();
        let left_home = self.home_of_child(root.page, 0).unwrap_or(self.root.server());
        let left = self.new_node(level, left_home).await?;
        let right = self.new_node(level, self.home_of_upper_half(root.page, &plan)).await?;
        let left_free = self.client.free_frame().await?;
        let right_spare = self.client.another_spare().await?;
        let root = self.latch(root)?;
        let lock = self.lock_shared(&root).await?;
        self.charge(Work::RestructureNode).await;
        let (full, low, high) = (root.page, L::low(root.page), L::high(root.page));
        let level = full.level();
        let (lower, upper) = (left_free.page(), right_spare.page());
        lower.format_empty(left.at(), level, L::key(&low), high.as_ref().map(L::key));
        lower.copy_content(full);
        L::split_copy(lower, upper, right.at(), &plan);
        L::split_truncate(lower, &plan);
        let separator = L::key(&plan.separator);
        L::set_high(lower, Some(separator));
        mark_clean(lower);
        mark_clean(upper);
        let written = async {
            let first = self.write_new(&left, lower).await?;
            Ok::<_, Restart>((first, self.write_new(&right, upper).await?))
        };
        let (left_word, right_word) = match written.await {
            Ok(words) => words,
            Err(restart) => {
                self.unlock_shared(lock).await;
                let breaks = self.fabric().breaks(rules::NODES_IN_DOUBT_LOST);
                left.lost_after(&restart, breaks);
                right.lost_after(&restart, breaks);
                return Err(restart);
            }
        };
        cache.arena().set_remote_word(left_free.frame(), left_word.to_bits());
        cache.arena().set_remote_word(right_spare.frame(), right_word.to_bits());
        let (left_at, right_at) = (left.at(), right.at());
        let grow = |page: Page<'_, L>, left, right| {
            page.format_empty(self.root, level + 1, L::key(&low), high.as_ref().map(L::key));
            L::inner_insert(page, L::key(&low), left);
            L::inner_insert(page, separator, right);
        };
        let edit = |page: Page<'_, L>| grow(page, left_at, right_at);
        let (left, right) = (left.about_to_be_used(), right.about_to_be_used());
        let written = match self.write_parent_alone(&root, lock, edit).await {
            Ok(written) => written,
            Err(restart) => {
                left.give_back();
                right.give_back();
                return Err(restart);
            }
        };
        let (left_mark, right_mark) = (left.stays(), right.stays());
        self.count_split(root.shared);
        cache.adopt(left_free.frame());
        cache.adopt(right_spare.frame());
        let left_frame = cache.publish_new(left_free, left_mark, root.frame);
        let right_frame = cache.publish_new(right_spare, right_mark, root.frame);
        grow(root.page, Swip::Frame(left_frame).to_word(), Swip::Frame(right_frame).to_word());
        self.hold_below(&written, &root, &[left_frame, right_frame]);
        Ok(())
    }
}
