//! The threads of a compute server. Each has an endpoint to the memory servers and a bounded number
//! of tasks that answer requests concurrently.
//!
//! *Thread safety*: any number of threads may use the handle; a thread's working state stays on
//! that thread.

use super::failed;
use super::front::{Asked, Queue, Queues, Reply};
use super::map_store::CatalogMap;
use crate::clock::Clock;
use crate::error::ProgramError;
use farleaf_core::cache::{CacheCounters, Dirt};
use farleaf_core::index::dex::Dex;
use farleaf_core::page::Fixed8;
use farleaf_core::partition::{ComputeServer, LoadInbox, Worker};
use farleaf_core::wire::{ClientRequest, ClientResponse, ErrorCode};
use farleaf_fabric::executor::{Driver, Executor};
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{CounterSnapshot, Fabric};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

/// Requests that one thread processes concurrently.
const TASKS: usize = 64;
/// Interval at which a thread publishes its counters.
const TELL_NS: u64 = 250_000_000;
/// Timeout for writing back the cache when a compute server ends.
const FLUSH: Duration = Duration::from_secs(60);

/// A transport between compute and memory servers: it provides endpoints and their drivers.
pub(super) trait Transport: Send + Sync + 'static {
    type Fabric: Fabric;
    type Driver: Driver;

    /// The driver of the calling thread's endpoints.
    fn driver(&self) -> Result<Self::Driver, String>;

    /// Opens a compute server's endpoint on the driver's thread.
    fn open(
        driver: &Self::Driver,
        compute_server: u16,
        number: usize,
    ) -> Result<Self::Fabric, String>;
}

/// Answered requests, by kind.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) lookups: AtomicU64,
    pub(super) changes: AtomicU64,
    pub(super) scans: AtomicU64,
    pub(super) others: AtomicU64,
    pub(super) refusals: AtomicU64,
}

impl Tally {
    fn count(&self, ask: &ClientRequest<Fixed8>) {
        use farleaf_core::page::Action;
        let (counter, count) = match ask {
            ClientRequest::Edit(edit) if edit.action == Action::Get => (&self.lookups, 1),
            ClientRequest::Edit(_) => (&self.changes, 1),
            ClientRequest::UpsertAll { records } => (&self.changes, records.len() as u64),
            ClientRequest::Scan { .. } => (&self.scans, 1),
            _ => (&self.others, 1),
        };
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// Counters of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) fabric: CounterSnapshot,
    pub(super) cache: CacheCounters,
}

/// State that all threads of one serving share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) server: Arc<ComputeServer<Dex, Fixed8>>,
    pub(super) queues: Arc<Queues>,
    pub(super) tally: Arc<Tally>,
    pub(super) done: Vec<Mutex<Done>>,
    clock: Clock,
    /// The endpoints' clock at the time when `clock` started.
    origin_ns: AtomicU64,
}

impl Shared {
    /// Changes that are not written back to the memory servers yet.
    pub(super) fn dirt(&self) -> Dirt {
        let now_ns = self.origin_ns.load(Ordering::Acquire) + self.clock.now_ns();
        self.server.state().cache().dirt(now_ns)
    }
}

/// The serving threads.
#[derive(Debug)]
pub(super) struct Threads {
    pub(super) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts `count` threads over `transport`; they serve once all of them have opened the index.
    pub(super) fn start<T: Transport>(
        server: Arc<ComputeServer<Dex, Fixed8>>,
        transport: &Arc<T>,
        store: &CatalogMap,
        count: usize,
        tally: Arc<Tally>,
    ) -> Result<Self, ProgramError> {
        let count = count.max(1);
        let shared = Arc::new(Shared {
            server,
            queues: Arc::new(Queues::new(count)),
            tally,
            done: (0..count).map(|_| Mutex::default()).collect(),
            clock: Clock::start(),
            origin_ns: AtomicU64::new(0),
        });
        let (opened, openings) = channel();
        let mut threads = Vec::new();
        for number in 0..count {
            let (shared, transport, opened) =
                (Arc::clone(&shared), Arc::clone(transport), opened.clone());
            let store = store.clone();
            let run = move || {
                run_thread(&*transport, &shared, store, number, |outcome| {
                    let _ = opened.send(outcome);
                })
            };
            let name = format!("compute-{number}");
            let thread = std::thread::Builder::new().name(name).spawn(run);
            threads.push(thread.map_err(ProgramError::system("a thread"))?);
        }
        drop(opened);
        let this = Self { shared, threads };
        for _ in 0..count {
            match openings.recv() {
                Ok(Ok(())) => {}
                Ok(Err(why)) => {
                    this.stop();
                    return failed(format!("cannot open the index: {why}"));
                }
                Err(_) => return failed("a thread ended while it was opening the index"),
            }
        }
        Ok(this)
    }

    /// Stops serving, and writes all changes back to the memory servers.
    pub(super) fn flush(&self) -> Result<(), ErrorCode> {
        let (sender, receiver) = channel();
        let reply = Reply::Local(sender);
        self.shared.queues.threads[0].push(Asked::new(ClientRequest::Halt, reply));
        match receiver.recv_timeout(FLUSH) {
            Ok(ClientResponse::Done) => Ok(()),
            Ok(ClientResponse::Error(code)) => Err(code),
            Ok(_) | Err(_) => Err(ErrorCode::Indeterminate),
        }
    }

    /// Whether all threads run: before `stop`, a thread ends only by a panic.
    pub(super) fn are_alive(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Ends the threads; waiting requests are answered as unavailable.
    pub(super) fn stop(self) {
        self.shared.queues.close();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Closes a thread's queues when the thread ends, also by a panic, so that no request waits for it.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.queues.close();
    }
}

fn run_thread<T: Transport>(
    transport: &T,
    shared: &Shared,
    store: CatalogMap,
    number: usize,
    opened: impl FnOnce(Result<(), String>),
) {
    let open = || -> Result<(T::Driver, T::Fabric), String> {
        let driver = transport.driver()?;
        let fabric = T::open(&driver, shared.server.number(), number)?;
        Ok((driver, fabric))
    };
    let (driver, fabric) = match open() {
        Ok(endpoint) => endpoint,
        Err(error) => return opened(Err(error)),
    };
    let slot = Rc::new(RefCell::new(None));
    let mut executor = Executor::new();
    let result = Rc::clone(&slot);
    let server = &shared.server;
    executor.spawn(0, async move {
        *result.borrow_mut() = Some(Worker::open(server, fabric, Rc::new(store)).await);
    });
    executor.run(&driver);
    let worker = match slot.take() {
        Some(Ok(worker)) => worker,
        Some(Err(error)) => return opened(Err(error.to_string())),
        None => return opened(Err("no memory server answers".to_owned())),
    };
    if number == 0 {
        let origin_ns = worker.fabric().now_ns().saturating_sub(shared.clock.now_ns());
        shared.origin_ns.store(origin_ns, Ordering::Release);
    }
    opened(Ok(()));
    let _closing = Closing(shared);
    let queue = &shared.queues.threads[number];
    let (loads, ended) = (Loads(&shared.queues.loads), || queue.is_closed());
    let mut executor = Executor::new();
    for _ in 0..TASKS {
        executor.spawn(0, answer_all(&worker, queue, &shared.tally));
    }
    if number == 0 {
        executor.spawn(
            0,
            worker.serve_loads(&loads, |error| {
                tracing::warn!("a bulk load failed: {error}");
            }),
        );
        executor.spawn(0, worker.watch_memory_servers(&ended));
        executor.spawn(0, worker.follow_map(&ended));
    }
    executor.spawn(0, worker.write_back_by_age(&ended));
    executor.spawn(0, tell(&worker, queue, &shared.done[number]));
    executor.run(&driver);
}

async fn answer_all<F: Fabric>(worker: &Worker<Dex, F, Fixed8>, queue: &Queue, tally: &Tally) {
    while let Some(asked) = queue.next().await {
        if asked.is_too_old() {
            tally.refusals.fetch_add(1, Ordering::Relaxed);
            asked.unavailable();
            continue;
        }
        let Asked { ask, reply, .. } = asked;
        tally.count(&ask);
        let told = worker.answer(ask).await;
        if matches!(told, ClientResponse::Error(_) | ClientResponse::NotOwner { .. }) {
            tally.refusals.fetch_add(1, Ordering::Relaxed);
        }
        reply.send(told);
    }
}

/// Publishes the thread's counters periodically until its queue is closed.
async fn tell<F: Fabric>(worker: &Worker<Dex, F, Fixed8>, queue: &Queue, done: &Mutex<Done>) {
    while !queue.is_closed() {
        let fabric = worker.fabric().counters().snapshot();
        *lock(done) = Done { fabric, cache: worker.cache_counters() };
        worker.fabric().sleep(TELL_NS).await;
    }
}

/// The requests of bulk loads.
struct Loads<'a>(&'a Queue);

impl LoadInbox<Fixed8> for Loads<'_> {
    type Reply = Box<dyn FnOnce(ClientResponse<Fixed8>)>;

    async fn next(&self) -> Option<(ClientRequest<Fixed8>, Self::Reply)> {
        let Asked { ask, reply, .. } = self.0.next().await?;
        Some((ask, Box::new(|told| reply.send(told))))
    }
}
