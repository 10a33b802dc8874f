//! The driver: makes and loads an index on a cluster, lets clients work on it, and counts.
//!
//! Each client is a closed loop over an endpoint of its own: the next operation starts when the last one
//! has ended. Time is the fabric's, virtual in the simulator.
//!
//! *Invariants*
//! - B1. Warm-up counts nowhere: latencies and counters start at the gate that all clients pass together.
//! - B2. An operation that fails is counted as an error, with what it cost; its latency is not.
//! - B3. The new keys of one run never meet those of an earlier one on the same testbed.
//! - B4. The timeline has every operation that is counted, and no other (T1).
//!
//! *Thread safety*: a testbed belongs to one thread; its clients run on as many as the provider likes.

use crate::keys::KeySpace;
use crate::timeline::{Interval, Recorder, Timeline};
use crate::workload::{Inserted, Operation, OperationStream, StreamConfig};
use farleaf::cache::CacheCounters;
use farleaf::index::{Design, Exchange, IndexError, RangeIndex, Scan};
use farleaf::page::Fixed8;
use farleaf::server::MemoryServer;
use farleaf::wire::Usage;
use farleaf_fabric::sync::{Arc, AtomicU64, AtomicUsize, Ordering};
use farleaf_fabric::{Cluster, CounterSnapshot, Fabric, Provider};
use hdrhistogram::Histogram;
use std::ops::Bound;
use thiserror::Error;

/// Why there is nothing to report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The index could not be made.
    #[error("cannot create the index: {0}")]
    Create(IndexError),
    /// A client could not open the index.
    #[error("cannot open the index: {0}")]
    Open(IndexError),
    /// The index could not be loaded.
    #[error("cannot load the index: {0}")]
    Load(IndexError),
    /// A single operation outside a measurement failed.
    #[error("cannot read the index: {0}")]
    Read(IndexError),
    /// A client ended before its work, with its compute server.
    #[error("client {client} died with its compute server")]
    ClientDied {
        /// Its number.
        client: usize,
    },
}

/// How much work a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// So many operations, of all clients together.
    Operations(u64),
    /// As many as go into so many nanoseconds of the fabric's time.
    Nanoseconds(u64),
}

impl Amount {
    /// A twentieth of it, for the warm-up.
    fn twentieth(self) -> Self {
        match self {
            Self::Operations(total) => Self::Operations(total / 20),
            Self::Nanoseconds(total) => Self::Nanoseconds(total / 20),
        }
    }

    /// One client's part.
    fn share(self, client: usize, clients: usize) -> Self {
        match self {
            Self::Operations(total) => {
                let (each, rest) = (total / clients as u64, total % clients as u64);
                Self::Operations(each + u64::from((client as u64) < rest))
            }
            all @ Self::Nanoseconds(_) => all,
        }
    }
}

/// Clients and their work.
#[derive(Clone, Debug)]
pub struct Run {
    /// The operations.
    pub stream: StreamConfig,
    /// How many compute servers there are.
    pub compute_servers: u16,
    /// How many clients each has, one a thread.
    pub threads: u16,
    /// How much there is to do, after a warm-up of a twentieth of it.
    pub amount: Amount,
    /// From when on other keys are popular.
    pub shift: Option<HotspotShift>,
    /// Whether to count over time, and in which intervals.
    pub timeline: Option<Interval>,
}

/// A change of the popular keys during the measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotspotShift {
    /// When.
    pub at: Moment,
    /// How far, as a share of the keys ([`OperationStream::shift_hotspot`]).
    pub by: f64,
}

/// A moment of the measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// When so much of the run's amount is done, from 0 to 1: of its time, or of each client's operations.
    Share(f64),
    /// After so many nanoseconds of the fabric's time.
    Nanoseconds(u64),
}

/// A moment as a client's loop sees it: the first of both.
#[derive(Clone, Copy, Debug)]
struct Due {
    operations: u64,
    ns: u64,
}

impl Moment {
    /// For a client that has so much to do from `start_ns` on.
    fn due(self, amount: Amount, start_ns: u64) -> Due {
        let never = Due { operations: u64::MAX, ns: u64::MAX };
        let at = |after_ns: u64| Due { ns: start_ns.saturating_add(after_ns), ..never };
        match (self, amount) {
            (Self::Nanoseconds(ns), _) => at(ns),
            (Self::Share(share), Amount::Nanoseconds(ns)) => at((ns as f64 * share) as u64),
            (Self::Share(share), Amount::Operations(operations)) => {
                Due { operations: (operations as f64 * share) as u64, ..never }
            }
        }
    }
}

/// What clients did and what it cost.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Operations, failed ones included.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that found no record, or for an insertion one that was there already.
    pub misses: u64,
    /// New keys that were inserted, by the warm-up too.
    pub inserted: u64,
    /// From the first client's start to the last one's end, in nanoseconds.
    pub elapsed_ns: u64,
    /// The latencies of the operations that did not fail, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// What all endpoints did together.
    pub counters: CounterSnapshot,
    /// What the caches did.
    pub cache: CacheCounters,
    /// The first error of the first client that had any.
    pub first_error: Option<IndexError>,
    /// When the first client's hotspot shifted, in nanoseconds from the start; none if no client's did.
    pub shifted_at_ns: Option<u64>,
    /// What was done over time, if the run asks for it.
    pub timeline: Option<Timeline>,
}

impl Measurement {
    fn new() -> Self {
        Self {
            operations: 0,
            errors: 0,
            misses: 0,
            inserted: 0,
            elapsed_ns: 0,
            latency_ns: Histogram::new_with_max(LONGEST_LATENCY_NS, 3).expect("valid bounds"),
            counters: CounterSnapshot::default(),
            cache: CacheCounters::default(),
            first_error: None,
            shifted_at_ns: None,
            timeline: None,
        }
    }

    #[inline]
    fn record(&mut self, result: Result<bool, IndexError>, latency_ns: u64) {
        self.operations += 1;
        match result {
            Ok(found) => {
                self.misses += u64::from(!found);
                self.latency_ns.saturating_record(latency_ns);
            }
            Err(error) => self.record_error(error),
        }
    }

    #[cold]
    fn record_error(&mut self, error: IndexError) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }

    fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.errors += other.errors;
        self.misses += other.misses;
        self.inserted += other.inserted;
        self.latency_ns.add(other.latency_ns).expect("equal bounds");
        self.counters += other.counters;
        self.cache += other.cache;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// Longer ones count as this: an hour.
const LONGEST_LATENCY_NS: u64 = 3_600_000_000_000;

/// After how many operations a client reports progress.
const PROGRESS_EVERY: u64 = 4096;

/// Is told how many more records or operations are done, by any client.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);

/// A cluster that holds one index.
pub struct Testbed<D: Design<Fixed8>, P: Provider> {
    cluster: P::Cluster<MemoryServer<Fixed8>>,
    services: Vec<Arc<MemoryServer<Fixed8>>>,
    next_number: u64,
    records: u64,
    compute: D::Compute,
}

impl<D: Design<Fixed8>, P: Provider> std::fmt::Debug for Testbed<D, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Testbed").field("design", &D::NAME).finish_non_exhaustive()
    }
}

impl<D: Design<Fixed8>, P: Provider> Testbed<D, P> {
    /// Starts the memory servers and makes an empty index on them.
    ///
    /// # Errors
    /// [`BenchError::Create`].
    pub fn start(
        provider: &P,
        services: Vec<Arc<MemoryServer<Fixed8>>>,
        options: &D::Options,
    ) -> Result<Self, BenchError> {
        let cluster = provider.start(services.clone());
        cluster
            .run_one(|fabric| async move { D::create(&fabric, options).await })
            .map_err(BenchError::Create)?;
        let compute = D::compute(options).map_err(BenchError::Create)?;
        Ok(Self { cluster, services, next_number: 0, records: 0, compute })
    }

    /// Loads the empty index with `keys`, pages filled to `fill`; returns how long that took, in
    /// nanoseconds of the fabric's time.
    ///
    /// # Errors
    /// [`BenchError::Open`] or [`BenchError::Load`].
    pub fn load(
        &mut self,
        keys: &KeySpace,
        fill: f64,
        progress: Progress<'_>,
    ) -> Result<u64, BenchError> {
        let compute = &self.compute;
        let load = async |fabric: FabricOf<P>| {
            let start_ns = fabric.now_ns();
            let index = D::open(fabric.clone(), compute).await.map_err(BenchError::Open)?;
            let mut since = 0;
            let records = keys.records().inspect(|_| {
                since += 1;
                if since == PROGRESS_EVERY {
                    progress(std::mem::take(&mut since));
                }
            });
            let loaded = index.bulk_load(records, fill).await.map_err(BenchError::Load)?;
            progress(since);
            Ok((loaded, fabric.now_ns() - start_ns))
        };
        let (loaded, elapsed_ns) = self.cluster.run_one(load)?;
        self.records = loaded;
        Ok(elapsed_ns)
    }

    /// Warms up, then measures.
    ///
    /// # Errors
    /// [`BenchError::Open`] or [`BenchError::ClientDied`]. Operations that fail are counted.
    pub fn measure(
        &mut self,
        run: &Run,
        progress: Progress<'_>,
    ) -> Result<Measurement, BenchError> {
        let compute_servers: Vec<u16> = (0..run.compute_servers)
            .flat_map(|compute_server| (0..run.threads).map(move |_| compute_server))
            .collect();
        let clients = compute_servers.len();
        let inserted = Arc::new(Inserted::new(clients, self.next_number));
        let gate = Gate::new(clients);
        let compute = &self.compute;
        let outcomes = self.cluster.run(&compute_servers, async |fabric, number| {
            let opened = D::open(fabric.clone(), compute).await.map_err(BenchError::Open);
            let mut client = Client {
                fabric: &fabric,
                stream: OperationStream::new(&run.stream, number, &inserted),
                measured: Measurement::new(),
                progress,
                compute_server: compute_servers[number],
                shift: None,
                shifted_at_ns: None,
                recorder: None,
            };
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
            client.recorder = run
                .timeline
                .map(|interval| Recorder::new(interval, origin_ns, run.compute_servers, clients));
            client.work(&index, amount).await;
            let mut measured = client.measured;
            measured.counters = fabric.counters().snapshot() - before;
            measured.cache = index.cache_counters() - cache_before;
            Ok(Outcome {
                measured,
                origin_ns,
                start_ns,
                end_ns: fabric.now_ns(),
                next_number: client.stream.next_number(),
                shifted_at_ns: client.shifted_at_ns,
                recorder: client.recorder,
            })
        });
        self.sum(outcomes)
    }

    /// Replays operations in their order, by one client, without a warm-up.
    ///
    /// # Errors
    /// [`BenchError::Open`]. Operations that fail are counted.
    pub fn replay(
        &self,
        operations: &[Operation],
        progress: Progress<'_>,
    ) -> Result<Measurement, BenchError> {
        let compute = &self.compute;
        self.cluster.run_one(async |fabric| {
            let index = D::open(fabric.clone(), compute).await.map_err(BenchError::Open)?;
            let mut measured = Measurement::new();
            let (start_ns, before) = (fabric.now_ns(), fabric.counters().snapshot());
            for operation in operations {
                let begin_ns = fabric.now_ns();
                let result = execute(&index, *operation, &[]).await;
                measured.record(result, fabric.now_ns() - begin_ns);
                if measured.operations.is_multiple_of(PROGRESS_EVERY) {
                    progress(PROGRESS_EVERY);
                }
            }
            measured.elapsed_ns = fabric.now_ns() - start_ns;
            measured.counters = fabric.counters().snapshot() - before;
            measured.cache = index.cache_counters();
            Ok(measured)
        })
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`BenchError::Open`] or [`BenchError::Read`].
    pub fn get(&self, key: u64) -> Result<Option<u64>, BenchError> {
        let compute = &self.compute;
        self.cluster.run_one(async |fabric| {
            let index = D::open(fabric, compute).await.map_err(BenchError::Open)?;
            index.get(&key).await.map_err(BenchError::Read)
        })
    }

    /// The records that `scan` asks for.
    ///
    /// # Errors
    /// [`BenchError::Open`] or [`BenchError::Read`].
    pub fn scan(&self, scan: &Scan<u64>) -> Result<Vec<(u64, u64)>, BenchError> {
        let compute = &self.compute;
        self.cluster.run_one(async |fabric| {
            let index = D::open(fabric, compute).await.map_err(BenchError::Open)?;
            index.scan(scan).await.map_err(BenchError::Read)
        })
    }

    /// The cluster, to run other clients on it or to make servers fail.
    pub fn cluster(&self) -> &P::Cluster<MemoryServer<Fixed8>> {
        &self.cluster
    }

    /// How many records were loaded, and inserted by runs since.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Bytes of pages in the caches of all compute servers.
    pub fn cached_bytes(&self) -> u64 {
        D::cached_bytes(&self.compute)
    }

    /// Bytes of the index's own memory on the compute side, caches apart.
    pub fn local_bytes(&self) -> u64 {
        D::local_bytes(&self.compute)
    }

    /// How much memory is used on each memory server.
    pub fn usage(&self) -> Vec<Usage> {
        self.services.iter().map(|service| service.usage()).collect()
    }

    fn sum(
        &mut self,
        outcomes: Vec<Option<Result<Outcome, BenchError>>>,
    ) -> Result<Measurement, BenchError> {
        let mut sum = Measurement::new();
        let (mut origin_ns, mut start_ns, mut end_ns) = (0, u64::MAX, 0);
        let mut recorders = Vec::new();
        let mut shifted_at_ns: Option<u64> = None;
        for (client, outcome) in outcomes.into_iter().enumerate() {
            let outcome = outcome.ok_or(BenchError::ClientDied { client })??;
            start_ns = start_ns.min(outcome.start_ns);
            end_ns = end_ns.max(outcome.end_ns);
            origin_ns = outcome.origin_ns;
            recorders.extend(outcome.recorder);
            shifted_at_ns = shifted_at_ns.into_iter().chain(outcome.shifted_at_ns).min();
            self.next_number = self.next_number.max(outcome.next_number);
            sum.add(outcome.measured);
        }
        sum.elapsed_ns = end_ns.saturating_sub(start_ns);
        sum.shifted_at_ns = shifted_at_ns.map(|at_ns| at_ns.saturating_sub(origin_ns));
        sum.timeline = Timeline::of(recorders, origin_ns, end_ns);
        if let (Some(timeline), Some(at_ns)) = (&mut sum.timeline, sum.shifted_at_ns) {
            timeline.mark(at_ns, "hotspot shifts");
        }
        self.records += sum.inserted;
        Ok(sum)
    }
}

/// The endpoints of a provider's clusters.
type FabricOf<P> = <<P as Provider>::Cluster<MemoryServer<Fixed8>> as Cluster>::Fabric;

/// What one client brings home.
struct Outcome {
    measured: Measurement,
    origin_ns: u64,
    start_ns: u64,
    end_ns: u64,
    next_number: u64,
    shifted_at_ns: Option<u64>,
    recorder: Option<Recorder>,
}

/// Lets clients through when all have come.
struct Gate {
    clients: usize,
    arrived: AtomicUsize,
    /// When the first client went through.
    opened_ns: AtomicU64,
}

/// The gate is shut.
const NOT_YET: u64 = u64::MAX;

impl Gate {
    fn new(clients: usize) -> Self {
        Self { clients, arrived: AtomicUsize::new(0), opened_ns: AtomicU64::new(NOT_YET) }
    }

    /// Returns one and the same time to all: when the first client went through.
    async fn pass<F: Fabric>(&self, fabric: &F) -> u64 {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < self.clients {
            fabric.sleep(1_000).await;
        }
        let now_ns = fabric.now_ns();
        let opened =
            self.opened_ns.compare_exchange(NOT_YET, now_ns, Ordering::AcqRel, Ordering::Acquire);
        opened.err().unwrap_or(now_ns)
    }
}

/// One closed loop.
struct Client<'a, F> {
    fabric: &'a F,
    stream: OperationStream,
    measured: Measurement,
    progress: Progress<'a>,
    compute_server: u16,
    /// When the hotspot will shift, and how far.
    shift: Option<(Due, f64)>,
    /// When it has.
    shifted_at_ns: Option<u64>,
    /// Counts over time, if that was asked for.
    recorder: Option<Recorder>,
}

impl<F: Fabric> Client<'_, F> {
    async fn work<I>(&mut self, index: &I, amount: Amount)
    where
        I: RangeIndex<Key = u64, Value = u64>,
    {
        let start_ns = self.fabric.now_ns();
        let (operations, until_ns) = match amount {
            Amount::Operations(operations) => (operations, u64::MAX),
            Amount::Nanoseconds(ns) => (u64::MAX, start_ns.saturating_add(ns)),
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
            let Some(operation) = self.stream.next() else {
                // No time passes here, so this must count as an operation for the loop to end.
                let full = IndexError::InvalidArgument("the key space has no room for a new key");
                self.measured.record(Err(full), 0);
                done += 1;
                now_ns = self.fabric.now_ns();
                if let Some(recorder) = &mut self.recorder {
                    recorder.record(self.compute_server, now_ns, true);
                }
                continue;
            };
            let begin_ns = self.fabric.now_ns();
            let result = execute(index, operation, self.stream.batch()).await;
            now_ns = self.fabric.now_ns();
            if let (Operation::Insert { .. }, Ok(true)) = (operation, &result) {
                self.stream.inserted();
                self.measured.inserted += 1;
            }
            if let Some(recorder) = &mut self.recorder {
                let owner = first_key(&operation, self.stream.batch())
                    .and_then(|key| index.compute_server_of(&key))
                    .unwrap_or(self.compute_server);
                recorder.record(owner, now_ns, result.is_err());
            }
            self.measured.record(result, now_ns - begin_ns);
            done += 1;
            if done.is_multiple_of(PROGRESS_EVERY) {
                (self.progress)(PROGRESS_EVERY);
            }
        }
        (self.progress)(done % PROGRESS_EVERY);
    }
}

/// The key that an operation begins with.
fn first_key(operation: &Operation, batch: &[u64]) -> Option<u64> {
    match operation {
        Operation::Get { key }
        | Operation::Insert { key, .. }
        | Operation::Update { key, .. }
        | Operation::Upsert { key, .. }
        | Operation::Remove { key }
        | Operation::CompareExchange { key, .. }
        | Operation::ReadModifyWrite { key, .. }
        | Operation::Scan { from: key, .. } => Some(*key),
        Operation::MultiGet => batch.first().copied(),
    }
}

/// Does one operation; says whether it found what it wanted: a record, or for an insertion none.
/// `batch` has the keys of [`Operation::MultiGet`].
///
/// # Errors
/// Those of the index. Of a read-modify-write only the write can be indeterminate.
#[inline]
pub async fn execute<I>(index: &I, operation: Operation, batch: &[u64]) -> Result<bool, IndexError>
where
    I: RangeIndex<Key = u64, Value = u64>,
{
    Ok(match operation {
        Operation::Get { key } => index.get(&key).await?.is_some(),
        Operation::Insert { key, value } => index.insert(&key, &value).await?,
        Operation::Update { key, value } => index.update(&key, &value).await?,
        Operation::Upsert { key, value } => {
            index.upsert(&key, &value).await?;
            true
        }
        Operation::Remove { key } => index.remove(&key).await?,
        Operation::CompareExchange { key, expected, new } => {
            index.compare_exchange(&key, &expected, &new).await? == Exchange::Exchanged
        }
        Operation::ReadModifyWrite { key, value } => {
            index.get(&key).await?.is_some() && index.update(&key, &value).await?
        }
        Operation::Scan { from, limit, reverse } => {
            !index.scan(&scan_from(from, limit, reverse)).await?.is_empty()
        }
        Operation::MultiGet => index.multi_get(batch).await?.iter().all(Option::is_some),
    })
}

/// The scan of at most `limit` records from a key on, upwards or downwards.
pub fn scan_from(from: u64, limit: u32, reverse: bool) -> Scan<u64> {
    let (lower, upper) = match reverse {
        false => (Bound::Included(from), Bound::Unbounded),
        true => (Bound::Unbounded, Bound::Included(from)),
    };
    Scan { lower, upper, reverse, limit: limit as usize }
}
