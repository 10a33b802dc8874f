//! The suite of all designs over named keys with lengths from 0 to the limit.

use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_page::{Bytes, NamedLayout, OwnedKey};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::{self, SuiteSetup};
use farleaf_suites::providers::{AnyProvider, local, rough, sim, tcp};
use farleaf_trees::chime::{Chime, ChimeOptions};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use farleaf_trees::one_sided::entrywise::EntrywiseOptions;
use farleaf_trees::sherman::{Sherman, ShermanOptions};

/// Pages of a few records make high trees from few keys.
type Tiny = Bytes<64>;

fn thirds<L: NamedLayout>() -> Vec<OwnedKey<L>> {
    vec![L::key_named(u64::MAX / 3), L::key_named(u64::MAX / 3 * 2)]
}

pub(super) fn range<L: NamedLayout>() -> CoarseOptions<OwnedKey<L>> {
    CoarseOptions { partitioning: Partitioning::Range { boundaries: thirds::<L>() } }
}

pub(super) fn hash<K>() -> CoarseOptions<K> {
    CoarseOptions { partitioning: Partitioning::Hash }
}

pub(super) fn server() -> MemoryServerConfig {
    MemoryServerConfig { pool_bytes: 32 << 20, chunk_bytes: 1 << 15, ..Default::default() }
}

fn coarse<L: NamedLayout>(provider: &AnyProvider, options: CoarseOptions<OwnedKey<L>>) {
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server() };
    conformance::run::<L, Coarse, _>(&setup);
}

#[test]
fn coarse_locally() {
    let provider = local(LocalConfig::default());
    coarse::<Tiny>(&provider, range::<Tiny>());
    coarse::<Bytes<128>>(&provider, range::<Bytes<128>>());
    coarse::<Bytes<512>>(&provider, hash());
}

#[test]
fn coarse_locally_with_server_threads() {
    let provider = local(LocalConfig { server_threads: 2, ..LocalConfig::default() });
    coarse::<Tiny>(&provider, hash());
    coarse::<Bytes<128>>(&provider, range::<Bytes<128>>());
}

#[test]
fn coarse_on_tcp() {
    coarse::<Bytes<128>>(&tcp(), range::<Bytes<128>>());
}

#[test]
fn coarse_simulated() {
    coarse::<Tiny>(&sim(SimConfig::default()), hash());
    for seed in 1..4 {
        coarse::<Tiny>(&rough(seed), range::<Tiny>());
        coarse::<Bytes<128>>(&rough(seed), hash());
    }
}

fn fine<L: NamedLayout>(provider: &AnyProvider, leaves_per_head: u16) {
    let options = FineOptions { chunk_nodes_log2: 4, leaves_per_head, ..FineOptions::default() };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server() };
    conformance::run::<L, Fine, _>(&setup);
}

fn hybrid<L: NamedLayout>(provider: &AnyProvider) {
    let options =
        HybridOptions { chunk_nodes_log2: 4, ..HybridOptions::with_boundaries(thirds::<L>()) };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server() };
    conformance::run::<L, Hybrid, _>(&setup);
}

fn sherman<L: NamedLayout>(provider: &AnyProvider) {
    let options = ShermanOptions {
        chunk_nodes_log2: 4,
        cache_bytes: 4_000,
        hand_overs: 2,
        by_versions: false,
    };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server() };
    conformance::run::<L, Sherman, _>(&setup);
}

fn chime<L: NamedLayout>(provider: &AnyProvider) {
    let tree = EntrywiseOptions {
        chunk_nodes_log2: 4,
        cache_bytes: 4_000,
        hand_overs: 2,
        ..Default::default()
    };
    let options = ChimeOptions { tree, hot_bytes: 4_000 };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server() };
    conformance::run::<L, Chime, _>(&setup);
}

/// Its leaves are written as a whole.
#[test]
fn chime_locally() {
    chime::<Bytes<128>>(&local(LocalConfig::default()));
}

/// Its leaves are written as a whole.
#[test]
fn sherman_locally() {
    sherman::<Bytes<128>>(&local(LocalConfig::default()));
}

#[test]
fn sherman_simulated() {
    sherman::<Bytes<128>>(&sim(SimConfig::default()));
    (1..4).for_each(|seed| sherman::<Bytes<128>>(&rough(seed)));
}

#[test]
fn fine_locally() {
    fine::<Tiny>(&local(LocalConfig::default()), 3);
    fine::<Bytes<128>>(&local(LocalConfig::default()), 30);
    fine::<Bytes<512>>(&local(LocalConfig::default()), 30);
}

#[test]
fn fine_simulated() {
    fine::<Tiny>(&sim(SimConfig::default()), 3);
    (1..4).for_each(|seed| fine::<Tiny>(&rough(seed), 3));
    fine::<Bytes<128>>(&rough(4), 4);
}

#[test]
fn hybrid_locally() {
    hybrid::<Tiny>(&local(LocalConfig::default()));
    hybrid::<Bytes<128>>(&local(LocalConfig::default()));
    hybrid::<Bytes<512>>(&local(LocalConfig::default()));
}

#[test]
fn hybrid_simulated() {
    hybrid::<Tiny>(&sim(SimConfig::default()));
    (1..4).for_each(|seed| hybrid::<Tiny>(&rough(seed)));
    hybrid::<Bytes<128>>(&rough(4));
}
