//! One connection, as the server sees it.
//!
//! *Invariants*: V1. until the peer has proven itself, a connection costs one message of memory. V2. a request is
//! carried out only when there is room for its answer: a peer that does not read is not read from. V3. what is
//! not a frame closes the connection, and nothing else. V4. requests are carried out in the order of the
//! frames, so F3 holds.
//!
//! *Thread safety*: belongs to one I/O thread.

use super::frame::{
    Completion, Decoded, HEADER_BYTES, Kind, MAX_FRAME_BYTES, NotDone, PIECE_BYTES, Piece, Request,
    decode_request, read_completion_frame,
};
use super::inbox::{Inbox, Late, Place};
use super::queue::{ByteQueue, Flow};
use crate::access::check_lent;
use crate::gates::{Gate, Gates};
use crate::handshake::{Gather, Identity, Responder, ResponderStep};
use crate::region::{load_bytes, store_bytes};
use crate::sockets::{Heard, next_message};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::{
    Call, Calls, FabricError, GlobalAddr, InlineCpu, MAX_MESSAGE_BYTES, Message, ReplySink,
    now_or_never,
};
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;

/// Room for requests of a connection: the longest frame, and a good many short ones.
const INCOMING_BYTES: usize = 256 * 1024;
/// Room for answers.
const OUTGOING_BYTES: usize = 256 * 1024;
const _: () = assert!(MAX_FRAME_BYTES <= INCOMING_BYTES / 2 + HEADER_BYTES);

/// What the connections of a server share.
#[derive(Debug)]
pub(super) struct Around<'a, S> {
    pub(super) service: &'a S,
    pub(super) server: Identity,
    pub(super) gates: &'a Gates,
    pub(super) totals: &'a Totals,
    pub(super) inbox: &'a Arc<Inbox>,
    /// How many calls of one connection may wait for a later answer.
    pub(super) waiting_calls: usize,
    /// The I/O thread.
    pub(super) cpu: InlineCpu,
    pub(super) now_ns: u64,
}

/// What to wait for, or that it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Readable,
    Writable,
    /// Neither: calls have to be answered first.
    Answers,
    Close,
}

/// What a server has done so far; counted before anybody is told.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) requests: AtomicU64,
    pub(super) welcomed: AtomicU64,
    pub(super) refused: AtomicU64,
}

/// What was done in one visit.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Requests that are not in the totals yet.
    requests: u64,
    /// Others have been shut out by a fence or a second connection.
    pub(super) shut_out: bool,
}

#[derive(Debug)]
pub(super) struct Served {
    pub(super) socket: TcpStream,
    pub(super) place: (u32, u32),
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Handshake { responder: Box<Responder>, gather: Gather },
    Open(Box<Open>),
}

#[derive(Debug)]
struct Open {
    gate: Arc<Gate>,
    incoming: ByteQueue,
    outgoing: ByteQueue,
    /// Answers that came later and have no room yet.
    answers: VecDeque<Late>,
    /// Calls that will be answered later.
    waiting: usize,
    /// Inline replies that housekeeping is still to follow.
    replies: usize,
    scratch: Message,
    /// It has fenced itself: what is queued is sent, and no more is done.
    leaving: bool,
}

/// Why requests are no longer carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// There is no whole frame.
    Empty,
    /// There is no room for answers.
    Full,
    /// Too many calls wait for their answers.
    Waiting,
    /// A fence comes next.
    Fence {
        compute_server: u16,
        id: u64,
        bytes: usize,
    },
    Close,
}

impl Served {
    pub(super) fn new(socket: TcpStream, place: (u32, u32), responder: Responder) -> Self {
        let responder = Box::new(responder);
        Self { socket, place, phase: Phase::Handshake { responder, gather: Gather::default() } }
    }

    /// When the handshake must have ended, if it has not.
    pub(super) fn handshake_deadline_ns(&self) -> Option<u64> {
        match &self.phase {
            Phase::Handshake { responder, .. } => Some(responder.deadline_ns()),
            Phase::Open(_) => None,
        }
    }

    /// Whether somebody has closed its gate.
    pub(super) fn is_shut_out(&self) -> bool {
        match &self.phase {
            Phase::Handshake { .. } => false,
            Phase::Open(open) => open.gate.enter().is_none(),
        }
    }

    /// The connection ends.
    pub(super) fn leave(&self, gates: &Gates) {
        if let Phase::Open(open) = &self.phase {
            gates.leave(&open.gate);
        }
    }

    /// Does what can be done now.
    pub(super) fn serve<S: Calls>(&mut self, around: &Around<'_, S>, tally: &mut Tally) -> Next {
        if let Phase::Handshake { .. } = self.phase {
            match self.shake_hands(around, tally) {
                Next::Readable if matches!(self.phase, Phase::Open(_)) => {}
                next => return next,
            }
        }
        let Phase::Open(open) = &mut self.phase else { return Next::Close };
        if open.incoming.space() > 0 {
            match open.incoming.receive(&mut self.socket) {
                Flow::Closed => return Next::Close,
                Flow::Drained | Flow::More | Flow::Blocked => {}
            }
        }
        open.carry_on(&mut self.socket, self.place, around, tally)
    }

    /// Queues an answer that came later, for the next [`Served::send_answers`].
    pub(super) fn answer(&mut self, late: Late) {
        if let Phase::Open(open) = &mut self.phase {
            open.answers.push_back(late);
        }
    }

    /// Sends answers that came later, and goes on with what had to wait for them.
    pub(super) fn send_answers<S: Calls>(
        &mut self,
        around: &Around<'_, S>,
        tally: &mut Tally,
    ) -> Next {
        let Phase::Open(open) = &mut self.phase else { return Next::Close };
        open.carry_on(&mut self.socket, self.place, around, tally)
    }

    fn shake_hands<S: Calls>(&mut self, around: &Around<'_, S>, tally: &mut Tally) -> Next {
        let Phase::Handshake { responder, gather } = &mut self.phase else { return Next::Close };
        loop {
            let message = match next_message(&mut self.socket, gather) {
                Heard::Message(message) => message,
                Heard::Nothing => return Next::Readable,
                Heard::End => return Next::Close,
            };
            let step = responder.receive(&message, around.now_ns);
            // A socket that has sent nothing yet has room for a message: if not, it is closed.
            let outcome = match step {
                Ok(ResponderStep::Send(answer)) => match self.socket.write_all(&answer) {
                    Ok(()) => continue,
                    Err(_) => return Next::Close,
                },
                Ok(ResponderStep::Proven { peer, fences }) => around.gates.admit(peer, fences),
                Err(error) => match error.refusal() {
                    Some(refusal) => Err(refusal),
                    None => {
                        around.totals.refused.fetch_add(1, Ordering::Relaxed);
                        return Next::Close;
                    }
                },
            };
            let (gate, fences) = match outcome {
                Ok(admitted) => admitted,
                Err(refusal) => {
                    around.totals.refused.fetch_add(1, Ordering::Relaxed);
                    let _ = self.socket.write_all(&refusal.message());
                    return Next::Close;
                }
            };
            around.totals.welcomed.fetch_add(1, Ordering::Relaxed);
            let welcomed = self.socket.write_all(&responder.welcome(fences));
            self.phase = Phase::Open(Box::new(Open::new(gate)));
            tally.shut_out = true;
            return if welcomed.is_ok() { Next::Readable } else { Next::Close };
        }
    }
}

impl Open {
    fn new(gate: Arc<Gate>) -> Self {
        Self {
            gate,
            incoming: ByteQueue::new(INCOMING_BYTES),
            outgoing: ByteQueue::new(OUTGOING_BYTES),
            answers: VecDeque::new(),
            waiting: 0,
            replies: 0,
            scratch: Message::new(),
            leaving: false,
        }
    }

    /// Carries requests out and sends answers until neither goes on.
    fn carry_on<S: Calls>(
        &mut self,
        socket: &mut TcpStream,
        place: (u32, u32),
        around: &Around<'_, S>,
        tally: &mut Tally,
    ) -> Next {
        loop {
            self.queue_answers();
            let pause = match self.leaving {
                true => Pause::Empty,
                false => self.carry_out(place, around, tally),
            };
            if let Pause::Fence { compute_server, id, bytes } = pause {
                tally.shut_out |= around.gates.fence(compute_server);
                self.leaving = self.gate.enter().is_none();
                self.incoming.consume(bytes);
                self.put(id, Completion::Fenced);
                continue;
            }
            if tally.requests > 0 {
                let requests = std::mem::take(&mut tally.requests);
                around.totals.requests.fetch_add(requests, Ordering::Relaxed);
            }
            let sent = self.outgoing.send(socket);
            if self.replies > 0 {
                for _ in 0..std::mem::take(&mut self.replies) {
                    now_or_never(around.service.after_answer(&around.cpu));
                }
            }
            return match (sent, pause) {
                (Flow::Closed, _) | (_, Pause::Close) => Next::Close,
                (Flow::Blocked, _) => Next::Writable,
                (_, Pause::Full) => continue,
                _ if !self.answers.is_empty() => continue,
                _ if self.leaving => Next::Close,
                (_, Pause::Waiting) => Next::Answers,
                _ => Next::Readable,
            };
        }
    }

    /// Carries out what has arrived, as far as answers have room.
    fn carry_out<S: Calls>(
        &mut self,
        place: (u32, u32),
        around: &Around<'_, S>,
        tally: &mut Tally,
    ) -> Pause {
        let gate = Arc::clone(&self.gate);
        let Some(_entered) = gate.enter() else { return Pause::Close };
        loop {
            if self.outgoing.space() < MAX_FRAME_BYTES {
                return Pause::Full;
            }
            if self.waiting >= around.waiting_calls {
                return Pause::Waiting;
            }
            let (id, request, bytes) = match decode_request(self.incoming.filled()) {
                Decoded::Frame { id, body, bytes } => (id, body, bytes),
                Decoded::Incomplete => return Pause::Empty,
                Decoded::Malformed => return Pause::Close,
            };
            tally.requests += 1;
            let outgoing = &mut self.outgoing;
            match request {
                Request::Read(piece) => read(outgoing, around, id, piece),
                Request::Write(piece, words) => write(outgoing, around, id, piece, words),
                Request::CompareSwap { at, expected, new } => {
                    let found = memory(around, at, 8).map(|words| {
                        let swapped = words[0].compare_exchange(
                            expected,
                            new,
                            Ordering::AcqRel,
                            Ordering::Acquire,
                        );
                        Completion::Swapped(swapped.unwrap_or_else(|found| found))
                    });
                    let not_done = |error| Completion::NotDone(Kind::CompareSwap, error);
                    put(outgoing, id, found.unwrap_or_else(not_done));
                }
                Request::FetchAdd { at, delta } => {
                    let found = memory(around, at, 8).map(|words| {
                        Completion::Added(words[0].fetch_add(delta, Ordering::AcqRel))
                    });
                    let not_done = |error| Completion::NotDone(Kind::FetchAdd, error);
                    put(outgoing, id, found.unwrap_or_else(not_done));
                }
                Request::Call(request) => {
                    let mut is_later = false;
                    self.scratch.clear();
                    let place = Place { slot: place.0, generation: place.1, id };
                    let mut defer = || {
                        is_later = true;
                        ReplySink::new(Arc::clone(around.inbox) as _, place.ticket())
                    };
                    let call = Call::new(gate.peer, request, &mut self.scratch, &mut defer);
                    now_or_never(around.service.call(&around.cpu, call));
                    if is_later {
                        self.waiting += 1;
                    } else {
                        put(outgoing, id, reply_of(&self.scratch));
                        self.replies += 1;
                    }
                }
                Request::Fence { compute_server } => {
                    return Pause::Fence { compute_server, id, bytes };
                }
            }
            self.incoming.consume(bytes);
        }
    }

    fn queue_answers(&mut self) {
        while self.outgoing.space() >= MAX_FRAME_BYTES
            && let Some(late) = self.answers.pop_front()
        {
            self.waiting -= 1;
            let completion = match &late.reply {
                Some(reply) => reply_of(reply),
                None => Completion::NotDone(Kind::Call, NotDone::Unanswered),
            };
            put(&mut self.outgoing, late.place.id, completion);
        }
    }

    fn put(&mut self, id: u64, completion: Completion<'_>) {
        put(&mut self.outgoing, id, completion);
    }
}

#[inline]
fn put(outgoing: &mut ByteQueue, id: u64, completion: Completion<'_>) {
    completion.encode(id, outgoing.push(completion.frame_bytes()));
}

fn reply_of(reply: &[u8]) -> Completion<'_> {
    match reply.len() {
        bytes if bytes > MAX_MESSAGE_BYTES => {
            Completion::NotDone(Kind::Call, NotDone::TooLarge { bytes: bytes as u64 })
        }
        _ => Completion::Reply(reply),
    }
}

/// The words that a verb is about, checked here, where the memory is (F5).
#[inline]
fn memory<'a, S: Calls>(
    around: &Around<'a, S>,
    at: GlobalAddr,
    bytes: usize,
) -> Result<&'a [AtomicU64], NotDone> {
    if at.server().number() != around.server.number {
        return Err(NotDone::NoSuchServer);
    }
    let memory = around.service.memory().map(|region| &**region);
    check_lent(memory, at, bytes).map_err(|error| match error {
        FabricError::OutOfBounds { region_bytes, .. } => {
            NotDone::OutOfBounds { region_bytes: region_bytes as u64 }
        }
        _ => NotDone::Unaligned,
    })
}

/// The words of a piece, once the whole has been checked.
#[inline]
fn piece_words<'a, S: Calls>(
    around: &Around<'a, S>,
    piece: Piece,
) -> Result<&'a [AtomicU64], NotDone> {
    let whole = memory(around, piece.at, piece.whole as usize)?;
    let first = piece.first as usize / 8;
    Ok(&whole[first..first + piece.length as usize / 8])
}

#[inline]
fn read<S: Calls>(outgoing: &mut ByteQueue, around: &Around<'_, S>, id: u64, piece: Piece) {
    debug_assert!(piece.length as usize <= PIECE_BYTES);
    match piece_words(around, piece) {
        Ok(words) => {
            let frame = outgoing.push(HEADER_BYTES + piece.length as usize);
            load_bytes(words, read_completion_frame(id, frame));
        }
        Err(error) => put(outgoing, id, Completion::NotDone(Kind::Read, error)),
    }
}

#[inline]
fn write<S: Calls>(
    outgoing: &mut ByteQueue,
    around: &Around<'_, S>,
    id: u64,
    piece: Piece,
    bytes: &[u8],
) {
    match piece_words(around, piece) {
        Ok(words) => {
            store_bytes(bytes, words);
            put(outgoing, id, Completion::Written);
        }
        Err(error) => put(outgoing, id, Completion::NotDone(Kind::Write, error)),
    }
}
