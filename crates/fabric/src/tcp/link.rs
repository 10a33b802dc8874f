//! The frames on an endpoint's connection to one server.
//!
//! Posting only queues an operation. The queue is sent when all tasks of the endpoint wait, or when
//! it gets long. Frames are sent in the order in which operations were posted (endpoint.K3), but a
//! READ for which the window has no room steps aside.
//!
//! *Invariants*: link.L1. No operation overtakes a WRITE, whatever either waits for (F3). link.L2.
//! READs that have stepped aside are sent in order, before any later READ that counts towards the
//! window (window.B3), so later ones cannot starve them. READs that do not count may overtake them.
//! link.L3. Whenever completions make room, waiting operations are sent.
//!
//! *Thread safety*: an endpoint's thread.

use super::endpoint::Tcp;
use super::frame::{Completion, DecodedFrame, decode_completion};
use super::op::{CompletionEffect, EncodedFrames, TcpProgress, complete, encode};
use super::queue::{ByteQueue, SocketFlow};
use super::window::{PayloadWindow, SMALL_BYTES};
use crate::body::OpBody;
use crate::endpoint::LinkContext;
use crate::endpoint::dial::{BringUpState, ConnectionLost, LinkCarrier};
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::net::TcpStream;

type TcpOpSlots = crate::endpoint::OpSlots<TcpProgress>;

/// Size of the buffer for received completions, and of that for outgoing requests. By default, this
/// is the most that the window lets arrive at once.
const QUEUE_BYTES: usize = 512 * 1024;
/// Limit on receives per visit, so that a server that keeps sending does not monopolize the thread.
const RECEIVES: usize = 8;
/// Amount of queued data, in bytes, at which sending begins even if more is being posted.
const SEND_AT_BYTES: usize = 64 * 1024;
/// Estimated size of a frame without its payload, in bytes.
const FRAME_BYTES: usize = 40;

/// The operations to be sent to a server, and the bytes received from it.
#[derive(Debug)]
pub struct FrameQueue {
    /// Incoming and outgoing bytes. Allocated when the connection first opens.
    queues: Option<Box<(ByteQueue, ByteQueue)>>,
    /// Operations whose frames are not all encoded yet, in posting order.
    to_send: VecDeque<u64>,
    /// READs that wait for the window, in posting order; everything in `to_send` was posted later.
    aside: VecDeque<u64>,
    /// The payload in flight, and its limit for each direction.
    window: PayloadWindow,
    window_bytes: usize,
    /// Estimated size of the queued frames, in bytes.
    unsent_bytes: usize,
    /// Whether the link waits for the socket to become writable.
    is_blocked: bool,
}

impl LinkCarrier<Tcp> for FrameQueue {
    #[inline]
    fn enqueue(&mut self, id: u64, slots: &mut TcpOpSlots) -> bool {
        let payload_bytes = match slots.pending(id).map(|slot| &slot.body) {
            Some(OpBody::Write { from, .. }) => from.bytes(),
            Some(OpBody::Call(request)) => request.len(),
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
        !self.to_send.is_empty() || !self.aside.is_empty()
    }

    fn welcomed(
        &mut self,
        _: &mut TcpStream,
        _: &LinkContext<'_, Tcp>,
    ) -> Result<BringUpState, ConnectionLost> {
        let fresh = || Box::new((ByteQueue::new(QUEUE_BYTES), ByteQueue::new(QUEUE_BYTES)));
        let queues = self.queues.get_or_insert_with(fresh);
        queues.0.clear();
        queues.1.clear();
        self.window.clear();
        self.is_blocked = false;
        Ok(BringUpState::Now)
    }

    fn receive(
        &mut self,
        socket: &mut TcpStream,
        slots: &mut TcpOpSlots,
        context: &LinkContext<'_, Tcp>,
    ) -> Result<(), ConnectionLost> {
        for _ in 0..RECEIVES {
            let Some((incoming, _)) = self.queues.as_deref_mut() else { return Ok(()) };
            let flow = incoming.receive(socket);
            take_completions(incoming, &mut self.window, slots, context)?;
            if flow == SocketFlow::Closed {
                return Err(ConnectionLost);
            }
            // Keep the server supplied while this side keeps receiving.
            self.send(socket, slots, context)?;
            if flow != SocketFlow::More {
                break;
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
        slots: &mut TcpOpSlots,
        context: &LinkContext<'_, Tcp>,
    ) -> Result<(), ConnectionLost> {
        if self.is_blocked || !LinkCarrier::<Tcp>::has_work(self) {
            return Ok(());
        }
        self.push(socket, slots, context)
    }

    fn clear(&mut self) {
        self.to_send.clear();
        self.aside.clear();
        self.window.clear();
        self.unsent_bytes = 0;
    }
}

impl FrameQueue {
    /// Creates an empty queue, for a connection that is not open yet.
    pub(super) fn new(window_bytes: usize) -> Self {
        Self {
            queues: None,
            to_send: VecDeque::new(),
            aside: VecDeque::new(),
            window: PayloadWindow::default(),
            window_bytes,
            unsent_bytes: 0,
            is_blocked: false,
        }
    }

    /// Whether the link waits for the socket to become writable.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Removes the limit: from now on, no operation waits for the window.
    pub(super) fn lift_window(&mut self) {
        self.window_bytes = usize::MAX;
    }

    /// Encodes frames and sends them, until all are sent, the rest waits for the window, or the
    /// socket blocks.
    fn push(
        &mut self,
        socket: &mut TcpStream,
        slots: &mut TcpOpSlots,
        context: &LinkContext<'_, Tcp>,
    ) -> Result<(), ConnectionLost> {
        self.unsent_bytes = 0;
        let flow = loop {
            let encoded = self.encode(slots);
            let Some((_, outgoing)) = self.queues.as_deref_mut() else { return Ok(()) };
            match outgoing.send(socket) {
                SocketFlow::Drained if encoded == EncodedFrames::NoSpace => {}
                flow => break flow,
            }
        };
        if flow == SocketFlow::Closed {
            return Err(ConnectionLost);
        }
        let is_blocked = flow == SocketFlow::Blocked;
        if is_blocked == self.is_blocked {
            return Ok(());
        }
        self.is_blocked = is_blocked;
        let flags = match is_blocked {
            true => EventFlags::IN | EventFlags::OUT,
            false => EventFlags::IN,
        };
        context.watch_for(socket, flags).map_err(|_| ConnectionLost)
    }

    /// Encodes frames as long as the queue has space and the window has room for them.
    fn encode(&mut self, slots: &mut TcpOpSlots) -> EncodedFrames {
        let Some((_, outgoing)) = self.queues.as_deref_mut() else { return EncodedFrames::NoRoom };
        let (window, window_bytes) = (&mut self.window, self.window_bytes);
        while let Some(&id) = self.aside.front() {
            let encoded = slots.pending(id).map_or(EncodedFrames::Whole, |slot| {
                encode(slot, id, outgoing, window, window_bytes)
            });
            match encoded {
                EncodedFrames::Whole => self.aside.pop_front(),
                EncodedFrames::NoSpace => return encoded,
                EncodedFrames::NoRoom => break,
            };
        }
        while let Some(&id) = self.to_send.front() {
            if let Some(slot) = slots.pending(id) {
                let is_read = matches!(slot.body, OpBody::Read { .. });
                let encoded = match !self.aside.is_empty() && counts(&slot.body) {
                    true => EncodedFrames::NoRoom,
                    false => encode(slot, id, outgoing, window, window_bytes),
                };
                match encoded {
                    EncodedFrames::Whole => {}
                    EncodedFrames::NoRoom if is_read => {
                        slot.progress.is_aside = true;
                        self.aside.push_back(id);
                    }
                    encoded => return encoded,
                }
            }
            self.to_send.pop_front();
        }
        EncodedFrames::Whole
    }
}

/// Whether the window limits the operation.
fn counts(body: &OpBody) -> bool {
    matches!(body, OpBody::Read { into, .. } if into.bytes() > SMALL_BYTES)
}

/// Takes all complete completions. Returns [`ConnectionLost`] if the server violates the protocol.
fn take_completions(
    incoming: &mut ByteQueue,
    window: &mut PayloadWindow,
    slots: &mut TcpOpSlots,
    context: &LinkContext<'_, Tcp>,
) -> Result<(), ConnectionLost> {
    loop {
        let (id, completion, bytes) = match decode_completion(incoming.filled()) {
            DecodedFrame::Frame { id, body, bytes } => (id, body, bytes),
            DecodedFrame::Incomplete => return Ok(()),
            DecodedFrame::Malformed => return Err(ConnectionLost),
        };
        if !window.complete(&completion) {
            return Err(ConnectionLost);
        }
        // An operation that has ended no longer has a slot.
        if let Some(slot) = slots.pending(id) {
            match complete(slot, completion) {
                CompletionEffect::InPart => {}
                CompletionEffect::Ended(outcome) => {
                    if let Completion::Reply(reply) = completion {
                        context.resources.counters.count_rpc_reply(reply.len());
                    }
                    slots.end(id, outcome, context.resources);
                }
                CompletionEffect::Mismatch => return Err(ConnectionLost),
            }
        }
        incoming.consume(bytes);
    }
}
