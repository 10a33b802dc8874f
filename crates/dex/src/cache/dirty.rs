//! The words of a page that are newer in its frame than in the pool: a range at the front and one
//! in the heap, kept in the page's note.
//!
//! ```text
//! note  [heap end:16][heap start:16][front end:16][front start:16]     0 is in the pool
//!       1: clean, but a WRITE of it is in flight, or it is written only after its parent (C24)
//! ```
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - C4. A word that differs from the pool's lies in the ranges, except for words 0, 5, 7 and, in
//!   an inner node, the child words of swizzled children.
//! - C28. While the note is 0, every change of the page is in the pool.
//!
//! *Thread safety*: the note changes only under the frame's latch, except from 1 to 0.

use farleaf_page::{Layout, Page, PageWords};

/// The note of a page whose last changes are on their way to the pool.
const IN_FLIGHT: u64 = 1;

/// The words that are newer in the frame than in the pool. Empty if the page is clean.
#[inline]
pub fn dirty_words<L: Layout>(page: Page<'_, L>) -> PageWords {
    match page.note() {
        IN_FLIGHT => PageWords::default(),
        bits => PageWords::from_bits(bits),
    }
}

/// Whether the pool's copy of the page is current, or will be once a WRITE in flight has ended.
#[inline]
pub fn is_clean<L: Layout>(page: Page<'_, L>) -> bool {
    page.note() <= IN_FLIGHT
}

/// Whether every change of the page is in the pool (C28). Trust this only if the page's version was
/// taken before, and is still valid.
#[inline]
pub(crate) fn is_in_pool<L: Layout>(page: Page<'_, L>) -> bool {
    page.note() == 0
}

/// Empties the ranges of a page that the pool does not have yet.
#[inline]
pub(super) fn mark_in_flight<L: Layout>(page: Page<'_, L>) {
    page.set_note(IN_FLIGHT);
}

/// The page's changes have reached the pool, unless it has changed again.
#[inline]
pub(super) fn mark_arrived<L: Layout>(page: Page<'_, L>) -> bool {
    page.replace_note(IN_FLIGHT, 0)
}

/// Extends the ranges to include `words`.
#[inline]
pub fn mark_dirty<L: Layout>(page: Page<'_, L>, words: PageWords) {
    debug_assert!(!words.is_empty() && !words.contains(0), "word 0 is the frame's");
    page.set_note(dirty_words(page).and(words, L::HAS_HEAP).to_bits());
}

/// Empties the ranges.
#[inline]
pub fn mark_clean<L: Layout>(page: Page<'_, L>) {
    page.set_note(0);
}
