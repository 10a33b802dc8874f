//! Private copies of pages, and pointers to pages.
//!
//! *Thread safety*: private to one task.

use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{Buffer, GlobalAddr};
use farleaf_page::Layout;
use farleaf_page::{LockWord, Page};
use std::marker::PhantomData;

/// An address, with the time at which the page containing it was requested. A freed node is not
/// reused until every pointer to it is too old to be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedPointer {
    /// The target.
    pub at: GlobalAddr,
    /// When the page that holds this address was requested, by this endpoint's clock, in
    /// nanoseconds.
    pub since_ns: u64,
}

impl TimedPointer {
    /// A pointer to an address whose meaning never changes, such as the root's. It never expires.
    pub fn fixed(at: GlobalAddr) -> Self {
        Self { at, since_ns: u64::MAX }
    }
}

/// A page as fetched by one READ. It is consistent and has the expected address, but may not be the
/// newest version.
#[derive(Debug)]
pub struct PageCopy<L> {
    pub(super) at: GlobalAddr,
    pub(super) buffer: Buffer,
    /// When the READ was posted.
    pub(super) read_ns: u64,
    pub(super) layout: PhantomData<L>,
}

impl<L: Layout> PageCopy<L> {
    /// Creates a copy from cached content: `buffer` holds the pool's page at the version in
    /// `buffer`'s word 0. Locking the copy shows whether that is still current.
    pub fn from_cached(at: GlobalAddr, buffer: Buffer, now_ns: u64) -> Self {
        Self { at, buffer, read_ns: now_ns, layout: PhantomData }
    }

    /// The page's address.
    pub fn at(&self) -> GlobalAddr {
        self.at
    }

    /// The page in this copy or image.
    #[inline]
    pub fn page(&self) -> Page<'_, L> {
        Page::new(self.buffer.words())
    }

    /// False if a WRITE of the whole page was interrupted. A leaf that is written entry by entry
    /// can nevertheless contain one torn entry, left by the holder of its entry lock, which may be
    /// dead.
    pub(super) fn is_complete(&self) -> bool {
        let by_entries = L::BY_ENTRIES && self.page().level() == 0 && !self.word().is_locked();
        by_entries || self.page().is_of_one_piece()
    }

    /// Word 0. If it is locked, this copy has the content before the holder's change.
    #[inline]
    pub fn word(&self) -> LockWord {
        self.page().lock_word()
    }

    /// An address found in this page, as a pointer of the copy's age.
    #[inline]
    pub fn pointer(&self, at: GlobalAddr) -> TimedPointer {
        TimedPointer { at, since_ns: self.read_ns }
    }

    /// A pointer to this page, for rereading it.
    pub fn itself(&self) -> TimedPointer {
        TimedPointer { at: self.at, since_ns: self.read_ns }
    }
}

/// A page under construction in private memory.
#[derive(Debug)]
pub struct PageImage<L> {
    words: Box<[AtomicU64]>,
    layout: PhantomData<L>,
}

impl<L: Layout> PageImage<L> {
    /// A page of zeros.
    pub fn empty() -> Self {
        let words = (0..L::page_words()).map(|_| AtomicU64::new(0)).collect();
        Self { words, layout: PhantomData }
    }

    /// Copies the words of `page`.
    pub fn of(page: Page<'_, L>) -> Self {
        let copy = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        Self { words: page.words().iter().map(copy).collect(), layout: PhantomData }
    }

    /// The page in this copy or image.
    #[inline]
    pub fn page(&self) -> Page<'_, L> {
        Page::new(&self.words)
    }

    /// The words of the copy.
    pub fn words(&self) -> &[AtomicU64] {
        &self.words
    }
}
