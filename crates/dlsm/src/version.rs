//! What a tree consists of at one moment: its MemTables and tables.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.V1. A version never changes. An operation pins one as long as it runs, and a pinned
//!   version keeps its tables and MemTables.
//! - lsm.V4. Of the versions of a key, the newer one is in the source that comes first: the active
//!   MemTable, closed ones from the newest on, level 0 from the newest table on, the other levels.
//!
//! - A table of which a compaction has taken a part begins at the first key that is left. Its
//!   extents before that key are given back.
//!
//! *Thread safety*: plain values; shared as they are.

use super::MemTable;
use crate::remote::ExtentLease;
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::Arc;
use farleaf_page::table::{
    DamagedSsTable, ExtentRun, KeyBuf, PlacedSsTable, SsTableClip, SsTableIndex, SsTableMeta,
    TableKey, VersionChange,
};

/// Which writes the active MemTable accepts, by the extents that are reserved for its flush and for
/// compactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Intake {
    /// None: no extents are reserved for its flush.
    Nothing,
    /// Operations after which the tree, once compacted, has no more bytes than before.
    Shrinking,
    /// Every write.
    Everything,
}

/// What became of a MemTable that no longer takes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwitchOutcome {
    /// This call added the next one.
    Here,
    /// Another call added it.
    Before,
    /// A write stall: too many closed MemTables wait for their flush, or level 0 has too many
    /// tables.
    NoRoom,
    /// There are no extents for the flush of the next one.
    NoSpace,
}

/// A table in the memory pool, as its compute server knows it.
#[derive(Debug)]
pub(super) struct SsTable {
    pub(super) meta: SsTableMeta,
    pub(super) index: Arc<SsTableIndex>,
    /// Where it lies. Its extents are given back when no version has the table (K2).
    pub(super) lease: Arc<ExtentLease>,
}

impl SsTable {
    pub(super) fn id(&self) -> u64 {
        self.meta.footer.table
    }

    /// The same table, in another level.
    pub(super) fn in_level(&self, level: usize) -> Self {
        let meta = SsTableMeta { level: level as u8, ..self.meta.clone() };
        Self { meta, index: Arc::clone(&self.index), lease: Arc::clone(&self.lease) }
    }

    /// The table from its key `next` on. Gives up the extents that have lower keys only, unless
    /// `is_shared`: other shards then use all of them (S3).
    pub(super) fn starting_at(
        &self,
        next: &KeyBuf,
        is_shared: bool,
    ) -> Result<Self, DamagedSsTable> {
        let words = self.index.seek(next.key())?;
        let lease = match is_shared || self.lease.is_borrowed() {
            true => Arc::clone(&self.lease),
            false => Arc::new(self.lease.behind(u64::from(words) * 8)),
        };
        let from = SsTableClip { lower: Some(next.clone()), upper: None };
        let run = |(first, count)| ExtentRun { first, count };
        let meta = SsTableMeta {
            smallest: next.clone(),
            clip: self.meta.clip.within(&from),
            extents: lease.runs().into_iter().map(run).collect(),
            ..self.meta.clone()
        };
        Ok(Self { meta, index: Arc::clone(&self.index), lease })
    }

    /// Its words that are still there, in pieces of adjacent memory.
    pub(super) fn pieces(&self, words: u64) -> Vec<(GlobalAddr, u64)> {
        let skipped = self.lease.skipped_bytes() / 8;
        self.lease.pieces(skipped, words.saturating_sub(skipped), u64::MAX)
    }

    /// Whether compactions have taken a part of it.
    pub(super) fn is_part(&self) -> bool {
        self.meta.clip.lower.is_some()
    }

    /// What the directory keeps of it.
    fn placed(&self) -> PlacedSsTable {
        let skipped = self.lease.skipped_bytes();
        let pieces = self.pieces((skipped + self.lease.bytes()) / 8).into_iter();
        let meta = SsTableMeta { extents: Vec::new(), ..self.meta.clone() };
        PlacedSsTable {
            meta,
            pieces: pieces.map(|(at, words)| (at.to_bits(), words * 8)).collect(),
        }
    }

    /// Bytes of its records that are still there.
    pub(super) fn bytes(&self) -> u64 {
        (u64::from(self.meta.footer.data_words) * 8).saturating_sub(self.lease.skipped_bytes())
    }
}

/// A change of a version.
#[derive(Debug)]
pub(super) enum TreeChange {
    /// A flush: tables replace a MemTable, in level 0.
    Flushed {
        /// The MemTable, which is closed.
        memtable: Arc<MemTable>,
        /// The tables.
        tables: Vec<Arc<SsTable>>,
    },
    /// A compaction: tables replace others.
    Merged {
        /// The tables that are replaced.
        removed: Vec<Arc<SsTable>>,
        /// The level of the new tables, which is not level 0.
        level: usize,
        /// The new tables.
        added: Vec<Arc<SsTable>>,
        /// Tables of which a part was merged, with what is left of each, in its level.
        parts: Vec<(Arc<SsTable>, Arc<SsTable>)>,
    },
    /// A table moves to another level without being rewritten.
    Moved {
        /// The table.
        table: Arc<SsTable>,
        /// The level, which is not level 0.
        level: usize,
        /// The table as a part of that level.
        moved: Arc<SsTable>,
    },
}

impl TreeChange {
    /// Whether it neither adds nor removes tables, so that the directory need not know of it.
    pub(super) fn is_of_memory(&self) -> bool {
        match self {
            Self::Flushed { tables, .. } => tables.is_empty(),
            Self::Merged { removed, added, parts, .. } => {
                removed.is_empty() && added.is_empty() && parts.is_empty()
            }
            Self::Moved { .. } => false,
        }
    }

    /// The change as an edit of the directory (the manifest).
    pub(super) fn for_directory(&self) -> VersionChange {
        let (removed, added, parts) = match self {
            Self::Flushed { tables, .. } => (&[][..], &tables[..], &[][..]),
            Self::Merged { removed, added, parts, .. } => (&removed[..], &added[..], &parts[..]),
            Self::Moved { table, moved, .. } => {
                (std::slice::from_ref(table), std::slice::from_ref(moved), &[][..])
            }
        };
        let removed = removed.iter().chain(parts.iter().map(|(whole, _)| whole));
        let added = added.iter().chain(parts.iter().map(|(_, part)| part));
        VersionChange {
            removed: removed.map(|table| table.id()).collect(),
            added: added.map(|table| table.placed()).collect(),
        }
    }
}

/// The sources of a tree.
#[derive(Clone, Debug)]
pub(super) struct TreeVersion {
    /// The MemTable that takes the writes.
    pub(super) active: Arc<MemTable>,
    /// Which writes `active` accepts.
    pub(super) takes: Intake,
    /// Closed MemTables, the newest first.
    pub(super) immutables: Vec<Arc<MemTable>>,
    /// Level 0, the newest table first, then the others, whose tables ascend and do not overlap.
    pub(super) levels: Vec<Vec<Arc<SsTable>>>,
    /// The key range of the tree. After a split, its tables can have other keys, which belong to
    /// another shard.
    pub(super) clip: SsTableClip,
}

impl TreeVersion {
    pub(super) fn new(active: Arc<MemTable>, levels: usize, clip: SsTableClip) -> Self {
        let levels = vec![Vec::new(); levels + 1];
        Self { active, takes: Intake::Nothing, immutables: Vec::new(), levels, clip }
    }

    /// Whether a table has only keys of the tree, in the tree's own memory.
    pub(super) fn owns_all_of(&self, table: &SsTable) -> bool {
        let meta = &table.meta;
        let is_within = |key: &KeyBuf| self.clip.has(key.key());
        is_within(&meta.smallest) && is_within(&meta.largest) && !table.lease.is_borrowed()
    }

    /// All MemTables, the newest first.
    pub(super) fn memtables(&self) -> impl Iterator<Item = &Arc<MemTable>> {
        std::iter::once(&self.active).chain(&self.immutables)
    }

    /// All tables, level by level.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Arc<SsTable>> {
        self.levels.iter().flatten()
    }

    /// The tables that may have `key`, in the order in which they are asked (V4).
    pub(super) fn tables_with<'v>(
        &'v self,
        key: TableKey<'v>,
    ) -> impl Iterator<Item = &'v Arc<SsTable>> + 'v {
        let (level0, others) = self.levels.split_first().expect("there is a level 0");
        let in_level = move |tables: &'v Vec<Arc<SsTable>>| {
            tables.get(tables.partition_point(|table| table.meta.largest.key() < key))
        };
        let asked = level0.iter().chain(others.iter().filter_map(in_level));
        asked.filter(move |table| table.meta.covers(key))
    }

    /// The same version with parts of tables in the place of the whole ones.
    pub(super) fn with_parts(&self, parts: &[(Arc<SsTable>, Arc<SsTable>)]) -> Self {
        let mut next = self.clone();
        for table in next.levels.iter_mut().flatten() {
            if let Some((_, part)) = parts.iter().find(|(whole, _)| Arc::ptr_eq(whole, table)) {
                *table = Arc::clone(part);
            }
        }
        next
    }

    /// The same version without these tables, and with `added` in `level`, which is not level 0.
    pub(super) fn with_merged(
        &self,
        removed: &[Arc<SsTable>],
        level: usize,
        added: Vec<Arc<SsTable>>,
    ) -> Self {
        let mut next = self.clone();
        let is_removed = |table: &Arc<SsTable>| removed.iter().any(|gone| Arc::ptr_eq(gone, table));
        for tables in &mut next.levels {
            tables.retain(|table| !is_removed(table));
        }
        next.levels[level].extend(added);
        next.levels[level].sort_by(|one, other| one.meta.smallest.cmp(&other.meta.smallest));
        let apart = |pair: &[Arc<SsTable>]| pair[0].meta.largest < pair[1].meta.smallest;
        debug_assert!(next.levels[level].windows(2).all(apart), "tables of a level overlap");
        next
    }
}
