//! When nodes became dirty, for write-back by age.
//!
//! ```text
//! for each frame: since when it is dirty,        shards of queues,
//!                 whether it is queued           the longest dirty frame first
//! ```
//!
//! *Invariants*
//! - C21. A dirty frame is either queued or taken out by a task, which queues it again unless the
//!   frame is clean by then. So the oldest queued entry is at least as old as every dirty node.
//! - C22. A frame is queued at most once, plus once for each of its WRITEs that failed while the
//!   node changed. So the queues are bounded.
//!
//! *Thread safety*: any number of threads. A thread that notes that a frame has become dirty holds
//! the frame's latch.

use super::FrameId;
use farleaf_fabric::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of queues; several, to reduce contention between threads.
const SHARDS: usize = 16;

#[derive(Debug)]
struct DirtyAge {
    /// When the frame last became dirty.
    since_ns: AtomicU64,
    queued: AtomicBool,
}

type AgeQueue = BinaryHeap<Reverse<(u64, FrameId)>>;

/// The ages of a cache's dirty nodes.
#[derive(Debug)]
pub(crate) struct DirtyAges {
    /// The limit: nodes are written back before they have been dirty for this long. 0 means no
    /// limit.
    limit_ns: u64,
    frames: Box<[DirtyAge]>,
    shards: Box<[Mutex<AgeQueue>]>,
    /// Whether some nodes have been dirty for longer than the limit.
    behind: AtomicBool,
}

impl DirtyAges {
    pub(super) fn new(limit_ns: u64, frames: u32) -> Self {
        let age = |_| DirtyAge { since_ns: AtomicU64::new(0), queued: AtomicBool::new(false) };
        let frames = if limit_ns > 0 { frames } else { 0 };
        Self {
            limit_ns,
            frames: (0..frames).map(age).collect(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            behind: AtomicBool::new(false),
        }
    }

    /// Nodes are written back before they have been dirty for this long. 0 means no limit.
    #[inline]
    pub(crate) fn limit_ns(&self) -> u64 {
        self.limit_ns
    }

    /// Whether nodes have been dirty for too long, so that operations that change nodes should help
    /// to write back.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    pub(crate) fn set_behind(&self, behind: bool) {
        if self.is_behind() != behind {
            self.behind.store(behind, Ordering::Relaxed);
        }
    }

    fn shard(&self, frame: FrameId) -> &Mutex<AgeQueue> {
        &self.shards[frame.index() % SHARDS]
    }

    /// Records that a frame has become dirty. Call it only if the cache has a limit.
    pub(super) fn note(&self, frame: FrameId, now_ns: u64) {
        self.frames[frame.index()].since_ns.store(now_ns, Ordering::Release);
        self.queue(frame);
    }

    /// When a frame became dirty. Meaningless without a limit.
    pub(super) fn since_ns(&self, frame: FrameId) -> u64 {
        self.frames.get(frame.index()).map_or(0, |age| age.since_ns.load(Ordering::Acquire))
    }

    /// Records that a frame has been dirty since `since_ns` after all, because its WRITE failed. It
    /// may already be queued for a later change.
    pub(super) fn note_again(&self, frame: FrameId, since_ns: u64) {
        let Some(age) = self.frames.get(frame.index()) else { return };
        if age.since_ns.load(Ordering::Acquire) > since_ns {
            age.since_ns.store(since_ns, Ordering::Release);
            age.queued.store(true, Ordering::Release);
            lock(self.shard(frame)).push(Reverse((since_ns, frame)));
        } else {
            self.queue(frame);
        }
    }

    /// Queues a frame unless it is queued.
    pub(crate) fn queue(&self, frame: FrameId) {
        let age = &self.frames[frame.index()];
        if !age.queued.swap(true, Ordering::AcqRel) {
            let since_ns = age.since_ns.load(Ordering::Acquire);
            lock(self.shard(frame)).push(Reverse((since_ns, frame)));
        }
    }

    /// Removes up to `most` frames that became dirty at `until_ns` or earlier and that `is_dirty`
    /// confirms. The caller must queue those that it does not write back again (C21). The search
    /// starts at a random queue.
    pub(crate) fn take(
        &self,
        until_ns: u64,
        most: usize,
        random: u64,
        is_dirty: impl Fn(FrameId) -> bool,
    ) -> Vec<FrameId> {
        let mut taken = Vec::new();
        let first = random as usize % SHARDS;
        for shard in self.shards[first..].iter().chain(&self.shards[..first]) {
            while taken.len() < most
                && let Some(frame) = Self::pop(shard, until_ns)
            {
                let age = &self.frames[frame.index()];
                // A thread that makes the frame dirty after this point queues it again.
                age.queued.swap(false, Ordering::AcqRel);
                if !is_dirty(frame) {
                    continue;
                }
                match age.since_ns.load(Ordering::Acquire) <= until_ns {
                    true => taken.push(frame),
                    false => self.queue(frame),
                }
            }
        }
        taken
    }

    fn pop(shard: &Mutex<AgeQueue>, until_ns: u64) -> Option<FrameId> {
        let mut queue = lock(shard);
        match queue.peek() {
            Some(Reverse((since_ns, _))) if *since_ns <= until_ns => {
                queue.pop().map(|Reverse((_, frame))| frame)
            }
            _ => None,
        }
    }

    /// When the oldest queued frame became dirty. That frame may have been written back since.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        let first =
            |shard: &Mutex<AgeQueue>| lock(shard).peek().map(|Reverse((since_ns, _))| *since_ns);
        self.shards.iter().filter_map(first).min()
    }

    /// All queued frames: every dirty one, and some that have been cleaned since.
    pub(crate) fn queued(&self) -> Vec<(u64, FrameId)> {
        let entries = |shard: &Mutex<AgeQueue>| {
            lock(shard).iter().map(|Reverse(entry)| *entry).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(entries).collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    #[test]
    fn the_longest_dirty_come_first_and_none_is_forgotten() {
        let ages = DirtyAges::new(1_000, 64);
        let dirty = RefCell::new(BTreeSet::new());
        let is_dirty = |frame: FrameId| dirty.borrow().contains(&frame.number());
        for (number, since_ns) in [(1, 10), (17, 20), (2, 30), (3, 40)] {
            dirty.borrow_mut().insert(number);
            ages.note(FrameId::new(number), since_ns);
        }
        let take = |until_ns| {
            let mut taken = ages.take(until_ns, 10, 0, is_dirty);
            taken.sort();
            taken.into_iter().map(FrameId::number).collect::<Vec<_>>()
        };
        assert_eq!(ages.oldest_ns(), Some(10));
        assert_eq!(take(9), []);
        assert_eq!(take(20), [1, 17]);
        // Frame 1 was not written. Frame 17 was written and is dirty again.
        ages.queue(FrameId::new(1));
        ages.note(FrameId::new(17), 50);
        dirty.borrow_mut().remove(&2);
        assert_eq!(take(40), [1, 3], "2 is clean by now");
        assert_eq!((ages.oldest_ns(), take(100)), (Some(50), vec![17]));
        assert_eq!(ages.oldest_ns(), None);
    }

    #[test]
    fn a_frame_is_queued_once_and_under_its_last_age() {
        let ages = DirtyAges::new(1_000, 4);
        let frame = FrameId::new(1);
        for since_ns in [10, 20, 30] {
            ages.note(frame, since_ns);
        }
        assert_eq!(ages.queued().len(), 1);
        assert_eq!(ages.take(20, 10, 3, |_| true), [], "it is younger than its entry");
        assert_eq!(ages.queued(), [(30, frame)]);
        assert_eq!(ages.take(30, 10, 3, |_| true), [frame]);
    }

    #[test]
    fn a_write_that_fails_does_not_make_a_node_younger() {
        let ages = DirtyAges::new(100, 4);
        let (frame, all) = (FrameId::new(1), |_| true);
        ages.note(frame, 10);
        let since_ns = ages.since_ns(frame);
        assert_eq!(ages.take(10, 9, 0, all), [frame]);
        // The node changes while its WRITE is in flight, and the WRITE fails.
        ages.note(frame, 50);
        ages.note_again(frame, since_ns);
        assert_eq!(ages.oldest_ns(), Some(10));
        assert_eq!(ages.take(20, 9, 0, all), [frame]);
        // The node has not changed since, and the WRITE fails again.
        ages.note_again(frame, since_ns);
        assert_eq!(ages.take(20, 9, 0, all), [frame]);
    }
}
