//! The space for value blocks that the handles of one process share: chunks from the memory
//! servers, cut into blocks of a few sizes, and lost blocks that will become free again.
//!
//! ```text
//! free ──▶ in use ──▶ lost by a leaf ──▶ resting ──▶ free
//!   ▲        │            the leaf is      for a grace
//!   └────────┘            in the pool      period
//!    no leaf ever
//!    referred to it
//! ```
//!
//! *Invariants*
//! - blocks.X4. A block that a leaf referred to is reused only after the leaf without the reference
//!   is in the pool, and after a further grace period. So a crash does not bring the reference
//!   back, and a reader that still has it does not find a different value.
//! - blocks.X6. From 64 bytes on, there are eight sizes from each power of two to the next. A block
//!   is in at most one list. A larger free block is cut before another chunk is taken.
//!   Neighbours become one before memory is refused: free blocks of the wrong size refuse nothing.
//! - blocks.X8. Blocks whose WRITE may still land are never reused, nor are those that a leaf may
//!   refer to after an operation of unknown outcome.
//! - blocks.X13. Memory is refused only if nothing that is under way can free any: no leaf has lost
//!   a block, none rests, no task writes leaves back for lost ones, and no other operation has a
//!   block in hand whose edit may take out an older one ([`BlockSpace::coming`]).
//!
//! The metadata exists only in this process. When it ends, the next incarnation of its compute
//! server looks for the free blocks in its chunks (`former.rs`), except for those that others
//! share.
//!
//! *Thread safety*: any number of threads; a mutex that is never held across a wait.

use super::former::{FormerChunks, FormerStep, UnreferencedMemory, chunk_of};
use farleaf_fabric::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_page::{BlockRef, MAX_BLOCK_BYTES, NodeCarver};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// The smallest block, in bytes.
const MIN_BYTES: usize = 64;
/// After a failed write-back, this fraction of `most_lost` further blocks must be lost before it is
/// tried again.
const RETRY_PART: usize = 8;
/// Bytes of lost blocks that make a write-back due, however few the blocks are.
const MAX_LOST_BYTES: u64 = 64 << 20;
/// Number of sizes from each power of two to the next.
const STEPS: usize = 8;

/// A size of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SizeClass(u8);

impl SizeClass {
    const COUNT: usize = Self::of(MAX_BLOCK_BYTES).0 as usize + 1;

    /// The smallest class whose blocks hold `bytes` bytes, at most [`MAX_BLOCK_BYTES`].
    pub(super) const fn of(bytes: usize) -> Self {
        if bytes <= MIN_BYTES {
            return Self(0);
        }
        let power = (bytes - 1).ilog2();
        let step = (1 << power) / STEPS;
        let steps = (bytes - (1 << power)).div_ceil(step);
        Self(((power - MIN_BYTES.ilog2()) as usize * STEPS + steps) as u8)
    }

    /// The size of the class's blocks.
    pub(super) const fn bytes(self) -> u64 {
        let class = self.0 as usize;
        let base = MIN_BYTES << (class / STEPS);
        (base + class % STEPS * (base / STEPS)) as u64
    }

    /// The largest class whose blocks fit in `bytes` bytes; `None` if there is none.
    fn within(bytes: u64) -> Option<Self> {
        let fits = |class: &Self| class.bytes() <= bytes;
        (0..Self::COUNT as u8).rev().map(Self).find(fits)
    }
}

/// A block's address and size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockPlace {
    at: GlobalAddr,
    class: SizeClass,
}

impl BlockPlace {
    /// The place of a block.
    pub(super) fn of(block: BlockRef) -> Self {
        Self { at: block.at, class: SizeClass::of(block.bytes) }
    }

    /// Its address.
    pub(super) fn at(self) -> GlobalAddr {
        self.at
    }
}

/// What an operation that has found no memory can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedBlocks {
    /// Memory has become free since.
    Free,
    /// Another task writes leaves back that have lost blocks, or another operation has a new block
    /// in hand, and its edit may take out an older one.
    FromOthers,
    /// Resting blocks, which can be used from this time on.
    At(u64),
    /// Blocks that leaves have lost, once these leaves are written back.
    Lost,
    /// Nothing.
    Never,
}

/// A new block whose operation has not ended. Drop it once the block's fate is decided.
#[derive(Debug)]
pub(super) struct UnendedBlock(Arc<BlockSpace>);

impl Drop for UnendedBlock {
    fn drop(&mut self) {
        lock(&self.0.inner).in_hand -= 1;
    }
}

/// How the space is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockUsage {
    /// Bytes of chunks.
    pub chunk_bytes: u64,
    /// Blocks that are neither free nor waiting to become free.
    pub blocks_in_use: u64,
    /// Size of these blocks, rounded up to their size classes.
    pub bytes_in_use: u64,
    /// Blocks that leaves have lost and that cannot be reused yet.
    pub blocks_waiting: u64,
}

/// The space of one process.
#[derive(Debug)]
pub struct BlockSpace {
    inner: Mutex<BlockSpaceInner>,
    /// After this many lost blocks, leaves should be written back.
    most_lost: usize,
    /// Whether there are chunks of former incarnations. It becomes true before the first edit only.
    has_former: AtomicBool,
    /// Number of search rounds whose scan has ended. Its parity selects the counter in `edits`.
    phase: AtomicU64,
    /// Edits under way that began in an even phase, and in an odd one.
    edits: [AtomicU64; 2],
}

/// An edit that may take references out of leaves. Dropping it ends the edit.
#[derive(Debug)]
pub(super) struct BlockEditInFlight<'a>(&'a AtomicU64);

impl Drop for BlockEditInFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Debug, Default)]
struct BlockSpaceInner {
    former: Option<FormerChunks>,
    servers: Vec<OnServer>,
    /// Lost by leaves that may not have been written to the pool yet.
    lost: Vec<BlockPlace>,
    lost_bytes: u64,
    /// The leaves are not worth writing back before there are this many lost blocks, or bytes of
    /// them: it failed with some fewer.
    not_before: (usize, u64),
    /// Resting blocks, in the order of the times from which they can be used.
    resting: VecDeque<(u64, BlockPlace)>,
    /// Tasks that write leaves back for lost blocks.
    writing_back: usize,
    /// Blocks of operations that have not ended.
    in_hand: u64,
    /// How often memory has become free.
    frees: u64,
    /// Sizes of the chunks, by address.
    chunks: BTreeMap<GlobalAddr, u64>,
    next_server: u16,
    usage: BlockUsage,
}

#[derive(Debug)]
struct OnServer {
    /// The part of the current chunk that has not been cut into blocks yet.
    next: GlobalAddr,
    left: u64,
    /// Extra chunks, from handles that requested chunks at the same time.
    spare: Vec<(GlobalAddr, u64)>,
    free: Vec<Vec<GlobalAddr>>,
    /// Whether memory has become free since neighbours were last made one.
    has_freed: bool,
}

impl Default for OnServer {
    fn default() -> Self {
        Self {
            next: GlobalAddr::NULL,
            left: 0,
            spare: Vec::new(),
            free: vec![Vec::new(); SizeClass::COUNT],
            has_freed: false,
        }
    }
}

impl OnServer {
    fn take(&mut self, class: SizeClass) -> Option<GlobalAddr> {
        if let Some(at) = self.free[usize::from(class.0)].pop() {
            return Some(at);
        }
        if self.left < class.bytes()
            && let Some((at, bytes)) = self.spare.pop()
        {
            self.cut(self.next, self.left);
            (self.next, self.left) = (at, bytes);
        }
        if let Some(left) = self.left.checked_sub(class.bytes()) {
            let at = self.next;
            (self.next, self.left) = (at.plus(class.bytes()), left);
            return Some(at);
        }
        let mut larger = (class.0 + 1..SizeClass::COUNT as u8).map(SizeClass);
        let larger = larger.find(|larger| !self.free[usize::from(larger.0)].is_empty())?;
        let at = self.free[usize::from(larger.0)].pop()?;
        self.cut(at.plus(class.bytes()), larger.bytes() - class.bytes());
        Some(at)
    }

    /// Joins adjacent free memory within each chunk. Chunks of other processes are not known, so
    /// their blocks stay as they are: the next incarnation of such a process expects no block
    /// across the end of a chunk (`former.rs`).
    fn merge(&mut self, chunks: &BTreeMap<GlobalAddr, u64>) {
        self.has_freed = false;
        let mut pieces = vec![(self.next, std::mem::take(&mut self.left))];
        pieces.append(&mut self.spare);
        for (class, free) in self.free.iter_mut().enumerate() {
            let bytes = SizeClass(class as u8).bytes();
            pieces.extend(free.drain(..).map(|at| (at, bytes)));
        }
        pieces.retain(|(_, bytes)| *bytes > 0);
        pieces.sort_unstable();
        let touches = |(at, bytes): (GlobalAddr, u64), next: GlobalAddr| {
            at.plus(bytes) == next
                && chunk_of(chunks, at).is_some_and(|(start, size)| next < start.plus(size))
        };
        let mut merged: Option<(GlobalAddr, u64)> = None;
        for (at, bytes) in pieces {
            merged = match merged {
                Some(before) if touches(before, at) => Some((before.0, before.1 + bytes)),
                before => {
                    before.into_iter().for_each(|(at, bytes)| self.cut(at, bytes));
                    Some((at, bytes))
                }
            };
        }
        merged.into_iter().for_each(|(at, bytes)| self.cut(at, bytes));
    }

    /// Cuts a piece of memory into free blocks.
    fn cut(&mut self, mut at: GlobalAddr, mut bytes: u64) {
        while let Some(class) = SizeClass::within(bytes) {
            self.free[usize::from(class.0)].push(at);
            (at, bytes) = (at.plus(class.bytes()), bytes - class.bytes());
        }
    }
}

impl BlockSpace {
    /// Creates a space without chunks. After leaves have lost `most_lost` blocks, they should be
    /// written back.
    pub fn new(most_lost: usize) -> Self {
        Self {
            inner: Mutex::default(),
            most_lost: most_lost.max(1),
            has_former: AtomicBool::new(false),
            phase: AtomicU64::new(0),
            edits: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// How much block memory is in use.
    pub fn usage(&self) -> BlockUsage {
        let inner = lock(&self.inner);
        let blocks_waiting = (inner.lost.len() + inner.resting.len()) as u64;
        BlockUsage { blocks_waiting, ..inner.usage }
    }

    /// All of the first `servers` servers, starting at the next one in turn.
    pub(super) fn servers(&self, servers: u16) -> impl Iterator<Item = ServerId> + use<> {
        let mut inner = lock(&self.inner);
        let first = inner.next_server % servers.max(1);
        inner.next_server = first + 1;
        (first..servers).chain(0..first).map(ServerId::new)
    }

    /// Takes a block on `server`; `None` if another chunk is needed.
    pub(super) fn take(
        &self,
        server: ServerId,
        class: SizeClass,
        now_ns: u64,
    ) -> Option<BlockPlace> {
        let mut inner = lock(&self.inner);
        while let Some(&(due_ns, place)) = inner.resting.front()
            && due_ns <= now_ns
        {
            inner.resting.pop_front();
            inner.free(place);
        }
        let at = inner.on(server).take(class)?;
        inner.usage.blocks_in_use += 1;
        inner.usage.bytes_in_use += class.bytes();
        Some(BlockPlace { at, class })
    }

    /// As [`BlockSpace::take`], for an operation that will end.
    pub(super) fn take_in_hand(
        space: &Arc<Self>,
        server: ServerId,
        class: SizeClass,
        now_ns: u64,
    ) -> Option<(BlockPlace, UnendedBlock)> {
        // Count it before taking it, so that no other task concludes that no memory can become
        // free.
        lock(&space.inner).in_hand += 1;
        let in_hand = UnendedBlock(Arc::clone(space));
        space.take(server, class, now_ns).map(|place| (place, in_hand))
    }

    /// Joins neighbouring free blocks on `server`. Returns whether memory has become free there
    /// since the last time, so that it is worth another look.
    pub(super) fn merge(&self, server: ServerId) -> bool {
        let inner = &mut *lock(&self.inner);
        let on = on(&mut inner.servers, server);
        if on.has_freed {
            on.merge(&inner.chunks);
            return true;
        }
        false
    }

    /// How often memory has become free so far. Ask this before looking for memory.
    pub(super) fn frees(&self) -> u64 {
        lock(&self.inner).frees
    }

    /// What memory can come from, after none was found since [`BlockSpace::frees`] returned `seen`
    /// (blocks.X13).
    pub(super) fn coming(&self, seen: u64) -> AwaitedBlocks {
        let inner = lock(&self.inner);
        let first_rested = inner.resting.front().map(|(due_ns, _)| *due_ns);
        match first_rested {
            _ if inner.frees != seen => AwaitedBlocks::Free,
            // One task at a time writes leaves back, for all blocks that are lost by then.
            _ if inner.writing_back > 0 => AwaitedBlocks::FromOthers,
            Some(due_ns) => AwaitedBlocks::At(due_ns),
            None if !inner.lost.is_empty() => AwaitedBlocks::Lost,
            None if inner.in_hand > 0 => AwaitedBlocks::FromOthers,
            None => AwaitedBlocks::Never,
        }
    }

    /// Adds a chunk of `bytes` bytes.
    pub(super) fn add_chunk(&self, at: GlobalAddr, bytes: u64) {
        let mut inner = lock(&self.inner);
        inner.usage.chunk_bytes += bytes;
        inner.frees += 1;
        inner.chunks.insert(at, bytes);
        inner.on(at.server()).spare.push((at, bytes));
    }

    /// Frees a block to which no leaf has ever referred and whose WRITE can no longer land.
    pub(super) fn give_back(&self, place: BlockPlace) {
        let mut inner = lock(&self.inner);
        inner.count_out(place);
        inner.free(place);
    }

    /// Takes back a block whose reference a leaf has lost. Returns whether so many are waiting that
    /// the leaves should be written back, and [`BlockSpace::lost`] be called. If that fails, it is
    /// due again only after some more.
    pub(super) fn lose(&self, place: BlockPlace) -> bool {
        let mut inner = lock(&self.inner);
        inner.count_out(place);
        inner.lost.push(place);
        inner.lost_bytes += place.class.bytes();
        let (blocks, bytes) = inner.not_before;
        inner.lost.len() >= self.most_lost.max(blocks)
            || inner.lost_bytes >= MAX_LOST_BYTES.max(bytes)
    }

    /// Takes out the blocks that leaves have lost so far. Once these leaves are in the pool, call
    /// [`LostBlocks::rest`].
    pub(super) fn lost(&self) -> LostBlocks<'_> {
        let mut inner = lock(&self.inner);
        inner.lost_bytes = 0;
        inner.writing_back += usize::from(!inner.lost.is_empty());
        LostBlocks { places: std::mem::take(&mut inner.lost), space: self }
    }

    /// Takes over chunks of former incarnations of this compute server. Call it before the first
    /// edit.
    pub(super) fn adopt(&self, chunks: Vec<(GlobalAddr, u64)>) {
        if chunks.is_empty() {
            return;
        }
        let mut inner = lock(&self.inner);
        inner.usage.chunk_bytes += chunks.iter().map(|(_, bytes)| bytes).sum::<u64>();
        inner.former = Some(FormerChunks::new(chunks));
        self.has_former.store(true, Ordering::SeqCst);
    }

    /// Begins an edit that may take references out of leaves. Nothing needs to be counted if there
    /// are no chunks of former incarnations.
    #[inline]
    pub(super) fn edit(&self) -> Option<BlockEditInFlight<'_>> {
        if !self.has_former.load(Ordering::Relaxed) {
            return None;
        }
        loop {
            let phase = self.phase.load(Ordering::SeqCst);
            let edits = &self.edits[(phase % 2) as usize];
            edits.fetch_add(1, Ordering::SeqCst);
            let begun = BlockEditInFlight(edits);
            // Otherwise, the end of the scan may have missed it.
            if self.phase.load(Ordering::SeqCst) == phase {
                return Some(begun);
            }
        }
    }

    /// Notes that a leaf has lost a block. Returns whether the search for free blocks in its chunk
    /// takes care of it, so that nothing else is to be done (blocks.X11).
    pub(super) fn lose_of_former(&self, place: BlockPlace) -> bool {
        self.has_former.load(Ordering::Relaxed)
            && lock(&self.inner).former.as_mut().is_some_and(|former| former.lose(place.at))
    }

    /// What is to be done about chunks of former incarnations; `None` if there are none.
    pub(super) fn former_step(&self) -> Option<FormerStep> {
        lock(&self.inner).former.as_ref().map(|former| former.step().clone())
    }

    /// Notes blocks of former incarnations that leaves refer to. The scan goes on at `next`, or has
    /// ended.
    pub(super) fn note(
        &self,
        blocks: impl Iterator<Item = BlockRef>,
        next: Option<Bound<Vec<u8>>>,
    ) {
        let mut inner = lock(&self.inner);
        let Some(former) = &mut inner.former else { return };
        for place in blocks.map(BlockPlace::of) {
            former.note(place.at, place.class.bytes());
        }
        if next.is_none() {
            self.phase.fetch_add(1, Ordering::SeqCst);
        }
        former.scan_on(next);
    }

    /// Whether all edits that began before the end of the round's scan have ended (blocks.X11).
    pub(super) fn is_drained(&self) -> bool {
        let former_phase = self.phase.load(Ordering::SeqCst).wrapping_sub(1);
        self.edits[(former_phase % 2) as usize].load(Ordering::SeqCst) == 0
    }

    /// Ends the round. Call it once the round [is drained](Self::is_drained).
    pub(super) fn end_round(&self) {
        let mut inner = lock(&self.inner);
        if let Some(former) = &mut inner.former {
            let (blocks, bytes) = former.end_round();
            inner.usage.blocks_in_use += blocks;
            inner.usage.bytes_in_use += bytes;
        }
    }

    /// Uses what a round has found: all leaves have been written back since its end, and a grace
    /// period has passed. Returns the pieces of `least` bytes and more, and whole chunks, which are
    /// not used here: a small chunk becomes a part of larger ones again only at its memory server.
    pub(super) fn use_found(&self, least: u64) -> Vec<(GlobalAddr, u64)> {
        let mut inner = lock(&self.inner);
        let mut returned = Vec::new();
        let Some((found, is_next)) = inner.former.as_mut().map(FormerChunks::take_free) else {
            return returned;
        };
        for UnreferencedMemory { at, bytes, is_chunk } in found {
            let align = NodeCarver::NODE_ALIGN;
            let end = at.offset() + bytes;
            let (from, to) = (at.offset().next_multiple_of(align), end - end % align);
            let least = if is_chunk { 1 } else { least.max(1) };
            if to.saturating_sub(from) < least {
                inner.cut(at, bytes);
                continue;
            }
            let whole = at.plus(from - at.offset());
            inner.cut(at, from - at.offset());
            inner.cut(whole.plus(to - from), end - to);
            inner.usage.chunk_bytes = inner.usage.chunk_bytes.saturating_sub(to - from);
            returned.push((whole, to - from));
        }
        if !is_next {
            inner.former = None;
            self.has_former.store(false, Ordering::Relaxed);
        }
        returned
    }

    /// Uses pieces of [`BlockSpace::use_found`] here after all.
    pub(super) fn keep(&self, pieces: &[(GlobalAddr, u64)]) {
        let mut inner = lock(&self.inner);
        for (at, bytes) in pieces {
            inner.usage.chunk_bytes += bytes;
            inner.cut(*at, *bytes);
        }
    }

    /// Ends the search, because keys are about to leave the compute server with references to
    /// blocks of its former incarnations.
    pub(super) fn give_up_former(&self) {
        let mut inner = lock(&self.inner);
        if inner.former.as_mut().is_some_and(|former| !former.give_up()) {
            inner.former = None;
            self.has_former.store(false, Ordering::Relaxed);
        }
    }
}

fn on(servers: &mut Vec<OnServer>, server: ServerId) -> &mut OnServer {
    if servers.len() <= server.index() {
        servers.resize_with(server.index() + 1, OnServer::default);
    }
    &mut servers[server.index()]
}

impl BlockSpaceInner {
    fn on(&mut self, server: ServerId) -> &mut OnServer {
        on(&mut self.servers, server)
    }

    fn free(&mut self, place: BlockPlace) {
        self.frees += 1;
        let on = self.on(place.at.server());
        on.has_freed = true;
        on.free[usize::from(place.class.0)].push(place.at);
    }

    /// Cuts a piece of memory into free blocks.
    fn cut(&mut self, at: GlobalAddr, bytes: u64) {
        self.frees += 1;
        self.on(at.server()).cut(at, bytes);
    }

    fn count_out(&mut self, place: BlockPlace) {
        // Another process's block can be lost here, so the counts are not exact.
        self.usage.blocks_in_use = self.usage.blocks_in_use.saturating_sub(1);
        self.usage.bytes_in_use = self.usage.bytes_in_use.saturating_sub(place.class.bytes());
    }
}

/// Blocks that leaves have lost. If this is dropped before they rest, they count as lost again.
#[derive(Debug)]
pub(super) struct LostBlocks<'a> {
    space: &'a BlockSpace,
    places: Vec<BlockPlace>,
}

impl LostBlocks<'_> {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The leaves are in the pool: the blocks can be reused from `due_ns` on.
    pub(super) fn rest(mut self, due_ns: u64) {
        let places = std::mem::take(&mut self.places);
        let mut inner = lock(&self.space.inner);
        inner.writing_back -= usize::from(!places.is_empty());
        inner.not_before = (0, 0);
        inner.resting.extend(places.into_iter().map(|place| (due_ns, place)));
    }
}

impl Drop for LostBlocks<'_> {
    fn drop(&mut self) {
        if !self.places.is_empty() {
            let mut inner = lock(&self.space.inner);
            inner.lost_bytes += self.places.iter().map(|place| place.class.bytes()).sum::<u64>();
            inner.lost.append(&mut self.places);
            inner.writing_back -= 1;
            inner.not_before = (
                inner.lost.len() + self.space.most_lost.div_ceil(RETRY_PART),
                inner.lost_bytes + MAX_LOST_BYTES / RETRY_PART as u64,
            );
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_page::block_words;

    #[test]
    fn sizes_hold_what_they_must_and_waste_an_eighth_at_most() {
        for bytes in (0..5000).chain([MAX_BLOCK_BYTES - 1, MAX_BLOCK_BYTES]) {
            let size = SizeClass::of(bytes).bytes() as usize;
            assert!(size >= bytes && size.is_multiple_of(8), "{bytes}: {size}");
            assert!(bytes <= MIN_BYTES || size - bytes < bytes / 8 + 1, "{bytes}: {size}");
            assert_eq!(SizeClass::of(size), SizeClass::of(bytes));
            assert_eq!(SizeClass::within(size as u64), Some(SizeClass::of(bytes)));
        }
        assert_eq!(SizeClass::of(400).bytes(), 416);
        assert_eq!(SizeClass::of(MAX_BLOCK_BYTES).bytes(), 1 << 20);
        assert_eq!(SizeClass::within(63), None);
    }

    #[test]
    fn blocks_never_overlap_and_all_of_a_chunk_is_used() {
        let (space, server) = (BlockSpace::new(4), ServerId::new(1));
        let chunk = |number: u64| GlobalAddr::new(server, 1024 + number * 8192);
        space.add_chunk(chunk(0), 8192);
        space.add_chunk(chunk(1), 8192);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for bytes in [5000, 100, 3000, 64, 64, 700, 1500].into_iter().cycle() {
            let class = SizeClass::of(bytes);
            let Some(place) = space.take(server, class, 0) else { break };
            taken.push((place.at.offset(), class.bytes()));
        }
        while let Some(place) = space.take(server, SizeClass::of(1), 0) {
            taken.push((place.at.offset(), MIN_BYTES as u64));
        }
        taken.sort_unstable();
        assert!(taken.len() > 20, "{}", taken.len());
        assert!(taken.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(
            taken
                .iter()
                .all(|(at, bytes)| (1024..1024 + 16384).contains(at) && bytes + at <= 17408)
        );
        assert_eq!(space.usage().blocks_in_use, taken.len() as u64);
    }

    /// While a memory server does not answer, not every loss writes all leaves back in vain.
    #[test]
    fn leaves_that_could_not_be_written_are_tried_again_after_a_part_of_the_losses() {
        let (space, server) = (BlockSpace::new(80), ServerId::new(0));
        space.add_chunk(GlobalAddr::new(server, 1024), 1 << 20);
        let lose = || space.lose(space.take(server, SizeClass::of(64), 0).unwrap());
        let due_of = |losses: usize| (1..=losses).filter(|_| lose()).count();
        assert_eq!(due_of(79), 0);
        for _ in 0..5 {
            assert!(lose());
            drop(space.lost());
            assert_eq!(due_of(9), 0, "too few since the failure");
        }
        assert!(lose());
        space.lost().rest(100);
        assert_eq!(space.usage().blocks_waiting, 80 + 5 * 10);
        assert_eq!(due_of(79), 0, "as at the beginning");
        assert!(lose());
    }

    #[test]
    fn a_few_large_blocks_are_enough_for_writing_leaves_back() {
        let (space, server) = (BlockSpace::new(1_000_000), ServerId::new(0));
        space.add_chunk(GlobalAddr::new(server, 1024), 1 << 30);
        let lose = || space.lose(space.take(server, SizeClass::of(1 << 20), 0).unwrap());
        let losses = 1 + (0..100).take_while(|_| !lose()).count();
        assert_eq!(losses, 64);
        drop(space.lost());
        assert_eq!(1 + (0..100).take_while(|_| !lose()).count(), 8, "it failed with these");
        space.lost().rest(0);
        assert!(!lose(), "they are not lost any more");
    }

    #[test]
    fn what_is_found_is_returned_in_large_pieces_and_whole_chunks() {
        let (space, server) = (BlockSpace::new(1), ServerId::new(0));
        let at = |offset| GlobalAddr::new(server, offset);
        space.adopt(vec![(at(1024), 1024), (at(4096), 8192)]);
        let value = vec![0; 3000];
        let block = BlockRef::new(at(4096 + 4096), 3000, block_words(&value).into_iter());
        space.note([block].into_iter(), None);
        assert!(space.is_drained());
        space.end_round();
        assert_eq!(space.usage().bytes_in_use, 3072);
        let returned = space.use_found(4096);
        assert_eq!(returned, [(at(1024), 1024), (at(4096), 4096)]);
        assert_eq!(space.usage().chunk_bytes, 4096);
        let take = |bytes| space.take(server, SizeClass::of(bytes), 0).map(BlockPlace::at);
        assert_eq!((take(1024), take(64)), (Some(at(4096 + 4096 + 3072)), None));
        space.keep(&returned);
        assert_eq!(space.usage().chunk_bytes, 9216);
        assert_eq!((take(4096), take(1024), take(64)), (Some(at(4096)), Some(at(1024)), None));
    }

    #[test]
    fn a_round_waits_for_edits_from_before_the_end_of_its_scan() {
        let (space, at) = (BlockSpace::new(1), GlobalAddr::new(ServerId::new(0), 1024));
        assert!(space.edit().is_none(), "there is nothing to look for");
        space.adopt(vec![(at, 1024)]);
        let value = vec![0; 64];
        let lost = BlockPlace::of(BlockRef::new(at, 64, block_words(&value).into_iter()));
        let before = space.edit();
        space.note([].into_iter(), None);
        let after = space.edit();
        assert!(before.is_some() && after.is_some());
        assert!(!space.is_drained(), "its leaf may have lost a block that it has not reported");
        assert!(space.lose_of_former(lost), "now it has: the block belongs to the round");
        drop(before);
        assert!(space.is_drained(), "a later edit takes out only what the scan has noted");
        space.end_round();
        assert!(!space.lose_of_former(lost));
        assert_eq!(space.use_found(1 << 20), [(at, 1024)], "all of the chunk was free");
    }

    #[test]
    fn memory_can_come_from_blocks_in_hand() {
        let (space, server) = (Arc::new(BlockSpace::new(2)), ServerId::new(0));
        space.add_chunk(GlobalAddr::new(server, 1024), 64);
        let class = SizeClass::of(64);
        let (place, in_hand) = BlockSpace::take_in_hand(&space, server, class, 0).unwrap();
        assert!(
            BlockSpace::take_in_hand(&space, server, class, 0).is_none(),
            "which counts as nothing"
        );
        let seen = space.frees();
        assert_eq!(space.coming(seen), AwaitedBlocks::FromOthers);
        space.give_back(place);
        drop(in_hand);
        assert_eq!(
            (space.coming(seen), space.coming(space.frees())),
            (AwaitedBlocks::Free, AwaitedBlocks::Never)
        );
    }

    /// A pool was full of free blocks of 4,096 bytes, and values of 5,000 were refused.
    #[test]
    fn free_neighbours_become_one_within_their_chunk() {
        let (space, server) = (BlockSpace::new(2), ServerId::new(0));
        space.add_chunk(GlobalAddr::new(server, 1024), 4096);
        space.add_chunk(GlobalAddr::new(server, 1024 + 4096), 1024);
        let take = |bytes| space.take(server, SizeClass::of(bytes), 0);
        let taken: Vec<BlockPlace> = std::iter::from_fn(|| take(256)).collect();
        assert_eq!(taken.len(), 20);
        assert!(!space.merge(server), "nothing is free");
        taken.into_iter().for_each(|place| space.give_back(place));
        assert_eq!(take(512), None);
        assert!(space.merge(server));
        assert_eq!(take(5120), None, "no block is in two chunks");
        assert_eq!(take(4096).map(BlockPlace::at), Some(GlobalAddr::new(server, 1024)));
        assert_eq!(take(1024).map(BlockPlace::at), Some(GlobalAddr::new(server, 1024 + 4096)));
        assert!(!space.merge(server));
    }

    #[test]
    fn a_lost_block_waits_for_its_leaf_and_for_readers() {
        let (space, server) = (BlockSpace::new(2), ServerId::new(0));
        space.add_chunk(GlobalAddr::new(server, 1024), 128);
        let class = SizeClass::of(64);
        let take = |now_ns| space.take(server, class, now_ns);
        let (one, two) = (take(0).unwrap(), take(0).unwrap());
        assert!(!space.lose(one));
        assert!(space.lose(two));
        assert_eq!(take(u64::MAX), None, "no leaf is written yet");
        assert_eq!(space.coming(space.frees()), AwaitedBlocks::Lost);
        let lost = space.lost();
        assert_eq!(
            space.coming(space.frees()),
            AwaitedBlocks::FromOthers,
            "they are being written"
        );
        drop(lost);
        assert_eq!(take(u64::MAX), None, "the leaves could not be written");
        assert_eq!(space.coming(space.frees()), AwaitedBlocks::Lost);
        space.lost().rest(100);
        assert_eq!((take(99), space.coming(space.frees())), (None, AwaitedBlocks::At(100)));
        assert_eq!(space.usage().blocks_waiting, 2);
        let again = [take(100).unwrap(), take(100).unwrap()];
        assert!(again.contains(&one) && again.contains(&two));
        space.give_back(one);
        assert_eq!(take(100), Some(one), "no leaf has referred to it");
    }
}
