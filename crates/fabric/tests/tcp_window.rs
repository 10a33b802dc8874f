//! The window of the provider `tcp`: how much payload is in flight over a connection, in which
//! order waiting operations take effect, and how they end. A proxy holds back the answers of the
//! server, so that the window fills up and stays full.
#![expect(clippy::disallowed_methods, reason = "tests wait for what real sockets do")]

mod proxy;

use farleaf_fabric::any::AnyOp;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::executor::Executor;
use farleaf_fabric::handshake::{PeerRole, Token};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpDriver, TcpServer, TcpServerConfig};
use farleaf_fabric::{
    AnyFabric, Buffer, Cluster, Fabric, FabricError, GlobalAddr, Provider, Region, ServerId,
    Uncertainty,
};
use proxy::over_proxy;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

const SERVER: ServerId = ServerId::new(0);
const REGION_BYTES: usize = 4 << 20;
/// The size of one frame's payload.
const PIECE: usize = 64 * 1024;
const LOST: FabricError =
    FabricError::Indeterminate { server: SERVER, why: Uncertainty::ConnectionLost };
const TIMED_OUT: FabricError =
    FabricError::Indeterminate { server: SERVER, why: Uncertainty::TimedOut };

fn at(offset: usize) -> GlobalAddr {
    GlobalAddr::new(SERVER, offset as u64)
}

/// A server for endpoints of `role`, and its token.
fn start(role: PeerRole) -> (TcpServer, Token) {
    let token = Token::draw().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let accepts: &[PeerRole] =
        if role == PeerRole::Client { &[PeerRole::Client] } else { &[PeerRole::ComputeServer] };
    let config = TcpServerConfig { accepts, ..TcpServerConfig::default() };
    let service = TestService::new(REGION_BYTES);
    (TcpServer::start(listener, service, &token, config).unwrap(), token)
}

fn with_window(window_bytes: usize) -> TcpConfig {
    TcpConfig { window_bytes, ..TcpConfig::default() }
}

fn run<T: 'static>(driver: &TcpDriver, future: impl Future<Output = T>) -> T {
    Executor::new().complete(driver, future).expect("the task ends")
}

fn buffer(bytes: usize) -> Buffer {
    let memory = Region::new(bytes.next_multiple_of(4096)).unwrap();
    Buffer::over(Arc::new(memory), 0, bytes / 8)
}

fn read(fabric: &AnyFabric, offset: usize, bytes: usize) -> AnyOp<Buffer> {
    fabric.read(at(offset), buffer(bytes))
}

fn write(fabric: &AnyFabric, offset: usize, bytes: usize, value: u64) -> AnyOp<Buffer> {
    let from = buffer(bytes);
    (0..bytes / 8).for_each(|index| from.set(index, value));
    fabric.write(at(offset), from)
}

async fn word(fabric: &AnyFabric, offset: usize) -> Result<u64, FabricError> {
    Ok(fabric.read(at(offset), fabric.buffer(8)?).await?.get(0))
}

/// Waits until the server has received `requests` more requests than `before`, and asserts that it
/// receives no more for a while.
async fn gets(fabric: &AnyFabric, server: &TcpServer, before: u64, requests: u64) {
    let started = Instant::now();
    let count = || server.counters().requests - before;
    while count() < requests {
        assert!(started.elapsed() < Duration::from_secs(30), "{} of {requests}", count());
        fabric.sleep(1_000_000).await;
    }
    for _ in 0..20 {
        fabric.sleep(1_000_000).await;
        assert_eq!(count(), requests, "more is under way than the window allows");
    }
}

/// Never more is in flight than the window allows. Waiting READs let others pass, waiting WRITEs do
/// not (F3), and the two directions do not wait for each other.
#[test]
fn what_exceeds_the_window_waits() {
    let (server, token) = start(PeerRole::ComputeServer);
    let (proxy, cluster) = over_proxy(&server, &token, with_window(2 * PIECE));
    cluster.run_one(|fabric| {
        let (proxy, server) = (&proxy, &server);
        async move {
            assert_eq!(word(&fabric, 0).await, Ok(0));
            let counters = fabric.counters().snapshot();
            let before = server.counters().requests;
            proxy.hold_answers();
            let large = read(&fabric, 0, 3 * PIECE);
            let reads: Vec<_> = (0..3).map(|index| read(&fabric, index * PIECE, PIECE)).collect();
            gets(&fabric, server, before, 2).await;
            let small = read(&fabric, 0, 4096);
            gets(&fabric, server, before, 3).await;
            let call = fabric.call(SERVER, TestService::echo(b"hello"));
            let swap = fabric.compare_swap(at(REGION_BYTES - 8), 0, 1);
            gets(&fabric, server, before, 5).await;

            let huge = write(&fabric, 0, 3 * PIECE, 7);
            drop(write(&fabric, 4 * PIECE, PIECE, 8));
            let after = read(&fabric, 4 * PIECE, 4096);
            let last = fabric.compare_swap(at(4 * PIECE), 8, 9);
            gets(&fabric, server, before, 7).await;
            proxy.release();

            assert_eq!(last.await, Ok(8), "the dropped WRITE took effect before the CAS");
            assert_eq!(after.await.unwrap().get(8), 8);
            assert_eq!(huge.await.unwrap().bytes(), 3 * PIECE);
            assert_eq!(swap.await, Ok(0));
            assert_eq!(&call.await.unwrap()[..], b"hello");
            assert_eq!(small.await.unwrap().get(0), 0);
            assert_eq!(large.await.unwrap().bytes(), 3 * PIECE);
            for read in reads {
                assert_eq!(read.await.unwrap().bytes(), PIECE);
            }
            assert_eq!(server.counters().requests - before, 6 + 1 + 2 + 4 + 2);
            let counted = fabric.counters().snapshot();
            assert_eq!(counted.reads - counters.reads, 6);
            assert_eq!(counted.writes - counters.writes, 2);
            let read_bytes = (6 * PIECE + 2 * 4096) as u64;
            assert_eq!(counted.bytes_read - counters.bytes_read, read_bytes);
            assert_eq!(counted.bytes_written - counters.bytes_written, 4 * PIECE as u64);
        }
    });
    assert_eq!(server.counters().welcomed, 1);
}

/// Later READs do not overtake a waiting one even if they would fit, except those too small to
/// count. Otherwise a stream of them could keep it waiting forever.
#[test]
fn later_reads_do_not_take_the_room() {
    let (server, token) = start(PeerRole::ComputeServer);
    let (proxy, cluster) = over_proxy(&server, &token, with_window(2 * PIECE + 16_384));
    cluster.run_one(|fabric| {
        let (proxy, server) = (&proxy, &server);
        async move {
            assert_eq!(word(&fabric, 0).await, Ok(0));
            let before = server.counters().requests;
            proxy.hold_answers();
            let first: Vec<_> = (0..3).map(|_| read(&fabric, 0, PIECE)).collect();
            let later: Vec<_> = (0..3).map(|_| read(&fabric, 0, 8192)).collect();
            gets(&fabric, server, before, 2).await;
            let small = read(&fabric, 0, 4096);
            gets(&fabric, server, before, 3).await;
            proxy.release();
            for read in first.into_iter().chain(later).chain([small]) {
                read.await.unwrap();
            }
        }
    });
}

/// An operation that is larger than the window is sent piece by piece, each of them alone.
#[test]
fn what_is_larger_than_the_window_goes_alone() {
    for window_bytes in [0, 8192, PIECE - 8] {
        let (server, token) = start(PeerRole::ComputeServer);
        let (proxy, cluster) = over_proxy(&server, &token, with_window(window_bytes));
        cluster.run_one(|fabric| {
            let (proxy, server) = (&proxy, &server);
            async move {
                assert_eq!(word(&fabric, 0).await, Ok(0));
                let before = server.counters().requests;
                proxy.hold_answers();
                let write = write(&fabric, 0, 4 * PIECE, 7);
                gets(&fabric, server, before, 1).await;
                proxy.release();
                write.await.unwrap();
                assert_eq!(server.counters().requests - before, 4);
                proxy.hold_answers();
                let read = read(&fabric, 0, 4 * PIECE);
                gets(&fabric, server, before, 5).await;
                proxy.release();
                let read = read.await.unwrap();
                assert!((0..4 * PIECE / 8).all(|index| read.get(index) == 7));
            }
        });
    }
}

/// F3, with windows of every size: a READ sees all WRITEs that were posted before it, and a CAS
/// acts on them, whatever waits for the window.
#[test]
fn the_order_is_kept_while_operations_wait() {
    const WORDS: usize = 40_000;
    const TAIL: usize = WORDS * 8;
    for (seed, window_bytes) in [0, PIECE, 3 * PIECE, 512 * 1024, usize::MAX].iter().enumerate() {
        let cluster = with_window(*window_bytes).start(vec![TestService::new(REGION_BYTES)]);
        cluster.run_one(|fabric| async move {
            let mut rng = SmallRng::seed_from_u64(seed as u64);
            // The last WRITE of each word, numbered in posting order.
            let mut last = vec![0_u64; WORDS];
            let mut number = 0;
            for round in 0..40_u64 {
                let (mut reads, mut writes, mut swaps) = (Vec::new(), Vec::new(), Vec::new());
                for _ in 0..12 {
                    let words = match rng.random_range(0..3) {
                        0 => rng.random_range(1..64),
                        1 => rng.random_range(512..8192),
                        _ => rng.random_range(8192..WORDS),
                    };
                    let first = rng.random_range(0..=WORDS - words);
                    if rng.random_range(0..2) == 0 {
                        number += 1;
                        writes.push(write(&fabric, first * 8, words * 8, number));
                        last[first..first + words].fill(number);
                        let place = at((first + words - 1) * 8);
                        swaps.push((number, fabric.compare_swap(place, number, number)));
                        // A small WRITE behind a large one.
                        writes.push(write(&fabric, TAIL, 8, number));
                    } else {
                        let expected = last[first..first + words].to_vec();
                        reads.push((expected, read(&fabric, first * 8, words * 8)));
                    }
                }
                let newest = number;
                for (expected, read) in reads {
                    let read = read.await.unwrap();
                    for (index, expected) in expected.into_iter().enumerate() {
                        let found = read.get(index);
                        assert!(found >= expected, "round {round}: a READ has missed a WRITE");
                        assert!(found <= newest);
                    }
                }
                for (number, swap) in swaps {
                    assert!(swap.await.unwrap() >= number, "round {round}: a CAS came too early");
                }
                for write in writes {
                    write.await.unwrap();
                }
                assert_eq!(word(&fabric, TAIL).await, Ok(newest));
            }
        });
    }
}

/// F9: a reset ends operations that wait for the window, and none of them happens later. Clients
/// learn which operations were not sent.
#[test]
fn a_reset_ends_what_waits() {
    for role in [PeerRole::ComputeServer, PeerRole::Client] {
        let (server, token) = start(role);
        let config = TcpConfig { role, ..with_window(2 * PIECE) };
        let (proxy, cluster) = over_proxy(&server, &token, config);
        cluster.run_one(|fabric| {
            let (proxy, server) = (&proxy, &server);
            async move {
                for round in 1..=5 {
                    write(&fabric, 0, 5 * PIECE, round).await.unwrap();
                    let before = server.counters().requests;
                    proxy.hold_answers();
                    let reads: Vec<_> =
                        (0..5).map(|index| read(&fabric, index * PIECE, PIECE)).collect();
                    let writes: Vec<_> =
                        (0..5).map(|index| write(&fabric, index * PIECE, PIECE, 1000)).collect();
                    let swap = fabric.compare_swap(at(6 * PIECE), 0, 1);
                    gets(&fabric, server, before, 4).await;
                    fabric.reset(SERVER).await.unwrap();
                    let unsent = match role {
                        PeerRole::Client => FabricError::NotSent { server: SERVER },
                        _ => LOST,
                    };
                    for ops in [reads, writes] {
                        for (index, op) in ops.into_iter().enumerate() {
                            let expected = if index < 2 { LOST } else { unsent.clone() };
                            assert_eq!(op.await.unwrap_err(), expected);
                        }
                    }
                    assert_eq!(swap.await, Err(unsent));
                    proxy.release();
                    for index in 0..5 {
                        let expected = if index < 2 { 1000 } else { round };
                        assert_eq!(word(&fabric, index * PIECE).await, Ok(expected));
                    }
                    assert_eq!(word(&fabric, 6 * PIECE).await, Ok(0));
                }
            }
        });
        assert_eq!(server.counters().welcomed, 6);
    }
}

/// F7: READs that wait for the window end at their deadlines, and the connection stays open:
/// nothing depends on them, and the answers to ended READs make room again. A waiting WRITE ends
/// its connection, because later operations must not happen without it (F3).
#[test]
fn a_deadline_ends_what_waits() {
    let (server, token) = start(PeerRole::ComputeServer);
    let config = TcpConfig { timeout_ns: 200_000_000, ..with_window(2 * PIECE) };
    let (proxy, cluster) = over_proxy(&server, &token, config);
    cluster.run_one(|fabric| {
        let (proxy, server) = (&proxy, &server);
        async move {
            write(&fabric, 0, PIECE, 1).await.unwrap();
            for _ in 0..3 {
                let before = server.counters().requests;
                proxy.hold_answers();
                let large = read(&fabric, 0, 3 * PIECE);
                let reads: Vec<_> = (0..5).map(|_| read(&fabric, 0, PIECE)).collect();
                assert_eq!(large.await.unwrap_err(), TIMED_OUT);
                for read in reads {
                    assert_eq!(read.await.unwrap_err(), TIMED_OUT);
                }
                assert_eq!(server.counters().requests - before, 2);
                proxy.release();
                for _ in 0..6 {
                    assert_eq!(read(&fabric, 0, 2 * PIECE).await.unwrap().get(0), 1);
                }
            }
            assert_eq!(server.counters().welcomed, 1, "the connection lives on");
            let before = server.counters().requests;
            proxy.hold_answers();
            let writes: Vec<_> =
                (0..4).map(|index| write(&fabric, index * PIECE, PIECE, 1000)).collect();
            let swap = fabric.compare_swap(at(8 * PIECE), 0, 1);
            // The deadline of the first waiting WRITE ends the connection, and with it the others,
            // whose deadlines are a moment later.
            for (index, write) in writes.into_iter().enumerate() {
                let error = write.await.unwrap_err();
                assert!(error == TIMED_OUT || index > 2 && error == LOST, "{index}: {error}");
            }
            assert!([TIMED_OUT, LOST].contains(&swap.await.unwrap_err()));
            assert_eq!(server.counters().requests - before, 2);
            proxy.release();
            assert_eq!(word(&fabric, 2 * PIECE).await, Ok(0), "a WRITE came too late");
            assert_eq!(word(&fabric, 8 * PIECE).await, Ok(0), "a CAS came without its WRITE");
            assert_eq!(server.counters().welcomed, 2);
        }
    });
}

/// The loss of a connection ends operations that wait for the window; the next connection's window
/// is empty.
#[test]
fn a_lost_connection_ends_what_waits() {
    let (server, token) = start(PeerRole::ComputeServer);
    let (proxy, cluster) = over_proxy(&server, &token, with_window(2 * PIECE));
    cluster.run_one(|fabric| {
        let (proxy, server) = (&proxy, &server);
        async move {
            for _ in 0..5 {
                assert_eq!(word(&fabric, 0).await, Ok(0));
                let before = server.counters().requests;
                proxy.hold_answers();
                let reads: Vec<_> = (0..5).map(|_| read(&fabric, 0, PIECE)).collect();
                let writes: Vec<_> = (0..5).map(|_| write(&fabric, PIECE, PIECE, 1)).collect();
                gets(&fabric, server, before, 4).await;
                proxy.cut();
                for op in reads.into_iter().chain(writes) {
                    assert_eq!(op.await.unwrap_err(), LOST);
                }
                proxy.release();
            }
        }
    });
}

/// F10: no operation that waits for the window takes effect after a fence.
#[test]
fn a_fence_shuts_out_what_waits() {
    let (server, token) = start(PeerRole::ComputeServer);
    let (proxy, cluster) = over_proxy(&server, &token, with_window(2 * PIECE));
    let healthy = TcpCluster::connect(vec![server.local_address()], &token, TcpConfig::default());
    let (driver, other) = (cluster.driver().unwrap(), healthy.driver().unwrap());
    let open = |driver: &TcpDriver, server| AnyFabric::Tcp(driver.open(server, 0).unwrap());
    let (zombie, survivor) = (open(&driver, 1), open(&other, 2));
    let writes = run(&driver, async {
        assert_eq!(word(&zombie, 0).await, Ok(0));
        let before = server.counters().requests;
        proxy.hold_answers();
        let writes: Vec<_> =
            (0..5).map(|index| write(&zombie, index * PIECE, PIECE, 1000)).collect();
        gets(&zombie, &server, before, 2).await;
        writes
    });
    run(&other, async { survivor.fence(SERVER, 1).await.unwrap() });
    proxy.release();
    run(&driver, async {
        for write in writes.into_iter().skip(2) {
            assert_eq!(write.await.unwrap_err(), LOST);
        }
    });
    run(&other, async { assert_eq!(word(&survivor, 2 * PIECE).await, Ok(0)) });
}

/// F8: operations that wait for the window when their endpoint is dropped take effect, even those
/// that a socket accepts only later. When the proxy forwards what it held, the first WRITEs are
/// answered. If the socket were closed by then, these answers would reset it and discard the unsent
/// rest.
#[test]
fn a_dropped_endpoint_sends_what_waits() {
    const MANY: usize = 60;
    let (server, token) = start(PeerRole::ComputeServer);
    let (proxy, cluster) = over_proxy(&server, &token, with_window(2 * PIECE));
    let healthy = TcpCluster::connect(vec![server.local_address()], &token, TcpConfig::default());
    let (driver, other) = (cluster.driver().unwrap(), healthy.driver().unwrap());
    let open = |driver: &TcpDriver, server| AnyFabric::Tcp(driver.open(server, 0).unwrap());
    let (fabric, observer) = (open(&driver, 1), open(&other, 2));
    run(&driver, async {
        assert_eq!(word(&fabric, 0).await, Ok(0));
        proxy.hold();
        drop(write(&fabric, 0, MANY * PIECE, 7));
        drop(fabric.compare_swap(at(MANY * PIECE - 8), 7, 8));
        fabric.sleep(0).await;
        fabric.sleep(0).await;
        proxy.wait_until_holding();
    });
    proxy.release();
    drop(fabric);
    run(&other, async {
        let started = Instant::now();
        while word(&observer, MANY * PIECE - 8).await != Ok(8) {
            assert!(started.elapsed() < Duration::from_secs(30), "what waited was not sent");
            observer.sleep(1_000_000).await;
        }
    });
}
