//! Several operations of one call: their blocks are written together, and the index below executes
//! them in groups.
//!
//! *Thread safety*: that of the handle.

use super::BlockIndex;
use super::below::BlockReferences;
use super::handle::{BLOCKS_PER_BATCH, BlockEdit, BlockOperations, NewLeafValue};
use farleaf_fabric::Fabric;
use farleaf_index::together::{all, join};
use farleaf_index::{EditAnswer, IndexError, rounds};
use farleaf_page::{EditAction, Layout};
use farleaf_pool::remote::RemoteError;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};

/// Operations of a group that usually wait together.
const GROUP: usize = 16;

/// An edit of a group: its position in the call, the edit, and what the leaf will store for its new
/// value, if it has one.
type SentEdit<'a> = (usize, BlockEdit<'a>, Option<NewLeafValue<'a>>);
type BlockEditOutcome<E> = Result<EditAnswer<Vec<u8>>, E>;

impl<F: Fabric, L: Layout<Key = [u8], Value = [u8]>> BlockIndex<F, L> {
    pub(super) async fn execute_batch(
        &self,
        edits: &[BlockEdit<'_>],
    ) -> Vec<BlockEditOutcome<IndexError>> {
        let mut outcomes = Vec::with_capacity(edits.len());
        for together in edits.chunks(BLOCKS_PER_BATCH) {
            outcomes.extend(self.execute_together(together).await);
        }
        outcomes
    }

    /// Edits of one key keep their order, so each of them waits for those before it.
    async fn execute_together(&self, edits: &[BlockEdit<'_>]) -> Vec<BlockEditOutcome<IndexError>> {
        let refusals = edits.iter().map(|edit| {
            let refused = edit.check_by::<L>(Self::check).err();
            refused.map(|error| Err(IndexError::from(error)))
        });
        let outcomes: RefCell<Vec<Option<BlockEditOutcome<IndexError>>>> =
            RefCell::new(refusals.collect());
        let rounds = rounds(edits);
        for round in 0..=rounds.iter().copied().max().unwrap_or(0) {
            let is_sent =
                |place: &usize| rounds[*place] == round && outcomes.borrow()[*place].is_none();
            let places: Vec<usize> = (0..edits.len()).filter(is_sent).collect();
            let group: Vec<BlockEdit<'_>> = places.iter().map(|place| edits[*place]).collect();
            let done = |at: usize, outcome| outcomes.borrow_mut()[places[at]] = Some(outcome);
            self.over().execute_all(&group, &done).await;
        }
        let outcomes = outcomes.into_inner().into_iter();
        outcomes.map(|outcome| outcome.expect("every edit has an outcome")).collect()
    }
}

impl<B, F, L> BlockOperations<'_, B, F, L>
where
    B: BlockReferences,
    F: Fabric,
    L: Layout<Key = [u8], Value = [u8]>,
{
    /// Executes several operations, whose lengths have been checked, as concurrent ones: those on
    /// the same key take effect in any order. When one ends, calls `done` with its position and
    /// outcome.
    ///
    /// Operations that write blocks wait for their WRITEs, and are then passed down as another
    /// group. A compare-exchange may need several attempts below, so each is executed by itself.
    pub(super) async fn execute_all(
        &self,
        edits: &[BlockEdit<'_>],
        done: &impl Fn(usize, BlockEditOutcome<B::Error>),
    ) {
        let _edit = self.blocks.edit();
        let mut at_once = SmallVec::<[SentEdit<'_>; GROUP]>::new();
        let (mut in_blocks, mut exchanges) = (Vec::new(), Vec::new());
        for (place, edit) in edits.iter().copied().enumerate() {
            match edit.action {
                EditAction::Get | EditAction::Remove => at_once.push((place, edit, None)),
                EditAction::Insert(value)
                | EditAction::Update(value)
                | EditAction::Upsert(value) => match self.inline(edit.key, value) {
                    Some(stored) => {
                        at_once.push((place, edit, Some(NewLeafValue::inline(stored))));
                    }
                    None => in_blocks.push((place, edit, value)),
                },
                EditAction::CompareExchange(..) => exchanges.push((place, edit)),
            }
        }
        if in_blocks.is_empty() && exchanges.is_empty() {
            return self.execute_group(&at_once, done).await;
        }
        // Boxed, so that it does not enlarge the future of short values.
        let slow = Box::pin(async {
            let written = async {
                let mut until_ns = None;
                while !in_blocks.is_empty() {
                    // Leaves may refer to blocks only once these are written (blocks.X1).
                    let seen = self.blocks.frees();
                    let write =
                        in_blocks.iter().map(|(.., value)| self.blocks.write_in_hand(value));
                    let blocks = all(write).await;
                    let mut group: Vec<SentEdit<'_>> = Vec::with_capacity(in_blocks.len());
                    let (mut left, mut full) = (Vec::new(), None);
                    for ((place, edit, value), block) in in_blocks.into_iter().zip(blocks) {
                        match block {
                            Ok(block) => {
                                group.push((place, edit, Some(NewLeafValue::in_block(block))))
                            }
                            Err(error @ RemoteError::OutOfMemory { .. }) => {
                                left.push((place, edit, value));
                                full = Some(error);
                            }
                            Err(error) => done(place, Err(error.into())),
                        }
                    }
                    // Edits that have written blocks take older blocks out of leaves, which frees
                    // memory for the others.
                    self.execute_group(&group, done).await;
                    drop(group);
                    if let Some(error) = full
                        && !self.can_free(seen, &mut until_ns).await
                    {
                        left.drain(..)
                            .for_each(|(place, ..)| done(place, Err(error.clone().into())));
                    }
                    in_blocks = left;
                }
            };
            let exchanged = all(exchanges.iter().map(async |(place, edit)| {
                done(*place, self.execute(*edit).await);
            }));
            join(written, exchanged).await;
        });
        join(self.execute_group(&at_once, done), slow).await;
    }

    /// Executes edits in the index below, and READs the blocks that lookups have found.
    async fn execute_group(
        &self,
        edits: &[SentEdit<'_>],
        done: &impl Fn(usize, BlockEditOutcome<B::Error>),
    ) {
        if edits.is_empty() {
            return;
        }
        let since_ns = self.blocks.now_ns();
        let below: SmallVec<[BlockEdit<'_>; GROUP]> = edits
            .iter()
            .map(|(_, edit, new)| new.as_ref().map_or(*edit, |new| new.storing(*edit)))
            .collect();
        let unresolved = RefCell::new(SmallVec::<[(usize, Vec<u8>); GROUP]>::new());
        let is_due = Cell::new(false);
        let ended = |at: usize, outcome: BlockEditOutcome<B::Error>| {
            let (place, edit, new) = &edits[at];
            let value = match edit.action {
                EditAction::Get => {
                    let Ok(EditAnswer { found: Some(stored), .. }) = outcome else {
                        return done(*place, outcome);
                    };
                    return match self.resolved_at_once(stored) {
                        Ok(value) => done(*place, Ok(EditAnswer::from_lookup(Some(value)))),
                        Err(stored) => unresolved.borrow_mut().push((at, stored)),
                    };
                }
                EditAction::Insert(value)
                | EditAction::Update(value)
                | EditAction::Upsert(value) => value,
                EditAction::Remove | EditAction::CompareExchange(..) => &[],
            };
            let block = new.as_ref().and_then(|new| new.block);
            let (outcome, has_lost_many) = self.settled(block, value, outcome);
            is_due.set(is_due.get() | has_lost_many);
            done(*place, outcome);
        };
        self.design.execute_all(&below, ended).await;
        let read = unresolved.take().into_iter().map(async |(at, stored)| {
            let (place, edit, _) = &edits[at];
            let found = self.resolve_or_ask(edit.key, stored, since_ns).await;
            done(*place, found.map(EditAnswer::from_lookup));
        });
        all(read).await;
        if is_due.get() {
            // The operations themselves have succeeded. The next lost block tries this again.
            let _ = self.rest_lost().await;
        }
    }
}
