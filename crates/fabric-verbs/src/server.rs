//! A memory server over RDMA: its region, registered; threads that answer calls; and the entrance, a thread that brings
//! connections up over TCP and shuts them.
//!
//! *Invariants*: S1. connections, those among them that have not proven themselves, and the memory of each are bounded. S2. a
//! queue pair serves as long as its connection to the entrance is open and its gate is. S3. an endpoint is welcomed again only
//! after the queue pair of its last connection is gone (F9); a fence is answered only after those of its compute server are
//! (F10). S4. after `stop` nothing takes effect any more, and no thread is left.
//!
//! *Thread safety*: the handle is for any number of threads.

use crate::bring_up::Lent;
use crate::device::{Adapter, DeviceChoice, Patience};
use crate::entrance::Entrance;
use crate::lane::Lane;
use crate::objects::Registration;
use farleaf_fabric::RpcService;
use farleaf_fabric::handshake::{Identity, Role, Token, draw_epoch};
use farleaf_fabric::listener::{Bounds, Listener, Threads};
use farleaf_fabric::provider::WakeFd;
use farleaf_fabric::sync::{Arc, AtomicBool, Ordering};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// What a server is like.
#[derive(Clone, Debug)]
pub struct VerbsServerConfig {
    /// Its number among the memory servers.
    pub number: u16,
    /// Whom it lets in.
    pub accepts: &'static [Role],
    /// Threads that answer calls.
    pub threads: usize,
    /// How many endpoints may be connected; fewer if the device has no room for so many.
    pub connections: usize,
    /// How many connections may be in their handshake: one more closes the oldest.
    pub half_open: usize,
    /// The longest that it may take to bring a connection up, in nanoseconds.
    pub handshake_timeout_ns: u64,
    /// How many messages of calls an endpoint may have under way; the same on both sides.
    pub window: usize,
    /// The device.
    pub device: DeviceChoice,
    /// How long it bears endpoints that do not answer.
    pub patience: Patience,
}

impl Default for VerbsServerConfig {
    fn default() -> Self {
        Self {
            number: 0,
            accepts: &[Role::ComputeServer],
            threads: 1,
            connections: 256,
            half_open: 64,
            handshake_timeout_ns: 5_000_000_000,
            window: WINDOW,
            device: DeviceChoice::default(),
            patience: Patience::default(),
        }
    }
}

/// Messages of calls that an endpoint may have under way to a server, unless said otherwise.
pub(crate) const WINDOW: usize = 16;

/// What a server has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsServerCounters {
    /// Connections that are open now, handshakes included.
    pub connections: u64,
    /// Connections that were let in.
    pub welcomed: u64,
    /// Connections that were not: refused, evicted or too slow.
    pub refused: u64,
    /// Calls. One-sided verbs pass a server by, and nobody there counts them.
    pub requests: u64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) listener: Arc<Listener>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) memory: Registration,
    pub(crate) wake: WakeFd,
    pub(crate) stopped: AtomicBool,
}

impl Shared {
    /// What endpoints are told of the region.
    pub(crate) fn lent(&self) -> Lent {
        let memory = &self.memory;
        let bytes = memory.region().bytes() as u64;
        Lent { rkey: memory.rkey, base: memory.address(), bytes }
    }
}

/// A server that runs; dropping it stops it.
#[derive(Debug)]
pub struct VerbsServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Threads,
}

impl VerbsServer {
    /// Serves the endpoints that connect to `listener`; what follows goes over the RDMA device.
    ///
    /// # Errors
    /// What is missing for RDMA ([`crate::Missing`]), or what the operating system says: no more threads or file
    /// descriptors, or no entropy.
    pub fn start<S: RpcService>(
        listener: TcpListener,
        service: Arc<S>,
        token: &Token,
        config: VerbsServerConfig,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let adapter = Arc::new(Adapter::open(&config.device)?);
        let memory = adapter.register(Arc::clone(service.region()), true)?;
        let threads = config.threads.max(1);
        let each = config.connections.div_ceil(threads);
        let lanes: io::Result<Vec<_>> = (0..threads)
            .map(|_| Lane::new(&adapter, each, config.window, config.patience))
            .collect();
        let epoch = draw_epoch()?.max(1);
        let identity = Identity { role: Role::MemoryServer, number: config.number, epoch };
        let bounds = Bounds {
            accepts: config.accepts,
            connections: config.connections,
            half_open: config.half_open,
            handshake_timeout_ns: config.handshake_timeout_ns,
        };
        let shared = Arc::new(Shared {
            listener: Arc::new(Listener::new(identity, token, bounds)),
            lanes: lanes?,
            memory,
            wake: WakeFd::new()?,
            stopped: AtomicBool::new(false),
        });
        let server = Self { address, shared, threads: Threads::default() };
        let shared = &server.shared;
        for lane in 0..threads {
            let (shared, service) = (Arc::clone(shared), Arc::clone(&service));
            let body = move || shared.lanes[lane].serve(&*service, lane);
            server.threads.start(format!("verbs-{}-{lane}", identity.number), body)?;
        }
        let mut entrance = Entrance::new(listener, shared)?;
        server.threads.start(format!("verbs-{}-door", identity.number), move || entrance.run())?;
        Ok(server)
    }

    /// Where its entrance listens.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Who it is, with the epoch that it drew when it started.
    pub fn identity(&self) -> Identity {
        self.shared.listener.identity
    }

    /// What it has done so far.
    pub fn counters(&self) -> VerbsServerCounters {
        let Shared { listener, lanes, .. } = &*self.shared;
        VerbsServerCounters {
            connections: listener.connections(),
            welcomed: listener.welcomed(),
            refused: listener.refused(),
            requests: lanes.iter().map(Lane::requests).sum(),
        }
    }

    /// Shuts the entrance and every connection, and waits until all threads have ended.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.wake.wake();
        self.shared.lanes.iter().for_each(Lane::stop);
        self.threads.join();
    }
}

impl Drop for VerbsServer {
    fn drop(&mut self) {
        self.stop();
    }
}
