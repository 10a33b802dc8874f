//! What a READ of 1 KB at a random offset of 1 GB costs over `shm`, next to a `memcpy` and to a plain word-atomic copy of
//! the same bytes from the same mapping. The server is another process (this binary, run again), which is first
//! running and then stopped. All take turns in one run, so that their ratios hold on a noisy machine.
//!
//! `cargo bench -p farleaf-fabric --bench shm -- [ROUNDS]`
#![expect(clippy::disallowed_methods, reason = "this measures real time")]

use farleaf_fabric::conformance::TestService;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::shm::{ShmCluster, ShmConfig, ShmServer, ShmServerConfig};
use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{Cluster, Fabric, GlobalAddr, ServerId};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const REGION_BYTES: usize = 1 << 30;
const READ_BYTES: usize = 1024;
const READS: u64 = 100_000;
const CALLS: u64 = 2_000;
const SERVER: ServerId = ServerId::new(0);
const NAMES: [&str; 5] =
    ["memcpy", "word-atomic copy", "READ", "READ, server stopped", "8 READs at once, each"];

fn offset(number: u64) -> u64 {
    let scattered = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (scattered ^ scattered >> 29) % (REGION_BYTES / READ_BYTES) as u64 * READ_BYTES as u64
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Where the cluster has mapped the server's region: the only memfd of that size here.
fn mapping() -> &'static [AtomicU64] {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux says what is mapped");
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

/// The server's process, which ends with this one's `main`, however that ends.
struct Server(Child);

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
        Self(child)
    }

    /// Returns when it stands still.
    fn stop(&self) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, Signal::STOP).expect("it is ours");
        let status = waitpid(Some(pid), WaitOptions::UNTRACED).expect("it is ours");
        assert!(status.expect("it changed").1.stopped());
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.0), Signal::CONT).expect("it is ours");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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
    for (index, word) in (0..).zip(words) {
        word.store(index, Ordering::Relaxed);
    }

    let mut samples: [Vec<f64>; NAMES.len()] = Default::default();
    let mut calls = Vec::new();
    for round in 0..rounds {
        let offsets = || (round * READS..(round + 1) * READS).map(offset);
        let mut record = |which: usize, started: Instant| {
            samples[which].push(started.elapsed().as_secs_f64() * 1e9 / READS as f64);
        };
        let bytes: *const u8 = words.as_ptr().cast();
        let mut copy = [0_u8; READ_BYTES];
        let started = Instant::now();
        for offset in offsets() {
            // SAFETY: the offset is inside the mapping by a READ's length.
            let from = unsafe { bytes.add(offset as usize) };
            // SAFETY: nobody writes to the region now, and the copy is elsewhere.
            unsafe { std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), READ_BYTES) };
            black_box(&mut copy);
        }
        record(0, started);

        let copy: Vec<AtomicU64> = (0..READ_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        let started = Instant::now();
        for offset in offsets() {
            let first = offset as usize / 8;
            for (from, to) in words[first..first + READ_BYTES / 8].iter().zip(&copy) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            black_box(&copy);
        }
        record(1, started);

        for stopped in [false, true] {
            let server = &server;
            let elapsed = cluster.run_one(|fabric| async move {
                if stopped {
                    server.stop();
                }
                let mut buffer = fabric.buffer(READ_BYTES).expect("a buffer");
                let started = Instant::now();
                for offset in offsets() {
                    let at = GlobalAddr::new(SERVER, offset);
                    buffer = fabric.read(at, buffer).await.expect("it is served");
                    black_box(&buffer);
                }
                let elapsed = started.elapsed();
                assert_eq!(buffer.get(0), offset(round * READS + READS - 1) / 8);
                elapsed
            });
            record(2 + usize::from(stopped), Instant::now() - elapsed);
            if stopped {
                server.go_on();
            }
        }

        let (elapsed, calls_elapsed) = cluster.run_one(|fabric| async move {
            let mut buffers: Vec<_> =
                (0..8).map(|_| fabric.buffer(READ_BYTES).expect("a buffer")).collect();
            let offsets: Vec<u64> = offsets().collect();
            let started = Instant::now();
            for batch in offsets.chunks(buffers.len()) {
                let at = |offset: &u64| GlobalAddr::new(SERVER, *offset);
                let reads: Vec<_> = (batch.iter().zip(buffers.drain(..)))
                    .map(|(offset, buffer)| fabric.read(at(offset), buffer))
                    .collect();
                for read in reads {
                    buffers.push(read.await.expect("it is served"));
                }
            }
            let elapsed = started.elapsed();
            let started = Instant::now();
            for _ in 0..CALLS {
                let reply = fabric.call(SERVER, TestService::read_word(64)).await;
                black_box(reply.expect("it is served"));
            }
            (elapsed, started.elapsed())
        });
        record(4, Instant::now() - elapsed);
        calls.push(calls_elapsed.as_secs_f64() * 1e6 / CALLS as f64);
    }
    let medians = samples.each_mut().map(|samples| median(samples));
    println!("{rounds} rounds of {READS} reads of {READ_BYTES} bytes in {REGION_BYTES}, medians");
    for (name, ns) in NAMES.iter().zip(medians) {
        println!("{name:<24} {ns:7.1} ns   {:.2} x memcpy", ns / medians[0]);
    }
    println!("{:<24} {:7.1} us", "a call, one in flight", median(&mut calls));
    let _ = std::fs::remove_file(&path);
}
