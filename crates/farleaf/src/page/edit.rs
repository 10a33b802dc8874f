//! The operations of one key, as edits of its leaf: the same on the compute side, in a frame or in
//! a copy of the page, and on a memory server that does them there.
//!
//! *Thread safety*: plain functions, for whoever holds the leaf.

use super::layout::{Layout, LeafInsert};
use super::view::{HEADER_WORDS, META_WORD, Page};
use std::ops::Range;

/// An operation on one key. One that is carried out borrows its key and values; one in a message
/// owns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafEdit<K, V> {
    /// The key.
    pub key: K,
    /// What is done with it.
    pub action: Action<V>,
}

/// What is done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The value that was found, where that is of interest: by a lookup, or by a compare-exchange
    /// that failed.
    pub found: Option<V>,
}

/// What an operation did to a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafOutcome<T> {
    /// It changed nothing.
    Nothing(T),
    /// It changed the leaf.
    Changed {
        /// What it found and did.
        answer: T,
        /// It changed some of these words.
        words: Range<usize>,
        /// The leaf has so few records left that it should be merged.
        sparse: bool,
    },
    /// There is no room for what it wanted; it changed nothing.
    Full,
}

/// A node with fewer live entries should be merged.
pub fn least_entries<L: Layout>() -> usize {
    L::CAPACITY / 2
}

impl<K, V> LeafEdit<K, V> {
    /// Whether it can change anything.
    pub fn changes(&self) -> bool {
        !matches!(self.action, Action::Get)
    }

    /// The same edit, of a borrowed key.
    pub fn as_ref(&self) -> LeafEdit<&K, &V> {
        let action = match &self.action {
            Action::Get => Action::Get,
            Action::Insert(value) => Action::Insert(value),
            Action::Update(value) => Action::Update(value),
            Action::Upsert(value) => Action::Upsert(value),
            Action::Remove => Action::Remove,
            Action::CompareExchange(expected, new) => Action::CompareExchange(expected, new),
        };
        LeafEdit { key: &self.key, action }
    }
}

impl<K: Clone, V: Clone> LeafEdit<&K, &V> {
    /// The same edit, with a key and values of its own.
    pub fn cloned(&self) -> LeafEdit<K, V> {
        let action = match self.action {
            Action::Get => Action::Get,
            Action::Insert(value) => Action::Insert(value.clone()),
            Action::Update(value) => Action::Update(value.clone()),
            Action::Upsert(value) => Action::Upsert(value.clone()),
            Action::Remove => Action::Remove,
            Action::CompareExchange(expected, new) => {
                Action::CompareExchange(expected.clone(), new.clone())
            }
        };
        LeafEdit { key: self.key.clone(), action }
    }

    /// The record that it adds to a leaf without its key; none for an edit that never needs room.
    pub fn new_record(&self) -> Option<(K, V)> {
        match self.action {
            Action::Insert(value) | Action::Upsert(value) => {
                Some((self.key.clone(), value.clone()))
            }
            _ => None,
        }
    }
}

impl<K, V: Eq> LeafEdit<&K, &V> {
    /// Whether it would leave the leaf with too few records, which only a holder of its parents can
    /// mend.
    pub fn would_leave_sparse<L: Layout<Key = K, Value = V>>(&self, page: Page<'_, L>) -> bool {
        matches!(self.action, Action::Remove)
            && page.live_count() <= least_entries::<L>()
            && L::leaf_get(page, self.key).is_some()
    }

    /// Does it to the leaf of its key.
    #[inline]
    pub fn apply<L: Layout<Key = K, Value = V>>(
        &self,
        page: Page<'_, L>,
    ) -> LeafOutcome<Answer<V>> {
        let key = self.key;
        match self.action {
            Action::Get => LeafOutcome::Nothing(Answer::of_lookup(L::leaf_get(page, key))),
            Action::Insert(value) => insert(page, key, value),
            Action::Update(value) => replace(page, key, value),
            Action::Upsert(value) => match replace(page, key, value) {
                LeafOutcome::Nothing(_) => insert(page, key, value),
                replaced => replaced,
            },
            Action::Remove => remove(page, key),
            Action::CompareExchange(expected, new) => match L::leaf_get(page, key) {
                Some(held) if held == *expected => replace(page, key, new),
                found => LeafOutcome::Nothing(Answer { applied: false, found }),
            },
        }
    }
}

impl<V> Answer<V> {
    /// The answer of a lookup.
    pub fn of_lookup(found: Option<V>) -> Self {
        Self { applied: found.is_some(), found }
    }

    /// The answer of an edit that tells no value.
    pub fn of_change(applied: bool) -> Self {
        Self { applied, found: None }
    }
}

fn changed<V>(words: Range<usize>, sparse: bool) -> LeafOutcome<Answer<V>> {
    LeafOutcome::Changed { answer: Answer::of_change(true), words, sparse }
}

fn nothing<V>() -> LeafOutcome<Answer<V>> {
    LeafOutcome::Nothing(Answer::of_change(false))
}

fn insert<L: Layout>(
    page: Page<'_, L>,
    key: &L::Key,
    value: &L::Value,
) -> LeafOutcome<Answer<L::Value>> {
    match L::leaf_insert(page, key, value) {
        // The count, the deleted bits, and entries up to the last.
        LeafInsert::Inserted => changed(META_WORD..L::used_words(page), false),
        LeafInsert::Exists => nothing(),
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
        Some(words) => changed(words, false),
        None => nothing(),
    }
}

fn remove<L: Layout>(page: Page<'_, L>, key: &L::Key) -> LeafOutcome<Answer<L::Value>> {
    if !L::leaf_delete(page, key) {
        return nothing();
    }
    // The bits of deleted records are in the header.
    changed(META_WORD..HEADER_WORDS, page.live_count() < least_entries::<L>())
}
