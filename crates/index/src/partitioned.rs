//! The interface between partitioning and a design whose compute servers each own a range of keys.
//!
//! A compute server reads and changes the index within its range, on behalf of all clients. It may
//! keep private state for that range, such as dirty pages in a cache, as long as it can release and
//! take over keys ([`PartIndex::release_range`], [`PartIndex::take_over`]). The design provides
//! four things:
//!
//! - [`PartState`]: the state that the threads of one compute server share.
//! - [`PartPool`]: access to the index in the memory pool over one endpoint.
//! - [`PartIndex`]: one endpoint's handle on one compute server's part of the index.
//! - [`BulkBuilder`]: the new content of a bulk load.
//!
//! In return, [`crate::partition`] provides the partition map, routing, moves of keys, balancing,
//! bulk loads, compute servers in separate processes, and [`super::Design`].

use super::{IndexError, KeyedRecords, MemoryUse, PartitionOptions, ScanRequest};
use crate::{CacheCounters, OwnedRange};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_page::{EditAnswer, Layout, LeafEdit, OwnedKey, OwnedValue};
use farleaf_pool::remote::{FailureDetector, RemoteError};
use std::cell::Cell;
use std::fmt::Debug;
use std::future::Future;

/// A design whose compute servers each own a range of the keys.
pub trait Partitioned: Copy + Debug + Send + Sync + 'static {
    /// The design's name in commands and reports.
    const NAME: &'static str;

    /// Whether each compute server loads its own keys in a bulk load, which changes no boundary.
    const LOADS_OWN_KEYS: bool = false;

    /// Options of a new index.
    type Options<L: Layout>: PartitionOptions<OwnedKey<L>, ServerOptions = Self::ServerOptions>;
    /// Options of one compute server.
    type ServerOptions: Clone + Send + Sync + 'static;
    /// State that the threads of one compute server share.
    type State<L: Layout>: PartState<OwnedKey<L>>;
    /// Access to the index in the memory pool over one endpoint.
    type Pool<F: Fabric, L: Layout>: PartPool<F, L>;
    /// A handle on one compute server's part of the index.
    type Index<F: Fabric, L: Layout>: PartIndex<F, L>;

    /// Creates an empty index on memory servers that have none. The boundaries have been checked.
    fn create_pool<F: Fabric, L: Layout>(
        fabric: &F,
        options: &Self::Options<L>,
    ) -> impl Future<Output = Result<(), IndexError>>;

    /// Opens the index that the memory servers hold.
    fn open_pool<F: Fabric, L: Layout>(
        fabric: F,
    ) -> impl Future<Output = Result<Self::Pool<F, L>, IndexError>>;

    /// Creates a compute server that owns `range` and has read nothing yet. New nodes go to the
    /// memory servers in `memory`.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the memory that the options ask for cannot be allocated.
    fn start<L: Layout>(
        options: &Self::ServerOptions,
        number: u16,
        range: OwnedRange<OwnedKey<L>>,
        memory: Arc<MemoryUse>,
    ) -> Result<Self::State<L>, IndexError>;

    /// Checks, before any handle is opened, that a compute server's options suffice for its part of
    /// the index.
    ///
    /// # Errors
    /// [`IndexError`] if they do not; the same options never will.
    fn check_part<F: Fabric, L: Layout>(
        _state: &Self::State<L>,
        _pool: &Self::Pool<F, L>,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    /// Brings what the former life of a compute server had answered, and held outside the pool,
    /// back from its log. The life has ended ([`PartPool::end_former_incarnation`]), and nobody
    /// serves `range` yet. Can be repeated. Nothing by default: where there is no log.
    ///
    /// # Errors
    /// [`IndexError`]; the log is as it was then.
    fn recover<F: Fabric, L: Layout>(
        _pool: &Self::Pool<F, L>,
        _options: &Self::ServerOptions,
        _compute_server: u16,
        _range: &OwnedRange<OwnedKey<L>>,
    ) -> impl Future<Output = Result<(), IndexError>> {
        async { Ok(()) }
    }

    /// Opens a handle on a compute server's part of the index.
    fn open_part<F: Fabric, L: Layout>(
        state: &Arc<Self::State<L>>,
        pool: &Self::Pool<F, L>,
    ) -> impl Future<Output = Result<Self::Index<F, L>, RemoteError>>;
}

/// State that the threads of one compute server share: the range that it owns, and its caches.
///
/// *Thread safety*: any number of threads.
pub trait PartState<K>: Send + Sync + 'static {
    /// The range of keys that the compute server owns.
    fn range(&self) -> OwnedRange<K>;

    /// Changes the owned range. Valid as part of a move of keys. Otherwise, call it only when no
    /// operation is running and the compute server holds nothing of the keys whose owner changes.
    fn set_range(&self, range: OwnedRange<K>);

    /// Which memory servers the compute server can reach.
    fn detector(&self) -> &FailureDetector;

    /// Size of the cached nodes, in bytes.
    fn cached_bytes(&self) -> u64;
}

/// Access to the index in the memory pool over one endpoint, shared by all handles of the endpoint.
///
/// *Thread safety*: belongs to its endpoint's thread.
pub trait PartPool<F: Fabric, L: Layout> {
    /// Builds the new content of an empty index.
    type Builder<'a>: BulkBuilder<L, Built = Self::Built>
    where
        Self: 'a;
    /// Finished content.
    type Built: BuiltContent<OwnedKey<L>>;
    /// The memory that the index occupied before new content replaced it.
    type Former;

    /// The endpoint through which the index is accessed.
    fn fabric(&self) -> &F;

    /// A flag to set while an operation of this endpoint, which others may be waiting for, has an
    /// unknown outcome.
    fn doubtful(&self) -> &Cell<bool>;

    /// Places the nodes of bulk loads on the first `servers` memory servers only.
    fn use_servers(&self, servers: u16);

    /// Begins the new content of a bulk load, with nodes filled to `fill`. No node crosses a
    /// boundary.
    fn builder(&self, fill: f64, boundaries: Vec<OwnedKey<L>>) -> Self::Builder<'_>;

    /// Whether the index in the pool holds no record. Call it only while no client changes it.
    fn is_empty(&self) -> impl Future<Output = Result<bool, IndexError>>;

    /// What the index occupies, to be freed once new content has replaced it.
    fn occupied(&self) -> impl Future<Output = Result<Self::Former, IndexError>>;

    /// Replaces the content of the index with `built`, in a single change. Compute servers may
    /// still cache the former content.
    fn replace(&self, built: &Self::Built) -> impl Future<Output = Result<(), RemoteError>>;

    /// Frees the memory of the former content. Nothing may still point to it.
    fn give_back(&self, former: Self::Former);

    /// Declares all clients of a compute server dead, so that others may finish or undo their
    /// changes. Call it only when they are certainly dead.
    fn declare_dead(&self, compute_server: u16) -> impl Future<Output = Result<(), RemoteError>>;

    /// Cleans up after the previous life of a compute server, which is fenced at all memory
    /// servers: completes whatever it left half done in `range`. May be called repeatedly.
    fn end_former_incarnation(
        &self,
        compute_server: u16,
        range: &OwnedRange<OwnedKey<L>>,
    ) -> impl Future<Output = Result<(), IndexError>>;
}

/// New content for an empty index, under construction. Nothing points to it before
/// [`PartPool::replace`].
///
/// *Thread safety*: private to one task.
pub trait BulkBuilder<L: Layout> {
    /// Finished content.
    type Built;

    /// Appends a record; its key must be above all others.
    fn append(
        &mut self,
        key: &L::Key,
        value: &L::Value,
    ) -> impl Future<Output = Result<(), RemoteError>>;

    /// Completes the content. On return the pool has all of it except what [`PartPool::replace`]
    /// writes.
    fn finish(&mut self) -> impl Future<Output = Result<Self::Built, RemoteError>>;

    /// Frees everything, before or after [`BulkBuilder::finish`].
    fn abort(self) -> impl Future<Output = ()>;
}

/// Finished content of a bulk load.
pub trait BuiltContent<K> {
    /// Boundaries that give `parts` compute servers about the same number of records each; `None`
    /// if there are too few nodes.
    fn equal_boundaries(&self, parts: usize) -> Option<Vec<K>>;
}

/// One endpoint's handle on one compute server's part of the index.
///
/// A single-key operation whose key is outside the owned range fails with [`RemoteError::Moved`]
/// and changes nothing.
///
/// *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.
pub trait PartIndex<F: Fabric, L: Layout> {
    /// Keys that have been released and that no other compute server owns yet.
    type Released<'a>: ReleasedKeys
    where
        Self: 'a;

    /// The endpoint through which the index is accessed.
    fn fabric(&self) -> &F;

    /// The value of `key`.
    fn get(&self, key: &L::Key)
    -> impl Future<Output = Result<Option<OwnedValue<L>>, RemoteError>>;

    /// Executes any single-key operation.
    fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> impl Future<Output = Result<EditAnswer<OwnedValue<L>>, RemoteError>>;

    /// Executes several single-key operations like concurrent calls of [`PartIndex::execute`]:
    /// those on the same key take effect in any order. When an operation ends, calls `done` with
    /// its position and outcome.
    fn execute_all(
        &self,
        edits: &[LeafEdit<&L::Key, &L::Value>],
        done: impl Fn(usize, Result<EditAnswer<OwnedValue<L>>, RemoteError>),
    ) -> impl Future<Output = ()>;

    /// Appends the records of the owned range that `scan` asks for, until `out` has `scan.limit`
    /// records. Returns the owned range as it was when the scan began.
    ///
    /// # Errors
    /// [`RemoteError::Moved`] if the range has shrunk meanwhile. `out` then has the records found
    /// before the error.
    fn scan(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
        out: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
    ) -> impl Future<Output = Result<OwnedRange<OwnedKey<L>>, RemoteError>>;

    /// As [`PartIndex::scan`], but may end sooner: once it has appended two records or more that
    /// have more than `most_bytes` bytes together. The caller has no room for so many.
    ///
    /// # Errors
    /// As for [`PartIndex::scan`].
    fn scan_some(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
        _most_bytes: usize,
        out: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
    ) -> impl Future<Output = Result<OwnedRange<OwnedKey<L>>, RemoteError>> {
        self.scan(scan, out)
    }

    /// Writes everything back. On return the pool has every change that was made before the call.
    fn flush(&self) -> impl Future<Output = Result<(), RemoteError>>;

    /// Drops everything that the compute server has cached of the index. Call it only when no
    /// operation is running and everything is written back.
    fn forget(&self) -> impl Future<Output = Result<(), RemoteError>>;

    /// Runs the design's housekeeping in the owned range to completion.
    fn collect(&self) -> impl Future<Output = Result<(), RemoteError>>;

    /// Writes old changes back until `ended` returns true. Returns at once if their age has no
    /// limit.
    fn write_back_by_age(&self, ended: &dyn Fn() -> bool) -> impl Future<Output = ()>;

    /// Returns nodes that nothing points to, beyond `keep` on each memory server, to these: those
    /// that a process has when it is killed are lost.
    fn share_unused_nodes(&self, _keep: usize) -> impl Future<Output = Result<(), RemoteError>> {
        std::future::ready(Ok(()))
    }

    /// The cache's counters for this handle.
    fn cache_counters(&self) -> CacheCounters;

    /// Whether operations of this handle left an outcome unknown.
    fn has_doubts(&self) -> bool;

    /// Settles unknown outcomes where that is possible now, unless this was just tried.
    fn settle_some(&self) -> impl Future<Output = ()>;

    /// Settles every unknown outcome of this handle's operations that can be settled. A failure of
    /// one does not stop the others.
    fn settle(&self) -> impl Future<Output = Result<(), RemoteError>>;

    /// The low fence of the leaf of `key`, and its high fence if it has one. A move never cuts a
    /// leaf.
    fn fences(
        &self,
        key: &L::Key,
    ) -> impl Future<Output = Result<(OwnedKey<L>, Option<OwnedKey<L>>), RemoteError>>;

    /// A fence between leaves near `key`, inside the owned range: a key to which a partition
    /// boundary can move.
    fn boundary_near(
        &self,
        key: &L::Key,
    ) -> impl Future<Output = Result<Option<OwnedKey<L>>, RemoteError>>;

    /// Releases `keys` and keeps `rest`. On success, until the returned guard is dropped, this
    /// compute server serves and holds nothing of `keys`, and the pool has all changes to them.
    /// Returns `None`, with nothing changed, if the boundary between the two is no longer a leaf
    /// boundary. The caller must run one move at a time.
    ///
    /// # Errors
    /// [`RemoteError`] if something cannot be written back. Then this compute server still owns the
    /// keys.
    fn release_range(
        &self,
        keys: &OwnedRange<OwnedKey<L>>,
        rest: &OwnedRange<OwnedKey<L>>,
    ) -> impl Future<Output = Result<Option<Self::Released<'_>>, RemoteError>>;

    /// Does most of the work of [`PartIndex::take_over`] in advance. Does not change the range.
    fn prepare_take_over(
        &self,
        grown: &OwnedRange<OwnedKey<L>>,
    ) -> impl Future<Output = Result<(), RemoteError>>;

    /// Makes `grown` the owned range; it includes keys that another compute server has released.
    ///
    /// # Errors
    /// [`RemoteError`] if something cannot be read; then the range has not changed.
    fn take_over(
        &self,
        grown: &OwnedRange<OwnedKey<L>>,
    ) -> impl Future<Output = Result<(), RemoteError>>;
}

/// Keys that a compute server has released and that no other one owns yet. Dropping this restores
/// the previous range, unless [`ReleasedKeys::for_good`] was called.
pub trait ReleasedKeys {
    /// Completes the move: another compute server owns the keys now.
    fn for_good(self);
}
