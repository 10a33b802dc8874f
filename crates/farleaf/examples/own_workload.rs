//! A workload of your own against one of the index designs, measured like `farleaf-lab bench`:
//! `cargo run --release -p farleaf --example own_workload`
//!
//! It uses the crates below `farleaf`: `farleaf-dex` has the design and `farleaf-bench` the
//! driver.

use farleaf_bench::driver::{BenchRun, Reshaping, Testbed, WorkAmount};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::workload::{
    Distribution, HarnessDeviations, OperationKind, OperationMix, StreamConfig,
};
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::ServerId;
use farleaf_fabric::local::LocalConfig;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Memory servers in this process. `TcpConfig::default()` would connect to them by sockets.
    let provider = LocalConfig::default();
    let config = MemoryServerConfig { pool_bytes: 64 << 20, ..MemoryServerConfig::default() };
    let servers = (0..2).map(|number| MemoryServer::new(ServerId::new(number), &config));
    let servers = servers.map(|server| server.map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
    let cache = CacheOptions { bytes: 1 << 20, ..CacheOptions::default() };
    let options = DexOptions::with_boundaries(vec![u64::MAX / 2], cache);

    let keys = KeySpace::spread(200_000);
    let mut testbed = Testbed::<Dex>::start(&provider, servers, &options)?;
    testbed.load(&keys, 0.7, &|_| {})?;

    // A shopping cart: mostly lookups of popular keys, some changes, and an occasional scan.
    let mix = OperationMix::new("cart")
        .with(OperationKind::Get, 80)
        .with(OperationKind::Upsert, 15)
        .with(OperationKind::scan(20), 5);
    let run = BenchRun {
        stream: StreamConfig {
            mix,
            distribution: Distribution::Zipfian { theta: 0.8 },
            clustered: false,
            keys,
            seed: 1,
            harness: HarnessDeviations::default(),
        },
        compute_servers: 2,
        threads: 2,
        amount: WorkAmount::Operations(50_000),
        shift: None,
        timeline: None,
        batch: 1,
        own_keys: true,
        reshaping: Reshaping::default(),
    };
    let measured = testbed.measure(&run, &|_| {})?;
    let seconds = measured.elapsed_ns as f64 / 1e9;
    let operations = measured.operations as f64;
    println!("{:.0} operations a second", operations / seconds);
    println!("p99 {:.1} us", measured.latency_ns.value_at_quantile(0.99) as f64 / 1e3);
    println!("{:.3} READs an operation", measured.counters.reads as f64 / operations);
    Ok(())
}
