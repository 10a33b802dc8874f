//! Collection: drops deleted records, merges and rebalances sparse nodes, and frees nodes through
//! epochs (§3.2 of the paper: "responsible for removing and re-balancing the index in regular
//! intervals").
//!
//! It visits the tree level by level, from the leaves up, one parent at a time, in small steps that
//! server threads take between requests. The number of removals that make a step due depends on how
//! many records one parent covers, so the work is proportional to the garbage.
//!
//! *Invariants*
//! - tree.G1. One collection step at a time.
//! - tree.G2. Two nodes are merged only under the latches of their parent and both nodes, and only
//!   if the parent has separators for both.
//! - tree.G3. A removed node is marked as dead before its latch is released, and freed only through
//!   epochs.

use super::descend::{FoundNode, restarting};
use super::{ServerTree, TreeFailure};
use crate::wire::Refusal;
use farleaf_fabric::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{Cpu, GlobalAddr, Work};
use farleaf_page::rules;
use farleaf_page::{DescentProbe, Layout, OwnedKey, Page, are_too_empty, merge};

/// Maximum number of passes of an explicit collection. Each pass can empty one more level.
const MAX_PASSES: u32 = 2 * farleaf_page::MAX_LEVEL as u32;

/// The collection's progress.
#[derive(Debug)]
pub(super) struct Collector<K> {
    /// Removals that no collection step has covered yet.
    debt: AtomicU64,
    /// Whether a collection step is running (tree.G1).
    busy: AtomicBool,
    /// Merges so far.
    merges: AtomicU64,
    /// The next step: the level of the nodes to collect, and a key of their parent.
    cursor: Mutex<Option<(u8, K)>>,
}

impl<K> Default for Collector<K> {
    fn default() -> Self {
        Self {
            debt: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            merges: AtomicU64::new(0),
            cursor: Mutex::new(None),
        }
    }
}

impl<K> Collector<K> {
    pub(super) fn owe(&self, removals: u64) {
        self.debt.fetch_add(removals, Ordering::Relaxed);
    }
}

/// Clears the mark of the running collection when dropped, however the collection ends.
struct CollectorBusy<'a>(&'a AtomicBool);

impl Drop for CollectorBusy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The result of joining two neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinOutcome {
    /// They are balanced, or there is a node between them that the parent does not know yet.
    Untouched,
    Merged,
    Rebalanced,
}

impl<L: Layout> ServerTree<L> {
    /// Number of removals after which a step (the children of one parent) is due. It limits the
    /// garbage to a few percent of the records.
    fn step_debt() -> u64 {
        (L::capacity() * L::capacity() / 64).max(1) as u64
    }

    fn begin_collection(&self) -> Option<CollectorBusy<'_>> {
        (!self.collector.busy.swap(true, Ordering::AcqRel))
            .then(|| CollectorBusy(&self.collector.busy))
    }

    /// Takes one step of the collection if one is due. Threads that remove records call this
    /// occasionally.
    pub async fn collect_if_due<C: Cpu>(&self, cpu: &C) {
        if self.collector.debt.load(Ordering::Relaxed) < Self::step_debt() || self.root().is_null()
        {
            return;
        }
        let Some(_busy) = self.begin_collection() else { return };
        self.collector.debt.fetch_sub(Self::step_debt(), Ordering::Relaxed);
        // A step that fails is not retried: the next pass returns to these nodes.
        let _ = self.collection_step(cpu).await;
        self.free_retired();
    }

    /// Collects all garbage, and frees all nodes that no operation can reach.
    ///
    /// # Errors
    /// [`Refusal::Contended`] if it lost too often to concurrent operations, or if another
    /// collection is running.
    pub async fn collect<C: Cpu>(&self, cpu: &C) -> Result<(), Refusal> {
        let mut attempt = 0;
        let _busy = loop {
            if let Some(busy) = self.begin_collection() {
                break busy;
            }
            self.before_restart(cpu, attempt).await?;
            attempt += 1;
        };
        // Merging nodes makes their parents sparser: repeat until a pass merges nothing.
        for _ in 0..MAX_PASSES {
            let merges = self.collector.merges.load(Ordering::Relaxed);
            *lock(&self.collector.cursor) = None;
            while self.collection_step(cpu).await? {}
            if self.collector.merges.load(Ordering::Relaxed) == merges {
                break;
            }
        }
        // A node can be freed two epochs after it was retired.
        for _ in 0..3 {
            self.free_retired();
        }
        Ok(())
    }

    fn free_retired(&self) {
        let free = self.epochs.advance();
        if !free.is_empty() {
            self.nodes.give_back(free);
        }
    }

    /// Collects below one parent and advances the cursor; `false` at the end of a pass.
    async fn collection_step<C: Cpu>(&self, cpu: &C) -> Result<bool, Refusal> {
        let _epoch = self.epochs.enter(cpu.stripe());
        let cursor = lock(&self.collector.cursor).take();
        let (level, key) = cursor.unwrap_or_else(|| (0, L::min_key()));
        let root = self.page(self.root()).ok_or(Refusal::NoTree)?;
        if root.level() <= level {
            return restarting!(self, cpu, self.collect_root(cpu)).map(|()| false);
        }
        let next = restarting!(self, cpu, self.collect_below(cpu, level, L::key(&key)))?;
        *lock(&self.collector.cursor) =
            Some(next.map_or_else(|| (level + 1, L::min_key()), |key| (level, key)));
        Ok(true)
    }

    /// Collects the children of the parent of `key`'s node at `level`. Returns where the next
    /// parent begins.
    async fn collect_below<C: Cpu>(
        &self,
        cpu: &C,
        level: u8,
        key: &L::Key,
    ) -> Result<Option<OwnedKey<L>>, TreeFailure> {
        let mut parent = self.descend(cpu, DescentProbe::At(key), level + 1).await?;
        let mut slot = 0;
        loop {
            let count = parent.page.count();
            if slot + 1 < count {
                let (left, right) =
                    (self.child(cpu, &parent, slot)?, self.child(cpu, &parent, slot + 1)?);
                self.compact_if_needed(cpu, level, left).await?;
                if are_too_empty(left, right) {
                    let pair = self.join(cpu, &parent, slot).await?;
                    // Locking the parent changed its version: descend to it again. After a merge,
                    // continue at the same slot.
                    parent = self.descend(cpu, DescentProbe::At(key), level + 1).await?;
                    slot += usize::from(pair != JoinOutcome::Merged);
                } else {
                    slot += 1;
                }
                continue;
            }
            if slot < count {
                let last = self.child(cpu, &parent, slot)?;
                self.compact_if_needed(cpu, level, last).await?;
            }
            let next = L::high(parent.page);
            self.validate(cpu, &parent)?;
            return Ok(next);
        }
    }

    /// The child at a slot, if the parent has not changed since it was found.
    fn child<'a, C: Cpu>(
        &'a self,
        cpu: &C,
        parent: &FoundNode<'_, L>,
        slot: usize,
    ) -> Result<Page<'a, L>, TreeFailure> {
        let at = L::inner_child(parent.page, slot);
        self.validate(cpu, parent)?;
        Ok(self.page(at).ok_or(Refusal::Damaged)?)
    }

    /// Drops the deleted records of a leaf, if it has any.
    async fn compact_if_needed<C: Cpu>(
        &self,
        cpu: &C,
        level: u8,
        leaf: Page<'_, L>,
    ) -> Result<(), TreeFailure> {
        if level > 0 || leaf.deleted_count() == 0 {
            return Ok(());
        }
        let _guard = self.lock_any(cpu, leaf).await?;
        if leaf.is_dead() || leaf.level() != 0 {
            return Ok(());
        }
        cpu.charge(Work::ChangeNode).await;
        self.compact_locked(leaf);
        Ok(())
    }

    fn compact_locked(&self, leaf: Page<'_, L>) {
        let thrown_out = L::leaf_compact(leaf);
        self.count_deleted(thrown_out, 0);
    }

    /// Merges or rebalances the children at `slot` and `slot + 1`, under all three latches
    /// (tree.G2).
    async fn join<C: Cpu>(
        &self,
        cpu: &C,
        parent: &FoundNode<'_, L>,
        slot: usize,
    ) -> Result<JoinOutcome, TreeFailure> {
        let parent_guard = self.lock_found(parent)?;
        let (left_at, right_at) =
            (L::inner_child(parent.page, slot), L::inner_child(parent.page, slot + 1));
        let left = self.page(left_at).ok_or(Refusal::Damaged)?;
        let right = self.page(right_at).ok_or(Refusal::Damaged)?;
        let left_guard = self.lock_any(cpu, left).await?;
        // Between a split and the insertion of its separator, there is a node that the parent does
        // not know.
        if left.sibling() != right_at && !cpu.breaks(rules::NEIGHBOURS_ONLY) {
            return Ok(JoinOutcome::Untouched);
        }
        let right_guard = self.lock_any(cpu, right).await?;
        if left.level() == 0 {
            self.compact_locked(left);
            self.compact_locked(right);
        }
        cpu.charge(Work::RestructureNode).await;
        let pair = if L::fits_merged(left, right) {
            merge(left, right, cpu.breaks(rules::PREFIXES_SHARED));
            cpu.charge(Work::ChangeNode).await;
            L::inner_remove(parent.page, slot + 1);
            if !cpu.breaks(rules::FREED_ARE_DEAD) {
                right.set_dead();
            }
            JoinOutcome::Merged
        } else if let Some(separator) = L::rebalance(left, right, |separator| {
            L::inner_can_set_key(parent.page, slot + 1, separator)
        }) {
            cpu.charge(Work::ChangeNode).await;
            L::inner_set_key(parent.page, slot + 1, L::key(&separator));
            JoinOutcome::Rebalanced
        } else {
            JoinOutcome::Untouched
        };
        drop(right_guard);
        drop(left_guard);
        drop(parent_guard);
        if pair == JoinOutcome::Merged {
            if cpu.breaks(rules::RETIRED_NODES_REST) {
                self.nodes.give_back([right_at]);
            } else {
                self.epochs.retire(right_at);
            }
            self.collector.merges.fetch_add(1, Ordering::Relaxed);
        }
        Ok(pair)
    }

    /// Ends a pass: compacts a root that is a leaf; moves the content of a single child into the
    /// root.
    async fn collect_root<C: Cpu>(&self, cpu: &C) -> Result<(), TreeFailure> {
        let at = self.root();
        let page = self.page(at).ok_or(Refusal::NoTree)?;
        let version = self.version(cpu, page).await?;
        let root = FoundNode { at, page, version };
        if page.level() == 0 {
            return self.compact_if_needed(cpu, 0, page).await;
        }
        if page.count() != 1 {
            return self.validate(cpu, &root);
        }
        let root_guard = self.lock_found(&root)?;
        let child_at: GlobalAddr = L::inner_child(page, 0);
        let child = self.page(child_at).ok_or(Refusal::Damaged)?;
        let child_guard = self.lock_any(cpu, child).await?;
        // After a split of the child, its sibling may not be in the root yet.
        let split = !child.sibling().is_null() || !child.high_is_infinite();
        if split && !cpu.breaks(rules::WHOLE_CHILD_ONLY) {
            return Ok(());
        }
        cpu.charge(Work::RestructureNode).await;
        page.copy_content(child);
        child.set_dead();
        drop(child_guard);
        drop(root_guard);
        self.epochs.retire(child_at);
        self.collector.merges.fetch_add(1, Ordering::Relaxed);
        // The child may have had only one child as well.
        Err(TreeFailure::Restart)
    }
}
