//! The handle of an index.

use crate::cores::EnginePool;
use crate::data::{IntoKey, KeyKind};
use crate::error::Error;
use crate::operation::Operation;
use crate::request::{IndexRequest, IndexResponse, KeyedRecord};
use crate::scan::Scan;
use farleaf_cluster::text::Textual;
use farleaf_index::Exchange;
use std::error::Error as StdError;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// An ordered index, in this process ([`crate::Embedded`]) or in a cluster ([`crate::connect()`]).
/// Its keys and values are `u64`, or byte strings: `Index<[u8]>`.
///
/// Clones are the same handle. Any number of threads and tasks may use it at the same time.
/// Dropping the last clone discards an embedded index, or closes a connection.
pub struct Index<K: ?Sized + KeyKind = u64> {
    cores: Arc<EnginePool<K>>,
}

// Not derived: the derive would require `K: Clone`.
impl<K: ?Sized + KeyKind> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self { cores: Arc::clone(&self.cores) }
    }
}

impl<K: ?Sized + KeyKind> fmt::Debug for Index<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").finish_non_exhaustive()
    }
}

/// The function that extracts the content of one kind of response.
macro_rules! take {
    ($kind:ident) => {
        |response| match response {
            IndexResponse::$kind(value) => value,
            other => unreachable!("another operation's response: {other:?}"),
        }
    };
}

impl<K: ?Sized + KeyKind> Index<K> {
    pub(crate) fn new(cores: EnginePool<K>) -> Self {
        Self { cores: Arc::new(cores) }
    }

    fn run<T>(&self, request: IndexRequest<K>, take: fn(IndexResponse<K>) -> T) -> Operation<T, K> {
        Operation::new(&self.cores, request, take)
    }

    /// The value of `key`.
    pub fn get(&self, key: impl IntoKey<K>) -> Operation<Option<K::Owned>, K> {
        self.run(IndexRequest::Get(key.owned()), take!(Value))
    }

    /// Inserts `key`. Returns `false`, and changes nothing, if the key exists already.
    pub fn insert(&self, key: impl IntoKey<K>, value: impl IntoKey<K>) -> Operation<bool, K> {
        self.run(IndexRequest::Insert(key.owned(), value.owned()), take!(Applied))
    }

    /// Changes the value of `key`. Returns `false`, and changes nothing, if the key is absent.
    pub fn update(&self, key: impl IntoKey<K>, value: impl IntoKey<K>) -> Operation<bool, K> {
        self.run(IndexRequest::Update(key.owned(), value.owned()), take!(Applied))
    }

    /// Sets the value of `key`, whether the key exists or not.
    pub fn upsert(&self, key: impl IntoKey<K>, value: impl IntoKey<K>) -> Operation<(), K> {
        self.run(IndexRequest::Upsert(key.owned(), value.owned()), drop)
    }

    /// Removes `key`. Returns `false` if the key is absent.
    pub fn remove(&self, key: impl IntoKey<K>) -> Operation<bool, K> {
        self.run(IndexRequest::Remove(key.owned()), take!(Applied))
    }

    /// Sets the value of `key` to `new` if its current value is `expected`.
    pub fn compare_exchange(
        &self,
        key: impl IntoKey<K>,
        expected: impl IntoKey<K>,
        new: impl IntoKey<K>,
    ) -> Operation<Exchange<K::Owned>, K> {
        let (key, expected, new) = (key.owned(), expected.owned(), new.owned());
        self.run(IndexRequest::CompareExchange { key, expected, new }, take!(Exchange))
    }

    /// The values of `keys`, in their order. The lookups are in flight together; each is
    /// linearizable, but not all of them together.
    pub fn multi_get(&self, keys: impl Into<Vec<K::Owned>>) -> Operation<Vec<Option<K::Owned>>, K> {
        self.run(IndexRequest::MultiGet(keys.into()), take!(Values))
    }

    /// Sets many keys, not atomically. Records with the same key take effect in their order; calls
    /// that overlap have no order. If it fails, some of them may be set:
    /// [`crate::Error::Indeterminate`]. A connection repeats a request whose answer is lost, and
    /// the first copy may take effect after the second, so no other client should change these keys
    /// meanwhile.
    pub fn upsert_all(&self, records: impl Into<Vec<(K::Owned, K::Owned)>>) -> Operation<(), K> {
        self.run(IndexRequest::UpsertAll(records.into()), drop)
    }

    /// Fills an empty index from strictly ascending records, much faster than single insertions.
    /// Returns their number. No other client may use the index meanwhile. The load becomes visible
    /// only when it is complete; if it fails, the index stays empty. The iterator must not use this
    /// handle.
    pub fn bulk_load<I>(&self, records: I) -> Operation<u64, K>
    where
        I: IntoIterator<Item = (K::Owned, K::Owned)>,
        I::IntoIter: Send + 'static,
    {
        self.run(IndexRequest::BulkLoad(Box::new(records.into_iter().map(Ok))), take!(Count))
    }

    /// As [`Index::bulk_load`], from a source that can fail, such as a file. Its first error ends
    /// the load, and the index stays empty: do not let an iterator end at its error, because the
    /// records before it would be loaded.
    ///
    /// ```
    /// use farleaf::{Embedded, EmbeddedOptions, Error};
    ///
    /// let index = Embedded::open(EmbeddedOptions::default().memory_bytes(16 << 20))?;
    /// let file = "1,10\n2,20\nthree,30\n";
    /// let record = |line: &str| {
    ///     let (key, value) = line.split_once(',').ok_or("no comma")?;
    ///     Ok((key.parse()?, value.parse()?))
    /// };
    /// let records: Vec<Result<(u64, u64), Box<dyn std::error::Error + Send + Sync>>> =
    ///     file.lines().map(record).collect();
    /// assert!(matches!(index.try_bulk_load(records).wait(), Err(Error::Source(_))));
    /// assert_eq!(index.get(1).wait()?, None);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn try_bulk_load<I, E>(&self, records: I) -> Operation<u64, K>
    where
        I: IntoIterator<Item = Result<(K::Owned, K::Owned), E>>,
        I::IntoIter: Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let records = records.into_iter().map(|record| record.map_err(Error::source_of_load));
        self.run(IndexRequest::BulkLoad(Box::new(records)), take!(Count))
    }

    /// Returns when the memory servers have every change that was acknowledged before the call: a
    /// crash of a compute server then loses none of them.
    ///
    /// A crash before the flush may have lost changes that this handle had made and not flushed.
    /// Then the flush fails with [`crate::Error::Lost`], and the next one succeeds. What others had
    /// lost before the flush began it does not report.
    pub fn flush(&self) -> Operation<(), K> {
        self.run(IndexRequest::Flush, drop)
    }

    /// The records within `range`, in key order, as an [`Iterator`] that blocks, or, with
    /// [`Scan::stream`], as an async stream. Both fetch a few hundred records at a time.
    pub fn scan(&self, range: impl RangeBounds<K::Owned>) -> Scan<K> {
        Scan::new(self.clone(), range)
    }

    /// One part of a scan.
    pub(crate) fn page(
        &self,
        scan: farleaf_index::ScanRequest<K::Owned>,
    ) -> Operation<Vec<KeyedRecord<K>>, K> {
        self.run(IndexRequest::Scan(scan), take!(Records))
    }
}

impl Index<[u8]> {
    /// The records whose keys begin with `prefix`, in key order, as [`Index::scan`] gives them.
    pub fn scan_prefix(&self, prefix: impl AsRef<[u8]>) -> Scan<[u8]> {
        let prefix = prefix.as_ref().to_vec();
        let range = <[u8]>::with_prefix(prefix).unwrap_or((Bound::Unbounded, Bound::Unbounded));
        self.scan(range)
    }
}
