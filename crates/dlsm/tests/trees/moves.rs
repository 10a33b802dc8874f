//! Whole shards move between living compute servers while operations run: every answer is that of a
//! `BTreeMap`, and a move costs a known number of remote operations.

use super::shards::{Options, Small, at, options, sharded};
use super::work::check_extents;
use farleaf_dlsm::{DlsmServerOptions, ShardedDlsm};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{Design, IndexAdmin, IndexError, KeyRange, RangeIndex, Reshape, ScanRequest};
use farleaf_page::NamedLayout;
use farleaf_suites::providers::{AnyProvider, local, rough, sim, tcp};
use std::collections::BTreeMap;
use std::ops::Bound;

fn to(from: u16, to: u16, near: Option<Vec<u8>>) -> Reshape<Vec<u8>> {
    Reshape::MoveKeys { from, to, near }
}

/// Two compute servers, each with two shards of the same size.
fn two_each() -> Options {
    let within = vec![at(1, 4), at(3, 4)];
    Options { boundaries: vec![at(2, 4)], within, ..options(2, 2) }
}

fn key(number: u64) -> Vec<u8> {
    Small::key_named(number * (u64::MAX / 200))
}

/// A client that has not ended: what waits for all of them ends even if one panics.
struct Running<'a>(&'a AtomicU64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Two clients, each with keys of its own, and a third one that moves keys to and fro. Compute
/// servers divide shards for that until they have `most_shards`. Returns the moves, and how many
/// shards there are then.
fn moves_under_load(provider: &AnyProvider, rounds: u64, most_shards: usize) -> (u64, usize) {
    let mut options = options(2, 6);
    options.server.most_shards = most_shards;
    let cluster = sharded(provider, options.clone()).with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    let (ended, moved) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let models = cluster.run(&[0, 1, 2], |fabric, number| async move {
        let _running = (number < 2).then(|| Running(ended));
        let index = <ShardedDlsm as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        let mut model = BTreeMap::new();
        if number == 2 {
            while ended.load(Ordering::Acquire) < 2 {
                let (from, other) = [(0, 1), (1, 0)][fabric.random() as usize % 2];
                let near = (!fabric.random().is_multiple_of(4)).then(|| key(fabric.random() % 200));
                match index.reshape(&to(from, other, near)).await {
                    Ok(_) => _ = moved.fetch_add(1, Ordering::Relaxed),
                    // It has no keys, or none beyond such a boundary.
                    Err(IndexError::InvalidArgument(_)) => {}
                    Err(error) => panic!("cannot move: {error}"),
                }
                fabric.sleep(fabric.random() % 100_000).await;
            }
            return model;
        }
        for round in 0..rounds {
            if round % 20 == 0 {
                // A handle that was opened while a shard moved once could not be: `Contended`.
                let opened = <ShardedDlsm as Design<Small>>::open(fabric.clone(), compute).await;
                opened.unwrap().get(&key(number as u64)).await.unwrap();
            }
            let key = key(fabric.random() % 100 * 2 + number as u64);
            let value = round.to_be_bytes().repeat(4);
            match fabric.random() % 8 {
                0 => assert_eq!(index.remove(&key).await.unwrap(), model.remove(&key).is_some()),
                1..4 => {
                    index.upsert(&key, &value).await.unwrap();
                    model.insert(key, value);
                }
                4 => {
                    let own = |(found, _): &(Vec<u8>, Vec<u8>)| {
                        (0..100).any(|place| *found == self::key(place * 2 + number as u64))
                    };
                    let scan = ScanRequest::range(key..).limit(20);
                    let scan = if round % 2 == 0 { scan.reverse() } else { scan };
                    let found = index.scan(&scan).await.unwrap();
                    let last = found.last().map(|(key, _)| key.clone());
                    let found: BTreeMap<_, _> = found.into_iter().filter(own).collect();
                    let range: (Bound<Vec<u8>>, Bound<Vec<u8>>) = match (last, scan.reverse) {
                        (Some(last), true) => (Bound::Included(last), Bound::Unbounded),
                        (Some(last), false) => (scan.lower.clone(), Bound::Included(last)),
                        (None, _) => (scan.lower.clone(), Bound::Unbounded),
                    };
                    let expected =
                        model.range(range).map(|(key, value)| (key.clone(), value.clone()));
                    assert_eq!(found, expected.collect::<BTreeMap<_, _>>());
                }
                _ => assert_eq!(index.get(&key).await.unwrap(), model.get(&key).cloned()),
            }
        }
        model
    });
    let model: BTreeMap<_, _> = models.into_iter().flatten().flatten().collect();
    let found = cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Small>>::open(fabric, compute).await.unwrap();
        index.collect().await.unwrap();
        index.scan(&ScanRequest::range(..)).await.unwrap()
    });
    assert_eq!(found, model.into_iter().collect::<Vec<_>>());
    let shards: Vec<_> =
        compute.servers().iter().flat_map(|server| server.state().shards()).collect();
    shards.iter().for_each(|shard| check_extents(shard));
    (moved.load(Ordering::Relaxed), shards.len())
}

#[test]
fn shards_move_while_operations_run() {
    for (most_shards, most, least_moves) in [(0, 7, 60), (8, 16, 60)] {
        let (mut moved, mut shards) = (0, 0);
        for seed in 0..20 {
            let sim = sim(SimConfig { seed, ..SimConfig::default() });
            let (moves, found) = moves_under_load(&sim, 300, most_shards);
            (moved, shards) = (moved + moves, shards.max(found));
            assert!((6..=most).contains(&found), "{found} shards");
        }
        (1..4).for_each(|seed| _ = moves_under_load(&rough(seed), 100, most_shards));
        moves_under_load(&local(LocalConfig::default()), 500, most_shards);
        moves_under_load(&tcp(), 100, most_shards);
        assert!(moved > least_moves, "{moved} moves");
        assert!(most_shards == 0 || shards > 9, "at most {shards} shards");
    }
}

/// A move costs the giver a table for each MemTable that has something, its entry in the directory,
/// and one request to leave; the taker a look at the divisions of each memory server, two looks at
/// the directory, the request to open the shard, the lists of its chunks and tables, and a READ of
/// the index of each table. It fences nothing.
#[test]
fn a_move_costs_a_known_number_of_operations() {
    let provider = local(LocalConfig::default());
    let options = two_each();
    let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let memory_servers = u64::from(fabric.memory_servers());
        let index = <ShardedDlsm as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        let cost = || {
            let counts = fabric.counters().snapshot();
            (counts.rpcs, counts.reads, counts.writes)
        };
        let since = |before: (u64, u64, u64)| {
            let now = cost();
            (now.0 - before.0, now.1 - before.1, now.2 - before.2)
        };
        let wanted = at(3, 8); // in the second shard
        index.upsert(&wanted, b"value").await.unwrap();
        index.flush().await.unwrap();
        // One shard with one table, and nothing in its MemTable.
        let before = cost();
        index.reshape(&to(0, 1, Some(wanted.clone()))).await.unwrap();
        assert_eq!(index.owned_by(0), Some(range(None, Some(at(1, 4)))));
        let look = memory_servers + 1;
        assert_eq!(since(before), (1 + look, 0, 0), "one leaves it, and the other may open it");
        let before = cost();
        assert_eq!(index.get(&wanted).await.unwrap().as_deref(), Some(&b"value"[..]));
        // The second READ is of the record.
        assert_eq!(since(before), (2 + memory_servers + 1, 1 + 1, 0), "the first operation");
        let before = cost();
        assert_eq!(index.get(&wanted).await.unwrap().as_deref(), Some(&b"value"[..]));
        assert_eq!(since(before), (0, 1, 0));
        // Back, with something in the MemTable. One WRITE for the records and one for the index.
        index.upsert(&wanted, b"newer").await.unwrap();
        let before = cost();
        index.reshape(&to(1, 0, Some(wanted.clone()))).await.unwrap();
        let (calls, reads, writes) = since(before);
        assert_eq!((calls, reads), (1 + look + 1, 0), "and one change of the directory");
        assert!((1..=2).contains(&writes), "{writes}");
        assert_eq!(index.get(&wanted).await.unwrap().as_deref(), Some(&b"newer"[..]));
        // A shard that has not been opened since it came costs nothing to leave.
        index.reshape(&to(0, 1, Some(wanted.clone()))).await.unwrap();
        let before = cost();
        index.reshape(&to(1, 0, Some(wanted.clone()))).await.unwrap();
        assert_eq!(since(before), (look, 0, 0), "the other may open it");
    });
}

fn range(low: Option<Vec<u8>>, high: Option<Vec<u8>>) -> KeyRange<Vec<u8>> {
    (Bound::Included(low.unwrap_or_default()), high.map_or(Bound::Unbounded, Bound::Excluded))
}

/// The counter of the compute server that takes a shard over may be far below the numbers in it.
/// Its scans then missed the shard's records, and its writes were older than they.
#[test]
fn numbers_go_on_above_those_of_a_shard_that_comes() {
    let provider = sim(SimConfig::default());
    let options = two_each();
    let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        let moving = at(3, 8);
        for round in 0..100_u64 {
            index.upsert(&moving, &round.to_be_bytes()).await.unwrap();
        }
        for round in 100..104_u64 {
            let (from, other) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
            index.reshape(&to(from, other, Some(moving.clone()))).await.unwrap();
            let newest = vec![(moving.clone(), (round - 1).to_be_bytes().to_vec())];
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), newest);
            index.upsert(&moving, &round.to_be_bytes()).await.unwrap();
            // Of two versions, merges and scans go by the numbers.
            index.collect().await.unwrap();
            let newest = vec![(moving.clone(), round.to_be_bytes().to_vec())];
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), newest);
        }
    });
}

/// MemTables get smaller as shards come, down to what the longest value needs.
#[test]
fn a_compute_server_takes_no_more_shards_than_its_memory_is_for() {
    let mut options = two_each();
    options.server = DlsmServerOptions {
        memtable_bytes: Some(2 << 20),
        longest_value: Some(16 << 10),
        ..options.server
    };
    options.server.tree.memtable.bytes = 16 << 20;
    for (longest, may_come) in [(Some(16 << 10), true), (None, false)] {
        options.server.longest_value = longest;
        let provider = local(LocalConfig::default());
        let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
        let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
        cluster.run_one(|fabric| async move {
            let index = <ShardedDlsm as Design<Small>>::open(fabric, compute).await.unwrap();
            let bytes =
                |server: usize| compute.servers()[server].state().shards()[0].local_bytes().0;
            let before = bytes(1);
            index.upsert(&at(1, 8), b"value").await.unwrap();
            let moved = index.reshape(&to(0, 1, None)).await;
            assert_eq!(moved.is_ok(), may_come, "{moved:?}");
            assert_eq!(index.get(&at(1, 8)).await.unwrap().as_deref(), Some(&b"value"[..]));
            match moved {
                // Half of what each of two had.
                Ok(_) => assert!((before / 2 - 4096..=before / 2).contains(&bytes(1)), "{before}"),
                Err(error) => assert!(error.to_string().contains("too little memory"), "{error}"),
            }
        });
    }
}

/// After a move that fails, the giver serves the keys as before.
#[test]
fn a_shard_that_cannot_be_taken_stays() {
    let provider = local(LocalConfig::default());
    let options = options(2, 2);
    let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Small>>::open(fabric, compute).await.unwrap();
        index.upsert(&at(1, 8), b"value").await.unwrap();
        // A compute server with one shard has no boundary within its range.
        let refused = index.reshape(&to(0, 1, Some(at(1, 8)))).await.unwrap_err();
        assert!(refused.to_string().contains("no boundary"), "{refused}");
        assert_eq!(index.get(&at(1, 8)).await.unwrap().as_deref(), Some(&b"value"[..]));
        index.reshape(&to(0, 1, None)).await.unwrap();
        assert_eq!(index.owned_by(0), None);
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 1);
        index.reshape(&to(1, 0, Some(at(1, 2)))).await.unwrap();
        index.upsert(&at(7, 8), b"value").await.unwrap();
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 2);
        let held = compute.servers().iter().map(|server| {
            server.state().shards().iter().map(|shard| shard.id()).collect::<Vec<_>>()
        });
        assert_eq!(held.collect::<Vec<_>>(), [[1], [0]]);
    });
}
