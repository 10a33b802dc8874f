//! `local`: memory servers in this process.
//!
//! Verbs are atomics and word copies on the servers' regions, executed by the caller when it posts
//! them. RPCs run inline in the caller, or on a bounded number of threads per memory server. With a
//! network model, each completion is delayed for as long as a NIC would take.
//!
//! *Thread safety*: the cluster is shared by all client threads; an endpoint belongs to one.

mod endpoint;
mod op;
mod threads;

pub use endpoint::LocalFabric;
pub use op::LocalOp;

use crate::clients::{ClientTask, run_here, run_on_threads};
use crate::clock::ClusterClock;
use crate::executor::{Driver, DriverProgress, ExecutorRequests};
use crate::sync::{Arc, AtomicBool, Ordering};
use crate::timers::Timers;
use crate::{Calls, InlineCpu, Region, ServerId, ServiceCall, now_or_never};
use endpoint::LocalShared;
use std::fmt::Debug;
use std::io;
use std::rc::Rc;
use threads::ServerThreads;

/// Configuration of a local cluster.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// Threads per memory server that serve RPCs; 0 runs them inline in the caller.
    pub server_threads: usize,
    /// Round-trip time, in nanoseconds; 0 completes at once.
    pub network_latency_ns: u64,
    /// Bandwidth of an endpoint's link, in bytes per second; 0 for no limit.
    pub bandwidth_bytes_per_s: u64,
    /// Runs all clients of one call on one thread, instead of one thread each. Each client yields
    /// to the others at every operation.
    pub one_client_thread: bool,
    /// Time limit of an RPC on a server thread, in nanoseconds.
    pub timeout_ns: u64,
    /// Limit on an endpoint's operations in flight.
    pub depth: usize,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            server_threads: 0,
            network_latency_ns: 0,
            bandwidth_bytes_per_s: 0,
            one_client_thread: false,
            timeout_ns: 5_000_000_000,
            depth: 256,
            seed: 1,
        }
    }
}

/// Memory servers of this process.
#[derive(Debug)]
pub struct LocalCluster<S> {
    shared: Arc<LocalShared>,
    services: Vec<Arc<S>>,
}

/// A memory server and its threads, if it has any.
#[derive(Debug)]
struct LocalServer {
    service: Box<dyn Inline>,
    memory: Option<Arc<Region>>,
    alive: AtomicBool,
    threads: Option<ServerThreads>,
}

/// A service that callers run themselves: the code above the fabric is compiled once, whatever the
/// service is.
trait Inline: Debug + Send + Sync {
    /// As [`Calls::call`].
    fn call(&self, cpu: &InlineCpu, call: ServiceCall<'_>);

    /// As [`Calls::after_answer`].
    fn after_answer(&self, cpu: &InlineCpu);
}

struct Inlined<S>(Arc<S>);

impl<S> Debug for Inlined<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inlined").finish_non_exhaustive()
    }
}

impl<S: Calls> Inline for Inlined<S> {
    #[inline]
    fn call(&self, cpu: &InlineCpu, call: ServiceCall<'_>) {
        now_or_never(self.0.call(cpu, call));
    }

    #[inline]
    fn after_answer(&self, cpu: &InlineCpu) {
        now_or_never(self.0.after_answer(cpu));
    }
}

impl<S: Calls> LocalCluster<S> {
    /// Starts the memory servers.
    ///
    /// # Errors
    /// The operating system's error if there are too many threads.
    pub fn start(config: LocalConfig, services: Vec<Arc<S>>) -> io::Result<Self> {
        let start = |service: &Arc<S>| {
            let threads = match config.server_threads {
                0 => None,
                threads => Some(ServerThreads::start(threads, service)?),
            };
            let (memory, alive) = (service.memory().cloned(), AtomicBool::new(true));
            Ok(LocalServer {
                service: Box::new(Inlined(Arc::clone(service))),
                memory,
                alive,
                threads,
            })
        };
        let servers = services.iter().map(start).collect::<io::Result<_>>()?;
        let shared = Arc::new(LocalShared { config, servers, clock: ClusterClock::start() });
        Ok(Self { shared, services })
    }

    /// Creates a driver that opens and drives endpoints on the calling thread, for long-running
    /// programs that have their own [`crate::executor::Executor`].
    pub fn driver(&self) -> LocalDriver {
        let timers = Rc::new(Timers::new(self.shared.clock.clone()));
        LocalDriver { shared: Arc::clone(&self.shared), timers }
    }

    /// The memory servers' services, in the order of their numbers.
    pub fn services(&self) -> impl Iterator<Item = &Arc<S>> {
        self.services.iter()
    }
}

impl<S: Calls> LocalCluster<S> {
    /// [`crate::Cluster::run_clients`].
    pub(crate) fn run_endpoints<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(LocalFabric, usize) -> ClientTask<'a> + Sync),
    ) -> io::Result<()> {
        let open = |clients: &[(usize, u16)]| {
            let (driver, yield_now) = (self.driver(), clients.len() > 1);
            let open = |(number, server): &_| driver.endpoint(*server, *number, yield_now);
            let endpoints = clients.iter().map(open).collect::<io::Result<Vec<_>>>()?;
            Ok((driver, endpoints))
        };
        let run = |(driver, endpoints), clients: &[_]| run_here(&driver, clients, endpoints, start);
        run_on_threads(compute_servers, self.shared.config.one_client_thread, &open, &run)
    }

    /// [`crate::Cluster::kill_memory_server`].
    pub(crate) fn kill(&self, server: ServerId) {
        if let Some(server) = self.shared.servers.get(server.index()) {
            server.alive.store(false, Ordering::Release);
        }
    }
}

/// Opens and drives endpoints on the calling thread; give it to an [`crate::executor::Executor`].
#[derive(Debug)]
pub struct LocalDriver {
    shared: Arc<LocalShared>,
    timers: Rc<Timers>,
}

impl LocalDriver {
    /// Opens an endpoint of `compute_server`; `number` selects its random stream. Its operations
    /// complete when they are posted, unless the cluster models a network or has server threads.
    ///
    /// # Errors
    /// The operating system's error if there is not enough memory.
    pub fn open(&self, compute_server: u16, number: usize) -> io::Result<LocalFabric> {
        self.endpoint(compute_server, number, false)
    }

    fn endpoint(
        &self,
        compute_server: u16,
        number: usize,
        yield_now: bool,
    ) -> io::Result<LocalFabric> {
        let (shared, timers) = (Arc::clone(&self.shared), Rc::clone(&self.timers));
        LocalFabric::new(shared, timers, compute_server, number, yield_now)
    }
}

impl Driver for LocalDriver {
    fn requests(&self) -> Option<ExecutorRequests> {
        None
    }

    fn progress(&self) -> DriverProgress {
        self.timers.progress()
    }
}
