//! Each operation of each design takes the virtual time that the cost model's page says.
//!
//! A write of dLSM paid an operation's `client_ns` twice, one of SMART never, and a wrong guess of
//! Sherman's and CHIME's hot entries twice, because each design charged it for itself. Now the
//! driver does. The test counts what each operation charges, by giving one kind of work a time and
//! all else none, and compares with the table in `docs/internals/cost-model.md`.

use farleaf_bench::driver::Testbed;
use farleaf_bench::keys::KeySpace;
use farleaf_bench::single_machine::{SingleMachine, SingleMachineOptions};
use farleaf_bench::workload::WorkloadOperation;
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_dlsm::{Dlsm, DlsmOptions};
use farleaf_fabric::sim::{NetworkModel, SimConfig};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{CostModel, ServerId};
use farleaf_index::Design;
use farleaf_page::Fixed8;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_trees::chime::{Chime, ChimeOptions};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use farleaf_trees::sherman::{Sherman, ShermanOptions};
use farleaf_trees::smart::{Smart, SmartOptions};
use std::fmt::Write;
use std::path::Path;

const KEYS: u64 = 20_000;

/// The head of the table in the cost model's page.
const HEAD: &str = "| design | operation | client | dispatch | visits | changes | restructured | bytes copied | MemTables | merged | network, ns | in all, ns |";

/// What costs nothing: each kind of work gets its time by itself.
const FREE: CostModel = CostModel {
    client_ns: 0,
    dispatch_ns: 0,
    visit_node_ns: 0,
    change_node_ns: 0,
    restructure_node_ns: 0,
    copy_record_ps: 0,
    search_memtable_ns: 0,
    merge_record_ns: 0,
    index_key_ns: 0,
    spin_ns: 0,
    cooling_queue_ns: 0,
    write_queue_ns: 0,
    numa_factor: 1,
};

/// The time of the work that is counted, in nanoseconds: all turns of poll loops, which the
/// simulator cannot do without, take less.
const UNIT_NS: u64 = 1_000;

/// The kinds of work in the table's columns, each by itself. Copying is counted in bytes, of which
/// a record of numbers has 16.
const COLUMNS: [CostModel; 8] = [
    CostModel { client_ns: UNIT_NS, ..FREE },
    CostModel { dispatch_ns: UNIT_NS, ..FREE },
    CostModel { visit_node_ns: UNIT_NS, ..FREE },
    CostModel { change_node_ns: UNIT_NS, ..FREE },
    CostModel { restructure_node_ns: UNIT_NS, ..FREE },
    CostModel { copy_record_ps: UNIT_NS * 16_000, ..FREE },
    CostModel { search_memtable_ns: UNIT_NS, ..FREE },
    CostModel { merge_record_ns: UNIT_NS, ..FREE },
];

fn free_network() -> NetworkModel {
    NetworkModel {
        one_way_ns: 0,
        bandwidth_bytes_per_s: 0,
        ns_per_message: 0,
        header_bytes: 0,
        remote_access_ns: 0,
        post_ns: 0,
        doorbell_ns: 0,
        ..NetworkModel::default()
    }
}

fn server() -> Arc<MemoryServer<Fixed8>> {
    let config = MemoryServerConfig { pool_bytes: 512 << 20, ..Default::default() };
    Arc::new(MemoryServer::new(ServerId::new(0), &config).unwrap())
}

/// The operations of the table, on a loaded key and on a new one beside it.
fn operations(keys: &KeySpace) -> [(&'static str, WorkloadOperation); 5] {
    let (key, _) = keys.records().nth(KEYS as usize / 2).unwrap();
    let new = key + 1;
    [
        ("get", WorkloadOperation::Get { key }),
        ("upsert", WorkloadOperation::Upsert { key, value: 7 }),
        ("insert", WorkloadOperation::Insert { key: new, value: 7 }),
        ("remove", WorkloadOperation::Remove { key: new }),
        ("scan of 10", WorkloadOperation::Scan { from: key, limit: 10, reverse: false }),
    ]
}

/// The virtual time of each operation, from one client on an idle cluster whose caches have the
/// nodes of these keys.
fn times<D: Design<Fixed8>>(
    options: &D::Options,
    network: NetworkModel,
    cost: CostModel,
) -> [u64; 5] {
    let provider = SimConfig { network, cost, yield_ns: 1, ..SimConfig::default() };
    let keys = KeySpace::spread(KEYS);
    let mut testbed = Testbed::<D>::start(&provider, vec![server()], options).unwrap();
    testbed.load(&keys, 0.7, &|_| ()).unwrap();
    let operations = operations(&keys);
    let replay = |operations: &[WorkloadOperation]| {
        let measured = testbed.replay(operations, &|_| ()).unwrap();
        assert_eq!(measured.first_error, None, "{}", D::NAME);
        assert_eq!(measured.misses, 0, "{}: {operations:?}", D::NAME);
        measured.elapsed_ns
    };
    replay(&[operations[0].1, operations[1].1, operations[4].1, operations[0].1]);
    operations.map(|(_, operation)| replay(&[operation]))
}

/// The table's rows of one design.
fn rows<D: Design<Fixed8>>(options: &D::Options) -> String {
    let counts =
        COLUMNS.map(|cost| times::<D>(options, free_network(), cost).map(|ns| ns / UNIT_NS));
    let network = times::<D>(options, NetworkModel::default(), FREE);
    let all = times::<D>(options, NetworkModel::default(), CostModel::default());
    let work = times::<D>(options, free_network(), CostModel::default());
    let (names, mut rows) = (operations(&KeySpace::spread(KEYS)), String::new());
    for (place, (name, _)) in names.iter().enumerate() {
        let counts = counts.map(|counts| counts[place]);
        let [client, dispatch, visits, changes, restructured, bytes, memtables, merged] = counts;
        assert_eq!(client, 1, "{}: {name} is one operation of a client", D::NAME);
        let model = CostModel::default();
        let sum = client * model.client_ns
            + dispatch * model.dispatch_ns
            + visits * model.visit_node_ns
            + changes * model.change_node_ns
            + restructured * model.restructure_node_ns
            + (bytes * model.copy_record_ps).div_ceil(16_000)
            + memtables * model.search_memtable_ns
            + merged * model.merge_record_ns;
        let rounded = work[place].abs_diff(sum);
        assert!(rounded <= 20, "{}: {name} takes {} ns, not {sum}", D::NAME, work[place]);
        write!(rows, "| {} | {name} |", D::NAME).unwrap();
        for count in counts {
            write!(rows, " {count} |").unwrap();
        }
        writeln!(rows, " {} | {} |", network[place], all[place]).unwrap();
    }
    rows
}

#[test]
fn operations_take_the_time_that_the_cost_model_says() {
    let range = || Partitioning::Range { boundaries: Vec::new() };
    let cache = CacheOptions { bytes: 16 << 20, ..CacheOptions::default() };
    let single = SingleMachineOptions::with_pool_bytes(64 << 20);
    let mut table = format!("{HEAD}\n|{}\n", " --- |".repeat(HEAD.matches('|').count() - 1));
    table += &rows::<Coarse>(&CoarseOptions { partitioning: range() });
    table += &rows::<Fine>(&FineOptions::default());
    table += &rows::<Hybrid>(&HybridOptions::with_boundaries(Vec::new()));
    table += &rows::<Sherman>(&ShermanOptions::default());
    table += &rows::<Chime>(&ChimeOptions { hot_bytes: 1 << 20, ..ChimeOptions::default() });
    table += &rows::<Smart>(&SmartOptions::default());
    table += &rows::<Dex>(&DexOptions::with_boundaries(Vec::new(), cache));
    table += &rows::<Dlsm>(&DlsmOptions::default());
    table += &rows::<SingleMachine>(&single);

    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/cost-model.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&table), "docs/internals/cost-model.md should say:\n{table}");
}
