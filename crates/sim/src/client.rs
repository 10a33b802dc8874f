//! Clients and the observer: how they use the index, and how their operations are recorded.
//!
//! *The observer* is an additional client, on its own compute server that never dies. It loads the
//! initial contents, lets the clients start, and waits until all have ended or died. Then it reads
//! the final contents, before and after a collection. Its reads are operations like any other, so
//! the checkers judge the final contents as they judge every answer.
//!
//! *Thread safety*: a [`RunBoard`] is shared by all clients of a run.

use crate::death::DeathAt;
use crate::scenario::{DesignSpec, ErrorKind, LoadSpec, ProcessesSpec, Scenario};
use crate::spread::SpreadNames;
use crate::workload::{self, SimOperationStream};
use farleaf_fabric::sim::SimControl;
use farleaf_fabric::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};
use farleaf_fabric::{AnyFabric, Fabric, FabricError, Work};
use farleaf_history::{ClientAction, HistoryRecorder, InvokedOperation, OperationOutcome};
use farleaf_index::CacheCounters;
use farleaf_index::{
    AnyCompute, AnyIndex, ByName, IndexAdmin, IndexError, RangeIndex, ScanRequest,
};
use farleaf_page::NamedLayout;
use farleaf_pool::wire::{ErrorCode, Refusal};
use futures_util::future::join;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Poll interval while waiting for other tasks, in nanoseconds.
const POLL_INTERVAL_NS: u64 = 10_000;

/// Attempts of the observer, or of a client that opens the index, after an uncertain outcome.
const ATTEMPTS: u32 = 16;

/// Attempts of the observer to load the initial contents.
const LOAD_ATTEMPTS: u32 = 64;

/// How long a handle tries to settle its doubts before it is dropped, in nanoseconds. This is
/// longer than any temporary outage, and shorter than the limit for an endless loop.
const SETTLE_NS: u64 = 500_000_000;

/// Pause before another attempt to open the index or to settle outcomes in doubt, in nanoseconds.
const SETTLE_PAUSE_NS: u64 = 3_000_000;

/// Pause before another attempt to load while a load of a lost client keeps its turn, in
/// nanoseconds: it may do so for 30 seconds.
const HELD_UP_PAUSE_NS: u64 = 1_000_000_000;

/// State that the clients of one run share.
#[derive(Debug)]
pub(crate) struct RunBoard {
    pub(crate) recorder: HistoryRecorder,
    names: SpreadNames,
    /// The first fault found.
    fault: Mutex<Option<String>>,
    /// Why the initial contents could not be loaded, which explains whatever is missing later.
    failed_load: Mutex<Option<String>>,
    allowed: Vec<ErrorKind>,
    loaded: AtomicBool,
    active: AtomicUsize,
    /// Set when the observer has ended.
    over: AtomicBool,
    /// Cache counters of the handles that have been closed.
    cache: Mutex<CacheCounters>,
    balanced: AtomicUsize,
    /// A fixed moment for the compute servers' first death, instead of one drawn from the seed.
    death: Option<DeathAt>,
    /// Rounds in which compute servers died, in scenarios with crashes.
    deaths: AtomicUsize,
    /// The cluster to notify when an operation has ended.
    progress: Mutex<Option<SimControl>>,
}

/// Counters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunCounts {
    /// Counters of all caches.
    pub(crate) cache: CacheCounters,
    /// Moves of keys by the balancer.
    pub(crate) balanced: u64,
    /// Rounds in which compute servers died.
    pub(crate) deaths: u64,
}

impl RunBoard {
    pub(crate) fn new(scenario: &Scenario, death: Option<DeathAt>) -> Self {
        let initial = match scenario.workload.load {
            LoadSpec::Insert => BTreeMap::new(),
            LoadSpec::Bulk => workload::initial_contents(&scenario.workload),
        };
        Self { death, ..Self::for_round(scenario, initial) }
    }

    /// The board of a round that begins with the contents `initial`.
    pub(crate) fn for_round(scenario: &Scenario, initial: BTreeMap<u64, u64>) -> Self {
        let cluster = &scenario.cluster;
        let clients = cluster.compute_servers * cluster.clients_per_compute_server;
        Self {
            recorder: HistoryRecorder::new(initial),
            names: SpreadNames::of(scenario),
            fault: Mutex::new(None),
            failed_load: Mutex::new(None),
            allowed: scenario.allowed_errors.clone(),
            loaded: AtomicBool::new(false),
            active: AtomicUsize::new(clients.into()),
            over: AtomicBool::new(false),
            cache: Mutex::default(),
            balanced: AtomicUsize::new(0),
            death: None,
            deaths: AtomicUsize::new(0),
            progress: Mutex::new(None),
        }
    }

    /// Notifies this cluster of each operation that ends from now on.
    pub(crate) fn reports_progress_to(&self, cluster: SimControl) {
        *lock(&self.progress) = Some(cluster);
    }

    /// The fixed moment of the first death, if there is one.
    pub(crate) fn death(&self) -> Option<DeathAt> {
        self.death
    }

    /// Adds the counters of a round, and whether compute servers died in it.
    pub(crate) fn add_counts(&self, round: &Self, has_died: bool) {
        *lock(&self.cache) += *lock(&round.cache);
        self.deaths.fetch_add(usize::from(has_died), Ordering::AcqRel);
    }

    /// Records that the initial contents are loaded, so that clients can begin.
    pub(crate) fn let_clients_begin(&self) {
        self.loaded.store(true, Ordering::Release);
    }

    /// Waits until the initial contents are loaded.
    pub(crate) async fn wait_for_load(&self, fabric: &impl Fabric) {
        while !self.loaded.load(Ordering::Acquire) {
            fabric.sleep(POLL_INTERVAL_NS).await;
        }
    }

    /// Waits until all clients have ended or died, or `other` holds.
    pub(crate) async fn wait_for_clients_or(&self, fabric: &impl Fabric, other: impl Fn() -> bool) {
        while self.active.load(Ordering::Acquire) > 0 && !other() {
            fabric.sleep(POLL_INTERVAL_NS).await;
        }
    }

    /// Whether the observer has ended. After that, no task uses the index.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Counts one move of keys by the balancer.
    pub(crate) fn count_balanced(&self) {
        self.balanced.fetch_add(1, Ordering::AcqRel);
    }

    /// The counters of the run.
    pub(crate) fn counts(&self) -> RunCounts {
        let balanced = self.balanced.load(Ordering::Acquire) as u64;
        let deaths = self.deaths.load(Ordering::Acquire) as u64;
        RunCounts { cache: *lock(&self.cache), balanced, deaths }
    }

    pub(crate) fn fault(&self) -> Option<String> {
        lock(&self.fault).clone()
    }

    pub(crate) fn report(&self, fault: String) {
        lock(&self.fault).get_or_insert(fault);
    }

    /// The failure of the initial load, if it failed.
    pub(crate) fn failed_load(&self) -> Option<String> {
        lock(&self.failed_load).clone()
    }

    fn report_load(&self, fault: String) {
        lock(&self.failed_load).get_or_insert(fault);
    }

    /// Tells the cluster that something has ended, so that it goes on waiting.
    fn has_progressed(&self) {
        if let Some(cluster) = &*lock(&self.progress) {
            cluster.progress();
        }
    }

    pub(crate) fn allows(&self, error: &IndexError) -> bool {
        let kind = match error {
            IndexError::Indeterminate(_) => ErrorKind::Indeterminate,
            IndexError::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            IndexError::Contended { .. } | IndexError::NotOwner { .. } => ErrorKind::Contended,
            IndexError::Damaged { .. } => ErrorKind::Damaged,
            IndexError::Fabric(FabricError::Restarted { .. }) => ErrorKind::Restarted,
            IndexError::NotServed { .. } => ErrorKind::NotServed,
            IndexError::ChangesLost { .. } => ErrorKind::ChangesLost,
            IndexError::Refused { refusal: Refusal::DeclaredDead, .. } => ErrorKind::DeclaredDead,
            _ => return false,
        };
        self.allowed.contains(&kind)
    }

    /// Whether operations may have unknown outcomes.
    fn allows_unknown(&self) -> bool {
        self.allowed.contains(&ErrorKind::Indeterminate)
    }

    /// Performs an action on the index and records it.
    pub(crate) async fn perform<I>(
        &self,
        fabric: &impl Fabric,
        index: &I,
        client: u32,
        action: &ClientAction,
    ) -> OperationOutcome
    where
        I: IndexAdmin<Key = u64, Value = u64>,
    {
        let ticket = self.recorder.invoke(client, action.clone(), fabric.now_ns());
        fabric.charge(Work::Client).await; // no design charges it
        let answer = execute(index, action).await;
        self.finish(fabric, action, ticket, answer)
    }

    /// Performs single-key actions of several streams together and records them.
    async fn perform_together<I>(
        &self,
        fabric: &impl Fabric,
        index: &I,
        actions: &mut [(&mut SimOperationStream, ClientAction)],
    ) where
        I: IndexAdmin<Key = u64, Value = u64>,
    {
        let invoke = |(stream, action): &(&mut SimOperationStream, ClientAction)| {
            self.recorder.invoke(stream.client(), action.clone(), fabric.now_ns())
        };
        let tickets: Vec<InvokedOperation> = actions.iter().map(invoke).collect();
        let edits: Vec<_> = actions.iter().filter_map(|(_, action)| action.as_edit()).collect();
        for _ in &edits {
            fabric.charge(Work::Client).await;
        }
        let answers = index.execute_all(&edits).await;
        for (((stream, action), ticket), answer) in actions.iter_mut().zip(tickets).zip(answers) {
            let answer = answer.map(|answer| action.outcome(answer));
            stream.learn(action, &self.finish(fabric, action, ticket, answer));
        }
    }

    /// Executes an action with `work`, which returns no answer, and records it.
    pub(crate) async fn record<E: Into<IndexError>>(
        &self,
        fabric: &impl Fabric,
        client: u32,
        action: &ClientAction,
        work: impl Future<Output = Result<(), E>>,
    ) -> OperationOutcome {
        let ticket = self.recorder.invoke(client, action.clone(), fabric.now_ns());
        let answer = work.await.map(|()| OperationOutcome::Done).map_err(Into::into);
        self.finish(fabric, action, ticket, answer)
    }

    fn finish(
        &self,
        fabric: &impl Fabric,
        action: &ClientAction,
        ticket: InvokedOperation,
        answer: Result<OperationOutcome, IndexError>,
    ) -> OperationOutcome {
        self.has_progressed();
        let outcome = answer.unwrap_or_else(|error| {
            // A concurrent collection is not a fault.
            let is_harmless =
                *action == ClientAction::Collect && matches!(error, IndexError::Contended { .. });
            if !is_harmless && !self.allows(&error) {
                self.report(format!("{action} failed with an error that is not allowed: {error}"));
            }
            OperationOutcome::from_error(&error)
        });
        self.recorder.finish(ticket, outcome.clone(), fabric.now_ns());
        outcome
    }

    /// A handle of the index, by the names of its keys and values; `None` and a fault if it cannot
    /// be opened.
    pub(crate) async fn open<L: NamedLayout>(
        &self,
        fabric: &AnyFabric,
        compute: &AnyCompute<L>,
    ) -> Option<AnyIndex<u64, u64>> {
        let index = self.open_with(fabric, || compute.open(fabric.clone())).await?;
        Some(AnyIndex::of(ByName::<L, _, _>::with(index, self.names), fabric.clone()))
    }

    /// Opens a handle in some way; `None` and a fault if it cannot be opened.
    pub(crate) async fn open_with<I>(
        &self,
        fabric: &AnyFabric,
        open: impl AsyncFn() -> Result<I, IndexError>,
    ) -> Option<I> {
        for _ in 0..ATTEMPTS {
            match open().await {
                Ok(index) => return Some(index),
                Err(error) if self.allows(&error) => fabric.sleep(SETTLE_PAUSE_NS).await,
                Err(error) => {
                    self.report(format!("the index cannot be opened: {error}"));
                    return None;
                }
            }
        }
        None
    }
}

/// Counts a client as active until dropped, whether it ends or dies.
pub(crate) struct ActiveClient<'a>(pub(crate) &'a RunBoard);

impl Drop for ActiveClient<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Marks the observer as ended when dropped.
pub(crate) struct ObserverGuard<'a>(pub(crate) &'a RunBoard);

impl Drop for ObserverGuard<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

/// Calls the index's operation for an action.
async fn execute<I>(index: &I, action: &ClientAction) -> Result<OperationOutcome, IndexError>
where
    I: IndexAdmin<Key = u64, Value = u64>,
{
    Ok(match action {
        ClientAction::Get(key) => OperationOutcome::Value(index.get(key).await?),
        ClientAction::MultiGet(keys) => OperationOutcome::Values(index.multi_get(keys).await?),
        ClientAction::Scan(scan) => OperationOutcome::Records(index.scan(scan).await?),
        ClientAction::Collect => {
            index.collect().await?;
            OperationOutcome::Done
        }
        ClientAction::Flush => {
            index.flush().await?;
            OperationOutcome::Done
        }
        action => {
            let edit = action.as_edit().expect("all other actions are on one key");
            action.outcome(index.execute(edit).await?)
        }
    })
}

/// Runs one client, which has as many streams of operations as it keeps in flight, over one handle
/// at a time. The history numbers the streams of all clients; this client's begin at `first`.
pub(crate) async fn client<L: NamedLayout>(
    fabric: AnyFabric,
    compute: &AnyCompute<L>,
    board: &RunBoard,
    scenario: &Scenario,
    seed: u64,
    (number, first): (usize, usize),
) {
    let _active = ActiveClient(board);
    board.wait_for_load(&fabric).await;
    let in_flight = usize::from(scenario.cluster.in_flight_per_client);
    let mut streams: Vec<SimOperationStream> = (number * in_flight..(number + 1) * in_flight)
        .map(|stream| SimOperationStream::new(&scenario.workload, seed, (first + stream) as u32))
        .collect();
    let handles = u32::from(scenario.cluster.handles_per_client);
    let operations = scenario.workload.operations_per_client.div_ceil(handles);
    for _ in 0..handles {
        let Some(index) = board.open(&fabric, compute).await else { return };
        if scenario.cluster.in_groups {
            drive_in_groups(&fabric, &index, board, &mut streams, operations).await;
        } else {
            let driven =
                streams.iter_mut().map(|stream| drive(&fabric, &index, board, stream, operations));
            join_all(driven).await;
        }
        settle(&fabric, &index).await;
        *lock(&board.cache) += index.cache_counters();
    }
}

/// Settles a handle's outcomes in doubt before it is dropped. Gives up if a memory server stays
/// unreachable for too long.
pub(crate) async fn settle<I: RangeIndex>(fabric: &impl Fabric, index: &I) {
    let begun_ns = fabric.now_ns();
    while index.settle().await.is_err() && fabric.now_ns() - begun_ns < SETTLE_NS {
        fabric.sleep(SETTLE_PAUSE_NS).await;
    }
}

/// Performs up to `operations` operations of a stream.
async fn drive<I>(
    fabric: &impl Fabric,
    index: &I,
    board: &RunBoard,
    stream: &mut SimOperationStream,
    operations: u32,
) where
    I: IndexAdmin<Key = u64, Value = u64>,
{
    for _ in 0..operations {
        let Some(action) = stream.next() else { return };
        let pause_ns = stream.pause_ns();
        if pause_ns > 0 {
            fabric.sleep(pause_ns).await;
        }
        let outcome = board.perform(fabric, index, stream.client(), &action).await;
        stream.learn(&action, &outcome);
    }
}

/// Performs up to `operations` operations of each stream. In each round, every stream contributes
/// one operation, and those on single keys form one group.
async fn drive_in_groups<I>(
    fabric: &impl Fabric,
    index: &I,
    board: &RunBoard,
    streams: &mut [SimOperationStream],
    operations: u32,
) where
    I: IndexAdmin<Key = u64, Value = u64>,
{
    for _ in 0..operations {
        let mut pause_ns = 0;
        let next = streams.iter_mut().filter_map(|stream| {
            let action = stream.next()?;
            pause_ns = pause_ns.max(stream.pause_ns());
            Some((stream, action))
        });
        let (mut grouped, alone): (Vec<_>, Vec<_>) =
            next.partition(|(_, action)| action.as_edit().is_some());
        fabric.sleep(pause_ns).await;
        let alone = join_all(alone.into_iter().map(async |(stream, action)| {
            let outcome = board.perform(fabric, index, stream.client(), &action).await;
            stream.learn(&action, &outcome);
        }));
        join(board.perform_together(fabric, index, &mut grouped), alone).await;
    }
}

/// Runs futures within one task until all have ended.
pub(crate) async fn join_all<'a>(futures: impl Iterator<Item = impl Future<Output = ()> + 'a>) {
    let mut left: Vec<Pin<Box<dyn Future<Output = ()> + 'a>>> =
        futures.map(|future| Box::pin(future) as Pin<Box<_>>).collect();
    poll_fn(|context| {
        left.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if left.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Runs the observer, as client `number`.
pub(crate) async fn observer<L: NamedLayout>(
    fabric: AnyFabric,
    compute: &AnyCompute<L>,
    board: &RunBoard,
    scenario: &Scenario,
    number: u32,
    deaths: &[ServerDeath],
) {
    let _over = ObserverGuard(board);
    let Some(index) = board.open(&fabric, compute).await else {
        board.report("the observer cannot open the index".to_owned());
        return board.let_clients_begin();
    };
    load(&fabric, &index, board, scenario, number).await;
    board.let_clients_begin();
    let mut undeclared: Vec<&ServerDeath> = deaths.iter().collect();
    while board.active.load(Ordering::Acquire) > 0 || !undeclared.is_empty() {
        fabric.sleep(POLL_INTERVAL_NS).await;
        // Other tasks wait for this handle's outcomes in doubt, even while it is idle.
        let _ = index.settle().await;
        let known = undeclared.extract_if(.., |death| death.known_at_ns <= fabric.now_ns());
        for death in known.collect::<Vec<_>>() {
            declare(&index, board, death.compute_server).await;
        }
    }
    read_everything(&fabric, &index, board, scenario, number).await;
    settle(&fabric, &index).await;
    *lock(&board.cache) += index.cache_counters();
}

/// Loads the initial contents.
pub(crate) async fn load<I>(
    fabric: &impl Fabric,
    index: &I,
    board: &RunBoard,
    scenario: &Scenario,
    number: u32,
) where
    I: IndexAdmin<Key = u64, Value = u64>,
{
    let first = workload::initial_contents(&scenario.workload);
    match scenario.workload.load {
        LoadSpec::Insert => {
            for (key, value) in first {
                board.perform(fabric, index, number, &ClientAction::Insert(key, value)).await;
            }
        }
        LoadSpec::Bulk => load_in_bulk(fabric, index, board, scenario, &first).await,
    }
}

/// Loads the initial contents in bulk. If compute servers die, or messages are lost, a load may
/// fail. Then the index is unchanged, and the observer loads again. If the outcome is unknown, the
/// index has all records or none, unless each compute server loads its own.
async fn load_in_bulk<I>(
    fabric: &impl Fabric,
    index: &I,
    board: &RunBoard,
    scenario: &Scenario,
    first: &BTreeMap<u64, u64>,
) where
    I: IndexAdmin<Key = u64, Value = u64>,
{
    let may_fail = scenario.processes.as_ref().is_some_and(ProcessesSpec::has_deaths)
        || scenario.faults.loses_messages();
    let is_whole = !matches!(scenario.design, DesignSpec::Dlsm { .. });
    let all: Vec<(u64, u64)> = first.iter().map(|(key, value)| (*key, *value)).collect();
    let what = format!("a bulk load of {} records", all.len());
    let (mut last, mut has_doubt) = (None, false);
    for _ in 0..LOAD_ATTEMPTS {
        let error = match index.bulk_load(all.iter().copied(), 0.8).await {
            Ok(loaded) if loaded == all.len() as u64 => return,
            Ok(loaded) => return board.report_load(format!("{what} loaded {loaded}")),
            Err(error) => error,
        };
        board.has_progressed();
        // Only an earlier load can have left records, whatever became of it.
        let is_full = matches!(error, IndexError::Refused { refusal: Refusal::NotEmpty, .. });
        if !may_fail || (is_full && !has_doubt) {
            return board.report_load(format!("{what}: {error}"));
        }
        has_doubt |= matches!(error, IndexError::Indeterminate(_));
        if has_doubt && !board.allows_unknown() {
            return board.report_load(format!("{what}: {error}"));
        }
        if has_doubt && let Ok(found) = index.scan(&ScanRequest::range(..)).await {
            match found.len() {
                0 => {}
                _ if found == all => return,
                _ if is_whole => {
                    return board.report_load(format!("{what}: {error}, and then {found:?}"));
                }
                _ => return fill_up(fabric, index, board, &all, &what).await,
            }
        }
        // A load whose end was lost holds the others up until its time is over.
        let is_held_up = matches!(error, IndexError::NotServed { code: ErrorCode::Loading, .. });
        last = Some(error);
        fabric.sleep(if is_held_up { HELD_UP_PAUSE_NS } else { SETTLE_PAUSE_NS }).await;
    }
    board.report_load(format!("{what} failed {LOAD_ATTEMPTS} times: {last:?}"));
}

/// Upserts the records of which a bulk load has loaded some.
async fn fill_up<I>(
    fabric: &impl Fabric,
    index: &I,
    board: &RunBoard,
    all: &[(u64, u64)],
    what: &str,
) where
    I: IndexAdmin<Key = u64, Value = u64>,
{
    for (key, value) in all {
        for attempt in 1.. {
            match index.upsert(key, value).await {
                Ok(_) => break,
                Err(error) if attempt == LOAD_ATTEMPTS => {
                    return board.report_load(format!("{what}: {error}"));
                }
                Err(_) => fabric.sleep(SETTLE_PAUSE_NS).await,
            }
        }
        board.has_progressed();
    }
}

/// Reads the contents, before and after a collection.
pub(crate) async fn read_everything<I>(
    fabric: &impl Fabric,
    index: &I,
    board: &RunBoard,
    scenario: &Scenario,
    number: u32,
) where
    I: IndexAdmin<Key = u64, Value = u64>,
{
    let everything = ScanRequest::range(..);
    let again = |action| retry(fabric, index, board, number, action);
    again(ClientAction::Scan(everything.clone())).await;
    again(ClientAction::Collect).await;
    if !again(ClientAction::Scan(everything.reverse())).await {
        // A memory server is dead: read the keys that the others hold.
        for place in 0..scenario.workload.key_space {
            let key = workload::key_at(place, &scenario.workload);
            board.perform(fabric, index, number, &ClientAction::Get(key)).await;
        }
    }
}

/// A compute server's death and the time at which it becomes known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerDeath {
    pub(crate) compute_server: u16,
    pub(crate) known_at_ns: u64,
}

async fn declare<I>(index: &I, board: &RunBoard, compute_server: u16)
where
    I: IndexAdmin<Key = u64, Value = u64>,
{
    for _ in 0..ATTEMPTS {
        match index.declare_dead(compute_server).await {
            Ok(()) => return,
            Err(error) if board.allows(&error) => {}
            Err(error) => {
                board.report(format!(
                    "cannot declare compute server {compute_server} dead: {error}"
                ));
            }
        }
    }
}

/// Performs an action until it gets an answer; returns whether it did.
async fn retry<I>(
    fabric: &impl Fabric,
    index: &I,
    board: &RunBoard,
    client: u32,
    action: ClientAction,
) -> bool
where
    I: IndexAdmin<Key = u64, Value = u64>,
{
    for _ in 0..ATTEMPTS {
        if board.perform(fabric, index, client, &action).await.is_answer() {
            return true;
        }
    }
    false
}
