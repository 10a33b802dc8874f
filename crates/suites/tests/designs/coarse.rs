//! What the coarse-grained design guarantees beyond the suite of all designs: its network cost, its
//! behavior without memory, that it does not leak, and that a server survives any request.

use super::clients::{fill_until_refused, grow_and_shrink};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, Fabric, Message, Provider, ServerId};
use farleaf_index::{Design, IndexAdmin, RangeIndex, ScanRequest};
use farleaf_page::{EditAction, Fixed8, Layout, LeafEdit};
use farleaf_pool::remote::{NodeAllocator, RemoteError};
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_pool::wire::{
    PoolRequest, Refusal, Reply, Request, SCAN_REPLY_RECORDS, TreeRequest, TreeShare,
};
use farleaf_suites::conformance::SuiteSetup;
use farleaf_trees::coarse::{Coarse, CoarseIndex, CoarseOptions, Partitioning};

fn range(servers: u64) -> CoarseOptions<u64> {
    let boundaries = (1..servers).map(|number| u64::MAX / servers * number).collect();
    CoarseOptions { partitioning: Partitioning::Range { boundaries } }
}

fn setup(
    provider: &LocalConfig,
    servers: u16,
    pool_bytes: usize,
) -> SuiteSetup<'_, LocalConfig, CoarseOptions<u64>> {
    let server = MemoryServerConfig { pool_bytes, chunk_bytes: 1 << 14, ..Default::default() };
    SuiteSetup { provider, options: range(servers.into()), memory_servers: servers, server }
}

async fn open<F: Fabric, L: Layout<Key = u64, Value = u64>>(fabric: F) -> CoarseIndex<F, L> {
    <Coarse as Design<L>>::open(fabric, &()).await.unwrap()
}

#[test]
fn operations_cost_what_the_paper_says() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 3, 8 << 20).with_index::<Fixed8, Coarse>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        let step = u64::MAX / 30_000;
        let key = |number: u64| number * step;
        index.bulk_load((0..30_000).map(|n| (key(n), n)), 0.7).await.unwrap();
        for number in 0..500 {
            let start = fabric.counters().snapshot();
            assert_eq!(index.get(&key(number * 59)).await, Ok(Some(number * 59)));
            let spent = fabric.counters().snapshot() - start;
            assert_eq!((spent.rpcs, spent.reads, spent.writes, spent.atomics), (1, 0, 0, 0));
            assert_eq!(spent.rpc_bytes, 9 + 10, "a tag and a key, a tag and an optional value");
            assert_eq!(spent.doorbells, 1);
        }
        let start = fabric.counters().snapshot();
        let records = index.scan(&ScanRequest::range(key(100)..).limit(100)).await.unwrap();
        assert_eq!(records, (100..200).map(|n| (key(n), n)).collect::<Vec<_>>());
        let spent = fabric.counters().snapshot() - start;
        assert_eq!((spent.rpcs, spent.remote_operations()), (1, 1), "a scan within one server");

        let start = fabric.counters().snapshot();
        assert_eq!(
            index.scan(&ScanRequest::range(key(9_950)..).limit(100)).await.unwrap().len(),
            100
        );
        let spent = fabric.counters().snapshot() - start;
        assert_eq!(spent.remote_operations(), 2, "a scan across a boundary");

        for operation in 0..5 {
            let start = fabric.counters().snapshot();
            match operation {
                0 => assert_eq!(index.insert(&5, &6).await, Ok(true)),
                1 => assert_eq!(index.update(&5, &7).await, Ok(true)),
                2 => index.upsert(&5, &8).await.unwrap(),
                3 => drop(index.compare_exchange(&5, &8, &9).await.unwrap()),
                _ => assert_eq!(index.remove(&5).await, Ok(true)),
            }
            let spent = fabric.counters().snapshot() - start;
            assert_eq!((spent.rpcs, spent.remote_operations()), (1, 1));
        }
    });
}

/// The simulator found this (`coarse-long-scans`, seed 29): when a reply was full in the middle of
/// the range's last leaf, the server reported the end of the range, and the rest of that leaf was
/// missing.
#[test]
fn a_reply_that_is_full_in_the_last_leaf_is_not_the_end() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 1, 8 << 20).with_index::<Fixed8, Coarse>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        let count = SCAN_REPLY_RECORDS as u64 + 5;
        index.bulk_load((0..count).map(|n| (n, n)), 0.7).await.unwrap();
        for scan in [ScanRequest::range(..), ScanRequest::range(..).reverse()] {
            assert_eq!(index.scan(&scan).await.unwrap().len() as u64, count, "{scan:?}");
        }
    });
}

/// The lookups of one multi-get are in flight together: they share one doorbell.
#[test]
fn a_multi_get_overlaps_its_lookups() {
    let provider = LocalConfig { network_latency_ns: 1_000_000, ..LocalConfig::default() };
    let cluster = setup(&provider, 3, 8 << 20).with_index::<Fixed8, Coarse>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        let keys: Vec<u64> = (0..64).map(|n| n << 58).collect();
        let start = fabric.counters().snapshot();
        index.multi_get(&keys).await.unwrap();
        let spent = fabric.counters().snapshot() - start;
        assert_eq!((spent.rpcs, spent.doorbells), (64, 1));
    });
}

#[test]
fn without_memory_the_operation_fails_and_the_index_stays_whole() {
    let provider = LocalConfig::default();
    let setup = setup(&provider, 2, 64 << 10);
    let cluster = setup.with_index::<Fixed8<16>, Coarse>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8<16>>(fabric.clone()).await;
        let model = fill_until_refused(&index).await;
        let contents: Vec<_> = model.iter().map(|(&key, &value)| (key, value)).collect();
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), contents);
        for (key, value) in &contents {
            assert_eq!(index.get(key).await, Ok(Some(*value)));
            assert_eq!(index.update(key, &!value).await, Ok(true));
        }
        // Removing and collecting records frees memory.
        for (key, _) in contents.iter().step_by(2) {
            assert_eq!(index.remove(key).await, Ok(true));
        }
        index.collect().await.unwrap();
        assert_eq!(index.insert(&12_345, &1).await, Ok(true));
    });
}

#[test]
fn a_tree_that_grows_and_shrinks_for_ever_does_not_leak() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 1, 16 << 20).with_index::<Fixed8<16>, Coarse>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8<16>>(fabric.clone()).await;
        let usage = async || index.rpc().usages().await.unwrap()[0];
        let empty = async || {
            let usage = usage().await;
            assert_eq!(usage.deleted_records, 0);
            assert_eq!((usage.nodes_in_use, usage.height), (1, 1), "all but the root are free");
        };
        let allocated = async || usage().await.allocated_bytes;
        let most = grow_and_shrink(&index, 8, allocated, empty).await;
        assert_eq!(most[1..], vec![most[1]; 7], "memory is reused");
    });
}

/// Deleted records are collected in the background, without an explicit collection.
#[test]
fn the_collection_runs_by_itself() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 1, 16 << 20).with_index::<Fixed8, Coarse>();
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone()).await;
        for key in 0..40_000 {
            index.insert(&key, &key).await.unwrap();
        }
        let full = index.rpc().usages().await.unwrap()[0];
        for key in (0..40_000).filter(|key| key % 10 > 0) {
            index.remove(&key).await.unwrap();
        }
        let thin = index.rpc().usages().await.unwrap()[0];
        assert!(thin.nodes_in_use * 2 < full.nodes_in_use, "{full:?} {thin:?}");
        assert!(thin.deleted_records < 4_000, "{thin:?}");
    });
}

#[test]
fn a_server_survives_any_request() {
    let config = MemoryServerConfig { pool_bytes: 1 << 20, ..Default::default() };
    let server = Arc::new(MemoryServer::<Fixed8>::new(ServerId::new(0), &config).unwrap());
    let cluster = LocalConfig::default().start(vec![server]);
    cluster.run_one(|fabric| async move {
        let server = ServerId::new(0);
        let ask = |request: Message| {
            let fabric = fabric.clone();
            async move { Reply::<Fixed8>::decode(&fabric.call(server, request).await.unwrap()) }
        };
        let refused = |refusal| Some(Reply::Refused(refusal));
        type R = Request<Fixed8>;
        let edit = |key, action| R::Edit(LeafEdit { key, action });
        let get = edit(1, EditAction::Get).encode();
        assert!(same(ask(get.clone()).await, refused(Refusal::NoTree)));
        let crossed = TreeRequest::Create { share: TreeShare::Range { low: 9, high: Some(3) } };
        assert!(same(ask(R::from(crossed).encode()).await, refused(Refusal::Malformed)));
        let create = TreeRequest::Create { share: TreeShare::Range { low: 0, high: Some(100) } };
        assert!(same(ask(R::from(create).encode()).await, Some(Reply::Done)));
        assert!(same(ask(edit(100, EditAction::Get).encode()).await, refused(Refusal::NotMine)));
        let insert = edit(1, EditAction::Insert(2)).encode();
        assert!(same(ask(insert).await, Some(Reply::Applied(true))));
        // Every prefix of a request, and every request with a trailing byte.
        for length in 0..get.len() {
            let cut = Message::from_slice(&get[..length]);
            assert!(same(ask(cut).await, refused(Refusal::Malformed)));
        }
        let mut longer = get.clone();
        longer.push(0);
        assert!(same(ask(longer).await, refused(Refusal::Malformed)));
        // A load with a wrong count of records.
        let mut lying = Message::from_slice(&[11]);
        lying.extend_from_slice(&1_u64.to_le_bytes());
        lying.extend_from_slice(&u32::MAX.to_le_bytes());
        assert!(same(ask(lying).await, refused(Refusal::Malformed)));
        let append = TreeRequest::LoadAppend { load: 1, records: vec![(1, 1)] };
        assert!(same(ask(R::from(append).encode()).await, refused(Refusal::NotLoading)));
        let begin = TreeRequest::LoadBegin { load: 1, fill_permille: 700 };
        assert!(same(ask(R::from(begin).encode()).await, refused(Refusal::NotEmpty)));
        let huge = PoolRequest::AllocateChunk { bytes: u64::MAX, token: 1 };
        assert!(same(ask(R::from(huge).encode()).await, refused(Refusal::OutOfMemory)));
        for _ in 0..20_000 {
            let length = (fabric.random() % 40) as usize;
            let mut noise: Message = (0..length).map(|_| fabric.random() as u8).collect();
            // Only tags of requests that read or change single keys, because the tree must survive
            // them.
            if let Some(tag) = noise.first_mut() {
                *tag %= 9;
            }
            assert!(ask(noise).await.is_some(), "every request gets a valid reply");
        }
        assert!(matches!(ask(get).await, Some(Reply::Value(_))));
    });
}

fn same(reply: Option<Reply<Fixed8>>, expected: Option<Reply<Fixed8>>) -> bool {
    let bytes = |reply: Option<Reply<Fixed8>>| {
        let mut message = Message::new();
        if let Some(reply) = reply {
            reply.encode(&mut message);
        }
        message
    };
    bytes(reply) == bytes(expected)
}

#[test]
fn compute_servers_allocate_nodes_by_chunks() {
    let provider = LocalConfig::default();
    let cluster = setup(&provider, 2, 128 << 10).start::<Fixed8>();
    let taken = cluster.run(&[0, 1], |fabric, _| async move {
        let allocator = NodeAllocator::<_, Fixed8>::new(fabric.clone(), 16 << 10);
        let server = ServerId::new(1);
        let mut nodes = Vec::new();
        for _ in 0..16 {
            nodes.push(allocator.take(server).await.unwrap());
        }
        assert_eq!(fabric.counters().snapshot().rpcs, 1, "one chunk of sixteen nodes");
        let freed = nodes[3];
        allocator.give_back(freed);
        assert_eq!(
            allocator.take(server).await,
            Ok(freed),
            "freed nodes first, without the network"
        );
        assert_eq!(fabric.counters().snapshot().rpcs, 1);
        for _ in 0..8 {
            nodes.push(allocator.take_anywhere().await.unwrap());
        }
        nodes
    });
    let mut nodes: Vec<_> = taken.into_iter().flatten().flatten().collect();
    let count = nodes.len();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), count, "no node is allocated twice");
    assert!(nodes.iter().all(|node| node.offset() > 0 && node.offset().is_multiple_of(1024)));

    cluster.run_one(|fabric| async move {
        let allocator = NodeAllocator::<_, Fixed8>::new(fabric, 1 << 20);
        let outcome = loop {
            match allocator.take_anywhere().await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(outcome, RemoteError::OutOfMemory { .. }), "{outcome:?}");
    });
}
