//! Hot records: a table of single records in front of the tree, so that a lookup of a popular key
//! needs neither a descent nor its leaf.
//!
//! A record here is a copy. Every change goes to the leaf, in its frame or in the pool, as without
//! this table. So nothing here is ever written back.
//!
//! ```text
//! bucket   state, tags, seven records: two cache lines
//! state    [changes that have begun:43][changes in progress:20][locked:1]
//! tags     for each record [use count:2][tag:7]; the tag is 0 where there is no record
//! record   hash of the key, which is the key in another form; value
//! ```
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - C31. A record in the table is that of its leaf. A change first removes the record, and puts
//!   the new one in only if no other change of a key of the bucket has overlapped. A lookup that
//!   has READ a leaf puts the record in only if no such change has begun since before the READ.
//! - C32. A record counts only while its key is owned, which is looked up first. When a compute
//!   server gains keys, it forgets all records first: others may have changed them.
//!
//! *Thread safety*: any number of threads. Nobody waits: who finds a bucket locked goes without the
//! record. Who holds the lock makes a record visible only if the state is still the one that it
//! locked.

use super::ClearedInParts;
use farleaf_fabric::sync::{AtomicU64, Ordering, fence};
use farleaf_fabric::{prefetch, table};
use std::ops::Range;

/// Records of a bucket.
const RECORDS: usize = 7;
const LOCKED: u64 = 1;
const IN_PROGRESS: u64 = 1 << 1;
const BEGUN: u64 = 1 << 21;
const TAG_BITS: u32 = 7;
const TAG: u64 = (1 << TAG_BITS) - 1;
const SLOT_BITS: u32 = TAG_BITS + 2;
const MAX_USES: u64 = 3;
/// How often a lookup begins again because its bucket has changed meanwhile.
const LOOKS: u32 = 4;

#[derive(Debug, Default)]
#[repr(align(128))]
struct RecordBucket {
    state: AtomicU64,
    tags: AtomicU64,
    records: [[AtomicU64; 2]; RECORDS],
}

/// The hot records of a compute server.
#[derive(Debug)]
pub struct HotRecords {
    buckets: Box<[RecordBucket]>,
}

/// The state of a bucket before a leaf was READ.
#[derive(Clone, Copy, Debug)]
pub struct RecordTicket(u64);

/// A change in progress of one record. If it is dropped, the record stays out of the table.
#[derive(Debug)]
pub struct RecordChange<'a> {
    bucket: &'a RecordBucket,
    hash: u64,
    /// The state of the bucket when the change had begun, if no other one was in progress.
    alone: Option<u64>,
}

fn tag_of(hash: u64) -> u64 {
    1 + hash % TAG
}

fn shift(slot: usize) -> u32 {
    slot as u32 * SLOT_BITS
}

fn tag_at(tags: u64, slot: usize) -> u64 {
    tags >> shift(slot) & TAG
}

fn uses_at(tags: u64, slot: usize) -> u64 {
    tags >> (shift(slot) + TAG_BITS) & MAX_USES
}

/// The tags with this slot empty.
fn without(tags: u64, slot: usize) -> u64 {
    tags & !(((1 << SLOT_BITS) - 1) << shift(slot))
}

/// The slot to put a record into, and the tags with that slot empty: an empty slot, or that of the
/// least used record. All others then count fewer uses.
fn make_room(tags: u64, from: usize) -> (usize, u64) {
    if let Some(slot) = (0..RECORDS).find(|slot| tag_at(tags, *slot) == 0) {
        return (slot, without(tags, slot));
    }
    let fewest = (0..RECORDS).map(|slot| uses_at(tags, slot)).min().unwrap_or(0);
    let slots = (0..RECORDS).map(|place| (from + place) % RECORDS);
    let victim = slots.into_iter().find(|slot| uses_at(tags, *slot) == fewest).unwrap_or(0);
    let fewer = (0..RECORDS).fold(tags, |tags, slot| tags - (fewest << (shift(slot) + TAG_BITS)));
    (victim, without(fewer, victim))
}

impl RecordBucket {
    /// The slots whose tags are that of `hash`.
    fn candidates(tags: u64, hash: u64) -> impl Iterator<Item = usize> {
        let tag = tag_of(hash);
        (0..RECORDS).filter(move |slot| tag_at(tags, *slot) == tag)
    }

    /// Empties a slot if its tag is still `tag`.
    fn empty(&self, slot: usize, tag: u64) {
        // Only this and the lock's holder change tags; lookups count uses.
        let mut tags = self.tags.load(Ordering::Relaxed);
        while tag_at(tags, slot) == tag {
            let fewer = without(tags, slot);
            match self.tags.compare_exchange(tags, fewer, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => tags = now,
            }
        }
    }

    /// The slot of the record of `hash`.
    fn find(&self, tags: u64, hash: u64) -> Option<usize> {
        Self::candidates(tags, hash)
            .find(|slot| self.records[*slot][0].load(Ordering::Relaxed) == hash)
    }

    /// Removes the record of `hash`.
    fn remove(&self, hash: u64) {
        if let Some(slot) = self.find(self.tags.load(Ordering::Acquire), hash) {
            self.empty(slot, tag_of(hash));
        }
    }

    /// Puts a record in and goes from the state `locked`, which the caller has set, to `then`. If
    /// the state has changed, the record is out again and the state is not `then`.
    fn put(&self, (hash, value): (u64, u64), locked: u64, then: u64) -> bool {
        // Who sees one of the words below sees that the bucket is locked, or what came after.
        fence(Ordering::Release);
        let mut tags = self.tags.load(Ordering::Relaxed);
        let slot = loop {
            // Two lookups that have missed together put the same record in, one after the other.
            let (slot, room) = match self.find(tags, hash) {
                Some(slot) => (slot, without(tags, slot)),
                None => make_room(tags, (locked >> 21) as usize % RECORDS),
            };
            match self.tags.compare_exchange(tags, room, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break slot,
                Err(now) => tags = now,
            }
        };
        let [key, held] = &self.records[slot];
        key.store(hash, Ordering::Relaxed);
        held.store(value, Ordering::Relaxed);
        self.tags.fetch_or(tag_of(hash) << shift(slot), Ordering::AcqRel);
        let unlocked =
            self.state.compare_exchange(locked, then, Ordering::Release, Ordering::Relaxed);
        if unlocked.is_err() {
            self.empty(slot, tag_of(hash));
        }
        unlocked.is_ok()
    }
}

impl HotRecords {
    /// Keeps records in `bytes` bytes, none so far.
    pub fn new(bytes: u64) -> Self {
        let buckets = (bytes as usize / size_of::<RecordBucket>()).max(1);
        Self { buckets: table(buckets, |_| RecordBucket::default()) }
    }

    #[inline]
    fn bucket(&self, hash: u64) -> &RecordBucket {
        &self.buckets[((u128::from(hash) * self.buckets.len() as u128) >> u64::BITS) as usize]
    }

    /// Prefetches the lines of the record of `hash`.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let bucket = self.bucket(hash);
        prefetch(&bucket.state);
        prefetch(&bucket.records[RECORDS - 1]);
    }

    /// The value of the record of `hash`, if it is in the table.
    #[inline]
    pub fn look(&self, hash: u64) -> Option<u64> {
        let bucket = self.bucket(hash);
        for _ in 0..LOOKS {
            let state = bucket.state.load(Ordering::Acquire);
            if state & LOCKED != 0 {
                return None;
            }
            let tags = bucket.tags.load(Ordering::Acquire);
            let slot = bucket.find(tags, hash)?;
            let value = bucket.records[slot][1].load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if bucket.state.load(Ordering::Relaxed) == state {
                if uses_at(tags, slot) < MAX_USES {
                    let used = tags + (1 << (shift(slot) + TAG_BITS));
                    // If another thread changes the tags, this use is not counted.
                    let _ = bucket.tags.compare_exchange(
                        tags,
                        used,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                }
                return Some(value);
            }
        }
        None
    }

    /// The right to put the record of `hash` in, if its leaf is read from now on. `None` while a
    /// change is in progress, unless a planted bug `ignores` it.
    pub fn ticket(&self, hash: u64, ignores: bool) -> Option<RecordTicket> {
        let state = self.bucket(hash).state.load(Ordering::Acquire);
        let in_progress = (state % BEGUN) & !LOCKED != 0;
        (state & LOCKED == 0 && (ignores || !in_progress)).then_some(RecordTicket(state))
    }

    /// Puts the record of `hash` in, unless a change has begun since `ticket` was taken.
    pub fn put(&self, ticket: RecordTicket, hash: u64, value: u64) {
        let (bucket, RecordTicket(state)) = (self.bucket(hash), ticket);
        let locked = state | LOCKED;
        let lock =
            bucket.state.compare_exchange(state, locked, Ordering::Acquire, Ordering::Relaxed);
        if lock.is_ok() && !bucket.put((hash, value), locked, state.wrapping_add(BEGUN)) {
            bucket.state.fetch_sub(LOCKED, Ordering::Release);
        }
    }

    /// Begins a change of the record of `hash`, and removes it, unless a planted bug `keeps_it`.
    pub fn begin_change(&self, hash: u64, keeps_it: bool) -> RecordChange<'_> {
        let bucket = self.bucket(hash);
        let before = bucket.state.fetch_add(BEGUN + IN_PROGRESS, Ordering::AcqRel);
        // Who is putting the record in now sees at its end that the state has changed.
        if !keeps_it {
            bucket.remove(hash);
        }
        let is_alone = (before % BEGUN) & !LOCKED == 0;
        let alone = is_alone.then(|| (before & !LOCKED).wrapping_add(BEGUN + IN_PROGRESS));
        RecordChange { bucket, hash, alone }
    }
}

impl ClearedInParts for HotRecords {
    fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Forgets the records in this part of the table, and whoever has READ a leaf before puts
    /// nothing in.
    fn clear_part(&self, part: Range<usize>) {
        for bucket in &self.buckets[part] {
            bucket.state.fetch_add(BEGUN, Ordering::AcqRel);
            // Not a store, which loom takes for unordered beside an exchange that it comes after.
            bucket.tags.swap(0, Ordering::AcqRel);
        }
    }
}

impl RecordChange<'_> {
    /// Ends the change. If the leaf now has `value` for the key, puts the record in.
    pub fn end(self, value: Option<u64>) {
        let (Some(value), Some(begun)) = (value, self.alone) else { return };
        let (state, locked) = (&self.bucket.state, begun | LOCKED);
        if state.compare_exchange(begun, locked, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        let then = (begun - IN_PROGRESS).wrapping_add(BEGUN);
        match self.bucket.put((self.hash, value), locked, then) {
            true => std::mem::forget(self),
            false => drop(state.fetch_sub(LOCKED, Ordering::Release)),
        }
    }
}

impl Drop for RecordChange<'_> {
    fn drop(&mut self) {
        self.bucket.state.fetch_sub(IN_PROGRESS, Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Hashes that fall into one bucket.
    fn table_of_one() -> HotRecords {
        HotRecords::new(1)
    }

    fn put(records: &HotRecords, hash: u64, value: u64) {
        records.put(records.ticket(hash, false).unwrap(), hash, value);
    }

    #[test]
    fn a_full_bucket_loses_a_record_that_was_used_least() {
        let records = table_of_one();
        for hash in 1..=7 {
            put(&records, hash, hash * 10);
        }
        for hash in [1, 2, 3, 5, 6, 7] {
            assert_eq!(records.look(hash), Some(hash * 10));
        }
        put(&records, 8, 80);
        assert_eq!(records.look(4), None);
        assert_eq!(records.look(8), Some(80));
        for hash in [1, 2, 3, 5, 6, 7] {
            assert_eq!(records.look(hash), Some(hash * 10));
        }
        // One record is there once: seven others would fill the bucket.
        for _ in 0..9 {
            put(&records, 8, 80);
        }
        assert!([1, 2, 3, 5, 6, 7].iter().all(|hash| records.look(*hash).is_some()));
        records.clear();
        assert!((1..300).all(|hash| records.look(hash).is_none()));
        // Records with the same tag are told apart.
        put(&records, 8, 80);
        put(&records, 8 + TAG, 81);
        assert_eq!((records.look(8), records.look(8 + TAG)), (Some(80), Some(81)));
    }

    #[test]
    fn a_changed_record_is_back_only_after_its_change() {
        let records = table_of_one();
        put(&records, 1, 10);
        let early = records.ticket(1, false).unwrap();
        let change = records.begin_change(1, false);
        assert_eq!(records.look(1), None);
        assert!(records.ticket(1, false).is_none(), "a leaf that is READ now may be old soon");
        records.put(early, 1, 10);
        assert_eq!(records.look(1), None);
        change.end(Some(11));
        assert_eq!(records.look(1), Some(11));
        records.put(early, 1, 10);
        assert_eq!(records.look(1), Some(11));
        // A removal, and a change that nobody answered.
        records.begin_change(1, false).end(None);
        assert_eq!(records.look(1), None);
        put(&records, 1, 12);
        drop(records.begin_change(1, false));
        assert_eq!(records.look(1), None);
        records.begin_change(1, false).end(Some(13));
        assert_eq!(records.look(1), Some(13));
    }

    #[test]
    fn of_changes_that_overlap_none_puts_its_record_in() {
        let records = table_of_one();
        for ends_first in [0, 1] {
            put(&records, 1, 10);
            let first = records.begin_change(1, false);
            let second = records.begin_change(1, false);
            let (now, then) = if ends_first == 0 { (first, second) } else { (second, first) };
            now.end(Some(11));
            assert!(records.ticket(1, false).is_none());
            then.end(Some(12));
            assert_eq!(records.look(1), None);
            assert!(records.ticket(1, false).is_some());
        }
    }

    #[test]
    fn who_reads_while_all_is_forgotten_puts_nothing_in() {
        let records = table_of_one();
        let ticket = records.ticket(1, false).unwrap();
        records.clear();
        records.put(ticket, 1, 10);
        assert_eq!(records.look(1), None);
    }
}
