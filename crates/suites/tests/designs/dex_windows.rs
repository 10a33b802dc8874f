//! What DEX asks its memory servers for when a lookup misses a leaf that it knows. Counts are
//! exact: the local fabric completes at once, and there is only one client.

use super::clients::{setup, spent};
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::{Cluster, CounterSnapshot, Fabric};
use farleaf_index::{Design, Exchange, IndexAdmin, RangeIndex};
use farleaf_page::Fixed8;
use std::collections::BTreeMap;

/// A leaf without word 0, and a window of eight records, in bytes.
const LEAF: u64 = 1_016;
const WINDOW: u64 = 128;
const KEYS: u64 = 60_000;
/// Records of a leaf after the bulk load.
const PER_LEAF: u64 = 42;

/// 256 frames, and outlines for 2,048 leaves.
fn options(outlines_percent: u32) -> DexOptions<u64> {
    let bytes = if outlines_percent == 0 { 256 << 10 } else { 288 << 10 };
    let cache = CacheOptions {
        bytes,
        outlines_percent,
        outlines_soon_percent: 1,
        ..CacheOptions::default()
    };
    DexOptions::with_boundaries(vec![], cache)
}

/// READs and bytes of lookups, each of which is compared with the record.
async fn lookups<F: Fabric, I: RangeIndex<Key = u64, Value = u64>>(
    fabric: &F,
    index: &I,
    keys: impl Iterator<Item = u64>,
    what: impl Fn(u64) -> Option<u64>,
) -> Vec<(u64, u64)> {
    let mut costs = Vec::new();
    for key in keys {
        let get = async { assert_eq!(index.get(&key).await, Ok(what(key)), "get {key}") };
        let cost = spent(fabric, get).await;
        assert_eq!((cost.writes, cost.atomics, cost.rpcs), (0, 0, 0));
        costs.push((cost.reads, cost.bytes_read));
    }
    costs
}

/// All keys once, never two of one leaf soon after each other.
fn scattered() -> impl Iterator<Item = u64> {
    (0..PER_LEAF).flat_map(|offset| (0..KEYS).skip(offset as usize).step_by(PER_LEAF as usize))
}

#[test]
fn a_known_leaf_is_missed_for_one_window() {
    let provider = LocalConfig::default();
    for (outlines_percent, is_on) in [(0, false), (12, true)] {
        let options = options(outlines_percent);
        let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
        let pool = <Dex as Design<Fixed8>>::compute(&options).unwrap();
        let pool = &pool;
        cluster.run_one(|fabric| async move {
            let index = <Dex as Design<Fixed8>>::open(fabric.clone(), pool).await.unwrap();
            index.bulk_load((0..KEYS).map(|n| (n * 2, n)), 0.7).await.unwrap();
            let value = |key: u64| key.is_multiple_of(2).then_some(key / 2);
            // Nothing is known of a leaf before it was READ.
            let first = (0..KEYS).step_by(PER_LEAF as usize).map(|key| key * 2);
            for cost in lookups(&fabric, &index, first, value).await {
                assert!(cost.0 <= 2 && cost.1 <= cost.0 * 1_024, "{cost:?}");
            }
            let costs = lookups(&fabric, &index, scattered().map(|key| key * 2), value).await;
            let misses: Vec<u64> =
                costs.iter().filter(|cost| **cost != (0, 0)).map(|cost| cost.1).collect();
            assert!(misses.len() as u64 > KEYS / 2, "few leaves fit into the cache");
            let windows = misses.iter().filter(|bytes| **bytes <= WINDOW).count();
            let counters = index.cache_counters();
            if !is_on {
                assert_eq!((windows, counters.leaf_windows), (0, 0));
                assert!(misses.iter().all(|bytes| *bytes >= LEAF));
                return;
            }
            // One leaf in sixteen is READ whole, some lookups READ two windows at once.
            assert!(windows * 10 > misses.len() * 8, "{windows} of {}", misses.len());
            assert!(counters.leaf_windows as usize >= windows, "{counters:?}");
            let all: u64 = misses.iter().sum();
            assert!(all < misses.len() as u64 * 240, "{all} bytes for {} misses", misses.len());
            let reads: u64 = costs.iter().map(|cost| cost.0).sum();
            assert!(reads <= misses.len() as u64 * 101 / 100, "{reads} READs");
            // Most absent keys lie between two records of one window; for others the leaf is READ.
            let absent = lookups(&fabric, &index, scattered().map(|key| key * 2 + 1), value).await;
            assert!(absent.iter().all(|cost| cost.0 <= 2), "a window, and then the leaf");
            let once = absent.iter().filter(|cost| cost.1 <= 2 * WINDOW).count();
            assert!(once as u64 * 10 > KEYS * 7, "{once}");
        });
    }
}

#[test]
fn a_leaf_that_changes_is_known_again_when_it_leaves() {
    let provider = LocalConfig::default();
    let options = options(12);
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool = <Dex as Design<Fixed8>>::compute(&options).unwrap();
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = <Dex as Design<Fixed8>>::open(fabric.clone(), pool).await.unwrap();
        index.bulk_load((0..KEYS).map(|n| (n * 2, n)), 0.7).await.unwrap();
        let mut model: BTreeMap<u64, u64> = (0..KEYS).map(|n| (n * 2, n)).collect();
        for round in 1..4_u64 {
            // A record more, one less, and another value, in leaves that are far apart.
            for key in (0..KEYS).step_by(PER_LEAF as usize * 3).map(|key| key * 2) {
                let (more, less, other) =
                    (key + 4 * round + 1, key + 8 * round, key + 2 + 2 * round);
                assert_eq!(index.insert(&more, &round).await, Ok(true));
                model.insert(more, round);
                assert_eq!(index.remove(&less).await, Ok(model.remove(&less).is_some()));
                let held = model.get_mut(&other);
                assert_eq!(index.update(&other, &(round << 32)).await, Ok(held.is_some()));
                if let Some(held) = held {
                    *held = round << 32;
                }
            }
            // Never two keys of one leaf soon after each other: then whole leaves would be better.
            for key in scattered().map(|n| n * 2).chain(scattered().map(|n| n * 2 + 1)) {
                assert_eq!(index.get(&key).await, Ok(model.get(&key).copied()), "get {key}");
            }
        }
        assert!(index.cache_counters().leaf_windows > 10_000, "{:?}", index.cache_counters());
    });
}

/// A new value of a record whose leaf is not in a frame is a window and a word. Everything else
/// READs the leaf.
#[test]
fn a_new_value_is_one_word() {
    let provider = LocalConfig::default();
    let options = options(12);
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool = <Dex as Design<Fixed8>>::compute(&options).unwrap();
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = <Dex as Design<Fixed8>>::open(fabric.clone(), pool).await.unwrap();
        index.bulk_load((0..KEYS).map(|n| (n * 2, n)), 0.7).await.unwrap();
        let first = || (0..KEYS - PER_LEAF).step_by(PER_LEAF as usize).map(|key| key * 2);
        for key in first() {
            assert_eq!(index.get(&key).await, Ok(Some(key / 2)));
        }
        let (mut words, mut others) = (0, 0);
        let mut check = |cost: CounterSnapshot, is_word: bool| match cost.bytes_written {
            8 if cost.bytes_read <= 2 * WINDOW => {
                assert_eq!((cost.reads, cost.writes, cost.atomics, cost.rpcs), (1, 1, 0, 0));
                assert!(is_word);
                words += 1;
            }
            _ => others += 1,
        };
        for key in first().map(|key| key + 20) {
            let update = async { assert_eq!(index.update(&key, &(key + 1)).await, Ok(true)) };
            check(spent(&fabric, update).await, true);
        }
        for key in first().map(|key| key + 40) {
            let exchange = async {
                let differs = Ok(Exchange::Differs(Some(key / 2)));
                assert_eq!(index.compare_exchange(&key, &7, &8).await, differs);
            };
            let cost = spent(&fabric, exchange).await;
            // A changed leaf in a frame may have to leave it.
            assert_eq!((cost.atomics, cost.rpcs), (0, 0));
            let exchange = async {
                let done = Ok(Exchange::Exchanged);
                assert_eq!(index.compare_exchange(&key, &(key / 2), &(key + 3)).await, done);
            };
            check(spent(&fabric, exchange).await, true);
        }
        // A record that comes or goes shifts others.
        for key in first().map(|key| key + 60) {
            let insert = async { assert_eq!(index.insert(&(key + 1), &9).await, Ok(true)) };
            check(spent(&fabric, insert).await, false);
            let remove = async { assert_eq!(index.remove(&key).await, Ok(true)) };
            check(spent(&fabric, remove).await, false);
        }
        // Not those in frames, and not most exchanges: their leaf is missed for the second time.
        assert!(words * 10 > KEYS / PER_LEAF * 6, "{words} words, {others} others");
        for key in first() {
            assert_eq!(index.get(&(key + 20)).await, Ok(Some(key + 21)));
            assert_eq!(index.get(&(key + 40)).await, Ok(Some(key + 43)));
            assert_eq!(index.get(&(key + 60)).await, Ok(None));
            assert_eq!(index.get(&(key + 61)).await, Ok(Some(9)));
        }
    });
}
