//! A range of keys that a compute server owns.
//!
//! *Thread safety*: plain values.

use farleaf_page::{lies_within, narrowed};
use std::borrow::Borrow;

/// A compute server's range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRange<K> {
    /// The smallest key.
    pub low: K,
    /// The first key beyond the range. `None` is infinite.
    pub high: Option<K>,
}

/// How much of a range of keys is owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// All of the range.
    All,
    /// Part of the range.
    Part,
    /// None of the range.
    None,
}

impl<K: Ord + Clone> OwnedRange<K> {
    /// An empty range.
    pub fn empty(at: K) -> Self {
        Self { high: Some(at.clone()), low: at }
    }

    /// Whether the range has no keys.
    pub fn is_empty(&self) -> bool {
        self.high.as_ref().is_some_and(|high| *high <= self.low)
    }

    /// Whether the two ranges hold the same keys. All empty ranges are equal.
    pub fn is_same(&self, other: &Self) -> bool {
        self == other || (self.is_empty() && other.is_empty())
    }

    /// Whether `key` is in the range.
    #[inline]
    pub fn has<Q: ?Sized + Ord>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        key >= self.low.borrow() && self.high.as_ref().is_none_or(|high| key < high.borrow())
    }

    /// Whether all keys from `low`, inclusive, to `high`, exclusive, are in the range.
    pub fn covers(&self, low: &K, high: Option<&K>) -> bool {
        self.of(low, high) == Ownership::All
    }

    /// The keys that are in both ranges.
    #[must_use]
    pub fn within(&self, other: &Self) -> Self {
        let keys = |range: &Self| (range.low.clone(), range.high.clone());
        let (low, high) = narrowed(keys(self), keys(other));
        Self { low, high }
    }

    /// How many of the keys from `low`, inclusive, to `high`, exclusive, are in the range.
    pub fn of(&self, low: &K, high: Option<&K>) -> Ownership {
        let inside = lies_within((low, high), (&self.low, self.high.as_ref()));
        let meets = self.high.as_ref().is_none_or(|end| low < end)
            && high.is_none_or(|high| *high > self.low);
        match (meets && !self.is_empty(), inside) {
            (false, _) => Ownership::None,
            (true, true) => Ownership::All,
            (true, false) => Ownership::Part,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn ranges_know_how_they_lie_to_each_other() {
        let range = OwnedRange { low: 10, high: Some(20) };
        assert_eq!(range.of(&10, Some(&20)), Ownership::All);
        assert_eq!(range.of(&9, Some(&11)), Ownership::Part);
        assert_eq!(range.of(&19, None), Ownership::Part);
        assert_eq!(range.of(&20, None), Ownership::None);
        assert_eq!(range.of(&0, Some(&10)), Ownership::None);
        let open = OwnedRange { low: 15, high: None };
        assert_eq!(range.within(&open), OwnedRange { low: 15, high: Some(20) });
        assert_eq!(open.within(&range), OwnedRange { low: 15, high: Some(20) });
        assert!(range.within(&OwnedRange { low: 20, high: None }).is_empty());
        let empty = OwnedRange::empty(10);
        assert!(empty.is_empty() && !empty.has(&10));
        assert_eq!(empty.of(&0, None), Ownership::None);
    }
}
