//! The outcomes of operations over RDMA when servers stop, restart or go silent, endpoints are
//! fenced, and memory comes and goes. On a host without a device, run this in a virtual machine:
//! `scripts/soft-roce-vm` with this test's binary and `--ignored`.

use farleaf_fabric::conformance::TestService;
use farleaf_fabric::executor::Executor;
use farleaf_fabric::handshake::{HandshakeError, HandshakeRefusal, PeerRole, Token};
use farleaf_fabric::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use farleaf_fabric::tcp::{TcpServer, TcpServerConfig};
use farleaf_fabric::{
    Buffer, Cluster, Cpu, Fabric, FabricError, GlobalAddr, MAX_MESSAGE_BYTES, Message, Provider,
    Region, RpcService, ServerId, Uncertainty,
};
use farleaf_fabric_verbs::{
    DeviceChoice, RdmaUnavailable, VerbsCluster, VerbsConfig, VerbsDriver, VerbsServer,
    VerbsServerConfig, probe,
};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

const SERVER: ServerId = ServerId::new(0);
const REGION_BYTES: usize = 16_384;
const LOST: FabricError =
    FabricError::Indeterminate { server: SERVER, why: Uncertainty::ConnectionLost };
const TIMED_OUT: FabricError =
    FabricError::Indeterminate { server: SERVER, why: Uncertainty::TimedOut };

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(SERVER, offset)
}

fn start_at<S: RpcService>(address: SocketAddr, service: Arc<S>, token: &Token) -> VerbsServer {
    let listener = TcpListener::bind(address).unwrap();
    VerbsServer::start(listener, service, token, VerbsServerConfig::default()).unwrap()
}

fn start<S: RpcService>(service: Arc<S>, token: &Token) -> VerbsServer {
    start_at((Ipv4Addr::LOCALHOST, 0).into(), service, token)
}

fn connect(server: &VerbsServer, token: &Token, config: VerbsConfig) -> VerbsCluster {
    VerbsCluster::connect(vec![server.local_address()], token, config).unwrap()
}

fn run<T>(driver: &VerbsDriver, future: impl Future<Output = T>) -> T {
    Executor::new().complete(driver, future).expect("the task ends")
}

async fn word<F: Fabric>(fabric: &F, offset: u64) -> Result<u64, FabricError> {
    Ok(fabric.read(at(offset), fabric.buffer(8)?).await?.get(0))
}

#[test]
#[ignore = "needs an RDMA device"]
fn the_probe_finds_the_device() {
    let found = probe(&DeviceChoice::default(), 1 << 20).unwrap();
    assert_eq!(found.port, 1);
    assert!(found.address.to_ipv4_mapped().is_some(), "{found:?}");
    let nobody = DeviceChoice { device: Some("nobody".into()), ..DeviceChoice::default() };
    let missing = probe(&nobody, 4096).unwrap_err();
    assert!(
        matches!(&missing, RdmaUnavailable::Device { there, .. } if *there == [found.device.clone()])
    );
    let nowhere = DeviceChoice { port: 77, ..DeviceChoice::default() };
    assert!(matches!(probe(&nowhere, 4096).unwrap_err(), RdmaUnavailable::Broken { .. }));
}

/// Decision 031: the memory of a restarted server is lost, so its clients must not rely on what
/// they read before.
#[test]
#[ignore = "needs an RDMA device"]
fn a_restarted_server_is_another_server() {
    let token = Token::draw().unwrap();
    let server = start(TestService::new(REGION_BYTES), &token);
    let address = server.local_address();
    let cluster = connect(&server, &token, VerbsConfig::default());
    let driver = cluster.driver().unwrap();
    let fabric = driver.open(0, 0).unwrap();
    run(&driver, async {
        fabric.fetch_add(at(8), 5).await.unwrap();
        assert_eq!(word(&fabric, 8).await, Ok(5));
    });
    assert_eq!(cluster.known_epoch(SERVER), Some(server.identity().epoch));
    server.stop();
    run(&driver, async { assert_eq!(word(&fabric, 8).await, Err(LOST)) });
    let _second = start_at(address, TestService::new(REGION_BYTES), &token);
    run(&driver, async {
        let restarted = Err(FabricError::Restarted { server: SERVER });
        // The link may still be pausing after an attempt that failed while no server was running.
        let mut found = word(&fabric, 8).await;
        if found == Err(LOST) {
            found = word(&fabric, 8).await;
        }
        assert_eq!(found, restarted);
        assert_eq!(word(&fabric, 8).await, restarted, "the server stays refused");
        assert_eq!(fabric.reset(SERVER).await, Err(FabricError::Restarted { server: SERVER }));
        let later = driver.open(1, 1).unwrap();
        assert_eq!(word(&later, 8).await, restarted, "endpoints opened later are refused too");
    });
}

/// A service with calls that wait until `go` is set.
struct Slow {
    region: Arc<Region>,
    go: AtomicBool,
    called: AtomicU64,
}

impl Slow {
    fn new() -> Arc<Self> {
        let region = Arc::new(Region::new(REGION_BYTES).unwrap());
        Arc::new(Self { region, go: AtomicBool::new(false), called: AtomicU64::new(0) })
    }
}

impl RpcService for Slow {
    fn region(&self) -> &Arc<Region> {
        &self.region
    }

    async fn handle<C: Cpu>(&self, cpu: &C, _client: u16, request: &[u8], reply: &mut Message) {
        self.called.fetch_add(1, Ordering::AcqRel);
        let mut attempt = 0;
        while !self.go.load(Ordering::Acquire) {
            cpu.pause(attempt).await;
            attempt += 1;
        }
        reply.extend_from_slice(request);
    }

    async fn after_reply<C: Cpu>(&self, _cpu: &C) {}
}

/// F7: calls time out while the server is busy with one; one-sided verbs still work, and so do
/// calls afterwards. Late answers match no waiting call.
#[test]
#[ignore = "needs an RDMA device"]
fn slow_calls_time_out_and_verbs_go_on() {
    let token = Token::draw().unwrap();
    let service = Slow::new();
    let server = start(Arc::clone(&service), &token);
    let config = VerbsConfig { timeout_ns: 400_000_000, ..VerbsConfig::default() };
    let cluster = connect(&server, &token, config);
    let driver = cluster.driver().unwrap();
    let fabric = driver.open(0, 0).unwrap();
    let message = |byte: u8, bytes: usize| Message::from_vec(vec![byte; bytes]);
    run(&driver, async {
        // More calls than the window, and one in pieces.
        let calls: Vec<_> = (0..40).map(|i| fabric.call(SERVER, message(i, 20))).collect();
        let large = fabric.call(SERVER, message(77, MAX_MESSAGE_BYTES));
        while service.called.load(Ordering::Acquire) == 0 {
            fabric.fetch_add(at(0), 1).await.unwrap();
        }
        for call in calls {
            assert_eq!(call.await, Err(TIMED_OUT));
        }
        assert_eq!(large.await, Err(TIMED_OUT));
        assert!(word(&fabric, 0).await.unwrap() > 0, "the connection is as good as before");
        service.go.store(true, Ordering::Release);
        for round in 0..50 {
            let bytes = [1, 5000, MAX_MESSAGE_BYTES][round % 3];
            let calls: Vec<_> =
                (0..3).map(|i| fabric.call(SERVER, message(i + round as u8, bytes))).collect();
            for (i, call) in (0..).zip(calls) {
                assert_eq!(call.await.unwrap(), message(i + round as u8, bytes));
            }
        }
        assert_eq!(fabric.counters().snapshot().indeterminate, 41);
    });
}

/// F10: an endpoint of a compute server that was declared dead is cut off, with its operations in
/// flight. Other endpoints still work, and so do those that the compute server opens later.
#[test]
#[ignore = "needs an RDMA device"]
fn a_fenced_endpoint_is_cut_off() {
    let token = Token::draw().unwrap();
    let service = TestService::new(REGION_BYTES);
    let server = start(Arc::clone(&service), &token);
    let cluster = connect(&server, &token, VerbsConfig::default());
    let driver = cluster.driver().unwrap();
    let (dead, other) = (driver.open(7, 0).unwrap(), driver.open(8, 1).unwrap());
    run(&driver, async {
        assert_eq!(word(&dead, 0).await, Ok(0));
        let mut adds = Vec::new();
        for _ in 0..100 {
            adds.push(dead.fetch_add(at(0), 1));
        }
        other.fence(SERVER, 7).await.unwrap();
        let settled = word(&other, 0).await.unwrap();
        let mut done = 0;
        for add in adds {
            match add.await {
                Ok(_) => done += 1,
                Err(error) => assert_eq!(error, LOST),
            }
        }
        assert!(done <= settled, "{done} are known of {settled}");
        for _ in 0..3 {
            assert_eq!(word(&dead, 0).await, Err(LOST), "it stays fenced");
        }
        other.sleep(50_000_000).await;
        assert_eq!(word(&other, 0).await, Ok(settled), "no operation takes effect late");
        let later = driver.open(7, 2).unwrap();
        assert_eq!(later.fetch_add(at(0), 1).await, Ok(settled));
        // A compute server that fences itself still gets the acknowledgement.
        later.fence(SERVER, 7).await.unwrap();
        assert_eq!(word(&later, 0).await, Err(LOST));
    });
    assert_eq!(service.region().words()[0].load(Ordering::Relaxed), {
        run(&driver, async { word(&other, 0).await.unwrap() })
    });
}

/// A client without the token gets no queue pair, and the server does not wait for a silent client.
#[test]
#[ignore = "needs an RDMA device"]
fn strangers_are_not_let_in() {
    let token = Token::draw().unwrap();
    let service = TestService::new(REGION_BYTES);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let config = VerbsServerConfig {
        handshake_timeout_ns: 200_000_000,
        half_open: 2,
        ..VerbsServerConfig::default()
    };
    let server = VerbsServer::start(listener, service, &token, config).unwrap();
    let silent: Vec<_> =
        (0..5).map(|_| TcpStream::connect(server.local_address()).unwrap()).collect();
    let stranger = connect(&server, &Token::draw().unwrap(), VerbsConfig::default());
    let refused = stranger.run_one(|fabric| async move { word(&fabric, 0).await.unwrap_err() });
    let why = HandshakeError::Refused(HandshakeRefusal::Token);
    assert_eq!(refused, FabricError::NotLetIn { server: SERVER, why });
    let friend = connect(&server, &token, VerbsConfig::default());
    let server = &server;
    friend.run_one(|fabric| async move {
        assert_eq!(word(&fabric, 0).await, Ok(0));
        while server.counters().connections > 1 {
            fabric.sleep(10_000_000).await;
        }
        let counted = server.counters();
        assert_eq!((counted.welcomed, counted.refused), (1, 6), "{counted:?}");
    });
    drop(silent);
}

/// A server of another transport does not admit clients of this one.
#[test]
#[ignore = "needs an RDMA device"]
fn a_tcp_server_is_no_verbs_server() {
    let token = Token::draw().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let service = TestService::new(REGION_BYTES);
    let config = TcpServerConfig { accepts: &[PeerRole::ComputeServer], ..Default::default() };
    let server = TcpServer::start(listener, service, &token, config).unwrap();
    let config = VerbsConfig { connect_timeout_ns: 300_000_000, ..VerbsConfig::default() };
    let cluster = VerbsCluster::connect(vec![server.local_address()], &token, config).unwrap();
    cluster.run_one(|fabric| async move { assert_eq!(word(&fabric, 0).await, Err(LOST)) });
}

/// Arenas that operations lend are registered on first use, and released when no operation uses
/// them any more. Queues that are shorter than the posted list fill and empty.
#[test]
#[ignore = "needs an RDMA device"]
fn arenas_come_and_go() {
    let server = VerbsServerConfig { window: 2, ..VerbsServerConfig::default() };
    let config = VerbsConfig { depth: 1000, window: 2, server, ..VerbsConfig::default() };
    let cluster = config.start(vec![TestService::new(1 << 20)]);
    cluster.run_one(|fabric| async move {
        let mut last = None;
        for round in 1..=30_u64 {
            let arena = Arc::new(Region::new(1 << 16).unwrap());
            let place = at(round * 4096);
            let writes: Vec<_> = (0..60)
                .map(|i| {
                    let buffer = Buffer::over(Arc::clone(&arena), i * 8, 8);
                    (0..8).for_each(|word| buffer.set(word, round * 1000 + i as u64));
                    fabric.write(place.plus(i as u64 * 64), buffer)
                })
                .collect();
            for write in writes {
                write.await.unwrap();
            }
            let other = Buffer::over(Arc::clone(&arena), 4096, 512);
            let found = fabric.read(place, other).await.unwrap();
            for i in 0..60 {
                assert_eq!(found.get(i * 8), round * 1000 + i as u64);
            }
            last = Some(Arc::downgrade(&arena));
            let adds: Vec<_> = (0..900).map(|_| fabric.fetch_add(at(0), 1)).collect();
            let calls: Vec<_> =
                (0..20).map(|_| fabric.call(SERVER, TestService::add_word(8, 1))).collect();
            for add in adds {
                add.await.unwrap();
            }
            for call in calls {
                call.await.unwrap();
            }
        }
        assert_eq!(word(&fabric, 0).await, Ok(30 * 900));
        assert_eq!(word(&fabric, 8).await, Ok(30 * 20));
        // Registering two more arenas releases the last one.
        for _ in 0..2 {
            let arena = Arc::new(Region::new(4096).unwrap());
            fabric.read(at(0), Buffer::over(arena, 0, 8)).await.unwrap();
        }
        assert!(
            last.is_some_and(|last| last.upgrade().is_none()),
            "an unused arena is still registered"
        );
    });
}
