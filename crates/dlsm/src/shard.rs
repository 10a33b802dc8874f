//! The state that all handles of one tree share: the current version, and the right to change it.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.V2. One handle at a time flushes, the oldest MemTable first, so level 0 is in the order of
//!   the numbers. A flush and compactions may run together.
//! - lsm.V7. Of compactions that run together, no two have an input in common, and no two write to
//!   the same level keys between which keys of the other lie.
//! - lsm.V3. One change adds tables and takes away what they were made from.
//! - memtable.Q6. A new MemTable is in the current version before a write to it returns.
//!
//! *Thread safety*: any number of threads. One mutex holds the version and the rights; those for
//! costs of merges and sleepers have no other inside. None is held across a wait.

mod rights;

pub(super) use self::rights::{
    BackgroundTask, ClaimGuard, CompactionRight, FlushRight, ManifestRight, RightWaiter,
};

use self::rights::HeldRight;
use super::claim::CompactionClaim;
use super::counts::TreeCounts;
use super::gate::TreeGate;
use super::lent::SharedSsTables;
use super::needs::TreeNeeds;
use super::place::{CompactionCosts, CompactionPlace};
use super::version::{Intake, SsTable, SwitchOutcome, TreeChange, TreeVersion};
use super::writers::IdleWriters;
use super::{DlsmOptions, MemTable, MemTableError, MemTableOptions, Sequences};
use crate::remote::{ExtentLease, ExtentSpace, ExtentUsage, JobId};
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{GlobalAddr, Region, ServerId};
use farleaf_page::table::{KeyBuf, MAX_KEY_BYTES, SsTableClip, SsTableMeta};
use farleaf_pool::remote::ChangeSignal;
use std::collections::{BTreeMap, BTreeSet};

/// The sizes of the MemTable of a tree that is not open.
const NO_MEMTABLE: MemTableOptions =
    MemTableOptions { bytes: 4_096, most_numbers: u64::MAX, filter_bytes: 8 };

/// One LSM tree.
#[derive(Debug)]
pub struct LsmShard {
    /// Its number in the directory.
    pub(super) id: u64,
    /// The options, with the smallest MemTables that the tree may get, which bound the lengths of
    /// keys and values.
    pub(super) options: DlsmOptions,
    /// Closed while this process is not to use the tree.
    pub(super) gate: TreeGate,
    /// The epoch in which this process has the shard; 0 if it has not opened it.
    opened: AtomicU64,
    /// The MemTable of a tree that is not open. It accepts no writes.
    none: Arc<MemTable>,
    /// The size of the next MemTable and of its filter, in bytes.
    memtable_bytes: AtomicU64,
    filter_bytes: AtomicU64,
    pub(super) sequences: Arc<Sequences>,
    pub(super) space: Arc<ExtentSpace>,
    /// The writers of its compute server, which all of its shards share.
    pub(super) writers: Arc<IdleWriters>,
    /// Raised when the version has changed, and when a right was given back or a background task
    /// has ended.
    pub(super) changed: ChangeSignal,
    /// Counts the progress of flushes and compactions, so that waits for them can be bounded.
    steps: AtomicU64,
    pub(super) compaction_costs: Mutex<CompactionCosts>,
    pub(super) needs: TreeNeeds,
    state: Mutex<LsmShardState>,
}

#[derive(Debug)]
struct LsmShardState {
    version: Arc<TreeVersion>,
    /// Flushed MemTables, whose memory is used again once nothing pins them.
    retired: Vec<Arc<MemTable>>,
    /// Number of tables and outputs so far.
    tables: u64,
    /// Number of compaction jobs on memory servers so far.
    jobs: u64,
    /// Which rights are taken: to flush, to merge alone, and to edit the directory.
    taken: [bool; 3],
    /// The claims of concurrent compactions, by lane (V7).
    claims: BTreeMap<u8, CompactionClaim>,
    /// Number of operations that wait for the right to flush, to merge, and to edit.
    waiting: [usize; 3],
    /// Tasks that flush and merge in the background.
    workers: usize,
    /// How often one of them failed, and until when all rest because of that.
    failures: u64,
    rest_until_ns: u64,
    /// A number that names this process to the memory servers; 0 if none was drawn yet.
    owner: u64,
    /// The epoch in which this process has the shard; 0 if it has not opened it.
    epoch: u64,
    /// Whether the directory may have given the shard to this process.
    is_opening: bool,
    /// An epoch that this process leaves, if the directory may not have ended it.
    leaves: Option<u64>,
    /// The number of the latest change in the directory, and a change that may be made there.
    edit: u64,
    pending: Option<Arc<PendingChange>>,
    /// The key range of the tree from its next opening on.
    clip: SsTableClip,
    lent: SharedSsTables,
    counts: TreeCounts,
}

/// A table of a tree, for tests and inspectors.
#[derive(Clone, Debug)]
pub struct SsTableView {
    /// Its level. In level 0 the newest table comes first, in the others keys ascend.
    pub level: usize,
    /// What the tree knows of it.
    pub meta: SsTableMeta,
    /// Where its words lie: pieces of adjacent memory, each with its number of words.
    pub pieces: Vec<(GlobalAddr, u64)>,
    /// The numbers of its extents; none if it was borrowed from another shard.
    pub extents: Vec<u32>,
}

/// A change that the directory may have made (V6).
#[derive(Debug)]
pub(super) struct PendingChange {
    pub(super) number: u64,
    pub(super) words: Vec<u64>,
    change: TreeChange,
}

/// What the directory says about a shard that this process has just opened.
#[derive(Debug)]
pub(super) struct OpenedShard {
    pub(super) epoch: u64,
    pub(super) edit: u64,
    pub(super) highest_table: u64,
    /// By level.
    pub(super) levels: Vec<Vec<Arc<SsTable>>>,
    /// Tables that other shards have borrowed, by id.
    pub(super) lent: BTreeMap<u64, Arc<ExtentLease>>,
}

/// A right that one handle at a time can have (V2).
#[derive(Clone, Copy, Debug)]
pub(super) enum TreeRight {
    Flush,
    /// To merge alone. Other compactions that are due run concurrently.
    Merge,
    /// To change the directory.
    Edit,
}

impl LsmShard {
    /// A tree without records, the only one of its compute server.
    pub(super) fn new(id: u64, options: &DlsmOptions) -> Result<Self, MemTableError> {
        let writers = Arc::new(IdleWriters::new(options.writers));
        let shard = Self::with_memtable(id, options, &writers, options.memtable)?;
        shard.gate.set_open(true);
        Ok(shard)
    }

    /// A tree without records, one of those that share `writers` and their numbers. Its gate is
    /// closed, and its MemTable takes nothing before it is opened.
    pub(super) fn beside(
        id: u64,
        options: &DlsmOptions,
        writers: &Arc<IdleWriters>,
    ) -> Result<Self, MemTableError> {
        Self::with_memtable(id, options, writers, NO_MEMTABLE)
    }

    fn with_memtable(
        id: u64,
        options: &DlsmOptions,
        writers: &Arc<IdleWriters>,
        memtable: MemTableOptions,
    ) -> Result<Self, MemTableError> {
        let sequences = Arc::clone(writers.sequences());
        let space = ExtentSpace::new(options.extent_bytes);
        let space = match options.merges {
            CompactionPlace::Compute => space,
            CompactionPlace::Memory | CompactionPlace::ByCost => space.together(id),
        };
        let none = Arc::new(MemTable::new(&sequences, NO_MEMTABLE.memory()?, NO_MEMTABLE));
        let active = match memtable == NO_MEMTABLE {
            true => Arc::clone(&none),
            false => Arc::new(MemTable::new(&sequences, memtable.memory()?, memtable)),
        };
        let version = TreeVersion::new(active, options.levels, SsTableClip::default());
        let state = LsmShardState {
            version: Arc::new(version),
            retired: Vec::new(),
            tables: 0,
            jobs: 0,
            taken: [false; 3],
            claims: BTreeMap::new(),
            waiting: [0; 3],
            workers: 0,
            failures: 0,
            rest_until_ns: 0,
            owner: 0,
            epoch: 0,
            is_opening: false,
            leaves: None,
            edit: 0,
            pending: None,
            clip: SsTableClip::default(),
            lent: SharedSsTables::default(),
            counts: TreeCounts::default(),
        };
        space.keep(options.kept(space.extent_bytes()));
        Ok(Self {
            id,
            options: options.clone(),
            gate: TreeGate::new(false),
            none,
            opened: AtomicU64::new(0),
            memtable_bytes: AtomicU64::new(options.memtable.bytes as u64),
            filter_bytes: AtomicU64::new(options.memtable.filter_bytes as u64),
            sequences,
            space: Arc::new(space),
            compaction_costs: Mutex::default(),
            needs: TreeNeeds::default(),
            writers: Arc::clone(writers),
            changed: ChangeSignal::default(),
            steps: AtomicU64::new(0),
            state: Mutex::new(state),
        })
    }

    /// The current version, which stays as it is as long as the caller has it (V1).
    #[inline]
    pub(super) fn pin(&self) -> Arc<TreeVersion> {
        Arc::clone(&lock(&self.state).version)
    }

    /// The number that names this process: `drawn`, unless there is one already.
    pub(super) fn owner(&self, drawn: u64) -> u64 {
        let mut state = lock(&self.state);
        if state.owner == 0 {
            state.owner = drawn;
        }
        state.owner
    }

    /// The epoch in which this process has the shard; 0 if it has not opened it.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.opened.load(Ordering::Acquire)
    }

    /// Notes that the directory may give the shard to this process from now on.
    pub(super) fn begin_opening(&self) {
        lock(&self.state).is_opening = true;
    }

    /// Whether the directory may have given the shard to this process, which has not opened it.
    pub(super) fn is_opening(&self) -> bool {
        lock(&self.state).is_opening
    }

    /// The epoch that this process leaves, if the directory may not have ended it.
    pub(super) fn leaves(&self) -> Option<u64> {
        lock(&self.state).leaves
    }

    /// Whether all extents in use are those of the version's tables, and of tables that are lent:
    /// no WRITE and no job may still reach another one.
    pub(super) fn has_landed(&self) -> bool {
        let used = self.used_extents().len() as u64;
        let usage = self.space.usage();
        usage.leased == used && usage.lost == 0
    }

    /// The extents of its tables, and of those that it has lent.
    pub fn used_extents(&self) -> BTreeSet<u32> {
        let state = lock(&self.state);
        let tables = state.version.tables().map(|table| &table.lease);
        tables.chain(state.lent.leases()).flat_map(|lease| lease.extents()).copied().collect()
    }

    /// The key range of the tree. Its tables can have keys outside it.
    pub fn clip(&self) -> SsTableClip {
        self.pin().clip.clone()
    }

    /// Sets the key range of the tree from its next opening on.
    pub(super) fn set_clip(&self, clip: SsTableClip) {
        lock(&self.state).clip = clip;
    }

    /// Whether other shards may have borrowed tables of it.
    pub(super) fn has_lent(&self) -> bool {
        !lock(&self.state).lent.is_empty()
    }

    /// Notes that only the tables in `lent` are still lent. Returns whether another one has come
    /// back.
    pub(super) fn keep_lent(&self, epoch: u64, lent: &BTreeSet<u64>) -> bool {
        let mut state = lock(&self.state);
        if state.epoch != epoch {
            return false;
        }
        let returned = state.lent.keep(lent);
        drop(state);
        !returned.is_empty()
    }

    /// Whether it is time to look which of the tables that are lent have come back.
    pub(super) fn are_loans_due(&self, now_ns: u64) -> bool {
        lock(&self.state).lent.is_due(now_ns)
    }

    /// The sizes of the next MemTable.
    fn memtable(&self) -> MemTableOptions {
        let size = |size: &AtomicU64| size.load(Ordering::Relaxed) as usize;
        let (bytes, filter_bytes) = (size(&self.memtable_bytes), size(&self.filter_bytes));
        MemTableOptions { bytes, filter_bytes, ..self.options.memtable }
    }

    /// Sets the sizes of the next MemTables, which are at least those of the options.
    pub(super) fn resize(&self, memtable: &MemTableOptions) {
        // Two concurrent calls may mix the size of one and the filter of the other, which does no
        // harm.
        self.memtable_bytes.store(memtable.bytes as u64, Ordering::Relaxed);
        self.filter_bytes.store(memtable.filter_bytes as u64, Ordering::Relaxed);
        self.space.keep((self.kept_for(Intake::Everything), self.kept_for(Intake::Shrinking)));
    }

    /// Its number in the directory.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the directory may have a change that the version does not have yet.
    pub fn is_changing(&self) -> bool {
        lock(&self.state).pending.is_some()
    }

    /// What the tree has done so far.
    pub fn counts(&self) -> TreeCounts {
        lock(&self.state).counts
    }

    /// The extents of its tables.
    pub fn extents(&self) -> ExtentUsage {
        self.space.usage()
    }

    /// By level: the number of tables, and the bytes of their records.
    pub fn levels(&self) -> Vec<(usize, u64)> {
        let bytes = |tables: &Vec<Arc<SsTable>>| tables.iter().map(|table| table.bytes()).sum();
        self.pin().levels.iter().map(|tables| (tables.len(), bytes(tables))).collect()
    }

    /// The tables of the current version, level by level.
    pub fn tables(&self) -> Vec<SsTableView> {
        let version = self.pin();
        let levels = version.levels.iter().enumerate();
        let tables = levels.flat_map(|(level, tables)| tables.iter().map(move |one| (level, one)));
        let view = |(level, table): (usize, &Arc<SsTable>)| {
            let words = u64::from(table.meta.footer.table_words());
            SsTableView {
                level,
                meta: table.meta.clone(),
                pieces: table.pieces(words),
                extents: table.lease.extents().to_vec(),
            }
        };
        tables.map(view).collect()
    }

    /// The numbers that each MemTable may hold, from the newest on. The active one has no end.
    pub fn ranges(&self) -> Vec<(u64, Option<u64>)> {
        let version = self.pin();
        version.memtables().map(|table| (table.first(), table.last())).collect()
    }

    /// The first number that its oldest MemTable with records may hold. `None` if all are empty.
    pub(super) fn oldest_unflushed(&self) -> Option<u64> {
        let version = self.pin();
        let memtables = version.immutables.iter().rev().chain([&version.active]);
        memtables.into_iter().find(|table| !table.is_empty()).map(|table| table.first())
    }

    /// The extents that no table has, by number, ascending.
    pub fn unused_extents(&self) -> Vec<u32> {
        self.space.unused()
    }

    /// The extents that are free or resting, and how many of them flushes will need (S1).
    pub fn available_extents(&self) -> (u64, u64) {
        self.space.available()
    }

    /// Bytes of compute memory: of MemTables, and of the tables' indexes.
    pub fn local_bytes(&self) -> (u64, u64) {
        let version = self.pin();
        let bytes =
            |table: &Arc<MemTable>| (table.options().bytes + table.options().filter_bytes) as u64;
        let retired: u64 = lock(&self.state).retired.iter().map(bytes).sum();
        let memtables = version.memtables().map(bytes).sum::<u64>() + retired;
        let indexes: usize = version.tables().map(|table| table.index.bytes()).sum();
        (memtables, indexes as u64)
    }

    /// Replaces `full`, if it is the active MemTable, by the next one.
    pub(super) fn switch(
        &self,
        full: &Arc<MemTable>,
        takes: Intake,
    ) -> Result<SwitchOutcome, MemTableError> {
        let mut state = lock(&self.state);
        if !Arc::ptr_eq(&state.version.active, full) {
            return Ok(SwitchOutcome::Before);
        }
        if state.version.immutables.len() >= self.options.most_immutables
            || state.version.levels[0].len() >= self.options.level0_stop
        {
            return Ok(SwitchOutcome::NoRoom);
        }
        let options = self.memtable();
        let mut next = TreeVersion::clone(&state.version);
        next.takes = takes;
        let of_next = if takes == Intake::Nothing { 0 } else { self.flush_extents(options.bytes) };
        if !self.promise(takes, self.promised(&state.version) + of_next) {
            return Ok(SwitchOutcome::NoSpace);
        }
        let memory = match state.memory(options.bytes) {
            Some(memory) => memory,
            None => options.memory().inspect_err(|_| self.promise_to(&state.version))?,
        };
        next.active = Arc::new(full.next(&self.sequences, memory, options));
        next.immutables.insert(0, Arc::clone(full));
        state.version = Arc::new(next);
        state.keep_few_retired(&self.options);
        drop(state);
        self.changed.raise();
        Ok(SwitchOutcome::Here)
    }

    /// The extents that a flush of a MemTable of `bytes` bytes takes at most.
    fn flush_extents(&self, bytes: usize) -> u64 {
        self.options.flush_extents(bytes, self.space.extent_bytes())
    }

    /// The extents that flushes of all MemTables of `version` take at most.
    fn promised(&self, version: &TreeVersion) -> u64 {
        let active = (version.takes > Intake::Nothing).then_some(&version.active);
        let memtables = active.into_iter().chain(&version.immutables);
        memtables.map(|table| self.flush_extents(table.options().bytes)).sum()
    }

    /// Number of extents that must be available besides the promised ones if the active MemTable
    /// accepts `takes`: for a compaction, and for a MemTable that accepts what shrinks the tree
    /// (S2).
    fn kept_for(&self, takes: Intake) -> u64 {
        match takes {
            Intake::Everything => {
                let extent_bytes = self.space.extent_bytes();
                let spare = self.options.spare_extents(self.memtable().bytes, extent_bytes);
                // Compacted again, each table may end in an extent that is partly filled.
                let of_table = (self.options.table_bytes / extent_bytes).max(1);
                spare + self.space.usage().leased / of_table
            }
            Intake::Shrinking => self.options.compaction_extents(self.space.extent_bytes()),
            Intake::Nothing => 0,
        }
    }

    /// Promises `extents` extents to flushes, if enough others are left (S1, S2).
    fn promise(&self, takes: Intake, extents: u64) -> bool {
        self.space.promise(extents, self.kept_for(takes), takes == Intake::Nothing)
    }

    /// Promises to flushes what the MemTables of `version` need, which is no more than before.
    fn promise_to(&self, version: &TreeVersion) {
        self.promise(Intake::Nothing, self.promised(version));
    }

    /// Lets the active MemTable accept `takes`, if enough extents are available for its flush, and
    /// besides (S1, S2). Returns whether it does.
    pub(super) fn grow(&self, takes: Intake) -> bool {
        let mut state = lock(&self.state);
        if state.version.takes >= takes {
            return true;
        }
        let next = TreeVersion { takes, ..TreeVersion::clone(&state.version) };
        if state.epoch == 0 || !self.promise(takes, self.promised(&next)) {
            return false;
        }
        let former = std::mem::replace(&mut state.version, Arc::new(next));
        drop(state);
        drop(former);
        self.changed.raise();
        true
    }

    /// Number of extents that must be free or resting for the next MemTable to accept every write.
    pub(super) fn wanted_extents(&self) -> u64 {
        let state = lock(&self.state);
        let promised = self.promised(&state.version);
        promised + self.flush_extents(self.memtable().bytes) + self.kept_for(Intake::Everything)
    }

    /// The extents that a compaction can count on.
    pub(super) fn compaction_extents(&self) -> u64 {
        self.kept_for(Intake::Shrinking)
    }

    /// Asks the background tasks to free memory.
    pub(super) fn ask_for_room(&self) {
        if self.needs.ask_for_room() {
            self.changed.raise();
        }
    }

    /// Notes the end of a search for memory. `is_exhausted`: everything is compacted, and memory is
    /// still short.
    pub(super) fn looked_for_room(&self, is_exhausted: bool) {
        let flushes = self.counts().flushes;
        self.needs.looked_for_room(is_exhausted.then_some(flushes));
        self.changed.raise();
    }

    /// Whether compactions cannot free enough memory, as far as is known.
    pub(super) fn is_exhausted(&self) -> bool {
        let (flushes, is_flushed) = {
            let state = lock(&self.state);
            (state.counts.flushes, state.version.immutables.is_empty())
        };
        is_flushed && self.needs.are_exhausted(flushes) && !self.has_gained()
    }

    /// Whether changes of the active MemTable free as much as another MemTable needs.
    pub(super) fn has_gained(&self) -> bool {
        let extents = self.flush_extents(self.memtable().bytes);
        self.needs.gained() >= extents * self.space.extent_bytes()
    }

    /// Notes that tombstones hide `records` records in tables, in the range from the first key,
    /// inclusive, to the second one, exclusive.
    pub(super) fn note_hidden(&self, range: (&[u8], &[u8]), records: u64) {
        let (first, end) = range;
        if records >= self.options.most_hidden && end.len() <= MAX_KEY_BYTES {
            self.needs.note_hidden((KeyBuf::from_bytes(first), KeyBuf::from_bytes(end), records));
            self.changed.raise();
        }
    }

    /// The id of a new table. Tables of a tree have different ids.
    pub(super) fn table_id(&self) -> u64 {
        self.table_ids(1)
    }

    /// The first of `count` such ids, which follow one another.
    pub(super) fn table_ids(&self, count: u64) -> u64 {
        let mut state = lock(&self.state);
        state.tables += count;
        state.tables - count + 1
    }

    /// The next job of a compaction on a memory server. Numbers of a lane ascend. `None` if the
    /// epoch has no more.
    pub(super) fn next_job(&self, server: ServerId, lane: u8) -> Option<JobId> {
        let mut state = lock(&self.state);
        let number = u32::try_from(state.jobs + 1).ok()?;
        state.jobs += 1;
        Some(JobId::first(server, self.id, state.epoch).in_lane(lane, number))
    }

    /// Counts a compaction on a memory server.
    pub(super) fn count_near_merge(&self) {
        lock(&self.state).counts.near_merges += 1;
    }

    /// The right to flush. `None` if another handle has it (V2).
    pub(super) fn begin_flush(shard: &Arc<Self>) -> Option<FlushRight> {
        HeldRight::begin(shard, TreeRight::Flush).map(|held| FlushRight { _held: held })
    }

    /// The right to merge alone. `None` if another handle has it, or if another compaction runs.
    pub(super) fn begin_compaction(shard: &Arc<Self>) -> Option<CompactionRight> {
        if !lock(&shard.state).claims.is_empty() {
            return None;
        }
        let held = HeldRight::begin(shard, TreeRight::Merge)?;
        // From now on no other compaction begins, but one may have begun just before.
        let is_alone = lock(&shard.state).claims.is_empty();
        is_alone.then_some(CompactionRight { lane: 0, _alone: Some(held), _beside: None })
    }

    /// Whether another concurrent compaction may begin.
    pub(super) fn has_lane(&self) -> bool {
        let state = lock(&self.state);
        state.has_lane(&self.options)
    }

    /// The current version, and the claims of running compactions on it.
    pub(super) fn pin_with_claims(&self) -> (Arc<TreeVersion>, Vec<CompactionClaim>) {
        let state = lock(&self.state);
        (Arc::clone(&state.version), state.claims.values().cloned().collect())
    }

    /// The right to merge `sources`, which `claim` names, concurrently with other compactions (V7).
    /// `None` if the sources are not all in their levels any more, if other claims now conflict, or
    /// if an operation waits for the right to merge alone.
    pub(super) fn begin_merge_of(
        shard: &Arc<Self>,
        claim: CompactionClaim,
        sources: &[Vec<Arc<SsTable>>],
        conflict: fn(&CompactionClaim, &CompactionClaim) -> bool,
    ) -> Option<CompactionRight> {
        let mut state = lock(&shard.state);
        // Not by id: a table that has moved to another level keeps its own.
        let is_there = |table| state.version.tables().any(|other| Arc::ptr_eq(other, table));
        // A pending change may remove tables that are still in the version.
        if !state.has_lane(&shard.options)
            || state.pending.is_some()
            || !sources.iter().flatten().all(is_there)
            || state.claims.values().any(|other| conflict(other, &claim))
        {
            return None;
        }
        let lane = (0..=u8::MAX).find(|lane| !state.claims.contains_key(lane))?;
        state.claims.insert(lane, claim);
        drop(state);
        let claimed = ClaimGuard { shard: Arc::clone(shard), lane };
        Some(CompactionRight { lane, _alone: None, _beside: Some(claimed) })
    }

    /// At most `most` further lanes, for the parts of a compaction.
    pub(super) fn more_lanes(
        shard: &Arc<Self>,
        merging: &CompactionRight,
        most: usize,
    ) -> Vec<ClaimGuard> {
        let mut state = lock(&shard.state);
        // A merge alone has its lane without a claim.
        let taken = state.claims.len() + usize::from(!state.claims.contains_key(&merging.lane));
        let most = most.min(shard.options.workers.saturating_sub(taken));
        let is_free = |lane: &u8| *lane != merging.lane && !state.claims.contains_key(lane);
        let lanes: Vec<u8> = (0..=u8::MAX).filter(is_free).take(most).collect();
        lanes.iter().for_each(|lane| _ = state.claims.insert(*lane, CompactionClaim::default()));
        drop(state);
        let claimed = |lane| ClaimGuard { shard: Arc::clone(shard), lane };
        lanes.into_iter().map(claimed).collect()
    }

    /// The right to change the directory. `None` if another handle has it.
    pub(super) fn begin_edit(shard: &Arc<Self>) -> Option<ManifestRight> {
        HeldRight::begin(shard, TreeRight::Edit).map(ManifestRight)
    }

    /// The change that the directory may have made, if there is one.
    pub(super) fn pending(&self) -> Option<Arc<PendingChange>> {
        lock(&self.state).pending.clone()
    }

    /// Whether a handle has the right to flush.
    pub(super) fn is_flushing(&self) -> bool {
        lock(&self.state).taken[TreeRight::Flush as usize]
    }

    /// Counts an operation that waits for `right`. Without it, a task that takes the right again at
    /// once would keep others from it for good.
    pub(super) fn begin_waiting(shard: &Arc<Self>, right: TreeRight) -> RightWaiter {
        lock(&shard.state).waiting[right as usize] += 1;
        RightWaiter { shard: Arc::clone(shard), right }
    }

    /// Takes a right by `begin` for a background task. `None` if an operation waits for `right`,
    /// which goes first.
    pub(super) fn begin_due<R>(
        shard: &Arc<Self>,
        right: TreeRight,
        begin: fn(&Arc<Self>) -> Option<R>,
    ) -> Option<R> {
        if lock(&shard.state).waiting[right as usize] > 0 {
            return None;
        }
        begin(shard)
    }

    /// Counts a task that flushes and merges in the background, as long as it lives.
    pub(super) fn begin_worker(shard: &Arc<Self>) -> BackgroundTask {
        lock(&shard.state).workers += 1;
        BackgroundTask { shard: Arc::clone(shard) }
    }

    /// The number of background tasks, and how often one of them failed.
    pub(super) fn workers(&self) -> (usize, u64) {
        let state = lock(&self.state);
        (state.workers, state.failures)
    }

    /// Background flushes and compactions that have failed so far.
    pub fn failures(&self) -> u64 {
        self.workers().1
    }

    /// The number of merges, and of parts of merges, under way.
    pub fn running_compactions(&self) -> u64 {
        let state = lock(&self.state);
        let alone = u64::from(state.taken[TreeRight::Merge as usize]);
        state.claims.len() as u64 + alone
    }

    /// Counts a write stall.
    pub(super) fn count_stall(&self) {
        lock(&self.state).counts.stalls += 1;
    }

    /// Counts a step of a flush or a compaction.
    pub(super) fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// The steps of flushes and merges so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

impl LsmShardState {
    /// Whether another concurrent compaction may begin.
    fn has_lane(&self, options: &DlsmOptions) -> bool {
        let right = TreeRight::Merge as usize;
        !self.taken[right] && self.waiting[right] == 0 && self.claims.len() < options.workers
    }

    /// Changes the version (V3).
    fn install(&mut self, change: &TreeChange, options: &DlsmOptions) {
        let counts = &mut self.counts;
        let bytes =
            |tables: &[Arc<SsTable>]| tables.iter().map(|table| written_bytes(table)).sum::<u64>();
        match change {
            TreeChange::Flushed { memtable, tables } => {
                let mut next = TreeVersion::clone(&self.version);
                next.immutables.retain(|closed| !Arc::ptr_eq(closed, memtable));
                counts.flushes += u64::from(!tables.is_empty());
                counts.flushed_bytes += bytes(tables);
                next.levels[0].splice(0..0, tables.iter().cloned());
                self.version = Arc::new(next);
                self.retired.push(Arc::clone(memtable));
                self.keep_few_retired(options);
            }
            TreeChange::Merged { removed, level, added, parts } => {
                counts.merges += 1;
                counts.merged_bytes += bytes(added);
                let index_bytes = added.iter().map(|table| table.index.bytes() as u64);
                counts.merged_index_bytes += index_bytes.sum::<u64>();
                let left = self.version.with_parts(parts);
                self.version = Arc::new(left.with_merged(removed, *level, added.clone()));
            }
            TreeChange::Moved { table, level, moved } => {
                counts.moved_tables += 1;
                let (removed, added) = ([Arc::clone(table)], vec![Arc::clone(moved)]);
                self.version = Arc::new(self.version.with_merged(&removed, *level, added));
            }
        }
    }

    /// Limits the number of retired MemTables, which are kept to reuse their memory once nothing
    /// pins them: a tree has memory for `most_immutables` closed and retired ones together.
    fn keep_few_retired(&mut self, options: &DlsmOptions) {
        let room = options.most_immutables.saturating_sub(self.version.immutables.len());
        let surplus = self.retired.len().saturating_sub(room);
        self.retired.drain(..surplus);
    }

    /// The memory of a MemTable of `bytes` bytes that nothing uses any more.
    fn memory(&mut self, bytes: usize) -> Option<Arc<Region>> {
        let mut found = None;
        // Retired MemTables of other sizes cannot be reused.
        self.retired.retain(|table| table.options().bytes == bytes);
        for table in std::mem::take(&mut self.retired) {
            if found.is_some() {
                self.retired.push(table);
                continue;
            }
            match Arc::try_unwrap(table) {
                Ok(table) => found = Some(table.into_memory()),
                Err(pinned) => self.retired.push(pinned),
            }
        }
        found
    }
}

fn written_bytes(table: &SsTable) -> u64 {
    u64::from(table.meta.footer.table_words()) * 8
}
