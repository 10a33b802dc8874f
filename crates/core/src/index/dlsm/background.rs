//! Flushes and merges: by the writer that meets a full MemTable, or by tasks in the background.
//!
//! Flushes and merges have rights of their own, so that MemTables are flushed while long merges run.
//! A task merges as much beside one another as the options let a tree merge. With background tasks, a writer that finds no room sleeps until there is some; if such a
//! task has failed meanwhile, the writer tries for itself, and so learns why there is no room.
//!
//! *Thread safety*: that of the handle. Any number of tasks of any threads may work.

use super::handle::DlsmIndex;
use super::shard::{AtWork, Right, Shard};
use crate::index::{IndexError, Reshaped};
use crate::page::Layout;
use crate::together::{all, join};
use farleaf_fabric::Fabric;

/// Flushes, or merges, that one call makes. The next one goes on, unless an operation waits for the
/// right.
const STEPS: u32 = 16;
/// The longest sleep of a background task, in nanoseconds, before it looks whether it has ended.
pub(super) const LOOK_NS: u64 = 1_000_000;
/// The pause of all background tasks after a failure, in nanoseconds.
const FAILED_NS: u64 = 1_000_000;

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Flushes what waits, unless another handle does. Returns how many MemTables it flushed.
    async fn flush_waiting(&self, worker: Option<&AtWork>) -> Result<u32, IndexError> {
        // A right that is taken for nothing would wake all that wait for it.
        if self.shard.pin().immutables.is_empty() {
            return Ok(0);
        }
        let flushing = Shard::begin_due(&self.shard, Right::Flush, Shard::begin_flush);
        let Some(flushing) = flushing else { return Ok(0) };
        for step in 0..STEPS {
            let flushed = self.flush_oldest(&flushing).await;
            if !self.noted(flushed, worker)? {
                return Ok(step);
            }
        }
        Ok(STEPS)
    }

    /// Merges what is due and others do not merge. Returns the number of merges.
    async fn merge_due(&self, worker: Option<&AtWork>) -> Result<u32, IndexError> {
        for step in 0..STEPS {
            let merged = self.merge_what_is_due().await;
            if !self.noted(merged, worker)? {
                return Ok(step);
            }
        }
        Ok(STEPS)
    }

    /// Counts the failure of a background task while it still has its right: other tasks would take
    /// that at once, and writers, which have to learn of the failure, would never get it.
    fn noted(
        &self,
        outcome: Result<bool, IndexError>,
        worker: Option<&AtWork>,
    ) -> Result<bool, IndexError> {
        if let (Err(_), Some(worker)) = (&outcome, worker) {
            worker.failed(self.fabric().now_ns() + FAILED_NS);
        }
        outcome
    }

    /// Flushes what waits and merges what is due, unless other handles do. Returns how much it did.
    pub(super) async fn work(&self) -> Result<u32, IndexError> {
        let flushed = self.flush_waiting(None).await;
        // A merge may succeed, and make room, although a flush has failed.
        let merged = self.merge_due(None).await;
        Ok(flushed? + merged?)
    }

    /// Flushes and merges until `ended` returns true, which it asks every `look_ns` at least.
    pub(super) async fn work_until(
        &self,
        look_ns: u64,
        ended: &dyn Fn() -> bool,
        report: &dyn Fn(Result<Reshaped, IndexError>),
    ) {
        let at_work = &Shard::begin_worker(&self.shard);
        let flushes = async {
            while !ended() {
                let seen = self.shard.changed.count();
                let flushed = match at_work.rests_ns(self.fabric().now_ns()) {
                    0 => self.flush_waiting(Some(at_work)).await,
                    _ => Ok(0),
                };
                self.rest(flushed, at_work, (seen, look_ns), report).await;
            }
        };
        let merges = (0..self.shard.options.workers).map(|_| async {
            while !ended() {
                let seen = self.shard.changed.count();
                let merged = match at_work.rests_ns(self.fabric().now_ns()) {
                    0 => self.merge_due(Some(at_work)).await,
                    _ => Ok(0),
                };
                self.rest(merged, at_work, (seen, look_ns), report).await;
            }
        });
        join(flushes, all(merges)).await;
    }

    /// Sleeps after a round that did nothing, or after a failure of any task.
    async fn rest(
        &self,
        did: Result<u32, IndexError>,
        at_work: &AtWork,
        (seen, look_ns): (u64, u64),
        report: &dyn Fn(Result<Reshaped, IndexError>),
    ) {
        let did = did.unwrap_or_else(|error| {
            report(Err(error));
            0
        });
        match at_work.rests_ns(self.fabric().now_ns()) {
            0 if did > 0 => {}
            0 => self.shard.changed.sleep(self.fabric(), seen, look_ns).await,
            rests_ns => self.fabric().sleep(rests_ns).await,
        }
    }
}
