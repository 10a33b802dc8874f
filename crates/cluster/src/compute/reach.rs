//! Connects a compute server to the memory servers over the cluster's transport. It never falls
//! back to another transport.
//!
//! *Thread safety*: any number of threads.

use super::{ComputeServerOptions, because};
use crate::client::resolve;
#[cfg(not(feature = "verbs"))]
use crate::config;
use crate::error::ProgramError;
use crate::records::{MemoryRecord, PoolTransport as TransportName};
use farleaf_fabric::handshake::Token;
use farleaf_fabric::shm::{ShmCluster, ShmConfig};
use farleaf_fabric::tcp::{TcpCluster, TcpConfig};
use farleaf_fabric::{AnyFabric, ClientTask, Cluster, ServerId};
#[cfg(feature = "verbs")]
use farleaf_fabric_verbs::{DeviceChoice, VerbsCluster, VerbsConfig, probe};
use std::path::PathBuf;

/// The memory servers over the cluster's transport.
#[derive(Debug)]
pub(super) enum MemoryCluster {
    Tcp(TcpCluster),
    Shm(ShmCluster),
    #[cfg(feature = "verbs")]
    Verbs(VerbsCluster),
}

impl MemoryCluster {
    fn get(&self) -> &dyn Cluster {
        match self {
            Self::Tcp(cluster) => cluster,
            Self::Shm(cluster) => cluster,
            #[cfg(feature = "verbs")]
            Self::Verbs(cluster) => cluster,
        }
    }
}

impl Cluster for MemoryCluster {
    fn run_clients<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(AnyFabric, usize) -> ClientTask<'a> + Sync),
    ) -> std::io::Result<()> {
        self.get().run_clients(compute_servers, start)
    }

    fn kill_memory_server(&self, server: ServerId) {
        self.get().kill_memory_server(server);
    }
}

/// Upper bound on the registered memory of one thread without the cache (scratch buffers, messages
/// and queues), in bytes.
#[cfg(feature = "verbs")]
const BYTES_OF_A_THREAD: u64 = 2 << 20;

/// Checks in advance whether this program can reach memory servers over `transport`.
///
/// # Errors
/// [`ProgramError::Transport`], which states in one line what is missing.
pub(super) fn check(
    transport: TransportName,
    options: &ComputeServerOptions,
) -> Result<(), ProgramError> {
    match transport {
        TransportName::Tcp | TransportName::Shm => Ok(()),
        #[cfg(feature = "verbs")]
        TransportName::Verbs => {
            let bytes = options.threads as u64 * BYTES_OF_A_THREAD + options.cache.bytes;
            let bytes = usize::try_from(bytes).map_err(because)?;
            // Probe the full size: memory that cannot be locked would otherwise show up as failing
            // operations.
            probe(&DeviceChoice::default(), bytes).map(drop).map_err(ProgramError::transport)
        }
        #[cfg(not(feature = "verbs"))]
        TransportName::Verbs => {
            let _ = options;
            Err(ProgramError::transport(config::without_verbs()))
        }
    }
}

/// Connects to the memory servers in these records.
///
/// # Errors
/// [`ProgramError`] if an address cannot be resolved, or if the transport cannot be used.
pub(super) fn connect(
    transport: TransportName,
    memory: &[MemoryRecord],
    token: &Token,
    options: &ComputeServerOptions,
) -> Result<MemoryCluster, ProgramError> {
    let timeout = options.request_timeout.as_nanos();
    let timeout_ns = u64::try_from(timeout).unwrap_or(u64::MAX);
    let places = memory.iter().map(|record| record.address.as_str());
    let addresses = || places.clone().map(resolve).collect::<Result<Vec<_>, _>>();
    match transport {
        TransportName::Tcp => {
            let config = TcpConfig { timeout_ns, ..TcpConfig::default() };
            Ok(MemoryCluster::Tcp(TcpCluster::connect(addresses()?, token, config)))
        }
        TransportName::Shm => {
            let paths: Vec<PathBuf> = places.map(PathBuf::from).collect();
            let config = ShmConfig { timeout_ns, ..ShmConfig::default() };
            let cluster = ShmCluster::connect(&paths, token, &config).map_err(because)?;
            Ok(MemoryCluster::Shm(cluster))
        }
        #[cfg(feature = "verbs")]
        TransportName::Verbs => {
            let config = VerbsConfig { timeout_ns, ..VerbsConfig::default() };
            let cluster = VerbsCluster::connect(addresses()?, token, config);
            Ok(MemoryCluster::Verbs(cluster.map_err(ProgramError::transport)?))
        }
        #[cfg(not(feature = "verbs"))]
        TransportName::Verbs => Err(ProgramError::transport(config::without_verbs())),
    }
}
