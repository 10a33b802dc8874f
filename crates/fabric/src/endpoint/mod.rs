//! Endpoints: what every provider that reaches servers over a connection has in common, and what a
//! transport adds.
//!
//! An [`Endpoint`] has slots for posted operations, ids, deadlines, doorbells, counters and
//! buffers, and implements [`Fabric`] once for all transports. A [`Transport`] carries the
//! operations: over a [`Link`] to each server, which is told what was posted, driven when the
//! thread's tasks all wait, and asked when it must be driven again. [`EndpointDriver`] is the loop
//! of a client thread. `connection.rs` is the life of a connection that is lost and made again,
//! without a socket; [`dial`] gives it one. `docs/decisions/042-one-endpoint.md` has the reasons.
//!
//! *Thread safety*: an endpoint and its driver belong to one thread.

mod connection;
pub mod dial;
mod driver;
mod op;
mod peers;
mod slots;

pub use crate::resources::{Resources, Settings};
pub(crate) use driver::timespec;
pub use driver::{EndpointCluster, EndpointDriver, Looks, Reactor};
pub use op::{HeldRead, NoHeldRead, Op};
pub use peers::{Peers, PeersConfig, ServerStarts, start_on_loopback};
pub use slots::{Body, Slot, Slots};

use crate::access::check_alignment;
use crate::handshake::{Identity, draw_epoch};
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

/// What carries the operations of an endpoint; one value for each endpoint.
pub trait Transport: Debug + Sized + 'static {
    /// What all endpoints of a cluster share.
    type Cluster: Debug + Send + Sync;
    /// Why an endpoint cannot be opened.
    type Error: From<io::Error>;
    /// What a client thread waits for beside sockets.
    type Source: Debug;
    /// How far the transport has come with an operation.
    type Progress: Debug + Default;
    /// A connection to one server.
    type Link: Link<Self>;
    /// A READ that is carried out when its future is polled.
    type HeldRead: HeldRead;

    /// What endpoints of this cluster are like.
    fn settings(cluster: &Self::Cluster) -> Settings;

    /// How their threads wait.
    fn looks(cluster: &Self::Cluster) -> Looks;

    /// What a thread's timers go by.
    fn clock(cluster: &Self::Cluster) -> &crate::clock::Clock;

    /// Opens what a client thread waits for beside sockets, and has `epoll` report it as `token`.
    ///
    /// # Errors
    /// What the operating system says.
    fn source(cluster: &Self::Cluster, epoll: &OwnedFd, token: u64) -> io::Result<Self::Source>;

    /// The token of a link for which the source has something, if there is another.
    fn told(source: &Self::Source) -> Option<u64> {
        let _ = source;
        None
    }

    /// The transport of an endpoint and its links, one for each server; `token` is that of the
    /// first.
    ///
    /// # Errors
    /// Why the endpoint cannot be opened.
    fn open(
        cluster: &Arc<Self::Cluster>,
        reactor: &Reactor<Self>,
        me: Identity,
        token: u64,
    ) -> Result<(Self, Vec<Self::Link>), Self::Error>;

    /// What the transport notes of an operation that is about to be posted.
    ///
    /// # Errors
    /// Why it cannot be posted.
    fn begin(&self, body: &Body) -> Result<Self::Progress, FabricError> {
        let _ = body;
        Ok(Self::Progress::default())
    }

    /// What is said of an operation that ends without a completion.
    fn ended(&self, error: FabricError, slot: &Slot<Self::Progress>) -> FabricError {
        let _ = slot;
        error
    }

    /// Whether the operation's deadline breaks its connection: what comes after it must not be done
    /// without it (F3), or its buffer is still lent.
    fn breaks_off(&self, slot: &Slot<Self::Progress>) -> bool;

    /// Counts the doorbell of a verb.
    #[inline]
    fn ring(resources: &Resources) {
        resources.ring();
    }

    /// READs.
    #[inline]
    fn read(endpoint: &Rc<Inner<Self>>, at: GlobalAddr, into: Buffer) -> Op<Buffer, Self> {
        let bytes = into.bytes();
        endpoint.post_verb(at, bytes, Body::Read { at, into }, Body::into_buffer)
    }

    /// WRITEs.
    #[inline]
    fn write(endpoint: &Rc<Inner<Self>>, at: GlobalAddr, from: Buffer) -> Op<Buffer, Self> {
        let bytes = from.bytes();
        endpoint.post_verb(at, bytes, Body::Write { at, from }, Body::into_buffer)
    }

    /// Compares and swaps.
    #[inline]
    fn compare_swap(
        endpoint: &Rc<Inner<Self>>,
        at: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Op<u64, Self> {
        endpoint.post_verb(at, 8, Body::CompareSwap { at, expected, new }, Body::into_value)
    }

    /// Fetches and adds.
    #[inline]
    fn fetch_add(endpoint: &Rc<Inner<Self>>, at: GlobalAddr, delta: u64) -> Op<u64, Self> {
        endpoint.post_verb(at, 8, Body::FetchAdd { at, delta }, Body::into_value)
    }

    /// [`Fabric::reset`].
    fn reset(
        endpoint: &Rc<Inner<Self>>,
        server: ServerId,
    ) -> impl Future<Output = Result<(), FabricError>>;

    /// [`Fabric::fence`].
    fn fence(
        endpoint: &Rc<Inner<Self>>,
        server: ServerId,
        compute_server: u16,
    ) -> impl Future<Output = Result<(), FabricError>> {
        endpoint.post(server, Body::Fence { compute_server }, |_| ())
    }

    /// The endpoint is dropped: what was posted happens, whether a future waits for it or not (F8).
    fn linger(endpoint: &Inner<Self>) {
        endpoint.drive();
    }
}

/// A connection of an endpoint to one server.
pub trait Link<X: Transport>: Debug {
    /// Whether an operation may be posted; `is_verb` if it is a one-sided one.
    ///
    /// # Errors
    /// Why not.
    fn admit(&mut self, is_verb: bool, slots: &Slots<X::Progress>) -> Result<(), FabricError>;

    /// Takes an operation that was posted.
    fn enqueue(&mut self, id: u64, slots: &mut Slots<X::Progress>, around: &Around<'_, X>);

    /// Goes on without having heard from the socket. Whether anything has come.
    fn drive(&mut self, slots: &mut Slots<X::Progress>, around: &Around<'_, X>) -> bool;

    /// Something has happened on the socket.
    fn visit(&mut self, slots: &mut Slots<X::Progress>, around: &Around<'_, X>);

    /// When it must be driven again, if nothing happens before.
    fn deadline_ns(&self) -> Option<u64>;

    /// The thread is about to block: whether this must be driven once more before it does.
    fn arm(&mut self) -> bool {
        false
    }

    /// The thread's source has something for it.
    fn disarm(&mut self) {}

    /// Whether an endpoint that is dropped should wait for it.
    fn is_busy(&self) -> bool {
        false
    }

    /// Lets go of the buffers of operations that are about to end without a completion.
    fn let_go_of_buffers(&mut self) {}

    /// An operation that was posted here ran into its deadline: the connection ends.
    fn break_off(&mut self, slots: &mut Slots<X::Progress>, around: &Around<'_, X>);
}

/// What surrounds a link.
#[derive(Debug)]
pub struct Around<'a, X: Transport> {
    /// The endpoint's transport.
    pub transport: &'a X,
    /// What the thread waits with.
    pub reactor: &'a Reactor<X>,
    /// The rest of the endpoint.
    pub resources: &'a Resources,
    /// What events of this link are reported as.
    pub token: u64,
    /// The endpoint.
    pub me: Identity,
    /// What time it is.
    pub now_ns: u64,
}

impl<X: Transport> Around<'_, X> {
    /// Ends an operation without a completion.
    pub fn give_up(&self, slots: &mut Slots<X::Progress>, id: u64, error: FabricError) {
        if let Some(slot) = slots.pending(id) {
            let error = self.transport.ended(error, slot);
            slots.end(id, Err(error), self.resources);
        }
    }

    /// Ends all operations towards `server` without a completion.
    pub fn give_up_all(
        &self,
        slots: &mut Slots<X::Progress>,
        server: ServerId,
        error: &FabricError,
    ) {
        for id in slots.pending_at(server) {
            self.give_up(slots, id, error.clone());
        }
    }

    /// Has `socket` reported from now on.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn watch(
        &self,
        socket: &impl std::os::fd::AsFd,
        flags: epoll::EventFlags,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(self.token);
        Ok(epoll::add(&self.reactor.epoll, socket, data, flags)?)
    }

    /// Has `socket`, which is watched, reported for other reasons.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn watch_for(
        &self,
        socket: &impl std::os::fd::AsFd,
        flags: epoll::EventFlags,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(self.token);
        Ok(epoll::modify(&self.reactor.epoll, socket, data, flags)?)
    }
}

/// The outcome of an operation is unknown: its connection is lost.
pub fn lost(server: ServerId) -> FabricError {
    FabricError::Indeterminate { server, why: Uncertainty::ConnectionLost }
}

/// One endpoint of a compute server, over a transport.
#[derive(Debug)]
pub struct Endpoint<X: Transport>(pub(crate) Rc<Inner<X>>);

impl<X: Transport> Clone for Endpoint<X> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

/// What the clones of an endpoint and its operations share.
#[derive(Debug)]
pub struct Inner<X: Transport> {
    // First: links may hold what lends buffers to a device, and buffers may go only after those.
    pub(crate) core: RefCell<Core<X>>,
    /// The endpoint's transport.
    pub transport: X,
    /// The rest of the endpoint.
    pub resources: Resources,
    /// What the thread waits with.
    pub reactor: Rc<Reactor<X>>,
    index: usize,
    me: Identity,
}

#[derive(Debug)]
pub(crate) struct Core<X: Transport> {
    pub(crate) links: Vec<X::Link>,
    pub(crate) slots: Slots<X::Progress>,
    /// No operation has to end before this.
    nearest_deadline_ns: u64,
}

fn token_of(index: usize, link: usize) -> u64 {
    (index as u64) << 16 | link as u64
}

impl<X: Transport> Inner<X> {
    fn new(
        cluster: &Arc<X::Cluster>,
        reactor: &Rc<Reactor<X>>,
        index: usize,
        compute_server: u16,
        number: usize,
    ) -> Result<Self, X::Error> {
        let settings = X::settings(cluster);
        let me = Identity { role: settings.role, number: compute_server, epoch: draw_epoch()? };
        let (transport, links) = X::open(cluster, reactor, me, token_of(index, 0))?;
        let resources = Resources::new(settings, compute_server, number, &reactor.timers);
        let resources = resources.map_err(io::Error::other)?;
        let core = Core { links, slots: Slots::default(), nearest_deadline_ns: u64::MAX };
        let (core, reactor) = (RefCell::new(core), Rc::clone(reactor));
        Ok(Self { core, transport, resources, reactor, index, me })
    }

    #[inline]
    fn around(&self, link: usize, now_ns: u64) -> Around<'_, X> {
        Around {
            transport: &self.transport,
            reactor: &self.reactor,
            resources: &self.resources,
            token: token_of(self.index, link),
            me: self.me,
            now_ns,
        }
    }

    /// Does something with the link to `server`.
    ///
    /// # Errors
    /// [`FabricError::NoSuchServer`].
    pub fn with_link<T>(
        &self,
        server: ServerId,
        act: impl FnOnce(&mut X::Link, &mut Slots<X::Progress>, &Around<'_, X>) -> T,
    ) -> Result<T, FabricError> {
        let core = &mut *self.core.borrow_mut();
        let link = core.links.get_mut(server.index());
        let link = link.ok_or(FabricError::NoSuchServer(server))?;
        let around = self.around(server.index(), self.resources.now_ns());
        Ok(act(link, &mut core.slots, &around))
    }

    /// Something has happened on the socket of a link.
    fn visit(&self, link: u16) {
        let server = ServerId::new(link);
        let _ = self.with_link(server, |link, slots, around| link.visit(slots, around));
    }

    /// The thread's source has something for a link.
    fn disarm(&self, link: u16) {
        let _ = self.with_link(ServerId::new(link), |link, _, _| link.disarm());
    }

    /// Takes what has come, sends what is posted and ends what is overdue. Whether anything has
    /// come, and when it must be called again, if nothing happens before.
    pub fn drive(&self) -> (bool, u64) {
        let core = &mut *self.core.borrow_mut();
        let now_ns = self.resources.now_ns();
        let (mut advanced, mut nearest_ns) = (false, u64::MAX);
        for (index, link) in core.links.iter_mut().enumerate() {
            advanced |= link.drive(&mut core.slots, &self.around(index, now_ns));
            nearest_ns = nearest_ns.min(link.deadline_ns().unwrap_or(u64::MAX));
        }
        if core.nearest_deadline_ns <= now_ns {
            self.expire(core, now_ns);
            advanced = true;
        }
        (advanced, nearest_ns.min(core.nearest_deadline_ns))
    }

    /// The thread is about to block: whether this must be driven once more before it does.
    pub fn arm(&self) -> bool {
        let mut armed = false;
        for link in &mut self.core.borrow_mut().links {
            armed |= link.arm();
        }
        armed
    }

    /// Whether an endpoint that is dropped should wait.
    pub fn is_busy(&self) -> bool {
        self.core.borrow().links.iter().any(Link::is_busy)
    }

    /// Ends the operations whose deadline has come.
    #[cold]
    fn expire(&self, core: &mut Core<X>, now_ns: u64) {
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
        // Before the operations end: their buffers are other tasks' then.
        broken.iter().for_each(|&link| core.links[link].let_go_of_buffers());
        for &(id, server, _) in &due {
            let error = FabricError::Indeterminate { server, why: Uncertainty::TimedOut };
            self.around(server.index(), now_ns).give_up(&mut core.slots, id, error);
        }
        for link in broken {
            core.links[link].break_off(&mut core.slots, &self.around(link, now_ns));
        }
        let deadlines = core.slots.iter_pending().map(|(_, slot)| slot.deadline_ns);
        core.nearest_deadline_ns = deadlines.min().unwrap_or(u64::MAX);
    }

    /// Posts an operation; `finish` takes the value out of it when it has ended.
    fn post<T>(self: &Rc<Self>, server: ServerId, body: Body, finish: fn(Body) -> T) -> Op<T, X> {
        let core = &mut *self.core.borrow_mut();
        let Some(link) = core.links.get_mut(server.index()) else {
            return Op::failed(FabricError::NoSuchServer(server));
        };
        if !matches!(body, Body::Fence { .. })
            && let Err(full) = self.resources.admit()
        {
            return Op::failed(full);
        }
        let admitted = link.admit(body.is_verb(), &core.slots);
        let progress = match admitted.and_then(|()| self.transport.begin(&body)) {
            Ok(progress) => progress,
            Err(error) => {
                if matches!(error, FabricError::Indeterminate { .. }) {
                    self.resources.counters.count_indeterminate();
                }
                return Op::failed(error);
            }
        };
        let now_ns = self.resources.now_ns();
        let deadline_ns = now_ns.saturating_add(self.resources.settings.timeout_ns);
        let id = core.slots.insert(body, progress, server, deadline_ns, &self.resources);
        core.nearest_deadline_ns = core.nearest_deadline_ns.min(deadline_ns);
        link.enqueue(id, &mut core.slots, &self.around(server.index(), now_ns));
        Op::posted(Rc::clone(self), id, finish)
    }

    #[inline]
    fn post_verb<T>(
        self: &Rc<Self>,
        at: GlobalAddr,
        bytes: usize,
        body: Body,
        finish: fn(Body) -> T,
    ) -> Op<T, X> {
        match check_alignment(at, bytes) {
            Ok(()) => self.post(at.server(), body, finish),
            Err(error) => Op::failed(error),
        }
    }
}

impl<X: Transport> Drop for Inner<X> {
    fn drop(&mut self) {
        X::linger(self);
    }
}

impl<X: Transport> Fabric for Endpoint<X> {
    type Op<T: 'static> = Op<T, X>;

    #[inline]
    fn read(&self, at: GlobalAddr, into: Buffer) -> Op<Buffer, X> {
        X::ring(&self.0.resources);
        self.counters().count_read(into.bytes());
        X::read(&self.0, at, into)
    }

    #[inline]
    fn write(&self, at: GlobalAddr, from: Buffer) -> Op<Buffer, X> {
        X::ring(&self.0.resources);
        self.counters().count_write(from.bytes());
        X::write(&self.0, at, from)
    }

    #[inline]
    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Op<u64, X> {
        X::ring(&self.0.resources);
        self.counters().count_atomic();
        X::compare_swap(&self.0, at, expected, new)
    }

    #[inline]
    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> Op<u64, X> {
        X::ring(&self.0.resources);
        self.counters().count_atomic();
        X::fetch_add(&self.0, at, delta)
    }

    fn call(&self, server: ServerId, request: Message) -> Op<Message, X> {
        self.0.resources.ring();
        let bytes = request.len();
        self.counters().count_rpc(bytes);
        if bytes > MAX_MESSAGE_BYTES {
            return Op::failed(FabricError::MessageTooLarge { bytes });
        }
        self.0.post(server, Body::Call(request), Body::into_reply)
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
}
