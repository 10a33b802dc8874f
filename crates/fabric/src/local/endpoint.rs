//! An endpoint of the local provider.

use super::op::{LocalOp, LocalOpState};
use super::threads::{ReplySlot, ServerThreads};
use super::{LocalConfig, LocalServer};
use crate::access::{check_alignment, check_lent};
use crate::clock::ClusterClock;
use crate::handshake::{PeerIdentity, PeerRole};
use crate::region::{copy_words, prefetch};
use crate::resources::{EndpointResources, EndpointSettings};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::timers::Timers;
use crate::{
    Buffer, Counters, Fabric, FabricError, GlobalAddr, InlineCpu, MAX_MESSAGE_BYTES, Message,
    ServerId, ServiceCall, Uncertainty, Work,
};
use std::cell::Cell;
use std::io;
use std::rc::Rc;

/// The state that all endpoints of a cluster share.
#[derive(Debug)]
pub(super) struct LocalShared {
    pub(super) config: LocalConfig,
    pub(super) servers: Vec<LocalServer>,
    pub(super) clock: ClusterClock,
}

/// One endpoint of a compute server of this process.
#[derive(Clone, Debug)]
pub struct LocalFabric {
    endpoint: Rc<LocalEndpoint>,
}

#[derive(Debug)]
struct LocalEndpoint {
    shared: Arc<LocalShared>,
    resources: Rc<EndpointResources>,
    me: PeerIdentity,
    cpu: InlineCpu,
    /// When the endpoint's link will have sent everything posted so far.
    link_free_ns: Cell<u64>,
    /// Whether completions are delayed until other tasks of the thread have run.
    held_back: bool,
    timed: bool,
}

impl LocalFabric {
    pub(super) fn new(
        shared: Arc<LocalShared>,
        timers: Rc<Timers>,
        compute_server: u16,
        number: usize,
        yield_now: bool,
    ) -> io::Result<Self> {
        let LocalConfig { network_latency_ns, bandwidth_bytes_per_s, .. } = shared.config;
        let LocalConfig { depth, timeout_ns, seed, .. } = shared.config;
        let timed = network_latency_ns > 0 || bandwidth_bytes_per_s > 0;
        let memory_servers = u16::try_from(shared.servers.len()).unwrap_or(ServerId::LIMIT);
        let role = PeerRole::ComputeServer;
        let settings = EndpointSettings { role, memory_servers, depth, timeout_ns, seed };
        let resources = EndpointResources::new(settings, compute_server, number, &timers)?;
        let endpoint = LocalEndpoint {
            resources: Rc::new(resources),
            me: PeerIdentity {
                role: PeerRole::ComputeServer,
                number: compute_server,
                epoch: number as u64,
            },
            cpu: InlineCpu::new(number),
            link_free_ns: Cell::new(0),
            held_back: timed || yield_now,
            timed,
            shared,
        };
        Ok(Self { endpoint: Rc::new(endpoint) })
    }

    fn counters_ref(&self) -> &Counters {
        &self.endpoint.resources.counters
    }

    /// Counts a doorbell if this operation opens a batch.
    #[inline]
    fn ring(&self) {
        if !self.endpoint.resources.batch_open.replace(self.endpoint.held_back) {
            self.counters_ref().count_doorbell();
        }
    }

    #[inline]
    fn server(&self, server: ServerId) -> Result<&LocalServer, FabricError> {
        if server.index() < self.endpoint.shared.servers.len() {
            self.endpoint.resources.admit()?;
        }
        self.reach(server)
    }

    #[inline]
    fn reach(&self, server: ServerId) -> Result<&LocalServer, FabricError> {
        let found = self.endpoint.shared.servers.get(server.index());
        let found = found.ok_or(FabricError::NoSuchServer(server))?;
        if !found.alive.load(Ordering::Acquire) {
            self.counters_ref().count_indeterminate();
            let why = Uncertainty::ConnectionLost;
            return Err(FabricError::Indeterminate { server, why });
        }
        Ok(found)
    }

    /// The words that a verb accesses, checked where the memory is.
    fn memory(&self, at: GlobalAddr, bytes: usize) -> Result<&[AtomicU64], FabricError> {
        check_alignment(at, bytes)?;
        let memory = self.server(at.server())?.memory.as_deref();
        check_lent(memory, at, bytes)
    }

    /// Completion time of an operation with a payload of `bytes`.
    fn due_ns(&self, bytes: usize) -> u64 {
        if !self.endpoint.timed {
            return 0;
        }
        let config = &self.endpoint.shared.config;
        let now = self.now_ns();
        let sending_ns = match config.bandwidth_bytes_per_s {
            0 => 0,
            rate => {
                u64::try_from(bytes as u128 * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX)
            }
        };
        let sent_ns = self.endpoint.link_free_ns.get().max(now).saturating_add(sending_ns);
        self.endpoint.link_free_ns.set(sent_ns);
        sent_ns.saturating_add(config.network_latency_ns)
    }

    /// Completes an executed operation at once, or at the time given by the network model.
    #[inline]
    fn complete<T>(&self, result: Result<T, FabricError>, bytes: usize) -> LocalOp<T> {
        if !self.endpoint.held_back || result.is_err() {
            return LocalOp::ready(result);
        }
        self.hold_back(result, self.due_ns(bytes))
    }

    #[cold]
    fn hold_back<T>(&self, result: Result<T, FabricError>, due_ns: u64) -> LocalOp<T> {
        let endpoint = Rc::clone(&self.endpoint.resources);
        endpoint.enter();
        LocalOp {
            state: LocalOpState::HeldBack { result: Some(result), due_ns, armed: false, endpoint },
        }
    }
}

impl Fabric for LocalFabric {
    type Op<T: 'static> = LocalOp<T>;

    #[inline]
    fn expect(&self, at: GlobalAddr, bytes: usize) {
        if let Ok(words) = self.memory(at, bytes) {
            prefetch(words);
        }
    }

    #[inline(always)]
    fn read(&self, at: GlobalAddr, into: Buffer) -> LocalOp<Buffer> {
        self.ring();
        let bytes = into.bytes();
        self.counters_ref().count_read(bytes);
        let result = self.memory(at, bytes).map(|words| copy_words(words, into.words()));
        self.complete(result.map(|()| into), bytes)
    }

    fn write(&self, at: GlobalAddr, from: Buffer) -> LocalOp<Buffer> {
        self.ring();
        let bytes = from.bytes();
        self.counters_ref().count_write(bytes);
        let result = self.memory(at, bytes).map(|words| copy_words(from.words(), words));
        self.complete(result.map(|()| from), bytes)
    }

    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> LocalOp<u64> {
        self.ring();
        self.counters_ref().count_atomic();
        let result = self.memory(at, 8).map(|words| {
            words[0]
                .compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found)
        });
        self.complete(result, 8)
    }

    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> LocalOp<u64> {
        self.ring();
        self.counters_ref().count_atomic();
        let result = self.memory(at, 8).map(|words| words[0].fetch_add(delta, Ordering::AcqRel));
        self.complete(result, 8)
    }

    #[inline]
    fn call(&self, server: ServerId, request: Message) -> LocalOp<Message> {
        self.ring();
        self.counters_ref().count_rpc(request.len());
        let bytes = request.len();
        if bytes > MAX_MESSAGE_BYTES {
            return LocalOp::ready(Err(FabricError::MessageTooLarge { bytes }));
        }
        let found = match self.server(server) {
            Ok(found) => found,
            Err(error) => return LocalOp::ready(Err(error)),
        };
        if let Some(threads) = &found.threads {
            return self.call_on_thread(server, threads, request);
        }
        let (mut reply, mut later) = (Message::new(), None);
        let LocalEndpoint { cpu, me, .. } = &*self.endpoint;
        let mut defer = || ReplySlot::sink(later.insert(ReplySlot::new(server)));
        found.service.call(cpu, ServiceCall::new(*me, &request, &mut reply, &mut defer));
        if let Some(slot) = later {
            return self.on_server(slot, server, bytes);
        }
        found.service.after_answer(cpu);
        let reply_bytes = reply.len();
        if reply_bytes > MAX_MESSAGE_BYTES {
            return LocalOp::ready(Err(FabricError::MessageTooLarge { bytes: reply_bytes }));
        }
        self.counters_ref().count_rpc_reply(reply_bytes);
        self.complete(Ok(reply), bytes + reply_bytes)
    }

    /// Verbs take effect when they are posted, so nothing needs settling.
    async fn reset(&self, server: ServerId) -> Result<(), FabricError> {
        self.reach(server)?;
        self.sleep(self.endpoint.shared.config.network_latency_ns).await;
        Ok(())
    }

    async fn fence(&self, server: ServerId, _compute_server: u16) -> Result<(), FabricError> {
        self.reset(server).await
    }

    #[inline]
    fn buffer(&self, bytes: usize) -> Result<Buffer, FabricError> {
        self.endpoint.resources.buffer(bytes)
    }

    async fn charge(&self, _work: Work) {}

    async fn sleep(&self, ns: u64) {
        self.endpoint.resources.sleep(ns).await;
    }

    fn now_ns(&self) -> u64 {
        self.endpoint.resources.now_ns()
    }

    fn random(&self) -> u64 {
        self.endpoint.resources.random()
    }

    fn unique(&self) -> u64 {
        EndpointResources::unique()
    }

    fn counters(&self) -> &Counters {
        self.counters_ref()
    }

    fn memory_servers(&self) -> u16 {
        self.endpoint.resources.settings.memory_servers
    }

    fn compute_server(&self) -> u16 {
        self.endpoint.me.number
    }

    fn depth(&self) -> usize {
        self.endpoint.shared.config.depth
    }

    fn tears(&self) -> bool {
        false
    }
}

impl LocalFabric {
    fn call_on_thread(
        &self,
        server: ServerId,
        threads: &ServerThreads,
        request: Message,
    ) -> LocalOp<Message> {
        let bytes = request.len();
        match threads.post(self.endpoint.me, server, request) {
            Some(slot) => self.on_server(slot, server, bytes),
            None => {
                let depth = ServerThreads::depth();
                LocalOp::ready(Err(FabricError::QueueFull { depth }))
            }
        }
    }

    /// A call of `bytes` bytes whose reply will arrive in `slot`.
    fn on_server(&self, slot: Arc<ReplySlot>, server: ServerId, bytes: usize) -> LocalOp<Message> {
        let endpoint = Rc::clone(&self.endpoint.resources);
        endpoint.enter();
        let deadline_ns = self.now_ns().saturating_add(self.endpoint.shared.config.timeout_ns);
        let state = LocalOpState::OnServer {
            slot,
            finish: |reply| reply,
            server,
            not_before_ns: self.due_ns(bytes),
            deadline_ns,
            armed: false,
            endpoint,
        };
        LocalOp { state }
    }
}
