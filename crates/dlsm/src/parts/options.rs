//! Options of an index with several shards.
//!
//! *Thread safety*: plain values.

use super::shard_map::ShardMap;
use crate::{DlsmOptions, MemTableOptions};
use farleaf_index::{BalanceOptions, Boundaries, Encoded, IndexError, PartitionOptions};
use farleaf_page::Layout;
use std::fmt::Debug;

/// Minimum size of a MemTable that a budget leads to, in bytes.
const MIN_MEMTABLE_BYTES: u64 = 64 << 10;
/// Bytes of a MemTable for each byte of its filter, as in the paper's sizes.
const FILTER_PART: u64 = 128;
/// Minimum number of extents in a chunk of a small shard. Chunks stay with their shard, so a mostly
/// empty one keeps memory from others.
const MIN_CHUNK_EXTENTS: u64 = 4;
/// The largest ring of a write-ahead log that options without a size lead to, in bytes.
const USUAL_RING_BYTES: u64 = 16 << 20;
/// Bytes of a record of the log, apart from its value: its key, and what is before it.
const RECORD_BYTES: u64 = 1 << 10;
/// A ring has at most one of this many parts of the pool.
const RING_PARTS: u64 = 64;
/// MemTables have whole pages.
const PAGE_BYTES: u64 = 4_096;

/// Bytes of the filter of a MemTable.
fn filter_bytes(memtable_bytes: u64) -> usize {
    (memtable_bytes / FILTER_PART).next_multiple_of(8) as usize
}

/// Options of one compute server.
#[derive(Clone, Debug, Default)]
pub struct DlsmServerOptions {
    /// The options of each of its trees.
    pub tree: DlsmOptions,
    /// Maximum memory of all of its MemTables with their filters, in bytes, apart from flushed ones
    /// that operations still read. Tables and levels shrink in proportion. If not set, each tree
    /// has MemTables of `tree.memtable`.
    pub memtable_bytes: Option<u64>,
    /// Length of the longest value, in bytes. With `memtable_bytes`, the compute server accepts
    /// shards from others as long as its MemTables can still hold such a value. If this is not set,
    /// it accepts them as long as it has no more shards than at its start.
    pub longest_value: Option<usize>,
    /// Maximum number of shards that the compute server may reach by splits. It splits a shard if
    /// keys from its middle are to move. With 0, shards move as a whole.
    pub most_shards: usize,
}

/// Minimum size of an extent that a small pool leads to, in bytes.
const MIN_EXTENT_BYTES: u64 = 4 << 10;
/// A MemTable, and with it a table, has at most one of this many parts of a pool.
const POOL_PARTS: u64 = 32;
/// A small pool has about this many extents.
const POOL_EXTENTS: u64 = 4_096;

impl DlsmServerOptions {
    /// The options for memory servers with `pool_bytes` bytes and an index of `shards` shards: in a
    /// small pool MemTables, tables and extents are small, so that what is kept for flushes and
    /// merges leaves most of it for tables. Extents depend on the pool alone, as all compute
    /// servers must have the same.
    pub(super) fn within(&self, pool_bytes: u64, shards: usize) -> Self {
        if self.memtable_bytes.is_none() {
            return self.clone();
        }
        let extent_bytes = (pool_bytes / POOL_EXTENTS).next_power_of_two();
        let extent_bytes = extent_bytes.max(MIN_EXTENT_BYTES).min(self.tree.extent_bytes);
        let tree = DlsmOptions { extent_bytes, ..self.tree.clone() };
        let part = pool_bytes / shards.max(1) as u64 / POOL_PARTS / PAGE_BYTES * PAGE_BYTES;
        let bytes = part.max(self.least_memtable_bytes()).min(tree.memtable.bytes as u64);
        Self { tree: with_memtables(&tree, bytes), ..self.clone() }
    }

    /// Minimum size of a MemTable, in bytes.
    fn least_memtable_bytes(&self) -> u64 {
        let longest = self.longest_value.unwrap_or(0) as u64;
        (longest * 4).next_multiple_of(PAGE_BYTES).max(MIN_MEMTABLE_BYTES)
    }

    /// The options of each tree of a compute server that begins with `shards` trees, but with the
    /// smallest MemTables that it may come to have.
    pub(super) fn smallest(&self, shards: usize) -> Result<DlsmOptions, IndexError> {
        let mut options = self.of_each(shards)?;
        // Shards that divisions will make have as small chunks.
        if let Ok(most) = self.of_each(self.most_shards.max(shards)) {
            options.chunk_bytes = most.chunk_bytes;
        }
        if let (Some(_), Some(_)) = (self.memtable_bytes, self.longest_value) {
            let bytes = self.least_memtable_bytes();
            options.memtable.bytes = options.memtable.bytes.min(bytes as usize);
            options.memtable.filter_bytes = filter_bytes(options.memtable.bytes as u64);
        }
        Ok(options)
    }

    /// The size of the rings of the write-ahead log, in bytes, for an index of `shards` shards. It
    /// does not depend on how many of them a compute server has, so that rings can stay. The
    /// longest record has a quarter of a ring.
    pub(super) fn ring_bytes(&self, pool_bytes: u64, shards: usize) -> u64 {
        let tree = &self.tree;
        let longest = self.longest_value.unwrap_or(tree.memtable.most_value_bytes()) as u64;
        let least = (4 * (longest + RECORD_BYTES)).next_multiple_of(PAGE_BYTES);
        let usual = 2 * tree.memtable.bytes as u64 * shards.max(1) as u64;
        let wanted = match tree.log_ring_bytes {
            0 => usual.min(USUAL_RING_BYTES).min(pool_bytes / RING_PARTS),
            bytes => bytes,
        };
        wanted.max(least) / PAGE_BYTES * PAGE_BYTES
    }

    /// Whether each of `shards` trees takes values of `value_bytes` bytes.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the memory is too small for that.
    pub(super) fn check(&self, shards: usize, value_bytes: usize) -> Result<(), IndexError> {
        match self.of_each(shards)?.memtable.most_value_bytes() >= value_bytes {
            true => Ok(()),
            false => Err(IndexError::InvalidArgument(
                "too little memory for MemTables: the longest value takes more than a quarter of a \
                 MemTable; give the compute server more, or divide its keys into fewer shards",
            )),
        }
    }

    /// The options of each of `shards` trees.
    pub(super) fn of_each(&self, shards: usize) -> Result<DlsmOptions, IndexError> {
        let Some(all) = self.memtable_bytes else { return Ok(self.tree.clone()) };
        let tables = shards.max(1) as u64 * (1 + self.tree.most_immutables as u64);
        let with_filter = all / tables;
        let bytes = with_filter - with_filter.div_ceil(FILTER_PART + 1);
        let bytes = (bytes / PAGE_BYTES * PAGE_BYTES).min(self.tree.memtable.bytes as u64);
        if bytes < MIN_MEMTABLE_BYTES {
            return Err(IndexError::InvalidArgument(
                "too little memory for MemTables: each shard needs several of 64 KiB; give the \
                 compute server more, or divide its keys into fewer shards",
            ));
        }
        Ok(with_memtables(&self.tree, bytes))
    }
}

/// The same tree with MemTables of `bytes` bytes: tables, levels and chunks have the proportions
/// that they have with the usual MemTables. Extents keep their size, which is the index's.
fn with_memtables(tree: &DlsmOptions, bytes: u64) -> DlsmOptions {
    let filter_bytes = filter_bytes(bytes);
    let whole = u128::from(tree.memtable.bytes as u64);
    let scaled = |size: u64| (u128::from(size) * u128::from(bytes) / whole) as u64;
    DlsmOptions {
        memtable: MemTableOptions { bytes: bytes as usize, filter_bytes, ..tree.memtable },
        table_bytes: scaled(tree.table_bytes).max(tree.extent_bytes),
        level1_bytes: scaled(tree.level1_bytes).max(1),
        chunk_bytes: scaled(tree.chunk_bytes)
            .max(MIN_CHUNK_EXTENTS * tree.extent_bytes)
            .min(tree.chunk_bytes),
        ..tree.clone()
    }
}

/// Options of a new index.
#[derive(Clone, Debug)]
pub struct ShardedOptions<K> {
    /// The low ends of the compute servers' ranges, without the first one; strictly ascending.
    pub boundaries: Vec<K>,
    /// Further keys at which shards begin. Each compute server has one shard more than there are of
    /// these in its range.
    pub within: Vec<K>,
    /// The options of each compute server.
    pub server: DlsmServerOptions,
    /// How a balancer samples load, and when it moves shards.
    pub balance: BalanceOptions,
}

impl<K> ShardedOptions<K> {
    /// An index with these boundaries between compute servers, each with one shard.
    pub fn with_boundaries(boundaries: Vec<K>, server: DlsmServerOptions) -> Self {
        Self { boundaries, within: Vec::new(), server, balance: BalanceOptions::default() }
    }
}

impl<K: Ord> ShardedOptions<K> {
    /// Whether an index can be created with these options, and takes values of `value_bytes` bytes.
    /// Call it before anything depends on that.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if a setting is out of range: there are too many shards,
    /// their boundaries are too long or do not ascend, or a compute server's memory is too small
    /// for its shards.
    pub fn check<L: Layout>(&self, value_bytes: usize) -> Result<(), IndexError>
    where
        L::Key: ToOwned<Owned = K>,
    {
        self.map::<L>()?;
        let mut shards = vec![1; self.boundaries.len() + 1];
        for low in &self.within {
            shards[self.boundaries.partition_point(|boundary| boundary <= low)] += 1;
        }
        shards.into_iter().try_for_each(|shards| self.server.check(shards, value_bytes))
    }

    /// The map of the shards.
    pub(super) fn map<L: Layout>(&self) -> Result<ShardMap, IndexError>
    where
        L::Key: ToOwned<Owned = K>,
    {
        self.server.tree.check()?;
        let mut keys: Vec<_> = self.boundaries.iter().chain(&self.within).collect();
        keys.sort_unstable();
        let lowest = L::min_key();
        if keys.first().is_some_and(|first| **first <= lowest) {
            return Err(IndexError::InvalidArgument("no shard is below the lowest key"));
        }
        ShardMap::new(keys.into_iter().map(L::Key::of_owned).collect())
    }
}

impl<K: Clone + Debug + Send + Sync> PartitionOptions<K> for ShardedOptions<K> {
    type ServerOptions = DlsmServerOptions;

    fn boundaries(&self) -> &[K] {
        &self.boundaries
    }

    fn spare_compute_servers(&self) -> u16 {
        0
    }

    fn spare_memory_servers(&self) -> u16 {
        0
    }

    fn balance(&self) -> &BalanceOptions {
        &self.balance
    }

    fn at_load(&self) -> Boundaries {
        Boundaries::Kept
    }

    fn server(&self) -> &DlsmServerOptions {
        &self.server
    }

    fn check_moves(&self) -> Result<(), IndexError> {
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// With MemTables by the compute server's memory alone, three of them took most of a pool of
    /// 48 MiB, and compactions had no memory.
    #[test]
    fn a_small_pool_has_small_memtables() {
        let options = DlsmServerOptions {
            memtable_bytes: Some(32 << 20),
            longest_value: Some(60 << 10),
            ..DlsmServerOptions::default()
        };
        for (pool_bytes, shards) in [(48 << 20, 1), (48 << 20, 4), (1 << 30, 1)] {
            let each = options.within(pool_bytes, shards).of_each(shards).unwrap();
            each.check().unwrap();
            let kept = each.spare_extents(each.memtable.bytes, each.extent_bytes);
            let memtables = 3 * each.flush_extents(each.memtable.bytes, each.extent_bytes);
            let all = (kept + memtables) * each.extent_bytes * shards as u64;
            assert!(all <= pool_bytes / 5, "{all} bytes of {pool_bytes} for {shards} shards");
        }
        let tiny = options.within(1 << 20, 16).of_each(16).unwrap();
        assert_eq!(tiny.memtable.bytes, 240 << 10, "the longest value has room");
        let large = options.within(1 << 40, 1).of_each(1).unwrap();
        assert_eq!(large.memtable, options.of_each(1).unwrap().memtable);
        assert_eq!(large.extent_bytes, 1 << 20);
    }

    #[test]
    fn shards_share_a_budget() {
        let tree = DlsmOptions::default();
        let most = 1 + tree.most_immutables as u64;
        let options = DlsmServerOptions {
            tree,
            memtable_bytes: Some(96 << 20),
            ..DlsmServerOptions::default()
        };
        for shards in [1, 4, 16] {
            let memtable = options.of_each(shards).unwrap().memtable;
            let each = (memtable.bytes + memtable.filter_bytes) as u64;
            let all = shards as u64 * most * each;
            assert!(all <= 96 << 20, "{shards} shards have {all} bytes");
            assert!(all > 90 << 20, "{shards} shards have only {all} bytes");
            let of_each = options.of_each(shards).unwrap();
            assert_eq!(of_each.level1_bytes / of_each.memtable.bytes as u64, 4);
            of_each.check().unwrap();
        }
        assert!(options.of_each(1_000).is_err());
        let none = DlsmServerOptions { memtable_bytes: None, ..options.clone() };
        assert_eq!(none.of_each(1_000).unwrap().memtable, MemTableOptions::default());
    }
}
