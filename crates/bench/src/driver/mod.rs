//! The driver: creates and loads an index on a cluster, runs clients on it, and measures them.
//!
//! Each client is a closed loop over its own endpoint: it starts the next operation when the
//! previous one has ended. Time is the fabric's time, which is virtual in the simulator.
//!
//! *Invariants*
//! - driver.B1. The warm-up does not count: latencies and counters start at the gate that all
//!   clients pass together.
//! - driver.B2. A failed operation counts as an error and its cost is counted, but its latency is
//!   not recorded.
//! - driver.B3. The new keys of one run never collide with those of an earlier run on the same
//!   testbed.
//! - driver.B4. The timeline contains exactly the counted operations (timeline.T1).
//!
//! *Thread safety*: a testbed belongs to one thread. Its clients run on as many threads as the
//! provider chooses.

mod background;
mod block;
mod changes;
mod client;
mod form;
mod idle;
mod measurement;
mod moment;

pub use changes::{AppliedChange, PlannedChange, Reshaping, TopologyChange};
pub use client::{execute, first_key};
pub use form::{KeyValueForm, NumberForm};
pub use measurement::Measurement;
pub use moment::{DueMoment, MeasurementMoment};

use crate::keys::KeySpace;
use crate::timeline::{Interval, Timeline, TimelineRecorder};
use crate::workload::{
    Distribution, HarnessDeviations, InsertedCounts, OperationMix, OperationStream, StreamConfig,
    WorkloadOperation,
};
use background::{BackgroundTasks, WorkingClientGuard};
use client::{ClientLoop, thread_cpu_ns};
use farleaf_fabric::AnyCluster;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{AnyFabric, Cluster, Fabric, Provider, RegionError, ServerId};
use farleaf_index::{
    AnyCompute, AnyDesign, AnyIndex, Background, IndexAdmin, IndexError, RangeIndex, ReshapeCost,
    ScanRequest,
};
use farleaf_page::{Fixed8, Layout};
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_pool::wire::Usage;
use idle::IdleIndex;
use moment::ClientBarrier;
use std::cell::{Cell, RefCell};
use thiserror::Error;

/// Why a run produced no measurement.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A memory server could not be created.
    #[error("cannot start memory server {number}: {source}")]
    MemoryServer {
        /// Its number.
        number: u16,
        /// Why.
        source: RegionError,
    },
    /// The operating system refused memory servers or clients a thread, a file descriptor or
    /// memory.
    #[error("cannot start a thread or an endpoint: {0} (see the limits ulimit -n, -u and -v)")]
    NotStarted(#[from] std::io::Error),
    /// The index could not be created.
    #[error("cannot create the index: {0}")]
    Create(IndexError),
    /// A client could not open the index.
    #[error("cannot open the index: {0}")]
    Open(IndexError),
    /// The index could not be loaded.
    #[error("cannot load the index: {0}")]
    Load(IndexError),
    /// A single read outside a measurement failed.
    #[error("cannot read the index: {0}")]
    Read(IndexError),
    /// Writing back failed.
    #[error("cannot write back: {0}")]
    WriteBack(IndexError),
    /// A client died with its compute server before it had finished.
    #[error("client {client} died with its compute server")]
    ClientDied {
        /// The client's number.
        client: usize,
    },
}

/// The amount of work in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WorkAmount {
    /// This many operations, by all clients together.
    Operations(u64),
    /// Operations for this many nanoseconds of fabric time.
    Nanoseconds(u64),
}

impl WorkAmount {
    /// A twentieth of this amount, for the warm-up.
    fn twentieth(self) -> Self {
        match self {
            Self::Operations(total) => Self::Operations(total / 20),
            Self::Nanoseconds(total) => Self::Nanoseconds(total / 20),
        }
    }

    /// One client's share. Operations are divided among the clients; time is not.
    #[must_use]
    pub fn share(self, client: usize, clients: usize) -> Self {
        match self {
            Self::Operations(total) => {
                let (each, rest) = (total / clients as u64, total % clients as u64);
                Self::Operations(each + u64::from((client as u64) < rest))
            }
            all @ Self::Nanoseconds(_) => all,
        }
    }
}

/// The clients of a run and their work.
#[derive(Clone, Debug)]
pub struct BenchRun {
    /// How clients draw their operations.
    pub stream: StreamConfig,
    /// Number of compute servers, without spare ones.
    pub compute_servers: u16,
    /// Clients per compute server, each on its own thread.
    pub threads: u16,
    /// The amount to measure. A warm-up of a twentieth of this amount precedes it.
    pub amount: WorkAmount,
    /// When and how far the popular keys shift, if they do.
    pub shift: Option<HotspotShift>,
    /// How to choose the intervals of the timeline, if one is recorded.
    pub timeline: Option<Interval>,
    /// Maximum number of single-key operations that a client passes to the index in one call, in
    /// the order of its stream. The latency of each operation is that of the call.
    pub batch: usize,
    /// Makes each client use only keys that its compute server owns, as when requests are sent to
    /// the owner. Spare compute servers then also have clients, which wait while their compute
    /// server owns no keys.
    pub own_keys: bool,
    /// Changes of the compute side while the clients run.
    pub reshaping: Reshaping,
}

impl BenchRun {
    /// The same clients with another amount of work and no changes.
    #[must_use]
    pub fn only(&self, amount: WorkAmount) -> Self {
        let spare_compute_servers = self.reshaping.spare_compute_servers;
        let write_back = self.reshaping.write_back;
        let reshaping = Reshaping { spare_compute_servers, write_back, ..Reshaping::default() };
        Self { amount, shift: None, timeline: None, reshaping, ..self.clone() }
    }
}

/// A shift of the popular keys during the measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotspotShift {
    /// When it happens.
    pub at: MeasurementMoment,
    /// How far the keys shift, as a fraction of all keys ([`OperationStream::shift_hotspot`]).
    pub by: f64,
}

/// Operations or records between two reports of progress.
const PROGRESS_EVERY: u64 = 4096;

/// Called with the number of records or operations that some client has done since its last call.
pub type ProgressCallback<'a> = &'a (dyn Fn(u64) + Sync);

/// A cluster that holds one index.
pub struct Testbed<O: KeyValueForm = NumberForm> {
    cluster: AnyCluster<MemoryServer<O::Layout>>,
    services: Vec<Arc<MemoryServer<O::Layout>>>,
    form: O,
    next_number: u64,
    /// Number of runs so far. Each run draws different operations.
    runs: u64,
    records: u64,
    compute: AnyCompute<O::Layout>,
}

/// Creates memory servers with pools of this size, for a [`Testbed`].
///
/// # Errors
/// [`BenchError::MemoryServer`].
pub fn memory_servers<L: Layout>(
    count: u16,
    pool_bytes: usize,
) -> Result<Vec<Arc<MemoryServer<L>>>, BenchError> {
    let config = MemoryServerConfig { pool_bytes, ..MemoryServerConfig::default() };
    let server = |number| {
        let server = MemoryServer::new(ServerId::new(number), &config);
        server.map(Arc::new).map_err(|source| BenchError::MemoryServer { number, source })
    };
    (0..count).map(server).collect()
}

impl Testbed {
    /// Starts the memory servers and creates an empty index of numbers on them.
    ///
    /// # Errors
    /// [`BenchError::Create`].
    pub fn start(
        provider: &impl Provider,
        services: Vec<Arc<MemoryServer<Fixed8>>>,
        design: &AnyDesign<Fixed8>,
    ) -> Result<Self, BenchError> {
        Self::start_with(provider, services, design, NumberForm)
    }
}

impl<O: KeyValueForm> Testbed<O> {
    /// Starts the memory servers and creates an empty index on them, with keys of this form.
    ///
    /// # Errors
    /// [`BenchError::Create`].
    pub fn start_with(
        provider: &impl Provider,
        services: Vec<Arc<MemoryServer<O::Layout>>>,
        design: &AnyDesign<O::Layout>,
        form: O,
    ) -> Result<Self, BenchError> {
        let cluster = AnyCluster::Other(Box::new(provider.try_start(services.clone())?));
        cluster
            .try_run_one(async |fabric| design.create(&fabric).await)?
            .map_err(BenchError::Create)?;
        let compute = design.compute().map_err(BenchError::Create)?;
        Ok(Self { cluster, services, form, next_number: 0, runs: 0, records: 0, compute })
    }

    /// Bulk loads the empty index with `keys`, with pages filled to `fill`. Returns the time it
    /// took, in nanoseconds of the fabric's time.
    ///
    /// # Errors
    /// [`BenchError::Open`] or [`BenchError::Load`].
    pub fn load(
        &mut self,
        keys: &KeySpace,
        fill: f64,
        progress: ProgressCallback<'_>,
    ) -> Result<u64, BenchError> {
        let compute = &self.compute;
        let form = &self.form;
        let load = async |fabric: AnyFabric| {
            let start_ns = fabric.now_ns();
            let index = open(fabric.clone(), compute, form).await?;
            let mut since = 0;
            let records = keys.records().inspect(|_| {
                since += 1;
                if since == PROGRESS_EVERY {
                    progress(std::mem::take(&mut since));
                }
            });
            let loaded = index.bulk_load(records, fill).await.map_err(BenchError::Load)?;
            progress(since);
            Ok::<_, BenchError>((loaded, fabric.now_ns() - start_ns))
        };
        let (loaded, elapsed_ns) = self.cluster.try_run_one(load)??;
        self.records = loaded;
        Ok(elapsed_ns)
    }

    /// Fills the empty index by the clients of `run`: they take each of its keys once, in a
    /// scattered order, and some of them again. Then lets the work that this leaves behind come to
    /// an end.
    ///
    /// # Errors
    /// Those of [`Self::measure`] and [`Self::settle`], and [`BenchError::Load`].
    pub fn fill(
        &mut self,
        run: &BenchRun,
        progress: ProgressCallback<'_>,
    ) -> Result<(), BenchError> {
        let clients = u64::from(run.compute_servers) * u64::from(run.threads);
        let keys = run.stream.keys.len();
        // With the warm-up, each client has its share of all keys, also if shares are rounded down.
        let amount = WorkAmount::Operations(keys / 21 * 20 + 21 * (clients + 1));
        let stream = StreamConfig {
            mix: OperationMix::fill(),
            distribution: Distribution::Uniform,
            harness: HarnessDeviations::default(),
            ..run.stream.clone()
        };
        let filler = BenchRun { stream, batch: 1, own_keys: false, ..run.only(amount) };
        if let Some(error) = self.measure(&filler, progress)?.first_error {
            return Err(BenchError::Load(error));
        }
        self.records = keys;
        self.settle(run.compute_servers)
    }

    /// Writes everything back, and lets flushes and merges come to an end: on each of the compute
    /// servers in turn, because each works on its own keys only.
    ///
    /// # Errors
    /// [`BenchError::Open`], [`BenchError::ClientDied`] or [`BenchError::WriteBack`].
    pub fn settle(&self, compute_servers: u16) -> Result<(), BenchError> {
        /// The index has settled once its work has not used the network for so long.
        const QUIET_NS: u64 = 50_000_000;
        let (compute, form) = (&self.compute, &self.form);
        let settle = async |fabric: AnyFabric, _| {
            let index = open(fabric.clone(), compute, form).await?;
            index.flush().await.map_err(BenchError::WriteBack)?;
            let last = Cell::new((fabric.counters().snapshot(), fabric.now_ns()));
            let failed = RefCell::new(None);
            let ended = || {
                let (counters, now_ns) = (fabric.counters().snapshot(), fabric.now_ns());
                if counters != last.get().0 {
                    last.set((counters, now_ns));
                }
                now_ns - last.get().1 > QUIET_NS || failed.borrow().is_some()
            };
            let report = |outcome: Result<ReshapeCost, IndexError>| {
                if let Err(error) = outcome {
                    failed.borrow_mut().get_or_insert(error);
                }
            };
            let worked = index.background(Background::WriteBack, &ended, &report).await;
            worked.map_err(BenchError::WriteBack)?;
            let failed = failed.borrow_mut().take();
            failed.map_or(Ok(()), |error| Err(BenchError::WriteBack(error)))
        };
        for server in 0..compute_servers {
            let client = usize::from(server);
            let outcome = self.cluster.try_run(&[server], settle)?.pop().flatten();
            outcome.ok_or(BenchError::ClientDied { client })??;
        }
        Ok(())
    }

    /// Warms up, then measures. Each call draws different operations (stream.W3 of
    /// [`OperationStream`]'s module).
    ///
    /// # Errors
    /// [`BenchError::Open`], [`BenchError::ClientDied`] or [`BenchError::WriteBack`]. Failed
    /// operations are counted instead.
    pub fn measure(
        &mut self,
        run: &BenchRun,
        progress: ProgressCallback<'_>,
    ) -> Result<Measurement, BenchError> {
        let servers = match run.own_keys {
            true => run.compute_servers + run.reshaping.spare_compute_servers,
            false => run.compute_servers,
        };
        let compute_servers: Vec<u16> = (0..servers)
            .flat_map(|compute_server| (0..run.threads).map(move |_| compute_server))
            .collect();
        let clients = compute_servers.len();
        let inserted = Arc::new(InsertedCounts::new(clients, self.next_number));
        let number_of_run = self.runs;
        self.runs += 1;
        let background = BackgroundTasks::new(run, clients);
        let gate = ClientBarrier::new(clients);
        let (compute, form) = (&self.compute, &self.form);
        let endpoints: Vec<u16> =
            compute_servers.iter().copied().chain(background.endpoints()).collect();
        let outcomes = self.cluster.try_run(&endpoints, async |fabric, number| {
            if let Some(task) = number.checked_sub(clients) {
                let opened = open(fabric.clone(), compute, form).await;
                return background.run(&fabric, &opened?, &gate, task).await;
            }
            let _at_work = WorkingClientGuard::new(&background);
            let opened = open(fabric.clone(), compute, form).await;
            let stream = OperationStream::for_run(&run.stream, number_of_run, number, &inserted);
            let mut client =
                ClientLoop::new(&fabric, stream, run, compute_servers[number], progress);
            if let Ok(index) = &opened {
                client.work(index, run.amount.twentieth().share(number, clients)).await;
            }
            let origin_ns = gate.pass(&fabric).await;
            let index = opened?;
            let new_keys = client.measured.inserted;
            client.measured = Measurement { inserted: new_keys, ..Measurement::new() };
            let (start_ns, before) = (fabric.now_ns(), fabric.counters().snapshot());
            let cache_before = index.cache_counters();
            let amount = run.amount.share(number, clients);
            client.shift = run.shift.map(|shift| (shift.at.due(amount, origin_ns), shift.by));
            let servers = run.compute_servers + run.reshaping.spare_compute_servers;
            client.recorder = run
                .timeline
                .map(|interval| TimelineRecorder::new(interval, origin_ns, servers, clients));
            client.clock = background.clock(number);
            (client.drawing_ns, client.drawing_cpu_ns) = (0, 0);
            let cpu_begin_ns = thread_cpu_ns();
            client.work(&index, amount).await;
            let cpu_ns = thread_cpu_ns() - cpu_begin_ns;
            let mut measured = client.measured;
            measured.cpu_ns = cpu_ns.saturating_sub(client.drawing_cpu_ns);
            measured.counters = fabric.counters().snapshot() - before;
            measured.cache = index.cache_counters() - cache_before;
            Ok(TaskResult::Client(Box::new(ClientOutcome {
                measured,
                origin_ns,
                start_ns,
                end_ns: fabric.now_ns(),
                drawing_ns: client.drawing_ns,
                next_number: client.stream.next_number(),
                shifted_at_ns: client.shifted_at_ns,
                recorder: client.recorder,
            })))
        });
        self.sum(outcomes?)
    }

    /// The harness's own processor time per operation of a run, in nanoseconds, measured with one
    /// client over an index that does nothing. It is part of [`Measurement::cpu_ns`].
    ///
    /// # Errors
    /// [`BenchError::NotStarted`].
    pub fn harness_cpu_ns(&self, run: &BenchRun) -> Result<f64, BenchError> {
        const OPERATIONS: u64 = 200_000;
        let (runs, next_number) = (self.runs, self.next_number);
        let spent = self.cluster.try_run_one(async |fabric| {
            let inserted = Arc::new(InsertedCounts::new(1, next_number));
            let stream = OperationStream::for_run(&run.stream, runs, 0, &inserted);
            let run = BenchRun { own_keys: false, ..run.clone() };
            let mut client = ClientLoop::new(&fabric, stream, &run, 0, &|_| ());
            let idle = AnyIndex::of(IdleIndex, fabric.clone());
            client.work(&idle, WorkAmount::Operations(OPERATIONS / 20)).await;
            client.drawing_cpu_ns = 0;
            let begin_ns = thread_cpu_ns();
            client.work(&idle, WorkAmount::Operations(OPERATIONS)).await;
            let spent_ns = (thread_cpu_ns() - begin_ns).saturating_sub(client.drawing_cpu_ns);
            spent_ns as f64 / OPERATIONS as f64
        });
        Ok(spent?)
    }

    /// Replays operations in order with a single client, without a warm-up.
    ///
    /// # Errors
    /// [`BenchError::Open`]. Failed operations are counted instead.
    pub fn replay(
        &self,
        operations: &[WorkloadOperation],
        progress: ProgressCallback<'_>,
    ) -> Result<Measurement, BenchError> {
        let (compute, form) = (&self.compute, &self.form);
        self.cluster.try_run_one(async |fabric| {
            let index = open(fabric.clone(), compute, form).await?;
            let mut measured = Measurement::new();
            let (start_ns, before) = (fabric.now_ns(), fabric.counters().snapshot());
            let cache_before = index.cache_counters();
            for operation in operations {
                let begin_ns = fabric.now_ns();
                let result = execute(&fabric, &index, *operation, &[]).await;
                measured.record(operation.is_lookup(), result, fabric.now_ns() - begin_ns);
                if measured.operations.is_multiple_of(PROGRESS_EVERY) {
                    progress(PROGRESS_EVERY);
                }
            }
            measured.elapsed_ns = fabric.now_ns() - start_ns;
            measured.counters = fabric.counters().snapshot() - before;
            measured.cache = index.cache_counters() - cache_before;
            Ok(measured)
        })?
    }

    /// Looks a key up.
    ///
    /// # Errors
    /// [`BenchError::Open`] or [`BenchError::Read`].
    pub fn get(&self, key: u64) -> Result<Option<u64>, BenchError> {
        let (compute, form) = (&self.compute, &self.form);
        self.cluster.try_run_one(async |fabric| {
            let index = open(fabric, compute, form).await?;
            index.get(&key).await.map_err(BenchError::Read)
        })?
    }

    /// Scans the index.
    ///
    /// # Errors
    /// [`BenchError::Open`] or [`BenchError::Read`].
    pub fn scan(&self, scan: &ScanRequest<u64>) -> Result<Vec<(u64, u64)>, BenchError> {
        let (compute, form) = (&self.compute, &self.form);
        self.cluster.try_run_one(async |fabric| {
            let index = open(fabric, compute, form).await?;
            index.scan(scan).await.map_err(BenchError::Read)
        })?
    }

    /// The cluster, for running other clients on it or making servers fail.
    pub fn cluster(&self) -> &AnyCluster<MemoryServer<O::Layout>> {
        &self.cluster
    }

    /// Number of records loaded, plus those inserted by runs since then.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Bytes of pages in the caches of all compute servers.
    pub fn cached_bytes(&self) -> u64 {
        self.compute.cached_bytes()
    }

    /// Bytes of the index's own memory on the compute side, excluding caches.
    pub fn local_bytes(&self) -> u64 {
        self.compute.local_bytes()
    }

    /// Memory in use on each memory server.
    pub fn usage(&self) -> Vec<Usage> {
        self.services.iter().map(|service| service.usage()).collect()
    }

    fn sum(
        &mut self,
        outcomes: Vec<Option<Result<TaskResult, BenchError>>>,
    ) -> Result<Measurement, BenchError> {
        let mut sum = Measurement::new();
        let (mut origin_ns, mut start_ns, mut end_ns) = (0, u64::MAX, 0);
        // While one client draws, others may execute, so exclude only the time that all of them
        // spend drawing.
        let mut drawing_ns = u64::MAX;
        let mut recorders = Vec::new();
        let mut shifted_at_ns: Option<u64> = None;
        for (client, outcome) in outcomes.into_iter().enumerate() {
            let outcome = match outcome.ok_or(BenchError::ClientDied { client })?? {
                TaskResult::Client(outcome) => *outcome,
                TaskResult::Changes(made) => {
                    sum.changes.extend(made);
                    continue;
                }
                TaskResult::Cost(cost) => {
                    sum.add(*cost);
                    continue;
                }
            };
            start_ns = start_ns.min(outcome.start_ns);
            end_ns = end_ns.max(outcome.end_ns);
            drawing_ns = drawing_ns.min(outcome.drawing_ns);
            origin_ns = outcome.origin_ns;
            recorders.extend(outcome.recorder);
            shifted_at_ns = shifted_at_ns.into_iter().chain(outcome.shifted_at_ns).min();
            self.next_number = self.next_number.max(outcome.next_number);
            sum.add(outcome.measured);
        }
        sum.elapsed_ns = end_ns.saturating_sub(start_ns).saturating_sub(drawing_ns);
        sum.shifted_at_ns = shifted_at_ns.map(|at_ns| at_ns.saturating_sub(origin_ns));
        sum.timeline = Timeline::of(recorders, origin_ns, end_ns);
        sum.changes.sort_by_key(|made| made.at_ns);
        if let Some(timeline) = &mut sum.timeline {
            if let Some(at_ns) = sum.shifted_at_ns {
                timeline.mark(at_ns, "hotspot shifts");
            }
            for made in &sum.changes {
                timeline.mark(made.at_ns, made.label());
            }
        }
        self.records += sum.inserted;
        Ok(sum)
    }
}

/// Opens the index, wrapped as one of numbers.
async fn open<O: KeyValueForm>(
    fabric: AnyFabric,
    compute: &AnyCompute<O::Layout>,
    form: &O,
) -> Result<AnyIndex<u64, u64>, BenchError> {
    let index = compute.open(fabric.clone()).await.map_err(BenchError::Open)?;
    Ok(form.by_number(index, fabric))
}

/// The result of one task of a run.
enum TaskResult {
    Client(Box<ClientOutcome>),
    Changes(Vec<AppliedChange>),
    /// The cost of writing back by age, which counts towards the operations' cost.
    Cost(Box<Measurement>),
}

/// The result of one client.
struct ClientOutcome {
    measured: Measurement,
    origin_ns: u64,
    start_ns: u64,
    end_ns: u64,
    drawing_ns: u64,
    next_number: u64,
    shifted_at_ns: Option<u64>,
    recorder: Option<TimelineRecorder>,
}
