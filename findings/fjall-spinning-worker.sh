#!/usr/bin/env bash
# With two worker threads, one of fjall's spins while the other one merges.
#
# Most would guess: worker threads that have nothing to do wait, and two of them merge twice as much as one.
# What happens: of several workers the first one only flushes. It puts a request to merge back into the queue (`try_send`)
# and takes the next message, which is the same request, as long as no other worker takes it. With two workers this is a
# loop on one processor for as long as the other one merges. With three there is mostly one that takes it.
#
# Shown here by processor time: the same records, written and merged by a database with two and with three workers, all files
# in memory. Times depend on the machine; their ratio is what is checked, in the better of three rounds for each.
#
# Version: fjall 3.1.13 (crates.io), `DatabaseBuilder::worker_threads`. Source: its src/worker_pool.rs, `worker_tick`
# ("Let one worker prioritize flushing"). Date: 2026-11-28.
#
#   findings/fjall-spinning-worker.sh [RECORDS]      needs cargo, which fetches the crate, and /dev/shm
#
# Exit codes: 0 it still behaves so, 1 it behaves otherwise, 2 it could not be run.
set -euo pipefail
records=${1:-300000}
command -v cargo >/dev/null || { echo "error: there is no cargo" >&2; exit 2; }
work=$(mktemp -d) files=$(mktemp -d -p /dev/shm)
trap 'rm -rf "$work" "$files"' EXIT
cd "$work"
unset CARGO_TARGET_DIR RUSTFLAGS
mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.0.0"
edition = "2021"

[dependencies]
fjall = { version = "=3.1.13", default-features = false }
TOML
cat >src/main.rs <<'RUST'
use fjall::{Database, KeyspaceCreateOptions};

/// Processor time of this process, in hundredths of a second.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("proc");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
}

/// Writes the records in a scattered order, and waits until nothing is left to do. Returns nanoseconds of
/// processor time for a record.
fn run(folder: &str, workers: usize, records: u64) -> u64 {
    let path = format!("{folder}/{workers}");
    let database = Database::builder(&path)
        .worker_threads(workers)
        .cache_size(1 << 30)
        .manual_journal_persist(true)
        .open()
        .expect("a database");
    let keyspace = database
        .keyspace("records", || {
            KeyspaceCreateOptions::default().max_memtable_size(16 << 20).manual_journal_persist(true)
        })
        .expect("a keyspace");
    let before = ticks();
    for number in 0..records {
        let key = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes();
        keyspace.insert(key, [number as u8; 400]).expect("room");
    }
    let mut idle = 0;
    while idle < 10 {
        let work = database.outstanding_flushes() + database.active_compactions();
        idle = if work == 0 { idle + 1 } else { 0 };
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let used = ticks() - before;
    drop((keyspace, database));
    std::fs::remove_dir_all(&path).expect("a folder");
    used * 10_000_000 / records
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (folder, records) = (&arguments[1], arguments[2].parse().expect("a number"));
    let mut best = [u64::MAX; 2];
    for _ in 0..3 {
        for (best, workers) in best.iter_mut().zip([2, 3]) {
            let ns = run(folder, workers, records);
            println!("{workers} workers: {ns} ns of processor time for a record");
            *best = ns.min(*best);
        }
    }
    let ratio = best[0] as f64 / best[1] as f64;
    println!("two workers take {ratio:.2} times the processor time of three");
    if ratio < 1.1 {
        println!("the behaviour has changed");
        std::process::exit(1);
    }
    println!("as described: one of two spins");
}
RUST
cargo build --quiet --release >build.log 2>&1 || { tail -n 5 build.log >&2; exit 2; }
cargo tree --quiet --depth 1 | sed -n 2p
target/release/finding "$files" "$records"
