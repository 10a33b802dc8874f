//! Flushes and merges of dLSM: beside one another, in the background, and given up half-way.

use super::tree::{KINDS, compute, setup, tiny};
use farleaf_dlsm::{Dlsm, DlsmOptions, LsmShard};
use farleaf_dlsm::{ExtentClient, ExtentSpace};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, Outage, SimConfig};
use farleaf_fabric::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use farleaf_fabric::{AnyFabric, Cluster, Fabric};
use farleaf_index::{Background, Design, IndexAdmin, IndexError, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_page::table::IndexKind;
use farleaf_pool::remote::{RemoteError, RpcClient};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::SuiteSetup;
use farleaf_suites::providers::spent;
use farleaf_suites::providers::{AnyProvider, local, rough, sim};
use futures_util::future::{Either, select};
use std::pin::pin;

type Small = Bytes<128>;

const EXTENT_BYTES: u64 = 2_048;

pub(super) fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn options() -> DlsmOptions {
    tiny(IndexKind::Compact)
}

pub(super) async fn open<F: Fabric>(
    fabric: &F,
    tree: &Arc<LsmShard>,
) -> impl IndexAdmin<Key = [u8], Value = [u8]> {
    <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap()
}

/// Bytes that the memory servers have allocated.
async fn pool_bytes<F: Fabric>(fabric: &F) -> u64 {
    let usages = RpcClient::<F, Small>::new(fabric.clone()).usages().await.unwrap();
    usages.iter().map(|usage| usage.allocated_bytes).sum()
}

/// Every extent is in a table of the tree, free or resting.
pub(super) fn check_extents(tree: &LsmShard) {
    let used = tree.used_extents().len() as u64;
    let (usage, unused) = (tree.extents(), tree.unused_extents().len() as u64);
    assert_eq!((usage.leased, usage.lost), (used, 0), "{usage:?}");
    assert_eq!(usage.all, used + unused, "{usage:?}");
}

/// Tables that went to another level as they were once kept the old level's number.
#[test]
fn tables_know_their_level() {
    let provider = &local(LocalConfig::default());
    let setup = setup(provider, options());
    let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
    cluster.run_one(|fabric| async move {
        let index = open(&fabric, tree).await;
        for number in 0..3_000 {
            index.upsert(&key(number), &[7; 100]).await.unwrap();
        }
        assert!(tree.counts().moved_tables > 0, "{:?}", tree.counts());
        for table in tree.tables() {
            assert_eq!(usize::from(table.meta.level), table.level, "{:?}", tree.levels());
        }
    });
}

/// A MemTable of more than two tables' size becomes several.
#[test]
fn a_large_memtable_becomes_several_tables() {
    let provider = &local(LocalConfig::default());
    let large =
        DlsmOptions { table_bytes: 1 << 10, level0_tables: 100, level0_stop: 100, ..options() };
    for index in KINDS {
        let setup = setup(provider, DlsmOptions { index, ..large.clone() });
        let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
        cluster.run_one(|fabric| async move {
            let index = open(&fabric, tree).await;
            for number in 0..60 {
                index.upsert(&key(number * 7 % 60), &[number as u8; 100]).await.unwrap();
            }
            index.flush().await.unwrap();
            let tables = tree.tables();
            assert!(tables.len() >= 3 && tree.counts().flushes == 1, "{:?}", tree.counts());
            let ascend = tables.windows(2).all(|two| two[0].meta.largest < two[1].meta.smallest);
            assert!(ascend && tables.iter().all(|table| table.meta.footer.data_words < 300));
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 60);
            for number in 0..60 {
                let value = index.get(&key(number * 7 % 60)).await.unwrap();
                assert_eq!(value, Some(vec![number as u8; 100]));
            }
        });
    }
}

/// A flush that is dropped at any moment leaves its MemTable, and its extents come back.
#[test]
fn a_dropped_flush_loses_nothing() {
    for provider in &[sim(SimConfig::default()), rough(6)] {
        // An allocation for each extent, so that many are dropped.
        let setup = setup(provider, DlsmOptions { chunk_bytes: EXTENT_BYTES, ..options() });
        let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
        let dropped = &AtomicU64::new(0);
        cluster.run_one(|fabric| async move {
            let index = open(&fabric, tree).await;
            let before = pool_bytes(&fabric).await;
            for round in 0..60_u64 {
                for number in 0..20_u64 {
                    index.upsert(&key(number), &round.to_be_bytes()).await.unwrap();
                }
                let (flush, timer) = (pin!(index.flush()), pin!(fabric.sleep(round * 1_000)));
                match select(flush, timer).await {
                    Either::Left((flushed, _)) => flushed.unwrap(),
                    Either::Right(_) => _ = dropped.fetch_add(1, Ordering::Relaxed),
                }
            }
            // Tables that were given up come back with the next extents.
            index.flush().await.unwrap();
            index.settle().await.unwrap();
            check_extents(tree);
            // At each server, one request may have been dropped last.
            let taken = pool_bytes(&fabric).await - before - tree.extents().all * EXTENT_BYTES;
            assert!(taken <= 3 * EXTENT_BYTES, "{taken} bytes of chunks are lost");
            for number in 0..20 {
                assert_eq!(
                    index.get(&key(number)).await.unwrap(),
                    Some(59_u64.to_be_bytes().to_vec())
                );
            }
        });
        let dropped = dropped.load(Ordering::Relaxed);
        assert!(dropped >= 5, "{dropped} flushes were dropped");
    }
}

/// A server that cannot be reached while tables are written, and what became of extents afterwards.
///
/// A flush that failed with a WRITE in doubt once lost the extents of its table although the handle
/// lived on, with each attempt.
#[test]
fn flushes_that_fail_lose_no_extents() {
    const CUT: std::ops::Range<u64> = 50_000_000..90_000_000;
    let cut = Outage { server: 0, from_ns: CUT.start, until_ns: CUT.end };
    let faults = Faults {
        cut_memory_server: vec![cut],
        timeout_ns: 100_000,
        detect_death_ns: 10_000,
        ..Faults::default()
    };
    let provider = &sim(SimConfig { faults, ..SimConfig::default() });
    // A table of more WRITEs than are in flight together, so that one fails half-way.
    let mut large = DlsmOptions {
        table_bytes: 1 << 20,
        extent_bytes: 64 << 10,
        chunk_bytes: 1 << 20,
        ..options()
    };
    large.memtable.bytes = 1 << 20;
    let setup = SuiteSetup { memory_servers: 1, ..setup(provider, large) };
    let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
    cluster.run_one(|fabric| async move {
        let index = open(&fabric, tree).await;
        for number in 0..40 {
            index.upsert(&key(number), &[1; 10_000]).await.unwrap();
        }
        index.flush().await.unwrap();
        for number in 0..40 {
            index.upsert(&key(number), &[2; 10_000]).await.unwrap();
        }
        fabric.sleep(CUT.start.saturating_sub(fabric.now_ns())).await;
        for _ in 0..5 {
            let flushed = index.flush().await;
            assert!(matches!(flushed, Err(IndexError::Indeterminate(_))), "{flushed:?}");
        }
        assert!(fabric.now_ns() < CUT.end, "the server is still cut off");
        let usage = tree.extents();
        assert_eq!(usage.lost, 0, "{usage:?}");
        fabric.sleep(CUT.end - fabric.now_ns()).await;
        index.settle().await.unwrap();
        check_extents(tree);
        index.flush().await.unwrap();
        check_extents(tree);
        for number in 0..40 {
            assert_eq!(index.get(&key(number)).await.unwrap(), Some(vec![2; 10_000]));
        }
    });
}

/// A server that stays unreachable keeps what was given up on it, and nothing else.
///
/// A handle once tried the same table again and again before each extent that it took, and never
/// came to the tables on other servers.
#[test]
fn tables_on_a_dead_server_keep_no_others() {
    const CUT: std::ops::Range<u64> = 50_000_000..900_000_000;
    let cut = Outage { server: 1, from_ns: CUT.start, until_ns: CUT.end };
    let faults = Faults {
        cut_memory_server: vec![cut],
        timeout_ns: 100_000,
        detect_death_ns: 10_000,
        ..Faults::default()
    };
    let provider = &sim(SimConfig { faults, ..SimConfig::default() });
    let setup = SuiteSetup { memory_servers: 2, ..setup(provider, options()) };
    let cluster = setup.with_index::<Small, Dlsm>();
    cluster.run_one(|fabric| async move {
        let space = &Arc::new(ExtentSpace::new(EXTENT_BYTES));
        space.begin((7, 1), &[]);
        let client = ExtentClient::<_, Small>::new(fabric.clone(), space, 64 * EXTENT_BYTES);
        let words = vec![7; EXTENT_BYTES as usize / 8];
        // One table on each server, in turn.
        for server in 0..2 {
            let mut writer = client.writer();
            writer.append(&words).await.unwrap();
            let lease = writer.finish().await.unwrap();
            assert_eq!(lease.place().server().number(), server);
        }
        fabric.sleep(CUT.start.saturating_sub(fabric.now_ns())).await;
        let (mut alive, mut dead) = (client.writer(), client.writer());
        alive.append(&words).await.unwrap();
        dead.append(&words).await.unwrap();
        drop(alive);
        drop(dead);
        assert_eq!((space.usage().leased, space.usage().lost), (2, 0));
        let settled = client.settle().await;
        assert!(matches!(settled, Err(RemoteError::Indeterminate(_))), "{settled:?}");
        assert_eq!(space.usage().leased, 1, "the extent on the other server came back");
        let table = spent(&fabric, async {
            let mut writer = client.writer();
            writer.append(&words.repeat(20)).await.unwrap();
            assert_eq!(writer.finish().await.unwrap().place().server().number(), 0);
        });
        assert_eq!(table.await.indeterminate, 0, "the dead server is left alone for a while");
        fabric.sleep(CUT.end - fabric.now_ns()).await;
        client.settle().await.unwrap();
        assert_eq!((space.usage().leased, space.usage().lost), (0, 0));
    });
}

/// A writer that waited for room once kept the version that it had seen, so the compaction that
/// made room freed nothing: in a small pool, the next one found no memory.
#[test]
fn waiting_writers_keep_no_tables() {
    let provider = &sim(SimConfig::default());
    let few = DlsmOptions { most_immutables: 1, level0_stop: 3, ..options() };
    let setup = setup(provider, few);
    let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
    let is_merging = &AtomicBool::new(false);
    let ended = cluster.run(&[0, 1], async |fabric, number| {
        let index = open(&fabric, tree).await;
        if number == 0 {
            for number in 0..6_000 {
                index.upsert(&key(number * 7 % 6_001), &[7; 100]).await.unwrap();
            }
            index.flush().await.unwrap();
            is_merging.store(true, Ordering::Release);
            index.collect().await.unwrap();
            // The writer has not run since the compaction has ended.
            let (tables, usage) = (tree.tables(), tree.extents());
            assert!(tree.levels()[0].0 > 0, "the writer has filled level 0: {:?}", tree.levels());
            let used: u64 = tables.iter().map(|table| table.extents.len() as u64).sum();
            assert_eq!(usage.leased, used, "{usage:?}");
            is_merging.store(false, Ordering::Release);
            return;
        }
        while !is_merging.load(Ordering::Acquire) {
            fabric.sleep(1_000).await;
        }
        let mut written = 0;
        while is_merging.load(Ordering::Acquire) {
            index.upsert(&key(10_000 + written), &[7; 100]).await.unwrap();
            written += 1;
        }
    });
    assert!(ended.iter().all(Option::is_some));
}

/// Runs `clients` beside `workers` that flush and merge in the background, on a slow network, until
/// the clients have ended.
pub(super) fn beside_workers(
    setup: &SuiteSetup<'_, AnyProvider, DlsmOptions>,
    tree: &Arc<LsmShard>,
    workers: usize,
    clients: &[u16],
    body: impl AsyncFn(&AnyFabric, usize) + Sync,
) {
    let cluster = setup.with_index::<Small, Dlsm>();
    let (active, ready) = (&AtomicU64::new(clients.len() as u64), &AtomicU64::new(0));
    let mut endpoints = clients.to_vec();
    endpoints.resize(clients.len() + workers, 0);
    let ran = cluster.run(&endpoints, async |fabric, number| {
        if number < clients.len() {
            while ready.load(Ordering::Acquire) < workers as u64 {
                fabric.sleep(1_000).await;
            }
            body(&fabric, number).await;
            active.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let index = open(&fabric, tree).await;
        let first = AtomicBool::new(true);
        let ended = || {
            if first.swap(false, Ordering::AcqRel) {
                ready.fetch_add(1, Ordering::AcqRel);
            }
            active.load(Ordering::Acquire) == 0
        };
        index.background(Background::WriteBack, &ended, &|_| {}).await.unwrap();
    });
    assert!(ran.iter().all(Option::is_some));
}

/// With background tasks, writers neither READ nor WRITE, and are woken when there is room.
#[test]
fn background_tasks_flush_and_merge_for_writers() {
    for (provider, workers) in [(sim(SimConfig::default()), 1), (local(LocalConfig::default()), 2)]
    {
        let setup = setup(&provider, DlsmOptions { most_immutables: 1, ..options() });
        let tree = &compute(&setup.options);
        beside_workers(&setup, tree, workers, &[1, 1], async |fabric, client| {
            let index = open(fabric, tree).await;
            let cost = spent(fabric, async {
                for number in 0..5_000_u64 {
                    let key = key(2 * (number * 7 % 700) + client as u64);
                    index.upsert(&key, &number.to_be_bytes()).await.unwrap();
                }
            });
            let cost = cost.await;
            assert_eq!((cost.reads, cost.writes, cost.rpcs), (0, 0, 0), "client {client}");
        });
        let counts = tree.counts();
        assert!(counts.flushes > 10 && counts.merges > 3, "{counts:?}");
        check_extents(tree);
    }
}

/// A pool that is full ends writes with its error, although background tasks meet it first.
#[test]
fn background_tasks_let_writers_know_of_a_full_pool() {
    let provider = &sim(SimConfig::default());
    let server = MemoryServerConfig { pool_bytes: 1 << 20, ..Default::default() };
    let setup = SuiteSetup { memory_servers: 1, server, ..setup(provider, options()) };
    let tree = &compute(&setup.options);
    beside_workers(&setup, tree, 1, &[1], async |fabric, _| {
        let index = open(fabric, tree).await;
        let mut written = 0;
        let error = loop {
            match index.upsert(&key(written), &[7; 400]).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, IndexError::OutOfMemory { .. }), "{error}");
        assert!(written > 800, "{written}");
        for number in 0..written {
            assert_eq!(index.get(&key(number)).await.unwrap(), Some(vec![7; 400]));
        }
    });
}

/// Merges that run together need more memory than one. In a pool that is hardly larger than one at
/// a time needs, several once ended writes with its error. The test has one schedule of each pool.
#[test]
fn several_merges_fit_where_one_does() {
    let fits = |workers, pool_bytes| {
        let provider = &sim(SimConfig::default());
        let server = MemoryServerConfig { pool_bytes, ..Default::default() };
        let setup = setup(provider, DlsmOptions { workers, ..options() });
        let setup = SuiteSetup { memory_servers: 1, server, ..setup };
        let tree = &compute(&setup.options);
        let ended = &AtomicBool::new(true);
        beside_workers(&setup, tree, 1, &[1], async |fabric, _| {
            let index = open(fabric, tree).await;
            for number in 0..4_000 {
                match index.upsert(&key(number * 7 % 501), &[7; 400]).await {
                    Err(IndexError::OutOfMemory { .. }) => {
                        return ended.store(false, Ordering::Release);
                    }
                    written => written.unwrap(),
                }
            }
        });
        ended.load(Ordering::Acquire)
    };
    let least = (4..200).map(|times| times << 16).find(|bytes| fits(1, *bytes)).unwrap();
    assert!(least > 4 << 16, "one merge fits in the smallest pool");
    assert!(fits(4, least + (1 << 16)), "several merges do not fit in {least} bytes and 64 KiB");
}

/// A merge once kept all others from flushing, so that writers waited for it.
#[test]
fn a_long_merge_does_not_stop_flushes() {
    let provider = &sim(SimConfig::default());
    let setup = setup(provider, DlsmOptions { most_immutables: 1, ..options() });
    let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
    let is_merging = &AtomicBool::new(false);
    let flushes = cluster.run(&[0, 1], async |fabric, number| {
        let index = open(&fabric, tree).await;
        if number == 0 {
            for number in 0..6_000 {
                index.upsert(&key(number * 7 % 6_001), &[7; 100]).await.unwrap();
            }
            index.flush().await.unwrap();
            let before = tree.counts().flushes;
            is_merging.store(true, Ordering::Release);
            index.collect().await.unwrap();
            is_merging.store(false, Ordering::Release);
            return tree.counts().flushes - before;
        }
        while !is_merging.load(Ordering::Acquire) {
            fabric.sleep(1_000).await;
        }
        let mut written = 0;
        while is_merging.load(Ordering::Acquire) {
            index.upsert(&key(10_000 + written), &[7; 100]).await.unwrap();
            written += 1;
        }
        written
    });
    let [Some(flushes), Some(written)] = flushes[..] else { panic!("both end") };
    assert!(flushes >= 3 && written > 300, "{flushes} flushes of {written} records");
}
