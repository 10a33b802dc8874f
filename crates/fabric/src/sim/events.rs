//! Virtual time: the pending events, and the tasks that wait for a time.
//!
//! *Invariants*: events.E1. Time never goes back. events.E2. Events at the same time happen in the
//! order in which they were scheduled, so a run is a function of its settings alone.

use super::op::SimOpHandle;
use super::world::SharedWorld;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// An event at a point in virtual time.
#[derive(Debug)]
pub(super) enum SimEvent {
    /// A task waited for this time; the index of its waker.
    Wake(usize),
    /// The endpoint's thread sends the request.
    Depart(Rc<SimOpHandle>),
    /// The request's first byte reaches the memory server's port.
    Arrive(Rc<SimOpHandle>),
    /// The whole request has arrived and joins the queue for a core.
    Enqueue(Rc<SimOpHandle>),
    /// A piece of the verb takes effect.
    Effect(Rc<SimOpHandle>, u8),
    /// The reply's first byte reaches the compute server's port.
    ReplyArrive(Rc<SimOpHandle>),
    /// The completion has arrived.
    Complete(Rc<SimOpHandle>),
    /// The operation's deadline has passed.
    Deadline(Rc<SimOpHandle>),
    /// The client notices the death of the operation's memory server.
    Lost(Rc<SimOpHandle>),
    /// A memory server dies.
    KillMemory(u16),
    /// The memory server's process ends, and another begins with empty memory.
    RestartMemory(u16),
    /// A compute server dies.
    KillCompute(u16),
}

impl SimEvent {
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
struct ScheduledEvent {
    at_ns: u64,
    sequence: u64,
    event: SimEvent,
}

impl ScheduledEvent {
    /// Time and sequence number combined into one number, which compares without a branch.
    #[inline]
    fn key(&self) -> u128 {
        u128::from(self.at_ns) << 64 | u128::from(self.sequence)
    }
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    /// Reversed, because the heap pops the greatest element.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// The clock and the pending events.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    now_ns: u64,
    sequence: u64,
    heap: BinaryHeap<ScheduledEvent>,
    /// Wakers of [`SimEvent::Wake`]; an index is free again once its event has happened.
    wakers: Vec<Option<Waker>>,
    /// By the same index: the compute server that the task runs on, if any.
    waiting_on: Vec<Option<u16>>,
    vacant: Vec<usize>,
    happened: u64,
    trace_hash: u64,
}

impl EventQueue {
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Number of events so far.
    pub(super) fn happened(&self) -> u64 {
        self.happened
    }

    /// A digest of all events so far: their times, order and kinds.
    pub(super) fn trace_hash(&self) -> u64 {
        self.trace_hash
    }

    #[inline]
    pub(super) fn schedule(&mut self, at_ns: u64, event: SimEvent) {
        debug_assert!(at_ns >= self.now_ns, "cannot schedule an event in the past");
        self.sequence += 1;
        self.heap.push(ScheduledEvent { at_ns, sequence: self.sequence, event });
    }

    /// The next event; advances the clock to it.
    #[inline]
    pub(super) fn next(&mut self) -> Option<SimEvent> {
        let ScheduledEvent { at_ns, sequence, event } = self.heap.pop()?;
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
        self.schedule(at_ns, SimEvent::Wake(place));
        place
    }

    /// The compute server of the task with the waker at `place`.
    pub(super) fn waits_on(&self, place: usize) -> Option<u16> {
        self.waiting_on[place]
    }

    /// Handles [`SimEvent::Wake`].
    pub(super) fn wake(&mut self, place: usize) {
        self.vacant.push(place);
        if let Some(waker) = self.wakers[place].take() {
            waker.wake();
        }
    }
}

/// Waits for a point in virtual time.
#[derive(Debug)]
pub(super) struct UntilVirtualTime<'a> {
    world: &'a SharedWorld,
    at_ns: u64,
    /// The compute server that the task runs on, if any.
    on: Option<u16>,
    /// Index of the waker, once the task waits.
    place: Option<usize>,
}

impl<'a> UntilVirtualTime<'a> {
    pub(super) fn new(world: &'a SharedWorld, at_ns: u64, on: Option<u16>) -> Self {
        Self { world, at_ns, on, place: None }
    }
}

impl Future for UntilVirtualTime<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let world = self.world;
        let mut world = world.borrow_mut();
        let events = &mut world.events;
        match self.place {
            Some(_) if events.now_ns >= self.at_ns => return Poll::Ready(()),
            // Until its time comes, the index belongs to this task. The task may have a new waker,
            // because a core's task moves from the executor of one run to that of the next.
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
