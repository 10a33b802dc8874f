//! Where a leaf that is written entry by entry has its entries, and which of them can hold a key.
//!
//! ```text
//! any entry    one bucket = [key][value][check]
//! hopscotch    one bucket = [key][value][check][value][key], two entries that share a check
//!              [replica][bucket 0][1][2][3][replica][bucket 4][5][6][7][replica]…
//! replica      [high fence, 0 if infinite][version:24][hash of address, place, version, fence:40]
//! ```
//!
//! In a hopscotch leaf, a key's hash names its home, and its record is in one of the four buckets
//! from there on. The last buckets are no key's home, so these four never wrap around the end.
//!
//! *Invariants*
//! - hops.P1. The buckets that can hold a key, and one replica, are consecutive words: the window
//!   of the key.
//! - hops.P2. A record changes its entry only together with the version of the page.
//!
//! After Luo et al., *CHIME* (SOSP 2024), and Herlihy et al., *Hopscotch Hashing* (DISC 2008).
//!
//! *Thread safety*: pure functions.

use super::view::HEADER_WORDS;
use std::collections::VecDeque;
use std::ops::Range;

/// Buckets that can hold a key, and buckets between two replicas.
const NEIGHBOURS: usize = 4;
/// Words of a replica.
pub(super) const REPLICA_WORDS: usize = 2;

/// The places of a leaf's entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryPlaces {
    page_words: usize,
    hops: bool,
}

impl EntryPlaces {
    #[inline]
    pub(super) const fn new(page_words: usize, hops: bool) -> Self {
        Self { page_words, hops }
    }

    /// Entries that share a check.
    #[inline]
    pub(super) const fn per_check(self) -> usize {
        if self.hops { 2 } else { 1 }
    }

    #[inline]
    const fn bucket_words(self) -> usize {
        2 * self.per_check() + 1
    }

    /// Words from one replica to the next.
    #[inline]
    const fn group_words(self) -> usize {
        REPLICA_WORDS + NEIGHBOURS * self.bucket_words()
    }

    /// The first word of a bucket.
    #[inline]
    const fn bucket(self, number: usize) -> usize {
        let replicas = if self.hops { number / NEIGHBOURS + 1 } else { 0 };
        HEADER_WORDS + replicas * REPLICA_WORDS + number * self.bucket_words()
    }

    /// The words of an entry's bucket.
    #[inline]
    pub(super) const fn bucket_of(self, entry: usize) -> Range<usize> {
        let first = self.bucket(entry / self.per_check());
        first..first + self.bucket_words()
    }

    /// The number of buckets.
    #[inline]
    pub(super) const fn buckets(self) -> usize {
        let words = self.page_words - HEADER_WORDS;
        if !self.hops {
            return words / self.bucket_words();
        }
        let (groups, rest) = (words / self.group_words(), words % self.group_words());
        groups * NEIGHBOURS + rest.saturating_sub(REPLICA_WORDS) / self.bucket_words()
    }

    /// The number of entries.
    #[inline]
    pub(super) const fn entries(self) -> usize {
        self.buckets() * self.per_check()
    }

    /// The word of a bucket's check.
    #[inline]
    pub(super) const fn check(self, bucket: usize) -> usize {
        self.bucket(bucket) + 2
    }

    /// The words of an entry's key and value.
    #[inline]
    pub(super) const fn record(self, entry: usize) -> (usize, usize) {
        let first = self.bucket(entry / self.per_check());
        if entry.is_multiple_of(self.per_check()) {
            (first, first + 1)
        } else {
            (first + 4, first + 3)
        }
    }

    /// The words that change with a new record: key, value and check.
    #[inline]
    pub(super) const fn words(self, entry: usize) -> Range<usize> {
        let first = self.bucket(entry / self.per_check());
        if entry.is_multiple_of(self.per_check()) { first..first + 3 } else { first + 2..first + 5 }
    }

    /// The words that change with the value: value and check.
    #[inline]
    pub(super) const fn value_words(self, entry: usize) -> Range<usize> {
        let (_, value) = self.record(entry);
        let check = self.check(entry / self.per_check());
        if value < check { value..check + 1 } else { check..value + 1 }
    }

    /// The WRITEs that change these words, one after the other. A new record's key and value come
    /// before its check (entries.N3). `None` if they are more than those of one entry.
    #[inline]
    pub(super) fn writes(
        self,
        words: Range<usize>,
    ) -> Option<(Range<usize>, Option<Range<usize>>)> {
        match words.len() {
            ..=2 => Some((words, None)),
            3 => {
                let second = self.hops && {
                    let place = (words.start - HEADER_WORDS) % self.group_words() - REPLICA_WORDS;
                    !place.is_multiple_of(self.bucket_words())
                };
                let check = if second { words.start } else { words.end - 1 };
                let record = if second { check + 1..words.end } else { words.start..check };
                Some((record, Some(check..check + 1)))
            }
            _ => None,
        }
    }

    /// The first of the buckets that can hold a key with this hash.
    #[inline]
    pub(super) const fn home(self, hash: u64) -> usize {
        let homes = (self.buckets() + 1).saturating_sub(NEIGHBOURS);
        let homes = if homes == 0 { 1 } else { homes };
        ((hash as u128 * homes as u128) >> 64) as usize
    }

    /// The buckets that can hold a key with this hash.
    #[inline]
    pub(super) fn neighbours(self, hash: u64) -> Range<usize> {
        if !self.hops {
            return 0..self.buckets();
        }
        let home = self.home(hash);
        home..(home + NEIGHBOURS).min(self.buckets())
    }

    /// The entries that can hold a key with this hash.
    #[inline]
    pub(super) fn entries_of(self, hash: u64) -> Range<usize> {
        let buckets = self.neighbours(hash);
        buckets.start * self.per_check()..buckets.end * self.per_check()
    }

    /// The first words of all replicas.
    pub(super) fn replicas(self) -> impl Iterator<Item = usize> {
        let number = if self.hops { self.buckets().div_ceil(NEIGHBOURS) } else { 0 };
        (0..number).map(move |number| HEADER_WORDS + number * self.group_words())
    }

    /// The window of a key with this hash (hops.P1), and the first word of its replica.
    #[inline]
    pub(super) fn window(self, hash: u64) -> (Range<usize>, usize) {
        let buckets = self.neighbours(hash);
        // The first window of a small leaf has fewer buckets, and its replica is before them.
        let number = buckets.start.div_ceil(NEIGHBOURS);
        let replica = HEADER_WORDS + number * self.group_words();
        let first = self.bucket(buckets.start).min(replica);
        (first..self.check(buckets.end - 1) + 3, replica)
    }

    /// How to make room for a key with this hash: the first entry is free, each other one has a
    /// record that can move to the entry before it, and the key can be in the last one. `None` if
    /// no such moves exist. The fewest moves, found breadth first.
    pub(super) fn moves(
        self,
        hash: u64,
        hash_of: impl Fn(usize) -> Option<u64>,
    ) -> Option<Vec<usize>> {
        let mut seen = vec![false; self.buckets()];
        // Each bucket that a record could move to, with the place in `queue` of the step before and
        // the entry of that record.
        let mut queue: VecDeque<(usize, Option<(usize, usize)>)> = VecDeque::new();
        let mut steps = Vec::new();
        for bucket in self.neighbours(hash) {
            seen[bucket] = true;
            queue.push_back((bucket, None));
        }
        while let Some((bucket, from)) = queue.pop_front() {
            let place = steps.len();
            steps.push(from);
            for entry in bucket * self.per_check()..(bucket + 1) * self.per_check() {
                let Some(held) = hash_of(entry) else {
                    let mut moves = vec![entry];
                    let mut before = from;
                    while let Some((step, record)) = before {
                        moves.push(record);
                        before = steps[step];
                    }
                    return Some(moves);
                };
                for other in self.neighbours(held) {
                    if !std::mem::replace(&mut seen[other], true) {
                        queue.push_back((other, Some((place, entry))));
                    }
                }
            }
        }
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A page of 1 KB: 42 entries, and windows of 176 bytes with eight entries and one replica.
    #[test]
    fn windows_have_one_replica_and_eight_entries() {
        let places = EntryPlaces::new(128, true);
        assert_eq!((places.buckets(), places.entries(), places.replicas().count()), (21, 42, 6));
        assert_eq!(EntryPlaces::new(128, false).entries(), 40);
        for home in 0..18_u64 {
            let hash = ((u128::from(home) << 64) / 18 + 1) as u64;
            assert_eq!(places.neighbours(hash), home as usize..home as usize + 4);
            let (window, replica) = places.window(hash);
            assert_eq!(window.len() * 8, 176);
            assert!(window.contains(&replica) && window.contains(&(replica + 1)));
            assert_eq!(places.replicas().filter(|word| window.contains(word)).count(), 1);
            for entry in places.entries_of(hash) {
                let (key, value) = places.record(entry);
                let check = places.check(entry / 2);
                assert!([key, value, check].iter().all(|word| window.contains(word)));
            }
        }
        assert_eq!(places.neighbours(u64::MAX), 17..21);
    }

    /// No two fields share a word, and none is outside the page, whatever its size.
    #[test]
    fn every_word_has_one_use() {
        for (page_words, hops) in [(16, true), (32, true), (64, true), (128, true), (512, true)]
            .into_iter()
            .chain([(16, false), (128, false)])
        {
            let places = EntryPlaces::new(page_words, hops);
            let mut used = vec![false; page_words];
            let mut mark = |word: usize| assert!(!std::mem::replace(&mut used[word], true));
            places.replicas().flat_map(|word| [word, word + 1]).for_each(&mut mark);
            (0..places.buckets()).map(|bucket| places.check(bucket)).for_each(&mut mark);
            for entry in 0..places.entries() {
                let (key, value) = places.record(entry);
                [key, value].into_iter().for_each(&mut mark);
                let (record, check) = places.writes(places.words(entry)).unwrap();
                assert!(record.len() == 2 && record.contains(&key) && record.contains(&value));
                assert_eq!(
                    check,
                    Some(places.check(entry / places.per_check())..record_end(places, entry))
                );
                assert_eq!(places.value_words(entry).len(), 2);
                assert!(places.value_words(entry).contains(&value));
            }
            assert!(!used[..HEADER_WORDS].contains(&true));
        }
    }

    fn record_end(places: EntryPlaces, entry: usize) -> usize {
        places.check(entry / places.per_check()) + 1
    }

    #[test]
    fn records_hop_until_there_is_room() {
        let places = EntryPlaces::new(128, true);
        let hash_of_home = |home: u64| ((u128::from(home) << 64) / 18 + 1) as u64;
        // Buckets 0 to 3 are full of records at home there; the next ones are free.
        let homes = [0, 0, 0, 0, 1, 1, 2, 3];
        let hash_of = |entry: usize| homes.get(entry).map(|home| hash_of_home(*home));
        assert_eq!(places.moves(hash_of_home(1), hash_of), Some(vec![8]), "bucket 4 is free");
        let moves = places.moves(hash_of_home(0), hash_of).unwrap();
        assert_eq!(moves, [8, 4], "the record of home 1 in entry 4 moves to bucket 4");
        let all_of = |home| move |entry: usize| (entry < 8).then(|| hash_of_home(home));
        assert_eq!(places.moves(hash_of_home(0), all_of(0)), None);
        // A record two hops away.
        let chain = |entry: usize| match entry {
            0..8 => Some(hash_of_home(if entry == 7 { 3 } else { 0 })),
            8..14 => Some(hash_of_home(if entry == 13 { 6 } else { 3 })),
            _ => None,
        };
        let moves = places.moves(hash_of_home(0), chain).unwrap();
        assert_eq!(moves, [14, 13, 7]);
    }
}
