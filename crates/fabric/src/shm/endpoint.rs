//! An endpoint over shared memory.
//!
//! *Thread safety*: one thread; others only close its gates.

use super::ShmError;
use super::connection::Connection;
use super::driver::Reactor;
use super::op::{Call, PostedRead, ShmOp};
use super::process::Listening;
use crate::access::{check_access, check_alignment};
use crate::handshake::{Identity, Role, draw_epoch};
use crate::region::{copy_words, prefetch};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::{
    Buffer, BufferPool, Counters, Fabric, FabricError, GlobalAddr, MAX_MESSAGE_BYTES, Message,
    ServerId, Uncertainty, Work,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// One endpoint of a compute server, to memory servers that are other processes of this host.
#[derive(Clone, Debug)]
pub struct ShmFabric {
    endpoint: Rc<Endpoint>,
}

#[derive(Debug)]
struct Endpoint {
    process: Arc<Listening>,
    /// By the servers' numbers; those that could not be reached are missing.
    connections: Vec<Option<Rc<Connection>>>,
    in_flight: Rc<InFlight>,
    buffers: BufferPool,
    rng: RefCell<SmallRng>,
    compute_server: u16,
    depth: usize,
}

/// What the operations of an endpoint share.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) reactor: Rc<Reactor>,
    pub(super) count: Cell<usize>,
    /// Whether a call was sent since the last wait: others share its doorbell.
    pub(super) batch_open: Cell<bool>,
    pub(super) counters: Counters,
}

/// The largest scratch buffer.
const BUFFER_BYTES: usize = 4096;

impl ShmFabric {
    pub(super) fn open(
        process: &Arc<Listening>,
        reactor: &Rc<Reactor>,
        compute_server: u16,
        number: usize,
    ) -> Result<Self, ShmError> {
        let me =
            Identity { role: Role::ComputeServer, number: compute_server, epoch: draw_epoch()? };
        let open = |server: ServerId| match Connection::open(process, server, me) {
            Err(ShmError::Gone(_)) => Ok(None),
            Err(error) => Err(error),
            Ok(connection) => {
                let connection = Rc::new(connection);
                reactor.add(&connection)?;
                Ok(Some(connection))
            }
        };
        let connections = (process.servers.iter())
            .map(|server| if process.is_lost(server.id) { Ok(None) } else { open(server.id) })
            .collect::<Result<Vec<_>, ShmError>>()?;
        let seed = process.config.seed ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let endpoint = Endpoint {
            process: Arc::clone(process),
            connections,
            in_flight: Rc::new(InFlight {
                reactor: Rc::clone(reactor),
                count: Cell::new(0),
                batch_open: Cell::new(false),
                counters: Counters::default(),
            }),
            buffers: BufferPool::new(process.config.depth, BUFFER_BYTES)?,
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
            compute_server,
            depth: process.config.depth,
        };
        Ok(Self { endpoint: Rc::new(endpoint) })
    }

    #[inline]
    fn counters_ref(&self) -> &Counters {
        &self.endpoint.in_flight.counters
    }

    #[cold]
    fn lost(&self, server: ServerId) -> FabricError {
        self.counters_ref().count_indeterminate();
        FabricError::Indeterminate { server, why: Uncertainty::ConnectionLost }
    }

    /// The connection to a server, for one operation more.
    #[inline]
    fn reach(&self, server: ServerId) -> Result<&Rc<Connection>, FabricError> {
        let found = self.endpoint.connections.get(server.index());
        let found = found.ok_or(FabricError::NoSuchServer(server))?;
        if self.endpoint.in_flight.count.get() >= self.depth() {
            return Err(FabricError::QueueFull { depth: self.depth() });
        }
        found.as_ref().ok_or_else(|| self.lost(server))
    }

    /// The words that a verb is about, and the way to them.
    #[inline]
    fn memory(
        &self,
        at: GlobalAddr,
        bytes: usize,
    ) -> Result<(&Rc<Connection>, &[AtomicU64]), FabricError> {
        self.counters_ref().count_doorbell();
        check_alignment(at, bytes)?;
        let connection = self.reach(at.server())?;
        Ok((connection, check_access(&connection.region, at, bytes)?))
    }

    /// Does a verb's access.
    #[inline]
    fn verb<T>(
        &self,
        at: GlobalAddr,
        bytes: usize,
        access: impl FnOnce(&[AtomicU64]) -> T,
    ) -> Result<T, FabricError> {
        let (connection, words) = self.memory(at, bytes)?;
        match connection.gate.enter() {
            Some(_inside) => Ok(access(words)),
            None => Err(self.lost(at.server())),
        }
    }
}

impl Fabric for ShmFabric {
    type Op<T: 'static> = ShmOp<T>;

    #[inline]
    fn read(&self, at: GlobalAddr, into: Buffer) -> ShmOp<Buffer> {
        let bytes = into.bytes();
        self.counters_ref().count_read(bytes);
        match self.memory(at, bytes) {
            Ok((connection, words)) => {
                prefetch(words);
                let in_flight = &self.endpoint.in_flight;
                let read = PostedRead::new(into, at.offset(), connection, in_flight);
                ShmOp::read(read, |into| into)
            }
            Err(error) => ShmOp::failed(error),
        }
    }

    #[inline]
    fn write(&self, at: GlobalAddr, from: Buffer) -> ShmOp<Buffer> {
        let bytes = from.bytes();
        self.counters_ref().count_write(bytes);
        match self.verb(at, bytes, |words| copy_words(from.words(), words)) {
            Ok(()) => ShmOp::done(from),
            Err(error) => ShmOp::failed(error),
        }
    }

    #[inline]
    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> ShmOp<u64> {
        self.counters_ref().count_atomic();
        let swap = |words: &[AtomicU64]| {
            words[0]
                .compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found)
        };
        self.verb(at, 8, swap).map_or_else(ShmOp::failed, ShmOp::done)
    }

    #[inline]
    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> ShmOp<u64> {
        self.counters_ref().count_atomic();
        let add = |words: &[AtomicU64]| words[0].fetch_add(delta, Ordering::AcqRel);
        self.verb(at, 8, add).map_or_else(ShmOp::failed, ShmOp::done)
    }

    fn call(&self, server: ServerId, request: Message) -> ShmOp<Message> {
        let in_flight = &self.endpoint.in_flight;
        if !in_flight.batch_open.replace(true) {
            self.counters_ref().count_doorbell();
        }
        let bytes = request.len();
        self.counters_ref().count_rpc(bytes);
        if bytes > MAX_MESSAGE_BYTES {
            return ShmOp::failed(FabricError::MessageTooLarge { bytes });
        }
        let connection = match self.reach(server) {
            Ok(connection) => connection,
            Err(error) => return ShmOp::failed(error),
        };
        match connection.call(request) {
            Err(error) => {
                if matches!(error, FabricError::Indeterminate { .. }) {
                    self.counters_ref().count_indeterminate();
                }
                ShmOp::failed(error)
            }
            Ok((id, slot)) => {
                in_flight.count.set(in_flight.count.get() + 1);
                let deadline_ns =
                    self.now_ns().saturating_add(self.endpoint.process.config.timeout_ns);
                let call = Call {
                    id,
                    slot,
                    connection: Rc::clone(connection),
                    deadline_ns,
                    armed: false,
                    in_flight: Rc::clone(in_flight),
                };
                ShmOp::call(call, |reply| reply)
            }
        }
    }

    /// What changes memory takes effect when it is posted, so there is nothing left to settle but READs that nobody has
    /// looked at. A connection that was lost stays lost: another endpoint has to be opened.
    async fn reset(&self, server: ServerId) -> Result<(), FabricError> {
        let found = self.endpoint.connections.get(server.index());
        let found = found.ok_or(FabricError::NoSuchServer(server))?;
        self.sleep(0).await;
        match found {
            Some(connection) if !connection.gate.is_closed() => {
                connection.resets.set(connection.resets.get() + 1);
                Ok(())
            }
            _ => Err(self.lost(server)),
        }
    }

    async fn fence(&self, server: ServerId, compute_server: u16) -> Result<(), FabricError> {
        if server.index() >= self.endpoint.connections.len() {
            return Err(FabricError::NoSuchServer(server));
        }
        let process = &self.endpoint.process;
        let timers = &self.endpoint.in_flight.reactor.timers;
        let deadline_ns = self.now_ns().saturating_add(process.config.timeout_ns);
        let request = process.ask_fence(server, compute_server).ok_or_else(|| self.lost(server))?;
        let mut armed = false;
        let outcome = poll_fn(|context| {
            self.endpoint.in_flight.batch_open.set(false);
            if let Some(outcome) = process.fence_outcome(request, context.waker()) {
                return Poll::Ready(outcome);
            }
            if self.now_ns() >= deadline_ns {
                return Poll::Ready(Err(Uncertainty::TimedOut));
            }
            if !std::mem::replace(&mut armed, true) {
                timers.wake_at(deadline_ns, context.waker().clone());
            }
            Poll::Pending
        })
        .await;
        process.forget_fence(request);
        outcome.map_err(|why| {
            self.counters_ref().count_indeterminate();
            FabricError::Indeterminate { server, why }
        })
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, FabricError> {
        self.endpoint.buffers.take(bytes).ok_or(FabricError::NoBuffer { bytes })
    }

    async fn charge(&self, _work: Work) {}

    async fn sleep(&self, ns: u64) {
        self.endpoint.in_flight.batch_open.set(false);
        let until_ns = self.now_ns().saturating_add(ns);
        let mut polled = false;
        poll_fn(|context| {
            if polled && self.now_ns() >= until_ns {
                return Poll::Ready(());
            }
            polled = true;
            self.endpoint.in_flight.reactor.timers.wake_at(until_ns, context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn now_ns(&self) -> u64 {
        self.endpoint.in_flight.reactor.timers.now_ns()
    }

    fn random(&self) -> u64 {
        self.endpoint.rng.borrow_mut().next_u64()
    }

    fn counters(&self) -> &Counters {
        self.counters_ref()
    }

    fn memory_servers(&self) -> u16 {
        u16::try_from(self.endpoint.connections.len()).unwrap_or(ServerId::LIMIT)
    }

    fn compute_server(&self) -> u16 {
        self.endpoint.compute_server
    }

    #[inline]
    fn depth(&self) -> usize {
        self.endpoint.depth
    }
}
