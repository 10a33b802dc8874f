//! The initial state of a run: the options of its index, its simulated cluster, and memory servers
//! with the empty index.
//!
//! *Thread safety*: plain functions.

use crate::scenario::{DesignSpec, MergesSpec, PartitioningSpec, Scenario, TableIndexSpec};
use crate::spread::SpreadNames;
use crate::workload;
use farleaf_designs::CompiledDesign;
use farleaf_dex::DexOptions;
use farleaf_dex::blocks::BlockOptions;
use farleaf_dex::cache::CacheOptions;
use farleaf_dlsm::{
    CompactionPlace, DlsmOptions, DlsmServerOptions, MemTableOptions, ShardedOptions,
};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{AnyFabric, Cluster, Provider, ServerId};
use farleaf_index::partition::MAX_MOVE_NS;
use farleaf_index::{AnyDesign, BalanceOptions, IndexError, Naming};
use farleaf_page::table::IndexKind;
use farleaf_page::{Layout, NamedLayout, OwnedKey};
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_trees::coarse::{CoarseOptions, Partitioning};
use farleaf_trees::fine::FineOptions;
use farleaf_trees::hybrid::HybridOptions;
use farleaf_trees::one_sided::entrywise::EntrywiseOptions;
use farleaf_trees::smart::{PSmart, PSmartOptions, Smart, SmartOptions};
use rand::RngExt;

pub(crate) fn coarse_options<L: NamedLayout>(
    scenario: &Scenario,
    partitioning: PartitioningSpec,
) -> CoarseOptions<OwnedKey<L>> {
    let servers = scenario.cluster.memory_servers;
    let partitioning = match partitioning {
        PartitioningSpec::Hash => Partitioning::Hash,
        PartitioningSpec::Range => {
            let names = workload::boundaries(&scenario.workload, servers);
            Partitioning::Range { boundaries: names.into_iter().map(L::key_named).collect() }
        }
    };
    CoarseOptions { partitioning }
}

pub(crate) fn hybrid_options<L: NamedLayout>(
    scenario: &Scenario,
    chunk_nodes_log2: u8,
) -> HybridOptions<OwnedKey<L>> {
    let names = workload::boundaries(&scenario.workload, scenario.cluster.memory_servers);
    let boundaries = names.into_iter().map(L::key_named).collect();
    HybridOptions { chunk_nodes_log2, ..HybridOptions::with_boundaries(boundaries) }
}

pub(crate) fn fine_options(chunk_nodes_log2: u8, leaves_per_head: u16) -> FineOptions {
    FineOptions { chunk_nodes_log2, leaves_per_head, ..FineOptions::default() }
}

pub(crate) fn entrywise_options<L: Layout>(
    chunk_nodes_log2: u8,
    cache_nodes: u32,
    hand_overs: u32,
) -> EntrywiseOptions {
    let cache_bytes = u64::from(cache_nodes) * L::page_words() as u64 * 8;
    EntrywiseOptions { chunk_nodes_log2, cache_bytes, hand_overs, by_versions: false }
}

pub(crate) fn smart_design<L>(scenario: &Scenario) -> Result<AnyDesign<L>, String>
where
    L: NamedLayout + CompiledDesign<Smart> + CompiledDesign<PSmart>,
{
    let DesignSpec::Smart { chunk_bytes, cache_bytes, spread, combines, divided } = scenario.design
    else {
        return Err("the scenario's design is not smart".to_owned());
    };
    let smart = SmartOptions { chunk_bytes, cache_bytes, combines };
    if !divided {
        return Ok(<L as CompiledDesign<Smart>>::design(smart));
    }
    let names = workload::boundaries(&scenario.workload, scenario.cluster.compute_servers);
    let key = |name| <SpreadNames as Naming<L>>::key_named(&SpreadNames { spread }, name);
    let boundaries = names.into_iter().map(key).collect();
    Ok(<L as CompiledDesign<PSmart>>::design(PSmartOptions { smart, boundaries }))
}

pub(crate) fn dex_options<L: NamedLayout>(
    scenario: &Scenario,
) -> Result<DexOptions<OwnedKey<L>>, String> {
    let DesignSpec::Dex {
        chunk_nodes_log2,
        placement_level,
        cache_frames,
        admission,
        cooling,
        cooling_percent,
        victims,
        offload,
        spare_compute_servers,
        spare_memory_servers,
        balance_window_ns,
        write_back_ns,
        acknowledge,
        ..
    } = scenario.design
    else {
        return Err("the scenario's design is not dex".to_owned());
    };
    let cache = CacheOptions {
        bytes: u64::from(cache_frames) * L::page_words() as u64 * 8,
        admission,
        cooling,
        cooling_percent,
        victims,
        offload,
        write_back_ns,
        acknowledge,
        ..CacheOptions::default()
    };
    let names = workload::boundaries(&scenario.workload, scenario.cluster.compute_servers);
    let boundaries = names.into_iter().map(L::key_named).collect();
    let options = DexOptions::with_boundaries(boundaries, cache);
    // Runs are short: sample every operation, and act after a single window.
    let balance = BalanceOptions {
        one_in: 1,
        window_ns: balance_window_ns,
        least_samples: 16,
        windows: 1,
        rest_windows: 0,
        no_return_windows: 1,
        ..BalanceOptions::default()
    };
    Ok(DexOptions {
        chunk_nodes_log2,
        placement_level,
        spare_compute_servers,
        spare_memory_servers,
        balance,
        ..options
    })
}

/// The size of an extent. A chunk has four.
const EXTENT_BYTES: u64 = 1_024;

pub(crate) fn dlsm_options(scenario: &Scenario) -> Result<DlsmOptions, String> {
    let DesignSpec::Dlsm {
        memtable_bytes,
        memtable_numbers,
        most_immutables,
        index,
        table_bytes,
        level0_tables,
        level1_bytes,
        level_ratio,
        levels,
        writers,
        merges_together,
        merges,
        ..
    } = scenario.design
    else {
        return Err("the scenario's design is not dlsm".to_owned());
    };
    Ok(DlsmOptions {
        memtable: MemTableOptions {
            bytes: memtable_bytes,
            most_numbers: if memtable_numbers == 0 { u64::MAX } else { memtable_numbers },
            filter_bytes: 64,
        },
        most_immutables,
        index: match index {
            TableIndexSpec::Compact => IndexKind::Compact,
            TableIndexSpec::Full => IndexKind::Full { bloom_bits: 10 },
            TableIndexSpec::Blocks => IndexKind::Blocks { block_bytes: 256, bloom_bits: 10 },
        },
        table_bytes,
        extent_bytes: EXTENT_BYTES,
        chunk_bytes: 4 * EXTENT_BYTES,
        level0_tables,
        level0_stop: 2 * level0_tables,
        level1_bytes,
        level_ratio,
        levels,
        writers,
        workers: merges_together,
        most_hidden: 16,
        merges: match merges {
            MergesSpec::Compute => CompactionPlace::Compute,
            MergesSpec::Memory => CompactionPlace::Memory,
            MergesSpec::ByCost => CompactionPlace::ByCost,
        },
        write_queue: false,
    })
}

/// Equal parts of the scenario's key space for the compute servers, each in equal shards.
pub(crate) fn sharded_options<L: NamedLayout>(
    scenario: &Scenario,
) -> Result<ShardedOptions<OwnedKey<L>>, String> {
    let DesignSpec::Dlsm { shards: shards @ 1.., most_shards, .. } = scenario.design else {
        return Err("the scenario's design has no shards".to_owned());
    };
    let servers = scenario.cluster.compute_servers;
    let lows = |parts| workload::boundaries(&scenario.workload, parts).into_iter();
    let boundaries: Vec<_> = lows(servers).map(L::key_named).collect();
    let within = lows(servers * shards).map(L::key_named);
    let within = within.filter(|low| !boundaries.contains(low)).collect();
    let server =
        DlsmServerOptions { tree: dlsm_options(scenario)?, most_shards, ..Default::default() };
    Ok(ShardedOptions { within, ..ShardedOptions::with_boundaries(boundaries, server) })
}

/// Options with value blocks. Few blocks are cached, and lost blocks are reused soon.
pub(crate) fn block_options<O>(inline_bytes: usize, design: O) -> BlockOptions<O> {
    BlockOptions {
        inline_bytes,
        cache_bytes: 1_000,
        chunk_bytes: 4_096,
        most_lost: 3,
        ..BlockOptions::new(design)
    }
}

/// Memory servers, by number.
pub(crate) type SimServers<L> = Vec<Arc<MemoryServer<L>>>;

/// Starts the memory servers and creates the empty index on them.
pub(crate) fn start<L: Layout>(
    scenario: &Scenario,
    create: impl AsyncFn(&AnyFabric) -> Result<(), IndexError> + Sync,
) -> Result<SimServers<L>, String> {
    let cluster = &scenario.cluster;
    let config = MemoryServerConfig {
        pool_bytes: cluster.pool_bytes,
        chunk_bytes: cluster.chunk_bytes,
        ..MemoryServerConfig::default()
    };
    let servers: SimServers<L> = (0..cluster.memory_servers)
        .map(|number| MemoryServer::new(ServerId::new(number), &config).map(Arc::new))
        .collect::<Result<_, _>>()
        .map_err(|error| format!("cannot start the memory servers: {error}"))?;
    let created: Result<(), IndexError> =
        LocalConfig::default().start(servers.clone()).run_one(async |fabric| create(&fabric).await);
    created.map_err(|error| format!("the index cannot be created: {error}"))?;
    Ok(servers)
}

/// The configuration of a run's simulated cluster.
pub(crate) fn sim_config(scenario: &Scenario, rng: &mut impl RngExt) -> SimConfig {
    SimConfig {
        seed: rng.random(),
        network: scenario.network.model(),
        cost: scenario.cost(|limit| rng.random_range(0..=limit)),
        cores_per_memory_server: scenario.cluster.cores_per_memory_server,
        faults: scenario
            .faults
            .faults(scenario.cluster.compute_servers, |limit| rng.random_range(0..=limit)),
        broken: scenario.canary.as_ref().map(|canary| canary.0.rule),
        give_up_after_ns: give_up_after_ns(scenario),
        ..SimConfig::default()
    }
}

/// If nothing makes operations slow, a run counts as an endless loop after this much virtual time
/// without a completed operation, in nanoseconds. An endless loop reaches this limit after seconds
/// of real time.
const GIVE_UP_AFTER_NS: u64 = 4_000_000_000;

/// The limit for a scenario, at least [`GIVE_UP_AFTER_NS`]. Operations may wait for moving keys as
/// long as the index permits, and a lost memory server can stop a move. A collection of the whole
/// tree repeats each lost message after a timeout.
fn give_up_after_ns(scenario: &Scenario) -> u64 {
    let faults = &scenario.faults;
    let moves = matches!(scenario.design, DesignSpec::Dex { moves: 1.., .. });
    let loses = !faults.kill_memory_server.is_empty() || !faults.restart_memory_server.is_empty();
    let moving_ns = if moves && loses { MAX_MOVE_NS } else { 0 };
    let waits_ns = scenario.processes.as_ref().map_or(0, |spec| spec.deadline_ns);
    let lossy = (GIVE_UP_AFTER_NS as f64 * 10.0 * faults.drop_probability) as u64;
    GIVE_UP_AFTER_NS + moving_ns + waits_ns + lossy
}
