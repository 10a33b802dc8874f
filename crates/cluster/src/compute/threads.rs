//! The threads of a compute server. Each has its share of the clients' connections, an endpoint to
//! the memory servers, and a bounded number of tasks that answer requests concurrently. The thread
//! that receives a request executes it; only bulk loads go to the first thread.
//!
//! The [`WorkerThreads`] lives as long as the program, because its threads have the connections.
//! While a generation of the index is served, [`GenerationThreads`] is the work that they do for
//! it.
//!
//! *Thread safety*: any number of threads may use the handles; a thread's working state stays on
//! that thread.

use super::design::{ClusterDesign, SharedValues};
use super::front::{ComputeRequestHandler, GenerationQueues, ReplyHandle};
use super::map_store::CatalogMap;
use super::reach::MemoryCluster;
use super::takeover::TakeoverThread;
use super::{because, failed};
use crate::clock::MonotonicClock;
use crate::error::ProgramError;
use crate::layouts::ClusterLayout;
use farleaf_dex::cache::DirtyStats;
use farleaf_fabric::AnyFabric;
use farleaf_fabric::any::AnyTransport;
use farleaf_fabric::endpoint::{EndpointCluster, EndpointDriver};
use farleaf_fabric::executor::{Driver, Executor};
use farleaf_fabric::handshake::Token;
use farleaf_fabric::listener::start_thread;
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::tcp::{Hosting, ServerThread, TcpServer, TcpServerConfig};
use farleaf_fabric::{CounterSnapshot, Fabric};
use farleaf_index::CacheCounters;
use farleaf_index::partition::{ComputeServer, ServedClients, ThreadQueue, Worker};
use farleaf_page::Layout;
use farleaf_pool::wire::{ClientRequest, ClientResponse, ErrorCode, NO_LOAD};
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of tasks of one thread that answer requests concurrently.
const TASKS: usize = 64;
/// Interval at which a thread publishes its counters.
const TELL_NS: u64 = 250_000_000;
/// Timeout for writing back the cache when a compute server ends.
const FLUSH: Duration = Duration::from_secs(60);
/// Pause before retrying to queue that request.
const FLUSH_AGAIN: Duration = Duration::from_millis(5);

/// Answered requests, by kind.
#[derive(Debug, Default)]
pub(super) struct RequestTally {
    pub(super) lookups: AtomicU64,
    pub(super) changes: AtomicU64,
    pub(super) scans: AtomicU64,
    pub(super) others: AtomicU64,
    pub(super) refusals: AtomicU64,
}

impl RequestTally {
    fn count<L: Layout>(&self, ask: &ClientRequest<L>) {
        use farleaf_page::EditAction;
        let (counter, count) = match ask {
            ClientRequest::Edit(edit) if edit.action == EditAction::Get => (&self.lookups, 1),
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
pub(super) struct ThreadCounters {
    pub(super) fabric: CounterSnapshot,
    pub(super) cache: CacheCounters,
}

/// State that all threads share while one generation is served.
pub(super) struct GenerationShared<L: ClusterLayout, D: ClusterDesign<L>> {
    pub(super) server: Arc<ComputeServer<D, L>>,
    pub(super) values: SharedValues<L, D>,
    pub(super) queues: Arc<GenerationQueues<L>>,
    pub(super) tally: Arc<RequestTally>,
    pub(super) done: Vec<Mutex<ThreadCounters>>,
    clock: MonotonicClock,
    /// The endpoints' clock at the time when `clock` started.
    origin_ns: AtomicU64,
    /// Where keys of dead compute servers are taken over.
    takeovers: Option<TakeoverThread<L>>,
}

impl<L: ClusterLayout, D: ClusterDesign<L>> GenerationShared<L, D> {
    /// Changes that are not written back to the memory servers yet.
    pub(super) fn dirt(&self) -> DirtyStats {
        let now_ns = self.origin_ns.load(Ordering::Acquire) + self.clock.now_ns();
        D::dirt(self.server.state(), now_ns)
    }
}

/// Work for a thread of the crew, which ends when its queues are closed.
type WorkerJob<L> = Box<dyn FnOnce(&mut ServerThread<ComputeRequestHandler<L>>) + Send>;

/// One thread of the crew.
#[derive(Debug)]
struct WorkerThread<L: ClusterLayout> {
    jobs: Sender<WorkerJob<L>>,
    thread: JoinHandle<()>,
}

/// The threads with the clients' connections.
pub(super) struct WorkerThreads<L: ClusterLayout> {
    server: Arc<TcpServer>,
    front: Arc<ComputeRequestHandler<L>>,
    hands: Vec<WorkerThread<L>>,
}

impl<L: ClusterLayout> WorkerThreads<L> {
    /// Listens for clients; every request is refused until something is served.
    pub(super) fn start(
        socket: TcpListener,
        token: &Token,
        config: TcpServerConfig,
    ) -> Result<Self, ProgramError> {
        let front = Arc::new(ComputeRequestHandler::new(config.io_threads));
        let (server, threads) = TcpServer::prepare(socket, Arc::clone(&front), token, config)
            .map_err(ProgramError::system("the listener"))?;
        let mut crew = Self { server: Arc::new(server), front, hands: Vec::new() };
        for mut io in threads {
            let (jobs, mine) = channel::<WorkerJob<L>>();
            let name = format!("compute-{}", io.number());
            let work = move || {
                while !io.is_stopped() {
                    io.turn();
                    // Check after the turn: a sender wakes this thread once its job is in the
                    // channel.
                    mine.try_iter().for_each(|job| job(&mut io));
                }
                io.close_all();
            };
            let thread = start_thread(name, work).map_err(because)?;
            crew.hands.push(WorkerThread { jobs, thread });
        }
        Ok(crew)
    }

    /// The server of the clients' connections.
    pub(super) fn server(&self) -> &Arc<TcpServer> {
        &self.server
    }

    /// Whether all threads are running. Before the crew is dropped, a thread ends only by a panic.
    pub(super) fn are_alive(&self) -> bool {
        self.hands.iter().all(|hand| !hand.thread.is_finished())
    }

    /// Makes one of the threads panic.
    #[cfg(test)]
    pub(super) fn break_a_thread(&self) {
        let broken: WorkerJob<L> = Box::new(|_| panic!("a test breaks this thread"));
        self.hands[0].jobs.send(broken).unwrap();
        self.server.nudge();
        while self.are_alive() {
            std::hint::spin_loop();
        }
    }

    /// From now on, passes requests to the threads of `serving`, or refuses them if there are none.
    pub(super) fn serve<D: ClusterDesign<L>>(&self, serving: Option<&GenerationThreads<L, D>>) {
        self.front.set(serving.map(|threads| &threads.shared.queues));
    }
}

impl<L: ClusterLayout> Drop for WorkerThreads<L> {
    fn drop(&mut self) {
        self.server.stop();
        for hand in self.hands.drain(..) {
            let _ = hand.thread.join();
        }
    }
}

/// A compute server, and what its threads share of its values.
pub(super) type ServedServer<L, D> = (Arc<ComputeServer<D, L>>, SharedValues<L, D>);

/// Access to the map record, and what takeovers need, if there are any.
pub(super) type RecordAccess<'a, L> = (&'a CatalogMap<L>, Option<TakeoverThread<L>>);

/// What the crew does for one generation of the index.
pub(super) struct GenerationThreads<L: ClusterLayout, D: ClusterDesign<L>> {
    pub(super) shared: Arc<GenerationShared<L, D>>,
    /// Disconnected once every thread has ended its work.
    ended: Receiver<()>,
}

impl<L: ClusterLayout, D: ClusterDesign<L>> GenerationThreads<L, D> {
    /// Lets the crew open the index over `cluster`; they can serve once all of them have.
    pub(super) fn start(
        crew: &WorkerThreads<L>,
        server: ServedServer<L, D>,
        cluster: &MemoryCluster,
        record: RecordAccess<'_, L>,
        tally: Arc<RequestTally>,
    ) -> Result<Self, ProgramError> {
        match cluster {
            MemoryCluster::Tcp(tcp) => Self::over(crew, server, tcp, record, tally),
            MemoryCluster::Shm(shm) => Self::over(crew, server, shm, record, tally),
            #[cfg(feature = "verbs")]
            MemoryCluster::Verbs(verbs) => Self::over(crew, server, verbs, record, tally),
        }
    }

    /// Like [`GenerationThreads::start`], for one transport.
    fn over<C: EndpointCluster<Transport: AnyTransport>>(
        crew: &WorkerThreads<L>,
        server: ServedServer<L, D>,
        cluster: &C,
        (store, takeovers): RecordAccess<'_, L>,
        tally: Arc<RequestTally>,
    ) -> Result<Self, ProgramError> {
        let count = crew.hands.len();
        let (server, values) = server;
        let shared = Arc::new(GenerationShared {
            server,
            values,
            queues: Arc::new(GenerationQueues::new(count)),
            tally,
            done: (0..count).map(|_| Mutex::default()).collect(),
            clock: MonotonicClock::start(),
            origin_ns: AtomicU64::new(0),
            takeovers,
        });
        let (opened, openings) = channel();
        let (ending, ended) = channel();
        for hand in &crew.hands {
            let (shared, cluster, opened, store, ending) = (
                Arc::clone(&shared),
                Arc::clone(cluster.shared()),
                opened.clone(),
                store.clone(),
                ending.clone(),
            );
            let job: WorkerJob<L> = Box::new(move |io| {
                let _ending: Sender<()> = ending;
                // The closure also drops its sender, so that a thread that never sends is noticed
                // below.
                let opened = Box::new(move |outcome| drop(opened.send(outcome)));
                serve::<L, D, C::Transport>(&cluster, io, &shared, store, opened);
            });
            // A thread that has ended is noticed below.
            let _ = hand.jobs.send(job);
        }
        drop((opened, ending));
        crew.server.nudge();
        let this = Self { shared, ended };
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

    /// Stops serving, and writes all changes back to the memory servers. Call it when clients'
    /// requests are refused, so that a full queue empties.
    pub(super) fn flush(&self) -> Result<(), ErrorCode> {
        let GenerationShared { queues, clock, .. } = &*self.shared;
        let until = clock.elapsed() + FLUSH;
        loop {
            let (sender, receiver) = channel();
            let halt = ClientRequest::Halt { load: NO_LOAD, version: 0 };
            queues.push(halt, ReplyHandle::to_thread(sender), 0);
            match receiver.recv_timeout(until.saturating_sub(clock.elapsed())) {
                Ok(ClientResponse::Done) => return Ok(()),
                // The queue is full: waiting requests must not prevent the write-back of the cache.
                Ok(ClientResponse::Error(ErrorCode::Unavailable))
                    if !queues.of_thread(0).is_closed() && clock.elapsed() < until =>
                {
                    let _ = self.ended.recv_timeout(FLUSH_AGAIN);
                }
                Ok(ClientResponse::Error(code)) => return Err(code),
                Ok(_) | Err(_) => return Err(ErrorCode::Indeterminate),
            }
        }
    }

    /// Ends the work; waiting requests are answered as unavailable.
    pub(super) fn stop(self) {
        self.shared.queues.close();
        let _ = self.ended.recv();
    }
}

impl<L: ClusterLayout, D: ClusterDesign<L>> Drop for GenerationThreads<L, D> {
    /// Needed even without [`GenerationThreads::stop`]: the crew cannot end before its work.
    fn drop(&mut self) {
        self.shared.queues.close();
    }
}

/// Closes a thread's queues when its work ends, also by a panic, so that no request waits for it.
struct QueueCloseGuard<'a, L: ClusterLayout, D: ClusterDesign<L>>(&'a GenerationShared<L, D>);

impl<L: ClusterLayout, D: ClusterDesign<L>> Drop for QueueCloseGuard<'_, L, D> {
    fn drop(&mut self) {
        self.0.queues.close();
    }
}

/// Reports whether a thread could open the index, and if not, why.
type OpenedCallback = Box<dyn FnOnce(Result<(), String>)>;

/// The work of one thread for one generation. It keeps serving clients meanwhile.
fn serve<L: ClusterLayout, D: ClusterDesign<L>, X: AnyTransport>(
    cluster: &Arc<X::Cluster>,
    io: &mut ServerThread<ComputeRequestHandler<L>>,
    shared: &GenerationShared<L, D>,
    store: CatalogMap<L>,
    opened: OpenedCallback,
) {
    let number = io.number();
    let open = || {
        let driver = EndpointDriver::<X>::new(cluster).map_err(|error| error.to_string())?;
        let endpoint = driver.open(shared.server.number(), number);
        Ok((driver, endpoint.map_err(|error| error.to_string())?))
    };
    let (driver, endpoint) = match open() {
        Ok(endpoint) => endpoint,
        Err(error) => return opened(Err(error)),
    };
    match Hosting::new(&driver, io) {
        Ok(driver) => serve_over(&driver, (number, X::into_any(endpoint)), shared, store, opened),
        Err(error) => opened(Err(error.to_string())),
    }
}

/// As [`serve`], for all transports: the index above is compiled once.
fn serve_over<L: ClusterLayout, D: ClusterDesign<L>>(
    driver: &dyn Driver,
    (number, fabric): (usize, AnyFabric),
    shared: &GenerationShared<L, D>,
    store: CatalogMap<L>,
    opened: OpenedCallback,
) {
    let mut executor = Executor::new();
    let (server, values) = (&shared.server, &shared.values);
    let worker = Worker::<_, _, _, D::Values>::open(server, fabric, Rc::new(store), values);
    let worker = match executor.complete(driver, worker) {
        Some(Ok(worker)) => worker,
        Some(Err(error)) => return opened(Err(error.to_string())),
        None => return opened(Err("no memory server answers".to_owned())),
    };
    if number == 0 {
        let origin_ns = worker.fabric().now_ns().saturating_sub(shared.clock.now_ns());
        shared.origin_ns.store(origin_ns, Ordering::Release);
    }
    opened(Ok(()));
    let _closing = QueueCloseGuard(shared);
    let (queue, clients) = (shared.queues.of_thread(number), CountingAnswers(&shared.tally));
    let ended = || queue.is_closed();
    let mut executor = Executor::new();
    for _ in 0..TASKS {
        executor.spawn(0, worker.answer_all(queue, &clients));
    }
    if number == 0 {
        executor.spawn(
            0,
            worker.serve_loads(shared.queues.loads(), &clients, |error| {
                tracing::warn!("a bulk load failed: {error}");
            }),
        );
        executor.spawn(0, worker.watch_memory_servers(&ended));
        executor.spawn(0, worker.follow_map(&ended));
        executor.spawn(0, worker.reclaim(&ended));
        if let Some(takeovers) = &shared.takeovers {
            executor.spawn(0, worker.keep_right(&ended));
            executor.spawn(0, worker.watch_takeovers(takeovers, &ended));
        }
    }
    executor.spawn(0, worker.write_back_by_age(&ended));
    executor.spawn(0, worker.share_unused_nodes(&ended));
    executor.spawn(0, tell(&worker, queue, &shared.done[number]));
    executor.run(driver);
}

/// Counts requests, and sends their answers.
struct CountingAnswers<'a>(&'a RequestTally);

impl<L: Layout> ServedClients<L> for CountingAnswers<'_> {
    type Reply = ReplyHandle<L>;

    fn begin(&self, ask: &ClientRequest<L>, reply: &ReplyHandle<L>) -> bool {
        let still_waits = !reply.is_too_old();
        if still_waits {
            self.0.count(ask);
        }
        still_waits
    }

    fn answer(&self, reply: ReplyHandle<L>, told: ClientResponse<L>) {
        if matches!(told, ClientResponse::Error(_) | ClientResponse::NotOwner { .. }) {
            self.0.refusals.fetch_add(1, Ordering::Relaxed);
        }
        reply.send(told);
    }
}

/// Publishes the thread's counters periodically until its queue is closed.
async fn tell<L: ClusterLayout, D: ClusterDesign<L>, F: Fabric>(
    worker: &Worker<D, F, L, D::Values>,
    queue: &ThreadQueue<L, ReplyHandle<L>>,
    done: &Mutex<ThreadCounters>,
) {
    while !queue.is_closed() {
        let fabric = worker.fabric().counters().snapshot();
        *lock(done) = ThreadCounters { fabric, cache: worker.cache_counters() };
        worker.fabric().sleep(TELL_NS).await;
    }
}
