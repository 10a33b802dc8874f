//! A DEX bulk load beside threads that work in the background.

use farleaf_dex::cache::{CacheOptions, FrameId};
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{Design, RangeIndex, ScanRequest};
use farleaf_page::Fixed8;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::SuiteSetup;
use std::cell::Cell;

/// A thread that writes back by age latches a node for a moment. If a compute server dropped its
/// copies of the former tree at that moment, the load failed after it had replaced the tree, and
/// then freed the new tree's nodes.
#[test]
fn a_latch_held_for_a_moment_does_not_undo_a_load() {
    const RECORDS: u64 = 2_000;
    for phase in 0..40_u64 {
        let provider = LocalConfig { network_latency_ns: 20_000, ..LocalConfig::default() };
        let options = DexOptions::with_boundaries(vec![], CacheOptions::default());
        let server = MemoryServerConfig { pool_bytes: 8 << 20, ..Default::default() };
        let setup =
            SuiteSetup { provider: &provider, options: options.clone(), memory_servers: 1, server };
        let cluster = setup.with_index::<Fixed8, Dex>();
        let pool = <Dex as Design<Fixed8>>::compute(&options).unwrap();
        let pool = &pool;
        cluster.run_one(|fabric| async move {
            let index = <Dex as Design<Fixed8>>::open(fabric.clone(), pool).await.unwrap();
            assert_eq!(index.get(&5).await, Ok(None), "the empty leaf is cached");
            let has_ended = Cell::new(false);
            let load = async {
                let loaded = index.bulk_load((0..RECORDS).map(|key| (key, key)), 0.7).await;
                has_ended.set(true);
                loaded
            };
            let latches = async {
                let cache = index.part(0).server().cache();
                fabric.sleep(phase * 3_000).await;
                while !has_ended.get() {
                    let latched: Vec<_> = (0..4)
                        .filter_map(|frame| cache.seen(FrameId::new(frame))?.lock())
                        .collect();
                    fabric.sleep(60_000).await;
                    drop(latched);
                    fabric.sleep(60_000).await;
                }
            };
            let (loaded, ()) = futures_util::future::join(load, latches).await;
            assert_eq!(loaded, Ok(RECORDS), "phase {phase}");
            for key in RECORDS..2 * RECORDS {
                index.insert(&key, &key).await.unwrap();
            }
            let expected: Vec<_> = (0..2 * RECORDS).map(|key| (key, key)).collect();
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), expected);
        });
    }
}
