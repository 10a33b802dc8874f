#!/usr/bin/env bash
# loom explores executions that C++ and Rust forbid, if a plain store meets a read-modify-write of the same word.
#
# Most would guess: a model checker of memory orders may miss executions, but what it shows can happen. A word is 3. One thread
# exchanges 3 for 1, the other stores 0. If the exchange has succeeded, it comes directly behind the 3 in the order of the
# word's changes, so the store comes last, and a load after both threads sees 0.
# What happens: in a third of the executions that loom explores, the exchange has succeeded and the load after the join sees 1.
# loom takes both writes for unordered. With a swap instead of the store, all executions are right. So a failure of a model
# with plain stores beside read-modify-writes is not proof of a fault.
#
# Version: loom 0.7.3 (crates.io). Source: loom's src/rt/atomic.rs; [atomics.order] in the C++ standard, which Rust takes over.
# Date: 2026-11-29.
#
#   findings/loom-store-beside-exchange.sh        needs cargo, which fetches the crate
#
# Exit codes: 0 it still behaves so, 1 it behaves otherwise, 2 it could not be run.
set -euo pipefail
command -v cargo >/dev/null || { echo "error: there is no cargo" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset CARGO_TARGET_DIR
mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.0.0"
edition = "2021"

[dependencies]
loom = "=0.7.3"
TOML
cat >src/main.rs <<'RUST'
use loom::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicU64 as Count, Ordering::*};
use std::sync::Arc;

/// Executions in which the exchange succeeded and was seen last, and all.
fn explore(write: fn(&AtomicU64)) -> (u64, u64) {
    let counts = Arc::new((Count::new(0), Count::new(0)));
    let (seen, all) = (Arc::clone(&counts), Arc::clone(&counts));
    loom::model(move || {
        let word = loom::sync::Arc::new(AtomicU64::new(3));
        let theirs = word.clone();
        let exchange = move || theirs.compare_exchange(3, 1, AcqRel, Relaxed).is_ok();
        let thread = loom::thread::spawn(exchange);
        write(&word);
        let has_exchanged = thread.join().unwrap();
        let is_last = has_exchanged && word.load(Acquire) != 0;
        seen.0.fetch_add(is_last.into(), Relaxed);
        all.1.fetch_add(1, Relaxed);
    });
    (counts.0.load(Relaxed), counts.1.load(Relaxed))
}

fn main() {
    let (stores, swaps) =
        (explore(|word| word.store(0, Release)), explore(|word| _ = word.swap(0, AcqRel)));
    println!("with a store: {} of {} executions are forbidden ones", stores.0, stores.1);
    println!("with a swap: {} of {}", swaps.0, swaps.1);
    if stores.0 == 0 || swaps.0 > 0 {
        println!("the behaviour has changed");
        std::process::exit(1);
    }
    println!("as described: a store may be ordered between an exchange and what it has read");
}
RUST
RUSTFLAGS="--cfg loom" cargo build --quiet >build.log 2>&1 || { tail -n 5 build.log >&2; exit 2; }
grep -A1 '^name = "loom"' Cargo.lock | tail -n 1
./target/debug/finding
