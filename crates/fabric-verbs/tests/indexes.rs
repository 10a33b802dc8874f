//! Every index design over a device, against `BTreeMap`. On a host without a device, run it in a
//! virtual machine: `scripts/soft-roce-vm` with this test's binary and `--ignored`.

use farleaf_dex::cache::{CacheOptions, OffloadName};
use farleaf_dex::{Dex, DexOptions};
use farleaf_dlsm::{Dlsm, DlsmOptions, DlsmServerOptions, ShardedDlsm, ShardedOptions};
use farleaf_fabric_verbs::VerbsConfig;
use farleaf_page::Fixed8;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::{self, SuiteSetup};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};

/// Tiny pages make high trees from few keys, so most operations restructure something.
type Tiny = Fixed8<16>;

/// Little memory, because all of it is pinned while it is registered.
fn servers() -> MemoryServerConfig {
    MemoryServerConfig { pool_bytes: 8 << 20, chunk_bytes: 1 << 14, ..Default::default() }
}

fn thirds() -> Vec<u64> {
    vec![u64::MAX / 3, u64::MAX / 3 * 2]
}

#[test]
#[ignore = "needs an RDMA device"]
fn coarse_on_verbs() {
    let provider = &VerbsConfig::default();
    let options = CoarseOptions { partitioning: Partitioning::Range { boundaries: thirds() } };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: servers() };
    conformance::run::<Tiny, Coarse, _>(&setup);
}

#[test]
#[ignore = "needs an RDMA device"]
fn fine_on_verbs() {
    let provider = &VerbsConfig::default();
    let options = FineOptions { chunk_nodes_log2: 4, leaves_per_head: 3, ..FineOptions::default() };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: servers() };
    conformance::run::<Tiny, Fine, _>(&setup);
}

#[test]
#[ignore = "needs an RDMA device"]
fn hybrid_on_verbs() {
    let provider = &VerbsConfig::default();
    let partitioning = Partitioning::Range { boundaries: thirds() };
    let options = HybridOptions { chunk_nodes_log2: 4, partitioning };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: servers() };
    conformance::run::<Tiny, Hybrid, _>(&setup);
}

#[test]
#[ignore = "needs an RDMA device"]
fn dex_on_verbs() {
    let provider = &VerbsConfig::default();
    // The smallest possible cache: nearly every access fetches a node.
    let few = CacheOptions { bytes: 0, ..CacheOptions::default() };
    let options = DexOptions {
        chunk_nodes_log2: 4,
        placement_level: 1,
        ..DexOptions::with_boundaries(thirds(), few)
    };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: servers() };
    conformance::run::<Tiny, Dex, _>(&setup);
}

/// Clients flush and merge, or background tasks beside them do.
#[test]
#[ignore = "needs an RDMA device"]
fn dlsm_on_verbs() {
    let provider = &VerbsConfig::default();
    let tree = DlsmOptions::tiny();
    let setup =
        SuiteSetup { provider, options: tree.clone(), memory_servers: 3, server: servers() };
    conformance::run::<Tiny, Dlsm, _>(&setup);
    conformance::run_with_background::<Tiny, Dlsm, _>(&setup);
    let each = DlsmServerOptions { tree, ..DlsmServerOptions::default() };
    let options = ShardedOptions {
        within: vec![u64::MAX / 4, u64::MAX / 4 * 3],
        ..ShardedOptions::with_boundaries(vec![u64::MAX / 2], each)
    };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: servers() };
    conformance::run_with_background::<Tiny, ShardedDlsm, _>(&setup);
}

/// Operations that miss a node are offloaded to memory servers, where the processor works on words
/// that devices also access.
#[test]
#[ignore = "needs an RDMA device"]
fn dex_offloading_on_verbs() {
    let provider = &VerbsConfig { one_client_thread: true, ..VerbsConfig::default() };
    let few = CacheOptions { bytes: 0, offload: OffloadName::Always, ..CacheOptions::default() };
    let options = DexOptions {
        chunk_nodes_log2: 4,
        placement_level: 2,
        ..DexOptions::with_boundaries(vec![u64::MAX / 2], few)
    };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: servers() };
    conformance::run::<Tiny, Dex, _>(&setup);
}
