//! The rights to flush, to merge and to change the directory (lsm.V2, V7), and the guards of those
//! who wait or work.
//!
//! *Thread safety*: see [`super`]. A right is given back when it is dropped.

use super::{LsmShard, OpenedShard, PendingChange, TreeRight};
use crate::lent::SharedSsTables;
use crate::version::{Intake, SsTable, TreeChange, TreeVersion};
use crate::{MemTable, MemTableError};
use farleaf_fabric::sync::{Arc, Ordering, lock};
use farleaf_page::table::SsTableClip;

/// A right that a handle has. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct HeldRight {
    shard: Arc<LsmShard>,
    right: TreeRight,
}

impl HeldRight {
    pub(super) fn begin(shard: &Arc<LsmShard>, right: TreeRight) -> Option<Self> {
        let was_taken = std::mem::replace(&mut lock(&shard.state).taken[right as usize], true);
        (!was_taken).then(|| Self { shard: Arc::clone(shard), right })
    }
}

impl Drop for HeldRight {
    fn drop(&mut self) {
        lock(&self.shard.state).taken[self.right as usize] = false;
        self.shard.changed.raise();
    }
}

/// The right to flush. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct FlushRight {
    pub(super) _held: HeldRight,
}

impl FlushRight {
    /// Publishes a flush: `tables`, whose keys do not overlap, replace a closed MemTable (V3).
    pub(crate) fn flushed(&self, memtable: &Arc<MemTable>, tables: Vec<SsTable>) -> TreeChange {
        let tables = tables.into_iter().map(Arc::new).collect();
        TreeChange::Flushed { memtable: Arc::clone(memtable), tables }
    }
}

/// The claim of a running compaction. Dropping it ends the claim.
#[derive(Debug)]
pub(crate) struct ClaimGuard {
    pub(super) shard: Arc<LsmShard>,
    /// The lane of the compaction's jobs on memory servers.
    pub(crate) lane: u8,
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        lock(&self.shard.state).claims.remove(&self.lane);
        self.shard.changed.raise();
    }
}

/// The right to merge. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct CompactionRight {
    /// Its lane: jobs of one lane on memory servers run one after the other.
    pub(crate) lane: u8,
    /// Held if no other compaction may run.
    pub(super) _alone: Option<HeldRight>,
    /// Held if other compactions may run concurrently.
    pub(super) _beside: Option<ClaimGuard>,
}

impl CompactionRight {
    /// Publishes a compaction: `added` replaces `removed`, in `level` (V3).
    pub(crate) fn merged(
        &self,
        removed: &[Arc<SsTable>],
        level: usize,
        added: Vec<SsTable>,
    ) -> TreeChange {
        let added = added.into_iter().map(Arc::new).collect();
        TreeChange::Merged { removed: removed.to_vec(), level, added, parts: Vec::new() }
    }

    /// As [`CompactionRight::merged`]; also replaces each whole table of `parts` by its part (S3).
    pub(crate) fn merged_part(
        &self,
        removed: Vec<Arc<SsTable>>,
        level: usize,
        output: Option<SsTable>,
        parts: Vec<(Arc<SsTable>, Arc<SsTable>)>,
    ) -> TreeChange {
        let added = output.into_iter().map(Arc::new).collect();
        TreeChange::Merged { removed, level, added, parts }
    }

    /// Publishes that `table` moves to `level` without being rewritten.
    pub(crate) fn moved(&self, table: &Arc<SsTable>, level: usize) -> TreeChange {
        let moved = Arc::new(table.in_level(level));
        TreeChange::Moved { table: Arc::clone(table), level, moved }
    }
}

/// The right to change the directory. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct ManifestRight(pub(super) HeldRight);

impl ManifestRight {
    /// Notes a change before the directory is asked for it.
    pub(crate) fn begin(&self, change: TreeChange) -> Arc<PendingChange> {
        let words = change.for_directory().encode();
        let mut state = lock(&self.0.shard.state);
        state.edit += 1;
        let pending = Arc::new(PendingChange { number: state.edit, words, change });
        state.pending = Some(Arc::clone(&pending));
        pending
    }

    /// The directory has made the pending change: the version follows (V3, V6).
    pub(crate) fn made(&self) {
        let mut state = lock(&self.0.shard.state);
        let Some(pending) = state.pending.take() else { return };
        state.install(&pending.change, &self.0.shard.options);
        self.0.shard.promise_to(&state.version);
        drop(state);
        self.0.shard.changed.raise();
    }

    /// The directory has not made the pending change, and never will.
    pub(crate) fn refused(&self) {
        let refused = lock(&self.0.shard.state).pending.take();
        drop(refused); // Its tables give their extents back.
    }

    /// Changes the version alone.
    pub(crate) fn make_unlisted(&self, change: &TreeChange) {
        let mut state = lock(&self.0.shard.state);
        state.install(change, &self.0.shard.options);
        self.0.shard.promise_to(&state.version);
        drop(state);
        self.0.shard.changed.raise();
    }

    /// Opens the tree with what the directory lists. `raises` the sequence counter, unless a
    /// planted bug keeps it.
    pub(crate) fn opened(&self, opened: OpenedShard, raises: bool) -> Result<(), MemTableError> {
        let shard = &self.0.shard;
        let tables = || opened.levels.iter().flatten();
        let highest = tables().map(|table| table.meta.footer.highest).max().unwrap_or(0);
        // New versions, and the bounds of later scans, are above all that is there (H10).
        if raises {
            shard.sequences.raise(highest);
        }
        let options = shard.memtable();
        let active = MemTable::new(&shard.sequences, options.memory()?, options);
        let mut state = lock(&shard.state);
        let clip = state.clip.clone();
        let mut version = TreeVersion::new(Arc::new(active), shard.options.levels, clip);
        version.levels = opened.levels;
        state.lent = SharedSsTables::new(opened.lent);
        state.version = Arc::new(version);
        (state.epoch, state.edit) = (opened.epoch, opened.edit);
        (state.jobs, state.is_opening) = (0, false);
        state.tables = state.tables.max(opened.highest_table);
        drop(state);
        shard.opened.store(opened.epoch, Ordering::Release);
        shard.changed.raise();
        Ok(())
    }

    /// The directory has not given the shard to this process, and never will.
    pub(crate) fn not_opened(&self) {
        lock(&self.0.shard.state).is_opening = false;
    }

    /// Drops all state of the shard, before the directory ends the epoch.
    pub(crate) fn leaves(&self) {
        let shard = &self.0.shard;
        let mut state = lock(&shard.state);
        let none = Arc::clone(&shard.none);
        let version = TreeVersion::new(none, shard.options.levels, SsTableClip::default());
        let former = std::mem::replace(&mut state.version, Arc::new(version));
        let retired = (std::mem::take(&mut state.retired), std::mem::take(&mut state.lent));
        state.leaves = Some(std::mem::take(&mut state.epoch));
        (state.edit, state.pending) = (0, None);
        shard.needs.forget();
        shard.promise(Intake::Nothing, 0);
        shard.opened.store(0, Ordering::Release);
        drop(state);
        // The leases of its tables end.
        drop((former, retired));
        shard.changed.raise();
    }

    /// The directory has ended the epoch.
    pub(crate) fn has_left(&self) {
        lock(&self.0.shard.state).leaves = None;
    }
}

/// An operation that waits for a right.
#[derive(Debug)]
pub(crate) struct RightWaiter {
    pub(super) shard: Arc<LsmShard>,
    pub(super) right: TreeRight,
}

impl Drop for RightWaiter {
    fn drop(&mut self) {
        lock(&self.shard.state).waiting[self.right as usize] -= 1;
        // Tasks that have left the right to it go on.
        self.shard.changed.raise();
    }
}

/// A task that flushes and merges in the background.
#[derive(Debug)]
pub(crate) struct BackgroundTask {
    pub(super) shard: Arc<LsmShard>,
}

impl BackgroundTask {
    /// Counts a failure, after which writers that wait try for themselves, and the tasks rest until
    /// `rest_until_ns`.
    pub(crate) fn failed(&self, rest_until_ns: u64) {
        let mut state = lock(&self.shard.state);
        (state.failures, state.rest_until_ns) = (state.failures + 1, rest_until_ns);
        drop(state);
        self.shard.changed.raise();
    }

    /// How long the tasks rest from now on, in nanoseconds.
    pub(crate) fn rests_ns(&self, now_ns: u64) -> u64 {
        lock(&self.shard.state).rest_until_ns.saturating_sub(now_ns)
    }
}

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        lock(&self.shard.state).workers -= 1;
        // Writers that wait for it do the work themselves.
        self.shard.changed.raise();
    }
}
