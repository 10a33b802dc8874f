//! Single-key operations that descend together, one level at a time.
//!
//! A single descent waits for memory at every level, because the child's lines are not in the
//! processor's caches. Here each operation takes one step and prefetches what its next step reads;
//! then the other operations of the group take their steps. So the memory accesses overlap, and
//! each operation prefetches only the lines that it needs: first a header, then the keys, then one
//! child word. Leaves that are not hot are fetched together.
//!
//! D5 holds for each operation at each level, as in `descend.rs`. An operation that meets anything
//! unusual runs alone, from the root.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use super::change::{GivenAnswer, answer_of};
use super::descend::{ChildTarget, LeafLocation};
use crate::cache::{
    OptimisticRef, RecordChange, Restart, Swip, UnwrittenChange, end_record_change,
};
use farleaf_fabric::{Fabric, GlobalAddr, Work, prefetch};
use farleaf_index::together::{all, join};
use farleaf_page::rules;
use farleaf_page::{DescentProbe, EditAnswer, Layout, LeafEdit, OwnedValue};
use farleaf_pool::remote::RemoteError;
use smallvec::SmallVec;
use std::cell::RefCell;

/// Maximum number of operations that descend together. With half as many, cache misses overlap just
/// as well, but fewer READs do.
const GROUP: usize = 32;

/// How far an operation has come.
#[derive(Debug)]
enum EditProgress<'a, L: Layout> {
    /// It is at a hot node of the group's level.
    At(OptimisticRef<'a, L>),
    /// It has found its slot in a node. The child word is being prefetched.
    Found(OptimisticRef<'a, L>, usize),
    /// It is between a node and its child. The child's header is being prefetched. Holds the slot
    /// in the node and the child word.
    Between(OptimisticRef<'a, L>, (usize, Swip)),
    /// Its leaf is not hot. Holds the leaf's parent, the slot there, and the leaf's address.
    Missing(OptimisticRef<'a, L>, usize, GlobalAddr),
    /// It must run alone.
    Alone,
    /// It has ended, and has left its leaf sparse.
    Sparse,
    /// It has ended.
    Done,
}

/// An answer that waits until what it reports is written (ack.A1).
struct UnwrittenAnswer<L: Layout> {
    place: usize,
    answer: EditAnswer<OwnedValue<L>>,
    change: UnwrittenChange,
}

type EditGroup<'a, L> = SmallVec<[EditProgress<'a, L>; GROUP]>;
type GroupEdit<'e, L> = LeafEdit<&'e <L as Layout>::Key, &'e <L as Layout>::Value>;

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Executes several single-key operations like concurrent calls of [`DexIndex::execute`]: those
    /// on the same key take effect in any order. When an operation ends, calls `done` with its
    /// position and outcome.
    pub async fn execute_all(
        &self,
        edits: &[GroupEdit<'_, L>],
        done: impl Fn(usize, Result<EditAnswer<OwnedValue<L>>, RemoteError>),
    ) {
        for (number, edits) in edits.chunks(GROUP).enumerate() {
            let records = RefCell::new(self.begin_record_changes(edits));
            let done = |place: usize, outcome: Result<EditAnswer<_>, RemoteError>| {
                if let Ok(answer) = &outcome
                    && let Some(record) = records.borrow_mut().get_mut(place)
                {
                    end_record_change::<L>(record.take(), &edits[place], answer);
                }
                done(number * GROUP + place, outcome);
            };
            if edits.iter().any(LeafEdit::changes) {
                self.before_change().await;
            }
            // Without a cache there is no descent to share, and each offload is a request of its
            // own.
            let descends = !self.uncached && !self.offload.is_on();
            let root = self.seen_root().ok().filter(|_| descends);
            let at_root = || root.map_or(EditProgress::Alone, EditProgress::At);
            let mut group: EditGroup<'_, L> = edits.iter().map(|_| at_root()).collect();
            let mut waiting = Vec::new();
            self.use_hot_records(edits, &mut group, &done).await;
            if let Some(root) = root {
                self.descend_together(root.page.level(), edits, &mut group).await;
                waiting = self.use_hot_leaves(edits, &mut group, &done).await;
            }
            self.finish_others(edits, &mut group, waiting, &done).await;
        }
    }

    /// Begins the changes of hot records, if there are any (C31).
    fn begin_record_changes(
        &self,
        edits: &[GroupEdit<'_, L>],
    ) -> SmallVec<[Option<RecordChange<'_>>; GROUP]> {
        if self.client.cache().records().is_none() {
            return SmallVec::new();
        }
        edits.iter().for_each(|edit| self.client.prefetch_hot_value(edit.key));
        let begin = |edit: &GroupEdit<'_, L>| {
            edit.changes().then(|| self.client.begin_record_change(edit.key)).flatten()
        };
        edits.iter().map(begin).collect()
    }

    /// Answers the lookups of hot records.
    async fn use_hot_records(
        &self,
        edits: &[GroupEdit<'_, L>],
        group: &mut EditGroup<'_, L>,
        done: &impl Fn(usize, Result<EditAnswer<OwnedValue<L>>, RemoteError>),
    ) {
        if self.client.cache().records().is_none() {
            return;
        }
        for (place, (progress, edit)) in group.iter_mut().zip(edits).enumerate() {
            if edit.changes() {
                continue;
            }
            self.charge(Work::VisitNode).await;
            if let Some(found) = self.client.hot_value(edit.key) {
                done(place, Ok(EditAnswer::from_lookup(Some(found))));
                *progress = EditProgress::Done;
            }
        }
    }

    /// Takes all operations from the root, which is at `level`, down to their leaves.
    async fn descend_together<'a>(
        &'a self,
        level: u8,
        edits: &[GroupEdit<'_, L>],
        group: &mut EditGroup<'a, L>,
    ) {
        for level in (1..=level).rev() {
            for (progress, edit) in group.iter_mut().zip(edits) {
                if let EditProgress::At(node) = *progress {
                    let slot = L::inner_slot(node.page, DescentProbe::At(edit.key));
                    prefetch(&node.page.words()[L::inner_child_word(node.page, slot)]);
                    *progress = EditProgress::Found(node, slot);
                }
            }
            for progress in group.iter_mut() {
                if let EditProgress::Found(node, slot) = *progress {
                    *progress = match self.client.cache().swip(node.page, slot) {
                        Some(swip) => {
                            if let Swip::Frame(frame) = swip {
                                self.client.cache().arena().prefetch_header(frame);
                            }
                            EditProgress::Between(node, (slot, swip))
                        }
                        None => EditProgress::Alone,
                    };
                }
            }
            for (progress, edit) in group.iter_mut().zip(edits) {
                if let EditProgress::Between(node, found) = *progress {
                    self.charge(Work::VisitNode).await;
                    let stepped = self.step_down(node, level, found, DescentProbe::At(edit.key));
                    *progress = stepped.unwrap_or(EditProgress::Alone);
                }
            }
        }
    }

    /// Steps from a node at `level` to the child: takes the child's version, and then validates the
    /// node (D5), which may have changed since it was searched.
    #[inline(always)]
    fn step_down<'a>(
        &'a self,
        node: OptimisticRef<'a, L>,
        level: u8,
        (slot, swip): (usize, Swip),
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<EditProgress<'a, L>, Restart> {
        let fabric = self.fabric();
        let child = self.child(swip)?;
        let node = match child {
            ChildTarget::Elsewhere(_) if fabric.breaks(rules::GROUP_SLOT_FRESH) => {
                self.client.cache().seen(node.frame).unwrap_or(node)
            }
            _ => node,
        };
        let is_hot = matches!(child, ChildTarget::Hot(_));
        if !is_hot || !fabric.breaks(rules::GROUP_PARENT_VALIDATED) {
            self.confirm(node, level, child, probe)?;
        }
        Ok(match child {
            ChildTarget::Hot(child) => {
                prefetch(&child.page.words()[L::search_words(child.page)]);
                EditProgress::At(child)
            }
            ChildTarget::Elsewhere(address) if level == 1 => {
                EditProgress::Missing(node, slot, address)
            }
            ChildTarget::Elsewhere(_) => EditProgress::Alone,
        })
    }

    /// Executes the operations whose leaves are hot. Returns the answers that have to wait.
    async fn use_hot_leaves<'a>(
        &'a self,
        edits: &[GroupEdit<'_, L>],
        group: &mut EditGroup<'a, L>,
        done: &impl Fn(usize, Result<EditAnswer<OwnedValue<L>>, RemoteError>),
    ) -> Vec<UnwrittenAnswer<L>> {
        let mut waiting = Vec::new();
        for (place, (progress, edit)) in group.iter_mut().zip(edits).enumerate() {
            if let EditProgress::At(leaf) = *progress {
                let leaf = match self.fabric().breaks(rules::GROUP_VERSION_TAKEN) {
                    true => self.client.cache().seen(leaf.frame).unwrap_or(leaf),
                    false => leaf,
                };
                // A merge or a WRITE waits for memory servers; the operations after this one need
                // not wait too.
                *progress = match self.answer_at(LeafLocation::Hot(leaf), edit).await {
                    Ok(Some((answer, sparse, unwritten))) => {
                        match unwritten {
                            Some(change) => waiting.push(UnwrittenAnswer { place, answer, change }),
                            None => done(place, Ok(answer)),
                        }
                        if sparse { EditProgress::Sparse } else { EditProgress::Done }
                    }
                    Ok(None) => EditProgress::Alone,
                    Err(error) => {
                        done(place, Err(error));
                        EditProgress::Done
                    }
                };
            }
        }
        waiting
    }

    /// Executes the operations whose leaves are not hot, and those that run alone, while `waiting`
    /// answers wait. Merges the leaves that operations have left sparse.
    async fn finish_others<'a>(
        &'a self,
        edits: &[GroupEdit<'_, L>],
        group: &mut EditGroup<'a, L>,
        waiting: Vec<UnwrittenAnswer<L>>,
        done: &impl Fn(usize, Result<EditAnswer<OwnedValue<L>>, RemoteError>),
    ) {
        for progress in group.iter() {
            if let EditProgress::Missing(_, _, address) = progress {
                self.client.prefetch_for_fetch(*address);
            }
        }
        let others = group.iter().zip(edits).enumerate().filter_map(|(place, (progress, edit))| {
            let (leaf, mut ended) = match *progress {
                EditProgress::Missing(parent, slot, address) => {
                    (Some(LeafLocation::Elsewhere { parent, slot, address }), None)
                }
                EditProgress::Sparse => (None, Some(true)),
                EditProgress::Done => return None,
                _ => (None, None),
            };
            Some(async move {
                if let Some(leaf) = leaf {
                    match self.answer_at(leaf, edit).await {
                        Ok(Some((answer, sparse, _))) => {
                            done(place, Ok(answer));
                            ended = Some(sparse);
                        }
                        Ok(None) => {}
                        Err(error) => {
                            done(place, Err(error));
                            ended = Some(false);
                        }
                    }
                }
                match ended {
                    Some(true) => Box::pin(self.merge_sparse(edit.key)).await,
                    Some(false) => {}
                    None => done(place, Box::pin(self.execute(*edit)).await),
                }
            })
        });
        if waiting.is_empty() {
            all(others).await;
        } else {
            join(self.answer_written(waiting, done), all(others)).await;
        }
    }

    /// Waits for the WRITEs of changed leaves, all in flight together, and answers (ack.A1).
    async fn answer_written(
        &self,
        waiting: Vec<UnwrittenAnswer<L>>,
        done: &impl Fn(usize, Result<EditAnswer<OwnedValue<L>>, RemoteError>),
    ) {
        let begin = |waiting: &UnwrittenAnswer<L>| self.client.begin_to_write(waiting.change);
        let posted: Vec<_> = waiting.iter().filter_map(begin).collect();
        for write in posted {
            // If it fails, the leaf is dirty again, and the answers below write it.
            let _ = self.client.end_leaf_write(write).await;
        }
        let mut late = Vec::new();
        for UnwrittenAnswer { place, answer, change } in waiting {
            match self.client.is_written(change) {
                true => done(place, Ok(answer)),
                false => late.push(async move {
                    done(place, self.client.await_written(change).await.map(|()| answer));
                }),
            }
        }
        if !late.is_empty() {
            all(late).await;
        }
    }

    /// Executes an operation at the leaf where its descent ended. Returns its answer, whether the
    /// leaf is now sparse, and what the answer waits for; `None` if the operation must be retried,
    /// and then nothing has happened.
    ///
    /// # Errors
    /// [`RemoteError::Indeterminate`]: the change may have happened. Doing it again could report
    /// that an exchange failed that had succeeded, or undo a later change of another client.
    #[inline]
    async fn answer_at(
        &self,
        leaf: LeafLocation<'_, L>,
        edit: &GroupEdit<'_, L>,
    ) -> Result<Option<GivenAnswer<L>>, RemoteError> {
        match self.run_at(leaf, DescentProbe::At(edit.key), *edit).await {
            Ok(outcome) => Ok(answer_of::<L>(outcome)),
            Err(Restart::Failed(error @ RemoteError::Indeterminate(_))) => Err(error),
            Err(_) => Ok(None),
        }
    }
}
