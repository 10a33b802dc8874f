//! Scenarios with `[processes]`: compute servers are separate processes, as in a deployment.
//!
//! Clients send messages to compute servers over the simulated network, with
//! [`farleaf_index::client::ClientIndex`]. Each compute server has its own cache, one [`Worker`],
//! and a map record that it shares with the others. A mover requests moves of keys. Processes die
//! at random moments, or in the middle of moves and bulk loads, and begin another life some time
//! later.
//!
//! A compute server that dies loses changes that it has not written back. So if processes die, each
//! answers only after it has written everything back: then nothing that a client has seen may be
//! lost, and the checkers judge the history like any other. In scenarios with `forgets` it answers
//! at once, as in a deployment. Then all processes die at the end, and what they lose must not be
//! covered by a flush ([`check_flushed`]).
//!
//! *Thread safety*: a run is one thread.

mod liveness;

use crate::client::{self, RunBoard, join_all, settle};
use crate::form::IndexForm;
use crate::inspect::{ExpectedState, InspectedPool, at_the_end, watch};
use crate::reshaping::pick;
use crate::scenario::{DesignSpec, ErrorKind, ProcessesSpec, Scenario, TakeoverSpec};
use crate::setup::{SimServers, sim_config, start};
use crate::workload;
use farleaf_fabric::AnyFabric;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{SimCluster, SimFabric};
use farleaf_fabric::sync::{Arc, AtomicUsize, Mutex, Ordering, lock};
use farleaf_fabric::{Calls, Cluster, Cpu, Fabric, Provider, Region, ReplySink, ServiceCall};
use farleaf_history::checker::{CheckVerdict, check_flushed};
use farleaf_index::client::{Acknowledged, ClientIndex, ClientOptions, ServerDirectory};
use farleaf_index::partition::{
    Balancer, ComputeServer, MapState, MapStore, PartitionMap, PutOutcome, RequestQueues,
    ServedClients, Worker, begin_incarnation, end_former_incarnation, fence_former_incarnation,
};
use farleaf_index::{
    AnyCompute, BalanceOptions, ByName, Design, IndexError, PartitionOptions, Partitioned,
    RangeIndex, ReshapeCost, ScanRequest, ValueForm,
};
use farleaf_page::{Layout, NamedLayout, OwnedKey};
use farleaf_pool::server::MemoryServer;
use farleaf_pool::wire::{ClientRequest, ClientResponse, ErrorCode};
use futures_util::future::LocalBoxFuture;
use liveness::{LivenessList, SimTakeoverHost};
use rand::RngExt;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Minimum number of tasks that answer requests on a compute server. With few of them, requests
/// wait and are served in groups.
const FEWEST_TASKS: u64 = 2;
const MAX_TASKS: u64 = 8;
/// Poll interval of a process for its death, in nanoseconds.
const DEATH_POLL_INTERVAL_NS: u64 = 20_000;
/// Longest time between the start of a move and the death of one of its servers, in nanoseconds.
const MAX_UNTIL_DEATH_NS: u64 = 400_000;
/// Longest time between a request of a bulk load and the death of a server, as a power of two of
/// nanoseconds: some of a load's steps take much longer than others.
const MAX_UNTIL_DEATH_LOG2: u32 = 23;
/// Requests of one kind, to any process, that a planned death lets pass at most.
const MAX_PASSED: u32 = 3;
/// Longest time between two moves of keys, in nanoseconds.
const MAX_PAUSE_NS: u64 = 400_000;
/// Longest time that the record takes for a read or half a put, in nanoseconds.
const RECORD_NS: u64 = 60_000;
/// Maximum delay before a put of unknown outcome takes effect, in nanoseconds.
const LATE_PUT_NS: u64 = 5_000_000;
/// If processes die again and again, the most that all of them may take for blocks, in bytes: what
/// they need without a death, and what each takes until it has found the free blocks of former
/// lives.
const MAX_CHUNK_BYTES: u64 = 128 << 10;
/// Attempts to read everything after the last crash.
const READS: u32 = 64;
/// Pause before another attempt to begin a life, in nanoseconds.
const RETRY_NS: u64 = 1_000_000;

/// The service at an address of the simulated network.
enum NetworkService<L: Layout> {
    Memory(Arc<MemoryServer<L>>),
    Compute(Arc<ProcessHandler<L>>),
}

impl<L: Layout> Calls for NetworkService<L> {
    fn memory(&self) -> Option<&Arc<Region>> {
        match self {
            Self::Memory(server) => Calls::memory(&**server),
            Self::Compute(_) => None,
        }
    }

    async fn call<C: Cpu>(&self, cpu: &C, call: ServiceCall<'_>) {
        match self {
            Self::Memory(server) => Calls::call(&**server, cpu, call).await,
            Self::Compute(front) => front.take(call),
        }
    }

    async fn after_answer<C: Cpu>(&self, cpu: &C) {
        if let Self::Memory(server) = self {
            Calls::after_answer(&**server, cpu).await;
        }
    }
}

/// The deaths that follow requests of bulk loads.
#[derive(Debug, Default)]
struct DeathsInLoads {
    planned: Mutex<Vec<DeathInLoad>>,
    /// Servers that are about to die, and when.
    due: Mutex<Vec<(u16, u64)>>,
}

/// The death of a server soon after a request of a bulk load, to any server.
#[derive(Clone, Copy, Debug)]
struct DeathInLoad {
    /// The kind of the request.
    step: u32,
    /// Requests of this kind that come before.
    passed: u32,
    server: u16,
    delay_ns: u64,
}

/// Kinds of requests that a bulk load consists of.
const LOAD_STEPS: u32 = 7;

/// The kind of a request, if it belongs to a bulk load.
fn load_step<L: Layout>(ask: &ClientRequest<L>) -> Option<u32> {
    Some(match ask {
        ClientRequest::LoadBegin { .. } => 0,
        ClientRequest::LoadAppend { .. } => 1,
        ClientRequest::LoadReady { .. } => 2,
        ClientRequest::Halt { .. } => 3,
        ClientRequest::LoadEnd { .. } => 4,
        ClientRequest::Resume { .. } => 5,
        ClientRequest::LoadAbort { .. } => 6,
        _ => return None,
    })
}

impl DeathsInLoads {
    fn plan(spec: &ProcessesSpec, servers: u16, rng: &mut impl RngExt) -> Self {
        let planned = (0..spec.kills_in_loads).map(|_| {
            let longest_ns = 1 << rng.random_range(8..=MAX_UNTIL_DEATH_LOG2);
            DeathInLoad {
                step: rng.random_range(0..LOAD_STEPS),
                passed: rng.random_range(0..=MAX_PASSED),
                server: rng.random_range(0..servers),
                delay_ns: rng.random_range(1..=longest_ns),
            }
        });
        Self { planned: Mutex::new(planned.collect()), due: Mutex::default() }
    }

    fn see<L: Layout>(&self, ask: &ClientRequest<L>) {
        let Some(step) = load_step(ask) else { return };
        lock(&self.planned).retain_mut(|death| {
            match (death.step == step, death.passed.checked_sub(1)) {
                (false, _) => true,
                (true, Some(left)) => {
                    death.passed = left;
                    true
                }
                (true, None) => {
                    lock(&self.due).push((death.server, death.delay_ns));
                    false
                }
            }
        });
    }

    /// How soon `server` dies, if a death of it is due.
    fn take(&self, server: u16) -> Option<u64> {
        let mut due = lock(&self.due);
        let place = due.iter().position(|(dying, _)| *dying == server)?;
        Some(due.swap_remove(place).1)
    }
}

/// A compute server's process from the network's point of view.
struct ProcessHandler<L: Layout> {
    number: u16,
    /// The queues of the process's current life, while it serves.
    queues: Mutex<Option<Arc<RequestQueues<L, ReplySink>>>>,
    dies_at_ns: Mutex<Option<u64>>,
    /// Number of its threads, which get the requests in turn.
    threads: usize,
    turn: AtomicUsize,
    /// When it has died.
    deaths_ns: Mutex<Vec<u64>>,
    /// The deaths that its requests of bulk loads cause.
    in_loads: Arc<DeathsInLoads>,
}

impl<L: Layout> ProcessHandler<L> {
    fn new(number: u16, threads: u16, in_loads: &Arc<DeathsInLoads>) -> Self {
        Self {
            number,
            queues: Mutex::new(None),
            dies_at_ns: Mutex::new(None),
            threads: usize::from(threads.max(1)),
            turn: AtomicUsize::new(0),
            deaths_ns: Mutex::default(),
            in_loads: Arc::clone(in_loads),
        }
    }

    fn take(&self, call: ServiceCall<'_>) {
        let queues = lock(&self.queues);
        let refused = match (ClientRequest::<L>::decode(call.request), &*queues) {
            (None, _) => ErrorCode::Malformed,
            (_, None) => ErrorCode::Unavailable,
            (Some(ask), Some(queues)) => {
                self.in_loads.see(&ask);
                let thread = self.turn.fetch_add(1, Ordering::Relaxed) % self.threads;
                // A queue is never full here.
                drop(queues.push(ask, call.later(), thread));
                return;
            }
        };
        call.reply.extend_from_slice(&ClientResponse::<L>::Error(refused).encode());
    }

    fn open(&self) -> Arc<RequestQueues<L, ReplySink>> {
        let queues = Arc::new(RequestQueues::new(self.threads));
        *lock(&self.queues) = Some(Arc::clone(&queues));
        queues
    }

    /// Refuses requests from now on. Waiting requests get no answer.
    fn close(&self) {
        if let Some(queues) = lock(&self.queues).take() {
            drop(queues.close());
        }
    }

    fn dies_at(&self, at_ns: u64) {
        lock(&self.dies_at_ns).get_or_insert(at_ns);
    }

    /// Waits until the process is to die.
    async fn death(&self, fabric: &impl Fabric) {
        loop {
            if let Some(delay_ns) = self.in_loads.take(self.number) {
                self.dies_at(fabric.now_ns() + delay_ns);
            }
            let dies_at_ns = *lock(&self.dies_at_ns);
            if dies_at_ns.is_some_and(|at_ns| at_ns <= fabric.now_ns()) {
                *lock(&self.dies_at_ns) = None;
                return;
            }
            fabric.sleep(DEATH_POLL_INTERVAL_NS).await;
        }
    }
}

/// The clients of a process in one life. If processes die, answers are sent only after everything
/// is written back.
struct ProcessLife<L: Layout> {
    writes_back: bool,
    unsent: RefCell<Vec<(ReplySink, ClientResponse<L>)>>,
    idle: Cell<Option<Waker>>,
}

impl<L: Layout> ServedClients<L> for ProcessLife<L> {
    type Reply = ReplySink;

    fn begin(&self, _ask: &ClientRequest<L>, _reply: &ReplySink) -> bool {
        true
    }

    fn answer(&self, reply: ReplySink, told: ClientResponse<L>) {
        let waits = matches!(
            told,
            ClientResponse::Edited(_)
                | ClientResponse::Changed { .. }
                | ClientResponse::Upserted { .. }
                | ClientResponse::Records { .. }
        );
        if !waits || !self.writes_back {
            return reply.send(told.encode());
        }
        self.unsent.borrow_mut().push((reply, told));
        self.idle.take().into_iter().for_each(Waker::wake);
    }
}

impl<L: Layout> ProcessLife<L> {
    fn new(writes_back: bool) -> Self {
        Self { writes_back, unsent: RefCell::default(), idle: Cell::default() }
    }

    /// Repeatedly writes everything back, then sends the answers given before.
    async fn send<D: Partitioned, F: Fabric, V: ValueForm<L>>(&self, worker: &Worker<D, F, L, V>) {
        loop {
            let some = poll_fn(|context| match self.unsent.take() {
                none if none.is_empty() => {
                    self.idle.set(Some(context.waker().clone()));
                    Poll::Pending
                }
                some => Poll::Ready(some),
            });
            let some = some.await;
            let is_written = worker.write_back().await;
            for (reply, told) in some {
                // The state behind the answer may be lost.
                let lost = ClientResponse::Error(ErrorCode::Indeterminate);
                let told = if is_written { told } else { lost };
                reply.send(told.encode());
            }
        }
    }
}

/// The map record: its content, its version, and puts that take effect late.
#[derive(Debug)]
struct SimMapRecord<K> {
    state: MapState<K>,
    version: u64,
    late: Vec<(u64, u64, MapState<K>)>,
}

impl<K: Clone> SimMapRecord<K> {
    fn put_if(&mut self, version: u64, state: &MapState<K>) -> bool {
        let is_current = self.version == version;
        if is_current {
            (self.state, self.version) = (state.clone(), version + 1);
        }
        is_current
    }

    fn take_late(&mut self, now_ns: u64) {
        let mut due: Vec<_> = self.late.extract_if(.., |(at_ns, ..)| *at_ns <= now_ns).collect();
        due.sort_by_key(|(at_ns, ..)| *at_ns);
        for (_, version, state) in due {
            self.put_if(version, &state);
        }
    }
}

fn simulated(fabric: &AnyFabric) -> &SimFabric {
    fabric.simulated().expect("processes run on simulated clusters")
}

/// An endpoint that reaches `count` servers from `first` on, as numbers from 0.
fn limited(fabric: &AnyFabric, first: u16, count: u16) -> AnyFabric {
    AnyFabric::Sim(simulated(fabric).limited_to(first, count))
}

/// Another endpoint, of `compute_server`.
fn sibling(fabric: &AnyFabric, compute_server: u16) -> AnyFabric {
    AnyFabric::Sim(simulated(fabric).sibling(compute_server))
}

/// Access to the record over one endpoint.
#[derive(Debug)]
struct SimStore<K> {
    record: Arc<Mutex<SimMapRecord<K>>>,
    fabric: AnyFabric,
    /// One read in this many fails, and one put in this many has an unknown outcome.
    fails_one_in: u64,
}

impl<K: Clone> SimStore<K> {
    async fn travel(&self) {
        self.fabric.sleep(1 + self.fabric.random() % RECORD_NS).await;
    }

    fn fails(&self) -> bool {
        self.fails_one_in > 0 && self.fabric.random().is_multiple_of(self.fails_one_in)
    }

    fn look(&self) -> (MapState<K>, u64) {
        let mut record = lock(&self.record);
        record.take_late(self.fabric.now_ns());
        (record.state.clone(), record.version)
    }
}

impl<K: Clone + Debug> MapStore<K> for SimStore<K> {
    fn read(&self) -> LocalBoxFuture<'_, Option<(MapState<K>, u64)>> {
        Box::pin(async {
            self.travel().await;
            let read = self.look();
            self.travel().await;
            (!self.fails()).then_some(read)
        })
    }

    fn put_if<'a>(
        &'a self,
        version: u64,
        state: &'a MapState<K>,
    ) -> LocalBoxFuture<'a, PutOutcome> {
        Box::pin(async move {
            self.travel().await;
            self.look();
            if self.fails() {
                // The put never arrives, or it arrives late.
                if !self.fabric.random().is_multiple_of(3) {
                    let at_ns = self.fabric.now_ns() + self.fabric.random() % LATE_PUT_NS;
                    lock(&self.record).late.push((at_ns, version, state.clone()));
                }
                self.travel().await;
                return PutOutcome::Unknown;
            }
            let is_done = lock(&self.record).put_if(version, state);
            self.travel().await;
            if is_done { PutOutcome::Done } else { PutOutcome::Changed }
        })
    }
}

/// A client's directory: the record, as read by another thread of the client's process.
#[derive(Debug)]
struct RecordDirectory<K> {
    record: Arc<Mutex<SimMapRecord<K>>>,
    acknowledged: Acknowledged,
}

impl<K: Clone + Debug + Ord> ServerDirectory<K> for RecordDirectory<K> {
    fn is_absent(&self, _compute_server: u16) -> bool {
        false
    }

    fn look_again(&self) {}

    fn newer_map(&self, epoch: u64) -> Option<PartitionMap<K>> {
        let record = lock(&self.record);
        (record.state.map.epoch() > epoch).then(|| record.state.map.clone())
    }

    fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }
}

/// The index behind compute servers, as a design.
#[derive(Clone, Copy, Debug)]
struct DeployedIndex;

#[derive(Clone, Debug)]
struct DeployedCompute<K> {
    record: Arc<Mutex<SimMapRecord<K>>>,
    options: ClientOptions,
}

impl<L: NamedLayout> Design<L> for DeployedIndex {
    const NAME: &'static str = "deployed";
    type Options = ();
    type Compute = DeployedCompute<OwnedKey<L>>;
    type Index<F: Fabric> = ClientIndex<F, L>;

    async fn create<F: Fabric>(_fabric: &F, _options: &()) -> Result<(), IndexError> {
        Ok(())
    }

    fn compute(_options: &()) -> Result<DeployedCompute<OwnedKey<L>>, IndexError> {
        Err(IndexError::InvalidArgument("the compute servers are processes of the run"))
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &DeployedCompute<OwnedKey<L>>,
    ) -> Result<ClientIndex<F, L>, IndexError> {
        let map = lock(&compute.record).state.map.clone();
        let directory = Rc::new(RecordDirectory {
            record: Arc::clone(&compute.record),
            acknowledged: Acknowledged::default(),
        });
        Ok(ClientIndex::with_map(fabric, compute.options, map, directory))
    }

    /// The compute servers have checked it.
    async fn check_values<F: Fabric>(_fabric: &F) -> Result<(), IndexError> {
        Ok(())
    }
}

struct ProcessRun<'a, L: NamedLayout, V: IndexForm<L>> {
    scenario: &'a Scenario,
    spec: &'a ProcessesSpec,
    seed: u64,
    board: &'a RunBoard,
    options: <V::Design as Partitioned>::Options<L>,
    inspector: V::Inspector,
    fronts: Vec<Arc<ProcessHandler<L>>>,
    liveness: LivenessList,
    /// What was there after all processes had died, in scenarios that judge flushes.
    found: Mutex<Option<BTreeMap<u64, u64>>>,
    compute: DeployedCompute<OwnedKey<L>>,
    /// The values of each process's latest life.
    values: Mutex<BTreeMap<u16, <V::Values as ValueForm<L>>::Shared>>,
}

/// Runs a scenario with `[processes]`, whose compute servers have an index of the form `V`.
pub(crate) fn play<L, V>(
    scenario: &Scenario,
    spec: &ProcessesSpec,
    seed: u64,
    board: &RunBoard,
) -> Result<(), String>
where
    L: NamedLayout,
    V: IndexForm<L>,
{
    let options = V::options(scenario)?;
    let create =
        async |fabric: &AnyFabric| <V::Design as Design<L>>::create(fabric, &options).await;
    let memory: SimServers<L> = start(scenario, create)?;
    let pool = LocalConfig::default().start(memory.clone());
    let marked = pool.run_one(async |fabric| V::Values::mark(&fabric).await);
    marked.map_err(|error| format!("the index cannot be marked: {error}"))?;
    let map = PartitionMap::new::<L>(1, options.boundaries().to_vec());
    let map = map.map_err(|error| format!("there is no first map: {error}"))?;
    let servers = map.ranges() + options.spare_compute_servers();
    let record = SimMapRecord { state: MapState::settled(map), version: 1, late: Vec::new() };
    let in_loads = DeathsInLoads::plan(spec, servers, &mut workload::rng(seed, u64::MAX / 13));
    let in_loads = Arc::new(in_loads);
    let run: ProcessRun<'_, L, V> = ProcessRun {
        values: Mutex::default(),
        scenario,
        spec,
        seed,
        board,
        options,
        inspector: V::inspector(InspectedPool::new(&memory, scenario), scenario),
        fronts: (0..servers)
            .map(|number| Arc::new(ProcessHandler::new(number, spec.threads, &in_loads)))
            .collect(),
        liveness: LivenessList::new(
            spec.takeover.as_ref(),
            servers,
            &mut workload::rng(seed, u64::MAX / 17),
        ),
        found: Mutex::new(None),
        compute: DeployedCompute {
            record: Arc::new(Mutex::new(record)),
            options: ClientOptions {
                deadline_ns: spec.deadline_ns,
                request_ns: scenario.faults.timeout_ns,
            },
        },
    };
    let nodes = memory.iter().cloned().map(NetworkService::Memory);
    let nodes = nodes.chain(run.fronts.iter().cloned().map(NetworkService::Compute)).map(Arc::new);
    let sim = sim_config(scenario, &mut workload::rng(seed, 0));
    let cluster = SimCluster::start(sim, nodes.collect());
    board.reports_progress_to(cluster.control());
    run.play(&cluster);
    if board.fault().is_some() {
        return Ok(());
    }
    if spec.forgets {
        run.judge_flushes()?;
    }
    if scenario.allowed_errors.contains(&ErrorKind::Indeterminate) {
        V::look(&run.inspector).map_err(at_the_end)?;
        return run.count_blocks(&cluster);
    }
    run.look_at_the_end(&cluster)
}

impl<L: NamedLayout, V: IndexForm<L>> ProcessRun<'_, L, V> {
    fn memory_servers(&self) -> u16 {
        self.scenario.cluster.memory_servers
    }

    fn compute_servers(&self) -> u16 {
        self.fronts.len() as u16
    }

    /// The compute server number of endpoints that belong to no process.
    fn nobody(&self) -> u16 {
        self.compute_servers()
    }

    /// A client's view of an endpoint: its servers are the compute servers.
    fn as_client(&self, fabric: &AnyFabric) -> AnyFabric {
        limited(fabric, self.memory_servers(), self.compute_servers())
    }

    fn as_compute_server(&self, fabric: &AnyFabric) -> AnyFabric {
        limited(fabric, 0, self.memory_servers())
    }

    fn store(&self, fabric: &AnyFabric) -> Rc<SimStore<OwnedKey<L>>> {
        let record = Arc::clone(&self.compute.record);
        let fails_one_in = self.spec.record_fails_one_in;
        Rc::new(SimStore { record, fabric: fabric.clone(), fails_one_in })
    }

    fn play(&self, cluster: &SimCluster<NetworkService<L>>) {
        let (scenario, board, seed) = (self.scenario, self.board, self.seed);
        let spec = &scenario.cluster;
        let processes = usize::from(self.compute_servers());
        let clients = usize::from(spec.compute_servers * spec.clients_per_compute_server);
        let nobody = self.nobody();
        // Processes first, then clients on their own machines, then the rest.
        let mut endpoints: Vec<u16> = (0..self.compute_servers()).collect();
        endpoints.extend((0..clients as u16).map(|client| nobody + 1 + client));
        endpoints.extend([nobody; 4]);
        let compute = self.any_compute();
        cluster.run(&endpoints, async |fabric, number| {
            if number < processes {
                return self.process(fabric, number as u16).await;
            }
            let number = number - processes;
            let remote = self.as_client(&fabric);
            if number < clients {
                let place = (number, 0);
                return client::client(remote, &compute, board, scenario, seed, place).await;
            }
            match number - clients {
                0 if self.spec.forgets => self.last_crash(remote).await,
                0 => {
                    let number = clients as u32 * u32::from(spec.in_flight_per_client);
                    client::observer(remote, &compute, board, scenario, number, &[]).await;
                }
                1 => watch(fabric, board, seed, || V::look(&self.inspector)).await,
                2 => self.mover(remote).await,
                _ => self.balancer(remote).await,
            }
        });
    }

    /// A compute server's process: one life after the other, until the run ends.
    async fn process(&self, fabric: AnyFabric, number: u16) {
        let front = &self.fronts[usize::from(number)];
        let mut rng = workload::rng(self.seed, u64::MAX / 11 - u64::from(number));
        for kill in self.spec.kills.iter().filter(|kill| kill.server == number) {
            front.dies_at(rng.random_range(kill.earliest_ns..=kill.latest_ns));
        }
        // If processes die again and again, each has a last life, which finds all free blocks.
        let again_and_again = self.spec.lives_ns > 0;
        while again_and_again || !self.board.is_over() {
            if again_and_again && !self.board.is_over() {
                let life_ns = rng.random_range(self.spec.lives_ns / 4..=self.spec.lives_ns);
                front.dies_at(fabric.now_ns() + life_ns);
            }
            let lived = {
                let mut life = pin!(self.live(&fabric, number));
                let mut death = pin!(front.death(&fabric));
                poll_fn(|context| match life.as_mut().poll(context) {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending => death.as_mut().poll(context).map(|()| false),
                })
                .await
            };
            front.close();
            if lived {
                return;
            }
            lock(&front.deaths_ns).push(fabric.now_ns());
            if let Some(takeover) = &self.spec.takeover {
                self.liveness.set(number, fabric.now_ns() + takeover.term_ns, false);
            }
            V::dies(&self.inspector, number);
            fabric.sleep(rng.random_range(1..=self.spec.restart_after_ns.max(1))).await;
        }
    }

    async fn live(&self, fabric: &AnyFabric, number: u16) {
        let workers = loop {
            match self.begin(fabric, number).await {
                Ok(workers) => break workers,
                Err(_) if self.board.is_over() => return,
                Err(error) if self.board.allows(&error) => fabric.sleep(RETRY_NS).await,
                Err(IndexError::Contended { .. }) => fabric.sleep(RETRY_NS).await,
                Err(error) => {
                    let what = format!("compute server {number} cannot begin a life: {error}");
                    return self.board.report(what);
                }
            }
        };
        let front = &self.fronts[usize::from(number)];
        // What one thread does for all.
        let worker = &workers[0];
        // With `acknowledge = cached` a death may lose what was answered.
        let writes_back =
            self.spec.has_deaths() && !self.spec.forgets && !self.scenario.acknowledges_written();
        let (queues, clients) = (front.open(), ProcessLife::new(writes_back));
        let ended = || self.board.is_over();
        let host = self.spec.takeover.map(|spec| {
            let fabric = sibling(fabric, self.nobody());
            SimTakeoverHost { run: self, fabric, spec }
        });
        let mut tasks: Vec<LocalBoxFuture<'_, ()>> = Vec::new();
        for (worker, queue) in workers.iter().zip(&queues.threads) {
            for _ in 0..FEWEST_TASKS + fabric.random() % (MAX_TASKS - FEWEST_TASKS + 1) {
                tasks.push(Box::pin(worker.answer_all(queue, &clients)));
            }
            tasks.push(Box::pin(worker.write_back_by_age(&ended)));
            tasks.push(Box::pin(worker.share_unused_nodes(&ended)));
        }
        tasks.push(Box::pin(worker.serve_loads(&queues.loads, &clients, |_| ())));
        tasks.push(Box::pin(worker.follow_map(&ended)));
        tasks.push(Box::pin(worker.watch_memory_servers(&ended)));
        tasks.push(Box::pin(worker.reclaim(&ended)));
        if let Some(host) = &host {
            tasks.push(Box::pin(worker.keep_right(&ended)));
            tasks.push(Box::pin(worker.watch_takeovers(host, &ended)));
        }
        tasks.push(Box::pin(async {
            while !self.board.is_over() {
                if worker.was_declared_dead() {
                    front.dies_at(fabric.now_ns()); // as a program, which ends and is restarted
                }
                fabric.sleep(DEATH_POLL_INTERVAL_NS).await;
            }
            front.close();
        }));
        let (mut tasks, mut sending) =
            (pin!(join_all(tasks.into_iter())), pin!(clients.send(worker)));
        poll_fn(|context| {
            let _ = sending.as_mut().poll(context);
            tasks.as_mut().poll(context)
        })
        .await;
        if self.spec.lives_ns > 0 {
            worker.reclaim(&|| false).await;
        }
        match worker.halt().await {
            Ok(()) => {}
            Err(error) if self.board.allows(&error) => {}
            Err(error) => self.board.report(format!("cannot write everything back: {error}")),
        }
    }

    async fn begin(
        &self,
        fabric: &AnyFabric,
        number: u16,
    ) -> Result<Vec<Worker<V::Design, AnyFabric, L, V::Values>>, IndexError> {
        self.liveness.set(number, fabric.now_ns(), true);
        let nobody = self.as_compute_server(&sibling(fabric, self.nobody()));
        fence_former_incarnation(&nobody, number).await?;
        let map = begin_incarnation(&nobody, &*self.store(fabric), number).await?;
        if self.spec.takeover.is_some() {
            // Cuts off a taker of the former life (over.T3).
            fence_former_incarnation(&nobody, number).await?;
        }
        let mine = self.as_compute_server(&sibling(fabric, number));
        let (of_server, range) = (self.options.server(), map.range_of(number));
        end_former_incarnation::<V::Design, _, L>(mine.clone(), of_server, number, &range).await?;
        let server = ComputeServer::start(number, self.options.server(), map)?;
        let takeover = self.spec.takeover.as_ref().map(TakeoverSpec::options);
        let server = server.sampling(self.options.balance().one_in).taking_over(takeover);
        let server = Arc::new(server);
        let values = V::shared(self.scenario)?;
        V::Values::adopt(&values, mine.clone()).await?;
        lock(&self.values).insert(number, values.clone());
        let mut workers = Vec::new();
        for thread in 0..self.spec.threads.max(1) {
            let mine = match thread {
                0 => mine.clone(),
                _ => self.as_compute_server(&sibling(fabric, number)),
            };
            workers.push(Worker::open(&server, mine, self.store(fabric), &values).await?);
        }
        if self.spec.takeover.is_some() {
            let again = IndexError::Contended { retries: 0 };
            let (state, _) = self.store(fabric).read().await.ok_or(again.clone())?;
            if server.lost_keys_by(&state) {
                return Err(again);
            }
        }
        V::begins(&self.inspector, &server);
        Ok(workers)
    }

    /// The observer of a scenario that judges flushes: when the clients have ended, all processes
    /// die, and it reads what their next lives find.
    async fn last_crash(&self, fabric: AnyFabric) {
        let _over = client::ObserverGuard(self.board);
        let clients = u32::from(
            self.scenario.cluster.compute_servers
                * self.scenario.cluster.clients_per_compute_server,
        );
        let number = clients * u32::from(self.scenario.cluster.in_flight_per_client);
        let Some(index) = self.board.open(&fabric, &self.any_compute()).await else {
            return self.board.let_clients_begin();
        };
        client::load(&fabric, &index, self.board, self.scenario, number).await;
        self.board.let_clients_begin();
        self.board.wait_for_clients_or(&fabric, || false).await;
        for front in &self.fronts {
            front.dies_at(fabric.now_ns());
            let deaths = lock(&front.deaths_ns).len();
            // One that is dead already does not die once more.
            while lock(&front.queues).is_some() && lock(&front.deaths_ns).len() == deaths {
                fabric.sleep(DEATH_POLL_INTERVAL_NS).await;
            }
        }
        for _ in 0..READS {
            if let Ok(records) = index.scan(&ScanRequest::range(..)).await {
                *lock(&self.found) = Some(records.into_iter().collect());
                return;
            }
            fabric.sleep(RETRY_NS).await;
        }
        self.board.report("the index cannot be read after the last crash".to_owned());
    }

    fn judge_flushes(&self) -> Result<(), String> {
        let Some(found) = lock(&self.found).take() else {
            return Err("nothing was read after the last crash".to_owned());
        };
        let deaths: Vec<u64> =
            self.fronts.iter().flat_map(|front| lock(&front.deaths_ns).clone()).collect();
        let streams = u32::from(self.scenario.cluster.in_flight_per_client);
        let history = self.board.recorder.so_far();
        match check_flushed(&history, &found, &deaths, |client| client / streams) {
            CheckVerdict::Holds => Ok(()),
            CheckVerdict::Violated(why) | CheckVerdict::GaveUp(why) => Err(why),
        }
    }

    /// The index behind the compute servers, as an object.
    fn any_compute(&self) -> AnyCompute<L> {
        AnyCompute::of::<DeployedIndex>(self.compute.clone())
    }

    /// A handle on it that can move keys.
    async fn deployed(&self, fabric: &AnyFabric) -> Option<ClientIndex<AnyFabric, L>> {
        let open = || <DeployedIndex as Design<L>>::open(fabric.clone(), &self.compute);
        self.board.open_with(fabric, open).await
    }

    /// Moves keys at random moments, and lets servers die meanwhile.
    async fn mover(&self, fabric: AnyFabric) {
        let (DesignSpec::Dex { moves, .. } | DesignSpec::Dlsm { moves, .. }) = self.scenario.design
        else {
            return;
        };
        let key_space = self.scenario.workload.key_space;
        let mut rng = workload::rng(self.seed, u64::MAX / 3);
        self.board.wait_for_load(&fabric).await;
        let Some(index) = self.deployed(&fabric).await else {
            return;
        };
        let mut kills = self.spec.kills_in_moves;
        for _ in 0..moves {
            fabric.sleep(rng.random_range(1..=MAX_PAUSE_NS)).await;
            if self.board.is_over() {
                break;
            }
            let owners = lock(&self.compute.record).state.map.owners().to_vec();
            let place = rng.random_range(0..owners.len());
            let newcomers = (0..self.compute_servers()).filter(|server| !owners.contains(server));
            let beside = [place.checked_sub(1), Some(place + 1)].into_iter().flatten();
            let mut takers: Vec<u16> = beside.filter_map(|at| owners.get(at).copied()).collect();
            takers.extend(newcomers);
            let (from, to) = (owners[place], *pick(&takers, &mut rng));
            let near = workload::key_at(rng.random_range(0..key_space), &self.scenario.workload);
            let near = rng.random_bool(0.8).then(|| L::key_named(near));
            if kills > 0 && rng.random_bool(0.5) {
                kills -= 1;
                let dying = if rng.random_bool(0.5) { from } else { to };
                let dies_at_ns = fabric.now_ns() + rng.random_range(1..=MAX_UNTIL_DEATH_NS);
                self.fronts[usize::from(dying)].dies_at(dies_at_ns);
            }
            match index.move_keys(from, to, near.as_ref().map(|near| L::key(near))).await {
                Ok(_) => self.board.count_balanced(),
                // They may not be neighbours, there may be no boundary near the key, other keys may
                // be moving, or one of the servers may have died.
                Err(
                    IndexError::InvalidArgument(_)
                    | IndexError::Contended { .. }
                    | IndexError::NotServed { .. }
                    | IndexError::NotSent { .. }
                    | IndexError::NotOwner { .. }
                    | IndexError::Indeterminate(_),
                ) => {}
                Err(error) if self.board.allows(&error) => {}
                Err(error) => self.board.report(format!("cannot move keys: {error}")),
            }
        }
        settle(&fabric, &index).await;
    }

    /// Balances load among the processes, if the scenario asks for it.
    async fn balancer(&self, fabric: AnyFabric) {
        if !self.scenario.design.balances() {
            return;
        }
        self.board.wait_for_load(&fabric).await;
        let Some(index) = self.deployed(&fabric).await else {
            return;
        };
        let report = |moved: Result<ReshapeCost, IndexError>| {
            if moved.is_ok() {
                self.board.count_balanced();
            }
        };
        let options: BalanceOptions = self.options.balance().clone();
        Balancer::new(&index, options).run(|| self.board.is_over(), report).await;
    }

    /// What a fresh reader of the whole index has cached, which is nothing.
    fn reader(&self) -> Result<<V::Reader as Design<L>>::Compute, String> {
        let compute = V::Reader::compute(&V::reader_options(self.scenario)?);
        compute.map_err(|error| format!("cannot set up a reader: {error}"))
    }

    /// Checks, once everything has been written back, that the pool holds exactly what a fresh
    /// reader finds in it.
    fn look_at_the_end(&self, cluster: &SimCluster<NetworkService<L>>) -> Result<(), String> {
        let compute = self.reader()?;
        let mut scanned = cluster.run(&[self.nobody()], async |fabric, _| {
            let fabric = self.as_compute_server(&fabric);
            V::end_all(&fabric, &compute).await?;
            let index = V::reader(&compute).open(fabric).await?;
            ByName::<L, _>::new(index).scan(&ScanRequest::range(..)).await
        });
        let records = match scanned.pop().flatten() {
            Some(Ok(records)) => records,
            other => return Err(at_the_end(format!("it cannot be scanned: {other:?}"))),
        };
        self.count_blocks(cluster)?;
        let expect =
            if self.spec.has_deaths() { ExpectedState::Settled } else { ExpectedState::Exact };
        let held = V::held(&self.inspector, &compute, expect).map_err(at_the_end)?;
        if held != records {
            return Err(at_the_end(format!("it holds {held:?}, but a reader finds {records:?}")));
        }
        Ok(())
    }

    /// Compares the blocks that the processes have in use with those that leaves refer to. Does so
    /// only if each process has found all free blocks of its former incarnations: otherwise some
    /// blocks belong to no process for good, such as those in chunks that were shared because keys
    /// moved.
    fn count_blocks(&self, cluster: &SimCluster<NetworkService<L>>) -> Result<(), String> {
        let DesignSpec::Dex { moves: 0, .. } = self.scenario.design else { return Ok(()) };
        if self.spec.lives_ns == 0 {
            return Ok(());
        }
        let compute = &self.reader()?;
        let inline_bytes = self.scenario.cluster.inline_bytes.unwrap_or(usize::MAX);
        let mut counted = cluster.run(&[self.nobody()], async |fabric, _| {
            let index = V::reader(compute).open(self.as_compute_server(&fabric)).await?;
            let records = index.scan(&ScanRequest::range(..)).await?;
            let values = records.iter().map(|(_, value)| L::value_length(L::value(value)));
            Ok::<_, IndexError>(values.filter(|bytes| *bytes > inline_bytes).count() as u64)
        });
        let referred_to = match counted.pop().flatten() {
            Some(Ok(count)) => count,
            other => return Err(at_the_end(format!("it cannot be scanned: {other:?}"))),
        };
        let usages: Vec<_> = lock(&self.values).values().filter_map(V::usage).collect();
        let in_use: u64 = usages.iter().map(|usage| usage.blocks_in_use).sum();
        if in_use != referred_to {
            return Err(at_the_end(format!(
                "{referred_to} blocks are referred to, but the processes have {usages:?}"
            )));
        }
        let chunk_bytes: u64 = usages.iter().map(|usage| usage.chunk_bytes).sum();
        if chunk_bytes > MAX_CHUNK_BYTES {
            return Err(at_the_end(format!("the chunks have grown: {usages:?}")));
        }
        Ok(())
    }
}
