//! The keys that a compute server owns. Only their leaves may enter its cache.
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - C20. A leaf is marked for a fetch or an offload only while its keys are owned, which is
//!   checked under the mapping table's lock. So once a thread has changed the range and waited for
//!   the existing marks to end, no other leaf of the old range can enter the cache.
//!
//! *Thread safety*: any number of threads.

use farleaf_fabric::sync::{AtomicU64, Mutex, Ordering, lock};
use farleaf_index::{OwnedRange, Ownership};

/// The range that a compute server owns now.
#[derive(Debug)]
pub struct CurrentOwnedRange<K> {
    range: Mutex<OwnedRange<K>>,
    /// Number of times the range has changed.
    changes: AtomicU64,
}

impl<K: Ord + Clone> CurrentOwnedRange<K> {
    /// Starts with `range` as the owned keys.
    pub fn new(range: OwnedRange<K>) -> Self {
        Self { range: Mutex::new(range), changes: AtomicU64::new(0) }
    }

    /// A copy of the current range.
    pub fn range(&self) -> OwnedRange<K> {
        lock(&self.range).clone()
    }

    /// How many of the keys from `low`, inclusive, to `high`, exclusive, are owned.
    pub fn of(&self, low: &K, high: Option<&K>) -> Ownership {
        lock(&self.range).of(low, high)
    }

    /// Number of times the range has changed, which shows whether a copy of it is stale.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Replaces the owned range.
    pub(crate) fn set(&self, range: OwnedRange<K>) {
        let mut held = lock(&self.range);
        *held = range;
        self.changes.fetch_add(1, Ordering::AcqRel);
    }
}
