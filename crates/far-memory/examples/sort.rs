//! Sorts numbers in far memory that is several times as large as its local buffer, and checks the
//! result.
//!
//! `cargo run --release -p farleaf-far-memory --example sort -- [MiB] [page KiB] [percent local]`

use farleaf_fabric::Provider;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::provider::ClusterClock;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::TcpConfig;
use farleaf_far_memory::{ClusterEndpoints, FarConfig, FarRegion, Reserved};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (bytes, page_bytes, percent) = (next(64)? << 20, next(64)? << 10, next(20)?);
    let buffer_pages = (bytes / page_bytes * percent / 100) as u32;

    // A memory server on the loopback interface; elsewhere it would be another process.
    let cluster =
        TcpConfig::default().start(vec![TestService::new(bytes.next_multiple_of(2 << 20))]);
    let space = Reserved::first(bytes);
    let config =
        FarConfig { chunk_bytes: bytes, ..FarConfig::new(bytes, page_bytes, buffer_pages) };
    let region = FarRegion::new(config, ClusterEndpoints::new(Arc::new(cluster), 0, 0), space)?;
    println!("{} MiB in pages of {} KiB, {percent}% local", bytes >> 20, page_bytes >> 10);
    println!("provider: {}", region.mode());

    // SAFETY: the region has these bytes, aligned to pages; any bytes are valid numbers, and
    // nothing else accesses them.
    let numbers =
        unsafe { std::slice::from_raw_parts_mut(region.base().cast::<u64>().as_ptr(), bytes / 8) };
    let clock = ClusterClock::start();
    let mut state = 1_u64;
    let (mut sum, mut mixed) = (0_u64, 0_u64);
    for number in &mut *numbers {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *number = state;
        (sum, mixed) = (sum.wrapping_add(state), mixed ^ state);
    }
    let filled_ns = clock.now_ns();
    numbers.sort_unstable();
    let sorted_ns = clock.now_ns();
    if !numbers.is_sorted() {
        return Err("the numbers are not sorted".into());
    }
    let found = numbers.iter().fold((0, 0), |(sum, mixed): (u64, u64), number| {
        (sum.wrapping_add(*number), mixed ^ number)
    });
    if found != (sum, mixed) {
        return Err("the numbers are not those that were written".into());
    }
    println!(
        "filled in {} ms, sorted in {} ms",
        filled_ns / 1_000_000,
        (sorted_ns - filled_ns) / 1_000_000
    );
    let stats = region.stats()?;
    println!(
        "{} pages read when touched, {} ahead, {} written back, {} MiB in, {} MiB out",
        stats.fills,
        stats.fills_ahead,
        stats.write_backs,
        stats.bytes_in >> 20,
        stats.bytes_out >> 20
    );
    println!("at most {} of {} pages local", stats.peak_resident, stats.buffer_pages);
    Ok(())
}
