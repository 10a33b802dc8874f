//! Compaction of tables into the next level on the compute server, and the choice of the next one.
//!
//! Several compactions run concurrently if they do not conflict (lsm.V7).
//!
//! *Thread safety*: that of the handle.

use super::DlsmOptions;
use super::claim::CompactionClaim;
use super::handle::DlsmIndex;
use super::near::CompactionPart;
use super::shard::{CompactionRight, LsmShard, TreeRight};
use super::table_writer::{SsTableWriter, merge_error};
use super::version::{SsTable, TreeVersion};
use crate::remote::{ExtentUse, TRANSFER_WORDS};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_index::IndexError;
use farleaf_page::Layout;
use farleaf_page::rules::{MERGES_APART, OLDEST_MERGED_FIRST};
use farleaf_page::table::{Compaction, CompactionOptions, CompactionProgress, KeyBuf, SsTableClip};
use std::collections::VecDeque;
use std::ops::Range;

/// Words of input that are merged before the output is sent on.
const STEP_WORDS: u64 = TRANSFER_WORDS as u64;
/// Words that are READ of one source together: 256 KiB.
const READ_WORDS: u32 = 4 * TRANSFER_WORDS as u32;

/// Maximum number of attempts to claim a compaction; each fails if another task claims it first.
const CLAIM_ATTEMPTS: u32 = 4;

/// A compaction that is due.
struct CompactionTask {
    /// The sources: each is a run of tables with ascending keys.
    sources: Vec<Vec<Arc<SsTable>>>,
    /// The level of the outputs.
    into: usize,
}

impl CompactionTask {
    fn claim(&self) -> Option<CompactionClaim> {
        let tables = || self.sources.iter().flatten();
        Some(CompactionClaim {
            inputs: tables().map(|table| table.id()).collect(),
            into: self.into,
            keys: range_of(tables())?,
        })
    }
}

pub(super) fn range_of<'t>(
    tables: impl Iterator<Item = &'t Arc<SsTable>> + Clone,
) -> Option<(KeyBuf, KeyBuf)> {
    let smallest = tables.clone().map(|table| &table.meta.smallest).min()?;
    let largest = tables.map(|table| &table.meta.largest).max()?;
    Some((smallest.clone(), largest.clone()))
}

fn bytes_of(tables: &[Arc<SsTable>]) -> u64 {
    tables.iter().map(|table| table.bytes()).sum()
}

/// The tables that overlap a range, out of `tables`, which ascend and do not overlap each other.
pub(super) fn overlapping<'t>(
    tables: &'t [Arc<SsTable>],
    (smallest, largest): (&KeyBuf, &KeyBuf),
) -> &'t [Arc<SsTable>] {
    let first = tables.partition_point(|table| table.meta.largest < *smallest);
    let end = tables.partition_point(|table| table.meta.smallest <= *largest);
    &tables[first..end.max(first)]
}

/// Picks the next compaction that does not conflict with `claims`.
struct CompactionPicker<'v> {
    version: &'v TreeVersion,
    options: &'v DlsmOptions,
    claims: &'v [CompactionClaim],
    conflict: fn(&CompactionClaim, &CompactionClaim) -> bool,
    /// A planted bug: older tables of level 0 are left behind.
    takes_newest: bool,
}

impl CompactionPicker<'_> {
    /// The tables of a level that no running compaction has claimed.
    fn free(&self, level: usize) -> Vec<Arc<SsTable>> {
        let is_free = |table: &&Arc<SsTable>| {
            !self.claims.iter().any(|claim| claim.inputs.contains(&table.id()))
        };
        self.version.levels[level].iter().filter(is_free).cloned().collect()
    }

    /// The compaction score of these tables of a level. From 1 on, a compaction is due.
    fn score(&self, level: usize, tables: &[Arc<SsTable>]) -> f64 {
        match level {
            0 => tables.len() as f64 / self.options.level0_tables as f64,
            _ => bytes_of(tables) as f64 / self.options.level_bytes(level) as f64,
        }
    }

    /// The compaction with the highest score that conflicts with no claim, and its own claim.
    fn pick(&self) -> Option<(CompactionTask, CompactionClaim)> {
        let levels = (0..self.options.levels).map(|level| {
            let free = self.free(level);
            (self.score(level, &free), level, free)
        });
        let is_due = |(score, level, _): &(f64, usize, _)| {
            if *level == 0 { *score >= 1.0 } else { *score > 1.0 }
        };
        let mut due: Vec<_> = levels.filter(is_due).collect();
        due.sort_by(|(one, ..), (other, ..)| other.total_cmp(one));
        due.into_iter().find_map(|(_, level, free)| match level {
            0 => self.checked(self.of_level0(&free)?),
            _ => self.of_level(level, &free),
        })
    }

    fn checked(&self, task: CompactionTask) -> Option<(CompactionTask, CompactionClaim)> {
        let claim = task.claim()?;
        let is_apart = !self.claims.iter().any(|other| (self.conflict)(other, &claim));
        is_apart.then_some((task, claim))
    }

    /// All unclaimed tables of level 0. If an older table that is claimed overlapped them, the
    /// claims would conflict (V4).
    fn of_level0(&self, free: &[Arc<SsTable>]) -> Option<CompactionTask> {
        let tables = if self.takes_newest { &free[..1] } else { free };
        let (smallest, largest) = range_of(tables.iter())?;
        let mut sources: Vec<_> = tables.iter().map(|table| vec![Arc::clone(table)]).collect();
        sources.push(overlapping(&self.version.levels[1], (&smallest, &largest)).to_vec());
        Some(CompactionTask { sources, into: 1 })
    }

    /// The table with the fewest overlapping bytes in the next level, relative to its own size.
    fn of_level(
        &self,
        level: usize,
        free: &[Arc<SsTable>],
    ) -> Option<(CompactionTask, CompactionClaim)> {
        let next = &self.version.levels[level + 1];
        let below =
            |table: &Arc<SsTable>| overlapping(next, (&table.meta.smallest, &table.meta.largest));
        let cost =
            |table: &Arc<SsTable>| bytes_of(below(table)) as f64 / table.bytes().max(1) as f64;
        let mut tables: Vec<_> = free.iter().map(|table| (cost(table), table)).collect();
        tables.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        tables.into_iter().find_map(|(_, table)| {
            let sources = vec![vec![Arc::clone(table)], below(table).to_vec()];
            self.checked(CompactionTask { sources, into: level + 1 })
        })
    }
}

/// A source of a compaction, and how much of it has been fed to the merge.
pub(super) struct CompactionInput {
    tables: VecDeque<(Arc<SsTable>, Range<u32>)>,
    /// The table that is being fed, and its remaining words.
    now: Option<(Arc<SsTable>, Range<u32>)>,
}

impl CompactionInput {
    /// The words of `tables` that may have keys of `range`.
    fn new<F: Fabric, L: Layout>(
        index: &DlsmIndex<F, L>,
        tables: &[Arc<SsTable>],
        range: &SsTableClip,
    ) -> Result<Self, IndexError> {
        let words = |table: &Arc<SsTable>| Ok((Arc::clone(table), index.words_of(table, range)?));
        let mut tables = tables.iter().map(words).collect::<Result<VecDeque<_>, IndexError>>()?;
        tables.retain(|(_, words)| !words.is_empty());
        Ok(Self { tables, now: None })
    }

    /// READs the rest of `whole` from `part`.
    pub(super) fn replace(&mut self, whole: &Arc<SsTable>, part: &Arc<SsTable>) {
        for (table, _) in self.now.iter_mut().chain(&mut self.tables) {
            if Arc::ptr_eq(table, whole) {
                *table = Arc::clone(part);
            }
        }
    }
}

/// A compaction on the compute server, and its progress.
pub(super) struct CompactionRun {
    pub(super) merge: Compaction,
    pub(super) sources: Vec<CompactionInput>,
    /// Where the tables are, by their numbers.
    places: Vec<(u64, GlobalAddr)>,
    /// Records whose merging has been charged.
    charged: u64,
}

impl CompactionRun {
    pub(super) fn new<F: Fabric, L: Layout>(
        index: &DlsmIndex<F, L>,
        sources: &[Vec<Arc<SsTable>>],
        options: CompactionOptions,
    ) -> Result<Self, IndexError> {
        let tables = sources.iter().flatten();
        let places = tables.map(|table| (table.id(), table.lease.place())).collect();
        let input =
            |tables: &Vec<Arc<SsTable>>| CompactionInput::new(index, tables, &options.range);
        let inputs = sources.iter().map(input).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            merge: Compaction::new(inputs.len(), options),
            sources: inputs,
            places,
            charged: 0,
        })
    }
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Runs the compaction that is due most, concurrently with those of others. Returns whether one
    /// was due.
    pub(super) async fn compact_what_is_due(&self) -> Result<bool, IndexError> {
        match self.compact_beside_others().await {
            // Concurrent compactions keep all inputs until their outputs are complete. A compaction
            // in pieces needs less memory, but runs alone.
            Err(IndexError::OutOfMemory { .. }) => {
                self.settle_loans().await;
                self.compact_alone().await
            }
            outcome => outcome,
        }
    }

    async fn compact_beside_others(&self) -> Result<bool, IndexError> {
        self.settle_change().await?;
        for _ in 0..CLAIM_ATTEMPTS {
            if !self.shard.has_lane() {
                break;
            }
            let (version, claims) = self.shard.pin_with_claims();
            let picking = self.picking(&version, &claims);
            let Some((task, claim)) = picking.pick() else { break };
            let conflict = picking.conflict;
            let merging = LsmShard::begin_merge_of(&self.shard, claim, &task.sources, conflict);
            let Some(merging) = merging else { continue };
            self.run_compaction(&merging, &version, task).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Runs the compaction that is due most while no other one runs, with memory for one output at
    /// a time.
    async fn compact_alone(&self) -> Result<bool, IndexError> {
        let merging = self.until_begun(TreeRight::Merge, LsmShard::begin_compaction).await?;
        self.settle_change().await?;
        let version = self.shard.pin();
        let Some((task, _)) = self.picking(&version, &[]).pick() else { return Ok(false) };
        let CompactionTask { mut sources, into } = task;
        sources.retain(|tables| !tables.is_empty());
        // A pinned version would keep the extents that the compaction frees.
        drop(version);
        self.compact_in_pieces(&merging, sources, (into, None)).await?;
        Ok(true)
    }

    fn picking<'v>(
        &'v self,
        version: &'v TreeVersion,
        claims: &'v [CompactionClaim],
    ) -> CompactionPicker<'v> {
        CompactionPicker {
            version,
            options: &self.shard.options,
            claims,
            conflict: match self.fabric().breaks(MERGES_APART) {
                true => CompactionClaim::shares,
                false => CompactionClaim::conflicts,
            },
            takes_newest: self.fabric().breaks(OLDEST_MERGED_FIRST),
        }
    }

    async fn run_compaction(
        &self,
        merging: &CompactionRight,
        version: &TreeVersion,
        CompactionTask { mut sources, into }: CompactionTask,
    ) -> Result<(), IndexError> {
        sources.retain(|tables| !tables.is_empty());
        if let [tables] = &sources[..]
            && let [table] = &tables[..]
            && version.owns_all_of(table)
        {
            return self.publish(merging.moved(table, into)).await;
        }
        self.compact_somewhere(merging, version, &sources, into).await
    }

    /// Compacts everything into the deepest level. Only the newest values stay, and older versions
    /// that snapshots need.
    pub(super) async fn compact_everything(
        &self,
        merging: &CompactionRight,
    ) -> Result<(), IndexError> {
        self.settle_change().await?;
        let version = self.shard.pin();
        let deepest = version.levels.len() - 1;
        let (level0, others) = version.levels.split_first().expect("there is a level 0");
        let is_clean = |table: &Arc<SsTable>| {
            let footer = &table.meta.footer;
            let is_newest = footer.tombstones == 0 && footer.keys == footer.records;
            is_newest && version.owns_all_of(table)
        };
        let is_above = version.levels[..deepest].iter().any(|tables| !tables.is_empty());
        if !is_above && version.levels[deepest].iter().all(is_clean) {
            return Ok(());
        }
        let level0 = level0.iter().map(|table| vec![Arc::clone(table)]);
        let sources = level0.chain(others.iter().cloned());
        let sources: Vec<_> = sources.filter(|tables| !tables.is_empty()).collect();
        match self.compact_somewhere(merging, &version, &sources, deepest).await {
            Err(IndexError::OutOfMemory { .. }) => {
                self.settle_loans().await;
                // A pinned version would keep the extents that the compaction frees.
                drop(version);
                self.compact_in_pieces(merging, sources, (deepest, None)).await
            }
            merged => merged,
        }
    }

    /// Runs a part of a compaction on the compute server. Returns the outputs.
    pub(super) async fn merge(&self, part: CompactionPart<'_>) -> Result<Vec<SsTable>, IndexError> {
        let CompactionPart { version, sources, level, range } = part;
        let below = version.levels[level + 1..].iter().flatten();
        let options = CompactionOptions {
            range: range.clone(),
            // Later snapshots are newer than all inputs (J5).
            snapshots: self.snapshot_bounds(),
            below: self.below(below),
            cuts: Vec::new(),
            table_words: u32::try_from(self.shard.options.table_bytes / 8).unwrap_or(u32::MAX),
        };
        let mut run = CompactionRun::new(self, sources, options)?;
        let mut outputs = Vec::new();
        let mut writer = SsTableWriter::new(self, ExtentUse::Merge);
        let written = async {
            loop {
                let progress = self.fill_output(&mut run, &mut writer).await?;
                outputs.extend(writer.replace().finish(level as u8).await?);
                if progress == CompactionProgress::Done {
                    return Ok(());
                }
            }
        };
        if let Err(error) = written.await {
            writer.abandon().await;
            return Err(error);
        }
        Ok(outputs)
    }

    /// Merges until the table that is being written ends, or everything is merged.
    pub(super) async fn fill_output(
        &self,
        run: &mut CompactionRun,
        writer: &mut SsTableWriter<'_, F, L>,
    ) -> Result<CompactionProgress, IndexError> {
        loop {
            let SsTableWriter { builder, out, .. } = &mut *writer;
            let stepped = run.merge.step(STEP_WORDS, builder, out);
            let progress = stepped.map_err(|error| merge_error(error, &run.places))?;
            let records = run.merge.counts().records_in;
            self.fabric().charge(Work::MergeRecords((records - run.charged) as u32)).await;
            run.charged = records;
            match progress {
                CompactionProgress::Spent => writer.send().await?,
                CompactionProgress::NeedsInput(source) => self.feed(run, source).await?,
                progress => return Ok(progress),
            }
        }
    }

    /// Gives a source its next words.
    async fn feed(&self, run: &mut CompactionRun, source: usize) -> Result<(), IndexError> {
        let CompactionRun { merge, sources, places, .. } = run;
        let (failed, input) = (|error| merge_error(error, places), &mut sources[source]);
        if input.now.is_none() {
            let Some((table, words)) = input.tables.pop_front() else {
                return merge.end(source).map_err(failed);
            };
            merge.begin(source, table.id(), &table.meta.clip).map_err(failed)?;
            input.now = Some((table, words));
        }
        let Some((table, left)) = &mut input.now else { return Ok(()) };
        let end = left.start.saturating_add(READ_WORDS).min(left.end);
        let words = self.read(table, left.start..end).await?;
        self.fabric().charge(Work::CopyBytes(words.len() as u64 * 8)).await;
        self.shard.step();
        left.start = end;
        if left.start >= left.end {
            input.now = None;
        }
        merge.feed(source, &words).map_err(failed)
    }
}
