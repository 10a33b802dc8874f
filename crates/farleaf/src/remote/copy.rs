//! Private copies of pages, and the pointers that lead to pages.
//!
//! *Thread safety*: private to one task.

use crate::page::Layout;
use crate::page::{LockWord, Page};
use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{Buffer, GlobalAddr};
use std::marker::PhantomData;

/// An address, and when the page that it was found in was asked for. A freed node is not used again
/// before every pointer to it has grown too old to be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Where to.
    pub at: GlobalAddr,
    /// From when, by this endpoint's clock.
    pub since_ns: u64,
}

impl Pointer {
    /// An address that never changes its meaning: the root's.
    pub fn fixed(at: GlobalAddr) -> Self {
        Self { at, since_ns: u64::MAX }
    }
}

/// A page as one READ brought it: of one piece, at its own address, though perhaps not the newest.
#[derive(Debug)]
pub struct PageCopy<L> {
    pub(super) at: GlobalAddr,
    pub(super) buffer: Buffer,
    /// When the READ was posted.
    pub(super) read_ns: u64,
    pub(super) layout: PhantomData<L>,
}

impl<L: Layout> PageCopy<L> {
    /// A copy made from what a cache holds: `buffer` has the page as the pool had it at `buffer`'s word 0.
    /// Whether it still is so, the lock says.
    pub fn of_cached(at: GlobalAddr, buffer: Buffer, now_ns: u64) -> Self {
        Self { at, buffer, read_ns: now_ns, layout: PhantomData }
    }

    /// The page's address.
    pub fn at(&self) -> GlobalAddr {
        self.at
    }

    /// The page.
    #[inline]
    pub fn page(&self) -> Page<'_, L> {
        Page::new(self.buffer.words())
    }

    /// Word 0. It may say that somebody holds the lock: then this is the page before that one's change.
    #[inline]
    pub fn word(&self) -> LockWord {
        self.page().lock_word()
    }

    /// An address that this page holds, as a pointer.
    #[inline]
    pub fn pointer(&self, at: GlobalAddr) -> Pointer {
        Pointer { at, since_ns: self.read_ns }
    }

    /// The page itself, to be read again.
    pub fn itself(&self) -> Pointer {
        Pointer { at: self.at, since_ns: self.read_ns }
    }
}

/// A page under construction in private memory.
#[derive(Debug)]
pub struct Image<L> {
    words: Box<[AtomicU64]>,
    layout: PhantomData<L>,
}

impl<L: Layout> Image<L> {
    /// A page of zeros.
    pub fn empty() -> Self {
        let words = (0..L::PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        Self { words, layout: PhantomData }
    }

    /// The same words as `page` has.
    pub fn of(page: Page<'_, L>) -> Self {
        let copy = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        Self { words: page.words().iter().map(copy).collect(), layout: PhantomData }
    }

    /// The page.
    #[inline]
    pub fn page(&self) -> Page<'_, L> {
        Page::new(&self.words)
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.words
    }
}
