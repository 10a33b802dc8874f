//! The arena of page frames, registered with the fabric, and the out-of-line header of each frame.
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - C1. Word 0 of a frame is its latch, never the pool's word 0, and its version never decreases.
//!   So when a frame is reused for another page, a thread with a stale reference sees a changed
//!   version.
//! - C2. A frame is locked while it is free or while a page is being read into it.
//! - C3. A frame's state changes only under its latch. Whether a WRITE of the frame is in flight is
//!   a separate word: the thread that sets it does so under the latch, and clears it later with or
//!   without the latch.
//! - C27. A frame counts its changes, under its latch, and remembers the last one that is in the
//!   pool. Both numbers go on when the frame gets another page. So a thread that waits for a change
//!   to be written finishes, whatever the frame holds by then.
//!
//! *Thread safety*: any number of threads; words and headers are atomics.

use farleaf_fabric::sync::{Arc, AtomicBool, AtomicU8, AtomicU64, Ordering};
use farleaf_fabric::{Buffer, Region, RegionError, prefetch, table};
use farleaf_page::{Latch, Layout, Page};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// A frame's number in its arena.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(u32);

impl FrameId {
    /// The frame with this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number in the arena.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The number as an array index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for FrameId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {}", self.0)
    }
}

/// What a frame is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameState {
    /// The frame holds no page.
    Free = 0,
    /// The frame holds a page that its parent points to, or will point to again.
    Hot = 1,
    /// The frame holds a clean page that no parent points to, and is in the cooling structure.
    Cooling = 2,
    /// Like `Hot`, but never evicted: the root.
    Pinned = 3,
}

impl FrameState {
    fn of(bits: u8) -> Self {
        match bits {
            0 => Self::Free,
            1 => Self::Hot,
            2 => Self::Cooling,
            _ => Self::Pinned,
        }
    }
}

const NO_PARENT: u64 = u64::MAX;

/// The state of a frame, apart from its words.
#[derive(Debug)]
struct FrameHeader {
    /// A [`FrameState`].
    state: AtomicU8,
    /// Whether a WRITE of the frame's content is in flight. This is a separate word because other
    /// threads may change the state when the WRITE ends.
    writing: AtomicBool,
    /// The frame of the parent that points here. This is a hint and must be validated.
    parent: AtomicU64,
    /// For inner nodes: word 0 of the page in the pool, which a remote lock's CAS expects.
    remote_word: AtomicU64,
    /// `[changed:32][written:32]`: the number of the last change, and of the last one in the pool
    /// (C27).
    changes: AtomicU64,
}

/// The number of a change of a frame. Numbers wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameChange(u32);

/// All frames of one compute server.
pub struct FrameArena<L> {
    memory: Arc<Region>,
    headers: Box<[FrameHeader]>,
    /// Number of hot frames that name no parent (C18).
    detached: AtomicU64,
    layout: PhantomData<L>,
}

impl<L: Layout> FrameArena<L> {
    /// An arena of `frames` frames, all free and not yet locked. Their memory is committed as they
    /// are used.
    ///
    /// # Errors
    /// [`RegionError`] if the memory cannot be allocated.
    pub fn new(frames: u32) -> Result<Self, RegionError> {
        let bytes = (frames as usize * L::page_words() * 8).next_multiple_of(4096);
        let header = |_| FrameHeader {
            state: AtomicU8::new(FrameState::Free as u8),
            writing: AtomicBool::new(false),
            parent: AtomicU64::new(NO_PARENT),
            remote_word: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        };
        Ok(Self {
            memory: Arc::new(Region::new(bytes)?),
            headers: table(frames as usize, header),
            detached: AtomicU64::new(0),
            layout: PhantomData,
        })
    }

    /// Number of frames.
    pub fn frames(&self) -> u32 {
        self.headers.len() as u32
    }

    /// The page in a frame.
    #[inline]
    pub fn page(&self, frame: FrameId) -> Page<'_, L> {
        let first = frame.index() * L::page_words();
        Page::new(&self.memory.words()[first..first + L::page_words()])
    }

    /// The latch of a frame.
    #[inline]
    pub fn latch(&self, frame: FrameId) -> Latch<'_> {
        self.page(frame).latch()
    }

    /// Words of a frame as the target of a READ. The frame is lent to the fabric until the READ
    /// ends.
    pub fn buffer(&self, frame: FrameId, words: Range<usize>) -> Buffer {
        debug_assert!(words.start > 0 && words.end <= L::page_words(), "C1");
        let first = frame.index() * L::page_words() + words.start;
        Buffer::over(Arc::clone(&self.memory), first, words.len())
    }

    fn header(&self, frame: FrameId) -> &FrameHeader {
        &self.headers[frame.index()]
    }

    /// Prefetches a frame that is about to be evicted: its header, and all lines of its page, which
    /// the next READ will be copied to.
    #[inline]
    pub(super) fn prefetch(&self, frame: FrameId) {
        prefetch(self.header(frame));
        prefetch(self.page(frame).words());
    }

    /// Prefetches the header of a frame's page, with its latch.
    #[inline]
    pub(crate) fn prefetch_header(&self, frame: FrameId) {
        prefetch(&self.page(frame).words()[0]);
    }

    /// What the frame is used for. Trust this only under the frame's latch.
    #[inline]
    pub fn state(&self, frame: FrameId) -> FrameState {
        FrameState::of(self.header(frame).state.load(Ordering::Relaxed))
    }

    /// Sets the state, under the frame's latch (C3).
    pub fn set_state(&self, frame: FrameId, state: FrameState) {
        self.counting_detached(frame, |header| {
            header.state.store(state as u8, Ordering::Relaxed);
        });
    }

    /// Number of hot frames that name no parent (C18).
    pub fn detached(&self) -> u64 {
        self.detached.load(Ordering::Relaxed)
    }

    fn is_detached(&self, frame: FrameId) -> bool {
        self.state(frame) == FrameState::Hot && self.parent(frame).is_none()
    }

    fn counting_detached(&self, frame: FrameId, change: impl FnOnce(&FrameHeader)) {
        let was = self.is_detached(frame);
        change(self.header(frame));
        match (was, self.is_detached(frame)) {
            (false, true) => _ = self.detached.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.detached.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Whether a WRITE of the frame's content is in flight. If not, every word written before is in
    /// the pool.
    pub fn is_writing(&self, frame: FrameId) -> bool {
        self.header(frame).writing.load(Ordering::Acquire)
    }

    /// Marks the start (under the frame's latch) or the end of such a WRITE.
    pub fn set_writing(&self, frame: FrameId, writing: bool) {
        self.header(frame).writing.store(writing, Ordering::Release);
    }

    /// Counts a change of the frame, under its latch (C27).
    pub(super) fn count_change(&self, frame: FrameId) {
        self.header(frame).changes.fetch_add(1 << 32, Ordering::Release);
    }

    /// The last change of the frame. A thread that has seen a change of the page gets the number of
    /// that change or of a later one.
    pub fn last_change(&self, frame: FrameId) -> FrameChange {
        FrameChange((self.header(frame).changes.load(Ordering::Acquire) >> 32) as u32)
    }

    /// Whether a change of the frame is in the pool.
    pub fn is_written(&self, frame: FrameId, FrameChange(number): FrameChange) -> bool {
        let written = self.header(frame).changes.load(Ordering::Acquire) as u32;
        written.wrapping_sub(number) <= u32::MAX / 2
    }

    /// Records that all changes up to `change` are in the pool. Only the thread that has marked the
    /// frame as being written does this, or one that holds the latch of a frame not marked so.
    pub(super) fn set_written(&self, frame: FrameId, FrameChange(number): FrameChange) {
        let written = |changes: u64| Some(changes >> 32 << 32 | u64::from(number));
        let changes = &self.header(frame).changes;
        let _ = changes.fetch_update(Ordering::Release, Ordering::Relaxed, written);
    }

    /// The parent that points, or pointed, to the frame. This is a hint.
    pub fn parent(&self, frame: FrameId) -> Option<FrameId> {
        match self.header(frame).parent.load(Ordering::Relaxed) {
            NO_PARENT => None,
            number => Some(FrameId(number as u32)),
        }
    }

    /// Sets the parent hint. Call it under the latches of the old parent and of the new one.
    pub fn set_parent(&self, frame: FrameId, parent: Option<FrameId>) {
        let number = parent.map_or(NO_PARENT, |parent| u64::from(parent.0));
        self.counting_detached(frame, |header| header.parent.store(number, Ordering::Relaxed));
    }

    /// Word 0 of the inner node in the pool, as last seen by this cache.
    pub fn remote_word(&self, frame: FrameId) -> u64 {
        self.header(frame).remote_word.load(Ordering::Relaxed)
    }

    /// Sets [`Self::remote_word`], under the frame's latch.
    pub fn set_remote_word(&self, frame: FrameId, word: u64) {
        self.header(frame).remote_word.store(word, Ordering::Relaxed);
    }
}
