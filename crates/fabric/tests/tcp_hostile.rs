//! How a server of the provider `tcp` handles hostile peers: it closes their connections, with no
//! other effect.
#![expect(clippy::disallowed_methods, reason = "tests wait for what real sockets do")]

use farleaf_fabric::conformance::{TestService, mutate, random_bytes};
use farleaf_fabric::executor::Executor;
use farleaf_fabric::handshake::{
    ExpectedPeer, HandshakeError, HandshakeRefusal, Initiator, InitiatorStep, MESSAGE_BYTES,
    NO_FENCES, Nonce, PeerIdentity, PeerRole, Token,
};
use farleaf_fabric::tcp::frame::{FramePiece, FrameRequest, MAX_FRAME_BYTES};
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpServer, TcpServerConfig};
use farleaf_fabric::{Cluster, Fabric, FabricError, GlobalAddr, ServerId};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SERVER: ServerId = ServerId::new(0);
const REGION_BYTES: usize = 16_384;
/// A check fails if it does not end within this time.
const TIMEOUT: Duration = Duration::from_secs(30);

fn start(token: &Token, config: TcpServerConfig) -> TcpServer {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    TcpServer::start(listener, TestService::new(REGION_BYTES), token, config).unwrap()
}

fn cluster(server: &TcpServer, token: &Token) -> TcpCluster {
    TcpCluster::connect(vec![server.local_address()], token, TcpConfig::default())
}

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(SERVER, offset)
}

async fn works(fabric: &impl Fabric) {
    assert_eq!(
        &fabric.call(SERVER, TestService::echo(b"still here")).await.unwrap()[..],
        b"still here"
    );
    fabric.read(at(64), fabric.buffer(256).unwrap()).await.unwrap();
}

/// Asserts that a client with the right token is served.
fn serves(server: &TcpServer, token: &Token) {
    cluster(server, token).run_one(|fabric| async move { works(&fabric).await });
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// Reads the remaining bytes until the server closes; a connection reset counts as closing.
fn rest(socket: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}"),
    }
    bytes
}

fn initiator(token: &Token, number: u16) -> Initiator {
    let me =
        PeerIdentity { role: PeerRole::ComputeServer, number, epoch: u64::from(number) + 1000 };
    let wanted = ExpectedPeer { role: PeerRole::MemoryServer, number: 0 };
    Initiator::new(token, me, NO_FENCES, wanted, Nonce::draw().unwrap(), u64::MAX)
}

/// A connection that the server has admitted.
fn let_in(address: SocketAddr, token: &Token, number: u16) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    let mut initiator = initiator(token, number);
    socket.write_all(initiator.hello())?;
    loop {
        let mut message = [0; MESSAGE_BYTES];
        socket.read_exact(&mut message)?;
        match initiator.receive(&message, 0).unwrap() {
            InitiatorStep::Send(proof) => socket.write_all(&proof)?,
            InitiatorStep::Open { .. } => return Ok(socket),
        }
    }
}

fn frame(request: &FrameRequest<'_>, id: u64) -> Vec<u8> {
    let mut bytes = vec![0; request.frame_bytes()];
    request.encode(id, &mut bytes);
    bytes
}

#[test]
fn another_token_gets_a_refusal_and_nothing_else() {
    let (token, wrong) = (Token::draw().unwrap(), Token::draw().unwrap());
    let server = start(&token, TcpServerConfig::default());
    cluster(&server, &wrong).run_one(|fabric| async move {
        let why = HandshakeError::Refused(HandshakeRefusal::Token);
        for _ in 0..3 {
            let error = fabric.fetch_add(at(0), 1).await.unwrap_err();
            assert_eq!(error, FabricError::NotLetIn { server: SERVER, why });
        }
    });
    assert_eq!(server.counters().welcomed, 0);
    assert_eq!(server.counters().refused, 3);
    assert_eq!(server.counters().requests, 0, "the server read no request");

    // Byte by byte, the client gets a challenge, which reveals nothing about the token, then the
    // refusal, then the end.
    let mut socket = connect(server.local_address());
    let mut initiator = initiator(&wrong, 1);
    socket.write_all(initiator.hello()).unwrap();
    let mut challenge = [0; MESSAGE_BYTES];
    socket.read_exact(&mut challenge).unwrap();
    let InitiatorStep::Send(proof) = initiator.receive(&challenge, 0).unwrap() else { panic!() };
    socket.write_all(&proof).unwrap();
    assert_eq!(rest(&mut socket), HandshakeRefusal::Token.message());
    serves(&server, &token);
}

#[test]
fn another_version_is_told_so() {
    let token = Token::draw().unwrap();
    let server = start(&token, TcpServerConfig::default());
    let mut socket = connect(server.local_address());
    let mut hello = *initiator(&token, 1).hello();
    hello[8] = 99;
    socket.write_all(&hello).unwrap();
    assert_eq!(rest(&mut socket), HandshakeRefusal::Version.message());
    serves(&server, &token);
}

#[test]
fn other_roles_and_other_servers_are_found_out() {
    let token = Token::draw().unwrap();
    let server = start(&token, TcpServerConfig { number: 7, ..TcpServerConfig::default() });
    let not_let_in = |config: TcpConfig| {
        let cluster = TcpCluster::connect(vec![server.local_address()], &token, config);
        let error = cluster.run_one(|fabric| async move { fabric.fetch_add(at(0), 1).await });
        match error.unwrap_err() {
            FabricError::NotLetIn { why, .. } => why,
            other => panic!("{other}"),
        }
    };
    let why = not_let_in(TcpConfig { role: PeerRole::Client, ..TcpConfig::default() });
    assert_eq!(why, HandshakeError::Refused(HandshakeRefusal::Role));
    // If the addresses are in the wrong order, the server there is not number 0.
    let why = not_let_in(TcpConfig::default());
    assert!(matches!(why, HandshakeError::OtherPeer(PeerIdentity { number: 7, .. })), "{why}");
}

#[test]
fn frames_that_are_none_close_their_connection_and_no_other() {
    let token = Token::draw().unwrap();
    let server = start(&token, TcpServerConfig::default());
    let address = server.local_address();
    let good = frame(&FrameRequest::FetchAdd { at: at(0), delta: 1 }, 1);
    let change = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let mut huge = good.clone();
    huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut long_call = frame(&FrameRequest::Call(b""), 1);
    long_call[..4].copy_from_slice(&(MAX_FRAME_BYTES as u32).to_le_bytes());
    let outside = FramePiece { at: at(0), whole: 8, first: 8, length: 8 };
    let bad = [
        huge,
        long_call,
        change(4, 0),
        change(4, 99),
        change(4, 0x80 | 4),
        change(5, 1),
        change(6, 1),
        change(0, 17),
        frame(&FrameRequest::Read(outside), 1),
        vec![0xff; 4096],
    ];
    let cluster = cluster(&server, &token);
    cluster.run_one(|fabric| {
        let (bad, good, token) = (&bad, &good, &token);
        async move {
            for (number, bytes) in (2..).zip(bad) {
                let mut socket = let_in(address, token, number).unwrap();
                socket.write_all(good).unwrap();
                socket.write_all(bytes).unwrap();
                let answer = rest(&mut socket);
                assert!(answer.len() <= 24, "{bytes:?}: only the good request may be answered");
                works(&fabric).await;
            }
            let done = fabric.fetch_add(at(0), 0).await.unwrap();
            assert_eq!(done, bad.len() as u64, "requests before the bad frames were carried out");
        }
    });
    assert_eq!(server.counters().welcomed, 1 + bad.len() as u64);
}

#[test]
fn handshakes_that_do_not_end_are_few_and_do_not_last() {
    let token = Token::draw().unwrap();
    let config = TcpServerConfig {
        half_open: 4,
        handshake_timeout_ns: 1_000_000_000,
        ..TcpServerConfig::default()
    };
    let server = start(&token, config);
    let mut sockets: Vec<_> = (0..20).map(|_| connect(server.local_address())).collect();
    for (number, socket) in (10..).zip(&mut sockets) {
        let hello = *initiator(&token, number).hello();
        // Some peers have sent nothing, some part of the hello, some everything but the proof.
        let _ = socket.write_all(&hello[..[0, 30, MESSAGE_BYTES][usize::from(number) % 3]]);
    }
    serves(&server, &token);
    // Newer connections evicted the oldest ones, and the deadline closed the rest.
    for mut socket in sockets {
        let challenge = rest(&mut socket);
        assert!(challenge.is_empty() || challenge.len() == MESSAGE_BYTES);
    }
    assert_eq!(server.counters().refused, 20);
    serves(&server, &token);
}

#[test]
fn there_are_no_more_connections_than_there_may_be() {
    let token = Token::draw().unwrap();
    let server = start(&token, TcpServerConfig { connections: 3, ..TcpServerConfig::default() });
    let cluster = cluster(&server, &token);
    let driver = cluster.driver().unwrap();
    let mut endpoints: Vec<_> = (0..3).map(|number| driver.open(number, 0).unwrap()).collect();
    let late = driver.open(9, 0).unwrap();
    let refused = async {
        for endpoint in &endpoints {
            works(endpoint).await;
        }
        let why = HandshakeError::Refused(HandshakeRefusal::Full);
        let error = late.fetch_add(at(0), 1).await.unwrap_err();
        assert_eq!(error, FabricError::NotLetIn { server: SERVER, why });
        for endpoint in &endpoints {
            works(endpoint).await;
        }
    };
    Executor::new().complete(&driver, refused).expect("it ends");
    endpoints.pop();
    let let_in = async {
        for _ in 0..1000 {
            match late.call(SERVER, TestService::echo(b"")).await {
                Ok(_) => return,
                Err(error) => assert!(matches!(error, FabricError::NotLetIn { .. }), "{error}"),
            }
        }
        panic!("the closed connection made no room");
    };
    Executor::new().complete(&driver, let_in).expect("it ends");
}

/// A peer that sends requests but does not read costs a bounded amount of memory, and does not
/// affect others.
#[test]
fn who_does_not_read_is_not_read_from() {
    let token = Token::draw().unwrap();
    let server = start(&token, TcpServerConfig::default());
    let mut socket = let_in(server.local_address(), &token, 5).unwrap();
    let read =
        FrameRequest::Read(FramePiece { at: at(0), whole: 16_384, first: 0, length: 16_384 });
    let requests: Vec<u8> = (0..256).flat_map(|id| frame(&read, id)).collect();
    socket.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut sent = 0;
    // Far more answers than the buffers of the connection hold: at some point the server stops
    // reading.
    let blocked = loop {
        match socket.write(&requests[sent % requests.len()..]) {
            Ok(bytes) => sent += bytes,
            Err(error) => break error,
        }
        assert!(sent < 1 << 28, "the server reads requests without limit");
    };
    assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
    serves(&server, &token);
    // Once the peer reads, it gets every answer.
    let answers = sent / frame(&read, 0).len();
    let mut answer = vec![0; 16 + 16_384];
    for id in 0..answers as u64 {
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(answer[8..16], (id % 256).to_le_bytes());
    }
}

/// `FARLEAF_HOSTILE_STRINGS` sets the number of byte strings. The seed is fixed, so a run can be
/// repeated.
#[test]
fn random_and_mutated_bytes_disturb_nobody() {
    let count: u64 = std::env::var("FARLEAF_HOSTILE_STRINGS")
        .map_or(100_000, |text| text.parse().expect("a number of byte strings"));
    let token = Token::draw().unwrap();
    let server = start(&token, TcpServerConfig::default());
    let address = server.local_address();
    let (over, worked) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cluster(&server, &token).run(&[51_966], |fabric, _| {
                let (over, worked) = (&over, &worked);
                async move {
                    while !over.load(Ordering::Acquire) {
                        works(&fabric).await;
                        worked.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        });
        let mut rng = SmallRng::seed_from_u64(1);
        let mut sent = 0;
        while sent < count {
            // Send as many strings as the server accepts over one connection; most connections end
            // at the first.
            let outcome = match rng.random_range(0..4) {
                0 => hostile_stranger(address, &token, &mut rng),
                _ => hostile_peer(address, &token, &mut rng, sent),
            };
            sent += outcome.unwrap_or(1);
        }
        over.store(true, Ordering::Release);
    });
    assert!(worked.load(Ordering::Relaxed) > 0);
    serves(&server, &token);
    let counters = server.counters();
    println!("{counters:?}");
    assert!(counters.requests > count / 8, "too few strings were decoded as requests");
    let started = Instant::now();
    while server.counters().connections > 0 {
        assert!(started.elapsed() < TIMEOUT, "connections remain open");
        std::thread::yield_now();
    }
}

/// Makes closing the socket discard unsent data and skip TIME_WAIT, so that ports stay available.
fn hang_up(socket: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// A peer without a token.
fn hostile_stranger(address: SocketAddr, token: &Token, rng: &mut SmallRng) -> io::Result<u64> {
    let mut socket = TcpStream::connect(address)?;
    let mut bytes = match rng.random_range(0..3) {
        0 => random_bytes(rng),
        _ => initiator(token, rng.random()).hello().to_vec(),
    };
    mutate(&mut bytes, 0, rng);
    socket.write_all(&bytes)?;
    hang_up(&socket);
    Ok(1)
}

/// A peer with the token that sends invalid requests.
fn hostile_peer(
    address: SocketAddr,
    token: &Token,
    rng: &mut SmallRng,
    number: u64,
) -> io::Result<u64> {
    let mut socket = let_in(address, token, (number % 50_000) as u16)?;
    let mut sent = 0;
    for _ in 0..rng.random_range(1..16) {
        let at = GlobalAddr::from_bits(rng.random::<u64>() >> rng.random_range(0..64));
        let piece = FramePiece {
            at,
            whole: rng.random::<u32>() >> rng.random_range(0..32),
            first: rng.random::<u32>() >> rng.random_range(0..32),
            length: 8 << rng.random_range(0..8),
        };
        let mut bytes = match rng.random_range(0..6) {
            0 => random_bytes(rng),
            1 => frame(&FrameRequest::Read(piece), rng.random()),
            2 => frame(&FrameRequest::Write(piece, &vec![1; piece.length as usize]), rng.random()),
            3 => frame(&FrameRequest::CompareSwap { at, expected: 0, new: 1 }, rng.random()),
            4 => frame(&FrameRequest::FetchAdd { at, delta: 1 }, rng.random()),
            _ => frame(&FrameRequest::Call(&random_bytes(rng)), rng.random()),
        };
        mutate(&mut bytes, 0, rng);
        sent += 1;
        if socket.write_all(&bytes).is_err() {
            break;
        }
    }
    hang_up(&socket);
    Ok(sent)
}
