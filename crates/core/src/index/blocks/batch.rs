//! Several operations of one call: their blocks are written together, and they go down as one group
//! of the design.
//!
//! *Thread safety*: that of the handle.

use super::BlockIndex;
use super::handle::{BLOCKS_TOGETHER, New};
use crate::index::{Answer, IndexAdmin, IndexError, LeafEdit, RangeIndex, rounds};
use crate::page::{Action, BlockRef, Layout};
use crate::together::{all, join};
use farleaf_fabric::Fabric;

type EditOf<'a> = LeafEdit<&'a [u8], &'a [u8]>;
type Outcome = Result<Answer<Vec<u8>>, IndexError>;

impl<I, F, L> BlockIndex<I, F, L>
where
    I: IndexAdmin<Key = [u8], Value = [u8]>,
    F: Fabric,
    L: Layout<Key = [u8], Value = [u8]>,
{
    pub(super) async fn execute_batch(&self, edits: &[EditOf<'_>]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(edits.len());
        for together in edits.chunks(BLOCKS_TOGETHER) {
            outcomes.extend(self.execute_together(together).await);
        }
        outcomes
    }

    /// A compare-exchange may have to go down several times, so each goes by itself, beside a group
    /// of edits of other keys.
    async fn execute_together(&self, edits: &[EditOf<'_>]) -> Vec<Outcome> {
        if !edits.iter().any(is_exchange) {
            return self.execute_group(edits).await;
        }
        let rounds = rounds(edits);
        let mut ended: Vec<(usize, Outcome)> = Vec::with_capacity(edits.len());
        for round in 0..=rounds.iter().copied().max().unwrap_or(0) {
            let places = (0..edits.len()).filter(|place| rounds[*place] == round);
            let (alone, group): (Vec<usize>, Vec<usize>) =
                places.partition(|place| is_exchange(&edits[*place]));
            let grouped: Vec<EditOf<'_>> = group.iter().map(|place| edits[*place]).collect();
            let exchanges = alone.iter().map(|place| self.execute(edits[*place]));
            let (exchanged, executed) = join(all(exchanges), self.execute_group(&grouped)).await;
            ended.extend(alone.into_iter().zip(exchanged));
            ended.extend(group.into_iter().zip(executed));
        }
        ended.sort_unstable_by_key(|(place, _)| *place);
        ended.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// Executes edits as one group. The design keeps the order of those on one key.
    async fn execute_group(&self, edits: &[EditOf<'_>]) -> Vec<Outcome> {
        // Leaves refer to blocks only once these are written (blocks.X1).
        let prepared = all(edits.iter().map(|edit| self.prepare(*edit))).await;
        let stored: Vec<EditOf<'_>> = edits
            .iter()
            .zip(&prepared)
            .filter_map(|(edit, new)| match new {
                Ok(Some(new)) => Some(new.storing(*edit)),
                Ok(None) => Some(*edit),
                Err(_) => None,
            })
            .collect();
        let since_ns = self.values.blocks.now_ns();
        let mut outcomes = self.design.execute_all(&stored).await.into_iter();
        let ends = edits.iter().zip(prepared).map(|(edit, new)| {
            let sent = new.map(|new| {
                let outcome = outcomes.next().expect("the design answers every edit");
                (new.and_then(|new| new.block), outcome)
            });
            self.end(*edit, sent, since_ns)
        });
        all(ends).await
    }

    /// Checks an edit, and writes the block of its new value if it needs one. `None` if it has no
    /// new value.
    async fn prepare<'a>(&self, edit: EditOf<'a>) -> Result<Option<New<'a>>, IndexError> {
        match edit.action {
            Action::Insert(value) | Action::Update(value) | Action::Upsert(value) => {
                Self::check(edit.key, value)?;
                self.over().store(edit.key, value).await.map(Some)
            }
            Action::Get | Action::Remove | Action::CompareExchange(..) => {
                L::check_key(edit.key)?;
                Ok(None)
            }
        }
    }

    /// Ends an edit that was sent with its new block, if it was.
    async fn end(
        &self,
        edit: EditOf<'_>,
        sent: Result<(Option<BlockRef>, Outcome), IndexError>,
        since_ns: u64,
    ) -> Outcome {
        let (block, outcome) = sent?;
        match edit.action {
            Action::Get => {
                let value = match outcome?.found {
                    Some(stored) => self.over().resolve_or_ask(edit.key, stored, since_ns).await?,
                    None => None,
                };
                Ok(Answer::from_lookup(value))
            }
            Action::Insert(value) | Action::Update(value) | Action::Upsert(value) => {
                self.over().settle(block, value, outcome).await
            }
            Action::Remove | Action::CompareExchange(..) => {
                self.over().settle(None, &[], outcome).await
            }
        }
    }
}

fn is_exchange(edit: &EditOf<'_>) -> bool {
    matches!(edit.action, Action::CompareExchange(..))
}
