//! The trait common to all index designs.

use super::IndexError;
use crate::together::all;
use farleaf_page::{EditAction, EditAnswer, Layout, LeafEdit, check_bounds};
use smallvec::{SmallVec, smallvec};
use std::borrow::Borrow;
use std::cell::Cell;
use std::fmt::Debug;
use std::future::Future;
use std::ops::{Bound, RangeBounds};

/// Maximum number of operations of one `multi_get` or `execute_all` in flight, unless a design
/// defines another limit.
pub const OPERATIONS_PER_BATCH: usize = 32;

/// An ordered key-value index, as one client sees it.
///
/// Single-key operations are linearizable, across clients and compute servers. A scan is not a
/// snapshot: it returns every key that is present throughout, once and in order, and no key that
/// never existed. Keys that are added, removed or changed meanwhile appear in some state. An
/// operation that ends in [`IndexError::Indeterminate`] may have happened, and may still happen
/// later; with any other error it has not happened and will not.
///
/// An operation on a key or value that no page can hold fails with [`IndexError::TooLong`]; so does
/// a scan with such a bound.
///
/// A design implements `get`, `execute`, `scan`, `bulk_load_from` and `flush`; the other operations
/// are built on these. [`super::IndexAdmin`] has the functions for operators.
///
/// *Thread safety*: a handle belongs to the thread of its endpoint; operations of one handle may be
/// in flight together.
pub trait RangeIndex {
    /// The type of keys, in their borrowed form. Operations take references and return
    /// [`OwnedForm`] keys.
    type Key: ?Sized + Ord + Debug + ToOwned<Owned: Clone + Ord + Debug + 'static> + 'static;
    /// The type of values, in their borrowed form.
    type Value: ?Sized + Eq + Debug + ToOwned<Owned: Clone + Eq + Debug + 'static> + 'static;

    /// The value of `key`. Separate from `execute` because lookups are the most frequent operation:
    /// designs answer them without the machinery that changes need.
    fn get(
        &self,
        key: &Self::Key,
    ) -> impl Future<Output = Result<Option<OwnedForm<Self::Value>>, IndexError>>;

    /// Executes any single-key operation.
    fn execute(
        &self,
        edit: LeafEdit<&Self::Key, &Self::Value>,
    ) -> impl Future<Output = Result<EditAnswer<OwnedForm<Self::Value>>, IndexError>>;

    /// The records that `scan` selects, in its order.
    fn scan(
        &self,
        scan: &ScanRequest<OwnedForm<Self::Key>>,
    ) -> impl Future<Output = Result<RecordsOf<Self>, IndexError>>;

    /// Fills an empty index from strictly ascending records, with pages filled to `fill` (0.1 to
    /// 1.0). Returns the number of records. No other client may use the index meanwhile. The load
    /// becomes visible only when it is complete; if it fails, the index stays empty.
    ///
    /// An error of `source` is not its end: it ends the load, which then has loaded nothing.
    fn bulk_load_from(
        &self,
        source: impl Iterator<Item = Result<RecordOf<Self>, IndexError>>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, IndexError>>;

    /// As [`RangeIndex::bulk_load_from`], from records that are there.
    fn bulk_load(
        &self,
        records: impl Iterator<Item = RecordOf<Self>>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, IndexError>> {
        self.bulk_load_from(records.map(Ok), fill)
    }

    /// As [`RangeIndex::bulk_load_from`], from a source with errors of its own, such as a file.
    /// Returns the first one if the source has failed.
    fn try_bulk_load<E: From<IndexError>>(
        &self,
        records: impl Iterator<Item = Result<RecordOf<Self>, E>>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, E>> {
        async move {
            let failed = Cell::new(None);
            let source = records.map(|record| {
                record.map_err(|error| {
                    failed.set(Some(error));
                    IndexError::SourceFailed
                })
            });
            let loaded = self.bulk_load_from(source, fill).await;
            // The load ends at the first error, so this is the first one.
            match failed.take() {
                Some(error) => Err(error),
                None => Ok(loaded?),
            }
        }
    }

    /// Returns when the memory servers have every change that was acknowledged before the call.
    /// Does nothing in designs that cache no changes on clients.
    fn flush(&self) -> impl Future<Output = Result<(), IndexError>>;

    /// Inserts `key`. Returns `false`, and changes nothing, if the key exists already.
    #[inline]
    fn insert(
        &self,
        key: &Self::Key,
        value: &Self::Value,
    ) -> impl Future<Output = Result<bool, IndexError>> {
        async move {
            let edit = LeafEdit { key, action: EditAction::Insert(value) };
            self.execute(edit).await.map(|answer| answer.applied)
        }
    }

    /// Changes the value of `key`. Returns `false`, and changes nothing, if the key is absent.
    #[inline]
    fn update(
        &self,
        key: &Self::Key,
        value: &Self::Value,
    ) -> impl Future<Output = Result<bool, IndexError>> {
        async move {
            let edit = LeafEdit { key, action: EditAction::Update(value) };
            self.execute(edit).await.map(|answer| answer.applied)
        }
    }

    /// Sets the value of `key`, whether the key exists or not.
    #[inline]
    fn upsert(
        &self,
        key: &Self::Key,
        value: &Self::Value,
    ) -> impl Future<Output = Result<(), IndexError>> {
        async move {
            let edit = LeafEdit { key, action: EditAction::Upsert(value) };
            self.execute(edit).await.map(drop)
        }
    }

    /// Removes `key`. Returns `false` if the key is absent.
    #[inline]
    fn remove(&self, key: &Self::Key) -> impl Future<Output = Result<bool, IndexError>> {
        async move {
            let edit = LeafEdit { key, action: EditAction::Remove };
            self.execute(edit).await.map(|answer| answer.applied)
        }
    }

    /// Sets the value of `key` to `new` if its current value is `expected`.
    #[inline]
    fn compare_exchange(
        &self,
        key: &Self::Key,
        expected: &Self::Value,
        new: &Self::Value,
    ) -> impl Future<Output = Result<Exchange<OwnedForm<Self::Value>>, IndexError>> {
        async move {
            let edit = LeafEdit { key, action: EditAction::CompareExchange(expected, new) };
            self.execute(edit).await.map(Exchange::from)
        }
    }

    /// Maximum number of operations of one `multi_get` or `execute_all` that are in flight
    /// together.
    fn operations_together(&self) -> usize {
        OPERATIONS_PER_BATCH
    }

    /// The values of `keys`, in their order. The lookups are in flight together; each is
    /// linearizable, but not all of them together.
    fn multi_get<Q: Borrow<Self::Key>>(
        &self,
        keys: &[Q],
    ) -> impl Future<Output = Result<Vec<Option<OwnedForm<Self::Value>>>, IndexError>> {
        async {
            let lookup = |key| LeafEdit { key, action: EditAction::Get };
            let edits: SmallVec<[_; OPERATIONS_PER_BATCH]> =
                keys.iter().map(|key| lookup(key.borrow())).collect();
            let answers = self.execute_all(&edits).await.into_iter();
            answers.map(|answer| answer.map(|answer| answer.found)).collect()
        }
    }

    /// Executes several single-key operations. Returns their outcomes in order. They are in flight
    /// together, except that operations on one key keep their order. Each is linearizable, but not
    /// all of them together.
    fn execute_all(
        &self,
        edits: &[LeafEdit<&Self::Key, &Self::Value>],
    ) -> impl Future<Output = Vec<Result<EditAnswer<OwnedForm<Self::Value>>, IndexError>>> {
        execute_in_rounds(self, edits)
    }

    /// Settles unknown outcomes of this handle's operations: pages that it may hold, and WRITEs
    /// that may still land. Only this handle can settle them, except that some designs execute
    /// operations of several handles together: then this returns [`IndexError::Contended`] until
    /// the handle that has executed them is settled. So after an operation that ended as
    /// indeterminate, call this before dropping the handle; otherwise other clients wait for these
    /// pages forever. Does nothing in designs without such pages.
    fn settle(&self) -> impl Future<Output = Result<(), IndexError>> {
        async { Ok(()) }
    }
}

/// Executes operations one by one, as many together as keep their order on each key.
async fn execute_in_rounds<I: RangeIndex + ?Sized>(
    index: &I,
    edits: &[LeafEdit<&I::Key, &I::Value>],
) -> Vec<Result<EditAnswer<OwnedForm<I::Value>>, IndexError>> {
    let mut answers = Vec::with_capacity(edits.len());
    for together in edits.chunks(index.operations_together().max(1)) {
        let rounds = rounds(together);
        let mut ended = Vec::with_capacity(together.len());
        for round in 0..=rounds.iter().copied().max().unwrap_or(0) {
            let places = || (0..together.len()).filter(|place| rounds[*place] == round);
            let outcomes = all(places().map(|place| index.execute(together[place]))).await;
            ended.extend(places().zip(outcomes));
        }
        ended.sort_unstable_by_key(|(place, _)| *place);
        answers.extend(ended.into_iter().map(|(_, outcome)| outcome));
    }
    answers
}

/// For each operation, the number of earlier operations on the same key: operations with the same
/// number may overlap. All zero if nothing changes.
pub fn rounds<K: ?Sized + Eq, V: ?Sized>(
    edits: &[LeafEdit<&K, &V>],
) -> SmallVec<[usize; OPERATIONS_PER_BATCH]> {
    if !edits.iter().any(LeafEdit::changes) {
        return smallvec![0; edits.len()];
    }
    let earlier = |(place, edit): (usize, &LeafEdit<&K, &V>)| {
        edits[..place].iter().filter(|earlier| earlier.key == edit.key).count()
    };
    edits.iter().enumerate().map(earlier).collect()
}

/// The owned form of a key or a value.
pub type OwnedForm<T> = <T as ToOwned>::Owned;

/// A key with its value, of one index.
pub type RecordOf<I> = (OwnedForm<<I as RangeIndex>::Key>, OwnedForm<<I as RangeIndex>::Value>);

/// Keys with their values, of one index.
pub type RecordsOf<I> =
    KeyedRecords<OwnedForm<<I as RangeIndex>::Key>, OwnedForm<<I as RangeIndex>::Value>>;

/// Keys with their values.
pub type KeyedRecords<K, V> = Vec<(K, V)>;

/// The result of a compare-exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange<V> {
    /// The value was the expected one and is now the new one.
    Exchanged,
    /// The value differed and is unchanged (`None`: the key is absent).
    Differs(Option<V>),
}

impl<V> From<EditAnswer<V>> for Exchange<V> {
    fn from(answer: EditAnswer<V>) -> Self {
        if answer.applied { Self::Exchanged } else { Self::Differs(answer.found) }
    }
}

/// The records that a scan returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRequest<K> {
    /// The lower bound: the start of an ascending scan, the end of a descending one.
    pub lower: Bound<K>,
    /// The upper bound: the end of an ascending scan, the start of a descending one.
    pub upper: Bound<K>,
    /// Whether the scan descends.
    pub reverse: bool,
    /// Maximum number of records to return.
    pub limit: usize,
}

impl<K: Clone> ScanRequest<K> {
    /// All records within `range`, ascending.
    pub fn range(range: impl RangeBounds<K>) -> Self {
        Self {
            lower: range.start_bound().cloned(),
            upper: range.end_bound().cloned(),
            reverse: false,
            limit: usize::MAX,
        }
    }

    /// The same range in the opposite direction.
    #[must_use]
    pub fn reverse(mut self) -> Self {
        self.reverse = !self.reverse;
        self
    }

    /// Returns at most `limit` records.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

impl<K> ScanRequest<K> {
    /// Whether a page can hold the keys that bound the scan.
    ///
    /// # Errors
    /// [`IndexError::TooLong`] if no page can.
    #[inline]
    pub fn check<L: Layout>(&self) -> Result<(), IndexError>
    where
        K: Borrow<L::Key>,
    {
        Ok(check_bounds::<L, K>([&self.lower, &self.upper])?)
    }
}

impl<K: Ord> ScanRequest<K> {
    /// Whether `key` and all keys above it are above the range.
    pub fn is_above(&self, key: &K) -> bool {
        match &self.upper {
            Bound::Unbounded => false,
            Bound::Included(bound) => key > bound,
            Bound::Excluded(bound) => key >= bound,
        }
    }

    /// Whether all keys below `key` are below the range.
    pub fn is_below(&self, key: &K) -> bool {
        match &self.lower {
            Bound::Unbounded => false,
            Bound::Included(bound) | Bound::Excluded(bound) => key <= bound,
        }
    }
}
