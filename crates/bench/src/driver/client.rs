//! One client of a run: a closed loop over its own endpoint.
//!
//! *Thread safety*: belongs to its thread.

use super::block::OperationBlock;
use super::moment::DueMoment;
use super::{BenchRun, Measurement, PROGRESS_EVERY, ProgressCallback, WorkAmount};
use crate::timeline::TimelineRecorder;
use crate::workload::{OperationStream, WorkloadOperation};
use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{AnyFabric, Fabric, Work};
use farleaf_index::{
    AnyIndex, IndexAdmin, IndexError, LoopStep, OperationLoop, RangeIndex, perform,
};
use rustix::time::{ClockId, clock_gettime};

/// The state of one client's loop.
pub(super) struct ClientLoop<'a> {
    pub(super) fabric: &'a AnyFabric,
    pub(super) stream: OperationStream,
    pub(super) measured: Measurement,
    pub(super) progress: ProgressCallback<'a>,
    pub(super) compute_server: u16,
    /// When the hotspot should shift, and how far.
    pub(super) shift: Option<(DueMoment, f64)>,
    /// When it shifted.
    pub(super) shifted_at_ns: Option<u64>,
    /// The client's part of the timeline, if one is recorded.
    pub(super) recorder: Option<TimelineRecorder>,
    /// Where the client publishes its operation count, if background tasks wait for it.
    pub(super) clock: Option<&'a AtomicU64>,
    /// Whether to request only keys that the client's compute server owns.
    pub(super) own_keys: bool,
    /// Maximum number of single-key operations per call of the index.
    pub(super) batch: usize,
    /// Operations drawn ahead.
    pub(super) block: OperationBlock,
    /// The operations of the current call, if it executes several.
    pub(super) together: Vec<WorkloadOperation>,
    /// Time, and processor time of this thread, spent on drawing.
    pub(super) drawing_ns: u64,
    pub(super) drawing_cpu_ns: u64,
}

impl<'a> ClientLoop<'a> {
    /// Creates a client of `run` on this compute server.
    pub(super) fn new(
        fabric: &'a AnyFabric,
        stream: OperationStream,
        run: &BenchRun,
        compute_server: u16,
        progress: ProgressCallback<'a>,
    ) -> Self {
        Self {
            fabric,
            stream,
            measured: Measurement::new(),
            progress,
            compute_server,
            shift: None,
            shifted_at_ns: None,
            recorder: None,
            clock: None,
            own_keys: run.own_keys,
            batch: run.batch.max(1),
            block: OperationBlock::default(),
            together: Vec::new(),
            drawing_ns: 0,
            drawing_cpu_ns: 0,
        }
    }

    pub(super) async fn work(&mut self, index: &AnyIndex<u64, u64>, amount: WorkAmount) {
        let start_ns = self.fabric.now_ns();
        let (operations, until_ns) = match amount {
            WorkAmount::Operations(operations) => (operations, u64::MAX),
            WorkAmount::Nanoseconds(ns) => (u64::MAX, start_ns.saturating_add(ns)),
        };
        let mut done = 0;
        let mut now_ns = start_ns;
        while done < operations && now_ns < until_ns {
            if let Some((due, by)) = self.shift
                && (done >= due.operations || now_ns >= due.ns)
            {
                self.stream.shift_hotspot(by);
                self.shift = None;
                self.shifted_at_ns = Some(now_ns);
            }
            if self.own_keys && !self.owns_something(index) {
                // With a fixed number of operations, as in a warm-up, do not wait, because the
                // compute server may never own a key.
                if until_ns == u64::MAX {
                    break;
                }
                self.fabric.sleep(POLL_INTERVAL_NS).await;
                now_ns = self.fabric.now_ns();
                continue;
            }
            if self.block.is_empty() {
                self.draw(index, operations - done, done);
                now_ns = self.fabric.now_ns();
            }
            let turn = LoopTurn { done, begin_ns: now_ns, until_ns };
            let before = done;
            LoopTurn { done, begin_ns: now_ns, .. } = self.execute_some(index, turn).await;
            if before / PROGRESS_EVERY < done / PROGRESS_EVERY {
                (self.progress)(PROGRESS_EVERY);
            }
        }
        (self.progress)(done % PROGRESS_EVERY);
    }
}

impl ClientLoop<'_> {
    /// Whether the client's compute server owns any keys.
    fn owns_something(&self, index: &AnyIndex<u64, u64>) -> bool {
        index.owned_by(self.compute_server).is_some()
    }

    /// Draws the next block of at most `most` operations, after `done` have been executed.
    fn draw(&mut self, index: &AnyIndex<u64, u64>, most: u64, done: u64) {
        let (begin_ns, cpu_begin_ns) = (self.fabric.now_ns(), thread_cpu_ns());
        // A draw may depend on time, on the owners of keys, or on earlier operations.
        let shifts_by_time = self.shift.is_some_and(|(due, _)| due.ns < u64::MAX);
        let is_hasty = shifts_by_time || self.own_keys || self.stream.follows_insertions();
        let length = if is_hasty { self.batch } else { OperationBlock::length(self.batch) };
        let until_shift = self.shift.map_or(u64::MAX, |(due, _)| due.operations - done);
        let count = most.min(until_shift).min(length as u64).max(1) as usize;
        let (own_keys, me) = (self.own_keys, self.compute_server);
        self.block.fill(count, &mut self.stream, |stream| match own_keys {
            true => next_of(me, stream, index),
            false => stream.next(),
        });
        self.drawing_ns += self.fabric.now_ns() - begin_ns;
        self.drawing_cpu_ns += thread_cpu_ns() - cpu_begin_ns;
    }

    /// Executes the operations of one call of the index, or operations that are drawn, one after
    /// the other.
    async fn execute_some(&mut self, index: &AnyIndex<u64, u64>, mut turn: LoopTurn) -> LoopTurn {
        if self.batch > 1 {
            self.block.take_edits(self.batch, &mut self.together);
            if !self.together.is_empty() {
                self.execute_together(index, &mut turn).await;
                return turn;
            }
        }
        let most = if self.batch > 1 { 1 } else { u64::MAX };
        let last = turn.done.saturating_add(most);
        let mut each = DrawnOperations { client: self, index, turn, last, drawn: None };
        index.run(&mut each).await;
        each.turn
    }

    /// Executes the single-key operations in `together` by one call of the index.
    async fn execute_together(&mut self, index: &AnyIndex<u64, u64>, turn: &mut LoopTurn) {
        let together = std::mem::take(&mut self.together);
        let edits: Vec<_> = together.iter().filter_map(WorkloadOperation::edit).collect();
        for _ in &edits {
            self.fabric.charge(Work::Client).await;
        }
        let outcomes = index.execute_all(&edits).await;
        let times = (turn.begin_ns, self.fabric.now_ns());
        for (operation, outcome) in together.iter().zip(outcomes) {
            let result = outcome.map(|answer| answer.applied);
            self.ended(index, Some(operation), result, times);
        }
        turn.done += together.len() as u64;
        turn.begin_ns = times.1;
        self.together = together;
        self.publish(turn.done);
    }

    /// Tells background tasks how many operations have been executed.
    fn publish(&self, done: u64) {
        if let Some(clock) = self.clock {
            clock.store(done, Ordering::Release);
        }
    }

    /// Records an operation that ran during `times`, taken from the block or from `together`.
    #[inline]
    fn ended(
        &mut self,
        index: &AnyIndex<u64, u64>,
        drawn: Option<&WorkloadOperation>,
        result: Result<bool, IndexError>,
        (begin_ns, now_ns): (u64, u64),
    ) {
        if let (Some(WorkloadOperation::Insert { .. }), Ok(true)) = (drawn, &result) {
            self.stream.inserted();
            self.measured.inserted += 1;
        }
        if let Some(recorder) = &mut self.recorder {
            let key = drawn.and_then(|operation| first_key(operation, self.block.keys()));
            let owner = key.and_then(|key| index.compute_server_of(&key));
            recorder.record(owner.unwrap_or(self.compute_server), now_ns, result.is_err());
        }
        let is_lookup = drawn.is_some_and(WorkloadOperation::is_lookup);
        self.measured.record(is_lookup, result, now_ns - begin_ns);
    }
}

/// How far a client's loop has come.
struct LoopTurn {
    /// Operations executed.
    done: u64,
    /// When the next one begins: at the end of the previous one.
    begin_ns: u64,
    /// None begins at or after this time.
    until_ns: u64,
}

/// The operations of a block, one after the other.
struct DrawnOperations<'a, 'b> {
    client: &'a mut ClientLoop<'b>,
    index: &'a AnyIndex<u64, u64>,
    turn: LoopTurn,
    /// The number of executed operations at which to stop.
    last: u64,
    /// The operation that runs; `None` stands for an insertion into a full key space.
    drawn: Option<WorkloadOperation>,
}

impl OperationLoop<u64, u64> for DrawnOperations<'_, '_> {
    #[inline]
    fn next(&mut self) -> Option<LoopStep<'_, u64, u64>> {
        loop {
            if self.turn.done >= self.last || self.turn.begin_ns >= self.turn.until_ns {
                return None;
            }
            self.drawn = self.client.block.take()?;
            if self.drawn.is_some() {
                break;
            }
            let full = IndexError::InvalidArgument("the key space has no room for a new key");
            self.ended(Err(full));
        }
        let keys = self.client.block.keys();
        self.drawn.as_ref().map(|operation| operation.step(keys))
    }

    #[inline]
    fn ended(&mut self, outcome: Result<bool, IndexError>) {
        let times = (self.turn.begin_ns, self.client.fabric.now_ns());
        self.client.ended(self.index, self.drawn.as_ref(), outcome, times);
        self.turn.done += 1;
        self.turn.begin_ns = times.1;
        self.client.publish(self.turn.done);
    }
}

/// Draws operations until the first key of one is owned by compute server `me`, or until
/// [`MAX_DRAWN`] have been drawn.
fn next_of(
    me: u16,
    stream: &mut OperationStream,
    index: &AnyIndex<u64, u64>,
) -> Option<WorkloadOperation> {
    let mut operation = stream.next();
    for _ in 0..MAX_DRAWN {
        let drawn = operation?;
        let owner = first_key(&drawn, stream.batch()).and_then(|key| index.compute_server_of(&key));
        if owner.is_none_or(|owner| owner == me) {
            break;
        }
        operation = stream.next();
    }
    operation
}

/// The processor time that this thread has used, in nanoseconds.
pub(super) fn thread_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// Poll interval of a client while its compute server owns no keys, in nanoseconds.
const POLL_INTERVAL_NS: u64 = 20_000;

/// Limit on draws in search of an operation on an owned key. After that, the client takes any key.
const MAX_DRAWN: u32 = 1_000;

pub fn first_key(operation: &WorkloadOperation, batch: &[u64]) -> Option<u64> {
    match operation {
        WorkloadOperation::Get { key }
        | WorkloadOperation::Insert { key, .. }
        | WorkloadOperation::Update { key, .. }
        | WorkloadOperation::Upsert { key, .. }
        | WorkloadOperation::Remove { key }
        | WorkloadOperation::CompareExchange { key, .. }
        | WorkloadOperation::ReadModifyWrite { key, .. }
        | WorkloadOperation::Scan { from: key, .. }
        | WorkloadOperation::ScanInterval { from: key, .. } => Some(*key),
        WorkloadOperation::MultiGet => batch.first().copied(),
    }
}

/// Executes one operation. Returns whether it had the desired result: a record, or, for an
/// insertion, no existing record. `batch` has the keys of [`WorkloadOperation::MultiGet`].
///
/// # Errors
/// Those of the index. In a read-modify-write, only the write can be indeterminate.
#[inline]
pub async fn execute<F, I>(
    fabric: &F,
    index: &I,
    operation: WorkloadOperation,
    batch: &[u64],
) -> Result<bool, IndexError>
where
    F: Fabric,
    I: RangeIndex<Key = u64, Value = u64>,
{
    perform(fabric, index, operation.step(batch)).await
}
