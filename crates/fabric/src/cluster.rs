//! Starting a cluster and running clients on it, the same for every provider.

use crate::sync::{Arc, Mutex, lock};
use crate::{AnyFabric, RpcService, ServerId};
use std::future::Future;
use std::pin::Pin;

/// A client of [`Cluster::run`], to be polled on the thread that started it.
pub type ClientTask<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Creates clusters: a provider with its settings.
pub trait Provider {
    /// The clusters that [`Provider::start`] creates.
    type Cluster<S: RpcService>: Cluster + 'static;

    /// Starts a cluster with one memory server per service, numbered in the given order.
    fn start<S: RpcService>(&self, services: Vec<Arc<S>>) -> Self::Cluster<S>;
}

/// Running memory servers, and clients that can be run against them.
pub trait Cluster {
    /// Runs one client per element of `compute_servers`, each over its own endpoint of that compute
    /// server, all at the same time. Returns when all have ended, with their results in the same
    /// order. `None` stands for a client that died with its compute server.
    ///
    /// Can be called again: the memory servers keep running.
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
        let results: Vec<_> = compute_servers.iter().map(|_| Mutex::new(None)).collect();
        self.run_clients(compute_servers, &|fabric, number| {
            let (client, result) = (body(fabric, number), &results[number]);
            Box::pin(async move { *lock(result) = Some(client.await) })
        });
        results.into_iter().map(|result| lock(&result).take()).collect()
    }

    /// Runs the clients that `start` creates, one per element of `compute_servers`, each from its
    /// endpoint and its number. Providers implement this function, because it is compiled only once
    /// for all clients.
    fn run_clients<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(AnyFabric, usize) -> ClientTask<'a> + Sync),
    );

    /// Runs one client on compute server 0.
    ///
    /// # Panics
    /// If its compute server dies.
    fn run_one<T, Fut>(&self, body: impl Fn(AnyFabric) -> Fut + Sync) -> T
    where
        Self: Sized,
        T: Send,
        Fut: Future<Output = T>,
    {
        let mut results = self.run(&[0], |fabric, _| body(fabric));
        results.pop().flatten().expect("the only client ends")
    }

    /// Stops a memory server for good, as a crash would: later operations on it end as
    /// indeterminate.
    fn kill_memory_server(&self, server: ServerId);
}
