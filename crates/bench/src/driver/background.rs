//! Background work during a run: moving keys, adding memory servers, balancing, and writing back by
//! age.
//!
//! Each change is a task with its own endpoint. A task that moves keys runs on the compute server
//! that gives them up; the balancer runs on a separate machine. Changes and the balancer do not
//! count towards the cost of client operations. Write-back by age does.
//!
//! *Thread safety*: [`BackgroundTasks`] is shared by all threads of a run; the rest are plain
//! values.

use super::changes::{AppliedChange, PlannedChange, Reshaping, TopologyChange};
use super::moment::{ClientBarrier, DueMoment};
use super::{BenchError, BenchRun, Measurement, TaskResult, WorkAmount};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::{AtomicU64, AtomicUsize, Ordering};
use farleaf_index::{Background, IndexAdmin, IndexError, Reshape, ReshapeCost};
use std::cell::RefCell;
use std::ops::Bound;

/// Poll interval while waiting for the gate or for clients, in nanoseconds.
const POLL_INTERVAL_NS: u64 = 50_000;

/// Longest poll interval while waiting for a moment in time, in nanoseconds.
const LONG_NAP_NS: u64 = 5_000_000;

/// State that the background tasks share with the clients of a run.
pub(super) struct BackgroundTasks<'a> {
    run: &'a BenchRun,
    /// Number of operations that the first client has completed. Moments given as a share of the
    /// operations refer to this count.
    done: AtomicU64,
    amount: WorkAmount,
    at_work: AtomicUsize,
}

/// Counts a client as working until dropped.
pub(super) struct WorkingClientGuard<'a>(&'a AtomicUsize);

impl<'a> WorkingClientGuard<'a> {
    pub(super) fn new(background: &'a BackgroundTasks<'_>) -> Self {
        Self(&background.at_work)
    }
}

impl Drop for WorkingClientGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<'a> BackgroundTasks<'a> {
    pub(super) fn new(run: &'a BenchRun, clients: usize) -> Self {
        let amount = run.amount.share(0, clients);
        Self { run, done: AtomicU64::new(0), amount, at_work: AtomicUsize::new(clients) }
    }

    /// The compute server of each task's endpoint: one task per change, one for the balancer, and
    /// those that write back.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = u16> {
        let Reshaping { spare_compute_servers, balance, write_back, changes } = &self.run.reshaping;
        let balancer = self.run.compute_servers + spare_compute_servers;
        let writers = (0..balancer).flat_map(|server| (0..*write_back).map(move |_| server));
        let server_of = |planned: &PlannedChange| match planned.change {
            TopologyChange::Move { from, .. } => from,
            TopologyChange::AddMemoryServer => 0,
        };
        changes.iter().map(server_of).chain(balance.then_some(balancer)).chain(writers)
    }

    /// The counter to which this client publishes its operation count, if tasks wait for it.
    pub(super) fn clock(&self, client: usize) -> Option<&AtomicU64> {
        let by_operations = matches!(self.amount, WorkAmount::Operations(_));
        let goes_by = client == 0 && by_operations && !self.run.reshaping.changes.is_empty();
        goes_by.then_some(&self.done)
    }

    fn is_over(&self) -> bool {
        self.at_work.load(Ordering::Acquire) == 0
    }

    /// Runs the task with this number.
    pub(super) async fn run<F, I>(
        &self,
        fabric: &F,
        index: &I,
        gate: &ClientBarrier,
        task: usize,
    ) -> Result<TaskResult, BenchError>
    where
        F: Fabric,
        I: IndexAdmin<Key = u64, Value = u64>,
    {
        let Reshaping { balance, changes, .. } = &self.run.reshaping;
        match task < changes.len() + usize::from(*balance) {
            true => Ok(TaskResult::Changes(self.reshape(fabric, index, gate, task).await)),
            false => self.write_back(fabric, index, gate).await,
        }
    }

    /// Writes back, starting with the warm-up. Its cost counts from the opening of the gate
    /// (driver.B1).
    async fn write_back<F, I>(
        &self,
        fabric: &F,
        index: &I,
        gate: &ClientBarrier,
    ) -> Result<TaskResult, BenchError>
    where
        F: Fabric,
        I: IndexAdmin<Key = u64, Value = u64>,
    {
        let work = async |ended: &dyn Fn() -> bool| {
            let worked = index.background(Background::WriteBack, ended, &|_| {}).await;
            worked.map_err(BenchError::WriteBack)
        };
        work(&|| gate.opened_ns().is_some() || self.is_over()).await?;
        let (counters, cache) = (fabric.counters().snapshot(), index.cache_counters());
        work(&|| self.is_over()).await?;
        let mut cost = Measurement::new();
        cost.counters = fabric.counters().snapshot() - counters;
        cost.cache = index.cache_counters() - cache;
        Ok(TaskResult::Cost(Box::new(cost)))
    }

    /// Makes the planned change with this number, or runs the balancer.
    async fn reshape<F, I>(
        &self,
        fabric: &F,
        index: &I,
        gate: &ClientBarrier,
        task: usize,
    ) -> Vec<AppliedChange>
    where
        F: Fabric,
        I: IndexAdmin<Key = u64, Value = u64>,
    {
        let origin_ns = loop {
            match gate.opened_ns() {
                Some(opened_ns) => break opened_ns,
                None if self.is_over() => return Vec::new(),
                None => fabric.sleep(POLL_INTERVAL_NS).await,
            }
        };
        match self.run.reshaping.changes.get(task) {
            Some(planned) => self.change(fabric, index, origin_ns, *planned).await,
            None => self.balance(fabric, index, origin_ns).await,
        }
    }

    async fn balance<F, I>(&self, fabric: &F, index: &I, origin_ns: u64) -> Vec<AppliedChange>
    where
        F: Fabric,
        I: IndexAdmin<Key = u64, Value = u64>,
    {
        let made = RefCell::new(Vec::new());
        let report = |outcome: Result<ReshapeCost, IndexError>| {
            let began_ns = outcome.as_ref().map_or(fabric.now_ns(), |done| done.started_ns);
            let at_ns = began_ns.saturating_sub(origin_ns);
            made.borrow_mut().push(AppliedChange {
                at_ns,
                by_balancer: true,
                change: None,
                outcome,
            });
        };
        if let Err(error) = index.background(Background::Balance, &|| self.is_over(), &report).await
        {
            report(Err(error));
        }
        made.into_inner()
    }

    async fn change<F, I>(
        &self,
        fabric: &F,
        index: &I,
        origin_ns: u64,
        planned: PlannedChange,
    ) -> Vec<AppliedChange>
    where
        F: Fabric,
        I: IndexAdmin<Key = u64, Value = u64>,
    {
        let DueMoment { operations, ns } = planned.at.due(self.amount, origin_ns);
        loop {
            let now_ns = fabric.now_ns();
            if now_ns >= ns || self.done.load(Ordering::Acquire) >= operations {
                break;
            }
            if self.is_over() {
                return Vec::new();
            }
            let nap_ns = if operations == u64::MAX { LONG_NAP_NS } else { POLL_INTERVAL_NS };
            fabric.sleep((ns - now_ns).min(nap_ns)).await;
        }
        let began_ns = fabric.now_ns();
        let outcome = loop {
            match index.reshape(&reshape(index, planned.change)).await {
                // Another move is in progress: retry later.
                Err(IndexError::Contended { .. }) if !self.is_over() => {
                    fabric.sleep(POLL_INTERVAL_NS).await
                }
                outcome => break outcome,
            }
        };
        let at_ns = outcome.as_ref().map_or(began_ns, |done| done.started_ns);
        let at_ns = at_ns.saturating_sub(origin_ns);
        vec![AppliedChange { at_ns, by_balancer: false, change: Some(planned.change), outcome }]
    }
}

/// Translates a planned change for the index. The moving keys are at the end of the range that is
/// nearer to the receiver's range.
fn reshape<I: IndexAdmin<Key = u64>>(index: &I, change: TopologyChange) -> Reshape<u64> {
    let (from, to, part) = match change {
        TopologyChange::AddMemoryServer => return Reshape::AddMemoryServer,
        TopologyChange::Move { from, to, part } => (from, to, part),
    };
    let range = |compute_server: u16| {
        index.owned_by(compute_server).map(|(low, high)| {
            let low = match low {
                Bound::Included(low) | Bound::Excluded(low) => u128::from(low),
                Bound::Unbounded => 0,
            };
            let high = match high {
                Bound::Included(high) | Bound::Excluded(high) => u128::from(high),
                Bound::Unbounded => 1 << 64,
            };
            (low, high)
        })
    };
    let near = range(from).filter(|_| part < 1.0).map(|(low, high)| {
        let going = ((high - low) as f64 * part) as u128;
        let is_below = range(to).is_some_and(|(other, _)| other < low);
        let near = if is_below { low + going } else { high - going };
        u64::try_from(near.clamp(low, high - 1)).unwrap_or(u64::MAX)
    });
    Reshape::MoveKeys { from, to, near }
}
