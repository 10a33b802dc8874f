//! Memory of byte strings by the order of insertions: as `designs/space.rs`, with keys and values
//! of eight bytes. Their leaves take fewer words for keys that begin alike, but only between fences
//! that begin like them.

use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_dlsm::{Dlsm, DlsmOptions};
use farleaf_fabric::Cluster;
use farleaf_fabric::local::LocalConfig;
use farleaf_index::{Design, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::SuiteSetup;
use farleaf_trees::chime::{Chime, ChimeOptions};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use farleaf_trees::sherman::{Sherman, ShermanOptions};
use farleaf_trees::smart::{Smart, SmartOptions};

type Small = Bytes<128>;

const RECORDS: u64 = 100_000;

fn bytes_a_record<D: Design<Small>>(options: D::Options, key: impl Fn(u64) -> u64 + Sync) -> f64
where
    D::Options: Sync,
{
    let server =
        MemoryServerConfig { pool_bytes: 256 << 20, chunk_bytes: 4096, ..Default::default() };
    let provider = &LocalConfig::default();
    let setup = SuiteSetup { provider, options, memory_servers: 1, server };
    let cluster = setup.with_index::<Small, D>();
    let compute = &D::compute(&setup.options).unwrap();
    let key = &key;
    cluster.run_one(|fabric| async move {
        let index = D::open(fabric, compute).await.unwrap();
        let mut keys: Vec<[u8; 8]> = (0..RECORDS).map(|number| key(number).to_be_bytes()).collect();
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(index.insert(key, &number.to_le_bytes()).await, Ok(true));
        }
        keys.sort_unstable();
        let found = index.scan(&ScanRequest::range(..)).await.unwrap();
        assert!(found.iter().map(|(key, _)| &key[..]).eq(keys.iter().map(|key| &key[..])));
        index.flush().await.unwrap();
    });
    let nodes: u64 = cluster.services().map(|server| server.nodes().0).sum();
    (nodes * 1024) as f64 / RECORDS as f64
}

/// The finaliser of SplitMix64, a bijection.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Prints the bytes of a record in each order, and returns whether they are at most `most`: in
/// random order, at the two ends, and in time series of four writers.
fn fills<D: Design<Small>>(options: impl Fn() -> D::Options, most: [f64; 3]) -> bool
where
    D::Options: Sync,
{
    let found = [
        bytes_a_record::<D>(options(), mixed),
        bytes_a_record::<D>(options(), |number| 1 + number),
        bytes_a_record::<D>(options(), |number| u64::MAX - number),
        bytes_a_record::<D>(options(), |number| (number % 4) << 40 | number),
    ];
    println!("{}: [Random, Ascending, Descending, Series] {found:.2?}, at most {most:?}", D::NAME);
    let [random, ends, series] = most;
    found.into_iter().zip([random, ends, ends, series]).all(|(found, most)| found <= most)
}

#[test]
fn records_in_order_leave_full_leaves_behind() {
    let most = [40.0, 18.5, 18.5];
    let range = || CoarseOptions { partitioning: Partitioning::Range { boundaries: vec![] } };
    let tree = || ShermanOptions { chunk_nodes_log2: 2, ..ShermanOptions::default() };
    let fine = || FineOptions { chunk_nodes_log2: 2, ..FineOptions::default() };
    let hybrid = || HybridOptions { chunk_nodes_log2: 2, ..HybridOptions::with_boundaries(vec![]) };
    let dex = || {
        let cache = CacheOptions { bytes: 4 << 20, ..CacheOptions::default() };
        DexOptions { chunk_nodes_log2: 2, ..DexOptions::with_boundaries(vec![], cache) }
    };
    let within = [
        fills::<Coarse>(range, most),
        fills::<Fine>(fine, most),
        fills::<Hybrid>(hybrid, most),
        fills::<Dex>(dex, most),
        fills::<Sherman>(tree, most),
        fills::<Chime>(|| ChimeOptions { tree: tree(), ..ChimeOptions::default() }, most),
    ];
    assert_eq!(within, [true; 6], "coarse, fine, hybrid, dex, sherman, chime");
}

/// SMART and dLSM have no pages to split. SMART's nodes depend on how far keys are apart, and dLSM
/// takes memory by extents.
#[test]
fn other_structures_take_what_they_take() {
    let smart = || SmartOptions { chunk_bytes: 4096, ..SmartOptions::default() };
    let within = [
        fills::<Smart>(smart, [1_300.0, 85.0, 100.0]),
        fills::<Dlsm>(|| DlsmOptions::with_table_bytes(256 << 10), [80.0, 60.0, 80.0]),
    ];
    assert_eq!(within, [true; 2], "smart, dlsm");
}
