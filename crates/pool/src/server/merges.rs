//! Near-data compaction: this memory server compacts its own tables, in steps that compute servers
//! ask for (Wang et al., *dLSM*, section V-A).
//!
//! The compute server names the tables, and lends the extents that the outputs go to. The merge
//! itself is [`farleaf_page::table::Compaction`], the code that compute servers run.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.J1. A job merges only tables whose footers are where it says, and reads and writes only
//!   memory that the server has allocated.
//! - lsm.J2. A step reads at most [`STEP_WORDS`] of input. A repeated one gets the same reply.
//! - lsm.J3. After its close a job writes nothing, and a request that is late begins nothing.
//!
//! Words that are no table's records end the job as damaged, and change nothing else (lsm.J8).
//!
//! *Thread safety*: any number of threads. A step has its job for itself.

use super::chunks::ChunkAllocator;
use crate::wire::{EPOCH_JOBS_LOG2, LANE_JOBS_LOG2, Refusal};
use farleaf_fabric::sync::{Mutex, Ordering, lock};
use farleaf_fabric::{Cpu, Region, Work};
use farleaf_page::NodeCarver;
use farleaf_page::rules;
use farleaf_page::table::{
    Compaction, CompactionError, CompactionOptions, CompactionOrder, CompactionProgress, ExtentRun,
    FOOTER_WORDS, IndexKind, JobSsTable, LowerLevels, SsTableBuilder, SsTableClip, SsTableFinisher,
    SsTableFooter, SsTableMeta,
};
use std::collections::BTreeMap;

/// Maximum number of words of input of one step: 256 KiB.
const STEP_WORDS: u64 = 1 << 15;
/// Words that a source is fed together.
const FEED_WORDS: u32 = 1 << 12;
/// Maximum number of keys that one step adds to the index of an output.
const STEP_KEYS: usize = 1 << 14;
/// Maximum number of concurrent jobs.
const MAX_JOBS: usize = 16;
/// Maximum number of shards whose latest jobs are remembered.
const MAX_OWNERS: usize = 64;

/// The compactions of a memory server.
#[derive(Debug, Default)]
pub(super) struct ServerCompactions {
    owners: Mutex<BTreeMap<u64, ShardCompactions>>,
}

/// What the server knows of the merges of a shard.
#[derive(Debug, Default)]
struct ShardCompactions {
    /// Jobs up to this number are closed.
    closed: u64,
    lanes: BTreeMap<u8, JobLane>,
}

/// Jobs of a shard that follow one another. Those of different lanes run at the same time.
#[derive(Debug, Default)]
struct JobLane {
    /// Jobs of the lane up to this number are closed.
    closed: u64,
    open: Option<(u64, JobSlot)>,
}

/// The lane of a job: 8 bits above its number in the lane.
fn lane_of(job: u64) -> u8 {
    (job >> LANE_JOBS_LOG2) as u8
}

/// Whether the number is the one before all jobs of an epoch.
fn ends_epoch(job: u64) -> bool {
    job.is_multiple_of(1 << EPOCH_JOBS_LOG2)
}

impl ShardCompactions {
    fn lane(&mut self, job: u64) -> Option<&mut JobLane> {
        self.lanes.get_mut(&lane_of(job))
    }
}

#[derive(Debug)]
enum JobSlot {
    Idle(Box<CompactionJob>),
    /// A thread makes a step.
    Busy,
}

/// A source of a compaction, and how much of it has been fed to the merge.
#[derive(Debug)]
struct JobSource {
    /// The remaining tables, in reverse: the next one is the last element.
    tables: Vec<JobSsTable>,
    now: Option<(JobSsTable, u32)>,
}

#[derive(Debug)]
struct CompactionJob {
    description: CompactionOrder,
    merge: Compaction,
    sources: Vec<JobSource>,
    builder: SsTableBuilder,
    /// The index of the output is being written, after which the compaction has ended or not.
    finishing: Option<(SsTableFinisher, bool)>,
    /// Words of the output that are not written to its extents yet; all of them while its index is
    /// built.
    out: Vec<u64>,
    /// Number of words of the output that are written.
    written: u32,
    /// Outputs so far, and the first extent of the next one.
    outputs: u32,
    extent: u32,
    /// The latest step and its reply.
    step: u32,
    reply: Result<StepOutcome, Refusal>,
}

/// What a step has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepOutcome {
    /// Whether the compaction is complete.
    pub(super) done: bool,
    /// The descriptions of the outputs that the step has ended, with extents as places in the
    /// job's list.
    pub(super) outputs: Vec<u64>,
}

/// The memory that jobs read and write.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobMemory<'s> {
    pub(super) region: &'s Region,
    pub(super) chunks: &'s ChunkAllocator,
}

impl JobMemory<'_> {
    /// Whether these words are all in memory that was allocated.
    fn has(&self, at: u64, words: u64) -> bool {
        let end = words.checked_mul(8).and_then(|bytes| at.checked_add(bytes));
        at.is_multiple_of(8)
            && at >= NodeCarver::NODE_ALIGN
            && end.is_some_and(|end| end <= self.chunks.allocated_bytes())
    }

    fn load(&self, at: u64, words: u64, to: &mut Vec<u64>) -> Option<()> {
        let words = self.region.slice(at, usize::try_from(words).ok()?)?;
        to.extend(words.iter().map(|word| word.load(Ordering::Relaxed)));
        Some(())
    }

    /// Words of a table.
    fn words(&self, table: &JobSsTable, first: u32, end: u32) -> Option<Vec<u64>> {
        let (mut words, mut before) = (Vec::new(), 0);
        let (first, end) = (u64::from(first), u64::from(end));
        for &(at, count) in &table.pieces {
            let from = first.clamp(before, before + count);
            let to = end.clamp(before, before + count);
            if from < to {
                self.load(at + (from - before) * 8, to - from, &mut words)?;
            }
            before += count;
        }
        (words.len() as u64 == end - first).then_some(words)
    }

    /// Whether the table is where the job says (J1).
    fn has_table(&self, table: &JobSsTable) -> bool {
        let all = table.pieces.iter().try_fold(0_u64, |all, &(at, words)| {
            self.has(at, words).then(|| all.checked_add(words))?
        });
        let Some(all) = all.and_then(|all| u32::try_from(all).ok()) else { return false };
        let Some(start) = all.checked_sub(FOOTER_WORDS as u32) else { return false };
        let footer = self.words(table, start, all);
        let footer = footer.and_then(|words| SsTableFooter::decode(&words, table.id).ok());
        footer.is_some_and(|footer| {
            footer.data_words == table.data_words && footer.table_words() == all
        })
    }
}

impl ServerCompactions {
    /// Begins a job, unless it was begun before.
    pub(super) fn begin(
        &self,
        memory: JobMemory<'_>,
        (owner, job): (u64, u64),
        words: &[u64],
    ) -> Result<(), Refusal> {
        let description = CompactionOrder::decode(words).ok_or(Refusal::Malformed)?;
        let extent_words = u64::from(description.extent_words);
        if !description.extents.iter().all(|&at| memory.has(at, extent_words)) {
            return Err(Refusal::Malformed);
        }
        if !description.sources.iter().flatten().all(|table| memory.has_table(table)) {
            return Err(Refusal::NoSuchTable);
        }
        // A job that reads nothing would only take a place.
        if job == 0 || description.sources.iter().all(Vec::is_empty) {
            return Err(Refusal::Malformed);
        }
        let mut owners = lock(&self.owners);
        let lanes = owners.values().flat_map(|owner| owner.lanes.values());
        let open = lanes.filter(|lane| lane.open.is_some()).count();
        let known = owners.get(&owner);
        let lane = known.and_then(|known| known.lanes.get(&lane_of(job)));
        match lane.and_then(|lane| lane.open.as_ref()) {
            // A request of another process under this name must not get this one's job.
            Some((number, JobSlot::Idle(begun))) if *number == job => {
                let is_same = begun.description == description;
                return if is_same { Ok(()) } else { Err(Refusal::TooManyMerges) };
            }
            Some((number, JobSlot::Busy)) if *number == job => return Err(Refusal::Contended),
            Some(_) => return Err(Refusal::TooManyMerges),
            None => {}
        }
        let closed = known.map_or(0, |known| known.closed).max(lane.map_or(0, |lane| lane.closed));
        if job <= closed {
            return Err(Refusal::NoSuchJob);
        }
        if open == MAX_JOBS || (known.is_none() && owners.len() == MAX_OWNERS) {
            return Err(Refusal::TooManyMerges);
        }
        // Only now: a refused request changes nothing (M2 of `memory_server.rs`).
        let begun = Box::new(CompactionJob::new(description));
        let lanes = &mut owners.entry(owner).or_default().lanes;
        lanes.entry(lane_of(job)).or_default().open = Some((job, JobSlot::Idle(begun)));
        Ok(())
    }

    /// Makes a step of a job.
    pub(super) async fn step<C: Cpu>(
        &self,
        cpu: &C,
        memory: JobMemory<'_>,
        id: (u64, u64),
        step: u32,
    ) -> Result<StepOutcome, Refusal> {
        let mut taken = self.take(id)?;
        let Some(job) = &mut taken.job else { return Err(Refusal::NoSuchJob) };
        let before = job.merge.counts();
        let is_repeated = step == job.step && !cpu.breaks(rules::STEPS_ONCE);
        let outcome = match is_repeated {
            true if step > 0 => job.reply.clone(),
            _ if step == 0 || step > job.step + 1 || step < job.step => Err(Refusal::NoSuchJob),
            _ => {
                job.reply = match &job.reply {
                    Err(refusal) => Err(*refusal), // it has failed for good
                    Ok(before) if before.done => Err(Refusal::NoSuchJob),
                    Ok(_) => job.advance(memory),
                };
                job.step = step;
                job.reply.clone()
            }
        };
        let after = job.merge.counts();
        let is_compact = job.description.index == IndexKind::Compact;
        drop(taken);
        let words = after.words_in - before.words_in + after.words_out - before.words_out;
        cpu.charge(Work::CopyBytes(words * 8)).await;
        cpu.charge(Work::MergeRecords((after.records_in - before.records_in) as u32)).await;
        if is_compact {
            cpu.charge(Work::IndexKeys((after.records_out - before.records_out) as u32)).await;
        }
        outcome
    }

    /// Takes a job for a step.
    fn take(&self, (owner, number): (u64, u64)) -> Result<TakenJob<'_>, Refusal> {
        let mut owners = lock(&self.owners);
        let lane = owners.get_mut(&owner).and_then(|owner| owner.lane(number));
        let open = lane.and_then(|lane| lane.open.as_mut());
        let (_, slot) = open.filter(|(open, _)| *open == number).ok_or(Refusal::NoSuchJob)?;
        match std::mem::replace(slot, JobSlot::Busy) {
            JobSlot::Idle(job) => {
                Ok(TakenJob { merges: self, id: (owner, number), job: Some(job) })
            }
            JobSlot::Busy => Err(Refusal::Contended),
        }
    }

    /// Puts a job back after a step, or ends it.
    fn put_back(&self, (owner, number): (u64, u64), job: Option<Box<CompactionJob>>) {
        let mut owners = lock(&self.owners);
        let lane = owners.get_mut(&owner).and_then(|owner| owner.lane(number));
        let Some(lane) = lane else { return };
        if lane.open.as_ref().is_some_and(|(open, _)| *open == number) {
            lane.open = job.map(|job| (number, JobSlot::Idle(job)));
            if lane.open.is_none() {
                lane.closed = lane.closed.max(number);
            }
        }
    }

    /// Ends the jobs of a lane up to `job`, or all of earlier epochs if it is the number before
    /// those of an epoch, and keeps them from beginning later (J3).
    pub(super) fn close(&self, (owner, job): (u64, u64)) -> Result<(), Refusal> {
        let mut owners = lock(&self.owners);
        if !owners.contains_key(&owner) && owners.len() == MAX_OWNERS {
            // Shards are never forgotten, so none of this one's requests will begin a job.
            return Ok(());
        }
        let state = owners.entry(owner).or_default();
        if ends_epoch(job) {
            let is_busy = |lane: &JobLane| matches!(&lane.open, Some((number, JobSlot::Busy)) if *number <= job);
            if state.lanes.values().any(is_busy) {
                return Err(Refusal::Contended); // its step may write
            }
            state.lanes.retain(|_, lane| {
                lane.open.take_if(|(number, _)| *number <= job);
                lane.open.is_some() || lane.closed > job
            });
            state.closed = state.closed.max(job);
            return Ok(());
        }
        let lane = state.lanes.entry(lane_of(job)).or_default();
        match &lane.open {
            Some((number, JobSlot::Busy)) if *number <= job => return Err(Refusal::Contended),
            Some((number, JobSlot::Idle(_))) if *number <= job => lane.open = None,
            _ => {}
        }
        lane.closed = lane.closed.max(job);
        Ok(())
    }
}

/// A job that a step has for itself. Dropping it puts it back; after a panic half-way through the
/// step, the job has ended.
#[derive(Debug)]
struct TakenJob<'m> {
    merges: &'m ServerCompactions,
    id: (u64, u64),
    job: Option<Box<CompactionJob>>,
}

impl Drop for TakenJob<'_> {
    fn drop(&mut self) {
        let job = self.job.take().filter(|_| !std::thread::panicking());
        self.merges.put_back(self.id, job);
    }
}

impl CompactionJob {
    fn new(description: CompactionOrder) -> Self {
        let options = CompactionOptions {
            range: description.range.clone(),
            snapshots: description.snapshots.clone(),
            below: LowerLevels::tables(description.below.clone()),
            cuts: Vec::new(),
            table_words: description.table_words,
        };
        let source = |tables: &Vec<JobSsTable>| JobSource {
            tables: tables.iter().rev().cloned().collect(),
            now: None,
        };
        Self {
            merge: Compaction::new(description.sources.len(), options),
            sources: description.sources.iter().map(source).collect(),
            builder: SsTableBuilder::new(description.first_output, 0, description.index),
            finishing: None,
            out: Vec::new(),
            written: 0,
            outputs: 0,
            extent: 0,
            step: 0,
            reply: Ok(StepOutcome { done: false, outputs: Vec::new() }),
            description,
        }
    }

    /// Merges until the step's input is used up.
    fn advance(&mut self, memory: JobMemory<'_>) -> Result<StepOutcome, Refusal> {
        let (mut fed, mut outputs) = (0, Vec::new());
        loop {
            if let Some((finishing, is_last)) = &mut self.finishing {
                let is_last = *is_last;
                let Some(meta) = finishing.step(STEP_KEYS, &mut self.out) else {
                    return Ok(StepOutcome { done: false, outputs });
                };
                if let Some(meta) = meta {
                    self.end_output(memory, meta, &mut outputs)?;
                }
                self.finishing = None;
                if is_last {
                    return Ok(StepOutcome { done: true, outputs });
                }
                continue;
            }
            let progress = self.merge.step(STEP_WORDS, &mut self.builder, &mut self.out);
            match progress.map_err(refusal_of)? {
                CompactionProgress::Spent => self.write(memory)?,
                CompactionProgress::NeedsInput(_) if fed >= STEP_WORDS => {
                    self.write(memory)?;
                    return Ok(StepOutcome { done: false, outputs });
                }
                CompactionProgress::NeedsInput(source) => {
                    fed += self.feed(memory, source, STEP_WORDS - fed)?;
                }
                progress => {
                    self.write(memory)?;
                    let id = self.description.first_output + u64::from(self.outputs) + 1;
                    let next = SsTableBuilder::new(id, 0, self.description.index);
                    let full = std::mem::replace(&mut self.builder, next);
                    let finishing = full.finishing(self.description.level);
                    self.finishing = Some((finishing, progress == CompactionProgress::Done));
                }
            }
        }
    }

    /// Gives a source its next words, at most `most`. Returns how many.
    fn feed(&mut self, memory: JobMemory<'_>, source: usize, most: u64) -> Result<u64, Refusal> {
        let input = &mut self.sources[source];
        if input.now.is_none() {
            let Some(table) = input.tables.pop() else {
                return self.merge.end(source).map(|()| 0).map_err(refusal_of);
            };
            self.merge.begin(source, table.id, &SsTableClip::default()).map_err(refusal_of)?;
            let first = table.words.start;
            input.now = Some((table, first));
        }
        let Some((table, word)) = &mut input.now else { return Ok(0) };
        let words = most.min(FEED_WORDS.into()) as u32; // J2
        let end = word.saturating_add(words).min(table.words.end);
        let words = memory.words(table, *word, end).ok_or(Refusal::NoSuchTable)?;
        *word = end;
        if end == table.words.end {
            input.now = None;
        }
        self.merge.feed(source, &words).map_err(refusal_of)?;
        Ok(words.len() as u64)
    }

    /// Writes the words of the output that are there into its extents.
    fn write(&mut self, memory: JobMemory<'_>) -> Result<(), Refusal> {
        let each = self.description.extent_words;
        let mut rest = &self.out[..];
        while !rest.is_empty() {
            let extent = self.extent + self.written / each;
            let place = self.description.extents.get(extent as usize);
            let at = *place.ok_or(Refusal::OutOfMemory)? + u64::from(self.written % each) * 8;
            let here = rest.len().min((each - self.written % each) as usize);
            let words = memory.region.slice(at, here).ok_or(Refusal::Malformed)?;
            let (now, later) = rest.split_at(here);
            words.iter().zip(now).for_each(|(word, new)| word.store(*new, Ordering::Relaxed));
            self.written += here as u32;
            rest = later;
        }
        self.out.clear();
        Ok(())
    }

    /// Writes the index of an output, and describes it.
    fn end_output(
        &mut self,
        memory: JobMemory<'_>,
        mut meta: SsTableMeta,
        outputs: &mut Vec<u64>,
    ) -> Result<(), Refusal> {
        if self.outputs == self.description.outputs {
            return Err(Refusal::OutOfMemory);
        }
        self.write(memory)?;
        let extents = self.written.div_ceil(self.description.extent_words);
        meta.extents = vec![ExtentRun { first: self.extent, count: extents }];
        meta.encode(outputs);
        self.extent += extents;
        (self.outputs, self.written) = (self.outputs + 1, 0);
        Ok(())
    }
}

fn refusal_of(error: CompactionError) -> Refusal {
    match error {
        CompactionError::Damaged(_) => Refusal::Damaged,
        _ => Refusal::OutOfMemory,
    }
}
