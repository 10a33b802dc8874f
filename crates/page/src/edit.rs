//! The operations on one key, as edits of its leaf. The compute side applies them to a frame or to
//! a copy of the page, and a memory server applies them in place.
//!
//! *Thread safety*: plain functions. The caller holds the leaf exclusively.

use super::layout::{Layout, LeafDelete, LeafInsert, LeafReplace, OverflowEntry, OwnedValue};
use super::limits::LengthError;
use super::view::Page;
use super::weight::is_sparse;
use super::words::PageWords;
use std::borrow::Borrow;

/// An operation on one key. It borrows its key and values while it runs, and owns them in a
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafEdit<K, V> {
    /// The key that it reads or changes.
    pub key: K,
    /// The operation.
    pub action: EditAction<V>,
}

/// The operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditAction<V> {
    /// Looks up the value.
    Get,
    /// Adds the key if it is absent.
    Insert(V),
    /// Changes the value if the key is present.
    Update(V),
    /// Sets the value, whether the key is present or not.
    Upsert(V),
    /// Removes the key.
    Remove,
    /// Changes the value to the second one if it equals the first.
    CompareExchange(V, V),
}

/// The result of an edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditAnswer<V> {
    /// Whether the edit was applied. For a lookup: whether the key is present.
    pub applied: bool,
    /// The value found by a lookup, or by a compare-exchange that failed. Also the value that an
    /// edit took away, if it may be a reference to a value block. Otherwise `None`.
    pub found: Option<V>,
}

/// The effect of an operation on a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafOutcome<T> {
    /// The leaf is unchanged.
    Nothing(T),
    /// The leaf has changed.
    Changed {
        /// The result of the operation.
        answer: T,
        /// A range that includes all changed words.
        words: PageWords,
        /// Whether the leaf has so few records left that it should be merged.
        sparse: bool,
    },
    /// The leaf has no room for the record and is unchanged.
    Full,
}

impl<K, V> LeafEdit<K, V> {
    /// Whether the edit can change anything.
    pub fn changes(&self) -> bool {
        !matches!(self.action, EditAction::Get)
    }

    /// The same edit with a borrowed key and values.
    pub fn as_ref<Q: ?Sized, W: ?Sized>(&self) -> LeafEdit<&Q, &W>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
    {
        let action = match &self.action {
            EditAction::Get => EditAction::Get,
            EditAction::Insert(value) => EditAction::Insert(value.borrow()),
            EditAction::Update(value) => EditAction::Update(value.borrow()),
            EditAction::Upsert(value) => EditAction::Upsert(value.borrow()),
            EditAction::Remove => EditAction::Remove,
            EditAction::CompareExchange(expected, new) => {
                EditAction::CompareExchange(expected.borrow(), new.borrow())
            }
        };
        LeafEdit { key: self.key.borrow(), action }
    }
}

impl<K: ?Sized + ToOwned, V: ?Sized + ToOwned> LeafEdit<&K, &V> {
    /// The same edit with its own copies of key and values.
    pub fn owned(&self) -> LeafEdit<K::Owned, V::Owned> {
        let action = match self.action {
            EditAction::Get => EditAction::Get,
            EditAction::Insert(value) => EditAction::Insert(value.to_owned()),
            EditAction::Update(value) => EditAction::Update(value.to_owned()),
            EditAction::Upsert(value) => EditAction::Upsert(value.to_owned()),
            EditAction::Remove => EditAction::Remove,
            EditAction::CompareExchange(expected, new) => {
                EditAction::CompareExchange(expected.to_owned(), new.to_owned())
            }
        };
        LeafEdit { key: self.key.to_owned(), action }
    }

    /// The record that the leaf would have after the edit. `None` if the edit never needs room.
    pub fn new_record<L: Layout<Key = K, Value = V>>(&self) -> Option<OverflowEntry<L>> {
        let value = self.action.new_value()?;
        Some(OverflowEntry::Record(self.key.to_owned(), value.to_owned()))
    }
}

impl<K: ?Sized + ToOwned, V: ?Sized + Eq + ToOwned> LeafEdit<&K, &V> {
    /// Whether the edit would leave the leaf with too few records. Only an operation that holds the
    /// leaf's parents can merge it.
    pub fn would_leave_sparse<L: Layout<Key = K, Value = V>>(&self, page: Page<'_, L>) -> bool {
        matches!(self.action, EditAction::Remove) && {
            let record = L::record_weight(page, self.key);
            record > 0 && is_sparse::<L>(L::weight(page).saturating_sub(record))
        }
    }

    /// Whether a page can hold the key and the values.
    ///
    /// # Errors
    /// [`LengthError`] if no page can.
    #[inline]
    pub fn check<L: Layout<Key = K, Value = V>>(&self) -> Result<(), LengthError> {
        self.check_by::<L>(L::check_record)
    }

    /// As [`LeafEdit::check`], with a limit on records that need not be that of a page.
    ///
    /// # Errors
    /// That of `record`, or [`LengthError::Key`] if no page can hold the key.
    #[inline]
    pub fn check_by<L: Layout<Key = K, Value = V>>(
        &self,
        record: impl Fn(&K, &V) -> Result<(), LengthError>,
    ) -> Result<(), LengthError> {
        match self.action {
            EditAction::Get | EditAction::Remove => L::check_key(self.key),
            EditAction::Insert(value) | EditAction::Update(value) | EditAction::Upsert(value) => {
                record(self.key, value)
            }
            EditAction::CompareExchange(expected, new) => {
                record(self.key, expected)?;
                record(self.key, new)
            }
        }
    }

    /// The answer of the edit once it is applied after a split of `page`, which has no room for it.
    pub fn answer_after_split<L: Layout<Key = K, Value = V>>(
        &self,
        page: Page<'_, L>,
    ) -> EditAnswer<OwnedValue<L>> {
        EditAnswer { applied: true, found: L::leaf_reference(page, self.key) }
    }

    /// Whether the leaf has no room for the record that the edit leaves in it.
    pub fn lacks_room<L: Layout<Key = K, Value = V>>(&self, page: Page<'_, L>) -> bool {
        self.action.new_value().is_some_and(|value| !L::leaf_has_room(page, self.key, value))
    }

    /// Applies the edit to the leaf that covers its key.
    #[inline]
    pub fn apply<L: Layout<Key = K, Value = V>>(
        &self,
        page: Page<'_, L>,
    ) -> LeafOutcome<EditAnswer<OwnedValue<L>>> {
        let key = self.key;
        match self.action {
            EditAction::Get => {
                LeafOutcome::Nothing(EditAnswer::from_lookup(L::leaf_get(page, key)))
            }
            EditAction::Insert(value) => insert(page, key, value),
            EditAction::Update(value) => replace(page, key, value),
            EditAction::Upsert(value) => match replace(page, key, value) {
                LeafOutcome::Nothing(_) => insert(page, key, value),
                replaced => replaced,
            },
            EditAction::Remove => remove(page, key),
            EditAction::CompareExchange(expected, new) => match L::leaf_get(page, key) {
                Some(held) if L::value(&held) == expected => replace(page, key, new),
                found => LeafOutcome::Nothing(EditAnswer { applied: false, found }),
            },
        }
    }
}

/// What an edit does to a leaf of which only the record of its key is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordEdit<V, O> {
    /// It changes nothing, and this is its answer.
    Nothing(EditAnswer<O>),
    /// It gives the key, which is present, this value.
    NewValue(V),
    /// It adds or removes a record.
    NeedsLeaf,
}

impl<'a, K: ?Sized, V: ?Sized + Eq + ToOwned> LeafEdit<&K, &'a V> {
    /// What the edit does to a leaf that has `held` for its key.
    pub fn at_record<L: Layout<Key = K, Value = V>>(
        &self,
        held: Option<OwnedValue<L>>,
    ) -> RecordEdit<&'a V, OwnedValue<L>> {
        let unchanged = RecordEdit::Nothing(EditAnswer::from_change(false));
        match (self.action, held) {
            (EditAction::Get, held) => RecordEdit::Nothing(EditAnswer::from_lookup(held)),
            (EditAction::CompareExchange(expected, new), Some(held)) => {
                match L::value(&held) == expected {
                    true => RecordEdit::NewValue(new),
                    false => RecordEdit::Nothing(EditAnswer { applied: false, found: Some(held) }),
                }
            }
            (EditAction::Update(new) | EditAction::Upsert(new), Some(_)) => {
                RecordEdit::NewValue(new)
            }
            (EditAction::Insert(_), Some(_))
            | (EditAction::Update(_) | EditAction::Remove, None)
            | (EditAction::CompareExchange(..), None) => unchanged,
            (EditAction::Insert(_) | EditAction::Upsert(_), None)
            | (EditAction::Remove, Some(_)) => RecordEdit::NeedsLeaf,
        }
    }
}

impl<V: Copy> EditAction<V> {
    /// The value that the key has after the action, if it is done. `None` if it never needs room.
    pub fn new_value(&self) -> Option<V> {
        match self {
            Self::Insert(value)
            | Self::Update(value)
            | Self::Upsert(value)
            | Self::CompareExchange(_, value) => Some(*value),
            Self::Get | Self::Remove => None,
        }
    }
}

impl<V> EditAnswer<V> {
    /// The answer of a lookup.
    pub fn from_lookup(found: Option<V>) -> Self {
        Self { applied: found.is_some(), found }
    }

    /// The answer of an edit that returns no value.
    pub fn from_change(applied: bool) -> Self {
        Self { applied, found: None }
    }
}

fn changed<V>(lost: Option<V>, words: PageWords, sparse: bool) -> LeafOutcome<EditAnswer<V>> {
    LeafOutcome::Changed { answer: EditAnswer { applied: true, found: lost }, words, sparse }
}

fn nothing<V>() -> LeafOutcome<EditAnswer<V>> {
    LeafOutcome::Nothing(EditAnswer::from_change(false))
}

fn insert<L: Layout>(
    page: Page<'_, L>,
    key: &L::Key,
    value: &L::Value,
) -> LeafOutcome<EditAnswer<OwnedValue<L>>> {
    match L::leaf_insert(page, key, value) {
        LeafInsert::Inserted(words) => changed(None, words, false),
        LeafInsert::Exists => nothing(),
        LeafInsert::Full => LeafOutcome::Full,
    }
}

#[inline]
fn replace<L: Layout>(
    page: Page<'_, L>,
    key: &L::Key,
    value: &L::Value,
) -> LeafOutcome<EditAnswer<OwnedValue<L>>> {
    match L::leaf_replace(page, key, value) {
        LeafReplace::Replaced(words, lost) => changed(lost, words, false),
        LeafReplace::Absent => nothing(),
        LeafReplace::Full => LeafOutcome::Full,
    }
}

fn remove<L: Layout>(page: Page<'_, L>, key: &L::Key) -> LeafOutcome<EditAnswer<OwnedValue<L>>> {
    match L::leaf_delete(page, key) {
        LeafDelete::Deleted(words, lost) => changed(lost, words, is_sparse::<L>(L::weight(page))),
        LeafDelete::Absent => nothing(),
    }
}
