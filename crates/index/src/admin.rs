//! Administration of an index by operators and tools.

use super::reshape::refused;
use super::{IndexError, KeyRange, OwnedForm, RangeIndex, Reshape, ReshapeCost};
use crate::CacheCounters;
use std::future::Future;

/// The administrative interface of an index.
pub trait IndexAdmin: RangeIndex {
    /// Runs the design's housekeeping (collecting deleted records, rebalancing nodes) to
    /// completion, instead of leaving it to other operations.
    fn collect(&self) -> impl Future<Output = Result<(), IndexError>>;

    /// Declares all clients of a compute server dead, so that other clients may finish or undo
    /// their changes. Call it only when the compute server is certainly dead. Does nothing in
    /// designs whose clients hold no locks or other state.
    fn declare_dead(&self, compute_server: u16) -> impl Future<Output = Result<(), IndexError>> {
        let _ = compute_server;
        async { Ok(()) }
    }

    /// The compute server that executes operations on `key`, as far as this handle knows. `None` in
    /// designs where clients execute all operations themselves.
    fn compute_server_of(&self, key: &Self::Key) -> Option<u16> {
        let _ = key;
        None
    }

    /// The keys that a compute server owns, as far as this handle knows. `None` if it owns none, or
    /// if the design's compute servers own no keys.
    fn owned_by(&self, compute_server: u16) -> Option<KeyRange<OwnedForm<Self::Key>>> {
        let _ = compute_server;
        None
    }

    /// Changes key ownership or the set of used memory servers while operations run.
    fn reshape(
        &self,
        change: &Reshape<OwnedForm<Self::Key>>,
    ) -> impl Future<Output = Result<ReshapeCost, IndexError>> {
        let _ = change;
        async { refused() }
    }

    /// Runs background work of the design until `ended` returns true, or until there is none.
    /// Passes each change and each failure to `report`.
    fn background(
        &self,
        work: Background,
        ended: &dyn Fn() -> bool,
        report: &dyn Fn(Result<ReshapeCost, IndexError>),
    ) -> impl Future<Output = Result<(), IndexError>> {
        let _ = (ended, report);
        async move {
            match work {
                Background::WriteBack => Ok(()),
                Background::Balance => refused(),
            }
        }
    }

    /// The cache's counters for this handle; all zero in designs without a cache.
    fn cache_counters(&self) -> CacheCounters {
        CacheCounters::default()
    }
}

/// Background work of a design, run in tasks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Write changes back to the memory servers before they reach the age limit. Any number of
    /// tasks of a compute server may run this.
    WriteBack,
    /// Move keys away from compute servers that are loaded much more than others. Only one task of
    /// an index may run this.
    Balance,
}
