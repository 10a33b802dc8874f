//! The frames on an endpoint's connection to one server.
//!
//! Posting only queues an operation. The queue is sent when all tasks of the endpoint wait, or when
//! it gets long. Frames are sent in the order in which operations were posted (endpoint.K3).
//!
//! *Thread safety*: an endpoint's thread.

use super::endpoint::Tcp;
use super::frame::{Completion, Decoded, decode_completion};
use super::op::{Completed, Progress, complete, encode};
use super::queue::{ByteQueue, Flow};
use crate::endpoint::dial::{Carrier, Lost, Ready};
use crate::endpoint::{Body, LinkContext};
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::net::TcpStream;

type Slots = crate::endpoint::Slots<Progress>;

/// Size of the buffer for received completions, and of that for outgoing requests.
const QUEUE_BYTES: usize = 256 * 1024;
/// Limit on receives in one visit, so that a server that keeps sending does not monopolize the
/// thread.
const RECEIVES: usize = 8;
/// Amount of queued data, in bytes, at which sending begins while more is posted.
const SEND_AT_BYTES: usize = 64 * 1024;
/// Estimated size of a frame without its payload, in bytes.
const FRAME_BYTES: usize = 40;

/// The operations to be sent to a server, and the bytes received from it.
#[derive(Debug, Default)]
pub struct Frames {
    /// Incoming and outgoing bytes. Allocated when the connection first opens.
    queues: Option<Box<(ByteQueue, ByteQueue)>>,
    /// Operations with frames still to be encoded, in posting order.
    to_send: VecDeque<u64>,
    /// Estimated size of the queued frames, in bytes.
    unsent_bytes: usize,
    /// Whether it waits for the socket to become writable.
    is_blocked: bool,
}

impl Carrier<Tcp> for Frames {
    #[inline]
    fn enqueue(&mut self, id: u64, slots: &mut Slots) -> bool {
        let payload_bytes = match slots.pending(id).map(|slot| &slot.body) {
            Some(Body::Write { from, .. }) => from.bytes(),
            Some(Body::Call(request)) => request.len(),
            _ => 0,
        };
        self.to_send.push_back(id);
        self.unsent_bytes += payload_bytes + FRAME_BYTES;
        if self.unsent_bytes < SEND_AT_BYTES {
            return false;
        }
        self.unsent_bytes = 0;
        true
    }

    fn has_work(&self) -> bool {
        !self.to_send.is_empty()
    }

    fn welcomed(&mut self, _: &mut TcpStream, _: &LinkContext<'_, Tcp>) -> Result<Ready, Lost> {
        let fresh = || Box::new((ByteQueue::new(QUEUE_BYTES), ByteQueue::new(QUEUE_BYTES)));
        let queues = self.queues.get_or_insert_with(fresh);
        queues.0.clear();
        queues.1.clear();
        self.is_blocked = false;
        Ok(Ready::Now)
    }

    fn receive(
        &mut self,
        socket: &mut TcpStream,
        slots: &mut Slots,
        context: &LinkContext<'_, Tcp>,
    ) -> Result<(), Lost> {
        let Some((incoming, _)) = self.queues.as_deref_mut() else { return Ok(()) };
        for _ in 0..RECEIVES {
            let flow = incoming.receive(socket);
            take_completions(incoming, slots, context)?;
            match flow {
                Flow::Closed => return Err(Lost),
                Flow::More => {}
                Flow::Drained | Flow::Blocked => break,
            }
        }
        match self.is_blocked {
            true => self.push(socket, slots, context),
            false => Ok(()),
        }
    }

    #[inline]
    fn send(
        &mut self,
        socket: &mut TcpStream,
        slots: &mut Slots,
        context: &LinkContext<'_, Tcp>,
    ) -> Result<(), Lost> {
        if self.to_send.is_empty() || self.is_blocked {
            return Ok(());
        }
        self.push(socket, slots, context)
    }

    fn clear(&mut self) {
        self.to_send.clear();
        self.unsent_bytes = 0;
    }
}

impl Frames {
    /// Encodes frames and sends them, until all are sent or the socket blocks.
    fn push(
        &mut self,
        socket: &mut TcpStream,
        slots: &mut Slots,
        context: &LinkContext<'_, Tcp>,
    ) -> Result<(), Lost> {
        let Some((_, outgoing)) = self.queues.as_deref_mut() else { return Ok(()) };
        self.unsent_bytes = 0;
        let flow = loop {
            while let Some(&id) = self.to_send.front() {
                if slots.pending(id).is_some_and(|slot| !encode(slot, id, outgoing)) {
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
            return Err(Lost);
        }
        let is_blocked = flow == Flow::Blocked;
        if is_blocked == self.is_blocked {
            return Ok(());
        }
        self.is_blocked = is_blocked;
        let flags = match is_blocked {
            true => EventFlags::IN | EventFlags::OUT,
            false => EventFlags::IN,
        };
        context.watch_for(socket, flags).map_err(|_| Lost)
    }
}

/// Takes all complete completions. Returns [`Lost`] if the server violates the protocol.
fn take_completions(
    incoming: &mut ByteQueue,
    slots: &mut Slots,
    context: &LinkContext<'_, Tcp>,
) -> Result<(), Lost> {
    loop {
        let (id, completion, bytes) = match decode_completion(incoming.filled()) {
            Decoded::Frame { id, body, bytes } => (id, body, bytes),
            Decoded::Incomplete => return Ok(()),
            Decoded::Malformed => return Err(Lost),
        };
        // An operation that has ended has no slot any more.
        if let Some(slot) = slots.pending(id) {
            match complete(slot, completion) {
                Completed::InPart => {}
                Completed::Ended(outcome) => {
                    if let Completion::Reply(reply) = completion {
                        context.resources.counters.count_rpc_reply(reply.len());
                    }
                    slots.end(id, outcome, context.resources);
                }
                Completed::Mismatch => return Err(Lost),
            }
        }
        incoming.consume(bytes);
    }
}
