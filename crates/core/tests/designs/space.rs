//! Memory by the order of insertions, and what a scan of the head of a queue costs.
//!
//! The stories: records that came in ascending or in descending order took 38.9 bytes each, those
//! that came at random 25.1, because a split at an end of a range left the full leaf half full, for
//! good. So did time series: a few writers that append, each at a place of its own. And after
//! 100,000 inserts and 99,900 removals at the low end, a scan of one record READ all of the leaves
//! that the queue had left behind: 3,300 to 5,400.

use super::clients::{setup, spent};
use farleaf_core::cache::CacheOptions;
use farleaf_core::index::chime::{Chime, ChimeOptions};
use farleaf_core::index::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_core::index::dex::{Dex, DexOptions};
use farleaf_core::index::fine::{Fine, FineOptions};
use farleaf_core::index::hybrid::{Hybrid, HybridOptions};
use farleaf_core::index::sherman::{Sherman, ShermanOptions};
use farleaf_core::index::{Design, IndexAdmin, RangeIndex, Scan};
use farleaf_core::page::Fixed8;
use farleaf_core::server::MemoryServer;
use farleaf_fabric::local::{LocalCluster, LocalConfig};
use farleaf_fabric::{Cluster, CounterSnapshot, Fabric};

/// Keys in one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Random,
    Ascending,
    Descending,
    /// Four writers append in turn, each to a series of its own.
    Series,
}

const RECORDS: u64 = 60_000;

impl Order {
    fn keys(self) -> impl Iterator<Item = u64> {
        (0..RECORDS).map(move |number| match self {
            Self::Random => mixed(number),
            Self::Ascending => 1 + number,
            Self::Descending => u64::MAX - number,
            Self::Series => (number % 4) << 40 | number,
        })
    }
}

/// The finaliser of SplitMix64, a bijection.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

fn page_bytes(cluster: &LocalCluster<MemoryServer<Fixed8>>) -> f64 {
    let nodes = |server: &MemoryServer<Fixed8>| server.nodes().0 * 1024;
    cluster.services().map(|server| nodes(server)).sum::<u64>() as f64
}

/// Bytes of nodes for each record, with chunks of so few nodes that unused ones hardly count.
fn bytes_a_record<D: Design<Fixed8>>(options: D::Options, order: Order) -> f64
where
    D::Options: Sync,
{
    let provider = LocalConfig::default();
    let mut setup = setup(&provider, 1, 16 << 20, options);
    setup.server.chunk_bytes = 4096;
    let cluster = setup.with_index::<Fixed8, D>();
    let compute = &D::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = D::open(fabric, compute).await.unwrap();
        for key in order.keys() {
            assert_eq!(index.insert(&key, &key).await, Ok(true));
        }
        assert_eq!(index.scan(&Scan::range(..)).await.unwrap().len() as u64, RECORDS);
        index.flush().await.unwrap();
    });
    page_bytes(&cluster) / RECORDS as f64
}

/// `most` is for random order, the two ends, and time series.
fn fills<D: Design<Fixed8>>(options: impl Fn() -> D::Options, most: [f64; 3])
where
    D::Options: Sync,
{
    let orders = [Order::Random, Order::Ascending, Order::Descending, Order::Series];
    let found = orders.map(|order| bytes_a_record::<D>(options(), order));
    println!("{}: {orders:?} {found:.2?}", D::NAME);
    let [random, ends, series] = most;
    for (found, most) in found.into_iter().zip([random, ends, ends, series]) {
        assert!(found <= most, "{}: {found} above {most}", D::NAME);
    }
}

fn fine() -> FineOptions {
    FineOptions { chunk_nodes_log2: 2, ..FineOptions::default() }
}

fn hybrid() -> HybridOptions<u64> {
    HybridOptions { chunk_nodes_log2: 2, ..HybridOptions::with_boundaries(vec![]) }
}

fn sherman() -> ShermanOptions {
    ShermanOptions { chunk_nodes_log2: 2, ..ShermanOptions::default() }
}

fn chime() -> ChimeOptions {
    ChimeOptions { tree: sherman(), ..ChimeOptions::default() }
}

fn dex() -> DexOptions<u64> {
    let cache = CacheOptions { bytes: 4 << 20, ..CacheOptions::default() };
    DexOptions { chunk_nodes_log2: 2, ..DexOptions::with_boundaries(vec![], cache) }
}

fn coarse() -> CoarseOptions<u64> {
    CoarseOptions { partitioning: Partitioning::Range { boundaries: vec![] } }
}

/// A leaf of 60 records in 1,024 bytes that keeps 59 takes 17.4 bytes a record, nodes above it 0.3,
/// and the client's log another 0.3.
#[test]
fn records_in_order_leave_full_leaves_behind() {
    fills::<Coarse>(coarse, [26.5, 18.5, 18.5]);
    fills::<Fine>(fine, [26.5, 18.5, 18.5]);
    fills::<Hybrid>(hybrid, [26.5, 18.5, 18.5]);
    fills::<Dex>(dex, [26.5, 18.5, 18.5]);
}

/// Leaves of Sherman have 40 records, those of CHIME 42, of which about 36 are taken when a record
/// finds no place.
#[test]
fn leaves_with_fewer_records_are_left_full_as_well() {
    fills::<Sherman>(sherman, [39.5, 28.0, 29.0]);
    fills::<Chime>(chime, [46.0, 33.0, 36.0]);
}

/// What a scan of one record costs.
async fn head<F: Fabric>(
    fabric: &F,
    index: &impl RangeIndex<Key = u64, Value = u64>,
    first: u64,
) -> CounterSnapshot {
    let scan = Scan { limit: 1, ..Scan::range(..) };
    let cost = spent(fabric, async {
        assert_eq!(index.scan(&scan).await.unwrap(), [(first, first)]);
    });
    cost.await
}

const KEPT: u64 = 100;
const QUEUE: u64 = 30_000;

/// A queue of the ascending keys, whose head goes on, and for designs that free nodes, for ever.
fn queue<D: Design<Fixed8>>(options: D::Options, frees: bool)
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
        let kept = index.scan(&Scan::range(..)).await.unwrap();
        let reverse = Scan { reverse: true, ..Scan::range(..) };
        let mut backwards = others.scan(&reverse).await.unwrap();
        backwards.reverse();
        assert_eq!((kept.len() as u64, &backwards), (KEPT, &kept));
        if frees {
            // Ever new keys, and as many records as before.
            for key in QUEUE..4 * QUEUE {
                assert_eq!(index.insert(&key, &key).await, Ok(true));
                assert_eq!(others.remove(&(key - KEPT)).await, Ok(true));
            }
            assert!(nodes() <= full + 1_100, "{}: {} after {full}", D::NAME, nodes());
            let cost = head(&fabric, &index, 4 * QUEUE - KEPT).await;
            assert!(cost.reads <= 20, "{}: {cost:?}", D::NAME);
            index.collect().await.unwrap();
        }
    });
}

#[test]
fn the_head_of_a_queue_is_near() {
    queue::<Coarse>(coarse(), true);
    queue::<Dex>(dex(), true);
    queue::<Fine>(fine(), true);
    queue::<Hybrid>(hybrid(), true);
    queue::<Sherman>(sherman(), false);
    queue::<Chime>(chime(), false);
}
