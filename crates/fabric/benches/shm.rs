//! Measures READs of 1 KB from 1 GB over `shm`, next to a `memcpy` and a plain word-atomic copy of
//! the same bytes from the same mapping. The server is another process (this binary, run again),
//! first running and then stopped. All variants take turns in one run, so that their ratios hold on
//! a noisy machine.
//!
//! There are three access orders. *Chained*: each offset depends on the data read before, as in a
//! descent through a tree. *Independent*: the processor can start one copy while another is in
//! progress, if there is little code between them. *Same*: always the same offset, which is in the
//! cache; this shows the cost of a READ without the wait for memory.
//!
//! `cargo bench -p farleaf-fabric --bench shm -- [ROUNDS]`
//!
//! `cargo bench -p farleaf-fabric --bench shm -- transfers [ROUNDS]`: READs and WRITEs of 64 KiB to
//! 1 MiB, of which 1 to 16 are posted together, and how the total throughput of 16 compares with
//! the best of 1, 2 and 4.
#![expect(clippy::disallowed_methods, reason = "this measures real time")]

use farleaf_fabric::conformance::TestService;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::shm::{ShmCluster, ShmConfig, ShmServer, ShmServerConfig};
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};
use farleaf_fabric::{Buffer, Cluster, Fabric, GlobalAddr, Region, ServerId};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const REGION_BYTES: usize = 1 << 30;
const READ_BYTES: usize = 1024;
const READS: u64 = 100_000;
const CALLS: u64 = 2_000;
const SERVER: ServerId = ServerId::new(0);
const NAMES: [&str; 5] =
    ["memcpy", "word-atomic copy", "READ", "READ, server stopped", "8 READs at once, each"];
const ORDERS: [&str; 3] = ["chained", "independent", "same"];

/// The offset of READ number `number`, given that the previous one found `last`. `last` is always
/// 0, but the processor cannot predict that.
fn place(order: usize, number: u64, last: u64) -> u64 {
    match order {
        0 => offset(number + last),
        1 => offset(number),
        _ => 0,
    }
}

fn offset(number: u64) -> u64 {
    let scattered = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (scattered ^ scattered >> 29) % (REGION_BYTES / READ_BYTES) as u64 * READ_BYTES as u64
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Finds where the cluster has mapped the server's region: the only memfd of that size here.
fn mapping() -> &'static [AtomicU64] {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("cannot read /proc/self/maps");
    let start = maps
        .lines()
        .filter(|line| line.contains("memfd:farleaf-region"))
        .filter_map(|line| line.split_once(' ')?.0.split_once('-'))
        .map(|(start, end)| {
            [start, end].map(|at| usize::from_str_radix(at, 16).expect("an address"))
        })
        .find(|[start, end]| end - start == REGION_BYTES)
        .expect("the region is mapped")[0];
    let words = std::ptr::with_exposed_provenance(start);
    // SAFETY: the region stays mapped while the cluster lives, which `main` keeps until its end.
    unsafe { std::slice::from_raw_parts(words, REGION_BYTES / 8) }
}

fn serve(path: &Path, token: &Token) {
    let service = TestService::new(REGION_BYTES);
    let config = ShmServerConfig::default();
    let _server = ShmServer::start(path, service, token, config).expect("a server");
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}

/// The server's process, which ends with `main` of this one in any case.
struct Server {
    child: Child,
    path: PathBuf,
}

impl Server {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .env("FARLEAF_SOCKET", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server process");
        let (mut line, stdout) = (String::new(), child.stdout.take().expect("its output"));
        BufReader::new(stdout).read_line(&mut line).expect("it says that it is ready");
        Self { child, path: path.to_owned() }
    }

    /// Stops the server; returns when it has stopped.
    fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("cannot stop the server process");
        let status =
            waitpid(Some(pid), WaitOptions::UNTRACED).expect("cannot wait for the server process");
        assert!(status.expect("it changed").1.stopped());
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("it is ours");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

fn main() {
    let token = Token::new(b"the token of this bench").expect("it is long enough");
    if let Some(path) = std::env::var_os("FARLEAF_SOCKET") {
        return serve(Path::new(&path), &token);
    }
    let numbers: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let rounds = numbers.first().copied().unwrap_or(21);
    let path = std::env::temp_dir().join(format!("farleaf-bench-{}.socket", std::process::id()));
    let server = Server::start(&path);
    let cluster =
        ShmCluster::connect(&[&path], &token, &ShmConfig::default()).expect("the server is there");
    let words = mapping();
    for (index, word) in (0_u64..).zip(words) {
        let is_last = (index + 1).is_multiple_of(READ_BYTES as u64 / 8);
        word.store(if is_last { 0 } else { index }, Ordering::Relaxed);
    }

    if std::env::args().any(|arg| arg == "transfers") {
        return transfers(&cluster, rounds);
    }
    let mut samples: [[Vec<f64>; NAMES.len()]; ORDERS.len()] = Default::default();
    let mut calls = Vec::new();
    for round in 0..rounds {
        for (order, samples) in samples.iter_mut().enumerate() {
            let numbers = round * READS..(round + 1) * READS;
            one_round(order, &numbers, words, &cluster, &server, samples);
        }
        calls.push(calls_ns(&cluster) / 1e3);
    }
    println!("{rounds} rounds of {READS} reads of {READ_BYTES} bytes in {REGION_BYTES}, medians");
    for (order, samples) in ORDERS.iter().zip(&mut samples) {
        let medians = samples.each_mut().map(|samples| median(samples));
        println!("{order}");
        for (name, ns) in NAMES.iter().zip(medians) {
            println!("  {name:<24} {ns:7.1} ns   {:.2} x memcpy", ns / medians[0]);
        }
    }
    println!("a call, one in flight      {:7.1} us", median(&mut calls));
}

fn one_round(
    order: usize,
    numbers: &Range<u64>,
    words: &[AtomicU64],
    cluster: &ShmCluster,
    server: &Server,
    samples: &mut [Vec<f64>; NAMES.len()],
) {
    const LAST: usize = READ_BYTES / 8 - 1;
    let mut record = |which: usize, ns: f64| samples[which].push(ns / READS as f64);

    let from: *const u64 = words.as_ptr().cast();
    let mut copy = [0_u64; READ_BYTES / 8];
    let started = Instant::now();
    for number in numbers.clone() {
        let first = place(order, number, copy[LAST]) as usize / 8;
        // SAFETY: the offset plus a READ's length is inside the mapping.
        let from = unsafe { from.add(first) };
        // SAFETY: no process writes to the region now, and the copy is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), READ_BYTES / 8) };
        black_box(&mut copy);
    }
    record(0, ns_since(started));

    let copy: [AtomicU64; READ_BYTES / 8] = std::array::from_fn(|_| AtomicU64::new(0));
    let started = Instant::now();
    for number in numbers.clone() {
        let last = copy[LAST].load(Ordering::Relaxed);
        let first = place(order, number, last) as usize / 8;
        for (from, to) in words[first..first + READ_BYTES / 8].iter().zip(&copy) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        black_box(&copy);
    }
    record(1, ns_since(started));

    for stopped in [false, true] {
        let ns = cluster.run_one(|fabric| async move {
            if stopped {
                server.stop();
            }
            let mut buffer = fabric.buffer(READ_BYTES).expect("a buffer");
            buffer.set(LAST, 0);
            let started = Instant::now();
            for number in numbers.clone() {
                let at = GlobalAddr::new(SERVER, place(order, number, buffer.get(LAST)));
                buffer = fabric.read(at, buffer).await.expect("it is served");
                black_box(&buffer);
            }
            let ns = ns_since(started);
            assert_eq!(buffer.get(1), place(order, numbers.end - 1, 0) / 8 + 1);
            ns
        });
        record(2 + usize::from(stopped), ns);
        if stopped {
            server.go_on();
        }
    }

    let ns = cluster.run_one(|fabric| async move {
        let mut buffers: Vec<_> =
            (0..8).map(|_| fabric.buffer(READ_BYTES).expect("a buffer")).collect();
        let mut reads = Vec::with_capacity(buffers.len());
        let mut last = 0;
        let started = Instant::now();
        for batch in numbers.clone().step_by(buffers.len()) {
            reads.extend((batch..).zip(buffers.drain(..)).map(|(number, buffer)| {
                fabric.read(GlobalAddr::new(SERVER, place(order, number, last)), buffer)
            }));
            for read in reads.drain(..) {
                buffers.push(read.await.expect("it is served"));
            }
            last = buffers[0].get(LAST);
        }
        ns_since(started)
    });
    record(4, ns);
}

/// Measures large READs and WRITEs.
fn transfers(cluster: &ShmCluster, rounds: u64) {
    const DEPTHS: [usize; 4] = [1, 2, 4, 16];
    const SIZES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
    const BYTES: usize = 64 << 20;
    let memory = Arc::new(Region::new(16 << 20).expect("memory for buffers"));
    memory.words().iter().for_each(|word| word.store(1, Ordering::Relaxed));
    let mut samples: [[[Vec<f64>; DEPTHS.len()]; SIZES.len()]; 2] = Default::default();
    for _ in 0..rounds {
        for (verb, samples) in samples.iter_mut().enumerate() {
            for (bytes, samples) in SIZES.into_iter().zip(samples) {
                for (depth, samples) in DEPTHS.into_iter().zip(samples) {
                    let words = bytes / 8;
                    let memory = &memory;
                    let ns = cluster.run_one(|fabric| async move {
                        // The same buffers at every depth, so that they are equally cold in the
                        // cache.
                        let buffer = |n| Buffer::over(Arc::clone(memory), n * words, words);
                        let mut buffers: VecDeque<_> = (0..16).map(buffer).collect();
                        let mut posted = Vec::with_capacity(depth);
                        let started = Instant::now();
                        for _ in 0..BYTES / bytes / depth {
                            for buffer in buffers.drain(..depth) {
                                let places = (REGION_BYTES / bytes) as u64;
                                let place = fabric.random() % places * bytes as u64;
                                let at = GlobalAddr::new(SERVER, place);
                                posted.push(match verb {
                                    0 => fabric.read(at, buffer),
                                    _ => fabric.write(at, buffer),
                                });
                            }
                            for op in posted.drain(..) {
                                buffers.push_back(op.await.expect("it is served"));
                            }
                        }
                        ns_since(started)
                    });
                    samples.push(BYTES as f64 / ns);
                }
            }
        }
    }
    println!(
        "{rounds} rounds, GB/s with {DEPTHS:?} posted together; 16 over the best of the others"
    );
    for (verb, samples) in ["READ", "WRITE"].into_iter().zip(&mut samples) {
        for (bytes, samples) in SIZES.into_iter().zip(samples) {
            let [one, two, four, sixteen] = samples.each_mut().map(|samples| median(samples));
            let ratio = sixteen / one.max(two).max(four);
            println!(
                "{verb:5} of {bytes:7} B: {one:6.2} {two:6.2} {four:6.2} {sixteen:6.2}  {ratio:.2}"
            );
        }
    }
}

/// Duration of a call, in nanoseconds.
fn calls_ns(cluster: &ShmCluster) -> f64 {
    cluster.run_one(|fabric| async move {
        let started = Instant::now();
        for _ in 0..CALLS {
            let reply = fabric.call(SERVER, TestService::read_word(64)).await;
            black_box(reply.expect("it is served"));
        }
        ns_since(started) / CALLS as f64
    })
}

fn ns_since(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e9
}
