//! What a cache did for one handle.
//!
//! *Thread safety*: the live counters belong to one handle and its thread; snapshots are plain
//! values.

use std::cell::Cell;
use std::ops::{AddAssign, Sub};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The live counters of one handle.
        #[derive(Debug, Default)]
        pub struct LiveCounters { $($(#[$doc])* pub $name: Cell<u64>),* }

        /// A snapshot of the counters, or a sum or difference of snapshots.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CacheCounters { $($(#[$doc])* pub $name: u64),* }

        impl LiveCounters {
            /// The current values.
            pub fn snapshot(&self) -> CacheCounters {
                CacheCounters { $($name: self.$name.get()),* }
            }
        }

        impl AddAssign for CacheCounters {
            fn add_assign(&mut self, other: Self) { $(self.$name += other.$name;)* }
        }

        impl Sub for CacheCounters {
            type Output = Self;
            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name)),* }
            }
        }
    };
}

counters! {
    /// Leaves that an operation needed and found in a frame.
    leaf_hits,
    /// Leaf hits on cooling leaves.
    cooling_hits,
    /// Lookups that a copy of a hot record has answered.
    record_hits,
    /// Leaves that an operation needed and READ from a memory server.
    leaf_misses,
    /// Leaf misses for which a window of the leaf was READ.
    leaf_windows,
    /// Inner nodes READ from a memory server.
    inner_misses,
    /// Cooling nodes of any level that became hot again.
    reheats,
    /// Nodes evicted from the cooling structure.
    evictions,
    /// Hot nodes that started cooling.
    coolings,
    /// Write-backs of dirty nodes: before they cool, by age, or by a flush.
    write_backs,
    /// Changes of uncached leaves that were written through, so that the leaf is admitted clean.
    write_throughs,
    /// Nodes that were split, including the root.
    splits,
    /// Splits of nodes that are shared with other compute servers.
    shared_splits,
    /// Nodes that were merged into a neighbour.
    merges,
    /// Pairs of neighbours that rebalanced their entries.
    borrows,
    /// Nodes that were trimmed because a dead compute server had left entries outside the key range
    /// of their slot.
    trims,
    /// Stale shared nodes that were READ again.
    refreshes,
    /// Operations that memory servers executed.
    offloads,
    /// Offloaded operations that memory servers refused.
    offload_refusals,
    /// Cached copies dropped because a memory server had changed the leaf.
    invalidations,
    /// Value blocks that an operation needed and found in the cache.
    block_hits,
    /// Value blocks that an operation needed and READ from a memory server.
    block_misses,
}

impl LiveCounters {
    /// Adds one.
    #[inline]
    pub fn count(cell: &Cell<u64>) {
        cell.set(cell.get() + 1);
    }
}

impl CacheCounters {
    /// Fraction of the needed leaves and records that the cache had. 0 if none was needed.
    pub fn hit_ratio(&self) -> f64 {
        let hits = self.leaf_hits + self.record_hits;
        let all = hits + self.leaf_misses;
        if all == 0 { 0.0 } else { hits as f64 / all as f64 }
    }
}
