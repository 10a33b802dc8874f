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
use super::table::{Link, MOST_LOST, MemTable, MemTableError, MemTableOptions, Pending};
use super::versions::Kind;
use super::writer::Writer;
use farleaf_index::{Action, Answer};

/// An operation on one key.
#[derive(Debug)]
pub struct Edit<'k> {
    key: SearchKey,
    action: Action<&'k [u8]>,
    /// The table below which a version was looked up, and its value.
    below: Option<(u64, Option<Vec<u8>>)>,
    lost: u32,
}

/// What an operation needs next.
#[derive(Debug)]
pub enum Step<'w> {
    /// Nothing: it has ended.
    Done(Answer<Vec<u8>>),
    /// Its version can be linked. Pass the outcome to [`Edit::linked`].
    Link(Pending<'w>),
    /// The newest version below this MemTable (Q5): wait until [`Sequences::is_settled`] for the
    /// number before [`MemTable::first`], look, and pass the value to [`Edit::found_below`]. A
    /// lookup need not wait.
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
enum Current<'a> {
    Value(Value<'a>),
    Absent,
    Unknown,
}

enum Value<'a> {
    Here(super::Version<'a>),
    Below(&'a [u8]),
}

impl Value<'_> {
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

impl<'k> Edit<'k> {
    /// The operation `action` on `key`, on MemTables with these options.
    ///
    /// # Errors
    /// [`MemTableError`] if no MemTable can hold the record. Nothing has changed.
    pub fn new(
        key: &[u8],
        action: Action<&'k [u8]>,
        options: &MemTableOptions,
    ) -> Result<Self, MemTableError> {
        let value = match action {
            Action::Get | Action::Remove => 0,
            Action::Insert(value) | Action::Update(value) | Action::Upsert(value) => value.len(),
            Action::CompareExchange(_, new) => new.len(),
        };
        options.check(key.len(), value)?;
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
    pub fn step<'w>(&mut self, table: &'w MemTable, writer: &'w mut Writer) -> Step<'w> {
        let seen = table.look(writer, &self.key);
        let current = match (seen.newest(), &self.below) {
            (Some(version), _) if version.kind() == Kind::Value => {
                Current::Value(Value::Here(version))
            }
            (Some(_), _) => Current::Absent,
            (None, Some((below, value))) if *below == table.id() => match value {
                Some(value) => Current::Value(Value::Below(value)),
                None => Current::Absent,
            },
            (None, _) => Current::Unknown,
        };
        let (kind, value) = match decide(&self.action, &current) {
            Decision::Ask => return Step::NeedBelow,
            Decision::Answer(answer) => return Step::Done(answer),
            Decision::Write(kind, value) => (kind, value),
        };
        match table.prepare(writer, &self.key, &seen, kind, value) {
            Ok(pending) => Step::Link(pending),
            Err(end) => self.linked(end),
        }
    }

    /// Takes the outcome of linking, and returns the next step.
    pub fn linked(&mut self, link: Link) -> Step<'static> {
        match link {
            Link::Done(_) => Step::Done(Answer { applied: true, found: None }),
            Link::Closed => Step::Closed,
            Link::Contended => Step::Contended,
            Link::Changed => {
                self.lost += 1;
                if self.lost > MOST_LOST { Step::Contended } else { Step::Again }
            }
        }
    }

    /// Steps and links until something else is needed: never returns [`Step::Link`] or
    /// [`Step::Again`].
    pub fn run(&mut self, table: &MemTable, writer: &mut Writer) -> Step<'static> {
        loop {
            let link = match self.step(table, writer) {
                Step::Link(pending) => pending.link(),
                Step::Done(answer) => return Step::Done(answer),
                Step::NeedBelow => return Step::NeedBelow,
                Step::Again => continue,
                Step::Closed => return Step::Closed,
                Step::Contended => return Step::Contended,
            };
            match self.linked(link) {
                Step::Again => {}
                end => return end,
            }
        }
    }
}

enum Decision<'k> {
    /// The current value must be looked up first.
    Ask,
    Answer(Answer<Vec<u8>>),
    Write(Kind, &'k [u8]),
}

fn decide<'k>(action: &Action<&'k [u8]>, current: &Current<'_>) -> Decision<'k> {
    let refused = || Decision::Answer(Answer { applied: false, found: None });
    match (action, current) {
        (Action::Upsert(value), _) => Decision::Write(Kind::Value, value),
        (_, Current::Unknown) => Decision::Ask,
        (Action::Get, Current::Value(value)) => {
            Decision::Answer(Answer { applied: true, found: Some(value.to_vec()) })
        }
        (Action::Insert(value), Current::Absent) => Decision::Write(Kind::Value, value),
        (Action::Update(value), Current::Value(_)) => Decision::Write(Kind::Value, value),
        (Action::Remove, Current::Value(_)) => Decision::Write(Kind::Tombstone, &[]),
        (Action::CompareExchange(expected, new), Current::Value(value)) => {
            if value.is(expected) {
                Decision::Write(Kind::Value, new)
            } else {
                Decision::Answer(Answer { applied: false, found: Some(value.to_vec()) })
            }
        }
        (Action::Insert(_), Current::Value(_)) | (_, Current::Absent) => refused(),
    }
}
