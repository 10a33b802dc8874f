//! The server's side of one connection.
//!
//! *Invariants*: served.V2. A request is carried out only when there is room for its answer: the
//! server stops reading from a peer that does not read. served.V3. Bytes that are not a frame close
//! the connection, and have no other effect. served.V4. Requests are carried out in the order of
//! their frames, so F3 holds.
//!
//! *Thread safety*: belongs to one I/O thread.

use super::frame::{
    Completion, DecodedFrame, FrameKind, FramePiece, FrameRequest, HEADER_BYTES, MAX_FRAME_BYTES,
    PIECE_BYTES, VerbRefusal, decode_request, read_completion_frame,
};
use super::inbox::{AnswerAddress, Inbox, LateAnswer};
use super::queue::{ByteQueue, SocketFlow};
use crate::access::check_lent;
use crate::gates::{ConnectionGate, ServerGates};
use crate::handshake::PeerIdentity;
use crate::listener::{AcceptorPlace, Admitted};
use crate::region::{load_bytes, store_bytes};
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::{
    Calls, FabricError, GlobalAddr, InlineCpu, MAX_MESSAGE_BYTES, Message, ReplySink, ServiceCall,
    now_or_never,
};
use std::collections::VecDeque;
use std::net::TcpStream;

/// Size of a connection's request buffer: the longest frame, and many short ones.
const INCOMING_BYTES: usize = 512 * 1024;
/// Size of a connection's answer buffer.
const OUTGOING_BYTES: usize = 512 * 1024;
const _: () = assert!(MAX_FRAME_BYTES <= INCOMING_BYTES / 2 + HEADER_BYTES);

/// State that the connections of a server share.
#[derive(Debug)]
pub(super) struct ConnectionContext<'a, S> {
    pub(super) service: &'a S,
    pub(super) server: PeerIdentity,
    pub(super) gates: &'a ServerGates,
    /// Number of requests, which are counted before they are answered.
    pub(super) requests: &'a AtomicU64,
    pub(super) inbox: &'a Arc<Inbox>,
    /// Limit on one connection's calls that wait for a later answer.
    pub(super) waiting_calls: usize,
    /// The I/O thread's processor.
    pub(super) cpu: InlineCpu,
}

/// What a connection waits for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedEvent {
    Readable,
    Writable,
    /// Neither readable nor writable: calls must be answered first.
    Answers,
    Close,
}

/// Effects of one visit to a connection.
#[derive(Debug, Default)]
pub(super) struct VisitTally {
    /// Requests that are not in the totals yet.
    requests: u64,
    /// Whether a fence has closed gates.
    pub(super) shut_out: bool,
}

/// A connection with an admitted peer.
#[derive(Debug)]
pub(super) struct ServedConnection {
    gate: Arc<ConnectionGate>,
    place: AcceptorPlace,
    /// The events for which its socket is watched.
    pub(super) interest: AwaitedEvent,
    incoming: ByteQueue,
    outgoing: ByteQueue,
    /// Later answers that have no room yet.
    answers: VecDeque<LateAnswer>,
    /// Number of calls that will be answered later.
    waiting: usize,
    /// Number of immediate replies after which housekeeping is still due.
    replies: usize,
    scratch: Message,
    /// Whether the endpoint has fenced itself: queued answers are sent, and nothing else is carried
    /// out.
    leaving: bool,
}

impl Admitted for ServedConnection {
    fn gate(&self) -> &Arc<ConnectionGate> {
        &self.gate
    }
}

/// Why no further requests are carried out for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PauseReason {
    /// There is no complete frame.
    Empty,
    /// There is no room for answers.
    Full,
    /// Too many calls wait for their answers.
    Waiting,
    /// The next request is a fence.
    Fence {
        compute_server: u16,
        id: u64,
        bytes: usize,
    },
    Close,
}

impl ServedConnection {
    pub(super) fn new(gate: Arc<ConnectionGate>, place: AcceptorPlace) -> Self {
        Self {
            gate,
            place,
            interest: AwaitedEvent::Readable,
            incoming: ByteQueue::new(INCOMING_BYTES),
            outgoing: ByteQueue::new(OUTGOING_BYTES),
            answers: VecDeque::new(),
            waiting: 0,
            replies: 0,
            scratch: Message::new(),
            leaving: false,
        }
    }

    /// Receives and handles as much as possible now.
    pub(super) fn serve<S: Calls>(
        &mut self,
        socket: &mut TcpStream,
        context: &ConnectionContext<'_, S>,
        tally: &mut VisitTally,
    ) -> AwaitedEvent {
        if self.incoming.space() > 0 && self.incoming.receive(socket) == SocketFlow::Closed {
            return AwaitedEvent::Close;
        }
        self.carry_on(socket, context, tally)
    }

    /// Queues a later answer for the next [`ServedConnection::carry_on`].
    pub(super) fn answer(&mut self, late: LateAnswer) {
        self.answers.push_back(late);
    }

    /// Carries out requests and sends answers until neither can make progress.
    pub(super) fn carry_on<S: Calls>(
        &mut self,
        socket: &mut TcpStream,
        context: &ConnectionContext<'_, S>,
        tally: &mut VisitTally,
    ) -> AwaitedEvent {
        loop {
            self.queue_answers();
            let pause = match self.leaving {
                true => PauseReason::Empty,
                false => self.carry_out(context, tally),
            };
            if let PauseReason::Fence { compute_server, id, bytes } = pause {
                tally.shut_out |= context.gates.fence(compute_server);
                self.leaving = self.gate.enter().is_none();
                self.incoming.consume(bytes);
                self.put(id, Completion::Fenced);
                continue;
            }
            if tally.requests > 0 {
                let requests = std::mem::take(&mut tally.requests);
                context.requests.fetch_add(requests, Ordering::Relaxed);
            }
            let sent = self.outgoing.send(socket);
            if self.replies > 0 {
                for _ in 0..std::mem::take(&mut self.replies) {
                    now_or_never(context.service.after_answer(&context.cpu));
                }
            }
            return match (sent, pause) {
                (SocketFlow::Closed, _) | (_, PauseReason::Close) => AwaitedEvent::Close,
                (SocketFlow::Blocked, _) => AwaitedEvent::Writable,
                (_, PauseReason::Full) => continue,
                _ if !self.answers.is_empty() => continue,
                _ if self.leaving => AwaitedEvent::Close,
                (_, PauseReason::Waiting) => AwaitedEvent::Answers,
                _ => AwaitedEvent::Readable,
            };
        }
    }

    /// Carries out the received requests, as long as there is room for answers.
    fn carry_out<S: Calls>(
        &mut self,
        context: &ConnectionContext<'_, S>,
        tally: &mut VisitTally,
    ) -> PauseReason {
        let gate = Arc::clone(&self.gate);
        let Some(_entered) = gate.enter() else { return PauseReason::Close };
        loop {
            if self.outgoing.space() < MAX_FRAME_BYTES {
                return PauseReason::Full;
            }
            if self.waiting >= context.waiting_calls {
                return PauseReason::Waiting;
            }
            let (id, request, bytes) = match decode_request(self.incoming.filled()) {
                DecodedFrame::Frame { id, body, bytes } => (id, body, bytes),
                DecodedFrame::Incomplete => return PauseReason::Empty,
                DecodedFrame::Malformed => return PauseReason::Close,
            };
            tally.requests += 1;
            let outgoing = &mut self.outgoing;
            match request {
                FrameRequest::Read(piece) => read(outgoing, context, id, piece),
                FrameRequest::Write(piece, words) => write(outgoing, context, id, piece, words),
                FrameRequest::CompareSwap { at, expected, new } => {
                    let found = memory(context, at, 8).map(|words| {
                        let swapped = words[0].compare_exchange(
                            expected,
                            new,
                            Ordering::AcqRel,
                            Ordering::Acquire,
                        );
                        Completion::Swapped(swapped.unwrap_or_else(|found| found))
                    });
                    let not_done = |error| Completion::NotDone(FrameKind::CompareSwap, error);
                    put(outgoing, id, found.unwrap_or_else(not_done));
                }
                FrameRequest::FetchAdd { at, delta } => {
                    let found = memory(context, at, 8).map(|words| {
                        Completion::Added(words[0].fetch_add(delta, Ordering::AcqRel))
                    });
                    let not_done = |error| Completion::NotDone(FrameKind::FetchAdd, error);
                    put(outgoing, id, found.unwrap_or_else(not_done));
                }
                FrameRequest::Call(request) => {
                    let mut is_later = false;
                    self.scratch.clear();
                    let asked = AnswerAddress { place: self.place, id };
                    let mut defer = || {
                        is_later = true;
                        ReplySink::new(Arc::clone(context.inbox) as _, asked.ticket())
                    };
                    let call = ServiceCall::new(gate.peer, request, &mut self.scratch, &mut defer);
                    now_or_never(context.service.call(&context.cpu, call));
                    if is_later {
                        self.waiting += 1;
                    } else {
                        put(outgoing, id, reply_of(&self.scratch));
                        self.replies += 1;
                    }
                }
                FrameRequest::Fence { compute_server } => {
                    return PauseReason::Fence { compute_server, id, bytes };
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
                None => Completion::NotDone(FrameKind::Call, VerbRefusal::Unanswered),
            };
            put(&mut self.outgoing, late.asked.id, completion);
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
            Completion::NotDone(FrameKind::Call, VerbRefusal::TooLarge { bytes: bytes as u64 })
        }
        _ => Completion::Reply(reply),
    }
}

/// The words that a verb accesses, checked here, where the memory is (F5).
#[inline]
fn memory<'a, S: Calls>(
    context: &ConnectionContext<'a, S>,
    at: GlobalAddr,
    bytes: usize,
) -> Result<&'a [AtomicU64], VerbRefusal> {
    if at.server().number() != context.server.number {
        return Err(VerbRefusal::NoSuchServer);
    }
    let memory = context.service.memory().map(|region| &**region);
    check_lent(memory, at, bytes).map_err(|error| match error {
        FabricError::OutOfBounds { region_bytes, .. } => {
            VerbRefusal::OutOfBounds { region_bytes: region_bytes as u64 }
        }
        _ => VerbRefusal::Unaligned,
    })
}

/// Checks the whole verb, and returns the words of one piece of it.
#[inline]
fn piece_words<'a, S: Calls>(
    context: &ConnectionContext<'a, S>,
    piece: FramePiece,
) -> Result<&'a [AtomicU64], VerbRefusal> {
    let whole = memory(context, piece.at, piece.whole as usize)?;
    let first = piece.first as usize / 8;
    Ok(&whole[first..first + piece.length as usize / 8])
}

#[inline]
fn read<S: Calls>(
    outgoing: &mut ByteQueue,
    context: &ConnectionContext<'_, S>,
    id: u64,
    piece: FramePiece,
) {
    debug_assert!(piece.length as usize <= PIECE_BYTES);
    match piece_words(context, piece) {
        Ok(words) => {
            let frame = outgoing.push(HEADER_BYTES + piece.length as usize);
            load_bytes(words, read_completion_frame(id, frame));
        }
        Err(error) => put(outgoing, id, Completion::NotDone(FrameKind::Read, error)),
    }
}

#[inline]
fn write<S: Calls>(
    outgoing: &mut ByteQueue,
    context: &ConnectionContext<'_, S>,
    id: u64,
    piece: FramePiece,
    bytes: &[u8],
) {
    match piece_words(context, piece) {
        Ok(words) => {
            store_bytes(bytes, words);
            put(outgoing, id, Completion::Written);
        }
        Err(error) => put(outgoing, id, Completion::NotDone(FrameKind::Write, error)),
    }
}
