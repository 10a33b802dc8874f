//! The providers of these tests as one type, so that each design is compiled once per page size.

use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::tcp::TcpConfig;
use farleaf_fabric::{Either, Provider, RpcService};

pub(super) type AnyProvider = Either<Either<LocalConfig, SimConfig>, TcpConfig>;

pub(super) fn local(config: LocalConfig) -> AnyProvider {
    Either::Left(Either::Left(config))
}

pub(super) fn sim(config: SimConfig) -> AnyProvider {
    Either::Left(Either::Right(config))
}

pub(super) fn tcp() -> AnyProvider {
    Either::Right(TcpConfig::default())
}

/// A simulated network that loses, delays and tears messages.
pub(super) fn rough(seed: u64) -> AnyProvider {
    let faults = Faults::rough();
    sim(SimConfig { seed, faults, give_up_after_ns: 20_000_000_000, ..SimConfig::default() })
}

type AnyCluster<S> = <AnyProvider as Provider>::Cluster<S>;

/// Returns the simulated cluster inside `cluster`.
pub(super) fn simulated<S: RpcService>(
    cluster: &AnyCluster<S>,
) -> &<SimConfig as Provider>::Cluster<S> {
    match cluster {
        Either::Left(Either::Right(cluster)) => cluster,
        _ => panic!("this cluster is not simulated"),
    }
}
