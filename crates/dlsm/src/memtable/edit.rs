//! An operation on one key, as steps that never wait.
//!
//! An edit is based on the newest version of its key. If the MemTable has none, that version is
//! below it, in older MemTables and tables, and finding it may take a READ. The edit then asks for
//! it and continues with the answer. No lock is held meanwhile. The new version is linked only if
//! it follows the one that the edit was based on.
//!
//! *Invariants* (`docs/internals/memtable.md`)
//! - memtable.Q5. Before the caller looks for the version below a MemTable, all older MemTables are
//!   settled: no number below the table's first is announced. The version then stays the newest
//!   one below the table, because older tables admit no more.
//!
//! *Thread safety*: an edit belongs to one operation.

use super::search_key::SearchKey;
use super::table::{
    LinkOutcome, MAX_LOST, MemTable, MemTableError, MemTableOptions, PendingVersion,
};
use super::versions::VersionKind;
use super::writer::MemTableWriter;
use farleaf_index::{EditAction, EditAnswer};

/// An operation on one key.
#[derive(Debug)]
pub struct MemTableEdit<'k> {
    key: SearchKey,
    action: EditAction<&'k [u8]>,
    /// The table below which a version was looked up, and its value.
    below: Option<(u64, Option<Vec<u8>>)>,
    lost: u32,
}

/// What an operation needs next.
#[derive(Debug)]
pub enum EditStep<'w> {
    /// Nothing: it has ended.
    Done(EditAnswer<Vec<u8>>),
    /// Its version can be linked. Pass the outcome to [`MemTableEdit::linked`].
    Link(PendingVersion<'w>),
    /// The newest version below this MemTable (Q5): wait until [`Sequences::is_settled`] for the
    /// number before [`MemTable::first`], look, and pass the value to
    /// [`MemTableEdit::found_below`]. A lookup need not wait.
    ///
    /// [`Sequences::is_settled`]: crate::Sequences::is_settled
    NeedBelow,
    /// Another step, because there is a newer version than the one that the edit was based on.
    Again,
    /// The next MemTable, because this one is closed.
    Closed,
    /// Nothing: the edit lost too often to other writers. It has changed nothing.
    Contended,
}

/// The state of the key on which the edit is based.
enum CurrentValue<'a> {
    Value(EditValue<'a>),
    Absent,
    Unknown,
}

enum EditValue<'a> {
    Here(super::MemTableVersion<'a>),
    Below(&'a [u8]),
}

impl EditValue<'_> {
    fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Here(version) => version.value().unwrap_or_default(),
            Self::Below(value) => value.to_vec(),
        }
    }

    fn is(&self, expected: &[u8]) -> bool {
        match self {
            Self::Here(version) if version.value_bytes() != expected.len() => false,
            _ => self.to_vec() == expected,
        }
    }
}

impl<'k> MemTableEdit<'k> {
    /// The operation `action` on `key`, on MemTables with these options.
    ///
    /// # Errors
    /// [`MemTableError`] if no MemTable can hold the record. Nothing has changed.
    pub fn new(
        key: &[u8],
        action: EditAction<&'k [u8]>,
        options: &MemTableOptions,
    ) -> Result<Self, MemTableError> {
        options.check(key.len(), action.new_value().map_or(0, <[u8]>::len))?;
        Ok(Self { key: SearchKey::new(key), action, below: None, lost: 0 })
    }

    /// The key to edit.
    pub fn key(&self) -> &SearchKey {
        &self.key
    }

    /// Passes the newest value below `table` to the edit: `None` if there is none, or a tombstone.
    pub fn found_below(&mut self, table: &MemTable, value: Option<Vec<u8>>) {
        self.below = Some((table.id(), value));
    }

    /// Takes the next step on `table`, the newest MemTable.
    pub fn step<'w>(
        &mut self,
        table: &'w MemTable,
        writer: &'w mut MemTableWriter,
    ) -> EditStep<'w> {
        let seen = table.look(writer, &self.key);
        let current = match (seen.newest(), &self.below) {
            (Some(version), _) if version.kind() == VersionKind::Value => {
                CurrentValue::Value(EditValue::Here(version))
            }
            (Some(_), _) => CurrentValue::Absent,
            (None, Some((below, value))) if *below == table.id() => match value {
                Some(value) => CurrentValue::Value(EditValue::Below(value)),
                None => CurrentValue::Absent,
            },
            (None, _) => CurrentValue::Unknown,
        };
        let (kind, value) = match decide(&self.action, &current) {
            EditDecision::Ask => return EditStep::NeedBelow,
            EditDecision::Answer(answer) => return EditStep::Done(answer),
            EditDecision::Write(kind, value) => (kind, value),
        };
        match table.prepare(writer, &self.key, &seen, kind, value) {
            Ok(pending) => EditStep::Link(pending),
            Err(end) => self.linked(end),
        }
    }

    /// Takes the outcome of linking, and returns the next step.
    pub fn linked(&mut self, link: LinkOutcome) -> EditStep<'static> {
        match link {
            LinkOutcome::Done(_) => EditStep::Done(EditAnswer { applied: true, found: None }),
            LinkOutcome::Closed => EditStep::Closed,
            LinkOutcome::Contended => EditStep::Contended,
            LinkOutcome::Changed => {
                self.lost += 1;
                if self.lost > MAX_LOST { EditStep::Contended } else { EditStep::Again }
            }
        }
    }

    /// Steps and links until something else is needed: never returns [`EditStep::Link`] or
    /// [`EditStep::Again`].
    pub fn run(&mut self, table: &MemTable, writer: &mut MemTableWriter) -> EditStep<'static> {
        loop {
            let link = match self.step(table, writer) {
                EditStep::Link(pending) => pending.link(),
                EditStep::Done(answer) => return EditStep::Done(answer),
                EditStep::NeedBelow => return EditStep::NeedBelow,
                EditStep::Again => continue,
                EditStep::Closed => return EditStep::Closed,
                EditStep::Contended => return EditStep::Contended,
            };
            match self.linked(link) {
                EditStep::Again => {}
                end => return end,
            }
        }
    }
}

enum EditDecision<'k> {
    /// The current value must be looked up first.
    Ask,
    Answer(EditAnswer<Vec<u8>>),
    Write(VersionKind, &'k [u8]),
}

fn decide<'k>(action: &EditAction<&'k [u8]>, current: &CurrentValue<'_>) -> EditDecision<'k> {
    let refused = || EditDecision::Answer(EditAnswer { applied: false, found: None });
    match (action, current) {
        (EditAction::Upsert(value), _) => EditDecision::Write(VersionKind::Value, value),
        (_, CurrentValue::Unknown) => EditDecision::Ask,
        (EditAction::Get, CurrentValue::Value(value)) => {
            EditDecision::Answer(EditAnswer { applied: true, found: Some(value.to_vec()) })
        }
        (EditAction::Insert(value), CurrentValue::Absent) => {
            EditDecision::Write(VersionKind::Value, value)
        }
        (EditAction::Update(value), CurrentValue::Value(_)) => {
            EditDecision::Write(VersionKind::Value, value)
        }
        (EditAction::Remove, CurrentValue::Value(_)) => {
            EditDecision::Write(VersionKind::Tombstone, &[])
        }
        (EditAction::CompareExchange(expected, new), CurrentValue::Value(value)) => {
            if value.is(expected) {
                EditDecision::Write(VersionKind::Value, new)
            } else {
                EditDecision::Answer(EditAnswer { applied: false, found: Some(value.to_vec()) })
            }
        }
        (EditAction::Insert(_), CurrentValue::Value(_)) | (_, CurrentValue::Absent) => refused(),
    }
}
