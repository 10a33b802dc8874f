//! What a scan of the head of a queue costs.
//!
//! The story: after 100,000 insertions and 99,900 removals at the low end, a scan of one record
//! READ all of the leaves that the queue had left behind: 3,300 to 5,400. And ever-new keys ran out
//! of memory, unless a client collected.

use super::clients::{setup, spent};
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::{Cluster, CounterSnapshot, Fabric};
use farleaf_index::{Design, IndexAdmin, RangeIndex, ScanRequest};
use farleaf_page::Fixed8;
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};

fn fine() -> FineOptions {
    FineOptions { chunk_nodes_log2: 2, ..FineOptions::default() }
}

fn hybrid() -> HybridOptions<u64> {
    HybridOptions { chunk_nodes_log2: 2, ..HybridOptions::with_boundaries(vec![]) }
}

fn dex() -> DexOptions<u64> {
    let cache = CacheOptions { bytes: 4 << 20, ..CacheOptions::default() };
    DexOptions { chunk_nodes_log2: 2, ..DexOptions::with_boundaries(vec![], cache) }
}

fn coarse() -> CoarseOptions<u64> {
    CoarseOptions { partitioning: Partitioning::Range { boundaries: vec![] } }
}

/// What a scan of one record costs.
async fn head<F: Fabric>(
    fabric: &F,
    index: &impl RangeIndex<Key = u64, Value = u64>,
    first: u64,
) -> CounterSnapshot {
    let scan = ScanRequest { limit: 1, ..ScanRequest::range(..) };
    let cost = spent(fabric, async {
        assert_eq!(index.scan(&scan).await.unwrap(), [(first, first)]);
    });
    cost.await
}

const KEPT: u64 = 100;
const QUEUE: u64 = 30_000;

/// A queue of the ascending keys, whose head goes on, and for designs that free nodes, for ever.
fn queue<D: Design<Fixed8>>(options: D::Options)
where
    D::Options: Sync,
{
    let provider = LocalConfig::default();
    let setup = setup(&provider, 1, 24 << 20, options);
    let cluster = setup.with_index::<Fixed8, D>();
    let compute = &D::compute(&setup.options).unwrap();
    let nodes = || cluster.services().map(|server| server.nodes().0).sum::<u64>();
    cluster.run_one(|fabric| async move {
        let index = D::open(fabric.clone(), compute).await.unwrap();
        for key in 0..QUEUE {
            index.insert(&key, &key).await.unwrap();
        }
        let full = nodes();
        for key in 0..QUEUE - KEPT {
            assert_eq!(index.remove(&key).await, Ok(true));
        }
        let others = D::open(fabric.clone(), compute).await.unwrap();
        for handle in [&index, &others] {
            // The first scan may have to learn what has changed.
            head(&fabric, handle, QUEUE - KEPT).await;
            let cost = head(&fabric, handle, QUEUE - KEPT).await;
            println!("{}: {} READs of {} bytes", D::NAME, cost.reads, cost.bytes_read);
            assert!(cost.reads <= 20 && cost.bytes_read <= 64 << 10, "{}: {cost:?}", D::NAME);
        }
        for key in [5, QUEUE / 2, QUEUE - KEPT - 1] {
            assert_eq!(index.get(&key).await, Ok(None));
            assert_eq!(others.insert(&key, &key).await, Ok(true));
            assert_eq!(index.get(&key).await, Ok(Some(key)));
            assert_eq!(index.remove(&key).await, Ok(true));
        }
        let kept = index.scan(&ScanRequest::range(..)).await.unwrap();
        let reverse = ScanRequest { reverse: true, ..ScanRequest::range(..) };
        let mut backwards = others.scan(&reverse).await.unwrap();
        backwards.reverse();
        assert_eq!((kept.len() as u64, &backwards), (KEPT, &kept));
        // Ever new keys, and as many records as before.
        for key in QUEUE..4 * QUEUE {
            assert_eq!(index.insert(&key, &key).await, Ok(true));
            assert_eq!(others.remove(&(key - KEPT)).await, Ok(true));
        }
        assert!(nodes() <= full + 1_100, "{}: {} after {full}", D::NAME, nodes());
        let cost = head(&fabric, &index, 4 * QUEUE - KEPT).await;
        assert!(cost.reads <= 20, "{}: {cost:?}", D::NAME);
        index.collect().await.unwrap();
    });
}

#[test]
fn the_head_of_a_queue_is_near() {
    queue::<Coarse>(coarse());
    queue::<Dex>(dex());
    queue::<Fine>(fine());
    queue::<Hybrid>(hybrid());
}
