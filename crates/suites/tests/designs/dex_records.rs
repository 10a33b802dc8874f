//! Hot records of DEX: what lookups and changes ask of memory servers. Counts are exact: the local
//! fabric completes at once, and there is only one client.

use super::clients::{setup, spent};
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::Cluster;
use farleaf_fabric::local::LocalConfig;
use farleaf_index::{Design, Exchange, IndexAdmin, RangeIndex};
use farleaf_page::Fixed8;

const KEYS: u64 = 60_000;
/// Records of a leaf after the bulk load.
const PER_LEAF: u64 = 42;
/// One key of every leaf, so that no leaf in a frame serves two of them.
const HOT: u64 = KEYS / PER_LEAF;

/// 256 frames, far fewer than [`HOT`] leaves, and some 9,000 records.
fn options() -> DexOptions<u64> {
    let cache = CacheOptions {
        bytes: 512 << 10,
        outlines_percent: 15,
        outlines_soon_percent: 1,
        records_percent: 35,
        ..CacheOptions::default()
    };
    DexOptions::with_boundaries(vec![], cache)
}

fn hot_keys(offset: u64) -> impl Iterator<Item = u64> {
    (0..HOT).map(move |leaf| 2 * (leaf * PER_LEAF + offset))
}

#[test]
fn a_hot_record_is_looked_up_without_its_leaf() {
    let provider = LocalConfig::default();
    let options = options();
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool = <Dex as Design<Fixed8>>::compute(&options).unwrap();
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = <Dex as Design<Fixed8>>::open(fabric.clone(), pool).await.unwrap();
        index.bulk_load((0..KEYS).map(|n| (n * 2, n)), 0.7).await.unwrap();
        for key in hot_keys(0) {
            assert_eq!(index.get(&key).await, Ok(Some(key / 2)));
        }
        // Each record is in the table, whether its leaf is in a frame or not.
        let before = index.cache_counters();
        let again = spent(&fabric, async {
            for key in hot_keys(0) {
                assert_eq!(index.get(&key).await, Ok(Some(key / 2)));
            }
            let keys: Vec<u64> = hot_keys(0).collect();
            let found = index.multi_get(&keys).await.unwrap();
            assert!(found.iter().zip(&keys).all(|(found, key)| *found == Some(key / 2)));
        });
        let cost = again.await;
        let hits = index.cache_counters().record_hits - before.record_hits;
        assert!(hits * 100 > 2 * HOT * 95, "{hits} hits of {}", 2 * HOT);
        assert!(cost.reads * 100 < HOT * 10, "{} READs", cost.reads);

        // A change of a hot record reaches the table with its answer, and costs no more for it.
        let hits = index.cache_counters().record_hits;
        for key in hot_keys(0).step_by(3) {
            let change = spent(&fabric, async {
                assert_eq!(index.update(&key, &(key + 1)).await, Ok(true));
            });
            let cost = change.await;
            // The leaf or its window, and sometimes the node above.
            assert!(cost.reads <= 2 && cost.atomics == 0 && cost.rpcs == 0, "{cost:?}");
            assert_eq!(index.get(&key).await, Ok(Some(key + 1)));
        }
        let hits = index.cache_counters().record_hits - hits;
        assert!(hits * 100 > HOT / 3 * 95, "{hits} hits of changed records");
        for key in hot_keys(0).skip(1).step_by(3) {
            assert_eq!(index.remove(&key).await, Ok(true));
            assert_eq!(index.get(&key).await, Ok(None));
            assert_eq!(index.insert(&key, &7).await, Ok(true));
            assert_eq!(index.get(&key).await, Ok(Some(7)));
            assert_eq!(index.compare_exchange(&key, &6, &8).await, Ok(Exchange::Differs(Some(7))));
            assert_eq!(index.compare_exchange(&key, &7, &8).await, Ok(Exchange::Exchanged));
            assert_eq!(index.get(&key).await, Ok(Some(8)));
        }
    });
}
