//! Endpoints: the part that all providers with connections to servers share, and the interface to
//! their transports.
//!
//! An [`Endpoint`] has slots for posted operations, ids, deadlines, doorbells, counters and
//! buffers, and implements [`Fabric`] once for all transports. A [`Transport`] carries the
//! operations, over a [`ServerLink`] to each server. A link receives posted operations, is driven
//! when all tasks of the thread wait, and reports when it must be driven again. [`EndpointDriver`]
//! is the loop of a client thread. `connection.rs` has the life cycle of a connection that is lost
//! and reopened, without a socket; [`dial`] adds the socket. `docs/decisions/042-one-endpoint.md`
//! has the reasons.
//!
//! *Thread safety*: an endpoint and its driver belong to one thread.

mod connection;
pub mod dial;
mod driver;
mod op;
mod peers;
mod slots;

pub use crate::resources::{EndpointResources, EndpointSettings};
pub(crate) use driver::run_endpoints;
pub(crate) use driver::timespec;
pub use driver::{ClientReactor, EndpointCluster, EndpointDriver, FOREIGN, PollingPolicy};
pub use op::{DetachedOp, EndpointOp, HeldRead, NoHeldRead};
pub use peers::{Peers, PeersConfig, ServerStarts, start_on_loopback};
pub use slots::{OpSlot, OpSlots};

use crate::access::check_alignment;
use crate::body::OpBody;
use crate::handshake::{PeerIdentity, draw_epoch};
use crate::sync::Arc;
use crate::{
    Buffer, Counters, Fabric, FabricError, GlobalAddr, MAX_MESSAGE_BYTES, Message, ServerId,
    Uncertainty, Work,
};
use rustix::event::epoll;
use std::cell::RefCell;
use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Carries the operations of an endpoint. Each endpoint has its own value.
pub trait Transport: Debug + Sized + 'static {
    /// The state that all endpoints of a cluster share.
    type Cluster: Debug + Send + Sync;
    /// The error of opening an endpoint.
    type Error: From<io::Error> + std::fmt::Display;
    /// A source of events, other than sockets, that a client thread waits for.
    type Source: Debug;
    /// The transport's progress with an operation.
    type Progress: Debug + Default;
    /// A connection to one server.
    type Link: ServerLink<Self>;
    /// A READ that is executed when its future is polled.
    type HeldRead: HeldRead;

    /// Settings of this cluster's endpoints.
    fn settings(cluster: &Self::Cluster) -> EndpointSettings;

    /// How this cluster's client threads poll and wait.
    fn looks(cluster: &Self::Cluster) -> PollingPolicy;

    /// The clock of the thread's timers.
    fn clock(cluster: &Self::Cluster) -> &crate::clock::ClusterClock;

    /// Opens the thread's other source of events, and makes `epoll` report it as `token`.
    ///
    /// # Errors
    /// The operating system's error.
    fn source(cluster: &Self::Cluster, epoll: &OwnedFd, token: u64) -> io::Result<Self::Source>;

    /// The token of the next link with an event from the source, if there is one.
    fn told(source: &Self::Source) -> Option<u64> {
        let _ = source;
        None
    }

    /// Opens an endpoint's transport and its links, one for each server; `token` is that of the
    /// first.
    ///
    /// # Errors
    /// Why the endpoint cannot be opened.
    fn open(
        cluster: &Arc<Self::Cluster>,
        reactor: &ClientReactor<Self>,
        me: PeerIdentity,
        token: u64,
    ) -> Result<(Self, Vec<Self::Link>), Self::Error>;

    /// The transport's initial progress for an operation that is about to be posted.
    ///
    /// # Errors
    /// Why it cannot be posted.
    fn begin(&self, body: &OpBody) -> Result<Self::Progress, FabricError> {
        let _ = body;
        Ok(Self::Progress::default())
    }

    /// The error to report for an operation that ends without a completion.
    fn ended(&self, error: FabricError, slot: &OpSlot<Self::Progress>) -> FabricError {
        let _ = slot;
        error
    }

    /// Whether a timeout of the operation ends its connection, either because later operations must
    /// not take effect without it (F3), or because its buffer is still lent.
    fn breaks_off(&self, slot: &OpSlot<Self::Progress>) -> bool;

    /// Whether a WRITE of several words may stop half-way.
    const TEARS: bool = true;

    /// Counts the doorbell of a verb.
    #[inline]
    fn ring(resources: &EndpointResources) {
        resources.ring();
    }

    /// Posts a READ.
    #[inline]
    fn read(
        endpoint: &Rc<EndpointInner<Self>>,
        at: GlobalAddr,
        into: Buffer,
    ) -> EndpointOp<Buffer, Self> {
        let bytes = into.bytes();
        endpoint.post_verb(at, bytes, OpBody::Read { at, into }, OpBody::into_buffer)
    }

    /// Posts a WRITE.
    #[inline]
    fn write(
        endpoint: &Rc<EndpointInner<Self>>,
        at: GlobalAddr,
        from: Buffer,
    ) -> EndpointOp<Buffer, Self> {
        let bytes = from.bytes();
        endpoint.post_verb(at, bytes, OpBody::Write { at, from }, OpBody::into_buffer)
    }

    /// Posts a CAS.
    #[inline]
    fn compare_swap(
        endpoint: &Rc<EndpointInner<Self>>,
        at: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> EndpointOp<u64, Self> {
        endpoint.post_verb(at, 8, OpBody::CompareSwap { at, expected, new }, OpBody::into_value)
    }

    /// Posts a FETCH-ADD.
    #[inline]
    fn fetch_add(
        endpoint: &Rc<EndpointInner<Self>>,
        at: GlobalAddr,
        delta: u64,
    ) -> EndpointOp<u64, Self> {
        endpoint.post_verb(at, 8, OpBody::FetchAdd { at, delta }, OpBody::into_value)
    }

    /// [`Fabric::reset`].
    fn reset(
        endpoint: &Rc<EndpointInner<Self>>,
        server: ServerId,
    ) -> impl Future<Output = Result<(), FabricError>>;

    /// [`Fabric::fence`].
    fn fence(
        endpoint: &Rc<EndpointInner<Self>>,
        server: ServerId,
        compute_server: u16,
    ) -> impl Future<Output = Result<(), FabricError>> {
        endpoint.post(server, OpBody::Fence { compute_server }, |_| ())
    }

    /// Called when the endpoint is dropped: posted operations take effect, whether or not a future
    /// waits for them (F8).
    fn linger(endpoint: &EndpointInner<Self>) {
        endpoint.drive();
    }
}

/// A connection of an endpoint to one server.
pub trait ServerLink<X: Transport>: Debug {
    /// Checks whether an operation may be posted; `is_verb` if it is one-sided.
    ///
    /// # Errors
    /// Why it may not.
    fn admit(&mut self, is_verb: bool, slots: &OpSlots<X::Progress>) -> Result<(), FabricError>;

    /// Queues a posted operation.
    fn enqueue(&mut self, id: u64, slots: &mut OpSlots<X::Progress>, context: &LinkContext<'_, X>);

    /// Makes progress without a socket event. Returns whether anything has arrived.
    fn drive(&mut self, slots: &mut OpSlots<X::Progress>, context: &LinkContext<'_, X>) -> bool;

    /// Handles an event on the socket.
    fn visit(&mut self, slots: &mut OpSlots<X::Progress>, context: &LinkContext<'_, X>);

    /// When it must be driven again if nothing else happens first.
    fn deadline_ns(&self) -> Option<u64>;

    /// Prepares for blocking the thread. Returns whether the link must be driven once more first.
    fn arm(&mut self) -> bool {
        false
    }

    /// Called when the thread's source has an event for the link.
    fn disarm(&mut self) {}

    /// Whether a dropped endpoint should wait for the link.
    fn is_busy(&self) -> bool {
        false
    }

    /// Releases the buffers of operations that are about to end without a completion.
    fn let_go_of_buffers(&mut self) {}

    /// Ends the connection, because an operation posted on it has timed out.
    fn break_off(&mut self, slots: &mut OpSlots<X::Progress>, context: &LinkContext<'_, X>);
}

/// Everything around a link that it needs.
#[derive(Debug)]
pub struct LinkContext<'a, X: Transport> {
    /// The endpoint's transport.
    pub transport: &'a X,
    /// The thread's reactor.
    pub reactor: &'a ClientReactor<X>,
    /// The rest of the endpoint.
    pub resources: &'a EndpointResources,
    /// The token of this link's events.
    pub token: u64,
    /// Identity of the endpoint.
    pub me: PeerIdentity,
    /// The current time.
    pub now_ns: u64,
}

impl<X: Transport> LinkContext<'_, X> {
    /// Ends an operation without a completion.
    pub fn give_up(&self, slots: &mut OpSlots<X::Progress>, id: u64, error: FabricError) {
        if let Some(slot) = slots.pending(id) {
            let error = self.transport.ended(error, slot);
            slots.end(id, Err(error), self.resources);
        }
    }

    /// Ends all operations on `server` without a completion.
    pub fn give_up_all(
        &self,
        slots: &mut OpSlots<X::Progress>,
        server: ServerId,
        error: &FabricError,
    ) {
        for id in slots.pending_at(server) {
            self.give_up(slots, id, error.clone());
        }
    }

    /// Starts watching `socket`.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn watch(
        &self,
        socket: &impl std::os::fd::AsFd,
        flags: epoll::EventFlags,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(self.token);
        Ok(epoll::add(&self.reactor.epoll, socket, data, flags)?)
    }

    /// Changes the events for which `socket` is watched.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn watch_for(
        &self,
        socket: &impl std::os::fd::AsFd,
        flags: epoll::EventFlags,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(self.token);
        Ok(epoll::modify(&self.reactor.epoll, socket, data, flags)?)
    }
}

/// The error of an operation with unknown outcome, because its connection was lost.
pub fn lost(server: ServerId) -> FabricError {
    FabricError::Indeterminate { server, why: Uncertainty::ConnectionLost }
}

/// One endpoint of a compute server, over a transport.
#[derive(Debug)]
pub struct Endpoint<X: Transport>(pub(crate) Rc<EndpointInner<X>>);

impl<X: Transport> Clone for Endpoint<X> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

/// The state that the clones of an endpoint and its operations share.
#[derive(Debug)]
pub struct EndpointInner<X: Transport> {
    // Declared first, so dropped first: links may hold queue pairs that lend buffers to a device,
    // and these must be gone before the buffers are freed.
    pub(crate) core: RefCell<EndpointCore<X>>,
    /// The endpoint's transport.
    pub transport: X,
    /// The rest of the endpoint.
    pub resources: EndpointResources,
    /// The thread's reactor.
    pub reactor: Rc<ClientReactor<X>>,
    index: usize,
    me: PeerIdentity,
}

#[derive(Debug)]
pub(crate) struct EndpointCore<X: Transport> {
    pub(crate) links: Vec<X::Link>,
    pub(crate) slots: OpSlots<X::Progress>,
    /// A lower bound on the deadlines of all operations.
    nearest_deadline_ns: u64,
}

fn token_of(index: usize, link: usize) -> u64 {
    (index as u64) << 16 | link as u64
}

impl<X: Transport> EndpointInner<X> {
    fn new(
        cluster: &Arc<X::Cluster>,
        reactor: &Rc<ClientReactor<X>>,
        index: usize,
        compute_server: u16,
        number: usize,
    ) -> Result<Self, X::Error> {
        let settings = X::settings(cluster);
        let me = PeerIdentity { role: settings.role, number: compute_server, epoch: draw_epoch()? };
        let (transport, links) = X::open(cluster, reactor, me, token_of(index, 0))?;
        let resources = EndpointResources::new(settings, compute_server, number, &reactor.timers);
        let resources = resources.map_err(io::Error::from)?;
        let core = EndpointCore { links, slots: OpSlots::default(), nearest_deadline_ns: u64::MAX };
        let (core, reactor) = (RefCell::new(core), Rc::clone(reactor));
        Ok(Self { core, transport, resources, reactor, index, me })
    }

    #[inline]
    fn context(&self, link: usize, now_ns: u64) -> LinkContext<'_, X> {
        LinkContext {
            transport: &self.transport,
            reactor: &self.reactor,
            resources: &self.resources,
            token: token_of(self.index, link),
            me: self.me,
            now_ns,
        }
    }

    /// Runs `act` on the link to `server`.
    ///
    /// # Errors
    /// [`FabricError::NoSuchServer`].
    pub fn with_link<T>(
        &self,
        server: ServerId,
        act: impl FnOnce(&mut X::Link, &mut OpSlots<X::Progress>, &LinkContext<'_, X>) -> T,
    ) -> Result<T, FabricError> {
        let core = &mut *self.core.borrow_mut();
        let link = core.links.get_mut(server.index());
        let link = link.ok_or(FabricError::NoSuchServer(server))?;
        let context = self.context(server.index(), self.resources.now_ns());
        Ok(act(link, &mut core.slots, &context))
    }

    /// Handles an event on the socket of a link.
    pub(crate) fn visit(&self, link: u16) {
        let server = ServerId::new(link);
        let _ = self.with_link(server, |link, slots, context| link.visit(slots, context));
    }

    /// Handles an event of the thread's source for a link.
    fn disarm(&self, link: u16) {
        let _ = self.with_link(ServerId::new(link), |link, _, _| link.disarm());
    }

    /// Takes completions, sends posted operations and ends overdue ones. Returns whether anything
    /// has arrived, and when it must be called again if nothing else happens first.
    pub fn drive(&self) -> (bool, u64) {
        let core = &mut *self.core.borrow_mut();
        let now_ns = self.resources.now_ns();
        let (mut advanced, mut nearest_ns) = (false, u64::MAX);
        for (index, link) in core.links.iter_mut().enumerate() {
            advanced |= link.drive(&mut core.slots, &self.context(index, now_ns));
            nearest_ns = nearest_ns.min(link.deadline_ns().unwrap_or(u64::MAX));
        }
        if core.nearest_deadline_ns <= now_ns {
            self.expire(core, now_ns);
            advanced = true;
        }
        (advanced, nearest_ns.min(core.nearest_deadline_ns))
    }

    /// Prepares for blocking the thread. Returns whether the endpoint must be driven once more
    /// first.
    pub fn arm(&self) -> bool {
        let mut armed = false;
        for link in &mut self.core.borrow_mut().links {
            armed |= link.arm();
        }
        armed
    }

    /// Whether a dropped endpoint should wait.
    pub fn is_busy(&self) -> bool {
        self.core.borrow().links.iter().any(ServerLink::is_busy)
    }

    /// Ends the operations that are past their deadlines.
    #[cold]
    fn expire(&self, core: &mut EndpointCore<X>, now_ns: u64) {
        let due: Vec<_> = core
            .slots
            .iter_pending()
            .filter(|(_, slot)| slot.deadline_ns <= now_ns)
            .map(|(id, slot)| (id, slot.server, self.transport.breaks_off(slot)))
            .collect();
        let broken = due.iter().filter(|(_, _, breaks_off)| *breaks_off);
        let mut broken: Vec<_> = broken.map(|(_, server, _)| server.index()).collect();
        broken.sort_unstable();
        broken.dedup();
        // Do this before the operations end, because other tasks may then reuse their buffers.
        broken.iter().for_each(|&link| core.links[link].let_go_of_buffers());
        for &(id, server, _) in &due {
            let error = FabricError::Indeterminate { server, why: Uncertainty::TimedOut };
            self.context(server.index(), now_ns).give_up(&mut core.slots, id, error);
        }
        for link in broken {
            core.links[link].break_off(&mut core.slots, &self.context(link, now_ns));
        }
        let deadlines = core.slots.iter_pending().map(|(_, slot)| slot.deadline_ns);
        core.nearest_deadline_ns = deadlines.min().unwrap_or(u64::MAX);
    }

    /// Posts an operation; `finish` extracts its value when it has ended.
    fn post<T>(
        self: &Rc<Self>,
        server: ServerId,
        body: OpBody,
        finish: fn(OpBody) -> T,
    ) -> EndpointOp<T, X> {
        let core = &mut *self.core.borrow_mut();
        let Some(link) = core.links.get_mut(server.index()) else {
            return EndpointOp::failed(FabricError::NoSuchServer(server));
        };
        if !matches!(body, OpBody::Fence { .. })
            && let Err(full) = self.resources.admit()
        {
            return EndpointOp::failed(full);
        }
        let admitted = link.admit(body.is_verb(), &core.slots);
        let progress = match admitted.and_then(|()| self.transport.begin(&body)) {
            Ok(progress) => progress,
            Err(error) => {
                if matches!(error, FabricError::Indeterminate { .. }) {
                    self.resources.counters.count_indeterminate();
                }
                return EndpointOp::failed(error);
            }
        };
        let now_ns = self.resources.now_ns();
        let deadline_ns = now_ns.saturating_add(self.resources.settings.timeout_ns);
        let id = core.slots.insert(body, progress, server, deadline_ns, &self.resources);
        core.nearest_deadline_ns = core.nearest_deadline_ns.min(deadline_ns);
        link.enqueue(id, &mut core.slots, &self.context(server.index(), now_ns));
        EndpointOp::posted(Rc::clone(self), id, finish)
    }

    #[inline]
    fn post_verb<T>(
        self: &Rc<Self>,
        at: GlobalAddr,
        bytes: usize,
        body: OpBody,
        finish: fn(OpBody) -> T,
    ) -> EndpointOp<T, X> {
        match check_alignment(at, bytes) {
            Ok(()) => self.post(at.server(), body, finish),
            Err(error) => EndpointOp::failed(error),
        }
    }
}

impl<X: Transport> Drop for EndpointInner<X> {
    fn drop(&mut self) {
        X::linger(self);
    }
}

impl<X: Transport> Fabric for Endpoint<X> {
    type Op<T: 'static> = EndpointOp<T, X>;

    #[inline]
    fn read(&self, at: GlobalAddr, into: Buffer) -> EndpointOp<Buffer, X> {
        X::ring(&self.0.resources);
        self.counters().count_read(into.bytes());
        X::read(&self.0, at, into)
    }

    #[inline]
    fn write(&self, at: GlobalAddr, from: Buffer) -> EndpointOp<Buffer, X> {
        X::ring(&self.0.resources);
        self.counters().count_write(from.bytes());
        X::write(&self.0, at, from)
    }

    #[inline]
    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> EndpointOp<u64, X> {
        X::ring(&self.0.resources);
        self.counters().count_atomic();
        X::compare_swap(&self.0, at, expected, new)
    }

    #[inline]
    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> EndpointOp<u64, X> {
        X::ring(&self.0.resources);
        self.counters().count_atomic();
        X::fetch_add(&self.0, at, delta)
    }

    fn call(&self, server: ServerId, request: Message) -> EndpointOp<Message, X> {
        self.0.resources.ring();
        let bytes = request.len();
        self.counters().count_rpc(bytes);
        if bytes > MAX_MESSAGE_BYTES {
            return EndpointOp::failed(FabricError::MessageTooLarge { bytes });
        }
        self.0.post(server, OpBody::Call(request), OpBody::into_reply)
    }

    async fn reset(&self, server: ServerId) -> Result<(), FabricError> {
        X::reset(&self.0, server).await
    }

    async fn fence(&self, server: ServerId, compute_server: u16) -> Result<(), FabricError> {
        X::fence(&self.0, server, compute_server).await
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, FabricError> {
        self.0.resources.buffer(bytes)
    }

    async fn charge(&self, _work: Work) {}

    async fn sleep(&self, ns: u64) {
        self.0.resources.sleep(ns).await;
    }

    fn now_ns(&self) -> u64 {
        self.0.resources.now_ns()
    }

    fn random(&self) -> u64 {
        self.0.resources.random()
    }

    fn unique(&self) -> u64 {
        EndpointResources::unique()
    }

    #[inline]
    fn counters(&self) -> &Counters {
        &self.0.resources.counters
    }

    fn memory_servers(&self) -> u16 {
        self.0.resources.settings.memory_servers
    }

    fn compute_server(&self) -> u16 {
        self.0.resources.compute_server
    }

    #[inline]
    fn depth(&self) -> usize {
        self.0.resources.settings.depth
    }

    #[inline]
    fn tears(&self) -> bool {
        X::TEARS
    }
}
