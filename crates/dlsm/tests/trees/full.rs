//! dLSM in a full memory pool.
//!
//! A full pool once wedged a tree for good: merges found no memory for their outputs and flushes
//! none for their tables, so that no space ever came back. `remove` and `flush` were refused, too,
//! and what was in MemTables was lost at the end of the process, however clean. Six loads of the
//! same 400,000 records into 48 MiB, of which they take a quarter, were enough.

use super::tree::{KINDS, compute, setup};
use super::work::{beside_workers, check_extents, key, open};
use farleaf_dlsm::{Dlsm, DlsmOptions, LsmShard};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{IndexAdmin, IndexError, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_page::table::IndexKind;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::SuiteSetup;
use farleaf_suites::providers::{AnyProvider, local, rough, sim};
use futures_util::future::{Either, select};
use std::collections::BTreeMap;
use std::pin::pin;

type Small = Bytes<128>;
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const POOL_BYTES: usize = 1 << 20;

fn full(provider: &AnyProvider, options: DlsmOptions) -> SuiteSetup<'_, AnyProvider, DlsmOptions> {
    let server = MemoryServerConfig { pool_bytes: POOL_BYTES, ..Default::default() };
    SuiteSetup { memory_servers: 1, server, ..setup(provider, options) }
}

/// Tables of some 16 extents, as small pools of clusters have at least.
fn small(index: IndexKind) -> DlsmOptions {
    DlsmOptions {
        index,
        table_bytes: 16 << 10,
        extent_bytes: 1 << 10,
        chunk_bytes: 16 << 10,
        level1_bytes: 48 << 10,
        ..DlsmOptions::tiny()
    }
}

fn value(number: u64, round: u64) -> Vec<u8> {
    [number, round].map(u64::to_be_bytes).concat().repeat(12)
}

/// Inserts keys from `from` on until there is no memory. Returns how many.
async fn fill(
    index: &impl RangeIndex<Key = [u8], Value = [u8]>,
    model: &mut Model,
    (from, round): (u64, u64),
) -> u64 {
    for number in from.. {
        match index.insert(&key(number), &value(number, round)).await {
            Ok(inserted) => assert!(inserted),
            Err(IndexError::OutOfMemory { .. }) => return number - from,
            Err(error) => panic!("{error}"),
        }
        model.insert(key(number).to_vec(), value(number, round));
    }
    unreachable!("a pool is finite")
}

async fn check(index: &impl RangeIndex<Key = [u8], Value = [u8]>, model: &Model) {
    let mut expected: Vec<_> = model.clone().into_iter().collect();
    assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), expected);
    expected.reverse();
    assert_eq!(index.scan(&ScanRequest::range(..).reverse()).await.unwrap(), expected);
    for (key, value) in model {
        assert_eq!(index.get(key).await.unwrap().as_ref(), Some(value));
    }
}

/// Fills the pool, overwrites everything three times, removes half and inserts as much again, and
/// all of that twice.
async fn rounds(index: &impl IndexAdmin<Key = [u8], Value = [u8]>, model: &mut Model) {
    let mut first = None;
    for round in 0..2 {
        let from = 1_000_000 * round;
        let inserted = fill(index, model, (from, round)).await;
        let most = *first.get_or_insert(inserted);
        let bytes = model.values().map(|value| value.len() as u64 + 8).sum::<u64>();
        println!("round {round}: {} records, {bytes} bytes", model.len());
        assert!(bytes * 10 > POOL_BYTES as u64 * 6, "{bytes} bytes fill the pool");
        // A full pool takes no other record, and changes nothing.
        let more = key(u64::MAX - round);
        let refused = index.upsert(&more, &value(0, 0)).await;
        assert!(matches!(refused, Err(IndexError::OutOfMemory { .. })), "{refused:?}");
        assert_eq!(index.get(&more).await, Ok(None));
        index.flush().await.unwrap();
        for again in 0..3 {
            for key in model.keys().cloned().collect::<Vec<_>>() {
                let new = value(again, round + 7);
                index.upsert(&key, &new).await.unwrap();
                model.insert(key, new);
            }
        }
        check(index, model).await;
        let gone: Vec<_> = model.keys().step_by(2).cloned().collect();
        for key in &gone {
            assert!(index.remove(key).await.unwrap());
            model.remove(key);
        }
        let back = fill(index, model, (from + 500_000, round)).await;
        assert!(back > most * 4 / 10, "{back} records instead of {} of {most}", gone.len());
        check(index, model).await;
        for key in model.keys().step_by(2).cloned().collect::<Vec<_>>() {
            index.remove(&key).await.unwrap();
            model.remove(&key);
        }
    }
    index.flush().await.unwrap();
}

/// The next process finds what was flushed.
async fn taken_over<F: Fabric>(fabric: &F, options: &DlsmOptions, model: &Model) {
    let other: Arc<LsmShard> = compute(options);
    Dlsm::take_over::<_, Small>(fabric.clone(), &other).await.unwrap();
    check_extents(&other);
    let index = open(fabric, &other).await;
    check(&index, model).await;
    index.settle().await.unwrap();
    index.collect().await.unwrap();
    check(&index, model).await;
    check_extents(&other);
}

/// lsm.S1, lsm.S2, lsm.S4.
#[test]
fn a_full_pool_takes_what_does_not_grow() {
    for (provider, kind) in [
        (local(LocalConfig::default()), KINDS[0]),
        (sim(SimConfig::default()), KINDS[1]),
        (rough(9), KINDS[2]),
    ] {
        let setup = full(&provider, small(kind));
        let cluster = setup.with_index::<Small, Dlsm>();
        let (tree, options) = (&compute(&setup.options), &setup.options);
        cluster.run_one(|fabric| async move {
            let (index, mut model) = (open(&fabric, tree).await, Model::new());
            rounds(&index, &mut model).await;
            index.settle().await.unwrap();
            check_extents(tree);
            taken_over(&fabric, options, &model).await;
        });
    }
}

/// The same with tasks that flush and merge in the background.
#[test]
fn background_tasks_make_room() {
    for workers in [1, 4] {
        let provider = &sim(SimConfig::default());
        let setup = full(provider, DlsmOptions { workers, ..small(KINDS[0]) });
        let tree = &compute(&setup.options);
        beside_workers(&setup, tree, 2, &[1], async |fabric, _| {
            let (index, mut model) = (open(fabric, tree).await, Model::new());
            rounds(&index, &mut model).await;
        });
        check_extents(tree);
    }
}

/// Records that take a third of the pool, written again and again.
#[test]
fn the_same_records_fit_again_and_again() {
    for workers in [1, 3] {
        let provider = &sim(SimConfig::default());
        let setup = full(provider, DlsmOptions { workers, ..small(KINDS[0]) });
        let tree = &compute(&setup.options);
        beside_workers(&setup, tree, 1, &[1, 1], async |fabric, client| {
            let index = open(fabric, tree).await;
            for round in 0..20 {
                for number in 0..800 {
                    let key = key(2 * (number * 7 % 801) + client as u64);
                    index.upsert(&key, &value(number, round)).await.unwrap();
                }
            }
            index.flush().await.unwrap();
        });
    }
}

/// lsm.S3: a compaction in pieces that is dropped at any moment leaves tables in part. The process,
/// and the next one, find everything in them.
#[test]
fn parts_of_tables_are_tables() {
    let provider = &sim(SimConfig::default());
    let setup = full(provider, small(KINDS[0]));
    let mut parts = 0;
    for cut in 1..80_u64 {
        let cluster = setup.with_index::<Small, Dlsm>();
        let (tree, options) = (&compute(&setup.options), &setup.options);
        let seen = cluster.run_one(|fabric| async move {
            let (index, mut model) = (open(&fabric, tree).await, Model::new());
            let inserted = fill(&index, &mut model, (0, 0)).await;
            for number in 0..inserted / 8 {
                let number = number * 8 % inserted;
                index.upsert(&key(number), &value(number, 1)).await.unwrap();
                model.insert(key(number).to_vec(), value(number, 1));
            }
            index.flush().await.unwrap();
            {
                let (collect, timer) = (pin!(index.collect()), pin!(fabric.sleep(cut * 2_000_000)));
                if let Either::Left((collected, _)) = select(collect, timer).await {
                    collected.unwrap();
                }
            }
            index.settle().await.unwrap();
            let seen = tree.tables().iter().filter(|t| t.meta.clip.lower.is_some()).count();
            check(&index, &model).await;
            // A change of unknown outcome keeps its tables.
            if !tree.is_changing() {
                check_extents(tree);
            }
            taken_over(&fabric, options, &model).await;
            seen
        });
        parts += seen;
    }
    assert!(parts > 10, "{parts} tables were there in part");
}
