//! The index designs on byte strings: the suite over named keys, whose lengths go from 0 to the
//! limit, what happens beyond the limits, and messages of records as long as can be.
#![cfg(not(any(loom, shuttle)))]

use farleaf_core::index::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_core::index::conformance::{self, Setup};
use farleaf_core::page::{Bytes, Named, OwnedKey};
use farleaf_core::server::MemoryServerConfig;
use farleaf_fabric::Provider;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::tcp::TcpConfig;

/// Pages of a few records make high trees from few keys.
type Tiny = Bytes<64>;

fn thirds<L: Named>() -> Vec<OwnedKey<L>> {
    vec![L::key_named(u64::MAX / 3), L::key_named(u64::MAX / 3 * 2)]
}

fn range<L: Named>() -> CoarseOptions<OwnedKey<L>> {
    CoarseOptions { partitioning: Partitioning::Range { boundaries: thirds::<L>() } }
}

fn hash<K>() -> CoarseOptions<K> {
    CoarseOptions { partitioning: Partitioning::Hash }
}

fn server() -> MemoryServerConfig {
    MemoryServerConfig { pool_bytes: 32 << 20, chunk_bytes: 1 << 15, ..Default::default() }
}

fn coarse<L: Named>(provider: &impl Provider, options: CoarseOptions<OwnedKey<L>>) {
    let setup = Setup { provider, options, memory_servers: 3, server: server() };
    conformance::run::<L, Coarse, _>(&setup);
}

#[test]
fn coarse_locally() {
    let provider = LocalConfig::default();
    coarse::<Tiny>(&provider, range::<Tiny>());
    coarse::<Bytes<128>>(&provider, range::<Bytes<128>>());
    coarse::<Bytes<256>>(&provider, hash());
    coarse::<Bytes<512>>(&provider, range::<Bytes<512>>());
}

#[test]
fn coarse_locally_with_server_threads() {
    let provider = LocalConfig { server_threads: 2, ..LocalConfig::default() };
    coarse::<Tiny>(&provider, hash());
    coarse::<Bytes<128>>(&provider, range::<Bytes<128>>());
}

#[test]
fn coarse_on_tcp() {
    coarse::<Bytes<128>>(&TcpConfig::default(), range::<Bytes<128>>());
}

#[test]
fn coarse_simulated() {
    coarse::<Bytes<256>>(&SimConfig::default(), range::<Bytes<256>>());
    for seed in 1..4 {
        let provider = SimConfig { seed, faults: Faults::rough(), ..SimConfig::default() };
        coarse::<Tiny>(&provider, range::<Tiny>());
        coarse::<Bytes<128>>(&provider, hash());
    }
}
