//! Tests of `shm` beyond the suite of all providers: servers and clients in other processes, which
//! are stopped, killed, fenced or refused. The other processes are this test's own binary, run
//! again as the test [`another_process`].
//!
//! No test asserts a duration. Tests wait for events that must happen, with long limits.

use farleaf_fabric::conformance::{TestService, word_of};
use farleaf_fabric::executor::Executor;
use farleaf_fabric::handshake::{HandshakeError, HandshakeRefusal, Token};
use farleaf_fabric::shm::{ShmCluster, ShmConfig, ShmError, ShmServer, ShmServerConfig};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{
    AnyFabric, Cluster, Fabric, FabricError, GlobalAddr, Provider, RpcService, ServerId,
    Uncertainty,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

const REGION_BYTES: usize = 1 << 20;
const SERVER: ServerId = ServerId::new(0);
const TOKEN: &[u8] = b"the token of these tests";
/// Timeout of a test that expects no timeout.
const PATIENT_NS: u64 = 60_000_000_000;
/// Timeout of a test that expects a timeout.
const HASTY_NS: u64 = 200_000_000;

fn token() -> Token {
    Token::new(TOKEN).unwrap()
}

fn config(timeout_ns: u64) -> ShmConfig {
    ShmConfig { timeout_ns, ..ShmConfig::default() }
}

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(SERVER, offset)
}

/// A folder for the sockets of one test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("farleaf-shm-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("0.socket")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Another process, killed at the end of the test.
struct Other {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str, path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["another_process", "--exact", "--nocapture"])
            .env("FARLEAF_ROLE", role)
            .env("FARLEAF_SOCKET", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let mut other = Self { child, says };
        other.wait_for("ready");
        other
    }

    /// Waits for a line that ends with `what`.
    fn wait_for(&mut self, what: &str) {
        let mut line = String::new();
        while !line.trim_end().ends_with(what) {
            line.clear();
            assert!(
                self.says.read_line(&mut line).unwrap() > 0,
                "the process ended before it was {what}"
            );
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops the process; returns when it has stopped.
    fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }

    fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test of its own, but the code of the other processes.
#[test]
fn another_process() {
    let Ok(role) = std::env::var("FARLEAF_ROLE") else { return };
    let path = PathBuf::from(std::env::var_os("FARLEAF_SOCKET").unwrap());
    let say = |what: &str| {
        println!("{what}");
        std::io::stdout().flush().unwrap();
    };
    match role.as_str() {
        "server" => {
            let (service, config) = (TestService::new(REGION_BYTES), ShmServerConfig::default());
            let _server = ShmServer::start(&path, service, &token(), config).unwrap();
            say("ready");
            // Wait for the end of the test, which closes our input.
            let _ = std::io::stdin().read(&mut [0]);
        }
        "client" => {
            let cluster = ShmCluster::connect(&[path], &token(), &config(PATIENT_NS)).unwrap();
            cluster.run(&[9], |fabric, _| async move {
                let count = async || fabric.fetch_add(at(64), 1).await;
                count().await.unwrap();
                say("ready");
                let error = loop {
                    if let Err(error) = count().await {
                        break error;
                    }
                };
                assert_eq!(error, unknown(Uncertainty::ConnectionLost));
                let error = fabric.call(SERVER, TestService::echo(b"?")).await.unwrap_err();
                assert_eq!(error, unknown(Uncertainty::ConnectionLost));
                let error = fabric.reset(SERVER).await.unwrap_err();
                assert_eq!(error, unknown(Uncertainty::ConnectionLost));
            });
            // A later endpoint of the same compute server is served.
            cluster.run(&[9], |fabric, _| async move {
                fabric.fetch_add(at(128), 1).await.unwrap();
            });
            say("shut out");
            let _ = std::io::stdin().read(&mut [0]);
        }
        other => panic!("unknown FARLEAF_ROLE: {other}"),
    }
}

fn unknown(why: Uncertainty) -> FabricError {
    FabricError::Indeterminate { server: SERVER, why }
}

async fn word(fabric: &impl Fabric, offset: u64) -> u64 {
    fabric.read(at(offset), fabric.buffer(8).unwrap()).await.unwrap().get(0)
}

#[test]
fn a_stopped_server_goes_on_serving_verbs() {
    let folder = Folder::new();
    let server = Other::start("server", &folder.socket());
    let cluster = ShmCluster::connect(&[folder.socket()], &token(), &config(HASTY_NS)).unwrap();
    let server = &server;
    cluster.run_one(|fabric| async move {
        let reply = fabric.call(SERVER, TestService::add_word(8, 5)).await.unwrap();
        assert_eq!(word_of(&reply), 0);
        server.stop();
        for round in 1..=100_u64 {
            let buffer = fabric.buffer(1024).unwrap();
            (0..128).for_each(|index| buffer.set(index, round));
            fabric.write(at(4096), buffer).await.unwrap();
            let read = fabric.read(at(4096), fabric.buffer(1024).unwrap()).await.unwrap();
            assert!((0..128).all(|index| read.get(index) == round));
            assert_eq!(fabric.compare_swap(at(64), round - 1, round).await, Ok(round - 1));
            assert_eq!(fabric.fetch_add(at(72), 3).await, Ok(3 * (round - 1)));
        }
        assert_eq!(word(&fabric, 8).await, 5, "what its processor wrote");
        let call = fabric.call(SERVER, TestService::add_word(8, 1));
        assert_eq!(call.await.unwrap_err(), unknown(Uncertainty::TimedOut));
        fabric.reset(SERVER).await.unwrap();
        server.go_on();
        // The request was indeterminate and takes effect late.
        while word(&fabric, 8).await != 6 {
            fabric.sleep(1_000_000).await;
        }
        let reply = fabric.call(SERVER, TestService::add_word(8, 1)).await.unwrap();
        assert_eq!(word_of(&reply), 6);
    });
}

/// A READ is executed when its future is first polled. Until then it is in flight, counts against
/// the depth (F6), and is ended by a reset (F9).
#[test]
fn posted_reads_are_in_flight() {
    let config = ShmConfig { depth: 4, ..config(PATIENT_NS) };
    let cluster = config.start(vec![TestService::new(REGION_BYTES), TestService::new(4096)]);
    cluster.run_one(|fabric| async move {
        let other = GlobalAddr::new(ServerId::new(1), 64);
        let reads: Vec<_> = [at(64), at(128), at(64), other]
            .map(|at| fabric.read(at, fabric.buffer(8).unwrap()))
            .into();
        let refused = fabric.fetch_add(at(64), 1).await;
        assert_eq!(refused, Err(FabricError::QueueFull { depth: 4 }));
        fabric.reset(SERVER).await.unwrap();
        let mut ended = Vec::new();
        for read in reads {
            ended.push(read.await.map(|buffer| buffer.get(0)));
        }
        let lost = Err(unknown(Uncertainty::ConnectionLost));
        assert_eq!(ended, [lost.clone(), lost.clone(), lost, Ok(0)], "one server was reset");
        assert_eq!(fabric.counters().snapshot().indeterminate, 3);
        assert_eq!(fabric.fetch_add(at(64), 1).await, Ok(0));
        assert_eq!(word(&fabric, 64).await, 1);
        drop(fabric.read(at(64), fabric.buffer(8).unwrap()));
        let all: Vec<_> = (0..4).map(|_| fabric.buffer(8).unwrap()).collect();
        assert_eq!(all.len(), 4, "the dropped READ's buffer is free again");
    });
}

#[test]
fn calls_to_a_stopped_server_are_bounded() {
    let folder = Folder::new();
    let server = Other::start("server", &folder.socket());
    let hasty = ShmConfig { depth: 8, ..config(HASTY_NS) };
    let cluster = ShmCluster::connect(&[folder.socket()], &token(), &hasty).unwrap();
    let server = &server;
    cluster.run_one(|fabric| async move {
        server.stop();
        // More calls than fit in the ring and in the backlog: the excess is refused, and not
        // carried out.
        let padded = |bytes: usize| TestService::echo(&vec![1; bytes]);
        let (mut refused, mut late) = (0, 0);
        for round in 0..8 {
            let calls: Vec<_> = (0..8).map(|_| fabric.call(SERVER, padded(100_000))).collect();
            for call in calls {
                match call.await.unwrap_err() {
                    FabricError::QueueFull { depth: 8 } => refused += 1,
                    error if error == unknown(Uncertainty::TimedOut) => late += 1,
                    error => panic!("round {round}: {error}"),
                }
            }
        }
        assert!(refused > 0 && late >= 8, "{refused} refused, {late} late");
        server.go_on();
        let echo = async || {
            let reply = fabric.call(SERVER, padded(10)).await;
            reply.is_ok_and(|reply| reply[..] == [1; 10])
        };
        while !echo().await {
            fabric.sleep(1_000_000).await;
        }
    });
}

#[test]
fn a_killed_server_is_noticed_by_verbs_and_calls() {
    let folder = Folder::new();
    let mut server = Other::start("server", &folder.socket());
    let cluster = ShmCluster::connect(&[folder.socket()], &token(), &config(PATIENT_NS)).unwrap();
    let epoch = cluster.known_epoch(SERVER).unwrap();
    let driver = cluster.driver().unwrap();
    let old = driver.open(0, 7).unwrap();
    let mut executor = Executor::new();
    let (server, fabric) = (&mut server, old.clone());
    executor.spawn(0, async move {
        fabric.fetch_add(at(64), 1).await.unwrap();
        server.stop();
        let in_flight = fabric.call(SERVER, TestService::echo(b"?"));
        server.kill();
        assert_eq!(in_flight.await.unwrap_err(), unknown(Uncertainty::ConnectionLost));
        while let Ok(_still_unnoticed) = fabric.fetch_add(at(64), 1).await {
            fabric.sleep(1_000_000).await;
        }
        let lost = unknown(Uncertainty::ConnectionLost);
        let before = fabric.counters().snapshot();
        let buffer = || fabric.buffer(64).unwrap();
        assert_eq!(fabric.read(at(0), buffer()).await.unwrap_err(), lost);
        assert_eq!(fabric.write(at(0), buffer()).await.unwrap_err(), lost);
        assert_eq!(fabric.compare_swap(at(0), 0, 0).await.unwrap_err(), lost);
        assert_eq!(fabric.call(SERVER, TestService::echo(b"?")).await.unwrap_err(), lost);
        assert_eq!(fabric.reset(SERVER).await.unwrap_err(), lost);
        assert_eq!(fabric.fence(SERVER, 3).await.unwrap_err(), lost);
        let spent = fabric.counters().snapshot() - before;
        assert_eq!(spent.indeterminate, 6);
    });
    assert!(executor.run(&driver));

    // A restarted server at the same path is another server: clients of the old one must not reach
    // it.
    let _again = Other::start("server", &folder.socket());
    let fabric = driver.open(0, 8).unwrap();
    executor.spawn(0, async move {
        for fabric in [old, fabric] {
            let outcome = fabric.fetch_add(at(64), 1).await;
            assert_eq!(outcome, Err(unknown(Uncertainty::ConnectionLost)));
        }
    });
    assert!(executor.run(&driver));
    let cluster = ShmCluster::connect(&[folder.socket()], &token(), &config(PATIENT_NS)).unwrap();
    assert_ne!(cluster.known_epoch(SERVER).unwrap(), epoch);
    let found = cluster.run_one(|fabric| async move { word(&fabric, 64).await });
    assert_eq!(found, 0, "a region of its own");
}

#[test]
fn a_fence_stops_the_endpoints_of_another_process() {
    let folder = Folder::new();
    let _server = Other::start("server", &folder.socket());
    let mut client = Other::start("client", &folder.socket());
    let cluster = ShmCluster::connect(&[folder.socket()], &token(), &config(PATIENT_NS)).unwrap();
    let client = &mut client;
    let fence = |fabric: AnyFabric| async move {
        assert_ne!(word(&fabric, 64).await, 0);
        fabric.fence(SERVER, 9).await.unwrap();
        let last = word(&fabric, 64).await;
        for _ in 0..50 {
            fabric.sleep(1_000_000).await;
            assert_eq!(word(&fabric, 64).await, last, "a verb after the fence");
        }
        fabric.call(SERVER, TestService::echo(b"not me")).await.unwrap();
    };
    cluster.run_one(fence);
    client.wait_for("shut out");
}

#[test]
fn a_fence_does_not_come_up_while_a_client_is_stopped() {
    let folder = Folder::new();
    let _server = Other::start("server", &folder.socket());
    let mut client = Other::start("client", &folder.socket());
    let mut killed = Other::start("client", &folder.socket());
    let cluster = ShmCluster::connect(&[folder.socket()], &token(), &config(HASTY_NS)).unwrap();
    client.stop();
    killed.stop();
    let fence = |fabric: AnyFabric| async move { fabric.fence(SERVER, 9).await };
    let late = Err(unknown(Uncertainty::TimedOut));
    assert_eq!(cluster.run_one(fence), late, "either client could have a verb in progress");
    killed.kill();
    assert_eq!(cluster.run_one(fence), late, "one client still could have a verb in progress");
    client.go_on();
    client.wait_for("shut out");
    let fenced_at_last = (0..100).any(|_| cluster.run_one(fence).is_ok());
    assert!(fenced_at_last);
}

#[test]
fn a_fence_of_a_dead_process_comes_up() {
    let folder = Folder::new();
    let _server = Other::start("server", &folder.socket());
    let mut client = Other::start("client", &folder.socket());
    let cluster = ShmCluster::connect(&[folder.socket()], &token(), &config(PATIENT_NS)).unwrap();
    client.stop();
    client.kill();
    cluster.run_one(|fabric| async move { fabric.fence(SERVER, 9).await.unwrap() });
}

#[test]
fn a_fence_in_one_process_concerns_the_endpoints_of_that_compute_server_alone() {
    let cluster =
        config(PATIENT_NS).start(vec![TestService::new(REGION_BYTES), TestService::new(4096)]);
    cluster.run(&[0, 5], |fabric, client| async move {
        let ready = async |value: u64| {
            while word(&fabric, 64).await != value {
                fabric.sleep(1_000).await;
            }
        };
        if client == 0 {
            ready(1).await;
            fabric.fence(SERVER, 5).await.unwrap();
            fabric.compare_swap(at(64), 1, 2).await.unwrap();
            // The fenced endpoint can read this word, because it is not fenced at the other server.
            fabric.fetch_add(GlobalAddr::new(ServerId::new(1), 64), 1).await.unwrap();
            fabric.call(SERVER, TestService::echo(b"?")).await.unwrap();
        } else {
            assert_eq!(fabric.compare_swap(at(64), 0, 1).await, Ok(0));
            while fabric.fetch_add(GlobalAddr::new(ServerId::new(1), 64), 0).await != Ok(1) {
                fabric.sleep(1_000).await;
            }
            let lost = unknown(Uncertainty::ConnectionLost);
            assert_eq!(fabric.fetch_add(at(64), 1).await.unwrap_err(), lost);
            assert_eq!(fabric.call(SERVER, TestService::echo(b"?")).await.unwrap_err(), lost);
            assert_eq!(fabric.reset(SERVER).await.unwrap_err(), lost);
        }
    });
    cluster.run(&[5], |fabric, _| async move {
        assert_eq!(word(&fabric, 64).await, 2, "no verb took effect after the fence");
        fabric.call(SERVER, TestService::echo(b"a later endpoint")).await.unwrap();
    });
}

#[test]
fn the_wrong_token_and_the_wrong_number_are_turned_away() {
    let folder = Folder::new();
    let (path, service) = (folder.socket(), TestService::new(REGION_BYTES));
    let config = config(PATIENT_NS);
    let _server = ShmServer::start(&path, service, &token(), config.server.clone()).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let wrong = Token::new(b"another token, as long").unwrap();
    let error = ShmCluster::connect(&[&path], &wrong, &config).unwrap_err();
    let refused = HandshakeError::Refused(HandshakeRefusal::Token);
    assert!(matches!(error, ShmError::Handshake { error, .. } if error == refused), "{error}");
    let error = ShmCluster::connect(&[&path, &path], &token(), &config).unwrap_err();
    let other = |error| matches!(error, HandshakeError::OtherPeer(_));
    assert!(matches!(error, ShmError::Handshake { error, .. } if other(error)), "{error}");
    ShmCluster::connect(&[&path], &token(), &config).unwrap();
    let nobody = folder.0.join("nobody.socket");
    let error = ShmCluster::connect(&[nobody], &token(), &config).unwrap_err();
    assert!(matches!(error, ShmError::Gone(_)), "{error}");
}

#[test]
fn the_place_of_a_living_server_is_not_taken_and_a_private_region_not_served() {
    let folder = Folder::new();
    let start = |service: Arc<TestService>| {
        ShmServer::start(&folder.socket(), service, &token(), ShmServerConfig::default())
    };
    let _server = start(TestService::new(REGION_BYTES)).unwrap();
    let error = start(TestService::new(REGION_BYTES)).unwrap_err();
    assert!(matches!(error, ShmError::System(_)), "{error}");

    struct Private(Arc<farleaf_fabric::Region>);
    impl RpcService for Private {
        fn region(&self) -> &Arc<farleaf_fabric::Region> {
            &self.0
        }
        async fn handle<C: farleaf_fabric::Cpu>(
            &self,
            _: &C,
            _: u16,
            _: &[u8],
            _: &mut farleaf_fabric::Message,
        ) {
        }
        async fn after_reply<C: farleaf_fabric::Cpu>(&self, _: &C) {}
    }
    let region = Arc::new(farleaf_fabric::Region::new(4096).unwrap());
    let path = folder.0.join("1.socket");
    let outcome =
        ShmServer::start(&path, Arc::new(Private(region)), &token(), ShmServerConfig::default());
    assert!(matches!(outcome, Err(ShmError::NotShared)));
}

#[test]
fn endpoints_and_processes_are_bounded_in_number() {
    let folder = Folder::new();
    let server = ShmServerConfig { max_endpoints: 2, max_processes: 2, ..Default::default() };
    let config = ShmConfig { server, ..config(PATIENT_NS) };
    let service = TestService::new(REGION_BYTES);
    let _server =
        ShmServer::start(&folder.socket(), service, &token(), config.server.clone()).unwrap();
    let connect = || ShmCluster::connect(&[folder.socket()], &token(), &config);
    let (first, second) = (connect().unwrap(), connect().unwrap());
    assert!(connect().unwrap_err().is_full());
    let (first_driver, second_driver) = (first.driver().unwrap(), second.driver().unwrap());
    let (one, two) = (first_driver.open(0, 0).unwrap(), second_driver.open(0, 0).unwrap());
    assert!(first_driver.open(0, 1).unwrap_err().is_full());
    assert!(second_driver.open(1, 1).unwrap_err().is_full());
    drop(one);
    // Retry until the server has noticed the closed connection.
    let again = (0..10_000).find_map(|_| first_driver.open(0, 2).ok());
    let fabric = again.expect("there is room again");
    drop((second, second_driver, two));
    let third = (0..10_000).find_map(|_| connect().ok());
    assert!(third.is_some(), "there is room again");
    let mut executor = Executor::new();
    executor.spawn(0, async move {
        fabric.call(SERVER, TestService::echo(b"!")).await.unwrap();
    });
    assert!(executor.run(&first_driver));
}
