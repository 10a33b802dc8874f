//! Malformed byte strings to every port of a cluster of processes. Their sender is disconnected,
//! and no other client is affected. Half of the senders have no token; the others are admitted, and
//! send malformed messages after that.
//!
//! `FARLEAF_HOSTILE_STRINGS` sets the number of strings per port; the seed is fixed. Orders that an
//! operator may give with the token, such as halting a compute server, are excluded, because they
//! are valid.

use crate::launched::{Launched, eventually, text};
use crate::serving::{DEADLINE, KEYS, compute, connect_to, serving, try_both_of};
use farleaf_cluster::launch::LauncherFolder;
use farleaf_cluster::layouts::ClusterLayout;
use farleaf_cluster::scrape::Scraper;
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::conformance::{mutate, random_bytes};
use farleaf_fabric::handshake::{
    ExpectedPeer, Initiator, InitiatorStep, MESSAGE_BYTES, NO_FENCES, Nonce, PeerIdentity,
    PeerRole, Token,
};
use farleaf_fabric::tcp::frame::{FramePiece, FrameRequest};
use farleaf_page::{Bytes, EditAction, Fixed8, LeafEdit, OwnedKey, OwnedValue};
use farleaf_pool::wire::ClientRequest;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Maximum growth of a process, in bytes: connections and their buffers may grow it, but not the
/// data received.
const GROWTH_BYTES: u64 = 64 << 20;
/// Keys and values of a layout.
struct Records<L: ClusterLayout> {
    /// The key in all messages before mutation, and its value. Messages that stay valid change only
    /// this key.
    theirs: (OwnedKey<L>, OwnedValue<L>),
    /// One key of each compute server for the well-behaved client, and their value.
    ours: ([OwnedKey<L>; 2], OwnedValue<L>),
}

/// The kind of server behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Catalog,
    MemoryServer(u16),
    ComputeServer(u16),
    Metrics,
}

#[derive(Debug)]
struct Port {
    kind: Kind,
    address: String,
    pid: u32,
}

/// Closes a socket without lingering, so that its port is free for the next one. Half of the time,
/// waits until the server has read all of the input; otherwise the input may be cut off.
fn hang_up(mut socket: TcpStream, rng: &mut SmallRng) -> io::Result<()> {
    if rng.random() {
        socket.shutdown(Shutdown::Write)?;
        let mut sink = [0; 4096];
        // An error here also means that the connection has ended.
        while socket.read(&mut sink).is_ok_and(|bytes| bytes > 0) {}
    }
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    Ok(())
}

fn initiator(port: &Port, token: &Token, rng: &mut SmallRng) -> Initiator {
    let (me, role, number) = match port.kind {
        Kind::MemoryServer(number) => (PeerRole::ComputeServer, PeerRole::MemoryServer, number),
        Kind::ComputeServer(number) => (PeerRole::Client, PeerRole::ComputeServer, number),
        Kind::Catalog | Kind::Metrics => (PeerRole::Client, PeerRole::Catalog, 0),
    };
    let me =
        PeerIdentity { role: me, number: 40_000 + rng.random::<u16>() / 4, epoch: rng.random() };
    Initiator::new(
        token,
        me,
        NO_FENCES,
        ExpectedPeer { role, number },
        Nonce::draw().unwrap(),
        u64::MAX,
    )
}

fn connected(port: &Port) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(&port.address)?;
    socket.set_read_timeout(Some(DEADLINE))?;
    Ok(socket)
}

/// Opens a connection and completes the handshake.
fn let_in(port: &Port, token: &Token, rng: &mut SmallRng) -> io::Result<TcpStream> {
    let mut socket = connected(port)?;
    let mut initiator = initiator(port, token, rng);
    socket.write_all(initiator.hello())?;
    loop {
        let mut message = [0; MESSAGE_BYTES];
        socket.read_exact(&mut message)?;
        match initiator.receive(&message, 0).map_err(io::Error::other)? {
            InitiatorStep::Send(proof) => socket.write_all(&proof)?,
            InitiatorStep::Open { .. } => return Ok(socket),
        }
    }
}

/// A mutated message to a compute server, made from any request except an order.
fn ask<L: ClusterLayout>(
    (key, value): &(OwnedKey<L>, OwnedValue<L>),
    rng: &mut SmallRng,
) -> Vec<u8> {
    let (key, value) = (key.clone(), value.clone());
    let ask: ClientRequest<L> = match rng.random_range(0..4) {
        0 => ClientRequest::Edit(LeafEdit { key, action: EditAction::Upsert(value) }),
        1 => {
            let (lower, upper) = (Bound::Included(key), Bound::Unbounded);
            ClientRequest::Scan { lower, upper, reverse: rng.random(), limit: rng.random() }
        }
        2 => ClientRequest::UpsertAll { records: vec![(key, value); rng.random_range(0..9)] },
        _ => ClientRequest::Map,
    };
    let mut bytes = ask.encode().to_vec();
    mutate(&mut bytes, 1, rng);
    bytes
}

/// A message to the catalog that changes no other program's entry, even if the catalog accepts it.
fn request(rng: &mut SmallRng) -> Vec<u8> {
    let texts = [
        r#"{"get":{"key":"farleaf/default/map"}}"#,
        r#"{"list":{"prefix":"farleaf/","after":null}}"#,
        r#"{"put_if":{"key":"nobody","expected":123456789,"value":"{}","lease":null}}"#,
        r#"{"grant":{"term_ns":1000000}}"#,
    ];
    let mut bytes = texts[rng.random_range(0..texts.len())].as_bytes().to_vec();
    mutate(&mut bytes, 0, rng);
    bytes
}

fn is_order<L: ClusterLayout>(message: &[u8]) -> bool {
    let harmless = |ask| {
        matches!(
            ask,
            ClientRequest::Edit(_)
                | ClientRequest::Scan { .. }
                | ClientRequest::UpsertAll { .. }
                | ClientRequest::Map
        )
    };
    ClientRequest::<L>::decode(message).is_some_and(|ask| !harmless(ask))
}

/// Sends strings to a port over one connection; returns how many it sent.
fn send<L: ClusterLayout>(
    port: &Port,
    token: &Token,
    theirs: &(OwnedKey<L>, OwnedValue<L>),
    rng: &mut SmallRng,
) -> io::Result<u64> {
    if port.kind == Kind::Metrics {
        let mut socket = connected(port)?;
        let mut bytes = match rng.random_range(0..4) {
            0 => random_bytes(rng),
            1 => vec![b'a'; rng.random_range(0..100_000)],
            _ => b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_vec(),
        };
        mutate(&mut bytes, 0, rng);
        let _ = socket.write_all(&bytes);
        hang_up(socket, rng)?;
        return Ok(1);
    }
    if rng.random() {
        let mut socket = connected(port)?;
        let mut bytes = match rng.random_range(0..3) {
            0 => random_bytes(rng),
            _ => initiator(port, token, rng).hello().to_vec(),
        };
        mutate(&mut bytes, 0, rng);
        let _ = socket.write_all(&bytes);
        hang_up(socket, rng)?;
        return Ok(1);
    }
    let mut socket = let_in(port, token, rng)?;
    let mut sent = 0;
    for _ in 0..rng.random_range(1..16) {
        let message = match (port.kind, rng.random_range(0..4)) {
            (_, 0) | (Kind::MemoryServer(_), _) => random_bytes(rng),
            (Kind::ComputeServer(_), _) => ask::<L>(theirs, rng),
            _ => request(rng),
        };
        if is_order::<L>(&message) {
            continue;
        }
        let piece = FramePiece {
            at: GlobalAddr::from_bits(rng.random::<u64>() >> rng.random_range(0..64)),
            whole: rng.random::<u32>() >> rng.random_range(0..32),
            first: rng.random::<u32>() >> rng.random_range(0..32),
            length: 8 << rng.random_range(0..8),
        };
        let (request, kept) = match rng.random_range(0..8) {
            0 => (FrameRequest::Read(piece), 0),
            _ => (FrameRequest::Call(&message), message.len()),
        };
        let mut bytes = vec![0; request.frame_bytes()];
        request.encode(rng.random(), &mut bytes);
        // The content of a message has already been mutated. If its frame shifted, a short one
        // could become an order.
        if kept == 0 || kept >= 4 && rng.random_ratio(1, 7) {
            let mut tail = bytes.split_off(bytes.len() - kept);
            mutate(&mut bytes, 0, rng);
            bytes.append(&mut tail);
        }
        sent += 1;
        if socket.write_all(&bytes).is_err() {
            break;
        }
    }
    hang_up(socket, rng)?;
    Ok(sent)
}

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn ports(cluster: &Launched) -> Vec<Port> {
    let mut ports = Vec::new();
    let mut add = |kind, address: &str, pid| {
        ports.push(Port { kind, address: address.to_owned(), pid });
    };
    let memory = cluster.memory(0).unwrap();
    let catalog = LauncherFolder(cluster.dir().into()).catalog().unwrap().to_string();
    add(Kind::Catalog, &catalog, memory.pid);
    add(Kind::MemoryServer(0), &memory.address, memory.pid);
    add(Kind::Metrics, memory.metrics.as_ref().unwrap(), memory.pid);
    let compute = compute(cluster, 1).unwrap();
    add(Kind::ComputeServer(1), &compute.address, compute.pid);
    add(Kind::Metrics, compute.metrics.as_ref().unwrap(), compute.pid);
    ports
}

#[test]
fn strings_that_nobody_should_send_disturb_nobody() {
    let theirs = (0x0123_4567_89ab_cdef, 1);
    disturb_nobody::<Fixed8>(&[], &Records { theirs, ours: (KEYS, 1) });
}

#[test]
fn strings_disturb_nobody_in_a_cluster_of_byte_strings() {
    let theirs = (b"user/0123456789abcdef".to_vec(), vec![7; 100]);
    let ours = ([b"apple".to_vec(), b"zebra".to_vec()], b"1".to_vec());
    let flags = ["--keys", "bytes", "--boundaries", "m"];
    disturb_nobody::<Bytes>(&flags, &Records { theirs, ours });
}

fn disturb_nobody<L: ClusterLayout>(flags: &[&str], records: &Records<L>) {
    let count: u64 = std::env::var("FARLEAF_HOSTILE_STRINGS")
        .map_or(10_000, |text| text.parse().expect("a number of byte strings"));
    let mut cluster = serving("tcp", &[&["--metrics"], flags].concat());
    let token = cluster.token();
    let connection = connect_to::<L>(&cluster, DEADLINE * 10);
    let (keys, value) = &records.ours;
    let try_key = |key| {
        let outcomes = try_both_of::<L>(&connection, L::key(key), L::value(value));
        assert_eq!(outcomes, [Ok(()), Ok(())]);
    };
    keys.iter().for_each(try_key);
    let ports = ports(&cluster);
    let before: Vec<u64> = ports.iter().map(|port| resident(port.pid)).collect();
    let (over, worked) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                for key in keys {
                    try_key(key);
                    worked.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut rng = SmallRng::seed_from_u64(1);
        for port in &ports {
            let (mut sent, mut failed) = (0, 0_u64);
            while sent < count {
                match send::<L>(port, &token, &records.theirs, &mut rng) {
                    Ok(strings) => sent += strings,
                    Err(_) => failed += 1,
                }
                assert!(failed < 1000 + sent / 10, "{port:?}: {failed} were not let in");
            }
            println!("{port:?}: {sent} strings, {failed} connections refused");
        }
        over.store(true, Ordering::Release);
    });
    assert!(worked.load(Ordering::Relaxed) > 0);
    for (port, before) in ports.iter().zip(before) {
        let after = resident(port.pid);
        println!("{port:?}: {before} bytes before, {after} after");
        assert!(after < before + GROWTH_BYTES, "{port:?} grew from {before} to {after} bytes");
    }
    // Check that many strings reached the code that answers. Subtract the operations of the
    // well-behaved client: every second of its keys belongs to this compute server, and it reads
    // and changes each key.
    let others = worked.load(Ordering::Relaxed) + 2;
    let scraper = Scraper::new().unwrap();
    for (port, name, others) in [(2, "requests_total", 0), (4, "operations_total", others)] {
        let address = std::slice::from_ref(&ports[port].address);
        let served = eventually("metrics", || {
            scraper.ask(address, DEADLINE).pop()?.ok()?.sum(name).map(|sum| sum as u64)
        });
        println!("{name} {served}, {others} of others");
        assert!(served > others + count / 32, "{name}: {served}, of others {others}");
    }
    let status = cluster.status();
    assert_eq!(status.status.code(), Some(0), "{}", text(&status.stdout));
    assert_eq!(cluster.end(Signal::TERM), Some(0), "nobody has died");
}
