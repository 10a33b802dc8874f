//! The free parts of a range of bytes, with coalescing.
//!
//! *Invariant*: falloc.E1. A byte is free or taken. No free part touches the next one.
//!
//! *Thread safety*: belongs to its owner, which has a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Free parts.
#[derive(Debug)]
pub(crate) struct Extents {
    /// Ends by starts.
    free: BTreeMap<usize, usize>,
    /// The same parts, by length.
    by_length: BTreeSet<(usize, usize)>,
    /// One behind the highest byte that was ever taken.
    reached: usize,
}

impl Extents {
    /// All bytes of `range` are free.
    pub(crate) fn new(range: Range<usize>) -> Self {
        let reached = range.start;
        let mut extents = Self { free: BTreeMap::new(), by_length: BTreeSet::new(), reached };
        extents.insert(range);
        extents
    }

    /// One behind the highest byte that was ever taken.
    pub(crate) fn reached(&self) -> usize {
        self.reached
    }

    /// Takes `bytes` bytes from a multiple of `align` on: from the shortest part that has room, and
    /// of those from the first one.
    pub(crate) fn take(&mut self, bytes: usize, align: usize) -> Option<Range<usize>> {
        let fits = |&(length, start): &(usize, usize)| {
            let at = start.next_multiple_of(align);
            (at.checked_add(bytes)? <= start + length).then_some((start..start + length, at))
        };
        let (part, at) = self.by_length.range((bytes, 0)..).find_map(fits)?;
        let taken = at..at + bytes;
        self.remove(&part);
        self.insert(part.start..taken.start);
        self.insert(taken.end..part.end);
        self.reached = self.reached.max(taken.end);
        Some(taken)
    }

    /// The free part that `range` would be of, if it were free.
    pub(crate) fn around(&self, range: &Range<usize>) -> Range<usize> {
        let before = self.free.range(..range.start).next_back();
        let start = before.filter(|(_, end)| **end == range.start).map(|(start, _)| *start);
        let end = self.free.get(&range.end).copied();
        start.unwrap_or(range.start)..end.unwrap_or(range.end)
    }

    /// Frees `range`, which was taken.
    pub(crate) fn give_back(&mut self, range: Range<usize>) {
        let whole = self.around(&range);
        self.remove(&(whole.start..range.start));
        self.remove(&(range.end..whole.end));
        self.insert(whole);
    }

    fn insert(&mut self, part: Range<usize>) {
        if !part.is_empty() {
            self.free.insert(part.start, part.end);
            self.by_length.insert((part.len(), part.start));
        }
    }

    fn remove(&mut self, part: &Range<usize>) {
        if !part.is_empty() {
            self.free.remove(&part.start);
            self.by_length.remove(&(part.len(), part.start));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_taken_aligned_and_joined_when_they_come_back() {
        let mut extents = Extents::new(100..1_000);
        assert_eq!(extents.take(50, 1), Some(100..150));
        assert_eq!(extents.take(100, 200), Some(200..300));
        assert_eq!(extents.take(60, 1), Some(300..360), "the part before is too short");
        assert_eq!(extents.take(40, 1), Some(150..190), "the shortest part that has room");
        assert_eq!(extents.take(641, 1), None);
        assert_eq!(extents.reached(), 360);
        assert_eq!(extents.around(&(200..300)), 190..300);
        extents.give_back(200..300);
        assert_eq!(extents.around(&(300..360)), 190..1_000);
        extents.give_back(100..150);
        extents.give_back(150..190);
        extents.give_back(300..360);
        assert_eq!(extents.take(900, 1), Some(100..1_000));
        assert_eq!(extents.take(1, 1), None);
        assert_eq!(extents.reached(), 1_000);
    }
}
