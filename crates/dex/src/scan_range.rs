//! The part of a scan in an owned range: where it begins, and where a subtree ends.
//!
//! *Thread safety*: plain functions.

use farleaf_index::OwnedRange;
use farleaf_index::ScanRequest;
use farleaf_page::{Layout, OwnedKey, Page, clipped};
use std::ops::Bound;

/// Where the subtree at a slot ends in the direction of a scan.
pub(super) fn next_fence<L: Layout>(
    parent: Page<'_, L>,
    slot: usize,
    reverse: bool,
) -> Option<OwnedKey<L>> {
    match reverse {
        true => Some(L::inner_key(parent, slot)),
        false => L::inner_end(parent, slot),
    }
}

/// The part of a scan that lies in a range.
pub(super) fn within<K: Clone + Ord>(
    scan: &ScanRequest<K>,
    range: &OwnedRange<K>,
) -> ScanRequest<K> {
    let bounds = (scan.lower.as_ref(), scan.upper.as_ref());
    let (lower, upper) = clipped(bounds, (&range.low, range.high.as_ref()));
    ScanRequest { lower: lower.cloned(), upper: upper.cloned(), ..*scan }
}

/// Where an ascending scan begins.
pub(super) fn first<K: Clone + Ord>(scan: &ScanRequest<K>, range: &OwnedRange<K>) -> Bound<K> {
    let low = range.low.clone();
    Bound::Included(match &scan.lower {
        Bound::Included(key) | Bound::Excluded(key) if *key > low => key.clone(),
        _ => low,
    })
}

/// Where a descending scan begins; `None` if there is nothing below its upper bound.
pub(super) fn last<K: Clone + Ord>(
    scan: &ScanRequest<K>,
    range: &OwnedRange<K>,
) -> Option<Bound<K>> {
    let inside = |key: &K| range.high.as_ref().is_none_or(|end| key < end);
    match &scan.upper {
        Bound::Included(key) if inside(key) => {
            (*key >= range.low).then(|| Bound::Included(key.clone()))
        }
        Bound::Excluded(key) if inside(key) => {
            (*key > range.low).then(|| Bound::Excluded(key.clone()))
        }
        _ => Some(match &range.high {
            Some(end) => Bound::Excluded(end.clone()),
            None => Bound::Unbounded,
        }),
    }
}
