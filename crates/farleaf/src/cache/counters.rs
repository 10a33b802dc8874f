//! What a cache did for one handle, by the source of each hit.
//!
//! *Thread safety*: the live counters belong to one handle and its thread; snapshots are plain values.

use std::cell::Cell;
use std::ops::{AddAssign, Sub};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The live counters of one handle.
        #[derive(Debug, Default)]
        pub struct LiveCounters { $($(#[$doc])* pub $name: Cell<u64>),* }

        /// Counters at one moment, or a difference or a sum of such.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CacheCounters { $($(#[$doc])* pub $name: u64),* }

        impl LiveCounters {
            /// The counters now.
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
    /// Leaves that were asked for and found in a frame.
    leaf_hits,
    /// Those of them that were cooling.
    cooling_hits,
    /// Leaves that were asked for and had to be read from a memory server.
    leaf_misses,
    /// Inner nodes that had to be read from a memory server.
    inner_misses,
    /// Cooling nodes of any level that became hot again.
    reheats,
    /// Nodes that left the cache.
    evictions,
    /// Hot nodes that were made to cool.
    coolings,
    /// WRITEs of a changed node on its way out of the cache.
    write_backs,
    /// WRITEs of a change through to the memory server, the cached node staying clean.
    write_throughs,
    /// Nodes that were split, the root included.
    splits,
    /// Those of them that are shared with other compute servers.
    shared_splits,
    /// Nodes that joined a neighbour.
    merges,
    /// Pairs of neighbours that were evened out.
    borrows,
    /// Nodes that had more in the pool than their parents led to them for: a compute server has died.
    trims,
    /// Shared nodes that had become old and were read again.
    refreshes,
    /// Operations that memory servers did.
    offloads,
    /// Operations that memory servers were asked to do and would not.
    offload_refusals,
    /// Copies that were dropped because a memory server had changed the leaf.
    invalidations,
}

impl LiveCounters {
    /// Adds one.
    #[inline]
    pub fn count(cell: &Cell<u64>) {
        cell.set(cell.get() + 1);
    }
}

impl CacheCounters {
    /// The part of the leaves that were asked for and needed no READ; 0 if none was asked for.
    pub fn hit_ratio(&self) -> f64 {
        let all = self.leaf_hits + self.leaf_misses;
        if all == 0 { 0.0 } else { self.leaf_hits as f64 / all as f64 }
    }
}
