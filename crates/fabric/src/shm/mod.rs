//! `shm`: memory servers are other processes of this host.
//!
//! A memory server's region is a sealed memfd that its clients map. Verbs are the clients' own loads, stores and
//! atomics: truly one-sided, so they go on while the server is stopped. RPCs go through a pair of
//! rings for each endpoint and server. A Unix socket carries the handshake and the files, wakes who sleeps, and shows
//! each side the end of the other. `docs/internals/shm.md` draws it; decision 032 says what a fence is here.
//!
//! *Thread safety*: the cluster is shared by all client threads; an endpoint belongs to one. Between
//! processes there is nothing but atomic accesses of words, and packets.

mod cluster;
mod connection;
mod endpoint;
mod gate;
mod process;
mod ring;
mod server;
mod socket;

pub use cluster::ShmCluster;
pub use endpoint::{Shm, ShmDriver, ShmFabric, ShmOp};
pub use server::{ShmServer, ShmServerConfig, ShmServerCounters};

use crate::handshake::{HandshakeError, Refusal};
use crate::sync::Arc;
use crate::{Provider, RegionError, RpcService, ServerId};
use thiserror::Error;

/// What a cluster over shared memory is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// The memory servers that are started for services of this process.
    pub server: ShmServerConfig,
    /// The longest that an RPC, a fence or the opening of an endpoint may take, in nanoseconds.
    pub timeout_ns: u64,
    /// How many operations an endpoint may have in flight.
    pub depth: usize,
    /// Runs all clients of one call on one thread instead of a thread for each.
    pub one_client_thread: bool,
    /// Where randomness starts.
    pub seed: u64,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            server: ShmServerConfig::default(),
            timeout_ns: 5_000_000_000,
            depth: 256,
            one_client_thread: false,
            seed: 1,
        }
    }
}

/// For suites and benchmarks: memory servers of this process, reached over sockets and memfds as if they were of
/// others. The services' regions must be shared ones.
impl Provider for ShmConfig {
    type Cluster<S: RpcService> = ShmCluster;

    /// # Panics
    /// If a service's region is private, or the operating system refuses.
    fn start<S: RpcService>(&self, services: Vec<Arc<S>>) -> ShmCluster {
        ShmCluster::start(self, services).expect("memory servers of this process start")
    }
}

/// Why a server did not start, or could not be reached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShmError {
    /// The operating system refused.
    #[error("shared memory: {0}")]
    System(#[from] std::io::Error),
    /// A region was not to be had, or is not to be trusted.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The service's region is private to its process.
    #[error("the service's region is private: it must be made with a shared backing")]
    NotShared,
    /// There was no agreement; a wrong token is among the reasons.
    #[error("memory server {server}: {error}")]
    Handshake {
        /// The server.
        server: ServerId,
        /// What went wrong.
        error: HandshakeError,
    },
    /// The server did not answer in time: it is stopped, or overloaded.
    #[error("memory server {0} did not answer in time")]
    TimedOut(ServerId),
    /// The server is gone, or broke off.
    #[error("memory server {0} is gone")]
    Gone(ServerId),
}

impl From<rustix::io::Errno> for ShmError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}

impl ShmError {
    /// Whether the server turned the connection away because it has as many as it may have.
    pub fn is_full(&self) -> bool {
        let full = HandshakeError::Refused(Refusal::Full);
        matches!(self, Self::Handshake { error, .. } if *error == full)
    }
}
