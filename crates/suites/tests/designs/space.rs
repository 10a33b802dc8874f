//! Memory by the order of insertions.
//!
//! The story: records that came in ascending or in descending order took 38.9 bytes each, those
//! that came at random 25.1, because a split at an end of a range left the full leaf half full, for
//! good. So did time series: a few writers that append, each at a place of its own.

use super::clients::setup;
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_dlsm::{Dlsm, DlsmOptions};
use farleaf_fabric::Cluster;
use farleaf_fabric::local::{LocalCluster, LocalConfig};
use farleaf_index::{Design, RangeIndex, ScanRequest};
use farleaf_page::Fixed8;
use farleaf_pool::server::MemoryServer;
use farleaf_trees::chime::{Chime, ChimeOptions};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use farleaf_trees::sherman::{Sherman, ShermanOptions};
use farleaf_trees::smart::{Smart, SmartOptions};

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
    let mut setup = setup(&provider, 1, 64 << 20, options);
    setup.server.chunk_bytes = 4096;
    let cluster = setup.with_index::<Fixed8, D>();
    let compute = &D::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = D::open(fabric, compute).await.unwrap();
        for key in order.keys() {
            assert_eq!(index.insert(&key, &key).await, Ok(true));
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len() as u64, RECORDS);
        index.flush().await.unwrap();
    });
    page_bytes(&cluster) / RECORDS as f64
}

/// Prints the bytes of a record in each order, and returns whether they are at most `most`: in
/// random order, at the two ends, and in time series.
fn fills<D: Design<Fixed8>>(options: impl Fn() -> D::Options, most: [f64; 3]) -> bool
where
    D::Options: Sync,
{
    let orders = [Order::Random, Order::Ascending, Order::Descending, Order::Series];
    let found = orders.map(|order| bytes_a_record::<D>(options(), order));
    println!("{}: {orders:?} {found:.2?}, at most {most:?}", D::NAME);
    let [random, ends, series] = most;
    found.into_iter().zip([random, ends, ends, series]).all(|(found, most)| found <= most)
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
    let most = [26.5, 18.5, 18.5];
    let within = [
        fills::<Coarse>(coarse, most),
        fills::<Fine>(fine, most),
        fills::<Hybrid>(hybrid, most),
        fills::<Dex>(dex, most),
    ];
    assert_eq!(within, [true; 4], "coarse, fine, hybrid, dex");
}

/// Leaves of Sherman have 40 records, those of CHIME 42, of which about 36 are taken when a record
/// finds no place.
#[test]
fn leaves_with_fewer_records_are_left_full_as_well() {
    let within =
        [fills::<Sherman>(sherman, [39.5, 27.5, 27.5]), fills::<Chime>(chime, [46.0, 29.5, 29.5])];
    assert_eq!(within, [true; 2], "sherman, chime");
}

/// SMART and dLSM have no pages to split. SMART's nodes depend on how far keys are apart, and dLSM
/// takes memory by extents.
#[test]
fn other_structures_take_what_they_take() {
    let smart = || SmartOptions { chunk_bytes: 4096, ..SmartOptions::default() };
    let within = [
        fills::<Smart>(smart, [1_100.0, 75.0, 100.0]),
        fills::<Dlsm>(|| DlsmOptions::with_table_bytes(256 << 10), [80.0, 60.0, 80.0]),
    ];
    assert_eq!(within, [true; 2], "smart, dlsm");
}
