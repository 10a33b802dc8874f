//! Frames that are candidates for eviction, oldest first: the cooling map, and a plain queue as its
//! baseline.
//!
//! The cooling map (Lu et al., §5.2) spreads one FIFO over buckets of a cache line each, so that
//! threads that cool and evict rarely contend. The order is first in, first out only within a
//! bucket.
//!
//! *Invariants*
//! - C7. A frame is in the structure at most once.
//! - C8. Only the thread that takes a frame out, by any of the methods, decides what happens to it.
//!
//! *Thread safety*: any number of threads. `tests/loom.rs` checks the bucket.

use super::FrameId;
use super::mapping::spread;
use farleaf_fabric::sync::{Mutex, lock};
use farleaf_fabric::{prefetch, table};
use std::collections::VecDeque;
use std::fmt::Debug;

/// The structure of cooling frames.
pub trait Cooling: Debug + Send + Sync {
    /// Adds a frame that holds the node `id`. If there was no room, removes the oldest frame and
    /// returns it for eviction.
    fn insert(&self, frame: FrameId, id: u64) -> Option<FrameId>;

    /// Removes the frame that holds the node `id`. Returns whether it was present.
    fn remove(&self, frame: FrameId, id: u64) -> bool;

    /// Removes a frame for eviction: the oldest one of a bucket chosen by `random`.
    fn pop(&self, random: u64) -> Option<FrameId>;

    /// Prefetches what [`Cooling::insert`] of the node `id` will read.
    fn prefetch(&self, _id: u64) {}

    /// Guesses which frame [`Cooling::insert`] of the node `id` would evict, if the guess is cheap.
    fn next_to_go(&self, _id: u64) -> Option<FrameId> {
        None
    }
}

/// Slots per bucket.
const SLOTS: usize = 6;
const EMPTY: u32 = u32::MAX;

/// Six slots, oldest first.
#[derive(Debug)]
struct CoolingSlots([u32; SLOTS]);

impl CoolingSlots {
    fn take(&mut self, slot: usize) -> u32 {
        let taken = self.0[slot];
        self.0.copy_within(slot + 1.., slot);
        self.0[SLOTS - 1] = EMPTY;
        taken
    }
}

/// A bucket of the cooling map: one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub struct CoolingBucket(Mutex<CoolingSlots>);

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<CoolingBucket>() == 64);

impl Default for CoolingBucket {
    fn default() -> Self {
        Self(Mutex::new(CoolingSlots([EMPTY; SLOTS])))
    }
}

impl CoolingBucket {
    /// Adds a frame as the newest. If all slots were taken, removes the oldest and returns it.
    pub fn push(&self, frame: FrameId) -> Option<FrameId> {
        let mut slots = lock(&self.0);
        let free = slots.0.iter().position(|held| *held == EMPTY);
        let oldest = free.is_none().then(|| FrameId::new(slots.take(0)));
        slots.0[free.unwrap_or(SLOTS - 1)] = frame.number();
        oldest
    }

    /// Removes a frame. Returns whether it was present.
    pub fn remove(&self, frame: FrameId) -> bool {
        let mut slots = lock(&self.0);
        let found = slots.0.iter().position(|held| *held == frame.number());
        found.map(|slot| slots.take(slot)).is_some()
    }

    /// The oldest frame, if all slots are taken.
    fn next_to_go(&self) -> Option<FrameId> {
        let slots = lock(&self.0);
        (slots.0[SLOTS - 1] != EMPTY).then(|| FrameId::new(slots.0[0]))
    }

    /// Takes out the oldest frame.
    pub fn pop(&self) -> Option<FrameId> {
        let mut slots = lock(&self.0);
        (slots.0[0] != EMPTY).then(|| FrameId::new(slots.take(0)))
    }
}

/// The cooling map: buckets, hashed by node id.
#[derive(Debug)]
pub struct CoolingMap {
    buckets: Box<[CoolingBucket]>,
}

impl CoolingMap {
    /// A map of about `frames` slots, with at least one bucket.
    pub fn new(frames: usize) -> Self {
        let buckets = frames.div_ceil(SLOTS).max(1);
        Self { buckets: table(buckets, |_| CoolingBucket::default()) }
    }

    fn bucket(&self, random: u64) -> usize {
        ((u128::from(random) * self.buckets.len() as u128) >> 64) as usize
    }

    fn bucket_of(&self, id: u64) -> &CoolingBucket {
        &self.buckets[self.bucket(spread(id))]
    }
}

impl Cooling for CoolingMap {
    fn insert(&self, frame: FrameId, id: u64) -> Option<FrameId> {
        self.bucket_of(id).push(frame)
    }

    fn remove(&self, frame: FrameId, id: u64) -> bool {
        self.bucket_of(id).remove(frame)
    }

    fn pop(&self, random: u64) -> Option<FrameId> {
        let (before, from) = self.buckets.split_at(self.bucket(random));
        from.iter().chain(before).find_map(CoolingBucket::pop)
    }

    fn prefetch(&self, id: u64) {
        prefetch(self.bucket_of(id));
    }

    fn next_to_go(&self, id: u64) -> Option<FrameId> {
        self.bucket_of(id).next_to_go()
    }
}

/// One FIFO queue behind one lock, as in LeanStore: the baseline for the cooling map.
#[derive(Debug)]
pub struct CoolingQueue {
    inner: Mutex<CoolingRing>,
    capacity: usize,
}

#[derive(Debug)]
struct CoolingRing {
    /// Frames, each with the ticket it entered with. An entry whose ticket is not the frame's
    /// current one is stale, because the frame was taken out.
    order: VecDeque<(u32, u64)>,
    /// The current ticket of each frame. 0 is none.
    tickets: Vec<u64>,
    next_ticket: u64,
    held: usize,
}

impl CoolingRing {
    fn pop(&mut self) -> Option<FrameId> {
        while let Some((frame, ticket)) = self.order.pop_front() {
            if self.tickets[frame as usize] == ticket {
                self.tickets[frame as usize] = 0;
                self.held -= 1;
                return Some(FrameId::new(frame));
            }
        }
        None
    }
}

impl CoolingQueue {
    /// A queue for up to `capacity` frames of an arena of `frames` frames.
    pub fn new(capacity: usize, frames: usize) -> Self {
        let queue = CoolingRing {
            order: VecDeque::new(),
            tickets: vec![0; frames],
            next_ticket: 1,
            held: 0,
        };
        Self { inner: Mutex::new(queue), capacity: capacity.max(1) }
    }
}

impl Cooling for CoolingQueue {
    fn insert(&self, frame: FrameId, _id: u64) -> Option<FrameId> {
        let mut queue = lock(&self.inner);
        let oldest = if queue.held >= self.capacity { queue.pop() } else { None };
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.tickets[frame.index()] = ticket;
        queue.order.push_back((frame.number(), ticket));
        queue.held += 1;
        // Only `pop` removes stale entries, so drop them here before they pile up.
        if queue.order.len() > 4 * self.capacity + 64 {
            let CoolingRing { order, tickets, .. } = &mut *queue;
            order.retain(|(frame, ticket)| tickets[*frame as usize] == *ticket);
        }
        oldest
    }

    fn remove(&self, frame: FrameId, _id: u64) -> bool {
        let mut queue = lock(&self.inner);
        let there = std::mem::take(&mut queue.tickets[frame.index()]) != 0;
        queue.held -= usize::from(there);
        there
    }

    fn pop(&self, _random: u64) -> Option<FrameId> {
        lock(&self.inner).pop()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn fifo(cooling: &dyn Cooling, places: u32) {
        let frame = FrameId::new;
        for number in 0..places {
            assert_eq!(cooling.insert(frame(number), 1), None);
        }
        assert_eq!(cooling.insert(frame(places), 1), Some(frame(0)), "the oldest has to go");
        assert!(cooling.remove(frame(2), 1));
        assert!(!cooling.remove(frame(2), 1), "it has been taken out");
        assert_eq!(cooling.insert(frame(2), 1), None, "there is room again");
        let rest: Vec<_> = std::iter::from_fn(|| cooling.pop(0)).map(FrameId::number).collect();
        let expected: Vec<_> = [1].into_iter().chain(3..=places).chain([2]).collect();
        assert_eq!(rest, expected);
    }

    #[test]
    fn both_structures_are_first_in_first_out() {
        fifo(&CoolingMap::new(6), 6);
        fifo(&CoolingQueue::new(6, 16), 6);
    }

    #[test]
    fn the_queue_forgets_those_that_were_taken_out() {
        let queue = CoolingQueue::new(4, 8);
        for round in 0..10_000_u32 {
            let frame = FrameId::new(round % 8);
            assert_eq!(queue.insert(frame, 1), None);
            assert!(queue.remove(frame, 1));
        }
        assert!(lock(&queue.inner).order.len() <= 81);
    }
}
