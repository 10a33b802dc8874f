//! The set of memory servers that an index uses.
//!
//! *Thread safety*: any number of threads.

use farleaf_fabric::sync::{AtomicU64, Ordering};

/// How many of the fabric's memory servers are in use. Unused ones are the last ones. All handles
/// of an index in this process share this count.
#[derive(Debug, Default)]
pub struct MemoryUse {
    spare: AtomicU64,
}

impl MemoryUse {
    /// Uses all memory servers but the last `spare` ones.
    pub fn all_but(spare: u16) -> Self {
        Self { spare: AtomicU64::new(spare.into()) }
    }

    /// How many of `servers` are in use; at least one.
    pub fn used(&self, servers: u16) -> u16 {
        servers.saturating_sub(self.spare.load(Ordering::Acquire) as u16).max(1)
    }

    /// Adds one more server; `false` if all are in use already.
    pub fn add_one(&self) -> bool {
        let less = |spare: u64| spare.checked_sub(1);
        self.spare.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }
}
