//! A program that knows nothing of far memory: orders in a `BTreeMap`, with large values, and an
//! index in one `Vec`. In a scope, what is large of them is far; the rest stays local.
//!
//! ```text
//! cargo run --release -p farleaf-far-alloc --example orders
//! ```

use farleaf_fabric::Provider;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::TcpConfig;
use farleaf_far_alloc::{ArenaConfig, FarArena, FarGlobal, FarScope};
use farleaf_far_memory::{ClusterEndpoints, FarConfig, FarRegion, Reserved};
use std::alloc::System;
use std::collections::BTreeMap;
use std::error::Error;

#[global_allocator]
static GLOBAL: FarGlobal<System> = FarGlobal::new(System, 16 << 10);

const REGION_BYTES: usize = 512 << 20;
const ORDERS: u64 = 2_000;

type Orders = BTreeMap<u64, Vec<u8>>;

/// The whole store, as it would be without far memory.
fn store() -> (Orders, Vec<(u64, usize)>) {
    let document = |order: u64| vec![order as u8; 20_000 + (order as usize * 7_919) % 60_000];
    let orders: Orders = (0..ORDERS).map(|order| (order, document(order))).collect();
    let mut by_size: Vec<_> = orders.iter().map(|(order, it)| (*order, it.len())).collect();
    by_size.sort_by_key(|(order, bytes)| (*bytes, *order));
    (orders, by_size)
}

fn main() -> Result<(), Box<dyn Error>> {
    let service = TestService::new(REGION_BYTES);
    let cluster = Arc::new(TcpConfig::default().start(vec![service]));
    let space = Reserved::first(REGION_BYTES);
    let config = FarConfig::new(REGION_BYTES, 16 << 10, 1024);
    let region = FarRegion::new(config, ClusterEndpoints::new(cluster, 0, 0), space)?;
    println!("far memory by {}", region.mode());
    let arena = FarArena::new(region, ArenaConfig::default())?.serve_program()?;

    let scope = FarScope::enter(arena);
    let (mut orders, by_size) = store();
    drop(scope);
    for (order, bytes) in &by_size {
        let document = &orders[order];
        assert!(document.len() == *bytes && document.iter().all(|byte| *byte == *order as u8));
    }
    orders.retain(|order, _| order % 2 == 0);
    let (stats, far) = (arena.stats()?, arena.far_stats()?);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{} orders; {:.1} MiB live in the arena, {:.1} MiB local; {} misses, {} read ahead, {} written back, {} discarded",
        orders.len(),
        mib(stats.allocated_bytes as u64),
        mib(arena.local_bytes()),
        far.fills,
        far.fills_ahead,
        far.write_backs,
        far.discards,
    );
    print!("{}", arena.metrics("orders")?);
    Ok(())
}
