//! What the hybrid design guarantees beyond the suite of all designs: its network cost, its
//! behavior without memory, that it does not leak, and that a client that dies half-way through a
//! change harms no other client.

use super::clients::{
    dying_holder, for_seeds, grow_and_shrink, rough, spent, stays_whole_without_memory,
};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{NetworkModel, SimConfig};
use farleaf_fabric::{Cluster, CounterSnapshot, Fabric, Provider};
use farleaf_index::{Design, IndexAdmin, IndexError, RangeIndex, ScanRequest};
use farleaf_page::{Fixed8, Layout};
use farleaf_pool::remote::GRACE_NS;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::SuiteSetup;
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridIndex, HybridOptions};

type Tiny = Fixed8<16>;

/// Memory servers with equal shares of the keys below `keys`.
fn setup<P: Provider>(
    provider: &P,
    servers: u16,
    pool_bytes: usize,
    keys: u64,
) -> SuiteSetup<'_, P, HybridOptions<u64>> {
    let server = MemoryServerConfig { pool_bytes, chunk_bytes: 1 << 12, ..Default::default() };
    let boundaries = (1..u64::from(servers)).map(|n| keys / u64::from(servers) * n).collect();
    let options =
        HybridOptions { chunk_nodes_log2: 2, ..HybridOptions::with_boundaries(boundaries) };
    SuiteSetup { provider, options, memory_servers: servers, server }
}

async fn open<F: Fabric, L: Layout<Key = u64, Value = u64>>(fabric: F) -> HybridIndex<F, L> {
    <Hybrid as Design<L>>::open(fabric, &()).await.unwrap()
}

#[test]
fn operations_cost_what_the_design_says() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 3, 32 << 20, 300_000).with_index::<Fixed8, Hybrid>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.bulk_load((0..100_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        let page = 1024;
        for number in (0..100_000).step_by(1_001) {
            let get = async { assert_eq!(index.get(&(number * 3)).await, Ok(Some(number))) };
            let cost = spent(&fabric, get).await;
            assert_eq!((cost.rpcs, cost.reads, cost.remote_operations()), (1, 1, 2), "{number}");
            assert_eq!((cost.bytes_read, cost.retries, cost.doorbells), (page, 0, 2));
            // Request: a tag, no lower bound, a key as the upper bound, the direction, the limit.
            // Reply: a tag, a count, one record unless it is the first leaf, and whether there are
            // more.
            assert!([16 + 22, 16 + 6].contains(&cost.rpc_bytes), "{cost:?}");
        }
        // The first change requests a client number, and a log on the leaf's server.
        for number in 0..300 {
            index.update(&(number * 900), &1).await.unwrap();
        }
        for number in (0..100_000).step_by(1_003) {
            let key = number * 3;
            let one = |cost: CounterSnapshot| {
                let verbs = (cost.rpcs, cost.reads, cost.atomics, cost.writes);
                assert_eq!((verbs, cost.retries), ((1, 1, 1, 3), 0), "{cost:?}");
            };
            let update = async { assert_eq!(index.update(&key, &7).await, Ok(true)) };
            one(spent(&fabric, update).await);
            let insert = async { assert_eq!(index.insert(&(key + 1), &7).await, Ok(true)) };
            one(spent(&fabric, insert).await);
            let again = async { assert_eq!(index.insert(&(key + 1), &8).await, Ok(false)) };
            assert_eq!(
                spent(&fabric, again).await.remote_operations(),
                2,
                "no lock if nothing changes"
            );
            let remove = async { assert_eq!(index.remove(&(key + 1)).await, Ok(true)) };
            one(spent(&fabric, remove).await);
        }
    });
}

/// A split adds a READ of the new leaf's word 0, a WRITE of the new leaf, and the RPC that
/// publishes it.
#[test]
fn a_split_is_made_known_by_one_rpc() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 3, 32 << 20, 300_000).with_index::<Fixed8, Hybrid>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.bulk_load((0..3_000).map(|n| (n * 100, n)), 1.0).await.unwrap();
        let mut splits = Vec::new();
        for number in 0..400 {
            let key = number * 700 + 1;
            let insert = async { assert_eq!(index.insert(&key, &7).await, Ok(true)) };
            let cost = spent(&fabric, insert).await;
            if cost.writes > 3 {
                splits.push((cost.rpcs, cost.reads, cost.atomics, cost.writes));
            }
            let get = async { assert_eq!(index.get(&key).await, Ok(Some(7))) };
            let cost = spent(&fabric, get).await;
            assert_eq!((cost.rpcs, cost.reads), (1, 1), "the server knows of every split");
        }
        assert!(splits.len() > 40, "{} splits", splits.len());
        // Some splits also request a chunk or a log.
        assert_eq!(splits.iter().min(), Some(&(2, 2, 1, 4)));
    });
}

/// The lookups of one multi-get share one doorbell for the RPCs and one for the READs. The test
/// uses virtual time, because a READ that comes too late after its RPC restarts.
#[test]
fn a_multi_get_is_two_doorbells() {
    let provider = SimConfig::default();
    let cluster = setup(&provider, 3, 32 << 20, 300_000).with_index::<Fixed8, Hybrid>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.bulk_load((0..100_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        let keys: Vec<u64> = (0..64).map(|n| n * 4_500).collect();
        let get = async {
            let values = index.multi_get(&keys).await.unwrap();
            assert!(values.iter().zip(&keys).all(|(value, key)| *value == Some(key / 3)));
        };
        let cost = spent(&fabric, get).await;
        assert_eq!((cost.rpcs, cost.reads, cost.doorbells), (64, 64, 2), "{cost:?}");
    });
}

/// A scan of 100 records takes two round trips, plus those for one or two leaves that were emptier
/// than assumed, wherever it starts. A long scan occasionally sends an RPC. Virtual time makes the
/// bounds exact.
#[test]
fn a_scan_overlaps_its_reads() {
    let network = NetworkModel { one_way_ns: 1_000, ..NetworkModel::default() };
    let round_trip_ns = network.unloaded_verb_ns(0, 1024);
    let provider = SimConfig { network, ..SimConfig::default() };
    let cluster = setup(&provider, 3, 32 << 20, 300_000).with_index::<Fixed8, Hybrid>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        index.bulk_load((0..100_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        let mut longest = (0, 0, 0);
        for number in (0..99_000).step_by(97) {
            let key = number * 3;
            let start_ns = fabric.now_ns();
            index.get(&key).await.unwrap();
            let get_ns = fabric.now_ns() - start_ns;
            let before = fabric.counters().snapshot();
            let start_ns = fabric.now_ns();
            let records = index.scan(&ScanRequest::range(key..).limit(100)).await.unwrap();
            let took_ns = fabric.now_ns() - start_ns;
            let cost = fabric.counters().snapshot() - before;
            assert_eq!(records, (number..number + 100).map(|n| (n * 3, n)).collect::<Vec<_>>());
            assert!(took_ns <= get_ns + 4 * round_trip_ns, "{took_ns} ns at {key}");
            longest = longest.max((took_ns.saturating_sub(get_ns), cost.rpcs, cost.reads));
            let downwards = ScanRequest::range(..=key).reverse().limit(100);
            let records = index.scan(&downwards).await.unwrap();
            let expected = (0..=number).rev().take(100).map(|n| (n * 3, n));
            assert_eq!(records, expected.collect::<Vec<_>>());
        }
        println!(
            "slowest: {} ns past a get, {} RPCs and {} READs; a READ {round_trip_ns} ns",
            longest.0, longest.1, longest.2
        );
        let scan = async {
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 100_000);
        };
        let cost = spent(&fabric, scan).await;
        println!("all: {cost:?}");
        assert!(cost.reads >= 100_000 / 42 && cost.reads <= 100_000 / 42 + 100, "{cost:?}");
        assert!(cost.rpcs <= cost.reads / 60, "{cost:?}");
    });
}

#[test]
fn a_pool_belongs_to_one_design() {
    let provider = LocalConfig::default();
    let hybrid = setup(&provider, 2, 4 << 20, 1000);
    let partitioning = hybrid.options.partitioning.clone();
    let coarse_options = CoarseOptions { partitioning };
    let options = &coarse_options;
    hybrid.with_index::<Fixed8, Hybrid>().run_one(|fabric| async move {
        assert!(<Coarse as Design<Fixed8>>::create(&fabric, options).await.is_err());
        let opened = <Coarse as Design<Fixed8>>::open(fabric.clone(), &()).await;
        assert!(matches!(opened, Err(IndexError::BadPool { .. })), "{:?}", opened.err());
        let created = <Fine as Design<Fixed8>>::create(&fabric, &FineOptions::default()).await;
        assert!(matches!(created, Err(IndexError::Refused { .. })), "{created:?}");
        let opened = <Fine as Design<Fixed8>>::open(fabric, &()).await;
        assert!(matches!(opened, Err(IndexError::BadPool { .. })), "{:?}", opened.err());
    });
    let server = MemoryServerConfig { pool_bytes: 4 << 20, ..Default::default() };
    let coarse = SuiteSetup {
        provider: &provider,
        options: coarse_options.clone(),
        memory_servers: 2,
        server: server.clone(),
    };
    let options = &hybrid.options;
    coarse.with_index::<Fixed8, Coarse>().run_one(|fabric| async move {
        let created = <Hybrid as Design<Fixed8>>::create(&fabric, options).await;
        assert!(matches!(created, Err(IndexError::Refused { .. })), "{created:?}");
        let opened = <Hybrid as Design<Fixed8>>::open(fabric, &()).await;
        assert!(matches!(opened, Err(IndexError::BadPool { .. })), "{:?}", opened.err());
    });
}

#[test]
fn keys_are_divided_by_ranges_only() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 2, 4 << 20, 1000).start::<Fixed8>();
    cluster.run_one(|fabric| async move {
        let refused = async |partitioning| {
            let options = HybridOptions { partitioning, chunk_nodes_log2: 4 };
            let created = <Hybrid as Design<Fixed8>>::create(&fabric, &options).await;
            assert!(matches!(created, Err(IndexError::InvalidArgument(_))), "{created:?}");
        };
        refused(Partitioning::Hash).await;
        refused(Partitioning::Range { boundaries: vec![] }).await;
        refused(Partitioning::Range { boundaries: vec![0] }).await;
        refused(Partitioning::Range { boundaries: vec![5, 6] }).await;
    });
}

#[test]
fn without_memory_the_operation_fails_and_the_index_stays_whole() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 2, 128 << 10, u64::MAX).with_index::<Tiny, Hybrid>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Tiny>(fabric.clone()).await;
        stays_whole_without_memory(&index).await;
    });
}

#[test]
fn a_load_without_memory_leaves_the_index_empty() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 2, 128 << 10, 40_000).with_index::<Tiny, Hybrid>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Tiny>(fabric.clone()).await;
        // Changing pages on each server allocates this client's logs there.
        for key in 0..60 {
            assert_eq!(index.insert(&(key * 666), &1).await, Ok(true));
        }
        for key in 0..60 {
            assert_eq!(index.remove(&(key * 666)).await, Ok(true));
        }
        index.collect().await.unwrap();
        for _ in 0..3 {
            let loaded = index.bulk_load((0..20_000).map(|n| (n * 2, n)), 0.7).await;
            assert!(matches!(loaded, Err(IndexError::OutOfMemory { .. })), "{loaded:?}");
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), []);
        }
        for key in 0..20 {
            assert_eq!(index.insert(&(key * 1_999), &1).await, Ok(true));
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 20);
    });
}

#[test]
fn a_tree_that_grows_and_shrinks_for_ever_does_not_leak() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 2, 16 << 20, 3_000 * 977).with_index::<Tiny, Hybrid>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Tiny>(fabric.clone()).await;
        let usages = async || index.pages().rpc().usages().await.unwrap();
        let allocated =
            async || usages().await.iter().map(|usage| usage.allocated_bytes).sum::<u64>();
        let empty = async || {
            let scan = async { assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), []) };
            assert_eq!(spent(&fabric, scan).await.reads, 2, "nothing is left but the first leaves");
            for usage in usages().await {
                assert_eq!(
                    (usage.height, usage.deleted_records),
                    (1, 0),
                    "nothing is left of the trees but the roots"
                );
            }
            fabric.sleep(GRACE_NS).await;
        };
        let most = grow_and_shrink(&index, 6, allocated, empty).await;
        let spread = most[5] - most[1];
        assert!(spread <= 64 << 10, "memory is reused: {most:?}");
        // The index is as empty as when it was created, so it can be loaded.
        assert_eq!(index.bulk_load((0..3_000).map(|n| (n * 900, n)), 0.7).await, Ok(3_000));
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 3_000);
    });
}

#[test]
fn a_client_that_dies_half_way_harms_nobody() {
    let options =
        || HybridOptions { chunk_nodes_log2: 2, ..HybridOptions::with_boundaries(vec![80, 160]) };
    for_seeds(60, |seed| dying_holder::<Tiny, Hybrid>(rough(seed), options(), true));
}
