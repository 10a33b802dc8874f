//! Scans far memory over TCP on the loopback interface, with and without reading ahead, in
//! alternating rounds. Each line has the medians of both, and the counts of the last round.
//!
//! `cargo run --release -p farleaf-far-memory --example scan -- [MiB] [rounds]`

use farleaf_fabric::Provider;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::provider::ClusterClock;
use farleaf_fabric::sync::{Arc, Ordering};
use farleaf_fabric::tcp::TcpConfig;
use farleaf_far_memory::{ClusterEndpoints, FarConfig, FarRegion, FarStats, Reserved};

type Error = Box<dyn std::error::Error>;

/// A region of `bytes` bytes, a fifth of it local, all of it written.
fn region(bytes: usize, page_bytes: usize, is_ahead: bool) -> Result<FarRegion, Error> {
    let service = TestService::new(bytes.next_multiple_of(2 << 20));
    let cluster = Arc::new(TcpConfig::default().start(vec![service]));
    let space = Reserved::first(bytes);
    let buffer_pages = (bytes / page_bytes / 5) as u32;
    let mut config =
        FarConfig { chunk_bytes: bytes, ..FarConfig::new(bytes, page_bytes, buffer_pages) };
    if !is_ahead {
        config.ahead_pages = 0;
    }
    let region = FarRegion::new(config, ClusterEndpoints::new(cluster, 0, 0), space)?;
    region.words().iter().for_each(|word| word.store(1, Ordering::Relaxed));
    Ok(region)
}

/// Nanoseconds of a scan, and its counts.
fn scan(region: &FarRegion, clock: &ClusterClock) -> Result<(u64, FarStats), Error> {
    let (before, from_ns) = (region.stats()?, clock.now_ns());
    let sum: u64 = region.words().iter().map(|word| word.load(Ordering::Relaxed)).sum();
    let ns = clock.now_ns() - from_ns;
    if sum != region.words().len() as u64 {
        return Err("the region has another content than was written".into());
    }
    let after = region.stats()?;
    let (fills, reads) = (after.fills - before.fills, after.reads - before.reads);
    let fills_ahead = after.fills_ahead - before.fills_ahead;
    Ok((ns, FarStats { fills, fills_ahead, reads, ..after }))
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (bytes, rounds) = (next(64)? << 20, next(7)?.max(1));
    let clock = ClusterClock::start();
    println!("page     demand GB/s  ahead GB/s  ratio  demand faults  ahead faults + pages, READs");
    for page_bytes in [4 << 10, 16 << 10, 64 << 10, 256 << 10] {
        let regions = [region(bytes, page_bytes, false)?, region(bytes, page_bytes, true)?];
        let (mut times, mut counts) = ([vec![], vec![]], [FarStats::default(); 2]);
        for _ in 0..rounds {
            for (way, region) in regions.iter().enumerate() {
                let (ns, stats) = scan(region, &clock)?;
                times[way].push(ns);
                counts[way] = stats;
            }
        }
        times.iter_mut().for_each(|times| times.sort_unstable());
        let [demand, ahead] = [0, 1].map(|way| bytes as f64 / times[way][rounds / 2] as f64);
        println!(
            "{:4} KiB {demand:12.2} {ahead:11.2} {:6.2} {:14} {:12} + {}, {}",
            page_bytes >> 10,
            ahead / demand,
            counts[0].fills,
            counts[1].fills,
            counts[1].fills_ahead,
            counts[1].reads
        );
    }
    Ok(())
}
