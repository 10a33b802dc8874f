//! An endpoint over TCP: one connection to each server, many operations in flight on each.
//!
//! Posting only notes what is to be sent. It is sent when the endpoint's tasks all wait, or when it is much.
//!
//! *Thread safety*: one thread.

use super::cluster::Shared;
use super::driver::Reactor;
use super::link::{self, Link};
use super::op::{Body, Slots, TcpOp};
use crate::access::check_alignment;
use crate::handshake::{Identity, draw_epoch};
use crate::sync::Arc;
use crate::{
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
/// With so much to send, in bytes, sending begins while more is posted.
const SEND_AT_BYTES: usize = 64 * 1024;
/// What a frame is taken to need beside its payload, in bytes.
const FRAME_BYTES: usize = 40;

/// One endpoint of a compute server, over TCP.
#[derive(Debug, Clone)]
pub struct TcpFabric {
    pub(super) endpoint: Rc<Endpoint>,
}

#[derive(Debug)]
pub(super) struct Endpoint {
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    index: usize,
    me: Identity,
    pub(super) core: RefCell<Core>,
    counters: Counters,
    batch_open: Cell<bool>,
    buffers: BufferPool,
    rng: RefCell<SmallRng>,
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) slots: Slots,
    links: Vec<Link>,
    /// No operation has to end before this.
    nearest_deadline_ns: u64,
}

impl Endpoint {
    pub(super) fn new(
        shared: &Arc<Shared>,
        reactor: &Rc<Reactor>,
        index: usize,
        compute_server: u16,
        number: usize,
    ) -> io::Result<Self> {
        let config = &shared.config;
        let buffers = BufferPool::new(config.depth, BUFFER_BYTES).map_err(io::Error::other)?;
        let me = Identity { role: config.role, number: compute_server, epoch: draw_epoch()? };
        let servers = 0..u16::try_from(shared.servers()).unwrap_or(ServerId::LIMIT);
        let links = servers.map(|server| Link::new(ServerId::new(server)));
        let core =
            Core { slots: Slots::default(), links: links.collect(), nearest_deadline_ns: u64::MAX };
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
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
        })
    }

    #[inline]
    pub(super) fn close_batch(&self) {
        self.batch_open.set(false);
    }

    #[inline]
    fn around(&self, link: usize, now_ns: u64) -> link::Around<'_> {
        link::Around {
            shared: &self.shared,
            epoll: &self.reactor.epoll,
            token: (self.index as u64) << 16 | link as u64,
            me: self.me,
            counters: &self.counters,
            now_ns,
        }
    }

    /// Something has happened on the socket to a server.
    pub(super) fn visit(&self, link: u16) {
        let core = &mut *self.core.borrow_mut();
        if let Some(found) = core.links.get_mut(usize::from(link)) {
            found.visit(&mut core.slots, &self.around(link.into(), self.reactor.timers.now_ns()));
        }
    }

    /// Sends what is posted and ends what is overdue; when it must be called again, if nothing happens
    /// before.
    pub(super) fn drive(&self) -> u64 {
        let core = &mut *self.core.borrow_mut();
        let now_ns = self.reactor.timers.now_ns();
        let mut nearest_ns = u64::MAX;
        for (index, link) in core.links.iter_mut().enumerate() {
            link.drive(&mut core.slots, &self.around(index, now_ns));
            nearest_ns = nearest_ns.min(link.deadline_ns().unwrap_or(u64::MAX));
        }
        if core.nearest_deadline_ns <= now_ns {
            self.expire(core, now_ns);
        }
        nearest_ns.min(core.nearest_deadline_ns)
    }

    /// Ends the operations whose deadline has come.
    #[cold]
    fn expire(&self, core: &mut Core, now_ns: u64) {
        let is_due = |at_ns: u64| at_ns <= now_ns;
        let due: Vec<_> = core
            .slots
            .iter_pending()
            .filter(|(_, slot)| is_due(slot.deadline_ns))
            .map(|(id, slot)| (id, slot.server, slot.is_sent))
            .collect();
        for &(id, server, _) in &due {
            let error = FabricError::Indeterminate { server, why: Uncertainty::TimedOut };
            let error = link::unless_unsent(error, core.slots.pending(id), &self.shared.config);
            link::end(&mut core.slots, id, Err(error), &self.counters);
        }
        // What comes after an operation must not be done without it (F3).
        for &(_, server, _) in due.iter().filter(|(_, _, is_sent)| !is_sent) {
            let lost = FabricError::Indeterminate { server, why: Uncertainty::ConnectionLost };
            let link = &mut core.links[server.index()];
            link.fail(&mut core.slots, &self.around(server.index(), now_ns), lost);
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
        body: Body,
        bytes: usize,
        finish: fn(Body) -> T,
    ) -> TcpOp<T> {
        let core = &mut *self.core.borrow_mut();
        let depth = self.shared.config.depth;
        let is_control = matches!(body, Body::Fence { .. });
        let Some(link) = core.links.get_mut(server.index()) else {
            return TcpOp::refused(FabricError::NoSuchServer(server));
        };
        if core.slots.taken >= depth && !is_control {
            return TcpOp::refused(FabricError::QueueFull { depth });
        }
        if let Some(dead) = &link.dead {
            return TcpOp::refused(dead.clone());
        }
        let is_verb = !matches!(body, Body::Call(_) | Body::Fence { .. });
        if is_verb && link.keeps_out_verbs(&core.slots) {
            self.counters.count_indeterminate();
            return TcpOp::refused(link.lost());
        }
        let now_ns = self.reactor.timers.now_ns();
        let deadline_ns = now_ns.saturating_add(self.shared.config.timeout_ns);
        let id = core.slots.insert(body, server, deadline_ns, is_control);
        core.nearest_deadline_ns = core.nearest_deadline_ns.min(deadline_ns);
        link.to_send.push_back(id);
        link.unsent_bytes += bytes + FRAME_BYTES;
        if link.unsent_bytes >= SEND_AT_BYTES {
            link.unsent_bytes = 0;
            link.drive(&mut core.slots, &self.around(server.index(), now_ns));
        }
        TcpOp::posted(Rc::clone(self), id, finish)
    }

    #[inline]
    fn post_verb<T>(
        self: &Rc<Self>,
        at: GlobalAddr,
        bytes: usize,
        body: Body,
        finish: fn(Body) -> T,
    ) -> TcpOp<T> {
        if let Err(error) = check_alignment(at, bytes) {
            return TcpOp::refused(error);
        }
        if u32::try_from(bytes).is_err() {
            return TcpOp::refused(FabricError::MessageTooLarge { bytes });
        }
        let sent_bytes = if matches!(body, Body::Write { .. }) { bytes } else { 0 };
        self.post(at.server(), body, sent_bytes, finish)
    }
}

impl Drop for Endpoint {
    /// What was posted happens, whether anybody waits for it or not (F8).
    fn drop(&mut self) {
        self.drive();
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
        Body::Found(value) => value,
        other => unreachable!("an atomic ends with a value, not as {other:?}"),
    }
}

fn reply_of(body: Body) -> Message {
    match body {
        Body::Call(reply) => reply,
        other => unreachable!("a call ends with a reply, not as {other:?}"),
    }
}

impl Fabric for TcpFabric {
    type Op<T: 'static> = TcpOp<T>;

    fn read(&self, at: GlobalAddr, into: Buffer) -> TcpOp<Buffer> {
        self.endpoint.ring();
        let bytes = into.bytes();
        self.endpoint.counters.count_read(bytes);
        self.endpoint.post_verb(at, bytes, Body::Read { at, into }, buffer_of)
    }

    fn write(&self, at: GlobalAddr, from: Buffer) -> TcpOp<Buffer> {
        self.endpoint.ring();
        let bytes = from.bytes();
        self.endpoint.counters.count_write(bytes);
        self.endpoint.post_verb(at, bytes, Body::Write { at, from }, buffer_of)
    }

    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> TcpOp<u64> {
        self.endpoint.ring();
        self.endpoint.counters.count_atomic();
        self.endpoint.post_verb(at, 8, Body::CompareSwap { at, expected, new }, value_of)
    }

    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> TcpOp<u64> {
        self.endpoint.ring();
        self.endpoint.counters.count_atomic();
        self.endpoint.post_verb(at, 8, Body::FetchAdd { at, delta }, value_of)
    }

    fn call(&self, server: ServerId, request: Message) -> TcpOp<Message> {
        self.endpoint.ring();
        let bytes = request.len();
        self.endpoint.counters.count_rpc(bytes);
        if bytes > MAX_MESSAGE_BYTES {
            return TcpOp::refused(FabricError::MessageTooLarge { bytes });
        }
        self.endpoint.post(server, Body::Call(request), bytes, reply_of)
    }

    /// Closes the connection and opens it again: the server lets an endpoint in again only when nothing of
    /// its last connection can take effect any more.
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
            let now_ns = endpoint.reactor.timers.now_ns();
            link.reset(&mut core.slots, &endpoint.around(server.index(), now_ns));
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
        self.endpoint.post(server, Body::Fence { compute_server }, 0, |_| ()).await
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
        u16::try_from(self.endpoint.shared.servers()).unwrap_or(ServerId::LIMIT)
    }

    fn compute_server(&self) -> u16 {
        self.endpoint.me.number
    }

    fn depth(&self) -> usize {
        self.endpoint.shared.config.depth
    }
}
