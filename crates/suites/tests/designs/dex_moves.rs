//! What moving keys and adding memory servers guarantee beyond correctness, which the simulator's
//! scenarios check: how long a move takes in simulated time, which operations it disturbs, and
//! where new nodes go.

use farleaf_dex::cache::{AdmissionName, CacheOptions};
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::{Cluster, Provider, ServerId};
use farleaf_index::{Design, IndexError, RangeIndex, ScanRequest};
use farleaf_page::Fixed8;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_suites::conformance::SuiteSetup;
use std::sync::Arc;

/// Half of a compute server's cache, all of it dirty, moves to a new server. With 64 WRITEs in
/// flight of about 2.5 µs each, 26 frames can be written per microsecond: 16 MiB take less than a
/// millisecond, and 256 MiB far less than a second.
#[test]
fn sixteen_mebibytes_of_dirty_pages_move_in_milliseconds() {
    const CACHE: u64 = 16 << 20;
    const KEYS: u64 = 550_000;
    let provider = SimConfig::default();
    // Every leaf that is fetched stays in the cache, so that it can be changed there.
    let admission = AdmissionName::Hot;
    let cache = CacheOptions { bytes: CACHE, admission, ..CacheOptions::default() };
    let options = DexOptions {
        spare_compute_servers: 1,
        placement_level: 1,
        ..DexOptions::with_boundaries(vec![], cache)
    };
    let server = MemoryServerConfig { pool_bytes: 32 << 20, ..Default::default() };
    let setup =
        SuiteSetup { provider: &provider, options: options.clone(), memory_servers: 2, server };
    let cluster = setup.with_index::<Fixed8, Dex>();
    let pool = <Dex as Design<Fixed8>>::compute(&options).unwrap();
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = <Dex as Design<Fixed8>>::open(fabric.clone(), pool).await.unwrap();
        index.bulk_load((0..KEYS).map(|key| (key, key)), 0.7).await.unwrap();
        // One key of each leaf, twice: the first update fetches the leaf.
        for value in 0..2 {
            for key in (0..KEYS).step_by(42) {
                assert!(index.update(&key, &value).await.unwrap());
            }
        }
        let near = KEYS / 2;
        let moved = index.move_keys(0, 1, Some(&near)).await.unwrap();
        assert!(moved.writes > 5_000, "what moves is dirty: {moved:?}");
        // Simulated time, which is the same on every machine.
        assert!(moved.took_ns < 20_000_000, "{moved:?}");
        for key in (0..KEYS).step_by(4_200) {
            assert_eq!(index.get(&key).await.unwrap(), Some(1), "{key}");
        }
    });
}

fn services(count: u16, pool_bytes: usize) -> Vec<Arc<MemoryServer<Fixed8<16>>>> {
    let config = MemoryServerConfig { pool_bytes, chunk_bytes: 1 << 14, ..Default::default() };
    let server = |number| Arc::new(MemoryServer::new(ServerId::new(number), &config).unwrap());
    (0..count).map(server).collect()
}

/// The allocated fraction of each memory server's pool.
fn used(services: &[Arc<MemoryServer<Fixed8<16>>>]) -> Vec<f64> {
    services.iter().map(|service| service.usage().used_part()).collect()
}

/// A spare memory server gets no nodes. Once it is added, it gets nodes that would otherwise go to
/// a nearly full server, before that server is full.
#[test]
fn new_nodes_go_to_a_memory_server_that_was_added() {
    let provider = LocalConfig::default();
    let services = services(3, 4 << 20);
    let options = DexOptions {
        spare_memory_servers: 1,
        // With four entries per node, a lower level would leave many nodes above it, and those are
        // distributed over all servers.
        placement_level: 4,
        chunk_nodes_log2: 3,
        ..DexOptions::with_boundaries(vec![], CacheOptions { bytes: 1 << 20, ..Default::default() })
    };
    let cluster = provider.start(services.clone());
    let options = &options;
    cluster.run_one(|fabric| async move {
        <Dex as Design<Fixed8<16>>>::create(&fabric, options).await.unwrap();
    });
    let pool = <Dex as Design<Fixed8<16>>>::compute(options).unwrap();
    let (pool, services) = (&pool, &services);
    cluster.run_one(|fabric| async move {
        let index = <Dex as Design<Fixed8<16>>>::open(fabric.clone(), pool).await.unwrap();
        // Only this endpoint's log is stored there.
        let empty = used(services)[2];
        let mut number = 0_u64;
        let insert_until = async |number: &mut u64, enough: &dyn Fn(&[f64]) -> bool| {
            while !enough(&used(services)) {
                let key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                match index.insert(&key, &key).await {
                    Ok(true) => *number += 1,
                    Err(IndexError::OutOfMemory { .. }) => return false,
                    other => panic!("{other:?}"),
                }
            }
            true
        };
        assert!(insert_until(&mut number, &|used| used[0].min(used[1]) > 0.7).await);
        let before = used(services);
        assert_eq!(before[2], empty, "it is not used yet: {before:?}");
        assert!(
            before[0].max(before[1]) < 0.99,
            "they are spared before they are full: {before:?}"
        );
        index.add_memory_server().unwrap();
        assert!(matches!(index.add_memory_server(), Err(IndexError::InvalidArgument(_))));
        assert!(insert_until(&mut number, &|used| used[2] > 0.5).await, "there is room");
        let after = used(services);
        assert!(after[0].max(after[1]) < 0.99, "they are spared before they are full: {after:?}");
        // All records are still there and can be found.
        let records = index.scan(&ScanRequest::range(..)).await.unwrap();
        assert_eq!(records.len() as u64, number);
        for number in (0..number).step_by(97) {
            let key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            assert_eq!(index.get(&key).await.unwrap(), Some(key));
        }
    });
}
