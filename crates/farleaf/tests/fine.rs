//! What the fine-grained design promises beyond the suite of all designs: its cost on the network, what it
//! does without memory, that it does not leak, and that a client that dies half-way harms nobody.
#![cfg(not(loom))]

use farleaf::index::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf::index::conformance::Setup;
use farleaf::index::fine::{Fine, FineIndex, FineOptions};
use farleaf::index::{Design, IndexError, RangeIndex, Scan};
use farleaf::page::{Fixed8, Layout};
use farleaf::remote::GRACE_NS;
use farleaf::server::MemoryServerConfig;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::{Cluster, CounterSnapshot, Fabric, Provider};
use std::collections::BTreeMap;

type Tiny = Fixed8<16>;

fn setup<P: Provider>(
    provider: &P,
    servers: u16,
    pool_bytes: usize,
    options: FineOptions,
) -> Setup<'_, P, FineOptions> {
    let server = MemoryServerConfig { pool_bytes, ..Default::default() };
    Setup { provider, options, memory_servers: servers, server }
}

async fn open<F: Fabric, L: Layout<Key = u64, Value = u64>>(fabric: F) -> FineIndex<F, L> {
    <Fine as Design<L>>::open(fabric).await.unwrap()
}

/// What an operation spent.
async fn spent<F: Fabric>(fabric: &F, operation: impl Future<Output = ()>) -> CounterSnapshot {
    let start = fabric.counters().snapshot();
    operation.await;
    fabric.counters().snapshot() - start
}

#[test]
fn operations_cost_what_the_design_says() {
    let provider = LocalConfig::default();
    let cluster =
        setup(&provider, 3, 32 << 20, FineOptions::default()).with_index::<Fixed8, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.bulk_load((0..100_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        let page = 1024;
        // 42 records a leaf, 42 children a node: the root, one level, the leaves.
        let height = 3;
        for number in (0..100_000).step_by(1_001) {
            let get = async { assert_eq!(index.get(&(number * 3)).await, Ok(Some(number))) };
            let cost = spent(&fabric, get).await;
            assert_eq!((cost.reads, cost.remote_operations()), (height, height), "a READ a level");
            assert_eq!((cost.bytes(), cost.retries), (height * page, 0));
        }
        // The first change asks for a number, and for the log on the leaf's server.
        for number in 0..300 {
            index.update(&(number * 900), &1).await.unwrap();
        }
        for number in (0..100_000).step_by(1_003) {
            let key = number * 3;
            let update = async { assert_eq!(index.update(&key, &7).await, Ok(true)) };
            let cost = spent(&fabric, update).await;
            assert_eq!((cost.reads, cost.atomics, cost.writes), (height, 1, 2), "{cost:?}");
            assert_eq!((cost.rpcs, cost.retries), (0, 0));
            // The entry: two words, two of its page, two runs, the value and the checksum.
            assert_eq!(cost.bytes_written, page + 8 * 8);
            let insert = async { assert_eq!(index.insert(&(key + 1), &7).await, Ok(true)) };
            let cost = spent(&fabric, insert).await;
            assert_eq!((cost.reads, cost.atomics, cost.writes, cost.rpcs), (height, 1, 2, 0));
            let again = async { assert_eq!(index.insert(&(key + 1), &8).await, Ok(false)) };
            assert_eq!(spent(&fabric, again).await.remote_operations(), height, "no lock for a no");
            let remove = async { assert_eq!(index.remove(&(key + 1)).await, Ok(true)) };
            let cost = spent(&fabric, remove).await;
            assert_eq!((cost.reads, cost.atomics, cost.writes, cost.rpcs), (height, 1, 2, 0));
        }
    });
}

/// Lookups of one multi-get go down together: a doorbell a level, and a READ for each node once.
#[test]
fn a_multi_get_goes_down_level_by_level() {
    let provider = LocalConfig { network_latency_ns: 100_000, ..LocalConfig::default() };
    let cluster =
        setup(&provider, 3, 32 << 20, FineOptions::default()).with_index::<Fixed8, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.bulk_load((0..100_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        let keys: Vec<u64> = (0..64).map(|n| n * 4_500).collect();
        let get = async {
            let values = index.multi_get(&keys).await.unwrap();
            assert!(values.iter().zip(&keys).all(|(value, key)| *value == Some(key / 3)));
        };
        let cost = spent(&fabric, get).await;
        assert_eq!(cost.doorbells, 3, "one a level");
        assert!((64 + 1..=64 + 1 + 57).contains(&cost.reads), "{cost:?}");
    });
}

/// A scan of 100 at 2 µs: all that comes after the first leaf takes at most four round trips, wherever it
/// starts. In virtual time, so the bound is exact.
#[test]
fn a_scan_overlaps_its_reads() {
    let mut network = farleaf_fabric::sim::NetworkModel::default();
    network.one_way_ns = 1_000;
    let round_trip_ns = network.unloaded_verb_ns(0, 1024);
    let provider = SimConfig { network, ..SimConfig::default() };
    let cluster =
        setup(&provider, 3, 32 << 20, FineOptions::default()).with_index::<Fixed8, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.bulk_load((0..100_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        let mut longest = (0, 0);
        for number in (0..99_000).step_by(97) {
            let key = number * 3;
            let start_ns = fabric.now_ns();
            index.get(&key).await.unwrap();
            let first_ns = fabric.now_ns() - start_ns;
            let before = fabric.counters().snapshot();
            let start_ns = fabric.now_ns();
            let records = index.scan(&Scan::range(key..).limit(100)).await.unwrap();
            let took_ns = fabric.now_ns() - start_ns;
            let cost = fabric.counters().snapshot() - before;
            assert_eq!(records, (number..number + 100).map(|n| (n * 3, n)).collect::<Vec<_>>());
            assert!(took_ns <= first_ns + 4 * round_trip_ns, "{took_ns} ns at {key}");
            assert_eq!(cost.rpcs, 0);
            longest = longest.max((took_ns - first_ns.min(took_ns), cost.reads));
            let downwards = Scan::range(..=key).reverse().limit(100);
            let records = index.scan(&downwards).await.unwrap();
            let expected = (0..=number).rev().take(100).map(|n| (n * 3, n));
            assert_eq!(records, expected.collect::<Vec<_>>());
        }
        println!(
            "slowest: {} ns past a get, {} READs; a READ {round_trip_ns} ns",
            longest.0, longest.1
        );
    });
}

#[test]
fn a_pool_belongs_to_one_design() {
    let provider = LocalConfig::default();
    let fine = setup(&provider, 2, 4 << 20, FineOptions::default());
    let boundaries = vec![1 << 63];
    let coarse_options = CoarseOptions { partitioning: Partitioning::Range { boundaries } };
    let options = &coarse_options;
    fine.with_index::<Fixed8, Fine>().run_one(|fabric| async move {
        assert!(<Coarse as Design<Fixed8>>::create(&fabric, options).await.is_err());
        assert!(<Coarse as Design<Fixed8>>::open(fabric).await.is_err());
    });
    let server = MemoryServerConfig { pool_bytes: 4 << 20, ..Default::default() };
    let coarse =
        Setup { provider: &provider, options: coarse_options.clone(), memory_servers: 2, server };
    coarse.with_index::<Fixed8, Coarse>().run_one(|fabric| async move {
        let created = <Fine as Design<Fixed8>>::create(&fabric, &FineOptions::default()).await;
        assert!(matches!(created, Err(IndexError::Refused { .. })), "{created:?}");
        let opened = <Fine as Design<Fixed8>>::open(fabric).await;
        assert!(matches!(opened, Err(IndexError::BadPool { .. })), "{:?}", opened.err());
    });
}

#[test]
fn without_memory_the_operation_fails_and_the_index_stays_whole() {
    let provider = LocalConfig::default();
    let options = FineOptions { chunk_nodes_log2: 2, leaves_per_head: 3 };
    let cluster = setup(&provider, 2, 64 << 10, options).with_index::<Tiny, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Tiny>(fabric.clone()).await;
        let mut model = BTreeMap::new();
        let mut refused = 0;
        for number in 0..2_000_u64 {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            match index.insert(&key, &number).await {
                Ok(true) => drop(model.insert(key, number)),
                Err(IndexError::OutOfMemory { .. }) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(refused > 0 && model.len() > 50, "{refused} refused, {} accepted", model.len());
        let contents: Vec<_> = model.iter().map(|(&key, &value)| (key, value)).collect();
        assert_eq!(index.scan(&Scan::range(..)).await.unwrap(), contents);
        for (key, value) in &contents {
            assert_eq!(index.get(key).await, Ok(Some(*value)));
            assert_eq!(index.update(key, &!value).await, Ok(true));
        }
        for (key, _) in contents.iter().skip(3) {
            assert_eq!(index.remove(key).await, Ok(true));
        }
        index.collect().await.unwrap();
        for key in 0..20 {
            assert_eq!(index.insert(&(key << 40), &1).await, Ok(true));
        }
    });
}

#[test]
fn a_tree_that_grows_and_shrinks_for_ever_does_not_leak() {
    let provider = LocalConfig::default();
    let options = FineOptions { chunk_nodes_log2: 4, leaves_per_head: 3 };
    let cluster = setup(&provider, 2, 16 << 20, options).with_index::<Tiny, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Tiny>(fabric.clone()).await;
        let mut most = Vec::new();
        for round in 0..6_u64 {
            for number in 0..3_000_u64 {
                index.insert(&(number * 977 + round), &number).await.unwrap();
            }
            let usage = index.usage().await.unwrap();
            most.push(usage.iter().map(|usage| usage.allocated_bytes).sum::<u64>());
            for number in 0..3_000_u64 {
                assert_eq!(index.remove(&(number * 977 + round)).await, Ok(true));
            }
            index.collect().await.unwrap();
            assert_eq!(index.scan(&Scan::range(..)).await.unwrap(), []);
            let get = async { assert_eq!(index.get(&5).await, Ok(None)) };
            assert_eq!(spent(&fabric, get).await.reads, 1, "nothing is left but the root");
            fabric.sleep(GRACE_NS).await;
        }
        let spread = most[5] - most[1];
        assert!(spread <= 64 << 10, "memory is reused: {most:?}");
    });
}

/// Heads follow the leaves: after many splits and merges a collection puts them where they belong.
#[test]
fn heads_are_refreshed() {
    let provider = SimConfig::default();
    let options = FineOptions { chunk_nodes_log2: 6, leaves_per_head: 4 };
    let cluster = setup(&provider, 3, 32 << 20, options).with_index::<Tiny, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Tiny>(fabric.clone()).await;
        index.bulk_load((0..4_000).map(|n| (n * 10, n)), 0.75).await.unwrap();
        let doorbells = async || {
            let scan = async { drop(index.scan(&Scan::range(..)).await.unwrap()) };
            spent(&fabric, scan).await.doorbells
        };
        let loaded = doorbells().await;
        for key in 0..20_000 {
            index.upsert(&(key * 2), &key).await.unwrap();
        }
        let grown = doorbells().await;
        index.collect().await.unwrap();
        let refreshed = doorbells().await;
        println!("waits of a full scan: {loaded} loaded, {grown} grown, {refreshed} refreshed");
        assert!(refreshed * 10 < grown * 8, "{refreshed} after the refresh, {grown} before");
        for key in 0..20_000 {
            index.remove(&(key * 2)).await.unwrap();
        }
        index.collect().await.unwrap();
        assert_eq!(index.scan(&Scan::range(..)).await.unwrap(), []);
    });
}

/// What a client knows of a key: the value that it was told was written, and the one on its way.
type Known = BTreeMap<u64, (Option<u64>, Option<Option<u64>>)>;

/// A client that changes its own keys until it is told to stop, or dies.
async fn write_for_ever<F: Fabric>(
    fabric: &F,
    index: &FineIndex<F, Tiny>,
    known: &std::sync::Mutex<Known>,
    base: u64,
    stop: &std::sync::Mutex<bool>,
) {
    while !*stop.lock().unwrap() {
        let key = base + fabric.random() % 60 * 4;
        let value = fabric.random();
        let removes = fabric.random() % 3 == 0;
        let after = (!removes).then_some(value);
        known.lock().unwrap().entry(key).or_default().1 = Some(after);
        if removes {
            index.remove(&key).await.unwrap();
        } else {
            index.upsert(&key, &value).await.unwrap();
        }
        known.lock().unwrap().insert(key, (after, None));
    }
}

fn dying_holder(seed: u64, faults: Faults) {
    let provider =
        SimConfig { seed, faults, give_up_after_ns: 2_000_000_000, ..Default::default() };
    let options = FineOptions { chunk_nodes_log2: 4, leaves_per_head: 3 };
    let cluster = setup(&provider, 3, 16 << 20, options).with_index::<Tiny, Fine>();
    let known: [std::sync::Mutex<Known>; 4] = Default::default();
    let stop = std::sync::Mutex::new(false);
    let (known, stop, control) = (&known, &stop, &cluster.control());
    cluster.run(&[1, 1, 2, 2, 3], |fabric, client| async move {
        let index = open::<_, Tiny>(fabric.clone()).await;
        match client {
            // One of the two writers, and the collector, die.
            1 => drop(index.collect_in_background(100, || *stop.lock().unwrap()).await),
            4 => {
                fabric.sleep(60_000 + fabric.random() % 600_000).await;
                control.kill_compute_server(1);
                fabric.sleep(30_000).await;
                index.declare_dead(1).await.unwrap();
                fabric.sleep(400_000).await;
                *stop.lock().unwrap() = true;
            }
            _ => write_for_ever(&fabric, &index, &known[client], client as u64, stop).await,
        }
    });
    cluster.run(&[4], |fabric, _| async move {
        let index = open::<_, Tiny>(fabric.clone()).await;
        for round in 0..2 {
            let contents: BTreeMap<u64, u64> =
                index.scan(&Scan::range(..)).await.unwrap().into_iter().collect();
            for (key, (acknowledged, on_its_way)) in
                known.iter().flat_map(|k| k.lock().unwrap().clone())
            {
                let held = contents.get(&key).copied();
                let is_right = held == acknowledged || Some(held) == on_its_way;
                assert!(
                    is_right,
                    "seed {seed}: {key} is {held:?}, not {acknowledged:?}, {on_its_way:?}"
                );
                assert_eq!(
                    index.get(&key).await.unwrap(),
                    held,
                    "seed {seed}: get and scan differ"
                );
                if round == 1 {
                    index.upsert(&key, &key).await.unwrap();
                }
            }
            index.collect().await.unwrap();
        }
    });
}

#[test]
fn a_client_that_dies_half_way_harms_nobody() {
    let seeds = std::env::var("FARLEAF_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        dying_holder(seed, Faults::rough());
    }
}
