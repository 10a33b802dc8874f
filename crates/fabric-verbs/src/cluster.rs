//! The client side of a whole cluster: addresses, the token, the device, and the known epochs of
//! the servers. Also the provider, which also starts the servers.
//!
//! *Thread safety*: any number of threads.

use crate::device::{DeviceChoice, RdmaAdapter, RdmaUnavailable, RetryTimers};
use crate::endpoint::{Verbs, VerbsDriver};
use crate::memory::ClusterRegistrations;
use crate::server::{VerbsServer, VerbsServerConfig, WINDOW};
use farleaf_fabric::endpoint::{
    EndpointCluster, Peers, PeersConfig, ServerStarts, start_on_loopback,
};
use farleaf_fabric::handshake::{PeerRole, Token};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Provider, RpcService, ServerId};
use std::io;
use std::net::SocketAddr;

/// Configuration of the client side, and of the servers that the provider starts.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// Time limit of an operation, in nanoseconds.
    pub timeout_ns: u64,
    /// Time limit for connecting over TCP including the handshake, and again for the answer that
    /// follows, in nanoseconds.
    pub connect_timeout_ns: u64,
    /// Limit on an endpoint's operations in flight.
    pub depth: usize,
    /// Limit on an endpoint's call messages in flight to a server. It must not exceed the servers'
    /// limit.
    pub window: usize,
    /// Number of times that a thread whose tasks all wait polls for completions before it blocks.
    pub looks_before_waiting: u32,
    /// Runs all clients of one call on one thread instead of one thread each.
    pub one_client_thread: bool,
    /// Seed of the random numbers.
    pub seed: u64,
    /// The clients' device.
    pub device: DeviceChoice,
    /// When clients give up on servers that do not answer.
    pub retry_timers: RetryTimers,
    /// Configuration of the servers that the provider starts.
    pub server: VerbsServerConfig,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            timeout_ns: 5_000_000_000,
            connect_timeout_ns: 2_000_000_000,
            depth: 256,
            window: WINDOW,
            looks_before_waiting: 0,
            one_client_thread: false,
            seed: 1,
            device: DeviceChoice::default(),
            retry_timers: RetryTimers::default(),
            server: VerbsServerConfig::default(),
        }
    }
}

/// The state that all endpoints of a cluster share.
#[derive(Debug)]
pub struct VerbsClusterShared {
    pub(crate) config: VerbsConfig,
    pub(crate) peers: Peers,
    pub(crate) adapter: RdmaAdapter,
    pub(crate) memory: ClusterRegistrations,
}

/// Memory servers over RDMA, seen from their clients.
#[derive(Debug)]
pub struct VerbsCluster {
    shared: Arc<VerbsClusterShared>,
    /// The servers that the provider has started; empty if they run elsewhere.
    servers: Vec<VerbsServer>,
}

impl VerbsCluster {
    /// Creates the client side of servers elsewhere, numbered in the order of their acceptors'
    /// `addresses`. Connects to none yet: an endpoint connects to a server when it first has
    /// something to send there.
    ///
    /// # Errors
    /// [`RdmaUnavailable`], which states in one line what is missing for RDMA.
    pub fn connect(
        addresses: Vec<SocketAddr>,
        token: &Token,
        config: VerbsConfig,
    ) -> Result<Self, RdmaUnavailable> {
        let adapter = RdmaAdapter::open(&config.device)?;
        let servers = PeersConfig {
            role: PeerRole::MemoryServer,
            starts: ServerStarts::Once,
            connect_timeout_ns: config.connect_timeout_ns,
        };
        let peers = Peers::new(addresses, token, servers);
        let shared =
            VerbsClusterShared { config, peers, adapter, memory: ClusterRegistrations::default() };
        Ok(Self { shared: Arc::new(shared), servers: Vec::new() })
    }

    /// Creates a driver that opens and drives endpoints on the calling thread, for long-running
    /// programs that have their own [`farleaf_fabric::executor::Executor`].
    ///
    /// # Errors
    /// The operating system's error if there are no more file descriptors.
    pub fn driver(&self) -> io::Result<VerbsDriver> {
        VerbsDriver::new(&self.shared)
    }

    /// The servers that the provider has started.
    pub fn servers(&self) -> &[VerbsServer] {
        &self.servers
    }

    /// The epoch that `server` had when an endpoint of this cluster first connected to it.
    pub fn known_epoch(&self, server: ServerId) -> Option<u64> {
        self.shared.peers.known_epoch(server)
    }
}

impl Provider for VerbsConfig {
    type Cluster<S: RpcService> = VerbsCluster;

    /// Starts the servers in this process: connections are brought up over the loopback interface,
    /// and everything else goes through the device.
    ///
    /// # Errors
    /// Also if RDMA cannot be used here ([`crate::probe`] tells why).
    fn try_start<S: RpcService>(&self, services: Vec<Arc<S>>) -> io::Result<VerbsCluster> {
        let started = start_on_loopback(services, |listener, number, service, token| {
            let config = VerbsServerConfig { number, ..self.server.clone() };
            VerbsServer::start(listener, service, token, config)
        });
        let (token, servers) = started?;
        let addresses = servers.iter().map(VerbsServer::local_address).collect();
        let cluster = VerbsCluster::connect(addresses, &token, self.clone());
        Ok(VerbsCluster { servers, ..cluster.map_err(io::Error::other)? })
    }
}

impl EndpointCluster for VerbsCluster {
    type Transport = Verbs;

    fn shared(&self) -> &Arc<VerbsClusterShared> {
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
