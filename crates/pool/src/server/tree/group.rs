//! Single-key operations that descend together, one level at a time.
//!
//! A single descent waits for memory at every level. Here each operation in turn searches its node
//! and prefetches the child, so that their cache misses overlap. Versions are coupled as in a
//! single descent. An operation that meets anything unusual runs alone, from the root.
//!
//! *Thread safety*: the same as for [`ServerTree`].

use super::descend::FoundNode;
use super::{ServerTree, TreeFailure};
use crate::wire::Refusal;
use farleaf_fabric::{Cpu, GlobalAddr, Work, prefetch};
use farleaf_page::{DescentProbe, EditAnswer, Layout, LeafEdit, OwnedValue, WalkStep, step};
use smallvec::SmallVec;

/// Maximum number of operations that descend together.
const GROUP: usize = 32;

/// How far an operation has come.
#[derive(Debug)]
enum TreeEditProgress<'a, L: Layout> {
    /// It is at a node that it has not searched yet.
    At(FoundNode<'a, L>),
    /// It is between a node and the next one, which is being prefetched.
    Between(FoundNode<'a, L>, GlobalAddr),
    /// It has found its leaf.
    Here(FoundNode<'a, L>),
    /// It must run alone.
    Alone,
}

type TreeEdit<'e, L> = LeafEdit<&'e <L as Layout>::Key, &'e <L as Layout>::Value>;

impl<L: Layout> ServerTree<L> {
    /// Executes several single-key operations. They descend together and then take effect in order;
    /// calls `done` with the outcome of each in turn.
    pub async fn execute_all<C: Cpu>(
        &self,
        cpu: &C,
        edits: &[TreeEdit<'_, L>],
        mut done: impl FnMut(Result<EditAnswer<OwnedValue<L>>, Refusal>),
    ) {
        for edits in edits.chunks(GROUP) {
            let _epoch = self.epochs.enter(cpu.stripe());
            let mut leaves = SmallVec::<[Option<FoundNode<'_, L>>; GROUP]>::new();
            self.descend_together(cpu, edits, &mut leaves).await;
            for (leaf, edit) in leaves.into_iter().zip(edits) {
                let outcome = match leaf {
                    Some(leaf) => self.execute_at(cpu, leaf, *edit).await,
                    None => Err(TreeFailure::Restart),
                };
                done(match outcome {
                    Ok(answer) => Ok(answer),
                    Err(TreeFailure::Refused(refusal)) => Err(refusal),
                    Err(TreeFailure::Restart) => self.execute(cpu, *edit).await,
                });
            }
        }
    }

    /// Descends to the leaves of all operations; `None` is for one that must run alone.
    async fn descend_together<'a, C: Cpu>(
        &'a self,
        cpu: &C,
        edits: &[TreeEdit<'_, L>],
        leaves: &mut SmallVec<[Option<FoundNode<'a, L>>; GROUP]>,
    ) {
        let root = self.find_root(cpu).await.ok();
        let at_root = || root.map_or(TreeEditProgress::Alone, TreeEditProgress::At);
        let mut group: SmallVec<[_; GROUP]> = edits.iter().map(|_| at_root()).collect();
        while group.iter().any(|progress| matches!(progress, TreeEditProgress::At(_))) {
            for (progress, edit) in group.iter_mut().zip(edits) {
                if let TreeEditProgress::At(node) = *progress {
                    cpu.charge(Work::VisitNode).await;
                    *progress = self.search(cpu, node, DescentProbe::At(edit.key));
                }
            }
            for progress in &mut group {
                if let TreeEditProgress::Between(node, to) = *progress {
                    let next = self.hand_over(cpu, &node, to).await;
                    *progress = next.map_or(TreeEditProgress::Alone, TreeEditProgress::At);
                }
            }
        }
        leaves.extend(group.into_iter().map(|progress| match progress {
            TreeEditProgress::Here(leaf) => Some(leaf),
            _ => None,
        }));
    }

    /// Searches a node and prefetches the next one.
    #[inline]
    fn search<'a, C: Cpu>(
        &'a self,
        cpu: &C,
        node: FoundNode<'a, L>,
        probe: DescentProbe<'_, L::Key>,
    ) -> TreeEditProgress<'a, L> {
        let step = step(node.page, probe, 0);
        // Validate before following the address: an invalid page may contain any words.
        if self.validate(cpu, &node).is_err() {
            return TreeEditProgress::Alone;
        }
        match step {
            WalkStep::Here => TreeEditProgress::Here(node),
            WalkStep::Child(to) | WalkStep::Right(to) => match self.page(to) {
                Some(page) => {
                    prefetch(page.words());
                    TreeEditProgress::Between(node, to)
                }
                None => TreeEditProgress::Alone,
            },
            WalkStep::Lost => TreeEditProgress::Alone,
        }
    }
}
