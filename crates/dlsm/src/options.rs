//! Options of an LSM tree.
//!
//! *Thread safety*: plain values.

use super::MemTableOptions;
use super::place::CompactionPlace;
use farleaf_index::IndexError;
use farleaf_page::table::{IndexKind, MAX_RUNS};

/// Maximum number of levels below level 0.
const MAX_LEVELS: usize = 12;
/// Maximum number of level-0 tables that a compaction in pieces takes: each keeps an extent until
/// the compaction ends.
pub(super) const MAX_LEVEL0: usize = 16;
/// Maximum number of concurrent compactions of a tree: a memory server runs as many.
const MAX_WORKERS: usize = 16;
/// The largest MemTable: its table, with its index, stays below the limit of tables.
const MAX_MEMTABLE_BYTES: usize = 1 << 30;

/// Options of an LSM tree. All compute servers of an index should have the same.
#[derive(Clone, Debug)]
pub struct DlsmOptions {
    /// The MemTables.
    pub memtable: MemTableOptions,
    /// Maximum number of closed MemTables that wait for their flush. One more stalls writers.
    pub most_immutables: usize,
    /// The kind of each table's index.
    pub index: IndexKind,
    /// Target size of the tables that compactions write, in bytes of records.
    pub table_bytes: u64,
    /// The size of an extent, in bytes.
    pub extent_bytes: u64,
    /// The size of the chunks that extents are cut from, in bytes.
    pub chunk_bytes: u64,
    /// Number of tables in level 0 from which on they are compacted into level 1.
    pub level0_tables: usize,
    /// Number of tables in level 0 that stalls writers until a compaction; at least
    /// `level0_tables`.
    pub level0_stop: usize,
    /// Size of level 1, in bytes, beyond which its tables are compacted into level 2.
    pub level1_bytes: u64,
    /// Size of each level, as a multiple of the one above.
    pub level_ratio: u64,
    /// Levels below level 0, from 1 to 12.
    pub levels: usize,
    /// Maximum number of concurrent writes of one compute server; others wait.
    pub writers: usize,
    /// Maximum number of concurrent compactions of the tree. Those on a memory server share its
    /// cores with requests, so choose fewer than it has.
    pub workers: usize,
    /// Number of removed records in tables that a scan may READ in vain. Beyond it, they are
    /// compacted at once.
    pub most_hidden: u64,
    /// Where compactions run.
    pub merges: CompactionPlace,
    /// Whether writers take turns in a queue, as those of RocksDB. For comparisons: only the
    /// simulator makes them wait.
    pub write_queue: bool,
}

impl Default for DlsmOptions {
    /// The paper's sizes with the compact index: MemTables and tables of 64 MiB.
    fn default() -> Self {
        Self {
            memtable: MemTableOptions::default(),
            most_immutables: 2,
            index: IndexKind::Compact,
            table_bytes: 64 << 20,
            extent_bytes: 1 << 20,
            chunk_bytes: 16 << 20,
            level0_tables: 4,
            level0_stop: 36,
            level1_bytes: 256 << 20,
            level_ratio: 10,
            levels: 6,
            writers: 1024,
            workers: 4,
            most_hidden: 512,
            merges: CompactionPlace::Compute,
            write_queue: false,
        }
    }
}

impl DlsmOptions {
    /// The same tree with tables of `bytes` bytes, and all other sizes in proportion.
    pub fn with_table_bytes(bytes: u64) -> Self {
        let whole = Self::default();
        let scaled = |size: u64, least: u64| {
            let scaled = u128::from(size) * u128::from(bytes) / u128::from(whole.table_bytes);
            (scaled as u64).max(least).next_multiple_of(least)
        };
        let memtable = MemTableOptions {
            bytes: scaled(whole.memtable.bytes as u64, 4096) as usize,
            filter_bytes: scaled(whole.memtable.filter_bytes as u64, 8) as usize,
            ..whole.memtable
        };
        Self {
            memtable,
            table_bytes: bytes,
            extent_bytes: scaled(whole.extent_bytes, 1024),
            chunk_bytes: scaled(whole.chunk_bytes, 1 << 16),
            level1_bytes: scaled(whole.level1_bytes, 1),
            ..whole
        }
    }

    /// Many levels from few records, for tests: MemTables are full and merges due all the time.
    pub fn tiny() -> Self {
        Self {
            memtable: MemTableOptions { bytes: 16 << 10, filter_bytes: 512, ..Default::default() },
            table_bytes: 6 << 10,
            extent_bytes: 2 << 10,
            chunk_bytes: 1 << 15,
            level0_tables: 3,
            level1_bytes: 24 << 10,
            level_ratio: 3,
            levels: 4,
            most_hidden: 32,
            ..Self::default()
        }
    }

    /// The bytes beyond which `level` is merged into the next one, from level 1 on.
    pub(super) fn level_bytes(&self, level: usize) -> u64 {
        let deeper = u32::try_from(level.saturating_sub(1)).unwrap_or(u32::MAX);
        self.level1_bytes.saturating_mul(self.level_ratio.saturating_pow(deeper))
    }

    /// Maximum number of extents of `extent_bytes` bytes that the flush of a MemTable takes (S1). A
    /// record takes less space in a table, with its part of the index, than in a MemTable, except
    /// with the paper's index, which has an entry for each record.
    pub(super) fn flush_extents(&self, memtable_bytes: usize, extent_bytes: u64) -> u64 {
        let memtable_bytes = memtable_bytes as u64;
        let bytes = match self.index {
            IndexKind::Compact | IndexKind::Blocks { .. } => memtable_bytes,
            IndexKind::Full { .. } => memtable_bytes + memtable_bytes / 2,
        };
        // The last extent of each table that it becomes is only partly filled.
        bytes.div_ceil(extent_bytes) + 1 + memtable_bytes / (2 * self.table_bytes)
    }

    /// Number of extents that compactions can count on (S2): enough for one output, and one for
    /// each source, whose first extent is freed only when all of it has been read.
    pub(super) fn compaction_extents(&self, extent_bytes: u64) -> u64 {
        let sources = MAX_LEVEL0 as u64 + 1;
        (self.table_bytes + self.table_bytes / 4).div_ceil(extent_bytes) + 4 + sources
    }

    /// How many words of `words` are left for the records of a table, if their index takes the
    /// rest.
    pub(super) fn records_part(&self, words: u64) -> u64 {
        match self.index {
            IndexKind::Compact | IndexKind::Blocks { .. } => words / 4 * 3,
            IndexKind::Full { .. } => words / 5 * 2,
        }
    }

    /// Number of extents to leave unused besides those reserved for flushes, while the active
    /// MemTable accepts every write: for a compaction, and for the flush of a MemTable that accepts
    /// only what shrinks the tree.
    pub(super) fn spare_extents(&self, memtable_bytes: usize, extent_bytes: u64) -> u64 {
        self.compaction_extents(extent_bytes) + self.flush_extents(memtable_bytes, extent_bytes)
    }

    /// The numbers of extents that bulk loads leave unused, and that compactions other than those
    /// in pieces do.
    pub(super) fn kept(&self, extent_bytes: u64) -> (u64, u64) {
        let spare = self.spare_extents(self.memtable.bytes, extent_bytes);
        (spare, self.compaction_extents(extent_bytes))
    }

    pub(super) fn check(&self) -> Result<(), IndexError> {
        let refused = |why| Err(IndexError::InvalidArgument(why));
        let memtable = self.memtable.bytes;
        if !(4096..=MAX_MEMTABLE_BYTES).contains(&memtable) || !memtable.is_multiple_of(4096) {
            return refused("a MemTable has 4 KiB to 1 GiB, in whole pages of 4 KiB");
        }
        if !(1024..=1 << 30).contains(&self.table_bytes) {
            return refused("tables have 1 KiB to 1 GiB");
        }
        if !(1024..=1 << 30).contains(&self.extent_bytes) {
            return refused("extents have 1 KiB to 1 GiB");
        }
        // Its extents need not be adjacent. A table is somewhat larger than its limit.
        if self.table_bytes / self.extent_bytes > MAX_RUNS as u64 / 4 {
            return refused("a table has at most 1,024 extents");
        }
        if !(1024..=1 << 34).contains(&self.chunk_bytes) {
            return refused("chunks of extents have 1 KiB to 16 GiB");
        }
        if !(1..=MAX_LEVELS).contains(&self.levels) || !(2..=100).contains(&self.level_ratio) {
            return refused(
                "a tree has 1 to 12 levels below level 0, each 2 to 100 times as large",
            );
        }
        if !(1..=100).contains(&self.level0_tables) || self.level1_bytes == 0 {
            return refused("level 0 has 1 to 100 tables, and level 1 has room");
        }
        if !(self.level0_tables..=1000).contains(&self.level0_stop) {
            return refused("writers wait at level0_tables to 1,000 tables in level 0");
        }
        if !(1..=64).contains(&self.most_immutables) {
            return refused("1 to 64 closed MemTables wait for their flush");
        }
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return refused("1 to 16 merges of a tree run at a time");
        }
        if self.most_hidden == 0 {
            return refused("a scan may READ a removed record");
        }
        if !(1..=1 << 16).contains(&self.writers) {
            return refused("1 to 65,536 operations write at a time");
        }
        Ok(())
    }
}
