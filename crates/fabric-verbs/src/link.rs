//! An endpoint's connection to one server: closed, being brought up, or open.
//!
//! *Invariants*: K1. it is opened when something is to be sent, and by nothing else; each attempt has a deadline, and after one
//! that failed the next waits, twice as long each time up to a bound. K2. when it ends, its queue pair goes first, and then
//! every operation that was posted over it and has not ended, ends. K3. verbs are posted to the device in the order in which
//! they were posted here (F3). K4. a WRITE that was lost with the connection keeps later verbs from going over the next one, until whoever
//! waits for it has learnt of it: nothing that was meant to come after a WRITE comes without it (F3). K5. it opens only to
//! a server of the epoch that the cluster knows. K6. what is outside the server's region is not posted; the device there would
//! refuse it, at the price of the connection.
//!
//! *Thread safety*: an endpoint's thread.

use crate::bring_up::Control;
use crate::cluster::Shared;
use crate::memory::Known;
use crate::objects::{Channel, Operation};
use crate::op::{Body, Slot, Slots};
use crate::piece::{Header, Kind, PIECE_BYTES};
use crate::wire::{Event, Wire};
use farleaf_fabric::handshake::{
    Gather, HandshakeError, HandshakeMessage, Identity, Initiator, InitiatorStep, NO_FENCES, Nonce,
    Refusal, Role, Wanted, draw_epoch,
};
use farleaf_fabric::provider::connect_socket;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Counters, FabricError, MAX_MESSAGE_BYTES, ServerId, Uncertainty};
use rustix::event::epoll;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::task::Waker;

/// How long to wait after the first attempt that failed, and at most, in nanoseconds.
const FIRST_BACKOFF_NS: u64 = 1_000_000;
const LONGEST_BACKOFF_NS: u64 = 200_000_000;

/// What surrounds a link.
#[derive(Debug)]
pub(crate) struct Around<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) epoll: &'a OwnedFd,
    pub(crate) channel: &'a Arc<Channel>,
    /// What events of this link are told by.
    pub(crate) token: u64,
    pub(crate) me: Identity,
    pub(crate) counters: &'a Counters,
    pub(crate) now_ns: u64,
}

#[derive(Debug)]
enum State {
    Closed,
    Connecting {
        socket: TcpStream,
        deadline_ns: u64,
    },
    Handshake {
        socket: TcpStream,
        initiator: Box<Initiator>,
    },
    /// The server has been told of the queue pair.
    Offered {
        socket: TcpStream,
        wire: Box<Wire>,
        deadline_ns: u64,
    },
    Open {
        socket: TcpStream,
        wire: Box<Wire>,
    },
}

#[derive(Debug)]
pub(crate) struct Link {
    server: ServerId,
    address: SocketAddr,
    state: State,
    gather: Gather,
    /// Verbs that are to be posted, in posting order.
    verbs: VecDeque<u64>,
    /// Calls whose requests have not been sent whole, and those whose replies have not been asked for whole.
    calls: VecDeque<u64>,
    asks: VecDeque<u64>,
    /// Fences that are to be sent.
    fences: VecDeque<u64>,
    events: Vec<Event>,
    /// What the next hello says.
    known_fences: u64,
    /// Somebody waits for it to open, though nothing is to be sent.
    wanted: bool,
    /// Attempts that failed in a row, and when the next one may be made.
    failures: u32,
    retry_at_ns: u64,
    /// WRITEs may have been lost that nobody knows of yet (K4).
    is_tainted: bool,
    /// How often it has opened, and how often it could not.
    pub(crate) opened: u64,
    pub(crate) failed: u64,
    pub(crate) last_error: Option<FabricError>,
    /// Why it will never open again.
    pub(crate) dead: Option<FabricError>,
    pub(crate) waiters: Vec<Waker>,
}

impl Link {
    pub(crate) fn new(server: ServerId, address: SocketAddr) -> Self {
        Self {
            server,
            address,
            state: State::Closed,
            gather: Gather::default(),
            verbs: VecDeque::new(),
            calls: VecDeque::new(),
            asks: VecDeque::new(),
            fences: VecDeque::new(),
            events: Vec::new(),
            known_fences: NO_FENCES,
            wanted: false,
            failures: 0,
            retry_at_ns: 0,
            is_tainted: false,
            opened: 0,
            failed: 0,
            last_error: None,
            dead: None,
            waiters: Vec::new(),
        }
    }

    /// Where the id of an operation goes that is to be sent.
    #[inline]
    pub(crate) fn queue(&mut self, body: &Body) -> &mut VecDeque<u64> {
        match body {
            Body::Call(_) => &mut self.calls,
            Body::Fence { .. } => &mut self.fences,
            _ => &mut self.verbs,
        }
    }

    /// Whether a verb must not be posted, because it could come without a WRITE that was to come before it.
    #[inline]
    pub(crate) fn keeps_out_verbs(&mut self, slots: &Slots) -> bool {
        self.is_tainted = self.is_tainted && slots.has_unnoticed_write(self.server);
        self.is_tainted
    }

    pub(crate) fn lost(&self) -> FabricError {
        FabricError::Indeterminate { server: self.server, why: Uncertainty::ConnectionLost }
    }

    /// When it must be looked at again, if nothing happens before.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        match &self.state {
            State::Closed if self.is_wanted() => Some(self.retry_at_ns),
            State::Connecting { deadline_ns, .. } | State::Offered { deadline_ns, .. } => {
                Some(*deadline_ns)
            }
            State::Handshake { initiator, .. } => Some(initiator.deadline_ns()),
            State::Closed | State::Open { .. } => None,
        }
    }

    fn is_wanted(&self) -> bool {
        let queues = [&self.verbs, &self.calls, &self.fences];
        self.wanted || queues.iter().any(|queue| !queue.is_empty())
    }

    /// Goes on without having heard from the socket: opens what is wanted, takes completions, posts what is to be posted.
    /// Whether anything has come.
    #[inline]
    pub(crate) fn drive(
        &mut self,
        slots: &mut Slots,
        known: &mut Known,
        around: &Around<'_>,
    ) -> bool {
        match &self.state {
            State::Closed => {
                if self.is_wanted() && self.retry_at_ns <= around.now_ns {
                    self.connect(slots, around);
                }
                false
            }
            State::Open { .. } => {
                let advanced = self.poll(slots, around);
                self.post(slots, known, around);
                advanced
            }
            State::Connecting { .. } | State::Handshake { .. } | State::Offered { .. } => {
                if self.deadline_ns().is_some_and(|at_ns| at_ns <= around.now_ns) {
                    self.fail(slots, around, self.lost());
                }
                false
            }
        }
    }

    /// Something has happened on the socket.
    pub(crate) fn visit(&mut self, slots: &mut Slots, around: &Around<'_>) {
        match &self.state {
            State::Closed => {}
            State::Connecting { .. } => self.connected(slots, around),
            State::Handshake { .. } | State::Offered { .. } | State::Open { .. } => {
                self.listen(slots, around);
            }
        }
    }

    fn connect(&mut self, slots: &mut Slots, around: &Around<'_>) {
        let deadline_ns = around.now_ns.saturating_add(around.shared.config.connect_timeout_ns);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        let data = epoll::EventData::new_u64(around.token);
        let socket = connect_socket(self.address).and_then(|socket| {
            epoll::add(around.epoll, &socket, data, flags)?;
            Ok(socket)
        });
        match socket {
            Ok(socket) => self.state = State::Connecting { socket, deadline_ns },
            Err(_) => self.fail(slots, around, self.lost()),
        }
    }

    fn connected(&mut self, slots: &mut Slots, around: &Around<'_>) {
        let State::Connecting { socket, deadline_ns } = &self.state else { return };
        let deadline_ns = *deadline_ns;
        if !matches!(socket.take_error(), Ok(None)) {
            return self.fail(slots, around, self.lost());
        }
        if socket.peer_addr().is_err() {
            return; // an event of an earlier socket
        }
        let Ok(nonce) = Nonce::draw() else { return self.fail(slots, around, self.lost()) };
        let wanted = Wanted { role: Role::MemoryServer, number: self.server.number() };
        let (token, fences) = (&around.shared.token, self.known_fences);
        let initiator = Initiator::new(token, around.me, fences, wanted, nonce, deadline_ns);
        let data = epoll::EventData::new_u64(around.token);
        let watched = epoll::modify(around.epoll, socket, data, epoll::EventFlags::IN);
        // A server that is full says so and closes: what it has said can still be read.
        let _ = (&mut &*socket).write_all(initiator.hello());
        let State::Connecting { socket, .. } = std::mem::replace(&mut self.state, State::Closed)
        else {
            return;
        };
        self.gather = Gather::default();
        self.state = State::Handshake { socket, initiator: Box::new(initiator) };
        if watched.is_err() {
            self.fail(slots, around, self.lost());
        }
    }

    /// Takes what the server says over the socket.
    fn listen(&mut self, slots: &mut Slots, around: &Around<'_>) {
        let error = loop {
            let socket = match &mut self.state {
                State::Handshake { socket, .. }
                | State::Offered { socket, .. }
                | State::Open { socket, .. } => socket,
                State::Closed | State::Connecting { .. } => return,
            };
            let message = match socket.read(self.gather.missing()) {
                Ok(0) => break self.lost(),
                Ok(bytes) => self.gather.arrived(bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => break self.lost(),
            };
            let Some(message) = message else { continue };
            let heard = match &self.state {
                State::Handshake { .. } => self.shake_hands(&message, around),
                State::Offered { .. } => self.open(&message, around),
                _ => self.control(&message, slots, around),
            };
            if let Err(error) = heard {
                break error;
            }
        };
        self.fail(slots, around, error);
    }

    fn shake_hands(
        &mut self,
        message: &HandshakeMessage,
        around: &Around<'_>,
    ) -> Result<(), FabricError> {
        let lost = self.lost();
        let State::Handshake { socket, initiator } = &mut self.state else { return Err(lost) };
        match initiator.receive(message, around.now_ns) {
            Ok(InitiatorStep::Send(proof)) => socket.write_all(&proof).map_err(|_| lost),
            Ok(InitiatorStep::Open { peer, fences }) => {
                if !around.shared.is_of_known_epoch(self.server, peer.epoch) {
                    let error = FabricError::Restarted { server: self.server };
                    self.dead = Some(error.clone());
                    return Err(error);
                }
                self.known_fences = fences;
                self.offer(around).map_err(|_| lost)
            }
            // Who has been fenced is told no more than that it is cut off (F10).
            Err(HandshakeError::TimedOut | HandshakeError::Refused(Refusal::Fenced)) => Err(lost),
            Err(why) => Err(FabricError::NotLetIn { server: self.server, why }),
        }
    }

    /// Makes a queue pair and tells the server of it.
    fn offer(&mut self, around: &Around<'_>) -> io::Result<()> {
        let config = &around.shared.config;
        let psn = draw_epoch()? as u32 & 0x00ff_ffff;
        let adapter = &around.shared.adapter;
        let (depth, window) = (config.depth, config.window);
        let wire = Wire::new(adapter, around.channel, around.token, depth, window, psn)?;
        let State::Handshake { mut socket, .. } = std::mem::replace(&mut self.state, State::Closed)
        else {
            return Ok(());
        };
        let deadline_ns = around.now_ns.saturating_add(config.connect_timeout_ns);
        let said = socket.write_all(&Control::Offer(wire.own()).encode());
        self.state = State::Offered { socket, wire: Box::new(wire), deadline_ns };
        said
    }

    fn open(&mut self, message: &HandshakeMessage, around: &Around<'_>) -> Result<(), FabricError> {
        let Some(Control::Answer(peer, lent)) = Control::decode(message) else {
            return Err(self.lost());
        };
        let State::Offered { socket, mut wire, .. } =
            std::mem::replace(&mut self.state, State::Closed)
        else {
            return Err(self.lost());
        };
        let patience = around.shared.config.patience;
        let connected = wire.connect(&around.shared.adapter, peer, lent, patience);
        // If it cannot be, this attempt has failed like one that was refused.
        connected.map_err(|_| self.lost())?;
        self.state = State::Open { socket, wire };
        self.failures = 0;
        self.opened += 1;
        self.wanted = false;
        self.waiters.drain(..).for_each(Waker::wake);
        Ok(())
    }

    fn control(
        &mut self,
        message: &HandshakeMessage,
        slots: &mut Slots,
        around: &Around<'_>,
    ) -> Result<(), FabricError> {
        let Some(Control::Fenced { id }) = Control::decode(message) else {
            return Err(self.lost());
        };
        match slots.pending(id).map(|slot| &slot.body) {
            Some(Body::Fence { .. }) => end(slots, id, Ok(()), around.counters),
            Some(_) => return Err(self.lost()),
            None => {}
        }
        Ok(())
    }

    /// Takes completions; whether there were any.
    fn poll(&mut self, slots: &mut Slots, around: &Around<'_>) -> bool {
        let State::Open { wire, .. } = &mut self.state else { return false };
        let mut events = std::mem::take(&mut self.events);
        let mut polled = wire.poll(&mut events).is_ok();
        let advanced = !events.is_empty() || !polled;
        for event in events.drain(..) {
            match event {
                Event::Done(id) => {
                    if slots.pending(id).is_some() {
                        end(slots, id, Ok(()), around.counters);
                    }
                }
                Event::Message { place, bytes } => {
                    let taken = take_message(wire, place, bytes, slots, &mut self.asks, around);
                    polled &= taken && wire.give_back(place).is_ok();
                }
            }
        }
        self.events = events;
        if !polled {
            self.fail(slots, around, self.lost());
        }
        advanced
    }

    /// Posts what is to be posted, as far as there is room, by one doorbell.
    fn post(&mut self, slots: &mut Slots, known: &mut Known, around: &Around<'_>) {
        let State::Open { socket, wire } = &mut self.state else { return };
        let mut good = true;
        while let Some(id) = self.fences.pop_front() {
            if let Some(Slot { body: Body::Fence { compute_server }, .. }) = slots.pending(id) {
                let compute_server = *compute_server;
                good &= socket.write_all(&Control::Fence { id, compute_server }.encode()).is_ok();
            }
        }
        while wire.has_room() {
            let Some(id) = self.verbs.pop_front() else { break };
            let Some(slot) = slots.pending(id) else { continue };
            if let Err(error) = post_verb(wire, id, &slot.body, known, around.shared) {
                end(slots, id, Err(error), around.counters);
            }
        }
        while wire.has_number() {
            if let Some(&id) = self.asks.front() {
                let call = slots.pending(id).map(|slot| &mut slot.body);
                if let Some(Body::Call(call)) = call
                    && call.asked < call.whole
                {
                    let first = call.asked as u32;
                    let header = Header { first, ..Header::bare(id, Kind::More) };
                    call.asked += (call.whole - call.asked).min(PIECE_BYTES);
                    wire.push_message(&header, &[]);
                } else {
                    self.asks.pop_front();
                }
                continue;
            }
            let Some(&id) = self.calls.front() else { break };
            let call = slots.pending(id).map(|slot| &mut slot.body);
            let Some(Body::Call(call)) = call else {
                self.calls.pop_front();
                continue;
            };
            let header = Header::piece(id, Kind::Request, call.request.len(), call.sent);
            wire.push_message(&header, &call.request);
            call.sent = header.end();
            if call.sent == call.request.len() {
                self.calls.pop_front();
            }
        }
        good &= wire.ring().is_ok();
        if !good {
            self.fail(slots, around, self.lost());
        }
    }

    /// Has the next completion told, if any is to come; whether it was not to be told already, so that one that has come
    /// before must be looked for.
    pub(crate) fn arm(&mut self) -> bool {
        let State::Open { wire, .. } = &mut self.state else { return false };
        wire.is_busy() && wire.arm()
    }

    /// A completion has been told.
    pub(crate) fn disarm(&mut self) {
        if let State::Open { wire, .. } = &mut self.state {
            wire.disarm();
        }
    }

    /// Whether requests are under way.
    pub(crate) fn has_flights(&self) -> bool {
        matches!(&self.state, State::Open { wire, .. } if wire.has_flights())
    }

    /// Closes the connection, takes what has completed, and ends what is left of its operations. The next thing to be
    /// sent, or `wanted`, opens it anew.
    pub(crate) fn reset(&mut self, slots: &mut Slots, known: &mut Known, around: &Around<'_>) {
        self.poll(slots, around);
        self.close(slots, around, self.lost());
        // Who resets knows that what was posted may not have happened.
        self.is_tainted = false;
        self.wanted = self.dead.is_none();
        self.drive(slots, known, around);
    }

    /// Gives the connection up, so that the device lets go of what was lent; what was posted has yet to be ended.
    pub(crate) fn disconnect(&mut self) {
        if matches!(self.state, State::Open { .. }) {
            self.state = State::Closed;
            self.retry_at_ns = 0;
        }
    }

    /// The connection is lost, or cannot be made.
    pub(crate) fn fail(&mut self, slots: &mut Slots, around: &Around<'_>, error: FabricError) {
        if matches!(self.state, State::Open { .. }) {
            self.retry_at_ns = 0;
        } else {
            let backoff_ns = FIRST_BACKOFF_NS << self.failures.min(10);
            self.retry_at_ns = around.now_ns + backoff_ns.min(LONGEST_BACKOFF_NS);
            self.failures += 1;
            self.failed += 1;
            self.wanted = false;
            self.last_error = Some(error.clone());
            self.waiters.drain(..).for_each(Waker::wake);
        }
        self.close(slots, around, error);
    }

    /// Ends the connection and all that was posted over it.
    pub(crate) fn close(&mut self, slots: &mut Slots, around: &Around<'_>, error: FabricError) {
        // The queue pair goes here: only then may buffers be somebody else's.
        self.state = State::Closed;
        self.is_tainted = true;
        for queue in [&mut self.verbs, &mut self.calls, &mut self.asks, &mut self.fences] {
            queue.clear();
        }
        let posted: Vec<u64> = slots
            .iter_pending()
            .filter(|(_, slot)| slot.server == self.server)
            .map(|(id, _)| id)
            .collect();
        for id in posted {
            end(slots, id, Err(error.clone()), around.counters);
        }
    }
}

/// Ends an operation, and counts what is not known of it.
#[inline]
pub(crate) fn end(
    slots: &mut Slots,
    id: u64,
    outcome: Result<(), FabricError>,
    counters: &Counters,
) {
    if matches!(outcome, Err(FabricError::Indeterminate { .. })) {
        counters.count_indeterminate();
    }
    slots.end(id, outcome);
}

/// Adds a verb to the batch, if it is one that can be done.
#[inline]
fn post_verb(
    wire: &mut Wire,
    id: u64,
    body: &Body,
    known: &mut Known,
    shared: &Shared,
) -> Result<(), FabricError> {
    let (at, buffer) = match body {
        Body::Read { at, into: buffer } | Body::Write { at, from: buffer } => (*at, buffer),
        Body::CompareSwap { at, found, .. } | Body::FetchAdd { at, found, .. } => (*at, found),
        other => unreachable!("only verbs are queued as such, not {other:?}"),
    };
    let (bytes, lent) = (buffer.bytes(), wire.lent);
    if at.offset().checked_add(bytes as u64).is_none_or(|end| end > lent.bytes) {
        let region_bytes = usize::try_from(lent.bytes).unwrap_or(usize::MAX);
        return Err(FabricError::OutOfBounds { at, bytes, region_bytes });
    }
    if bytes > shared.adapter.limits.message_bytes {
        return Err(FabricError::MessageTooLarge { bytes });
    }
    let local = known.local(&shared.memory, &shared.adapter, buffer);
    let local = local.map_err(|_| FabricError::NoBuffer { bytes })?;
    let (at, rkey) = (lent.base + at.offset(), lent.rkey);
    let operation = match *body {
        Body::Write { .. } => Operation::Write { at, rkey },
        Body::CompareSwap { expected, new, .. } => {
            Operation::CompareSwap { at, rkey, expected, new }
        }
        Body::FetchAdd { delta, .. } => Operation::FetchAdd { at, rkey, delta },
        _ => Operation::Read { at, rkey },
    };
    wire.push(id, operation, local);
    Ok(())
}

/// Takes a message about a call; `false` if the server does not speak as agreed.
fn take_message(
    wire: &mut Wire,
    place: usize,
    bytes: usize,
    slots: &mut Slots,
    asks: &mut VecDeque<u64>,
    around: &Around<'_>,
) -> bool {
    let Some(header) = wire.places.header(place, bytes) else { return false };
    if !wire.answered() {
        return false;
    }
    let id = header.id;
    // What has ended already is nobody's concern any more.
    let Some(slot) = slots.pending(id) else { return true };
    let server = slot.server;
    let Body::Call(call) = &mut slot.body else { return false };
    let whole = header.whole as usize;
    match header.kind {
        Kind::GoOn => return true,
        Kind::Reply => {
            if call.reply.is_empty() {
                call.whole = whole;
                call.asked = header.end();
                if header.end() < whole {
                    asks.push_back(id);
                }
            }
            let fits = call.whole == whole && call.reply.len() == header.first as usize;
            if !fits || whole > MAX_MESSAGE_BYTES || (header.length == 0 && whole > 0) {
                return false;
            }
            wire.places.append_to(place, &header, &mut call.reply);
            if call.reply.len() < whole {
                return true;
            }
            around.counters.count_rpc_reply(whole);
            end(slots, id, Ok(()), around.counters);
        }
        Kind::TooLarge => {
            let error = FabricError::MessageTooLarge { bytes: whole };
            end(slots, id, Err(error), around.counters);
        }
        Kind::Gone => {
            let why = Uncertainty::NotKnownThere;
            let error = FabricError::Indeterminate { server, why };
            end(slots, id, Err(error), around.counters);
        }
        Kind::Request | Kind::More => return false,
    }
    true
}
