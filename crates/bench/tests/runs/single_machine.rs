//! The single machine as an index design: it passes the suite of all designs, moves nothing over
//! the fabric, and accounts for its memory.

use farleaf_bench::driver::{BenchRun, Measurement, Reshaping, Testbed, WorkAmount};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::report::Report;
use farleaf_bench::single_machine::{SingleMachine, SingleMachineOptions};
use farleaf_bench::workload::{HarnessDeviations, NAMED_MIXES, OperationMix, StreamConfig};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, CounterSnapshot, Provider, ServerId};
use farleaf_index::{Design, RangeIndex};
use farleaf_page::Fixed8;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_suites::conformance::{self, SuiteSetup};

/// Tiny pages make high trees from few keys, so most operations restructure a node.
type Tiny = Fixed8<16>;

const SERVERS: u16 = 3;

fn options() -> SingleMachineOptions {
    SingleMachineOptions { pool_bytes: 16 << 20, chunk_bytes: 1 << 14 }
}

/// The memory servers hold nothing but a superblock each.
fn server() -> MemoryServerConfig {
    MemoryServerConfig { pool_bytes: 1 << 16, ..MemoryServerConfig::default() }
}

fn conforms(provider: &impl Provider) {
    let setup =
        SuiteSetup { provider, options: options(), memory_servers: SERVERS, server: server() };
    conformance::run::<Tiny, SingleMachine, _>(&setup);
    conformance::run::<Fixed8, SingleMachine, _>(&setup);
}

#[test]
fn conforms_on_local_inline() {
    conforms(&LocalConfig::default());
}

#[test]
fn conforms_on_local_with_one_client_thread() {
    conforms(&LocalConfig { one_client_thread: true, ..LocalConfig::default() });
}

#[test]
fn conforms_on_the_simulator() {
    for seed in 0..3 {
        conforms(&SimConfig { seed, ..SimConfig::default() });
    }
}

fn services() -> Vec<Arc<MemoryServer<Fixed8>>> {
    let server = |number| Arc::new(MemoryServer::new(ServerId::new(number), &server()).unwrap());
    (0..SERVERS).map(server).collect()
}

fn testbed(provider: &impl Provider, keys: &KeySpace) -> Testbed<SingleMachine> {
    let options = SingleMachineOptions { pool_bytes: 64 << 20, ..options() };
    let mut testbed = Testbed::start(provider, services(), &options).unwrap();
    testbed.load(keys, 0.7, &|_| ()).unwrap();
    testbed
}

fn measure(testbed: &mut Testbed<SingleMachine>, run: &BenchRun) -> Measurement {
    testbed.measure(run, &|_| ()).unwrap()
}

fn run_of(mix: &OperationMix, keys: &KeySpace, threads: u16) -> BenchRun {
    let stream = StreamConfig {
        mix: mix.clone(),
        distribution: mix.distribution,
        clustered: false,
        keys: keys.clone(),
        seed: 7,
        harness: HarnessDeviations::default(),
    };
    let amount = WorkAmount::Operations(4_001);
    BenchRun {
        stream,
        compute_servers: 2,
        threads,
        amount,
        shift: None,
        timeline: None,
        batch: 1,
        own_keys: false,
        reshaping: Reshaping::default(),
    }
}

fn every_workload_costs_nothing(provider: &impl Provider) {
    let keys = KeySpace::spread(20_000);
    let mut testbed = testbed(provider, &keys);
    for mix in NAMED_MIXES {
        let measured = measure(&mut testbed, &run_of(mix, &keys, 2));
        let outcome = (measured.operations, measured.errors, measured.misses);
        assert_eq!(outcome, (4_001, 0, 0), "{}: every key asked for is there", mix.name);
        assert_eq!(measured.counters, CounterSnapshot::default(), "Y1, {}", mix.name);
        assert!(measured.elapsed_ns > 0, "{}", mix.name);
    }
}

#[test]
fn no_operation_moves_anything_over_the_fabric() {
    every_workload_costs_nothing(&LocalConfig::default());
    every_workload_costs_nothing(&SimConfig::default());
}

#[test]
fn in_the_simulator_work_takes_its_time() {
    let keys = KeySpace::spread(20_000);
    let mut config = SimConfig::default();
    let mean_ns = |config: &SimConfig| {
        let mix = OperationMix::named("read-only").unwrap();
        measure(&mut testbed(config, &keys), &run_of(&mix, &keys, 1)).latency_ns.mean()
    };
    let cost = config.cost;
    // 20,000 records in leaves of 42, and parents of 42 leaves: a root, inner nodes and leaves.
    let expected_ns = cost.client_ns + 3 * cost.visit_node_ns;
    assert_eq!(mean_ns(&config).round() as u64, expected_ns);
    config.cost.visit_node_ns *= 2;
    assert_eq!(mean_ns(&config).round() as u64, expected_ns + 3 * cost.visit_node_ns);
}

#[test]
fn the_report_counts_the_machines_memory() {
    let keys = KeySpace::spread(100_000);
    let testbed = testbed(&LocalConfig::default(), &keys);
    let of_servers: u64 = testbed.usage().iter().map(|usage| usage.allocated_bytes).sum();
    assert_eq!(of_servers, u64::from(SERVERS) * 1024, "nothing but superblocks");
    let report =
        Report::default().with_memory(&testbed.usage(), testbed.local_bytes(), testbed.records());
    let per_key = report.memory.pool_bytes_per_key;
    assert!((24.0..27.0).contains(&per_key), "{per_key} bytes a key at 70% fill");
}

#[test]
fn removals_are_collected_on_the_way() {
    let provider = LocalConfig::default();
    let cluster = provider.start(services());
    let compute = &<SingleMachine as Design<Fixed8>>::compute(&options()).unwrap();
    cluster.run_one(|fabric| async move {
        <SingleMachine as Design<Fixed8>>::create(&fabric, &options()).await.unwrap();
        let index = <SingleMachine as Design<Fixed8>>::open(fabric, compute).await.unwrap();
        let keys = 0..50_000_u64;
        index.bulk_load(keys.clone().map(|key| (key, !key)), 0.7).await.unwrap();
        let full = compute.usage().nodes_in_use;
        for key in keys {
            assert_eq!(index.remove(&key).await, Ok(true));
        }
        let usage = compute.usage();
        assert!(usage.nodes_in_use < full / 4, "{} of {full} nodes", usage.nodes_in_use);
        assert!(usage.deleted_records < 12_500, "{} records", usage.deleted_records);
    });
}

#[test]
fn machines_are_strangers_to_each_other() {
    let provider = LocalConfig::default();
    let cluster = provider.start(services());
    let machine = || <SingleMachine as Design<Fixed8>>::compute(&options()).unwrap();
    let (first, second) = (&machine(), &machine());
    cluster.run_one(|fabric| async move {
        <SingleMachine as Design<Fixed8>>::create(&fabric, &options()).await.unwrap();
        let open = |machine| <SingleMachine as Design<Fixed8>>::open(fabric.clone(), machine);
        assert_eq!(open(first).await.unwrap().insert(&1, &2).await, Ok(true));
        assert_eq!(open(first).await.unwrap().get(&1).await, Ok(Some(2)), "Y2");
        assert_eq!(open(second).await.unwrap().get(&1).await, Ok(None), "Y2");
    });
}
