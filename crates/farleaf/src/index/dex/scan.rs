//! Scans: leaf by leaf through the fences, each by a descent of its own (Lu et al., §7).
//!
//! A leaf is read atomically, a scan is not: it is no snapshot.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use crate::cache::Discipline;
use crate::index::{Records, Scan};
use crate::page::{Layout, Page, Probe, ScanWindow};
use crate::remote::RemoteError;
use farleaf_fabric::{Fabric, Work};
use std::cell::RefCell;
use std::ops::Bound;

impl<F: Fabric, L: Layout, D: Discipline> DexIndex<F, L, D> {
    /// Appends the records of the owned range that `scan` asks for, at most until `out` has `scan.limit`.
    ///
    /// # Errors
    /// [`RemoteError`] if a leaf cannot be read.
    pub async fn scan(
        &self,
        scan: &Scan<L::Key>,
        out: &mut Records<L::Key, L::Value>,
    ) -> Result<(), RemoteError> {
        let range = self.server.range();
        let mut at = if scan.reverse { self.last(scan) } else { Some(self.first(scan)) };
        let found = RefCell::new(std::mem::take(out));
        let mut outcome = Ok(());
        let mut moved = false;
        while let Some(place) = at {
            let had = found.borrow().len();
            if had >= scan.limit {
                break;
            }
            // A leaf may have grown since the last one was read: never go back behind that.
            let (lower, upper) = match (&place, moved) {
                (_, false) => (scan.lower.as_ref(), scan.upper.as_ref()),
                (place, true) if scan.reverse => (scan.lower.as_ref(), place.as_ref()),
                (place, true) => (place.as_ref(), scan.upper.as_ref()),
            };
            let reverse = scan.reverse;
            let window = ScanWindow { lower, upper, reverse, limit: scan.limit - had };
            let read = |page: Page<'_, L>| {
                let mut found = found.borrow_mut();
                // The last attempt may have left something.
                found.truncate(had);
                L::leaf_collect(page, &window, &mut found);
                if scan.reverse { Some(L::low(page)) } else { L::high(page) }
            };
            let probe = match &place {
                Bound::Included(key) => Probe::At(key),
                Bound::Excluded(key) => Probe::Before(key),
                Bound::Unbounded => Probe::Last,
            };
            let next = match self.read_leaf(probe, read).await {
                Ok(next) => next,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            };
            moved = true;
            let copied = found.borrow().len() - had;
            self.charge(Work::CopyRecords(copied as u32)).await;
            at = match next {
                Some(low) if scan.reverse => {
                    let more = low > range.low && is_above(&low, &scan.lower);
                    more.then_some(Bound::Excluded(low))
                }
                Some(high) => {
                    let inside = range.high.as_ref().is_none_or(|end| high < *end);
                    (inside && is_below(&high, &scan.upper)).then_some(Bound::Included(high))
                }
                None => None,
            };
        }
        *out = found.into_inner();
        outcome
    }

    /// Where an ascending scan begins.
    fn first(&self, scan: &Scan<L::Key>) -> Bound<L::Key> {
        let low = self.server.range().low;
        Bound::Included(match &scan.lower {
            Bound::Included(key) | Bound::Excluded(key) if *key > low => key.clone(),
            _ => low,
        })
    }

    /// Where a descending scan begins; nowhere, if there is nothing below its upper bound.
    fn last(&self, scan: &Scan<L::Key>) -> Option<Bound<L::Key>> {
        let range = self.server.range();
        let inside = |key: &L::Key| range.high.as_ref().is_none_or(|end| key < end);
        Some(match &scan.upper {
            Bound::Included(key) if inside(key) => {
                if *key < range.low {
                    return None;
                }
                Bound::Included(key.clone())
            }
            Bound::Excluded(key) if inside(key) => {
                if *key <= range.low {
                    return None;
                }
                Bound::Excluded(key.clone())
            }
            _ => match range.high {
                Some(end) => Bound::Excluded(end),
                None => Bound::Unbounded,
            },
        })
    }
}

/// Whether there can be keys from `key` on that are not above the bound.
fn is_below<K: Ord>(key: &K, upper: &Bound<K>) -> bool {
    match upper {
        Bound::Unbounded => true,
        Bound::Included(end) => key <= end,
        Bound::Excluded(end) => key < end,
    }
}

/// Whether there can be keys before `key` that are not below the bound.
fn is_above<K: Ord>(key: &K, lower: &Bound<K>) -> bool {
    match lower {
        Bound::Unbounded => true,
        Bound::Included(start) | Bound::Excluded(start) => key > start,
    }
}
