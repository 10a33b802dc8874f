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
use super::shard::{LsmShard, ManifestRight, OpenedShard, PendingChange, TreeRight};
use super::version::{SsTable, TreeChange};
use crate::remote::{ExtentLease, ExtentSpace, ShardClient, ShardLoans, ShardState};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_page::Layout;
use farleaf_page::rules::{LOANS_HELD, NUMBERS_RAISED, ORPHANS_ONLY, TABLES_LISTED};
use farleaf_page::table::{ExtentRun, KeyBuf, PlacedSsTable, SsTableIndex, SsTableMeta, push_key};
use farleaf_pool::remote::RemoteError;
use farleaf_pool::wire::{LEFT, NO_PROCESS, Refusal};
use std::collections::{BTreeMap, BTreeSet};

/// Tables that are returned by one message.
const RETURNED_PER_BATCH: usize = 8_192;
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
    // No process has ever had it, or the last one has left it.
    if state.epoch == 0 || is_left(&state) {
        return Ok(());
    }
    let state = directory.open(NO_PROCESS, state.epoch, state.extent_bytes).await?;
    directory.end_former_lives(&state).await
}

/// Whether the last process has left the shard, so that there is nothing to fence.
fn is_left(state: &ShardState) -> bool {
    state.owner == LEFT && state.unfenced.is_empty()
}

/// Whether a process has the shard.
fn has_owner(state: &ShardState) -> bool {
    state.epoch > 0 && ![NO_PROCESS, LEFT].contains(&state.owner)
}

/// Checks that no process but `owner` has the shard.
pub(super) async fn check_no_owner<F: Fabric, L: Layout>(
    directory: &ShardClient<'_, F, L>,
    owner: Option<u64>,
) -> Result<(), IndexError> {
    let state = directory.state().await?;
    match has_owner(&state) && Some(state.owner) != owner {
        true => Err(OTHER_OWNER),
        false => Ok(()),
    }
}

fn pieces_of(table: &PlacedSsTable) -> Vec<(GlobalAddr, u64)> {
    table.pieces.iter().map(|&(at, bytes)| (GlobalAddr::from_bits(at), bytes)).collect()
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Opens the shard for this process, or joins the process if it has opened the shard. Does
    /// nothing if this handle has joined already.
    #[inline]
    pub(super) async fn ready(&self) -> Result<(), IndexError> {
        match self.joined.get() {
            epoch if epoch > 0 && epoch == self.shard.epoch() => Ok(()),
            _ => Box::pin(self.open_shard(false)).await,
        }
    }

    /// Opens the shard, if another handle of this process has not done so. The shard must have no
    /// owner, unless `takes_over`: then the one that it has is fenced first.
    pub(super) async fn open_shard(&self, takes_over: bool) -> Result<(), IndexError> {
        let editing = self.until_begun(TreeRight::Edit, LsmShard::begin_edit).await?;
        if !self.shard.gate.is_open() && self.shard.epoch() == 0 {
            return Err(RemoteError::Moved.into());
        }
        self.open_with(&editing, takes_over).await
    }

    /// Opens the shard although its gate is closed.
    pub(super) async fn open_closed(&self) -> Result<(), IndexError> {
        let editing = self.until_begun(TreeRight::Edit, LsmShard::begin_edit).await?;
        self.open_with(&editing, false).await
    }

    /// Tells the directory that this process has left the shard, unless it knows.
    pub(super) async fn tell_left(&self, editing: &ManifestRight) -> Result<(), IndexError> {
        let Some(epoch) = self.shard.leaves() else { return Ok(()) };
        let owner = self.shard.owner(self.fabric().unique());
        match self.extents.directory(self.shard.id).leave(owner, epoch).await {
            Ok(()) => {}
            // Another process has taken it over.
            Err(RemoteError::Refused { refusal: Refusal::OtherOwner, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        editing.has_left();
        Ok(())
    }

    /// Tells the directory that this process has left the shard, which becomes two.
    pub(super) async fn tell_divided(
        &self,
        editing: &ManifestRight,
        (into, low): (u64, &KeyBuf),
    ) -> Result<(), IndexError> {
        let epoch = self.shard.leaves().ok_or(IndexError::Contended { retries: 0 })?;
        let owner = self.shard.owner(self.fabric().unique());
        let mut words = Vec::new();
        push_key(low, &mut words);
        self.extents.directory(self.shard.id).divide(owner, epoch, (into, words)).await?;
        editing.has_left();
        Ok(())
    }

    async fn open_with(&self, editing: &ManifestRight, takes_over: bool) -> Result<(), IndexError> {
        let shard = &self.shard;
        let directory = self.extents.directory(shard.id);
        let owner = shard.owner(self.fabric().unique());
        if shard.epoch() > 0 {
            let joined = directory.join(owner).await?;
            self.joined.set(joined.epoch);
            return Ok(());
        }
        self.tell_left(editing).await?;
        let before = directory.state().await?;
        let after = match before.owner == owner {
            // An earlier attempt has succeeded.
            true => before.epoch - 1,
            false if has_owner(&before) && !takes_over => {
                // No earlier attempt can still succeed: the epoch is a later one.
                editing.not_opened();
                return Err(OTHER_OWNER);
            }
            false => before.epoch,
        };
        let extent_bytes = shard.space.extent_bytes();
        if before.highest_table > 0 && before.extent_bytes != extent_bytes {
            return Err(IndexError::InvalidArgument("this index has extents of another size"));
        }
        shard.begin_opening();
        let state = directory.open(owner, after, extent_bytes).await?;
        if state.epoch > 1 && !is_left(&before) {
            directory.end_former_lives(&state).await?;
        }
        let chunks = directory.chunks(state.epoch).await?;
        shard.space.begin((shard.id, state.epoch), &chunks);
        let loans = match state.loans {
            0 => ShardLoans::default(),
            _ => directory.loans(state.epoch).await?,
        };
        let lent = self.lent_tables(&loans)?;
        let words = directory.tables(state.epoch).await?;
        let levels = self.open_tables(&words, &loans.borrowed, &lent).await?;
        let ShardState { epoch, edit, highest_table, .. } = state;
        let raises = !self.fabric().breaks(NUMBERS_RAISED);
        editing.opened(OpenedShard { epoch, edit, highest_table, levels, lent }, raises)?;
        self.joined.set(epoch);
        Ok(())
    }

    /// The memory of the tables that are lent, by table (L1).
    fn lent_tables(
        &self,
        loans: &ShardLoans,
    ) -> Result<BTreeMap<u64, Arc<ExtentLease>>, IndexError> {
        let mut lent = BTreeMap::new();
        for (id, words) in loans.lent.iter().filter(|_| !self.fabric().breaks(LOANS_HELD)) {
            let damaged = IndexError::Damaged { at: GlobalAddr::NULL };
            let table = PlacedSsTable::decode(&mut &words[..]).map_err(|_| damaged.clone())?;
            let lease = ExtentSpace::lease_at(&self.shard.space, &pieces_of(&table));
            lent.insert(*id, Arc::new(lease.ok_or(damaged)?));
        }
        Ok(lent)
    }

    /// The tables in the words of the directory, by level.
    async fn open_tables(
        &self,
        mut words: &[u64],
        borrowed: &BTreeSet<u64>,
        lent: &BTreeMap<u64, Arc<ExtentLease>>,
    ) -> Result<Vec<Vec<Arc<SsTable>>>, IndexError> {
        let bad_words = IndexError::Damaged { at: GlobalAddr::NULL };
        let mut levels = vec![Vec::new(); self.shard.options.levels + 1];
        while !words.is_empty() {
            let placed = PlacedSsTable::decode(&mut words).map_err(|_| bad_words.clone())?;
            let id = placed.meta.footer.table;
            let lease = match lent.get(&id) {
                Some(lease) => Some(Arc::clone(lease)),
                None => self.lease_of(&placed, borrowed.contains(&id)).map(|mut lease| {
                    if placed.meta.clip.lower.is_some() {
                        lease.holds_end_of(u64::from(placed.meta.footer.table_words()) * 8);
                    }
                    Arc::new(lease)
                }),
            };
            let lease = lease.ok_or(bad_words.clone())?;
            let table = Arc::new(self.open_table(placed.meta, lease).await?);
            // Other threads wait for the right to edit until the shard is open.
            self.shard.step();
            let tables: &mut Vec<Arc<SsTable>> =
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
            let overlap = |pair: &[Arc<SsTable>]| pair[0].meta.largest >= pair[1].meta.smallest;
            if tables.windows(2).any(overlap) {
                return Err(bad_words);
            }
        }
        Ok(levels)
    }

    /// The memory of a table that is not lent.
    fn lease_of(&self, placed: &PlacedSsTable, is_borrowed: bool) -> Option<ExtentLease> {
        let (space, pieces) = (&self.shard.space, pieces_of(placed));
        match (is_borrowed, self.fabric().breaks(ORPHANS_ONLY)) {
            (true, _) => Some(ExtentSpace::borrow_at(space, placed.meta.footer.table, &pieces)),
            (_, true) => ExtentSpace::lease_at(space, &pieces).inspect(ExtentLease::end),
            _ => ExtentSpace::lease_at(space, &pieces),
        }
    }

    async fn open_table(
        &self,
        mut meta: SsTableMeta,
        lease: Arc<ExtentLease>,
    ) -> Result<SsTable, IndexError> {
        let damaged = IndexError::Damaged { at: lease.place() };
        let run = |(first, count)| ExtentRun { first, count };
        meta.extents = lease.runs().into_iter().map(run).collect();
        let footer = &meta.footer;
        let (begin, end) = (footer.data_words, footer.table_words());
        if u64::from(end) * 8 > lease.skipped_bytes() + lease.bytes() {
            return Err(damaged);
        }
        let sections = self.extents.read(&lease, begin, end - begin).await?;
        match SsTableIndex::open(sections, footer.table) {
            Ok(index) if index.footer() == footer => {
                Ok(SsTable { meta, index: Arc::new(index), lease })
            }
            _ => Err(damaged),
        }
    }

    /// Returns borrowed tables that nothing of this process READs any more (L2). The next call
    /// repeats what has failed.
    pub(super) async fn return_loans(&self) {
        let (shard, epoch) = (&self.shard, self.shard.epoch());
        for tables in shard.space.unused_loans(epoch).chunks(RETURNED_PER_BATCH) {
            if self.extents.directory(shard.id).give_back(epoch, tables).await.is_err() {
                break;
            }
            shard.space.forget_loans(epoch, tables);
        }
    }

    /// Returns borrowed tables that are unused, and asks which lent tables have come back. Returns
    /// whether any has.
    pub(super) async fn settle_loans(&self) -> bool {
        self.return_loans().await;
        let (shard, epoch) = (&self.shard, self.shard.epoch());
        if !shard.has_lent() {
            return false;
        }
        let Ok(loans) = self.extents.directory(shard.id).loans(epoch).await else { return false };
        shard.keep_lent(epoch, &loans.lent.into_keys().collect())
    }

    /// As [`Self::settle_loans`], at most once per interval, for idle trees.
    pub(super) async fn settle_loans_when_due(&self) {
        match self.shard.are_loans_due(self.fabric().now_ns()) {
            true => _ = self.settle_loans().await,
            false => self.return_loans().await,
        }
    }

    /// Makes a change: in the directory, and then in the version (V6).
    pub(super) async fn publish(&self, change: TreeChange) -> Result<(), IndexError> {
        let editing = self.until_begun(TreeRight::Edit, LsmShard::begin_edit).await?;
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

    /// Repeats a change of unknown outcome, if there is one. Call this before any other change of
    /// the version, and pin the version only afterwards.
    pub(super) async fn settle_change(&self) -> Result<(), IndexError> {
        if self.shard.pending().is_none() {
            return Ok(());
        }
        let editing = self.until_begun(TreeRight::Edit, LsmShard::begin_edit).await?;
        self.settle_with(&editing).await
    }

    pub(super) async fn settle_with(&self, editing: &ManifestRight) -> Result<(), IndexError> {
        match self.shard.pending() {
            Some(pending) => self.ask_for(editing, &pending).await,
            None => Ok(()),
        }
    }

    async fn ask_for(
        &self,
        editing: &ManifestRight,
        pending: &PendingChange,
    ) -> Result<(), IndexError> {
        let directory = self.extents.directory(self.shard.id);
        match directory.edit(self.shard.epoch(), pending.number, &pending.words).await {
            Ok(()) => editing.made(),
            Err(error) => {
                // After any other error, this or an earlier attempt may have changed the directory.
                // That holds even if another process has the shard, which may then have listed
                // these tables. So their extents stay leased, and this process writes no more.
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
