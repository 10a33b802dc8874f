//! The client side of a whole cluster: addresses, the token, the device, what is known of the servers' epochs; and the
//! provider, which starts the servers too.
//!
//! *Thread safety*: any number of threads.

use crate::device::{Adapter, DeviceChoice, Missing, Patience};
use crate::endpoint::{Verbs, VerbsDriver};
use crate::memory::Memory;
use crate::server::{VerbsServer, VerbsServerConfig, WINDOW};
use farleaf_fabric::endpoint::{
    EndpointCluster, Peers, PeersConfig, ServerStarts, start_on_loopback,
};
use farleaf_fabric::handshake::{Role, Token};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Provider, RpcService, ServerId};
use std::io;
use std::net::SocketAddr;

/// What the client side is like; and the servers, where the provider starts them.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// The longest that an operation may take, in nanoseconds.
    pub timeout_ns: u64,
    /// The longest that it may take to connect over TCP with the handshake, and to be answered after that, in nanoseconds.
    pub connect_timeout_ns: u64,
    /// How many operations an endpoint may have in flight.
    pub depth: usize,
    /// How many messages of calls an endpoint may have under way to a server; no more than the servers grant.
    pub window: usize,
    /// How often a thread whose tasks all wait looks for completions before it blocks.
    pub looks_before_waiting: u32,
    /// Runs all clients of one call on one thread instead of a thread for each.
    pub one_client_thread: bool,
    /// Where randomness starts.
    pub seed: u64,
    /// The clients' device.
    pub device: DeviceChoice,
    /// How long they bear servers that do not answer.
    pub patience: Patience,
    /// What the servers are like that the provider starts.
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
            patience: Patience::default(),
            server: VerbsServerConfig::default(),
        }
    }
}

/// What all endpoints of a cluster share.
#[derive(Debug)]
pub struct Shared {
    pub(crate) config: VerbsConfig,
    pub(crate) peers: Peers,
    pub(crate) adapter: Adapter,
    pub(crate) memory: Memory,
}

/// Memory servers over RDMA, as their clients see them.
#[derive(Debug)]
pub struct VerbsCluster {
    shared: Arc<Shared>,
    /// Those that the provider has started; none if they are elsewhere.
    servers: Vec<VerbsServer>,
}

impl VerbsCluster {
    /// The client side of servers elsewhere, numbered in the order of the addresses of their entrances. Connects to none yet:
    /// an endpoint connects to a server when it first has something to send there.
    ///
    /// # Errors
    /// [`Missing`], which says in one line what is missing for RDMA.
    pub fn connect(
        addresses: Vec<SocketAddr>,
        token: &Token,
        config: VerbsConfig,
    ) -> Result<Self, Missing> {
        let adapter = Adapter::open(&config.device)?;
        let servers = PeersConfig {
            role: Role::MemoryServer,
            starts: ServerStarts::Once,
            connect_timeout_ns: config.connect_timeout_ns,
        };
        let peers = Peers::new(addresses, token, servers);
        let shared = Shared { config, peers, adapter, memory: Memory::default() };
        Ok(Self { shared: Arc::new(shared), servers: Vec::new() })
    }

    /// What drives endpoints on the calling thread, and opens them: for programs that go on for long, with
    /// an [`farleaf_fabric::executor::Executor`] of their own.
    ///
    /// # Errors
    /// What the operating system says if there are no more file descriptors.
    pub fn driver(&self) -> io::Result<VerbsDriver> {
        VerbsDriver::new(&self.shared)
    }

    /// The servers that the provider has started.
    pub fn servers(&self) -> &[VerbsServer] {
        &self.servers
    }

    /// The epoch that `server` had when somebody of this cluster connected to it first.
    pub fn known_epoch(&self, server: ServerId) -> Option<u64> {
        self.shared.peers.known_epoch(server)
    }
}

impl Provider for VerbsConfig {
    type Cluster<S: RpcService> = VerbsCluster;

    /// Starts the servers in this process: connections are brought up over the loopback interface, all else goes through
    /// the device.
    ///
    /// # Panics
    /// If RDMA cannot be used here ([`crate::probe`] says why beforehand), or if there are no sockets or threads to be had.
    fn start<S: RpcService>(&self, services: Vec<Arc<S>>) -> VerbsCluster {
        let started = start_on_loopback(services, |listener, number, service, token| {
            let config = VerbsServerConfig { number, ..self.server.clone() };
            VerbsServer::start(listener, service, token, config)
        });
        let (token, servers) =
            started.unwrap_or_else(|error| panic!("a server does not start: {error}"));
        let addresses = servers.iter().map(VerbsServer::local_address).collect();
        let cluster = VerbsCluster::connect(addresses, &token, self.clone());
        let cluster = cluster.unwrap_or_else(|missing| panic!("{missing}"));
        VerbsCluster { servers, ..cluster }
    }
}

impl EndpointCluster for VerbsCluster {
    type Transport = Verbs;

    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn has_one_client_thread(&self) -> bool {
        self.shared.config.one_client_thread
    }

    /// Stops one that the provider has started; others are not within reach.
    fn kill(&self, server: ServerId) {
        if let Some(server) = self.servers.get(server.index()) {
            server.stop();
        }
    }
}
