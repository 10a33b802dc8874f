//! Compaction on the memory server that holds the tables, and the choice between the two sides.
//!
//! A memory server compacts only tables that lie entirely in its own memory. If one does not, or if
//! the server refuses the job or its outcome is unknown, the compute server compacts.
//!
//! *Thread safety*: that of the handle.

use super::handle::DlsmIndex;
use super::place::CompactionPlace;
use super::shard::{CompactionRight, LsmShard};
use super::version::{SsTable, TreeVersion};
use crate::remote::{ExtentLease, OffloadedCompaction};
use farleaf_fabric::sync::{Arc, lock};
use farleaf_fabric::{Fabric, GlobalAddr, MAX_MESSAGE_BYTES, ServerId};
use farleaf_index::IndexError;
use farleaf_index::together::all;
use farleaf_page::Layout;
use farleaf_page::rules::{EXTENTS_PINNED, LOANS_UNREAD, RANGES_MEET};
use farleaf_page::table::{
    CompactionOrder, ExtentRun, FOOTER_WORDS, JobSsTable, KeyBuf, SsTableClip, SsTableIndex,
    SsTableMeta,
};
use farleaf_pool::remote::RemoteError;
use std::ops::Range;

/// Fewest words of input per step. A job that needs more steps is given up, because a server that
/// never finishes must not keep the right to merge.
const MIN_STEP_WORDS: u64 = 1 << 10;
/// Additional steps that a job may need for each output.
const OUTPUT_STEPS: u64 = 16;

/// A part of a compaction, which one side runs.
#[derive(Clone, Copy)]
pub(super) struct CompactionPart<'m> {
    pub(super) version: &'m TreeVersion,
    /// The sources: each is a run of tables with ascending keys.
    pub(super) sources: &'m [Vec<Arc<SsTable>>],
    /// The level of the outputs.
    pub(super) level: usize,
    /// Only keys of this range.
    pub(super) range: &'m SsTableClip,
}

/// The job for a compaction, and how much room its outputs need.
struct CompactionPlan {
    server: ServerId,
    job: CompactionOrder,
    extents: usize,
    /// Upper bound of the number of steps that the job can need.
    most_steps: u64,
}

/// Counts the words of a part as being compacted, until this is dropped.
struct CompactingWords<'s> {
    shard: &'s LsmShard,
    is_near: bool,
    words: u64,
}

impl Drop for CompactingWords<'_> {
    fn drop(&mut self) {
        lock(&self.shard.compaction_costs).end(self.is_near, self.words);
    }
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Compacts tables of `version` into `level`. Divides the keys into parts that run
    /// concurrently, each on the side that the options choose, and publishes all outputs as one
    /// change.
    pub(super) async fn compact_somewhere(
        &self,
        merging: &CompactionRight,
        version: &TreeVersion,
        sources: &[Vec<Arc<SsTable>>],
        level: usize,
    ) -> Result<(), IndexError> {
        let inputs = sources.concat();
        let bytes: u64 = inputs.iter().map(|table| table.bytes()).sum();
        let wanted = bytes / self.shard.options.table_bytes.max(1);
        let wanted = (wanted as usize).max(1);
        let mut more = LsmShard::more_lanes(&self.shard, merging, wanted - 1);
        let ranges = cut(&inputs, 1 + more.len(), &version.clip);
        let ranges = ranges.map_err(|table| Self::damaged(table))?;
        more.truncate(ranges.len() - 1);
        let lanes = std::iter::once(merging.lane).chain(more.iter().map(|claimed| claimed.lane));
        let part = |(range, lane)| {
            let part = CompactionPart { version, sources, level, range };
            self.compact_part(part, lane)
        };
        let merged = all(ranges.iter().zip(lanes).map(part)).await;
        let merged: Vec<_> = merged.into_iter().collect::<Result<_, _>>()?;
        if merged.iter().all(|(_, is_near)| *is_near) {
            self.shard.count_near_merge();
        }
        let outputs = merged.into_iter().flat_map(|(tables, _)| tables).collect();
        self.publish(merging.merged(&inputs, level, outputs)).await?;
        if self.fabric().breaks(EXTENTS_PINNED) {
            inputs.iter().for_each(|table| table.lease.end());
        }
        if self.fabric().breaks(LOANS_UNREAD) {
            let borrowed = inputs.iter().filter(|table| table.lease.is_borrowed());
            borrowed.for_each(|table| table.lease.end());
        }
        Ok(())
    }

    /// Compacts a part on the side that the options choose, or on the one that is expected to end
    /// first. Returns the outputs, and whether the memory server has made them.
    async fn compact_part(
        &self,
        part: CompactionPart<'_>,
        lane: u8,
    ) -> Result<(Vec<SsTable>, bool), IndexError> {
        let options = &self.shard.options;
        let words = |table: &Arc<SsTable>| self.words_of(table, part.range);
        let tables = part.sources.iter().flatten();
        let words: u64 =
            tables.map(|table| words(table).map_or(0, |words| words.len() as u64)).sum();
        let wants_near = match options.merges {
            CompactionPlace::Compute => false,
            CompactionPlace::Memory => true,
            CompactionPlace::ByCost => {
                lock(&self.shard.compaction_costs).decide(words, options.workers)
            }
        };
        let by_cost = options.merges == CompactionPlace::ByCost;
        let _under_way =
            by_cost.then(|| CompactingWords { shard: &self.shard, is_near: wants_near, words });
        let began_ns = self.fabric().now_ns();
        let near = match wants_near {
            true => self.compact_offloaded(part, lane).await,
            false => None,
        };
        let is_near = near.is_some();
        let outputs = match near {
            Some(outputs) => outputs,
            None => self.merge(part).await?,
        };
        if by_cost {
            let took_ns = self.fabric().now_ns().saturating_sub(began_ns);
            let ns_per_word = took_ns as f64 / words.max(1) as f64;
            // A failed attempt on the memory server also counts towards the cost of that side.
            lock(&self.shard.compaction_costs).note(wants_near, ns_per_word);
        }
        Ok((outputs, is_near))
    }

    /// The words of a table that may have keys of `range`: whole groups of records.
    pub(super) fn words_of(
        &self,
        table: &Arc<SsTable>,
        range: &SsTableClip,
    ) -> Result<Range<u32>, IndexError> {
        let damaged = |_| Self::damaged(table);
        let seek = match self.fabric().breaks(RANGES_MEET) {
            true => SsTableIndex::seek_behind,
            false => SsTableIndex::seek,
        };
        let range = &range.within(&table.meta.clip);
        let lower = range.lower.as_ref().map(|lower| seek(&table.index, lower.key()));
        let upper = range.upper.as_ref().map(|upper| table.index.seek_behind(upper.key()));
        let first = lower.transpose().map_err(damaged)?.unwrap_or(0);
        let end = upper.transpose().map_err(damaged)?.unwrap_or(table.meta.footer.data_words);
        Ok(first..end.max(first))
    }

    /// Merges on the memory server of the tables. `None` if the compute side must do it.
    async fn compact_offloaded(&self, part: CompactionPart<'_>, lane: u8) -> Option<Vec<SsTable>> {
        let mut plan = self.plan(part)?;
        // Beside the words the request has a tag, the process and the job's number.
        let words = plan.job.encode().len() + plan.extents;
        if words * 8 + 64 > MAX_MESSAGE_BYTES {
            return None;
        }
        let lease = self.extents.lease(plan.server, plan.extents).await.ok()?;
        plan.job.extents = lease.places().iter().map(|place| place.offset()).collect();
        let words = plan.job.encode();
        // Whatever has failed, the compute server can compact instead. It will find a damaged
        // table, too.
        self.run_job(lane, &plan, lease, words).await.ok()
    }

    /// The job for the memory server. `None` if the tables are on several servers.
    fn plan(
        &self,
        CompactionPart { version, sources, level, range }: CompactionPart<'_>,
    ) -> Option<CompactionPlan> {
        let shard = &self.shard;
        let server = sources.iter().flatten().next()?.lease.place().server();
        // Jobs know whole tables only.
        if sources.iter().flatten().any(|table| table.is_part()) {
            return None;
        }
        let job_table = |table: &Arc<SsTable>| {
            let is_there = |place: &GlobalAddr| place.server() == server;
            let words = u64::from(table.meta.footer.table_words());
            let pieces = table.lease.pieces(0, words, u64::MAX);
            let words = self.words_of(table, range).ok()?;
            table.lease.places().iter().all(is_there).then(|| JobSsTable {
                id: table.id(),
                data_words: table.meta.footer.data_words,
                words,
                pieces: pieces.iter().map(|(at, words)| (at.offset(), *words)).collect(),
            })
        };
        let job_tables = |tables: &Vec<Arc<SsTable>>| {
            let mut tables = tables.iter().map(job_table).collect::<Option<Vec<_>>>()?;
            tables.retain(|table| !table.words.is_empty());
            Some(tables)
        };
        let sources = sources.iter().map(job_tables).collect::<Option<Vec<Vec<JobSsTable>>>>()?;
        let tables = sources.iter().flatten();
        // The words of each table's part, with a proportional part of its index.
        let with_index = |table: &JobSsTable| {
            let all: u64 = table.pieces.iter().map(|piece| piece.1).sum();
            let part = table.words.len() as u64;
            (all * part).div_ceil(u64::from(table.data_words.max(1)))
        };
        let all_words: u64 = tables.clone().map(with_index).sum();
        let data_words: u64 = tables.map(|table| table.words.len() as u64).sum();
        let table_words = u32::try_from(shard.options.table_bytes / 8).unwrap_or(u32::MAX);
        let outputs = u32::try_from(data_words / u64::from(table_words.max(1)) + 1).ok()?;
        let extent_words = u32::try_from(shard.space.extent_bytes() / 8).ok()?;
        // Indexes of other groups may be somewhat larger, and each output begins an extent.
        let room = all_words + all_words / 8 + 64 * u64::from(outputs);
        let extents = room.div_ceil(extent_words.into()) + u64::from(outputs);
        let below = version.levels[level + 1..].iter().flatten();
        Some(CompactionPlan {
            server,
            extents: extents as usize,
            // A step takes in 2^15 words or goes on with 2^14 keys of an output's index.
            most_steps: data_words / MIN_STEP_WORDS + u64::from(outputs) * OUTPUT_STEPS + 64,
            job: CompactionOrder {
                sources,
                range: range.clone(),
                // Later snapshots are newer than all inputs (J5).
                snapshots: self.snapshot_bounds(),
                below: self.ranges_below(below),
                table_words,
                index: shard.options.index,
                level: level as u8,
                first_output: shard.table_ids(u64::from(outputs)),
                outputs,
                extent_words,
                extents: Vec::new(),
            },
        })
    }

    /// Runs a job to its end. Returns its outputs.
    async fn run_job(
        &self,
        lane: u8,
        plan: &CompactionPlan,
        lease: ExtentLease,
        words: Vec<u64>,
    ) -> Result<Vec<SsTable>, RemoteError> {
        let server = plan.server;
        let job = self.shard.next_job(server, lane).ok_or(bad_reply(server))?;
        let mut merge = OffloadedCompaction::begin(&self.extents, job, lease, words).await?;
        let mut metas = Vec::new();
        let mut steps = 0;
        loop {
            steps += 1;
            if steps > plan.most_steps || metas.len() > plan.job.outputs as usize {
                return Err(bad_reply(server));
            }
            let (done, outputs) = merge.step().await?;
            self.shard.step();
            let mut rest = &outputs[..];
            while !rest.is_empty() {
                metas.push(SsTableMeta::decode(&mut rest).map_err(|_| bad_reply(server))?);
            }
            if done {
                break;
            }
        }
        let mut lease = merge.close().await?;
        let mut tables = Vec::new();
        for mut meta in metas {
            let extents = meta.extents.iter().map(|run| run.count as usize).sum();
            let own = lease.split_off_first(extents).ok_or(bad_reply(server))?;
            let run = |(first, count)| ExtentRun { first, count };
            meta.extents = own.runs().into_iter().map(run).collect();
            let footer = &meta.footer;
            let words = footer.data_words..footer.table_words();
            if u64::from(words.end) * 8 > own.bytes() || words.len() < FOOTER_WORDS {
                return Err(bad_reply(server));
            }
            let sections = self.extents.read(&own, words.start, words.end - words.start).await?;
            let index =
                SsTableIndex::open(sections, footer.table).map_err(|_| bad_reply(server))?;
            if index.footer() != footer {
                return Err(bad_reply(server));
            }
            tables.push(SsTable { meta, index: Arc::new(index), lease: Arc::new(own) });
        }
        Ok(tables)
    }
}

/// Divides `clip` into at most `parts` adjacent ranges of keys, with about the same number of
/// records of `inputs` each. Fails with a table whose index is damaged.
fn cut<'t>(
    inputs: &'t [Arc<SsTable>],
    parts: usize,
    clip: &SsTableClip,
) -> Result<Vec<SsTableClip>, &'t Arc<SsTable>> {
    let mut keys = Vec::new();
    for table in inputs.iter().filter(|_| parts > 1) {
        keys.push(table.meta.smallest.clone());
        keys.extend(table.index.split_keys(parts as u32).map_err(|_| table)?);
    }
    keys.retain(|key| clip.has(key.key()));
    keys.sort();
    let lowest = keys.first().cloned();
    let mut cuts: Vec<KeyBuf> =
        (1..parts).filter_map(|part| keys.get(keys.len() * part / parts).cloned()).collect();
    cuts.dedup();
    // The first range begins below all keys.
    cuts.retain(|cut| lowest.as_ref().is_some_and(|lowest| lowest < cut));
    let lowers = std::iter::once(clip.lower.clone()).chain(cuts.iter().cloned().map(Some));
    let uppers = cuts.iter().cloned().map(Some).chain(std::iter::once(clip.upper.clone()));
    Ok(lowers.zip(uppers).map(|(lower, upper)| SsTableClip { lower, upper }).collect())
}

fn bad_reply(server: ServerId) -> RemoteError {
    RemoteError::BadReply { server }
}
