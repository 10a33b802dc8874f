//! The driver's guarantees for runs in which keys move: planned moves happen when they are due, a
//! balancer spreads a hotspot and then rests, and no operation fails because of moves.

use farleaf_bench::driver::{
    BenchRun, HotspotShift, Measurement, MeasurementMoment, PlannedChange, Reshaping, Testbed,
    TopologyChange, WorkAmount,
};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::timeline::Interval;
use farleaf_bench::workload::{HarnessDeviations, OperationMix, StreamConfig};
use farleaf_dex::cache::{AdmissionName, CacheOptions};
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Provider, ServerId};
use farleaf_index::{BalanceOptions, IndexError};
use farleaf_page::Fixed8;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_trees::coarse::Coarse;

fn services() -> Vec<Arc<MemoryServer<Fixed8>>> {
    let config = MemoryServerConfig { pool_bytes: 64 << 20, ..Default::default() };
    let server = |number| Arc::new(MemoryServer::new(ServerId::new(number), &config).unwrap());
    (0..2).map(server).collect()
}

fn run_of(
    keys: &KeySpace,
    compute_servers: u16,
    amount: WorkAmount,
    reshaping: Reshaping,
) -> BenchRun {
    let mix = OperationMix::named("ycsb-a").unwrap();
    let distribution = mix.distribution;
    let stream = StreamConfig {
        mix,
        distribution,
        clustered: false,
        keys: keys.clone(),
        seed: 7,
        harness: HarnessDeviations::default(),
    };
    let timeline = Some(Interval::Parts(60));
    let own_keys = false;
    BenchRun {
        stream,
        compute_servers,
        threads: 4,
        amount,
        shift: None,
        timeline,
        batch: 1,
        own_keys,
        reshaping,
    }
}

fn dex(provider: &impl Provider, keys: &KeySpace, options: &DexOptions<u64>) -> Testbed<Dex> {
    let mut testbed = Testbed::<Dex>::start(provider, services(), options).unwrap();
    testbed.load(keys, 0.7, &|_| ()).unwrap();
    testbed
}

fn order(at: f64, from: u16, to: u16, part: f64) -> PlannedChange {
    PlannedChange {
        at: MeasurementMoment::Share(at),
        change: TopologyChange::Move { from, to, part },
    }
}

/// A spare compute server takes half of one server's keys, and later all keys of another.
fn join_and_leave(provider: &impl Provider, amount: WorkAmount) -> Measurement {
    let keys = KeySpace::spread(20_000);
    let options = DexOptions {
        spare_compute_servers: 1,
        ..DexOptions::with_boundaries(keys.boundaries(&[1; 2]), CacheOptions::default())
    };
    let changes = vec![order(0.3, 0, 2, 0.5), order(0.6, 1, 2, 1.0)];
    let reshaping = Reshaping { spare_compute_servers: 1, changes, ..Reshaping::default() };
    let run = run_of(&keys, 2, amount, reshaping);
    let measured = dex(provider, &keys, &options).measure(&run, &|_| ()).unwrap();
    assert_eq!((measured.errors, measured.misses), (0, 0));
    let moves: Vec<_> =
        measured.changes.iter().map(|made| made.outcome.clone().unwrap().moved).collect();
    assert_eq!(moves, [Some((0, 2)), Some((1, 2))]);
    measured
}

#[test]
fn keys_move_when_it_is_ordered() {
    for amount in [WorkAmount::Operations(60_000), WorkAmount::Nanoseconds(6_000_000)] {
        let measured = join_and_leave(&SimConfig::default(), amount);
        let timeline = measured.timeline.unwrap();
        let at = |made: usize| measured.changes[made].at_ns as f64 / timeline.elapsed_ns as f64;
        assert!(
            (0.25..0.35).contains(&at(0)) && (0.55..0.65).contains(&at(1)),
            "{:?}",
            timeline.marks
        );
        let of = |server: usize| timeline.share_of(server);
        let (first, last) = (1, timeline.len() - 2);
        assert!(of(0)[first] > 0.3 && of(1)[first] > 0.3 && of(2)[first] == 0.0);
        assert!(of(0)[last] > 0.1 && of(1)[last] == 0.0 && of(2)[last] > 0.6);
    }
}

#[test]
fn keys_move_beside_real_threads() {
    join_and_leave(&LocalConfig::default(), WorkAmount::Operations(200_000));
}

/// With `own_keys`, clients of uninvolved compute servers do not wait for a move, and a newcomer's
/// clients start once it owns keys.
#[test]
fn who_asks_for_own_keys_is_not_disturbed() {
    let keys = KeySpace::spread(200_000);
    let cache = CacheOptions { admission: AdmissionName::Hot, ..CacheOptions::default() };
    let options = DexOptions {
        spare_compute_servers: 1,
        ..DexOptions::with_boundaries(keys.boundaries(&[1; 2]), cache)
    };
    let reshaping = Reshaping {
        spare_compute_servers: 1,
        changes: vec![order(0.5, 0, 2, 0.5)],
        ..Reshaping::default()
    };
    let mut run = run_of(&keys, 2, WorkAmount::Nanoseconds(20_000_000), reshaping);
    run.own_keys = true;
    run.timeline = Some(Interval::Nanoseconds(200_000));
    let measured = dex(&SimConfig::default(), &keys, &options).measure(&run, &|_| ()).unwrap();
    assert_eq!((measured.errors, measured.misses), (0, 0));
    let [made] = &*measured.changes else { panic!("{:?}", measured.changes) };
    let moved = made.outcome.as_ref().unwrap();
    assert!(moved.writes > 100, "there is something to wait for: {moved:?}");
    let timeline = measured.timeline.unwrap();
    let others = &timeline.compute_servers[1];
    let before: u64 = others[30..48].iter().sum::<u64>() / 18;
    assert!(others[48..58].iter().all(|now| now * 10 > before * 9), "{others:?}");
    let newcomer = &timeline.compute_servers[2];
    assert!(newcomer[..49].iter().all(|none| *none == 0) && newcomer[80] * 2 > before);
}

#[test]
fn a_balancer_spreads_a_hotspot_and_rests() {
    let keys = KeySpace::spread(100_000);
    let options = DexOptions {
        balance: BalanceOptions { one_in: 8, window_ns: 500_000, ..BalanceOptions::default() },
        ..DexOptions::with_boundaries(keys.boundaries(&[1; 4]), CacheOptions::default())
    };
    let reshaping = Reshaping { balance: true, ..Reshaping::default() };
    let mut run = run_of(&keys, 4, WorkAmount::Nanoseconds(60_000_000), reshaping);
    run.stream.clustered = true;
    run.stream.distribution = "zipfian:0.9".parse().unwrap();
    run.shift = Some(HotspotShift { at: MeasurementMoment::Share(0.5), by: 0.5 });
    run.timeline = Some(Interval::Nanoseconds(1_000_000));
    let measured = dex(&SimConfig::default(), &keys, &options).measure(&run, &|_| ()).unwrap();
    assert_eq!((measured.errors, measured.misses), (0, 0));
    assert!(measured.changes.iter().all(|made| made.by_balancer && made.outcome.is_ok()));
    let timeline = measured.timeline.unwrap();
    let busiest = timeline.busiest_share();
    let story = || format!("{busiest:?}\n{:?}", timeline.marks);
    assert!(busiest[0] > 0.6 && busiest[28] < 0.35, "{}", story());
    assert!(busiest[30] > 0.6 && busiest[58] < 0.35, "{}", story());
    let resting = |from: u64, to: u64| {
        let within = |at_ns: u64| (from * 1_000_000..to * 1_000_000).contains(&at_ns);
        measured.changes.iter().all(|made| !within(made.at_ns))
    };
    assert!(resting(22, 30) && resting(52, 60), "{}", story());
}

#[test]
fn designs_that_cannot_say_so() {
    let keys = KeySpace::spread(1_000);
    let provider = SimConfig::default();
    let boundaries = keys.boundaries(&[1; 2]);
    let options = farleaf_trees::coarse::CoarseOptions {
        partitioning: farleaf_trees::coarse::Partitioning::Range { boundaries },
    };
    let mut testbed = Testbed::<Coarse>::start(&provider, services(), &options).unwrap();
    testbed.load(&keys, 0.7, &|_| ()).unwrap();
    let changes = vec![order(0.5, 0, 1, 1.0)];
    let reshaping = Reshaping { balance: true, changes, ..Reshaping::default() };
    let run = run_of(&keys, 2, WorkAmount::Operations(2_000), reshaping);
    let measured = testbed.measure(&run, &|_| ()).unwrap();
    assert_eq!((measured.errors, measured.changes.len()), (0, 2));
    let refused = |error: &IndexError| matches!(error, IndexError::InvalidArgument(_));
    assert!(measured.changes.iter().all(|made| made.outcome.as_ref().is_err_and(refused)));
}

/// The WRITEs of write-back by age are counted. Without an age limit there are none, because
/// everything fits in the cache.
#[test]
fn what_is_written_back_by_age_counts() {
    let keys = KeySpace::spread(20_000);
    let writes = |write_back_ns: u64| {
        let cache = CacheOptions { write_back_ns, ..CacheOptions::default() };
        let options = DexOptions::with_boundaries(keys.boundaries(&[1; 2]), cache);
        let reshaping =
            Reshaping { write_back: (write_back_ns > 0).into(), ..Reshaping::default() };
        let run = run_of(&keys, 2, WorkAmount::Nanoseconds(20_000_000), reshaping);
        let measured = dex(&SimConfig::default(), &keys, &options).measure(&run, &|_| ()).unwrap();
        assert_eq!((measured.errors, measured.misses), (0, 0));
        assert!(measured.operations > 10_000, "{measured:?}");
        measured.counters.writes
    };
    let (never, rarely, often) = (writes(0), writes(5_000_000), writes(500_000));
    assert_eq!(never, 0, "nothing splits, and nothing has to go");
    assert!(0 < rarely && 2 * rarely < often, "{rarely} and {often} WRITEs");
}
