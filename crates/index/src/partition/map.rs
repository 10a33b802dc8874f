//! The partition map: sorted boundaries, the owner of each range between them, and an epoch.
//!
//! *Invariants*: Q1. Every key has exactly one owner, and each compute server owns one range or
//! nothing. Q2. Two maps of the same epoch are equal. map.Q3. A map fits a message.
//!
//! *Thread safety*: immutable.

use crate::OwnedRange;
use crate::{IndexError, ScanRequest};
use farleaf_fabric::MAX_MESSAGE_BYTES;
use farleaf_page::Layout;
use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::ops::Bound;

/// The owner of every key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMap<K> {
    epoch: u64,
    lowest: K,
    boundaries: Vec<K>,
    /// The owner of each range, from the lowest keys up.
    owners: Vec<u16>,
}

/// A move of keys from one compute server to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyMove<K> {
    /// The compute server that gives the keys up.
    pub from: u16,
    /// The compute server that takes them over.
    pub to: u16,
    /// The keys that move.
    pub keys: OwnedRange<K>,
    /// The range that `from` keeps.
    pub rest: OwnedRange<K>,
    /// The range that `to` owns afterwards, including the keys.
    pub grown: OwnedRange<K>,
}

/// Maximum size of a map in a message, in bytes (map.Q3). The other fields of a message fit in the
/// rest.
const MAX_MAP_BYTES: usize = MAX_MESSAGE_BYTES / 2;

/// Checks that a map with these boundaries fits a message.
fn check_size<L: Layout>(boundaries: &[<L::Key as ToOwned>::Owned]) -> Result<(), IndexError> {
    let owner_bytes = size_of::<u16>();
    let bytes = |key| L::key_bytes(L::key(key)) + owner_bytes;
    match boundaries.iter().map(bytes).sum::<usize>() + owner_bytes <= MAX_MAP_BYTES {
        true => Ok(()),
        false => bad("the boundaries between compute servers are too long for a message of a map"),
    }
}

fn bad<T>(what: &'static str) -> Result<T, IndexError> {
    Err(IndexError::InvalidArgument(what))
}

impl<K: Clone + Ord> PartitionMap<K> {
    /// The initial map of an epoch: compute server `i` owns the keys from boundary `i - 1`,
    /// inclusive, to boundary `i`, exclusive.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the boundaries do not ascend strictly, if the first is
    /// not above the smallest key, if there are 65,535 or more, or if they are too long for a
    /// message; [`IndexError::TooLong`] if no page can hold one of them.
    pub fn new<L: Layout<Key: ToOwned<Owned = K>>>(
        epoch: u64,
        boundaries: Vec<K>,
    ) -> Result<Self, IndexError> {
        let lowest = L::min_key();
        let ascend = boundaries.is_sorted_by(|a, b| a < b)
            && boundaries.first().is_none_or(|first| *first > lowest);
        if !ascend || boundaries.len() >= usize::from(u16::MAX) {
            return bad("boundaries between compute servers must ascend strictly");
        }
        // They become fences of leaves.
        for boundary in &boundaries {
            L::check_key(L::key(boundary))?;
        }
        check_size::<L>(&boundaries)?;
        let owners = (0..=boundaries.len() as u16).collect();
        Ok(Self { epoch, lowest, boundaries, owners })
    }

    /// Creates a map with given owners, for example one received from another process.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] as for [`PartitionMap::new`], or if there is not exactly one
    /// owner for each range, all different.
    pub fn from_owners<L: Layout<Key: ToOwned<Owned = K>>>(
        epoch: u64,
        boundaries: Vec<K>,
        owners: Vec<u16>,
    ) -> Result<Self, IndexError> {
        let map = Self::new::<L>(epoch, boundaries)?;
        let different: BTreeSet<u16> = owners.iter().copied().collect();
        if owners.len() != map.owners.len() || different.len() != owners.len() {
            return bad("each range needs an owner of its own");
        }
        Ok(Self { owners, ..map })
    }

    /// The map's epoch. Of two maps, the one with the higher epoch is newer.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of ranges. Each range has its own owner.
    pub fn ranges(&self) -> u16 {
        self.owners.len() as u16
    }

    /// The owners of the ranges, from the lowest keys up.
    pub fn owners(&self) -> &[u16] {
        &self.owners
    }

    /// The boundaries, ascending.
    pub fn boundaries(&self) -> &[K] {
        &self.boundaries
    }

    /// The owner of `key`.
    #[inline]
    pub fn owner_of<Q: ?Sized + Ord>(&self, key: &Q) -> u16
    where
        K: Borrow<Q>,
    {
        self.owners[self.boundaries.partition_point(|boundary| boundary.borrow() <= key)]
    }

    /// The owner of the range where a scan begins.
    pub fn owner_of_start(&self, scan: &ScanRequest<K>) -> u16 {
        let place = match (scan.reverse, &scan.lower, &scan.upper) {
            (false, Bound::Included(key) | Bound::Excluded(key), _)
            | (true, _, Bound::Included(key)) => self.boundaries.partition_point(|b| b <= key),
            (true, _, Bound::Excluded(key)) => self.boundaries.partition_point(|b| b < key),
            (false, Bound::Unbounded, _) => 0,
            (true, _, Bound::Unbounded) => self.boundaries.len(),
        };
        self.owners[place]
    }

    fn place_of(&self, compute_server: u16) -> Option<usize> {
        self.owners.iter().position(|owner| *owner == compute_server)
    }

    fn range_at(&self, place: usize) -> OwnedRange<K> {
        let low = match place.checked_sub(1) {
            Some(before) => self.boundaries[before].clone(),
            None => self.lowest.clone(),
        };
        OwnedRange { low, high: self.boundaries.get(place).cloned() }
    }

    /// The range of a compute server, which is empty if it owns nothing.
    pub fn range_of(&self, compute_server: u16) -> OwnedRange<K> {
        match self.place_of(compute_server) {
            Some(place) => self.range_at(place),
            None => OwnedRange::empty(self.lowest.clone()),
        }
    }

    /// Plans a move of keys from one compute server to another: all keys, or those on the side of
    /// `at` that faces `to`. A compute server that owns nothing gets the keys from `at` on.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the two are not neighbours although `to` owns keys, if
    /// `from` owns none, or if `at` is not inside the range of `from`.
    pub fn plan(&self, from: u16, to: u16, at: Option<&K>) -> Result<KeyMove<K>, IndexError> {
        let Some(place) = self.place_of(from) else {
            return bad("the compute server to move keys from owns no keys");
        };
        let other = self.place_of(to);
        let OwnedRange { low, high } = self.range_at(place);
        if from == to {
            return bad("keys cannot move from a compute server to itself");
        }
        if at.is_some_and(|at| *at <= low || high.as_ref().is_some_and(|high| at >= high)) {
            return bad("the new boundary must lie inside the range to move keys from");
        }
        let upper = |at: &K| OwnedRange { low: at.clone(), high: high.clone() };
        let lower = |at: &K| OwnedRange { low: low.clone(), high: Some(at.clone()) };
        let is_above = other == Some(place + 1);
        let (keys, rest) = match (other, at) {
            (Some(other), _) if other + 1 != place && other != place + 1 => {
                return bad("keys move only to a neighbour or to a server without keys");
            }
            (_, None) => (self.range_at(place), OwnedRange::empty(low.clone())),
            (Some(_), Some(at)) if !is_above => (lower(at), upper(at)),
            (_, Some(at)) => (upper(at), lower(at)),
        };
        let grown = match other.map(|other| self.range_at(other)) {
            None => keys.clone(),
            Some(held) if is_above => OwnedRange { low: keys.low.clone(), high: held.high },
            Some(held) => OwnedRange { low: held.low, high: keys.high.clone() },
        };
        Ok(KeyMove { from, to, keys, rest, grown })
    }

    /// The map of the next epoch, after the move, if it fits a message. The move may make the map
    /// larger: the new boundary may be longer than the old one, or additional.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if it does not.
    pub fn checked_after<L: Layout<Key: ToOwned<Owned = K>>>(
        &self,
        moved: &KeyMove<K>,
    ) -> Result<Self, IndexError> {
        let after = self.after(moved);
        check_size::<L>(&after.boundaries).map(|()| after)
    }

    /// The map of the next epoch, after the move.
    #[must_use]
    pub fn after(&self, moved: &KeyMove<K>) -> Self {
        let ranges = self.owners.iter().map(|owner| match *owner {
            owner if owner == moved.from => (moved.rest.clone(), owner),
            owner if owner == moved.to => (moved.grown.clone(), owner),
            owner => (self.range_of(owner), owner),
        });
        let mut ranges: Vec<(OwnedRange<K>, u16)> = ranges.collect();
        if self.place_of(moved.to).is_none() {
            ranges.push((moved.grown.clone(), moved.to));
        }
        ranges.retain(|(range, _)| !range.is_empty());
        ranges.sort_by(|(a, _), (b, _)| a.low.cmp(&b.low));
        Self {
            epoch: self.epoch + 1,
            lowest: self.lowest.clone(),
            boundaries: ranges[1..].iter().map(|(range, _)| range.low.clone()).collect(),
            owners: ranges.iter().map(|(_, owner)| *owner).collect(),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_page::{Bytes, Fixed8, LengthError};
    use farleaf_pool::wire::ClientResponse;

    #[test]
    fn every_key_has_the_owner_whose_range_has_it() {
        let map = PartitionMap::new::<Fixed8>(3, vec![10, 20, u64::MAX]).unwrap();
        assert_eq!(map.ranges(), 4);
        for key in [0, 9, 10, 19, 20, u64::MAX - 1, u64::MAX] {
            for server in 0..4 {
                let owns = map.owner_of(&key) == server;
                assert_eq!(map.range_of(server).has(&key), owns, "{key} on {server}");
            }
        }
        assert!(PartitionMap::new::<Fixed8>(0, vec![10, 10]).is_err());
        assert!(PartitionMap::new::<Fixed8>(0, vec![0]).is_err());
        // A boundary becomes a fence of leaves, so it must fit a page.
        assert!(PartitionMap::new::<Bytes>(0, vec![vec![7; 128]]).is_ok());
        let too_long = PartitionMap::new::<Bytes>(0, vec![vec![7; 129]]);
        assert_eq!(too_long.err(), Some(LengthError::Key { bytes: 129, most: 128 }.into()));
    }

    /// A map must fit a message: 500 boundaries of 256 bytes once made one of twice the limit.
    #[test]
    fn a_map_is_bounded_by_its_bytes() {
        type MapTestLayout = Bytes<256>;
        let boundary = |number: u16, bytes: usize| {
            let mut key = number.to_be_bytes().to_vec();
            key.resize(bytes, b'k');
            key
        };
        let map_of = |count: u16, bytes: usize| {
            let boundaries = (1..=count).map(|number| boundary(number, bytes)).collect();
            PartitionMap::new::<MapTestLayout>(1, boundaries)
        };
        assert!(map_of(1_000, 50).is_ok());
        assert!(map_of(200, 256).is_ok());
        let why = "the boundaries between compute servers are too long for a message of a map";
        assert_eq!(map_of(500, 256).unwrap_err(), IndexError::InvalidArgument(why));
        // The largest possible map fits a message, and no move makes a larger one.
        let most = (1..).find(|count| map_of(count + 1, 256).is_err()).unwrap();
        let map = map_of(most, 256).unwrap();
        let (boundaries, owners) = (map.boundaries().to_vec(), map.owners().to_vec());
        let told = ClientResponse::<MapTestLayout>::Map { epoch: u64::MAX, boundaries, owners };
        let bytes = told.encode().len();
        assert!(bytes <= MAX_MESSAGE_BYTES / 2 + 64, "{bytes}");
        assert!(bytes > MAX_MESSAGE_BYTES / 2 - 300, "{bytes}");
        let last = boundary(most, 256);
        let higher = [&last[..255], b"z"].concat();
        for (to, at, fits) in [
            (most - 1, Some(higher.clone()), true),
            (most + 1, Some(higher), false),
            (most + 1, Some(boundary(most + 1, 2)), true),
            (most - 1, None, true),
        ] {
            let planned = map.plan(most, to, at.as_ref()).unwrap();
            let after = map.checked_after::<MapTestLayout>(&planned);
            assert_eq!(after.is_ok(), fits, "to {to} at {at:?}");
            assert!(after.is_err() || after == Ok(map.after(&planned)));
        }
    }

    #[test]
    fn keys_move_between_neighbours_and_to_newcomers() {
        let map = PartitionMap::new::<Fixed8>(1, vec![10, 20]).unwrap();
        type Case = (u16, u16, Option<u64>, &'static [u64], &'static [u16]);
        let moves: [Case; 7] = [
            (0, 1, Some(5), &[5, 20], &[0, 1, 2]),
            (1, 0, Some(15), &[15, 20], &[0, 1, 2]),
            (1, 2, Some(15), &[10, 15], &[0, 1, 2]),
            (1, 0, None, &[20], &[0, 2]),
            (1, 2, None, &[10], &[0, 2]),
            (1, 3, Some(15), &[10, 15, 20], &[0, 1, 3, 2]),
            (2, 3, None, &[10, 20], &[0, 1, 3]),
        ];
        for (from, to, at, boundaries, owners) in moves {
            let planned = map.plan(from, to, at.as_ref()).unwrap();
            let after = map.after(&planned);
            assert_eq!((after.boundaries(), after.owners()), (boundaries, owners), "{planned:?}");
            assert_eq!(after.epoch(), 2);
            assert_eq!(after.range_of(to), planned.grown);
            for key in 0..40 {
                let owner = if planned.keys.has(&key) { to } else { map.owner_of(&key) };
                assert_eq!(after.owner_of(&key), owner);
            }
        }
        for (from, to, at) in
            [(0, 2, None), (0, 0, None), (0, 1, Some(10)), (0, 1, Some(0)), (3, 0, None)]
        {
            assert!(map.plan(from, to, at.as_ref()).is_err(), "{from} {to} {at:?}");
        }
    }
}
