//! An endpoint over RDMA: one connection to each server, many operations in flight on each.
//!
//! Posting only notes what is to be done. It goes to the device when the endpoint's tasks all wait: one list, and so one doorbell,
//! for each server.
//!
//! *Thread safety*: one thread.

use crate::cluster::Shared;
use crate::driver::Reactor;
use crate::link::{self, Link};
use crate::memory::Known;
use crate::op::{Body, Call, Slots, VerbsOp};
use farleaf_fabric::handshake::{Identity, Role, draw_epoch};
use farleaf_fabric::provider::check_alignment;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{
    Buffer, BufferPool, Counters, Fabric, FabricError, GlobalAddr, MAX_MESSAGE_BYTES, Message,
    ServerId, Uncertainty, Work,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

/// The largest scratch buffer, in bytes.
const BUFFER_BYTES: usize = 4096;
/// An endpoint that is dropped waits so long for what it has posted, in nanoseconds: longer than a device tries.
const LINGER_NS: u64 = 5_000_000_000;
/// How long it looks at a time.
const LINGER_TURN_NS: u64 = 1_000_000;

/// One endpoint of a compute server, over RDMA.
#[derive(Debug, Clone)]
pub struct VerbsFabric {
    pub(crate) endpoint: Rc<Endpoint>,
}

#[derive(Debug)]
pub(crate) struct Endpoint {
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    index: usize,
    me: Identity,
    pub(crate) core: RefCell<Core>,
    counters: Counters,
    batch_open: Cell<bool>,
    buffers: BufferPool,
    /// What atomics find is left in these: one word for each operation that may be in flight.
    words: BufferPool,
    rng: RefCell<SmallRng>,
}

#[derive(Debug)]
pub(crate) struct Core {
    // First: links hold the queue pairs, and buffers may go only after those.
    links: Vec<Link>,
    pub(crate) slots: Slots,
    known: Known,
    /// No operation has to end before this.
    nearest_deadline_ns: u64,
}

impl Endpoint {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        reactor: &Rc<Reactor>,
        index: usize,
        compute_server: u16,
        number: usize,
    ) -> io::Result<Self> {
        let config = &shared.config;
        let buffers = BufferPool::new(config.depth, BUFFER_BYTES).map_err(io::Error::other)?;
        let words = BufferPool::new(config.depth, 8).map_err(io::Error::other)?;
        let me =
            Identity { role: Role::ComputeServer, number: compute_server, epoch: draw_epoch()? };
        let links = (0..)
            .zip(&shared.addresses)
            .map(|(server, address)| Link::new(ServerId::new(server), *address));
        let core = Core {
            links: links.collect(),
            slots: Slots::default(),
            known: Known::default(),
            nearest_deadline_ns: u64::MAX,
        };
        let seed = config.seed ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(Self {
            shared: Arc::clone(shared),
            reactor: Rc::clone(reactor),
            index,
            me,
            core: RefCell::new(core),
            counters: Counters::default(),
            batch_open: Cell::new(false),
            buffers,
            words,
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
        })
    }

    #[inline]
    pub(crate) fn close_batch(&self) {
        self.batch_open.set(false);
    }

    #[inline]
    fn around(&self, link: usize, now_ns: u64) -> link::Around<'_> {
        link::Around {
            shared: &self.shared,
            epoll: &self.reactor.epoll,
            channel: &self.reactor.channel,
            token: (self.index as u64) << 16 | link as u64,
            me: self.me,
            counters: &self.counters,
            now_ns,
        }
    }

    /// Something has happened on the socket to a server.
    pub(crate) fn visit(&self, link: u16) {
        let core = &mut *self.core.borrow_mut();
        if let Some(found) = core.links.get_mut(usize::from(link)) {
            found.visit(&mut core.slots, &self.around(link.into(), self.reactor.timers.now_ns()));
        }
    }

    /// A completion of a link has been told.
    pub(crate) fn disarm(&self, link: u16) {
        if let Some(found) = self.core.borrow_mut().links.get_mut(usize::from(link)) {
            found.disarm();
        }
    }

    /// Takes what has completed, posts what is to be posted, and ends what is overdue. Whether anything has come, and when it
    /// must be called again, if nothing happens before.
    pub(crate) fn drive(&self) -> (bool, u64) {
        let core = &mut *self.core.borrow_mut();
        let now_ns = self.reactor.timers.now_ns();
        let (mut advanced, mut nearest_ns) = (false, u64::MAX);
        for (index, link) in core.links.iter_mut().enumerate() {
            let around = self.around(index, now_ns);
            advanced |= link.drive(&mut core.slots, &mut core.known, &around);
            nearest_ns = nearest_ns.min(link.deadline_ns().unwrap_or(u64::MAX));
        }
        if core.nearest_deadline_ns <= now_ns {
            self.expire(core, now_ns);
            advanced = true;
        }
        (advanced, nearest_ns.min(core.nearest_deadline_ns))
    }

    /// Has the next completions told; whether some were not to be told already.
    pub(crate) fn arm(&self) -> bool {
        let mut armed = false;
        for link in &mut self.core.borrow_mut().links {
            armed |= link.arm();
        }
        armed
    }

    /// Ends the operations whose deadline has come.
    #[cold]
    fn expire(&self, core: &mut Core, now_ns: u64) {
        let due: Vec<_> = core
            .slots
            .iter_pending()
            .filter(|(_, slot)| slot.deadline_ns <= now_ns)
            .map(|(id, slot)| (id, slot.server, slot.is_verb()))
            .collect();
        // The device may still be about a verb, and what comes after one must not be done without it (F3): its
        // connection goes, before the buffer is somebody else's.
        let verbs = || due.iter().filter(|(_, _, is_verb)| *is_verb);
        verbs().for_each(|(_, server, _)| core.links[server.index()].disconnect());
        for &(id, server, _) in &due {
            let error = FabricError::Indeterminate { server, why: Uncertainty::TimedOut };
            link::end(&mut core.slots, id, Err(error), &self.counters);
        }
        for &(_, server, _) in verbs() {
            let link = &mut core.links[server.index()];
            link.close(&mut core.slots, &self.around(server.index(), now_ns), link.lost());
        }
        let deadlines = core.slots.iter_pending().map(|(_, slot)| slot.deadline_ns);
        core.nearest_deadline_ns = deadlines.min().unwrap_or(u64::MAX);
    }

    /// Counts the doorbell of the batch that this operation opens, if it does.
    #[inline]
    fn ring(&self) {
        if !self.batch_open.replace(true) {
            self.counters.count_doorbell();
        }
    }

    fn post<T>(
        self: &Rc<Self>,
        server: ServerId,
        body: impl FnOnce(&Self) -> Result<Body, FabricError>,
        is_control: bool,
        finish: fn(Body) -> T,
    ) -> VerbsOp<T> {
        let core = &mut *self.core.borrow_mut();
        let depth = self.shared.config.depth;
        let Some(link) = core.links.get_mut(server.index()) else {
            return VerbsOp::refused(FabricError::NoSuchServer(server));
        };
        if core.slots.taken >= depth && !is_control {
            return VerbsOp::refused(FabricError::QueueFull { depth });
        }
        if let Some(dead) = &link.dead {
            return VerbsOp::refused(dead.clone());
        }
        let body = match body(self) {
            Ok(body) => body,
            Err(error) => return VerbsOp::refused(error),
        };
        let is_verb = !matches!(body, Body::Call(_) | Body::Fence { .. });
        if is_verb && link.keeps_out_verbs(&core.slots) {
            self.counters.count_indeterminate();
            return VerbsOp::refused(link.lost());
        }
        let now_ns = self.reactor.timers.now_ns();
        let deadline_ns = now_ns.saturating_add(self.shared.config.timeout_ns);
        core.nearest_deadline_ns = core.nearest_deadline_ns.min(deadline_ns);
        let queue = link.queue(&body);
        let id = core.slots.insert(body, server, deadline_ns, is_control);
        queue.push_back(id);
        VerbsOp::posted(Rc::clone(self), id, finish)
    }

    #[inline]
    fn post_verb<T>(
        self: &Rc<Self>,
        at: GlobalAddr,
        bytes: usize,
        body: impl FnOnce(&Self) -> Result<Body, FabricError>,
        finish: fn(Body) -> T,
    ) -> VerbsOp<T> {
        if let Err(error) = check_alignment(at, bytes) {
            return VerbsOp::refused(error);
        }
        self.post(at.server(), body, false, finish)
    }

    fn word(&self) -> Result<Buffer, FabricError> {
        // There are as many as operations may be in flight.
        self.words.take(8).ok_or(FabricError::NoBuffer { bytes: 8 })
    }
}

impl Drop for Endpoint {
    /// What was posted happens, whether anybody waits for it or not (F8): it is given the time that it needs.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.drive();
        let until_ns = self.reactor.timers.now_ns().saturating_add(LINGER_NS);
        while self.core.borrow().links.iter().any(Link::has_flights)
            && self.reactor.timers.now_ns() < until_ns
        {
            if !self.arm() {
                self.reactor.wait_for_completions(LINGER_TURN_NS);
            }
            self.drive();
        }
    }
}

fn buffer_of(body: Body) -> Buffer {
    match body {
        Body::Read { into: buffer, .. } | Body::Write { from: buffer, .. } => buffer,
        other => unreachable!("a READ or a WRITE ends as one, not as {other:?}"),
    }
}

fn value_of(body: Body) -> u64 {
    match body {
        Body::CompareSwap { found, .. } | Body::FetchAdd { found, .. } => found.get(0),
        other => unreachable!("an atomic ends with a value, not as {other:?}"),
    }
}

fn reply_of(body: Body) -> Message {
    match body {
        Body::Call(call) => call.reply,
        other => unreachable!("a call ends with a reply, not as {other:?}"),
    }
}

impl Fabric for VerbsFabric {
    type Op<T: 'static> = VerbsOp<T>;

    fn read(&self, at: GlobalAddr, into: Buffer) -> VerbsOp<Buffer> {
        self.endpoint.ring();
        let bytes = into.bytes();
        self.endpoint.counters.count_read(bytes);
        self.endpoint.post_verb(at, bytes, |_| Ok(Body::Read { at, into }), buffer_of)
    }

    fn write(&self, at: GlobalAddr, from: Buffer) -> VerbsOp<Buffer> {
        self.endpoint.ring();
        let bytes = from.bytes();
        self.endpoint.counters.count_write(bytes);
        self.endpoint.post_verb(at, bytes, |_| Ok(Body::Write { at, from }), buffer_of)
    }

    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> VerbsOp<u64> {
        self.endpoint.ring();
        self.endpoint.counters.count_atomic();
        let body = |endpoint: &Endpoint| {
            Ok(Body::CompareSwap { at, expected, new, found: endpoint.word()? })
        };
        self.endpoint.post_verb(at, 8, body, value_of)
    }

    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> VerbsOp<u64> {
        self.endpoint.ring();
        self.endpoint.counters.count_atomic();
        let body = |endpoint: &Endpoint| Ok(Body::FetchAdd { at, delta, found: endpoint.word()? });
        self.endpoint.post_verb(at, 8, body, value_of)
    }

    fn call(&self, server: ServerId, request: Message) -> VerbsOp<Message> {
        self.endpoint.ring();
        let bytes = request.len();
        self.endpoint.counters.count_rpc(bytes);
        if bytes > MAX_MESSAGE_BYTES {
            return VerbsOp::refused(FabricError::MessageTooLarge { bytes });
        }
        let body = |_: &Endpoint| Ok(Body::Call(Call { request, ..Call::default() }));
        self.endpoint.post(server, body, false, reply_of)
    }

    /// Destroys the queue pair and connects another: the server lets an endpoint in again only when its own end of the
    /// last connection is gone, and with it everything that was on its way.
    async fn reset(&self, server: ServerId) -> Result<(), FabricError> {
        let endpoint = &*self.endpoint;
        endpoint.close_batch();
        let (opened, failed) = {
            let core = &mut *endpoint.core.borrow_mut();
            let Some(link) = core.links.get_mut(server.index()) else {
                return Err(FabricError::NoSuchServer(server));
            };
            if let Some(dead) = &link.dead {
                return Err(dead.clone());
            }
            let before = (link.opened, link.failed);
            let around = endpoint.around(server.index(), endpoint.reactor.timers.now_ns());
            link.reset(&mut core.slots, &mut core.known, &around);
            before
        };
        poll_fn(|context| {
            let link = &mut endpoint.core.borrow_mut().links[server.index()];
            if link.opened > opened {
                return Poll::Ready(Ok(()));
            }
            if link.failed > failed {
                let lost = FabricError::Indeterminate { server, why: Uncertainty::ConnectionLost };
                return Poll::Ready(Err(link.last_error.clone().unwrap_or(lost)));
            }
            link.waiters.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    async fn fence(&self, server: ServerId, compute_server: u16) -> Result<(), FabricError> {
        let body = |_: &Endpoint| Ok(Body::Fence { compute_server });
        self.endpoint.post(server, body, true, |_| ()).await
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, FabricError> {
        self.endpoint.buffers.take(bytes).ok_or(FabricError::NoBuffer { bytes })
    }

    async fn charge(&self, _work: Work) {}

    async fn sleep(&self, ns: u64) {
        self.endpoint.close_batch();
        let until_ns = self.now_ns().saturating_add(ns);
        let mut polled = false;
        poll_fn(|context| {
            if polled && self.now_ns() >= until_ns {
                return Poll::Ready(());
            }
            polled = true;
            self.endpoint.reactor.timers.wake_at(until_ns, context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn now_ns(&self) -> u64 {
        self.endpoint.reactor.timers.now_ns()
    }

    fn random(&self) -> u64 {
        self.endpoint.rng.borrow_mut().next_u64()
    }

    fn counters(&self) -> &Counters {
        &self.endpoint.counters
    }

    fn memory_servers(&self) -> u16 {
        u16::try_from(self.endpoint.shared.addresses.len()).unwrap_or(ServerId::LIMIT)
    }

    fn compute_server(&self) -> u16 {
        self.endpoint.me.number
    }

    fn depth(&self) -> usize {
        self.endpoint.shared.config.depth
    }
}
