//! Endpoints over RDMA: one connection to each server, with many operations in flight on each.
//!
//! *Thread safety*: one thread.

use crate::cluster::VerbsClusterShared;
use crate::link::ServerQueues;
use crate::memory::KnownRegistrations;
use crate::objects::CompletionChannel;
use farleaf_fabric::any::AnyTransport;
use farleaf_fabric::endpoint::dial::{DialingTransport, DialledLink, reset_link};
use farleaf_fabric::endpoint::{
    ClientReactor, Endpoint, EndpointDriver, EndpointInner, EndpointOp, EndpointSettings,
    NoHeldRead, OpSlot, Peers, PollingPolicy, Transport,
};
use farleaf_fabric::handshake::{PeerIdentity, PeerRole};
use farleaf_fabric::provider::{ClusterClock, OpBody};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{AnyFabric, Buffer, BufferPool, FabricError, Message, ServerId};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Maximum time that a dropped endpoint waits for its posted operations, in nanoseconds: longer
/// than a device retries.
const LINGER_NS: u64 = 5_000_000_000;
/// Length of one wait.
const LINGER_TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The transport: operations executed by RDMA devices.
#[derive(Debug)]
pub struct Verbs {
    pub(crate) shared: Arc<VerbsClusterShared>,
    pub(crate) known: RefCell<KnownRegistrations>,
    /// The destinations of the results of atomics: one word for each operation that may be in
    /// flight.
    words: BufferPool,
}

/// Progress of an operation.
#[derive(Debug, Default)]
pub struct VerbsProgress {
    /// The word where the device puts an atomic's result.
    pub(crate) found: Option<Buffer>,
    /// Number of bytes of a call's request that have been put into messages.
    pub(crate) sent: usize,
    /// The part of its reply that has arrived.
    pub(crate) reply: Message,
    /// Bytes of the reply requested so far, and its total size, known from its first piece.
    pub(crate) asked: usize,
    pub(crate) whole: usize,
}

/// One endpoint of a compute server, over RDMA.
pub type VerbsFabric = Endpoint<Verbs>;

/// A posted operation over RDMA.
pub type VerbsOp<T> = EndpointOp<T, Verbs>;

/// Drives the endpoints of one thread; give it to an [`farleaf_fabric::executor::Executor`].
pub type VerbsDriver = EndpointDriver<Verbs>;

impl AnyTransport for Verbs {
    fn into_any(endpoint: Endpoint<Self>) -> AnyFabric {
        AnyFabric::detached(endpoint)
    }
}

impl Transport for Verbs {
    type Cluster = VerbsClusterShared;
    type Error = io::Error;
    type Source = Arc<CompletionChannel>;
    type Progress = VerbsProgress;
    type Link = DialledLink<ServerQueues>;
    type HeldRead = NoHeldRead;

    fn settings(shared: &VerbsClusterShared) -> EndpointSettings {
        let config = &shared.config;
        EndpointSettings {
            role: PeerRole::ComputeServer,
            memory_servers: shared.peers.count(),
            depth: config.depth,
            timeout_ns: config.timeout_ns,
            seed: config.seed,
        }
    }

    fn looks(shared: &VerbsClusterShared) -> PollingPolicy {
        let before_waiting = shared.config.looks_before_waiting;
        PollingPolicy { before_waiting, in_memory: true, unheard: 1, short_wait_ns: 0 }
    }

    fn clock(shared: &VerbsClusterShared) -> &ClusterClock {
        shared.peers.clock()
    }

    fn source(
        shared: &VerbsClusterShared,
        epoll: &OwnedFd,
        token: u64,
    ) -> io::Result<Arc<CompletionChannel>> {
        let channel = CompletionChannel::new(shared.adapter.context())?;
        let data = epoll::EventData::new_u64(token);
        epoll::add(epoll, &*channel, data, epoll::EventFlags::IN)?;
        Ok(channel)
    }

    fn told(channel: &Arc<CompletionChannel>) -> Option<u64> {
        channel.next_event()
    }

    fn open(
        shared: &Arc<VerbsClusterShared>,
        _: &ClientReactor<Self>,
        _: PeerIdentity,
        _: u64,
    ) -> io::Result<(Self, Vec<DialledLink<ServerQueues>>)> {
        let words = BufferPool::new(shared.config.depth, 8).map_err(io::Error::other)?;
        let link = |server| DialledLink::new(ServerId::new(server), ServerQueues::default());
        let links = (0..shared.peers.count()).map(link).collect();
        Ok((Self { shared: Arc::clone(shared), known: RefCell::default(), words }, links))
    }

    fn begin(&self, body: &OpBody) -> Result<VerbsProgress, FabricError> {
        let mut progress = VerbsProgress::default();
        if let OpBody::CompareSwap { .. } | OpBody::FetchAdd { .. } = body {
            // There is a word for each operation that may be in flight.
            let word = self.words.take(8).ok_or(FabricError::NoBuffer { bytes: 8 })?;
            progress.found = Some(word);
        }
        Ok(progress)
    }

    /// The device may still access a verb's buffer.
    fn breaks_off(&self, slot: &OpSlot<VerbsProgress>) -> bool {
        slot.body.is_verb()
    }

    async fn reset(
        endpoint: &Rc<EndpointInner<Self>>,
        server: ServerId,
    ) -> Result<(), FabricError> {
        reset_link(endpoint, server).await
    }

    /// Gives posted operations time to complete.
    fn linger(endpoint: &EndpointInner<Self>) {
        if std::thread::panicking() {
            return;
        }
        endpoint.drive();
        let until_ns = endpoint.resources.now_ns().saturating_add(LINGER_NS);
        while endpoint.is_busy() && endpoint.resources.now_ns() < until_ns {
            if !endpoint.arm() {
                let mut fds = [PollFd::new(&*endpoint.reactor.source, PollFlags::IN)];
                // An interruption only shortens the wait.
                let _ = poll(&mut fds, Some(&LINGER_TURN));
                endpoint.reactor.take_told();
            }
            endpoint.drive();
        }
    }
}

impl DialingTransport for Verbs {
    fn peers(&self) -> &Peers {
        &self.shared.peers
    }
}
