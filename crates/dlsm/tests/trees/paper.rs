//! What dLSM costs at the paper's shape, 1:100: 1 M records of 20 and 400 bytes, MemTables and
//! tables of 640 KiB. `dlsm.rs` asserts the same of 20,000 records, which have fewer levels. This
//! takes minutes, so it runs on demand:
//!
//! `cargo test -p farleaf-suites --test bytes -- --ignored --nocapture papers_shape`

use super::tree::{compute, paper, setup, value};
use farleaf_dlsm::{CompactionPlace, Dlsm, DlsmOptions, LsmShard};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{Design, RangeIndex};
use farleaf_page::Bytes;
use farleaf_page::table::IndexKind;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::providers::local;
use farleaf_suites::providers::spent;
use std::ops::RangeInclusive;

type Small = Bytes<128>;

const RECORDS: u64 = 1_000_000;
const RAW_BYTES: u64 = 420 * RECORDS;
/// Each READ of a lookup is one record.
const RECORD_BYTES: u64 = 440;
/// One in this many keys is looked up.
const LOOKED_UP: u64 = 5;

/// A key of 20 bytes, in an order that is not that of `number`. Absent keys lie between those that
/// are there.
fn key(number: u64, is_absent: bool) -> Vec<u8> {
    format!("{:019}{}", number * 7_919 % 1_000_003, u8::from(is_absent)).into_bytes()
}

/// READs of a lookup of a key that is there, and of one that is not.
async fn lookups<F: Fabric>(
    fabric: &F,
    index: &impl RangeIndex<Key = [u8], Value = [u8]>,
    records: u64,
) -> (f64, f64) {
    let mut reads = [0.0; 2];
    for (is_absent, reads) in [false, true].into_iter().zip(&mut reads) {
        let numbers = (0..records).step_by(LOOKED_UP as usize);
        let count = numbers.clone().count();
        let cost = spent(fabric, async {
            for number in numbers {
                let expected = (!is_absent).then(|| value(number));
                assert_eq!(index.get(&key(number, is_absent)).await.unwrap(), expected);
            }
        });
        let cost = cost.await;
        assert_eq!(cost.bytes_read, cost.reads * RECORD_BYTES);
        assert_eq!((cost.writes, cost.rpcs, cost.atomics), (0, 0, 0));
        *reads = cost.reads as f64 / count as f64;
    }
    (reads[0], reads[1])
}

/// Changes records until a compaction has emptied level 0: how many tables it has at the end of a
/// fill is chance, and each of them costs lookups false positives.
async fn empty_level0(tree: &LsmShard, index: &impl RangeIndex<Key = [u8], Value = [u8]>) {
    let mut number = 0;
    while tree.levels()[0].0 > 0 {
        for _ in 0..200 {
            index.upsert(&key(number, false), &value(number)).await.unwrap();
            number += 1;
        }
        index.flush().await.unwrap();
        assert!(number <= 10_000, "no merge of {:?}", tree.levels());
    }
}

/// The most that each index may cost.
struct Most {
    index: IndexKind,
    /// READs of a lookup of a key that is there, and of one that is not; with 20 tables in level 0.
    reads: (f64, f64),
    in_level0: f64,
    /// For each upsert: bytes flushed, and bytes that merges move, on either side.
    flushed: f64,
    merged: RangeInclusive<f64>,
    merged_near: f64,
    /// Bytes of indexes on the compute server, for each record.
    index_bytes: f64,
}

const BOTH: [Most; 2] = [
    Most {
        index: IndexKind::Compact,
        reads: (1.01, 0.016),
        in_level0: 1.1,
        flushed: 445.0,
        merged: 5_000.0..=15_000.0,
        merged_near: 95.0,
        index_bytes: 6.0,
    },
    Most {
        index: IndexKind::Full { bloom_bits: 10 },
        reads: (1.02, 0.034),
        in_level0: 1.2,
        flushed: 484.0,
        merged: 5_000.0..=16_000.0,
        merged_near: 720.0,
        index_bytes: 44.0,
    },
];

#[test]
#[ignore = "takes minutes"]
fn the_papers_shape() {
    let provider = &local(LocalConfig::default());
    let server = || MemoryServerConfig { pool_bytes: 2 << 30, ..Default::default() };
    for most in &BOTH {
        for merges in [CompactionPlace::Compute, CompactionPlace::Memory] {
            let options = DlsmOptions { index: most.index, merges, ..paper() };
            let setup = farleaf_suites::conformance::SuiteSetup {
                server: server(),
                memory_servers: 1,
                ..setup(provider, options)
            };
            let cluster = setup.with_index::<Small, Dlsm>();
            let tree = &compute(&setup.options);
            cluster.run_one(|fabric| async move {
                let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
                let cost = spent(&fabric, async {
                    for number in 0..RECORDS {
                        index.upsert(&key(number, false), &value(number)).await.unwrap();
                    }
                    index.flush().await.unwrap();
                });
                let (cost, counts) = (cost.await, tree.counts());
                let each = |bytes: u64| bytes as f64 / RECORDS as f64;
                let flushed = each(counts.flushed_bytes);
                let moved = cost.bytes_read + cost.bytes_written - counts.flushed_bytes;
                let left = tree.levels()[0].0;
                let unsettled = lookups(&fabric, &index, RECORDS).await;
                empty_level0(tree, &index).await;
                let (present, absent) = lookups(&fabric, &index, RECORDS).await;
                let (_, index_bytes) = tree.local_bytes();
                println!(
                    "{:?}, {left} tables in level 0: {:.4}, {:.4}",
                    most.index, unsettled.0, unsettled.1
                );
                println!(
                    "{:?}, merges on {merges:?}: {present:.4} READs, {absent:.4} if absent; an upsert \
                     flushes {flushed:.1} bytes, and merges move {:.0} (RPCs: {:.4}); {:.2} bytes of \
                     indexes a record; {counts:?}; levels {:?}",
                    most.index,
                    each(moved),
                    each(cost.rpcs),
                    each(index_bytes),
                    tree.levels(),
                );
                assert!((1.0..=most.reads.0).contains(&present) && absent <= most.reads.1);
                assert!((440.0..=most.flushed).contains(&flushed));
                match merges {
                    CompactionPlace::Memory => assert!(each(moved) <= most.merged_near),
                    _ => assert!(most.merged.contains(&each(moved))),
                }
                assert!(each(index_bytes) <= most.index_bytes);
            });
        }
        let options = DlsmOptions { level0_tables: 100, level0_stop: 100, ..paper() };
        let setup = setup(provider, DlsmOptions { index: most.index, ..options });
        let cluster = setup.with_index::<Small, Dlsm>();
        let tree = &compute(&setup.options);
        cluster.run_one(|fabric| async move {
            let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
            let mut written = 0;
            while tree.levels()[0].0 < 20 {
                index.upsert(&key(written, false), &value(written)).await.unwrap();
                written += 1;
            }
            index.flush().await.unwrap();
            let (present, absent) = lookups(&fabric, &index, written).await;
            let tables = tree.levels()[0].0;
            println!("{:?}: {tables} tables in level 0: {present:.4}, {absent:.4}", most.index);
            assert!((1.0..=most.in_level0).contains(&present));
        });
    }
    // With the usual extents, of which a table has many, a record may lie in two: two READs.
    for is_loaded in [false, true] {
        let setup = farleaf_suites::conformance::SuiteSetup {
            server: server(),
            memory_servers: 1,
            ..setup(provider, DlsmOptions::with_table_bytes(640 << 10))
        };
        let cluster = setup.with_index::<Small, Dlsm>();
        let (tree, extent_bytes) = (&compute(&setup.options), setup.options.extent_bytes);
        cluster.run_one(|fabric| async move {
            let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
            let mut numbers: Vec<_> = (0..RECORDS).collect();
            if is_loaded {
                numbers.sort_by_cached_key(|number| key(*number, false));
                let records = numbers.into_iter().map(|one| (key(one, false), value(one)));
                assert_eq!(index.bulk_load(records, 1.0).await, Ok(RECORDS));
            } else {
                for number in numbers {
                    index.upsert(&key(number, false), &value(number)).await.unwrap();
                }
                index.flush().await.unwrap();
                empty_level0(tree, &index).await;
            }
            let mut records = [0.0; 2];
            for (is_absent, records) in [false, true].into_iter().zip(&mut records) {
                let numbers = (0..RECORDS).step_by(LOOKED_UP as usize);
                let count = numbers.clone().count() as f64;
                let cost = spent(&fabric, async {
                    for number in numbers {
                        let found = index.get(&key(number, is_absent)).await.unwrap();
                        assert_eq!(found, (!is_absent).then(|| value(number)));
                    }
                });
                *records = cost.await.bytes_read as f64 / RECORD_BYTES as f64 / count;
            }
            let pool = (tree.extents().leased * extent_bytes) as f64 / RAW_BYTES as f64;
            let [present, absent] = records;
            println!(
                "{}: {present:.4} records READ, {absent:.4} if absent; {pool:.3} × their bytes",
                if is_loaded { "after a load" } else { "after a random fill" },
            );
            assert!((1.0..=1.01).contains(&present) && absent <= 0.016);
            assert!((1.0..=1.17).contains(&pool));
        });
    }
}
