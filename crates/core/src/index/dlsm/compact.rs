//! Merges of tables into the next level, on the compute side, and which one is due.
//!
//! *Thread safety*: that of the handle. One handle at a time merges.

use super::DlsmOptions;
use super::handle::DlsmIndex;
use super::shard::Merging;
use super::table_writer::{TableWriter, merge_error};
use super::version::{Table, TreeVersion};
use crate::index::IndexError;
use crate::page::Layout;
use crate::remote::TRANSFER_WORDS;
use crate::rules::{EXTENTS_PINNED, OLDEST_MERGED_FIRST};
use crate::table::{Clip, KeyBuf, Merge, MergeOptions, Progress};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, Work};

/// Words of input that are merged before the output is sent on.
const STEP_WORDS: u64 = TRANSFER_WORDS as u64;
/// Words that are READ of one source together: 256 KiB.
const READ_WORDS: u32 = 4 * TRANSFER_WORDS as u32;

/// A merge that is due.
struct Task {
    /// Each is a source: tables with ascending keys.
    sources: Vec<Vec<Arc<Table>>>,
    /// The level of the outputs.
    into: usize,
}

fn bytes_of(tables: &[Arc<Table>]) -> u64 {
    tables.iter().map(|table| table.bytes()).sum()
}

/// The level whose merge is due most, if one is.
pub(super) fn due_level(version: &TreeVersion, options: &DlsmOptions) -> Option<usize> {
    let score = |level: usize| match level {
        0 => version.levels[0].len() as f64 / options.level0_tables as f64,
        _ => bytes_of(&version.levels[level]) as f64 / options.level_bytes(level) as f64,
    };
    let scores = (0..options.levels).map(|level| (level, score(level)));
    let due =
        scores.filter(|(level, score)| if *level == 0 { *score >= 1.0 } else { *score > 1.0 });
    due.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(level, _)| level)
}

/// The merge that is due most, if one is.
fn pick(version: &TreeVersion, options: &DlsmOptions, takes_newest: bool) -> Option<Task> {
    let level = due_level(version, options)?;
    let next = &version.levels[level + 1];
    let overlap = |range: (&KeyBuf, &KeyBuf)| -> Vec<Arc<Table>> {
        next.iter().filter(|table| table.overlaps(range)).cloned().collect()
    };
    if level == 0 {
        let tables = &version.levels[0];
        // Only a planted bug leaves older ones behind.
        let tables = if takes_newest { &tables[..1] } else { &tables[..] };
        let smallest = tables.iter().map(|table| &table.meta.smallest).min()?;
        let largest = tables.iter().map(|table| &table.meta.largest).max()?;
        let mut sources: Vec<_> = tables.iter().map(|table| vec![Arc::clone(table)]).collect();
        sources.push(overlap((smallest, largest)));
        return Some(Task { sources, into: 1 });
    }
    // The table that has the least below it, for its size.
    let cost = |table: &Arc<Table>| {
        let below = overlap((&table.meta.smallest, &table.meta.largest));
        bytes_of(&below) as f64 / table.bytes().max(1) as f64
    };
    let tables = version.levels[level].iter();
    let (_, table) = tables
        .map(|table| (cost(table), table))
        .min_by(|(one, _), (other, _)| one.total_cmp(other))?;
    let below = overlap((&table.meta.smallest, &table.meta.largest));
    Some(Task { sources: vec![vec![Arc::clone(table)], below], into: level + 1 })
}

/// A source of a merge, as far as it was fed.
struct Input {
    tables: std::vec::IntoIter<Arc<Table>>,
    /// The table that is fed, and the next word.
    now: Option<(Arc<Table>, u32)>,
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Merges what is due most. Returns whether there was something.
    pub(super) async fn merge_what_is_due(&self, merging: &Merging) -> Result<bool, IndexError> {
        self.settle_change().await?;
        let version = self.shard.pin();
        let takes_newest = self.fabric().breaks(OLDEST_MERGED_FIRST);
        let task = pick(&version, &self.shard.options, takes_newest);
        let Some(Task { mut sources, into }) = task else { return Ok(false) };
        sources.retain(|tables| !tables.is_empty());
        if let [tables] = &sources[..]
            && let [table] = &tables[..]
        {
            self.publish(merging.moved(table, into)).await?;
            return Ok(true);
        }
        self.merge_somewhere(merging, &version, sources, into).await?;
        Ok(true)
    }

    /// Merges everything into the deepest level, where nothing but the newest values stays, unless
    /// snapshots need more.
    pub(super) async fn merge_everything(&self, merging: &Merging) -> Result<(), IndexError> {
        self.settle_change().await?;
        let version = self.shard.pin();
        let deepest = version.levels.len() - 1;
        let (level0, others) = version.levels.split_first().expect("there is a level 0");
        let is_clean = |table: &Arc<Table>| {
            table.meta.footer.tombstones == 0 && table.meta.footer.keys == table.meta.footer.records
        };
        let is_above = version.levels[..deepest].iter().any(|tables| !tables.is_empty());
        if !is_above && version.levels[deepest].iter().all(is_clean) {
            return Ok(());
        }
        let level0 = level0.iter().map(|table| vec![Arc::clone(table)]);
        let sources = level0.chain(others.iter().cloned());
        let sources = sources.filter(|tables| !tables.is_empty()).collect();
        self.merge_somewhere(merging, &version, sources, deepest).await
    }

    /// Merges tables of `version` into `level`, on this side.
    pub(super) async fn merge(
        &self,
        merging: &Merging,
        version: &TreeVersion,
        sources: Vec<Vec<Arc<Table>>>,
        level: usize,
    ) -> Result<(), IndexError> {
        let inputs = sources.concat();
        let below = version.levels[level + 1..].iter().flatten();
        let options = MergeOptions {
            range: Clip::default(),
            // Later snapshots are newer than all inputs (J5).
            snapshots: self.snapshot_bounds(),
            below: self.below(below),
            cuts: Vec::new(),
            table_words: u32::try_from(self.shard.options.table_bytes / 8).unwrap_or(u32::MAX),
        };
        let mut merge = Merge::new(sources.len(), options);
        let mut sources: Vec<Input> = sources
            .into_iter()
            .map(|tables| Input { tables: tables.into_iter(), now: None })
            .collect();
        let failed = |error| {
            let inputs: Vec<&Table> = inputs.iter().map(|table| &**table).collect();
            merge_error(error, &inputs)
        };
        let mut outputs = Vec::new();
        let mut writer = TableWriter::new(self);
        let mut charged = 0;
        let written = async {
            loop {
                let TableWriter { builder, out, .. } = &mut writer;
                let progress = merge.step(STEP_WORDS, builder, out).map_err(failed)?;
                let records = merge.counts().records_in;
                self.fabric().charge(Work::MergeRecords((records - charged) as u32)).await;
                charged = records;
                match progress {
                    Progress::Spent => writer.send().await?,
                    Progress::NeedsInput(source) => {
                        self.feed(&mut merge, source, &mut sources[source], &failed).await?;
                    }
                    progress => {
                        outputs.extend(writer.replace().finish(level as u8).await?);
                        if progress == Progress::Done {
                            return Ok(());
                        }
                    }
                }
            }
        };
        if let Err(error) = written.await {
            writer.abandon().await;
            return Err(error);
        }
        self.publish(merging.merged(&inputs, level, outputs)).await?;
        if self.fabric().breaks(EXTENTS_PINNED) {
            inputs.iter().for_each(|table| table.lease.end());
        }
        Ok(())
    }

    /// Gives a source its next words.
    async fn feed(
        &self,
        merge: &mut Merge,
        source: usize,
        input: &mut Input,
        failed: &impl Fn(crate::table::MergeError) -> IndexError,
    ) -> Result<(), IndexError> {
        if input.now.is_none() {
            let Some(table) = input.tables.next() else {
                return merge.end(source).map_err(failed);
            };
            merge.begin(source, table.id(), &table.meta.clip).map_err(failed)?;
            input.now = Some((table, 0));
        }
        let Some((table, word)) = &mut input.now else { return Ok(()) };
        let data_words = table.meta.footer.data_words;
        let end = word.saturating_add(READ_WORDS).min(data_words);
        let words = self.read(table, *word..end).await?;
        self.fabric().charge(Work::CopyBytes(words.len() as u64 * 8)).await;
        self.shard.step();
        *word = end;
        if end == data_words {
            input.now = None;
        }
        merge.feed(source, &words).map_err(failed)
    }
}
