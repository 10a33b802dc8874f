//! The initial state of a run: the options of its index, its simulated cluster, and memory servers
//! with the empty index.
//!
//! *Thread safety*: plain functions.

use crate::scenario::{DesignSpec, KeysSpec, Scenario};
use crate::spread::SpreadNames;
use crate::workload;
use farleaf_designs::CompiledDesign;
use farleaf_dex::DexOptions;
use farleaf_dex::blocks::BlockOptions;
use farleaf_dlsm::{DlsmOptions, DlsmServerOptions, ShardedOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{AnyFabric, Cluster, Provider, ServerId};
use farleaf_index::partition::MAX_MOVE_NS;
use farleaf_index::{AnyDesign, IndexError, Naming};
use farleaf_page::{Layout, NamedLayout, OwnedKey};
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_trees::one_sided::entrywise::EntrywiseOptions;
use farleaf_trees::smart::{PSmart, PSmartOptions, Smart};
use rand::RngExt;

/// The low ends of equal parts of the key space, without the first one.
pub(crate) fn boundaries<L: NamedLayout>(scenario: &Scenario, parts: u16) -> Vec<OwnedKey<L>> {
    let names = workload::boundaries(&scenario.workload, parts);
    names.into_iter().map(L::key_named).collect()
}

pub(crate) fn entrywise_options<L: Layout>(
    tree: EntrywiseOptions,
    cache_nodes: Option<u32>,
) -> EntrywiseOptions {
    let cache_bytes = pages::<L>(cache_nodes).unwrap_or(tree.cache_bytes);
    EntrywiseOptions { cache_bytes, ..tree }
}

/// The bytes of this many pages.
fn pages<L: Layout>(pages: Option<u32>) -> Option<u64> {
    pages.map(|pages| u64::from(pages) * L::page_words() as u64 * 8)
}

pub(crate) fn smart_design<L>(scenario: &Scenario) -> Result<AnyDesign<L>, String>
where
    L: NamedLayout + CompiledDesign<Smart> + CompiledDesign<PSmart>,
{
    let DesignSpec::Smart { spread, divided, tree: smart } = scenario.design else {
        return Err("the scenario's design is not smart".to_owned());
    };
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
    let DesignSpec::Dex { cache_frames, spare_compute_servers, spare_memory_servers, tree, .. } =
        &scenario.design
    else {
        return Err("the scenario's design is not dex".to_owned());
    };
    let boundaries = boundaries::<L>(scenario, scenario.cluster.compute_servers);
    let mut options = tree.clone().divided(boundaries);
    options.cache.bytes = pages::<L>(*cache_frames).unwrap_or(options.cache.bytes);
    options.spare_compute_servers = *spare_compute_servers;
    options.spare_memory_servers = *spare_memory_servers;
    Ok(options)
}

pub(crate) fn dlsm_options(scenario: &Scenario) -> Result<DlsmOptions, String> {
    let DesignSpec::Dlsm { tree, .. } = &scenario.design else {
        return Err("the scenario's design is not dlsm".to_owned());
    };
    let level0_stop = match tree.level0_stop {
        0 => 2 * tree.level0_tables,
        tables => tables,
    };
    Ok(DlsmOptions { level0_stop, ..tree.clone() })
}

/// Equal parts of the scenario's key space for the compute servers, each in equal shards.
pub(crate) fn sharded_options<L: NamedLayout>(
    scenario: &Scenario,
) -> Result<ShardedOptions<OwnedKey<L>>, String> {
    let DesignSpec::Dlsm { shards: shards @ 1.., most_shards, .. } = scenario.design else {
        return Err("the scenario's design has no shards".to_owned());
    };
    let servers = scenario.cluster.compute_servers;
    let within = boundaries::<L>(scenario, servers * shards).into_iter();
    let boundaries = boundaries::<L>(scenario, servers);
    let within = within.filter(|low| !boundaries.contains(low)).collect();
    let longest_value = match scenario.cluster.keys {
        KeysSpec::U64 => Some(8),
        KeysSpec::Bytes => None,
    };
    let tree = dlsm_options(scenario)?;
    let server = DlsmServerOptions { tree, most_shards, longest_value, ..Default::default() };
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
