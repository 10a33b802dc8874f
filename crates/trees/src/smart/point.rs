//! Operations on one key.

use super::SmartIndex;
use super::find::RadixDescent;
use super::link::SpareMemory;
use super::radix::LeafChange;
use super::together::{GroupAnswers, only};
use crate::entry_lock::EntryHold;
use farleaf_fabric::{Fabric, Work};
use farleaf_index::IndexError;
use farleaf_page::rules;
use farleaf_page::{EditAction, EditAnswer, LEAF_WORDS, Layout, LeafCopy, Octets, RadixSlot};
use farleaf_pool::remote::MissCause;
use std::cell::Cell;

/// Maximum number of spare bytes in a leaf for a value that has outgrown its former leaf.
const MAX_ROOM: usize = 1_024;

/// The combined effect of several operations on one key.
struct KeyEffect {
    value: Option<Octets>,
    /// Whether one of the operations was applied.
    changes: bool,
    answers: GroupAnswers<EditAnswer<Octets>>,
}

/// The effect of `action` on a key with the value `found`: the new value, `None` if nothing
/// changes, and the answer.
fn change_of(
    action: &EditAction<Octets>,
    found: Option<Octets>,
) -> (Option<Option<Octets>>, EditAnswer<Octets>) {
    let to = match (action, found) {
        (EditAction::Get, found) => return (None, EditAnswer::from_lookup(found)),
        (EditAction::Insert(_), Some(_)) | (EditAction::Update(_) | EditAction::Remove, None) => {
            None
        }
        (EditAction::Insert(value), None)
        | (EditAction::Update(value), Some(_))
        | (EditAction::Upsert(value), _) => Some(Some(value.clone())),
        (EditAction::Remove, Some(_)) => Some(None),
        (EditAction::CompareExchange(old, new), Some(value)) if value == *old => {
            Some(Some(new.clone()))
        }
        (EditAction::CompareExchange(..), found) => {
            return (None, EditAnswer { applied: false, found });
        }
    };
    let answer = EditAnswer::from_change(to.is_some());
    (to, answer)
}

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    /// The value of `key`.
    pub(super) async fn value_of(&self, key: &[u8]) -> Result<Option<Octets>, IndexError> {
        if !self.combines {
            return self.look_up(key).await;
        }
        let look_up = async |lookups: &[()], _: &Cell<bool>| {
            let value = self.look_up(key).await?;
            Ok(lookups.iter().map(|()| value.clone()).collect())
        };
        let lookups = &self.sides.of(key).lookups;
        lookups.execute(self.fabric(), (key.into(), ()), (self.root.server(), None), look_up).await
    }

    async fn look_up(&self, key: &[u8]) -> Result<Option<Octets>, IndexError> {
        let attempt = async || match self.find(key, None).await? {
            RadixDescent::Leaf(leaf, ..) => Ok(leaf.found()),
            RadixDescent::None(_) => Ok(None),
        };
        Ok(self.radix.attempts(attempt).await?)
    }

    /// The values of `keys`, in their order. The READs of leaves that cached nodes lead to are in
    /// flight together.
    pub(super) async fn values_of(
        &self,
        keys: &[Octets],
    ) -> Result<Vec<Option<Octets>>, IndexError> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks((self.fabric().depth() / 2).max(1)) {
            self.fabric().charge(Work::VisitNode).await;
            let mut posted = Vec::with_capacity(keys.len());
            for key in keys {
                let leaf = self.cache(key).leaf(key);
                posted
                    .push(leaf.and_then(|at| Some((at, self.radix.leaves().post_leaf(at).ok()?))));
            }
            let mut leaves = Vec::with_capacity(keys.len());
            for read in posted {
                // Look a key up singly if its leaf is missing, torn, or of another key.
                leaves.push(match read {
                    Some((at, read)) => match read.await {
                        Ok(buffer) => self.radix.leaves().leaf_in(at, &buffer),
                        Err(_) => None,
                    },
                    None => None,
                });
            }
            for (key, leaf) in keys.iter().zip(leaves) {
                values.push(match leaf.filter(|leaf| leaf.key == *key && leaf.moved().is_none()) {
                    Some(leaf) => leaf.found(),
                    None => self.value_of(key).await?,
                });
            }
        }
        Ok(values)
    }

    /// Executes a change of one key.
    pub(super) async fn change(
        &self,
        key: &[u8],
        action: EditAction<Octets>,
    ) -> Result<EditAnswer<Octets>, IndexError> {
        self.settle_doubts().await;
        let server = self.root.server();
        let change = async |actions: &[EditAction<Octets>], posted: &Cell<bool>| {
            self.change_together(key, actions, posted).await
        };
        if !self.combines {
            return only(change(&[action], &Cell::new(false)).await?, server);
        }
        let changes = &self.sides.of(key).changes;
        let at = (server, Some(&self.unsettled));
        changes.execute(self.fabric(), (key.into(), action), at, change).await
    }

    /// Executes changes of one key, one after the other, by one WRITE (smart.T2). Sets `posted`
    /// before it posts one.
    async fn change_together(
        &self,
        key: &[u8],
        actions: &[EditAction<Octets>],
        posted: &Cell<bool>,
    ) -> Result<GroupAnswers<EditAnswer<Octets>>, IndexError> {
        let mut spare = SpareMemory::default();
        let attempt = async || self.try_change(key, actions, &mut spare, posted).await;
        let outcome = self.radix.attempts(attempt).await;
        let outcome = match outcome {
            // A slot may lead to the leaf.
            Err(error) if spare.in_doubt => Err(error.after_a_change(self.root.server())),
            outcome => outcome,
        };
        self.give_back(spare);
        Ok(outcome?)
    }

    async fn try_change(
        &self,
        key: &[u8],
        actions: &[EditAction<Octets>],
        spare: &mut SpareMemory,
        posted: &Cell<bool>,
    ) -> Result<GroupAnswers<EditAnswer<Octets>>, MissCause> {
        let turns = self.is_divided.then(|| &self.sides.of(key).turns);
        let found = self.find(key, turns).await?;
        if spare.in_doubt && self.has_linked(&found, spare).await? {
            // An earlier attempt has linked the leaf.
            *spare = SpareMemory::default();
            return Ok(self.effect_of(actions, None).answers);
        }
        spare.in_doubt = false;
        let before = match &found {
            RadixDescent::Leaf(leaf, ..) => leaf.found(),
            RadixDescent::None(_) => None,
        };
        let is_absent = before.is_none();
        let KeyEffect { value, changes, answers } = self.effect_of(actions, before);
        if !changes || is_absent && value.is_none() {
            return Ok(answers);
        }
        match (found, value) {
            (RadixDescent::Leaf(leaf, hold, place), Some(value)) if !leaf.has_room(&value) => {
                // Room for twice the length, so that a value that grows step by step abandons few
                // leaves.
                let mut wanted = value.clone();
                wanted.resize(value.len().max(2 * leaf.value.len()).min(MAX_ROOM), 0);
                let wanted = if wanted.len() < value.len() { &value } else { &wanted };
                let room = self.spare_leaf((key, wanted), spare).await?;
                let new = LeafCopy::first(self.form, room, place.at, (key, &value));
                self.write(&[(room.at, new.words())], spare).await?;
                // Once the old leaf may lead there, the memory belongs to the tree.
                let lost = spare.leaf.take();
                if let Err(error) =
                    self.write_leaf((leaf, hold), LeafChange::Leaf(room), posted).await
                {
                    // An earlier attempt may have posted another change.
                    if !posted.get() || matches!(error, MissCause::Restart) {
                        spare.leaf = lost;
                    }
                    return Err(error);
                }
                // Until the slot is updated, operations reach the new leaf through the old one.
                drop(self.follow(place, RadixSlot::leaf(0, room)));
            }
            (RadixDescent::Leaf(leaf, hold, _), Some(value)) => {
                self.write_leaf((leaf, hold), LeafChange::Value(&value), posted).await?;
            }
            (RadixDescent::Leaf(leaf, hold, _), None) => {
                self.write_leaf((leaf, hold), LeafChange::Absent, posted).await?;
            }
            (RadixDescent::None(gap), Some(value)) => {
                posted.set(true);
                self.link((key, &value), gap, spare).await?;
            }
            (RadixDescent::None(_), None) => {}
        }
        Ok(answers)
    }

    /// Changes a leaf under its lock, or in a turn.
    async fn write_leaf(
        &self,
        (leaf, hold): (LeafCopy, Option<EntryHold<'_>>),
        to: LeafChange<'_>,
        posted: &Cell<bool>,
    ) -> Result<(), MissCause> {
        match hold {
            Some(hold) => {
                self.fabric().charge(Work::ChangeNode).await;
                posted.set(true);
                self.radix
                    .leaves()
                    .write_leaf_in_turn((self.radix.turns(), hold), &leaf, to)
                    .await?;
            }
            None => {
                let locked = self.radix.leaves().lock_leaf(&leaf).await?;
                self.fabric().charge(Work::ChangeNode).await;
                posted.set(true);
                self.radix.leaves().write_leaf(locked, &leaf, to).await?;
            }
        }
        Ok(())
    }

    /// Whether the leaf of an earlier attempt, whose CAS has an unknown outcome, is in the tree.
    async fn has_linked(
        &self,
        found: &RadixDescent<'_, '_>,
        spare: &SpareMemory,
    ) -> Result<bool, MissCause> {
        Ok(match (found, spare.leaf) {
            (RadixDescent::Leaf(leaf, ..), Some(own)) if leaf.room == own => true,
            // Another client may have found it and moved it since (radix.B4).
            (RadixDescent::Leaf(..), Some(own)) if own.words() > LEAF_WORDS => {
                self.radix.leaves().read_leaf(own).await?.moved().is_some()
            }
            _ => false,
        })
    }

    fn effect_of(&self, actions: &[EditAction<Octets>], before: Option<Octets>) -> KeyEffect {
        let (mut value, mut changes, mut answers) = (before.clone(), false, GroupAnswers::new());
        for action in actions {
            let alike = self.fabric().breaks(rules::COMBINED_IN_ORDER);
            let found = if alike { before.clone() } else { value.clone() };
            let (to, answer) = change_of(action, found);
            if let Some(to) = to {
                (value, changes) = (to, true);
            }
            answers.push(answer);
        }
        KeyEffect { value, changes, answers }
    }
}
