//! Views an index as one from numbers to numbers. Suites, models and checkers can then use the same
//! operations and histories for every layout whose keys have names ([`NamedLayout`]), and
//! benchmarks the same workloads for every form of keys ([`Naming`]).
//!
//! *Thread safety*: the same as that of the index.

use super::{
    Background, EditAnswer, Exchange, IndexAdmin, IndexError, KeyedRecords, LeafEdit, RangeIndex,
    ReshapeCost, ScanRequest,
};
use crate::CacheCounters;
use farleaf_page::{EditAction, Layout, NamedLayout, OwnedKey, OwnedValue};
use std::borrow::Borrow;
use std::fmt::Debug;
use std::marker::PhantomData;

/// Converts names, which are numbers, to keys and values, and back. Keys have the order of their
/// names.
pub trait Naming<L: Layout> {
    /// The key with this name.
    fn key_named(&self, name: u64) -> OwnedKey<L>;
    /// The name of a key; `None` if it has none.
    fn name_of_key(&self, key: &L::Key) -> Option<u64>;
    /// The value with this name.
    fn value_named(&self, name: u64) -> OwnedValue<L>;
    /// The name of a value; `None` if it has none.
    fn name_of_value(&self, value: &L::Value) -> Option<u64>;
}

/// The names that a layout gives ([`NamedLayout`]).
#[derive(Clone, Copy, Debug)]
pub struct NamesOfLayout;

impl<L: NamedLayout> Naming<L> for NamesOfLayout {
    fn key_named(&self, name: u64) -> OwnedKey<L> {
        L::key_named(name)
    }

    fn name_of_key(&self, key: &L::Key) -> Option<u64> {
        L::name_of_key(key)
    }

    fn value_named(&self, name: u64) -> OwnedValue<L> {
        L::value_named(name)
    }

    fn name_of_value(&self, value: &L::Value) -> Option<u64> {
        L::name_of_value(value)
    }
}

/// An index of layout `L`, addressed by the names of keys and values.
///
/// Panics if the index returns a key or a value without a name.
#[derive(Debug)]
pub struct ByName<L, I, N = NamesOfLayout> {
    index: I,
    naming: N,
    layout: PhantomData<L>,
}

impl<L: NamedLayout, I: RangeIndex<Key = L::Key, Value = L::Value>> ByName<L, I> {
    /// Wraps `index`, with the names that its layout defines.
    pub fn new(index: I) -> Self {
        Self::with(index, NamesOfLayout)
    }
}

impl<L, I, N> ByName<L, I, N>
where
    L: Layout,
    I: RangeIndex<Key = L::Key, Value = L::Value>,
    N: Naming<L>,
{
    /// Wraps `index`, with the names that `naming` defines.
    pub fn with(index: I, naming: N) -> Self {
        Self { index, naming, layout: PhantomData }
    }

    /// The index beneath, which has the layout's own keys.
    pub fn index(&self) -> &I {
        &self.index
    }

    fn key(&self, key: &L::Key) -> u64 {
        let name = self.naming.name_of_key(key);
        name.unwrap_or_else(|| panic!("a key that no client has set: {key:?}"))
    }

    fn value(&self, value: &L::Value) -> u64 {
        let name = self.naming.name_of_value(value);
        name.unwrap_or_else(|| panic!("a value that no client has set: {value:?}"))
    }

    fn answer(&self, answer: EditAnswer<OwnedValue<L>>) -> EditAnswer<u64> {
        let found = answer.found.map(|value| self.value(L::value(&value)));
        EditAnswer { applied: answer.applied, found }
    }

    fn edit(&self, edit: &LeafEdit<&u64, &u64>) -> LeafEdit<OwnedKey<L>, OwnedValue<L>> {
        let value = |name: &u64| self.naming.value_named(*name);
        let action = match edit.action {
            EditAction::Get => EditAction::Get,
            EditAction::Insert(name) => EditAction::Insert(value(name)),
            EditAction::Update(name) => EditAction::Update(value(name)),
            EditAction::Upsert(name) => EditAction::Upsert(value(name)),
            EditAction::Remove => EditAction::Remove,
            EditAction::CompareExchange(expected, new) => {
                EditAction::CompareExchange(value(expected), value(new))
            }
        };
        LeafEdit { key: self.naming.key_named(*edit.key), action }
    }
}

impl<L, I, N> RangeIndex for ByName<L, I, N>
where
    L: Layout,
    I: RangeIndex<Key = L::Key, Value = L::Value>,
    N: Naming<L>,
{
    type Key = u64;
    type Value = u64;

    async fn get(&self, key: &u64) -> Result<Option<u64>, IndexError> {
        let value = self.index.get(L::key(&self.naming.key_named(*key))).await?;
        Ok(value.map(|value| self.value(L::value(&value))))
    }

    async fn execute(&self, edit: LeafEdit<&u64, &u64>) -> Result<EditAnswer<u64>, IndexError> {
        let edit = self.edit(&edit);
        self.index.execute(edit.as_ref()).await.map(|answer| self.answer(answer))
    }

    async fn scan(&self, scan: &ScanRequest<u64>) -> Result<KeyedRecords<u64, u64>, IndexError> {
        let key = |name| self.naming.key_named(name);
        let (lower, upper) = (scan.lower.map(key), scan.upper.map(key));
        let named = ScanRequest { lower, upper, reverse: scan.reverse, limit: scan.limit };
        let records = self.index.scan(&named).await?;
        let name = |(key, value)| (self.key(L::key(&key)), self.value(L::value(&value)));
        Ok(records.into_iter().map(name).collect())
    }

    async fn bulk_load_from(
        &self,
        source: impl Iterator<Item = Result<(u64, u64), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        let named = |(key, value)| (self.naming.key_named(key), self.naming.value_named(value));
        self.index.bulk_load_from(source.map(|record| record.map(named)), fill).await
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
        let (key, expected) = (self.naming.key_named(*key), self.naming.value_named(*expected));
        let new = self.naming.value_named(*new);
        let (key, expected, new) = (L::key(&key), L::value(&expected), L::value(&new));
        Ok(match self.index.compare_exchange(key, expected, new).await? {
            Exchange::Exchanged => Exchange::Exchanged,
            Exchange::Differs(found) => {
                Exchange::Differs(found.map(|value| self.value(L::value(&value))))
            }
        })
    }

    fn operations_together(&self) -> usize {
        self.index.operations_together()
    }

    async fn multi_get<Q: Borrow<u64>>(&self, keys: &[Q]) -> Result<Vec<Option<u64>>, IndexError> {
        let keys: Vec<_> = keys.iter().map(|key| self.naming.key_named(*key.borrow())).collect();
        let values = self.index.multi_get(&keys).await?.into_iter();
        Ok(values.map(|value| value.map(|value| self.value(L::value(&value)))).collect())
    }

    async fn execute_all(
        &self,
        edits: &[LeafEdit<&u64, &u64>],
    ) -> Vec<Result<EditAnswer<u64>, IndexError>> {
        let edits: Vec<_> = edits.iter().map(|edit| self.edit(edit)).collect();
        let borrowed: Vec<_> = edits.iter().map(LeafEdit::as_ref).collect();
        let answers = self.index.execute_all(&borrowed).await.into_iter();
        answers.map(|answer| answer.map(|answer| self.answer(answer))).collect()
    }

    async fn settle(&self) -> Result<(), IndexError> {
        self.index.settle().await
    }
}

impl<L, I, N> IndexAdmin for ByName<L, I, N>
where
    L: Layout,
    I: IndexAdmin<Key = L::Key, Value = L::Value>,
    N: Naming<L>,
{
    async fn collect(&self) -> Result<(), IndexError> {
        self.index.collect().await
    }

    async fn declare_dead(&self, compute_server: u16) -> Result<(), IndexError> {
        self.index.declare_dead(compute_server).await
    }

    async fn background(
        &self,
        work: Background,
        ended: &dyn Fn() -> bool,
        report: &dyn Fn(Result<ReshapeCost, IndexError>),
    ) -> Result<(), IndexError> {
        self.index.background(work, ended, report).await
    }

    fn cache_counters(&self) -> CacheCounters {
        self.index.cache_counters()
    }

    fn compute_server_of(&self, key: &u64) -> Option<u16> {
        self.index.compute_server_of(L::key(&self.naming.key_named(*key)))
    }
}
