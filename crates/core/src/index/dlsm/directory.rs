//! The shard's directory: opening the shard from it, and changing it before a version changes.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.V6. A change that adds or takes away tables is made in the directory first, and then in
//!   the version. If its outcome is unknown, the same change is asked for again before any other.
//! - lsm.K5. A process that opens a shard keeps the memory of all tables in its directory; the rest
//!   of the shard's chunks is free.
//!
//! *Thread safety*: that of the handle. One handle at a time opens the shard or changes the
//! directory.

use super::handle::DlsmIndex;
use super::shard::{Editing, Opened, PendingChange, Right, Shard};
use super::version::{Change, Table};
use crate::index::IndexError;
use crate::page::Layout;
use crate::remote::{ExtentSpace, Lease, RemoteError, ShardClient, ShardState};
use crate::rules::{ORPHANS_ONLY, TABLES_LISTED};
use crate::table::{ExtentRun, Index, Placed};
use crate::wire::Refusal;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr};

/// Names no process: the owner of a shard whose process has ended.
const NO_PROCESS: u64 = 1;

/// The shard belongs to another process.
const OTHER_OWNER: IndexError = IndexError::InvalidArgument(
    "another process has this index; end it, fence its compute servers, and take its shard over",
);

/// Takes a shard from a process that has ended, so that any process can open it. Can be repeated.
/// The compute servers that had joined are fenced, except for this endpoint's own one, whose former
/// lives must have been fenced before.
pub(super) async fn end_process<F: Fabric, L: Layout>(
    directory: &ShardClient<'_, F, L>,
) -> Result<(), RemoteError> {
    let state = directory.state().await?;
    if state.epoch == 0 {
        return Ok(()); // no process has ever had it
    }
    let state = directory.open(NO_PROCESS, state.epoch, state.extent_bytes).await?;
    directory.end_former_lives(&state).await
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Opens the shard, if another handle of this process has not done so. The shard must have no
    /// owner, unless `takes_over`: then the one that it has is fenced first.
    pub(super) async fn open_shard(&self, takes_over: bool) -> Result<(), IndexError> {
        let editing = self.until_begun(Right::Edit, Shard::begin_edit).await?;
        let shard = &self.shard;
        let directory = self.extents.directory(shard.id);
        let owner = shard.owner(self.fabric().unique());
        if shard.epoch() > 0 {
            directory.join(owner).await?;
            return Ok(());
        }
        let state = directory.state().await?;
        let after = match state.owner == owner {
            // An earlier attempt has come so far.
            true => state.epoch - 1,
            false if state.epoch > 0 && !takes_over && state.owner != NO_PROCESS => {
                return Err(OTHER_OWNER);
            }
            false => state.epoch,
        };
        let extent_bytes = shard.space.extent_bytes();
        if state.highest_table > 0 && state.extent_bytes != extent_bytes {
            return Err(IndexError::InvalidArgument("this index has extents of another size"));
        }
        let state = directory.open(owner, after, extent_bytes).await?;
        if state.epoch > 1 {
            directory.end_former_lives(&state).await?;
        }
        let chunks = directory.chunks(state.epoch).await?;
        shard.space.begin((shard.id, state.epoch), &chunks);
        let words = directory.tables(state.epoch).await?;
        let levels = self.open_tables(&words).await?;
        let ShardState { epoch, edit, highest_table, .. } = state;
        Ok(editing.opened(Opened { epoch, edit, highest_table, levels })?)
    }

    /// The tables in the words of the directory, by level.
    async fn open_tables(&self, mut words: &[u64]) -> Result<Vec<Vec<Arc<Table>>>, IndexError> {
        let bad_words = IndexError::Damaged { at: GlobalAddr::NULL };
        let mut levels = vec![Vec::new(); self.shard.options.levels + 1];
        while !words.is_empty() {
            let placed = Placed::decode(&mut words).map_err(|_| bad_words.clone())?;
            let table = Arc::new(self.open_table(placed).await?);
            // Other threads wait for the right to edit until the shard is open.
            self.shard.step();
            let tables: &mut Vec<Arc<Table>> =
                levels.get_mut(usize::from(table.meta.level)).ok_or(
                    IndexError::InvalidArgument("this index has more levels than the options"),
                )?;
            tables.push(table);
        }
        let (level0, others) = levels.split_first_mut().expect("there is a level 0");
        // The tables of one MemTable have no key in common, and may be in any order.
        level0.sort_by_key(|table| std::cmp::Reverse(table.meta.footer.highest));
        for tables in others {
            tables.sort_by(|one, other| one.meta.smallest.cmp(&other.meta.smallest));
            let overlap = |pair: &[Arc<Table>]| pair[0].meta.largest >= pair[1].meta.smallest;
            if tables.windows(2).any(overlap) {
                return Err(bad_words);
            }
        }
        Ok(levels)
    }

    async fn open_table(&self, placed: Placed) -> Result<Table, IndexError> {
        let Placed { mut meta, pieces } = placed;
        let piece = |&(at, bytes): &(u64, u64)| (GlobalAddr::from_bits(at), bytes);
        let pieces: Vec<_> = pieces.iter().map(piece).collect();
        let at = pieces.first().map_or(GlobalAddr::NULL, |piece| piece.0);
        let damaged = IndexError::Damaged { at };
        let lease = match self.fabric().breaks(ORPHANS_ONLY) {
            true => ExtentSpace::lease_at(&self.shard.space, &pieces).inspect(Lease::end),
            false => ExtentSpace::lease_at(&self.shard.space, &pieces),
        };
        let lease = lease.ok_or(damaged.clone())?;
        let run = |(first, count)| ExtentRun { first, count };
        meta.extents = lease.runs().into_iter().map(run).collect();
        let footer = &meta.footer;
        let (begin, end) = (footer.data_words, footer.table_words());
        if u64::from(end) * 8 > lease.bytes() {
            return Err(damaged);
        }
        let sections = self.extents.read(&lease, begin, end - begin).await?;
        match Index::open(sections, footer.table) {
            Ok(index) if index.footer() == footer => {
                Ok(Table { meta, index: Arc::new(index), lease: Arc::new(lease) })
            }
            _ => Err(damaged),
        }
    }

    /// Makes a change: in the directory, and then in the version (V6).
    pub(super) async fn publish(&self, change: Change) -> Result<(), IndexError> {
        let editing = self.until_begun(Right::Edit, Shard::begin_edit).await?;
        self.settle_with(&editing).await?;
        if change.is_of_memory() {
            editing.make_unlisted(&change);
            return Ok(());
        }
        let pending = editing.begin(change);
        if self.fabric().breaks(TABLES_LISTED) {
            editing.made();
        }
        self.ask_for(&editing, &pending).await
    }

    /// Asks again for a change of unknown outcome, if there is one. What changes the version next
    /// does so first, and looks at the version after that.
    pub(super) async fn settle_change(&self) -> Result<(), IndexError> {
        if self.shard.pending().is_none() {
            return Ok(());
        }
        let editing = self.until_begun(Right::Edit, Shard::begin_edit).await?;
        self.settle_with(&editing).await
    }

    async fn settle_with(&self, editing: &Editing) -> Result<(), IndexError> {
        match self.shard.pending() {
            Some(pending) => self.ask_for(editing, &pending).await,
            None => Ok(()),
        }
    }

    async fn ask_for(&self, editing: &Editing, pending: &PendingChange) -> Result<(), IndexError> {
        let directory = self.extents.directory(self.shard.id);
        match directory.edit(self.shard.epoch(), pending.number, &pending.words).await {
            Ok(()) => editing.made(),
            Err(error) => {
                // After anything else, this or an earlier attempt may have changed the directory:
                // also if another process has the shard, which then may have listed these tables.
                // Their extents stay leased, and this process writes no more.
                let is_certain = match &error {
                    RemoteError::Refused { refusal, .. } => *refusal != Refusal::OtherOwner,
                    error => matches!(error, RemoteError::OutOfMemory { .. }),
                };
                if is_certain {
                    editing.refused();
                }
                return Err(error.into());
            }
        }
        Ok(())
    }
}
