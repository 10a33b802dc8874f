//! DEX as a design that partitioning can use: connects the trait to functions of [`DexServer`] and
//! [`DexIndex`] that other files of this folder define.

use super::hand_over::UnownedKeys;
use super::{DexIndex, DexServer};
use farleaf_fabric::Fabric;
use farleaf_index::{CacheCounters, OwnedRange};
use farleaf_index::{EditAnswer, KeyedRecords, LeafEdit, PartIndex, PartState, ScanRequest};
use farleaf_page::{Layout, OwnedKey, OwnedValue};
use farleaf_pool::remote::{FailureDetector, RemoteError};

impl<L: Layout> PartState<OwnedKey<L>> for DexServer<L> {
    fn range(&self) -> OwnedRange<OwnedKey<L>> {
        self.cache().owned().range()
    }

    fn set_range(&self, range: OwnedRange<OwnedKey<L>>) {
        self.cache().set_owned(range);
    }

    fn detector(&self) -> &FailureDetector {
        self.cache().detector()
    }

    fn cached_bytes(&self) -> u64 {
        self.cache().used_bytes()
    }
}

impl<F: Fabric, L: Layout> PartIndex<F, L> for DexIndex<F, L> {
    type Released<'a> = UnownedKeys<'a, F, L>;

    #[inline]
    fn fabric(&self) -> &F {
        DexIndex::fabric(self)
    }

    #[inline]
    fn get(
        &self,
        key: &L::Key,
    ) -> impl Future<Output = Result<Option<OwnedValue<L>>, RemoteError>> {
        DexIndex::get(self, key)
    }

    #[inline]
    fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> impl Future<Output = Result<EditAnswer<OwnedValue<L>>, RemoteError>> {
        DexIndex::execute(self, edit)
    }

    #[inline]
    fn execute_all(
        &self,
        edits: &[LeafEdit<&L::Key, &L::Value>],
        done: impl Fn(usize, Result<EditAnswer<OwnedValue<L>>, RemoteError>),
    ) -> impl Future<Output = ()> {
        DexIndex::execute_all(self, edits, done)
    }

    #[inline]
    fn scan(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
        out: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
    ) -> impl Future<Output = Result<OwnedRange<OwnedKey<L>>, RemoteError>> {
        DexIndex::scan(self, scan, out)
    }

    fn flush(&self) -> impl Future<Output = Result<(), RemoteError>> {
        DexIndex::flush(self)
    }

    fn forget(&self) -> impl Future<Output = Result<(), RemoteError>> {
        DexIndex::forget(self)
    }

    fn collect(&self) -> impl Future<Output = Result<(), RemoteError>> {
        DexIndex::collect(self)
    }

    fn write_back_by_age(&self, ended: &dyn Fn() -> bool) -> impl Future<Output = ()> {
        DexIndex::write_back_by_age(self, ended)
    }

    fn share_unused_nodes(&self, keep: usize) -> impl Future<Output = Result<(), RemoteError>> {
        DexIndex::share_unused_nodes(self, keep)
    }

    fn cache_counters(&self) -> CacheCounters {
        DexIndex::cache_counters(self)
    }

    fn has_doubts(&self) -> bool {
        DexIndex::has_doubts(self)
    }

    fn settle_some(&self) -> impl Future<Output = ()> {
        DexIndex::settle_some(self)
    }

    fn settle(&self) -> impl Future<Output = Result<(), RemoteError>> {
        DexIndex::settle(self)
    }

    fn fences(
        &self,
        key: &L::Key,
    ) -> impl Future<Output = Result<(OwnedKey<L>, Option<OwnedKey<L>>), RemoteError>> {
        DexIndex::fences(self, key)
    }

    fn boundary_near(
        &self,
        key: &L::Key,
    ) -> impl Future<Output = Result<Option<OwnedKey<L>>, RemoteError>> {
        DexIndex::boundary_near(self, key)
    }

    fn release_range(
        &self,
        keys: &OwnedRange<OwnedKey<L>>,
        rest: &OwnedRange<OwnedKey<L>>,
    ) -> impl Future<Output = Result<Option<UnownedKeys<'_, F, L>>, RemoteError>> {
        DexIndex::release_range(self, keys, rest)
    }

    fn prepare_take_over(
        &self,
        grown: &OwnedRange<OwnedKey<L>>,
    ) -> impl Future<Output = Result<(), RemoteError>> {
        DexIndex::prepare_take_over(self, grown)
    }

    fn take_over(
        &self,
        grown: &OwnedRange<OwnedKey<L>>,
    ) -> impl Future<Output = Result<(), RemoteError>> {
        DexIndex::take_over(self, grown)
    }
}
