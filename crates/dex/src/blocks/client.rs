//! Value blocks over one-sided verbs: immutable values beside the leaves that refer to them.
//!
//! *Invariants* (`docs/internals/page-format.md` has all of them)
//! - blocks.X1. A block is written before a leaf refers to it: [`BlockClient::write`] returns the
//!   reference once all its WRITEs have completed.
//! - blocks.X2. A block never changes while a leaf refers to it. A new value goes to a new block.
//! - blocks.X5. A reader accepts a block only if its check matches, and if the block arrived less
//!   than half of [`GRACE_NS`] after the reader looked at the leaf, or the reader finds the same
//!   reference there afterwards. Otherwise it starts again at the leaf.
//! - blocks.X12. Memory servers list the chunks of a compute server's lives only while no leaf
//!   outside its range refers to a block in them ([`BlockClient::share_chunks`]).
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::former::FormerStep;
use super::space::{
    AwaitedBlocks, BlockEditInFlight, BlockPlace, BlockSpace, LostBlocks, SizeClass, UnendedBlock,
};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr, ServerId};
use farleaf_page::rules;
use farleaf_page::{BlockRef, Layout, MAX_BLOCK_BYTES, block_words};
use farleaf_pool::remote::{
    BUSY_WAIT_NS, BUSY_WAITS, Backoff, ChunkClient, ChunkUse, GRACE_NS, MissCause, READ_RETRIES,
    RemoteError, both, pieces, until_landed,
};
use farleaf_pool::wire::{LISTED_CHUNKS, PoolRequest};
use std::collections::VecDeque;
use std::ops::{Bound, Range};

/// Maximum number of pieces of one block in flight together.
const PIECES_PER_BATCH: usize = 4;
/// Free pieces of this size that former incarnations have left go back to the memory servers, in
/// bytes.
const MIN_RETURNED_BYTES: u64 = 4096;
/// How long to wait before looking again whether other tasks have freed memory.
const OTHERS_WAIT_NS: u64 = 1_000_000;

/// One handle's access to value blocks.
#[derive(Debug)]
pub struct BlockClient<F: Fabric, L: Layout> {
    chunks: ChunkClient<F, L>,
    space: Arc<BlockSpace>,
    chunk_bytes: u64,
}

impl<F: Fabric, L: Layout> BlockClient<F, L> {
    /// Creates a handle on this endpoint, which allocates chunks of `chunk_bytes`.
    pub fn new(fabric: F, space: &Arc<BlockSpace>, chunk_bytes: u64) -> Self {
        Self { chunks: ChunkClient::new(fabric), space: Arc::clone(space), chunk_bytes }
    }

    /// The endpoint.
    pub(super) fn fabric(&self) -> &F {
        self.chunks.rpc().fabric()
    }

    /// Writes a block with `value`, at most [`MAX_BLOCK_BYTES`]. It belongs to the caller until a
    /// leaf refers to it.
    ///
    /// # Errors
    /// [`RemoteError`]; the block is freed in that case, unless a WRITE of it may still land.
    pub async fn write(&self, value: &[u8]) -> Result<BlockRef, RemoteError> {
        self.write_in_hand(value).await.map(|(block, _)| block)
    }

    /// As [`BlockClient::write`], for an operation that will end and may free another block. Keep
    /// the second part until then.
    ///
    /// # Errors
    /// As [`BlockClient::write`].
    pub(super) async fn write_in_hand(
        &self,
        value: &[u8],
    ) -> Result<(BlockRef, UnendedBlock), RemoteError> {
        let (class, words) = (SizeClass::of(value.len()), block_words(value));
        let mut outcome = Err(RemoteError::OutOfMemory { server: ServerId::new(0) });
        for server in self.space.servers(self.fabric().memory_servers()) {
            // If a server is full or cannot be reached, try the others.
            outcome = self.take(server, class).await;
            if outcome.is_ok() {
                break;
            }
        }
        let (at, in_hand) = outcome?;
        let block = BlockRef::new(at, value.len(), words.iter().copied());
        self.fill(block, &words).await.map(|()| (block, in_hand))
    }

    /// Takes a place for a block on `server`.
    async fn take(
        &self,
        server: ServerId,
        class: SizeClass,
    ) -> Result<(GlobalAddr, UnendedBlock), RemoteError> {
        let mut wanted = self.chunk_bytes.max(class.bytes());
        loop {
            if let Some((place, in_hand)) =
                BlockSpace::take_in_hand(&self.space, server, class, self.now_ns())
            {
                return Ok((place.at(), in_hand));
            }
            let purpose = ChunkUse::Whole { least: class.bytes() };
            match self.chunks.allocate_for_all(server, wanted, purpose).await {
                Ok(Some((at, bytes))) => self.space.add_chunk(at, bytes),
                Ok(None) => {}
                // There is no room for a chunk, but there may be room for this block.
                Err(RemoteError::OutOfMemory { .. }) if wanted > class.bytes() => {
                    wanted = class.bytes();
                }
                Err(RemoteError::OutOfMemory { .. }) if self.space.merge(server) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// WRITEs a new block.
    async fn fill(&self, block: BlockRef, words: &[u64]) -> Result<(), RemoteError> {
        let (place, server) = (BlockPlace::of(block), block.at.server());
        if self.fabric().breaks(rules::BLOCKS_FIRST) {
            for piece in pieces(words.len()) {
                let buffer = self.fabric().buffer(piece.len() * 8)?;
                drop(self.post_into(buffer, block.at, words, piece));
            }
            return Ok(());
        }
        // If a reset fails, an earlier WRITE may land later: the place is abandoned (blocks.X8).
        let write = async || self.write_words(block.at, words).await;
        let outcome = until_landed(self.fabric(), server, write).await?;
        if outcome.is_err() {
            self.space.give_back(place);
        }
        Ok(outcome?)
    }

    async fn write_words(&self, at: GlobalAddr, words: &[u64]) -> Result<(), FabricError> {
        let mut outcome = Ok(());
        let mut in_flight = VecDeque::new();
        for piece in pieces(words.len()) {
            if in_flight.len() == PIECES_PER_BATCH {
                outcome = both(outcome, self.next(&mut in_flight).await);
            }
            if outcome.is_err() {
                break;
            }
            match self.buffer(piece.len() * 8, &mut in_flight).await {
                Ok(buffer) => in_flight.push_back(self.post_into(buffer, at, words, piece)),
                Err(error) => outcome = both(outcome, Err(error)),
            }
        }
        while !in_flight.is_empty() {
            outcome = both(outcome, self.next(&mut in_flight).await);
        }
        outcome
    }

    fn post_into(
        &self,
        buffer: Buffer,
        at: GlobalAddr,
        words: &[u64],
        piece: Range<usize>,
    ) -> F::Op<Buffer> {
        let place = at.plus(piece.start as u64 * 8);
        words[piece].iter().enumerate().for_each(|(index, word)| buffer.set(index, *word));
        self.fabric().write(place, buffer)
    }

    async fn next(&self, in_flight: &mut VecDeque<F::Op<Buffer>>) -> Result<(), FabricError> {
        match in_flight.pop_front() {
            Some(operation) => operation.await.map(drop),
            None => Ok(()),
        }
    }

    /// Gets a buffer. If none is free, waits for this block's own pieces, and then for other tasks.
    async fn buffer(
        &self,
        bytes: usize,
        in_flight: &mut VecDeque<F::Op<Buffer>>,
    ) -> Result<Buffer, FabricError> {
        for _ in 0..BUSY_WAITS {
            match self.fabric().buffer(bytes) {
                Err(FabricError::NoBuffer { .. }) if in_flight.is_empty() => {
                    self.fabric().sleep(BUSY_WAIT_NS).await;
                }
                Err(FabricError::NoBuffer { .. }) => self.next(in_flight).await?,
                outcome => return outcome,
            }
        }
        Err(FabricError::NoBuffer { bytes })
    }

    /// READs a block whose reference was taken from a leaf at `since_ns` or later: one READ of
    /// exactly its words, or several in one doorbell if it is larger than a buffer. Also returns
    /// whether that reference is recent enough (blocks.X5).
    ///
    /// # Errors
    /// [`MissCause::Restart`] if another block is there, or none.
    pub(super) async fn read(
        &self,
        block: BlockRef,
        since_ns: u64,
    ) -> Result<(Vec<u8>, bool), MissCause> {
        let trusts = self.fabric().breaks(rules::BLOCKS_CHECKED);
        if !self.is_sensible(block) {
            return Err(MissCause::Restart);
        }
        let words = self.read_words(block).await?;
        let is_recent = self.now_ns().saturating_sub(since_ns) <= GRACE_NS / 2;
        let matches = BlockRef::new(block.at, block.bytes, words.iter().copied()) == block;
        if !matches && !trusts {
            return Err(MissCause::Restart);
        }
        let mut value = Vec::with_capacity(words.len() * 8);
        words.iter().for_each(|word| value.extend_from_slice(&word.to_le_bytes()));
        value.truncate(block.bytes);
        Ok((value, is_recent || trusts))
    }

    /// Whether a block can be there. A leaf that another program wrote can contain anything.
    fn is_sensible(&self, block: BlockRef) -> bool {
        block.bytes <= MAX_BLOCK_BYTES
            && !block.at.is_null()
            && block.at.offset().is_multiple_of(8)
            && block.at.server().number() < self.fabric().memory_servers()
    }

    async fn read_words(&self, block: BlockRef) -> Result<Vec<u64>, MissCause> {
        let mut backoff = Backoff::default();
        let mut outcome = Err(FabricError::NoBuffer { bytes: block.bytes });
        for _ in 0..READ_RETRIES {
            outcome = self.try_read_words(block).await;
            match &outcome {
                Err(
                    FabricError::Indeterminate { .. }
                    | FabricError::QueueFull { .. }
                    | FabricError::NoBuffer { .. },
                ) => {
                    self.fabric().counters().count_retry();
                    backoff.count();
                    backoff.wait(self.fabric()).await;
                }
                _ => break,
            }
        }
        Ok(outcome?)
    }

    async fn try_read_words(&self, block: BlockRef) -> Result<Vec<u64>, FabricError> {
        let mut words = Vec::with_capacity(block.words());
        let mut in_flight: VecDeque<F::Op<Buffer>> = VecDeque::new();
        let mut left = pieces(block.words()).peekable();
        let mut waits = 0;
        while !in_flight.is_empty() || left.peek().is_some() {
            while in_flight.len() < PIECES_PER_BATCH
                && let Some(piece) = left.peek()
                && let Ok(buffer) = self.fabric().buffer(piece.len() * 8)
            {
                in_flight
                    .push_back(self.fabric().read(block.at.plus(piece.start as u64 * 8), buffer));
                left.next();
            }
            match in_flight.pop_front() {
                Some(operation) => {
                    let buffer = operation.await?;
                    words.extend((0..buffer.bytes() / 8).map(|index| buffer.get(index)));
                }
                None if waits == BUSY_WAITS => {
                    return Err(FabricError::NoBuffer { bytes: block.bytes });
                }
                None => {
                    waits += 1;
                    self.fabric().sleep(BUSY_WAIT_NS).await;
                }
            }
        }
        Ok(words)
    }

    /// Frees a block to which no leaf has referred.
    pub(super) fn give_back(&self, block: BlockRef) {
        self.space.give_back(BlockPlace::of(block));
    }

    /// Takes back a block whose reference an operation has removed from its leaf. Returns whether
    /// the leaves should be written back soon, so that lost blocks can be reused.
    pub(super) fn lose(&self, block: BlockRef) -> bool {
        if !self.is_sensible(block) {
            return false;
        }
        if self.fabric().breaks(rules::BLOCKS_REST) {
            self.give_back(block);
            return false;
        }
        let place = BlockPlace::of(block);
        !self.space.lose_of_former(place) && self.space.lose(place)
    }

    /// Takes over the chunks that former incarnations of this endpoint's compute server have left.
    /// They must be fenced, and everything that they left half done must be finished. Call it
    /// before anything of this life is written.
    ///
    /// # Errors
    /// [`RemoteError`] if a memory server does not answer.
    pub async fn adopt(&self) -> Result<(), RemoteError> {
        let mut chunks = Vec::new();
        for server in self.chunks.rpc().servers() {
            let ask = |from| PoolRequest::ListChunks { from }.into();
            chunks.extend(self.chunks.listed(server, ask).await?);
        }
        self.space.adopt(chunks);
        Ok(())
    }

    /// Tells the memory servers that leaves of other compute servers may refer to blocks of this
    /// one from now on, so no later life can tell which of the blocks that it has cut so far are
    /// free (blocks.X12). That cannot be taken back if the leaves stay here after all. Call it when
    /// no operation can store another reference that leaves.
    ///
    /// # Errors
    /// [`RemoteError`] if a memory server does not answer.
    pub async fn share_chunks(&self) -> Result<(), RemoteError> {
        if self.fabric().breaks(rules::CHUNKS_SHARED) {
            return Ok(());
        }
        for server in self.chunks.rpc().servers() {
            self.chunks.rpc().expect_done_idempotent(server, &PoolRequest::ForgetChunks).await?;
        }
        Ok(())
    }

    /// Stops looking for free blocks of former incarnations, because leaves with references to them
    /// are about to leave the range. A scan of the rest of the range would miss these references,
    /// and the leaves may come back. So this precedes the release, and the search of this life ends
    /// even if the leaves stay. The next incarnation searches these chunks again, unless the memory
    /// servers have been told meanwhile that they are shared ([`BlockClient::share_chunks`]).
    pub(super) fn give_up_former(&self) {
        self.space.give_up_former();
    }

    /// Begins an edit that may take references out of leaves.
    #[inline]
    pub(super) fn edit(&self) -> Option<BlockEditInFlight<'_>> {
        self.space.edit()
    }

    /// What is to be done about chunks of former incarnations; `None` if there are none.
    pub(super) fn former_step(&self) -> Option<FormerStep> {
        self.space.former_step()
    }

    /// Notes blocks that leaves refer to. The scan goes on at `next`, or has ended.
    pub(super) fn note(
        &self,
        blocks: impl Iterator<Item = BlockRef>,
        next: Option<Bound<Vec<u8>>>,
    ) {
        let forgotten = usize::from(self.fabric().breaks(rules::REFERENCES_NOTED));
        let blocks = blocks.filter(|block| self.is_sensible(*block));
        self.space.note(blocks.skip(forgotten), next);
    }

    /// Ends a round of looking for free blocks if no edit from before is under way any more.
    pub(super) fn end_round_if_drained(&self) {
        if self.space.is_drained() || self.fabric().breaks(rules::EDITS_DRAINED) {
            self.space.end_round();
        }
    }

    /// Uses what a round has found, after the grace period that begins now: all leaves have just
    /// been written back. Larger pieces go back to the memory servers, for the next incarnation,
    /// which writes before it has found anything, and for others.
    pub(super) async fn use_found(&self) {
        self.fabric().sleep(GRACE_NS).await;
        let mut found = self.space.use_found(MIN_RETURNED_BYTES.min(self.chunk_bytes / 4));
        found.sort_unstable();
        for pieces in found.chunk_by(|(one, _), (other, _)| one.server() == other.server()) {
            let server = pieces[0].0.server();
            for pieces in pieces.chunks(LISTED_CHUNKS) {
                // Sent once: had it another effect later, the pieces could be in use by then. If it
                // has none, the next incarnation finds them.
                let request = PoolRequest::ReturnPieces { pieces: pieces.to_vec() };
                match self.chunks.rpc().ask(server, &request).await {
                    Ok(_) | Err(RemoteError::Indeterminate(_) | RemoteError::BadReply { .. }) => {}
                    // The server has not taken them. If it does not list their chunks any more, as
                    // after a move of keys, no later life would find them.
                    Err(_) => self.space.keep(pieces),
                }
            }
        }
    }

    /// The blocks that leaves have lost so far.
    pub(super) fn lost(&self) -> LostBlocks<'_> {
        self.space.lost()
    }

    /// Records that the leaves that lost these blocks are in the pool.
    pub(super) fn rest(&self, lost: LostBlocks<'_>) {
        lost.rest(self.now_ns() + GRACE_NS);
    }

    /// Waits for what other tasks may free, or for resting blocks, after an operation has found no
    /// memory since [`BlockClient::frees`] returned `seen`. Returns what it has waited for; lost
    /// blocks are left to the caller.
    pub(super) async fn wait_for_memory(&self, seen: u64) -> AwaitedBlocks {
        let coming = self.space.coming(seen);
        match coming {
            AwaitedBlocks::FromOthers => self.fabric().sleep(OTHERS_WAIT_NS).await,
            AwaitedBlocks::At(due_ns) => {
                self.fabric().sleep(due_ns.saturating_sub(self.now_ns())).await;
            }
            AwaitedBlocks::Free | AwaitedBlocks::Lost | AwaitedBlocks::Never => {}
        }
        coming
    }

    /// How often memory has become free so far. Ask this before a write.
    pub(super) fn frees(&self) -> u64 {
        self.space.frees()
    }

    /// Counts a restart at the leaf, and waits before it.
    ///
    /// # Errors
    /// [`RemoteError::Contended`] if there were too many.
    pub(super) async fn restart(&self, backoff: &mut Backoff) -> Result<(), RemoteError> {
        self.fabric().counters().count_retry();
        if !backoff.count() {
            return Err(RemoteError::Contended { retries: backoff.attempts() });
        }
        backoff.wait(self.fabric()).await;
        Ok(())
    }

    /// The endpoint's time.
    pub(super) fn now_ns(&self) -> u64 {
        self.fabric().now_ns()
    }
}
