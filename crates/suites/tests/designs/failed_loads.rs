//! Bulk loads that fail late, and their effects on the memory servers and on other clients.

use farleaf_fabric::sim::{Faults, SimConfig, Slow, Verb};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, Cpu, Fabric, Message, Provider, Region, RpcService, ServerId, Work};
use farleaf_index::{Design, IndexAdmin, IndexError, RangeIndex, ScanRequest};
use farleaf_page::{EditAction, Fixed8, LeafEdit};
use farleaf_pool::remote::{RemoteError, RpcClient};
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_pool::wire::{Refusal, Reply, Request, TreeRequest};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};

type Tiny = Fixed8<16>;
type Records = Vec<(u64, u64)>;

const FIRST: ServerId = ServerId::new(0);
/// The time limit of an operation.
const TIMEOUT_NS: u64 = 100_000;
const SHARE: u64 = 1_000;

/// How a memory server handles a request to publish its tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    Publishes,
    Refuses,
    IsSilent,
}

/// A memory server that can fail at the end of a load.
struct Server {
    server: MemoryServer<Tiny>,
    at_end: AtEnd,
}

impl RpcService for Server {
    fn region(&self) -> &Arc<Region> {
        self.server.region()
    }

    async fn handle<C: Cpu>(&self, cpu: &C, client: u16, request: &[u8], reply: &mut Message) {
        let decoded = Request::<Tiny>::decode(request);
        let ends = matches!(decoded, Some(Request::Tree(TreeRequest::LoadEnd { .. })));
        match self.at_end {
            AtEnd::Refuses if ends => Reply::<Tiny>::Refused(Refusal::NotLoading).encode(reply),
            AtEnd::IsSilent if ends => {
                for _ in 0..4 * TIMEOUT_NS / 500 {
                    cpu.charge(Work::RestructureNode).await;
                }
            }
            _ => self.server.handle(cpu, client, request, reply).await,
        }
    }

    async fn after_reply<C: Cpu>(&self, cpu: &C) {
        self.server.after_reply(cpu).await;
    }
}

fn servers<const N: usize>(at_end: [AtEnd; N]) -> Vec<Arc<Server>> {
    let config =
        MemoryServerConfig { pool_bytes: 4 << 20, chunk_bytes: 1 << 12, ..Default::default() };
    let server = |(number, at_end)| {
        let server = MemoryServer::new(ServerId::new(number), &config).unwrap();
        Arc::new(Server { server, at_end })
    };
    (0..).zip(at_end).map(server).collect()
}

/// A simulator in which operations time out, with enough cores for requests that get no answer.
fn simulator(faults: Faults) -> SimConfig {
    let faults = Faults { timeout_ns: TIMEOUT_NS, detect_death_ns: 10_000, ..faults };
    SimConfig { faults, cores_per_memory_server: 16, ..SimConfig::default() }
}

/// The boundaries of `servers` shares of `SHARE` keys each.
fn boundaries(servers: u64) -> Vec<u64> {
    (1..servers).map(|number| number * SHARE).collect()
}

fn coarse(servers: u64) -> CoarseOptions<u64> {
    CoarseOptions { partitioning: Partitioning::Range { boundaries: boundaries(servers) } }
}

/// Records for `servers` shares, with many leaves each.
fn records(servers: u64) -> Records {
    (0..servers * SHARE / 10).map(|number| (number * 10, number)).collect()
}

async fn begin<F: Fabric>(fabric: &F, server: ServerId, load: u64) -> Result<(), RemoteError> {
    RpcClient::<F, Tiny>::new(fabric.clone()).begin_load(server, load, 700).await
}

fn refused(server: ServerId, refusal: Refusal) -> Result<(), RemoteError> {
    Err(RemoteError::Refused { server, refusal })
}

/// A hybrid load whose records are reachable ends on all servers that answer, and the one that does
/// not answer can be loaded again.
#[test]
fn a_server_that_does_not_answer_keeps_no_other_from_publishing() {
    use AtEnd::{IsSilent, Publishes};
    for at_end in [[IsSilent, Publishes, Publishes], [Publishes, IsSilent, Publishes]] {
        let options = &HybridOptions::with_boundaries(boundaries(3));
        let cluster = simulator(Faults::default()).start(servers(at_end));
        cluster.run_one(|fabric| async move {
            <Hybrid as Design<Tiny>>::create(&fabric, options).await.unwrap();
            let index = <Hybrid as Design<Tiny>>::open(fabric.clone(), &()).await.unwrap();
            let loaded = index.bulk_load(records(3).into_iter(), 0.7).await;
            assert!(matches!(loaded, Err(IndexError::Indeterminate(_))), "{loaded:?}");
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), records(3));
            for (number, at_end) in (0..).zip(at_end) {
                let last = (number + 1) * SHARE - 10;
                let before = fabric.counters().snapshot();
                assert_eq!(index.get(&last).await, Ok(Some(last / 10)));
                let cost = fabric.counters().snapshot() - before;
                assert_eq!(cost.rpcs, 1);
                assert_eq!(cost.reads == 1, at_end == Publishes, "{} READs", cost.reads);
            }
        });
        cluster.run(&[1], |fabric, _| async move {
            for (number, at_end) in (0..).zip(at_end) {
                let server = ServerId::new(number);
                let begun = begin(&fabric, server, 7).await;
                match at_end {
                    Publishes => assert_eq!(begun, refused(server, Refusal::NotEmpty)),
                    _ => assert_eq!(begun, Ok(())),
                }
            }
        });
    }
}

/// If it is unknown whether a share's first leaf has its new content, the load stops. Other clients
/// were once told forever that the servers were loading.
#[test]
fn a_load_of_unknown_outcome_leaves_no_server_loading() {
    const LAST: ServerId = ServerId::new(3);
    let options = &HybridOptions::with_boundaries(boundaries(4));
    let provider = SimConfig { give_up_after_ns: 1_000_000_000, ..simulator(Faults::default()) };
    let cluster = provider.start(servers([AtEnd::Publishes; 4]));
    cluster.run_one(|fabric| async move {
        <Hybrid as Design<Tiny>>::create(&fabric, options).await.unwrap();
    });
    let control = &cluster.control();
    let loaded = cluster.run(&[0, 1], |fabric, client| async move {
        let index = <Hybrid as Design<Tiny>>::open(fabric.clone(), &()).await.unwrap();
        if client == 0 {
            return index.bulk_load(records(4).into_iter(), 0.7).await;
        }
        while index.get(&0).await != Ok(Some(0)) {}
        control.kill_memory_server(LAST);
        Ok(0)
    });
    let unknown = &loaded[0];
    assert!(matches!(unknown, Some(Err(IndexError::Indeterminate(_)))), "{unknown:?}");
    cluster.run(&[1], |fabric, _| async move {
        for number in 0..LAST.number() {
            assert_eq!(begin(&fabric, ServerId::new(number), 7).await, Ok(()));
        }
    });
}

/// Once a server of the coarse design has published its tree, the load must not be reported as "not
/// happened", whatever the others answer.
#[test]
fn a_load_that_is_refused_half_way_is_not_called_refused() {
    use AtEnd::{Publishes, Refuses};
    for at_end in [[Refuses, Publishes, Publishes], [Publishes, Publishes, Refuses]] {
        let options = &coarse(3);
        let cluster = simulator(Faults::default()).start(servers(at_end));
        cluster.run_one(|fabric| async move {
            <Coarse as Design<Tiny>>::create(&fabric, options).await.unwrap();
            let index = <Coarse as Design<Tiny>>::open(fabric.clone(), &()).await.unwrap();
            let loaded = index.bulk_load(records(3).into_iter(), 0.7).await;
            let found = index.scan(&ScanRequest::range(..)).await.unwrap();
            match at_end[0] {
                Refuses => {
                    let refusal = Refusal::NotLoading;
                    assert_eq!(loaded, Err(IndexError::Refused { server: FIRST, refusal }));
                    assert_eq!(found, []);
                }
                _ => {
                    assert!(matches!(loaded, Err(IndexError::Indeterminate(_))), "{loaded:?}");
                    assert_eq!(found, records(2));
                }
            }
        });
    }
}

/// A server that does not answer may publish its tree later. This was once hidden by a repeated
/// request that was certainly not sent, or was refused.
#[test]
fn a_load_whose_end_gets_no_answer_may_have_happened() {
    use AtEnd::{IsSilent, Publishes};
    let options = &coarse(2);
    let cluster = simulator(Faults::default()).start(servers([IsSilent, Publishes]));
    cluster.run_one(|fabric| async move {
        <Coarse as Design<Tiny>>::create(&fabric, options).await.unwrap();
        let index = <Coarse as Design<Tiny>>::open(fabric.clone(), &()).await.unwrap();
        let loaded = index.bulk_load(records(2).into_iter(), 0.7).await;
        assert!(matches!(loaded, Err(IndexError::Indeterminate(_))), "{loaded:?}");
    });
}

/// A request for a closed load neither restarts it nor hides its outcome.
#[test]
fn a_closed_load_stays_closed() {
    let cluster = simulator(Faults::default()).start(servers([AtEnd::Publishes]));
    cluster.run_one(|fabric| async move {
        <Coarse as Design<Tiny>>::create(&fabric, &coarse(1)).await.unwrap();
        let rpc = &RpcClient::<_, Tiny>::new(fabric.clone());
        let not_loading = || refused(FIRST, Refusal::NotLoading);
        rpc.abort_load(FIRST, 6).await.unwrap();
        assert_eq!(begin(&fabric, FIRST, 6).await, not_loading(), "its abort overtook it");
        begin(&fabric, FIRST, 7).await.unwrap();
        begin(&fabric, FIRST, 8).await.unwrap();
        assert_eq!(begin(&fabric, FIRST, 7).await, not_loading(), "another one has begun");
        assert_eq!(rpc.end_load(FIRST, 7).await, not_loading());
        rpc.end_load(FIRST, 8).await.unwrap();
        assert_eq!(rpc.end_load(FIRST, 8).await, Ok(()), "repeated");
        assert_eq!(begin(&fabric, FIRST, 8).await, not_loading());
        assert_eq!(begin(&fabric, FIRST, 9).await, Ok(()), "no load is open");
    });
}

/// The coarse design repeats an end whose reply is lost, as the hybrid design does.
#[test]
fn a_load_whose_reply_is_late_has_ended() {
    let slow = Slow {
        verbs: vec![Verb::Call],
        compute_servers: vec![1],
        replies: true,
        probability: 0.2,
        max_ns: 3 * TIMEOUT_NS,
    };
    let (mut ended, mut unknown) = (0, 0);
    for seed in 0..40 {
        let faults = Faults { slow: vec![slow.clone()], ..Faults::default() };
        let provider = SimConfig { seed, ..simulator(faults) };
        let cluster = provider.start(servers([AtEnd::Publishes; 3]));
        let options = &coarse(3);
        cluster.run_one(|fabric| async move {
            <Coarse as Design<Tiny>>::create(&fabric, options).await.unwrap();
        });
        let outcomes = cluster.run(&[1], |fabric, _| async move {
            let index = <Coarse as Design<Tiny>>::open(fabric.clone(), &()).await.unwrap();
            let loaded = index.bulk_load(records(3).into_iter(), 0.7).await;
            (loaded, fabric.counters().snapshot().retries)
        });
        let found = cluster.run(&[0], |fabric, _| async move {
            let index = <Coarse as Design<Tiny>>::open(fabric.clone(), &()).await.unwrap();
            index.scan(&ScanRequest::range(..)).await.unwrap()
        });
        let found = found[0].as_ref().unwrap();
        match outcomes[0].as_ref().unwrap() {
            (Ok(300), retries) => {
                assert_eq!(*found, records(3));
                ended += usize::from(*retries > 0);
            }
            (Err(IndexError::Indeterminate(_)), _) => {
                // The reply to an append was late. Appends are not repeated.
                assert_eq!(*found, []);
                unknown += 1;
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    println!("{ended} loads ended after repeated requests, {unknown} have an unknown outcome");
    assert!(ended > 0 && unknown > 0);
}

/// If a server refuses the end of a load, the load stays open, and repeated requests get the same
/// answer, until the load is aborted. Then its memory is free.
#[test]
fn a_refused_end_is_refused_again_until_the_load_is_aborted() {
    let cluster = simulator(Faults::default()).start(servers([AtEnd::Publishes]));
    cluster.run_one(|fabric| async move {
        <Coarse as Design<Tiny>>::create(&fabric, &coarse(1)).await.unwrap();
        let rpc = &RpcClient::<_, Tiny>::new(fabric.clone());
        let usage = async || rpc.usage(FIRST).await.unwrap();
        let before = usage().await;
        begin(&fabric, FIRST, 7).await.unwrap();
        let append = |records| TreeRequest::<Tiny>::LoadAppend { load: 7, records };
        rpc.expect_done(FIRST, &append(records(1))).await.unwrap();
        assert!(usage().await.nodes_in_use > before.nodes_in_use + 20);
        let edit = |action| Request::<Tiny>::Edit(LeafEdit { key: 5, action });
        let inserted = rpc.ask(FIRST, &edit(EditAction::Insert(6))).await;
        assert!(matches!(inserted, Ok(Reply::Applied(true))), "{inserted:?}");
        let not_empty = refused(FIRST, Refusal::NotEmpty);
        for _ in 0..3 {
            assert_eq!(rpc.end_load(FIRST, 7).await, not_empty);
        }
        let found = rpc.ask(FIRST, &edit(EditAction::Get)).await;
        assert!(matches!(found, Ok(Reply::Value(Some(6)))), "{found:?}");
        assert!(usage().await.nodes_in_use > before.nodes_in_use + 20, "the load is still open");
        for _ in 0..2 {
            assert_eq!(rpc.abort_load(FIRST, 7).await, Ok(()));
            assert_eq!(usage().await.nodes_in_use, before.nodes_in_use);
        }
        assert_eq!(rpc.end_load(FIRST, 7).await, refused(FIRST, Refusal::NotLoading));
    });
}

/// A request that arrives late, or from another client, affects only its own load. Without load
/// numbers, a late request once published half of another client's load.
#[test]
fn a_late_request_leaves_other_loads_alone() {
    let cluster = simulator(Faults::default()).start(servers([AtEnd::Publishes]));
    cluster.run_one(|fabric| async move {
        <Coarse as Design<Tiny>>::create(&fabric, &coarse(1)).await.unwrap();
        let rpc = &RpcClient::<_, Tiny>::new(fabric.clone());
        begin(&fabric, FIRST, 8).await.unwrap();
        let append = |load, records| TreeRequest::<Tiny>::LoadAppend { load, records };
        let [first, second] = [records(1)[..50].to_vec(), records(1)[50..].to_vec()];
        rpc.expect_done(FIRST, &append(8, first)).await.unwrap();
        let not_loading = refused(FIRST, Refusal::NotLoading);
        assert_eq!(rpc.expect_done(FIRST, &append(7, second.clone())).await, not_loading);
        assert_eq!(rpc.end_load(FIRST, 7).await, not_loading);
        assert_eq!(rpc.abort_load(FIRST, 7).await, Ok(()));
        assert_eq!(begin(&fabric, FIRST, 8).await, Ok(()), "repeated");
        rpc.expect_done(FIRST, &append(8, second)).await.unwrap();
        rpc.end_load(FIRST, 8).await.unwrap();
        let index = <Coarse as Design<Tiny>>::open(fabric, &()).await.unwrap();
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), records(1));
    });
}

/// The load of a dead client ends when its compute server is declared dead, or loads again. Until
/// then, no other compute server can load.
fn after_a_death<D: Design<Tiny, Compute = ()>>(options: &D::Options) {
    for loads_again in [false, true] {
        let cluster = simulator(Faults::default()).start(servers([AtEnd::Publishes; 2]));
        cluster.run_one(|fabric| async move { D::create(&fabric, options).await.unwrap() });
        let control = &cluster.control();
        cluster.run(&[1], |fabric, _| async move {
            let index = D::open(fabric, &()).await.unwrap();
            let dies = |record: &(u64, u64)| {
                if record.0 == 2 * SHARE - 10 {
                    control.kill_compute_server(1);
                }
            };
            let _ = index.bulk_load(records(2).into_iter().inspect(dies), 0.7).await;
        });
        if loads_again {
            cluster.restart_compute_server(1);
        }
        let loader = if loads_again { 1 } else { 2 };
        let loaded = cluster.run(&[2, loader], |fabric, client| async move {
            let index = D::open(fabric.clone(), &()).await.unwrap();
            if client == 0 {
                let loaded = index.bulk_load(records(2).into_iter(), 0.7).await;
                let refusal = Refusal::Loading;
                assert_eq!(loaded, Err(IndexError::Refused { server: FIRST, refusal }));
                return 0;
            }
            fabric.sleep(20 * TIMEOUT_NS).await;
            if !loads_again {
                index.declare_dead(1).await.unwrap();
            }
            let loaded = index.bulk_load(records(2).into_iter(), 0.7).await.unwrap();
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), records(2));
            loaded
        });
        assert_eq!(loaded, [Some(0), Some(200)], "loads again: {loads_again}");
    }
}

#[test]
fn a_load_ends_with_its_compute_server() {
    after_a_death::<Coarse>(&coarse(2));
    after_a_death::<Hybrid>(&HybridOptions::with_boundaries(boundaries(2)));
}
