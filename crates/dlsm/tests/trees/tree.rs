//! dLSM as an index: the suite of all designs with tables of a few records, random operations, what
//! operations cost, and what becomes of extents.

use farleaf_dlsm::{Dlsm, DlsmOptions, LsmShard};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{
    Design, EditAction, IndexAdmin, IndexError, LeafEdit, RangeIndex, ScanRequest,
};
use farleaf_page::table::IndexKind;
use farleaf_page::{Bytes, LengthError};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::{self, SuiteSetup};
use farleaf_suites::providers::spent;
use farleaf_suites::providers::{AnyProvider, local, rough, sim, tcp};
use farleaf_suites::strings::{loads, random_operations};

type Small = Bytes<128>;

pub(super) const KINDS: [IndexKind; 3] = [
    IndexKind::Compact,
    IndexKind::Full { bloom_bits: 10 },
    IndexKind::Blocks { block_bytes: 512, bloom_bits: 10 },
];

pub(super) fn tiny(index: IndexKind) -> DlsmOptions {
    DlsmOptions { index, ..DlsmOptions::tiny() }
}

pub(super) fn setup(
    provider: &AnyProvider,
    options: DlsmOptions,
) -> SuiteSetup<'_, AnyProvider, DlsmOptions> {
    let server = MemoryServerConfig { pool_bytes: 32 << 20, ..Default::default() };
    SuiteSetup { provider, options, memory_servers: 3, server }
}

fn conforms(provider: &AnyProvider, index: IndexKind) {
    conformance::run::<Small, Dlsm, _>(&setup(provider, tiny(index)));
}

#[test]
fn dlsm_conforms_locally() {
    KINDS.into_iter().for_each(|kind| conforms(&local(LocalConfig::default()), kind));
}

#[test]
fn dlsm_conforms_simulated() {
    conforms(&sim(SimConfig::default()), IndexKind::Compact);
    (1..3).zip(KINDS).for_each(|(seed, kind)| conforms(&rough(seed), kind));
}

#[test]
fn dlsm_conforms_on_tcp() {
    conforms(&tcp(), IndexKind::Compact);
}

/// MemTables that close by the number of writes, as the paper's do, with few writers at a time.
#[test]
fn dlsm_conforms_with_few_numbers_and_seats() {
    for provider in [local(LocalConfig::default()), rough(5)] {
        let mut options = tiny(IndexKind::Compact);
        options.memtable.most_numbers = 40;
        (options.writers, options.most_immutables) = (3, 1);
        conformance::run::<Small, Dlsm, _>(&setup(&provider, options));
    }
}

/// Values of up to 20 KB, so that records cross extents.
#[test]
fn long_values_in_dlsm() {
    const LONG: u64 = 20_000;
    for (provider, operations) in [(local(LocalConfig::default()), 1_500), (rough(3), 400)] {
        let mut options = tiny(IndexKind::Compact);
        options.memtable.bytes = 128 << 10;
        options.level1_bytes = 256 << 10;
        let server = MemoryServerConfig { pool_bytes: 128 << 20, ..Default::default() };
        let setup = SuiteSetup { server, ..setup(&provider, options) };
        random_operations::<128, Dlsm>(&setup, operations, LONG);
        loads::<128, Dlsm>(&setup, 1_000);
    }
}

pub(super) fn compute(options: &DlsmOptions) -> Arc<LsmShard> {
    <Dlsm as Design<Small>>::compute(options).unwrap()
}

const RECORDS: u64 = 20_000;
const RECORD_BYTES: u64 = 440;

/// The paper's key of 20 bytes, in an order that is not that of `number`.
pub(super) fn key(number: u64) -> Vec<u8> {
    format!("{:020}", number * 7_919 % 1_000_003).into_bytes()
}

pub(super) fn value(number: u64) -> Vec<u8> {
    let mut value = vec![number as u8; 400];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// The paper's tree at 1:100, each table in one extent, so that no record crosses two.
pub(super) fn paper() -> DlsmOptions {
    let scaled = DlsmOptions::with_table_bytes(640 << 10);
    DlsmOptions { extent_bytes: 768 << 10, chunk_bytes: 1 << 20, ..scaled }
}

/// READs per lookup of a present key, and per lookup of an absent one. Each READ is one record.
async fn lookups<F: Fabric>(
    fabric: &F,
    index: &impl RangeIndex<Key = [u8], Value = [u8]>,
) -> (f64, f64) {
    let present = spent(fabric, async {
        for number in 0..RECORDS {
            assert_eq!(index.get(&key(number)).await.unwrap(), Some(value(number)));
        }
    });
    let present = present.await;
    let absent = spent(fabric, async {
        for number in RECORDS..2 * RECORDS {
            assert_eq!(index.get(&key(number)).await.unwrap(), None);
        }
    });
    let absent = absent.await;
    for cost in [present, absent] {
        assert_eq!(cost.bytes_read, cost.reads * RECORD_BYTES);
        assert_eq!((cost.writes, cost.rpcs, cost.atomics), (0, 0, 0));
    }
    (present.reads as f64 / RECORDS as f64, absent.reads as f64 / RECORDS as f64)
}

/// What the model says of an index: READs of one record for a key that is there and for one that is
/// not, with tables in all levels; the same for a key that is there with many tables in level 0,
/// and for an absent one for each of these tables; bytes on the compute server, and bytes flushed,
/// for each record.
#[derive(Clone, Copy)]
struct Model {
    index: IndexKind,
    present: f64,
    absent: f64,
    present_in_level0: f64,
    absent_each: f64,
    index_bytes: u64,
    /// At least, and at most.
    flushed: [f64; 2],
}

const COMPACT: Model = Model {
    index: IndexKind::Compact,
    present: 1.01,
    absent: 0.016,
    present_in_level0: 1.1,
    absent_each: 0.0045,
    index_bytes: 6,
    flushed: [440.0, 445.0],
};

/// The paper's: an entry for each record, and a Bloom filter of 10 bits. The entries are in local
/// memory, so a key that passes the filter in vain costs no READ.
const FULL: Model = Model {
    index: IndexKind::Full { bloom_bits: 10 },
    present: 1.0,
    absent: 0.0,
    present_in_level0: 1.0,
    absent_each: 0.0,
    index_bytes: 44,
    flushed: [480.0, 484.0],
};

#[test]
fn a_lookup_reads_one_record() {
    lookup_reads_one_record(COMPACT);
}

#[test]
fn a_lookup_with_the_papers_index_reads_one_record() {
    lookup_reads_one_record(FULL);
}

fn lookup_reads_one_record(model: Model) {
    let provider = &local(LocalConfig::default());
    let setup = setup(provider, DlsmOptions { index: model.index, ..paper() });
    let cluster = setup.with_index::<Small, Dlsm>();
    let tree = &compute(&setup.options);
    cluster.run_one(|fabric| async move {
        let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
        for number in 0..RECORDS {
            index.upsert(&key(number), &value(number)).await.unwrap();
        }
        index.flush().await.unwrap();
        // How many tables level 0 has at the end is chance: go on until a compaction has emptied
        // it.
        let mut again = 0;
        while tree.levels()[0].0 > 1 {
            for number in again..again + 200 {
                index.upsert(&key(number), &value(number)).await.unwrap();
            }
            again += 200;
            index.flush().await.unwrap();
            assert!(again <= 1_000, "no merge of {:?}", tree.levels());
        }
        let levels = tree.levels();
        assert!(levels[1].0 > 0 && levels[2].0 > 0, "{levels:?}");
        let (present, absent) = lookups(&fabric, &index).await;
        println!("after a random fill: {present} READs, {absent} if absent; {levels:?}");
        assert!((1.0..=model.present).contains(&present), "{present}, {levels:?}");
        assert!(absent <= model.absent, "{absent}, {levels:?}");
        let (_, index_bytes) = tree.local_bytes();
        assert!(index_bytes <= model.index_bytes * RECORDS, "{index_bytes} bytes of indexes");
        scans_read_what_they_want(&fabric, tree, &index).await;
    });
}

/// READs what a scan wants of each table, and not much more: at most the groups at its two ends,
/// and if only a limit ends it, a quarter and a group of each source.
async fn scans_read_what_they_want<F: Fabric>(
    fabric: &F,
    tree: &LsmShard,
    index: &impl RangeIndex<Key = [u8], Value = [u8]>,
) {
    const GROUP_BYTES: u64 = 16 * RECORD_BYTES;
    let sources = {
        let levels = tree.levels();
        levels[0].0 + levels[1..].iter().filter(|(tables, _)| *tables > 0).count()
    } as u64;
    let mut keys: Vec<_> = (0..RECORDS).map(key).collect();
    keys.sort();
    for reverse in [false, true] {
        let scanned = async |scan: ScanRequest<Vec<u8>>| {
            let mut found = 0;
            let cost = spent(fabric, async {
                found = index.scan(&ScanRequest { reverse, ..scan }).await.unwrap().len() as u64;
            });
            let bytes = cost.await.bytes_read;
            (found, bytes)
        };
        let (found, bytes) = scanned(ScanRequest::range(..)).await;
        let all: u64 = tree.levels().iter().map(|(_, bytes)| bytes).sum();
        assert_eq!((found, bytes), (RECORDS, all), "each record once");
        let (low, high) = (keys[5_000].clone(), keys[6_000].clone());
        let (found, bytes) = scanned(ScanRequest::range(low.clone()..high)).await;
        println!("1,000 of a range: {bytes} bytes of {sources} sources");
        assert_eq!(found, 1_000);
        assert!(bytes <= found * RECORD_BYTES + 2 * sources * GROUP_BYTES, "{bytes}, {sources}");
        for limit in [100, 1_000] {
            let from_the_middle = match reverse {
                false => ScanRequest::range(low.clone()..),
                true => ScanRequest::range(..low.clone()),
            };
            let (found, bytes) = scanned(from_the_middle.limit(limit)).await;
            println!("{limit}, reverse: {reverse}: {bytes} bytes of {sources} sources");
            assert_eq!(found, limit as u64);
            let wanted = found * RECORD_BYTES;
            assert!(bytes <= wanted + wanted / 4 + 4 * sources * GROUP_BYTES, "{bytes}, {sources}");
        }
    }
}

#[test]
fn a_lookup_reads_one_record_after_a_load() {
    let provider = &local(LocalConfig::default());
    let setup = setup(provider, paper());
    let cluster = setup.with_index::<Small, Dlsm>();
    let tree = &compute(&setup.options);
    cluster.run_one(|fabric| async move {
        let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
        let mut records: Vec<_> = (0..RECORDS).map(|number| (key(number), value(number))).collect();
        records.sort();
        let cost = spent(&fabric, async {
            assert_eq!(index.bulk_load(records.into_iter(), 1.0).await, Ok(RECORDS));
        });
        let cost = cost.await;
        assert_eq!(cost.reads, 0);
        assert_eq!(cost.bytes_written, tree.counts().merged_bytes);
        let (present, absent) = lookups(&fabric, &index).await;
        println!("after a load: {present} READs, {absent} if absent");
        // One level: no other table is asked for a key that is there.
        assert_eq!(present, 1.0);
        assert!(absent <= 0.006, "{absent}");
    });
}

/// After a load, as long as the tree had not asked the memory servers for more, each upsert of a
/// key that was there first looked it up: it took the pool for full. And each of several such
/// writes in flight allocated a chunk of its own.
#[test]
fn upserts_after_a_load_read_nothing() {
    let provider = &local(LocalConfig::default());
    let setup = setup(provider, paper());
    let cluster = setup.with_index::<Small, Dlsm>();
    let tree = &compute(&setup.options);
    cluster.run_one(|fabric| async move {
        let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
        let mut records: Vec<_> = (0..RECORDS).map(|number| (key(number), value(number))).collect();
        records.sort();
        index.bulk_load(records.iter().cloned(), 1.0).await.unwrap();
        let cost = spent(&fabric, async {
            let edits = records[..32].iter().map(|(key, value)| LeafEdit {
                key: key.as_slice(),
                action: EditAction::Upsert(value.as_slice()),
            });
            let edits: Vec<_> = edits.collect();
            for outcome in index.execute_all(&edits).await {
                outcome.unwrap();
            }
        });
        let cost = cost.await;
        assert_eq!((cost.reads, cost.bytes_read), (0, 0));
        assert!(cost.rpcs <= 6, "chunks for what a MemTable needs: {}", cost.rpcs);
    });
}

/// As long as nothing is merged, an upsert costs its record and what it adds to the index.
#[test]
fn an_upsert_costs_its_record_in_large_writes() {
    [COMPACT, FULL].into_iter().for_each(upsert_costs_its_record);
}

fn upsert_costs_its_record(model: Model) {
    let provider = &local(LocalConfig::default());
    let options = DlsmOptions { level0_tables: 100, level0_stop: 100, ..paper() };
    let setup = setup(provider, DlsmOptions { index: model.index, ..options });
    let cluster = setup.with_index::<Small, Dlsm>();
    let tree = &compute(&setup.options);
    cluster.run_one(|fabric| async move {
        let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
        let cost = spent(&fabric, async {
            for number in 0..RECORDS {
                index.upsert(&key(number), &value(number)).await.unwrap();
            }
            index.flush().await.unwrap();
        });
        let (cost, counts) = (cost.await, tree.counts());
        assert_eq!((cost.reads, cost.atomics, counts.merges), (0, 0, 0));
        assert_eq!(cost.bytes_written, counts.flushed_bytes);
        let each = cost.bytes_written as f64 / RECORDS as f64;
        println!("{each} bytes an upsert, {} WRITEs, {} RPCs", cost.writes, cost.rpcs);
        assert!(model.flushed[0] <= each && each <= model.flushed[1], "{each}");
        // Each table's last WRITE is smaller than 64 KiB.
        let tables = counts.flushes;
        assert_eq!(tables as usize, tree.levels()[0].0);
        assert!(cost.writes <= cost.bytes_written.div_ceil(64 << 10) + tables, "{}", cost.writes);
        // And what is kept for merges and further flushes.
        assert!(cost.rpcs <= 2 * tables + 2, "a chunk and a change for each table: {}", cost.rpcs);
        let (present, absent) = lookups(&fabric, &index).await;
        println!("with {tables} tables in level 0: {present} READs, {absent} if absent");
        assert!((1.0..=model.present_in_level0).contains(&present), "{present}");
        assert!(absent <= model.absent_each * tables as f64, "{absent}");
    });
}

/// The paper's tables take 1.40 times the bytes of their records.
#[test]
fn a_settled_tree_takes_little_more_than_its_records() {
    const RAW_BYTES: u64 = 420 * RECORDS;
    let provider = &local(LocalConfig::default());
    let setup = setup(provider, DlsmOptions::with_table_bytes(640 << 10));
    let cluster = setup.with_index::<Small, Dlsm>();
    let (tree, extent_bytes) = (&compute(&setup.options), setup.options.extent_bytes);
    cluster.run_one(|fabric| async move {
        let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
        for number in 0..RECORDS {
            index.upsert(&key(number), &value(number)).await.unwrap();
        }
        index.flush().await.unwrap();
        let leased = tree.extents().leased * extent_bytes;
        println!("{} bytes of extents for each byte of records", leased as f64 / RAW_BYTES as f64);
        assert!((RAW_BYTES..=RAW_BYTES * 117 / 100).contains(&leased), "{leased}");
    });
}

/// A tree that is overwritten many times stays within a bounded pool, and at the end every extent
/// is in a table, free or resting. What was removed leaves nothing.
#[test]
fn extents_are_used_again() {
    for provider in &[local(LocalConfig::default()), rough(2)] {
        let server = MemoryServerConfig { pool_bytes: 3 << 20, ..Default::default() };
        let setup = SuiteSetup { memory_servers: 1, server, ..setup(provider, tiny(KINDS[0])) };
        let cluster = setup.with_index::<Small, Dlsm>();
        let tree = &compute(&setup.options);
        cluster.run_one(|fabric| async move {
            let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
            let mut written = 0;
            for round in 0..60_u64 {
                for number in 0..400_u64 {
                    index.upsert(&key(number), &value(number + round)).await.unwrap();
                    written += RECORD_BYTES;
                }
            }
            assert!(written > 3 * (3 << 20));
            for number in 0..400 {
                assert_eq!(index.get(&key(number)).await.unwrap(), Some(value(number + 59)));
            }
            let used = tree.extents();
            let held: usize = tree.levels().iter().map(|level| level.0).sum();
            assert!(used.leased as usize >= held, "{used:?}");
            for number in 0..400 {
                assert!(index.remove(&key(number)).await.unwrap());
            }
            assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(vec![]));
            index.collect().await.unwrap();
            assert!(tree.levels().iter().all(|level| level.0 == 0), "{:?}", tree.levels());
            let used = tree.extents();
            assert_eq!((used.leased, used.lost), (0, 0), "{used:?}");
            assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(vec![]));
        });
    }
}

/// A pool that is full ends writes with an error, and loses nothing that was acknowledged.
#[test]
fn a_full_pool_ends_writes_and_loses_nothing() {
    let provider = &local(LocalConfig::default());
    let server = MemoryServerConfig { pool_bytes: 1 << 20, ..Default::default() };
    let setup = SuiteSetup { memory_servers: 1, server, ..setup(provider, tiny(KINDS[0])) };
    let cluster = setup.with_index::<Small, Dlsm>();
    let tree = &compute(&setup.options);
    cluster.run_one(|fabric| async move {
        let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
        let mut written = 0;
        let error = loop {
            match index.upsert(&key(written), &value(written)).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, IndexError::OutOfMemory { .. }), "{error}");
        assert!(written > 800, "{written}");
        for number in 0..written {
            assert_eq!(index.get(&key(number)).await.unwrap(), Some(value(number)));
        }
        assert_eq!(index.get(&key(written)).await, Ok(None));
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len() as u64, written);
        index.flush().await.unwrap();
        assert_eq!(tree.extents().lost, 0);
    });
}

/// The tree is in one process's memory, so another process must not see an empty one.
#[test]
fn another_process_is_refused() {
    for provider in &[local(LocalConfig::default()), rough(4)] {
        let setup = setup(provider, tiny(KINDS[0]));
        let cluster = setup.with_index::<Small, Dlsm>();
        let (first, second) = (&compute(&setup.options), &compute(&setup.options));
        cluster.run_one(|fabric| async move {
            let open = async |tree| <Dlsm as Design<Small>>::open(fabric.clone(), tree).await;
            let index = open(first).await.unwrap();
            index.upsert(b"key", b"value").await.unwrap();
            let refused = open(second).await.map(drop);
            assert!(matches!(refused, Err(IndexError::InvalidArgument(_))), "{refused:?}");
            let again = open(first).await.unwrap();
            assert_eq!(again.get(b"key").await.unwrap(), Some(b"value".to_vec()));
        });
    }
}

#[test]
fn senseless_sizes_are_refused() {
    let refused = |change: fn(&mut DlsmOptions)| {
        let mut options = DlsmOptions::default();
        change(&mut options);
        let outcome = <Dlsm as Design<Small>>::compute(&options).map(drop);
        assert!(matches!(outcome, Err(IndexError::InvalidArgument(_))), "{options:?}");
    };
    refused(|options| options.memtable.bytes = 0);
    refused(|options| options.memtable.bytes = 4097);
    refused(|options| options.memtable.bytes = 2 << 30);
    refused(|options| options.table_bytes = 0);
    refused(|options| options.extent_bytes = 0);
    refused(|options| options.chunk_bytes = 0);
    refused(|options| options.levels = 0);
    refused(|options| options.levels = 13);
    refused(|options| options.level_ratio = 1);
    refused(|options| options.level0_tables = 0);
    refused(|options| options.level1_bytes = 0);
    refused(|options| options.level0_stop = options.level0_tables - 1);
    refused(|options| options.level0_stop = 1_001);
    refused(|options| options.most_immutables = 0);
    refused(|options| options.writers = 0);
}

#[test]
fn records_over_the_limits_are_refused() {
    let provider = &local(LocalConfig::default());
    let setup = setup(provider, tiny(KINDS[0]));
    let cluster = setup.with_index::<Small, Dlsm>();
    let tree = &compute(&setup.options);
    cluster.run_one(|fabric| async move {
        let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
        let (long, most) = (vec![7; 4097], 4096);
        let error = IndexError::from(LengthError::Key { bytes: 4097, most });
        assert_eq!(index.get(&long).await, Err(error.clone()));
        assert_eq!(index.upsert(&long, b"1").await, Err(error.clone()));
        assert_eq!(index.remove(&long).await, Err(error.clone()));
        assert_eq!(index.scan(&ScanRequest::range(long.clone()..)).await, Err(error.clone()));
        let load = vec![(long.clone(), vec![])].into_iter();
        assert_eq!(index.bulk_load(load, 0.7).await, Err(error));
        let error = IndexError::from(LengthError::Value { bytes: 4097, most });
        assert_eq!(index.insert(b"k", &long).await, Err(error.clone()));
        assert_eq!(index.compare_exchange(b"k", &long, b"").await, Err(error.clone()));
        assert_eq!(index.compare_exchange(b"k", b"", &long).await, Err(error));
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(vec![]));
        index.upsert(&long[1..], &long[1..]).await.unwrap();
        index.collect().await.unwrap();
        assert_eq!(index.get(&long[1..]).await, Ok(Some(long[1..].to_vec())));
    });
}

/// An idle handle once kept its writer's seat, so that others waited until they gave up.
#[test]
fn handles_take_turns_with_one_seat() {
    let options = DlsmOptions { writers: 1, ..tiny(IndexKind::Compact) };
    let provider = local(LocalConfig::default());
    let cluster = setup(&provider, options.clone()).with_index::<Small, Dlsm>();
    let compute = &compute(&options);
    cluster.run_one(|fabric| async move {
        let one = <Dlsm as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        let other = <Dlsm as Design<Small>>::open(fabric, compute).await.unwrap();
        for number in 0..20_u8 {
            let index = if number % 2 == 0 { &one } else { &other };
            assert!(index.insert(&[number], b"value").await.unwrap());
        }
        assert_eq!(other.scan(&ScanRequest::range(..).limit(100)).await.unwrap().len(), 20);
    });
}

/// A load that was refused in the middle once lost the extents of its table.
#[test]
fn a_failed_load_gives_its_extents_back() {
    let options = DlsmOptions {
        table_bytes: 512 << 10,
        extent_bytes: 64 << 10,
        chunk_bytes: 1 << 20,
        ..tiny(IndexKind::Compact)
    };
    let provider = local(LocalConfig::default());
    let cluster = setup(&provider, options.clone()).with_index::<Small, Dlsm>();
    let compute = &compute(&options);
    cluster.run_one(|fabric| async move {
        let index = <Dlsm as Design<Small>>::open(fabric, compute).await.unwrap();
        let record = |number: u32| (number.to_be_bytes().to_vec(), vec![7; 400]);
        let disordered = (0..1_700).chain([5]).map(record);
        let refused = index.bulk_load(disordered, 0.7).await;
        assert_eq!(refused, Err(IndexError::NotSorted { position: 1_700 }));
        let usage = index.shard().extents();
        assert!(usage.resting > 0 && usage.leased == 0 && usage.lost == 0, "{usage:?}");
        assert_eq!(index.bulk_load((0..1_700).map(record), 0.7).await, Ok(1_700));
    });
}
