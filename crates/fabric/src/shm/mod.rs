//! `shm`: memory servers are other processes of this host.
//!
//! A memory server's region is a sealed memfd that its clients map. Verbs are the clients' own
//! loads, stores and atomics: truly one-sided, so they work even while the server is stopped. RPCs
//! pass through a pair of rings for each endpoint and server. A Unix socket carries the handshake
//! and the files, wakes a sleeping side, and lets each side detect the end of the other.
//! `docs/internals/shm.md` has a diagram; decision 032 defines fences for this provider.
//!
//! `endpoint.rs` and `connection.rs` use each other: [`Shm`] names the type of its links, which are
//! generic over their transport.
//!
//! *Thread safety*: the cluster is shared by all client threads; an endpoint belongs to one.
//! Processes share only words that are accessed atomically, and packets.

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

use crate::handshake::{HandshakeError, HandshakeRefusal};
use crate::{RegionError, ServerId};
use thiserror::Error;

/// Configuration of a cluster over shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// The memory servers started for services of this process.
    pub server: ShmServerConfig,
    /// Time limit of an RPC, a fence or the opening of an endpoint, in nanoseconds.
    pub timeout_ns: u64,
    /// Limit on an endpoint's operations in flight.
    pub depth: usize,
    /// Runs all clients of one call on one thread instead of one thread each.
    pub one_client_thread: bool,
    /// Seed of the random numbers.
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

/// Why a server did not start, or could not be reached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShmError {
    /// The operating system refused.
    #[error("shared memory: {0}")]
    System(#[from] std::io::Error),
    /// A region could not be created or mapped, or its file is not sealed.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The service's region is private to its process.
    #[error("the service's region is private; create it with `RegionBacking::Shared`")]
    NotShared,
    /// The handshake failed, for example because of a wrong token.
    #[error("memory server {server}: {error}")]
    Handshake {
        /// The server that cannot be reached.
        server: ServerId,
        /// The error of the handshake.
        error: HandshakeError,
    },
    /// The server did not answer in time: it is stopped or overloaded.
    #[error("memory server {0} did not answer in time")]
    TimedOut(ServerId),
    /// The server has ended, or has closed the connection.
    #[error("memory server {0} is gone")]
    Gone(ServerId),
}

impl From<ShmError> for std::io::Error {
    fn from(error: ShmError) -> Self {
        match error {
            ShmError::System(error) => error,
            error => Self::other(error),
        }
    }
}

impl From<rustix::io::Errno> for ShmError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}

impl ShmError {
    /// Whether the server refused the connection because it has reached its limit.
    pub fn is_full(&self) -> bool {
        let full = HandshakeError::Refused(HandshakeRefusal::Full);
        matches!(self, Self::Handshake { error, .. } if *error == full)
    }
}
