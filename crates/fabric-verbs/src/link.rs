//! The traffic with one server: verbs and calls over a queue pair, and fences over the TCP
//! connection that accompanies it.
//!
//! Posting only queues an operation. The queue goes to the device when all tasks of the endpoint
//! wait: one list, and so one doorbell, for each server.
//!
//! *Invariants*: link.K3. Verbs are posted to the device in the order in which they were posted
//! here (F3). link.K6. An access outside the server's region is not posted; the device there would
//! refuse it and break the connection.
//!
//! *Thread safety*: an endpoint's thread.

use crate::bring_up::ControlMessage;
use crate::endpoint::{Verbs, VerbsProgress};
use crate::memory::KnownRegistrations;
use crate::objects::RequestOperation;
use crate::piece::{MessageKind, PIECE_BYTES, PieceHeader};
use crate::wire::{PollEvent, QueuePairWire};
use farleaf_fabric::endpoint::dial::{BringUpState, ConnectionLost, LinkCarrier};
use farleaf_fabric::endpoint::{LinkContext, OpSlot};
use farleaf_fabric::handshake::{HandshakeMessage, MessageAssembler, draw_epoch};
use farleaf_fabric::provider::{OpBody, SocketRead, next_message};
use farleaf_fabric::{FabricError, MAX_MESSAGE_BYTES, Uncertainty};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::TcpStream;

type VerbsOpSlots = farleaf_fabric::endpoint::OpSlots<VerbsProgress>;

/// The queued operations for a server, and the queue pair that carries them.
#[derive(Debug, Default)]
pub struct ServerQueues {
    /// Present once the offer has been sent to the server.
    wire: Option<Box<QueuePairWire>>,
    gather: MessageAssembler,
    /// Verbs to be posted, in posting order.
    verbs: VecDeque<u64>,
    /// Calls whose requests have not been sent completely, or whose replies have not been requested
    /// completely.
    calls: VecDeque<u64>,
    asks: VecDeque<u64>,
    /// Fences to be sent.
    fences: VecDeque<u64>,
    events: Vec<PollEvent>,
}

impl LinkCarrier<Verbs> for ServerQueues {
    #[inline]
    fn enqueue(&mut self, id: u64, slots: &mut VerbsOpSlots) -> bool {
        let queue = match slots.pending(id).map(|slot| &slot.body) {
            Some(OpBody::Call(_)) => &mut self.calls,
            Some(OpBody::Fence { .. }) => &mut self.fences,
            _ => &mut self.verbs,
        };
        queue.push_back(id);
        false
    }

    fn has_work(&self) -> bool {
        [&self.verbs, &self.calls, &self.fences].iter().any(|queue| !queue.is_empty())
    }

    /// Creates a queue pair and offers it to the server.
    fn welcomed(
        &mut self,
        socket: &mut TcpStream,
        context: &LinkContext<'_, Verbs>,
    ) -> Result<BringUpState, ConnectionLost> {
        let mut offer = || -> io::Result<QueuePairWire> {
            let shared = &context.transport.shared;
            let psn = draw_epoch()? as u32 & 0x00ff_ffff;
            let (channel, token) = (&context.reactor.source, context.token);
            let (depth, window) = (shared.config.depth, shared.config.window);
            let wire = QueuePairWire::new(&shared.adapter, channel, token, depth, window, psn)?;
            socket.write_all(&ControlMessage::Offer(wire.own()).encode())?;
            Ok(wire)
        };
        self.wire = Some(Box::new(offer().map_err(|_| ConnectionLost)?));
        self.gather = MessageAssembler::default();
        Ok(BringUpState::Later)
    }

    fn answered(
        &mut self,
        message: &HandshakeMessage,
        context: &LinkContext<'_, Verbs>,
    ) -> Result<BringUpState, ConnectionLost> {
        let (Some(ControlMessage::Answer(peer, lent)), Some(wire)) =
            (ControlMessage::decode(message), &mut self.wire)
        else {
            return Err(ConnectionLost);
        };
        let shared = &context.transport.shared;
        // If connecting fails, the attempt fails like a refused one.
        let connected = wire.connect(&shared.adapter, peer, lent, shared.config.retry_timers);
        connected.map(|()| BringUpState::Now).map_err(|_| ConnectionLost)
    }

    fn receive(
        &mut self,
        socket: &mut TcpStream,
        slots: &mut VerbsOpSlots,
        context: &LinkContext<'_, Verbs>,
    ) -> Result<(), ConnectionLost> {
        loop {
            let message = match next_message(&mut *socket, &mut self.gather) {
                SocketRead::Message(message) => message,
                SocketRead::Nothing => return Ok(()),
                SocketRead::End => return Err(ConnectionLost),
            };
            let Some(ControlMessage::Fenced { id }) = ControlMessage::decode(&message) else {
                return Err(ConnectionLost);
            };
            match slots.pending(id).map(|slot| &slot.body) {
                Some(OpBody::Fence { .. }) => slots.end(id, Ok(()), context.resources),
                Some(_) => return Err(ConnectionLost),
                None => {}
            }
        }
    }

    /// Handles completions; returns whether there were any.
    fn poll(
        &mut self,
        slots: &mut VerbsOpSlots,
        context: &LinkContext<'_, Verbs>,
    ) -> Result<bool, ConnectionLost> {
        let Some(wire) = &mut self.wire else { return Ok(false) };
        let mut events = std::mem::take(&mut self.events);
        let mut polled = wire.poll(&mut events).is_ok();
        let advanced = !events.is_empty();
        for event in events.drain(..) {
            match event {
                PollEvent::Done(id) => {
                    if let Some(slot) = slots.pending(id) {
                        if let Some(found) = slot.progress.found.take() {
                            slot.body = OpBody::Found(found.get(0));
                        }
                        slots.end(id, Ok(()), context.resources);
                    }
                }
                PollEvent::Message { place, bytes } => {
                    let taken = take_message(wire, place, bytes, slots, &mut self.asks, context);
                    polled &= taken && wire.give_back(place).is_ok();
                }
            }
        }
        self.events = events;
        if polled { Ok(advanced) } else { Err(ConnectionLost) }
    }

    /// Posts the queued operations with one doorbell, as long as there is room.
    fn send(
        &mut self,
        socket: &mut TcpStream,
        slots: &mut VerbsOpSlots,
        context: &LinkContext<'_, Verbs>,
    ) -> Result<(), ConnectionLost> {
        let Some(wire) = &mut self.wire else { return Ok(()) };
        let mut good = true;
        while let Some(id) = self.fences.pop_front() {
            if let Some(OpSlot { body: OpBody::Fence { compute_server }, .. }) = slots.pending(id) {
                let compute_server = *compute_server;
                good &= socket
                    .write_all(&ControlMessage::Fence { id, compute_server }.encode())
                    .is_ok();
            }
        }
        let known = &mut *context.transport.known.borrow_mut();
        while wire.has_room() {
            let Some(id) = self.verbs.pop_front() else { break };
            let Some(slot) = slots.pending(id) else { continue };
            if let Err(error) = post_verb(wire, id, slot, known, context.transport) {
                slots.end(id, Err(error), context.resources);
            }
        }
        while wire.has_number() {
            if let Some(&id) = self.asks.front() {
                let asking = slots.pending(id).map(|slot| &mut slot.progress);
                if let Some(progress) = asking
                    && progress.asked < progress.whole
                {
                    let first = progress.asked as u32;
                    let header = PieceHeader { first, ..PieceHeader::bare(id, MessageKind::More) };
                    progress.asked += (progress.whole - progress.asked).min(PIECE_BYTES);
                    wire.push_message(&header, &[]);
                } else {
                    self.asks.pop_front();
                }
                continue;
            }
            let Some(&id) = self.calls.front() else { break };
            let Some(OpSlot { body: OpBody::Call(request), progress, .. }) = slots.pending(id)
            else {
                self.calls.pop_front();
                continue;
            };
            let header = PieceHeader::piece(id, MessageKind::Request, request.len(), progress.sent);
            wire.push_message(&header, request);
            progress.sent = header.end();
            if progress.sent == request.len() {
                self.calls.pop_front();
            }
        }
        good &= wire.ring().is_ok();
        if good { Ok(()) } else { Err(ConnectionLost) }
    }

    /// Arms the completion queue if completions are outstanding. Returns whether it was not armed
    /// before; the caller must then poll for completions that came earlier.
    fn arm(&mut self) -> bool {
        self.wire.as_mut().is_some_and(|wire| wire.is_busy() && wire.arm())
    }

    fn disarm(&mut self) {
        if let Some(wire) = &mut self.wire {
            wire.disarm();
        }
    }

    /// Whether requests are in flight.
    fn is_busy(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.has_flights())
    }

    /// Drops the queue pair, so that other tasks may reuse its buffers.
    fn let_go_of_buffers(&mut self) {
        self.wire = None;
    }

    fn clear(&mut self) {
        for queue in [&mut self.verbs, &mut self.calls, &mut self.asks, &mut self.fences] {
            queue.clear();
        }
    }
}

/// Adds a verb to the batch if it is valid.
#[inline]
fn post_verb(
    wire: &mut QueuePairWire,
    id: u64,
    slot: &OpSlot<VerbsProgress>,
    known: &mut KnownRegistrations,
    Verbs { shared, .. }: &Verbs,
) -> Result<(), FabricError> {
    let (at, buffer) = match (&slot.body, &slot.progress.found) {
        (OpBody::Read { at, into: buffer } | OpBody::Write { at, from: buffer }, _) => {
            (*at, buffer)
        }
        (OpBody::CompareSwap { at, .. } | OpBody::FetchAdd { at, .. }, Some(found)) => (*at, found),
        (other, _) => unreachable!("only verbs are queued as such, not {other:?}"),
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
    let operation = match slot.body {
        OpBody::Write { .. } => RequestOperation::Write { at, rkey },
        OpBody::CompareSwap { expected, new, .. } => {
            RequestOperation::CompareSwap { at, rkey, expected, new }
        }
        OpBody::FetchAdd { delta, .. } => RequestOperation::FetchAdd { at, rkey, delta },
        _ => RequestOperation::Read { at, rkey },
    };
    wire.push(id, operation, local);
    Ok(())
}

/// Handles a message about a call; returns `false` if the server violates the protocol.
fn take_message(
    wire: &mut QueuePairWire,
    place: usize,
    bytes: usize,
    slots: &mut VerbsOpSlots,
    asks: &mut VecDeque<u64>,
    context: &LinkContext<'_, Verbs>,
) -> bool {
    let Some(header) = wire.places.header(place, bytes) else { return false };
    if !wire.answered() {
        return false;
    }
    let id = header.id;
    // A call that has ended no longer has a slot.
    let Some(slot) = slots.pending(id) else { return true };
    let (server, call) = (slot.server, &mut slot.progress);
    if !matches!(slot.body, OpBody::Call(_)) {
        return false;
    }
    let whole = header.whole as usize;
    match header.kind {
        MessageKind::GoOn => return true,
        MessageKind::Reply => {
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
            slot.body = OpBody::Call(std::mem::take(&mut call.reply));
            context.resources.counters.count_rpc_reply(whole);
            slots.end(id, Ok(()), context.resources);
        }
        MessageKind::TooLarge => {
            let error = FabricError::MessageTooLarge { bytes: whole };
            slots.end(id, Err(error), context.resources);
        }
        MessageKind::Gone => {
            let why = Uncertainty::NotKnownThere;
            let error = FabricError::Indeterminate { server, why };
            slots.end(id, Err(error), context.resources);
        }
        MessageKind::Request | MessageKind::More => return false,
    }
    true
}
