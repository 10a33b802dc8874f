//! Counters of a tree.
//!
//! *Thread safety*: plain values.

use std::ops::AddAssign;

/// What a tree has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCounts {
    /// MemTables flushed.
    pub flushes: u64,
    /// Bytes of the tables that flushes wrote, with their indexes.
    pub flushed_bytes: u64,
    /// Compactions.
    pub merges: u64,
    /// Bytes of the tables, with their indexes, that compactions wrote.
    pub merged_bytes: u64,
    /// Compactions that ran on a memory server.
    pub near_merges: u64,
    /// Bytes of the indexes of tables that compactions wrote.
    pub merged_index_bytes: u64,
    /// Tables that were moved to the next level without being rewritten.
    pub moved_tables: u64,
    /// Write stalls: how often a writer found no room.
    pub stalls: u64,
}

impl AddAssign for TreeCounts {
    fn add_assign(&mut self, other: Self) {
        let Self {
            flushes,
            flushed_bytes,
            merges,
            merged_bytes,
            near_merges,
            merged_index_bytes,
            moved_tables,
            stalls,
        } = other;
        self.flushes += flushes;
        self.flushed_bytes += flushed_bytes;
        self.merges += merges;
        self.merged_bytes += merged_bytes;
        self.near_merges += near_merges;
        self.merged_index_bytes += merged_index_bytes;
        self.moved_tables += moved_tables;
        self.stalls += stalls;
    }
}
