//! Crashes: compute servers of a scenario die together at one of their WRITEs and restart with
//! empty caches.
//!
//! A run consists of rounds. In every round but the last, clients work until the crash. An auditor
//! then begins the next incarnation of the dead compute servers and reads every key in every way:
//! by a get, by a scan of only that key in both directions, and by scans of all keys in both
//! directions, each time with an empty cache. All of them must agree (D7), and the contents must be
//! among those that the crash may leave ([`check_kept`]). The next round begins with these
//! contents. In the last round no server dies: everything is written back, and the pool must then
//! hold exactly the index's records.
//!
//! *Thread safety*: a run is one thread.

use crate::audit::{AuditedContents, Reader};
use crate::client::{self, ActiveClient, ObserverGuard, RunBoard, join_all};
use crate::death::DeathAt;
use crate::form::SimulatedLayout;
use crate::inspect::{ExpectedState, InspectedPool};
use crate::reshaping::mover;
use crate::rounds::play_round;
use crate::scenario::{DesignSpec, ErrorKind, LoadSpec, Scenario};
use crate::setup::{SimServers, dex_options, sim_config, start};
use crate::workload::{self, SimOperationStream};
use farleaf_designs::CompiledDesign;
use farleaf_dex::Dex;
use farleaf_dex::cache::CacheOptions;
use farleaf_fabric::sim::{SimCluster, SimControl};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{AnyFabric, Cluster, Fabric, GlobalAddr, Provider};
use farleaf_history::ClientAction;
use farleaf_history::checker::{CheckVerdict, check_all_kept, check_kept, values_written};
use farleaf_index::OwnedRange;
use farleaf_index::partition::{ComputePool, end_former_incarnation, fence_former_incarnation};
use farleaf_index::{
    AnyCompute, Background, ByName, Design, IndexAdmin, IndexError, RangeIndex, ScanRequest,
};
use farleaf_page::{Layout, NamedLayout, OwnedKey, clipped};
use farleaf_pool::server::MemoryServer;
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The longest time that compute servers stay dead while others work, in nanoseconds.
const MAX_DEATH_NS: u64 = 40_000;

type CrashCluster<L> = SimCluster<MemoryServer<L>>;

/// Begins a compute server's next incarnation, over an endpoint of another compute server.
///
/// The compute servers of these scenarios share a process, so each endpoint may write nodes of all
/// of them, and the next incarnation mends nodes of all keys.
async fn begin_incarnation<L: Layout>(
    fabric: &impl Fabric,
    options: &CacheOptions,
    server: u16,
) -> Result<(), IndexError> {
    fence_former_incarnation(fabric, server).await?;
    let all_keys = OwnedRange { low: L::min_key(), high: None };
    end_former_incarnation::<Dex, _, L>(fabric.clone(), options, server, &all_keys).await
}

/// State shared by all rounds of a run.
struct CrashRun<'a, L: Layout> {
    scenario: &'a Scenario,
    seed: u64,
    inspector: InspectedPool<L>,
    /// The caches of the compute servers.
    cache: CacheOptions,
}

/// Runs all rounds and adds their histories to `board`.
pub(crate) fn play<L>(scenario: &Scenario, seed: u64, board: &RunBoard) -> Result<(), String>
where
    L: SimulatedLayout,
{
    let spec = scenario.crash.as_ref().ok_or("this scenario has no [crash]")?;
    let options = dex_options::<L>(scenario)?;
    let design = <L as CompiledDesign<Dex>>::design(options.clone());
    let servers: SimServers<L> =
        start(scenario, async |fabric: &AnyFabric| design.create(fabric).await)?;
    let pool = <Dex as Design<L>>::compute(&options);
    let mut pool = pool.map_err(|error| format!("cannot set up the compute side: {error}"))?;
    let cluster = sim_config(scenario, &mut workload::rng(seed, 0)).start(servers.clone());
    let (inspector, cache) = (InspectedPool::new(&servers, scenario), options.cache);
    let run = CrashRun { scenario, seed, inspector, cache };
    let mut rng = workload::rng(seed, u64::MAX / 7);
    let mut found = AuditedContents { contents: BTreeMap::new(), damaged: BTreeSet::new() };
    if scenario.workload.load == LoadSpec::Bulk {
        found.contents = workload::initial_contents(&scenario.workload);
    }
    let mut written: BTreeSet<u64> =
        workload::initial_contents(&scenario.workload).into_values().chain([0]).collect();
    let rounds = board.death().map_or(spec.rounds, |_| 1);
    for round in 0..=rounds {
        let is_last = round == rounds;
        let dying = match spec.servers.is_empty() {
            true => (0..pool.servers().len() as u16).collect(),
            false => spec.servers.clone(),
        };
        let which = |report: String| format!("round {round}: {report}");
        let contents = std::mem::take(&mut found.contents);
        let clients = |board: &RunBoard| run.round(&cluster, board, &pool, round, is_last);
        let death = board.death().unwrap_or_else(|| DeathAt::drawn(spec.max_writes, &mut rng));
        let death = (!is_last).then_some(death);
        let begin = (&dying[..], death, contents);
        let history = play_round(&cluster, scenario, board, begin, clients).map_err(which)?;
        if is_last {
            break;
        }
        dying.iter().for_each(|server| cluster.restart_compute_server(*server));
        let died = |server: u16| dying.contains(&server);
        run.flush(&cluster, &pool, |server| !died(server)).map_err(which)?;
        pool = restarted(&pool, died)?;
        found = run.audit(&cluster, &pool, &dying).map_err(which)?;
        if scenario.acknowledges_written() && !found.damaged.is_empty() {
            return Err(which(format!("the keys of damaged pages are lost: {:?}", found.damaged)));
        }
        written.extend(values_written(&history));
        let any_value = (scenario.faults.tear_probability > 0.0).then_some(&written);
        let map = pool.map();
        let owner_of = |name| map.owner_of(L::key(&L::key_named(name)));
        let kept = match scenario.acknowledges_written() {
            true => check_all_kept(&history, &found.contents),
            false => check_kept(
                &history,
                &found.contents,
                &found.damaged,
                any_value,
                |key| died(owner_of(key)),
                |client, key| run.flushes(round, client).is_none_or(|own| own == owner_of(key)),
                spec.loses_ns,
            ),
        };
        match kept {
            CheckVerdict::Holds => {}
            CheckVerdict::Violated(report) | CheckVerdict::GaveUp(report) => {
                return Err(which(report));
            }
        }
        if rng.random_bool(0.5) {
            pool = restarted(&pool, died)?;
        }
    }
    if found.damaged.is_empty() { run.settle(&cluster, &pool) } else { Ok(()) }
}

fn restarted<L: NamedLayout>(
    pool: &ComputePool<Dex, L>,
    dead: impl Fn(u16) -> bool,
) -> Result<Arc<ComputePool<Dex, L>>, String> {
    pool.restarted(dead)
        .map(Arc::new)
        .map_err(|error| format!("cannot set up the compute side: {error}"))
}

/// A client that only uses keys of its own compute server and does everything through that server's
/// endpoint.
async fn own_client<L: SimulatedLayout>(
    fabric: AnyFabric,
    pool: &Arc<ComputePool<Dex, L>>,
    board: &RunBoard,
    scenario: &Scenario,
    seed: u64,
    (number, first): (usize, usize),
) {
    let _active = ActiveClient(board);
    board.wait_for_load(&fabric).await;
    let open = || <Dex as Design<L>>::open(fabric.clone(), pool);
    let Some(index) = board.open_with(&fabric, open).await else { return };
    let index = ByName::<L, _>::new(index);
    let server = fabric.compute_server();
    let range = named_range::<L>(&pool.map().range_of(server));
    let in_flight = usize::from(scenario.cluster.in_flight_per_client);
    let streams = (number * in_flight..(number + 1) * in_flight).map(async |stream| {
        let mut stream = SimOperationStream::new(&scenario.workload, seed, (first + stream) as u32);
        while let Some(action) = stream.next() {
            let pause_ns = stream.pause_ns();
            if pause_ns > 0 {
                fabric.sleep(pause_ns).await;
            }
            let Some(action) = of_own_keys(action, &range) else { continue };
            let here = index.index().part(server);
            let client = stream.client();
            let outcome = match action {
                ClientAction::Flush => board.record(&fabric, client, &action, here.flush()).await,
                ClientAction::Collect => {
                    board.record(&fabric, client, &action, here.collect()).await
                }
                _ => board.perform(&fabric, &index, client, &action).await,
            };
            stream.learn(&action, &outcome);
        }
    });
    join_all(streams).await;
}

/// Translates a range of keys to a range of names. Its ends need not have names.
fn named_range<L: NamedLayout>(range: &OwnedRange<OwnedKey<L>>) -> OwnedRange<u64> {
    let low = first_from::<L>(L::key(&range.low)).unwrap_or(u64::MAX);
    OwnedRange { low, high: range.high.as_ref().and_then(|high| first_from::<L>(L::key(high))) }
}

/// The first name whose key is not below `end`; `None` if all keys with names are below it.
fn first_from<L: NamedLayout>(end: &L::Key) -> Option<u64> {
    let is_below = |name| L::key(&L::key_named(name)) < end;
    let (mut low, mut high) = (0, u64::MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        match is_below(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    (!is_below(low)).then_some(low)
}

/// Restricts an action to the keys of a range; `None` if nothing remains.
fn of_own_keys(action: ClientAction, range: &OwnedRange<u64>) -> Option<ClientAction> {
    let (low, high) = (&range.low, range.high.as_ref());
    match action {
        ClientAction::Get(key)
        | ClientAction::Insert(key, _)
        | ClientAction::Update(key, _)
        | ClientAction::Upsert(key, _)
        | ClientAction::Remove(key)
        | ClientAction::CompareExchange { key, .. } => range.has(&key).then_some(action),
        ClientAction::MultiGet(mut keys) => {
            keys.retain(|key| range.has(key));
            Some(ClientAction::MultiGet(keys))
        }
        ClientAction::Scan(scan) => {
            let (lower, upper) = clipped((scan.lower.as_ref(), scan.upper.as_ref()), (low, high));
            let scan = ScanRequest { lower: lower.cloned(), upper: upper.cloned(), ..scan };
            is_some_key_within(&scan).then_some(ClientAction::Scan(scan))
        }
        ClientAction::Collect | ClientAction::Flush => Some(action),
    }
}

/// Whether the bounds leave room for a key: clipping can make a scan empty.
fn is_some_key_within(scan: &ScanRequest<u64>) -> bool {
    match (&scan.lower, &scan.upper) {
        (Bound::Included(low), Bound::Included(high)) => low <= high,
        (
            Bound::Included(low) | Bound::Excluded(low),
            Bound::Included(high) | Bound::Excluded(high),
        ) => low < high,
        _ => true,
    }
}

/// The compute side as an object.
fn compute_of<L: SimulatedLayout>(pool: &Arc<ComputePool<Dex, L>>) -> AnyCompute<L> {
    <L as CompiledDesign<Dex>>::compute(Arc::clone(pool))
}

/// Writes back by age on a compute server, if the scenario asks for it.
async fn write_back<L: SimulatedLayout>(
    fabric: AnyFabric,
    pool: &Arc<ComputePool<Dex, L>>,
    board: &RunBoard,
) {
    board.wait_for_load(&fabric).await;
    let Some(index) = board.open(&fabric, &compute_of(pool)).await else { return };
    let ended = index.background(Background::WriteBack, &|| board.is_over(), &|_| {}).await;
    ended.unwrap_or_else(|error| board.report(format!("cannot write back by age: {error}")));
}

impl<L: SimulatedLayout> CrashRun<'_, L> {
    /// Reads everything after a crash. A WRITE that stopped half-way can damage only leaves,
    /// because inner nodes are logged (D9).
    fn reader(&self) -> Reader<'_, impl Fn(GlobalAddr) -> bool> {
        let allows_damage = self.scenario.allowed_errors.contains(&ErrorKind::Damaged);
        let may_be_damaged = move |at| allows_damage && self.inspector.is_leaf(at);
        Reader { spec: &self.scenario.workload, may_be_damaged }
    }

    /// Streams of operations in a round, including the keeper's.
    fn streams(&self) -> u32 {
        let cluster = &self.scenario.cluster;
        let clients = cluster.compute_servers * cluster.clients_per_compute_server;
        u32::from(clients) * u32::from(cluster.in_flight_per_client) + 1
    }

    /// Whether clients only use keys of their own compute servers.
    fn has_own_keys(&self) -> bool {
        self.scenario.crash.as_ref().is_some_and(|crash| !crash.servers.is_empty())
    }

    /// The only compute server that a stream's flush writes back; `None` if it writes back all.
    fn flushes(&self, round: u16, stream: u32) -> Option<u16> {
        let cluster = &self.scenario.cluster;
        let place = stream - u32::from(round) * self.streams();
        let of_server = cluster.clients_per_compute_server * cluster.in_flight_per_client;
        let is_keeper = place + 1 == self.streams();
        (self.has_own_keys() && !is_keeper).then(|| (place / u32::from(of_server)) as u16)
    }

    /// The compute server number of the endpoints that never die.
    fn observer(&self) -> u16 {
        let spares = match self.scenario.design {
            DesignSpec::Dex { spare_compute_servers, .. } => spare_compute_servers,
            _ => 0,
        };
        self.scenario.cluster.compute_servers + spares
    }

    /// Runs the clients until all have ended or died.
    fn round(
        &self,
        sim: &CrashCluster<L>,
        board: &RunBoard,
        pool: &Arc<ComputePool<Dex, L>>,
        round: u16,
        is_last: bool,
    ) {
        let (scenario, cluster) = (self.scenario, &self.scenario.cluster);
        let per_server = cluster.clients_per_compute_server;
        let mut endpoints: Vec<u16> = (0..cluster.compute_servers)
            .flat_map(|server| (0..per_server).map(move |_| server))
            .collect();
        let clients = endpoints.len();
        endpoints.extend([self.observer(), self.observer(), 0]);
        endpoints.extend(0..cluster.compute_servers);
        // Different seeds and streams in each round, so that no two rounds write the same values.
        let first_client = usize::from(round) * self.streams() as usize;
        let seed = self.seed ^ u64::from(round) << 48;
        let own_keys = self.has_own_keys();
        let compute = &compute_of(pool);
        let control = sim.control();
        board.reports_progress_to(control.clone());
        sim.run(&endpoints, async |fabric, number| match number - clients.min(number) {
            _ if number < clients && own_keys => {
                let place = (number, first_client);
                own_client(fabric, pool, board, scenario, seed, place).await;
            }
            _ if number < clients => {
                let place = (number, first_client);
                client::client(fabric, compute, board, scenario, seed, place).await;
            }
            0 => {
                let number = first_client as u32 + self.streams() - 1;
                self.keeper(fabric, board, compute, (round, number), is_last, &control).await;
            }
            1 => self.inspector.watch(fabric, board, seed).await,
            2 => {
                board.wait_for_load(&fabric).await;
                mover(fabric, pool, board, scenario, (seed, 0)).await;
            }
            _ => write_back(fabric, pool, board).await,
        });
    }

    /// The keeper's task: loads the index, lets clients begin, and restarts dead compute servers.
    /// At the end of the last round it reads everything.
    async fn keeper(
        &self,
        fabric: AnyFabric,
        board: &RunBoard,
        compute: &AnyCompute<L>,
        (round, number): (u16, u32),
        is_last: bool,
        control: &SimControl,
    ) {
        let _over = ObserverGuard(board);
        let opened = board.open(&fabric, compute).await;
        let Some(index) = opened else { return board.let_clients_begin() };
        if round == 0 {
            client::load(&fabric, &index, board, self.scenario, number).await;
            board.perform(&fabric, &index, number, &ClientAction::Flush).await;
        }
        board.let_clients_begin();
        let alive = control.deaths();
        let has_died = || control.deaths() > alive;
        board.wait_for_clients_or(&fabric, has_died).await;
        let spec = self.scenario.crash.as_ref();
        let reborn = spec.filter(|_| has_died()).map_or(&[][..], |spec| &spec.servers);
        if !reborn.is_empty() {
            fabric.sleep(fabric.random() % MAX_DEATH_NS).await;
        }
        for server in reborn {
            if let Err(error) = begin_incarnation::<L>(&fabric, &self.cache, *server).await {
                board.report(format!("compute server {server} cannot restart: {error}"));
            }
        }
        board.wait_for_clients_or(&fabric, || false).await;
        if is_last {
            client::read_everything(&fabric, &index, board, self.scenario, number).await;
        }
    }

    /// Writes back everything on the compute servers that `lives` selects.
    fn flush(
        &self,
        sim: &CrashCluster<L>,
        pool: &Arc<ComputePool<Dex, L>>,
        lives: impl Fn(u16) -> bool + Sync,
    ) -> Result<(), String> {
        let outcome = sim.run(&[self.observer()], async |fabric, _| {
            let index = <Dex as Design<L>>::open(fabric, pool).await?;
            for server in (0..pool.servers().len() as u16).filter(|server| lives(*server)) {
                index.part(server).flush().await?;
            }
            Ok::<_, IndexError>(())
        });
        match outcome.into_iter().next().flatten() {
            Some(Ok(())) => Ok(()),
            other => Err(format!("the surviving compute servers cannot write back: {other:?}")),
        }
    }

    /// Begins the next incarnation of the dead compute servers, and reads everything in every way.
    fn audit(
        &self,
        sim: &CrashCluster<L>,
        pool: &ComputePool<Dex, L>,
        servers: &[u16],
    ) -> Result<AuditedContents, String> {
        let cold = || restarted(pool, |_| true);
        let pools = [cold()?, cold()?, cold()?];
        let pools = &pools;
        let outcome = sim.run(&[self.observer()], async |fabric, _| {
            for server in servers {
                let begun = begin_incarnation::<L>(&fabric, &self.cache, *server).await;
                begun
                    .map_err(|error| format!("compute server {server} cannot restart: {error}"))?;
            }
            let open = async |number: usize| {
                let opened = compute_of(&pools[number]).open(fabric.clone()).await;
                opened
                    .map(ByName::<L, _>::new)
                    .map_err(|error| format!("the index cannot be opened: {error}"))
            };
            let indexes = [&open(0).await?, &open(1).await?, &open(2).await?];
            self.reader().read_all(indexes).await
        });
        outcome.into_iter().next().flatten().ok_or("the auditor did not end")?
    }

    /// Writes everything back and checks that the pool holds exactly the index's records.
    fn settle(&self, sim: &CrashCluster<L>, pool: &Arc<ComputePool<Dex, L>>) -> Result<(), String> {
        let outcome = sim.run(&[self.observer()], async |fabric, _| {
            let index = ByName::<L, _>::new(compute_of(pool).open(fabric).await?);
            index.flush().await?;
            index.scan(&ScanRequest::range(..)).await
        });
        let records = match outcome.into_iter().next().flatten() {
            Some(Ok(records)) => records,
            other => return Err(format!("the index cannot be written back: {other:?}")),
        };
        let held = self.inspector.look(ExpectedState::Settled);
        let held = held.map_err(|fault| format!("at the end, in the pool: {fault}"))?;
        match held == records {
            true => Ok(()),
            false => Err(format!("at the end the pool has {held:?}, the index {records:?}")),
        }
    }
}
