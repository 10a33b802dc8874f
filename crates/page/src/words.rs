//! Which words of a page a change has touched: a range at the front, where header, fences and slots
//! are, and one in the heap, where records are. A layout without a heap has only the first range.
//!
//! ```text
//! [heap end:16][heap start:16][front end:16][front start:16]     0 is nothing
//! ```
//!
//! *Thread safety*: plain values.

use std::ops::Range;

/// Words of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageWords(u64);

impl From<Range<usize>> for PageWords {
    /// A range at the front.
    #[inline]
    fn from(front: Range<usize>) -> Self {
        Self(bits(&front))
    }
}

#[inline]
fn bits(range: &Range<usize>) -> u64 {
    debug_assert!(range.end <= u16::MAX.into());
    (range.end as u64) << 16 | range.start as u64
}

#[inline]
fn range(bits: u64) -> Range<usize> {
    (bits as u16).into()..((bits >> 16) as u16).into()
}

/// The smallest range that includes both, of which `one` may be empty.
#[inline]
fn union(one: Range<usize>, other: &Range<usize>) -> Range<usize> {
    match one.is_empty() {
        true => other.clone(),
        false => one.start.min(other.start)..one.end.max(other.end),
    }
}

impl PageWords {
    /// Words of the front and of the heap. Either may be empty.
    #[inline]
    pub fn new(front: &Range<usize>, heap: &Range<usize>) -> Self {
        let part = |range: &Range<usize>| if range.is_empty() { 0 } else { bits(range) };
        Self(part(heap) << 32 | part(front))
    }

    /// The words as a number.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The words encoded by [`PageWords::to_bits`].
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The range at the front.
    #[inline]
    pub fn front(self) -> Range<usize> {
        range(self.0)
    }

    /// The range in the heap.
    #[inline]
    pub fn heap(self) -> Range<usize> {
        range(self.0 >> 32)
    }

    /// The smallest single range that includes both.
    pub fn whole(self) -> Range<usize> {
        match self.heap().is_empty() {
            true => self.front(),
            false => union(self.front(), &self.heap()),
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it is a single word, so that readers see all of the change or none of it.
    #[inline]
    pub fn is_one_word(self) -> bool {
        self.front().len() + self.heap().len() == 1
    }

    /// Whether the word at `index` is included.
    pub fn contains(self, index: usize) -> bool {
        self.front().contains(&index) || self.heap().contains(&index)
    }

    /// The smallest ranges that include both. Without a heap, this is a single range.
    #[inline]
    #[must_use]
    pub fn and(self, other: Self, has_heap: bool) -> Self {
        if !has_heap {
            return Self(bits(&union(self.front(), &other.front())));
        }
        let join = |one: Range<usize>, other: Range<usize>| match other.is_empty() {
            true => one,
            false => union(one, &other),
        };
        Self::new(&join(self.front(), other.front()), &join(self.heap(), other.heap()))
    }

    /// The ranges to write, in this order. If there are two, the first is in the heap: while only
    /// that one has been written, no slot refers to the new words in it (bytes.Y9). Adjacent ranges
    /// are not joined, because the words of one WRITE arrive in any order.
    #[inline]
    pub fn writes(self) -> (Option<Range<usize>>, Range<usize>) {
        let (front, heap) = (self.front(), self.heap());
        match (front.is_empty(), heap.is_empty()) {
            (_, true) => (None, front),
            (true, false) => (None, heap),
            (false, false) if heap.start < front.end => (None, union(front, &heap)),
            (false, false) => (Some(heap), front),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_by_themselves() {
        let held = PageWords::new(&(3..12), &(100..104));
        let both = held.and(PageWords::new(&(0..0), &(90..92)), true);
        assert_eq!((both.front(), both.heap()), (3..12, 90..104));
        let both = both.and(PageWords::from(2..4), true);
        assert_eq!((both.front(), both.heap()), (2..12, 90..104));
        assert_eq!(PageWords::default().and(held, true), held);
        assert_eq!(held.and(PageWords::default(), true), held);
        assert!(!held.is_one_word() && PageWords::new(&(0..0), &(7..8)).is_one_word());
        assert!(held.contains(11) && held.contains(100) && !held.contains(12));
        let fixed = PageWords::from(9..10).and(PageWords::from(20..21), false);
        assert_eq!((fixed.front(), fixed.heap()), (9..21, 0..0));
    }

    #[test]
    fn the_heap_is_written_first() {
        let writes = |front, heap| PageWords::new(&front, &heap).writes();
        assert_eq!(writes(3..12, 44..50), (Some(44..50), 3..12));
        assert_eq!(writes(3..12, 12..50), (Some(12..50), 3..12));
        assert_eq!(writes(2..128, 100..104), (None, 2..128));
        assert_eq!(writes(0..0, 100..101), (None, 100..101));
        assert_eq!(writes(3..12, 0..0), (None, 3..12));
        assert_eq!(PageWords::from(3..12).writes(), (None, 3..12));
    }
}
