//! Combines two providers into one: a program that chooses its provider at run time compiles the
//! code above the fabric only once, at the price of one branch per verb.
//!
//! *Invariants*: those of the chosen provider.
//!
//! *Thread safety*: the same as for the providers.

use crate::sync::Arc;
use crate::{
    Buffer, ClientTask, Cluster, Counters, Fabric, FabricError, GlobalAddr, Message, Provider,
    RpcService, Rule, ServerId, Work,
};
pub use futures_util::future::Either;

/// Evaluates an expression with the side that is present.
macro_rules! with {
    ($either:expr, $side:pat => $body:expr) => {
        match $either {
            Either::Left($side) => $body,
            Either::Right($side) => $body,
        }
    };
}

/// Evaluates an expression with the side that is present, and wraps the result in the same side.
macro_rules! side {
    ($either:expr, $side:pat => $body:expr) => {
        match $either {
            Either::Left($side) => Either::Left($body),
            Either::Right($side) => Either::Right($body),
        }
    };
}

impl<A: Fabric, B: Fabric> Fabric for Either<A, B> {
    type Op<T: 'static> = Either<A::Op<T>, B::Op<T>>;

    #[inline]
    fn read(&self, at: GlobalAddr, into: Buffer) -> Self::Op<Buffer> {
        side!(self, fabric => fabric.read(at, into))
    }

    #[inline]
    fn write(&self, at: GlobalAddr, from: Buffer) -> Self::Op<Buffer> {
        side!(self, fabric => fabric.write(at, from))
    }

    #[inline]
    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Self::Op<u64> {
        side!(self, fabric => fabric.compare_swap(at, expected, new))
    }

    #[inline]
    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> Self::Op<u64> {
        side!(self, fabric => fabric.fetch_add(at, delta))
    }

    #[inline]
    fn call(&self, server: ServerId, request: Message) -> Self::Op<Message> {
        side!(self, fabric => fabric.call(server, request))
    }

    async fn reset(&self, server: ServerId) -> Result<(), FabricError> {
        with!(self, fabric => fabric.reset(server).await)
    }

    async fn fence(&self, server: ServerId, compute_server: u16) -> Result<(), FabricError> {
        with!(self, fabric => fabric.fence(server, compute_server).await)
    }

    #[inline]
    fn buffer(&self, bytes: usize) -> Result<Buffer, FabricError> {
        with!(self, fabric => fabric.buffer(bytes))
    }

    async fn charge(&self, work: Work) {
        with!(self, fabric => fabric.charge(work).await);
    }

    async fn sleep(&self, ns: u64) {
        with!(self, fabric => fabric.sleep(ns).await);
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        with!(self, fabric => fabric.now_ns())
    }

    #[inline]
    fn random(&self) -> u64 {
        with!(self, fabric => fabric.random())
    }

    fn unique(&self) -> u64 {
        with!(self, fabric => fabric.unique())
    }

    #[inline]
    fn expect(&self, at: GlobalAddr, bytes: usize) {
        with!(self, fabric => fabric.expect(at, bytes));
    }

    #[inline]
    fn counters(&self) -> &Counters {
        with!(self, fabric => fabric.counters())
    }

    fn memory_servers(&self) -> u16 {
        with!(self, fabric => fabric.memory_servers())
    }

    #[inline]
    fn compute_server(&self) -> u16 {
        with!(self, fabric => fabric.compute_server())
    }

    fn depth(&self) -> usize {
        with!(self, fabric => fabric.depth())
    }

    #[inline(always)]
    fn breaks(&self, rule: Rule) -> bool {
        with!(self, fabric => fabric.breaks(rule))
    }
}

impl<A: Provider, B: Provider> Provider for Either<A, B> {
    type Cluster<S: RpcService> = Either<A::Cluster<S>, B::Cluster<S>>;

    fn start<S: RpcService>(&self, services: Vec<Arc<S>>) -> Either<A::Cluster<S>, B::Cluster<S>> {
        side!(self, provider => provider.start(services))
    }
}

impl<A: Cluster, B: Cluster> Cluster for Either<A, B> {
    type Fabric = Either<A::Fabric, B::Fabric>;

    fn run_clients<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(Self::Fabric, usize) -> ClientTask<'a> + Sync),
    ) {
        match self {
            Self::Left(cluster) => cluster.run_clients(compute_servers, &|fabric, number| {
                start(Either::Left(fabric), number)
            }),
            Self::Right(cluster) => cluster.run_clients(compute_servers, &|fabric, number| {
                start(Either::Right(fabric), number)
            }),
        }
    }

    fn kill_memory_server(&self, server: ServerId) {
        with!(self, cluster => cluster.kill_memory_server(server));
    }
}
