//! A memory server over RDMA: its registered region, the threads that answer calls, and the
//! acceptor, a thread that opens and closes connections over TCP.
//!
//! *Invariants*: verbs.S1. The number of connections, the number of those that have not proven
//! themselves, and the memory of each are bounded. verbs.S2. A queue pair serves as long as its
//! connection to the acceptor and its gate are open. verbs.S3. An endpoint is welcomed again only
//! after the queue pair of its last connection is gone (F9); a fence is acknowledged only after the
//! queue pairs of its compute server are gone (F10). verbs.S4. After `stop`, nothing further takes
//! effect and no thread is left.
//!
//! *Thread safety*: the handle is for any number of threads.

use crate::acceptor::{AcceptorShared, QueuePairAcceptor};
use crate::device::{DeviceChoice, RdmaAdapter, RetryTimers};
use crate::lane::ServerLane;
use farleaf_fabric::RpcService;
use farleaf_fabric::handshake::{PeerIdentity, PeerRole, Token, draw_epoch};
use farleaf_fabric::listener::{AdmissionBounds, Listener, ListenerThreads};
use farleaf_fabric::provider::WakeFd;
use farleaf_fabric::sync::{Arc, AtomicBool, Ordering};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct VerbsServerConfig {
    /// Its number among the memory servers.
    pub number: u16,
    /// The roles of clients that it accepts.
    pub accepts: &'static [PeerRole],
    /// Threads that answer calls.
    pub threads: usize,
    /// Limit on connected endpoints. It is lower if the device has no room for so many.
    pub connections: usize,
    /// Limit on connections in their handshake. One more evicts the oldest.
    pub half_open: usize,
    /// Time limit for bringing a connection up, in nanoseconds.
    pub handshake_timeout_ns: u64,
    /// Limit on an endpoint's call messages in flight; must be the same on both sides.
    pub window: usize,
    /// The RDMA device.
    pub device: DeviceChoice,
    /// When the server gives up on endpoints that do not answer.
    pub retry_timers: RetryTimers,
}

impl Default for VerbsServerConfig {
    fn default() -> Self {
        Self {
            number: 0,
            accepts: &[PeerRole::ComputeServer],
            threads: 1,
            connections: 256,
            half_open: 64,
            handshake_timeout_ns: 5_000_000_000,
            window: WINDOW,
            device: DeviceChoice::default(),
            retry_timers: RetryTimers::default(),
        }
    }
}

/// Default limit on an endpoint's call messages in flight to a server.
pub(crate) const WINDOW: usize = 16;

/// Counters of a server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsServerCounters {
    /// Open connections, handshakes included.
    pub connections: u64,
    /// Connections that were admitted.
    pub welcomed: u64,
    /// Connections that were refused, evicted or too slow.
    pub refused: u64,
    /// Calls. One-sided verbs bypass the server and are not counted here.
    pub requests: u64,
}

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct VerbsServer {
    address: SocketAddr,
    shared: Arc<AcceptorShared>,
    threads: ListenerThreads,
}

impl VerbsServer {
    /// Serves the endpoints that connect to `listener`; after that, they use the RDMA device.
    ///
    /// # Errors
    /// What is missing for RDMA ([`crate::RdmaUnavailable`]), or the operating system's error: no
    /// more threads or file descriptors, or no entropy.
    pub fn start<S: RpcService>(
        listener: TcpListener,
        service: Arc<S>,
        token: &Token,
        config: VerbsServerConfig,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let adapter = Arc::new(RdmaAdapter::open(&config.device)?);
        let memory = adapter.register(Arc::clone(service.region()), true)?;
        let threads = config.threads.max(1);
        let each = config.connections.div_ceil(threads);
        let lanes: io::Result<Vec<_>> = (0..threads)
            .map(|_| ServerLane::new(&adapter, each, config.window, config.retry_timers))
            .collect();
        let epoch = draw_epoch()?.max(1);
        let identity = PeerIdentity { role: PeerRole::MemoryServer, number: config.number, epoch };
        let bounds = AdmissionBounds {
            accepts: config.accepts,
            connections: config.connections,
            half_open: config.half_open,
            handshake_timeout_ns: config.handshake_timeout_ns,
        };
        let shared = Arc::new(AcceptorShared {
            listener: Arc::new(Listener::new(identity, token, bounds)),
            lanes: lanes?,
            memory,
            wake: WakeFd::new()?,
            stopped: AtomicBool::new(false),
        });
        let server = Self { address, shared, threads: ListenerThreads::default() };
        let shared = &server.shared;
        for lane in 0..threads {
            let (shared, service) = (Arc::clone(shared), Arc::clone(&service));
            let body = move || shared.lanes[lane].serve(&*service, lane);
            server.threads.start(format!("verbs-{}-{lane}", identity.number), body)?;
        }
        let mut acceptor = QueuePairAcceptor::new(listener, shared)?;
        server.threads.start(format!("verbs-{}-door", identity.number), move || acceptor.run())?;
        Ok(server)
    }

    /// Address of its acceptor.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Its identity, with the epoch that it drew when it started.
    pub fn identity(&self) -> PeerIdentity {
        self.shared.listener.identity
    }

    /// A snapshot of its counters.
    pub fn counters(&self) -> VerbsServerCounters {
        let AcceptorShared { listener, lanes, .. } = &*self.shared;
        VerbsServerCounters {
            connections: listener.connections(),
            welcomed: listener.welcomed(),
            refused: listener.refused(),
            requests: lanes.iter().map(ServerLane::requests).sum(),
        }
    }

    /// Closes the acceptor and every connection, and joins all threads.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.wake.wake();
        self.shared.lanes.iter().for_each(ServerLane::stop);
        self.threads.join();
    }
}

impl Drop for VerbsServer {
    fn drop(&mut self) {
        self.stop();
    }
}
