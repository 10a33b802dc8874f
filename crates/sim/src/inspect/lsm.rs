//! Inspects a dLSM tree: its compute side's version, and the tables' words in the pool.
//!
//! *Invariants at every moment* (`docs/internals/lsm-tree.md`):
//! - Every table of the version lies in the pool as the version describes it (F1): its records are
//!   in order, its index finds each key, and footer, description and contents agree.
//! - Of two sources of a key, the one that is asked first has the newer versions (V4). Tables of a
//!   level below level 0 ascend and do not overlap.
//! - The ranges of MemTables follow one another without gaps (Q2).
//! - No extent is in two tables, and none in a table is free or resting (K1, K2).
//! - There are extents for the flushes of all MemTables that take writes (S1).
//! - The shard's directory lists exactly the tables of the version, in the same places, unless a
//!   change is under way (V6).
//!
//! *Invariants at the end of a run*: a scan returns exactly what the tables hold, and every extent
//! is in a table, free or resting. Only runs that lose messages or servers may lose extents, or
//! leave them to jobs that could not be closed.
//!
//! *Thread safety*: plain functions over atomics, called between two steps of the simulator.

use super::walk::named;
use super::{InspectedPool, NamedRecords, at_the_end};
use crate::client::settle;
use crate::scenario::Scenario;
use farleaf_dlsm::{Dlsm, DlsmServer, LsmShard, SsTableView};
use farleaf_fabric::sim::SimCluster;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::{Cluster, GlobalAddr};
use farleaf_index::{ByName, Design, Encoded, IndexError, RangeIndex, ScanRequest};
use farleaf_page::table::{
    DamagedSsTable, KeyBuf, MAX_SEQUENCE, PlacedSsTable, RecordKind, RecordRun, SsTableClip,
    SsTableIndex, SsTableLookup, SsTableMeta, SsTableRecord, in_table_order,
};
use farleaf_page::{Layout, NamedLayout};
use farleaf_pool::server::MemoryServer;
use std::collections::{BTreeMap, BTreeSet};

/// A tree, and the memory that its tables lie in.
pub(crate) struct InspectedTree<'a, L: Layout> {
    pool: &'a InspectedPool<L>,
    shard: &'a Arc<LsmShard>,
    /// Whether a WRITE may still land when its table is given up and its handle is gone.
    loses_extents: bool,
    /// Whether the last flush may fail.
    may_fail: bool,
}

/// What the sources seen so far have of one key.
struct NewestVersion {
    /// The lowest number of a version.
    lowest: u64,
    /// The newest version's value; `None` for a tombstone.
    value: Option<Vec<u8>>,
}

/// The contents of a tree's tables.
struct SsTableContents {
    keys: BTreeMap<Vec<u8>, NewestVersion>,
    /// No table was left out because its server may be dead.
    is_whole: bool,
}

impl<'a, L> InspectedTree<'a, L>
where
    L: NamedLayout,
{
    pub(crate) fn new(
        pool: &'a InspectedPool<L>,
        shard: &'a Arc<LsmShard>,
        scenario: &Scenario,
    ) -> Self {
        let loses_extents = pool.is_uncertain || pool.clients_die;
        let may_fail = !scenario.allowed_errors.is_empty();
        Self { pool, shard, loses_extents, may_fail }
    }

    /// Inspects the tree at any moment.
    pub(crate) fn look(&self) -> Result<(), String> {
        self.seen().map(drop)
    }

    fn seen(&self) -> Result<SsTableContents, String> {
        let tables = self.shard.tables();
        self.check_ranges()?;
        self.check_extents(&tables)?;
        self.check_directory(&tables)?;
        let mut seen = SsTableContents { keys: BTreeMap::new(), is_whole: true };
        for (place, table) in tables.iter().enumerate() {
            let dying =
                |(at, _): &(GlobalAddr, u64)| self.pool.dying.contains(&at.server().number());
            if table.pieces.iter().any(dying) {
                seen.is_whole = false;
                continue;
            }
            let before = place.checked_sub(1).map(|before| &tables[before]);
            let checked = check_place(table, before);
            checked.and_then(|()| self.check_table(table, &mut seen)).map_err(|fault| {
                let id = table.meta.footer.table;
                format!("table {id} of level {}, in {:?}: {fault}", table.level, table.pieces)
            })?;
        }
        Ok(seen)
    }

    fn check_ranges(&self) -> Result<(), String> {
        let ranges = self.shard.ranges();
        let follows = |pair: &[(u64, Option<u64>)]| pair[1].1 == Some(pair[0].0 - 1);
        match ranges.windows(2).all(follows) {
            true => Ok(()),
            false => Err(format!("the ranges of MemTables do not follow one another: {ranges:?}")),
        }
    }

    fn check_extents(&self, tables: &[SsTableView]) -> Result<(), String> {
        let mut used = BTreeSet::new();
        for extent in tables.iter().flat_map(|table| &table.extents) {
            if !used.insert(*extent) {
                return Err(format!("extent {extent} is in two tables"));
            }
        }
        let (available, promised) = self.shard.available_extents();
        if available < promised && !self.loses_extents {
            return Err(format!("flushes need {promised} extents, and {available} are free"));
        }
        // Also those of tables that other shards have borrowed.
        let used = self.shard.used_extents();
        match self.shard.unused_extents().iter().find(|extent| used.contains(extent)) {
            Some(extent) => Err(format!("extent {extent} is in a table, and was given back")),
            None => Ok(()),
        }
    }

    fn check_directory(&self, tables: &[SsTableView]) -> Result<(), String> {
        let home = (self.shard.id() % self.pool.servers.len() as u64) as u16;
        let Some(home) = self.pool.living(home).filter(|_| !self.shard.is_changing()) else {
            return Ok(());
        };
        let known = |view: &SsTableView| {
            let meta = SsTableMeta { extents: Vec::new(), ..view.meta.clone() };
            (meta.footer.table, (meta, view.pieces.first().map(|(at, _)| at.to_bits())))
        };
        let listed = |table: PlacedSsTable| {
            (table.meta.footer.table, (table.meta, table.pieces.first().map(|(at, _)| *at)))
        };
        let known: BTreeMap<_, _> = tables.iter().map(known).collect();
        let listed: BTreeMap<_, _> =
            home.listed_tables(self.shard.id()).into_iter().map(listed).collect();
        if known == listed {
            return Ok(());
        }
        let (known, listed) = (Vec::from_iter(known.keys()), Vec::from_iter(listed.keys()));
        Err(format!("the directory has tables {listed:?}, and the version {known:?}"))
    }

    fn check_table(&self, view: &SsTableView, seen: &mut SsTableContents) -> Result<(), String> {
        let (meta, footer) = (&view.meta, &view.meta.footer);
        let mut words = Vec::new();
        for (at, count) in &view.pieces {
            let piece = self.pool.words(*at, *count as usize);
            words.extend(piece.ok_or("its extents are outside of the pool")?);
        }
        // Of a table that was merged in part, extents before the first key may be gone (S3).
        let part = meta.clip.lower.as_ref();
        let gone = (footer.table_words() as usize).checked_sub(words.len());
        let Some(gone) = gone.filter(|gone| *gone == 0 || part.is_some()) else {
            return Err(format!("its extents have {} of its words", words.len()));
        };
        let text = |damaged: DamagedSsTable| damaged.to_string();
        let Some(data_words) = (footer.data_words as usize).checked_sub(gone) else {
            return Err(format!("its extents have only {} words of its index", words.len()));
        };
        let sections = words.split_off(data_words);
        let index = SsTableIndex::open(sections, footer.table).map_err(text)?;
        if index.footer() != footer {
            return Err(format!("its footer is {:?}, and not {footer:?}", index.footer()));
        }
        let begin = match part {
            Some(lower) => index.seek(lower.key()).map_err(text)?,
            None => 0,
        };
        let Some(before) = (begin as usize).checked_sub(gone) else {
            return Err(format!("its extents begin at word {gone}, and its records at {begin}"));
        };
        let run = RecordRun::new(words.split_off(before), footer.table).map_err(text)?;
        let mut last: Option<(KeyBuf, u64)> = None;
        let (mut keys, mut tombstones, mut at) = (0, 0, begin);
        let (mut lowest, mut highest) = (u64::MAX, 0);
        for place in 0..run.len() {
            let record = run.record(place).map_err(text)?;
            let (key, sequence) = (record.key(), record.sequence());
            let before = last.as_ref().map(|(key, sequence)| (key.key(), *sequence));
            if before.is_some_and(|before| in_table_order(before, (key, sequence)).is_ge()) {
                return Err(format!("record {place} of {:?} is out of order", key.to_vec()));
            }
            if before.is_none_or(|(before, _)| before != key) {
                keys += 1;
                if !finds(&index, record, at).map_err(text)? {
                    return Err(format!("its index does not find {:?}", key.to_vec()));
                }
                if place == 0 && meta.smallest.key() != key && part.is_none() {
                    return Err(format!("it begins with {:?}", key.to_vec()));
                }
            }
            if meta.clip.has(key) {
                seen.meet(record)?;
            }
            tombstones += u64::from(record.kind() == RecordKind::Tombstone);
            at += record.words() as u32;
            (lowest, highest) = (lowest.min(sequence), highest.max(sequence));
            last = Some((key.into(), sequence));
        }
        let counted = (run.len() as u64, keys, tombstones, lowest, highest);
        let said = (footer.records, footer.keys, footer.tombstones, footer.lowest, footer.highest);
        let differs = counted != said && part.is_none();
        if differs || last.is_none_or(|(last, _)| last != meta.largest) {
            return Err(format!("it has {counted:?}, and says {said:?}, to {:?}", meta.largest));
        }
        Ok(())
    }

    /// Inspects a tree that has just been opened: all memory is in tables, or free.
    pub(crate) fn look_at_rest(&self) -> Result<(), String> {
        self.look()?;
        let (usage, used) = (self.shard.extents(), self.shard.used_extents().len() as u64);
        let unused = self.shard.unused_extents().len() as u64;
        match usage.leased == used && usage.all == used + unused {
            true => Ok(()),
            false => Err(format!("{used} extents are in tables, {unused} unused, of {usage:?}")),
        }
    }

    /// Inspects the tree for the last time, after the clients and the observer, from compute server
    /// `observer`.
    pub(crate) fn look_at_the_end(
        &self,
        cluster: &SimCluster<MemoryServer<L>>,
        observer: u16,
    ) -> Result<(), String> {
        let shard = self.shard;
        let mut scanned = cluster.run(&[observer], async |fabric, _| -> Result<_, IndexError> {
            let index = <Dlsm as Design<L>>::open(fabric.clone(), shard).await?;
            let index = ByName::<L, _>::new(index);
            settle(&fabric, &index).await;
            index.flush().await?;
            index.scan(&ScanRequest::range(..)).await
        });
        let records = match scanned.pop().flatten() {
            Some(Ok(records)) => records,
            _ if self.may_fail => return self.look().map_err(at_the_end),
            other => return Err(format!("the tree cannot be flushed and scanned: {other:?}")),
        };
        let seen = self.seen().map_err(at_the_end)?;
        if seen.is_whole {
            let held = seen.records::<L>(&shard.clip()).map_err(at_the_end)?;
            if held != records {
                let fault = format!("it holds {held:?}, but the index returns {records:?}");
                return Err(at_the_end(fault));
            }
        }
        let (usage, used) = (shard.extents(), shard.used_extents().len() as u64);
        let unused = shard.unused_extents().len() as u64;
        let adds_up = usage.all == usage.leased + unused + usage.lost && usage.leased >= used;
        if !adds_up || (usage.leased + usage.lost > used && !self.loses_extents) {
            let fault = format!("{used} extents are in tables, {unused} unused, of {usage:?}");
            return Err(at_the_end(fault));
        }
        Ok(())
    }
}

/// The trees of compute servers that are processes.
pub(crate) struct ProcessShards<L: Layout> {
    pool: InspectedPool<L>,
    scenario: Scenario,
    /// By compute server: what has the trees of its present life.
    living: Mutex<BTreeMap<u16, Arc<DlsmServer<L>>>>,
}

impl<L: NamedLayout> ProcessShards<L> {
    pub(crate) fn new(pool: InspectedPool<L>, scenario: &Scenario) -> Self {
        Self { pool, scenario: scenario.clone(), living: Mutex::default() }
    }

    pub(crate) fn begins(&self, compute_server: u16, server: &Arc<DlsmServer<L>>) {
        lock(&self.living).insert(compute_server, Arc::clone(server));
    }

    /// The directory goes on without what this life knows.
    pub(crate) fn dies(&self, compute_server: u16) {
        lock(&self.living).remove(&compute_server);
    }

    fn tree<'t>(&'t self, shard: &'t Arc<LsmShard>) -> InspectedTree<'t, L> {
        InspectedTree::new(&self.pool, shard, &self.scenario)
    }

    /// Inspects all trees at any moment.
    pub(crate) fn look(&self) -> Result<(), String> {
        let shards = lock(&self.living).values().flat_map(|server| server.shards()).collect();
        let mut shards: Vec<Arc<LsmShard>> = shards;
        // Between two owners, or before its first use, a shard is no one's. A process from which it
        // was taken does not know that yet.
        let has = |shard: &Arc<LsmShard>| {
            let home = (shard.id() % self.pool.servers.len() as u64) as u16;
            let listed = self.pool.living(home).map(|home| home.shard_epoch(shard.id()));
            shard.epoch() > 0 && listed.is_none_or(|epoch| epoch == shard.epoch())
        };
        shards.retain(has);
        shards.iter().try_for_each(|shard| self.tree(shard).look().map_err(|f| of(shard, f)))?;
        apart(shards.iter())
    }

    /// Inspects the trees that a reader has opened at the end. Returns their records.
    pub(crate) fn held(
        &self,
        shards: impl Iterator<Item = Arc<LsmShard>>,
    ) -> Result<NamedRecords, String> {
        let (mut records, shards) = (NamedRecords::new(), Vec::from_iter(shards));
        for shard in &shards {
            let tree = self.tree(shard);
            let seen = tree.look_at_rest().and_then(|()| tree.seen()?.records::<L>(&shard.clip()));
            records.extend(seen.map_err(|fault| of(shard, fault))?);
        }
        apart(shards.iter()).map(|()| records)
    }
}

fn of(shard: &LsmShard, fault: String) -> String {
    format!("shard {}: {fault}", shard.id())
}

/// No memory is in tables of two shards.
fn apart<'s>(shards: impl Iterator<Item = &'s Arc<LsmShard>>) -> Result<(), String> {
    let mut used: BTreeMap<GlobalAddr, (u64, u64)> = BTreeMap::new();
    for shard in shards {
        for (at, words) in shard.tables().into_iter().flat_map(|table| table.pieces) {
            used.insert(at, (words, shard.id()));
        }
    }
    let mut before: Option<(GlobalAddr, u64)> = None;
    for (at, (words, shard)) in used {
        if let Some((end, other)) = before
            && end.server() == at.server()
            && end.offset() > at.offset()
        {
            return Err(format!("shards {other} and {shard} have the memory at {at:?}"));
        }
        before = Some((at.plus(words * 8), shard));
    }
    Ok(())
}

/// Checks a table's level, and that it lies behind the one before.
fn check_place(table: &SsTableView, before: Option<&SsTableView>) -> Result<(), String> {
    if usize::from(table.meta.level) != table.level {
        return Err(format!("it says that it is in level {}", table.meta.level));
    }
    let overlaps = |before: &SsTableView| {
        before.level == table.level && table.level > 0 && before.meta.largest >= table.meta.smallest
    };
    match before.filter(|before| overlaps(before)) {
        Some(before) => Err(format!("it overlaps table {}", before.meta.footer.table)),
        None => Ok(()),
    }
}

/// Whether the index leads to the newest version of a key, which begins at word `at`.
fn finds(index: &SsTableIndex, record: SsTableRecord<'_>, at: u32) -> Result<bool, DamagedSsTable> {
    let key = record.key();
    Ok(match index.find(key, key.hash(), MAX_SEQUENCE)? {
        SsTableLookup::Absent => false,
        SsTableLookup::Record { words, .. } => words.start == at,
        SsTableLookup::Group(words) => words.contains(&at),
    })
}

impl SsTableContents {
    /// Adds a record of a source. Sources come in the order in which lookups ask them, the newest
    /// first.
    fn meet(&mut self, record: SsTableRecord<'_>) -> Result<(), String> {
        let (key, sequence) = (record.key().to_vec(), record.sequence());
        match self.keys.get_mut(&key) {
            Some(newest) if newest.lowest <= sequence => Err(format!(
                "it has version {sequence} of {key:?}, and version {} is asked first",
                newest.lowest
            )),
            Some(newest) => {
                newest.lowest = sequence;
                Ok(())
            }
            None => {
                let mut value = Vec::new();
                record.append_value(&mut value);
                let value = (record.kind() == RecordKind::Value).then_some(value);
                self.keys.insert(key, NewestVersion { lowest: sequence, value });
                Ok(())
            }
        }
    }

    /// The records in `clip` by their names. Others in the tables are not the tree's any more.
    fn records<L>(mut self, clip: &SsTableClip) -> Result<NamedRecords, String>
    where
        L: NamedLayout,
    {
        self.keys.retain(|key, _| clip.has(KeyBuf::from_bytes(key).key()));
        let there = self.keys.into_iter().filter_map(|(key, newest)| Some((key, newest.value?)));
        let decoded = |(key, value): (Vec<u8>, Vec<u8>)| {
            let found = <L::Key as Encoded>::decoded(key.clone())
                .zip(<L::Value as Encoded>::decoded(value.clone()));
            found.ok_or_else(|| format!("{key:?} = {value:?} is no record"))
        };
        let records = there.map(decoded).collect::<Result<Vec<_>, _>>()?;
        named::<L>(records).map_err(|stop| format!("{stop:?}"))
    }
}
