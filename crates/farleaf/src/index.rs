//! The handle.

use crate::cores::Cores;
use crate::operation::Operation;
use crate::request::{Request, Response};
use crate::scan::Scan;
use farleaf_core::index::Exchange;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

/// An ordered index of `u64` keys and values, in this process ([`crate::Embedded`]) or in a cluster
/// ([`crate::connect()`]).
///
/// Clones are the same handle. Any number of threads and tasks may use it at the same time. When
/// the last clone is dropped, an embedded index is gone, and a connection is closed.
#[derive(Clone)]
pub struct Index {
    cores: Arc<Cores>,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").finish_non_exhaustive()
    }
}

/// The function that takes one kind of response apart.
macro_rules! take {
    ($kind:ident) => {
        |response| match response {
            Response::$kind(value) => value,
            other => unreachable!("another operation's response: {other:?}"),
        }
    };
}

impl Index {
    pub(crate) fn new(cores: Cores) -> Self {
        Self { cores: Arc::new(cores) }
    }

    fn run<T>(&self, request: Request, take: fn(Response) -> T) -> Operation<T> {
        Operation::new(&self.cores, request, take)
    }

    /// The value of `key`.
    pub fn get(&self, key: u64) -> Operation<Option<u64>> {
        self.run(Request::Get(key), take!(Value))
    }

    /// Inserts `key`. Returns `false`, and changes nothing, if the key exists already.
    pub fn insert(&self, key: u64, value: u64) -> Operation<bool> {
        self.run(Request::Insert(key, value), take!(Applied))
    }

    /// Changes the value of `key`. Returns `false`, and changes nothing, if the key is absent.
    pub fn update(&self, key: u64, value: u64) -> Operation<bool> {
        self.run(Request::Update(key, value), take!(Applied))
    }

    /// Sets the value of `key`, whether the key exists or not.
    pub fn upsert(&self, key: u64, value: u64) -> Operation<()> {
        self.run(Request::Upsert(key, value), drop)
    }

    /// Removes `key`. Returns `false` if the key is absent.
    pub fn remove(&self, key: u64) -> Operation<bool> {
        self.run(Request::Remove(key), take!(Applied))
    }

    /// Sets the value of `key` to `new` if its current value is `expected`.
    pub fn compare_exchange(&self, key: u64, expected: u64, new: u64) -> Operation<Exchange<u64>> {
        self.run(Request::CompareExchange { key, expected, new }, take!(Exchange))
    }

    /// The values of `keys`, in their order. The lookups are in flight together; each is
    /// linearizable, but not all of them together.
    pub fn multi_get(&self, keys: impl Into<Vec<u64>>) -> Operation<Vec<Option<u64>>> {
        self.run(Request::MultiGet(keys.into()), take!(Values))
    }

    /// Sets many keys, not atomically. If it fails, some of them may be set:
    /// [`crate::Error::Indeterminate`]. A connection repeats a request whose answer is lost, and
    /// the first copy may take effect after the second: no other client should change these keys
    /// meanwhile.
    pub fn upsert_all(&self, records: impl Into<Vec<(u64, u64)>>) -> Operation<()> {
        self.run(Request::UpsertAll(records.into()), drop)
    }

    /// Fills an empty index from strictly ascending records, much faster than single insertions.
    /// Returns their number. No other client may use the index meanwhile. Readers see nothing of
    /// the load until it is complete; if it fails, the index stays empty. The iterator must not use
    /// this handle.
    pub fn bulk_load<I>(&self, records: I) -> Operation<u64>
    where
        I: IntoIterator<Item = (u64, u64)>,
        I::IntoIter: Send + 'static,
    {
        self.run(Request::BulkLoad(Box::new(records.into_iter())), take!(Count))
    }

    /// Returns when the memory servers have every change that was acknowledged before the call: a
    /// crash of a compute server then loses none of them.
    pub fn flush(&self) -> Operation<()> {
        self.run(Request::Flush, drop)
    }

    /// The records within `range`, in key order. An [`Iterator`] that blocks, or with
    /// [`Scan::stream`] an async stream; both fetch a few hundred records at a time.
    pub fn scan(&self, range: impl RangeBounds<u64>) -> Scan {
        Scan::new(self.clone(), range)
    }

    /// One part of a scan.
    pub(crate) fn page(&self, scan: farleaf_core::index::Scan<u64>) -> Operation<Vec<(u64, u64)>> {
        self.run(Request::Scan(scan), take!(Records))
    }
}
