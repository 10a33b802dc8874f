//! The operations: conversion between values and what leaves store for them.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::below::{BlockReferences, WholeIndex};
use super::cache::BlockCache;
use super::client::BlockClient;
use super::shared::ValueBlocks;
use super::space::{AwaitedBlocks, UnendedBlock};
use crate::Dex;
use farleaf_fabric::Fabric;
use farleaf_index::partition::RoutedIndex;
use farleaf_index::together::all;
use farleaf_index::{
    Background, CacheCounters, EditAnswer, IndexAdmin, IndexError, KeyRange, KeyedRecords,
    LeafEdit, LiveCounters, OPERATIONS_PER_BATCH, RangeIndex, Reshape, ReshapeCost, ScanRequest,
};
use farleaf_page::{
    BlockRef, EditAction, Layout, LengthError, MAX_BLOCK_BYTES, StoredValue, stored_inline,
};
use farleaf_pool::remote::{Backoff, MissCause, RemoteError};
use std::borrow::{Borrow, Cow};
use std::ops::Bound;

/// Number of records in one part of a scan. Their blocks are READ before the next part begins,
/// because their leaves must have been read recently (blocks.X5).
const SCAN_PER_BATCH: usize = 256;
/// Blocks that one operation reads or writes together.
pub(super) const BLOCKS_PER_BATCH: usize = OPERATIONS_PER_BATCH;

/// How long an operation that finds no memory waits for blocks that are being freed, in
/// nanoseconds. It is shorter than an attempt of a client, which then learns that nothing has
/// changed.
const MEMORY_WAIT_NS: u64 = 1_500_000_000;

/// A handle of an index with value blocks.
pub struct BlockIndex<F: Fabric, L: Layout> {
    pub(super) design: RoutedIndex<Dex, F, L>,
    pub(super) values: ValueBlocks<F, L>,
}

/// Value blocks, and the index whose leaves refer to them: the logic of all operations.
pub(super) struct BlockOperations<'a, B, F: Fabric, L: Layout> {
    pub(super) design: B,
    pub(super) blocks: &'a BlockClient<F, L>,
    cache: &'a BlockCache,
    counters: &'a LiveCounters,
    inline_bytes: usize,
}

impl<F: Fabric, L: Layout> ValueBlocks<F, L> {
    /// The operations on `design` with these value blocks.
    pub(super) fn over<B>(&self, design: B) -> BlockOperations<'_, B, F, L> {
        BlockOperations {
            design,
            blocks: &self.blocks,
            cache: &self.cache,
            counters: &self.counters,
            inline_bytes: self.inline_bytes,
        }
    }
}

/// An operation on one key.
pub(super) type BlockEdit<'a> = LeafEdit<&'a [u8], &'a [u8]>;

/// What a leaf will store for a new value, and the new block with the value, if it needs one.
pub(super) struct NewLeafValue<'a> {
    pub(super) stored: Cow<'a, [u8]>,
    pub(super) block: Option<BlockRef>,
    _in_hand: Option<UnendedBlock>,
}

impl<'a> NewLeafValue<'a> {
    pub(super) fn inline(stored: Cow<'a, [u8]>) -> Self {
        Self { stored, block: None, _in_hand: None }
    }

    /// For a value in a block that has been written.
    pub(super) fn in_block((block, in_hand): (BlockRef, UnendedBlock)) -> Self {
        let stored = Cow::Owned(block.to_stored().to_vec());
        Self { stored, block: Some(block), _in_hand: Some(in_hand) }
    }

    /// The edit that stores what the leaf shall hold for the value of an insert, update or upsert.
    /// A compare-exchange stays as it is.
    pub(super) fn storing<'e>(&'e self, edit: BlockEdit<'e>) -> BlockEdit<'e> {
        let value = &self.stored[..];
        let action = match edit.action {
            EditAction::Insert(_) => EditAction::Insert(value),
            EditAction::Update(_) => EditAction::Update(value),
            EditAction::Upsert(_) => EditAction::Upsert(value),
            action => action,
        };
        LeafEdit { key: edit.key, action }
    }
}

impl<F: Fabric, L: Layout<Key = [u8], Value = [u8]>> BlockIndex<F, L> {
    pub(super) fn new(design: RoutedIndex<Dex, F, L>, values: ValueBlocks<F, L>) -> Self {
        Self { design, values }
    }

    /// The handle of the index without blocks.
    pub fn design(&self) -> &RoutedIndex<Dex, F, L> {
        &self.design
    }

    pub(super) fn over(&self) -> BlockOperations<'_, WholeIndex<'_, F, L>, F, L> {
        self.values.over(WholeIndex(&self.design))
    }

    /// Checks whether the index can store a record.
    ///
    /// # Errors
    /// [`LengthError`] if it cannot.
    pub fn check(key: &[u8], value: &[u8]) -> Result<(), LengthError> {
        L::check_key(key)?;
        let (bytes, most) = (value.len(), MAX_BLOCK_BYTES);
        if bytes <= most { Ok(()) } else { Err(LengthError::Value { bytes, most }) }
    }
}

impl<B, F, L> BlockOperations<'_, B, F, L>
where
    B: BlockReferences,
    F: Fabric,
    L: Layout<Key = [u8], Value = [u8]>,
{
    /// What a leaf stores for an inline value; `None` if the value needs a block.
    pub(super) fn inline<'a>(&self, key: &[u8], value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        if value.len() > self.inline_bytes {
            return None;
        }
        let stored = stored_inline(value);
        L::check_record(key, &stored).is_ok().then_some(stored)
    }

    /// Writes a block. If there is no memory left, waits for blocks that are being freed.
    pub(super) async fn write_block(
        &self,
        value: &[u8],
    ) -> Result<(BlockRef, UnendedBlock), B::Error> {
        let mut until_ns = None;
        loop {
            let seen = self.blocks.frees();
            match self.blocks.write_in_hand(value).await {
                Err(error @ RemoteError::OutOfMemory { .. }) => {
                    if !self.can_free(seen, &mut until_ns).await {
                        return Err(error.into());
                    }
                }
                outcome => return Ok(outcome?),
            }
        }
    }

    /// Waits for memory after a write has found none; writes back leaves that have lost blocks.
    /// Returns `false` if no memory is to be expected (blocks.X13), or not in time. `seen` is the
    /// value of [`BlockClient::frees`] before the write; the first wait sets `until_ns`. The caller
    /// must have no block in hand.
    pub(super) async fn can_free(&self, seen: u64, until_ns: &mut Option<u64>) -> bool {
        let now_ns = self.blocks.now_ns();
        if now_ns >= *until_ns.get_or_insert(now_ns.saturating_add(MEMORY_WAIT_NS)) {
            return false;
        }
        match self.blocks.wait_for_memory(seen).await {
            AwaitedBlocks::Free | AwaitedBlocks::FromOthers | AwaitedBlocks::At(_) => true,
            // If this fails, nothing is known to be wrong with the operation itself.
            AwaitedBlocks::Lost => Box::pin(self.rest_lost()).await.is_ok(),
            AwaitedBlocks::Never => false,
        }
    }

    pub(super) async fn store<'a>(
        &self,
        key: &[u8],
        value: &'a [u8],
    ) -> Result<NewLeafValue<'a>, B::Error> {
        if let Some(stored) = self.inline(key, value) {
            return Ok(NewLeafValue::inline(stored));
        }
        self.write_block(value).await.map(NewLeafValue::in_block)
    }

    /// Writes the blocks of some records of a bulk load together. Returns what leaves shall store
    /// for each, and its new block.
    pub(super) async fn store_all(
        &self,
        records: &[(Vec<u8>, Vec<u8>)],
    ) -> Vec<Result<(Vec<u8>, Option<BlockRef>), B::Error>> {
        let stored = records.iter().map(async |(key, value)| {
            let new = self.store(key, value).await?;
            Ok((new.stored.into_owned(), new.block))
        });
        all(stored).await
    }

    /// Keeps or frees the blocks of an edit that has ended, depending on its outcome.
    async fn settle(
        &self,
        block: Option<BlockRef>,
        value: &[u8],
        outcome: Result<EditAnswer<Vec<u8>>, B::Error>,
    ) -> Result<EditAnswer<Vec<u8>>, B::Error> {
        let (outcome, is_due) = self.settled(block, value, outcome);
        if is_due {
            // The operation itself has succeeded. The next lost block tries this again.
            let _ = Box::pin(self.rest_lost()).await;
        }
        outcome
    }

    /// As [`BlockOperations::settle`], but also returns whether it is time for
    /// [`BlockOperations::rest_lost`].
    pub(super) fn settled(
        &self,
        block: Option<BlockRef>,
        value: &[u8],
        outcome: Result<EditAnswer<Vec<u8>>, B::Error>,
    ) -> (Result<EditAnswer<Vec<u8>>, B::Error>, bool) {
        match outcome {
            Ok(answer) if answer.applied => {
                if let Some(block) = block {
                    self.cache.keep(block, value);
                }
                (Ok(EditAnswer::from_change(true)), self.has_lost(&answer))
            }
            // A leaf may refer to the block, now or later (blocks.X8).
            Err(error) if B::is_unknown(&error) => (Err(error), false),
            outcome => {
                self.give_back(block);
                (outcome, false)
            }
        }
    }

    /// Frees the block that an applied edit has taken out of its leaf, if there was one. Returns
    /// whether [`BlockOperations::rest_lost`] is due.
    fn has_lost(&self, answer: &EditAnswer<Vec<u8>>) -> bool {
        if let Some(lost) = answer.found.as_deref()
            && let StoredValue::Block(lost) = StoredValue::of(lost)
        {
            self.cache.forget(lost);
            return self.blocks.lose(lost);
        }
        false
    }

    pub(super) fn give_back(&self, block: Option<BlockRef>) {
        if let Some(block) = block {
            self.blocks.give_back(block);
        }
    }

    /// Writes back the leaves that have lost blocks, so that the blocks can be used again after a
    /// grace period (blocks.X4).
    pub(super) async fn rest_lost(&self) -> Result<(), B::Error> {
        let lost = self.blocks.lost();
        if !lost.is_empty() {
            self.design.flush().await?;
            self.blocks.rest(lost);
        }
        Ok(())
    }

    /// Resolves what a leaf stores to its value if that is inline or cached. Otherwise returns what
    /// the leaf stores, as the error.
    pub(super) fn resolved_at_once(&self, mut stored: Vec<u8>) -> Result<Vec<u8>, Vec<u8>> {
        match StoredValue::of(&stored) {
            StoredValue::Inline(value) => {
                let length = value.len();
                stored.truncate(length);
                Ok(stored)
            }
            StoredValue::Block(block) => match self.cache.get(block) {
                Some(value) => {
                    LiveCounters::count(&self.counters.block_hits);
                    Ok(value)
                }
                None => Err(stored),
            },
        }
    }

    /// Resolves what the leaf of `key` stored at `since_ns` or later to its value. If the READ of
    /// the block takes too long, checks that the leaf still refers to the block (blocks.X5).
    async fn resolve(
        &self,
        key: &[u8],
        stored: Vec<u8>,
        since_ns: u64,
    ) -> Result<Vec<u8>, MissCause> {
        let stored = match self.resolved_at_once(stored) {
            Ok(value) => return Ok(value),
            Err(stored) => stored,
        };
        let StoredValue::Block(block) = StoredValue::of(&stored) else { return Ok(stored) };
        LiveCounters::count(&self.counters.block_misses);
        let (value, is_recent) = self.blocks.read(block, since_ns).await?;
        if !is_recent && Box::pin(self.design.get(key)).await.ok().flatten() != Some(stored) {
            return Err(MissCause::Restart);
        }
        self.cache.keep(block, &value);
        Ok(value)
    }

    /// As [`BlockOperations::resolve`]; reads the leaf again if the block is gone.
    pub(super) async fn resolve_or_ask(
        &self,
        key: &[u8],
        stored: Vec<u8>,
        since_ns: u64,
    ) -> Result<Option<Vec<u8>>, B::Error> {
        match self.resolve(key, stored, since_ns).await {
            Ok(value) => Ok(Some(value)),
            Err(MissCause::Restart) => Box::pin(self.ask_again(key)).await,
            Err(MissCause::Failed(error)) => Err(error.into()),
        }
    }

    #[cold]
    async fn ask_again(&self, key: &[u8]) -> Result<Option<Vec<u8>>, B::Error> {
        let mut backoff = Backoff::default();
        loop {
            self.blocks.restart(&mut backoff).await?;
            let since_ns = self.blocks.now_ns();
            let Some(stored) = self.design.get(key).await? else { return Ok(None) };
            match self.resolve(key, stored, since_ns).await {
                Ok(value) => return Ok(Some(value)),
                Err(MissCause::Restart) => {}
                Err(MissCause::Failed(error)) => return Err(error.into()),
            }
        }
    }

    /// Resolves what leaves stored for keys to values, and READs the blocks together.
    pub(super) async fn resolve_all(
        &self,
        found: Vec<(&[u8], Option<Vec<u8>>)>,
        since_ns: u64,
    ) -> Result<Vec<Option<Vec<u8>>>, B::Error> {
        let mut values = Vec::with_capacity(found.len());
        let mut found = found.into_iter().peekable();
        while found.peek().is_some() {
            let together = found.by_ref().take(BLOCKS_PER_BATCH);
            let resolved = together.map(async |(key, stored)| match stored {
                Some(stored) => self.resolve_or_ask(key, stored, since_ns).await,
                None => Ok(None),
            });
            for value in all(resolved).await {
                values.push(value?);
            }
        }
        Ok(values)
    }

    /// Executes an insert, update or upsert of `value`.
    async fn change(
        &self,
        edit: LeafEdit<&[u8], &[u8]>,
        value: &[u8],
    ) -> Result<EditAnswer<Vec<u8>>, B::Error> {
        let key = edit.key;
        let new = self.store(key, value).await?;
        let outcome = self.design.execute(new.storing(edit)).await;
        self.settle(new.block, value, outcome).await
    }

    /// A compare-exchange compares stored values. So it first finds out what is stored for the
    /// expected value, which is known in advance only for inline values.
    async fn exchange(
        &self,
        key: &[u8],
        expected: &[u8],
        value: &[u8],
    ) -> Result<EditAnswer<Vec<u8>>, B::Error> {
        let mut stored = match self.inline(key, expected) {
            Some(stored) => stored.into_owned(),
            None => match self.stored_for(key, expected, None).await? {
                Ok(stored) => stored,
                Err(found) => return Ok(EditAnswer { applied: false, found }),
            },
        };
        let new = self.store(key, value).await?;
        let mut backoff = Backoff::default();
        let refused = loop {
            let since_ns = self.blocks.now_ns();
            let action = EditAction::CompareExchange(&stored[..], &new.stored[..]);
            let outcome = self.design.execute(LeafEdit { key, action }).await;
            let found = match outcome {
                Ok(EditAnswer { applied: false, found: Some(found) }) => found,
                outcome => return self.settle(new.block, value, outcome).await,
            };
            // The key has a different value, or the same one in a different stored form.
            match self.stored_for(key, expected, Some((found, since_ns))).await {
                Ok(Ok(found)) => stored = found,
                Ok(Err(found)) => break Ok(EditAnswer { applied: false, found }),
                Err(error) => break Err(error),
            }
            if let Err(error) = self.blocks.restart(&mut backoff).await {
                break Err(error.into());
            }
        };
        self.give_back(new.block);
        refused
    }

    /// What the leaf stores for `key`, if that stands for `expected`; otherwise the value of the
    /// key. `found` is what the leaf stored at a given time or later, if known.
    async fn stored_for(
        &self,
        key: &[u8],
        expected: &[u8],
        mut found: Option<(Vec<u8>, u64)>,
    ) -> Result<Result<Vec<u8>, Option<Vec<u8>>>, B::Error> {
        let mut backoff = Backoff::default();
        loop {
            let (stored, since_ns) = match found.take() {
                Some(found) => found,
                None => {
                    let since_ns = self.blocks.now_ns();
                    match self.design.get(key).await? {
                        Some(stored) => (stored, since_ns),
                        None => return Ok(Err(None)),
                    }
                }
            };
            match self.resolve(key, stored.clone(), since_ns).await {
                Ok(value) if value == expected => return Ok(Ok(stored)),
                Ok(value) => return Ok(Err(Some(value))),
                Err(MissCause::Restart) => self.blocks.restart(&mut backoff).await?,
                Err(MissCause::Failed(error)) => return Err(error.into()),
            }
        }
    }

    /// The value of a key.
    pub(super) async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, B::Error> {
        let since_ns = self.blocks.now_ns();
        match self.design.get(key).await? {
            Some(stored) => self.resolve_or_ask(key, stored, since_ns).await,
            None => Ok(None),
        }
    }

    /// Any operation on one key, whose lengths have been checked.
    pub(super) async fn execute(
        &self,
        edit: LeafEdit<&[u8], &[u8]>,
    ) -> Result<EditAnswer<Vec<u8>>, B::Error> {
        let key = edit.key;
        let _edit = if edit.changes() { self.blocks.edit() } else { None };
        match edit.action {
            EditAction::Get => self.get(key).await.map(EditAnswer::from_lookup),
            EditAction::Insert(value) | EditAction::Update(value) | EditAction::Upsert(value) => {
                self.change(edit, value).await
            }
            EditAction::Remove => {
                let outcome = self.design.execute(edit).await;
                self.settle(None, &[], outcome).await
            }
            EditAction::CompareExchange(expected, value) => {
                self.exchange(key, expected, value).await
            }
        }
    }
}

impl<F: Fabric, L: Layout<Key = [u8], Value = [u8]>> RangeIndex for BlockIndex<F, L> {
    type Key = [u8];
    type Value = [u8];

    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        self.over().get(key).await
    }

    async fn execute(
        &self,
        edit: LeafEdit<&[u8], &[u8]>,
    ) -> Result<EditAnswer<Vec<u8>>, IndexError> {
        edit.check_by::<L>(Self::check)?;
        self.over().execute(edit).await
    }

    async fn scan(
        &self,
        scan: &ScanRequest<Vec<u8>>,
    ) -> Result<KeyedRecords<Vec<u8>, Vec<u8>>, IndexError> {
        if scan.limit == 0 {
            return self.design.scan(scan).await; // it checks the bounds
        }
        let mut records: KeyedRecords<Vec<u8>, Vec<u8>> = Vec::new();
        let mut rest = scan.clone();
        // If all values are in the leaves, there is nothing to READ between two parts.
        let together = if self.values.are_inline() { usize::MAX } else { SCAN_PER_BATCH };
        while records.len() < scan.limit {
            rest.limit = (scan.limit - records.len()).min(together);
            let since_ns = self.values.blocks.now_ns();
            let found = self.design.scan(&rest).await?;
            let is_last = found.len() < rest.limit;
            let Some((last, _)) = found.last() else { break };
            let beyond = Bound::Excluded(last.clone());
            match scan.reverse {
                true => rest.upper = beyond,
                false => rest.lower = beyond,
            }
            let (keys, stored): (Vec<_>, Vec<_>) = found.into_iter().unzip();
            let found = keys.iter().map(Vec::as_slice).zip(stored.into_iter().map(Some)).collect();
            let values = self.over().resolve_all(found, since_ns).await?;
            // A key that was removed meanwhile need not appear.
            records.extend(
                keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?))),
            );
            if is_last {
                break;
            }
        }
        Ok(records)
    }

    async fn bulk_load_from(
        &self,
        source: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        self.load(source, fill).await
    }

    async fn flush(&self) -> Result<(), IndexError> {
        self.design.flush().await
    }

    fn operations_together(&self) -> usize {
        self.design.operations_together()
    }

    async fn multi_get<Q: Borrow<[u8]>>(
        &self,
        keys: &[Q],
    ) -> Result<Vec<Option<Vec<u8>>>, IndexError> {
        let mut values = Vec::with_capacity(keys.len());
        for together in keys.chunks(SCAN_PER_BATCH) {
            let since_ns = self.values.blocks.now_ns();
            let stored = self.design.multi_get(together).await?;
            let found = together.iter().map(Borrow::borrow).zip(stored).collect();
            values.extend(self.over().resolve_all(found, since_ns).await?);
        }
        Ok(values)
    }

    async fn execute_all(
        &self,
        edits: &[LeafEdit<&[u8], &[u8]>],
    ) -> Vec<Result<EditAnswer<Vec<u8>>, IndexError>> {
        self.execute_batch(edits).await
    }

    async fn settle(&self) -> Result<(), IndexError> {
        self.design.settle().await
    }
}

impl<F: Fabric, L: Layout<Key = [u8], Value = [u8]>> IndexAdmin for BlockIndex<F, L> {
    async fn collect(&self) -> Result<(), IndexError> {
        self.design.collect().await?;
        self.over().rest_lost().await
    }

    async fn declare_dead(&self, compute_server: u16) -> Result<(), IndexError> {
        self.design.declare_dead(compute_server).await
    }

    fn compute_server_of(&self, key: &[u8]) -> Option<u16> {
        self.design.compute_server_of(key)
    }

    fn owned_by(&self, compute_server: u16) -> Option<KeyRange<Vec<u8>>> {
        self.design.owned_by(compute_server)
    }

    async fn reshape(&self, change: &Reshape<Vec<u8>>) -> Result<ReshapeCost, IndexError> {
        self.design.reshape(change).await
    }

    async fn background(
        &self,
        work: Background,
        ended: &dyn Fn() -> bool,
        report: &dyn Fn(Result<ReshapeCost, IndexError>),
    ) -> Result<(), IndexError> {
        self.design.background(work, ended, report).await
    }

    fn cache_counters(&self) -> CacheCounters {
        let mut counters = self.design.cache_counters();
        counters += self.values.counters();
        counters
    }
}
