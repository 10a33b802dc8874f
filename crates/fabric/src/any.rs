//! The endpoint that code above the fabric uses: one type for all providers, so that the code above
//! is compiled once, and what is simulated is what is deployed, instruction for instruction.
//!
//! What only the simulator does, charging work and breaking rules, is one test of a flag elsewhere.
//! Providers outside this crate come in by [`AnyFabric::detached`], which costs their operations an
//! indirect call; [`AnyFabric::other`] takes any [`Fabric`], at the price of an allocation for each
//! operation.
//!
//! *Invariants*: those of the provider.
//!
//! *Thread safety*: the same as for the providers.

#[cfg(not(any(loom, shuttle)))]
use crate::endpoint::{DetachedOp, Endpoint, EndpointOp, NoHeldRead, Transport};
use crate::local::{LocalFabric, LocalOp};
#[cfg(not(any(loom, shuttle)))]
use crate::shm::{Shm, ShmFabric};
use crate::sim::{Charge, SimFabric, SimOp};
#[cfg(not(any(loom, shuttle)))]
use crate::tcp::{Tcp, TcpFabric};
use crate::{Buffer, Counters, Fabric, FabricError, GlobalAddr, Message, Rule, ServerId, Work};
use std::fmt::{self, Debug};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A future that an object returns.
type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
/// An operation of another provider.
type BoxOp<T> = BoxFuture<'static, Result<T, FabricError>>;

/// An endpoint of any provider.
#[derive(Clone, Debug)]
pub enum AnyFabric {
    /// Memory servers of this process.
    Local(LocalFabric),
    /// A simulated cluster.
    Sim(SimFabric),
    /// Memory servers over TCP.
    #[cfg(not(any(loom, shuttle)))]
    Tcp(TcpFabric),
    /// Memory servers of this host.
    #[cfg(not(any(loom, shuttle)))]
    Shm(ShmFabric),
    /// A provider outside this crate.
    Other(OtherFabric),
}

/// An endpoint of a provider outside this crate.
#[derive(Clone)]
pub struct OtherFabric(Rc<dyn ErasedFabric>);

impl Debug for OtherFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherFabric").finish_non_exhaustive()
    }
}

/// A posted operation of any provider.
#[derive(Debug)]
#[must_use = "an operation is only known to have happened once it is awaited"]
pub struct AnyOp<T>(AnyOpState<T>);

#[derive(Debug)]
enum AnyOpState<T> {
    Local(LocalOp<T>),
    Sim(SimOp<T>),
    #[cfg(not(any(loom, shuttle)))]
    Tcp(EndpointOp<T, Tcp>),
    #[cfg(not(any(loom, shuttle)))]
    Shm(EndpointOp<T, Shm>),
    #[cfg(not(any(loom, shuttle)))]
    Detached(DetachedOp<T>),
    Other(OtherOp<T>),
}

struct OtherOp<T>(BoxOp<T>);

impl<T> Debug for OtherOp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherOp").finish_non_exhaustive()
    }
}

impl<T: 'static> Future for AnyOp<T> {
    type Output = Result<T, FabricError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().0 {
            AnyOpState::Local(op) => Pin::new(op).poll(context),
            AnyOpState::Sim(op) => Pin::new(op).poll(context),
            #[cfg(not(any(loom, shuttle)))]
            AnyOpState::Tcp(op) => Pin::new(op).poll(context),
            #[cfg(not(any(loom, shuttle)))]
            AnyOpState::Shm(op) => Pin::new(op).poll(context),
            #[cfg(not(any(loom, shuttle)))]
            AnyOpState::Detached(op) => Pin::new(op).poll(context),
            AnyOpState::Other(op) => op.0.as_mut().poll(context),
        }
    }
}

/// [`Fabric`] as an object.
trait ErasedFabric {
    fn read(&self, at: GlobalAddr, into: Buffer) -> AnyOp<Buffer>;
    fn write(&self, at: GlobalAddr, from: Buffer) -> AnyOp<Buffer>;
    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> AnyOp<u64>;
    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> AnyOp<u64>;
    fn call(&self, server: ServerId, request: Message) -> AnyOp<Message>;
    fn reset(&self, server: ServerId) -> BoxFuture<'_, Result<(), FabricError>>;
    fn fence(
        &self,
        server: ServerId,
        compute_server: u16,
    ) -> BoxFuture<'_, Result<(), FabricError>>;
    fn buffer(&self, bytes: usize) -> Result<Buffer, FabricError>;
    fn sleep(&self, ns: u64) -> BoxFuture<'_, ()>;
    fn now_ns(&self) -> u64;
    fn random(&self) -> u64;
    fn unique(&self) -> u64;
    fn expect(&self, at: GlobalAddr, bytes: usize);
    fn counters(&self) -> &Counters;
    fn memory_servers(&self) -> u16;
    fn compute_server(&self) -> u16;
    fn depth(&self) -> usize;
    fn tears(&self) -> bool;
}

/// A provider's endpoint as an object, and how its operations become [`AnyOp`]s. Not the endpoint
/// itself, which has functions of these names.
struct ForeignEndpoint<F, B>(F, B);

/// How the operations of an endpoint become [`AnyOp`]s.
trait OpConverter<F: Fabric> {
    fn become_any<T: 'static>(&self, op: F::Op<T>) -> AnyOp<T>;
}

struct Boxed;

impl<F: Fabric> OpConverter<F> for Boxed {
    fn become_any<T: 'static>(&self, op: F::Op<T>) -> AnyOp<T> {
        AnyOp(AnyOpState::Other(OtherOp(Box::pin(op))))
    }
}

#[cfg(not(any(loom, shuttle)))]
struct Unsized;

#[cfg(not(any(loom, shuttle)))]
impl<X: Transport<HeldRead = NoHeldRead>> OpConverter<Endpoint<X>> for Unsized {
    fn become_any<T: 'static>(&self, op: EndpointOp<T, X>) -> AnyOp<T> {
        AnyOp(AnyOpState::Detached(op.detach()))
    }
}

impl<F: Fabric, B: OpConverter<F>> ErasedFabric for ForeignEndpoint<F, B> {
    fn read(&self, at: GlobalAddr, into: Buffer) -> AnyOp<Buffer> {
        self.1.become_any(self.0.read(at, into))
    }

    fn write(&self, at: GlobalAddr, from: Buffer) -> AnyOp<Buffer> {
        self.1.become_any(self.0.write(at, from))
    }

    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> AnyOp<u64> {
        self.1.become_any(self.0.compare_swap(at, expected, new))
    }

    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> AnyOp<u64> {
        self.1.become_any(self.0.fetch_add(at, delta))
    }

    fn call(&self, server: ServerId, request: Message) -> AnyOp<Message> {
        self.1.become_any(self.0.call(server, request))
    }

    fn reset(&self, server: ServerId) -> BoxFuture<'_, Result<(), FabricError>> {
        Box::pin(self.0.reset(server))
    }

    fn fence(
        &self,
        server: ServerId,
        compute_server: u16,
    ) -> BoxFuture<'_, Result<(), FabricError>> {
        Box::pin(self.0.fence(server, compute_server))
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, FabricError> {
        self.0.buffer(bytes)
    }

    fn sleep(&self, ns: u64) -> BoxFuture<'_, ()> {
        Box::pin(self.0.sleep(ns))
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn random(&self) -> u64 {
        self.0.random()
    }

    fn unique(&self) -> u64 {
        self.0.unique()
    }

    fn expect(&self, at: GlobalAddr, bytes: usize) {
        self.0.expect(at, bytes);
    }

    fn counters(&self) -> &Counters {
        self.0.counters()
    }

    fn memory_servers(&self) -> u16 {
        self.0.memory_servers()
    }

    fn compute_server(&self) -> u16 {
        self.0.compute_server()
    }

    fn depth(&self) -> usize {
        self.0.depth()
    }

    fn tears(&self) -> bool {
        self.0.tears()
    }
}

/// A transport whose endpoints code above the fabric can use.
#[cfg(not(any(loom, shuttle)))]
pub trait AnyTransport: Transport {
    /// The endpoint as that code knows it.
    fn into_any(endpoint: Endpoint<Self>) -> AnyFabric;
}

#[cfg(not(any(loom, shuttle)))]
impl AnyTransport for Tcp {
    fn into_any(endpoint: Endpoint<Self>) -> AnyFabric {
        AnyFabric::Tcp(endpoint)
    }
}

#[cfg(not(any(loom, shuttle)))]
impl AnyTransport for Shm {
    fn into_any(endpoint: Endpoint<Self>) -> AnyFabric {
        AnyFabric::Shm(endpoint)
    }
}

/// Evaluates an expression with the endpoint that is there.
macro_rules! with {
    ($any:expr, $fabric:ident => $body:expr) => {
        match $any {
            AnyFabric::Local($fabric) => $body,
            AnyFabric::Sim($fabric) => $body,
            #[cfg(not(any(loom, shuttle)))]
            AnyFabric::Tcp($fabric) => $body,
            #[cfg(not(any(loom, shuttle)))]
            AnyFabric::Shm($fabric) => $body,
            AnyFabric::Other(OtherFabric($fabric)) => $body,
        }
    };
}

/// Posts an operation at the endpoint that is there.
macro_rules! post {
    ($any:expr, $verb:ident($($argument:expr),*)) => {
        AnyOp(match $any {
            AnyFabric::Local(fabric) => AnyOpState::Local(fabric.$verb($($argument),*)),
            AnyFabric::Sim(fabric) => AnyOpState::Sim(fabric.$verb($($argument),*)),
            #[cfg(not(any(loom, shuttle)))]
            AnyFabric::Tcp(fabric) => AnyOpState::Tcp(fabric.$verb($($argument),*)),
            #[cfg(not(any(loom, shuttle)))]
            AnyFabric::Shm(fabric) => AnyOpState::Shm(fabric.$verb($($argument),*)),
            AnyFabric::Other(OtherFabric(fabric)) => return fabric.$verb($($argument),*),
        })
    };
}

impl AnyFabric {
    /// An endpoint of a transport outside this crate.
    #[cfg(not(any(loom, shuttle)))]
    pub fn detached(endpoint: Endpoint<impl Transport<HeldRead = NoHeldRead>>) -> Self {
        Self::Other(OtherFabric(Rc::new(ForeignEndpoint(endpoint, Unsized))))
    }

    /// Any endpoint, which then neither charges work nor breaks rules.
    pub fn other(fabric: impl Fabric) -> Self {
        Self::Other(OtherFabric(Rc::new(ForeignEndpoint(fabric, Boxed))))
    }

    /// The endpoint of a simulated cluster, if it is one.
    pub fn simulated(&self) -> Option<&SimFabric> {
        match self {
            Self::Sim(fabric) => Some(fabric),
            _ => None,
        }
    }
}

impl Fabric for AnyFabric {
    type Op<T: 'static> = AnyOp<T>;

    #[inline]
    fn read(&self, at: GlobalAddr, into: Buffer) -> AnyOp<Buffer> {
        post!(self, read(at, into))
    }

    #[inline]
    fn write(&self, at: GlobalAddr, from: Buffer) -> AnyOp<Buffer> {
        post!(self, write(at, from))
    }

    #[inline]
    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> AnyOp<u64> {
        post!(self, compare_swap(at, expected, new))
    }

    #[inline]
    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> AnyOp<u64> {
        post!(self, fetch_add(at, delta))
    }

    #[inline]
    fn call(&self, server: ServerId, request: Message) -> AnyOp<Message> {
        post!(self, call(server, request))
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

    #[inline(always)]
    fn charge(&self, work: Work) -> impl Future<Output = ()> {
        match self {
            Self::Sim(fabric) => Charge::of(fabric, work),
            _ => Charge::nothing(),
        }
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

    #[inline]
    fn memory_servers(&self) -> u16 {
        with!(self, fabric => fabric.memory_servers())
    }

    #[inline]
    fn compute_server(&self) -> u16 {
        with!(self, fabric => fabric.compute_server())
    }

    #[inline]
    fn depth(&self) -> usize {
        with!(self, fabric => fabric.depth())
    }

    #[inline]
    fn tears(&self) -> bool {
        with!(self, fabric => fabric.tears())
    }

    #[inline(always)]
    fn breaks(&self, rule: Rule) -> bool {
        match self {
            Self::Sim(fabric) => fabric.breaks(rule),
            _ => false,
        }
    }
}
