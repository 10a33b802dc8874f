//! The providers of these tests as one type, so that each design is compiled once per page size.

use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::tcp::TcpConfig;
use farleaf_fabric::{AnyCluster, AnyConfig};
use farleaf_fabric::{Provider, RpcService};

pub(super) type AnyProvider = AnyConfig;

pub(super) fn local(config: LocalConfig) -> AnyProvider {
    config.into()
}

pub(super) fn sim(config: SimConfig) -> AnyProvider {
    config.into()
}

pub(super) fn tcp() -> AnyProvider {
    TcpConfig::default().into()
}

/// A simulated network that loses, delays and tears messages.
pub(super) fn rough(seed: u64) -> AnyProvider {
    let faults = Faults::rough();
    sim(SimConfig { seed, faults, give_up_after_ns: 20_000_000_000, ..SimConfig::default() })
}

/// Returns the simulated cluster inside `cluster`.
pub(super) fn simulated<S: RpcService>(
    cluster: &AnyCluster<S>,
) -> &<SimConfig as Provider>::Cluster<S> {
    match cluster {
        AnyCluster::Sim(cluster) => cluster,
        _ => panic!("this cluster is not simulated"),
    }
}
