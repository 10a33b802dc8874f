//! Options of an LSM tree.
//!
//! *Thread safety*: plain values.

use super::MemTableOptions;
use super::place::CompactionPlace;
use farleaf_index::{AcknowledgeName, IndexError, OptionSchema, design_options};
use farleaf_page::table::{IndexKind, MAX_RUNS};

/// Maximum number of level-0 tables that a compaction in pieces takes: each keeps an extent until
/// the compaction ends.
pub(super) const MAX_LEVEL0: usize = 16;

design_options! {
    /// Options of an LSM tree. All compute servers of an index should have the same. The defaults
    /// are the paper's sizes with the compact index: MemTables and tables of 64 MiB.
    #[derive(Clone, Debug, PartialEq)]
    pub struct DlsmOptions {
        /// Maximum number of closed MemTables that wait for their flush. One more stalls writers.
        pub most_immutables: usize = 2, in 1..=64;
        /// The kind of each table's index.
        pub index: IndexKind = IndexKind::Compact;
        /// Target size of the tables that compactions write, in bytes of records.
        pub table_bytes: u64 = 64 << 20, in 1_024..=1_073_741_824;
        /// The size of an extent, in bytes.
        pub extent_bytes: u64 = 1 << 20, in 1_024..=1_073_741_824;
        /// The size of the chunks that extents are cut from, in bytes.
        pub chunk_bytes: u64 = 16 << 20, in 1_024..=17_179_869_184;
        /// Number of tables in level 0 from which on they are compacted into level 1.
        pub level0_tables: usize = 4, in 1..=100;
        /// Number of tables in level 0 that stalls writers until a compaction; at least
        /// `level0_tables`.
        pub level0_stop: usize = 36, in 1..=1_000;
        /// Size of level 1, in bytes, beyond which its tables are compacted into level 2.
        pub level1_bytes: u64 = 256 << 20, in 1..=u64::MAX;
        /// Size of each level, as a multiple of the one above.
        pub level_ratio: u64 = 10, in 2..=100;
        /// Levels below level 0.
        pub levels: usize = 6, in 1..=12;
        /// Maximum number of concurrent writes of one compute server; others wait.
        pub writers: usize = 1024, in 1..=65_536;
        /// Maximum number of concurrent compactions of the tree. Those on a memory server share its
        /// cores with requests, so choose fewer than it has.
        pub workers as "merges_together": usize = 4, in 1..=16;
        /// Number of removed records in tables that a scan may READ in vain. Beyond it, they are
        /// compacted at once.
        pub most_hidden: u64 = 512, in 1..=u64::MAX;
        /// Where compactions run.
        pub merges: CompactionPlace = CompactionPlace::default();
        /// When changes are answered: when they are in a MemTable, or when they are in the
        /// write-ahead log. Only compute servers of an index of shards have a log.
        pub acknowledge: AcknowledgeName = AcknowledgeName::default();
        /// Size of the ring that each thread of a compute server has in the write-ahead log, in
        /// bytes. 0 for twice the MemTables of all shards, at most a 64th of the pool and 16 MiB.
        pub log_ring_bytes: u64 = 0, in 0..=1_073_741_824;
        /// Whether writers take turns in a queue, as those of RocksDB. For comparisons: only the
        /// simulator makes them wait.
        pub write_queue: bool = false;
    }
    with {
        /// The MemTables.
        pub memtable: MemTableOptions;
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
        self.check_bounds()?;
        if !self.memtable.bytes.is_multiple_of(4096) {
            return refused("a MemTable has whole pages of 4 KiB");
        }
        // Its extents need not be adjacent. A table is somewhat larger than its limit.
        if self.table_bytes / self.extent_bytes > MAX_RUNS as u64 / 4 {
            return refused("a table has at most 1,024 extents");
        }
        if self.level0_stop < self.level0_tables {
            return refused("writers wait at level0_tables or more tables in level 0");
        }
        Ok(())
    }
}
