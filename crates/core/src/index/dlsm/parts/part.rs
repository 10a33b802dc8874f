//! One endpoint's handle on a compute server's trees.
//!
//! *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.

use super::server::{DlsmServer, Trees};
use crate::cache::{CacheCounters, OwnedRange};
use crate::index::dlsm::handle::DlsmIndex;
use crate::index::dlsm::operations::{decoded_records, encoded_scan};
use crate::index::{
    Answer, Encoded, IndexError, LeafEdit, PartIndex, PartState, Records, Released, Scan,
};
use crate::page::{Layout, OwnedKey, OwnedValue};
use crate::remote::RemoteError;
use crate::rules::ONE_BOUND;
use crate::together::{all, join};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use std::convert::Infallible;
use std::ops::Bound;
use std::rc::Rc;

/// How often background tasks check whether they have ended, in nanoseconds: rarely, because each
/// tree has one on each thread.
const LOOK_NS: u64 = 20_000_000;
/// How often a thread settles what it has given up, in nanoseconds.
const SETTLE_NS: u64 = 50_000_000;

/// The trees of a compute server, over one endpoint.
#[derive(Debug)]
pub(super) struct PartTrees<F: Fabric, L: Layout> {
    pub(super) fabric: F,
    pub(super) server: Arc<DlsmServer<L>>,
    pub(super) trees: Arc<Trees>,
    /// A handle of each tree.
    pub(super) handles: Vec<DlsmIndex<F, L>>,
}

/// One endpoint's handle on a compute server's trees.
#[derive(Debug)]
pub struct DlsmPart<F: Fabric, L: Layout> {
    part: Rc<PartTrees<F, L>>,
}

impl<F: Fabric, L: Layout> PartTrees<F, L> {
    /// The place of the tree of `key` among those here; `None` if there is no such tree.
    pub(super) fn place_of(&self, key: &[u8]) -> Option<usize> {
        let place = self.trees.map.shard_of(key).checked_sub(self.trees.first)?;
        (place < self.handles.len()).then_some(place)
    }

    fn tree_of(&self, key: &L::Key) -> Result<&DlsmIndex<F, L>, RemoteError> {
        let place = self.place_of(key.encoded().as_ref()).ok_or(RemoteError::Moved)?;
        Ok(&self.handles[place])
    }

    /// Whether the tree at `place` may have keys of `scan`.
    fn overlaps(&self, place: usize, scan: &Scan<Vec<u8>>) -> bool {
        let shard = self.trees.first + place;
        let is_above = match (&scan.upper, self.trees.map.low(shard)) {
            (Bound::Included(upper), Some(low)) => low > &upper[..],
            (Bound::Excluded(upper), Some(low)) => low >= &upper[..],
            _ => false,
        };
        let is_below = match (&scan.lower, self.trees.map.high(shard)) {
            (Bound::Included(lower) | Bound::Excluded(lower), Some(high)) => high <= &lower[..],
            _ => false,
        };
        !is_above && !is_below
    }

    /// Runs `work` on all trees together. Returns the first failure.
    async fn on_all<'t, Fut: Future<Output = Result<(), IndexError>>>(
        &'t self,
        work: impl Fn(&'t DlsmIndex<F, L>) -> Fut,
    ) -> Result<(), RemoteError> {
        let outcomes = all(self.handles.iter().map(work)).await;
        Ok(outcomes.into_iter().collect::<Result<(), _>>()?)
    }
}

impl<F: Fabric, L: Layout> DlsmPart<F, L> {
    pub(super) fn new(part: Rc<PartTrees<F, L>>) -> Self {
        Self { part }
    }
}

/// Nothing: keys stay where they are.
#[derive(Debug)]
pub struct NothingReleased(Infallible);

impl Released for NothingReleased {
    fn for_good(self) {
        match self.0 {}
    }
}

impl<F: Fabric, L: Layout> PartIndex<F, L> for DlsmPart<F, L> {
    type Released<'a> = NothingReleased;

    fn fabric(&self) -> &F {
        &self.part.fabric
    }

    async fn get(&self, key: &L::Key) -> Result<Option<OwnedValue<L>>, RemoteError> {
        Ok(self.part.tree_of(key)?.look_up(key).await?)
    }

    async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<Answer<OwnedValue<L>>, RemoteError> {
        Ok(self.part.tree_of(edit.key)?.perform(edit).await?)
    }

    async fn execute_all(
        &self,
        edits: &[LeafEdit<&L::Key, &L::Value>],
        done: impl Fn(usize, Result<Answer<OwnedValue<L>>, RemoteError>),
    ) {
        let execute = async |(place, edit)| done(place, self.execute(edit).await);
        all(edits.iter().copied().enumerate().map(execute)).await;
    }

    async fn scan(
        &self,
        scan: &Scan<OwnedKey<L>>,
        out: &mut Records<OwnedKey<L>, OwnedValue<L>>,
    ) -> Result<OwnedRange<OwnedKey<L>>, RemoteError> {
        self.scan_some(scan, usize::MAX, out).await
    }

    /// All trees as of one moment.
    async fn scan_some(
        &self,
        scan: &Scan<OwnedKey<L>>,
        most_bytes: usize,
        out: &mut Records<OwnedKey<L>, OwnedValue<L>>,
    ) -> Result<OwnedRange<OwnedKey<L>>, RemoteError> {
        let part = &*self.part;
        let range = part.server.range();
        let Some(first) = part.handles.first().filter(|_| out.len() < scan.limit) else {
            return Ok(range);
        };
        let wanted = encoded_scan::<L::Key>(scan);
        first.check_scan(&wanted)?;
        // It is kept until the last version is pinned.
        let mut view = first.view().await?;
        let count = part.handles.len();
        let (had, mut bytes) = (out.len(), 0);
        for number in 0..count {
            let place = if scan.reverse { count - 1 - number } else { number };
            if !part.overlaps(place, &wanted) {
                continue;
            }
            let tree = &part.handles[place];
            let rest = Scan { limit: scan.limit - out.len(), ..wanted.clone() };
            if self.fabric().breaks(ONE_BOUND) {
                view = tree.view().await?;
            }
            let version = tree.shard.pin();
            let room = most_bytes.saturating_sub(bytes);
            let records = tree.records_in(&version, view.bound, &rest, room).await?;
            bytes += records.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
            out.extend(decoded_records::<L>(records)?);
            if out.len() >= scan.limit || (out.len() >= had + 2 && bytes > most_bytes) {
                break;
            }
        }
        Ok(range)
    }

    async fn flush(&self) -> Result<(), RemoteError> {
        self.part.on_all(DlsmIndex::flush_everything).await
    }

    /// Nothing is cached that another compute server could have changed.
    async fn forget(&self) -> Result<(), RemoteError> {
        Ok(())
    }

    async fn collect(&self) -> Result<(), RemoteError> {
        self.part.on_all(DlsmIndex::settle_tree).await
    }

    /// Flushes and merges. Writers that find no room learn of failures by themselves.
    async fn write_back_by_age(&self, ended: &dyn Fn() -> bool) {
        let work =
            all(self.part.handles.iter().map(|tree| tree.work_until(LOOK_NS, ended, &|_| {})));
        let settling = async {
            while !ended() {
                self.settle_some().await;
                self.part.fabric.sleep(SETTLE_NS).await;
            }
        };
        join(async { _ = work.await }, settling).await;
    }

    fn cache_counters(&self) -> CacheCounters {
        CacheCounters::default()
    }

    /// No operation waits for one of unknown outcome.
    fn has_doubts(&self) -> bool {
        false
    }

    async fn settle_some(&self) {
        for tree in &self.part.handles {
            tree.extents.settle_due().await;
        }
    }

    async fn settle(&self) -> Result<(), RemoteError> {
        let mut settled = Ok(());
        for tree in &self.part.handles {
            settled = settled.and(tree.extents.settle().await);
        }
        settled
    }

    /// The ends of the key's shard.
    async fn fences(
        &self,
        key: &L::Key,
    ) -> Result<(OwnedKey<L>, Option<OwnedKey<L>>), RemoteError> {
        let Trees { map, first, .. } = &*self.part.trees;
        let place = self.part.place_of(key.encoded().as_ref()).ok_or(RemoteError::Moved)?;
        let bad_map = RemoteError::InvalidArgument("a boundary between shards is no key");
        let decoded = |low: &[u8]| L::Key::decoded(low.to_vec()).ok_or(bad_map.clone());
        let low = map.low(first + place).map(decoded).transpose()?;
        let high = map.high(first + place).map(decoded).transpose()?;
        Ok((low.unwrap_or_else(L::min_key), high))
    }

    async fn boundary_near(&self, _key: &L::Key) -> Result<Option<OwnedKey<L>>, RemoteError> {
        Err(RemoteError::KeysStay)
    }

    async fn release_range(
        &self,
        _keys: &OwnedRange<OwnedKey<L>>,
        _rest: &OwnedRange<OwnedKey<L>>,
    ) -> Result<Option<NothingReleased>, RemoteError> {
        Err(RemoteError::KeysStay)
    }

    async fn prepare_take_over(&self, grown: &OwnedRange<OwnedKey<L>>) -> Result<(), RemoteError> {
        match self.part.server.range().is_same(grown) {
            true => Ok(()),
            false => Err(RemoteError::KeysStay),
        }
    }

    async fn take_over(&self, grown: &OwnedRange<OwnedKey<L>>) -> Result<(), RemoteError> {
        self.prepare_take_over(grown).await
    }
}
