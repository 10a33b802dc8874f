//! Every index design on every provider.

use farleaf_core::cache::{AdmissionName, CacheOptions, OffloadName};
use farleaf_core::index::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_core::index::conformance::{self, Setup};
use farleaf_core::index::dex::{Dex, DexOptions};
use farleaf_core::index::fine::{Fine, FineOptions};
use farleaf_core::index::hybrid::{Hybrid, HybridOptions};
use farleaf_core::page::Fixed8;
use farleaf_core::server::MemoryServerConfig;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::shm::{ShmConfig, ShmServerConfig};
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::tcp::{TcpConfig, TcpServerConfig};
use farleaf_fabric::{Backing, Provider};

fn range() -> CoarseOptions<u64> {
    let boundaries = vec![u64::MAX / 3, u64::MAX / 3 * 2];
    CoarseOptions { partitioning: Partitioning::Range { boundaries } }
}

fn hash() -> CoarseOptions<u64> {
    CoarseOptions { partitioning: Partitioning::Hash }
}

/// Memory servers with regions that other processes can map; one provider needs that.
fn lent() -> MemoryServerConfig {
    MemoryServerConfig { backing: Backing::Shared { huge_pages: false }, ..Default::default() }
}

/// Tiny pages make high trees from few keys, and most operations restructure something.
type Tiny = Fixed8<16>;

fn coarse(provider: &impl Provider) {
    let server = MemoryServerConfig { pool_bytes: 8 << 20, chunk_bytes: 1 << 14, ..lent() };
    for options in [range(), hash()] {
        let setup = Setup { provider, options, memory_servers: 3, server: server.clone() };
        conformance::run::<Tiny, Coarse, _>(&setup);
    }
    let setup = Setup { provider, options: range(), memory_servers: 3, server };
    conformance::run::<Fixed8, Coarse, _>(&setup);
}

#[test]
fn coarse_on_shm() {
    coarse(&ShmConfig::default());
}

#[test]
fn coarse_on_shm_with_one_client_thread() {
    coarse(&ShmConfig { one_client_thread: true, ..ShmConfig::default() });
}

#[test]
fn coarse_on_local_inline() {
    coarse(&LocalConfig::default());
}

#[test]
fn coarse_on_local_with_one_client_thread() {
    coarse(&LocalConfig { one_client_thread: true, ..LocalConfig::default() });
}

#[test]
fn coarse_on_local_with_server_threads() {
    coarse(&LocalConfig { server_threads: 2, ..LocalConfig::default() });
}

#[test]
fn coarse_on_local_with_latency() {
    coarse(&LocalConfig {
        network_latency_ns: 2_000,
        bandwidth_bytes_per_s: 12_500_000_000,
        one_client_thread: true,
        ..LocalConfig::default()
    });
}

#[test]
fn coarse_on_tcp() {
    coarse(&TcpConfig::default());
}

#[test]
fn coarse_on_the_simulator() {
    coarse(&SimConfig::default());
}

#[test]
fn coarse_on_a_rough_network() {
    for seed in 0..4 {
        coarse(&SimConfig { seed, faults: Faults::rough(), ..SimConfig::default() });
    }
}

fn fine(provider: &impl Provider) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    let options = FineOptions { chunk_nodes_log2: 4, leaves_per_head: 3 };
    let setup = Setup { provider, options, memory_servers: 3, server: server.clone() };
    conformance::run::<Tiny, Fine, _>(&setup);
    let setup = Setup { provider, options: FineOptions::default(), memory_servers: 3, server };
    conformance::run::<Fixed8, Fine, _>(&setup);
}

#[test]
fn fine_on_shm() {
    fine(&ShmConfig::default());
}

#[test]
fn fine_on_shm_with_one_client_thread() {
    fine(&ShmConfig { one_client_thread: true, ..ShmConfig::default() });
}

#[test]
fn fine_on_local_inline() {
    fine(&LocalConfig::default());
}

#[test]
fn fine_on_local_with_one_client_thread() {
    fine(&LocalConfig { one_client_thread: true, ..LocalConfig::default() });
}

#[test]
fn fine_on_local_with_server_threads() {
    fine(&LocalConfig { server_threads: 2, ..LocalConfig::default() });
}

#[test]
fn fine_on_local_with_latency() {
    fine(&LocalConfig {
        network_latency_ns: 2_000,
        bandwidth_bytes_per_s: 12_500_000_000,
        one_client_thread: true,
        ..LocalConfig::default()
    });
}

#[test]
fn fine_on_tcp() {
    fine(&TcpConfig::default());
}

#[test]
fn fine_on_the_simulator() {
    fine(&SimConfig::default());
}

#[test]
fn fine_on_a_rough_network() {
    for seed in 0..4 {
        fine(&SimConfig { seed, faults: Faults::rough(), ..SimConfig::default() });
    }
}

fn hybrid(provider: &impl Provider) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, chunk_bytes: 1 << 14, ..lent() };
    let options = HybridOptions { chunk_nodes_log2: 4, partitioning: range().partitioning };
    let setup = Setup { provider, options, memory_servers: 3, server: server.clone() };
    conformance::run::<Tiny, Hybrid, _>(&setup);
    let options = HybridOptions::with_boundaries(vec![u64::MAX / 3, u64::MAX / 3 * 2]);
    let setup = Setup { provider, options, memory_servers: 3, server };
    conformance::run::<Fixed8, Hybrid, _>(&setup);
}

#[test]
fn hybrid_on_shm() {
    hybrid(&ShmConfig::default());
}

#[test]
fn hybrid_on_shm_with_one_client_thread() {
    hybrid(&ShmConfig { one_client_thread: true, ..ShmConfig::default() });
}

#[test]
fn hybrid_on_local_inline() {
    hybrid(&LocalConfig::default());
}

#[test]
fn hybrid_on_local_with_one_client_thread() {
    hybrid(&LocalConfig { one_client_thread: true, ..LocalConfig::default() });
}

#[test]
fn hybrid_on_local_with_server_threads() {
    hybrid(&LocalConfig { server_threads: 2, ..LocalConfig::default() });
}

#[test]
fn hybrid_on_local_with_latency() {
    hybrid(&LocalConfig {
        network_latency_ns: 2_000,
        bandwidth_bytes_per_s: 12_500_000_000,
        one_client_thread: true,
        ..LocalConfig::default()
    });
}

#[test]
fn hybrid_on_tcp() {
    hybrid(&TcpConfig::default());
}

#[test]
fn hybrid_on_the_simulator() {
    hybrid(&SimConfig::default());
}

#[test]
fn hybrid_on_a_rough_network() {
    for seed in 0..4 {
        hybrid(&SimConfig { seed, faults: Faults::rough(), ..SimConfig::default() });
    }
}

fn dex(provider: &impl Provider) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    let thirds = vec![u64::MAX / 3, u64::MAX / 3 * 2];
    // The fewest frames that a cache can have: nearly every node has to be fetched.
    let few = CacheOptions { bytes: 0, ..CacheOptions::default() };
    let tiny = DexOptions {
        chunk_nodes_log2: 4,
        placement_level: 1,
        ..DexOptions::with_boundaries(thirds.clone(), few)
    };
    let setup = Setup { provider, options: tiny, memory_servers: 3, server: server.clone() };
    conformance::run::<Tiny, Dex, _>(&setup);
    let some = CacheOptions { bytes: 1 << 18, ..CacheOptions::default() };
    for boundaries in [vec![], thirds] {
        let options = DexOptions::with_boundaries(boundaries, some);
        let setup = Setup { provider, options, memory_servers: 3, server: server.clone() };
        conformance::run::<Fixed8, Dex, _>(&setup);
    }
}

/// Every operation that misses a node is offloaded to a memory server.
fn dex_offloading(provider: &impl Provider) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..lent() };
    let half = vec![u64::MAX / 2];
    let few = CacheOptions { bytes: 0, offload: OffloadName::Always, ..CacheOptions::default() };
    let options = DexOptions {
        chunk_nodes_log2: 4,
        placement_level: 2,
        ..DexOptions::with_boundaries(half, few)
    };
    let setup = Setup { provider, options, memory_servers: 3, server };
    conformance::run::<Tiny, Dex, _>(&setup);
}

#[test]
fn dex_offloading_on_shm() {
    let server = ShmServerConfig { threads: 2, ..ShmServerConfig::default() };
    dex_offloading(&ShmConfig { server, ..ShmConfig::default() });
}

#[test]
fn dex_offloading_on_local_inline() {
    dex_offloading(&LocalConfig::default());
}

#[test]
fn dex_offloading_on_local_with_server_threads() {
    dex_offloading(&LocalConfig { server_threads: 2, ..LocalConfig::default() });
}

#[test]
fn dex_offloading_on_tcp() {
    let server = TcpServerConfig { io_threads: 2, ..TcpServerConfig::default() };
    dex_offloading(&TcpConfig { server, one_client_thread: true, ..TcpConfig::default() });
}

#[test]
fn dex_offloading_on_the_simulator() {
    dex_offloading(&SimConfig::default());
    dex_offloading(&SimConfig { faults: Faults::rough(), ..SimConfig::default() });
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
    let provider = LocalConfig::default();
    let setup = Setup { provider: &provider, options, memory_servers: 3, server };
    conformance::run::<Tiny, Dex, _>(&setup);
    conformance::run::<Fixed8, Dex, _>(&setup);
}

#[test]
fn dex_on_shm() {
    dex(&ShmConfig::default());
}

#[test]
fn dex_on_shm_with_one_client_thread() {
    dex(&ShmConfig { one_client_thread: true, ..ShmConfig::default() });
}

#[test]
fn dex_on_local_inline() {
    dex(&LocalConfig::default());
}

#[test]
fn dex_on_local_with_one_client_thread() {
    dex(&LocalConfig { one_client_thread: true, ..LocalConfig::default() });
}

#[test]
fn dex_on_local_with_server_threads() {
    dex(&LocalConfig { server_threads: 2, ..LocalConfig::default() });
}

#[test]
fn dex_on_local_with_latency() {
    dex(&LocalConfig {
        network_latency_ns: 2_000,
        bandwidth_bytes_per_s: 12_500_000_000,
        one_client_thread: true,
        ..LocalConfig::default()
    });
}

#[test]
fn dex_on_tcp() {
    dex(&TcpConfig::default());
}

#[test]
fn dex_on_the_simulator() {
    dex(&SimConfig::default());
}

#[test]
fn dex_on_a_rough_network() {
    for seed in 0..4 {
        dex(&SimConfig { seed, faults: Faults::rough(), ..SimConfig::default() });
    }
}
