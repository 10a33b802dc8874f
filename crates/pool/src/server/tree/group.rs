//! Single-key operations that descend together, one level at a time.
//!
//! A single descent waits for memory at every level. Here each operation in turn searches its node
//! and prefetches the child, so that their cache misses overlap. Versions are coupled as in a
//! single descent. An operation that meets anything unusual runs alone, from the root.
//!
//! *Thread safety*: the same as for [`Tree`].

use super::descend::Found;
use super::{Fail, Tree};
use crate::wire::Refusal;
use farleaf_fabric::{Cpu, GlobalAddr, Work, prefetch};
use farleaf_page::{Answer, Layout, LeafEdit, OwnedValue, Probe, Step, step};
use smallvec::SmallVec;

/// Maximum number of operations that descend together.
const GROUP: usize = 32;

/// How far an operation has come.
#[derive(Debug)]
enum Progress<'a, L: Layout> {
    /// It is at a node that it has not searched yet.
    At(Found<'a, L>),
    /// It is between a node and the next one, which is being prefetched.
    Between(Found<'a, L>, GlobalAddr),
    /// It has found its leaf.
    Here(Found<'a, L>),
    /// It must run alone.
    Alone,
}

type EditOf<'e, L> = LeafEdit<&'e <L as Layout>::Key, &'e <L as Layout>::Value>;

impl<L: Layout> Tree<L> {
    /// Executes several single-key operations. They descend together and then take effect in order;
    /// calls `done` with the outcome of each in turn.
    pub async fn execute_all<C: Cpu>(
        &self,
        cpu: &C,
        edits: &[EditOf<'_, L>],
        mut done: impl FnMut(Result<Answer<OwnedValue<L>>, Refusal>),
    ) {
        for edits in edits.chunks(GROUP) {
            let _epoch = self.epochs.enter(cpu.stripe());
            let mut leaves = SmallVec::<[Option<Found<'_, L>>; GROUP]>::new();
            self.descend_together(cpu, edits, &mut leaves).await;
            for (leaf, edit) in leaves.into_iter().zip(edits) {
                let outcome = match leaf {
                    Some(leaf) => self.execute_at(cpu, leaf, *edit).await,
                    None => Err(Fail::Restart),
                };
                done(match outcome {
                    Ok(answer) => Ok(answer),
                    Err(Fail::Refused(refusal)) => Err(refusal),
                    Err(Fail::Restart) => self.execute(cpu, *edit).await,
                });
            }
        }
    }

    /// Descends to the leaves of all operations; `None` is for one that must run alone.
    async fn descend_together<'a, C: Cpu>(
        &'a self,
        cpu: &C,
        edits: &[EditOf<'_, L>],
        leaves: &mut SmallVec<[Option<Found<'a, L>>; GROUP]>,
    ) {
        let root = self.find_root(cpu).await.ok();
        let at_root = || root.map_or(Progress::Alone, Progress::At);
        let mut group: SmallVec<[_; GROUP]> = edits.iter().map(|_| at_root()).collect();
        while group.iter().any(|progress| matches!(progress, Progress::At(_))) {
            for (progress, edit) in group.iter_mut().zip(edits) {
                if let Progress::At(node) = *progress {
                    cpu.charge(Work::VisitNode).await;
                    *progress = self.search(cpu, node, Probe::At(edit.key));
                }
            }
            for progress in &mut group {
                if let Progress::Between(node, to) = *progress {
                    let next = self.hand_over(cpu, &node, to).await;
                    *progress = next.map_or(Progress::Alone, Progress::At);
                }
            }
        }
        leaves.extend(group.into_iter().map(|progress| match progress {
            Progress::Here(leaf) => Some(leaf),
            _ => None,
        }));
    }

    /// Searches a node and prefetches the next one.
    #[inline]
    fn search<'a, C: Cpu>(
        &'a self,
        cpu: &C,
        node: Found<'a, L>,
        probe: Probe<'_, L::Key>,
    ) -> Progress<'a, L> {
        let step = step(node.page, probe, 0);
        // Validate before following the address: an invalid page may contain any words.
        if self.validate(cpu, &node).is_err() {
            return Progress::Alone;
        }
        match step {
            Step::Here => Progress::Here(node),
            Step::Child(to) | Step::Right(to) => match self.page(to) {
                Some(page) => {
                    prefetch(page.words());
                    Progress::Between(node, to)
                }
                None => Progress::Alone,
            },
            Step::Lost => Progress::Alone,
        }
    }
}
