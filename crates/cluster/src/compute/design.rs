//! What a compute server needs of the index design that its cluster has.
//!
//! *Thread safety*: plain functions.

use super::ComputeServerOptions;
use crate::layouts::ClusterLayout;
use crate::text::Textual;
use farleaf_dex::blocks::BlockUsage;
use farleaf_dex::cache::{CacheOptions, DirtyStats};
use farleaf_dex::{Dex, DexOptions, DexServer};
use farleaf_dlsm::{
    DlsmServer, DlsmServerOptions, LsmShard, ShardedDlsm, ShardedOptions, TreeCounts,
};
use farleaf_fabric::sync::Arc;
use farleaf_index::{InTables, IndexError, Partitioned, ValueForm};
use farleaf_page::OwnedKey;

/// What the threads of a compute server share of its values.
pub(super) type SharedValues<L, D> = <<D as ClusterDesign<L>>::Values as ValueForm<L>>::Shared;

/// A design that a cluster can have.
pub(super) trait ClusterDesign<L: ClusterLayout>: Partitioned {
    /// How compute servers keep values.
    type Values: ValueForm<L>;

    /// Options of a new index with these boundaries between compute servers.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the boundaries leave no room for its shards.
    fn new_index(
        boundaries: Vec<OwnedKey<L>>,
        placement_level: u8,
        options: &ComputeServerOptions,
    ) -> Result<Self::Options<L>, IndexError>;

    /// Options of the compute server, and what its threads share of values.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if a setting is out of range.
    fn server(
        options: &ComputeServerOptions,
    ) -> Result<(Self::ServerOptions, SharedValues<L, Self>), IndexError>;

    /// Changes that are not written back to the memory servers.
    fn dirt(state: &Self::State<L>, now_ns: u64) -> DirtyStats;

    /// The space of value blocks, and the bytes of cached ones, if there are any.
    fn blocks_of(shared: &SharedValues<L, Self>) -> Option<(BlockUsage, u64)>;

    /// The LSM trees, if the design has any.
    fn trees(state: &Self::State<L>) -> Option<ServerTrees>;
}

/// The LSM trees of a compute server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerTrees {
    pub(super) shards: u64,
    pub(super) tables: u64,
    /// Of these, the ones in level 0.
    pub(super) level0_tables: u64,
    /// The most that one shard has in level 0.
    pub(super) most_level0_tables: u64,
    /// Number of levels below level 0 that have tables, in the shard with the most of them.
    pub(super) levels: u64,
    /// Bytes of records in all tables.
    pub(super) table_bytes: u64,
    /// Bytes of MemTables, and of the indexes of tables.
    pub(super) memtable_bytes: u64,
    pub(super) index_bytes: u64,
    /// Closed MemTables that wait for their flush.
    pub(super) waiting_memtables: u64,
    pub(super) running_compactions: u64,
    /// Flushes and merges that failed in the background.
    pub(super) failures: u64,
    pub(super) counts: TreeCounts,
}

impl<L: ClusterLayout> ClusterDesign<L> for Dex {
    type Values = L::Values;

    fn new_index(
        boundaries: Vec<OwnedKey<L>>,
        placement_level: u8,
        _options: &ComputeServerOptions,
    ) -> Result<DexOptions<OwnedKey<L>>, IndexError> {
        let with = DexOptions::with_boundaries(boundaries, CacheOptions::default());
        Ok(DexOptions { placement_level, ..with })
    }

    fn server(
        options: &ComputeServerOptions,
    ) -> Result<(CacheOptions, SharedValues<L, Self>), IndexError> {
        let ComputeServerOptions { cache, blocks, .. } = options;
        let of_values = cache.bytes / 100 * u64::from(L::cache_percent(blocks).min(100));
        let values = L::shared_values(blocks, of_values)?;
        Ok((CacheOptions { bytes: cache.bytes - of_values, ..*cache }, values))
    }

    fn dirt(state: &DexServer<L>, now_ns: u64) -> DirtyStats {
        state.cache().dirt(now_ns)
    }

    fn blocks_of(shared: &SharedValues<L, Self>) -> Option<(BlockUsage, u64)> {
        L::blocks_of(shared)
    }

    fn trees(_state: &DexServer<L>) -> Option<ServerTrees> {
        None
    }
}

impl<L: ClusterLayout> ClusterDesign<L> for ShardedDlsm {
    type Values = InTables;

    fn new_index(
        boundaries: Vec<OwnedKey<L>>,
        _placement_level: u8,
        options: &ComputeServerOptions,
    ) -> Result<ShardedOptions<OwnedKey<L>>, IndexError> {
        let few = IndexError::InvalidArgument(
            "a compute server has too few keys for its shards; use fewer of them",
        );
        let mut within = Vec::new();
        let mut low = L::min_key();
        for high in boundaries.iter().map(Some).chain([None]) {
            let parts = L::Key::divided(&low, high, options.shards).ok_or(few.clone())?;
            within.extend(parts);
            if let Some(high) = high {
                low.clone_from(high);
            }
        }
        let (server, ()) = <Self as ClusterDesign<L>>::server(options)?;
        let new = ShardedOptions { within, ..ShardedOptions::with_boundaries(boundaries, server) };
        // Otherwise the cluster would find this out while it creates the index, give that up, empty
        // its memory, and try again for ever.
        new.check::<L>(L::most_value_bytes())?;
        Ok(new)
    }

    /// Half of the memory is for MemTables. The rest is for the indexes of tables, which are not
    /// bounded.
    fn server(options: &ComputeServerOptions) -> Result<(DlsmServerOptions, ()), IndexError> {
        let tree = options.tree.clone();
        let memtable_bytes = Some(options.cache.bytes / 2);
        let longest_value = Some(L::most_value_bytes());
        let most_shards = options.most_shards;
        Ok((DlsmServerOptions { tree, memtable_bytes, longest_value, most_shards }, ()))
    }

    /// Nothing is written back by age.
    fn dirt(_state: &DlsmServer<L>, _now_ns: u64) -> DirtyStats {
        DirtyStats::default()
    }

    fn blocks_of((): &()) -> Option<(BlockUsage, u64)> {
        None
    }

    fn trees(state: &DlsmServer<L>) -> Option<ServerTrees> {
        let add = |mut all: ServerTrees, shard: &Arc<LsmShard>| {
            let (levels, counts) = (shard.levels(), shard.counts());
            let (memtables, indexes) = shard.local_bytes();
            all.shards += 1;
            let level0_tables = levels.first().map_or(0, |(tables, _)| *tables as u64);
            all.level0_tables += level0_tables;
            all.most_level0_tables = all.most_level0_tables.max(level0_tables);
            let deepest = levels.iter().rposition(|(tables, _)| *tables > 0);
            all.levels = all.levels.max(deepest.unwrap_or(0) as u64);
            all.waiting_memtables += shard.ranges().len() as u64 - 1;
            all.running_compactions += shard.running_compactions();
            all.failures += shard.failures();
            for (tables, bytes) in levels {
                all.tables += tables as u64;
                all.table_bytes += bytes;
            }
            all.memtable_bytes += memtables;
            all.index_bytes += indexes;
            all.counts += counts;
            all
        };
        Some(state.shards().iter().fold(ServerTrees::default(), add))
    }
}
