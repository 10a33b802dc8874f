//! Where the compute servers of a partitioned index keep values: in leaves, or longer ones in
//! blocks beside them, as DEX's crate has them.
//!
//! A [`ValueForm`] is chosen once for an index, by type, and all compute servers must have the same
//! one. [`InLeaves`] adds nothing to an operation.
//!
//! *Thread safety*: what the threads of a compute server share is for any number of threads;
//! [`PartValues`] belongs to its endpoint's thread.

use super::{EditAnswer, KeyedRecords, LeafEdit, PartIndex, ScanRequest};
use crate::{CacheCounters, OwnedRange};
use farleaf_fabric::Fabric;
use farleaf_page::{BlockRef, Layout, LengthError, OwnedKey, OwnedValue};
use farleaf_pool::remote::{RemoteError, RpcClient};
use farleaf_pool::wire::{RecordRoom, check_sent};
use std::fmt::Debug;
use std::future::Future;
use std::ops::Bound;

/// How the compute servers of an index keep values.
pub trait ValueForm<L: Layout>: Debug + Send + Sync + 'static {
    /// What the threads of one compute server share.
    type Shared: Clone + Debug + Send + Sync + 'static;
    /// One endpoint's access to values.
    type Values<F: Fabric>: PartValues<F, L>;

    /// Whether a compute server takes a record.
    ///
    /// # Errors
    /// [`LengthError`] if it does not.
    fn check(key: &L::Key, value: &L::Value) -> Result<(), LengthError>;

    /// Marks an index that was just created as one with values in this form.
    ///
    /// # Errors
    /// [`RemoteError`]; the index may be marked all the same if the outcome is unknown.
    fn mark<F: Fabric>(fabric: &F) -> impl Future<Output = Result<(), RemoteError>>;

    /// Checks that the index has values in this form.
    ///
    /// # Errors
    /// [`RemoteError::BadPool`] if it has not.
    fn check_index<F: Fabric>(fabric: &F) -> impl Future<Output = Result<(), RemoteError>>;

    /// Takes over what former incarnations of this endpoint's compute server have left outside
    /// leaves. They are fenced, and everything that they left half done is finished. Call it once
    /// for `shared`, before anything of this life is written.
    ///
    /// # Errors
    /// [`RemoteError`] if a memory server does not answer.
    fn adopt<F: Fabric>(
        shared: &Self::Shared,
        fabric: F,
    ) -> impl Future<Output = Result<(), RemoteError>>;

    /// Tells the memory servers that leaves of other compute servers may refer to everything that
    /// this endpoint's compute server has left outside leaves, as [`PartValues::share`] does.
    ///
    /// # Errors
    /// [`RemoteError`] if a memory server does not answer.
    fn disown<F: Fabric>(fabric: &F) -> impl Future<Output = Result<(), RemoteError>> {
        let _ = fabric;
        std::future::ready(Ok(()))
    }

    /// Opens the values of one endpoint.
    fn open<F: Fabric>(shared: &Self::Shared, fabric: F) -> Self::Values<F>;
}

/// Where a part of a scan has ended.
#[derive(Clone, Debug)]
pub struct ScanEnd<K> {
    /// The range that the compute server owned when the scan began.
    pub range: OwnedRange<K>,
    /// Where the scan continues within the range; `None` if it has passed the range.
    pub next: Option<Bound<K>>,
    /// Whether the message has no room for the next record.
    pub is_full: bool,
}

/// What a step of looking for memory of former incarnations has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimOutcome {
    /// There is another step.
    GoesOn,
    /// Memory was found: call [`PartValues::use_found`] before the next step.
    Found,
    /// There is nothing more to look for.
    Ended,
}

/// One endpoint's access to the values of one compute server's part of an index: the operations of
/// [`PartIndex`] that read or write values.
pub trait PartValues<F: Fabric, L: Layout> {
    /// As [`PartIndex::execute`].
    fn execute<P: PartIndex<F, L>>(
        &self,
        part: &P,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> impl Future<Output = Result<EditAnswer<OwnedValue<L>>, RemoteError>>;

    /// As [`PartIndex::execute_all`].
    fn execute_all<P: PartIndex<F, L>>(
        &self,
        part: &P,
        edits: &[LeafEdit<&L::Key, &L::Value>],
        done: impl Fn(usize, Result<EditAnswer<OwnedValue<L>>, RemoteError>),
    ) -> impl Future<Output = ()>;

    /// Appends the next records of the owned range, until `out` has `scan.limit` records or `room`
    /// has no room for the next one.
    ///
    /// # Errors
    /// As for [`PartIndex::scan`].
    fn scan<P: PartIndex<F, L>>(
        &self,
        part: &P,
        scan: &ScanRequest<OwnedKey<L>>,
        room: &mut RecordRoom,
        out: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
    ) -> impl Future<Output = Result<ScanEnd<OwnedKey<L>>, RemoteError>>;

    /// As [`PartIndex::flush`].
    fn flush<P: PartIndex<F, L>>(&self, part: &P) -> impl Future<Output = Result<(), RemoteError>>;

    /// As [`PartIndex::collect`].
    fn collect<P: PartIndex<F, L>>(
        &self,
        part: &P,
    ) -> impl Future<Output = Result<(), RemoteError>>;

    /// Turns the records of a bulk load into those that leaves shall have. Adds what it has written
    /// for them to `blocks`, also before an error.
    fn prepare<P: PartIndex<F, L>>(
        &self,
        part: &P,
        records: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
        blocks: &mut Vec<BlockRef>,
    ) -> impl Future<Output = Result<(), RemoteError>>;

    /// Takes one step of looking for memory that former incarnations have left and no leaf refers
    /// to. One task of a compute server does this, while other operations run.
    ///
    /// # Errors
    /// [`RemoteError`] if leaves cannot be read or written back. The step can be taken again.
    fn reclaim<P: PartIndex<F, L>>(
        &self,
        part: &P,
    ) -> impl Future<Output = Result<ReclaimOutcome, RemoteError>>;

    /// Uses the memory that [`PartValues::reclaim`] has found, after a grace period.
    fn use_found(&self) -> impl Future<Output = ()>;

    /// Call this before keys leave the compute server's range.
    fn keys_will_leave(&self);

    /// Tells the memory servers that leaves of other compute servers refer to values of this one.
    /// Call it when keys have left the range, or when other leaves are about to get values from
    /// here, before any other compute server can use them.
    ///
    /// # Errors
    /// [`RemoteError`] if a memory server does not answer. Then no other compute server may use
    /// them.
    fn share(&self) -> impl Future<Output = Result<(), RemoteError>>;

    /// Frees what was written for a bulk load that has certainly failed.
    fn give_back(&self, blocks: Vec<BlockRef>);

    /// What a cache of values has done for this endpoint.
    fn counters(&self) -> CacheCounters;
}

/// All values are in leaves.
#[derive(Clone, Copy, Debug)]
pub struct InLeaves;

impl<L: Layout> ValueForm<L> for InLeaves {
    type Shared = ();
    type Values<F: Fabric> = Self;

    #[inline]
    fn check(key: &L::Key, value: &L::Value) -> Result<(), LengthError> {
        L::check_record(key, value)
    }

    /// This is what an index without a mark has.
    async fn mark<F: Fabric>(_fabric: &F) -> Result<(), RemoteError> {
        Ok(())
    }

    async fn check_index<F: Fabric>(fabric: &F) -> Result<(), RemoteError> {
        RpcClient::<F, L>::new(fabric.clone()).check_blocks(false).await
    }

    async fn adopt<F: Fabric>(_shared: &(), _fabric: F) -> Result<(), RemoteError> {
        Ok(())
    }

    fn open<F: Fabric>(_shared: &(), _fabric: F) -> Self {
        Self
    }
}

/// All values are in the index's own records, which are not in pages: values have any length that a
/// message has room for.
#[derive(Clone, Copy, Debug)]
pub struct InTables;

impl<L: Layout> ValueForm<L> for InTables {
    type Shared = ();
    type Values<F: Fabric> = InLeaves;

    fn check(key: &L::Key, value: &L::Value) -> Result<(), LengthError> {
        check_sent::<L>(key, value)
    }

    async fn mark<F: Fabric>(_fabric: &F) -> Result<(), RemoteError> {
        Ok(())
    }

    async fn check_index<F: Fabric>(fabric: &F) -> Result<(), RemoteError> {
        <InLeaves as ValueForm<L>>::check_index(fabric).await
    }

    async fn adopt<F: Fabric>(_shared: &(), _fabric: F) -> Result<(), RemoteError> {
        Ok(())
    }

    fn open<F: Fabric>(_shared: &(), _fabric: F) -> InLeaves {
        InLeaves
    }
}

impl<F: Fabric, L: Layout> PartValues<F, L> for InLeaves {
    #[inline]
    fn execute<P: PartIndex<F, L>>(
        &self,
        part: &P,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> impl Future<Output = Result<EditAnswer<OwnedValue<L>>, RemoteError>> {
        part.execute(edit)
    }

    #[inline]
    fn execute_all<P: PartIndex<F, L>>(
        &self,
        part: &P,
        edits: &[LeafEdit<&L::Key, &L::Value>],
        done: impl Fn(usize, Result<EditAnswer<OwnedValue<L>>, RemoteError>),
    ) -> impl Future<Output = ()> {
        part.execute_all(edits, done)
    }

    async fn scan<P: PartIndex<F, L>>(
        &self,
        part: &P,
        scan: &ScanRequest<OwnedKey<L>>,
        room: &mut RecordRoom,
        out: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
    ) -> Result<ScanEnd<OwnedKey<L>>, RemoteError> {
        let had = out.len();
        // If it has ended sooner, not all of its records fit.
        let range = part.scan_some(scan, room.bytes(), out).await?;
        let is_full = room.cut::<L>(out, had);
        let next = match out.last() {
            Some((last, _)) if is_full || out.len() >= scan.limit => {
                Some(Bound::Excluded(last.clone()))
            }
            _ => None,
        };
        Ok(ScanEnd { range, next, is_full })
    }

    fn flush<P: PartIndex<F, L>>(&self, part: &P) -> impl Future<Output = Result<(), RemoteError>> {
        part.flush()
    }

    fn collect<P: PartIndex<F, L>>(
        &self,
        part: &P,
    ) -> impl Future<Output = Result<(), RemoteError>> {
        part.collect()
    }

    async fn prepare<P: PartIndex<F, L>>(
        &self,
        _part: &P,
        _records: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
        _blocks: &mut Vec<BlockRef>,
    ) -> Result<(), RemoteError> {
        Ok(())
    }

    async fn reclaim<P: PartIndex<F, L>>(&self, _part: &P) -> Result<ReclaimOutcome, RemoteError> {
        Ok(ReclaimOutcome::Ended)
    }

    async fn use_found(&self) {}

    fn keys_will_leave(&self) {}

    async fn share(&self) -> Result<(), RemoteError> {
        Ok(())
    }

    fn give_back(&self, _blocks: Vec<BlockRef>) {}

    fn counters(&self) -> CacheCounters {
        CacheCounters::default()
    }
}
