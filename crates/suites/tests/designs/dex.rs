//! What DEX guarantees beyond the suite of all designs: what each operation costs on the network,
//! that it stays correct with few frames and little memory, that nothing leaks, and which compute
//! server owns which keys.
//!
//! Counts of remote operations are exact: the local fabric completes at once, and there is only one
//! client.

use super::clients::{NOTHING, fill_until_refused, setup, spent, verbs};
use farleaf_dex::cache::{AdmissionName, CacheOptions, OffloadName};
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::{LocalCluster, LocalConfig};
use farleaf_fabric::sim::{Faults, NetworkModel, SimConfig};
use farleaf_fabric::{Cluster, Fabric, Provider};
use farleaf_index::partition::{ComputePool, RoutedIndex};
use farleaf_index::{
    Boundaries, Design, EditAction, Exchange, IndexAdmin, IndexError, LeafEdit, PartState,
    RangeIndex, ScanRequest,
};
use farleaf_page::{Fixed8, Layout, NodeCarver};
use farleaf_pool::server::MemoryServer;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pages of four entries, so that a few hundred keys make a high tree.
type Tiny = Fixed8<16>;
type Model = BTreeMap<u64, u64>;
type Pool<L> = Arc<ComputePool<Dex, L>>;

fn frames(frames: u64) -> CacheOptions {
    CacheOptions { bytes: frames * 1024, ..CacheOptions::default() }
}

/// The smallest possible cache.
fn fewest() -> CacheOptions {
    CacheOptions { bytes: 0, ..CacheOptions::default() }
}

fn admitting(admission: AdmissionName, cache: CacheOptions) -> CacheOptions {
    CacheOptions { admission, ..cache }
}

/// Boundaries that divide the key space into `parts` equal ranges.
fn equal_ranges(parts: u64) -> Vec<u64> {
    (1..parts).map(|part| u64::MAX / parts * part).collect()
}

/// Options for tiny pages: small chunks, and subtrees of few nodes.
fn tiny(boundaries: Vec<u64>, cache: CacheOptions) -> DexOptions<u64> {
    DexOptions {
        chunk_nodes_log2: 2,
        placement_level: 1,
        ..DexOptions::with_boundaries(boundaries, cache)
    }
}

fn compute<L: Layout<Key = u64, Value = u64>>(options: &DexOptions<u64>) -> Pool<L> {
    <Dex as Design<L>>::compute(options).unwrap()
}

async fn open<F: Fabric, L: Layout<Key = u64, Value = u64>>(
    fabric: F,
    pool: &Pool<L>,
) -> RoutedIndex<Dex, F, L> {
    <Dex as Design<L>>::open(fabric, pool).await.unwrap()
}

/// A leaf without word 0.
const LEAF: u64 = 1016;
const PAGE: u64 = 1024;

fn contents(model: &Model) -> Vec<(u64, u64)> {
    model.iter().map(|(&key, &value)| (key, value)).collect()
}

async fn same_contents<I: RangeIndex<Key = u64, Value = u64>>(index: &I, model: &Model) {
    let mut expected = contents(model);
    assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), expected, "upwards");
    expected.reverse();
    assert_eq!(index.scan(&ScanRequest::range(..).reverse()).await.unwrap(), expected, "downwards");
}

/// One random operation on `key`, on the index and on the model.
async fn random_operation<I: RangeIndex<Key = u64, Value = u64>, F: Fabric>(
    index: &I,
    model: &mut Model,
    fabric: &F,
    key: u64,
) {
    let (value, held) = (fabric.random(), model.get(&key).copied());
    match fabric.random() % 5 {
        0 | 1 => {
            assert_eq!(index.insert(&key, &value).await, Ok(held.is_none()), "insert {key}");
            model.entry(key).or_insert(value);
        }
        2 => {
            assert_eq!(index.update(&key, &value).await, Ok(held.is_some()), "update {key}");
            model.entry(key).and_modify(|held| *held = value);
        }
        3 => {
            assert_eq!(index.remove(&key).await, Ok(held.is_some()), "remove {key}");
            model.remove(&key);
        }
        _ => assert_eq!(index.get(&key).await, Ok(held), "get {key}"),
    }
}

#[test]
fn what_is_cached_costs_nothing() {
    let provider = LocalConfig::default();
    let cache = admitting(AdmissionName::Hot, frames(4_096));
    // 480 leaves of 42 records in each third: no removal makes a leaf sparse enough to be merged.
    const RECORDS: u64 = 3 * 480 * 42;
    let options = DexOptions::with_boundaries(vec![RECORDS, 2 * RECORDS], cache);
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool = compute::<Fixed8>(&options);
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), pool).await;
        index.bulk_load((0..RECORDS).map(|n| (n * 3, n)), 0.7).await.unwrap();
        for number in 0..RECORDS {
            assert_eq!(index.get(&(number * 3)).await, Ok(Some(number)));
        }
        for number in (0..RECORDS).step_by(101) {
            let key = number * 3;
            let get = async { assert_eq!(index.get(&key).await, Ok(Some(number))) };
            assert_eq!(verbs(spent(&fabric, get).await), NOTHING);
            let update = async { assert_eq!(index.update(&key, &7).await, Ok(true)) };
            assert_eq!(verbs(spent(&fabric, update).await), NOTHING);
            let insert = async { assert_eq!(index.insert(&(key + 1), &7).await, Ok(true)) };
            assert_eq!(verbs(spent(&fabric, insert).await), NOTHING);
            let remove = async { assert_eq!(index.remove(&(key + 1)).await, Ok(true)) };
            assert_eq!(verbs(spent(&fabric, remove).await), NOTHING);
        }
        let scan = async {
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), RECORDS as usize)
        };
        assert_eq!(verbs(spent(&fabric, scan).await), NOTHING);
    });
}

/// An operation of a group whose leaf was hot once had to wait while the leaf of an earlier one was
/// merged: for several round trips, or for a memory server that did not answer.
#[test]
fn a_merge_does_not_hold_up_the_other_operations_of_its_group() {
    let provider = LocalConfig::default();
    let options = tiny(vec![], admitting(AdmissionName::Hot, frames(1_024)));
    let cluster = setup(&provider, 1, 8 << 20, options.clone()).with_index::<Tiny, Dex>();
    let pool = compute::<Tiny>(&options);
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), pool).await;
        for key in 0..200 {
            index.insert(&key, &key).await.unwrap();
        }
        let writes = || fabric.counters().snapshot().writes;
        let mut merges = 0;
        for key in 0..150 {
            assert_eq!(index.get(&199).await, Ok(Some(199)), "its leaf becomes hot");
            let edits = [(&key, EditAction::Remove), (&199, EditAction::Get)];
            let edits = edits.map(|(key, action)| LeafEdit { key, action });
            let written = std::cell::Cell::new([0; 2]);
            let done = |place: usize, outcome: Result<_, _>| {
                outcome.unwrap();
                let mut now = written.get();
                now[place] = writes();
                written.set(now);
            };
            index.part(0).execute_all(&edits, done).await;
            let [first, second] = written.get();
            assert_eq!(first, second, "removing {key}: the other operation has not waited");
            merges += u64::from(writes() > second);
        }
        assert!(merges > 10, "{merges}");
    });
}

/// A change of a cached leaf is written back later, by one WRITE of the words from the first to the
/// last changed one.
#[test]
fn a_write_back_is_one_write_of_what_changed() {
    let provider = LocalConfig::default();
    let cache = admitting(AdmissionName::Hot, frames(1_024));
    let options = DexOptions::with_boundaries(vec![], cache);
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool = compute::<Fixed8>(&options);
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), pool).await;
        index.bulk_load((0..4_200).map(|n| (n, n)), 0.7).await.unwrap();
        // There are 42 records per leaf. The keys are: the second leaf's first record; its first
        // (twice) and third; its last and first.
        for (keys, bytes) in [(vec![42], 8), (vec![42, 42, 44], 40), (vec![83, 42], 41 * 16 + 8)] {
            assert_eq!(index.get(&42).await.unwrap().map(drop), Some(()));
            let update = async {
                for key in &keys {
                    assert_eq!(index.update(key, &7).await, Ok(true));
                }
            };
            assert_eq!(verbs(spent(&fabric, update).await), NOTHING);
            let flush = async { index.part(0).flush().await.unwrap() };
            assert_eq!(verbs(spent(&fabric, flush).await), (0, 1, 0, 0, 0, bytes));
            let again = async { index.part(0).flush().await.unwrap() };
            assert_eq!(verbs(spent(&fabric, again).await), NOTHING, "it is clean");
        }
    });
}

/// Caches the inner nodes above 60,000 records: each level-1 node by looking up a leaf in its
/// middle.
async fn warm_inner_nodes<F: Fabric>(index: &RoutedIndex<Dex, F, Fixed8>) {
    // 42 records per leaf, 42 leaves per node.
    for number in (42 * 21..60_000).step_by(42 * 42) {
        index.get(&number).await.unwrap();
    }
    index.get(&59_999).await.unwrap();
}

#[test]
fn a_miss_is_one_read_and_a_change_that_misses_one_write_more() {
    let provider = LocalConfig::default();
    let options = DexOptions::with_boundaries(vec![], frames(2_048));
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool = compute::<Fixed8>(&options);
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), pool).await;
        index.bulk_load((0..60_000).map(|n| (n * 2, n)), 0.7).await.unwrap();
        for number in (42 * 21..60_000).step_by(42 * 42).chain([59_999]) {
            index.get(&(number * 2)).await.unwrap();
        }
        // Uncached leaves below different parents: five for each kind of operation.
        let leaf = |number: u64| (number * 42 * 42 + 5 * 42 + 3) * 2;
        for key in (0..5).map(leaf) {
            let get = async { assert_eq!(index.get(&key).await, Ok(Some(key / 2))) };
            assert_eq!(verbs(spent(&fabric, get).await), (1, 0, 0, 0, LEAF, 0), "get {key}");
            let again = async { assert_eq!(index.get(&key).await, Ok(Some(key / 2))) };
            assert_eq!(verbs(spent(&fabric, again).await), NOTHING, "it cools, and is hot again");
        }
        for key in (5..10).map(leaf) {
            let update = async { assert_eq!(index.update(&key, &7).await, Ok(true)) };
            assert_eq!(verbs(spent(&fabric, update).await), (1, 1, 0, 0, LEAF, 8), "update {key}");
        }
        for key in (10..15).map(leaf) {
            let insert = async { assert_eq!(index.insert(&(key + 1), &7).await, Ok(true)) };
            // From word 4 to the end of the 43rd record.
            let bytes = (4 + 43 * 2) * 8;
            assert_eq!(verbs(spent(&fabric, insert).await), (1, 1, 0, 0, LEAF, bytes));
        }
        for key in (15..20).map(leaf) {
            let remove = async { assert_eq!(index.remove(&key).await, Ok(true)) };
            // Words 4 to 7: the count, and the bits of deleted records.
            assert_eq!(verbs(spent(&fabric, remove).await), (1, 1, 0, 0, LEAF, 32), "remove {key}");
        }
        for key in (20..25).map(leaf) {
            let no = async { assert_eq!(index.update(&(key + 1), &7).await, Ok(false)) };
            assert_eq!(verbs(spent(&fabric, no).await), (1, 0, 0, 0, LEAF, 0), "nothing changed");
        }
        let counters = index.cache_counters();
        assert_eq!((counters.write_throughs, counters.write_backs), (15, 0));
    });
}

/// With lazy admission at probability 0, no leaf is ever cached.
#[test]
fn a_private_leaf_is_read_and_written_each_time() {
    let provider = LocalConfig::default();
    let cache = admitting(AdmissionName::Coin(0.0), frames(256));
    let options = DexOptions::with_boundaries(vec![], cache);
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool = compute::<Fixed8>(&options);
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), pool).await;
        index.bulk_load((0..60_000).map(|n| (n, n)), 0.7).await.unwrap();
        warm_inner_nodes(&index).await;
        for key in (0..60_000).step_by(997) {
            for round in 0..2 {
                let update = async { assert_eq!(index.update(&key, &round).await, Ok(true)) };
                assert_eq!(verbs(spent(&fabric, update).await), (1, 1, 0, 0, LEAF, 8));
                let get = async { assert_eq!(index.get(&key).await, Ok(Some(round))) };
                assert_eq!(verbs(spent(&fabric, get).await), (1, 0, 0, 0, LEAF, 0));
            }
        }
        assert_eq!(index.cache_counters().leaf_hits, 0);
    });
}

/// A split below an exclusive parent writes the new leaf, and then, in one doorbell, a log entry of
/// the parent's change and the parent. The lower half is written back later.
#[test]
fn a_split_is_three_writes() {
    let provider = LocalConfig::default();
    for admission in [AdmissionName::Hot, AdmissionName::Cold] {
        let options = DexOptions::with_boundaries(vec![], admitting(admission, frames(256)));
        let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
        let pool = compute::<Fixed8>(&options);
        let pool = &pool;
        cluster.run_one(|fabric| async move {
            let index = open(fabric.clone(), pool).await;
            index.bulk_load((0..1_200).map(|n| (n * 2, n)), 1.0).await.unwrap();
            // The first split may request a chunk.
            assert_eq!(index.insert(&1, &7).await, Ok(true));
            for leaf in 1..20 {
                let key = (leaf * 60 + 7) * 2 + 1;
                let cached = admission == AdmissionName::Hot && leaf % 2 == 0;
                if cached {
                    index.get(&key).await.unwrap();
                }
                let insert = async { assert_eq!(index.insert(&key, &7).await, Ok(true)) };
                let cost = verbs(spent(&fabric, insert).await);
                let (reads, bytes_read) = if cached { (0, 0) } else { (1, LEAF) };
                // The entry: its head and its page's head, four runs, count, checksum, and the keys
                // and children that move.
                let entry = (2 + 2 + 4 + 2 + 2 * (20 - leaf)) * 8;
                let written = LEAF + PAGE + entry;
                assert_eq!(cost, (reads, 3, 0, 0, bytes_read, written), "leaf {leaf}");
            }
            // Each lower half, without word 0.
            let flush = async { index.part(0).flush().await.unwrap() };
            assert_eq!(verbs(spent(&fabric, flush).await), (0, 20, 0, 0, 0, 20 * LEAF));
        });
    }
}

/// A split below a shared parent takes one CAS if the cached copy is current. If the copy is old,
/// the CAS fails, one READ fetches the current page, and a second CAS succeeds.
#[test]
fn a_split_below_a_shared_parent_is_one_cas() {
    let provider = LocalConfig::default();
    let options =
        DexOptions::with_boundaries(vec![1_200], admitting(AdmissionName::Hot, frames(256)));
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool = compute::<Fixed8>(&options);
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), pool).await;
        index.bulk_load((0..1_200).map(|n| (n * 2, n)), 1.0).await.unwrap();
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 1_200);
        // The first split requests a client number, a log, and perhaps a chunk.
        assert_eq!(index.insert(&1, &7).await, Ok(true));
        let mut last_part = 0;
        // Leaves 0 to 9 belong to the first compute server, 10 to 19 to the second.
        for leaf in [1, 2, 10, 11, 3, 12, 13, 14, 4, 5, 6, 7, 8, 15] {
            let part = u16::from(leaf >= 10);
            let key = (leaf * 60 + 7) * 2 + 1;
            let insert = async { assert_eq!(index.insert(&key, &7).await, Ok(true)) };
            let cost = spent(&fabric, insert).await;
            let counts = (cost.reads, cost.writes, cost.atomics, cost.rpcs);
            // The new leaf; then a log entry, the parent's body, and its unlock.
            let expected = if part == last_part { (0, 4, 1, 0) } else { (1, 4, 2, 0) };
            assert_eq!(counts, expected, "leaf {leaf}");
            last_part = part;
        }
    });
}

/// Sixteen tasks of one thread in a cache of 24 frames. Each needs a frame for its miss, and splits
/// need one more.
fn many_tasks_in_few_frames<P: Provider>(provider: &P, admission: AdmissionName) {
    const CLIENTS: u64 = 16;
    let options = tiny(vec![], admitting(admission, fewest()));
    let cluster = setup(provider, 3, 16 << 20, options.clone()).with_index::<Tiny, Dex>();
    let pool = compute::<Tiny>(&options);
    assert_eq!(pool.servers()[0].state().cache().arena().frames(), CacheOptions::MIN_FRAMES);
    let pool = &pool;
    let models = cluster.run(&[0; CLIENTS as usize], |fabric, client| async move {
        let index = open(fabric.clone(), pool).await;
        let mut model = Model::new();
        for round in 0..400 {
            let space = if round / 100 % 2 == 0 { 60 } else { 12 };
            let key = (fabric.random() % space * CLIENTS + client as u64) << 32;
            random_operation(&index, &mut model, &fabric, key).await;
            if round % 10 == 0 {
                // Other clients may change their keys meanwhile, but this client's keys must be
                // unchanged.
                let scan = ScanRequest::range(key..).limit(60);
                for scan in [scan.clone(), ScanRequest::range(..=key).reverse().limit(60), scan] {
                    let found = index.scan(&scan).await.unwrap();
                    assert!(found.is_sorted_by(|a, b| (a.0 > b.0) == scan.reverse), "{scan:?}");
                    let (Some(first), Some(last)) = (found.first(), found.last()) else { continue };
                    let between = first.0.min(last.0)..=first.0.max(last.0);
                    let mut own: Vec<_> = found
                        .iter()
                        .filter(|(key, _)| (key >> 32) % CLIENTS == client as u64)
                        .collect();
                    own.sort_unstable();
                    let held = model.range(between).map(|(&key, &value)| (key, value));
                    assert!(own.into_iter().copied().eq(held), "{scan:?}");
                }
            }
        }
        model
    });
    let model: Model = models.into_iter().flatten().flatten().collect();
    cluster.run_one(|fabric| {
        let model = &model;
        async move { same_contents(&open(fabric, pool).await, model).await }
    });
}

#[test]
fn few_frames_are_enough_for_many_tasks() {
    let one_thread = LocalConfig { one_client_thread: true, ..LocalConfig::default() };
    for admission in [AdmissionName::Cold, AdmissionName::Hot, AdmissionName::Coin(0.1)] {
        many_tasks_in_few_frames(&one_thread, admission);
        for seed in 0..4 {
            many_tasks_in_few_frames(&SimConfig { seed, ..SimConfig::default() }, admission);
        }
    }
    for seed in 0..4 {
        let provider = SimConfig { seed, faults: Faults::rough(), ..SimConfig::default() };
        many_tasks_in_few_frames(&provider, AdmissionName::Cold);
    }
}

#[test]
fn without_memory_the_operation_fails_and_the_index_stays_whole() {
    let provider = LocalConfig::default();
    for parts in [1, 3] {
        let options = tiny(equal_ranges(parts), frames(64));
        let cluster = setup(&provider, 2, 128 << 10, options.clone()).with_index::<Tiny, Dex>();
        let pool = compute::<Tiny>(&options);
        let pool = &pool;
        cluster.run_one(|fabric| async move {
            let index = open(fabric.clone(), pool).await;
            let mut model = fill_until_refused(&index).await;
            same_contents(&index, &model).await;
            for (key, value) in contents(&model) {
                assert_eq!(index.get(&key).await, Ok(Some(value)));
                assert_eq!(index.update(&key, &!value).await, Ok(true));
                model.insert(key, !value);
            }
            for key in model.keys().copied().skip(3).collect::<Vec<_>>() {
                assert_eq!(index.remove(&key).await, Ok(true));
                model.remove(&key);
            }
            index.collect().await.unwrap();
            same_contents(&index, &model).await;
            for number in 0..60 {
                let key = number * (u64::MAX / 60) + 1;
                assert_eq!(index.insert(&key, &1).await, Ok(true), "key {number}");
                model.insert(key, 1);
            }
            same_contents(&index, &model).await;
        });
    }
}

fn partitions_from_empty<L: Layout<Key = u64, Value = u64>>(parts: u64, cache: CacheOptions) {
    let provider = LocalConfig::default();
    let options = tiny(equal_ranges(parts), cache);
    let cluster = setup(&provider, 3, 16 << 20, options.clone()).with_index::<L, Dex>();
    let pool = compute::<L>(&options);
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), pool).await;
        let mut model = Model::new();
        let edges: Vec<u64> =
            equal_ranges(parts).into_iter().flat_map(|edge| [edge - 1, edge, edge + 1]).collect();
        for &key in [0, u64::MAX].iter().chain(&edges) {
            assert_eq!(index.get(&key).await, Ok(None));
            assert_eq!(index.insert(&key, &!key).await, Ok(true));
            assert_eq!(index.insert(&key, &1).await, Ok(false));
            assert_eq!(index.get(&key).await, Ok(Some(!key)));
            model.insert(key, !key);
        }
        same_contents(&index, &model).await;
        for _ in 0..400 {
            let key = fabric.random();
            assert_eq!(index.insert(&key, &!key).await, Ok(model.insert(key, !key).is_none()));
        }
        same_contents(&index, &model).await;
        let places: Vec<u64> =
            edges.iter().copied().chain([0, 1, u64::MAX - 1, u64::MAX]).collect();
        for &low in &places {
            for &high in places.iter().filter(|high| **high >= low) {
                for limit in [1, 3, usize::MAX] {
                    let scan = ScanRequest::range(low..=high).limit(limit);
                    let inside = model.range(low..=high).map(|(&key, &value)| (key, value));
                    let expected: Vec<_> = inside.clone().take(limit).collect();
                    assert_eq!(index.scan(&scan).await.unwrap(), expected, "{scan:?}");
                    let expected: Vec<_> = inside.rev().take(limit).collect();
                    assert_eq!(index.scan(&scan.reverse()).await.unwrap(), expected);
                }
            }
        }
        for key in contents(&model).into_iter().map(|(key, _)| key) {
            assert_eq!(index.remove(&key).await, Ok(true));
        }
        same_contents(&index, &Model::new()).await;
    });
}

#[test]
fn an_index_begins_empty_in_any_number_of_partitions() {
    for parts in [1, 3, 7] {
        partitions_from_empty::<Tiny>(parts, fewest());
        partitions_from_empty::<Fixed8>(parts, frames(64));
    }
}

fn one_hot_key<P: Provider>(provider: &P, clients: usize, rounds: u64) {
    let options = DexOptions::with_boundaries(vec![], frames(64));
    let cluster = setup(provider, 2, 16 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool = compute::<Fixed8>(&options);
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        assert_eq!(open(fabric, pool).await.insert(&7, &0).await, Ok(true));
    });
    cluster.run(&vec![0; clients], |fabric, _| async move {
        let index = open(fabric, pool).await;
        for _ in 0..rounds {
            let mut held = index.get(&7).await.unwrap().unwrap();
            while let Exchange::Differs(now) =
                index.compare_exchange(&7, &held, &(held + 1)).await.unwrap()
            {
                held = now.unwrap();
            }
        }
    });
    cluster.run_one(|fabric| async move {
        let counted = open(fabric, pool).await.get(&7).await;
        assert_eq!(counted, Ok(Some(clients as u64 * rounds)));
    });
}

#[test]
fn every_exchange_on_a_hot_key_counts_once() {
    one_hot_key(&LocalConfig::default(), 2, 20_000);
    for seed in 0..3 {
        one_hot_key(&SimConfig { seed, ..SimConfig::default() }, 32, 20);
    }
}

/// Bytes that the memory servers have allocated.
fn allocated(cluster: &LocalCluster<MemoryServer<Tiny>>) -> u64 {
    cluster.services().map(|server| server.usage().allocated_bytes).sum()
}

/// Nodes of the memory servers that are neither free nor in a list of free nodes.
fn in_use<F: Fabric>(
    cluster: &LocalCluster<MemoryServer<Tiny>>,
    index: &RoutedIndex<Dex, F, Tiny>,
    parts: u64,
) -> u64 {
    let given: u64 = cluster.services().map(|server| server.nodes().0).sum();
    let kept = (0..parts as u16).map(|part| index.part(part).server().free_nodes());
    given - (kept.sum::<usize>() + index.part(0).available_nodes()) as u64
}

/// Asserts that no round leaves more nodes in use in the second half of the rounds than in the
/// first, so that not one node is lost, and that the memory servers have allocated no more than
/// these nodes and the free ones that compute servers keep. The free ones accumulate for many
/// rounds: a compute server keeps 1,024 of each memory server, and the handle 256 and its chunk.
///
/// (These tests once asserted that allocated memory stops growing in the first half of the rounds.
/// It does only if a round frees so many nodes that the lists of free ones are full by then.)
fn assert_no_leaks(cluster: &LocalCluster<MemoryServer<Tiny>>, parts: u64, in_use: &[u64]) {
    let (first, second) = in_use.split_at(in_use.len() / 2);
    assert!(second.iter().max() <= first.iter().max(), "nodes are lost: {in_use:?}");
    let kept = cluster.services().count() as u64 * (parts * 1_024 + 256 + 4);
    let most = (in_use.iter().max().unwrap() + kept) * NodeCarver::NODE_ALIGN;
    assert!(allocated(cluster) <= most, "{} bytes for {in_use:?}", allocated(cluster));
}

#[test]
fn a_tree_that_grows_and_shrinks_for_ever_does_not_leak() {
    let provider = LocalConfig::default();
    for parts in [1, 3] {
        let options = tiny(equal_ranges(parts), frames(512));
        let cluster = setup(&provider, 2, 64 << 20, options.clone()).with_index::<Tiny, Dex>();
        let pool = compute::<Tiny>(&options);
        let (pool, cluster) = (&pool, &cluster);
        cluster.run_one(|fabric| async move {
            let index = open(fabric.clone(), pool).await;
            let (mut full, mut empty) = (Vec::new(), Vec::new());
            for round in 0..30_u64 {
                let key = |number: u64| number * (u64::MAX / 5_000) + round;
                for number in 0..5_000 {
                    assert_eq!(index.insert(&key(number), &number).await, Ok(true));
                }
                full.push(in_use(cluster, &index, parts));
                for number in 0..5_000 {
                    // Upwards, downwards, and from both ends.
                    let number = match round % 3 {
                        0 => number,
                        1 => 4_999 - number,
                        _ if number % 2 == 0 => number / 2,
                        _ => 4_999 - number / 2,
                    };
                    assert_eq!(index.remove(&key(number)).await, Ok(true));
                }
                same_contents(&index, &Model::new()).await;
                empty.push(in_use(cluster, &index, parts));
            }
            assert_no_leaks(cluster, parts, &full);
            let most = empty.iter().max();
            assert!(most <= empty[..3].iter().max(), "nodes are lost: {empty:?}");
        });
    }
}

/// Keys that only move upwards: nodes freed below are reused above.
#[test]
fn a_window_that_slides_for_ever_does_not_leak() {
    let provider = LocalConfig::default();
    let options = tiny(vec![], frames(512));
    let cluster = setup(&provider, 2, 64 << 20, options.clone()).with_index::<Tiny, Dex>();
    let pool = compute::<Tiny>(&options);
    let (pool, cluster) = (&pool, &cluster);
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), pool).await;
        const WINDOW: u64 = 2_000;
        let mut taken = Vec::new();
        for number in 0..WINDOW * 30 {
            assert_eq!(index.insert(&number, &!number).await, Ok(true));
            if number >= WINDOW {
                assert_eq!(index.remove(&(number - WINDOW)).await, Ok(true));
            }
            if number % WINDOW == WINDOW - 1 {
                taken.push(in_use(cluster, &index, 1));
            }
        }
        assert_no_leaks(cluster, 1, &taken);
        let model: Model = (WINDOW * 29..WINDOW * 30).map(|key| (key, !key)).collect();
        same_contents(&index, &model).await;
    });
}

/// Two partitions: one grows while the other shrinks, and then the reverse.
///
/// This once entered a node into a table twice. When a shared node is split, the half that keeps
/// its address is no longer shared. Its owner can merge and free it, although the other compute
/// server still has a copy of it in its cache. When that compute server allocated the address for a
/// node of its own, the copy was still there (D3).
#[test]
fn partitions_that_take_turns_do_not_leak() {
    let provider = LocalConfig::default();
    let options = tiny(equal_ranges(2), frames(512));
    let cluster = setup(&provider, 2, 64 << 20, options.clone()).with_index::<Tiny, Dex>();
    let pool = compute::<Tiny>(&options);
    let (pool, cluster) = (&pool, &cluster);
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), pool).await;
        let key = |side: u64, number: u64| side * (u64::MAX / 2 + 1) + number * 977;
        for number in 0..5_000 {
            assert_eq!(index.insert(&key(0, number), &number).await, Ok(true));
        }
        let mut taken = Vec::new();
        for round in 0..30 {
            let shrinks = round % 2;
            for number in 0..5_000 {
                assert_eq!(index.remove(&key(shrinks, number)).await, Ok(true));
                assert_eq!(index.insert(&key(1 - shrinks, number), &number).await, Ok(true));
            }
            taken.push(in_use(cluster, &index, 2));
        }
        assert_no_leaks(cluster, 2, &taken);
        let model: Model = (0..5_000).map(|number| (key(0, number), number)).collect();
        same_contents(&index, &model).await;
    });
}

/// The number of `model`'s records that each compute server owns.
fn owned(pool: &Pool<Fixed8>, model: &Model) -> Vec<usize> {
    let count = |server: &Arc<farleaf_index::partition::ComputeServer<Dex, Fixed8>>| {
        let range = server.state().range();
        model.keys().filter(|key| range.has(key)).count()
    };
    pool.servers().iter().map(count).collect()
}

#[test]
fn a_bulk_load_keeps_the_boundaries_or_evens_them_out() {
    let provider = LocalConfig::default();
    let model: Model = (0..30_000_u64).map(|n| (n * n, n)).collect();
    let model = &model;
    // A leaf has 42 records.
    const LEAF_RECORDS: usize = 42;
    for at_load in [Boundaries::Kept, Boundaries::EqualRecords] {
        let boundaries = vec![1_000_000, 500_000_000, 2_000_000_000];
        let options = DexOptions {
            at_load,
            ..DexOptions::with_boundaries(boundaries.clone(), frames(2_048))
        };
        let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
        let pool = compute::<Fixed8>(&options);
        let (pool, boundaries) = (&pool, &boundaries);
        cluster.run_one(|fabric| async move {
            let index = open(fabric.clone(), pool).await;
            let late = open(fabric.clone(), pool).await;
            assert_eq!(index.bulk_load(contents(model).into_iter(), 0.7).await, Ok(30_000));
            let (map, counts) = (pool.map(), owned(pool, model));
            assert_eq!(counts.iter().sum::<usize>(), 30_000, "each record has one owner");
            match at_load {
                Boundaries::Kept => {
                    assert_eq!((map.epoch(), map.boundaries()), (1, &boundaries[..]));
                    // The numbers of squares below each boundary.
                    assert_eq!(counts, [1_000, 21_361, 7_639, 0]);
                }
                Boundaries::EqualRecords => {
                    assert_eq!(map.epoch(), 2);
                    for count in counts {
                        assert!(count.abs_diff(30_000 / 4) <= LEAF_RECORDS, "{count} of 30,000");
                    }
                }
            }
            for key in model.keys().step_by(371) {
                let owner = map.owner_of(key);
                for server in 0..4 {
                    let answer = index.get_from(server, key).await;
                    let expected = match server == owner {
                        true => Ok(model.get(key).copied()),
                        false => Err(IndexError::NotOwner { owner, epoch: map.epoch() }),
                    };
                    assert_eq!(answer, expected, "{key} from {server}");
                }
                // This handle was opened with the previous map, and must learn the new one.
                assert_eq!(late.get(key).await, Ok(model.get(key).copied()));
            }
            same_contents(&index, model).await;
            same_contents(&late, model).await;
        });
    }
}

/// A bulk load that fails while it builds the tree frees each node once. It used to free the root's
/// unused node twice.
#[test]
fn a_bulk_load_that_fails_at_its_end_leaves_the_pool_whole() {
    let at_load = Boundaries::EqualRecords;
    let options =
        DexOptions { at_load, ..DexOptions::with_boundaries(equal_ranges(3), frames(2_048)) };
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool = &compute::<Fixed8>(&options);
    cluster.run_one(|fabric| async move {
        let index = open(fabric, pool).await;
        let few = index.bulk_load((0..10).map(|key| (key, key)), 0.7).await;
        assert!(matches!(few, Err(IndexError::InvalidArgument(_))), "one leaf for three: {few:?}");
        let model: Model = (0..5_000).map(|key| (key * 3, key)).collect();
        assert_eq!(index.bulk_load(contents(&model).into_iter(), 0.7).await, Ok(5_000));
        for key in 0..5_000 {
            assert_eq!(index.insert(&(key * 3 + 1), &key).await, Ok(true));
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 10_000);
    });
}

/// Changes of every kind, with more nodes than frames. After a flush, everything is in the pool for
/// a compute side with an empty cache.
#[test]
fn after_a_flush_the_pool_has_everything() {
    let provider = LocalConfig::default();
    for (parts, cache) in [(1, fewest()), (3, fewest()), (3, frames(4_096))] {
        let options = tiny(equal_ranges(parts), cache);
        let cluster = setup(&provider, 3, 16 << 20, options.clone()).with_index::<Tiny, Dex>();
        let (pool, options) = (compute::<Tiny>(&options), &options);
        let pool = &pool;
        cluster.run_one(|fabric| async move {
            let index = open(fabric.clone(), pool).await;
            let mut model = Model::new();
            for round in 0..6 {
                let space = if round % 2 == 0 { 900 } else { 200 };
                for _ in 0..1_500 {
                    let key = fabric.random() % space * (u64::MAX / 900);
                    random_operation(&index, &mut model, &fabric, key).await;
                }
                // D2: even without a flush, the tree in the pool is well-formed, though older.
                let older = open(fabric.clone(), &compute::<Tiny>(options)).await;
                let seen = older.scan(&ScanRequest::range(..)).await.unwrap();
                assert!(seen.is_sorted_by(|a, b| a.0 < b.0));
                let mut downwards = older.scan(&ScanRequest::range(..).reverse()).await.unwrap();
                downwards.reverse();
                assert!(downwards.is_sorted_by(|a, b| a.0 < b.0));
                for part in 0..parts {
                    index.part(part as u16).flush().await.unwrap();
                }
                let fresh = open(fabric.clone(), &compute::<Tiny>(options)).await;
                same_contents(&fresh, &model).await;
                for (key, value) in contents(&model) {
                    assert_eq!(fresh.get(&key).await, Ok(Some(value)));
                }
            }
        });
    }
}

/// A network with a round trip of 2 µs.
fn network_of_2_us() -> NetworkModel {
    NetworkModel { one_way_ns: 1_000, ..NetworkModel::default() }
}

/// How long an operation took, in nanoseconds, and its READs.
async fn took<F: Fabric>(fabric: &F, operation: impl Future<Output = ()>) -> (u64, u64) {
    let start_ns = fabric.now_ns();
    let cost = spent(fabric, operation).await;
    (fabric.now_ns() - start_ns, cost.reads)
}

/// A scan of 100 records with only the root in the cache. Everything after the first leaf takes at
/// most four round trips, wherever the scan starts and in either direction. Virtual time makes the
/// bound exact. The scan READs exactly the nodes that a scan leaf by leaf would READ. Cached nodes
/// are not READ again. A second scan has learned how full leaves are, and READs its first leaf
/// together with the others.
#[test]
fn a_scan_overlaps_its_reads() {
    let network = network_of_2_us();
    let round_trip_ns = network.unloaded_verb_ns(0, 1024);
    let provider = SimConfig { network, ..SimConfig::default() };
    let options = DexOptions::with_boundaries(vec![], frames(256));
    let cache = CacheOptions { scan_ahead: 1, ..options.cache };
    let plain = &DexOptions { cache, ..options.clone() };
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let (pool, options) = (compute::<Fixed8>(&options), &options);
    let pool = &pool;
    let record = |n: u64| (n * 3, n);
    cluster.run_one(|fabric| async move {
        let fabric = &fabric;
        let loaded = open(fabric.clone(), pool).await;
        loaded.bulk_load((0..60_000).map(record), 0.7).await.unwrap();
        let cold = async |options| open(fabric.clone(), &compute::<Fixed8>(options)).await;
        let mut slowest = 0;
        for number in (150..58_000).step_by(397) {
            let key = number * 3;
            let index = cold(options).await;
            let get = async { assert_eq!(index.get(&key).await, Ok(Some(number))) };
            let (first_ns, _) = took(fabric, get).await;
            for reverse in [false, true] {
                let (scan, expected): (_, Vec<_>) = match reverse {
                    false => {
                        (ScanRequest::range(key..), (number..number + 100).map(record).collect())
                    }
                    true => {
                        let expected = (number - 99..=number).rev().map(record).collect();
                        (ScanRequest::range(..=key).reverse(), expected)
                    }
                };
                let scan = scan.limit(100);
                let (index, leaf_by_leaf) = (cold(options).await, cold(plain).await);
                let run = async |index: &RoutedIndex<Dex, _, _>| {
                    let run = async { assert_eq!(index.scan(&scan).await.unwrap(), expected) };
                    took(fabric, run).await
                };
                let (ns, reads) = run(&index).await;
                assert!(ns <= first_ns + 4 * round_trip_ns, "{ns} ns at {key}, {reverse}");
                assert_eq!(reads, run(&leaf_by_leaf).await.1, "at {key}, {reverse}");
                slowest = slowest.max(ns.saturating_sub(first_ns));
                assert_eq!(run(&index).await.1, 0, "all of it is cached");
            }
            // The level-1 node is cached by now, and so are two of the leaves: one or two rounds of
            // READs are left.
            let from = number + 400;
            index.get(&(from * 3)).await.unwrap();
            index.scan(&ScanRequest::range(key..).limit(60)).await.unwrap();
            let scan = ScanRequest::range((from + 200) * 3..).limit(100);
            let (ns, _) = took(fabric, async {
                assert_eq!(index.scan(&scan).await.unwrap()[99], record(from + 299));
            })
            .await;
            assert!(ns <= 5 * round_trip_ns, "{ns} ns at {from}");
        }
        println!("slowest: {slowest} ns past a get; a READ {round_trip_ns} ns");
    });
}

/// A scan with bounds instead of a limit is correct with and without reading ahead. Without it, the
/// scan READs one leaf after the other.
#[test]
fn a_scan_reads_ahead_only_if_it_may() {
    let network = network_of_2_us();
    let round_trip_ns = network.unloaded_verb_ns(0, 1024);
    let provider = SimConfig { network, ..SimConfig::default() };
    let mut times = Vec::new();
    for scan_ahead in [16, 1, 0] {
        let cache = CacheOptions { scan_ahead, ..frames(256) };
        let options = DexOptions::with_boundaries(vec![], cache);
        let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
        let (pool, options) = (compute::<Fixed8>(&options), &options);
        let pool = &pool;
        let ns = cluster.run_one(|fabric| async move {
            let fabric = &fabric;
            let loaded = open(fabric.clone(), pool).await;
            loaded.bulk_load((0..20_000).map(|n| (n, n)), 0.7).await.unwrap();
            let index = open(fabric.clone(), &compute::<Fixed8>(options)).await;
            index.get(&(42 * 42 + 42 * 20)).await.unwrap();
            let range = 42 * 42 + 3..42 * 42 + 42 * 12;
            let read = async {
                let records = index.scan(&ScanRequest::range(range.clone())).await.unwrap();
                assert_eq!(records, range.clone().map(|n| (n, n)).collect::<Vec<_>>());
            };
            let (ns, reads) = took(fabric, read).await;
            (ns, reads)
        });
        times.push(ns);
    }
    assert!(times[0].0 < times[1].0 / 2, "{times:?}");
    assert!(times[1].0 >= 12 * round_trip_ns && times[1] == times[2], "{times:?}");
    assert_eq!(times[0].1, times[1].1, "as many READs: {times:?}");
}

/// A scan that misses a level-1 node is offloaded to the node's memory server, with one request per
/// node and no READ, in either direction and for any bounds. If the node is cached, the leaves are
/// READ instead.
#[test]
fn a_scan_is_left_to_memory_servers() {
    let provider = LocalConfig::default();
    let cache = CacheOptions { offload: OffloadName::Always, ..frames(256) };
    let options = DexOptions::with_boundaries(vec![60_000], cache);
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let (pool, options) = (compute::<Fixed8>(&options), &options);
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let loaded = open(fabric.clone(), pool).await;
        loaded.bulk_load((0..60_000).map(|n| (n * 2, n)), 0.7).await.unwrap();
        let index = open(fabric.clone(), &compute::<Fixed8>(options)).await;
        let mut requests = 0;
        for round in 0..400_u64 {
            let low = fabric.random() % 60_000;
            let width = [0, 5, 300, 5_000, 60_000][round as usize % 5];
            let high = (low + width).min(60_000);
            let limit = [1, 100, 3_000, usize::MAX][round as usize % 4];
            let mut expected: Vec<_> = (low..high).map(|n| (n * 2, n)).collect();
            let scan = ScanRequest::range(low * 2..high * 2).limit(limit);
            for scan in [scan.clone(), scan.reverse()] {
                let run = async {
                    let records = index.scan(&scan).await.unwrap();
                    assert!(records.iter().eq(expected.iter().take(limit)), "{scan:?}");
                };
                let cost = spent(&fabric, run).await;
                // 1,764 records per node, at most 1,024 per request. A node at a boundary is
                // shared, so it is READ.
                let most = 2 * (limit.min(expected.len()) as u64 / 1_024 + 2);
                assert!(cost.rpcs <= most, "{} requests for {scan:?}", cost.rpcs);
                requests += cost.rpcs;
                expected.reverse();
            }
        }
        let counters = index.cache_counters();
        assert_eq!((counters.offloads, counters.offload_refusals), (requests, 0));
        assert!(requests > 400, "{requests}");
        let here = async {
            let scan = ScanRequest::range(10..).limit(100);
            assert_eq!(index.scan(&scan).await.unwrap().len(), 100);
        };
        assert_eq!(verbs(spent(&fabric, here).await).0, 0, "it is there, or left to the server");
    });
}

/// The misses of one multi-get overlap.
#[test]
fn a_multi_get_overlaps_its_reads() {
    let network = network_of_2_us();
    let round_trip_ns = network.unloaded_verb_ns(0, 1024);
    let provider = SimConfig { network, ..SimConfig::default() };
    let options = DexOptions::with_boundaries(vec![], frames(1_024));
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let (pool, options) = (compute::<Fixed8>(&options), &options);
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let loaded = open(fabric.clone(), pool).await;
        loaded.bulk_load((0..60_000).map(|n| (n, n)), 0.7).await.unwrap();
        let index = open(fabric.clone(), &compute::<Fixed8>(options)).await;
        warm_inner_nodes(&index).await;
        let keys: Vec<u64> = (0..32).map(|node| node * 42 * 42 + 5 * 42).collect();
        let get = async || {
            let values = index.multi_get(&keys).await.unwrap();
            assert!(values.iter().zip(&keys).all(|(value, key)| *value == Some(*key)));
        };
        let (ns, reads) = took(&fabric, get()).await;
        assert_eq!(reads, 32);
        let (cached_ns, reads) = took(&fabric, get()).await;
        assert_eq!(reads, 0);
        assert!(ns < cached_ns + 3 * round_trip_ns, "{ns} ns, {cached_ns} of them work");
    });
}
