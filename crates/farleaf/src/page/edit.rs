//! The operations of one key, as edits of its leaf: the same on the compute side, in a frame, and on a memory
//! server that does them there.
//!
//! *Thread safety*: plain functions, for whoever holds the leaf.

use super::layout::{Layout, LeafInsert};
use super::view::{HEADER_WORDS, META_WORD, Page};
use std::ops::Range;

/// An operation on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafEdit<L: Layout> {
    /// The key.
    pub key: L::Key,
    /// What is done with it.
    pub action: Action<L::Value>,
}

/// What is done with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<V> {
    /// Its value is looked up.
    Get,
    /// It is added, if it is not there.
    Insert(V),
    /// Its value is changed, if it is there.
    Update(V),
    /// Its value is set.
    Upsert(V),
    /// It is removed.
    Remove,
    /// Its value is changed from the first to the second.
    CompareExchange(V, V),
}

/// What an edit found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<V> {
    /// Whether its condition held; of a lookup, whether the key is there.
    pub applied: bool,
    /// The value that was found, where that is of interest: by a lookup, or by a compare-exchange that failed.
    pub found: Option<V>,
    /// The leaf has so few records left that it should be merged.
    pub sparse: bool,
}

/// What an operation did to a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafOutcome<T> {
    /// It changed nothing.
    Nothing(T),
    /// It changed some of these words.
    Changed(T, Range<usize>),
    /// There is no room for what it wanted; it changed nothing.
    Full,
}

/// A node with fewer live entries should be merged.
pub fn least_entries<L: Layout>() -> usize {
    L::CAPACITY / 2
}

impl<L: Layout> LeafEdit<L> {
    /// Whether it can change anything.
    pub fn changes(&self) -> bool {
        !matches!(self.action, Action::Get)
    }

    /// Whether it would leave the leaf with too few records, which is for someone to mend who sees its parents.
    pub fn would_leave_sparse(&self, page: Page<'_, L>) -> bool {
        matches!(self.action, Action::Remove)
            && page.live_count() <= least_entries::<L>()
            && L::leaf_get(page, &self.key).is_some()
    }

    /// Does it to the leaf of its key.
    #[inline]
    pub fn apply(&self, page: Page<'_, L>) -> LeafOutcome<Answer<L::Value>> {
        let key = &self.key;
        match &self.action {
            Action::Get => {
                let found = L::leaf_get(page, key);
                let applied = found.is_some();
                LeafOutcome::Nothing(Answer { applied, found, sparse: false })
            }
            Action::Insert(value) => insert(page, key, value),
            Action::Update(value) => replace(page, key, value),
            Action::Upsert(value) => match replace(page, key, value) {
                LeafOutcome::Nothing(_) => insert(page, key, value),
                replaced => replaced,
            },
            Action::Remove => remove(page, key),
            Action::CompareExchange(expected, new) => match L::leaf_get(page, key) {
                Some(held) if held == *expected => replace(page, key, new),
                found => LeafOutcome::Nothing(Answer { applied: false, found, sparse: false }),
            },
        }
    }
}

fn plain<V>(applied: bool) -> Answer<V> {
    Answer { applied, found: None, sparse: false }
}

fn insert<L: Layout>(
    page: Page<'_, L>,
    key: &L::Key,
    value: &L::Value,
) -> LeafOutcome<Answer<L::Value>> {
    match L::leaf_insert(page, key, value) {
        // The count, the deleted bits, and entries up to the last.
        LeafInsert::Inserted => LeafOutcome::Changed(plain(true), META_WORD..L::used_words(page)),
        LeafInsert::Exists => LeafOutcome::Nothing(plain(false)),
        LeafInsert::Full => LeafOutcome::Full,
    }
}

#[inline]
fn replace<L: Layout>(
    page: Page<'_, L>,
    key: &L::Key,
    value: &L::Value,
) -> LeafOutcome<Answer<L::Value>> {
    match L::leaf_replace_at(page, key, value) {
        Some(words) => LeafOutcome::Changed(plain(true), words),
        None => LeafOutcome::Nothing(plain(false)),
    }
}

fn remove<L: Layout>(page: Page<'_, L>, key: &L::Key) -> LeafOutcome<Answer<L::Value>> {
    if !L::leaf_delete(page, key) {
        return LeafOutcome::Nothing(plain(false));
    }
    let sparse = page.live_count() < least_entries::<L>();
    // The bits of deleted records are in the header.
    LeafOutcome::Changed(Answer { applied: true, found: None, sparse }, META_WORD..HEADER_WORDS)
}
