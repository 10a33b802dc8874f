//! The partition map: sorted boundaries and an epoch.
//!
//! *Invariants*: Q1. every key has exactly one owner. Q2. two maps of one epoch are equal. *Thread safety*:
//! immutable.

use crate::index::IndexError;
use crate::index::dex::OwnedRange;
use crate::page::Layout;

/// Which compute server owns which keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMap<K> {
    epoch: u64,
    lowest: K,
    boundaries: Vec<K>,
}

impl<K: Clone + Ord> PartitionMap<K> {
    /// The map of an epoch: compute server `i` owns the keys from boundary `i - 1`, inclusive, to boundary `i`,
    /// exclusive.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the boundaries do not ascend strictly from above the smallest key.
    pub fn new<L: Layout<Key = K>>(epoch: u64, boundaries: Vec<K>) -> Result<Self, IndexError> {
        let lowest = L::min_key();
        let ascend = boundaries.is_sorted_by(|a, b| a < b)
            && boundaries.first().is_none_or(|first| *first > lowest);
        if !ascend || boundaries.len() >= usize::from(u16::MAX) {
            let what = "the boundaries between compute servers ascend strictly";
            return Err(IndexError::InvalidArgument(what));
        }
        Ok(Self { epoch, lowest, boundaries })
    }

    /// Which of two maps is newer: the one of the higher epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many compute servers there are.
    pub fn compute_servers(&self) -> u16 {
        self.boundaries.len() as u16 + 1
    }

    /// The boundaries.
    pub fn boundaries(&self) -> &[K] {
        &self.boundaries
    }

    /// The owner of `key`.
    #[inline]
    pub fn owner_of(&self, key: &K) -> u16 {
        self.boundaries.partition_point(|boundary| boundary <= key) as u16
    }

    /// The keys of a compute server.
    ///
    /// # Panics
    /// If there is no such compute server.
    pub fn range_of(&self, compute_server: u16) -> OwnedRange<K> {
        let number = usize::from(compute_server);
        assert!(number <= self.boundaries.len(), "the map has this compute server");
        let low = match number.checked_sub(1) {
            Some(before) => self.boundaries[before].clone(),
            None => self.lowest.clone(),
        };
        OwnedRange { low, high: self.boundaries.get(number).cloned() }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::page::Fixed8;

    #[test]
    fn every_key_has_the_owner_whose_range_has_it() {
        let map = PartitionMap::new::<Fixed8>(3, vec![10, 20, u64::MAX]).unwrap();
        assert_eq!(map.compute_servers(), 4);
        for key in [0, 9, 10, 19, 20, u64::MAX - 1, u64::MAX] {
            for server in 0..4 {
                let owns = map.owner_of(&key) == server;
                assert_eq!(map.range_of(server).has(&key), owns, "{key} on {server}");
            }
        }
        assert!(PartitionMap::new::<Fixed8>(0, vec![10, 10]).is_err());
        assert!(PartitionMap::new::<Fixed8>(0, vec![0]).is_err());
    }

    #[test]
    fn ranges_cover_what_they_have() {
        let map = PartitionMap::new::<Fixed8>(0, vec![10, 20]).unwrap();
        let [first, middle, last] = [0, 1, 2].map(|server| map.range_of(server));
        assert!(first.covers(&0, Some(&10)) && !first.covers(&0, Some(&11)));
        assert!(middle.covers(&10, Some(&20)) && !middle.covers(&9, Some(&20)));
        assert!(!middle.covers(&10, None) && last.covers(&20, None) && last.covers(&30, Some(&31)));
    }
}
