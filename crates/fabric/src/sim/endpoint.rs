//! An endpoint of the simulator: one thread of a compute server.

use super::config::SimConfig;
use super::events::UntilVirtualTime;
use super::network::SimConnection;
use super::op::{SimOp, SimOpHandle};
use super::world::{SharedWorld, SimWorld, SkewedClock};
use crate::access::check_alignment;
use crate::body::OpBody;
use crate::{
    BUFFER_BYTES, Buffer, BufferPool, Counters, Fabric, FabricError, GlobalAddr, MAX_MESSAGE_BYTES,
    Message, Rule, Section, ServerId, Uncertainty, Work,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The state that an endpoint and its operations share.
#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) counters: Counters,
    pub(super) compute_server: u16,
    /// The socket on which the endpoint's thread runs, of the two of its compute server.
    socket: u64,
    /// Endpoints are numbered from 1 in the order in which they were opened.
    pub(super) number: u64,
    pub(super) in_flight: Cell<usize>,
    /// Number of posted operations that the thread has not sent yet.
    pub(super) departing: Cell<usize>,
    /// By memory server.
    pub(super) connections: RefCell<Vec<SimConnection>>,
    /// Whether something was posted since the last wait: later operations share its doorbell.
    batch_open: Cell<bool>,
    /// When the endpoint's thread becomes free.
    busy_until_ns: Cell<u64>,
}

impl EndpointState {
    pub(super) fn close_batch(&self) {
        self.batch_open.set(false);
    }

    /// Keeps the thread busy for `ns` more, from `now_ns` at the earliest; returns when it is free.
    fn occupy(&self, now_ns: u64, ns: u64) -> u64 {
        let until_ns = self.busy_until_ns.get().max(now_ns) + ns;
        self.busy_until_ns.set(until_ns);
        until_ns
    }

    /// The current time of the endpoint's thread, which may be ahead of virtual time.
    fn local_ns(&self, world: &SimWorld) -> u64 {
        let now_ns = world.events.now_ns();
        match world.config.quantum_ns {
            0 => now_ns,
            _ => self.busy_until_ns.get().max(now_ns),
        }
    }
}

/// One endpoint of a simulated compute server.
#[derive(Clone, Debug)]
pub struct SimFabric {
    world: SharedWorld,
    endpoint: Rc<EndpointState>,
    own: Rc<Own>,
    depth: usize,
    /// The number of the first server that this endpoint sees.
    first: u16,
    memory_servers: u16,
    broken: Option<Rule>,
    tears: bool,
}

#[derive(Debug)]
struct Own {
    buffers: BufferPool,
    rng: RefCell<SmallRng>,
}

impl SimFabric {
    pub(super) fn new(world: &SharedWorld, compute_server: u16) -> Self {
        let (number, servers, opened, config) = {
            let mut world = world.borrow_mut();
            world.endpoints += 1;
            let server = world.compute_server(compute_server);
            server.opened += 1;
            let opened = server.opened;
            (world.endpoints, world.memory.len(), opened, world.config.clone())
        };
        let SimConfig { seed, depth, broken, ref faults, .. } = config;
        let tears = faults.tear_probability > 0.0;
        let buffers =
            BufferPool::new(depth, BUFFER_BYTES).expect("an endpoint's scratch buffers are small");
        let seed = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let endpoint = EndpointState {
            counters: Counters::default(),
            compute_server,
            socket: opened % 2,
            number,
            in_flight: Cell::new(0),
            departing: Cell::new(0),
            connections: RefCell::new(vec![SimConnection::default(); servers]),
            batch_open: Cell::new(false),
            busy_until_ns: Cell::new(0),
        };
        Self {
            world: Rc::clone(world),
            endpoint: Rc::new(endpoint),
            own: Rc::new(Own { buffers, rng: RefCell::new(SmallRng::seed_from_u64(seed)) }),
            depth,
            first: 0,
            memory_servers: u16::try_from(servers).unwrap_or(ServerId::LIMIT),
            broken,
            tears,
        }
    }

    /// The same endpoint, limited to `count` servers from number `first` on, which it numbers from
    /// 0. Meant for calls: an address names a server by its own number.
    #[must_use]
    pub fn limited_to(&self, first: u16, count: u16) -> Self {
        Self { first: self.first + first, memory_servers: count, ..self.clone() }
    }

    /// Opens another endpoint of any compute server, such as for a process that starts during a
    /// run.
    #[must_use]
    pub fn sibling(&self, compute_server: u16) -> Self {
        Self::new(&self.world, compute_server)
    }

    /// The server that this endpoint numbers as `server`.
    fn server(&self, server: ServerId) -> Result<ServerId, FabricError> {
        match server.number() < self.memory_servers {
            true => Ok(ServerId::new(self.first + server.number())),
            false => Err(FabricError::NoSuchServer(server)),
        }
    }

    /// Posts an operation that has passed its checks.
    fn post<T>(&self, server: ServerId, body: OpBody, finish: fn(OpBody) -> T) -> SimOp<T> {
        let endpoint = &self.endpoint;
        let opens_batch = !endpoint.batch_open.replace(true);
        if opens_batch {
            endpoint.counters.count_doorbell();
        }
        let server = match self.admit(server, &body) {
            Ok(server) => server,
            Err(error) => return SimOp::refused(error),
        };
        let mut world = self.world.borrow_mut();
        let now_ns = world.events.now_ns();
        let network = &world.config.network;
        let cost_ns = network.post_ns + if opens_batch { network.doorbell_ns } else { 0 };
        let deadline_ns = match world.config.faults.timeout_ns {
            0 => u64::MAX,
            timeout_ns => endpoint.local_ns(&world) + timeout_ns,
        };
        endpoint.in_flight.set(endpoint.in_flight.get() + 1);
        let leave_ns = endpoint.occupy(now_ns, cost_ns);
        let is_last = body.is_write() && world.is_last_write(endpoint.compute_server);
        let op = SimOpHandle::new(endpoint, server, deadline_ns, body);
        world.post(Rc::clone(&op), leave_ns);
        if is_last {
            // Nothing that the thread does before its next wait has any effect now.
            world.fulfil_doom();
        }
        SimOp::in_flight(op, finish)
    }

    /// Waits for a point in virtual time.
    fn until(&self, at_ns: u64) -> UntilVirtualTime<'_> {
        UntilVirtualTime::new(&self.world, at_ns, Some(self.endpoint.compute_server))
    }

    /// Takes a turn in a critical section of this compute server.
    async fn enter(&self, section: Section) {
        let endpoint = &self.endpoint;
        let (turn, ready_ns) = {
            let world = self.world.borrow();
            let cost = &world.config.cost;
            let turn = (cost.ns(Work::Enter(section)), cost.numa_factor);
            (turn, endpoint.busy_until_ns.get())
        };
        if turn.0 == 0 {
            return;
        }
        if ready_ns > self.world.borrow().events.now_ns() {
            // Threads take turns in the order in which they are ready, in virtual time.
            self.until(ready_ns).await;
        }
        let until_ns = {
            let mut world = self.world.borrow_mut();
            let ready_ns = endpoint.busy_until_ns.get().max(world.events.now_ns());
            let sections = &mut world.compute_server(endpoint.compute_server).sections;
            sections.enter(section, endpoint.socket, ready_ns, turn)
        };
        // The thread spins until its turn comes, so its other tasks wait too.
        endpoint.busy_until_ns.set(until_ns);
        self.until(until_ns).await;
    }

    /// This compute server's clock.
    fn clock(&self) -> SkewedClock {
        self.world.borrow_mut().compute_server(self.endpoint.compute_server).clock
    }

    /// Waits for the travel time of a connection management message.
    async fn travel(&self) {
        let until_ns = {
            let mut world = self.world.borrow_mut();
            world.events.now_ns() + world.travel_ns()
        };
        self.until(until_ns).await;
    }

    /// Asks the memory server's side of the connection to execute `act`, and waits for the answer.
    /// Connection management repeats lost messages, so a server is unreachable only if it is dead
    /// or cut off.
    async fn manage(
        &self,
        server: ServerId,
        act: impl FnOnce(&mut SimWorld),
    ) -> Result<(), FabricError> {
        self.endpoint.close_batch();
        if self.world.borrow().memory[server.index()].known_restarted {
            return Err(FabricError::Restarted { server });
        }
        self.travel().await;
        let noticed_ns = {
            let mut world = self.world.borrow_mut();
            if world.memory[server.index()].alive && !world.is_cut_off(server) {
                act(&mut world);
                None
            } else {
                Some(world.events.now_ns() + world.config.faults.detect_death_ns)
            }
        };
        let Some(noticed_ns) = noticed_ns else {
            self.travel().await;
            return Ok(());
        };
        self.until(noticed_ns).await;
        self.world.borrow_mut().memory[server.index()].notice();
        self.endpoint.counters.count_indeterminate();
        Err(FabricError::Indeterminate { server, why: Uncertainty::ConnectionLost })
    }

    /// Checks for errors that do not need the memory server.
    fn admit(&self, server: ServerId, body: &OpBody) -> Result<ServerId, FabricError> {
        match *body {
            OpBody::Read { at, into: ref buffer } | OpBody::Write { at, from: ref buffer } => {
                check_alignment(at, buffer.bytes())?;
            }
            OpBody::CompareSwap { at, .. } | OpBody::FetchAdd { at, .. } => check_alignment(at, 8)?,
            OpBody::Call(ref request) if request.len() > MAX_MESSAGE_BYTES => {
                return Err(FabricError::MessageTooLarge { bytes: request.len() });
            }
            _ => {}
        }
        let server = self.server(server)?;
        if self.world.borrow().memory[server.index()].known_restarted {
            return Err(FabricError::Restarted { server });
        }
        if self.endpoint.in_flight.get() >= self.depth {
            return Err(FabricError::QueueFull { depth: self.depth });
        }
        Ok(server)
    }
}

/// Work that is being charged, or that costs nothing. Code above the fabric awaits one at each node
/// that it visits, so the case of no cost is decided where it is awaited.
pub(crate) struct Charge<'a>(Option<Remaining<'a>>);

enum Remaining<'a> {
    /// Not polled yet.
    Begins(&'a SimFabric, Work),
    Until(UntilVirtualTime<'a>),
    Entering(Pin<Box<dyn Future<Output = ()> + 'a>>),
}

impl<'a> Charge<'a> {
    /// No cost.
    #[inline(always)]
    pub(crate) fn nothing() -> Self {
        Self(None)
    }

    /// The cost of `work`, which begins when it is first polled.
    pub(crate) fn of(fabric: &'a SimFabric, work: Work) -> Self {
        Self(Some(Remaining::Begins(fabric, work)))
    }
}

impl<'a> Remaining<'a> {
    /// What `work` makes the thread wait for, if anything.
    fn begin(fabric: &'a SimFabric, work: Work) -> Option<Self> {
        if let Work::Enter(section) = work {
            return Some(Self::Entering(Box::pin(fabric.enter(section))));
        }
        let mut world = fabric.world.borrow_mut();
        let ns = world.work_ns(work);
        if ns == 0 {
            return None;
        }
        let now_ns = world.events.now_ns();
        let until_ns = fabric.endpoint.occupy(now_ns, ns);
        // A thread that holds or waits for a latch meanwhile must take turns with other threads.
        let may_run_ahead = matches!(
            work,
            Work::Client | Work::VisitNode | Work::CopyRecords(_) | Work::CopyBytes(_)
        );
        if may_run_ahead && until_ns - now_ns <= world.config.quantum_ns {
            return None;
        }
        drop(world);
        Some(Self::Until(fabric.until(until_ns)))
    }

    #[cold]
    #[inline(never)]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Self::Begins(fabric, work) = self {
            match Self::begin(fabric, *work) {
                Some(remaining) => *self = remaining,
                None => return Poll::Ready(()),
            }
        }
        match self {
            Self::Begins(..) => unreachable!("it has begun"),
            Self::Until(until) => Pin::new(until).poll(context),
            Self::Entering(entering) => entering.as_mut().poll(context),
        }
    }
}

impl Future for Charge<'_> {
    type Output = ();

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.get_mut().0 {
            None => Poll::Ready(()),
            Some(remaining) => remaining.poll(context),
        }
    }
}

impl Fabric for SimFabric {
    type Op<T: 'static> = SimOp<T>;

    fn read(&self, at: GlobalAddr, into: Buffer) -> SimOp<Buffer> {
        self.endpoint.counters.count_read(into.bytes());
        self.post(at.server(), OpBody::Read { at, into }, OpBody::into_buffer)
    }

    fn write(&self, at: GlobalAddr, from: Buffer) -> SimOp<Buffer> {
        self.endpoint.counters.count_write(from.bytes());
        self.post(at.server(), OpBody::Write { at, from }, OpBody::into_buffer)
    }

    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> SimOp<u64> {
        self.endpoint.counters.count_atomic();
        self.post(at.server(), OpBody::CompareSwap { at, expected, new }, OpBody::into_value)
    }

    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> SimOp<u64> {
        self.endpoint.counters.count_atomic();
        self.post(at.server(), OpBody::FetchAdd { at, delta }, OpBody::into_value)
    }

    fn call(&self, server: ServerId, request: Message) -> SimOp<Message> {
        self.endpoint.counters.count_rpc(request.len());
        self.post(server, OpBody::Call(request), OpBody::into_reply)
    }

    async fn reset(&self, server: ServerId) -> Result<(), FabricError> {
        let (server, endpoint) = (self.server(server)?, Rc::clone(&self.endpoint));
        self.manage(server, |_| endpoint.connections.borrow_mut()[server.index()].reset()).await
    }

    async fn fence(&self, server: ServerId, compute_server: u16) -> Result<(), FabricError> {
        let server = self.server(server)?;
        self.manage(server, |world| {
            let newest = world.endpoints;
            world.memory[server.index()].fenced.insert(compute_server, newest);
        })
        .await
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, FabricError> {
        self.own.buffers.take(bytes).ok_or(FabricError::NoBuffer { bytes })
    }

    fn charge(&self, work: Work) -> impl Future<Output = ()> {
        Charge::of(self, work)
    }

    async fn sleep(&self, ns: u64) {
        self.endpoint.close_batch();
        let ns = self.clock().takes(ns);
        let until_ns = {
            let world = self.world.borrow();
            let now_ns = self.endpoint.local_ns(&world);
            match ns {
                // The task continues after the thread has done its other work.
                0 => self.endpoint.busy_until_ns.get().max(now_ns) + world.config.yield_ns,
                _ => now_ns.saturating_add(ns),
            }
        };
        self.until(until_ns).await;
    }

    fn now_ns(&self) -> u64 {
        let now_ns = self.endpoint.local_ns(&self.world.borrow());
        self.clock().shows(now_ns)
    }

    fn random(&self) -> u64 {
        self.own.rng.borrow_mut().next_u64()
    }

    fn unique(&self) -> u64 {
        let mut world = self.world.borrow_mut();
        world.unique += 1;
        // Multiplying by an odd number keeps the numbers apart and spreads them over all bits.
        let spread = world.unique.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        spread ^ spread >> 32
    }

    fn counters(&self) -> &Counters {
        &self.endpoint.counters
    }

    fn memory_servers(&self) -> u16 {
        self.memory_servers
    }

    fn compute_server(&self) -> u16 {
        self.endpoint.compute_server
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn tears(&self) -> bool {
        self.tears
    }

    fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }
}
