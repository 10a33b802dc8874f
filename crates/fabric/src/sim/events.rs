//! Virtual time: the events to come, and the tasks that wait for a moment.
//!
//! *Invariants*: E1. time never goes back. E2. events of one moment happen in the order in which they
//! were scheduled, so a run is a function of its settings alone.

use super::op::Op;
use super::world::Shared;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What happens at a moment.
#[derive(Debug)]
pub(super) enum Event {
    /// A task waited for this moment; the place of its waker.
    Wake(usize),
    /// The endpoint's thread gets to sending the request.
    Depart(Rc<Op>),
    /// The request's first byte is at the memory server's port.
    Arrive(Rc<Op>),
    /// The request is wholly there and joins the queue for a core.
    Enqueue(Rc<Op>),
    /// A piece of the verb takes effect.
    Effect(Rc<Op>, u8),
    /// The reply's first byte is at the compute server's port.
    ReplyArrive(Rc<Op>),
    /// The completion is there.
    Complete(Rc<Op>),
    /// The operation has run out of time.
    Deadline(Rc<Op>),
    /// The death of the memory server that the operation needs is noticed.
    Lost(Rc<Op>),
    /// A memory server dies.
    KillMemory(u16),
    /// The memory server's process ends, and another begins with empty memory.
    RestartMemory(u16),
    /// A compute server dies.
    KillCompute(u16),
}

impl Event {
    fn kind(&self) -> u64 {
        match self {
            Self::Wake(_) => 1,
            Self::Depart(_) => 2,
            Self::Arrive(_) => 3,
            Self::Enqueue(_) => 4,
            Self::Effect(..) => 5,
            Self::ReplyArrive(_) => 6,
            Self::Complete(_) => 7,
            Self::Deadline(_) => 8,
            Self::Lost(_) => 9,
            Self::KillMemory(_) => 10,
            Self::KillCompute(_) => 11,
            Self::RestartMemory(_) => 12,
        }
    }
}

#[derive(Debug)]
struct Scheduled {
    at_ns: u64,
    sequence: u64,
    event: Event,
}

impl Scheduled {
    /// Moment and sequence as one number: one comparison without a branch.
    #[inline]
    fn key(&self) -> u128 {
        u128::from(self.at_ns) << 64 | u128::from(self.sequence)
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// The earliest is the greatest, as the heap wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// The clock, and what is to happen.
#[derive(Debug, Default)]
pub(super) struct Events {
    now_ns: u64,
    sequence: u64,
    heap: BinaryHeap<Scheduled>,
    /// Wakers of [`Event::Wake`]; a place is free again once its event has happened.
    wakers: Vec<Option<Waker>>,
    /// By place: the compute server that the task runs on, if it runs on any.
    waiting_on: Vec<Option<u16>>,
    vacant: Vec<usize>,
    happened: u64,
    trace_hash: u64,
}

impl Events {
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// How many events there were.
    pub(super) fn happened(&self) -> u64 {
        self.happened
    }

    /// A digest of all events so far: their moments, order and kinds.
    pub(super) fn trace_hash(&self) -> u64 {
        self.trace_hash
    }

    #[inline]
    pub(super) fn schedule(&mut self, at_ns: u64, event: Event) {
        debug_assert!(at_ns >= self.now_ns, "nothing is scheduled in the past");
        self.sequence += 1;
        self.heap.push(Scheduled { at_ns, sequence: self.sequence, event });
    }

    /// The next event, with the clock moved to it.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Event> {
        let Scheduled { at_ns, sequence, event } = self.heap.pop()?;
        self.now_ns = self.now_ns.max(at_ns);
        self.happened += 1;
        let mixed = self.trace_hash ^ at_ns ^ (sequence << 20) ^ (event.kind() << 58);
        self.trace_hash = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        Some(event)
    }

    fn wake_at(&mut self, at_ns: u64, on: Option<u16>, waker: Waker) -> usize {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.wakers.push(None);
            self.waiting_on.push(None);
            self.wakers.len() - 1
        });
        self.wakers[place] = Some(waker);
        self.waiting_on[place] = on;
        self.schedule(at_ns, Event::Wake(place));
        place
    }

    /// The compute server of the task that waits at a place.
    pub(super) fn waits_on(&self, place: usize) -> Option<u16> {
        self.waiting_on[place]
    }

    /// [`Event::Wake`] happens.
    pub(super) fn wake(&mut self, place: usize) {
        self.vacant.push(place);
        if let Some(waker) = self.wakers[place].take() {
            waker.wake();
        }
    }
}

/// Waits for a moment of virtual time.
#[derive(Debug)]
pub(super) struct Until<'a> {
    world: &'a Shared,
    at_ns: u64,
    /// The compute server that it waits on, if it is one.
    on: Option<u16>,
    /// Where the waker is, once the task waits.
    place: Option<usize>,
}

impl<'a> Until<'a> {
    pub(super) fn new(world: &'a Shared, at_ns: u64, on: Option<u16>) -> Self {
        Self { world, at_ns, on, place: None }
    }
}

impl Future for Until<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let world = self.world;
        let mut world = world.borrow_mut();
        let events = &mut world.events;
        match self.place {
            Some(_) if events.now_ns >= self.at_ns => return Poll::Ready(()),
            // Before its moment the place is still this task's. The task may have another waker: a
            // core's task goes from the executor of one run to that of the next.
            Some(place) => match &mut events.wakers[place] {
                Some(waker) => waker.clone_from(context.waker()),
                empty => *empty = Some(context.waker().clone()),
            },
            None => {
                let place = events.wake_at(self.at_ns, self.on, context.waker().clone());
                self.place = Some(place);
            }
        }
        Poll::Pending
    }
}
