//! Leaving a shard, so that another process can open it without a fence.
//!
//! A fence ends a process, so a process that lives on must make sure by itself that nothing of it
//! can still reach the shard. The order of the steps:
//!
//! 1. The gate is closed, and the operations in flight end.
//! 2. All MemTables are flushed.
//! 3. The rights to flush, to merge and to change the directory are taken, and a change of unknown
//!    outcome is settled.
//! 4. All extents that are in no table come back: of tables that were given up, after resets of
//!    their connections, and of merge jobs, after their close.
//! 5. A barrier ends the records of the shard's keys in the write-ahead log.
//! 6. The directory ends the epoch.
//!
//! Whatever fails before step 6 leaves the process with the shard. If the outcome of step 6 is not
//! known, the process asks again before it opens the shard from the directory, in a later epoch.
//!
//! A shard is divided while no process has it: step 6 then begins another shard in the same
//! change, and the process opens both from the directory.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.H8. A process tells the directory that it leaves a shard only after all of its operations,
//!   flushes, merges and jobs there have ended, and each of its WRITEs has landed or never will.
//!
//! *Thread safety*: that of the handle. One handle at a time leaves the shard.

use super::handle::DlsmIndex;
use super::shard::{LsmShard, TreeRight};
use farleaf_fabric::Fabric;
use farleaf_index::IndexError;
use farleaf_page::Layout;
use farleaf_page::rules::{LEAVERS_DRAINED, LEAVERS_FLUSHED, LEAVERS_SETTLED};
use farleaf_page::table::KeyBuf;

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Leaves the shard, whose gate the caller has closed. Does nothing if this process has not
    /// opened it.
    ///
    /// # Errors
    /// [`IndexError`]; then this process has the shard, or may have it, and nothing is lost.
    pub(super) async fn leave(&self) -> Result<(), IndexError> {
        self.leave_for(None).await
    }

    /// Leaves the shard and splits it. `other` is the number of the new shard and its lowest key.
    /// The caller has closed the gate. Afterwards, whatever the outcome, it ends the epoch by
    /// [`DlsmIndex::end_leaving`] and then asks which shards exist (L4).
    ///
    /// # Errors
    /// [`IndexError`], also if this process has not opened the shard. Nothing is lost.
    pub(super) async fn divide(&self, other: (u64, &KeyBuf)) -> Result<(), IndexError> {
        self.leave_for(Some(other)).await
    }

    /// Ends an epoch that this process leaves, if the directory may not have ended it.
    pub(super) async fn end_leaving(&self) -> Result<(), IndexError> {
        let editing = self.until_begun(TreeRight::Edit, LsmShard::begin_edit).await?;
        self.tell_left(&editing).await
    }

    async fn leave_for(&self, division: Option<(u64, &KeyBuf)>) -> Result<(), IndexError> {
        let (shard, fabric) = (&self.shard, self.fabric());
        let settles = !fabric.breaks(LEAVERS_SETTLED);
        if settles {
            // Check this first: while a move that will fail is tried, operations on its keys wait.
            self.check_found()?;
        }
        if !fabric.breaks(LEAVERS_DRAINED) {
            self.until_drained().await?;
        }
        if shard.is_opening() {
            // The directory may have given it to this process.
            self.open_closed().await?;
        }
        if shard.epoch() == 0 {
            let editing = self.until_begun(TreeRight::Edit, LsmShard::begin_edit).await?;
            // A `flush` or `collect`, which makes no visit, may have opened it before.
            return match shard.epoch() > 0 || shard.is_opening() {
                false if division.is_none() => self.tell_left(&editing).await,
                _ => Err(IndexError::Contended { retries: 0 }),
            };
        }
        if !fabric.breaks(LEAVERS_FLUSHED) {
            self.flush_everything().await?;
        }
        let mut rights = None;
        if settles {
            let flushing = self.until_begun(TreeRight::Flush, LsmShard::begin_flush).await?;
            rights = Some((
                flushing,
                self.until_begun(TreeRight::Merge, LsmShard::begin_compaction).await?,
            ));
        }
        let editing = self.until_begun(TreeRight::Edit, LsmShard::begin_edit).await?;
        self.settle_with(&editing).await?;
        if settles {
            self.until_landed().await?;
        }
        let below = self.bound_of_records().await?;
        self.end_records(below).await?;
        editing.leaves();
        let told = match division {
            None => self.tell_left(&editing).await,
            Some(other) => self.tell_divided(&editing, other).await,
        };
        drop(rights);
        told
    }

    /// Waits until no operation uses the tree.
    async fn until_drained(&self) -> Result<(), IndexError> {
        let mut wait = None;
        while self.shard.gate.visits() > 0 {
            wait.get_or_insert_with(|| self.wait()).again().await?;
        }
        Ok(())
    }

    /// Fails if extents are lost: they do not come back as long as this process has the shard.
    fn check_found(&self) -> Result<(), IndexError> {
        match self.shard.extents().lost {
            0 => Ok(()),
            _ => Err(IndexError::Contended { retries: 0 }),
        }
    }

    /// Waits until all extents in use are those of the version's tables. Each thread settles what
    /// it has given up.
    async fn until_landed(&self) -> Result<(), IndexError> {
        let mut wait = None;
        loop {
            self.extents.settle().await?;
            if self.shard.has_landed() {
                return Ok(());
            }
            self.check_found()?;
            wait.get_or_insert_with(|| self.wait()).again().await?;
        }
    }
}
