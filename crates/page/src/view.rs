//! A view of a page: eight header words that all layouts share, then the layout's entries.
//!
//! *Invariants* (`docs/internals/page-format.md`)
//! - P1. Word 1 is the page's own address.
//! - P2. `count` is at most the layout's capacity in every validated read.
//!
//! *Thread safety*: a view is a borrow of atomics. Readers may see any mixture of words until they
//! validate. Callers of setters must hold the page exclusively.

use super::latch::Latch;
use super::layout::Layout;
use super::lock_word::LockWord;
use super::trend::InsertionTrend;
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{AtomicU64, Ordering};
use std::fmt;
use std::marker::PhantomData;

/// Number of words before a page's first entry.
pub const HEADER_WORDS: usize = 8;

/// Highest level of a tree. Even with two entries per node, this is enough for 2^64 keys.
pub const MAX_LEVEL: u8 = 63;

pub(super) const SELF_WORD: usize = 1;
pub(super) const LOW_WORD: usize = 2;
pub(super) const HIGH_WORD: usize = 3;
/// The checksum, or the use mark of a page in a cache's frame.
pub const MARK_WORD: usize = 7;
pub(crate) const META_WORD: usize = 4;
/// The right sibling's address. In designs without siblings, the stamp of a leaf; in a frame, the
/// cache's note.
pub const SIBLING_WORD: usize = 5;
pub(super) const DELETED_WORD: usize = 6;
/// The entry lock, in pages whose leaves are written entry by entry. These need no deleted bits.
pub const ENTRY_LOCK_WORD: usize = 6;

// Word 4: [format:8][flags:8][trend:16][count:16][level:16], from the high end down.
const LEVEL_BITS: u64 = 0xffff;
const COUNT_SHIFT: u32 = 16;
const TREND_SHIFT: u32 = 32;
const FLAGS_SHIFT: u32 = 48;
const FORMAT_SHIFT: u32 = 56;

/// The high fence is infinite: the page covers every key from its low fence on.
const HIGH_INFINITE: u64 = 1;
/// The page is no longer part of the tree.
const DEAD: u64 = 2;
/// The page is a head: it stands between two leaves, covers no key, and lists the leaves after it.
const HEAD: u64 = 4;

/// A borrowed page of layout `L`.
pub struct Page<'a, L> {
    words: &'a [AtomicU64],
    layout: PhantomData<L>,
}

impl<L> Clone for Page<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Page<'_, L> {}

impl<'a, L: Layout> Page<'a, L> {
    /// The page in `words`.
    ///
    /// # Panics
    /// If `words` does not have exactly the length of a page of `L`.
    #[inline]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        assert_eq!(words.len(), L::page_words(), "a page has the layout's number of words");
        Self { words, layout: PhantomData }
    }

    /// All words, header first.
    #[inline]
    pub fn words(self) -> &'a [AtomicU64] {
        self.words
    }

    /// The word at `index`.
    #[inline]
    pub(super) fn load(self, index: usize) -> u64 {
        self.words[index].load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn store(self, index: usize, value: u64) {
        self.words[index].store(value, Ordering::Relaxed);
    }

    /// The latch of the page.
    #[inline]
    pub fn latch(self) -> Latch<'a> {
        Latch::new(&self.words[0])
    }

    /// The page's own address (P1).
    pub fn address(self) -> GlobalAddr {
        GlobalAddr::from_bits(self.load(SELF_WORD))
    }

    /// The distance to the leaves, which are at level 0.
    #[inline]
    pub fn level(self) -> u8 {
        (self.load(META_WORD) & LEVEL_BITS) as u8
    }

    /// Number of entries, including deleted ones. Never more than the capacity, even while the page
    /// changes.
    #[inline]
    pub fn count(self) -> usize {
        ((self.load(META_WORD) >> COUNT_SHIFT) as u16 as usize).min(L::capacity())
    }

    /// Level and count from a single load, for the hot path.
    #[inline]
    pub fn level_and_count(self) -> (u8, usize) {
        let meta = self.load(META_WORD);
        ((meta & LEVEL_BITS) as u8, ((meta >> COUNT_SHIFT) as u16 as usize).min(L::capacity()))
    }

    fn flag(self, flag: u64) -> bool {
        self.load(META_WORD) >> FLAGS_SHIFT & flag != 0
    }

    /// Whether the page covers every key from its low fence on.
    #[inline]
    pub fn high_is_infinite(self) -> bool {
        self.flag(HIGH_INFINITE)
    }

    /// Whether the page was removed from the tree.
    #[inline]
    pub fn is_dead(self) -> bool {
        self.flag(DEAD)
    }

    /// Whether the page is a head, which is not a leaf but lists the leaves that follow.
    #[inline]
    pub fn is_head(self) -> bool {
        self.flag(HEAD)
    }

    /// Marks the page as a head.
    pub fn set_head(self) {
        self.set_flag(HEAD, true);
    }

    /// The format version that the page was written under.
    pub fn format(self) -> u8 {
        (self.load(META_WORD) >> FORMAT_SHIFT) as u8
    }

    /// The right sibling on the same level. Null at the right edge.
    #[inline]
    pub fn sibling(self) -> GlobalAddr {
        GlobalAddr::from_bits(self.load(SIBLING_WORD))
    }

    /// Sets the right sibling.
    pub fn set_sibling(self, sibling: GlobalAddr) {
        self.store(SIBLING_WORD, sibling.to_bits());
    }

    /// The entry lock of a leaf that is written entry by entry: unlocked if it is 0, otherwise held
    /// by the compute server that registered the owner's number.
    #[inline]
    pub fn entry_lock(self) -> LockWord {
        LockWord::from_bits(if L::BY_ENTRIES { self.load(ENTRY_LOCK_WORD) } else { 0 })
    }

    /// Unlocks the entries of a page that no other client can reach yet.
    pub fn clear_entry_lock(self) {
        if L::BY_ENTRIES {
            self.store(ENTRY_LOCK_WORD, 0);
        }
    }

    /// Removes an entry lock from the image of an inner page, which has no entries to lock. A
    /// client that took the page for a leaf may have released the lock since the image was copied,
    /// and then no client would ever release the copy of it.
    pub fn drop_needless_lock(self) {
        if self.level() > 0 {
            self.clear_entry_lock();
        }
    }

    /// The stamp of a leaf in the pool: [`Layout::leaf_sum`] of the leaf after its last complete
    /// WRITE. Only leaves without siblings have one.
    #[inline]
    pub fn stamp(self) -> u64 {
        self.load(SIBLING_WORD)
    }

    /// Sets the stamp to the leaf's current sum.
    pub fn set_stamp(self) {
        self.store(SIBLING_WORD, L::leaf_sum(self));
    }

    /// Whether the stamp matches the leaf. It does not if a WRITE of the leaf was torn.
    #[inline]
    #[must_use]
    pub fn stamp_fits(self) -> bool {
        self.stamp() == L::leaf_sum(self)
    }

    /// The note of a cache about a page in a frame. It uses word 5, because pages in frames have no
    /// siblings, and it never leaves the cache.
    #[inline]
    pub fn note(self) -> u64 {
        self.load(SIBLING_WORD)
    }

    /// Sets the cache's note about a page in a frame.
    #[inline]
    pub fn set_note(self, note: u64) {
        self.store(SIBLING_WORD, note);
    }

    /// Replaces the cache's note if it is `from`. Any thread may do so without the latch.
    #[inline]
    pub fn replace_note(self, from: u64, to: u64) -> bool {
        let note = &self.words[SIBLING_WORD];
        note.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether the page in its frame is marked as used. This is a hint for choosing victims.
    #[inline]
    pub fn is_marked(self) -> bool {
        self.load(MARK_WORD) != 0
    }

    /// Sets or clears the use mark of a page in a frame. Any thread may do so without the latch:
    /// word 7 of a page in a frame has no other use and never leaves the cache.
    #[inline]
    pub fn set_mark(self, used: bool) {
        self.store(MARK_WORD, used.into());
    }

    pub(super) fn set_count(self, count: usize) {
        debug_assert!(count <= L::capacity(), "P2");
        let meta = self.load(META_WORD) & !(0xffff << COUNT_SHIFT);
        self.store(META_WORD, meta | (count as u64) << COUNT_SHIFT);
    }

    /// Where entries were inserted last.
    pub(super) fn trend(self) -> InsertionTrend {
        InsertionTrend::from_bits((self.load(META_WORD) >> TREND_SHIFT) as u16)
    }

    fn set_trend(self, trend: InsertionTrend) {
        let meta = self.load(META_WORD) & !(0xffff << TREND_SHIFT);
        self.store(META_WORD, meta | u64::from(trend.to_bits()) << TREND_SHIFT);
    }

    /// Notes that an entry was inserted at a slot.
    pub(super) fn note_inserted(self, slot: usize) {
        self.set_trend(self.trend().after(slot));
    }

    /// Forgets where entries were inserted, because the slots have changed.
    pub(super) fn forget_trend(self) {
        self.set_trend(InsertionTrend::default());
    }

    fn set_flag(self, flag: u64, on: bool) {
        let meta = self.load(META_WORD) & !(flag << FLAGS_SHIFT);
        self.store(META_WORD, meta | if on { flag << FLAGS_SHIFT } else { 0 });
    }

    pub(super) fn set_high_infinite(self, infinite: bool) {
        self.set_flag(HIGH_INFINITE, infinite);
    }

    /// Marks the page as removed from the tree.
    pub fn set_dead(self) {
        self.set_flag(DEAD, true);
    }

    /// Writes the header of an empty page, except the latch: level, fences (`None` is infinite),
    /// own address, no sibling, nothing deleted.
    pub fn format_empty(self, address: GlobalAddr, level: u8, low: &L::Key, high: Option<&L::Key>) {
        self.store(SELF_WORD, address.to_bits());
        self.store(META_WORD, u64::from(level) | u64::from(L::FORMAT) << FORMAT_SHIFT);
        self.store(SIBLING_WORD, 0);
        self.store(DELETED_WORD, 0);
        self.store(7, 0);
        L::format_entries(self, low, high);
    }

    /// Copies all words of `from` except the latch and the page's own address.
    pub fn copy_content(self, from: Page<'_, L>) {
        for index in 2..L::page_words() {
            self.store(index, from.load(index));
        }
    }

    /// Copies all words of `from` except the latch.
    pub fn copy_all_but_latch(self, from: Page<'_, L>) {
        for index in 1..L::page_words() {
            self.store(index, from.load(index));
        }
    }

    /// Number of entries that are not deleted.
    pub fn live_count(self) -> usize {
        self.count() - self.deleted_count()
    }

    /// Number of entries that are marked as deleted and still take room.
    pub fn deleted_count(self) -> usize {
        L::deleted_count(self)
    }
}

impl<L: Layout> fmt::Debug for Page<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("address", &self.address())
            .field("level", &self.level())
            .field("count", &self.count())
            .field("sibling", &self.sibling())
            .finish_non_exhaustive()
    }
}
