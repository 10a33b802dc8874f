//! Flushes and merges: by the writer that meets a full MemTable, or by tasks in the background.
//!
//! A flush and a merge have rights of their own, so that MemTables are flushed while a long merge
//! runs. With background tasks, a writer that finds no room sleeps until there is some; if such a
//! task has failed meanwhile, the writer tries for itself, and so learns why there is no room.
//!
//! *Thread safety*: that of the handle. Any number of tasks of any threads may work.

use super::compact::due_level;
use super::handle::DlsmIndex;
use super::shard::{AtWork, Shard};
use crate::index::{IndexError, Reshaped};
use crate::page::Layout;
use crate::together::join;
use farleaf_fabric::Fabric;

/// Flushes, or merges, that one call makes. The next one goes on.
const STEPS: u32 = 16;
/// The longest sleep of a background task, in nanoseconds, before it looks whether it has ended.
const LOOK_NS: u64 = 1_000_000;
/// The pause of a background task after a failure, in nanoseconds.
const FAILED_NS: u64 = 1_000_000;

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Flushes what waits, unless another handle does. Returns how many MemTables it flushed.
    pub(super) async fn flush_waiting(&self) -> Result<u32, IndexError> {
        // A right that is taken for nothing would wake all that wait for it.
        if self.shard.pin().immutables.is_empty() {
            return Ok(0);
        }
        let Some(flushing) = Shard::begin_flush(&self.shard) else { return Ok(0) };
        for step in 0..STEPS {
            if !self.flush_oldest(&flushing).await? {
                return Ok(step);
            }
        }
        Ok(STEPS)
    }

    /// Merges what is due, unless another handle does. Returns the number of merges.
    pub(super) async fn merge_due(&self) -> Result<u32, IndexError> {
        if due_level(&self.shard.pin(), &self.shard.options).is_none() {
            return Ok(0);
        }
        let Some(merging) = Shard::begin_merge(&self.shard) else { return Ok(0) };
        for step in 0..STEPS {
            if !self.merge_what_is_due(&merging).await? {
                return Ok(step);
            }
        }
        Ok(STEPS)
    }

    /// Flushes what waits and merges what is due, unless other handles do. Returns how much it did.
    pub(super) async fn work(&self) -> Result<u32, IndexError> {
        let flushed = self.flush_waiting().await;
        // A merge may succeed, and make room, although a flush has failed.
        let merged = self.merge_due().await;
        Ok(flushed? + merged?)
    }

    /// Flushes and merges until `ended` returns true.
    pub(super) async fn work_until(
        &self,
        ended: &dyn Fn() -> bool,
        report: &dyn Fn(Result<Reshaped, IndexError>),
    ) {
        let at_work = &Shard::begin_worker(&self.shard);
        let flushes = async {
            while !ended() {
                let seen = self.shard.changed.count();
                let flushed = self.flush_waiting().await;
                self.rest(flushed, at_work, seen, report).await;
            }
        };
        let merges = async {
            while !ended() {
                let seen = self.shard.changed.count();
                let merged = self.merge_due().await;
                self.rest(merged, at_work, seen, report).await;
            }
        };
        join(flushes, merges).await;
    }

    /// Sleeps after a round that did nothing, or has failed.
    async fn rest(
        &self,
        did: Result<u32, IndexError>,
        at_work: &AtWork,
        seen: u64,
        report: &dyn Fn(Result<Reshaped, IndexError>),
    ) {
        match did {
            Ok(0) => self.shard.changed.sleep(self.fabric(), seen, LOOK_NS).await,
            Ok(_) => {}
            Err(error) => {
                report(Err(error));
                at_work.failed();
                self.fabric().sleep(FAILED_NS).await;
            }
        }
    }
}
