//! What the fine-grained design guarantees beyond the suite of all designs: its network cost, its
//! behavior without memory, that it does not leak, and that a client that dies half-way through a
//! change harms no other client.

use super::clients::{
    self, for_seeds, grow_and_shrink, late_and_lossy, rough, seeds, setup, spent,
    stays_whole_without_memory,
};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{NetworkModel, SimConfig};
use farleaf_fabric::{Cluster, CounterSnapshot, Fabric};
use farleaf_index::{Design, IndexAdmin, IndexError, RangeIndex, ScanRequest};
use farleaf_page::rules::KnownRule;
use farleaf_page::{Fixed8, Layout};
use farleaf_pool::remote::{Backoff, GRACE_NS};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::{self, SuiteBackground, SuiteSetup};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineIndex, FineOptions};
use std::collections::BTreeMap;

type Tiny = Fixed8<16>;

async fn open<F: Fabric, L: Layout<Key = u64, Value = u64>>(fabric: F) -> FineIndex<F, L> {
    <Fine as Design<L>>::open(fabric, &()).await.unwrap()
}

/// A simulated cluster with a planted bug.
fn with_bug(bug: &str, config: SimConfig) -> SimConfig {
    SimConfig { broken: Some(KnownRule::with_bug(bug).unwrap().rule), ..config }
}

/// Each handle that makes changes uses one of the 32,767 client numbers.
#[test]
fn more_handles_come_and_go_than_there_are_numbers() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 1, 8 << 20, FineOptions::default()).with_index::<Tiny, Fine>();
    cluster.run_one(|fabric| async move {
        for handle in 0..33_000 {
            let index = open::<_, Tiny>(fabric.clone()).await;
            index.upsert(&7, &handle).await.unwrap();
        }
        assert_eq!(open::<_, Tiny>(fabric).await.get(&7).await.unwrap(), Some(32_999));
    });
}

#[test]
fn operations_cost_what_the_design_says() {
    let provider = LocalConfig::default();
    let cluster =
        setup(&provider, 3, 32 << 20, FineOptions::default()).with_index::<Fixed8, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.bulk_load((0..60_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        let page = 1024;
        // 42 records per leaf and 42 children per node make 1,429 leaves, 35 parents and the root.
        let height = 3;
        // If the operating system stops the thread for milliseconds in the middle of a descent, the
        // descent restarts and counts a retry. All other costs are exact.
        let (mut exact, mut retried) = (0, 0);
        let mut expect = |cost: CounterSnapshot, atomics, writes, bytes_written: Option<u64>| {
            if cost.retries > 0 {
                retried += 1;
                return;
            }
            exact += 1;
            let counts = (cost.reads, cost.atomics, cost.writes, cost.rpcs);
            assert_eq!(counts, (height, atomics, writes, 0), "READs, CASes, WRITEs, RPCs");
            assert_eq!(cost.bytes_read, height * page);
            assert!(bytes_written.is_none_or(|bytes| bytes == cost.bytes_written), "{cost:?}");
        };
        for number in (0..60_000).step_by(1_001) {
            let get = async { assert_eq!(index.get(&(number * 3)).await, Ok(Some(number))) };
            expect(spent(&fabric, get).await, 0, 0, Some(0));
        }
        // The first change requests a client number, and a log on the leaf's server.
        for number in 0..300 {
            index.update(&(number * 600), &1).await.unwrap();
        }
        for number in (0..60_000).step_by(1_003) {
            let key = number * 3;
            let update = async { assert_eq!(index.update(&key, &7).await, Ok(true)) };
            // The entry: two words, two for its page, two for its runs, the value and the checksum.
            expect(spent(&fabric, update).await, 1, 3, Some(page + 8 * 8));
            let insert = async { assert_eq!(index.insert(&(key + 1), &7).await, Ok(true)) };
            expect(spent(&fabric, insert).await, 1, 3, None);
            let again = async { assert_eq!(index.insert(&(key + 1), &8).await, Ok(false)) };
            expect(spent(&fabric, again).await, 0, 0, Some(0));
            let remove = async { assert_eq!(index.remove(&(key + 1)).await, Ok(true)) };
            expect(spent(&fabric, remove).await, 1, 3, None);
        }
        assert!(exact > 10 * retried, "{exact} exact, {retried} interrupted");
    });
}

/// By versions, a node costs three READs one after the other, and lookups find the same values.
#[test]
fn validation_by_versions_costs_three_reads_a_node() {
    let provider = SimConfig::default();
    let options = FineOptions { by_versions: true, ..FineOptions::default() };
    let cluster = setup(&provider, 3, 32 << 20, options).with_index::<Fixed8, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.bulk_load((0..60_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        // Changes write log entries, and the first change on each server requests a log there.
        for number in 0..300 {
            index.update(&(number * 600), &1).await.unwrap();
        }
        for number in (7..60_000).step_by(1_001) {
            let get = async { assert!(index.get(&(number * 3)).await.unwrap().is_some()) };
            let cost = spent(&fabric, get).await;
            assert_eq!((cost.reads, cost.bytes_read), (3 * 3, 3 * (1024 + 8 + 8)), "{cost:?}");
            let update = async { assert_eq!(index.update(&(number * 3), &7).await, Ok(true)) };
            let cost = spent(&fabric, update).await;
            assert_eq!((cost.reads, cost.atomics, cost.writes), (3 * 3, 1, 3), "{cost:?}");
        }
    });
}

/// The lookups of one multi-get descend together: one doorbell per level, and one READ per node.
#[test]
fn a_multi_get_goes_down_level_by_level() {
    let provider = SimConfig::default();
    let cluster =
        setup(&provider, 3, 32 << 20, FineOptions::default()).with_index::<Fixed8, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.bulk_load((0..60_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        let keys: Vec<u64> = (0..64).map(|n| n * 2_700).collect();
        let get = async {
            let values = index.multi_get(&keys).await.unwrap();
            assert!(values.iter().zip(&keys).all(|(value, key)| *value == Some(key / 3)));
        };
        let cost = spent(&fabric, get).await;
        assert_eq!(cost.doorbells, 3, "one a level");
        assert!((64 + 1..=64 + 1 + 35).contains(&cost.reads), "{cost:?}");
    });
}

/// A scan of 100 records at 2 µs: everything after the first leaf takes at most four round trips,
/// wherever the scan starts. Virtual time makes the bound exact.
#[test]
fn a_scan_overlaps_its_reads() {
    let network = NetworkModel { one_way_ns: 1_000, ..NetworkModel::default() };
    let round_trip_ns = network.unloaded_verb_ns(0, 1024);
    let provider = SimConfig { network, ..SimConfig::default() };
    let cluster =
        setup(&provider, 3, 32 << 20, FineOptions::default()).with_index::<Fixed8, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.bulk_load((0..60_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        let mut longest = (0, 0);
        for number in (0..59_000).step_by(97) {
            let key = number * 3;
            let start_ns = fabric.now_ns();
            index.get(&key).await.unwrap();
            let first_ns = fabric.now_ns() - start_ns;
            let before = fabric.counters().snapshot();
            let start_ns = fabric.now_ns();
            let records = index.scan(&ScanRequest::range(key..).limit(100)).await.unwrap();
            let took_ns = fabric.now_ns() - start_ns;
            let cost = fabric.counters().snapshot() - before;
            assert_eq!(records, (number..number + 100).map(|n| (n * 3, n)).collect::<Vec<_>>());
            assert!(took_ns <= first_ns + 4 * round_trip_ns, "{took_ns} ns at {key}");
            assert_eq!(cost.rpcs, 0);
            longest = longest.max((took_ns - first_ns.min(took_ns), cost.reads));
            let downwards = ScanRequest::range(..=key).reverse().limit(100);
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
        assert!(<Coarse as Design<Fixed8>>::open(fabric, &()).await.is_err());
    });
    let server = MemoryServerConfig { pool_bytes: 4 << 20, ..Default::default() };
    let coarse = SuiteSetup {
        provider: &provider,
        options: coarse_options.clone(),
        memory_servers: 2,
        server,
    };
    coarse.with_index::<Fixed8, Coarse>().run_one(|fabric| async move {
        let created = <Fine as Design<Fixed8>>::create(&fabric, &FineOptions::default()).await;
        assert!(matches!(created, Err(IndexError::Refused { .. })), "{created:?}");
        let opened = <Fine as Design<Fixed8>>::open(fabric, &()).await;
        assert!(matches!(opened, Err(IndexError::BadPool { .. })), "{:?}", opened.err());
    });
}

#[test]
fn without_memory_the_operation_fails_and_the_index_stays_whole() {
    let provider = LocalConfig::default();
    let options = FineOptions { chunk_nodes_log2: 2, leaves_per_head: 3, ..FineOptions::default() };
    let cluster = setup(&provider, 2, 64 << 10, options).with_index::<Tiny, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Tiny>(fabric.clone()).await;
        stays_whole_without_memory(&index).await;
    });
}

#[test]
fn a_tree_that_grows_and_shrinks_for_ever_does_not_leak() {
    let provider = LocalConfig::default();
    let options = FineOptions { chunk_nodes_log2: 4, leaves_per_head: 3, ..FineOptions::default() };
    let cluster = setup(&provider, 2, 16 << 20, options).with_index::<Tiny, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Tiny>(fabric.clone()).await;
        let allocated = async || {
            let usage = index.pages().rpc().usages().await.unwrap();
            usage.iter().map(|usage| usage.allocated_bytes).sum()
        };
        let empty = async || {
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), []);
            let get = async { assert_eq!(index.get(&5).await, Ok(None)) };
            assert_eq!(spent(&fabric, get).await.reads, 1, "nothing is left but the root");
            fabric.sleep(GRACE_NS).await;
        };
        let most = grow_and_shrink(&index, 6, allocated, empty).await;
        let spread = most[5] - most[1];
        assert!(spread <= 64 << 10, "memory is reused: {most:?}");
    });
}

/// Heads follow the leaves: after many splits and merges, a collection restores them.
#[test]
fn heads_are_refreshed() {
    let provider = SimConfig::default();
    let options = FineOptions { chunk_nodes_log2: 6, leaves_per_head: 4, ..FineOptions::default() };
    let cluster = setup(&provider, 3, 32 << 20, options).with_index::<Tiny, Fine>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Tiny>(fabric.clone()).await;
        index.bulk_load((0..4_000).map(|n| (n * 10, n)), 0.75).await.unwrap();
        let doorbells = async || {
            let scan = async { drop(index.scan(&ScanRequest::range(..)).await.unwrap()) };
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
        assert!(refreshed * 10 < grown * 9, "{refreshed} after the refresh, {grown} before");
        for key in 0..20_000 {
            index.remove(&(key * 2)).await.unwrap();
        }
        index.collect().await.unwrap();
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), []);
    });
}

fn dying_holder(config: SimConfig) {
    let options = FineOptions { chunk_nodes_log2: 4, leaves_per_head: 3, ..FineOptions::default() };
    clients::dying_holder::<Tiny, Fine>(config, options, true);
}

#[test]
fn a_client_that_dies_half_way_harms_nobody() {
    for_seeds(60, |seed| dying_holder(rough(seed)));
}

/// The same with lost and late messages, including those of the dead client.
#[test]
fn a_client_that_dies_leaves_late_messages() {
    for_seeds(60, |seed| dying_holder(late_and_lossy(seed)));
}

/// Messages are lost or arrive too late. Every answer is still correct; an operation of unknown
/// outcome has either happened or not, and leaves nothing behind that blocks another client.
fn lossy(seed: u64) -> u64 {
    let provider = SimConfig { give_up_after_ns: 4_000_000_000, ..late_and_lossy(seed) };
    let options = FineOptions { chunk_nodes_log2: 4, leaves_per_head: 3, ..FineOptions::default() };
    let calm = setup(&provider, 3, 16 << 20, options);
    let cluster = calm.start::<Tiny>();
    let options = &options;
    cluster.run_one(|fabric| async move {
        while let Err(error) = <Fine as Design<Tiny>>::create(&fabric, options).await {
            assert!(matches!(error, IndexError::Indeterminate(_)), "seed {seed}: {error}");
        }
    });
    let models = cluster.run(&[1, 1, 2, 3], |fabric, client| async move {
        let index = loop {
            if let Ok(index) = <Fine as Design<Tiny>>::open(fabric.clone(), &()).await {
                break index;
            }
        };
        // The values that each key may have.
        let mut model: BTreeMap<u64, Vec<Option<u64>>> = BTreeMap::new();
        let mut unknown = 0;
        for round in 0..250 {
            if client == 3 {
                match index.collect().await {
                    Ok(()) | Err(IndexError::Indeterminate(_) | IndexError::Contended { .. }) => {}
                    Err(error) => panic!("seed {seed}: collect: {error}"),
                }
                if round > 20 {
                    break;
                }
                continue;
            }
            let key = client as u64 + fabric.random() % 40 * 3;
            let value = fabric.random();
            let held = model.entry(key).or_insert_with(|| vec![None]);
            let (outcome, after) = match fabric.random() % 4 {
                0 => (index.remove(&key).await.map(Some), None),
                1 => match index.get(&key).await {
                    Ok(found) => {
                        assert!(
                            held.contains(&found),
                            "seed {seed}: {key} is {found:?}, not {held:?}"
                        );
                        *held = vec![found];
                        continue;
                    }
                    Err(error) => (Err(error), None),
                },
                _ => (index.upsert(&key, &value).await.map(|()| None), Some(value)),
            };
            match outcome {
                Ok(removed) => {
                    if let Some(there) = removed {
                        let fits = held.iter().any(|value| value.is_some() == there);
                        assert!(fits, "seed {seed}: removed {there}, held {held:?}");
                    }
                    *held = vec![after];
                }
                Err(IndexError::Indeterminate(_)) => {
                    unknown += 1;
                    held.push(after);
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        (model, unknown)
    });
    let models = &models;
    cluster.run(&[4], |fabric, _| async move {
        let index = loop {
            if let Ok(index) = <Fine as Design<Tiny>>::open(fabric.clone(), &()).await {
                break index;
            }
        };
        for (key, held) in models.iter().flatten().flat_map(|(model, _)| model) {
            let found = loop {
                match index.get(key).await {
                    Ok(found) => break found,
                    Err(IndexError::Indeterminate(_)) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            };
            assert!(held.contains(&found), "seed {seed}: {key} is {found:?}, not {held:?}");
        }
    });
    models.iter().flatten().map(|(_, unknown)| unknown).sum()
}

#[test]
fn losses_leave_nothing_half_done() {
    let unknown: u64 = (0..seeds(30)).map(lossy).sum();
    assert_eq!(unknown, 0, "while the servers live, a client can settle every unknown outcome");
}

/// The first seed for which `check` fails, if any.
fn first_failure(seeds: u64, check: impl Fn(u64)) -> Option<u64> {
    let fails = |seed: &u64| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(*seed))).is_err()
    };
    (0..seeds).find(fails)
}

fn concurrent_owners(config: SimConfig) {
    let provider = SimConfig { give_up_after_ns: 2_000_000_000, ..config };
    let options = FineOptions { chunk_nodes_log2: 4, leaves_per_head: 3, ..FineOptions::default() };
    let setup = setup(&provider, 3, 16 << 20, options);
    conformance::concurrent_owners::<Tiny, Fine, _>(&setup, &SuiteBackground::nothing());
}

#[test]
fn readers_that_do_not_check_the_sum_are_found() {
    assert_eq!(first_failure(seeds(20), |seed| concurrent_owners(rough(seed))), None);
    let with_bug = |seed| concurrent_owners(with_bug("skips_checksum", rough(seed)));
    assert!(first_failure(20, with_bug).is_some());
}

/// While all clients live, a sibling that is not written yet only makes readers wait. It is lost
/// when the client that was to write it dies.
#[test]
fn a_page_that_points_to_nothing_yet_is_found() {
    let check = |seed| dying_holder(with_bug("links_before_sibling", rough(seed)));
    let seed = first_failure(600, check);
    println!("found by seed {seed:?}");
    assert!(seed.is_some());
}

/// The share of each client when all of them change one key for a while.
#[derive(Debug)]
struct Fairness {
    updates_per_ms: f64,
    least: u64,
    most: u64,
    jain: f64,
    retries: f64,
}

fn hot_key(clients: u16, backoff: Backoff) -> Fairness {
    const RUN_NS: u64 = 4_000_000;
    let provider = SimConfig::default();
    let cluster =
        setup(&provider, 2, 16 << 20, FineOptions::default()).with_index::<Fixed8, Fine>();
    let servers: Vec<u16> = (0..clients).map(|client| client / 20).collect();
    let done = cluster.run(&servers, |fabric, _| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.pages().set_backoff(backoff);
        let until_ns = fabric.now_ns() + RUN_NS;
        let mut done = 0_u64;
        while fabric.now_ns() < until_ns {
            match index.upsert(&1, &done).await {
                Ok(()) => done += 1,
                Err(error) => assert!(matches!(error, IndexError::Contended { .. }), "{error}"),
            }
        }
        (done, fabric.counters().snapshot().retries)
    });
    let (done, retries): (Vec<u64>, Vec<u64>) = done.into_iter().flatten().unzip();
    let (sum, squares) = done.iter().fold((0, 0), |(s, q), n| (s + n, q + n * n));
    Fairness {
        updates_per_ms: sum as f64 * 1e6 / RUN_NS as f64,
        least: *done.iter().min().unwrap(),
        most: *done.iter().max().unwrap(),
        jain: (sum * sum) as f64 / (done.len() as u64 * squares) as f64,
        retries: retries.iter().sum::<u64>() as f64 / sum as f64,
    }
}

/// The windows from which the default was chosen: first and cap, in nanoseconds.
const WINDOWS: [(u64, u64); 7] = [
    (500, 500),
    (2_000, 2_000),
    (2_000, 8_000),
    (2_000, 32_000),
    (2_000, 128_000),
    (8_000, 128_000),
    (2_000, 2_000_000),
];

/// `cargo test -p farleaf-suites --test designs -- --ignored --nocapture back_off` prints the
/// experiment.
#[test]
#[ignore = "prints figures and checks nothing"]
fn back_off_experiment() {
    println!("clients  first ns    cap ns  updates/ms  least  most   Jain  retries");
    for clients in [4, 20, 60, 120] {
        for (first_ns, cap_ns) in WINDOWS {
            let f = hot_key(clients, Backoff::with_window(first_ns, cap_ns));
            println!(
                "{clients:7} {first_ns:9} {cap_ns:9} {:11.1} {:6} {:5}  {:.3} {:8.1}",
                f.updates_per_ms, f.least, f.most, f.jain, f.retries
            );
        }
    }
}

/// A hot key keeps changing however many clients contend for it, and no client is starved.
#[test]
fn a_hot_key_is_shared_fairly() {
    let few = hot_key(4, Backoff::default());
    let many = hot_key(60, Backoff::default());
    println!("{few:?}\n{many:?}");
    assert!(many.updates_per_ms * 2.0 > few.updates_per_ms, "no collapse: {few:?} {many:?}");
    assert!(few.jain > 0.9 && many.jain > 0.8 && many.least > 0, "{few:?} {many:?}");
}
