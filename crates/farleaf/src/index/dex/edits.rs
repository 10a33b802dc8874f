//! The operations of one key, as edits of its leaf.
//!
//! *Thread safety*: plain functions, for whoever holds the leaf.

use crate::cache::LeafOutcome;
use crate::index::Exchange;
use crate::page::{Layout, LeafInsert, META_WORD, Page};

/// Words that an insertion changes: the count, the deleted bits, and entries up to the last.
fn inserted<L: Layout>(page: Page<'_, L>) -> std::ops::Range<usize> {
    META_WORD..L::used_words(page)
}

/// Adds a record; `false` if the key is there.
pub(super) fn insert<L: Layout>(
    page: Page<'_, L>,
    key: &L::Key,
    value: &L::Value,
) -> LeafOutcome<bool> {
    match L::leaf_insert(page, key, value) {
        LeafInsert::Inserted => LeafOutcome::Changed(true, inserted(page)),
        LeafInsert::Exists => LeafOutcome::Nothing(false),
        LeafInsert::Full => LeafOutcome::Full,
    }
}

/// Changes the value of a key that is there; says whether it is.
#[inline]
pub(super) fn update<L: Layout>(
    page: Page<'_, L>,
    key: &L::Key,
    value: &L::Value,
) -> LeafOutcome<bool> {
    match L::leaf_replace_at(page, key, value) {
        Some(words) => LeafOutcome::Changed(true, words),
        None => LeafOutcome::Nothing(false),
    }
}

/// Sets the value of a key, whether it is there or not.
pub(super) fn upsert<L: Layout>(
    page: Page<'_, L>,
    key: &L::Key,
    value: &L::Value,
) -> LeafOutcome<bool> {
    match update(page, key, value) {
        LeafOutcome::Nothing(_) => insert(page, key, value),
        replaced => replaced,
    }
}

/// Removes a key; says whether it was there, and how many live records are left.
pub(super) fn remove<L: Layout>(page: Page<'_, L>, key: &L::Key) -> LeafOutcome<Option<usize>> {
    if L::leaf_delete(page, key) {
        // The bits of deleted records are in the header.
        LeafOutcome::Changed(Some(page.live_count()), META_WORD..crate::page::HEADER_WORDS)
    } else {
        LeafOutcome::Nothing(None)
    }
}

/// Sets the value of a key to `new` if it is `expected`.
pub(super) fn compare_exchange<L: Layout>(
    page: Page<'_, L>,
    key: &L::Key,
    expected: &L::Value,
    new: &L::Value,
) -> LeafOutcome<Exchange<L::Value>> {
    match L::leaf_get(page, key) {
        Some(held) if held == *expected => match L::leaf_replace_at(page, key, new) {
            Some(words) => LeafOutcome::Changed(Exchange::Exchanged, words),
            None => LeafOutcome::Nothing(Exchange::Differs(None)),
        },
        held => LeafOutcome::Nothing(Exchange::Differs(held)),
    }
}
