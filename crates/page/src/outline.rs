//! What is kept of a leaf that is only in the pool, so that a lookup READs the part of the leaf
//! that can have its key, instead of the whole leaf.
//!
//! ```text
//! [0:9][records:6][where window 7 begins:7] … [where window 1 begins:7]
//! ```
//!
//! A *window* is eight records that lie side by side in a leaf without a deleted
//! record. Where a window begins is told in 128ths of the way from the leaf's low fence to its high
//! fence, so that seven windows fit into a word beside the number of records.
//!
//! *Invariants*
//! - P11. For keys of this leaf, an answer from a window is right whatever the outline says of
//!   keys, and whatever fences it is used with. A key counts as absent only if keys on both sides
//!   of it were read, or if it lies beyond the leaf's first or last record. The number of records
//!   must be right, and none of them deleted.
//!
//! *Thread safety*: plain values.

use std::ops::Range;

/// Number of records of a window: 128 bytes.
const WINDOW_RECORDS: usize = 8;
/// Maximum number of windows of a leaf.
const MAX_WINDOWS: usize = 8;
/// Bits of a separator.
const SEPARATOR_BITS: u32 = 7;
const RECORDS_SHIFT: u32 = SEPARATOR_BITS * (MAX_WINDOWS as u32 - 1);

/// The number of records of a leaf, and where its windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafOutline(u64);

/// What a window tells about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowLookup<V> {
    /// The value of the key.
    Found(V),
    /// The leaf does not have the key.
    Absent,
    /// The key may be in another window.
    Unknown,
}

/// Where a key lies between two fences, in 128ths. A larger key never lies further left.
#[inline]
fn position(key: u64, (low, high): (u64, Option<u64>)) -> u64 {
    let width = high.unwrap_or(u64::MAX).saturating_sub(low).max(1);
    let offset = key.saturating_sub(low).min(width);
    let position = match width >> (u64::BITS - SEPARATOR_BITS) {
        0 => (offset << SEPARATOR_BITS) / width,
        _ => offset / (width >> SEPARATOR_BITS),
    };
    position.min((1 << SEPARATOR_BITS) - 1)
}

impl LeafOutline {
    /// Number of bits that [`LeafOutline::to_bits`] uses at most.
    pub const BITS: u32 = RECORDS_SHIFT + 6;

    /// The outline of a leaf of `records` records between `fences`; `key_at` tells the key of a
    /// record. `None` if the leaf is empty or too large.
    pub fn new(
        records: usize,
        key_at: impl Fn(usize) -> u64,
        fences: (u64, Option<u64>),
    ) -> Option<Self> {
        if records == 0 || records >= MAX_WINDOWS * WINDOW_RECORDS {
            return None;
        }
        let windows = records.div_ceil(WINDOW_RECORDS);
        let separators = (1..windows).fold(0, |separators, window| {
            let begins = position(key_at(window * WINDOW_RECORDS), fences);
            separators | begins << (SEPARATOR_BITS * (window as u32 - 1))
        });
        Some(Self((records as u64) << RECORDS_SHIFT | separators))
    }

    /// The outline as a number, never 0.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The outline of [`LeafOutline::to_bits`].
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Number of records of the leaf.
    #[inline]
    pub fn records(self) -> usize {
        (self.0 >> RECORDS_SHIFT & 63) as usize
    }

    /// The records that can have `key`: those of one window, or of several if the outline does not
    /// tell them apart.
    #[inline]
    pub fn slots(self, key: u64, fences: (u64, Option<u64>)) -> Range<usize> {
        let (records, wanted) = (self.records(), position(key, fences));
        let (mut first, mut last) = (0, 0);
        for window in 1..records.div_ceil(WINDOW_RECORDS) {
            let begins = self.0 >> (SEPARATOR_BITS * (window as u32 - 1)) & 127;
            first += usize::from(begins < wanted);
            last += usize::from(begins <= wanted);
        }
        first * WINDOW_RECORDS..((last + 1) * WINDOW_RECORDS).min(records)
    }

    /// Looks `key` up in the records at `slots`, whose keys and values `record_at` tells (P11).
    #[inline]
    pub fn look(
        self,
        slots: &Range<usize>,
        record_at: impl Fn(usize) -> (u64, u64),
        key: u64,
    ) -> WindowLookup<u64> {
        let mut found = None;
        let (mut is_above, mut is_below) = (slots.start == 0, slots.end == self.records());
        for (at, value) in slots.clone().map(record_at) {
            is_above |= at < key;
            is_below |= at > key;
            found = found.or((at == key).then_some(value));
        }
        match found {
            Some(value) => WindowLookup::Found(value),
            None if is_above && is_below => WindowLookup::Absent,
            None => WindowLookup::Unknown,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A small generator, so that the leaves of a test are always the same.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            self.0 ^ self.0 >> 29
        }
    }

    fn look(
        outline: LeafOutline,
        keys: &[u64],
        key: u64,
        fences: (u64, Option<u64>),
    ) -> (usize, WindowLookup<u64>) {
        let slots = outline.slots(key, fences);
        assert!(slots.start < slots.end && slots.end <= keys.len(), "{slots:?}");
        (slots.len(), outline.look(&slots, |slot| (keys[slot], !keys[slot]), key))
    }

    #[test]
    fn a_window_has_the_key_or_shows_that_it_is_absent() {
        let mut numbers = Numbers(7);
        let (mut lookups, mut read) = (0, 0);
        for round in 0..600_u64 {
            let fences = match round % 6 {
                0 => (0, None),
                1 => (5, Some(200)),
                2 => (1 << 63, Some(u64::MAX)),
                3 => (1_000, Some(1_000 + (1 << 40))),
                4 => (u64::MAX - 900, None),
                _ => (1 << 20, Some(1 << 58)),
            };
            let width = fences.1.unwrap_or(u64::MAX) - fences.0;
            let wanted = 1 + (numbers.next() % 60) as usize;
            let mut keys = BTreeSet::new();
            while keys.len() < wanted {
                keys.insert(fences.0 + numbers.next() % width);
            }
            let keys: Vec<u64> = keys.into_iter().collect();
            let outline = LeafOutline::new(keys.len(), |slot| keys[slot], fences).unwrap();
            assert_eq!(outline.records(), keys.len());
            assert_eq!(LeafOutline::from_bits(outline.to_bits()), outline);
            assert!(outline.to_bits() >> LeafOutline::BITS == 0);
            for &key in &keys {
                let (slots, found) = look(outline, &keys, key, fences);
                assert_eq!(found, WindowLookup::Found(!key));
                (lookups, read) = (lookups + 1, read + slots);
            }
            for _ in 0..50 {
                let key = fences.0 + numbers.next() % width;
                match look(outline, &keys, key, fences).1 {
                    WindowLookup::Found(value) => assert!(value == !key && keys.contains(&key)),
                    WindowLookup::Absent => assert!(!keys.contains(&key)),
                    WindowLookup::Unknown => {}
                }
            }
        }
        let mean = read as f64 / lookups as f64;
        assert!((7.0..10.0).contains(&mean), "a lookup reads {mean} records");
    }

    /// Fences of a parent that differ from those of the leaf cost a READ, never the answer.
    #[test]
    fn wrong_fences_never_give_a_wrong_answer() {
        let mut numbers = Numbers(11);
        for _ in 0..2_000 {
            let (low, width) = (numbers.next() % 1_000, 1_000 + numbers.next() % 1_000_000);
            let mut keys: Vec<u64> = (0..60).map(|_| low + numbers.next() % width).collect();
            keys.sort_unstable();
            keys.dedup();
            let outline = LeafOutline::new(keys.len(), |slot| keys[slot], (low, Some(low + width)));
            let other = (numbers.next() % 2_000, Some(numbers.next() % 2_000_000));
            for key in keys.iter().copied().chain((0..20).map(|step| low + step * width / 20)) {
                match look(outline.unwrap(), &keys, key, other).1 {
                    WindowLookup::Found(value) => assert!(value == !key && keys.contains(&key)),
                    WindowLookup::Absent => assert!(!keys.contains(&key)),
                    WindowLookup::Unknown => {}
                }
            }
        }
    }

    #[test]
    fn keys_that_crowd_at_a_fence_are_read_together() {
        let keys: Vec<u64> = (0..60).collect();
        let fences = (0, Some(u64::MAX));
        let outline = LeafOutline::new(60, |slot| keys[slot], fences).unwrap();
        assert_eq!(outline.slots(30, fences), 0..60);
        assert_eq!(LeafOutline::new(0, |slot| keys[slot], fences), None);
        assert_eq!(LeafOutline::new(64, |_| 0, fences), None);
    }
}
