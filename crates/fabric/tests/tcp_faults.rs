//! The outcomes of operations of the provider `tcp` when connections break, servers stop or
//! restart, and messages are delayed. A proxy between client and server delays messages and cuts
//! connections.
#![expect(clippy::disallowed_methods, reason = "tests wait for what real sockets do")]

mod proxy;

use farleaf_fabric::conformance::TestService;
use farleaf_fabric::executor::Executor;
use farleaf_fabric::handshake::{PeerRole, Token};

use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpDriver, TcpServer, TcpServerConfig};
use farleaf_fabric::{
    Buffer, Calls, Cluster, Cpu, Fabric, FabricError, GlobalAddr, Message, Provider, Region,
    ReplySink, ServerId, ServiceCall, Uncertainty,
};
use proxy::over_proxy;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

const SERVER: ServerId = ServerId::new(0);
const REGION_BYTES: usize = 16_384;
const LOST: FabricError =
    FabricError::Indeterminate { server: SERVER, why: Uncertainty::ConnectionLost };
const TIMED_OUT: FabricError =
    FabricError::Indeterminate { server: SERVER, why: Uncertainty::TimedOut };

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(SERVER, offset)
}

fn start_at<S: Calls>(
    address: SocketAddr,
    service: S,
    token: &Token,
    io_threads: usize,
) -> TcpServer {
    let listener = TcpListener::bind(address).unwrap();
    let config = TcpServerConfig { io_threads, ..TcpServerConfig::default() };
    TcpServer::start(listener, Arc::new(service), token, config).unwrap()
}

fn start<S: Calls>(service: Arc<S>, token: &Token, io_threads: usize) -> TcpServer {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let config = TcpServerConfig { io_threads, ..TcpServerConfig::default() };
    TcpServer::start(listener, service, token, config).unwrap()
}

fn run<T: 'static>(driver: &TcpDriver, future: impl Future<Output = T>) -> T {
    Executor::new().complete(driver, future).expect("the task ends")
}

fn fill<F: Fabric>(
    fabric: &F,
    offset: u64,
    words: usize,
    value: u64,
) -> impl Future<Output = Result<Buffer, FabricError>> + use<F> {
    let buffer = fabric.buffer(words * 8).unwrap();
    (0..words).for_each(|index| buffer.set(index, value));
    fabric.write(at(offset), buffer)
}

async fn word(fabric: &impl Fabric, offset: u64) -> Result<u64, FabricError> {
    Ok(fabric.read(at(offset), fabric.buffer(8)?).await?.get(0))
}

/// The number of free scratch buffers.
fn free_buffers(fabric: &impl Fabric) -> usize {
    (0..).map_while(|_| fabric.buffer(8).ok()).collect::<Vec<_>>().len()
}

#[test]
fn a_cut_connection_ends_what_is_in_flight_and_is_made_again() {
    let token = Token::draw().unwrap();
    let server = start(TestService::new(REGION_BYTES), &token, 1);
    let (proxy, cluster) = over_proxy(&server, &token, TcpConfig::default());
    cluster.run_one(|fabric| {
        let proxy = &proxy;
        async move {
            for round in 1..=10_u64 {
                fill(&fabric, 0, 8, round).await.unwrap();
                proxy.hold();
                let write = fill(&fabric, 0, 8, 1000);
                let read = fabric.read(at(0), fabric.buffer(64).unwrap());
                let swap = fabric.compare_swap(at(64), 0, 1);
                let call = fabric.call(SERVER, TestService::add_word(72, 1));
                drop(fabric.fetch_add(at(80), 1));
                fabric.sleep(0).await;
                fabric.sleep(0).await;
                proxy.wait_until_holding();
                proxy.cut();
                assert_eq!(write.await.unwrap_err(), LOST);
                assert_eq!(read.await.unwrap_err(), LOST);
                assert_eq!(swap.await.unwrap_err(), LOST);
                assert_eq!(call.await.unwrap_err(), LOST);
                assert_eq!(free_buffers(&fabric), fabric.depth(), "all buffers are free again");
                proxy.release();
                assert_eq!(word(&fabric, 0).await, Ok(round), "the next operation connects again");
                assert_eq!(fabric.counters().snapshot().indeterminate, 5 * round);
            }
        }
    });
    assert_eq!(server.counters().welcomed, 11);
}

/// F3: an operation posted after a WRITE does not take effect without it, even if the endpoint has
/// reconnected in between, until a task has seen that the WRITE was lost.
#[test]
fn nothing_comes_without_the_write_before_it() {
    let token = Token::draw().unwrap();
    let server = start(TestService::new(REGION_BYTES), &token, 1);
    let (proxy, cluster) = over_proxy(&server, &token, TcpConfig::default());
    cluster.run_one(|fabric| {
        let proxy = &proxy;
        async move {
            fill(&fabric, 0, 8, 1).await.unwrap();
            proxy.hold();
            let write = fill(&fabric, 0, 8, 2);
            let read = fabric.read(at(0), fabric.buffer(8).unwrap());
            fabric.sleep(0).await;
            fabric.sleep(0).await;
            proxy.wait_until_holding();
            proxy.cut();
            assert_eq!(read.await.unwrap_err(), LOST);
            proxy.release();
            // An unlock that depends on the WRITE, posted before any task has seen the WRITE's
            // outcome.
            assert_eq!(fabric.compare_swap(at(64), 0, 1).await, Err(LOST));
            assert_eq!(&fabric.call(SERVER, TestService::echo(b"")).await.unwrap()[..], b"");
            assert_eq!(fabric.compare_swap(at(64), 0, 1).await, Err(LOST));
            assert_eq!(write.await.unwrap_err(), LOST);
            assert_eq!(word(&fabric, 64).await, Ok(0));
            assert_eq!(
                fabric.compare_swap(at(64), 0, 1).await,
                Ok(0),
                "the loss of the WRITE has been seen"
            );
        }
    });
}

/// F9: once the new connection is open, anything that still arrives over the old one is discarded.
#[test]
fn after_a_reset_nothing_late_takes_effect() {
    for io_threads in [1, 3] {
        let token = Token::draw().unwrap();
        let server = start(TestService::new(REGION_BYTES), &token, io_threads);
        let (proxy, cluster) = over_proxy(&server, &token, TcpConfig::default());
        cluster.run_one(|fabric| {
            let proxy = &proxy;
            async move {
                for round in 1..=10_u64 {
                    fill(&fabric, 0, 8, round).await.unwrap();
                    proxy.hold();
                    let write = fill(&fabric, 0, 8, 1000);
                    let add = fabric.fetch_add(at(8 * 8), 1);
                    fabric.sleep(0).await;
                    fabric.sleep(0).await;
                    proxy.wait_until_holding();
                    fabric.reset(SERVER).await.unwrap();
                    assert_eq!(write.await.unwrap_err(), LOST);
                    assert_eq!(add.await.unwrap_err(), LOST);
                    assert_eq!(word(&fabric, 0).await, Ok(round));
                    proxy.release();
                    for _ in 0..20 {
                        fabric.sleep(100_000).await;
                        assert_eq!(word(&fabric, 0).await, Ok(round), "a late WRITE");
                        assert_eq!(word(&fabric, 64).await, Ok(0), "a late FETCH-ADD");
                    }
                }
            }
        });
    }
}

/// F10: a fenced endpoint is shut out forever, including everything that it has sent and will send;
/// an endpoint opened later is not.
#[test]
fn a_fence_shuts_out_what_is_late_and_who_comes_back() {
    for io_threads in [1, 3] {
        let token = Token::draw().unwrap();
        let server = start(TestService::new(REGION_BYTES), &token, io_threads);
        let (proxy, cluster) = over_proxy(&server, &token, TcpConfig::default());
        let healthy =
            TcpCluster::connect(vec![server.local_address()], &token, TcpConfig::default());
        let (driver, other) = (cluster.driver().unwrap(), healthy.driver().unwrap());
        let zombie = driver.open(1, 0).unwrap();
        let bystander = driver.open(3, 0).unwrap();
        let survivor = other.open(2, 0).unwrap();
        run(&driver, async {
            fill(&zombie, 0, 1, 1).await.unwrap();
            fill(&bystander, 128, 1, 1).await.unwrap();
        });
        proxy.hold();
        let late = fill(&zombie, 0, 1, 1000);
        run(&driver, async {
            zombie.sleep(0).await;
            zombie.sleep(0).await;
        });
        proxy.wait_until_holding();
        run(&other, async {
            survivor.fence(SERVER, 1).await.unwrap();
            assert_eq!(word(&survivor, 0).await, Ok(1));
        });
        proxy.release();
        run(&driver, async {
            assert_eq!(late.await.unwrap_err(), LOST);
            for _ in 0..5 {
                let refused = zombie.fetch_add(at(0), 1).await;
                assert_eq!(refused, Err(LOST), "a fenced endpoint stays fenced");
                assert!(zombie.reset(SERVER).await.is_err());
            }
            fill(&bystander, 128, 1, 2).await.unwrap();
            let heir = driver.open(1, 1).unwrap();
            fill(&heir, 8, 1, 7).await.unwrap();
        });
        run(&other, async {
            assert_eq!(word(&survivor, 0).await, Ok(1), "no operation of the zombie took effect");
            assert_eq!(word(&survivor, 8).await, Ok(7));
            // An endpoint that fences its own compute server gets the acknowledgement, and is then
            // fenced.
            survivor.fence(SERVER, 2).await.unwrap();
            assert_eq!(word(&survivor, 0).await, Err(LOST));
        });
    }
}

/// A restarted memory server has lost its memory, so no client may rely on what it read before.
#[test]
fn a_server_that_was_restarted_is_another() {
    let token = Token::draw().unwrap();
    let server = start(TestService::new(REGION_BYTES), &token, 1);
    let address = server.local_address();
    let cluster = TcpCluster::connect(vec![address], &token, TcpConfig::default());
    let driver = cluster.driver().unwrap();
    let fabric = driver.open(0, 0).unwrap();
    run(&driver, async { fill(&fabric, 0, 1, 5).await.unwrap() });
    let epoch = cluster.known_epoch(SERVER);
    assert_eq!(epoch, Some(server.identity().epoch));
    server.stop();
    run(&driver, async {
        assert_eq!(word(&fabric, 0).await, Err(LOST));
        assert_eq!(word(&fabric, 0).await, Err(LOST), "no server is listening");
    });
    let again = start_at(address, CountingService::default(), &token, 1);
    let restarted = FabricError::Restarted { server: SERVER };
    run(&driver, async {
        for _ in 0..3 {
            assert_eq!(fabric.fetch_add(at(0), 1).await, Err(restarted.clone()));
            assert_eq!(fabric.reset(SERVER).await, Err(restarted.clone()));
        }
        // A new endpoint is refused too, because its process knew the old server.
        let late = driver.open(0, 1).unwrap();
        assert_eq!(late.fetch_add(at(0), 1).await, Err(restarted.clone()));
    });
    assert_eq!(cluster.known_epoch(SERVER), epoch);
    assert_eq!(again.counters().requests, 0, "the new server got no requests");
    let anew = TcpCluster::connect(vec![address], &token, TcpConfig::default());
    anew.run_one(|fabric| async move {
        assert_eq!(&fabric.call(SERVER, Message::new()).await.unwrap()[..], 0_u64.to_le_bytes());
    });
}

/// A service whose calls another thread answers, or no thread at all.
#[derive(Default)]
struct CountingService {
    kept: Mutex<Vec<(Vec<u8>, ReplySink)>>,
    arrived: Condvar,
    /// Keeps calls for a later answer. Otherwise, answers at once with the number of kept calls.
    later: bool,
}

impl CountingService {
    fn take(&self, count: usize) -> Vec<(Vec<u8>, ReplySink)> {
        let kept = self.kept.lock().unwrap();
        let too_few = |kept: &mut Vec<_>| kept.len() < count;
        let waited = self.arrived.wait_timeout_while(kept, Duration::from_secs(30), too_few);
        let mut kept = waited.unwrap().0;
        assert!(kept.len() >= count, "{} of {count} calls have arrived", kept.len());
        kept.drain(..).collect()
    }
}

impl Calls for CountingService {
    fn memory(&self) -> Option<&Arc<Region>> {
        None
    }

    async fn call<C: Cpu>(&self, _cpu: &C, call: ServiceCall<'_>) {
        let mut kept = self.kept.lock().unwrap();
        if self.later {
            let request = call.request.to_vec();
            kept.push((request, call.later()));
            self.arrived.notify_all();
        } else {
            call.reply.extend_from_slice(&(kept.len() as u64).to_le_bytes());
        }
    }
}

#[test]
fn who_does_not_answer_runs_into_the_deadline() {
    let token = Token::draw().unwrap();
    let service = Arc::new(CountingService { later: true, ..CountingService::default() });
    let server = start(Arc::clone(&service), &token, 1);
    let config = TcpConfig { timeout_ns: 400_000_000, ..TcpConfig::default() };
    let cluster = TcpCluster::connect(vec![server.local_address()], &token, config.clone());
    cluster.run_one(|fabric| {
        let service = &service;
        async move {
            for round in 1..=3 {
                let calls: Vec<_> =
                    (0..8).map(|_| fabric.call(SERVER, Message::from_slice(b"?"))).collect();
                for call in calls {
                    assert_eq!(call.await.unwrap_err(), TIMED_OUT);
                }
                assert_eq!(fabric.counters().snapshot().indeterminate, 8 * round);
                // The answers arrive after all, but no call is waiting for them.
                for (_, reply) in service.take(8) {
                    reply.send(Message::from_slice(b"late"));
                }
                let error = fabric.fetch_add(at(0), 1).await.unwrap_err();
                let outside = FabricError::OutOfBounds { at: at(0), bytes: 8, region_bytes: 0 };
                assert_eq!(error, outside, "the connection still works");
            }
        }
    });
    assert_eq!(server.counters().welcomed, 1);

    // A server that accepts connections and never sends a byte.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = silent.local_addr().unwrap();
    let cluster = TcpCluster::connect(vec![address], &token, config.clone());
    cluster.run_one(|fabric| async move {
        let write = fill(&fabric, 0, 8, 1);
        assert_eq!(write.await.unwrap_err(), TIMED_OUT);
        assert_eq!(free_buffers(&fabric), fabric.depth());
    });
    let config = TcpConfig { connect_timeout_ns: 50_000_000, timeout_ns: 20_000_000_000, ..config };
    let cluster = TcpCluster::connect(vec![address], &token, config);
    cluster.run_one(|fabric| async move {
        assert_eq!(
            fill(&fabric, 0, 8, 1).await.unwrap_err(),
            LOST,
            "the connection was never established"
        );
        assert!(fabric.reset(SERVER).await.is_err());
    });
}

#[test]
fn answers_may_come_later_from_any_thread_in_any_order() {
    let token = Token::draw().unwrap();
    let service = Arc::new(CountingService { later: true, ..CountingService::default() });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let config = TcpServerConfig {
        role: PeerRole::ComputeServer,
        accepts: &[PeerRole::Client],
        waiting_calls: 16,
        ..TcpServerConfig::default()
    };
    let server = TcpServer::start(listener, Arc::clone(&service), &token, config).unwrap();
    let config = TcpConfig {
        role: PeerRole::Client,
        server_role: PeerRole::ComputeServer,
        ..TcpConfig::default()
    };
    let cluster = TcpCluster::connect(vec![server.local_address()], &token, config);
    const CALLS: usize = 2000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut answered = 0;
            while answered < CALLS {
                let mut calls = service.take(1);
                assert!(calls.len() <= 16, "more calls wait than allowed");
                calls.reverse();
                for (request, reply) in calls {
                    answered += 1;
                    match request[0] % 10 {
                        0 => drop(reply),
                        1 => reply.send(Message::from_elem(request[0], 100_000)),
                        _ => reply.send(Message::from_slice(&request)),
                    }
                }
            }
        });
        cluster.run_one(|fabric| async move {
            for round in 0..CALLS / 100 {
                let request = |call: usize| Message::from_slice(&[call as u8, round as u8]);
                let calls: Vec<_> =
                    (0..100).map(|call| fabric.call(SERVER, request(call))).collect();
                for (number, call) in calls.into_iter().enumerate() {
                    match (number % 10, call.await) {
                        (0, outcome) => assert_eq!(outcome.unwrap_err(), LOST),
                        (1, reply) => {
                            let reply = reply.unwrap();
                            assert!(reply.len() == 100_000 && reply[77] == number as u8);
                        }
                        (_, reply) => assert_eq!(reply.unwrap(), request(number)),
                    }
                }
            }
        });
    });
    assert_eq!(server.counters().requests, CALLS as u64);
}

/// Verbs that are larger than a connection's buffers travel in pieces, in order, and are refused as
/// a whole.
#[test]
fn large_verbs_go_in_pieces() {
    const BYTES: usize = (3 << 20) + 8;
    let cluster = TcpConfig::default().start(vec![TestService::new(4 << 20)]);
    cluster.run_one(|fabric| async move {
        let memory = Arc::new(Region::new(8 << 20).unwrap());
        let buffer = |first: usize| Buffer::over(Arc::clone(&memory), first, BYTES / 8);
        let (from, into) = (buffer(0), buffer(1 << 19));
        (0..BYTES / 8).for_each(|index| from.set(index, index as u64 + 1));
        let last = BYTES as u64 - 8;
        let write = fabric.write(at(4096), from);
        let swap = fabric.compare_swap(at(4096 + last), BYTES as u64 / 8, 5);
        let read = fabric.read(at(4096), into);
        assert_eq!(swap.await, Ok(BYTES as u64 / 8), "the CAS came after the whole WRITE");
        let from = write.await.unwrap();
        let into = read.await.unwrap();
        assert!((0..BYTES / 8 - 1).all(|index| into.get(index) == index as u64 + 1));
        assert_eq!(into.get(BYTES / 8 - 1), 5);

        let place = at((4 << 20) - last);
        let error = fabric.write(place, from).await.unwrap_err();
        let region_bytes = 4 << 20;
        assert_eq!(error, FabricError::OutOfBounds { at: place, bytes: BYTES, region_bytes });
        let untouched = fabric.read(place, fabric.buffer(4096).unwrap()).await.unwrap();
        let first = (place.offset() - 4096) / 8 + 1;
        assert!(
            (0..512).all(|index| untouched.get(index) == first + index as u64),
            "a piece of the refused WRITE took effect"
        );
    });
}

/// Another thread can wake a task of a thread that waits for its sockets.
#[test]
fn another_thread_wakes_a_waiting_client() {
    let cluster = TcpConfig::default().start(vec![TestService::new(REGION_BYTES)]);
    cluster.run_one(|fabric| async move {
        for _ in 0..20 {
            word(&fabric, 0).await.unwrap();
            let (sender, receiver) = std::sync::mpsc::channel::<std::task::Waker>();
            let thread = std::thread::spawn(move || {
                let waker = receiver.recv().unwrap();
                std::thread::yield_now();
                waker.wake();
            });
            let before_ns = fabric.now_ns();
            let mut asked = false;
            std::future::poll_fn(|context| {
                if std::mem::replace(&mut asked, true) {
                    return std::task::Poll::Ready(());
                }
                sender.send(context.waker().clone()).unwrap();
                std::task::Poll::Pending
            })
            .await;
            assert!(fabric.now_ns() >= before_ns);
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_stopped_server_leaves_no_thread_and_no_connection() {
    let token = Token::draw().unwrap();
    for io_threads in [1, 2] {
        let server = start(TestService::new(REGION_BYTES), &token, io_threads);
        let address = server.local_address();
        let cluster = TcpCluster::connect(vec![address], &token, TcpConfig::default());
        let driver = cluster.driver().unwrap();
        let endpoints: Vec<_> = (0..5).map(|number| driver.open(number, 0).unwrap()).collect();
        run(&driver, async {
            for endpoint in &endpoints {
                word(endpoint, 0).await.unwrap();
            }
        });
        assert_eq!(server.counters().connections, 5);
        server.stop();
        assert_eq!(server.counters().connections, 0);
        assert!(TcpStream::connect(address).is_err(), "the listener is still open");
        run(&driver, async {
            for endpoint in &endpoints {
                assert_eq!(word(endpoint, 0).await, Err(LOST));
            }
        });
        server.stop();
    }
}
