//! The designs with one-sided leaves, and DEX, on byte strings: their contents against `BTreeMap`,
//! and a client that dies at each of its WRITEs. With pages of 4 KB, log entries have several
//! pieces, so some of these deaths are between two pieces of an entry. DEX writes leaves back by up
//! to two WRITEs, so some deaths are between these.

use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{LastWords, SimConfig};
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{Design, IndexAdmin, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::SuiteSetup;
use farleaf_suites::providers::{AnyProvider, local, rough, sim, simulated};
use farleaf_suites::strings::{StringKey, StringModel, key, loads, long_prefix, random_operations};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use farleaf_trees::smart::{PSmart, PSmartOptions, Smart, SmartOptions};
use std::sync::Mutex;

pub(super) fn server() -> MemoryServerConfig {
    MemoryServerConfig { pool_bytes: 32 << 20, chunk_bytes: 1 << 16, ..Default::default() }
}

pub(super) fn fine(provider: &AnyProvider) -> SuiteSetup<'_, AnyProvider, FineOptions> {
    let options =
        FineOptions { chunk_nodes_log2: 4, leaves_per_head: 30, ..FineOptions::default() };
    SuiteSetup { provider, options, memory_servers: 3, server: server() }
}

/// The middle share begins among keys that share a long prefix.
pub(super) fn hybrid(
    provider: &AnyProvider,
) -> SuiteSetup<'_, AnyProvider, HybridOptions<StringKey>> {
    let boundaries = vec![long_prefix(b"key-0000000050"), b"q".to_vec()];
    let options =
        HybridOptions { chunk_nodes_log2: 4, ..HybridOptions::with_boundaries(boundaries) };
    SuiteSetup { provider, options, memory_servers: 3, server: server() }
}

/// The longest value of the designs without blocks.
fn inline<const W: usize>() -> u64 {
    W as u64 * 2 / 3
}

#[test]
fn fine_locally() {
    let provider = local(LocalConfig::default());
    random_operations::<128, Fine>(&fine(&provider), 3_000, inline::<128>());
    random_operations::<512, Fine>(&fine(&provider), 3_000, inline::<512>());
    loads::<128, Fine>(&fine(&provider), inline::<128>());
    loads::<512, Fine>(&fine(&provider), inline::<512>());
}

#[test]
fn fine_simulated() {
    for seed in 0..2 {
        random_operations::<128, Fine>(&fine(&rough(seed)), 800, inline::<128>());
        random_operations::<512, Fine>(&fine(&rough(seed)), 800, inline::<512>());
    }
    loads::<128, Fine>(&fine(&rough(7)), inline::<128>());
}

fn smart(provider: &AnyProvider) -> SuiteSetup<'_, AnyProvider, SmartOptions> {
    let options = SmartOptions { chunk_bytes: 1 << 14, ..SmartOptions::default() };
    let server = MemoryServerConfig { pool_bytes: 64 << 20, ..server() };
    SuiteSetup { provider, options, memory_servers: 3, server }
}

fn p_smart(provider: &AnyProvider) -> SuiteSetup<'_, AnyProvider, PSmartOptions<StringKey>> {
    let boundaries = vec![long_prefix(b"key-0000000050"), b"q".to_vec()];
    let SuiteSetup { options, memory_servers, server, .. } = smart(provider);
    let options = PSmartOptions { smart: options, boundaries };
    SuiteSetup { provider, options, memory_servers, server }
}

#[test]
fn smart_locally() {
    let provider = local(LocalConfig::default());
    random_operations::<128, Smart>(&smart(&provider), 3_000, inline::<128>());
    random_operations::<512, Smart>(&smart(&provider), 3_000, inline::<512>());
    random_operations::<128, PSmart>(&p_smart(&provider), 3_000, inline::<128>());
    loads::<128, Smart>(&smart(&provider), inline::<128>());
    loads::<512, Smart>(&smart(&provider), inline::<512>());
}

#[test]
fn smart_simulated() {
    for seed in 0..2 {
        random_operations::<128, Smart>(&smart(&rough(seed)), 800, inline::<128>());
        random_operations::<128, PSmart>(&p_smart(&rough(seed)), 800, inline::<128>());
    }
    random_operations::<512, Smart>(&smart(&rough(3)), 800, inline::<512>());
    loads::<128, Smart>(&smart(&rough(7)), inline::<128>());
}

#[test]
fn hybrid_locally() {
    let provider = local(LocalConfig::default());
    random_operations::<128, Hybrid>(&hybrid(&provider), 3_000, inline::<128>());
    random_operations::<512, Hybrid>(&hybrid(&provider), 3_000, inline::<512>());
    loads::<128, Hybrid>(&hybrid(&provider), inline::<128>());
    loads::<512, Hybrid>(&hybrid(&provider), inline::<512>());
}

#[test]
fn hybrid_simulated() {
    for seed in 0..2 {
        random_operations::<128, Hybrid>(&hybrid(&rough(seed)), 800, inline::<128>());
        random_operations::<512, Hybrid>(&hybrid(&rough(seed)), 800, inline::<512>());
    }
    loads::<128, Hybrid>(&hybrid(&rough(7)), inline::<128>());
}

/// The keys that a client has changed before it dies, and the change that was in flight.
#[derive(Clone, Debug, Default)]
struct Known {
    model: StringModel,
    in_flight: Option<(StringKey, Option<Vec<u8>>)>,
}

/// A client that loads, empties and collects an index, and dies at WRITE number `write`. Returns
/// whether it completed its work.
fn dying<const W: usize, D, O>(options: O, write: u64, last_words: LastWords) -> bool
where
    D: Design<Bytes<W>, Options = O>,
    O: Clone + Sync,
{
    let provider = rough(write);
    let setup = SuiteSetup { provider: &provider, options, memory_servers: 2, server: server() };
    let cluster = setup.with_index::<Bytes<W>, D>();
    let compute = &D::compute(&setup.options).unwrap();
    let known = &Mutex::new(Known::default());
    simulated(&cluster).kill_compute_servers_at_write(vec![1], write, last_words);
    cluster.run(&[1], |fabric, _| async move {
        let index = D::open(fabric.clone(), compute).await.unwrap();
        let change = async |key: StringKey, value: Option<Vec<u8>>| {
            known.lock().unwrap().in_flight = Some((key.clone(), value.clone()));
            match &value {
                Some(value) => index.upsert(&key, value).await.unwrap(),
                None => drop(index.remove(&key).await.unwrap()),
            }
            let mut known = known.lock().unwrap();
            known.in_flight = None;
            match value {
                Some(value) => drop(known.model.insert(key, value)),
                None => drop(known.model.remove(&key)),
            }
        };
        for number in 0..40 {
            let key = key(number * 7 % 40, 0, Bytes::<W>::max_key());
            change(key, Some(vec![number as u8; W / 2])).await;
        }
        // Longer values move to other words; shorter ones are replaced in place.
        for number in 0..40 {
            let length = if number % 2 == 0 { W / 2 + 64 } else { 40 };
            let key = key(number, 0, Bytes::<W>::max_key());
            change(key, Some(vec![number as u8 + 100; length])).await;
        }
        for number in (0..40).filter(|number| number % 3 != 0) {
            change(key(number, 0, Bytes::<W>::max_key()), None).await;
        }
        index.collect().await.unwrap();
    });
    let lived = simulated(&cluster).call_off_death().is_some();
    cluster.run(&[2], |fabric, _| async move {
        let index = D::open(fabric.clone(), compute).await.unwrap();
        index.declare_dead(1).await.unwrap();
        let Known { model, in_flight } = &known.lock().unwrap().clone();
        for round in 0..2 {
            let found: StringModel =
                index.scan(&ScanRequest::range(..)).await.unwrap().into_iter().collect();
            for number in 0..40 {
                let key = key(number, 0, Bytes::<W>::max_key());
                let is_right = |held: Option<&Vec<u8>>| {
                    held == model.get(&key)
                        || in_flight.as_ref().is_some_and(|(on_its_way, value)| {
                            *on_its_way == key && held == value.as_ref()
                        })
                };
                let got = index.get(&key).await.unwrap();
                assert!(is_right(found.get(&key)), "{write}, {last_words:?}: {key:?}");
                assert!(is_right(got.as_ref()), "{write}, {last_words:?}: {key:?}");
                if round == 1 {
                    // Everything that the dead client had locked can be changed.
                    index.upsert(&key, &[9; 20]).await.unwrap();
                }
            }
            index.collect().await.unwrap();
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 40);
    });
    lived
}

/// `least` says how many WRITEs a client that lives has at least.
fn deaths<const W: usize, D, O>(options: &O, step: usize, least: u64)
where
    D: Design<Bytes<W>, Options = O>,
    O: Clone + Sync,
{
    for write in (0..).step_by(step) {
        let mut lived = true;
        for last_words in [LastWords::None, LastWords::Some, LastWords::All] {
            lived &= dying::<W, D, O>(options.clone(), write, last_words);
        }
        if lived {
            assert!(write > least, "{write}");
            return;
        }
    }
}

#[test]
fn fine_survives_a_death_at_any_write() {
    deaths::<512, Fine, _>(
        &FineOptions { chunk_nodes_log2: 4, leaves_per_head: 3, ..FineOptions::default() },
        1,
        300,
    );
}

#[test]
fn smart_survives_a_death_at_any_write() {
    deaths::<512, Smart, _>(&SmartOptions { chunk_bytes: 1 << 14, ..Default::default() }, 3, 200);
}

#[test]
fn hybrid_survives_a_death_at_any_write() {
    let options = || HybridOptions {
        chunk_nodes_log2: 4,
        ..HybridOptions::with_boundaries(vec![long_prefix(b"key-0000000020")])
    };
    deaths::<512, Hybrid, _>(&options(), 2, 300);
}

fn dex_options(cache: CacheOptions) -> DexOptions<StringKey> {
    let boundaries = vec![long_prefix(b"key-0000000050"), b"q".to_vec()];
    DexOptions {
        chunk_nodes_log2: 4,
        placement_level: 1,
        ..DexOptions::with_boundaries(boundaries, cache)
    }
}

pub(super) fn dex(
    provider: &AnyProvider,
    cache: CacheOptions,
) -> SuiteSetup<'_, AnyProvider, DexOptions<StringKey>> {
    let options = dex_options(cache);
    let server = MemoryServerConfig { chunk_bytes: 1 << 18, ..server() };
    SuiteSetup { provider, options, memory_servers: 3, server }
}

/// The smallest possible cache, and one with room for all nodes.
pub(super) fn caches() -> [CacheOptions; 2] {
    let few = CacheOptions { bytes: 0, ..CacheOptions::default() };
    [few, CacheOptions { bytes: 8 << 20, ..CacheOptions::default() }]
}

#[test]
fn dex_locally() {
    let provider = local(LocalConfig::default());
    for cache in caches() {
        random_operations::<128, Dex>(&dex(&provider, cache), 3_000, inline::<128>());
        random_operations::<512, Dex>(&dex(&provider, cache), 3_000, inline::<512>());
        loads::<128, Dex>(&dex(&provider, cache), inline::<128>());
        loads::<512, Dex>(&dex(&provider, cache), inline::<512>());
    }
}

#[test]
fn dex_simulated() {
    for cache in caches() {
        for seed in 0..2 {
            random_operations::<128, Dex>(&dex(&rough(seed), cache), 800, inline::<128>());
            random_operations::<512, Dex>(&dex(&rough(seed), cache), 800, inline::<512>());
        }
        loads::<128, Dex>(&dex(&rough(7), cache), inline::<128>());
    }
}

type Small = Bytes<128>;

/// 1,000 records with values of eight bytes, in one compute server's cache.
fn small_records() -> StringModel {
    (0..1_000).map(|number| (key(number, 0, 100), vec![1; 8])).collect()
}

fn one_server() -> DexOptions<StringKey> {
    DexOptions { boundaries: vec![], ..dex_options(caches()[1]) }
}

/// An insert writes back the header, the slots and, separately, its record. An update of a value of
/// eight bytes writes back one word.
#[test]
fn dex_writes_back_what_has_changed() {
    let provider = sim(SimConfig::default());
    let setup = SuiteSetup { options: one_server(), ..dex(&provider, caches()[1]) };
    let cluster = setup.with_index::<Small, Dex>();
    let pool = &<Dex as Design<Small>>::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <Dex as Design<Small>>::open(fabric.clone(), pool).await.unwrap();
        let model = small_records();
        index.bulk_load(model.clone().into_iter(), 0.7).await.unwrap();
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 1_000);
        index.flush().await.unwrap();
        let written = async || {
            let before = fabric.counters().snapshot();
            index.flush().await.unwrap();
            let cost = fabric.counters().snapshot() - before;
            (cost.writes, cost.bytes_written, cost.doorbells)
        };
        assert_eq!(written().await, (0, 0, 0));
        let mut halves = 0;
        for number in (6..1_000).step_by(60) {
            let known = key(number, 0, 100);
            assert!(index.update(&known, &[2; 8]).await.unwrap());
            assert_eq!(written().await, (1, 8, 1));
            let mut new = known.clone();
            new.push(7);
            assert!(index.insert(&new, &[3; 8]).await.unwrap());
            let (writes, bytes, doorbells) = written().await;
            // A leaf without room was split, and is written whole.
            halves += u64::from(writes == 2);
            if writes == 2 {
                assert!(bytes < 500 && doorbells == 1, "{bytes} bytes, {doorbells} doorbells");
            }
        }
        assert!(halves > 10, "{halves}");
    });
}

/// A compute server dies between the WRITEs of a leaf: the pool has either the old or the new
/// content of each leaf, and none is damaged.
#[test]
fn dex_dies_between_the_writes_of_a_leaf() {
    let mut halves = 0;
    for write in 0..60 {
        let provider = rough(write);
        let setup = SuiteSetup { options: one_server(), ..dex(&provider, caches()[1]) };
        let cluster = setup.with_index::<Small, Dex>();
        let options = &setup.options;
        let changed: Vec<StringKey> = (6..1_000)
            .step_by(33)
            .map(|number| [&key(number, 0, 100)[..], &[7]].concat())
            .collect();
        cluster.run_one(|fabric| async move {
            let pool = <Dex as Design<Small>>::compute(options).unwrap();
            let index = <Dex as Design<Small>>::open(fabric, &pool).await.unwrap();
            index.bulk_load(small_records().into_iter(), 0.5).await.unwrap();
        });
        let changed = &changed;
        simulated(&cluster).kill_compute_servers_at_write(vec![1], write, LastWords::All);
        cluster.run(&[1], |fabric, _| async move {
            let pool = <Dex as Design<Small>>::compute(options).unwrap();
            let index = <Dex as Design<Small>>::open(fabric, &pool).await.unwrap();
            for key in changed {
                assert!(index.insert(key, &[3; 20]).await.unwrap());
            }
            index.flush().await.unwrap();
        });
        let lived = simulated(&cluster).call_off_death().is_some();
        let added = cluster.run(&[2], |fabric, _| async move {
            let pool = <Dex as Design<Small>>::compute(options).unwrap();
            let index = <Dex as Design<Small>>::open(fabric, &pool).await.unwrap();
            let found = index.scan(&ScanRequest::range(..)).await.unwrap();
            let mut found: StringModel = found.into_iter().collect();
            let mut added = 0;
            for key in changed {
                let got = index.get(key).await.unwrap();
                assert!(got.is_none() || got == Some(vec![3; 20]), "{write}: {got:?}");
                assert_eq!(found.remove(key), got);
                added += usize::from(got.is_some());
            }
            assert_eq!(found, small_records(), "{write}");
            added
        });
        let added = added[0].unwrap();
        assert!(!lived || added == changed.len(), "{write}: {added}");
        halves += usize::from(0 < added && added < changed.len());
    }
    assert!(halves > 30, "{halves}");
}
