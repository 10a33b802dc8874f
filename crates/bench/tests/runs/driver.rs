//! The driver's guarantees: every workload finds the keys it looks for, the warm-up does not count,
//! failures are counted, and a simulated run is repeatable.

use farleaf_bench::driver::{
    BenchRun, HotspotShift, Measurement, MeasurementMoment, Reshaping, Testbed, WorkAmount,
};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::timeline::Interval;
use farleaf_bench::workload::{
    HarnessDeviations, NAMED_MIXES, OperationKind, OperationMix, StreamConfig,
};
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};
use farleaf_fabric::{Provider, ServerId};
use farleaf_index::IndexError;
use farleaf_page::Fixed8;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};

const SERVERS: u16 = 2;

fn services(pool_bytes: usize) -> Vec<Arc<MemoryServer<Fixed8>>> {
    let config = MemoryServerConfig { pool_bytes, chunk_bytes: 1 << 16, ..Default::default() };
    let server = |number| Arc::new(MemoryServer::new(ServerId::new(number), &config).unwrap());
    (0..SERVERS).map(server).collect()
}

fn testbed(provider: &impl Provider, keys: &KeySpace, pool_bytes: usize) -> Testbed<Coarse> {
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

pub(super) fn run_of(mix: &OperationMix, keys: &KeySpace, amount: WorkAmount) -> BenchRun {
    let distribution = mix.distribution;
    let stream = StreamConfig {
        mix: mix.clone(),
        distribution,
        clustered: false,
        keys: keys.clone(),
        seed: 7,
        harness: HarnessDeviations::default(),
    };
    BenchRun {
        stream,
        compute_servers: 2,
        threads: 2,
        amount,
        shift: None,
        timeline: None,
        batch: 1,
        own_keys: false,
        reshaping: Reshaping::default(),
    }
}

fn every_workload(provider: &impl Provider, batch: usize) -> Vec<Measurement> {
    let keys = KeySpace::spread(20_000);
    let mut testbed = testbed(provider, &keys, 64 << 20);
    let measure = |mix: &OperationMix| {
        let run = BenchRun { batch, ..run_of(mix, &keys, WorkAmount::Operations(10_001)) };
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
    for batch in [1, 16] {
        let local = every_workload(&LocalConfig::default(), batch);
        let simulated = every_workload(&SimConfig::default(), batch);
        check_rpcs(&local, &simulated);
    }
}

fn check_rpcs(local: &[Measurement], simulated: &[Measurement]) {
    for (mix, both) in NAMED_MIXES.iter().zip(local.iter().zip(simulated)) {
        for measured in [both.0, both.1] {
            let rpcs = measured.counters.rpcs;
            match &*mix.name {
                // About half of the operations take two RPCs.
                "ycsb-f" => assert!((14_500..15_500).contains(&rpcs), "{rpcs}"),
                // A scan may continue on the next server.
                "scan-intensive" | "scan-only" | "ycsb-e" => {
                    assert!((10_001..10_500).contains(&rpcs), "{rpcs}")
                }
                name => assert_eq!(rpcs, 10_001, "B1, {name}: one RPC for each, no warm-up"),
            }
            assert_eq!(measured.counters.reads + measured.counters.writes, 0);
        }
    }
}

#[test]
fn operations_of_one_call_are_in_flight_together() {
    let keys = KeySpace::spread(20_000);
    let measure = |batch| {
        let amount = WorkAmount::Operations(10_000);
        let run =
            BenchRun { batch, ..run_of(&OperationMix::named("ycsb-a").unwrap(), &keys, amount) };
        let measured = testbed(&SimConfig::default(), &keys, 64 << 20).measure(&run, &|_| ());
        let measured = measured.unwrap();
        assert_eq!((measured.operations, measured.counters.rpcs), (10_000, 10_000));
        measured.elapsed_ns
    };
    let (alone, together) = (measure(1), measure(16));
    assert!(together * 2 < alone, "{together} {alone}: virtual time");
}

#[test]
fn all_kinds_of_operations_are_done() {
    let keys = KeySpace::spread(1_000);
    let mix = OperationMix::new("all kinds")
        .with(OperationKind::Get, 1)
        .with(OperationKind::Insert, 1)
        .with(OperationKind::Reinsert, 1)
        .with(OperationKind::Upsert, 1)
        .with(OperationKind::Remove, 1)
        .with(OperationKind::CompareExchange, 1)
        .with(OperationKind::MultiGet { keys: 5 }, 1)
        .with(OperationKind::scan(10), 1);
    let measured = testbed(&SimConfig::default(), &keys, 64 << 20)
        .measure(&run_of(&mix, &keys, WorkAmount::Operations(8_000)), &|_| ())
        .unwrap();
    assert_eq!((measured.operations, measured.errors), (8_000, 0));
    assert!(measured.misses > 500, "many removals and insertions come in vain");
}

#[test]
fn a_simulated_run_can_be_run_again() {
    let measure = |seed| {
        let keys = KeySpace::spread(5_000);
        let config = SimConfig { seed, faults: Faults::rough(), ..SimConfig::default() };
        let run = run_of(
            &OperationMix::named("ycsb-a").unwrap(),
            &keys,
            WorkAmount::Nanoseconds(5_000_000),
        );
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
    let mix = OperationMix::named("insert-intensive").unwrap();
    let measured = testbed(&LocalConfig::default(), &keys, 1 << 17)
        .measure(&run_of(&mix, &keys, WorkAmount::Operations(50_000)), &|_| ())
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
    let run =
        run_of(&OperationMix::named("ycsb-a").unwrap(), &keys, WorkAmount::Nanoseconds(10_000_000));
    let measured = testbed(&config, &keys, 64 << 20).measure(&run, &|_| ()).unwrap();
    assert!(measured.errors > 0 && measured.errors < measured.operations);
    assert!(matches!(measured.first_error, Some(IndexError::Indeterminate(_))));
}

/// Regression test: a second measurement repeated the keys of the first, which were all in the
/// cache by then.
#[test]
fn a_measurement_after_another_draws_other_operations() {
    let keys = KeySpace::spread(50_000);
    let options = DexOptions::with_boundaries(Vec::new(), CacheOptions::default());
    let provider = SimConfig::default();
    let mut testbed = Testbed::<Dex>::start(&provider, services(64 << 20), &options).unwrap();
    testbed.load(&keys, 0.7, &|_| ()).unwrap();
    let run =
        run_of(&OperationMix::named("read-only").unwrap(), &keys, WorkAmount::Operations(400));
    let run = BenchRun { compute_servers: 1, threads: 1, ..run };
    testbed.measure(&run, &|_| ()).unwrap();
    let second = testbed.measure(&run, &|_| ()).unwrap();
    assert!(second.counters.reads > 50, "{} READs for 400 operations", second.counters.reads);
}

#[test]
fn a_full_key_space_is_an_error_and_no_endless_loop() {
    let keys = KeySpace::listed(&[(u64::MAX - 1, 0), (u64::MAX, 0)]).unwrap();
    let mix = OperationMix::named("insert-intensive").unwrap();
    let mut testbed = testbed(&LocalConfig::default(), &keys, 64 << 20);
    let measured =
        testbed.measure(&run_of(&mix, &keys, WorkAmount::Operations(1_000)), &|_| ()).unwrap();
    assert!((400..600).contains(&measured.errors), "{} errors", measured.errors);
}

/// A run with a timeline and a hotspot that shifts half-way.
fn shifting_run(keys: &KeySpace, amount: WorkAmount, interval: Interval) -> BenchRun {
    let mut run = run_of(&OperationMix::named("ycsb-a").unwrap(), keys, amount);
    run.stream.clustered = true;
    run.shift = Some(HotspotShift { at: MeasurementMoment::Share(0.5), by: 0.5 });
    run.timeline = Some(interval);
    run
}

fn counts_every_operation_once(provider: &impl Provider, amount: WorkAmount, is_simulated: bool) {
    let keys = KeySpace::spread(5_000);
    for interval in [Interval::Parts(60), Interval::Nanoseconds(130_000)] {
        let run = shifting_run(&keys, amount, interval);
        let measured = testbed(provider, &keys, 64 << 20).measure(&run, &|_| ()).unwrap();
        let timeline = measured.timeline.unwrap();
        assert_eq!(timeline.operations.iter().sum::<u64>(), measured.operations, "B4");
        assert_eq!(timeline.errors.iter().sum::<u64>(), measured.errors, "B4");
        let of_servers = timeline.compute_servers.iter().flatten().sum::<u64>();
        assert_eq!(of_servers, measured.operations, "B4");
        if is_simulated {
            assert_eq!(measured.elapsed_ns, timeline.elapsed_ns);
        }
        let [mark] = &*timeline.marks else { panic!("one mark: {:?}", timeline.marks) };
        assert_eq!((Some(mark.at_ns), &*mark.label), (measured.shifted_at_ns, "hotspot shifts"));
        // Real threads may start one after the other.
        let share = mark.at_ns as f64 / timeline.elapsed_ns as f64;
        let expected = if is_simulated { 0.45..0.55 } else { 0.0..1.0 };
        assert!(expected.contains(&share), "half-way: {share}");
    }
}

#[test]
fn the_timeline_has_every_operation_once() {
    for amount in [WorkAmount::Operations(10_001), WorkAmount::Nanoseconds(4_000_000)] {
        counts_every_operation_once(&SimConfig::default(), amount, true);
        counts_every_operation_once(&LocalConfig::default(), amount, false);
    }
}

#[test]
fn a_simulated_timeline_can_be_run_again() {
    let measure = |seed| {
        let keys = KeySpace::spread(5_000);
        let config = SimConfig { seed, ..SimConfig::default() };
        let amount = WorkAmount::Operations(20_000);
        let run = shifting_run(&keys, amount, Interval::Nanoseconds(100_000));
        testbed(&config, &keys, 64 << 20).measure(&run, &|_| ()).unwrap().timeline.unwrap()
    };
    let timeline = measure(3);
    assert!(timeline.len() > 10 && timeline == measure(3) && timeline != measure(4));
}

#[test]
fn without_a_timeline_nothing_else_changes() {
    let measure = |timeline| {
        let keys = KeySpace::spread(5_000);
        let run = BenchRun {
            timeline,
            ..shifting_run(&keys, WorkAmount::Operations(5_000), Interval::Parts(60))
        };
        testbed(&SimConfig::default(), &keys, 64 << 20).measure(&run, &|_| ()).unwrap()
    };
    let (without, with) = (measure(None), measure(Some(Interval::Parts(10))));
    assert_eq!((without.elapsed_ns, without.counters), (with.elapsed_ns, with.counters));
    assert!(without.timeline.is_none() && with.timeline.is_some());
    assert_eq!(without.shifted_at_ns, with.shifted_at_ns);
}

#[test]
fn operations_count_for_the_owners_of_their_keys() {
    let keys = KeySpace::spread(20_000);
    let boundaries = keys.boundaries(&[1; 4]);
    let options = DexOptions::with_boundaries(boundaries, CacheOptions::default());
    let provider = SimConfig::default();
    let mut testbed = Testbed::<Dex>::start(&provider, services(64 << 20), &options).unwrap();
    testbed.load(&keys, 0.7, &|_| ()).unwrap();
    let run = shifting_run(&keys, WorkAmount::Nanoseconds(4_000_000), Interval::Parts(8));
    let run = BenchRun { compute_servers: 4, ..run };
    let measured = testbed.measure(&run, &|_| ()).unwrap();
    let timeline = measured.timeline.unwrap();
    let middle = timeline.len() / 2;
    let share = |server: usize, intervals: std::ops::Range<usize>| {
        let own: u64 = timeline.compute_servers[server][intervals.clone()].iter().sum();
        own as f64 / timeline.operations[intervals].iter().sum::<u64>() as f64
    };
    let (first, third) = (share(0, 0..middle - 1), share(2, middle + 1..timeline.len()));
    assert!(first > 0.8 && third > 0.8, "the hot quarter's owner: {first} and then {third}");
}
