//! The frames that go over an endpoint's connection to one server.
//!
//! Posting only notes what is to be sent. It is sent when the endpoint's tasks all wait, or when it
//! is much. Frames leave in the order in which operations were posted (K3).
//!
//! *Thread safety*: an endpoint's thread.

use super::endpoint::Tcp;
use super::frame::{Completion, Decoded, decode_completion};
use super::op::{Completed, Progress, complete, encode};
use super::queue::{ByteQueue, Flow};
use crate::endpoint::dial::{Carrier, Lost, Ready};
use crate::endpoint::{Around, Body};
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::net::TcpStream;

type Slots = crate::endpoint::Slots<Progress>;

/// Room for completions that have arrived, and for requests that leave.
const QUEUE_BYTES: usize = 256 * 1024;
/// Receives in one visit, so that a server that never stops sending does not keep the thread.
const RECEIVES: usize = 8;
/// With so much to send, in bytes, sending begins while more is posted.
const SEND_AT_BYTES: usize = 64 * 1024;
/// What a frame is taken to need beside its payload, in bytes.
const FRAME_BYTES: usize = 40;

/// What is to be sent to a server, and what has come from there.
#[derive(Debug, Default)]
pub struct Frames {
    /// Incoming and outgoing bytes. Made when the connection opens first.
    queues: Option<Box<(ByteQueue, ByteQueue)>>,
    /// Operations that have frames to be made, in posting order.
    to_send: VecDeque<u64>,
    /// Roughly how much there is to send, in bytes.
    unsent_bytes: usize,
    /// Whether it waits for the socket to take more.
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

    fn welcomed(&mut self, _: &mut TcpStream, _: &Around<'_, Tcp>) -> Result<Ready, Lost> {
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
        around: &Around<'_, Tcp>,
    ) -> Result<(), Lost> {
        let Some((incoming, _)) = self.queues.as_deref_mut() else { return Ok(()) };
        for _ in 0..RECEIVES {
            let flow = incoming.receive(socket);
            take_completions(incoming, slots, around)?;
            match flow {
                Flow::Closed => return Err(Lost),
                Flow::More => {}
                Flow::Drained | Flow::Blocked => break,
            }
        }
        match self.is_blocked {
            true => self.push(socket, slots, around),
            false => Ok(()),
        }
    }

    #[inline]
    fn send(
        &mut self,
        socket: &mut TcpStream,
        slots: &mut Slots,
        around: &Around<'_, Tcp>,
    ) -> Result<(), Lost> {
        if self.to_send.is_empty() || self.is_blocked {
            return Ok(());
        }
        self.push(socket, slots, around)
    }

    fn clear(&mut self) {
        self.to_send.clear();
        self.unsent_bytes = 0;
    }
}

impl Frames {
    /// Makes frames and sends them, until all is sent or the socket takes no more.
    fn push(
        &mut self,
        socket: &mut TcpStream,
        slots: &mut Slots,
        around: &Around<'_, Tcp>,
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
        around.watch_for(socket, flags).map_err(|_| Lost)
    }
}

/// Takes all completions that have arrived whole. The connection is lost if the server does not
/// speak as agreed.
fn take_completions(
    incoming: &mut ByteQueue,
    slots: &mut Slots,
    around: &Around<'_, Tcp>,
) -> Result<(), Lost> {
    loop {
        let (id, completion, bytes) = match decode_completion(incoming.filled()) {
            Decoded::Frame { id, body, bytes } => (id, body, bytes),
            Decoded::Incomplete => return Ok(()),
            Decoded::Malformed => return Err(Lost),
        };
        // An operation that has ended already finds no slot.
        if let Some(slot) = slots.pending(id) {
            match complete(slot, completion) {
                Completed::InPart => {}
                Completed::Ended(outcome) => {
                    if let Completion::Reply(reply) = completion {
                        around.resources.counters.count_rpc_reply(reply.len());
                    }
                    slots.end(id, outcome, around.resources);
                }
                Completed::Mismatch => return Err(Lost),
            }
        }
        incoming.consume(bytes);
    }
}
