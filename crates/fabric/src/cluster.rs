//! Starting a cluster and running clients on it, the same for every provider.

use crate::any::AnyFabric;
#[cfg(not(any(loom, shuttle)))]
use crate::any::AnyTransport;
use crate::clients::ClientTask;
#[cfg(not(any(loom, shuttle)))]
use crate::endpoint::{EndpointCluster, run_endpoints};
use crate::local::{LocalCluster, LocalConfig};
#[cfg(not(any(loom, shuttle)))]
use crate::shm::{ShmCluster, ShmConfig};
use crate::sim::{SimCluster, SimConfig};
use crate::sync::{Arc, Mutex, lock};
#[cfg(not(any(loom, shuttle)))]
use crate::tcp::{TcpCluster, TcpConfig};
use crate::{Calls, RpcService, ServerId};
use std::fmt::{self, Debug};
use std::future::Future;
use std::io;

const NO_SERVERS: &str = "cannot start memory servers in this process";
const NO_CLIENTS: &str = "cannot start clients";

/// Creates clusters: a provider with its settings.
pub trait Provider {
    /// The clusters that [`Provider::start`] creates.
    type Cluster<S: RpcService>: Cluster + 'static;

    /// Starts a cluster with one memory server per service, numbered in the given order.
    ///
    /// # Errors
    /// The operating system's error if it refuses a thread, a file descriptor or memory.
    fn try_start<S: RpcService>(&self, services: Vec<Arc<S>>) -> io::Result<Self::Cluster<S>>;

    /// [`Self::try_start`] for tests and benchmarks.
    ///
    /// # Panics
    /// If the operating system refuses.
    fn start<S: RpcService>(&self, services: Vec<Arc<S>>) -> Self::Cluster<S> {
        self.try_start(services).unwrap_or_else(|error| panic!("{NO_SERVERS}: {error}"))
    }
}

/// Running memory servers, and clients that can be run against them.
pub trait Cluster {
    /// Runs one client per element of `compute_servers`, each over its own endpoint of that compute
    /// server, all at the same time. Returns when all have ended, with their results in the same
    /// order. `None` stands for a client that died with its compute server.
    ///
    /// Can be called again: the memory servers keep running.
    ///
    /// # Errors
    /// The operating system's error if it refuses a thread, a file descriptor or memory. Then no
    /// client has run.
    fn try_run<T, Fut>(
        &self,
        compute_servers: &[u16],
        body: impl Fn(AnyFabric, usize) -> Fut + Sync,
    ) -> io::Result<Vec<Option<T>>>
    where
        Self: Sized,
        T: Send,
        Fut: Future<Output = T>,
    {
        let results: Vec<_> = compute_servers.iter().map(|_| Mutex::new(None)).collect();
        self.run_clients(compute_servers, &|fabric, number| {
            let (client, result) = (body(fabric, number), &results[number]);
            Box::pin(async move { *lock(result) = Some(client.await) })
        })?;
        Ok(results.into_iter().map(|result| lock(&result).take()).collect())
    }

    /// [`Self::try_run`] for tests and simulations.
    ///
    /// # Panics
    /// If the operating system refuses.
    fn run<T, Fut>(
        &self,
        compute_servers: &[u16],
        body: impl Fn(AnyFabric, usize) -> Fut + Sync,
    ) -> Vec<Option<T>>
    where
        Self: Sized,
        T: Send,
        Fut: Future<Output = T>,
    {
        let outcome = self.try_run(compute_servers, body);
        outcome.unwrap_or_else(|error| panic!("{NO_CLIENTS}: {error}"))
    }

    /// Runs the clients that `start` creates, one per element of `compute_servers`, each from its
    /// endpoint and its number. Providers implement this function, because it is compiled only once
    /// for all clients.
    ///
    /// # Errors
    /// As for [`Self::try_run`].
    fn run_clients<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(AnyFabric, usize) -> ClientTask<'a> + Sync),
    ) -> io::Result<()>;

    /// Runs one client on compute server 0.
    ///
    /// # Errors
    /// As for [`Self::try_run`].
    ///
    /// # Panics
    /// If its compute server dies.
    fn try_run_one<T, Fut>(&self, body: impl Fn(AnyFabric) -> Fut + Sync) -> io::Result<T>
    where
        Self: Sized,
        T: Send,
        Fut: Future<Output = T>,
    {
        let mut results = self.try_run(&[0], |fabric, _| body(fabric))?;
        Ok(results.pop().flatten().expect("the only client ends"))
    }

    /// [`Self::try_run_one`] for tests and simulations.
    ///
    /// # Panics
    /// If its compute server dies, or the operating system refuses.
    fn run_one<T, Fut>(&self, body: impl Fn(AnyFabric) -> Fut + Sync) -> T
    where
        Self: Sized,
        T: Send,
        Fut: Future<Output = T>,
    {
        self.try_run_one(body).unwrap_or_else(|error| panic!("{NO_CLIENTS}: {error}"))
    }

    /// Stops a memory server for good, as a crash would: later operations on it end as
    /// indeterminate.
    fn kill_memory_server(&self, server: ServerId);
}

impl Provider for LocalConfig {
    type Cluster<S: RpcService> = LocalCluster<S>;

    fn try_start<S: RpcService>(&self, services: Vec<Arc<S>>) -> io::Result<LocalCluster<S>> {
        LocalCluster::start(self.clone(), services)
    }
}

impl<S: Calls> Cluster for LocalCluster<S> {
    fn run_clients<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(AnyFabric, usize) -> ClientTask<'a> + Sync),
    ) -> io::Result<()> {
        self.run_endpoints(compute_servers, &|fabric, number| {
            start(AnyFabric::Local(fabric), number)
        })
    }

    fn kill_memory_server(&self, server: ServerId) {
        self.kill(server);
    }
}

impl Provider for SimConfig {
    type Cluster<S: RpcService> = SimCluster<S>;

    fn try_start<S: RpcService>(&self, services: Vec<Arc<S>>) -> io::Result<SimCluster<S>> {
        Ok(SimCluster::start(self.clone(), services))
    }
}

impl<S: Calls> Cluster for SimCluster<S> {
    /// # Panics
    /// If clients are left and nothing can ever wake them, or if they run beyond
    /// [`SimConfig::give_up_after_ns`].
    fn run_clients<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(AnyFabric, usize) -> ClientTask<'a> + Sync),
    ) -> io::Result<()> {
        self.run_endpoints(compute_servers, &|fabric, number| {
            start(AnyFabric::Sim(fabric), number)
        });
        Ok(())
    }

    fn kill_memory_server(&self, server: ServerId) {
        self.control().kill_memory_server(server);
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Provider for TcpConfig {
    type Cluster<S: RpcService> = TcpCluster;

    /// Starts the servers in this process, on sockets of the loopback interface.
    fn try_start<S: RpcService>(&self, services: Vec<Arc<S>>) -> io::Result<TcpCluster> {
        TcpCluster::start(self, services)
    }
}

/// For suites and benchmarks: memory servers in this process, reached over sockets and memfds like
/// those of other processes. The services' regions must be shared.
#[cfg(not(any(loom, shuttle)))]
impl Provider for ShmConfig {
    type Cluster<S: RpcService> = ShmCluster;

    /// # Errors
    /// Also if a service's region is private.
    fn try_start<S: RpcService>(&self, services: Vec<Arc<S>>) -> io::Result<ShmCluster> {
        Ok(ShmCluster::start(self, services)?)
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<C: EndpointCluster<Transport: AnyTransport>> Cluster for C {
    fn run_clients<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(AnyFabric, usize) -> ClientTask<'a> + Sync),
    ) -> io::Result<()> {
        run_endpoints(self, compute_servers, &|endpoint, number| {
            start(C::Transport::into_any(endpoint), number)
        })
    }

    fn kill_memory_server(&self, server: ServerId) {
        self.kill(server);
    }
}

/// The configuration of any provider of this crate.
#[derive(Clone, Debug)]
pub enum AnyConfig {
    /// Memory servers of this process.
    Local(LocalConfig),
    /// A simulated cluster.
    Sim(Box<SimConfig>),
    /// Memory servers over TCP.
    #[cfg(not(any(loom, shuttle)))]
    Tcp(TcpConfig),
    /// Memory servers of this host.
    #[cfg(not(any(loom, shuttle)))]
    Shm(ShmConfig),
}

impl From<LocalConfig> for AnyConfig {
    fn from(config: LocalConfig) -> Self {
        Self::Local(config)
    }
}

impl From<SimConfig> for AnyConfig {
    fn from(config: SimConfig) -> Self {
        Self::Sim(Box::new(config))
    }
}

#[cfg(not(any(loom, shuttle)))]
impl From<TcpConfig> for AnyConfig {
    fn from(config: TcpConfig) -> Self {
        Self::Tcp(config)
    }
}

#[cfg(not(any(loom, shuttle)))]
impl From<ShmConfig> for AnyConfig {
    fn from(config: ShmConfig) -> Self {
        Self::Shm(config)
    }
}

impl Provider for AnyConfig {
    type Cluster<S: RpcService> = AnyCluster<S>;

    fn try_start<S: RpcService>(&self, services: Vec<Arc<S>>) -> io::Result<AnyCluster<S>> {
        Ok(match self {
            Self::Local(config) => AnyCluster::Local(config.try_start(services)?),
            Self::Sim(config) => AnyCluster::Sim(config.try_start(services)?),
            #[cfg(not(any(loom, shuttle)))]
            Self::Tcp(config) => AnyCluster::Tcp(config.try_start(services)?),
            #[cfg(not(any(loom, shuttle)))]
            Self::Shm(config) => AnyCluster::Shm(config.try_start(services)?),
        })
    }
}

/// A cluster of any provider.
pub enum AnyCluster<S: RpcService> {
    /// Memory servers of this process.
    Local(LocalCluster<S>),
    /// A simulated cluster.
    Sim(SimCluster<S>),
    /// Memory servers over TCP.
    #[cfg(not(any(loom, shuttle)))]
    Tcp(TcpCluster),
    /// Memory servers of this host.
    #[cfg(not(any(loom, shuttle)))]
    Shm(ShmCluster),
    /// A cluster of a provider outside this crate.
    Other(Box<dyn Cluster>),
}

impl<S: RpcService> Debug for AnyCluster<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyCluster").finish_non_exhaustive()
    }
}

impl<S: RpcService> AnyCluster<S> {
    fn get(&self) -> &dyn Cluster {
        match self {
            Self::Local(cluster) => cluster,
            Self::Sim(cluster) => cluster,
            #[cfg(not(any(loom, shuttle)))]
            Self::Tcp(cluster) => cluster,
            #[cfg(not(any(loom, shuttle)))]
            Self::Shm(cluster) => cluster,
            Self::Other(cluster) => &**cluster,
        }
    }
}

impl<S: RpcService> Cluster for AnyCluster<S> {
    fn run_clients<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(AnyFabric, usize) -> ClientTask<'a> + Sync),
    ) -> io::Result<()> {
        self.get().run_clients(compute_servers, start)
    }

    fn kill_memory_server(&self, server: ServerId) {
        self.get().kill_memory_server(server);
    }
}
