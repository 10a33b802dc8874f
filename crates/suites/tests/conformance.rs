//! Every index design on every provider.
//!
//! All providers open endpoints of one type, so each design is compiled once for all of them, as in
//! the programs.

use farleaf_dex::cache::{AdmissionName, CacheOptions, OffloadName};
use farleaf_dex::{Dex, DexOptions};
use farleaf_dlsm::{Dlsm, DlsmOptions, DlsmServerOptions, ShardedDlsm, ShardedOptions};
use farleaf_fabric::AnyConfig;
use farleaf_fabric::RegionBacking;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::shm::{ShmConfig, ShmServerConfig};
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::tcp::{TcpConfig, TcpServerConfig};
use farleaf_index::AcknowledgeName;
use farleaf_page::{Bytes, Fixed8};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::{self, SuiteSetup};
use farleaf_trees::chime::{Chime, ChimeOptions};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use farleaf_trees::one_sided::entrywise::EntrywiseOptions;
use farleaf_trees::sherman::{PSherman, PShermanOptions, Sherman, ShermanOptions};
use farleaf_trees::smart::{PSmart, PSmartOptions, Smart, SmartOptions};

fn local_with_latency() -> AnyConfig {
    AnyConfig::from(LocalConfig {
        network_latency_ns: 2_000,
        bandwidth_bytes_per_s: 12_500_000_000,
        one_client_thread: true,
        ..LocalConfig::default()
    })
}

/// A test of each provider for one design, in a module of the design's name.
macro_rules! on_every_provider {
    ($design:ident) => {
        mod $design {
            use super::*;

            #[test]
            fn on_shm() {
                super::$design(&AnyConfig::from(ShmConfig::default()));
            }

            #[test]
            fn on_shm_with_one_client_thread() {
                super::$design(&AnyConfig::from(ShmConfig {
                    one_client_thread: true,
                    ..ShmConfig::default()
                }));
            }

            #[test]
            fn on_local_inline() {
                super::$design(&AnyConfig::from(LocalConfig::default()));
            }

            #[test]
            fn on_local_with_one_client_thread() {
                let one_client_thread = true;
                super::$design(&AnyConfig::from(LocalConfig {
                    one_client_thread,
                    ..LocalConfig::default()
                }));
            }

            #[test]
            fn on_local_with_server_threads() {
                super::$design(&AnyConfig::from(LocalConfig {
                    server_threads: 2,
                    ..LocalConfig::default()
                }));
            }

            #[test]
            fn on_local_with_latency() {
                super::$design(&local_with_latency());
            }

            #[test]
            fn on_tcp() {
                super::$design(&AnyConfig::from(TcpConfig::default()));
            }

            #[test]
            fn on_the_simulator() {
                super::$design(&AnyConfig::from(SimConfig::default()));
            }

            #[test]
            fn on_a_rough_network() {
                for seed in 0..4 {
                    let faults = Faults::rough();
                    super::$design(&AnyConfig::from(SimConfig {
                        seed,
                        faults,
                        ..SimConfig::default()
                    }));
                }
            }
        }
    };
}

on_every_provider!(coarse);
on_every_provider!(fine);
on_every_provider!(hybrid);
on_every_provider!(chime);
on_every_provider!(sherman);
on_every_provider!(smart);
on_every_provider!(dex);
on_every_provider!(dex_windows);
on_every_provider!(dex_records);
on_every_provider!(dex_written);
on_every_provider!(dlsm_written);
on_every_provider!(dlsm);

fn range() -> CoarseOptions<u64> {
    let boundaries = vec![u64::MAX / 3, u64::MAX / 3 * 2];
    CoarseOptions { partitioning: Partitioning::Range { boundaries } }
}

fn hash() -> CoarseOptions<u64> {
    CoarseOptions { partitioning: Partitioning::Hash }
}

/// Memory servers with regions that other processes can map, which one provider needs.
fn lent() -> MemoryServerConfig {
    MemoryServerConfig {
        backing: RegionBacking::Shared { huge_pages: false },
        ..Default::default()
    }
}

/// Tiny pages make high trees from few keys, and most operations restructure something.
type Tiny = Fixed8<16>;

fn coarse(provider: &AnyConfig) {
    let server = MemoryServerConfig { pool_bytes: 8 << 20, chunk_bytes: 1 << 14, ..lent() };
    for options in [range(), hash()] {
        let setup = SuiteSetup { provider, options, memory_servers: 3, server: server.clone() };
        conformance::run::<Tiny, Coarse, _>(&setup);
    }
    let setup = SuiteSetup { provider, options: range(), memory_servers: 3, server };
    conformance::run::<Fixed8, Coarse, _>(&setup);
}

fn fine(provider: &AnyConfig) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    let options = FineOptions { chunk_nodes_log2: 4, leaves_per_head: 3, ..FineOptions::default() };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server.clone() };
    conformance::run::<Tiny, Fine, _>(&setup);
    let setup = SuiteSetup { provider, options: FineOptions::default(), memory_servers: 3, server };
    conformance::run::<Fixed8, Fine, _>(&setup);
}

fn hybrid(provider: &AnyConfig) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, chunk_bytes: 1 << 14, ..lent() };
    let options = HybridOptions { chunk_nodes_log2: 4, partitioning: range().partitioning };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server.clone() };
    conformance::run::<Tiny, Hybrid, _>(&setup);
    let options = HybridOptions::with_boundaries(vec![u64::MAX / 3, u64::MAX / 3 * 2]);
    let setup = SuiteSetup { provider, options, memory_servers: 3, server };
    conformance::run::<Fixed8, Hybrid, _>(&setup);
}

fn chime(provider: &AnyConfig) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    // Hardly any parent stays in the cache.
    let tree = EntrywiseOptions {
        chunk_nodes_log2: 4,
        cache_bytes: 1_000,
        hand_overs: 2,
        ..Default::default()
    };
    let options = ChimeOptions { tree, hot_bytes: 0 };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server.clone() };
    conformance::run::<Tiny, Chime, _>(&setup);
    // Leaves of 20 entries, in which records move.
    let options = ChimeOptions { hot_bytes: 4_000, ..ChimeOptions::default() };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server };
    conformance::run::<Fixed8<64>, Chime, _>(&setup);
}

fn sherman(provider: &AnyConfig) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    // Hardly any parent stays in the cache.
    let few = ShermanOptions { chunk_nodes_log2: 4, cache_bytes: 1_000, ..Default::default() };
    let options = ShermanOptions { hand_overs: 2, ..few };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server.clone() };
    conformance::run::<Tiny, Sherman, _>(&setup);
    for by_versions in [false, true] {
        let options = ShermanOptions { by_versions, ..ShermanOptions::default() };
        let setup = SuiteSetup { provider, options, memory_servers: 3, server: server.clone() };
        conformance::run::<Fixed8, Sherman, _>(&setup);
    }
    let boundaries = vec![u64::MAX / 3, u64::MAX / 3 * 2];
    let options = PShermanOptions { sherman: options, boundaries };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server };
    conformance::run::<Tiny, PSherman, _>(&setup);
}

/// Pages play no part in it.
fn smart(provider: &AnyConfig) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    // A cache of a few nodes, one of hardly any, and one of all.
    for cache_bytes in [5_000, 0, 64 << 20] {
        let combines = cache_bytes > 0;
        let options = SmartOptions { chunk_bytes: 1 << 14, cache_bytes, combines };
        let setup = SuiteSetup { provider, options, memory_servers: 3, server: server.clone() };
        conformance::run::<Fixed8, Smart, _>(&setup);
    }
    let smart = SmartOptions { chunk_bytes: 1 << 14, ..SmartOptions::default() };
    let options = PSmartOptions { smart, boundaries: vec![u64::MAX / 3, u64::MAX / 3 * 2] };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server.clone() };
    conformance::run::<Fixed8, PSmart, _>(&setup);
    let server = MemoryServerConfig { pool_bytes: 32 << 20, ..server };
    let setup = SuiteSetup { provider, options: smart, memory_servers: 3, server };
    conformance::run::<Bytes<64>, Smart, _>(&setup);
}

fn dex(provider: &AnyConfig) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    let thirds = vec![u64::MAX / 3, u64::MAX / 3 * 2];
    // The smallest possible cache: nearly every node has to be fetched.
    let few = CacheOptions { bytes: 0, ..CacheOptions::default() };
    let tiny = DexOptions {
        chunk_nodes_log2: 4,
        placement_level: 1,
        ..DexOptions::with_boundaries(thirds.clone(), few)
    };
    let setup = SuiteSetup { provider, options: tiny, memory_servers: 3, server: server.clone() };
    conformance::run::<Tiny, Dex, _>(&setup);
    let some = CacheOptions { bytes: 1 << 18, ..CacheOptions::default() };
    for boundaries in [vec![], thirds] {
        let options = DexOptions::with_boundaries(boundaries, some);
        let setup = SuiteSetup { provider, options, memory_servers: 3, server: server.clone() };
        conformance::run::<Fixed8, Dex, _>(&setup);
    }
}

/// DEX with 32 frames, less what else these shares of the cache keep.
fn dex_tables(provider: &AnyConfig, outlines_percent: u32, records_percent: u32) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    let cache = CacheOptions {
        bytes: 8 << 10,
        outlines_percent,
        outlines_soon_percent: 1,
        records_percent,
        ..CacheOptions::default()
    };
    let options = DexOptions {
        chunk_nodes_log2: 4,
        placement_level: 1,
        ..DexOptions::with_boundaries(vec![u64::MAX / 2], cache)
    };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server };
    conformance::run::<Tiny, Dex, _>(&setup);
}

/// Operations that miss READ a window of a leaf if they can.
fn dex_windows(provider: &AnyConfig) {
    dex_tables(provider, 50, 0);
}

/// Copies of hot records answer lookups.
fn dex_records(provider: &AnyConfig) {
    dex_tables(provider, 10, 40);
}

/// Answers wait until what they report is in the memory servers.
fn dex_written(provider: &AnyConfig) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    let half = vec![u64::MAX / 2];
    for bytes in [0, 1 << 18] {
        let acknowledge = AcknowledgeName::Written;
        let cache = CacheOptions { bytes, acknowledge, ..CacheOptions::default() };
        let options = DexOptions {
            chunk_nodes_log2: 4,
            placement_level: 1,
            ..DexOptions::with_boundaries(half.clone(), cache)
        };
        let setup = SuiteSetup { provider, options, memory_servers: 3, server: server.clone() };
        conformance::run::<Tiny, Dex, _>(&setup);
    }
}

/// Full MemTables and due merges all the time, beside background tasks: in one tree, and in four of
/// two compute servers. `tests/bytes` runs the suite for clients that flush and merge themselves.
fn dlsm(provider: &AnyConfig) {
    let server = MemoryServerConfig { pool_bytes: 32 << 20, ..lent() };
    let tree = DlsmOptions::tiny();
    let setup =
        SuiteSetup { provider, options: tree.clone(), memory_servers: 3, server: server.clone() };
    conformance::run_with_background::<Bytes<128>, Dlsm, _>(&setup);
    let each = DlsmServerOptions { tree, ..DlsmServerOptions::default() };
    let options = ShardedOptions {
        within: vec![u64::MAX / 4, u64::MAX / 4 * 3],
        ..ShardedOptions::with_boundaries(vec![u64::MAX / 2], each)
    };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server };
    conformance::run_with_background::<Fixed8, ShardedDlsm, _>(&setup);
}

/// Answers wait until what they report is in the write-ahead log, whose rings are small.
fn dlsm_written(provider: &AnyConfig) {
    let server = MemoryServerConfig { pool_bytes: 32 << 20, ..lent() };
    let (acknowledge, log_ring_bytes) = (AcknowledgeName::Written, 16 << 10);
    let tree = DlsmOptions { acknowledge, log_ring_bytes, ..DlsmOptions::tiny() };
    let each = DlsmServerOptions { tree, longest_value: Some(8), ..DlsmServerOptions::default() };
    let options = ShardedOptions {
        within: vec![u64::MAX / 4, u64::MAX / 4 * 3],
        ..ShardedOptions::with_boundaries(vec![u64::MAX / 2], each)
    };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server };
    conformance::run_with_background::<Fixed8, ShardedDlsm, _>(&setup);
}

/// Every operation that misses a node is offloaded to a memory server.
fn dex_offloading(provider: &AnyConfig) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    let half = vec![u64::MAX / 2];
    let few = CacheOptions { bytes: 0, offload: OffloadName::Always, ..CacheOptions::default() };
    let options = DexOptions {
        chunk_nodes_log2: 4,
        placement_level: 2,
        ..DexOptions::with_boundaries(half, few)
    };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server };
    conformance::run::<Tiny, Dex, _>(&setup);
}

#[test]
fn dex_offloading_on_shm() {
    let server = ShmServerConfig { threads: 2, ..ShmServerConfig::default() };
    dex_offloading(&AnyConfig::from(ShmConfig { server, ..ShmConfig::default() }));
}

#[test]
fn dex_offloading_on_local_inline() {
    dex_offloading(&AnyConfig::from(LocalConfig::default()));
}

#[test]
fn dex_offloading_on_local_with_server_threads() {
    dex_offloading(&AnyConfig::from(LocalConfig { server_threads: 2, ..LocalConfig::default() }));
}

#[test]
fn dex_offloading_on_tcp() {
    let server = TcpServerConfig { io_threads: 2, ..TcpServerConfig::default() };
    dex_offloading(&AnyConfig::from(TcpConfig {
        server,
        one_client_thread: true,
        ..TcpConfig::default()
    }));
}

#[test]
fn dex_offloading_on_the_simulator() {
    dex_offloading(&AnyConfig::from(SimConfig::default()));
    dex_offloading(&AnyConfig::from(SimConfig { faults: Faults::rough(), ..SimConfig::default() }));
}

#[test]
fn dex_without_a_cache() {
    let cache =
        CacheOptions { bytes: 1 << 16, admission: AdmissionName::Never, ..Default::default() };
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    let options = DexOptions {
        chunk_nodes_log2: 4,
        placement_level: 1,
        ..DexOptions::with_boundaries(vec![u64::MAX / 3, u64::MAX / 3 * 2], cache)
    };
    let provider = AnyConfig::from(LocalConfig::default());
    let setup = SuiteSetup { provider: &provider, options, memory_servers: 3, server };
    conformance::run::<Tiny, Dex, _>(&setup);
    conformance::run::<Fixed8, Dex, _>(&setup);
}
