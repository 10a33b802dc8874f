//! The one trait of all index designs.

use super::{IndexAdmin, IndexError};
use crate::page::{Action, Answer, Layout, LeafEdit};
use crate::together::all;
use farleaf_fabric::Fabric;
use std::fmt::Debug;
use std::future::Future;
use std::ops::{Bound, RangeBounds};

/// An ordered key-value index, as one client sees it.
///
/// Single-key operations are linearizable, across clients and compute servers. A scan is not a
/// snapshot: it sees every key that is there throughout, once and in order, and no key that never
/// was; of keys that come, go or change meanwhile it sees some state. An operation that ends in
/// [`IndexError::Indeterminate`] may have happened, and may still happen later; with any other
/// error it has not and will not.
///
/// A design brings `get`, `execute`, `scan`, `bulk_load` and `flush`; the rest follows from these.
/// What operators do to an index is in [`super::IndexAdmin`].
///
/// *Thread safety*: a handle belongs to the thread of its endpoint; operations of one handle may be
/// in flight together.
pub trait RangeIndex {
    /// Keys.
    type Key: Clone + Ord + Debug + 'static;
    /// Values.
    type Value: Clone + Eq + Debug + 'static;

    /// The value of `key`. Apart from `execute`, because lookups are what most programs do most:
    /// designs answer them without what changes need.
    fn get(&self, key: &Self::Key)
    -> impl Future<Output = Result<Option<Self::Value>, IndexError>>;

    /// Does an operation on one key, whichever it is.
    fn execute(
        &self,
        edit: LeafEdit<&Self::Key, &Self::Value>,
    ) -> impl Future<Output = Result<Answer<Self::Value>, IndexError>>;

    /// The records that `scan` asks for, in its order.
    fn scan(
        &self,
        scan: &Scan<Self::Key>,
    ) -> impl Future<Output = Result<Records<Self::Key, Self::Value>, IndexError>>;

    /// Fills an empty index from records that ascend strictly, with pages filled to `fill` (0.1 to
    /// 1.0); returns how many there were. Nobody else may use the index meanwhile. Readers see
    /// nothing of it until it is done; if it fails, the index stays empty.
    fn bulk_load(
        &self,
        records: impl Iterator<Item = (Self::Key, Self::Value)>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, IndexError>>;

    /// Returns when the memory servers have everything that was acknowledged before the call.
    /// Designs whose clients cache no changes have nothing to do.
    fn flush(&self) -> impl Future<Output = Result<(), IndexError>>;

    /// Adds `key`; `false`, and nothing changes, if it is there already.
    #[inline]
    fn insert(
        &self,
        key: &Self::Key,
        value: &Self::Value,
    ) -> impl Future<Output = Result<bool, IndexError>> {
        applied(self.execute(LeafEdit { key, action: Action::Insert(value) }))
    }

    /// Changes the value of `key`; `false`, and nothing changes, if it is absent.
    #[inline]
    fn update(
        &self,
        key: &Self::Key,
        value: &Self::Value,
    ) -> impl Future<Output = Result<bool, IndexError>> {
        applied(self.execute(LeafEdit { key, action: Action::Update(value) }))
    }

    /// Sets the value of `key`, whether it is there or not.
    #[inline]
    fn upsert(
        &self,
        key: &Self::Key,
        value: &Self::Value,
    ) -> impl Future<Output = Result<(), IndexError>> {
        async move {
            let edit = LeafEdit { key, action: Action::Upsert(value) };
            self.execute(edit).await.map(drop)
        }
    }

    /// Removes `key`; `false` if it is absent.
    #[inline]
    fn remove(&self, key: &Self::Key) -> impl Future<Output = Result<bool, IndexError>> {
        applied(self.execute(LeafEdit { key, action: Action::Remove }))
    }

    /// Sets the value of `key` to `new` if it is there with the value `expected`.
    #[inline]
    fn compare_exchange(
        &self,
        key: &Self::Key,
        expected: &Self::Value,
        new: &Self::Value,
    ) -> impl Future<Output = Result<Exchange<Self::Value>, IndexError>> {
        async move {
            let edit = LeafEdit { key, action: Action::CompareExchange(expected, new) };
            self.execute(edit).await.map(Exchange::from)
        }
    }

    /// How many lookups of one `multi_get` are in flight together, at most.
    fn lookups_together(&self) -> usize {
        32
    }

    /// The values of `keys`, in their order; the lookups are in flight together. Each is
    /// linearizable, all of them together are not.
    fn multi_get(
        &self,
        keys: &[Self::Key],
    ) -> impl Future<Output = Result<Vec<Option<Self::Value>>, IndexError>> {
        async {
            let mut values = Vec::with_capacity(keys.len());
            for together in keys.chunks(self.lookups_together().max(1)) {
                for value in all(together.iter().map(|key| self.get(key))).await {
                    values.push(value?);
                }
            }
            Ok(values)
        }
    }

    /// Settles what operations of this handle did not learn the outcome of: pages that it may hold,
    /// WRITEs that may still land. Only this handle can; so after an operation that ended as
    /// indeterminate, call it before the handle is dropped, or others wait for these pages for
    /// ever. Designs whose clients hold nothing have nothing to do.
    fn settle(&self) -> impl Future<Output = Result<(), IndexError>> {
        async { Ok(()) }
    }
}

/// Whether an edit's condition held.
#[inline]
async fn applied<V>(
    answer: impl Future<Output = Result<Answer<V>, IndexError>>,
) -> Result<bool, IndexError> {
    answer.await.map(|answer| answer.applied)
}

/// Keys with their values.
pub type Records<K, V> = Vec<(K, V)>;

/// What became of a compare-exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange<V> {
    /// The value was the expected one and is now the new one.
    Exchanged,
    /// The value was another one (`None`: the key is absent) and still is.
    Differs(Option<V>),
}

impl<V> From<Answer<V>> for Exchange<V> {
    fn from(answer: Answer<V>) -> Self {
        if answer.applied { Self::Exchanged } else { Self::Differs(answer.found) }
    }
}

/// Which records a scan returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan<K> {
    /// Where it starts or ends, below.
    pub lower: Bound<K>,
    /// Where it ends or starts, above.
    pub upper: Bound<K>,
    /// Descending instead of ascending.
    pub reverse: bool,
    /// At most so many records.
    pub limit: usize,
}

impl<K: Clone> Scan<K> {
    /// Everything within `range`, ascending.
    pub fn range(range: impl RangeBounds<K>) -> Self {
        Self {
            lower: range.start_bound().cloned(),
            upper: range.end_bound().cloned(),
            reverse: false,
            limit: usize::MAX,
        }
    }

    /// The same range from its upper end downwards.
    #[must_use]
    pub fn reverse(mut self) -> Self {
        self.reverse = !self.reverse;
        self
    }

    /// At most `limit` records.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

impl<K: Ord> Scan<K> {
    /// Whether all keys from `key` on are above the range.
    pub(crate) fn is_above(&self, key: &K) -> bool {
        match &self.upper {
            Bound::Unbounded => false,
            Bound::Included(bound) => key > bound,
            Bound::Excluded(bound) => key >= bound,
        }
    }

    /// Whether all keys below `key` are below the range.
    pub(crate) fn is_below(&self, key: &K) -> bool {
        match &self.lower {
            Bound::Unbounded => false,
            Bound::Included(bound) | Bound::Excluded(bound) => key <= bound,
        }
    }
}

/// An index design: how to make and open indexes over memory servers with pages of `L`.
pub trait Design<L: Layout>: Copy + Debug + Send + Sync + 'static {
    /// The design's name, as commands and reports say it.
    const NAME: &'static str;

    /// What can be chosen when an index is made.
    type Options: Clone + Debug + Send + Sync;

    /// What all handles of an index in this process share beside the memory servers: the caches of
    /// its compute servers. `()` for designs that keep nothing there.
    type Compute: Clone + Debug + Send + Sync + 'static;

    /// The handles.
    type Index<F: Fabric>: IndexAdmin<Key = L::Key, Value = L::Value>;

    /// Makes an empty index on memory servers that have none.
    fn create<F: Fabric>(
        fabric: &F,
        options: &Self::Options,
    ) -> impl Future<Output = Result<(), IndexError>>;

    /// The compute side of one index, to be made once and given to every [`Design::open`].
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the options make no sense, or there is no memory for a
    /// cache.
    fn compute(options: &Self::Options) -> Result<Self::Compute, IndexError>;

    /// Opens the index that the memory servers hold.
    fn open<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> impl Future<Output = Result<Self::Index<F>, IndexError>>;

    /// Bytes of pages that the caches of all compute servers hold now.
    fn cached_bytes(compute: &Self::Compute) -> u64 {
        let _ = compute;
        0
    }

    /// Bytes of the index's own memory on the compute side, caches apart; 0 for designs that keep
    /// their nodes on the memory servers.
    fn local_bytes(compute: &Self::Compute) -> u64 {
        let _ = compute;
        0
    }
}
