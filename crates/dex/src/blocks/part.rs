//! Value blocks above one compute server's part of an index, for compute servers that are processes
//! of their own. The cache below has the leaves that have lost blocks, so only here is it known
//! when these are in the pool (blocks.X4).
//!
//! A block outlives the ownership of its key: the compute server that takes a reference out of a
//! leaf frees the block, whichever of them wrote it. Keys move only after all their leaves are
//! written back, so a compute server that has lost blocks of released keys may let them rest after
//! its next flush.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::below::PartOfIndex;
use super::former::FormerStep;
use super::handle::BlockOperations;
use super::load::LOADED_PER_BATCH;
use super::shared::{SharedBlocks, ValueBlocks};
use farleaf_fabric::Fabric;
use farleaf_index::{
    CacheCounters, EditAnswer, KeyedRecords, LeafEdit, PartIndex, PartValues, ReclaimOutcome,
    ScanEnd, ScanRequest, ValueForm,
};
use farleaf_page::{BlockRef, Layout, LengthError, StoredValue};
use farleaf_pool::remote::{RemoteError, RpcClient};
use farleaf_pool::wire::{PoolRequest, RecordRoom, check_sent};
use std::ops::Bound;

/// Records of one step of looking for free blocks of former incarnations.
const NOTED_PER_BATCH: usize = 256;

/// Longer values are in blocks beside the leaves.
#[derive(Clone, Copy, Debug)]
pub struct InBlocks;

impl<L: Layout<Key = [u8], Value = [u8]>> ValueForm<L> for InBlocks {
    type Shared = SharedBlocks;
    type Values<F: Fabric> = ValueBlocks<F, L>;

    /// The limit is that of messages, which is below that of blocks.
    fn check(key: &[u8], value: &[u8]) -> Result<(), LengthError> {
        check_sent::<L>(key, value)
    }

    async fn mark<F: Fabric>(fabric: &F) -> Result<(), RemoteError> {
        RpcClient::<F, L>::new(fabric.clone()).mark_blocks().await
    }

    async fn check_index<F: Fabric>(fabric: &F) -> Result<(), RemoteError> {
        RpcClient::<F, L>::new(fabric.clone()).check_blocks(true).await
    }

    async fn adopt<F: Fabric>(shared: &SharedBlocks, fabric: F) -> Result<(), RemoteError> {
        ValueBlocks::<F, L>::new(shared, fabric).blocks.adopt().await
    }

    async fn disown<F: Fabric>(fabric: &F) -> Result<(), RemoteError> {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        for server in rpc.servers() {
            rpc.expect_done_idempotent(server, &PoolRequest::ForgetChunks).await?;
        }
        Ok(())
    }

    fn open<F: Fabric>(shared: &SharedBlocks, fabric: F) -> ValueBlocks<F, L> {
        ValueBlocks::new(shared, fabric)
    }
}

impl<F: Fabric, L: Layout<Key = [u8], Value = [u8]>> ValueBlocks<F, L> {
    fn above<'a, P: PartIndex<F, L>>(
        &'a self,
        part: &'a P,
    ) -> BlockOperations<'a, PartOfIndex<'a, P, F, L>, F, L> {
        self.over(PartOfIndex::new(part))
    }
}

impl<F: Fabric, L: Layout<Key = [u8], Value = [u8]>> PartValues<F, L> for ValueBlocks<F, L> {
    async fn execute<P: PartIndex<F, L>>(
        &self,
        part: &P,
        edit: LeafEdit<&[u8], &[u8]>,
    ) -> Result<EditAnswer<Vec<u8>>, RemoteError> {
        self.above(part).execute(edit).await
    }

    async fn execute_all<P: PartIndex<F, L>>(
        &self,
        part: &P,
        edits: &[LeafEdit<&[u8], &[u8]>],
        done: impl Fn(usize, Result<EditAnswer<Vec<u8>>, RemoteError>),
    ) {
        self.above(part).execute_all(edits, &done).await;
    }

    async fn scan<P: PartIndex<F, L>>(
        &self,
        part: &P,
        scan: &ScanRequest<Vec<u8>>,
        room: &mut RecordRoom,
        out: &mut KeyedRecords<Vec<u8>, Vec<u8>>,
    ) -> Result<ScanEnd<Vec<u8>>, RemoteError> {
        let since_ns = self.blocks.now_ns();
        let mut below = scan.clone();
        below.limit = scan.limit.saturating_sub(out.len());
        let mut found = KeyedRecords::new();
        let range = part.scan(&below, &mut found).await?;
        let is_limited = found.len() >= below.limit;
        // Only blocks that the message has room for are READ.
        let room_before = *room;
        let mut is_full = room.cut_by::<L>(&mut found, 0, sent_bytes::<L>);
        let mut last = found.last().map(|(last, _)| last.clone());
        let (keys, stored): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let found = keys.iter().map(Vec::as_slice).zip(stored.into_iter().map(Some)).collect();
        let values = self.above(part).resolve_all(found, since_ns).await?;
        // A key that was removed meanwhile need not appear.
        let mut records: KeyedRecords<Vec<u8>, Vec<u8>> =
            keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?))).collect();
        // A value that was replaced meanwhile may be longer.
        *room = room_before;
        if room.cut::<L>(&mut records, 0) {
            is_full = true;
            last = records.last().map(|(last, _)| last.clone());
        }
        out.append(&mut records);
        let next = match last {
            Some(last) if is_full || is_limited => Some(Bound::Excluded(last)),
            // No record had room: the scan continues where it began.
            None if is_full && scan.reverse => Some(scan.upper.clone()),
            None if is_full => Some(scan.lower.clone()),
            _ => None,
        };
        Ok(ScanEnd { range, next, is_full })
    }

    /// Lost blocks can be used again a grace period later.
    async fn flush<P: PartIndex<F, L>>(&self, part: &P) -> Result<(), RemoteError> {
        let lost = self.blocks.lost();
        part.flush().await?;
        self.blocks.rest(lost);
        Ok(())
    }

    async fn collect<P: PartIndex<F, L>>(&self, part: &P) -> Result<(), RemoteError> {
        part.collect().await?;
        self.above(part).rest_lost().await
    }

    async fn prepare<P: PartIndex<F, L>>(
        &self,
        part: &P,
        records: &mut KeyedRecords<Vec<u8>, Vec<u8>>,
        blocks: &mut Vec<BlockRef>,
    ) -> Result<(), RemoteError> {
        let over = self.above(part);
        for together in records.chunks_mut(LOADED_PER_BATCH) {
            let written = over.store_all(together).await;
            let mut outcome = Ok(());
            for ((_, value), stored) in together.iter_mut().zip(written) {
                match stored {
                    Ok((stored, block)) => {
                        *value = stored;
                        blocks.extend(block);
                    }
                    Err(error) => outcome = Err(error),
                }
            }
            outcome?;
        }
        Ok(())
    }

    /// A scan of stored values notes the references into chunks of former incarnations; then
    /// everything else in these chunks is free, once all leaves are written back and a grace period
    /// has passed (blocks.X4, blocks.X10).
    async fn reclaim<P: PartIndex<F, L>>(&self, part: &P) -> Result<ReclaimOutcome, RemoteError> {
        match self.blocks.former_step() {
            None => return Ok(ReclaimOutcome::Ended),
            Some(FormerStep::Scan(lower)) => {
                let (upper, reverse) = (Bound::Unbounded, false);
                let scan = ScanRequest { lower, upper, reverse, limit: NOTED_PER_BATCH };
                let mut found = KeyedRecords::new();
                part.scan(&scan, &mut found).await?;
                let last = found.last().filter(|_| found.len() >= scan.limit);
                let next = last.map(|(last, _)| Bound::Excluded(last.clone()));
                let references =
                    found.iter().filter_map(|(_, stored)| match StoredValue::of(stored) {
                        StoredValue::Block(block) => Some(block),
                        StoredValue::Inline(_) => None,
                    });
                self.blocks.note(references, next);
            }
            Some(FormerStep::Drain) => self.blocks.end_round_if_drained(),
            Some(FormerStep::Rest) => {
                part.flush().await?;
                return Ok(ReclaimOutcome::Found);
            }
        }
        Ok(ReclaimOutcome::GoesOn)
    }

    async fn use_found(&self) {
        self.blocks.use_found().await;
    }

    fn keys_will_leave(&self) {
        self.blocks.give_up_former();
    }

    async fn share(&self) -> Result<(), RemoteError> {
        self.blocks.share_chunks().await
    }

    fn give_back(&self, blocks: Vec<BlockRef>) {
        blocks.into_iter().for_each(|block| self.blocks.give_back(block));
    }

    fn counters(&self) -> CacheCounters {
        self.counters.snapshot()
    }
}

/// The size in a message of a record for which leaves store this.
fn sent_bytes<L: Layout<Key = [u8], Value = [u8]>>(key: &[u8], stored: &[u8]) -> usize {
    let value_bytes = match StoredValue::of(stored) {
        StoredValue::Inline(value) => value.len(),
        StoredValue::Block(block) => block.bytes,
    };
    L::key_bytes(key) + L::value_bytes(&[]) + value_bytes
}
