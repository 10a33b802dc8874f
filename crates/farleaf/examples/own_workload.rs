//! Measures a workload of your own: `cargo run --release -p farleaf --example own_workload`, or
//! with the folder of a running cluster as argument.

use farleaf::{Embedded, EmbeddedOptions, Error, Handle};
use std::time::Duration;
use tokio::time::Instant;

const KEYS: u64 = 100_000;
const CLIENTS: u64 = 16;
const OPERATIONS: u64 = 5_000;

/// A pseudo-random sequence, the same at each run.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

/// One client: 80% lookups, 15% updates, 5% short scans. Replace this by what your program does.
async fn client(index: Handle, seed: u64) -> Result<Vec<Duration>, Error> {
    let (mut state, mut times) = (seed, Vec::new());
    for _ in 0..OPERATIONS {
        let (key, kind) = (next(&mut state) % KEYS, next(&mut state) % 100);
        let began = Instant::now();
        match kind {
            0..80 => drop(index.get(key).await?),
            80..95 => drop(index.update(key, kind).await?),
            _ => {
                let mut scan = index.scan(key..).limit(20);
                while let Some(record) = scan.next().await {
                    record?;
                }
            }
        }
        times.push(began.elapsed());
    }
    Ok(times)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let index = match std::env::args().nth(1) {
        Some(folder) => farleaf::connect(folder)?,
        None => Embedded::open(EmbeddedOptions::default())?,
    };
    for key in 0..KEYS {
        index.upsert(key, key).await?;
    }
    let began = Instant::now();
    let clients = (0..CLIENTS).map(|seed| tokio::spawn(client(index.clone(), seed)));
    let mut times = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        times.extend(client.await??);
    }
    let seconds = began.elapsed().as_secs_f64();
    times.sort_unstable();
    println!("{:.0} operations/s", times.len() as f64 / seconds);
    for percent in [50, 90, 99] {
        println!("{percent}th percentile: {:?}", times[times.len() * percent / 100]);
    }
    Ok(())
}
