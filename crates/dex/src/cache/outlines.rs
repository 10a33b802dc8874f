//! What a compute server knows of leaves that are only in the pool: their outlines
//! ([`LeafOutline`]), so that a lookup that misses READs one window of records instead of a page.
//! A leaf that is missed again soon is READ whole, and admitted.
//!
//! Where keys are used together, whole leaves are better: the neighbours of a key are needed next.
//! So one leaf in [`SAMPLED`] is admitted whenever it is missed. If many of these are used again
//! while they cool, all leaves are admitted.
//!
//! ```text
//! bucket  four entries of two words, one cache line
//! entry   leaf   the leaf's address, 0 if the entry is empty, 1 while it is written
//!         known  [when it was last missed:9][outline:55]
//! ```
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - C29. An outline is that of the leaf in the pool, unless the leaf is in a frame. It is noted
//!   before the leaf leaves its frame, and used only under the leaf's I/O mark.
//! - C30. When a compute server gains keys, it forgets all outlines first: others may have changed
//!   leaves that it knew.
//!
//! *Thread safety*: any number of threads. Whoever notes an outline claims the entry by a CAS of
//! its first word. A reader looks at that word before and after it reads the second one. That is
//! enough, because nobody notes an outline of the reader's leaf meanwhile (C29).

use super::ClearedInParts;
use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{GlobalAddr, prefetch, table};
use farleaf_page::LeafOutline;
use std::ops::Range;

const ENTRIES: usize = 4;
const EMPTY: u64 = 0;
const BUSY: u64 = 1;
/// Number of periods that an entry can tell apart.
const PERIODS: u64 = 1 << (u64::BITS - LeafOutline::BITS);
/// A leaf that was missed in this period or in so many before it is missed *again soon*.
const RECENT_PERIODS: u64 = 1;

#[derive(Debug, Default)]
struct OutlineEntry {
    leaf: AtomicU64,
    known: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct OutlineBucket([OutlineEntry; ENTRIES]);

/// One leaf in this many tells whether it pays to admit leaves.
const SAMPLED: u64 = 16;
/// It pays if so many percent of the sampled leaves are used again soon.
const PAYS_PERCENT: u64 = 15;
/// Both counts of sampled leaves are halved when there are so many.
const MAX_SAMPLES: u64 = 512;
/// Sampled leaves that are needed to tell anything.
const MIN_SAMPLES: u64 = 32;

/// The outlines that a compute server keeps.
#[derive(Debug)]
pub struct LeafOutlines {
    buckets: Box<[OutlineBucket]>,
    /// Number of misses of leaves with an outline.
    misses: AtomicU64,
    /// Number of misses in a period.
    period: u64,
    /// Sampled leaves that were admitted, and how many of them were used again soon.
    admitted: AtomicU64,
    used_again: AtomicU64,
}

/// What to READ of a missing leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafRead {
    /// The whole leaf, because nothing is known of it.
    Unknown,
    /// The whole leaf, because it is missed again soon.
    Again,
    /// A window.
    Window(LeafOutline),
}

fn outline_of(known: u64) -> LeafOutline {
    LeafOutline::from_bits(known & ((1 << LeafOutline::BITS) - 1))
}

impl LeafOutlines {
    /// Keeps outlines in `bytes` bytes, without any so far. A leaf that is missed twice within
    /// `soon` misses is missed again soon.
    pub fn new(bytes: u64, soon: u64) -> Self {
        let buckets = (bytes as usize / size_of::<OutlineBucket>()).max(1);
        Self {
            buckets: table(buckets, |_| OutlineBucket::default()),
            misses: AtomicU64::new(0),
            period: soon.max(1),
            admitted: AtomicU64::new(0),
            used_again: AtomicU64::new(0),
        }
    }

    fn spread(leaf: GlobalAddr) -> u64 {
        leaf.to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn bucket(&self, leaf: GlobalAddr) -> &[OutlineEntry; ENTRIES] {
        let at = (u128::from(Self::spread(leaf)) * self.buckets.len() as u128) >> u64::BITS;
        &self.buckets[at as usize].0
    }

    /// The current period.
    fn now(&self) -> u64 {
        self.misses.load(Ordering::Relaxed) / self.period % PERIODS
    }

    /// How many periods ago an entry was last missed.
    fn age(now: u64, known: u64) -> u64 {
        (now + PERIODS - (known >> LeafOutline::BITS)) % PERIODS
    }

    /// Prefetches what tells about a leaf.
    #[inline]
    pub fn prefetch(&self, leaf: GlobalAddr) {
        prefetch(self.bucket(leaf));
    }

    /// Counts a miss, and returns its period.
    fn count_miss(&self) -> u64 {
        self.misses.fetch_add(1, Ordering::Relaxed) / self.period % PERIODS
    }

    /// Whether a leaf of these bits is admitted whenever it is missed, and the others are judged
    /// by it.
    fn is_sampled(leaf: GlobalAddr) -> bool {
        (Self::spread(leaf) >> 24).is_multiple_of(SAMPLED)
    }

    /// Whether a missed leaf is admitted because it is a sample, or because that pays.
    fn is_admitted(&self, leaf: GlobalAddr) -> bool {
        let used_again = self.used_again.load(Ordering::Relaxed);
        if !Self::is_sampled(leaf) {
            let admitted = self.admitted.load(Ordering::Relaxed);
            return admitted >= MIN_SAMPLES && used_again * 100 > admitted * PAYS_PERCENT;
        }
        // If threads meet here, a sample is lost.
        let admitted = self.admitted.fetch_add(1, Ordering::Relaxed) + 1;
        if admitted >= MAX_SAMPLES {
            self.admitted.store(admitted / 2, Ordering::Relaxed);
            self.used_again.store(used_again / 2, Ordering::Relaxed);
        }
        true
    }

    /// Notes that a leaf was used again while it was cooling.
    pub fn reheat(&self, leaf: GlobalAddr) {
        let (id, now) = (leaf.to_bits(), self.now());
        if !Self::is_sampled(leaf) {
            return;
        }
        let entries = self.bucket(leaf).iter();
        let mut held = entries.filter(|entry| entry.leaf.load(Ordering::Relaxed) == id);
        let Some(entry) = held.next() else { return };
        let known = entry.known.load(Ordering::Relaxed);
        if Self::age(now, known) > RECENT_PERIODS {
            return;
        }
        // An admission counts once: the leaf was missed long ago from now on.
        let long_ago = (now + PERIODS - RECENT_PERIODS - 1) % PERIODS;
        let counted = long_ago << LeafOutline::BITS | outline_of(known).to_bits();
        let swap =
            entry.known.compare_exchange(known, counted, Ordering::Relaxed, Ordering::Relaxed);
        if swap.is_ok() {
            self.used_again.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The entry of a leaf, and its second word. The caller holds the leaf's I/O mark.
    fn held(&self, leaf: GlobalAddr) -> Option<(&OutlineEntry, u64)> {
        let is_held = |entry: &&OutlineEntry| entry.leaf.load(Ordering::Acquire) == leaf.to_bits();
        let entry = self.bucket(leaf).iter().find(is_held)?;
        // If this is what another thread has noted of another leaf, the entry was claimed before.
        let known = entry.known.load(Ordering::Acquire);
        is_held(&entry).then_some((entry, known))
    }

    /// The outline of a leaf, if it is known. The caller holds the leaf's I/O mark.
    pub fn outline(&self, leaf: GlobalAddr) -> Option<LeafOutline> {
        self.held(leaf).map(|(_, known)| outline_of(known))
    }

    /// Tells what to READ of a leaf that is missed, and remembers the miss. The caller holds the
    /// leaf's I/O mark.
    pub fn miss(&self, leaf: GlobalAddr) -> LeafRead {
        let Some((entry, known)) = self.held(leaf) else { return LeafRead::Unknown };
        let (now, outline) = (self.count_miss(), outline_of(known));
        let seen = now << LeafOutline::BITS | outline.to_bits();
        // If the entry is another leaf's by now, only its time of the last miss may change.
        let _ = entry.known.compare_exchange(known, seen, Ordering::Relaxed, Ordering::Relaxed);
        let is_admitted = self.is_admitted(leaf);
        match is_admitted || Self::age(now, known) <= RECENT_PERIODS {
            true => LeafRead::Again,
            false => LeafRead::Window(outline),
        }
    }

    /// Notes the outline of a leaf that is leaving its frame, or forgets the leaf.
    pub fn note(&self, leaf: GlobalAddr, outline: Option<LeafOutline>) {
        let (id, now) = (leaf.to_bits(), self.now());
        let bucket = self.bucket(leaf);
        let held = bucket.iter().find(|entry| entry.leaf.load(Ordering::Relaxed) == id);
        let Some(outline) = outline else {
            if let Some(entry) = held {
                // If another thread has claimed the entry, it is not this leaf's any more.
                let _ =
                    entry.leaf.compare_exchange(id, EMPTY, Ordering::Relaxed, Ordering::Relaxed);
            }
            return;
        };
        let oldest = || {
            bucket.iter().max_by_key(|entry| match entry.leaf.load(Ordering::Relaxed) {
                EMPTY => PERIODS,
                BUSY => 0,
                _ => Self::age(now, entry.known.load(Ordering::Relaxed)),
            })
        };
        let Some(entry) = held.or_else(oldest) else { return };
        let before = entry.leaf.load(Ordering::Relaxed);
        let claimed = before != BUSY
            && entry
                .leaf
                .compare_exchange(before, BUSY, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        // Otherwise another thread writes this entry, and nothing is known of this leaf.
        if claimed {
            let known = now << LeafOutline::BITS | outline.to_bits();
            entry.known.store(known, Ordering::Release);
            entry.leaf.store(id, Ordering::Release);
        }
    }

    /// Notes the outline of a leaf unless something is known of it. Returns whether nothing was and
    /// the outline is enough. The caller holds the leaf's I/O mark.
    pub fn note_unknown(&self, leaf: GlobalAddr, outline: LeafOutline) -> bool {
        let is_held = |entry: &OutlineEntry| entry.leaf.load(Ordering::Relaxed) == leaf.to_bits();
        if self.bucket(leaf).iter().any(is_held) {
            return false;
        }
        self.count_miss();
        self.note(leaf, Some(outline));
        !self.is_admitted(leaf)
    }
}

impl ClearedInParts for LeafOutlines {
    fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Forgets the leaves in this part of the table, but those that are being noted now.
    fn clear_part(&self, part: Range<usize>) {
        for entry in self.buckets[part].iter().flat_map(|bucket| &bucket.0) {
            let leaf = entry.leaf.load(Ordering::Relaxed);
            if leaf > BUSY {
                let _ =
                    entry.leaf.compare_exchange(leaf, EMPTY, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    /// A leaf that is no sample.
    fn leaf(number: u64) -> GlobalAddr {
        all(false).nth(number as usize).unwrap()
    }

    fn all(are_sampled: bool) -> impl Iterator<Item = GlobalAddr> {
        let addresses = (1..).map(|number: u64| GlobalAddr::new(ServerId::new(1), number * 1024));
        addresses.filter(move |leaf| LeafOutlines::is_sampled(*leaf) == are_sampled)
    }

    fn outline(records: usize) -> LeafOutline {
        LeafOutline::new(records, |slot| slot as u64, (0, Some(64))).unwrap()
    }

    #[test]
    fn a_leaf_that_is_missed_again_soon_is_wanted_whole() {
        let outlines = LeafOutlines::new(64 * 64, 10);
        assert_eq!(outlines.miss(leaf(1)), LeafRead::Unknown);
        outlines.note(leaf(1), Some(outline(20)));
        // It has just left its frame.
        assert_eq!(outlines.miss(leaf(1)), LeafRead::Again);
        outlines.note(leaf(2), Some(outline(30)));
        for _ in 0..30 {
            let _ = outlines.miss(leaf(2));
        }
        assert_eq!(outlines.miss(leaf(1)), LeafRead::Window(outline(20)));
        assert_eq!(outlines.miss(leaf(1)), LeafRead::Again);
        outlines.note(leaf(1), None);
        assert_eq!(outlines.miss(leaf(1)), LeafRead::Unknown);
        assert_eq!(outlines.miss(leaf(2)), LeafRead::Again);
        outlines.clear();
        assert_eq!(outlines.miss(leaf(2)), LeafRead::Unknown);
    }

    #[test]
    fn a_full_bucket_forgets_the_leaf_that_was_missed_longest_ago() {
        let outlines = LeafOutlines::new(1, 1);
        for number in 1..=4 {
            outlines.note(leaf(number), Some(outline(number as usize)));
        }
        for number in [1, 2, 4, 1, 2, 4] {
            let _ = outlines.miss(leaf(number));
        }
        outlines.note(leaf(5), Some(outline(5)));
        assert_eq!(outlines.miss(leaf(3)), LeafRead::Unknown);
        for number in [1, 2, 4, 5] {
            assert_ne!(outlines.miss(leaf(number)), LeafRead::Unknown, "{number}");
        }
        // Another outline of the same leaf takes the place of the former one.
        outlines.note(leaf(2), Some(outline(9)));
        for number in [1, 4, 5, 1, 4, 5] {
            let _ = outlines.miss(leaf(number));
        }
        assert_eq!(outlines.miss(leaf(2)), LeafRead::Window(outline(9)));
    }

    #[test]
    fn leaves_are_admitted_while_samples_are_used_again() {
        let outlines = LeafOutlines::new(1 << 16, 1);
        let other = leaf(1);
        outlines.note(other, Some(outline(20)));
        let look = |outlines: &LeafOutlines| {
            let _ = (outlines.count_miss(), outlines.count_miss(), outlines.count_miss());
            outlines.miss(other)
        };
        for (used_again, then) in [(false, LeafRead::Window(outline(20))), (true, LeafRead::Again)]
        {
            for sample in all(true).take(400) {
                outlines.note(sample, Some(outline(9)));
                assert_eq!(outlines.miss(sample), LeafRead::Again);
                if used_again {
                    outlines.reheat(sample);
                }
            }
            assert_eq!(look(&outlines), then);
        }
        // Late uses do not count.
        for sample in all(true).take(1_000) {
            outlines.note(sample, Some(outline(9)));
            assert_eq!(outlines.miss(sample), LeafRead::Again);
            assert_ne!(look(&outlines), LeafRead::Unknown);
            outlines.reheat(sample);
        }
        assert_eq!(look(&outlines), LeafRead::Window(outline(20)));
    }
}
