//! A link's end of an RDMA connection: the queue pair with its own completion queue, what is under way on it, and the places for
//! messages of calls.
//!
//! *Invariants*: I1. every request of the send queue is counted from its post to its completion; most are not told of,
//! but what completes says that all before it have. The last one of each batch is told, and one of at least every
//! `TOLD` before it, so the queue never fills with what nobody will hear of. I2. the completion queue has room for
//! every request of both sides. I3. there is a place for every answer: a message leaves only with a free number of the window, and
//! the number is free again when the message is known to have been sent and has been answered. I4. when this is gone,
//! the device touches nothing of what was lent any more.
//!
//! *Thread safety*: an endpoint's thread.

use crate::bring_up::{End, Lent};
use crate::device::{Adapter, Patience};
use crate::ffi::Wc;
use crate::objects::{Batch, Channel, Completions, Local, Operation, QueuePair, Room};
use crate::piece::Header;
use crate::places::Places;
use farleaf_fabric::sync::Arc;
use std::collections::VecDeque;
use std::io;

/// At most so many requests in a row are not told of.
const TOLD: usize = 16;
/// The mark of a receive in the id of a request.
const RECEIVED: u64 = 1 << 63;
/// Completions taken at a time.
const COMPLETIONS: usize = 32;

/// What one request of the send queue was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    /// The operation with this id.
    Verb(u64),
    /// The message with this number of the window.
    Message(usize),
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The operation with this id is done.
    Done(u64),
    /// A message of so many bytes is in this place; give the place back.
    Message { place: usize, bytes: usize },
}

#[derive(Debug)]
pub(crate) struct Wire {
    // First: everything else may go only after the device has let go of it (I4).
    pair: QueuePair,
    completions: Arc<Completions>,
    pub(crate) places: Places,
    own: End,
    pub(crate) lent: Lent,
    /// How many requests the send queue takes.
    room: usize,
    /// What is under way, in posting order; the number of the first.
    flights: VecDeque<Flight>,
    first_flight: u64,
    batch: Batch,
    /// Requests since the last one that is told of.
    untold: usize,
    window: usize,
    /// For each number of the window, whether its message is known to have been sent, and answered.
    numbers: Vec<(bool, bool)>,
    free_numbers: Vec<usize>,
    /// Numbers of messages that are to be answered, in the order in which they will be.
    awaited: VecDeque<usize>,
    armed: bool,
}

impl Wire {
    /// A queue pair that is not connected yet, with room for `depth` verbs and `window` messages; its events carry
    /// `token`.
    pub(crate) fn new(
        adapter: &Adapter,
        channel: &Arc<Channel>,
        token: u64,
        depth: usize,
        window: usize,
        psn: u32,
    ) -> io::Result<Self> {
        let limits = adapter.limits;
        let window = window.clamp(1, limits.requests.min(limits.completions / 2).max(1));
        let room = (depth + window).min(limits.requests).min(limits.completions - window);
        let completions = Completions::new(channel, room + window, token)?;
        let queues = Room { sends: room, receives: window };
        let pair = QueuePair::new(&adapter.domain, &completions, None, queues)?;
        let own = adapter.end(&pair, psn);
        Ok(Self {
            pair,
            completions,
            places: Places::new(adapter, 2 * window)?,
            own,
            lent: Lent { rkey: 0, base: 0, bytes: 0 },
            room,
            flights: VecDeque::with_capacity(room),
            first_flight: 0,
            batch: Batch::default(),
            untold: 0,
            window,
            numbers: vec![(true, true); window],
            free_numbers: (0..window).rev().collect(),
            awaited: VecDeque::with_capacity(window),
            armed: false,
        })
    }

    /// This end.
    pub(crate) fn own(&self) -> End {
        self.own
    }

    /// Connects to the server's end, which is ready.
    pub(crate) fn connect(
        &mut self,
        adapter: &Adapter,
        peer: End,
        lent: Lent,
        patience: Patience,
    ) -> io::Result<()> {
        self.lent = lent;
        adapter.connect(&self.pair, self.own, peer, patience, false)?;
        (0..self.window).try_for_each(|place| self.give_back(place))
    }

    /// Whether another request can be posted.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.flights.len() < self.room
    }

    /// Adds an operation to the batch.
    #[inline]
    pub(crate) fn push(&mut self, id: u64, operation: Operation, local: Local) {
        self.add(Flight::Verb(id), operation, local);
    }

    /// Whether another message can be sent.
    #[inline]
    pub(crate) fn has_number(&self) -> bool {
        self.has_room() && !self.free_numbers.is_empty()
    }

    /// Adds a message to the batch: `header`, and the piece of `whole` that it says.
    pub(crate) fn push_message(&mut self, header: &Header, whole: &[u8]) {
        let number = self.free_numbers.pop().expect("somebody has looked whether there is one");
        let local = self.places.put(self.window + number, header, whole);
        self.numbers[number] = (false, false);
        self.awaited.push_back(number);
        self.add(Flight::Message(number), Operation::Send, local);
    }

    fn add(&mut self, flight: Flight, operation: Operation, local: Local) {
        let id = self.first_flight + self.flights.len() as u64;
        self.untold += 1;
        let told = self.untold >= TOLD.min((self.room / 2).max(1));
        if told {
            self.untold = 0;
        }
        self.flights.push_back(flight);
        self.batch.push(id, operation, local, told);
    }

    /// Posts the batch, if there is one, by one doorbell.
    #[inline]
    pub(crate) fn ring(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.untold = 0;
        self.batch.tell_last();
        self.pair.post(&mut self.batch)
    }

    /// Tells `events` what has come, in order.
    ///
    /// # Errors
    /// The connection is broken.
    pub(crate) fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let mut found = [Wc::default(); COMPLETIONS];
        loop {
            let count = self.completions.poll(&mut found)?;
            for done in &found[..count] {
                if done.status != 0 {
                    return Err(io::Error::other(format!("status {}", done.status)));
                }
                if done.wr_id & RECEIVED != 0 {
                    let (place, bytes) = ((done.wr_id & !RECEIVED) as usize, done.byte_len);
                    events.push(Event::Message { place, bytes: bytes as usize });
                } else {
                    self.settle(done.wr_id, events);
                }
            }
            if count < found.len() {
                return Ok(());
            }
        }
    }

    /// The requests up to number `last` are done.
    fn settle(&mut self, last: u64, events: &mut Vec<Event>) {
        while self.first_flight <= last {
            let Some(flight) = self.flights.pop_front() else { return };
            self.first_flight += 1;
            match flight {
                Flight::Verb(id) => events.push(Event::Done(id)),
                Flight::Message(number) => {
                    self.numbers[number].0 = true;
                    self.free(number);
                }
            }
        }
    }

    /// An answer has come; `false` if nothing was to be answered.
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

    /// Whether anything is to come.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !self.flights.is_empty() || !self.awaited.is_empty()
    }

    /// Whether requests are under way.
    pub(crate) fn has_flights(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Has the next completion told; whether it was not to be told already.
    pub(crate) fn arm(&mut self) -> bool {
        !std::mem::replace(&mut self.armed, true) && self.completions.arm().is_ok()
    }

    /// A completion has been told.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }
}
