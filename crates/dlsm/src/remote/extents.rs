//! Tables in extents over one-sided verbs: large WRITEs one after the other, and READs of exactly
//! the wanted words.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.F1. [`ExtentWriter::finish`] returns the lease once all WRITEs have completed. If one has
//!   failed, it returns that error instead.
//! - lsm.F2. A buffer is used again only after its own operation has completed.
//! - lsm.K3. The extents of a table that was given up with WRITEs in flight, by an error or because
//!   its future was dropped, are used again only after a reset of their connections.
//! - lsm.F3. After a WRITE of unknown outcome and a reset the same words are written again. Until
//!   then the extents are not given to another table.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::extent_space::{ExtentLease, ExtentSpace, ExtentUse, JobId};
use super::given_up::{HeldLease, UnresolvedLease, UnresolvedLeases};
use super::shard_client::ShardClient;
use farleaf_fabric::sync::{Arc, Ordering};
use farleaf_fabric::{BUFFER_BYTES, Buffer, Fabric, FabricError, GlobalAddr, Region, ServerId};
use farleaf_page::Layout;
use farleaf_page::rules::{EXTENTS_PINNED, LOANS_UNREAD, PROMISES_KEPT, TABLES_LAND_FIRST};
use farleaf_pool::remote::both;
use farleaf_pool::remote::{BUSY_WAIT_NS, BUSY_WAITS, READ_RETRIES};
use farleaf_pool::remote::{Backoff, GRACE_NS, RemoteError, RpcClient};
use farleaf_pool::remote::{ChunkClient, ChunkUse};
use std::cell::RefCell;
use std::collections::VecDeque;

/// Maximum number of words of one READ or WRITE: 64 KiB.
pub(crate) const TRANSFER_WORDS: usize = 8192;
/// READs or WRITEs of one table in flight together.
const MAX_CONCURRENT: usize = 4;
/// Attempts to write a piece.
const WRITE_ATTEMPTS: u32 = 16;
/// Buffers of an endpoint that wait for their next use.
const BUFFERS_KEPT: usize = 2 * MAX_CONCURRENT;
/// How often an allocation that finds no memory waits for extents that rest. Other handles take
/// some of them.
const RESTING_ROUNDS: u32 = 8;

/// One handle's access to extents.
#[derive(Debug)]
pub struct ExtentClient<F: Fabric, L: Layout> {
    chunks: ChunkClient<F, L>,
    space: Arc<ExtentSpace>,
    chunk_bytes: u64,
    /// Idle buffers of [`TRANSFER_WORDS`].
    buffers: RefCell<Vec<Arc<Region>>>,
    /// Extents of tables that were given up, to which something may still be written.
    given_up: UnresolvedLeases,
}

impl<F: Fabric, L: Layout> ExtentClient<F, L> {
    /// A handle of this endpoint, which allocates chunks of `chunk_bytes`, or of an extent.
    pub fn new(fabric: F, space: &Arc<ExtentSpace>, chunk_bytes: u64) -> Self {
        Self {
            chunks: ChunkClient::new(fabric),
            space: Arc::clone(space),
            chunk_bytes,
            buffers: RefCell::default(),
            given_up: UnresolvedLeases::default(),
        }
    }

    /// The endpoint.
    pub(crate) fn fabric(&self) -> &F {
        self.rpc().fabric()
    }

    /// RPCs over the same endpoint.
    pub(crate) fn rpc(&self) -> &RpcClient<F, L> {
        self.chunks.rpc()
    }

    /// The directory of `shard`.
    pub(crate) fn directory(&self, shard: u64) -> ShardClient<'_, F, L> {
        ShardClient::new(&self.chunks, shard)
    }

    /// Memory on `server` that belongs to no shard.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(crate) async fn allocate_unshared(
        &self,
        server: ServerId,
        bytes: u64,
    ) -> Result<(GlobalAddr, u64), RemoteError> {
        self.chunks.allocate(server, bytes, ChunkUse::Whole { least: bytes }).await
    }

    /// A writer for an output table of a compaction.
    pub fn writer(&self) -> ExtentWriter<'_, F, L> {
        self.writer_for(ExtentUse::Merge)
    }

    /// A writer for a table whose extents are taken for `purpose`.
    pub(crate) fn writer_for(&self, purpose: ExtentUse) -> ExtentWriter<'_, F, L> {
        let servers = self.space.servers(self.fabric().memory_servers()).collect();
        let lease = ExtentLease::new(&self.space);
        ExtentWriter {
            client: self,
            purpose,
            servers,
            lease,
            words: 0,
            in_flight: VecDeque::new(),
            is_in_doubt: false,
            failed: None,
        }
    }

    /// READs `words` words of a table from word `first` on: one READ if they are adjacent and at
    /// most [`TRANSFER_WORDS`], otherwise several in one doorbell.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(crate) async fn read(
        &self,
        lease: &ExtentLease,
        first: u32,
        words: u32,
    ) -> Result<Vec<u64>, RemoteError> {
        let pieces = lease.pieces(first.into(), words.into(), TRANSFER_WORDS as u64);
        let mut backoff = Backoff::default();
        let mut outcome = Err(FabricError::NoBuffer { bytes: words as usize * 8 });
        for _ in 0..READ_RETRIES {
            outcome = self.try_read(&pieces, words as usize).await;
            match &outcome {
                Err(error) if may_try_again(error) => {
                    self.fabric().counters().count_retry();
                    backoff.count();
                    backoff.wait(self.fabric()).await;
                }
                _ => break,
            }
        }
        Ok(outcome?)
    }

    async fn try_read(
        &self,
        pieces: &[(GlobalAddr, u64)],
        words: usize,
    ) -> Result<Vec<u64>, FabricError> {
        let mut read = Vec::with_capacity(words);
        let mut in_flight: VecDeque<F::Op<Buffer>> = VecDeque::new();
        let mut left = pieces.iter().peekable();
        let mut waits = 0;
        while !in_flight.is_empty() || left.peek().is_some() {
            while in_flight.len() < MAX_CONCURRENT
                && let Some((at, words)) = left.peek()
                && let Ok(buffer) = self.buffer(*words as usize)
            {
                in_flight.push_back(self.fabric().read(*at, buffer));
                left.next();
            }
            match in_flight.pop_front() {
                Some(operation) => {
                    let buffer = operation.await?;
                    read.extend(buffer.words().iter().map(|word| word.load(Ordering::Relaxed)));
                    self.keep(buffer);
                }
                None if waits == BUSY_WAITS => {
                    return Err(FabricError::NoBuffer { bytes: words * 8 });
                }
                None => {
                    waits += 1;
                    self.fabric().sleep(BUSY_WAIT_NS).await;
                }
            }
        }
        Ok(read)
    }

    /// Gives back the extents of tables that were given up, after resets of the connections over
    /// which WRITEs may still land (K3), and after the close of jobs (J3). The handle does so
    /// before each table, and when it finds no extents. What WRITEs of a dropped handle may reach
    /// is lost; jobs are closed by any handle of the process.
    ///
    /// # Errors
    /// The first [`RemoteError`]; the extents of such tables wait for the next call.
    pub async fn settle(&self) -> Result<(), RemoteError> {
        self.given_up.settle(&self.space, self.rpc(), u64::MAX).await
    }

    /// The same, but what has failed just before is left alone for a while: a server that is dead
    /// would delay every table.
    pub(crate) async fn settle_due(&self) {
        let now_ns = self.fabric().now_ns();
        // If it fails, there may be other extents.
        let _ = self.given_up.settle(&self.space, self.rpc(), now_ns).await;
    }

    /// Leases this many extents on `server`, adjacent if possible.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(crate) async fn lease(
        &self,
        server: ServerId,
        extents: usize,
    ) -> Result<ExtentLease, RemoteError> {
        self.settle_due().await;
        let mut lease = ExtentLease::new(&self.space);
        for _ in 0..extents {
            let before = lease.extents().last().copied();
            lease.add(self.take((&[server], ExtentUse::Merge), before).await?);
        }
        Ok(lease)
    }

    /// Allocates chunks until at least `extents` extents are free or resting. The chunks belong to
    /// the shard, so no other shard can take them (S1).
    ///
    /// # Errors
    /// [`RemoteError`]: [`RemoteError::OutOfMemory`] if the memory servers have no more.
    pub(crate) async fn own(&self, extents: u64) -> Result<(), RemoteError> {
        let mut outcome = Err(RemoteError::OutOfMemory { server: ServerId::new(0) });
        for server in self.space.servers(self.fabric().memory_servers()) {
            loop {
                let missing = extents.saturating_sub(self.space.available().0);
                if missing == 0 {
                    return Ok(());
                }
                let bytes = (missing * self.space.extent_bytes()).max(self.chunk_bytes);
                if let Err(error) = self.add_chunk(server, bytes).await {
                    outcome = Err(error);
                    break;
                }
            }
        }
        outcome
    }

    /// Allocates a chunk of about `bytes` bytes: less, if there is no room for it, but at least an
    /// extent. Or waits for the chunk of another task.
    async fn add_chunk(&self, server: ServerId, bytes: u64) -> Result<(), RemoteError> {
        let extent_bytes = self.space.extent_bytes();
        let mut wanted = bytes.max(extent_bytes);
        loop {
            let purpose = ChunkUse::Shard { shard: self.space.shard(), least: wanted };
            match self.chunks.allocate_for_all(server, wanted, purpose).await {
                Ok(chunk) => {
                    if let Some((at, bytes)) = chunk {
                        self.space.add_chunk(at, bytes);
                    }
                    return Ok(());
                }
                // There is no room for so much, but perhaps for less.
                Err(RemoteError::OutOfMemory { .. }) if wanted > extent_bytes => {
                    wanted = (wanted / 2 / extent_bytes).max(1) * extent_bytes;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A lease that `job` writes to. It is given up unless it is settled.
    pub(crate) fn hold(&self, mut lease: ExtentLease, job: JobId) -> HeldLease<'_> {
        lease.set_settled(false);
        HeldLease::new(&self.given_up, UnresolvedLease::lent(lease, job))
    }

    /// A buffer of exactly this many words, at most [`TRANSFER_WORDS`].
    fn buffer(&self, words: usize) -> Result<Buffer, FabricError> {
        if words * 8 <= BUFFER_BYTES {
            return self.fabric().buffer(words * 8);
        }
        let kept = self.buffers.borrow_mut().pop();
        let memory = match kept {
            Some(memory) => memory,
            None => match Region::new(TRANSFER_WORDS * 8) {
                Ok(memory) => Arc::new(memory),
                Err(_) => return Err(FabricError::NoBuffer { bytes: words * 8 }),
            },
        };
        Ok(Buffer::over(memory, 0, words))
    }

    /// Takes a buffer back whose operation has completed (F2).
    fn keep(&self, buffer: Buffer) {
        let mut kept = self.buffers.borrow_mut();
        if buffer.memory().bytes() == TRANSFER_WORDS * 8 && buffer.bytes() > BUFFER_BYTES {
            let memory = Arc::clone(buffer.memory());
            if kept.len() < BUFFERS_KEPT {
                kept.push(memory);
            }
        }
    }

    /// An extent on one of these servers, the first one if possible.
    async fn take(
        &self,
        (servers, purpose): (&[ServerId], ExtentUse),
        before: Option<u32>,
    ) -> Result<u32, RemoteError> {
        let mut outcome = Err(RemoteError::OutOfMemory { server: ServerId::new(0) });
        for round in 0..=RESTING_ROUNDS {
            for server in servers {
                outcome = self.take_on((*server, purpose), before).await;
                if outcome.is_ok() {
                    return outcome;
                }
            }
            if round == 0 {
                self.settle_due().await;
            }
            let now_ns = self.fabric().now_ns();
            match self.space.first_rested_ns((now_ns, self.grace_ns())) {
                Some(due_ns) if round < RESTING_ROUNDS => {
                    self.fabric().sleep(due_ns.saturating_sub(now_ns)).await;
                }
                _ => break,
            }
        }
        outcome
    }

    fn grace_ns(&self) -> u64 {
        let rests = [EXTENTS_PINNED, LOANS_UNREAD].iter().all(|rule| !self.fabric().breaks(*rule));
        if rests { GRACE_NS } else { 0 }
    }

    async fn take_on(
        &self,
        on: (ServerId, ExtentUse),
        before: Option<u32>,
    ) -> Result<u32, RemoteError> {
        // A planted bug: compactions take what was promised to flushes.
        let on = match self.fabric().breaks(PROMISES_KEPT) {
            true => (on.0, ExtentUse::Flush),
            false => on,
        };
        loop {
            let time = (self.fabric().now_ns(), self.grace_ns());
            if let Some(extent) = self.space.take(on, before, time) {
                return Ok(extent);
            }
            self.add_chunk(on.0, self.chunk_bytes).await?;
        }
    }
}

/// Whether an operation that can be repeated may succeed.
fn may_try_again(error: &FabricError) -> bool {
    matches!(
        error,
        FabricError::Indeterminate { .. }
            | FabricError::QueueFull { .. }
            | FabricError::NoBuffer { .. }
    )
}

/// A WRITE in flight.
struct ExtentWriteInFlight<F: Fabric> {
    at: GlobalAddr,
    words: Vec<u64>,
    operation: F::Op<Buffer>,
}

/// A table that is being written, from its first word on.
pub struct ExtentWriter<'c, F: Fabric, L: Layout> {
    client: &'c ExtentClient<F, L>,
    purpose: ExtentUse,
    /// The memory servers, in the order in which they are asked for memory.
    servers: Vec<ServerId>,
    lease: ExtentLease,
    /// Words written so far.
    words: u64,
    in_flight: VecDeque<ExtentWriteInFlight<F>>,
    /// A WRITE that was given up may still land.
    is_in_doubt: bool,
    /// Why the table cannot be finished.
    failed: Option<RemoteError>,
}

impl<F: Fabric, L: Layout> ExtentWriter<'_, F, L> {
    /// The words written so far.
    pub(crate) fn words(&self) -> u64 {
        self.words
    }

    /// Posts the WRITEs of the next words.
    ///
    /// # Errors
    /// [`RemoteError`]; the table cannot be finished then.
    pub async fn append(&mut self, words: &[u64]) -> Result<(), RemoteError> {
        let appended = self.try_append(words).await;
        let Err(error) = appended else { return Ok(()) };
        self.failed.get_or_insert_with(|| error.clone());
        self.drain().await.and(Err(error))
    }

    async fn try_append(&mut self, words: &[u64]) -> Result<(), RemoteError> {
        let end = self.words + words.len() as u64;
        if self.lease.extents().is_empty() {
            self.client.settle_due().await;
        }
        while self.lease.bytes() / 8 < end {
            let before = self.lease.extents().last().copied();
            let extent = self.client.take((&self.servers, self.purpose), before).await?;
            self.lease.add(extent);
        }
        let pieces = self.lease.pieces(self.words, words.len() as u64, TRANSFER_WORDS as u64);
        let mut rest = words;
        for (at, count) in pieces {
            let (piece, others) = rest.split_at(count as usize);
            rest = others;
            if self.in_flight.len() == MAX_CONCURRENT {
                self.next().await?;
            }
            self.lease.set_settled(false);
            let operation = self.post(at, piece).await?;
            self.in_flight.push_back(ExtentWriteInFlight { at, words: piece.to_vec(), operation });
        }
        self.words = end;
        Ok(())
    }

    /// Waits until all WRITEs have landed (F1).
    ///
    /// # Errors
    /// [`RemoteError`], also if [`ExtentWriter::append`] has failed before. What the table has
    /// taken is given back: at once, or by [`ExtentClient::settle`] if a WRITE may still land (K3).
    pub async fn finish(mut self) -> Result<ExtentLease, RemoteError> {
        if self.client.fabric().breaks(TABLES_LAND_FIRST) {
            self.in_flight.clear();
        }
        self.drain().await?;
        match self.failed.take() {
            Some(error) => Err(error),
            None => Ok(self.take_lease()),
        }
    }

    fn take_lease(&mut self) -> ExtentLease {
        std::mem::replace(&mut self.lease, ExtentLease::new(&self.client.space))
    }

    async fn drain(&mut self) -> Result<(), RemoteError> {
        let mut outcome = Ok(());
        while !self.in_flight.is_empty() {
            outcome = both(outcome, self.next().await);
        }
        self.lease.set_settled(!self.is_in_doubt); // K3
        Ok(outcome?)
    }

    /// Waits for the oldest WRITE in flight.
    async fn next(&mut self) -> Result<(), FabricError> {
        let Some(posted) = self.in_flight.pop_front() else { return Ok(()) };
        let outcome = self.land(posted).await;
        self.is_in_doubt |= matches!(outcome, Err(FabricError::Indeterminate { .. }));
        outcome
    }

    async fn land(&mut self, posted: ExtentWriteInFlight<F>) -> Result<(), FabricError> {
        let ExtentWriteInFlight { at, words, operation } = posted;
        let mut outcome = operation.await;
        let mut backoff = Backoff::default();
        for _ in 0..WRITE_ATTEMPTS {
            match outcome {
                Ok(buffer) => {
                    self.client.keep(buffer);
                    return Ok(());
                }
                Err(FabricError::Indeterminate { .. }) => {
                    // Whatever the reset fails with, the WRITE may still land.
                    let was_in_doubt = std::mem::replace(&mut self.is_in_doubt, true);
                    self.client.fabric().reset(at.server()).await?; // F3
                    self.is_in_doubt = was_in_doubt;
                }
                Err(ref error) if may_try_again(error) => {}
                Err(error) => return Err(error),
            }
            self.client.fabric().counters().count_retry();
            backoff.count();
            backoff.wait(self.client.fabric()).await;
            outcome = self.post(at, &words).await?.await;
        }
        outcome.map(drop)
    }

    /// Posts a WRITE; waits for a buffer if there is none.
    async fn post(&self, at: GlobalAddr, words: &[u64]) -> Result<F::Op<Buffer>, FabricError> {
        let mut outcome = self.client.buffer(words.len());
        for _ in 0..BUSY_WAITS {
            if outcome.is_ok() {
                break;
            }
            self.client.fabric().sleep(BUSY_WAIT_NS).await;
            outcome = self.client.buffer(words.len());
        }
        let buffer = outcome?;
        for (to, word) in buffer.words().iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        Ok(self.client.fabric().write(at, buffer))
    }
}

impl<F: Fabric, L: Layout> Drop for ExtentWriter<'_, F, L> {
    fn drop(&mut self) {
        if !self.lease.is_settled() {
            let lease = self.take_lease();
            self.client.given_up.add(UnresolvedLease::written(lease));
        }
    }
}
