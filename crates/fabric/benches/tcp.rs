//! Measures READs and WRITEs at random offsets over TCP on the loopback interface, with a varying
//! number in flight. The server's I/O thread and the client's share the machine.
//!
//! `cargo bench -p farleaf-fabric --bench tcp -- [ROUNDS [LOOKS_BEFORE_WAITING [BYTES]]]`: READs of
//! one size.
//!
//! `cargo bench -p farleaf-fabric --bench tcp -- transfers [ROUNDS [BINARY]]`: READs and WRITEs of
//! 64 KiB to 1 MiB, and how the total throughput with 16 in flight compares with the best of 1, 2
//! and 4; then READs of 1 KB. Every round is a separate process. With BINARY, which is this bench
//! built from another tree, rounds of the two alternate, and the ratios are medians over pairs of
//! rounds.
#![expect(clippy::disallowed_methods, reason = "this measures real time")]

use farleaf_fabric::conformance::TestService;
use farleaf_fabric::executor::Executor;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpFabric, TcpServer, TcpServerConfig};
use farleaf_fabric::{Buffer, Fabric, GlobalAddr, Region, ServerId};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const REGION_BYTES: usize = 64 << 20;
const ROUND: Duration = Duration::from_millis(400);
const TRANSFER_ROUND: Duration = Duration::from_millis(150);

/// READs one after another until `end`; returns the number of READs.
async fn reader(fabric: TcpFabric, bytes: usize, end: Instant) -> u64 {
    let places = (REGION_BYTES / bytes) as u64;
    let mut buffer = fabric.buffer(bytes).unwrap();
    let mut done = 0;
    loop {
        for _ in 0..16 {
            let offset = fabric.random() % places * bytes as u64;
            buffer = fabric.read(GlobalAddr::new(ServerId::new(0), offset), buffer).await.unwrap();
            done += 1;
        }
        if Instant::now() >= end {
            return done;
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Verb {
    Read,
    Write,
}

/// One measurement of a round.
#[derive(Clone, Copy, PartialEq)]
struct Case {
    verb: Verb,
    bytes: usize,
    in_flight: usize,
}

const DEPTHS: [usize; 4] = [1, 2, 4, 16];
const LARGE: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];

/// All measurements of a round, in order.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for verb in [Verb::Read, Verb::Write] {
        for bytes in LARGE {
            cases.extend(DEPTHS.map(|in_flight| Case { verb, bytes, in_flight }));
        }
    }
    cases.extend([32, 128].map(|in_flight| Case { verb: Verb::Read, bytes: 1024, in_flight }));
    cases
}

/// Buffers that all tasks take in turn: the same ones for any number in flight, so that they are
/// equally cold in the caches.
type Buffers = RefCell<VecDeque<Buffer>>;

/// Transfers one after another until `end`; returns their number.
async fn transfers(fabric: TcpFabric, case: Case, buffers: &Buffers, end: Instant) -> u64 {
    let places = (REGION_BYTES / case.bytes) as u64;
    let mut done = 0;
    loop {
        let offset = fabric.random() % places * case.bytes as u64;
        let at = GlobalAddr::new(ServerId::new(0), offset);
        let buffer = buffers.borrow_mut().pop_front().expect("there are enough buffers");
        let ended = match case.verb {
            Verb::Read => fabric.read(at, buffer).await,
            Verb::Write => fabric.write(at, buffer).await,
        };
        buffers.borrow_mut().push_back(ended.unwrap());
        done += 1;
        if Instant::now() >= end {
            return done;
        }
    }
}

/// The processor time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    let ticks = |field: usize| fields[field].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}

fn serve() -> (TcpServer, Token) {
    let token = Token::draw().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let service = TestService::new(REGION_BYTES);
    let server =
        TcpServer::start(listener, Arc::clone(&service), &token, TcpServerConfig::default())
            .unwrap();
    (server, token)
}

/// Measures `case` for `time`. Returns operations per second, and seconds of processor time per
/// operation.
fn measure(cluster: &TcpCluster, memory: &Arc<Region>, case: Case, time: Duration) -> (f64, f64) {
    let driver = cluster.driver().unwrap();
    let fabric = driver.open(0, 0).unwrap();
    let total = std::cell::Cell::new(0);
    let words = case.bytes / 8;
    let buffer = |number| Buffer::over(Arc::clone(memory), number * words, words);
    let buffers: Buffers = RefCell::new((0..case.in_flight.max(16)).map(buffer).collect());
    let mut executor = Executor::new();
    let (cpu_before, started) = (cpu_seconds(), Instant::now());
    for _ in 0..case.in_flight {
        let (fabric, total, buffers) = (fabric.clone(), &total, &buffers);
        executor.spawn(0, async move {
            let done = transfers(fabric, case, buffers, started + time).await;
            total.set(total.get() + done);
        });
    }
    assert!(executor.run(&driver));
    let done = total.get() as f64;
    (done / started.elapsed().as_secs_f64(), (cpu_seconds() - cpu_before) / done)
}

/// Runs one round of all `cases` in this process, and prints a line for each. If `only` is given,
/// runs only the cases of that number of bytes.
fn round(only: Option<usize>) {
    let (server, token) = serve();
    let cluster = TcpCluster::connect(vec![server.local_address()], &token, TcpConfig::default());
    let memory = Arc::new(Region::new(16 << 20).unwrap());
    // Touch every page on both sides before the first measurement.
    let warm_up = Case { verb: Verb::Write, bytes: 1 << 20, in_flight: 16 };
    measure(&cluster, &memory, warm_up, TRANSFER_ROUND);
    let fill = Buffer::over(Arc::clone(&memory), 0, memory.words().len());
    (0..memory.words().len()).for_each(|word| fill.set(word, word as u64));
    let driver = cluster.driver().unwrap();
    let fabric = driver.open(0, 0).unwrap();
    let mut executor = Executor::new();
    executor.spawn(0, async move {
        let mut buffer = fill;
        for part in 0..REGION_BYTES / buffer.bytes() {
            let offset = (part * buffer.bytes()) as u64;
            buffer = fabric.write(GlobalAddr::new(ServerId::new(0), offset), buffer).await.unwrap();
        }
    });
    assert!(executor.run(&driver));
    drop(executor);
    for case in cases() {
        if only.is_some_and(|bytes| bytes != case.bytes) {
            continue;
        }
        let (rate, cpu) = measure(&cluster, &memory, case, TRANSFER_ROUND);
        println!("{rate} {cpu}");
    }
}

fn median(samples: impl Iterator<Item = f64>) -> f64 {
    let mut samples: Vec<_> = samples.collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Runs a round of `binary`; returns the rate of each case, and its processor time.
fn round_of(binary: &PathBuf) -> Vec<(f64, f64)> {
    let mut command = Command::new(binary);
    let output = command.arg("round").stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "a round has failed");
    let lines = String::from_utf8(output.stdout).unwrap();
    let number = |text: &str| text.parse().unwrap();
    let line = |line: &str| line.split_once(' ').map(|(rate, cpu)| (number(rate), number(cpu)));
    lines.lines().map(|it| line(it).unwrap()).collect()
}

/// Measures large transfers in several rounds, and in turn with those of another binary.
fn compare(rounds: usize, other: Option<PathBuf>) {
    let this = std::env::current_exe().unwrap();
    let binaries: Vec<_> = other.into_iter().chain([this]).collect();
    let names = if binaries.len() == 2 { &["other", "this"][..] } else { &["this"] };
    // The first index is the binary, the second the round.
    let mut results = vec![Vec::new(); binaries.len()];
    for round in 0..rounds {
        for turn in 0..binaries.len() {
            let binary = (turn + round) % binaries.len();
            results[binary].push(round_of(&binaries[binary]));
        }
    }
    let cases = cases();
    for (index, case) in cases.iter().enumerate() {
        let verb = if case.verb == Verb::Read { "READ" } else { "WRITE" };
        print!("{verb:5} of {:7} B, {:3} in flight:", case.bytes, case.in_flight);
        for (rounds, name) in results.iter().zip(names) {
            let rate = median(rounds.iter().map(|round| round[index].0));
            let cpu = median(rounds.iter().map(|round| round[index].1));
            let gb = rate * case.bytes as f64 / 1e9;
            print!("  {name} {gb:5.2} GB/s, {:7.2} us of CPU", cpu * 1e6);
        }
        if let [other, this] = &results[..] {
            let ratios = this.iter().zip(other).map(|(this, other)| this[index].0 / other[index].0);
            print!("  x {:.2}", median(ratios));
        }
        println!();
    }
    println!("throughput with 16 in flight, over the best of 1, 2 and 4:");
    for first in (0..cases.len()).step_by(DEPTHS.len()).take(2 * LARGE.len()) {
        let case = cases[first];
        let verb = if case.verb == Verb::Read { "READ" } else { "WRITE" };
        print!("{verb:5} of {:7} B:", case.bytes);
        for (rounds, name) in results.iter().zip(names) {
            let rate = |index: usize| median(rounds.iter().map(|round| round[index].0));
            let best = (first..first + 3).map(rate).fold(0.0, f64::max);
            print!("  {name} {:.2}", rate(first + 3) / best);
        }
        println!();
    }
}

fn main() {
    let args: Vec<_> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse::<u64>().ok());
    match args.first().map(String::as_str) {
        Some("round") => return round(number(1).map(|bytes| bytes as usize)),
        Some("transfers") => {
            return compare(number(1).unwrap_or(5).max(1) as usize, args.get(2).map(PathBuf::from));
        }
        _ => {}
    }
    let rounds = number(0).unwrap_or(9);
    let looks_before_waiting = number(1).unwrap_or(0) as u32;
    let bytes = number(2).unwrap_or(1024) as usize;

    let (server, token) = serve();
    let config = TcpConfig { looks_before_waiting, ..TcpConfig::default() };
    let cluster = TcpCluster::connect(vec![server.local_address()], &token, config);

    let depths = [1, 4, 32, 128];
    let mut rates = depths.map(|_| Vec::new());
    for round in 0..=rounds {
        for (depth, rates) in depths.into_iter().zip(&mut rates) {
            let driver = cluster.driver().unwrap();
            let fabric = driver.open(0, 0).unwrap();
            let total = std::cell::Cell::new(0);
            let mut executor = Executor::new();
            let started = Instant::now();
            for _ in 0..depth {
                let (fabric, total) = (fabric.clone(), &total);
                executor.spawn(0, async move {
                    let done = reader(fabric, bytes, started + ROUND).await;
                    total.set(total.get() + done);
                });
            }
            assert!(executor.run(&driver));
            if round > 0 {
                rates.push(total.get() as f64 / started.elapsed().as_secs_f64());
            }
        }
    }
    println!("READs of {bytes} B on loopback, {looks_before_waiting} looks before waiting");
    for (depth, rates) in depths.into_iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        let median = rates[rates.len() / 2];
        println!(
            "{depth:4} in flight: {:6.3} M/s ({:.3} to {:.3}), {:7.2} us each",
            median / 1e6,
            rates[0] / 1e6,
            rates[rates.len() - 1] / 1e6,
            depth as f64 / median * 1e6,
        );
    }
}
