//! What a tree consists of at one moment: its MemTables and tables.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.V1. A version never changes. An operation pins one as long as it runs, and a pinned
//!   version keeps its tables and MemTables.
//! - lsm.V4. Of the versions of a key, the newer one is in the source that comes first: the active
//!   MemTable, closed ones from the newest on, level 0 from the newest table on, the other levels.
//!
//! *Thread safety*: plain values; shared as they are.

use super::MemTable;
use crate::remote::Lease;
use crate::table::{Clip, Index, Key, KeyBuf, Meta, Placed, VersionChange};
use farleaf_fabric::sync::Arc;

/// A table in the memory pool, as its compute server knows it.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) meta: Meta,
    pub(super) index: Arc<Index>,
    /// Where it lies. Its extents are given back when no version has the table (K2).
    pub(super) lease: Arc<Lease>,
}

impl Table {
    pub(super) fn id(&self) -> u64 {
        self.meta.footer.table
    }

    /// The same table, as a part of another level.
    pub(super) fn in_level(&self, level: usize) -> Self {
        let meta = Meta { level: level as u8, ..self.meta.clone() };
        Self { meta, index: Arc::clone(&self.index), lease: Arc::clone(&self.lease) }
    }

    /// What the directory keeps of it.
    fn placed(&self) -> Placed {
        let pieces = self.lease.pieces(0, self.lease.bytes() / 8, u64::MAX).into_iter();
        let meta = Meta { extents: Vec::new(), ..self.meta.clone() };
        Placed { meta, pieces: pieces.map(|(at, words)| (at.to_bits(), words * 8)).collect() }
    }

    /// Bytes of its records.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.meta.footer.data_words) * 8
    }
}

/// A change of a version.
#[derive(Debug)]
pub(super) enum Change {
    /// Tables take the place of a MemTable, in level 0.
    Flushed {
        /// The MemTable, which is closed.
        memtable: Arc<MemTable>,
        /// The tables.
        tables: Vec<Arc<Table>>,
    },
    /// Tables take the place of others.
    Merged {
        /// The others.
        removed: Vec<Arc<Table>>,
        /// The level of the new ones, which is not level 0.
        level: usize,
        /// The new ones.
        added: Vec<Arc<Table>>,
    },
    /// A table goes to another level.
    Moved {
        /// The table.
        table: Arc<Table>,
        /// The level, which is not level 0.
        level: usize,
        /// The table as a part of that level.
        moved: Arc<Table>,
    },
}

impl Change {
    /// Whether it neither adds nor takes away tables: the directory knows nothing of it.
    pub(super) fn is_of_memory(&self) -> bool {
        match self {
            Self::Flushed { tables, .. } => tables.is_empty(),
            Self::Merged { removed, added, .. } => removed.is_empty() && added.is_empty(),
            Self::Moved { .. } => false,
        }
    }

    /// What the directory gets of it.
    pub(super) fn for_directory(&self) -> VersionChange {
        let (removed, added) = match self {
            Self::Flushed { tables, .. } => (&[][..], &tables[..]),
            Self::Merged { removed, added, .. } => (&removed[..], &added[..]),
            Self::Moved { table, moved, .. } => {
                (std::slice::from_ref(table), std::slice::from_ref(moved))
            }
        };
        VersionChange {
            removed: removed.iter().map(|table| table.id()).collect(),
            added: added.iter().map(|table| table.placed()).collect(),
        }
    }
}

/// The sources of a tree.
#[derive(Clone, Debug)]
pub(super) struct TreeVersion {
    /// The MemTable that is written to.
    pub(super) active: Arc<MemTable>,
    /// Closed ones, the newest first.
    pub(super) immutables: Vec<Arc<MemTable>>,
    /// Level 0, the newest table first, then the others, whose tables ascend and do not overlap.
    pub(super) levels: Vec<Vec<Arc<Table>>>,
    /// The keys of the tree. Its tables can have others, which are not its own any more.
    pub(super) clip: Clip,
}

impl TreeVersion {
    pub(super) fn new(active: Arc<MemTable>, levels: usize, clip: Clip) -> Self {
        Self { active, immutables: Vec::new(), levels: vec![Vec::new(); levels + 1], clip }
    }

    /// Whether a table has only keys of the tree, in the tree's own memory.
    pub(super) fn owns_all_of(&self, table: &Table) -> bool {
        let meta = &table.meta;
        let is_within = |key: &KeyBuf| self.clip.has(key.key());
        is_within(&meta.smallest) && is_within(&meta.largest) && !table.lease.is_borrowed()
    }

    /// All MemTables, the newest first.
    pub(super) fn memtables(&self) -> impl Iterator<Item = &Arc<MemTable>> {
        std::iter::once(&self.active).chain(&self.immutables)
    }

    /// All tables, level by level.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.levels.iter().flatten()
    }

    /// The tables that may have `key`, in the order in which they are asked (V4).
    pub(super) fn tables_with<'v>(
        &'v self,
        key: Key<'v>,
    ) -> impl Iterator<Item = &'v Arc<Table>> + 'v {
        let (level0, others) = self.levels.split_first().expect("there is a level 0");
        let in_level = move |tables: &'v Vec<Arc<Table>>| {
            tables.get(tables.partition_point(|table| table.meta.largest.key() < key))
        };
        let asked = level0.iter().chain(others.iter().filter_map(in_level));
        asked.filter(move |table| table.meta.covers(key))
    }

    /// The same version without these tables, and with `added` in `level`, which is not level 0.
    pub(super) fn with_merged(
        &self,
        removed: &[Arc<Table>],
        level: usize,
        added: Vec<Arc<Table>>,
    ) -> Self {
        let mut next = self.clone();
        let is_removed = |table: &Arc<Table>| removed.iter().any(|gone| Arc::ptr_eq(gone, table));
        for tables in &mut next.levels {
            tables.retain(|table| !is_removed(table));
        }
        next.levels[level].extend(added);
        next.levels[level].sort_by(|one, other| one.meta.smallest.cmp(&other.meta.smallest));
        let apart = |pair: &[Arc<Table>]| pair[0].meta.largest < pair[1].meta.smallest;
        debug_assert!(next.levels[level].windows(2).all(apart), "tables of a level overlap");
        next
    }
}
