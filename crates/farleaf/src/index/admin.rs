//! What operators and tools do to an index, beside the operations that programs do.

use super::reshape::refused;
use super::{IndexError, KeyRange, RangeIndex, Reshape, Reshaped};
use crate::cache::CacheCounters;
use std::future::Future;

/// An index, as its operator sees it.
pub trait IndexAdmin: RangeIndex {
    /// Runs the design's housekeeping (collection of deleted records, rebalancing) to its end,
    /// instead of waiting for it to happen by the way.
    fn collect(&self) -> impl Future<Output = Result<(), IndexError>>;

    /// Declares all clients of a compute server dead, so that others may finish or undo their
    /// changes. Call it only when that is certain. Designs whose clients hold nothing have nothing
    /// to do.
    fn declare_dead(&self, compute_server: u16) -> impl Future<Output = Result<(), IndexError>> {
        let _ = compute_server;
        async { Ok(()) }
    }

    /// The compute server that does the operations on `key`, as far as this handle knows; none for
    /// designs whose clients do them all themselves.
    fn compute_server_of(&self, key: &Self::Key) -> Option<u16> {
        let _ = key;
        None
    }

    /// The keys that a compute server owns, as far as this handle knows; none if it owns nothing,
    /// or the design's compute servers own no keys.
    fn owned_by(&self, compute_server: u16) -> Option<KeyRange<Self::Key>> {
        let _ = compute_server;
        None
    }

    /// Changes who owns what, or which memory servers are used, while operations run.
    fn reshape(
        &self,
        change: &Reshape<Self::Key>,
    ) -> impl Future<Output = Result<Reshaped, IndexError>> {
        let _ = change;
        async { refused() }
    }

    /// Does work of the design in the background until `ended`, or until there is none; tells
    /// `report` about each change and each failure.
    fn background(
        &self,
        work: Background,
        ended: &dyn Fn() -> bool,
        report: &dyn Fn(Result<Reshaped, IndexError>),
    ) -> impl Future<Output = Result<(), IndexError>> {
        let _ = (ended, report);
        async move {
            match work {
                Background::WriteBack => Ok(()),
                Background::Balance => refused(),
            }
        }
    }

    /// The cache's counters for this handle; all zero for designs without a cache.
    fn cache_counters(&self) -> CacheCounters {
        CacheCounters::default()
    }
}

/// Work that a design does beside its operations, in tasks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Changes go to the memory servers before they have been in a cache for too long. For any
    /// number of tasks of a compute server.
    WriteBack,
    /// Keys move from compute servers that do much more than others. For one task of an index.
    Balance,
}
