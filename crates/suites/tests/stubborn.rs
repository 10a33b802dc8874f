//! Every index design on a layout that refuses what layouts with entries of different sizes refuse:
//! new values of present keys, separators, rebalancing. With `Fixed8` alone, the checks for room
//! before restructuring (layout.Y8) would never fail.

use farleaf_dex::cache::{CacheOptions, OffloadName};
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::AnyConfig;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_page::{Layout, LeafReplace, Page, RefusingLayout};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::{self, SuiteSetup};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};

/// Pages of eight entries make high trees from few keys.
type Tiny = RefusingLayout<24>;

fn boundaries() -> Vec<u64> {
    vec![u64::MAX / 3, u64::MAX / 3 * 2]
}

fn server() -> MemoryServerConfig {
    MemoryServerConfig { pool_bytes: 16 << 20, chunk_bytes: 1 << 14, ..Default::default() }
}

fn coarse(provider: &AnyConfig) {
    let options = CoarseOptions { partitioning: Partitioning::Range { boundaries: boundaries() } };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server() };
    conformance::run::<Tiny, Coarse, _>(&setup);
}

fn fine(provider: &AnyConfig) {
    let options = FineOptions { chunk_nodes_log2: 4, leaves_per_head: 3, ..FineOptions::default() };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server() };
    conformance::run::<Tiny, Fine, _>(&setup);
}

fn hybrid(provider: &AnyConfig) {
    let options = HybridOptions::with_boundaries(boundaries());
    let options = HybridOptions { chunk_nodes_log2: 4, ..options };
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server() };
    conformance::run::<Tiny, Hybrid, _>(&setup);
}

fn dex(provider: &AnyConfig) {
    let server = || MemoryServerConfig { chunk_bytes: 1 << 16, ..server() };
    // The smallest possible cache; then all nodes in frames; then every miss offloaded.
    let few = CacheOptions { bytes: 0, ..CacheOptions::default() };
    let many = CacheOptions { bytes: 1 << 20, ..CacheOptions::default() };
    let offloading = CacheOptions { offload: OffloadName::Always, ..few };
    for cache in [few, many, offloading] {
        let options = DexOptions {
            chunk_nodes_log2: 4,
            placement_level: 1,
            ..DexOptions::with_boundaries(boundaries(), cache)
        };
        let setup = SuiteSetup { provider, options, memory_servers: 3, server: server() };
        conformance::run::<Tiny, Dex, _>(&setup);
    }
}

fn locally() -> [AnyConfig; 2] {
    [0, 2].map(|server_threads| LocalConfig { server_threads, ..LocalConfig::default() }.into())
}

fn simulated() -> impl Iterator<Item = AnyConfig> {
    let rough = |seed| SimConfig { seed, faults: Faults::rough(), ..SimConfig::default() };
    std::iter::once(SimConfig::default()).chain((1..4).map(rough)).map(AnyConfig::from)
}

#[test]
fn coarse_locally() {
    locally().iter().for_each(coarse);
}

#[test]
fn coarse_simulated() {
    simulated().for_each(|provider| coarse(&provider));
}

#[test]
fn fine_locally() {
    locally().iter().for_each(fine);
}

#[test]
fn fine_simulated() {
    simulated().for_each(|provider| fine(&provider));
}

#[test]
fn hybrid_locally() {
    locally().iter().for_each(hybrid);
}

#[test]
fn hybrid_simulated() {
    simulated().for_each(|provider| hybrid(&provider));
}

#[test]
fn dex_locally() {
    locally().iter().for_each(dex);
}

#[test]
fn dex_simulated() {
    simulated().for_each(|provider| dex(&provider));
}

/// Without this, the tests above could pass because nothing is ever refused. A refusal must be
/// predicted by the check beforehand, and change nothing.
#[test]
fn it_refuses_often_and_changes_nothing_then() {
    let at = |number| GlobalAddr::new(ServerId::new(0), number * 1024);
    let mut refused = [0; 4];
    for low in 0..400 {
        let leaf: Vec<AtomicU64> = (0..24).map(|_| AtomicU64::new(0)).collect();
        let inner: Vec<AtomicU64> = (0..24).map(|_| AtomicU64::new(0)).collect();
        let (leaf, inner) = (Page::<Tiny>::new(&leaf), Page::<Tiny>::new(&inner));
        leaf.format_empty(at(1), 0, &low, None);
        inner.format_empty(at(2), 1, &low, None);
        let words = |page: Page<'_, Tiny>| -> Vec<u64> {
            page.words().iter().map(|word| word.load(Ordering::Relaxed)).collect()
        };
        for key in low..low + 8 {
            let (leaf_before, inner_before) = (words(leaf), words(inner));
            let (has_room, inserted) =
                (Tiny::leaf_has_room(leaf, &key, &1), Tiny::leaf_insert(leaf, &key, &1));
            assert_eq!(has_room, inserted.is_inserted());
            let (inner_room, there) =
                (Tiny::inner_has_room(inner, &key), Tiny::inner_insert(inner, &key, at(key + 3)));
            assert_eq!(inner_room, there);
            if !has_room {
                refused[0] += 1;
                assert_eq!(words(leaf), leaf_before);
            }
            if !there {
                refused[1] += 1;
                assert_eq!(words(inner), inner_before);
            }
        }
        let (leaf_before, inner_before) = (words(leaf), words(inner));
        let has_room = Tiny::leaf_has_room(leaf, &low, &2);
        let replaced = Tiny::leaf_replace(leaf, &low, &2);
        assert_eq!(has_room, replaced != LeafReplace::Full);
        if !has_room {
            refused[2] += 1;
            assert_eq!(words(leaf), leaf_before);
        }
        let can_set = Tiny::inner_can_set_key(inner, 1, &(low + 1));
        assert_eq!(can_set, Tiny::inner_set_key(inner, 1, &(low + 1)));
        if !can_set {
            refused[3] += 1;
            assert_eq!(words(inner), inner_before);
        }
    }
    assert!(refused.iter().all(|count| *count > 50), "{refused:?}");
}
