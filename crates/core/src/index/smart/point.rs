//! Operations on one key.

use super::SmartIndex;
use super::find::Found;
use super::link::Spare;
use crate::index::IndexError;
use crate::page::{Action, Answer, Layout, LeafCopy};
use crate::remote::{Miss, RemoteError};
use farleaf_fabric::{Fabric, Work};

/// What an operation makes of a key.
enum Change {
    /// Nothing.
    Nothing(Answer<u64>),
    /// The key is present with this value.
    Value(u64),
    /// The key is absent.
    Absence,
}

/// What `action` makes of a key that has the value `found`.
fn change_of(action: Action<u64>, found: Option<u64>) -> Change {
    match (action, found) {
        (Action::Get, found) => Change::Nothing(Answer::from_lookup(found)),
        (Action::Insert(_), Some(_)) | (Action::Update(_) | Action::Remove, None) => {
            Change::Nothing(Answer::from_change(false))
        }
        (Action::Insert(value), None)
        | (Action::Update(value), Some(_))
        | (Action::Upsert(value), _) => Change::Value(value),
        (Action::Remove, Some(_)) => Change::Absence,
        (Action::CompareExchange(old, new), Some(value)) if value == old => Change::Value(new),
        (Action::CompareExchange(..), found) => Change::Nothing(Answer { applied: false, found }),
    }
}

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    /// The value of `key`.
    pub(super) async fn value_of(&self, key: u64) -> Result<Option<u64>, IndexError> {
        let attempt = async || match self.find(key).await? {
            Found::Leaf(leaf) => Ok(leaf.found()),
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
                let leaf = self.cache.leaf(*key);
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
        self.radix.settle_doubts().await;
        let mut spare = Spare::default();
        let attempt = async || self.try_change(key, action, &mut spare).await;
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
        action: Action<u64>,
        spare: &mut Spare,
    ) -> Result<Answer<u64>, Miss> {
        let found = self.find(key).await?;
        if spare.in_doubt
            && let Found::Leaf(leaf) = &found
            && spare.leaf == Some(leaf.at)
        {
            // An earlier attempt has linked it.
            *spare = Spare::default();
            return Ok(Answer::from_change(true));
        }
        spare.in_doubt = false;
        match found {
            Found::Leaf(leaf) => match change_of(action, leaf.found()) {
                Change::Nothing(answer) => Ok(answer),
                Change::Value(value) => self.change_leaf(&leaf, value, true).await,
                Change::Absence => self.change_leaf(&leaf, leaf.value, false).await,
            },
            Found::None(gap) => match change_of(action, None) {
                Change::Nothing(answer) => Ok(answer),
                Change::Value(value) => {
                    self.link((key, value), gap, spare).await?;
                    Ok(Answer::from_change(true))
                }
                Change::Absence => Err(RemoteError::Contended { retries: 0 }.into()),
            },
        }
    }

    async fn change_leaf(
        &self,
        leaf: &LeafCopy,
        value: u64,
        live: bool,
    ) -> Result<Answer<u64>, Miss> {
        let locked = self.radix.lock_leaf(leaf).await?;
        self.fabric().charge(Work::ChangeNode).await;
        self.radix.write_leaf(locked, leaf, value, live).await?;
        Ok(Answer::from_change(true))
    }
}
