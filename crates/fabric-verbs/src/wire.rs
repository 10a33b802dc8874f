//! The client's end of an RDMA connection: the queue pair with its own completion queue, the
//! requests in flight on it, and the places for call messages.
//!
//! *Invariants*: I1. Every request of the send queue is counted from its post to its completion.
//! Most requests are unsignaled; a completion also completes all requests before it. The last
//! request of each batch is signaled, and so is at least one in `TOLD` before it, so the queue
//! never fills with requests that will not be reported. I2. The completion queue has room for every
//! request of both sides. I3. There is a place for every answer: a message leaves only with a free
//! number of the window, and the number becomes free when the message is known to be sent and has
//! been answered. I4. Once this value is dropped, the device touches none of the lent memory.
//!
//! *Thread safety*: an endpoint's thread.

use crate::bring_up::{AccessibleMemory, ConnectionEnd};
use crate::device::{RdmaAdapter, RetryTimers};
use crate::ffi::Wc;
use crate::objects::{
    CompletionChannel, Completions, LocalMemory, QueueCapacity, QueuePair, RequestBatch,
    RequestOperation,
};
use crate::piece::PieceHeader;
use crate::places::BufferPlaces;
use farleaf_fabric::sync::Arc;
use std::collections::VecDeque;
use std::io;

/// At least one request in this many is signaled.
const TOLD: usize = 16;
/// Bit that marks a receive in a work request's id.
const RECEIVED: u64 = 1 << 63;
/// Completions taken at a time.
const COMPLETIONS: usize = 32;

/// The purpose of a request in the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestPurpose {
    /// The operation with this id.
    Verb(u64),
    /// The message with this number of the window.
    Message(usize),
}

/// A result of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollEvent {
    /// The operation with this id is done.
    Done(u64),
    /// A message of `bytes` bytes is in this place; the caller must give the place back.
    Message { place: usize, bytes: usize },
}

#[derive(Debug)]
pub(crate) struct QueuePairWire {
    // Declared first, so that it is dropped first: the device must release the memory of the other
    // fields (I4).
    pair: QueuePair,
    completions: Arc<Completions>,
    pub(crate) places: BufferPlaces,
    own: ConnectionEnd,
    pub(crate) lent: AccessibleMemory,
    /// Capacity of the send queue.
    room: usize,
    /// Requests in flight, in posting order; `first_flight` is the number of the first.
    flights: VecDeque<RequestPurpose>,
    first_flight: u64,
    batch: RequestBatch,
    /// Requests since the last signaled one.
    untold: usize,
    window: usize,
    /// For each number of the window: whether its message is known to have been sent, and whether
    /// it has been answered.
    numbers: Vec<(bool, bool)>,
    free_numbers: Vec<usize>,
    /// Numbers of unanswered messages, in the order of their answers.
    awaited: VecDeque<usize>,
    armed: bool,
}

impl QueuePairWire {
    /// Creates a queue pair that is not connected yet, with room for `depth` verbs and `window`
    /// messages. Its events carry `token`.
    pub(crate) fn new(
        adapter: &RdmaAdapter,
        channel: &Arc<CompletionChannel>,
        token: u64,
        depth: usize,
        window: usize,
        psn: u32,
    ) -> io::Result<Self> {
        let limits = adapter.limits;
        let window = window.clamp(1, limits.requests.min(limits.completions / 2).max(1));
        let room = (depth + window).min(limits.requests).min(limits.completions - window);
        let completions = Completions::new(channel, room + window, token)?;
        let queues = QueueCapacity { sends: room, receives: window };
        let pair = QueuePair::new(&adapter.domain, &completions, None, queues)?;
        let own = adapter.end(&pair, psn);
        Ok(Self {
            pair,
            completions,
            places: BufferPlaces::new(adapter, 2 * window)?,
            own,
            lent: AccessibleMemory { rkey: 0, base: 0, bytes: 0 },
            room,
            flights: VecDeque::with_capacity(room),
            first_flight: 0,
            batch: RequestBatch::default(),
            untold: 0,
            window,
            numbers: vec![(true, true); window],
            free_numbers: (0..window).rev().collect(),
            awaited: VecDeque::with_capacity(window),
            armed: false,
        })
    }

    /// This end, for the server.
    pub(crate) fn own(&self) -> ConnectionEnd {
        self.own
    }

    /// Connects to the server's end, which is ready.
    pub(crate) fn connect(
        &mut self,
        adapter: &RdmaAdapter,
        peer: ConnectionEnd,
        lent: AccessibleMemory,
        retry_timers: RetryTimers,
    ) -> io::Result<()> {
        self.lent = lent;
        adapter.connect(&self.pair, self.own, peer, retry_timers, false)?;
        (0..self.window).try_for_each(|place| self.give_back(place))
    }

    /// Whether another request can be posted.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.flights.len() < self.room
    }

    /// Adds an operation to the batch.
    #[inline]
    pub(crate) fn push(&mut self, id: u64, operation: RequestOperation, local: LocalMemory) {
        self.add(RequestPurpose::Verb(id), operation, local);
    }

    /// Whether another message can be sent.
    #[inline]
    pub(crate) fn has_number(&self) -> bool {
        self.has_room() && !self.free_numbers.is_empty()
    }

    /// Adds a message to the batch: `header`, and the piece of `whole` that it describes.
    pub(crate) fn push_message(&mut self, header: &PieceHeader, whole: &[u8]) {
        let number = self.free_numbers.pop().expect("the caller has checked `has_number`");
        let local = self.places.put(self.window + number, header, whole);
        self.numbers[number] = (false, false);
        self.awaited.push_back(number);
        self.add(RequestPurpose::Message(number), RequestOperation::Send, local);
    }

    fn add(&mut self, flight: RequestPurpose, operation: RequestOperation, local: LocalMemory) {
        let id = self.first_flight + self.flights.len() as u64;
        self.untold += 1;
        let told = self.untold >= TOLD.min((self.room / 2).max(1));
        if told {
            self.untold = 0;
        }
        self.flights.push_back(flight);
        self.batch.push(id, operation, local, told);
    }

    /// Posts the batch with one doorbell, unless it is empty.
    #[inline]
    pub(crate) fn ring(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.untold = 0;
        self.batch.tell_last();
        self.pair.post(&mut self.batch)
    }

    /// Appends all completed operations and messages to `events`, in order.
    ///
    /// # Errors
    /// The connection is broken.
    pub(crate) fn poll(&mut self, events: &mut Vec<PollEvent>) -> io::Result<()> {
        let mut found = [Wc::default(); COMPLETIONS];
        loop {
            let count = self.completions.poll(&mut found)?;
            for done in &found[..count] {
                if done.status != 0 {
                    return Err(io::Error::other(format!("status {}", done.status)));
                }
                if done.wr_id & RECEIVED != 0 {
                    let (place, bytes) = ((done.wr_id & !RECEIVED) as usize, done.byte_len);
                    events.push(PollEvent::Message { place, bytes: bytes as usize });
                } else {
                    self.settle(done.wr_id, events);
                }
            }
            if count < found.len() {
                return Ok(());
            }
        }
    }

    /// Completes the requests up to number `last`.
    fn settle(&mut self, last: u64, events: &mut Vec<PollEvent>) {
        while self.first_flight <= last {
            let Some(flight) = self.flights.pop_front() else { return };
            self.first_flight += 1;
            match flight {
                RequestPurpose::Verb(id) => events.push(PollEvent::Done(id)),
                RequestPurpose::Message(number) => {
                    self.numbers[number].0 = true;
                    self.free(number);
                }
            }
        }
    }

    /// Records an answer; returns `false` if no message was waiting for one.
    pub(crate) fn answered(&mut self) -> bool {
        let Some(number) = self.awaited.pop_front() else { return false };
        self.numbers[number].1 = true;
        self.free(number);
        true
    }

    fn free(&mut self, number: usize) {
        if self.numbers[number] == (true, true) {
            self.free_numbers.push(number);
        }
    }

    /// Lends a place to the device again.
    pub(crate) fn give_back(&self, place: usize) -> io::Result<()> {
        self.pair.post_receive(self.places.whole(place), RECEIVED | place as u64)
    }

    /// Whether completions or answers are outstanding.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !self.flights.is_empty() || !self.awaited.is_empty()
    }

    /// Whether requests are in flight.
    pub(crate) fn has_flights(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Arms the completion queue; returns whether it was not armed before.
    pub(crate) fn arm(&mut self) -> bool {
        !std::mem::replace(&mut self.armed, true) && self.completions.arm().is_ok()
    }

    /// Records that an event has arrived.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }
}
