//! Features that only the simulator has: replay, faults, and limits of network and cores.

use farleaf_fabric::AnyFabric;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::sim::{Faults, NetworkModel, SimCluster, SimConfig};
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};
use farleaf_fabric::{
    Calls, Cluster, CostModel, Cpu, Fabric, FabricError, GlobalAddr, Message, Region, RpcService,
    Section, ServerId, ServiceCall, Uncertainty, Work,
};

const SERVER: ServerId = ServerId::new(0);

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(SERVER, offset)
}

fn start(config: SimConfig, servers: usize) -> SimCluster<TestService> {
    SimCluster::start(config, (0..servers).map(|_| TestService::new(16_384)).collect())
}

fn word(cluster: &SimCluster<TestService>, offset: u64) -> u64 {
    let service: &Arc<TestService> = cluster.services().next().unwrap();
    service.region().slice(offset, 1).unwrap()[0].load(Ordering::Acquire)
}

/// Runs some operations of each kind; returns each client's observations with their times.
fn trace(seed: u64) -> (Vec<Option<Vec<String>>>, u64) {
    let faults = Faults {
        drop_probability: 0.02,
        late_probability: 0.02,
        max_late_ns: 100_000,
        timeout_ns: 200_000,
        kill_compute_server_at_ns: vec![(2, 300_000)],
        ..Faults::rough()
    };
    let cluster = start(SimConfig { seed, faults, ..SimConfig::default() }, 2);
    let traces = cluster.run(&[0, 0, 1, 1, 2], |fabric, client| async move {
        let mut trace = Vec::new();
        for round in 0..40 {
            let offset = fabric.random() % 64 * 8;
            let place = GlobalAddr::new(ServerId::new((round % 2) as u16), offset);
            let write = fabric.write(place, fabric.buffer(256).unwrap());
            let read = fabric.read(place, fabric.buffer(512).unwrap());
            let add = fabric.fetch_add(place, client as u64);
            let call = fabric.call(place.server(), TestService::add_word(offset, 1));
            fabric.charge(Work::VisitNode).await;
            trace.push(format!("{} write {:?}", fabric.now_ns(), write.await.map(|_| ())));
            let found = read.await.map(|buffer| buffer.get(3));
            trace.push(format!("{} read {found:?}", fabric.now_ns()));
            trace.push(format!("{} add {:?}", fabric.now_ns(), add.await));
            trace.push(format!("{} call {:?}", fabric.now_ns(), call.await));
        }
        trace
    });
    (traces, cluster.statistics().trace_hash)
}

#[test]
fn a_seed_replays() {
    let (first, first_hash) = trace(7);
    let (second, second_hash) = trace(7);
    assert_eq!(first, second);
    assert_eq!(first_hash, second_hash);
    assert!(first[..4].iter().all(Option::is_some));
    assert!(first[4].is_none(), "its compute server died");
    let (other, other_hash) = trace(8);
    assert_ne!(first, other);
    assert_ne!(first_hash, other_hash);
}

#[test]
fn reads_are_torn_on_purpose() {
    let mixtures = |faults| {
        let cluster = start(SimConfig { faults, ..SimConfig::default() }, 1);
        let seen = cluster.run(&[0, 1], |fabric, client| async move {
            let mut mixtures = 0;
            for round in 0..200 {
                let buffer = fabric.buffer(256).unwrap();
                if client == 0 {
                    (0..32).for_each(|index| buffer.set(index, round));
                    fabric.write(at(0), buffer).await.unwrap();
                } else {
                    let found = fabric.read(at(0), buffer).await.unwrap();
                    mixtures += u32::from((0..32).any(|index| found.get(index) != found.get(0)));
                }
            }
            mixtures
        });
        seen[1].unwrap()
    };
    assert!(mixtures(Faults::rough()) > 20);
    assert_eq!(mixtures(Faults::default()), 0, "without faults a verb is one instant");
}

#[test]
fn lost_messages_end_as_indeterminate() {
    let timeout_ns = 50_000;
    let faults = Faults { drop_probability: 0.2, timeout_ns, ..Faults::default() };
    let cluster = start(SimConfig { faults, ..SimConfig::default() }, 1);
    let (mut answered, mut unknown) = (0, 0);
    let outcomes = cluster.run_one(|fabric| async move {
        let mut outcomes = Vec::new();
        for _ in 0..200 {
            let before_ns = fabric.now_ns();
            outcomes.push((fabric.fetch_add(at(0), 1).await, fabric.now_ns() - before_ns));
        }
        assert!(fabric.counters().snapshot().indeterminate > 0);
        outcomes
    });
    for (outcome, took_ns) in outcomes {
        match outcome {
            Ok(_) => answered += 1,
            Err(error) => {
                let why = Uncertainty::TimedOut;
                assert_eq!(error, FabricError::Indeterminate { server: SERVER, why });
                assert_eq!(took_ns, timeout_ns);
                unknown += 1;
            }
        }
    }
    // A lost request has no effect, but a request with a lost reply does: the sum is in between.
    let sum = word(&cluster, 0);
    assert!(answered > 50 && unknown > 20);
    assert!(answered < sum && sum < answered + unknown, "{answered} < {sum}, {unknown} unknown");
}

#[test]
fn late_requests_take_effect_after_their_deadline() {
    let (timeout_ns, max_late_ns) = (20_000, 40_000);
    let faults = Faults { late_probability: 1.0, max_late_ns, timeout_ns, ..Faults::default() };
    let cluster = start(SimConfig { faults, ..SimConfig::default() }, 1);
    cluster.run_one(|fabric| async move {
        let buffer = fabric.buffer(64).unwrap();
        buffer.set(0, 5);
        assert!(fabric.write(at(0), buffer).await.is_err());
        assert!(fabric.call(SERVER, TestService::add_word(8, 1)).await.is_err());
    });
    assert_eq!(word(&cluster, 0), 0, "the WRITE was given up before it happened");
    cluster.run_one(|fabric| async move { fabric.sleep(2 * max_late_ns + 100_000).await });
    assert_eq!(word(&cluster, 0), 5, "and happened after that, in a later run");
    assert_eq!(word(&cluster, 8), 1);
}

#[test]
fn a_write_that_was_lost_takes_its_followers_with_it() {
    let faults = Faults { drop_probability: 0.3, timeout_ns: 50_000, ..Faults::default() };
    for seed in 0..30 {
        let config = SimConfig { seed, faults: faults.clone(), ..SimConfig::default() };
        let cluster = start(config, 1);
        cluster.run_one(|fabric| async move {
            let writes: Vec<_> = (0..8)
                .map(|index| {
                    let buffer = fabric.buffer(8).unwrap();
                    buffer.set(0, 1);
                    fabric.write(at(index * 8), buffer)
                })
                .collect();
            for write in writes {
                let _ = write.await;
            }
        });
        let landed: Vec<u64> = (0..8).map(|index| word(&cluster, index * 8)).collect();
        assert!(landed.is_sorted_by(|a, b| a >= b), "a later WRITE without an earlier: {landed:?}");
    }
}

#[test]
fn servers_die_while_clients_run() {
    let faults = Faults {
        detect_death_ns: 10_000,
        kill_memory_server_at_ns: vec![(0, 30_000)],
        ..Faults::default()
    };
    let cluster = start(SimConfig { faults, ..SimConfig::default() }, 2);
    let control = cluster.control();
    let control = &control;
    let ends = cluster.run(&[0, 1, 1], |fabric, client| async move {
        if client == 2 {
            // A client that kills its own compute server does not continue.
            fabric.sleep(60_000).await;
            control.kill_compute_server(1);
            fabric.sleep(0).await;
            unreachable!("it is dead");
        }
        loop {
            let call = fabric.call(SERVER, TestService::work(20));
            let read = fabric.read(at(0), fabric.buffer(64).unwrap());
            let why = Uncertainty::ConnectionLost;
            match (call.await, read.await) {
                (Ok(_), Ok(_)) => {}
                (_, Err(error)) => {
                    assert_eq!(error, FabricError::Indeterminate { server: SERVER, why });
                    break;
                }
                (Err(error), Ok(_)) => {
                    assert_eq!(error, FabricError::Indeterminate { server: SERVER, why });
                }
            }
        }
        let noticed_ns = fabric.now_ns();
        if client == 1 {
            fabric.sleep(1_000_000).await;
        }
        noticed_ns
    });
    let noticed_ns = ends[0].unwrap();
    assert!((40_000..60_000).contains(&noticed_ns), "{noticed_ns}");
    assert_eq!(ends[1..], [None, None]);
    assert_eq!(cluster.run(&[1], |_, _| async { 1 }), [None], "the dead stay dead");
    let other = cluster.run_one(|fabric| async move {
        fabric.fetch_add(GlobalAddr::new(ServerId::new(1), 0), 1).await
    });
    assert_eq!(other, Ok(0));
}

#[test]
#[should_panic(expected = "deadlock at")]
fn a_deadlock_is_reported() {
    start(SimConfig::default(), 1).run_one(|_| std::future::pending::<()>());
}

#[test]
#[should_panic(expected = "give_up_after_ns")]
fn an_endless_loop_is_reported() {
    let config = SimConfig { give_up_after_ns: 1_000_000, ..SimConfig::default() };
    start(config, 1).run_one(|fabric| async move {
        loop {
            fabric.sleep(0).await;
        }
    })
}

#[test]
fn an_unloaded_verb_takes_what_the_model_says() {
    let network = NetworkModel::default();
    let cluster = start(SimConfig::default(), 1);
    for bytes in [8, 1024, 4096] {
        let (read_ns, write_ns, add_ns) = cluster.run_one(|fabric| async move {
            let start_ns = fabric.now_ns();
            let buffer = fabric.read(at(0), fabric.buffer(bytes).unwrap()).await.unwrap();
            let read_ns = fabric.now_ns();
            fabric.write(at(0), buffer).await.unwrap();
            let write_ns = fabric.now_ns();
            fabric.fetch_add(at(0), 1).await.unwrap();
            (read_ns - start_ns, write_ns - read_ns, fabric.now_ns() - write_ns)
        });
        assert_eq!(read_ns, network.unloaded_verb_ns(0, bytes));
        assert_eq!(write_ns, network.unloaded_verb_ns(bytes, 0));
        assert_eq!(add_ns, network.unloaded_verb_ns(16, 8));
    }
    assert_eq!(network.unloaded_verb_ns(0, 8), 2_000, "the figure of the documentation");
}

/// The rate at which `clients` complete `operations` operations in total.
fn rate_per_s<Fut: Future<Output = ()>>(
    config: SimConfig,
    clients: &[u16],
    operations: usize,
    body: impl Fn(farleaf_fabric::AnyFabric, usize) -> Fut + Sync,
) -> f64 {
    let cluster = start(config, 1);
    cluster.run(clients, body);
    operations as f64 * 1e9 / cluster.now_ns() as f64
}

fn assert_near(measured: f64, expected: f64) {
    assert!((measured / expected - 1.0).abs() < 0.05, "{measured} is not near {expected}");
}

#[test]
fn bandwidth_is_a_limit() {
    let clients: Vec<u16> = (0..16).collect();
    let config = SimConfig::default();
    let wire_bytes = 4096 + config.network.header_bytes;
    let expected = config.network.bandwidth_bytes_per_s as f64 / wire_bytes as f64;
    let rate = rate_per_s(config, &clients, 16 * 500, |fabric, _| async move {
        for _ in 0..500 {
            fabric.read(at(0), fabric.buffer(4096).unwrap()).await.unwrap();
        }
    });
    assert_near(rate, expected);
}

#[test]
fn message_rate_is_a_limit() {
    let clients: Vec<u16> = (0..64).collect();
    let mut config = SimConfig::default();
    config.network.ns_per_message = 50;
    let rate = rate_per_s(config, &clients, 64 * 500, |fabric, _| async move {
        for _ in 0..500 {
            fabric.read(at(0), fabric.buffer(8).unwrap()).await.unwrap();
        }
    });
    assert_near(rate, 1e9 / 50.0);
}

#[test]
fn cores_are_a_limit() {
    let cost = CostModel::default();
    let clients: Vec<u16> = (0..32).map(|client| client % 4).collect();
    for cores in [1, 2] {
        let config = SimConfig { cores_per_memory_server: cores, ..SimConfig::default() };
        let service_ns = cost.dispatch_ns + cost.visit_node_ns;
        let cluster = start(config, 1);
        cluster.run(&clients, |fabric, _| async move {
            for _ in 0..200 {
                fabric.call(SERVER, TestService::add_word(0, 1)).await.unwrap();
            }
        });
        let now_ns = cluster.now_ns() as f64;
        assert_near(32.0 * 200.0 * 1e9 / now_ns, cores as f64 * 1e9 / service_ns as f64);
        let server = cluster.statistics().memory_servers[0];
        assert_eq!(server.requests, 32 * 200);
        assert_eq!(server.core_busy_ns, 32 * 200 * service_ns);
        assert_near(server.core_busy_ns as f64, now_ns * cores as f64);
    }
}

#[test]
fn an_endpoint_is_one_thread() {
    let cluster = start(SimConfig::default(), 1);
    let visit_ns = CostModel::default().visit_node_ns;
    let ended_ns = cluster.run_one(|fabric| async move {
        let before_ns = fabric.now_ns();
        let mut first = std::pin::pin!(fabric.charge(Work::VisitNode));
        let mut second = std::pin::pin!(fabric.charge(Work::VisitNode));
        let mut ended = [false; 2];
        std::future::poll_fn(|context| {
            ended[0] = ended[0] || first.as_mut().poll(context).is_ready();
            ended[1] = ended[1] || second.as_mut().poll(context).is_ready();
            if ended == [true; 2] { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        fabric.now_ns() - before_ns
    });
    assert_eq!(ended_ns, 2 * visit_ns);
}

#[test]
fn a_thread_that_runs_ahead_posts_in_its_own_time() {
    let visit_ns = CostModel::default().visit_node_ns;
    let run = |quantum_ns| {
        let cluster = start(SimConfig { quantum_ns, ..SimConfig::default() }, 1);
        let times = cluster.run_one(|fabric| async move {
            let mut times = Vec::new();
            for visits in [1, 3, 40] {
                for _ in 0..visits {
                    fabric.charge(Work::VisitNode).await;
                }
                times.push(fabric.now_ns());
                fabric.charge(Work::ChangeNode).await;
                times.push(fabric.now_ns());
                let read = fabric.read(GlobalAddr::new(SERVER, 0), fabric.buffer(64).unwrap());
                read.await.unwrap();
                fabric.charge(Work::VisitNode).await;
                fabric.sleep(500).await;
                times.push(fabric.now_ns());
            }
            times
        });
        (times, cluster.statistics().events)
    };
    let (exact, exact_events) = run(0);
    let (ahead, ahead_events) = run(4 * visit_ns);
    assert_eq!(ahead, exact);
    // Of the 44 charges before a READ, those of the first two rounds need no event, and of the
    // other 40 only every fifth does; the three after it need none.
    assert_eq!(exact_events - ahead_events, 1 + 3 + 32 + 3);
}

/// A cluster whose network differs from the usual one in one way.
fn with_network(change: impl FnOnce(&mut NetworkModel)) -> SimConfig {
    let mut config = SimConfig::default();
    change(&mut config.network);
    config
}

/// The virtual time that all clients of one compute server together need.
fn time_of<Fut: Future<Output = ()>>(
    config: SimConfig,
    clients: usize,
    work: impl Fn(AnyFabric, usize) -> Fut + Sync,
) -> u64 {
    let cluster = start(config, 1);
    cluster.run(&vec![0; clients], work);
    cluster.statistics().now_ns
}

#[test]
fn atomics_take_turns_on_a_unit_and_on_a_word() {
    let add = |same_word: bool| {
        move |fabric: AnyFabric, client: usize| async move {
            let offset = if same_word { 0 } else { client as u64 * 8 };
            for _ in 0..100 {
                fabric.fetch_add(GlobalAddr::new(SERVER, offset), 1).await.unwrap();
            }
        }
    };
    let free = time_of(SimConfig::default(), 8, add(true));
    assert_near(free as f64, 100.0 * 2_000.0);
    let by_word = with_network(|network| network.atomic_word_ns = 1_000);
    assert_near(time_of(by_word.clone(), 8, add(true)) as f64, 800.0 * 1_000.0);
    assert_eq!(time_of(by_word, 8, add(false)), time_of(SimConfig::default(), 8, add(false)));
    let by_unit = with_network(|network| network.atomic_unit_ns = 1_000);
    assert_near(time_of(by_unit, 8, add(false)) as f64, 800.0 * 1_000.0);
}

/// The clients of one compute server enter a section ten times each. A thread spends 100 ns in it.
fn time_in_section(numa_factor: u64, quantum_ns: u64, clients: usize, between_ns: u64) -> u64 {
    let cost = CostModel { cooling_queue_ns: 100, numa_factor, ..CostModel::default() };
    let config = SimConfig { cost, quantum_ns, ..SimConfig::default() };
    time_of(config, clients, move |fabric, _| async move {
        for _ in 0..10 {
            fabric.charge(Work::Enter(Section::CoolingQueue)).await;
            if between_ns > 0 {
                fabric.sleep(between_ns).await;
            }
        }
    })
}

#[test]
fn the_threads_of_a_server_take_turns_in_a_section() {
    assert_eq!(time_in_section(1, 0, 1, 0), 10 * 100);
    assert_eq!(time_in_section(1, 0, 4, 0), 40 * 100);
    // A thread that sleeps while three others are inside is not late for its next turn.
    assert_eq!(time_in_section(1, 0, 4, 300), 40 * 100 + 300);
    // If two threads alternate, each entry but the first finds the section on the other socket.
    assert_eq!(time_in_section(3, 0, 2, 0), 100 + 19 * 300);
    assert_eq!(time_in_section(3, 0, 1, 0), 10 * 100);
    assert_eq!(time_in_section(3, 1_000, 2, 0), 100 + 19 * 300);
    // By default a section of frames takes no time.
    let cost = CostModel::default();
    assert_eq!(cost.ns(Work::CopyBytes(16_000)), cost.ns(Work::CopyRecords(1_000)));
    assert_eq!(cost.ns(Work::Enter(Section::CoolingQueue)), 0);
}

/// Sections of different compute servers are independent, and a thread arrives at its own time.
#[test]
fn a_section_belongs_to_one_server_and_to_virtual_time() {
    let cost = CostModel { cooling_queue_ns: 100, ..CostModel::default() };
    let quantum_ns = 1_000;
    let cluster = start(SimConfig { cost, quantum_ns, ..SimConfig::default() }, 1);
    let left = cluster.run(&[0, 0, 1], |fabric, client| async move {
        // The first client runs ahead of virtual time, and must not delay the second one.
        let visits = if client == 0 { 5 } else { 0 };
        for _ in 0..visits {
            fabric.charge(Work::VisitNode).await;
        }
        fabric.charge(Work::Enter(Section::CoolingQueue)).await;
        fabric.now_ns()
    });
    let visit_ns = CostModel::default().visit_node_ns;
    assert_eq!(left, [Some(5 * visit_ns + 100), Some(100), Some(100)]);
}

/// A thread that waits for its turn spins: its other tasks wait too.
#[test]
fn a_thread_in_a_section_does_nothing_else() {
    let cost = CostModel { cooling_queue_ns: 100, ..CostModel::default() };
    let cluster = start(SimConfig { cost, ..SimConfig::default() }, 1);
    let left = cluster.run_one(|fabric| async move {
        let mut first = std::pin::pin!(fabric.charge(Work::Enter(Section::CoolingQueue)));
        let mut second = std::pin::pin!(fabric.charge(Work::VisitNode));
        std::future::poll_fn(|context| {
            let entered = first.as_mut().poll(context);
            if entered.is_pending() {
                assert!(second.as_mut().poll(context).is_pending());
            }
            entered
        })
        .await;
        second.await;
        fabric.now_ns()
    });
    assert_eq!(left, 100 + CostModel::default().visit_node_ns);
}

#[test]
fn a_second_port_doubles_what_a_nic_sends() {
    let read = |fabric: AnyFabric, _| async move {
        for _ in 0..100 {
            let buffer = fabric.buffer(4096).unwrap();
            fabric.read(GlobalAddr::new(SERVER, 0), buffer).await.unwrap();
        }
    };
    // 4,156 bytes occupy a port for 333 ns.
    let of = |ports| time_of(with_network(|network| network.ports = ports), 32, read) as f64;
    assert_near(of(1), 3_200.0 * 333.0);
    assert_near(of(2), 3_200.0 * 333.0 / 2.0);
}

#[test]
fn a_co_located_server_is_reached_without_the_network() {
    let cluster = start(with_network(|network| network.co_located = true), 2);
    cluster.run(&[0, 1], async |fabric, client| {
        for server in [0, 1] {
            let before_ns = fabric.now_ns();
            let place = GlobalAddr::new(ServerId::new(server), 0);
            fabric.read(place, fabric.buffer(8).unwrap()).await.unwrap();
            let took_ns = fabric.now_ns() - before_ns;
            let local = usize::from(server) == client;
            // Post and doorbell, twice the time of a short message, and the memory access.
            assert_eq!(took_ns, if local { 300 } else { 2_000 });
            let call = fabric.call(place.server(), TestService::work(1));
            let before_ns = fabric.now_ns();
            call.await.unwrap();
            assert_eq!(fabric.now_ns() - before_ns < 1_700, local);
        }
    });
    let statistics = cluster.statistics();
    // Only messages to and from the other machine occupied a port, on both sides.
    let of_servers = statistics.memory_servers.iter().map(|server| server.nic);
    for nic in of_servers.chain(statistics.compute_server_nics.iter().copied()) {
        assert_eq!((nic.messages_sent, nic.messages_received), (2, 2), "{statistics:?}");
    }
}

/// A service without memory, like a compute server's.
struct Echo;

impl Calls for Echo {
    fn memory(&self) -> Option<&Arc<Region>> {
        None
    }

    async fn call<C: Cpu>(&self, _cpu: &C, call: ServiceCall<'_>) {
        call.reply.extend_from_slice(call.request);
    }
}

/// The servers of a run share one sequence of numbers, but compute servers' numbers are not memory
/// servers' numbers.
#[test]
fn no_compute_server_is_co_located_with_itself() {
    let config = with_network(|network| network.co_located = true);
    let cluster = SimCluster::start(config, vec![Arc::new(Echo)]);
    let took_ns = cluster.run_one(|fabric| async move {
        fabric.call(SERVER, Message::from_slice(&[1; 8])).await.unwrap();
        fabric.now_ns()
    });
    assert!(took_ns > 2 * NetworkModel::default().one_way_ns, "{took_ns} ns");
}

#[test]
fn requests_on_several_cores_interleave() {
    let config = SimConfig { cores_per_memory_server: 2, ..SimConfig::default() };
    let cluster = start(config, 1);
    let order = AtomicU64::new(0);
    let order = &order;
    cluster.run_one(|fabric| async move {
        let slow = fabric.call(SERVER, TestService::work(1_000));
        let quick = fabric.call(SERVER, TestService::work(1));
        quick.await.unwrap();
        order.store(fabric.now_ns(), Ordering::Relaxed);
        slow.await.unwrap();
    });
    assert!(order.load(Ordering::Relaxed) < 10_000, "the quick one did not wait for the slow one");
    assert!(cluster.now_ns() > 70_000);
}

/// F9 in the case that matters: the message of an abandoned operation is still in flight.
#[test]
fn a_reset_drops_what_is_late() {
    let faults = Faults {
        late_probability: 1.0,
        max_late_ns: 40_000,
        timeout_ns: 20_000,
        ..Faults::rough()
    };
    for seed in 0..40 {
        let config = SimConfig { seed, faults: faults.clone(), ..SimConfig::default() };
        let cluster = start(config, 1);
        cluster.run_one(|fabric| async move {
            let buffer = fabric.buffer(512).unwrap();
            (0..64).for_each(|index| buffer.set(index, 5));
            let write = fabric.write(at(0), buffer);
            let swap = fabric.compare_swap(at(4096), 0, 1);
            assert!(write.await.is_err() && swap.await.is_err());
            fabric.sleep(fabric.random() % 40_000).await;
            fabric.reset(SERVER).await.unwrap();
        });
        let settled: Vec<u64> = (0..64).map(|index| word(&cluster, index * 8)).collect();
        let swapped = word(&cluster, 4096);
        cluster.run_one(|fabric| async move { fabric.sleep(200_000).await });
        let later: Vec<u64> = (0..64).map(|index| word(&cluster, index * 8)).collect();
        assert_eq!((later, word(&cluster, 4096)), (settled, swapped), "seed {seed}");
    }
}

/// F10: a dead compute server's messages in flight take effect before the fence or never.
#[test]
fn a_fence_stops_the_messages_of_the_dead() {
    let mut landed = 0;
    for seed in 0..60 {
        let faults = Faults {
            late_probability: 0.3,
            max_late_ns: 60_000,
            timeout_ns: 20_000,
            ..Faults::rough()
        };
        let cluster = start(SimConfig { seed, faults, ..SimConfig::default() }, 1);
        let control = cluster.control();
        let control = &control;
        let seen = cluster.run(&[1, 2], |fabric, client| async move {
            if client == 0 {
                for index in 0..16 {
                    let buffer = fabric.buffer(512).unwrap();
                    (0..64).for_each(|index| buffer.set(index, 7));
                    drop(fabric.write(at(index * 512), buffer));
                }
                std::future::pending::<()>().await;
            }
            fabric.sleep(1_000 + seed * 50).await;
            control.kill_compute_server(1);
            while fabric.fence(SERVER, 1).await.is_err() {}
            let mut words = Vec::new();
            for index in 0..16 {
                words.push(loop {
                    let read = fabric.read(at(index * 512), fabric.buffer(512).unwrap()).await;
                    if let Ok(buffer) = read {
                        break (0..64).map(|word| buffer.get(word)).collect::<Vec<_>>();
                    }
                });
            }
            words.concat()
        });
        let seen = seen.into_iter().flatten().next().expect("client 1 lives");
        landed += seen.iter().filter(|word| **word == 7).count();
        cluster.run(&[3], |fabric, _| async move { fabric.sleep(300_000).await });
        let later: Vec<u64> = (0..16 * 64).map(|index| word(&cluster, index * 8)).collect();
        assert_eq!(later, seen, "seed {seed}");
    }
    assert!(landed > 0, "some of it landed before");
}
