//! The simulated world: the state of all servers, and the path of one operation through it.
//!
//! ```text
//! post ─ Depart ─▶ Arrive ─┬─▶ Effect (one per piece) ──┬─▶ ReplyArrive ─▶ Complete
//!                          └─▶ Enqueue ─▶ core serves ──┘
//! ```
//!
//! Each step occupies the ports and takes the time that the network model defines. At each step, a
//! message can be lost or a server found dead. `Deadline` and `Lost` end an operation without a
//! completion; its remaining events still happen, and may take effect later (contract F7).

use super::config::{LastWords, MAX_PORTS, Outage, SimConfig, Slow};
use super::endpoint::EndpointState;
use super::events::{EventQueue, SimEvent};
use super::network::Nic;
use super::op::SimOpHandle;
use super::sections::Sections;
use super::server::{LateAnswers, SimMemoryServer};
use super::tearing;
use crate::access::check_lent;
use crate::body::OpBody;
use crate::region::Region;
use crate::sync::{Arc, AtomicU64, ObjectArc, Ordering};
use crate::{FabricError, MAX_MESSAGE_BYTES, Message, ServerId, Uncertainty, Work};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The world, shared by everything on its one thread.
pub(super) type SharedWorld = Rc<RefCell<SimWorld>>;

/// How far ahead an endpoint may reserve its port: the time of a few posts. An event for each of
/// them would only slow the simulator down.
const BOOK_AHEAD_NS: u64 = 1_000;

/// The same limit if threads run ahead. They post at different times, and one that reserved its
/// port too early would delay those that post before it.
const BOOK_AHEAD_OF_OTHERS_NS: u64 = 200;

/// The state of a compute server.
#[derive(Debug)]
pub(super) struct SimComputeServer {
    pub(super) alive: bool,
    /// Endpoints up to this number belong to lives that have ended.
    ended: u64,
    pub(super) nic: Nic,
    pub(super) clock: SkewedClock,
    pub(super) sections: Sections,
    /// Number of endpoints opened here.
    pub(super) opened: u64,
}

/// The deviation of a compute server's clock from virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SkewedClock {
    offset_ns: u64,
    /// Drift in parts per million; positive if the clock is fast.
    drift_ppm: i64,
}

impl SkewedClock {
    const MILLION: i128 = 1_000_000;

    fn of(server: u16, config: &SimConfig) -> Self {
        let faults = &config.faults;
        let is_exact = faults.clock_offset_ns == 0 && faults.clock_drift_ppm == 0;
        if is_exact || server >= faults.clocks {
            return Self::default();
        }
        let mut rng =
            SmallRng::seed_from_u64(config.seed ^ u64::from(server).wrapping_mul(0x9e37_79b9));
        let drift = faults.clock_drift_ppm as i64;
        Self {
            offset_ns: rng.random_range(0..=faults.clock_offset_ns),
            drift_ppm: rng.random_range(-drift..=drift),
        }
    }

    /// The clock's reading at `ns` of virtual time.
    pub(super) fn shows(self, ns: u64) -> u64 {
        self.offset_ns + self.lasts(ns, Self::MILLION, Self::MILLION + i128::from(self.drift_ppm))
    }

    /// The virtual time in which the clock advances by `ns`.
    pub(super) fn takes(self, ns: u64) -> u64 {
        self.lasts(ns, Self::MILLION + i128::from(self.drift_ppm), Self::MILLION)
    }

    fn lasts(self, ns: u64, from: i128, to: i128) -> u64 {
        match self.drift_ppm {
            0 => ns,
            _ => u64::try_from(i128::from(ns) * to / from).unwrap_or(u64::MAX),
        }
    }
}

/// Compute servers that die together at one of their WRITEs.
#[derive(Debug)]
pub(super) struct ScheduledKill {
    pub(super) servers: Vec<u16>,
    /// Number of WRITEs that they may still post before their death.
    pub(super) writes_left: u64,
    pub(super) last_words: LastWords,
}

#[derive(Debug)]
pub(super) struct SimWorld {
    pub(super) config: SimConfig,
    pub(super) events: EventQueue,
    rng: SmallRng,
    pub(super) compute: Vec<SimComputeServer>,
    pub(super) memory: Vec<SimMemoryServer>,
    /// Executor groups of servers that have died since the executor last asked.
    pub(super) died: Vec<TaskGroup>,
    late: ObjectArc<LateAnswers>,
    pub(super) endpoints: u64,
    /// Number of unique numbers handed out.
    pub(super) unique: u64,
    pub(super) scheduled_kill: Option<ScheduledKill>,
    /// What happens to dead compute servers' messages in flight.
    last_words: LastWords,
    give_up_at_ns: u64,
    /// By compute and memory server: when the loss of all messages between the two ends.
    bursts: BTreeMap<(u16, u16), u64>,
    /// Whether the last event woke a task.
    woke: bool,
}

/// The executor group of a server's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskGroup {
    Compute(u16),
    Memory(u16),
}

impl TaskGroup {
    /// The group's number in the executor.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Compute(server) => u32::from(server),
            Self::Memory(server) => Self::FIRST_MEMORY + u32::from(server),
        }
    }

    /// Groups from this number on are memory servers.
    pub(super) const FIRST_MEMORY: u32 = 1 << 16;
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorldStep {
    /// An event happened that affected no task.
    Quiet,
    /// A task was woken, or tasks died.
    Woke,
    /// There is no event.
    Empty,
    /// The time limit without progress has passed.
    Overdue,
}

impl SimWorld {
    pub(super) fn new(config: SimConfig, regions: Vec<Option<Arc<Region>>>) -> Self {
        config.faults.check();
        assert!(config.cores_per_memory_server > 0, "cores_per_memory_server must be at least 1");
        assert!(config.yield_ns > 0, "yield_ns must be at least 1");
        let ports = config.network.ports;
        assert!((1..=MAX_PORTS).contains(&ports), "a NIC has 1 to {MAX_PORTS} ports");
        assert!(config.cost.numa_factor > 0, "numa_factor must be at least 1");
        let cores = config.cores_per_memory_server;
        let memory =
            regions.into_iter().map(|region| SimMemoryServer::new(region, cores)).collect();
        let mut events = EventQueue::default();
        for &(server, at_ns) in &config.faults.kill_memory_server_at_ns {
            events.schedule(at_ns, SimEvent::KillMemory(server));
        }
        for &(server, at_ns) in &config.faults.restart_memory_server_at_ns {
            events.schedule(at_ns, SimEvent::RestartMemory(server));
        }
        for &(server, at_ns) in &config.faults.kill_compute_server_at_ns {
            events.schedule(at_ns, SimEvent::KillCompute(server));
        }
        Self {
            rng: SmallRng::seed_from_u64(config.seed),
            config,
            events,
            compute: Vec::new(),
            memory,
            died: Vec::new(),
            late: ObjectArc::default(),
            endpoints: 0,
            unique: 0,
            scheduled_kill: None,
            last_words: LastWords::default(),
            give_up_at_ns: u64::MAX,
            bursts: BTreeMap::new(),
            woke: false,
        }
    }

    /// Restarts the time limit without progress.
    pub(super) fn be_patient(&mut self) {
        self.give_up_at_ns = match self.config.give_up_after_ns {
            0 => u64::MAX,
            after_ns => self.events.now_ns().saturating_add(after_ns),
        };
    }

    /// The state of compute server `server`, created on first use.
    pub(super) fn compute_server(&mut self, server: u16) -> &mut SimComputeServer {
        let needed = usize::from(server) + 1;
        while self.compute.len() < needed {
            let clock = SkewedClock::of(self.compute.len() as u16, &self.config);
            self.compute.push(SimComputeServer {
                alive: true,
                ended: 0,
                nic: Nic::default(),
                clock,
                sections: Sections::default(),
                opened: 0,
            });
        }
        &mut self.compute[usize::from(server)]
    }

    /// The duration of `work`. Waits for a latch vary a little; otherwise two threads that spin in
    /// lockstep could collide at the latch forever.
    pub(super) fn work_ns(&mut self, work: Work) -> u64 {
        let ns = self.config.cost.ns(work);
        match work {
            Work::Spin => ns + self.rng.random_range(0..=ns / 4 + 1),
            _ => ns,
        }
    }

    /// Executes the next event.
    pub(super) fn step(&mut self) -> WorldStep {
        self.woke = false;
        if self.events.now_ns() > self.give_up_at_ns {
            return WorldStep::Overdue;
        }
        let Some(event) = self.events.next() else { return WorldStep::Empty };
        let Some(event) = self.unless_paused(event) else { return WorldStep::Quiet };
        match event {
            SimEvent::Wake(place) => {
                self.events.wake(place);
                self.woke = true;
            }
            SimEvent::Depart(op) => {
                op.endpoint.departing.set(op.endpoint.departing.get() - 1);
                self.depart(&op, self.events.now_ns());
            }
            SimEvent::Arrive(op) => self.arrive(op),
            SimEvent::Enqueue(op) => self.enqueue(op),
            SimEvent::Effect(op, piece) => self.effect(&op, piece),
            SimEvent::ReplyArrive(op) => {
                let (cost_ns, now_ns) = (self.reply_ns(&op), self.events.now_ns());
                let sender = usize::from(op.endpoint.compute_server);
                if self.sender_lives(&op.endpoint) {
                    let start_ns = match self.is_local(&op) {
                        true => now_ns,
                        false => {
                            let receive = &mut self.compute[sender].nic.receive;
                            receive.take(now_ns, cost_ns, self.config.network.ports)
                        }
                    };
                    self.events.schedule(start_ns + cost_ns, SimEvent::Complete(op));
                }
            }
            SimEvent::Complete(op) => {
                let reply = op.state.borrow().reply.clone();
                self.end(&op, reply);
            }
            SimEvent::Deadline(op) => {
                let why = Uncertainty::TimedOut;
                self.end(&op, Err(FabricError::Indeterminate { server: op.server, why }));
            }
            SimEvent::Lost(op) => {
                let why = Uncertainty::ConnectionLost;
                self.memory[op.server.index()].notice();
                self.end(&op, Err(FabricError::Indeterminate { server: op.server, why }));
            }
            SimEvent::KillMemory(server) => self.kill_memory_server(server),
            SimEvent::RestartMemory(server) => {
                self.kill_memory_server(server);
                if let Some(restarted) = self.memory.get_mut(usize::from(server)) {
                    restarted.restarted = true;
                }
            }
            SimEvent::KillCompute(server) => self.kill_compute_server(server),
        }
        if self.woke { WorldStep::Woke } else { WorldStep::Quiet }
    }

    /// Postpones an event that a paused compute server can only notice later.
    fn unless_paused(&mut self, event: SimEvent) -> Option<SimEvent> {
        if self.config.faults.pause_compute_server.is_empty() {
            return Some(event);
        }
        let server = match &event {
            SimEvent::Wake(place) => self.events.waits_on(*place),
            SimEvent::Complete(op) | SimEvent::Deadline(op) | SimEvent::Lost(op) => {
                Some(op.endpoint.compute_server)
            }
            _ => None,
        };
        let pauses = &self.config.faults.pause_compute_server;
        let now_ns = self.events.now_ns();
        match server.and_then(|server| Outage::end_of(pauses, server, now_ns)) {
            None => Some(event),
            Some(until_ns) => {
                self.events.schedule(until_ns, event);
                None
            }
        }
    }

    /// Whether a memory server is unreachable now.
    pub(super) fn is_cut_off(&self, server: ServerId) -> bool {
        let cuts = &self.config.faults.cut_memory_server;
        Outage::end_of(cuts, server.number(), self.events.now_ns()).is_some()
    }

    /// Decides whether a message between two servers that is sent now is lost.
    fn is_lost(&mut self, op: &SimOpHandle) -> bool {
        let now_ns = self.events.now_ns();
        let between = (op.endpoint.compute_server, op.server.number());
        if self.happens(self.config.faults.drop_probability) {
            if self.config.faults.drop_burst_ns > 0 {
                let burst_ns = self.rng.random_range(0..=self.config.faults.drop_burst_ns);
                let until_ns = self.bursts.entry(between).or_default();
                *until_ns = (now_ns + burst_ns).max(*until_ns);
            }
            return true;
        }
        self.bursts.get(&between).is_some_and(|until_ns| now_ns < *until_ns)
            || self.is_cut_off(op.server)
    }

    fn sender_lives(&self, endpoint: &EndpointState) -> bool {
        endpoint.number > self.compute[usize::from(endpoint.compute_server)].ended
    }

    /// Counts a WRITE towards a scheduled death of its compute server. Returns whether it is the
    /// last one.
    pub(super) fn is_last_write(&mut self, compute_server: u16) -> bool {
        let Some(scheduled_kill) = &mut self.scheduled_kill else { return false };
        if !scheduled_kill.servers.contains(&compute_server) {
            return false;
        }
        if scheduled_kill.writes_left > 0 {
            scheduled_kill.writes_left -= 1;
            return false;
        }
        true
    }

    /// Kills the compute servers of the scheduled death, whose last WRITE has just been posted.
    pub(super) fn fulfil_doom(&mut self) {
        let Some(scheduled_kill) = self.scheduled_kill.take() else { return };
        self.last_words = scheduled_kill.last_words;
        for server in scheduled_kill.servers {
            self.kill_compute_server(server);
        }
    }

    /// Kills a compute server, if it is alive, and restarts it without its former state.
    pub(super) fn restart_compute_server(&mut self, server: u16) {
        self.kill_compute_server(server);
        self.compute_server(server).alive = true;
    }

    /// Posts `op`; the endpoint's thread sends it at `leave_ns`.
    pub(super) fn post(&mut self, op: Rc<SimOpHandle>, leave_ns: u64) {
        if op.deadline_ns != u64::MAX {
            self.events.schedule(op.deadline_ns, SimEvent::Deadline(Rc::clone(&op)));
        }
        let ahead_ns = leave_ns - self.events.now_ns();
        let book_ahead_ns = match self.config.quantum_ns {
            0 => BOOK_AHEAD_NS,
            _ => BOOK_AHEAD_OF_OTHERS_NS,
        };
        if ahead_ns <= book_ahead_ns && op.endpoint.departing.get() == 0 {
            return self.depart(&op, leave_ns);
        }
        op.endpoint.departing.set(op.endpoint.departing.get() + 1);
        self.events.schedule(leave_ns, SimEvent::Depart(op));
    }

    /// Sends the request through the compute server's port.
    fn depart(&mut self, op: &Rc<SimOpHandle>, at_ns: u64) {
        if !self.sender_lives(&op.endpoint) {
            return;
        }
        let (sent_bytes, is_call, is_write) = {
            let body = &op.state.borrow().body;
            (body.sent_bytes(), body.is_call(), body.is_write())
        };
        let cost_ns = self.config.network.message_ns(sent_bytes);
        let sender = usize::from(op.endpoint.compute_server);
        let is_local = self.is_local(op);
        let start_ns = match is_local {
            true => at_ns,
            false => self.compute[sender].nic.send.take(at_ns, cost_ns, self.config.network.ports),
        };
        let lost = self.is_lost(op);
        let travel_ns = if is_local { 0 } else { self.travel_ns() };
        let mut arrives_ns = start_ns + travel_ns + self.slowed_ns(op, false);
        if self.happens(self.config.faults.late_probability) {
            let late_ns = self.rng.random_range(1..=self.config.faults.max_late_ns.max(1));
            arrives_ns = arrives_ns.max(op.deadline_ns + late_ns);
        }
        if !is_call && !self.is_void(op) {
            let mut connections = op.endpoint.connections.borrow_mut();
            let connection = &mut connections[op.server.index()];
            if at_ns < connection.down_until_ns {
                return;
            }
            if lost && is_write {
                connection.down_until_ns = op.deadline_ns;
            }
            arrives_ns = arrives_ns.max(connection.write_arrives_ns);
            if is_write && !lost {
                connection.write_arrives_ns = arrives_ns;
            }
        }
        if !lost {
            self.events.schedule(arrives_ns, SimEvent::Arrive(Rc::clone(op)));
        }
    }

    /// Receives the request through the memory server's port.
    fn arrive(&mut self, op: Rc<SimOpHandle>) {
        let server = op.server.index();
        if !self.memory[server].alive {
            return self.lose(op);
        }
        if self.is_void(&op) {
            return self.refuse(op);
        }
        let (sent_bytes, is_call, is_write, words) = {
            let body = &op.state.borrow().body;
            (body.sent_bytes(), body.is_call(), body.is_write(), body.words())
        };
        let cost_ns = self.config.network.message_ns(sent_bytes);
        let now_ns = self.events.now_ns();
        let network = &self.config.network;
        let start_ns = match self.is_local(&op) {
            true => now_ns,
            false => self.memory[server].nic.receive.take(now_ns, cost_ns, network.ports),
        };
        let there_ns = start_ns + cost_ns;
        if is_call {
            return self.events.schedule(there_ns, SimEvent::Enqueue(op));
        }
        let write_done_ns = op.endpoint.connections.borrow()[server].write_done_ns;
        let mut first_ns = (there_ns + network.remote_access_ns).max(write_done_ns);
        let turns = (network.atomic_unit_ns, network.atomic_word_ns);
        if turns != (0, 0)
            && let OpBody::CompareSwap { at, .. } | OpBody::FetchAdd { at, .. } =
                op.state.borrow().body
        {
            first_ns = self.memory[server].nic.atomics.take(first_ns, at.offset(), turns);
        }
        let mut last_ns = first_ns;
        if words > 1 && self.happens(self.config.faults.tear_probability) {
            let (piece_of, pieces) = tearing::split(&mut self.rng, words);
            op.state.borrow_mut().pieces = Some((piece_of, pieces));
            let mut moments: [u64; 8] = [0; 8];
            let moments = &mut moments[..usize::from(pieces)];
            let window_ns = self.config.faults.tear_window_ns;
            moments.fill_with(|| first_ns + self.rng.random_range(0..=window_ns));
            moments.sort_unstable();
            for (piece, at_ns) in (0..pieces).zip(moments) {
                last_ns = *at_ns;
                self.events.schedule(last_ns, SimEvent::Effect(Rc::clone(&op), piece));
            }
        } else {
            self.events.schedule(first_ns, SimEvent::Effect(Rc::clone(&op), 0));
        }
        if is_write {
            op.endpoint.connections.borrow_mut()[server].write_done_ns = last_ns;
        }
    }

    /// Executes a piece of a verb; after the last one, sends the reply.
    fn effect(&mut self, op: &Rc<SimOpHandle>, piece: u8) {
        let pieces = op.state.borrow().pieces.as_ref().map_or(1, |(_, pieces)| *pieces);
        let is_last = piece + 1 == pieces;
        if !self.memory[op.server.index()].alive {
            return if is_last {
                self.lose(Rc::clone(op))
            };
        }
        if self.is_void(op) {
            return self.refuse(Rc::clone(op));
        }
        if !self.sender_lives(&op.endpoint) && self.is_cut(op) {
            return;
        }
        let mut state = op.state.borrow_mut();
        let state = &mut *state;
        let region = &self.memory[op.server.index()].region;
        let region = region.as_deref();
        match perform(region, &mut state.body, state.pieces.as_ref().map(|p| &*p.0), piece) {
            Ok(()) => {}
            Err(error) => state.reply = Err(error),
        }
        if is_last {
            let bytes = if state.reply.is_ok() { state.body.received_bytes() } else { 0 };
            self.send_reply(op, bytes);
        }
    }

    /// Whether the operation must no longer take effect: its sender has reset the connection (F9),
    /// or is fenced (F10).
    fn is_void(&self, op: &SimOpHandle) -> bool {
        let server = op.server.index();
        let fenced = self.memory[server].fenced.get(&op.endpoint.compute_server);
        if fenced.is_some_and(|newest| op.endpoint.number <= *newest) {
            return true;
        }
        let reset = op.endpoint.connections.borrow()[server].generation != op.generation;
        reset && !op.state.borrow().body.is_call()
    }

    /// Ends an operation that arrives at a server where its endpoint has no connection.
    fn refuse(&mut self, op: Rc<SimOpHandle>) {
        if !op.has_ended() {
            self.events.schedule(self.events.now_ns(), SimEvent::Lost(op));
        }
    }

    /// Decides whether a dead compute server's messages stop here. The decision is random; once
    /// they have stopped, it is permanent.
    fn is_cut(&mut self, op: &SimOpHandle) -> bool {
        let cut = match self.last_words {
            LastWords::Some => self.rng.random_bool(0.5),
            LastWords::None => true,
            LastWords::All => false,
        };
        let connection = &mut op.endpoint.connections.borrow_mut()[op.server.index()];
        connection.cut |= cut;
        connection.cut
    }

    /// Adds the request to the queue for a core.
    fn enqueue(&mut self, op: Rc<SimOpHandle>) {
        if !self.memory[op.server.index()].alive {
            return self.lose(op);
        }
        if self.is_void(&op) {
            return self.refuse(op);
        }
        self.woke = self.memory[op.server.index()].enqueue(op);
    }

    /// Replies to a call that a core has served.
    pub(super) fn reply_to_call(&mut self, op: &Rc<SimOpHandle>, reply: Message) {
        let bytes = reply.len();
        {
            let mut state = op.state.borrow_mut();
            if bytes > MAX_MESSAGE_BYTES {
                state.reply = Err(FabricError::MessageTooLarge { bytes });
                state.body = OpBody::Call(Message::new());
            } else {
                state.body = OpBody::Call(reply);
            }
        }
        self.send_reply(op, if bytes > MAX_MESSAGE_BYTES { 0 } else { bytes });
    }

    /// The sink for the answers to deferred requests.
    pub(super) fn late_answers(&self) -> ObjectArc<LateAnswers> {
        ObjectArc::clone(&self.late)
    }

    /// Sends the answers that tasks have given to deferred requests.
    pub(super) fn take_late_answers(&mut self) {
        for ([server, ticket], reply) in self.late.take() {
            let Some(op) = self.memory[server as usize].take_deferred(ticket) else { continue };
            match reply {
                Some(reply) => self.reply_to_call(&op, reply),
                None => {
                    let why = Uncertainty::ConnectionLost;
                    let unanswered = FabricError::Indeterminate { server: op.server, why };
                    op.state.borrow_mut().reply = Err(unanswered);
                    self.send_reply(&op, 0);
                }
            }
        }
    }

    fn send_reply(&mut self, op: &Rc<SimOpHandle>, payload_bytes: usize) {
        let (network, now_ns) = (&self.config.network, self.events.now_ns());
        let cost_ns = network.message_ns(payload_bytes);
        let is_local = self.is_local(op);
        let start_ns = match is_local {
            true => now_ns,
            false => {
                let send = &mut self.memory[op.server.index()].nic.send;
                send.take(now_ns, cost_ns, network.ports)
            }
        };
        if !self.is_lost(op) {
            let travel_ns = if is_local { 0 } else { self.travel_ns() };
            let arrives_ns = start_ns + travel_ns + self.slowed_ns(op, true);
            self.events.schedule(arrives_ns, SimEvent::ReplyArrive(Rc::clone(op)));
        }
    }

    /// Whether the operation is between a compute server and the memory server on the same machine.
    fn is_local(&self, op: &SimOpHandle) -> bool {
        self.config.network.co_located
            && op.endpoint.compute_server == op.server.number()
            && self.memory[op.server.index()].region.is_some()
    }

    fn reply_ns(&self, op: &SimOpHandle) -> u64 {
        let state = op.state.borrow();
        let bytes = if state.reply.is_ok() { state.body.received_bytes() } else { 0 };
        self.config.network.message_ns(bytes)
    }

    /// Ends the operation for its endpoint, unless it has ended.
    fn end(&mut self, op: &SimOpHandle, result: Result<(), FabricError>) {
        let mut state = op.state.borrow_mut();
        if state.result.is_some() {
            return;
        }
        let endpoint = &op.endpoint;
        endpoint.in_flight.set(endpoint.in_flight.get() - 1);
        match (&result, &state.body) {
            (Ok(()), OpBody::Call(reply)) => endpoint.counters.count_rpc_reply(reply.len()),
            (Err(FabricError::Indeterminate { .. }), _) => endpoint.counters.count_indeterminate(),
            _ => {}
        }
        state.result = Some(result);
        if let Some(waker) = state.waker.take() {
            waker.wake();
            self.woke = true;
        }
    }

    /// Lets the endpoint notice that the memory server is dead.
    fn lose(&mut self, op: Rc<SimOpHandle>) {
        if !op.has_ended() {
            let at_ns = self.events.now_ns() + self.config.faults.detect_death_ns;
            self.events.schedule(at_ns, SimEvent::Lost(op));
        }
    }

    /// Wire time of one message, with random delays.
    pub(super) fn travel_ns(&mut self) -> u64 {
        let mut travel_ns = self.config.network.one_way_ns;
        if self.config.faults.jitter_ns > 0 {
            travel_ns += self.rng.random_range(0..=self.config.faults.jitter_ns);
        }
        if self.happens(self.config.faults.delay_probability) {
            travel_ns += self.rng.random_range(0..=self.config.faults.max_delay_ns);
        }
        travel_ns
    }

    /// The individual delay of an operation's request or reply.
    fn slowed_ns(&mut self, op: &SimOpHandle, reply: bool) -> u64 {
        if self.config.faults.slow.is_empty() {
            return 0;
        }
        let sender = op.endpoint.compute_server;
        let all = self.config.faults.slow.iter();
        let about = all.filter(|slow| slow.is_about(op.verb, sender, reply));
        let draw = |slow: &Slow| match self.rng.random_bool(slow.probability) {
            true => self.rng.random_range(0..=slow.max_ns),
            false => 0,
        };
        about.map(draw).sum()
    }

    /// Draws whether a fault happens. A disabled fault does not consume random numbers.
    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.random_bool(probability)
    }

    pub(super) fn kill_memory_server(&mut self, server: u16) {
        let Some(found) = self.memory.get_mut(usize::from(server)) else { return };
        if !std::mem::replace(&mut found.alive, false) {
            return;
        }
        for op in found.take_requests() {
            self.lose(op);
        }
        self.died.push(TaskGroup::Memory(server));
        self.woke = true;
    }

    pub(super) fn kill_compute_server(&mut self, server: u16) {
        let endpoints = self.endpoints;
        let killed = self.compute_server(server);
        (killed.alive, killed.ended) = (false, endpoints);
        self.died.push(TaskGroup::Compute(server));
        self.woke = true;
    }

    /// Drops everything that holds operations, which breaks the world's reference cycles.
    pub(super) fn clear(&mut self) {
        self.events = EventQueue::default();
        for server in &mut self.memory {
            drop(server.take_requests());
        }
    }
}

/// Executes piece number `piece` of a verb, or the whole verb if `piece_of` is `None`.
fn perform(
    region: Option<&Region>,
    body: &mut OpBody,
    piece_of: Option<&[u8]>,
    piece: u8,
) -> Result<(), FabricError> {
    match *body {
        OpBody::Read { at, ref into } => {
            let memory = check_lent(region, at, into.bytes())?;
            copy_piece(memory, into.words(), piece_of, piece);
        }
        OpBody::Write { at, ref from } => {
            let memory = check_lent(region, at, from.bytes())?;
            copy_piece(from.words(), memory, piece_of, piece);
        }
        OpBody::CompareSwap { at, expected, new } => {
            let word = &check_lent(region, at, 8)?[0];
            let swapped = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
            *body = OpBody::Found(swapped.unwrap_or_else(|found| found));
        }
        OpBody::FetchAdd { at, delta } => {
            let word = &check_lent(region, at, 8)?[0];
            *body = OpBody::Found(word.fetch_add(delta, Ordering::AcqRel));
        }
        OpBody::Found(_) | OpBody::Call(_) | OpBody::Fence { .. } | OpBody::Taken => {}
    }
    Ok(())
}

fn copy_piece(from: &[AtomicU64], to: &[AtomicU64], piece_of: Option<&[u8]>, piece: u8) {
    let Some(piece_of) = piece_of else {
        return crate::region::copy_words(from, to);
    };
    for ((from, to), _) in from.iter().zip(to).zip(piece_of).filter(|(_, of)| **of == piece) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
