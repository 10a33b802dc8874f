//! Flushes and merges: by the writer that meets a full MemTable, or by tasks in the background.
//!
//! Flushes and compactions have rights of their own, so that MemTables are flushed during long
//! merges. The options limit how many compactions of a tree run concurrently. With background
//! tasks, a stalled writer sleeps until there is room. If a background task has failed meanwhile,
//! the writer flushes and compacts itself, so that it can report the cause.
//!
//! A task has one timer while it has nothing to do: that of its flushes. Its compactions sleep
//! until the tree's signal is raised, which everything does that makes a compaction due or possible
//! (lsm.W1).
//!
//! *Thread safety*: that of the handle. Any number of tasks of any threads may work.

use super::handle::DlsmIndex;
use super::shard::{BackgroundTask, LsmShard, TreeRight};
use farleaf_fabric::Fabric;
use farleaf_index::together::{all, join};
use farleaf_index::{IndexError, ReshapeCost};
use farleaf_page::Layout;
use std::cell::Cell;

/// Maximum number of flushes, or of compactions, per call. The next call continues, unless an
/// operation waits for the right.
const STEPS: u32 = 16;
/// The longest sleep of a background task, in nanoseconds, before it checks whether it has ended.
pub(super) const POLL_INTERVAL_NS: u64 = 1_000_000;
/// The pause of all background tasks after a failure, in nanoseconds.
const FAILED_NS: u64 = 1_000_000;

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Flushes the closed MemTables, unless another handle does. Returns how many it flushed.
    async fn flush_waiting(&self, worker: Option<&BackgroundTask>) -> Result<u32, IndexError> {
        self.settle_loans_when_due().await;
        if worker.is_some() {
            self.own_ahead().await;
        }
        // Taking a right for nothing would wake every task that waits for it.
        if self.shard.pin().immutables.is_empty() {
            return Ok(0);
        }
        let flushing = LsmShard::begin_due(&self.shard, TreeRight::Flush, LsmShard::begin_flush);
        let Some(flushing) = flushing else { return Ok(0) };
        for step in 0..STEPS {
            let flushed = self.flush_oldest(&flushing).await;
            if !self.noted(flushed, worker)? {
                return Ok(step);
            }
        }
        Ok(STEPS)
    }

    /// Runs the compactions that are due and that no other handle runs. Returns their number.
    async fn compact_due(&self, worker: Option<&BackgroundTask>) -> Result<u32, IndexError> {
        if worker.is_some() && self.shard.needs.is_room_wanted() {
            let made = self.make_room().await;
            self.noted(made.map(|()| true), worker)?;
        }
        if worker.is_some() {
            let merged = self.compact_hidden().await;
            self.noted(merged, worker)?;
        }
        for step in 0..STEPS {
            let merged = self.compact_what_is_due().await;
            if !self.noted(merged, worker)? {
                return Ok(step);
            }
            self.settle_loans().await;
        }
        Ok(STEPS)
    }

    /// Counts the failure of a background task at once, after which all rest: otherwise they would
    /// take its right, or its tables, before writers, which have to learn of the failure.
    fn noted(
        &self,
        outcome: Result<bool, IndexError>,
        worker: Option<&BackgroundTask>,
    ) -> Result<bool, IndexError> {
        if let (Err(_), Some(worker)) = (&outcome, worker) {
            worker.failed(self.fabric().now_ns() + FAILED_NS);
        }
        outcome
    }

    /// Flushes closed MemTables and runs the compactions that are due, unless other handles do.
    /// Returns the number of both together.
    pub(super) async fn work(&self) -> Result<u32, IndexError> {
        let flushed = self.flush_waiting(None).await;
        // A compaction may succeed, and make room, although a flush has failed.
        let merged = self.compact_due(None).await;
        Ok(flushed? + merged?)
    }

    /// Flushes and merges until `ended` returns true, which it asks every `look_ns` at least.
    pub(super) async fn work_until(
        &self,
        look_ns: u64,
        ended: &dyn Fn() -> bool,
        report: &dyn Fn(Result<ReshapeCost, IndexError>),
    ) {
        let at_work = &LsmShard::begin_worker(&self.shard);
        let has_ended = &Cell::new(false);
        let is_over = &|| has_ended.get() || ended();
        let flushes = async {
            let flush = async move || self.flush_waiting(Some(at_work)).await;
            self.repeat(flush, at_work, Some(look_ns), is_over, report).await;
            has_ended.set(true);
            // Sleeping compaction tasks have no timer of their own.
            self.shard.changed.raise();
        };
        let merges = (0..self.shard.options.workers).map(|_| {
            let merge = async move || self.compact_due(Some(at_work)).await;
            self.repeat(merge, at_work, None, is_over, report)
        });
        join(flushes, all(merges)).await;
    }

    /// Repeats `work` until `is_over` returns true. After a round that did nothing, it sleeps until
    /// the tree has changed, at most `most_ns` if that is given; after a failure of any task, it
    /// rests.
    async fn repeat(
        &self,
        work: impl AsyncFn() -> Result<u32, IndexError>,
        at_work: &BackgroundTask,
        most_ns: Option<u64>,
        is_over: &dyn Fn() -> bool,
        report: &dyn Fn(Result<ReshapeCost, IndexError>),
    ) {
        let fabric = self.fabric();
        while !is_over() {
            let rests_ns = at_work.rests_ns(fabric.now_ns());
            if rests_ns > 0 {
                fabric.sleep(rests_ns).await;
                continue;
            }
            let seen = self.shard.changed.count();
            let did = work().await.unwrap_or_else(|error| {
                report(Err(error));
                0
            });
            if did > 0 || at_work.rests_ns(fabric.now_ns()) > 0 {
                continue;
            }
            match most_ns {
                Some(most_ns) => self.shard.changed.sleep(fabric, seen, most_ns).await,
                None => self.shard.changed.raised(seen).await,
            }
        }
    }
}
