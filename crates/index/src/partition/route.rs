//! A handle's copy of the partition map. It may be stale; a former owner then redirects the handle.
//!
//! *Thread safety*: belongs to its handle's thread.

use super::PartitionMap;
use farleaf_fabric::sync::Arc;
use std::cell::RefCell;

/// The newest map that a handle knows.
#[derive(Debug)]
pub struct MapRoute<K>(RefCell<Arc<PartitionMap<K>>>);

impl<K: Clone + Ord> MapRoute<K> {
    pub(super) fn new(map: Arc<PartitionMap<K>>) -> Self {
        Self(RefCell::new(map))
    }

    /// The map that operations currently use.
    pub fn map(&self) -> Arc<PartitionMap<K>> {
        Arc::clone(&self.0.borrow())
    }

    /// The map's epoch.
    pub fn epoch(&self) -> u64 {
        self.0.borrow().epoch()
    }

    /// Passes the map to `look`.
    #[inline]
    pub(super) fn look<T>(&self, look: impl FnOnce(&PartitionMap<K>) -> T) -> T {
        look(&self.0.borrow())
    }

    /// Switches to `map` if it is newer. Returns whether it is.
    pub fn adopt(&self, map: Arc<PartitionMap<K>>) -> bool {
        let is_newer = map.epoch() > self.epoch();
        if is_newer {
            *self.0.borrow_mut() = map;
        }
        is_newer
    }
}
