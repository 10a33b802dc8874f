//! The numbers of versions, and which of them are settled.
//!
//! A compute server has one counter. Every version gets a number from it, and the version with the
//! higher number is the newer one. Taking a number and linking the version are two steps, so a
//! version may appear after one with a higher number. A number is *settled* once this can no longer
//! happen: its version is linked, or there will be none.
//!
//! *Invariants* (`docs/internals/memtable.md`)
//! - memtable.Q1. A writer announces a number that is not above its own before it takes its own,
//!   and withdraws it after its version is linked or abandoned.
//! - memtable.Q7. A bound is settled if it is below the counter and no announced number is at or
//!   below it. The versions up to a bound that was found settled never change, although a writer
//!   that announces slowly can make the check say no again.
//!
//! *Thread safety*: any number of threads. Each writer has a seat of its own, on its own cache
//! line. Checked by `tests/loom/memtable.rs`.

use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, load_to_change, lock};
use std::collections::BTreeMap;

/// A seat that announces nothing.
const NOTHING: u64 = u64::MAX;

#[derive(Debug)]
#[repr(align(128))]
struct AnnouncementLine(AtomicU64);

/// The counter of a compute server, the announcements of its writers and its snapshots.
#[derive(Debug)]
pub struct Sequences {
    /// The next number. The first one is 1, so that 0 is the bound of an empty index.
    next: AnnouncementLine,
    announced: Box<[AnnouncementLine]>,
    /// Seats at or above this one were never taken, so that a check need not look at them.
    seats_used: AtomicU64,
    free_seats: Mutex<Vec<usize>>,
    /// How many snapshots have each bound.
    snapshots: Mutex<BTreeMap<u64, usize>>,
    /// MemTables made so far.
    tables: AtomicU64,
}

impl Sequences {
    /// Creates a counter at 1, with seats for `seats` concurrent writers.
    pub fn new(seats: usize) -> Self {
        Self {
            next: AnnouncementLine(AtomicU64::new(1)),
            announced: (0..seats).map(|_| AnnouncementLine(AtomicU64::new(NOTHING))).collect(),
            seats_used: AtomicU64::new(0),
            free_seats: Mutex::new((0..seats).rev().collect()),
            snapshots: Mutex::new(BTreeMap::new()),
            tables: AtomicU64::new(0),
        }
    }

    /// Takes the next number. Only closing a range and loading an empty tree take one without an
    /// announcement.
    pub(super) fn take(&self) -> u64 {
        // The release half publishes the announcement, and the acquire half shows a writer that its
        // MemTable was closing when a lower number was taken.
        self.next.0.fetch_add(1, Ordering::AcqRel)
    }

    /// Raises the counter above `number`, if it is not. A compute server that takes over a shard
    /// calls this with the highest number in it before it makes the shard's first MemTable, so that
    /// its versions are the newer ones. Snapshots from before do not show the shard.
    pub fn raise(&self, number: u64) {
        self.next.0.fetch_max(number.saturating_add(1), Ordering::AcqRel);
    }

    /// An id that no other MemTable of this compute server has.
    pub(super) fn table_id(&self) -> u64 {
        self.tables.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The highest number taken so far, 0 if there is none. Every write that has ended has a number
    /// up to this one, so a scan that waits until this bound is settled misses none of them.
    pub fn latest(&self) -> u64 {
        self.next.0.load(Ordering::Acquire) - 1
    }

    /// The highest bound that is settled now. A write that has ended may be above it.
    pub fn settled(&self) -> u64 {
        // Read the counter first: a number below it was announced earlier, so the seats show it
        // (Q1).
        let next = self.next.0.load(Ordering::Acquire);
        self.announcements().fold(next, u64::min) - 1
    }

    /// Whether `bound` is settled.
    pub fn is_settled(&self, bound: u64) -> bool {
        bound <= self.settled()
    }

    fn announcements(&self) -> impl Iterator<Item = u64> {
        let used = self.seats_used.load(Ordering::Acquire) as usize;
        // Withdrawing releases the version's link, and this load acquires it.
        self.announced[..used].iter().map(|line| line.0.load(Ordering::Acquire))
    }

    /// The bounds of all snapshots, ascending. A compaction keeps the newest version up to each.
    pub fn snapshot_bounds(&self) -> Vec<u64> {
        lock(&self.snapshots).keys().copied().collect()
    }
}

/// The place from which one writer announces. Dropping it frees the place.
#[derive(Debug)]
pub struct WriterSlot {
    sequences: Arc<Sequences>,
    seat: usize,
}

impl WriterSlot {
    /// Takes a seat. `None` if all are taken.
    pub fn take(sequences: &Arc<Sequences>) -> Option<Self> {
        let mut free = lock(&sequences.free_seats);
        let seat = free.pop()?;
        // Under the lock, so that the value never goes back.
        let used = sequences.seats_used.load(Ordering::Relaxed).max(seat as u64 + 1);
        sequences.seats_used.store(used, Ordering::Release);
        drop(free);
        Some(Self { sequences: Arc::clone(sequences), seat })
    }

    /// The counter that the seat belongs to.
    pub fn sequences(&self) -> &Arc<Sequences> {
        &self.sequences
    }

    /// Announces a number that is not above the one that [`Announcement::take`] will return.
    #[must_use = "dropping the announcement withdraws it"]
    pub fn announce(&mut self) -> Announcement<'_> {
        let Self { sequences, seat } = self;
        let line = &sequences.announced[*seat].0;
        let next = load_to_change(&sequences.next.0, Ordering::Relaxed);
        // A check that reads this announcement instead of the preceding withdrawal must also see
        // what that withdrawal released.
        line.store(next, Ordering::Release);
        Announcement { sequences, line }
    }
}

impl Drop for WriterSlot {
    fn drop(&mut self) {
        lock(&self.sequences.free_seats).push(self.seat);
    }
}

/// An announced number (Q1). Dropping it withdraws it, even when the writer's future is dropped.
#[derive(Debug)]
pub struct Announcement<'s> {
    sequences: &'s Sequences,
    line: &'s AtomicU64,
}

impl Announcement<'_> {
    pub(super) fn sequences(&self) -> &Sequences {
        self.sequences
    }

    /// Takes the number of one version.
    pub fn take(&self) -> u64 {
        self.sequences.take()
    }
}

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        self.line.store(NOTHING, Ordering::Release);
    }
}

/// A snapshot: compactions keep the versions that it can see until it is dropped.
#[derive(Debug)]
pub struct Snapshot {
    sequences: Arc<Sequences>,
    bound: u64,
}

impl Snapshot {
    /// Takes a snapshot of everything written so far. It may be read once its bound is settled.
    pub fn take(sequences: &Arc<Sequences>) -> Self {
        let mut snapshots = lock(&sequences.snapshots);
        // Under the lock: a compaction that listed the bounds earlier has only numbers up to this
        // bound.
        let bound = sequences.latest();
        *snapshots.entry(bound).or_insert(0) += 1;
        drop(snapshots);
        Self { sequences: Arc::clone(sequences), bound }
    }

    /// The highest number that belongs to the snapshot.
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// Whether the snapshot can be read: versions up to its bound no longer appear (Q7).
    pub fn is_settled(&self) -> bool {
        self.sequences.is_settled(self.bound)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let mut snapshots = lock(&self.sequences.snapshots);
        if let Some(count) = snapshots.get_mut(&self.bound) {
            *count -= 1;
            if *count == 0 {
                snapshots.remove(&self.bound);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_bound_waits_for_the_announcements_below_it() {
        let sequences = Arc::new(Sequences::new(2));
        assert_eq!((sequences.latest(), sequences.settled()), (0, 0));
        let (mut slow, mut fast) =
            (WriterSlot::take(&sequences).unwrap(), WriterSlot::take(&sequences).unwrap());
        assert!(WriterSlot::take(&sequences).is_none(), "both seats are taken");
        let first = slow.announce();
        assert_eq!(first.take(), 1);
        for number in 2..5 {
            assert_eq!(fast.announce().take(), number);
        }
        assert_eq!((sequences.latest(), sequences.settled()), (4, 0));
        assert!(!sequences.is_settled(1));
        drop(first);
        assert_eq!(sequences.settled(), 4);
        assert!(!sequences.is_settled(5), "5 was not taken yet");
        drop(slow);
        assert!(WriterSlot::take(&sequences).is_some());
    }

    #[test]
    fn a_raised_counter_goes_on_above() {
        let sequences = Arc::new(Sequences::new(1));
        let mut seat = WriterSlot::take(&sequences).unwrap();
        sequences.raise(0);
        assert_eq!(seat.announce().take(), 1, "0 is below the counter");
        sequences.raise(10);
        assert_eq!((sequences.latest(), sequences.settled()), (10, 10));
        assert_eq!(seat.announce().take(), 11);
        sequences.raise(3);
        assert_eq!(seat.announce().take(), 12, "a counter never goes back");
    }

    #[test]
    fn snapshots_are_listed_while_they_live() {
        let sequences = Arc::new(Sequences::new(1));
        let mut seat = WriterSlot::take(&sequences).unwrap();
        let empty = Snapshot::take(&sequences);
        let announced = seat.announce();
        announced.take();
        let (one, same) = (Snapshot::take(&sequences), Snapshot::take(&sequences));
        assert_eq!((empty.bound(), one.bound(), same.bound()), (0, 1, 1));
        assert!(empty.is_settled() && !one.is_settled());
        drop(announced);
        assert!(one.is_settled());
        drop(one);
        assert_eq!(sequences.snapshot_bounds(), [0, 1]);
        drop((empty, same));
        assert!(sequences.snapshot_bounds().is_empty());
    }
}
