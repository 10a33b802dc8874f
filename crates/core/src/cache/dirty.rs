//! The words of a page in a frame that are newer than in the pool: one range, kept in the page's
//! note.
//!
//! ```text
//! note  [reserved:32][end:16][start:16]     0 is clean
//! ```
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - C4. A word that differs from the pool's lies in the range, except for words 0, 5, 7 and, in an
//!   inner node, the child words of swizzled children.
//!
//! *Thread safety*: the note changes only under the frame's latch.

use crate::page::{Layout, Page};
use std::ops::Range;

/// The range of words that are newer than in the pool. Empty if the page is clean.
#[inline]
pub fn dirty_words<L: Layout>(page: Page<'_, L>) -> Range<usize> {
    let note = page.note();
    (note as u16).into()..((note >> 16) as u16).into()
}

/// Whether the pool has the whole page as it is here.
#[inline]
pub fn is_clean<L: Layout>(page: Page<'_, L>) -> bool {
    page.note() == 0
}

/// Extends the range to include `words`.
#[inline]
pub fn mark_dirty<L: Layout>(page: Page<'_, L>, words: Range<usize>) {
    debug_assert!(words.start > 0 && words.start < words.end, "word 0 is the frame's");
    let held = dirty_words(page);
    let (start, end) = if held.is_empty() {
        (words.start, words.end)
    } else {
        (held.start.min(words.start), held.end.max(words.end))
    };
    page.set_note((end as u64) << 16 | start as u64);
}

/// Empties the range.
#[inline]
pub fn mark_clean<L: Layout>(page: Page<'_, L>) {
    page.set_note(0);
}
