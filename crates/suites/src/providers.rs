//! Providers for suites, and what an operation costs on them.

use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::tcp::TcpConfig;
use farleaf_fabric::{AnyCluster, AnyConfig};
use farleaf_fabric::{CounterSnapshot, Fabric, Provider, RpcService};
use std::future::Future;

/// A provider of any kind.
pub type AnyProvider = AnyConfig;

/// Memory servers in this process.
pub fn local(config: LocalConfig) -> AnyProvider {
    config.into()
}

/// A simulated cluster.
pub fn sim(config: SimConfig) -> AnyProvider {
    config.into()
}

/// Memory servers behind sockets.
pub fn tcp() -> AnyProvider {
    TcpConfig::default().into()
}

/// A simulated network that loses, delays and tears messages.
pub fn rough(seed: u64) -> AnyProvider {
    let faults = Faults::rough();
    sim(SimConfig { seed, faults, give_up_after_ns: 20_000_000_000, ..SimConfig::default() })
}

/// Returns the simulated cluster inside `cluster`.
///
/// # Panics
/// If it is not simulated.
pub fn simulated<S: RpcService>(cluster: &AnyCluster<S>) -> &<SimConfig as Provider>::Cluster<S> {
    match cluster {
        AnyCluster::Sim(cluster) => cluster,
        _ => panic!("this cluster is not simulated"),
    }
}

/// The verbs and bytes of an operation.
pub async fn spent<F: Fabric>(fabric: &F, operation: impl Future<Output = ()>) -> CounterSnapshot {
    let start = fabric.counters().snapshot();
    operation.await;
    fabric.counters().snapshot() - start
}
