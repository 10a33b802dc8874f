//! Replaying a real block device's trace on every provider leaves the contents of a `BTreeMap`.

use farleaf_bench::driver::NumberForm;
use farleaf_bench::trace::{TraceFormat, read_trace, replay, touched_keys};
use farleaf_bench::workload::WorkloadOperation;
use farleaf_dlsm::{CompactionPlace, Dlsm, DlsmOptions};
use farleaf_fabric::AnyConfig;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::shm::ShmConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::TcpConfig;
use farleaf_fabric::{CounterSnapshot, Provider, RegionBacking, ServerId};
use farleaf_index::Design;
use farleaf_page::Fixed8;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use std::collections::BTreeMap;
use std::path::Path;

const SERVERS: u16 = 3;

fn trace() -> Option<Vec<WorkloadOperation>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/block-io.csv.gz");
    if !path.exists() {
        println!("skipped: the trace {} is not there", path.display());
        return None;
    }
    Some(read_trace(&path, &TraceFormat::default(), false, u64::MAX).unwrap().operations)
}

fn check<D: Design<Fixed8>>(
    provider: &impl Provider,
    options: &D::Options,
    operations: &[WorkloadOperation],
) -> CounterSnapshot {
    // Every provider takes memory that processes can share.
    let backing = RegionBacking::Shared { huge_pages: false };
    let config = MemoryServerConfig { pool_bytes: 64 << 20, backing, ..Default::default() };
    let server =
        |number| Arc::new(MemoryServer::<Fixed8>::new(ServerId::new(number), &config).unwrap());
    let services = (0..SERVERS).map(server).collect();
    let replayed = replay::<D, _>(provider, services, options, NumberForm, operations, None);
    let (measured, contents) = replayed.unwrap();

    let mut model = BTreeMap::new();
    let mut misses = 0;
    for operation in operations {
        match operation {
            WorkloadOperation::Get { key } => misses += u64::from(!model.contains_key(key)),
            WorkloadOperation::Upsert { key, value } => drop(model.insert(*key, *value)),
            other => panic!("a trace has no {other:?}"),
        }
    }
    assert_eq!((measured.operations, measured.errors), (operations.len() as u64, 0));
    assert_eq!(measured.misses, misses);
    assert!(contents.iter().copied().eq(model), "the contents differ from the model's");
    measured.counters
}

fn check_coarse(
    provider: &impl Provider,
    partitioning: Partitioning<u64>,
    operations: &[WorkloadOperation],
) {
    let cost = check::<Coarse>(provider, &CoarseOptions { partitioning }, operations);
    assert_eq!(cost.rpcs, operations.len() as u64, "one RPC for each request");
}

#[test]
fn the_trace_leaves_what_a_map_would_hold() {
    let Some(operations) = trace() else { return };
    assert_eq!(operations.len(), 113_872);
    let keys = touched_keys(&operations);
    assert_eq!(keys.len(), 48_974);
    let ranges = Partitioning::Range { boundaries: keys.boundaries(&[1; SERVERS as usize]) };
    check_coarse(&LocalConfig::default(), ranges.clone(), &operations);
    check_coarse(&LocalConfig::default(), Partitioning::Hash, &operations);
    check_coarse(&SimConfig::default(), ranges, &operations);
    check_coarse(&SimConfig::default(), Partitioning::Hash, &operations);
}

#[test]
fn server_threads_change_nothing() {
    let Some(mut operations) = trace() else { return };
    operations.truncate(20_000);
    let config = LocalConfig { server_threads: 1, ..LocalConfig::default() };
    check_coarse(&config, Partitioning::Hash, &operations);
}

#[test]
fn one_sided_designs_leave_the_same() {
    let Some(operations) = trace() else { return };
    let boundaries = touched_keys(&operations).boundaries(&[1; SERVERS as usize]);
    let hybrid = HybridOptions::with_boundaries(boundaries);
    let fine = FineOptions::default();
    check::<Fine>(&LocalConfig::default(), &fine, &operations);
    check::<Fine>(&SimConfig::default(), &fine, &operations);
    check::<Hybrid>(&LocalConfig::default(), &hybrid, &operations);
    check::<Hybrid>(&SimConfig::default(), &hybrid, &operations);
}

/// Tables so small that the trace fills and merges many of them, on both sides.
#[test]
fn an_lsm_tree_leaves_the_same() {
    let Some(operations) = trace() else { return };
    let providers: [AnyConfig; 4] = [
        LocalConfig::default().into(),
        SimConfig::default().into(),
        TcpConfig::default().into(),
        ShmConfig::default().into(),
    ];
    for provider in &providers {
        let options = DlsmOptions {
            merges: CompactionPlace::Memory,
            ..DlsmOptions::with_table_bytes(64 << 10)
        };
        let cost = check::<Dlsm>(provider, &options, &operations);
        // It was flushed, merged and read from tables.
        assert!(cost.reads > 10_000 && cost.bytes_written > 1_000_000, "{cost:?}");
    }
}
