//! The words of a page that are newer in its frame than in the pool: a range at the front and one
//! in the heap, kept in the page's note.
//!
//! ```text
//! note  [heap end:16][heap start:16][front end:16][front start:16]     0 is clean
//! ```
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - C4. A word that differs from the pool's lies in the ranges, except for words 0, 5, 7 and, in
//!   an inner node, the child words of swizzled children.
//!
//! *Thread safety*: the note changes only under the frame's latch.

use farleaf_page::{Layout, Page, PageWords};

/// The words that are newer in the frame than in the pool. Empty if the page is clean.
#[inline]
pub fn dirty_words<L: Layout>(page: Page<'_, L>) -> PageWords {
    PageWords::from_bits(page.note())
}

/// Whether the pool's copy of the page is current.
#[inline]
pub fn is_clean<L: Layout>(page: Page<'_, L>) -> bool {
    page.note() == 0
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
