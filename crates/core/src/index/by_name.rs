//! An index as one of numbers: suites, models and checkers use the same operations and the same
//! histories for every layout that has names ([`Named`]).
//!
//! *Thread safety*: that of the index.

use super::{Answer, Exchange, IndexAdmin, IndexError, LeafEdit, RangeIndex, Records, Scan};
use crate::cache::CacheCounters;
use crate::page::{Action, Named, OwnedKey, OwnedValue};
use std::borrow::Borrow;
use std::fmt::Debug;
use std::marker::PhantomData;

/// An index of layout `L`, whose keys and values are used by their names.
///
/// Panics if the index returns a key or a value without a name.
#[derive(Debug)]
pub struct ByName<L, I> {
    index: I,
    layout: PhantomData<L>,
}

impl<L: Named, I: RangeIndex<Key = L::Key, Value = L::Value>> ByName<L, I> {
    /// Uses `index` by names.
    pub fn new(index: I) -> Self {
        Self { index, layout: PhantomData }
    }

    /// The index.
    pub fn index(&self) -> &I {
        &self.index
    }

    fn key(key: &L::Key) -> u64 {
        L::name_of_key(key).unwrap_or_else(|| panic!("a key that no client has set: {key:?}"))
    }

    fn value(value: &L::Value) -> u64 {
        let name = L::name_of_value(value);
        name.unwrap_or_else(|| panic!("a value that no client has set: {value:?}"))
    }

    fn answer(answer: Answer<OwnedValue<L>>) -> Answer<u64> {
        let found = answer.found.map(|value| Self::value(L::value(&value)));
        Answer { applied: answer.applied, found }
    }

    fn edit(edit: &LeafEdit<&u64, &u64>) -> LeafEdit<OwnedKey<L>, OwnedValue<L>> {
        let value = |name: &u64| L::value_named(*name);
        let action = match edit.action {
            Action::Get => Action::Get,
            Action::Insert(name) => Action::Insert(value(name)),
            Action::Update(name) => Action::Update(value(name)),
            Action::Upsert(name) => Action::Upsert(value(name)),
            Action::Remove => Action::Remove,
            Action::CompareExchange(expected, new) => {
                Action::CompareExchange(value(expected), value(new))
            }
        };
        LeafEdit { key: L::key_named(*edit.key), action }
    }
}

impl<L: Named, I: RangeIndex<Key = L::Key, Value = L::Value>> RangeIndex for ByName<L, I> {
    type Key = u64;
    type Value = u64;

    async fn get(&self, key: &u64) -> Result<Option<u64>, IndexError> {
        let value = self.index.get(L::key(&L::key_named(*key))).await?;
        Ok(value.map(|value| Self::value(L::value(&value))))
    }

    async fn execute(&self, edit: LeafEdit<&u64, &u64>) -> Result<Answer<u64>, IndexError> {
        let edit = Self::edit(&edit);
        self.index.execute(edit.as_ref()).await.map(Self::answer)
    }

    async fn scan(&self, scan: &Scan<u64>) -> Result<Records<u64, u64>, IndexError> {
        let key = |name| L::key_named(name);
        let (lower, upper) = (scan.lower.map(key), scan.upper.map(key));
        let named = Scan { lower, upper, reverse: scan.reverse, limit: scan.limit };
        let records = self.index.scan(&named).await?;
        let name = |(key, value)| (Self::key(L::key(&key)), Self::value(L::value(&value)));
        Ok(records.into_iter().map(name).collect())
    }

    async fn bulk_load(
        &self,
        records: impl Iterator<Item = (u64, u64)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        let named = records.map(|(key, value)| (L::key_named(key), L::value_named(value)));
        self.index.bulk_load(named, fill).await
    }

    async fn flush(&self) -> Result<(), IndexError> {
        self.index.flush().await
    }

    async fn compare_exchange(
        &self,
        key: &u64,
        expected: &u64,
        new: &u64,
    ) -> Result<Exchange<u64>, IndexError> {
        let (key, expected) = (L::key_named(*key), L::value_named(*expected));
        let new = L::value_named(*new);
        let (key, expected, new) = (L::key(&key), L::value(&expected), L::value(&new));
        Ok(match self.index.compare_exchange(key, expected, new).await? {
            Exchange::Exchanged => Exchange::Exchanged,
            Exchange::Differs(found) => {
                Exchange::Differs(found.map(|value| Self::value(L::value(&value))))
            }
        })
    }

    fn operations_together(&self) -> usize {
        self.index.operations_together()
    }

    async fn multi_get<Q: Borrow<u64>>(&self, keys: &[Q]) -> Result<Vec<Option<u64>>, IndexError> {
        let keys: Vec<_> = keys.iter().map(|key| L::key_named(*key.borrow())).collect();
        let values = self.index.multi_get(&keys).await?.into_iter();
        Ok(values.map(|value| value.map(|value| Self::value(L::value(&value)))).collect())
    }

    async fn execute_all(
        &self,
        edits: &[LeafEdit<&u64, &u64>],
    ) -> Vec<Result<Answer<u64>, IndexError>> {
        let edits: Vec<_> = edits.iter().map(Self::edit).collect();
        let borrowed: Vec<_> = edits.iter().map(LeafEdit::as_ref).collect();
        let answers = self.index.execute_all(&borrowed).await.into_iter();
        answers.map(|answer| answer.map(Self::answer)).collect()
    }

    async fn settle(&self) -> Result<(), IndexError> {
        self.index.settle().await
    }
}

impl<L: Named, I: IndexAdmin<Key = L::Key, Value = L::Value>> IndexAdmin for ByName<L, I> {
    async fn collect(&self) -> Result<(), IndexError> {
        self.index.collect().await
    }

    async fn declare_dead(&self, compute_server: u16) -> Result<(), IndexError> {
        self.index.declare_dead(compute_server).await
    }

    fn cache_counters(&self) -> CacheCounters {
        self.index.cache_counters()
    }

    fn compute_server_of(&self, key: &u64) -> Option<u16> {
        self.index.compute_server_of(L::key(&L::key_named(*key)))
    }
}
