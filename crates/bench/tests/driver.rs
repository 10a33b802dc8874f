//! What the driver promises: every workload finds what it asks for, warm-up counts nowhere, failures are
//! counted, and a simulated run can be run again.

use farleaf::index::IndexError;
use farleaf::index::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf::page::Fixed8;
use farleaf::server::{MemoryServer, MemoryServerConfig};
use farleaf_bench::driver::{Amount, Measurement, Run, Testbed};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::workload::{Mix, NAMED_MIXES, OperationKind, StreamConfig};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};
use farleaf_fabric::{Provider, ServerId};

const SERVERS: u16 = 2;

fn services(pool_bytes: usize) -> Vec<Arc<MemoryServer<Fixed8>>> {
    let config = MemoryServerConfig { pool_bytes, chunk_bytes: 1 << 16, ..Default::default() };
    let server = |number| Arc::new(MemoryServer::new(ServerId::new(number), &config).unwrap());
    (0..SERVERS).map(server).collect()
}

fn testbed<P: Provider>(provider: &P, keys: &KeySpace, pool_bytes: usize) -> Testbed<Coarse, P> {
    let boundaries = keys.boundaries(&[1; SERVERS as usize]);
    let options = CoarseOptions { partitioning: Partitioning::Range { boundaries } };
    let mut testbed = Testbed::start(provider, services(pool_bytes), &options).unwrap();
    let reported = AtomicU64::new(0);
    let progress = |records| {
        reported.fetch_add(records, Ordering::Relaxed);
    };
    testbed.load(keys, 0.7, &progress).unwrap();
    assert_eq!(reported.into_inner(), keys.len(), "the load reports every record");
    testbed
}

fn run_of(mix: &Mix, keys: &KeySpace, amount: Amount) -> Run {
    let distribution = mix.distribution;
    let stream = StreamConfig {
        mix: mix.clone(),
        distribution,
        clustered: false,
        keys: keys.clone(),
        seed: 7,
    };
    Run { stream, compute_servers: 2, threads: 2, amount }
}

fn every_workload(provider: &impl Provider) -> Vec<Measurement> {
    let keys = KeySpace::spread(20_000);
    let mut testbed = testbed(provider, &keys, 64 << 20);
    let measure = |mix: &Mix| {
        let run = run_of(mix, &keys, Amount::Operations(10_001));
        let before = testbed.records();
        let measured = testbed.measure(&run, &|_| ()).unwrap();
        assert_eq!((measured.operations, measured.errors), (10_001, 0), "{}", mix.name);
        assert_eq!(measured.misses, 0, "{}: every key asked for is there", mix.name);
        assert_eq!(measured.latency_ns.len(), 10_001, "B1: without the warm-up");
        assert!(measured.elapsed_ns > 0);
        assert_eq!(testbed.records(), before + measured.inserted, "B3");
        assert_eq!(measured.inserted > 0, mix.insert_share() > 0.0);
        measured
    };
    NAMED_MIXES.iter().map(measure).collect()
}

#[test]
fn every_workload_finds_what_it_asks_for() {
    let local = every_workload(&LocalConfig::default());
    let simulated = every_workload(&SimConfig::default());
    for (mix, both) in NAMED_MIXES.iter().zip(local.iter().zip(&simulated)) {
        for measured in [both.0, both.1] {
            let rpcs = measured.counters.rpcs;
            match &*mix.name {
                // About half of the operations are two.
                "ycsb-f" => assert!((14_500..15_500).contains(&rpcs), "{rpcs}"),
                // A scan may need the next server too.
                "scan-intensive" | "scan-only" | "ycsb-e" => assert!((10_001..10_500).contains(&rpcs), "{rpcs}"),
                name => assert_eq!(rpcs, 10_001, "B1, {name}: one RPC for each, no warm-up"),
            }
            assert_eq!(measured.counters.reads + measured.counters.writes, 0);
        }
    }
}

#[test]
fn all_kinds_of_operations_are_done() {
    let keys = KeySpace::spread(1_000);
    let mix = Mix::new("all kinds")
        .with(OperationKind::Get, 1)
        .with(OperationKind::Insert, 1)
        .with(OperationKind::Reinsert, 1)
        .with(OperationKind::Upsert, 1)
        .with(OperationKind::Remove, 1)
        .with(OperationKind::CompareExchange, 1)
        .with(OperationKind::MultiGet { keys: 5 }, 1)
        .with(OperationKind::scan(10), 1);
    let measured = testbed(&SimConfig::default(), &keys, 64 << 20)
        .measure(&run_of(&mix, &keys, Amount::Operations(8_000)), &|_| ())
        .unwrap();
    assert_eq!((measured.operations, measured.errors), (8_000, 0));
    assert!(measured.misses > 500, "many removals and insertions come in vain");
}

#[test]
fn a_simulated_run_can_be_run_again() {
    let measure = |seed| {
        let keys = KeySpace::spread(5_000);
        let config = SimConfig { seed, faults: Faults::rough(), ..SimConfig::default() };
        let run = run_of(&Mix::named("ycsb-a").unwrap(), &keys, Amount::Nanoseconds(5_000_000));
        let measured = testbed(&config, &keys, 64 << 20).measure(&run, &|_| ()).unwrap();
        assert!((5_000_000..5_200_000).contains(&measured.elapsed_ns), "virtual time");
        (measured.operations, measured.elapsed_ns, measured.counters, measured.latency_ns)
    };
    assert_eq!(measure(3), measure(3));
    assert_ne!(measure(3), measure(4));
}

#[test]
fn a_full_memory_server_is_an_error_and_no_crash() {
    let keys = KeySpace::spread(1_000);
    let mix = Mix::named("insert-intensive").unwrap();
    let measured = testbed(&LocalConfig::default(), &keys, 1 << 17)
        .measure(&run_of(&mix, &keys, Amount::Operations(50_000)), &|_| ())
        .unwrap();
    assert!(measured.errors > 1_000, "{} errors", measured.errors);
    assert!(matches!(measured.first_error, Some(IndexError::OutOfMemory { .. })));
    assert_eq!(measured.latency_ns.len(), 50_000 - measured.errors, "B2");
}

#[test]
fn a_dead_memory_server_is_an_error_and_no_crash() {
    let keys = KeySpace::spread(1_000);
    let faults = Faults {
        detect_death_ns: 10_000,
        kill_memory_server_at_ns: vec![(1, 4_000_000)],
        ..Faults::default()
    };
    let config = SimConfig { faults, ..SimConfig::default() };
    let run = run_of(&Mix::named("ycsb-a").unwrap(), &keys, Amount::Nanoseconds(10_000_000));
    let measured = testbed(&config, &keys, 64 << 20).measure(&run, &|_| ()).unwrap();
    assert!(measured.errors > 0 && measured.errors < measured.operations);
    assert!(matches!(measured.first_error, Some(IndexError::Indeterminate(_))));
}

#[test]
fn a_full_key_space_is_an_error_and_no_endless_loop() {
    let keys = KeySpace::listed(&[(u64::MAX - 1, 0), (u64::MAX, 0)]).unwrap();
    let mix = Mix::named("insert-intensive").unwrap();
    let mut testbed = testbed(&LocalConfig::default(), &keys, 64 << 20);
    let measured =
        testbed.measure(&run_of(&mix, &keys, Amount::Operations(1_000)), &|_| ()).unwrap();
    assert!((400..600).contains(&measured.errors), "{} errors", measured.errors);
}
