//! Splits: a full node moves its upper half to a new right sibling; its parent is updated later.
//!
//! *Invariants*
//! - tree.S1. All nodes that a chain of splits can need are allocated before the first change, so
//!   running out of memory changes nothing.
//! - tree.S2. A new node is complete before anything points to it.
//! - tree.S3. A separator that cannot be inserted only costs readers a step to the right.

use super::descend::{FoundNode, restarting};
use super::{ServerTree, TreeFailure};
use crate::wire::Refusal;
use farleaf_fabric::{Cpu, GlobalAddr, Work};
use farleaf_page::rules;
use farleaf_page::{
    DescentProbe, ExclusiveLatch, Layout, OverflowEntry, OwnedKey, Page, split_plan,
};

/// A separator that has yet to be inserted into the parent.
#[derive(Clone, Debug)]
struct TreeSeparator<K> {
    level: u8,
    key: K,
    child: GlobalAddr,
}

impl<L: Layout> ServerTree<L> {
    /// Splits the locked node, adds `entry` to the half that covers its key, and updates the
    /// parents.
    pub(super) async fn split_and_add<C: Cpu>(
        &self,
        cpu: &C,
        full: FoundNode<'_, L>,
        guard: ExclusiveLatch<'_>,
        entry: OverflowEntry<L>,
    ) -> Result<(), Refusal> {
        // tree.S1: one node per level up to the root, two for the root, and one in case the tree
        // grows meanwhile.
        let root = self.page(self.root()).ok_or(Refusal::NoTree)?;
        let levels = usize::from(root.level().saturating_sub(full.page.level())) + 3;
        let mut spare = self.nodes.take(levels).ok_or(Refusal::OutOfMemory)?;
        let result = self.split(cpu, full, guard, &entry, &mut spare).await;
        let mut separator = result.as_ref().ok().cloned().flatten();
        while let Some(known) = separator {
            // tree.S3: the record is in the tree; without the separator, descents step to the
            // right.
            separator =
                restarting!(self, cpu, self.install(cpu, &known, &mut spare)).unwrap_or(None);
        }
        self.nodes.give_back(spare);
        result.map(|_| ())
    }

    /// Splits one locked node and adds `entry`. Returns the separator to insert into the parent.
    async fn split<C: Cpu>(
        &self,
        cpu: &C,
        full: FoundNode<'_, L>,
        guard: ExclusiveLatch<'_>,
        entry: &OverflowEntry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<Option<TreeSeparator<OwnedKey<L>>>, Refusal> {
        let needed = if full.at == self.root() { 2 } else { 1 };
        if spare.len() < needed {
            spare.extend(self.nodes.take(needed).ok_or(Refusal::OutOfMemory)?);
        }
        let separator = if full.at == self.root() {
            self.split_root(cpu, full.page, entry, spare).await?;
            None
        } else {
            let (key, child) = self.split_node(cpu, full.page, entry, spare).await?;
            Some(TreeSeparator { level: full.page.level() + 1, key, child })
        };
        drop(guard);
        Ok(separator)
    }

    async fn split_node<C: Cpu>(
        &self,
        cpu: &C,
        left: Page<'_, L>,
        entry: &OverflowEntry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<(OwnedKey<L>, GlobalAddr), Refusal> {
        let right_at = spare.pop().ok_or(Refusal::OutOfMemory)?;
        let right = self.page(right_at).ok_or(Refusal::Damaged)?;
        // No other operation can reach the node. Locking it makes its version advance (L1).
        let fresh = self.lock_any(cpu, right).await.map_err(|_| Refusal::Damaged)?;
        let plan = split_plan(left, Some(entry), cpu.breaks(rules::SEPARATORS_ABOVE));
        L::split_copy(left, right, right_at, &plan);
        let half = if entry.key() < L::key(&plan.separator) { left } else { right };
        cpu.charge(Work::RestructureNode).await;
        L::split_truncate(left, &plan);
        cpu.charge(Work::ChangeNode).await;
        let added = entry.add_to(half);
        L::split_link(left, L::key(&plan.separator), right_at);
        drop(fresh);
        // layout.Y6. If it did not hold, the tree would be intact, but without the entry.
        if added { Ok((plan.separator, right_at)) } else { Err(Refusal::Damaged) }
    }

    /// Splits the root: its content moves into two new children. The root keeps its address and
    /// rises by one level.
    async fn split_root<C: Cpu>(
        &self,
        cpu: &C,
        root: Page<'_, L>,
        entry: &OverflowEntry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<(), Refusal> {
        let left_at = spare.pop().ok_or(Refusal::OutOfMemory)?;
        let left = self.page(left_at).ok_or(Refusal::Damaged)?;
        let fresh = self.lock_any(cpu, left).await.map_err(|_| Refusal::Damaged)?;
        let (low, high) = (L::low(root), L::high(root));
        left.format_empty(left_at, root.level(), L::key(&low), high.as_ref().map(L::key));
        left.copy_content(root);
        let (separator, right_at) = self.split_node(cpu, left, entry, spare).await?;
        root.format_empty(
            root.address(),
            left.level() + 1,
            L::key(&low),
            high.as_ref().map(L::key),
        );
        cpu.charge(Work::ChangeNode).await;
        L::inner_insert(root, L::key(&low), left_at);
        L::inner_insert(root, L::key(&separator), right_at);
        drop(fresh);
        Ok(())
    }

    /// Inserts a separator at its level. Returns the next separator if that node had to be split.
    async fn install<C: Cpu>(
        &self,
        cpu: &C,
        separator: &TreeSeparator<OwnedKey<L>>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<Option<TreeSeparator<OwnedKey<L>>>, TreeFailure> {
        let probe = DescentProbe::At(L::key(&separator.key));
        let node = self.descend(cpu, probe, separator.level).await?;
        let guard = self.lock_found(&node)?;
        cpu.charge(Work::ChangeNode).await;
        if L::inner_key(node.page, L::inner_slot(node.page, probe)) == separator.key {
            return Ok(None); // another operation has inserted it
        }
        let entry = OverflowEntry::Child(separator.key.clone(), separator.child);
        if entry.add_to(node.page) {
            return Ok(None);
        }
        Ok(self.split(cpu, node, guard, &entry, spare).await?)
    }
}
