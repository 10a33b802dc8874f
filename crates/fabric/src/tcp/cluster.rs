//! The client side of a whole cluster: addresses, the token, and the known epochs of the servers.
//! Also the provider, which also starts the servers.
//!
//! *Thread safety*: any number of threads.

use super::endpoint::{Tcp, TcpDriver};
use super::server::{TcpServer, TcpServerConfig};
use crate::endpoint::{EndpointCluster, Peers, PeersConfig, ServerStarts, start_on_loopback};
use crate::handshake::{PeerRole, Token};
use crate::sync::Arc;
use crate::{RpcService, ServerId};
use std::io;
use std::net::SocketAddr;

/// Configuration of the client side, and of the servers that the provider starts.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Role of the endpoints. The default is compute servers, as clients of memory servers.
    pub role: PeerRole,
    /// Role of the servers that they connect to.
    pub server_role: PeerRole,
    /// Time limit of an operation, in nanoseconds.
    pub timeout_ns: u64,
    /// Time limit to connect, including the handshake, in nanoseconds.
    pub connect_timeout_ns: u64,
    /// Limit on an endpoint's operations in flight.
    pub depth: usize,
    /// Limit on the payload in flight over one connection, in bytes, for READs and for WRITEs each.
    /// The rest waits at the client. Payloads of at most 4 KiB do not count.
    pub window_bytes: usize,
    /// Number of times a thread with only waiting tasks polls its sockets before it blocks.
    pub looks_before_waiting: u32,
    /// Runs all clients of one call on one thread instead of one thread each.
    pub one_client_thread: bool,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Configuration of the servers that the provider starts.
    pub server: TcpServerConfig,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            role: PeerRole::ComputeServer,
            server_role: PeerRole::MemoryServer,
            timeout_ns: 5_000_000_000,
            connect_timeout_ns: 2_000_000_000,
            depth: 256,
            window_bytes: 512 * 1024,
            looks_before_waiting: 0,
            one_client_thread: false,
            seed: 1,
            server: TcpServerConfig::default(),
        }
    }
}

/// The state that all endpoints of a cluster share.
#[derive(Debug)]
pub struct TcpClusterShared {
    pub(super) config: TcpConfig,
    pub(super) peers: Peers,
}

/// Servers over TCP, seen from their clients.
#[derive(Debug)]
pub struct TcpCluster {
    shared: Arc<TcpClusterShared>,
    /// The servers that the provider has started; empty if they run elsewhere.
    servers: Vec<TcpServer>,
}

impl TcpCluster {
    /// Creates the client side of servers elsewhere, numbered in the order of `addresses`. Connects
    /// to none yet: an endpoint connects to a server when it first has something to send there.
    pub fn connect(addresses: Vec<SocketAddr>, token: &Token, config: TcpConfig) -> Self {
        let starts = match config.role {
            PeerRole::Client => ServerStarts::Again,
            _ => ServerStarts::Once,
        };
        let servers = PeersConfig {
            role: config.server_role,
            starts,
            connect_timeout_ns: config.connect_timeout_ns,
        };
        let shared = TcpClusterShared { config, peers: Peers::new(addresses, token, servers) };
        Self { shared: Arc::new(shared), servers: Vec::new() }
    }

    /// Records that a server has moved to another address. New connections go there; open ones are
    /// unaffected. A server that does not belong to this cluster is ignored.
    pub fn relocate(&self, server: ServerId, address: SocketAddr) {
        self.shared.peers.relocate(server, address);
    }

    /// Creates a driver that opens and drives endpoints on the calling thread, for long-running
    /// programs that have their own [`crate::executor::Executor`].
    ///
    /// # Errors
    /// The operating system's error if there are no more file descriptors.
    pub fn driver(&self) -> io::Result<TcpDriver> {
        TcpDriver::new(&self.shared)
    }

    /// The servers that the provider has started.
    pub fn servers(&self) -> &[TcpServer] {
        &self.servers
    }

    /// The epoch that `server` had when an endpoint of this cluster first connected to it.
    pub fn known_epoch(&self, server: ServerId) -> Option<u64> {
        self.shared.peers.known_epoch(server)
    }
}

impl TcpCluster {
    /// Starts servers in this process, on sockets of the loopback interface.
    pub(crate) fn start<S: RpcService>(
        config: &TcpConfig,
        services: Vec<Arc<S>>,
    ) -> io::Result<Self> {
        let started = start_on_loopback(services, |listener, number, service, token| {
            let server = TcpServerConfig { number, ..config.server.clone() };
            TcpServer::start(listener, service, token, server)
        });
        let (token, servers) = started?;
        let addresses = servers.iter().map(TcpServer::local_address).collect();
        Ok(TcpCluster { servers, ..TcpCluster::connect(addresses, &token, config.clone()) })
    }
}

impl EndpointCluster for TcpCluster {
    type Transport = Tcp;

    fn shared(&self) -> &Arc<TcpClusterShared> {
        &self.shared
    }

    fn has_one_client_thread(&self) -> bool {
        self.shared.config.one_client_thread
    }

    /// Stops a server that the provider has started; does nothing for others.
    fn kill(&self, server: ServerId) {
        if let Some(server) = self.servers.get(server.index()) {
            server.stop();
        }
    }
}
