//! What an operation of dLSM costs when answers wait until they are in the write-ahead log
//! (`acknowledge = written`), and what an answer then promises.
//!
//! Counts of remote operations are exact: there is only one client, and the local fabric completes
//! at once.

use super::clients::{NOTHING, setup, spent, verbs};
use farleaf_dlsm::{DlsmOptions, DlsmServerOptions, ShardedDlsm, ShardedOptions};
use farleaf_fabric::Cluster;
use farleaf_fabric::local::LocalConfig;
use farleaf_index::partition::{ComputePool, end_former_incarnation, fence_former_incarnation};
use farleaf_index::{
    AcknowledgeName, Design, EditAction, LeafEdit, PartIndex, RangeIndex, ScanRequest,
};
use farleaf_page::Fixed8;
use std::cell::Cell;
use std::sync::Arc;

type Pool = Arc<ComputePool<ShardedDlsm, Fixed8>>;

/// Two shards, with MemTables that hold everything.
fn options(acknowledge: AcknowledgeName, log_ring_bytes: u64) -> ShardedOptions<u64> {
    let sizes = DlsmOptions::with_table_bytes(1 << 20);
    let tree = DlsmOptions { acknowledge, log_ring_bytes, ..sizes };
    let server = DlsmServerOptions { tree, longest_value: Some(8), ..Default::default() };
    ShardedOptions { within: vec![1_000], ..ShardedOptions::with_boundaries(vec![], server) }
}

fn pool(options: &ShardedOptions<u64>) -> Pool {
    <ShardedDlsm as Design<Fixed8>>::compute(options).unwrap()
}

/// A change is one WRITE: a batch of 4 words, and the record with 2 words, key and value. A group
/// of changes is one WRITE, too. Who reads what has landed pays nothing.
#[test]
fn a_change_and_a_group_are_one_write_and_a_lookup_costs_nothing() {
    let provider = LocalConfig::default();
    let options = options(AcknowledgeName::Written, 1 << 20);
    let cluster = setup(&provider, 2, 64 << 20, options.clone());
    let cluster = cluster.with_index::<Fixed8, ShardedDlsm>();
    let pool = &pool(&options);
    cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Fixed8>>::open(fabric.clone(), pool).await.unwrap();
        // The first writes ask for extents.
        for key in [5, 1_005] {
            index.upsert(&key, &1).await.unwrap();
        }
        let upsert = async { assert_eq!(index.upsert(&7, &70).await, Ok(())) };
        assert_eq!(verbs(spent(&fabric, upsert).await), (0, 1, 0, 0, 0, 64));
        let remove = async { assert_eq!(index.remove(&7).await, Ok(true)) };
        assert_eq!(verbs(spent(&fabric, remove).await), (0, 1, 0, 0, 0, 56));
        let keys: Vec<u64> = (0..16).map(|n| n * 100).collect();
        let upsert = |key| LeafEdit { key, action: EditAction::Upsert(&5_u64) };
        let edits: Vec<_> = keys.iter().map(upsert).collect();
        let done = Cell::new(0);
        let count = |_, outcome: Result<_, _>| {
            outcome.unwrap();
            done.set(done.get() + 1);
        };
        let group = async { index.part(0).execute_all(&edits, count).await };
        let words = 4 + 16 * 4;
        assert_eq!(verbs(spent(&fabric, group).await), (0, 1, 0, 0, 0, words * 8));
        assert_eq!(done.get(), 16);
        let reads = async {
            assert_eq!(index.get(&100).await, Ok(Some(5)));
            assert_eq!(index.get(&7).await, Ok(None));
            assert_eq!(index.insert(&100, &9).await, Ok(false));
            let scan = ScanRequest::range(50..).limit(2);
            assert_eq!(index.scan(&scan).await, Ok(vec![(100, 5), (200, 5)]));
        };
        assert_eq!(verbs(spent(&fabric, reads).await), NOTHING);
    });
}

/// The next life finds what was answered; without a log it finds nothing of it. A second recovery
/// changes nothing, and neither does a clean end before it.
#[test]
fn the_next_life_finds_what_was_answered() {
    for (acknowledge, kept) in [(AcknowledgeName::Written, 449), (AcknowledgeName::Cached, 0)] {
        let provider = LocalConfig::default();
        let options = options(acknowledge, 1 << 20);
        let cluster = setup(&provider, 2, 64 << 20, options.clone());
        let cluster = cluster.with_index::<Fixed8, ShardedDlsm>();
        let pools = &[pool(&options), pool(&options), pool(&options)];
        let of_server = &options.server;
        for (life, pool) in pools.iter().enumerate() {
            cluster.run(&[life as u16], |fabric, _| async move {
                let range = &pool.map().range_of(0);
                if life > 0 {
                    fence_former_incarnation(&fabric, life as u16 - 1).await.unwrap();
                    for _ in 0..2 {
                        let (fabric, range) = (fabric.clone(), range);
                        end_former_incarnation::<ShardedDlsm, _, Fixed8>(
                            fabric, of_server, 0, range,
                        )
                        .await
                        .unwrap();
                    }
                }
                let index = <ShardedDlsm as Design<Fixed8>>::open(fabric, pool).await.unwrap();
                let all = ScanRequest::range(..);
                if life == 0 {
                    for key in 0..500 {
                        index.upsert(&(key * 4), &key).await.unwrap();
                    }
                    for key in 0..50 {
                        assert_eq!(index.remove(&(key * 40)).await, Ok(true));
                    }
                    assert_eq!(index.update(&4, &9_999).await, Ok(true));
                    return;
                }
                let found = index.scan(&all).await.unwrap();
                let is_right = |(key, value): &&(u64, u64)| key % 40 != 0 && *value == key / 4;
                assert_eq!(found.iter().filter(is_right).count(), kept);
                assert_eq!(found.len(), if kept > 0 { kept + 1 } else { 0 });
                // What the last life changes and flushes is there, and nothing else comes back.
                if life == 1 && kept > 0 {
                    assert_eq!(index.get(&4).await, Ok(Some(9_999)));
                    index.flush().await.unwrap();
                }
            });
        }
    }
}

/// A ring that is much smaller than what is written is used again and again, and loses nothing.
#[test]
fn a_small_ring_makes_room_by_flushes() {
    let provider = LocalConfig::default();
    let options = options(AcknowledgeName::Written, 8 << 10);
    let cluster = setup(&provider, 2, 64 << 20, options.clone());
    let cluster = cluster.with_index::<Fixed8, ShardedDlsm>();
    let pools = &[pool(&options), pool(&options)];
    let of_server = &options.server;
    cluster.run(&[0], |fabric, _| async move {
        let index = <ShardedDlsm as Design<Fixed8>>::open(fabric, &pools[0]).await.unwrap();
        for round in 0..5 {
            for key in 0..400 {
                index.upsert(&(key * 5), &(round * 1_000 + key)).await.unwrap();
            }
        }
        let flushes = |shard: &Arc<farleaf_dlsm::LsmShard>| shard.counts().flushes;
        let flushes: u64 = pools[0].servers()[0].state().shards().iter().map(flushes).sum();
        assert!(flushes > 10, "{flushes} flushes, although no MemTable was full");
    });
    cluster.run(&[1], |fabric, _| async move {
        fence_former_incarnation(&fabric, 0).await.unwrap();
        let range = &pools[1].map().range_of(0);
        end_former_incarnation::<ShardedDlsm, _, Fixed8>(fabric.clone(), of_server, 0, range)
            .await
            .unwrap();
        let index = <ShardedDlsm as Design<Fixed8>>::open(fabric, &pools[1]).await.unwrap();
        let found = index.scan(&ScanRequest::range(..)).await.unwrap();
        let expected: Vec<_> = (0..400).map(|key| (key * 5, 4_000 + key)).collect();
        assert_eq!(found, expected);
    });
}
