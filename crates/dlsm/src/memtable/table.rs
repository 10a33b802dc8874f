//! A MemTable: keys with their newest versions, and the range of their numbers.
//!
//! A write has four steps: look at the newest version of the key, prepare the new one, take its
//! number, and link it. Memory is taken before the number, so a full table never refuses a version
//! that already has one. Nothing between the number and the link waits for another thread.
//!
//! *Thread safety*: any number of threads read and write, each writer with a [`MemTableWriter`] of
//! its own. A closed table admits no more versions, and once its last number is settled it never
//! changes.

use super::arena::{ArenaOffset, MAX_WORDS, NOWHERE};
use super::close::SequenceRange;
use super::cursor::MemTableCursor;
use super::filter::MemTableFilter;
use super::search_key::{CommonPrefix, SearchKey};
use super::skiplist::{InsertOutcome, SkipList, SkipNodeHead};
use super::versions::{BlankVersion, MemTableVersion, VersionKind};
use super::writer::MemTableWriter;
use crate::{Announcement, Sequences};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Region, RegionError};
use farleaf_index::design_options;
use farleaf_page::table::MAX_VALUE_BYTES;
use thiserror::Error;

/// The length of a key is stored in 16 bits.
const MAX_KEY_BYTES: usize = 65_535;

design_options! {
    /// Sizes of MemTables. The defaults are the paper's 64 MiB, closed when the memory is used up.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MemTableOptions {
        /// Memory of a MemTable for keys and versions, in bytes: a multiple of 4096.
        pub bytes as "memtable_bytes": usize = 64 << 20, in 4_096..=1_073_741_824;
        /// A MemTable is closed once this many numbers were taken since it was made. The paper
        /// closes them by this alone. 0 closes them only when they are full.
        pub most_numbers as "memtable_numbers": u64 = 0;
        /// Memory for the filter of a MemTable, in bytes.
        pub filter_bytes as "memtable_filter_bytes": usize = 512 << 10, in 8..=1_073_741_824;
    }
}

impl MemTableOptions {
    /// Memory for a MemTable, which can be reused any number of times.
    ///
    /// # Errors
    /// [`MemTableError::BadSize`] and [`MemTableError::Memory`].
    pub fn memory(&self) -> Result<Arc<Region>, MemTableError> {
        if self.bytes / 8 > MAX_WORDS {
            return Err(MemTableError::BadSize { bytes: self.bytes });
        }
        Ok(Arc::new(Region::new(self.bytes)?))
    }

    /// How many numbers a MemTable admits.
    fn sequence_numbers(&self) -> u64 {
        if self.most_numbers == 0 { u64::MAX } else { self.most_numbers }
    }

    /// The longest key, in bytes: 65,535, or a quarter of a small table.
    pub fn most_key_bytes(&self) -> usize {
        MAX_KEY_BYTES.min(self.bytes / 4)
    }

    /// The longest value, in bytes: a quarter of the table, so that a new table has room for it and
    /// its key, but no more than a table in the pool can hold.
    pub fn most_value_bytes(&self) -> usize {
        MAX_VALUE_BYTES.min(self.bytes / 4)
    }

    /// Checks the lengths of a key and a value.
    ///
    /// # Errors
    /// [`MemTableError::KeyTooLong`] and [`MemTableError::ValueTooLong`].
    pub fn check(&self, key_bytes: usize, value_bytes: usize) -> Result<(), MemTableError> {
        let (most_key, most_value) = (self.most_key_bytes(), self.most_value_bytes());
        if key_bytes > most_key {
            return Err(MemTableError::KeyTooLong { bytes: key_bytes, most: most_key });
        }
        if value_bytes > most_value {
            return Err(MemTableError::ValueTooLong { bytes: value_bytes, most: most_value });
        }
        Ok(())
    }
}

/// Why a MemTable cannot be created, or cannot hold a record.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemTableError {
    /// The size is larger than offsets can name.
    #[error("a MemTable of {bytes} bytes: it has at most 2^34")]
    BadSize {
        /// The requested size.
        bytes: usize,
    },
    /// The memory cannot be allocated.
    #[error("cannot get the memory of a MemTable: {0}")]
    Memory(#[from] RegionError),
    /// No MemTable of this size holds the key.
    #[error("a key of {bytes} bytes: a key has at most {most}")]
    KeyTooLong {
        /// The key's length.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// No MemTable of this size holds the value.
    #[error("a value of {bytes} bytes: a value has at most {most}; use larger MemTables")]
    ValueTooLong {
        /// The value's length.
        bytes: usize,
        /// The limit.
        most: usize,
    },
}

/// Keys with their versions, in memory of a fixed size.
#[derive(Debug)]
pub struct MemTable {
    /// Its number among the MemTables of its compute server.
    id: u64,
    options: MemTableOptions,
    list: SkipList,
    range: SequenceRange,
    filter: MemTableFilter,
}

/// What a writer saw of a key: the version that its own should follow.
#[derive(Clone, Copy, Debug)]
pub struct PriorVersion<'t> {
    table: &'t MemTable,
    node: Option<ArenaOffset>,
    newest: ArenaOffset,
}

impl<'t> PriorVersion<'t> {
    /// The newest version. `None` if the table has no version of the key.
    #[inline]
    pub fn newest(&self) -> Option<MemTableVersion<'t>> {
        MemTableVersion::at(self.table.list.arena().words(), self.newest)
    }
}

/// How a write to a MemTable ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkOutcome {
    /// The version is linked, with this number.
    Done(u64),
    /// Another version was linked in the meantime: look again.
    Changed,
    /// The table is closed, or full, which closes it: write to the next one.
    Closed,
    /// The write lost too often to inserts into the same gap.
    Contended,
}

/// A version with its number, to be linked next. While it exists, its number is not settled.
/// Dropping it abandons the number.
#[derive(Debug)]
#[must_use = "a version is only in the table once it is linked"]
pub struct PendingVersion<'w> {
    table: &'w MemTable,
    announcement: Announcement<'w>,
    version: BlankVersion,
    /// Where the writer keeps the memory if linking fails.
    blank: &'w mut Option<BlankVersion>,
    number: u64,
    node: ArenaOffset,
    seen: SkipNodeHead,
    kind: VersionKind,
}

impl MemTable {
    /// The first MemTable of an index or a shard, in memory of [`MemTableOptions::memory`] or of a
    /// table of the same size.
    ///
    /// # Panics
    /// If the memory is smaller than the options say.
    pub fn new(sequences: &Sequences, memory: Arc<Region>, options: MemTableOptions) -> Self {
        Self::starting_at(
            sequences.latest() + 1,
            sequences,
            memory,
            options,
            CommonPrefix::default(),
        )
    }

    /// The MemTable after this one, which is closed first.
    ///
    /// # Panics
    /// As [`MemTable::new`].
    #[must_use = "this table is closed"]
    pub fn next(
        &self,
        sequences: &Sequences,
        memory: Arc<Region>,
        options: MemTableOptions,
    ) -> Self {
        let first = self.close(sequences) + 1;
        Self::starting_at(first, sequences, memory, options, self.prefix())
    }

    fn starting_at(
        first: u64,
        sequences: &Sequences,
        memory: Arc<Region>,
        options: MemTableOptions,
        prefix: CommonPrefix,
    ) -> Self {
        Self {
            id: sequences.table_id(),
            options,
            list: SkipList::new(memory, options.bytes / 8, prefix),
            range: SequenceRange::new(first, options.sequence_numbers()),
            filter: MemTableFilter::new(options.filter_bytes),
        }
    }

    /// What its keys have in common, or what was expected of them if it has only a few.
    fn prefix(&self) -> CommonPrefix {
        /// Keys to look at. Fewer say little about those of a full table: a table that was flushed
        /// with a single key has all of it in common.
        const KEYS: usize = 32;
        let some = self.list.sample(KEYS);
        let (Some(first), Some(last)) = (self.list.first(), self.list.last()) else {
            return self.list.prefix().clone();
        };
        if some.is_empty() && !cfg!(any(loom, shuttle)) {
            return self.list.prefix().clone();
        }
        let key = |node: ArenaOffset| self.list.key(node).to_search_key();
        let some: Vec<_> = some.into_iter().map(key).collect();
        CommonPrefix::of(&self.list.key(first).to_vec(), &self.list.key(last).to_vec())
            .refined(&some)
    }

    /// Returns its memory, for reuse by another MemTable.
    pub fn into_memory(self) -> Arc<Region> {
        self.list.into_memory()
    }

    /// The sizes it was created with.
    pub fn options(&self) -> &MemTableOptions {
        &self.options
    }

    /// A number that no other MemTable of the compute server has.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The first number of its range.
    pub fn first(&self) -> u64 {
        self.range.first()
    }

    /// The last number of its range. `None` while it is open.
    pub fn last(&self) -> Option<u64> {
        self.range.last()
    }

    /// Closes the range (Q3), unless it is closed already. Returns its last number. Writers may
    /// still link versions with numbers up to it until it is settled.
    pub fn close(&self, sequences: &Sequences) -> u64 {
        self.range.close(sequences)
    }

    /// The memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.list.arena().taken_bytes()
    }

    /// Whether the table has no version.
    pub fn is_empty(&self) -> bool {
        let mut cursor = self.cursor(u64::MAX);
        cursor.seek_first();
        cursor.key().is_none()
    }

    /// Whether the table may have versions of `key`. False only if it has none.
    pub fn may_hold(&self, key: &SearchKey) -> bool {
        self.filter.may_hold(key.hash())
    }

    /// Looks at the newest version of `key`, before writing the next one.
    #[inline]
    pub fn look(&self, writer: &mut MemTableWriter, key: &SearchKey) -> PriorVersion<'_> {
        writer.turn_to(self.id);
        self.filter.prefetch(key.hash());
        let node = self.list.find_gap(key, &mut writer.splice);
        let newest = node.map_or(NOWHERE, |node| self.list.head_to_change(node).newest());
        PriorVersion { table: self, node, newest }
    }

    /// The newest version of `key`.
    #[inline]
    pub fn newest(&self, key: &SearchKey) -> Option<MemTableVersion<'_>> {
        let node = self.list.find(key)?;
        let version =
            MemTableVersion::at(self.list.arena().words(), self.list.head(node).newest())?;
        // Its lines come together, before the number is compared or the value copied.
        version.prefetch();
        Some(version)
    }

    /// The newest version of `key` with a number up to `bound`, which is settled (Q7).
    pub fn newest_up_to(&self, key: &SearchKey, bound: u64) -> Option<MemTableVersion<'_>> {
        self.newest(key)?.up_to(bound)
    }

    /// A cursor over the keys that have versions up to `bound`, which is settled (Q7).
    pub fn cursor(&self, bound: u64) -> MemTableCursor<'_> {
        MemTableCursor::new(&self.list, bound)
    }

    /// Prepares a version of `key` that follows the one that was seen, and takes its number.
    ///
    /// # Errors
    /// Any [`LinkOutcome`] but [`LinkOutcome::Done`].
    pub fn prepare<'w>(
        &'w self,
        writer: &'w mut MemTableWriter,
        key: &SearchKey,
        seen: &PriorVersion<'_>,
        kind: VersionKind,
        value: &[u8],
    ) -> Result<PendingVersion<'w>, LinkOutcome> {
        debug_assert_eq!(seen.table.id, self.id, "seen in this table");
        // The writer may have looked at another table in the meantime.
        writer.turn_to(self.id);
        let full = |sequences: &Arc<Sequences>| {
            self.close(sequences);
            LinkOutcome::Closed
        };
        let node = match seen.node {
            Some(node) => node,
            None => {
                self.filter.add(key.hash()); // M2
                let levels = writer.levels();
                match self.list.insert(key, &mut writer.splice, levels) {
                    InsertOutcome::At(node) => node,
                    InsertOutcome::Full => return Err(full(writer.sequences())),
                    InsertOutcome::Contended => return Err(LinkOutcome::Contended),
                }
            }
        };
        let reusable = writer.blank.filter(|blank| blank.fits(value.len()));
        let arena = self.list.arena();
        let Some(version) = reusable.or_else(|| BlankVersion::take(arena, value.len())) else {
            return Err(full(writer.sequences()));
        };
        writer.blank = Some(version);
        version.fill(arena.words(), value, seen.newest);
        let head = self.list.head_to_change(node); // before the number (Q4)
        if head.newest() != seen.newest {
            return Err(LinkOutcome::Changed);
        }
        let MemTableWriter { seat, blank, .. } = writer;
        let announcement = seat.announce();
        let number = announcement.take();
        Ok(PendingVersion {
            table: self,
            announcement,
            version,
            blank,
            number,
            node,
            seen: head,
            kind,
        })
    }

    /// Writes a version of `key`, whatever it replaces, with retries until it is linked or the
    /// table is closed.
    pub fn upsert(
        &self,
        writer: &mut MemTableWriter,
        key: &SearchKey,
        kind: VersionKind,
        value: &[u8],
    ) -> LinkOutcome {
        for _ in 0..MAX_LOST {
            let seen = self.look(writer, key);
            match self
                .prepare(writer, key, &seen, kind, value)
                .map_or_else(|end| end, PendingVersion::link)
            {
                LinkOutcome::Changed => {}
                end => return end,
            }
        }
        LinkOutcome::Contended
    }
}

/// How often a write looks again because of concurrent versions of its key.
pub(super) const MAX_LOST: u32 = 1_000;

impl PendingVersion<'_> {
    /// The number of the version.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Links the version, if it belongs to the table and still follows the one that was seen.
    pub fn link(self) -> LinkOutcome {
        self.link_and(|_| ())
    }

    /// As [`Self::link`]. Passes the number of the linked version to `linked` before the number is
    /// settled.
    pub fn link_and(self, linked: impl FnOnce(u64)) -> LinkOutcome {
        let Self { table, announcement, version, blank, number, node, seen, kind } = self;
        if !table.range.admits(number, announcement.sequences()) {
            return LinkOutcome::Closed;
        }
        version.number(table.list.arena().words(), number, kind);
        if !table.list.replace_head(node, seen, version.place()) {
            return LinkOutcome::Changed;
        }
        *blank = None;
        linked(number);
        LinkOutcome::Done(number)
        // The announcement is withdrawn here, after the version is linked (Q1).
    }
}
