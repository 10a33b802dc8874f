//! Endpoints over shared memory: verbs are executed here, calls go to the server.
//!
//! WRITEs and atomics take effect when they are posted. Posting a READ only prefetches the memory;
//! the copy is made when its future is first polled. So the cache misses of a batch of READs
//! overlap; otherwise each READ would wait for its own.
//!
//! *Thread safety*: one thread; other threads only close its gates.

use super::connection::{CallConnection, ServerMemory, ShmLink};
use super::process::ListeningProcess;
use super::{ShmConfig, ShmError};
use crate::access::{check_access, check_alignment};
use crate::clock::ClusterClock;
use crate::endpoint::{
    ClientReactor, Endpoint, EndpointDriver, EndpointInner, EndpointOp, EndpointResources,
    EndpointSettings, HeldRead, OpSlot, PollingPolicy, Transport, lost,
};
use crate::handshake::{PeerIdentity, PeerRole};
use crate::region::{copy_words, prefetch};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::{Buffer, FabricError, GlobalAddr, ServerId, Uncertainty};
use rustix::event::epoll;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Poll;

/// The transport: verbs on mapped memory, and calls through rings.
#[derive(Debug)]
pub struct Shm {
    process: Arc<ListeningProcess>,
    /// By server number; `None` for servers that could not be reached.
    reaches: Vec<Option<ServerMemory>>,
}

/// One endpoint of a compute server to memory servers that are other processes of this host.
pub type ShmFabric = Endpoint<Shm>;

/// A posted operation over shared memory.
pub type ShmOp<T> = EndpointOp<T, Shm>;

/// Drives the endpoints of one thread; give it to an [`crate::executor::Executor`].
pub type ShmDriver = EndpointDriver<Shm>;

type ShmShared = Rc<EndpointInner<Shm>>;

/// Access to a server's memory for one more operation.
#[inline]
fn reach(endpoint: &ShmShared, server: ServerId) -> Result<&ServerMemory, FabricError> {
    let found = endpoint.transport.reaches.get(server.index());
    let found = found.ok_or(FabricError::NoSuchServer(server))?;
    endpoint.resources.admit()?;
    found.as_ref().ok_or_else(|| count_lost(&endpoint.resources, server))
}

#[cold]
fn count_lost(resources: &EndpointResources, server: ServerId) -> FabricError {
    resources.counters.count_indeterminate();
    lost(server)
}

/// The words that a verb accesses, and access to their server's memory.
#[inline]
fn memory(
    endpoint: &ShmShared,
    at: GlobalAddr,
    bytes: usize,
) -> Result<(&ServerMemory, &[AtomicU64]), FabricError> {
    check_alignment(at, bytes)?;
    let reach = reach(endpoint, at.server())?;
    Ok((reach, check_access(&reach.region, at, bytes)?))
}

/// Executes a verb's access inside the gate.
#[inline]
fn verb<T>(
    endpoint: &ShmShared,
    at: GlobalAddr,
    bytes: usize,
    access: impl FnOnce(&[AtomicU64]) -> T,
) -> Result<T, FabricError> {
    let (reach, words) = memory(endpoint, at, bytes)?;
    match reach.gate.enter() {
        Some(_inside) => Ok(access(words)),
        None => Err(count_lost(&endpoint.resources, at.server())),
    }
}

/// How much of a READ is prefetched when it is posted. The copy of a longer READ keeps enough cache
/// misses in flight by itself, and prefetches of several long READs would evict each other's lines.
const PREFETCH_WORDS: usize = 4096 / 8;

/// A READ whose address has been checked.
#[derive(Debug)]
pub struct PostedRead {
    into: Option<Buffer>,
    at: GlobalAddr,
    endpoint: ShmShared,
    /// The connection's reset count when the READ was posted.
    resets: u64,
}

impl HeldRead for PostedRead {
    #[inline]
    fn copy(&mut self) -> Option<Buffer> {
        let into = self.into.take().expect("a completed operation is not polled again");
        let reach = self.endpoint.transport.reaches[self.at.server().index()].as_ref()?;
        let words = reach.region.slice(self.at.offset(), into.words().len())?;
        // Nothing that was posted before a reset takes effect after it (F9).
        if self.resets != reach.resets.get() {
            return None;
        }
        let _inside = reach.gate.enter()?;
        copy_words(words, into.words());
        Some(into)
    }

    #[cold]
    fn lost(&self) -> FabricError {
        count_lost(&self.endpoint.resources, self.at.server())
    }
}

impl Drop for PostedRead {
    #[inline]
    fn drop(&mut self) {
        self.endpoint.resources.leave();
    }
}

impl Transport for Shm {
    type Cluster = ListeningProcess;
    type Error = ShmError;
    type Source = ();
    type Progress = ();
    type Link = ShmLink;
    type HeldRead = PostedRead;

    fn settings(process: &ListeningProcess) -> EndpointSettings {
        let ShmConfig { timeout_ns, depth, seed, .. } = process.config;
        let memory_servers = u16::try_from(process.servers.len()).unwrap_or(ServerId::LIMIT);
        EndpointSettings { role: PeerRole::ComputeServer, memory_servers, depth, timeout_ns, seed }
    }

    fn looks(_: &ListeningProcess) -> PollingPolicy {
        // The granularity of timers is the short wait.
        PollingPolicy { before_waiting: 0, in_memory: true, unheard: 64, short_wait_ns: 100_000 }
    }

    fn clock(process: &ListeningProcess) -> &ClusterClock {
        &process.clock
    }

    fn source(_: &ListeningProcess, _: &OwnedFd, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn open(
        process: &Arc<ListeningProcess>,
        reactor: &ClientReactor<Self>,
        me: PeerIdentity,
        token: u64,
    ) -> Result<(Self, Vec<ShmLink>), ShmError> {
        let open = |server: ServerId| -> Result<Option<CallConnection>, ShmError> {
            if process.is_lost(server) {
                return Ok(None);
            }
            let connection = match CallConnection::open(process, server, me) {
                Err(ShmError::Gone(_)) => return Ok(None),
                opened => opened?,
            };
            let data = epoll::EventData::new_u64(token + u64::from(server.number()));
            epoll::add(&reactor.epoll, connection.socket(), data, epoll::EventFlags::IN)?;
            Ok(Some(connection))
        };
        let link = |server| Ok(ShmLink { server, connection: open(server)? });
        let links = process.servers.iter().map(|server| link(server.id));
        let links = links.collect::<Result<Vec<_>, ShmError>>()?;
        let reaches = links.iter().map(|link| link.connection.as_ref().map(CallConnection::reach));
        let reaches = reaches.collect();
        Ok((Self { process: Arc::clone(process), reaches }, links))
    }

    fn breaks_off(&self, _: &OpSlot<()>) -> bool {
        false
    }

    /// A verb has its own doorbell, because it takes effect when it is posted.
    #[inline]
    fn ring(resources: &EndpointResources) {
        resources.counters.count_doorbell();
    }

    #[inline]
    fn read(endpoint: &ShmShared, at: GlobalAddr, into: Buffer) -> ShmOp<Buffer> {
        match memory(endpoint, at, into.bytes()) {
            Ok((reach, words)) => {
                prefetch(&words[..words.len().min(PREFETCH_WORDS)]);
                endpoint.resources.enter();
                let (resets, endpoint) = (reach.resets.get(), Rc::clone(endpoint));
                let read = PostedRead { into: Some(into), at, endpoint, resets };
                ShmOp::held(read, |into| into)
            }
            Err(error) => ShmOp::failed(error),
        }
    }

    #[inline]
    fn write(endpoint: &ShmShared, at: GlobalAddr, from: Buffer) -> ShmOp<Buffer> {
        match verb(endpoint, at, from.bytes(), |words| copy_words(from.words(), words)) {
            Ok(()) => ShmOp::done(from),
            Err(error) => ShmOp::failed(error),
        }
    }

    #[inline]
    fn compare_swap(endpoint: &ShmShared, at: GlobalAddr, expected: u64, new: u64) -> ShmOp<u64> {
        let swap = |words: &[AtomicU64]| {
            words[0]
                .compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found)
        };
        verb(endpoint, at, 8, swap).map_or_else(ShmOp::failed, ShmOp::done)
    }

    #[inline]
    fn fetch_add(endpoint: &ShmShared, at: GlobalAddr, delta: u64) -> ShmOp<u64> {
        let add = |words: &[AtomicU64]| words[0].fetch_add(delta, Ordering::AcqRel);
        verb(endpoint, at, 8, add).map_or_else(ShmOp::failed, ShmOp::done)
    }

    /// Verbs that change memory take effect when they are posted, so only READs that have not been
    /// polled yet need settling. A lost connection stays lost; open another endpoint instead.
    async fn reset(endpoint: &ShmShared, server: ServerId) -> Result<(), FabricError> {
        let found = endpoint.transport.reaches.get(server.index());
        let found = found.ok_or(FabricError::NoSuchServer(server))?;
        endpoint.resources.sleep(0).await;
        match found {
            Some(reach) if !reach.gate.is_closed() => {
                reach.resets.set(reach.resets.get() + 1);
                Ok(())
            }
            _ => Err(count_lost(&endpoint.resources, server)),
        }
    }

    /// Uses the connection of the whole process.
    async fn fence(
        endpoint: &ShmShared,
        server: ServerId,
        compute_server: u16,
    ) -> Result<(), FabricError> {
        let EndpointInner { resources, transport, .. } = &**endpoint;
        if server.index() >= transport.reaches.len() {
            return Err(FabricError::NoSuchServer(server));
        }
        let process = &transport.process;
        let deadline_ns = resources.now_ns().saturating_add(resources.settings.timeout_ns);
        let request = process.ask_fence(server, compute_server);
        let request = request.ok_or_else(|| count_lost(resources, server))?;
        let mut armed = false;
        let outcome = poll_fn(|context| {
            resources.close_batch();
            if let Some(outcome) = process.fence_outcome(request, context.waker()) {
                return Poll::Ready(outcome);
            }
            if resources.now_ns() >= deadline_ns {
                return Poll::Ready(Err(Uncertainty::TimedOut));
            }
            if !std::mem::replace(&mut armed, true) {
                resources.timers.wake_at(deadline_ns, context.waker().clone());
            }
            Poll::Pending
        })
        .await;
        process.forget_fence(request);
        outcome.map_err(|why| {
            resources.counters.count_indeterminate();
            FabricError::Indeterminate { server, why }
        })
    }
}
