//! The keys that an index is loaded with, and the positions of new keys.
//!
//! *Invariants*
//! - keys.K1. Loaded keys ascend strictly with their positions.
//! - keys.K2. A new key is never a loaded key.
//! - keys.K3. New keys with different numbers differ, whatever their positions.
//!
//! *Thread safety*: a plain value; clones share listed keys.

use farleaf_fabric::sync::Arc;

/// The keys that an index is loaded with, by position, counted from 0.
#[derive(Clone, Debug)]
pub struct KeySpace {
    keys: KeySpaceKind,
    /// The position of the widest gap, for new keys that fit nowhere else.
    widest: u64,
}

#[derive(Clone, Debug)]
enum KeySpaceKind {
    /// `n` evenly spaced keys, computed instead of stored. `step` and `rest` are the quotient and
    /// remainder of 2^64 by `n`, or 1 and 0 for dense keys.
    Spread { n: u64, step: u64, rest: u64 },
    /// Keys and values from a list.
    Listed { keys: Arc<[u64]>, values: Arc<[u64]> },
}

/// Number of gaps tried for a new key before it goes into the widest one.
const TRIES: u64 = 16;

impl KeySpace {
    /// `n` keys, spread evenly over all of `u64`. Each value is a hash of its key.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn spread(n: u64) -> Self {
        assert!(n > 0, "a key space has at least one key");
        let all = 1_u128 << 64;
        // With a single key, only position 0 is used, so the step does not matter.
        let step = u64::try_from(all / u128::from(n)).unwrap_or(u64::MAX);
        let rest = (all % u128::from(n)) as u64;
        Self { keys: KeySpaceKind::Spread { n, step, rest }, widest: n - 1 }
    }

    /// The keys from 0 up to `n`, without gaps. Each value is a hash of its key.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn dense(n: u64) -> Self {
        assert!(n > 0, "a key space has at least one key");
        Self { keys: KeySpaceKind::Spread { n, step: 1, rest: 0 }, widest: n - 1 }
    }

    /// Distance between neighbouring keys, rounded down; 1 for listed keys.
    pub fn spacing(&self) -> u64 {
        match &self.keys {
            KeySpaceKind::Spread { step, .. } => *step,
            KeySpaceKind::Listed { .. } => 1,
        }
    }

    /// Creates a key space from records. Returns `None` if there are none or if they do not ascend
    /// strictly.
    pub fn listed(records: &[(u64, u64)]) -> Option<Self> {
        if records.is_empty() || !records.is_sorted_by(|left, right| left.0 < right.0) {
            return None;
        }
        let keys = records.iter().map(|(key, _)| *key).collect();
        let values = records.iter().map(|(_, value)| *value).collect();
        let mut space = Self { keys: KeySpaceKind::Listed { keys, values }, widest: 0 };
        space.widest = (0..space.len()).max_by_key(|place| space.gap(*place)).unwrap_or(0);
        Some(space)
    }

    /// Number of keys.
    #[expect(clippy::len_without_is_empty, reason = "a key space is never empty")]
    pub fn len(&self) -> u64 {
        match &self.keys {
            KeySpaceKind::Spread { n, .. } => *n,
            KeySpaceKind::Listed { keys, .. } => keys.len() as u64,
        }
    }

    /// Returns the key at a position.
    ///
    /// # Panics
    /// If a listed key's position is out of range; for computed keys, only in debug builds.
    #[inline]
    pub fn key(&self, place: u64) -> u64 {
        match &self.keys {
            // place * 2^64 / n, avoiding the slow 128-bit division where possible.
            KeySpaceKind::Spread { n, step, rest } => {
                debug_assert!(place < *n, "place {place} of {n}");
                place * step
                    + match *n <= 1 << 32 {
                        true => place * rest / n,
                        false => (u128::from(place) * u128::from(*rest) / u128::from(*n)) as u64,
                    }
            }
            KeySpaceKind::Listed { keys, .. } => keys[place as usize],
        }
    }

    /// The position of the last loaded key that is not above `key`, and its distance to `key`;
    /// `None` if all loaded keys are above it.
    pub fn place_of(&self, key: u64) -> Option<(u64, u64)> {
        let place = self.last_place(|place| self.key(place) <= key);
        Some((place, key.checked_sub(self.key(place))?))
    }

    /// The last position for which `is_reached` is true, which must hold exactly for the first
    /// positions; the first position if it is true for none.
    pub(crate) fn last_place(&self, is_reached: impl Fn(u64) -> bool) -> u64 {
        let (mut low, mut high) = (0, self.len());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match is_reached(middle) {
                true => low = middle,
                false => high = middle,
            }
        }
        low
    }

    /// Returns the value that the key at a position is loaded with.
    #[inline]
    pub fn value(&self, place: u64) -> u64 {
        match &self.keys {
            KeySpaceKind::Spread { .. } => mix64(self.key(place)),
            KeySpaceKind::Listed { values, .. } => values[place as usize],
        }
    }

    /// All records, ascending, as a bulk load needs them.
    pub fn records(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0..self.len()).map(|place| (self.key(place), self.value(place)))
    }

    /// Returns a new key in the gap after the key at `place`, or in another gap if that one is too
    /// narrow. `number` must be unique among the new keys of a run. Returns `None` if no gap has
    /// room.
    ///
    /// In a gap of `g` keys, with `b` the largest integer such that `2^b <= g`, a number below
    /// `2^b` is placed by reversing its `b` bits. So different numbers never collide within a gap,
    /// and the first ones are far apart.
    #[inline]
    pub fn new_key(&self, place: u64, number: u64) -> Option<u64> {
        let n = self.len();
        let near = (0..TRIES.min(n)).map(|step| (place + step) % n);
        near.chain([self.widest]).find_map(|place| {
            let bits = self.gap(place).checked_ilog2()?;
            let reversed = match bits {
                0 => 0,
                bits => number.reverse_bits() >> (u64::BITS - bits),
            };
            (number >> bits == 0).then(|| self.key(place) + 1 + reversed)
        })
    }

    /// Number of free keys between the key at `place` and the next.
    #[inline]
    fn gap(&self, place: u64) -> u64 {
        let key = self.key(place);
        match place + 1 < self.len() {
            true => self.key(place + 1) - key - 1,
            false => u64::MAX - key,
        }
    }

    /// Returns the boundaries that split the key space among servers in proportion to `weights`:
    /// one fewer than there are weights, strictly ascending. If there are fewer keys than servers,
    /// some servers get no keys.
    pub fn boundaries(&self, weights: &[u64]) -> Vec<u64> {
        let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        let mut sum = 0;
        let mut previous = 0;
        let inner = weights.split_last().map_or(weights, |(_, inner)| inner);
        let count = inner.len() as u64;
        let boundary = |(position, weight): (usize, &u64)| {
            sum += u128::from(*weight);
            let place = (u128::from(self.len()) * sum / total.max(1)) as u64;
            let key = self.key(place.min(self.len() - 1));
            // Stay above the previous boundary and leave room for the following ones.
            let follow = count - 1 - position as u64;
            previous = key.max(previous + 1).min(u64::MAX - follow);
            previous
        };
        inner.iter().enumerate().map(boundary).collect()
    }
}

/// SplitMix64's finalizer: a bijection of all 64-bit numbers that hides patterns.
#[inline]
pub(crate) fn mix64(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn listed(keys: &[u64]) -> KeySpace {
        let records: Vec<_> = keys.iter().map(|key| (*key, key / 2)).collect();
        KeySpace::listed(&records).unwrap()
    }

    #[test]
    fn spread_keys_ascend_and_reach_both_ends() {
        for n in [1, 2, 3, 1000, 99_991] {
            let space = KeySpace::spread(n);
            let keys: Vec<u64> = space.records().map(|(key, _)| key).collect();
            assert_eq!(keys.len() as u64, n);
            assert!(keys.is_sorted_by(|a, b| a < b), "K1");
            assert_eq!(keys[0], 0);
            assert!(n < 3 || *keys.last().unwrap() > u64::MAX / 2);
        }
        let huge = KeySpace::spread(1 << 40);
        assert!(huge.key((1 << 40) - 1) > huge.key((1 << 40) - 2));
    }

    #[test]
    fn dense_keys_are_side_by_side() {
        let space = KeySpace::dense(1000);
        assert_eq!([space.key(0), space.key(1), space.key(999)], [0, 1, 999]);
        assert_eq!((space.len(), space.spacing()), (1000, 1));
        assert_eq!(space.boundaries(&[1, 1]), [500]);
        let space = KeySpace::spread(4);
        assert_eq!(space.spacing(), 1 << 62);
    }

    #[test]
    fn each_key_has_a_place() {
        for space in [KeySpace::spread(1), KeySpace::spread(1000), listed(&[5, 7, u64::MAX])] {
            for place in 0..space.len() {
                let key = space.key(place);
                assert_eq!(space.place_of(key), Some((place, 0)));
                let gap = space.gap(place);
                assert_eq!(space.place_of(key + gap), Some((place, gap)));
            }
        }
        assert_eq!(listed(&[5, 7]).place_of(4), None);
    }

    #[test]
    fn new_keys_are_new_and_differ() {
        let spaces =
            [KeySpace::spread(7), KeySpace::spread(1000), listed(&[0, 1, 2, 3, 500, 501, 9000])];
        for space in spaces {
            let mut seen: BTreeSet<u64> = space.records().map(|(key, _)| key).collect();
            for number in 0..2000 {
                let place = mix64(number) % space.len();
                let key = space.new_key(place, number).unwrap();
                assert!(seen.insert(key), "K2, K3: {key}");
            }
        }
    }

    #[test]
    fn a_new_key_follows_its_place() {
        let space = KeySpace::spread(1000);
        for place in [0, 1, 500, 998] {
            let key = space.new_key(place, 12_345).unwrap();
            assert!(space.key(place) < key && key < space.key(place + 1));
        }
        assert!(space.new_key(999, 12_345).unwrap() > space.key(999));
    }

    #[test]
    fn a_full_key_space_has_no_new_key() {
        let full = listed(&[u64::MAX - 1, u64::MAX]);
        assert_eq!(full.new_key(0, 0), None);
        let narrow = listed(&[10, 12, u64::MAX]);
        assert_eq!(narrow.new_key(0, 0), Some(11));
        assert!(narrow.new_key(0, 1).unwrap() > 12);
    }

    #[test]
    fn unsorted_records_make_no_key_space() {
        assert!(KeySpace::listed(&[]).is_none());
        assert!(KeySpace::listed(&[(2, 0), (1, 0)]).is_none());
        assert!(KeySpace::listed(&[(1, 0), (1, 0)]).is_none());
    }

    #[test]
    fn boundaries_follow_the_weights() {
        let space = KeySpace::spread(1000);
        let boundaries = space.boundaries(&[80, 12, 5, 3]);
        assert_eq!(boundaries, [space.key(800), space.key(920), space.key(970)]);
        assert!(space.boundaries(&[1]).is_empty());
        for space in [KeySpace::spread(1), listed(&[u64::MAX]), listed(&[0, 1])] {
            let boundaries = space.boundaries(&[1, 1, 1, 1, 1]);
            assert!(boundaries.is_sorted_by(|a, b| a < b) && boundaries.len() == 4);
            assert!(boundaries[0] > 0);
        }
    }
}
