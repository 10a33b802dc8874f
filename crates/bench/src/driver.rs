//! The driver: makes and loads an index on a cluster, lets clients work on it, and counts.
//!
//! Each client is a closed loop over an endpoint of its own: the next operation starts when the last one
//! has ended. Time is the fabric's, virtual in the simulator.
//!
//! *Invariants*
//! - B1. Warm-up counts nowhere: latencies and counters start at the gate that all clients pass together.
//! - B2. An operation that fails is counted as an error, with what it cost; its latency is not.
//! - B3. The new keys of one run never meet those of an earlier one on the same testbed.
//!
//! *Thread safety*: a testbed belongs to one thread; its clients run on as many as the provider likes.

use crate::keys::KeySpace;
use crate::workload::{Inserted, Operation, OperationStream, StreamConfig};
use farleaf::cache::CacheCounters;
use farleaf::index::{Design, Exchange, IndexError, RangeIndex, Scan};
use farleaf::page::Fixed8;
use farleaf::server::MemoryServer;
use farleaf::wire::Usage;
use farleaf_fabric::sync::{Arc, AtomicUsize, Ordering};
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
            };
            if let Ok(index) = &opened {
                client.work(index, run.amount.twentieth().share(number, clients)).await;
            }
            gate.pass(&fabric).await;
            let index = opened?;
            let new_keys = client.measured.inserted;
            client.measured = Measurement { inserted: new_keys, ..Measurement::new() };
            let (start_ns, before) = (fabric.now_ns(), fabric.counters().snapshot());
            let cache_before = index.cache_counters();
            client.work(&index, run.amount.share(number, clients)).await;
            let mut measured = client.measured;
            measured.counters = fabric.counters().snapshot() - before;
            measured.cache = index.cache_counters() - cache_before;
            Ok(Outcome {
                measured,
                start_ns,
                end_ns: fabric.now_ns(),
                next_number: client.stream.next_number(),
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
        let (mut start_ns, mut end_ns) = (u64::MAX, 0);
        for (client, outcome) in outcomes.into_iter().enumerate() {
            let outcome = outcome.ok_or(BenchError::ClientDied { client })??;
            start_ns = start_ns.min(outcome.start_ns);
            end_ns = end_ns.max(outcome.end_ns);
            self.next_number = self.next_number.max(outcome.next_number);
            sum.add(outcome.measured);
        }
        sum.elapsed_ns = end_ns.saturating_sub(start_ns);
        self.records += sum.inserted;
        Ok(sum)
    }
}

/// The endpoints of a provider's clusters.
type FabricOf<P> = <<P as Provider>::Cluster<MemoryServer<Fixed8>> as Cluster>::Fabric;

/// What one client brings home.
struct Outcome {
    measured: Measurement,
    start_ns: u64,
    end_ns: u64,
    next_number: u64,
}

/// Lets clients through when all have come.
struct Gate {
    clients: usize,
    arrived: AtomicUsize,
}

impl Gate {
    fn new(clients: usize) -> Self {
        Self { clients, arrived: AtomicUsize::new(0) }
    }

    async fn pass<F: Fabric>(&self, fabric: &F) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < self.clients {
            fabric.sleep(1_000).await;
        }
    }
}

/// One closed loop.
struct Client<'a, F> {
    fabric: &'a F,
    stream: OperationStream,
    measured: Measurement,
    progress: Progress<'a>,
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
            let Some(operation) = self.stream.next() else {
                // No time passes here, so this must count as an operation for the loop to end.
                let full = IndexError::InvalidArgument("the key space has no room for a new key");
                self.measured.record(Err(full), 0);
                done += 1;
                now_ns = self.fabric.now_ns();
                continue;
            };
            let begin_ns = self.fabric.now_ns();
            let result = execute(index, operation, self.stream.batch()).await;
            now_ns = self.fabric.now_ns();
            if let (Operation::Insert { .. }, Ok(true)) = (operation, &result) {
                self.stream.inserted();
                self.measured.inserted += 1;
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
