//! An endpoint's connection to one server: closed, being opened, or open.
//!
//! *Invariants*: K1. it is opened when something is to be sent, and by nothing else; each attempt has a deadline,
//! and after one that failed the next waits, twice as long each time up to a bound. K2. when it ends, every operation that was posted
//! over it and has not ended, ends. K3. frames leave in the order in which operations were posted (F3).
//! K4. a WRITE that was lost with the connection keeps later verbs from going over the next one, until whoever waits for it
//! has learnt of it: nothing that was meant to come after a WRITE comes without it (F3). K5. it opens only to a server of the epoch that the cluster knows.
//!
//! *Thread safety*: an endpoint's thread.

use super::cluster::{Shared, TcpConfig};
use super::frame::{Decoded, decode_completion};
use super::op::{Completed, Slot, Slots};
use super::queue::{ByteQueue, Flow};
use crate::handshake::{
    Gather, HandshakeError, Identity, Initiator, InitiatorStep, NO_FENCES, Nonce, Refusal, Role,
    Wanted,
};
use crate::sockets::connect_socket;
use crate::{Counters, FabricError, ServerId, Uncertainty};
use rustix::event::epoll;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::task::Waker;

/// Room for completions that have arrived, and for requests that leave.
const QUEUE_BYTES: usize = 256 * 1024;
/// How long to wait after the first attempt that failed, and at most, in nanoseconds.
const FIRST_BACKOFF_NS: u64 = 1_000_000;
const LONGEST_BACKOFF_NS: u64 = 200_000_000;
/// Receives in one visit, so that a server that never stops sending does not keep the thread.
const RECEIVES: usize = 8;

/// What surrounds a link.
#[derive(Debug)]
pub(super) struct Around<'a> {
    pub(super) shared: &'a Shared,
    pub(super) epoll: &'a OwnedFd,
    /// What events of this link are told by.
    pub(super) token: u64,
    pub(super) me: Identity,
    pub(super) counters: &'a Counters,
    pub(super) now_ns: u64,
}

#[derive(Debug)]
enum State {
    Closed,
    Connecting { socket: TcpStream, deadline_ns: u64 },
    Handshake { socket: TcpStream, initiator: Box<Initiator>, gather: Gather },
    Open { socket: TcpStream },
}

#[derive(Debug)]
pub(super) struct Link {
    server: ServerId,
    state: State,
    /// Made when the link opens first.
    queues: Option<Box<(ByteQueue, ByteQueue)>>,
    /// Operations that have frames to be made, in posting order.
    pub(super) to_send: VecDeque<u64>,
    /// Roughly how much there is to send, in bytes.
    pub(super) unsent_bytes: usize,
    /// What the next hello says.
    fences: u64,
    /// Somebody waits for it to open, though nothing is to be sent.
    wanted: bool,
    /// Attempts that failed in a row, and when the next one may be made.
    failures: u32,
    retry_at_ns: u64,
    /// Whether it waits for the socket to take more.
    is_blocked: bool,
    /// WRITEs may have been lost that nobody knows of yet (K4).
    is_tainted: bool,
    /// How often it has opened, and how often it could not.
    pub(super) opened: u64,
    pub(super) failed: u64,
    pub(super) last_error: Option<FabricError>,
    /// Why it will never open again.
    pub(super) dead: Option<FabricError>,
    pub(super) waiters: Vec<Waker>,
}

impl Link {
    pub(super) fn new(server: ServerId) -> Self {
        Self {
            server,
            state: State::Closed,
            queues: None,
            to_send: VecDeque::new(),
            unsent_bytes: 0,
            fences: NO_FENCES,
            wanted: false,
            failures: 0,
            retry_at_ns: 0,
            is_blocked: false,
            is_tainted: false,
            opened: 0,
            failed: 0,
            last_error: None,
            dead: None,
            waiters: Vec::new(),
        }
    }

    /// Whether a verb must not be posted, because it could come without a WRITE that was to come before it.
    #[inline]
    pub(super) fn keeps_out_verbs(&mut self, slots: &Slots) -> bool {
        self.is_tainted = self.is_tainted && slots.has_unnoticed_write(self.server);
        self.is_tainted
    }

    pub(super) fn lost(&self) -> FabricError {
        FabricError::Indeterminate { server: self.server, why: Uncertainty::ConnectionLost }
    }

    /// When it must be looked at again, if nothing happens before.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        match &self.state {
            State::Closed if self.is_wanted() => Some(self.retry_at_ns),
            State::Connecting { deadline_ns, .. } => Some(*deadline_ns),
            State::Handshake { initiator, .. } => Some(initiator.deadline_ns()),
            State::Closed | State::Open { .. } => None,
        }
    }

    fn is_wanted(&self) -> bool {
        self.wanted || !self.to_send.is_empty()
    }

    /// Goes on without having heard from the socket: opens what is wanted, sends what is posted.
    #[inline]
    pub(super) fn drive(&mut self, slots: &mut Slots, around: &Around<'_>) {
        match &self.state {
            State::Closed => {
                if self.is_wanted() && self.retry_at_ns <= around.now_ns {
                    self.connect(slots, around);
                }
            }
            State::Open { .. } => {
                if !self.to_send.is_empty() && !self.is_blocked {
                    self.send(slots, around);
                }
            }
            State::Connecting { .. } | State::Handshake { .. } => {
                if self.deadline_ns().is_some_and(|at_ns| at_ns <= around.now_ns) {
                    self.fail(slots, around, self.lost());
                }
            }
        }
    }

    /// Something has happened on the socket.
    pub(super) fn visit(&mut self, slots: &mut Slots, around: &Around<'_>) {
        match &self.state {
            State::Closed => {}
            State::Connecting { .. } => self.connected(slots, around),
            State::Handshake { .. } => self.shake_hands(slots, around),
            State::Open { .. } => {
                self.receive(slots, around);
                if self.is_blocked {
                    self.send(slots, around);
                }
            }
        }
    }

    fn connect(&mut self, slots: &mut Slots, around: &Around<'_>) {
        let deadline_ns = around.now_ns.saturating_add(around.shared.config.connect_timeout_ns);
        match start_connecting(around.shared.address(self.server), around) {
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
        let config = &around.shared.config;
        let wanted = Wanted { role: config.server_role, number: self.server.number() };
        let initiator = Initiator::new(
            &around.shared.token,
            around.me,
            self.fences,
            wanted,
            nonce,
            deadline_ns,
        );
        let readable = epoll::EventFlags::IN;
        let data = epoll::EventData::new_u64(around.token);
        let watched = epoll::modify(around.epoll, socket, data, readable);
        // A server that is full says so and closes: what it has said can still be read.
        let _ = (&mut &*socket).write_all(initiator.hello());
        let State::Connecting { socket, .. } = std::mem::replace(&mut self.state, State::Closed)
        else {
            return;
        };
        let (initiator, gather) = (Box::new(initiator), Gather::default());
        self.state = State::Handshake { socket, initiator, gather };
        if watched.is_err() {
            self.fail(slots, around, self.lost());
        }
    }

    fn shake_hands(&mut self, slots: &mut Slots, around: &Around<'_>) {
        let error = loop {
            let State::Handshake { socket, initiator, gather } = &mut self.state else { return };
            let message = match socket.read(gather.missing()) {
                Ok(0) => break self.lost(),
                Ok(bytes) => gather.arrived(bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => break self.lost(),
            };
            let Some(message) = message else { continue };
            match initiator.receive(&message, around.now_ns) {
                Ok(InitiatorStep::Send(proof)) => {
                    if socket.write_all(&proof).is_err() {
                        break self.lost();
                    }
                }
                Ok(InitiatorStep::Open { peer, fences }) => {
                    if !around.shared.is_of_known_epoch(self.server, peer.epoch) {
                        let error = FabricError::Restarted { server: self.server };
                        self.dead = Some(error.clone());
                        break error;
                    }
                    self.fences = fences;
                    return self.open(slots, around);
                }
                // Who has been fenced is told no more than that it is cut off (F10).
                Err(HandshakeError::TimedOut | HandshakeError::Refused(Refusal::Fenced)) => {
                    break self.lost();
                }
                Err(why) => break FabricError::NotLetIn { server: self.server, why },
            }
        };
        self.fail(slots, around, error);
    }

    fn open(&mut self, slots: &mut Slots, around: &Around<'_>) {
        let State::Handshake { socket, .. } = std::mem::replace(&mut self.state, State::Closed)
        else {
            return;
        };
        self.state = State::Open { socket };
        self.failures = 0;
        self.opened += 1;
        self.wanted = false;
        self.waiters.drain(..).for_each(Waker::wake);
        let fresh = || Box::new((ByteQueue::new(QUEUE_BYTES), ByteQueue::new(QUEUE_BYTES)));
        let queues = self.queues.get_or_insert_with(fresh);
        queues.0.clear();
        queues.1.clear();
        self.is_blocked = false;
        self.send(slots, around);
    }

    /// Makes frames and sends them, until all is sent or the socket takes no more.
    pub(super) fn send(&mut self, slots: &mut Slots, around: &Around<'_>) {
        let State::Open { socket } = &mut self.state else { return };
        let Some((_, outgoing)) = self.queues.as_deref_mut() else { return };
        self.unsent_bytes = 0;
        let flow = loop {
            while let Some(&id) = self.to_send.front() {
                if slots.pending(id).is_some_and(|slot| !slot.encode(id, outgoing)) {
                    break;
                }
                self.to_send.pop_front();
            }
            match outgoing.send(socket) {
                Flow::Drained if !self.to_send.is_empty() => {}
                flow => break flow,
            }
        };
        if flow == Flow::Closed {
            return self.fail(slots, around, self.lost());
        }
        let is_blocked = flow == Flow::Blocked;
        if is_blocked != self.is_blocked {
            self.is_blocked = is_blocked;
            let flags = match is_blocked {
                true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
                false => epoll::EventFlags::IN,
            };
            let data = epoll::EventData::new_u64(around.token);
            if epoll::modify(around.epoll, &*socket, data, flags).is_err() {
                self.fail(slots, around, self.lost());
            }
        }
    }

    fn receive(&mut self, slots: &mut Slots, around: &Around<'_>) {
        for _ in 0..RECEIVES {
            let State::Open { socket } = &mut self.state else { return };
            let Some((incoming, _)) = self.queues.as_deref_mut() else { return };
            let flow = incoming.receive(socket);
            let understood = take_completions(incoming, slots, around);
            if flow == Flow::Closed || !understood {
                return self.fail(slots, around, self.lost());
            }
            if flow != Flow::More {
                return;
            }
        }
    }

    /// Closes the connection, takes what its socket still has, and ends what is left of its operations. The next thing
    /// to be sent, or `wanted`, opens it anew.
    pub(super) fn reset(&mut self, slots: &mut Slots, around: &Around<'_>) {
        self.receive(slots, around);
        self.close(slots, around, self.lost());
        // Who resets knows that what was posted may not have happened.
        self.is_tainted = false;
        self.wanted = self.dead.is_none();
        self.drive(slots, around);
    }

    /// The connection is lost, or cannot be made.
    pub(super) fn fail(&mut self, slots: &mut Slots, around: &Around<'_>, error: FabricError) {
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

    fn close(&mut self, slots: &mut Slots, around: &Around<'_>, error: FabricError) {
        self.state = State::Closed;
        self.is_tainted = true;
        self.to_send.clear();
        self.unsent_bytes = 0;
        let posted: Vec<u64> = slots
            .iter_pending()
            .filter(|(_, slot)| slot.server == self.server)
            .map(|(id, _)| id)
            .collect();
        for id in posted {
            let error = unless_unsent(error.clone(), slots.pending(id), &around.shared.config);
            end(slots, id, Err(error), around.counters);
        }
    }
}

/// `error`, or that nothing of the operation was sent, if that is so. Only clients are told: what a compute server has
/// posted to a memory server and is not sure of, it fences or reads again, whether it was sent or not.
pub(super) fn unless_unsent(
    error: FabricError,
    slot: Option<&mut Slot>,
    config: &TcpConfig,
) -> FabricError {
    match slot {
        Some(slot)
            if config.role == Role::Client
                && slot.is_unsent()
                && matches!(error, FabricError::Indeterminate { .. }) =>
        {
            FabricError::NotSent { server: slot.server }
        }
        _ => error,
    }
}

/// Ends an operation, and counts what is not known of it.
#[inline]
pub(super) fn end(
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

/// Takes all completions that have arrived whole; `false` if the server does not speak as agreed.
fn take_completions(incoming: &mut ByteQueue, slots: &mut Slots, around: &Around<'_>) -> bool {
    loop {
        let (id, completion, bytes) = match decode_completion(incoming.filled()) {
            Decoded::Frame { id, body, bytes } => (id, body, bytes),
            Decoded::Incomplete => return true,
            Decoded::Malformed => return false,
        };
        // What has ended already is nobody's concern any more.
        if let Some(slot) = slots.pending(id) {
            match slot.complete(completion) {
                Completed::InPart => {}
                Completed::Ended(outcome) => {
                    if let super::frame::Completion::Reply(reply) = completion {
                        around.counters.count_rpc_reply(reply.len());
                    }
                    end(slots, id, outcome, around.counters);
                }
                Completed::Mismatch => return false,
            }
        }
        incoming.consume(bytes);
    }
}

fn start_connecting(address: SocketAddr, around: &Around<'_>) -> io::Result<TcpStream> {
    let socket = connect_socket(address)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT;
    epoll::add(around.epoll, &socket, epoll::EventData::new_u64(around.token), flags)?;
    Ok(socket)
}
