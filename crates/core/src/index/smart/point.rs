//! Operations on one key.

use super::SmartIndex;
use super::find::Found;
use super::link::Spare;
use super::together::{Answers, only};
use crate::index::IndexError;
use crate::page::{Action, Answer, Layout};
use crate::remote::Miss;
use crate::rules;
use farleaf_fabric::{Fabric, Work};
use std::cell::Cell;

/// What operations make of a key, one after the other.
struct Effect {
    value: Option<u64>,
    /// Whether one of them was applied.
    changes: bool,
    answers: Answers<Answer<u64>>,
}

/// What `action` makes of a key that has the value `found`: the value, if it is applied, and the
/// answer.
fn change_of(action: Action<u64>, found: Option<u64>) -> (Option<Option<u64>>, Answer<u64>) {
    let to = match (action, found) {
        (Action::Get, found) => return (None, Answer::from_lookup(found)),
        (Action::Insert(_), Some(_)) | (Action::Update(_) | Action::Remove, None) => None,
        (Action::Insert(value), None)
        | (Action::Update(value), Some(_))
        | (Action::Upsert(value), _) => Some(Some(value)),
        (Action::Remove, Some(_)) => Some(None),
        (Action::CompareExchange(old, new), Some(value)) if value == old => Some(Some(new)),
        (Action::CompareExchange(..), found) => return (None, Answer { applied: false, found }),
    };
    (to, Answer::from_change(to.is_some()))
}

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    /// The value of `key`.
    pub(super) async fn value_of(&self, key: u64) -> Result<Option<u64>, IndexError> {
        if !self.combines {
            return self.look_up(key).await;
        }
        let look_up = async |lookups: &[()], _: &Cell<bool>| {
            let value = self.look_up(key).await?;
            Ok(lookups.iter().map(|()| value).collect())
        };
        let lookups = &self.sides.of(key).lookups;
        lookups.execute(self.fabric(), (key, ()), (self.root.server(), None), look_up).await
    }

    async fn look_up(&self, key: u64) -> Result<Option<u64>, IndexError> {
        let attempt = async || match self.find(key, None).await? {
            Found::Leaf(leaf, _) => Ok(leaf.found()),
            Found::None(_) => Ok(None),
        };
        Ok(self.radix.attempts(attempt).await?)
    }

    /// The values of `keys`, in their order. The READs of leaves that cached nodes lead to are in
    /// flight together.
    pub(super) async fn values_of(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, IndexError> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks((self.fabric().depth() / 2).max(1)) {
            self.fabric().charge(Work::VisitNode).await;
            let mut posted = Vec::with_capacity(keys.len());
            for key in keys {
                let leaf = self.cache(*key).leaf(*key);
                posted.push(leaf.and_then(|at| Some((at, self.radix.post_leaf(at).ok()?))));
            }
            let mut leaves = Vec::with_capacity(keys.len());
            for read in posted {
                // What is missing, torn, or of another key is looked up by itself.
                leaves.push(match read {
                    Some((at, read)) => match read.await {
                        Ok(buffer) => self.radix.leaf_in(at, &buffer),
                        Err(_) => None,
                    },
                    None => None,
                });
            }
            for (key, leaf) in keys.iter().zip(leaves) {
                values.push(match leaf.filter(|leaf| leaf.key == *key) {
                    Some(leaf) => leaf.found(),
                    None => self.value_of(*key).await?,
                });
            }
        }
        Ok(values)
    }

    /// Executes a change of one key.
    pub(super) async fn change(
        &self,
        key: u64,
        action: Action<u64>,
    ) -> Result<Answer<u64>, IndexError> {
        self.settle_doubts().await;
        let server = self.root.server();
        let change = async |actions: &[Action<u64>], posted: &Cell<bool>| {
            self.change_together(key, actions, posted).await
        };
        if !self.combines {
            return only(change(&[action], &Cell::new(false)).await?, server);
        }
        let changes = &self.sides.of(key).changes;
        let at = (server, Some(&self.unsettled));
        changes.execute(self.fabric(), (key, action), at, change).await
    }

    /// Executes changes of one key, one after the other, by one WRITE (smart.T2). Sets `posted`
    /// before it posts one.
    async fn change_together(
        &self,
        key: u64,
        actions: &[Action<u64>],
        posted: &Cell<bool>,
    ) -> Result<Answers<Answer<u64>>, IndexError> {
        let mut spare = Spare::default();
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
        key: u64,
        actions: &[Action<u64>],
        spare: &mut Spare,
        posted: &Cell<bool>,
    ) -> Result<Answers<Answer<u64>>, Miss> {
        let turns = self.is_divided.then(|| &self.sides.of(key).turns);
        let found = self.find(key, turns).await?;
        if spare.in_doubt
            && let Found::Leaf(leaf, _) = &found
            && spare.leaf == Some(leaf.at)
        {
            // An earlier attempt has linked it.
            *spare = Spare::default();
            return Ok(self.effect_of(actions, None).answers);
        }
        spare.in_doubt = false;
        let before = match &found {
            Found::Leaf(leaf, _) => leaf.found(),
            Found::None(_) => None,
        };
        let Effect { value, changes, answers } = self.effect_of(actions, before);
        if !changes || before.is_none() && value.is_none() {
            return Ok(answers);
        }
        match found {
            Found::Leaf(leaf, hold) => {
                let (value, live) = (value.unwrap_or(leaf.value), value.is_some());
                match hold {
                    Some(hold) => {
                        self.fabric().charge(Work::ChangeNode).await;
                        posted.set(true);
                        self.radix.write_leaf_in_turn(hold, &leaf, value, live).await?;
                    }
                    None => {
                        let locked = self.radix.lock_leaf(&leaf).await?;
                        self.fabric().charge(Work::ChangeNode).await;
                        posted.set(true);
                        self.radix.write_leaf(locked, &leaf, value, live).await?;
                    }
                }
            }
            Found::None(gap) => {
                if let Some(value) = value {
                    posted.set(true);
                    self.link((key, value), gap, spare).await?;
                }
            }
        }
        Ok(answers)
    }

    fn effect_of(&self, actions: &[Action<u64>], before: Option<u64>) -> Effect {
        let (mut value, mut changes, mut answers) = (before, false, Answers::new());
        for action in actions {
            let alike = self.fabric().breaks(rules::COMBINED_IN_ORDER);
            let (to, answer) = change_of(*action, if alike { before } else { value });
            if let Some(to) = to {
                (value, changes) = (to, true);
            }
            answers.push(answer);
        }
        Effect { value, changes, answers }
    }
}
