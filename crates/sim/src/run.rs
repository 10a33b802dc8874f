//! Runs one scenario with one seed, and judges the result.
//!
//! The seed determines everything: the clients' operations, and the faults and their times. Before
//! the simulation starts, the empty index is created on the same memory servers over a local
//! cluster, where no faults happen: scenarios are about an existing index.
//!
//! *Invariant*: equal scenarios and seeds give equal histories and verdicts.

use crate::client::{RunBoard, RunCounts, ServerDeath, client, observer};
use crate::crash;
use crate::death::DeathAt;
use crate::form::{InShards, SimulatedLayout};
use crate::inspect::{ExpectedState, InspectedPool, InspectedTree, at_the_end, watch};
use crate::processes;
use crate::reshaping::{balancer, grower, lsm_worker, mover};
use crate::scenario::{DesignSpec, ErrorKind, KeysSpec, Scenario};
use crate::setup::{
    SimServers, block_options, boundaries, dex_options, dlsm_options, entrywise_options,
    sim_config, smart_design, start,
};
use crate::takeover;
use crate::workload;
use farleaf_designs::CompiledDesign;
use farleaf_dex::Dex;
use farleaf_dex::blocks::{BlockUsage, DexWithBlocks, InBlocks};
use farleaf_dlsm::Dlsm;
use farleaf_fabric::sim::SimCluster;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{AnyFabric, Cluster, Provider};
use farleaf_history::checker::{CheckVerdict, check, check_snapshots};
use farleaf_history::{History, OperationOutcome};
use farleaf_index::CacheCounters;
use farleaf_index::{
    AnyCompute, AnyDesign, ByName, Design, InLeaves, IndexError, RangeIndex, ScanRequest,
};
use farleaf_page::{Bytes, CHOSEN, Fixed8, Layout, NamedLayout, OwnedKey, with_page_words};
use farleaf_pool::server::MemoryServer;
use farleaf_trees::chime::{Chime, ChimeOptions};
use farleaf_trees::coarse::Coarse;
use farleaf_trees::fine::Fine;
use farleaf_trees::hybrid::Hybrid;
use farleaf_trees::sherman::Sherman;
use rand::RngExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The checkers found nothing wrong.
    Ok,
    /// The index violated a guarantee; holds the report.
    Violation(String),
    /// The history exceeded the checkers' limits. The scenario is unsuitable and proves nothing.
    GaveUp(String),
}

/// The report of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// The scenario's name.
    pub scenario: String,
    pub seed: u64,
    /// A digest of everything that the clients did and observed.
    pub history_hash: u64,
    /// Operations invoked.
    pub operations: usize,
    /// Operations with an answer.
    pub answered: usize,
    /// Operations that ended in an error and did not take effect.
    pub failed: usize,
    /// Counters of the caches, if the design has any.
    pub cache: CacheCounters,
    /// Moves of keys by the balancer.
    pub balanced: u64,
    /// Rounds in which compute servers died at a WRITE.
    pub deaths: u64,
    /// How the run ended.
    pub outcome: RunOutcome,
}

/// Runs `scenario` with `seed`.
pub fn run_seed(scenario: &Scenario, seed: u64) -> RunReport {
    report(scenario, seed, run_and_count(scenario, seed, None))
}

/// Same as [`run_seed`], but in a crash scenario the compute servers die once, at this moment.
pub fn run_with_death(scenario: &Scenario, seed: u64, death: DeathAt) -> RunReport {
    report(scenario, seed, run_and_count(scenario, seed, Some(death)))
}

/// Same as [`run_seed`], but runs this design instead of the scenario's. Checks what clients
/// observe, but does not inspect the pool, whose structure only the design knows. Scenarios with
/// crashes, processes or byte strings end in a violation that reports that they are unsupported.
pub fn run_design(scenario: &Scenario, seed: u64, design: &AnyDesign<Fixed8<CHOSEN>>) -> RunReport {
    let play = |board: &RunBoard| match scenario {
        Scenario { crash: None, processes: None, cluster, .. } if cluster.keys == KeysSpec::U64 => {
            with_page_words(cluster.page_words, || play_uninspected(scenario, seed, board, design))
        }
        _ => Err(format!("{} needs a design that the simulator knows", scenario.name)),
    };
    report(scenario, seed, play_and_count(scenario, None, play))
}

fn report(
    scenario: &Scenario,
    seed: u64,
    (history, counts, outcome): (History, RunCounts, RunOutcome),
) -> RunReport {
    let RunCounts { cache, balanced, deaths } = counts;
    let count = |counts: fn(&OperationOutcome) -> bool| {
        history.operations.iter().filter(|operation| counts(&operation.outcome)).count()
    };
    RunReport {
        scenario: scenario.name.clone(),
        seed,
        history_hash: history.hash(),
        operations: history.operations.len(),
        answered: count(OperationOutcome::is_answer),
        failed: count(|outcome| matches!(outcome, OperationOutcome::Failed(_))),
        cache,
        balanced,
        deaths,
        outcome,
    }
}

/// Runs `scenario` with `seed` and returns what the clients did and observed.
pub fn run_and_keep(scenario: &Scenario, seed: u64) -> (History, RunOutcome) {
    let (history, _, outcome) = run_and_count(scenario, seed, None);
    (history, outcome)
}

fn run_and_count(
    scenario: &Scenario,
    seed: u64,
    death: Option<DeathAt>,
) -> (History, RunCounts, RunOutcome) {
    play_and_count(scenario, death, |board| play(scenario, seed, board))
}

fn play_and_count(
    scenario: &Scenario,
    death: Option<DeathAt>,
    play: impl FnOnce(&RunBoard) -> Result<(), String>,
) -> (History, RunCounts, RunOutcome) {
    let board = RunBoard::new(scenario, death);
    // A panic of the code under test is a finding like any other, and the history up to it is
    // evidence. Anything that the panic may have left half done is dropped here, except for the
    // board, which is consistent after each of its steps.
    let play = AssertUnwindSafe(|| play(&board));
    let structure = catch_unwind(play).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
    });
    let history = board.recorder.take();
    // Rounds between crashes have separate histories, which have already been checked.
    let verdict = match (&scenario.crash, scenario.workload.one_leaf) {
        (Some(_), _) => CheckVerdict::Holds,
        // Its processes lose answers, and its flushes have been judged.
        _ if scenario.processes.as_ref().is_some_and(|spec| spec.forgets) => CheckVerdict::Holds,
        (None, false) => check(&history),
        (None, true) => match check(&history) {
            CheckVerdict::Holds => check_snapshots(&history),
            other => other,
        },
    };
    // A failed load explains everything that is missing later.
    if let Some(failed) = board.failed_load() {
        return (history, board.counts(), RunOutcome::Violation(failed));
    }
    let outcome = match (structure, verdict, board.fault()) {
        // The clients' observations are more informative than the state of the index.
        (_, CheckVerdict::Violated(report), _) | (Err(report), ..) => RunOutcome::Violation(report),
        (.., Some(fault)) => RunOutcome::Violation(fault),
        (_, CheckVerdict::GaveUp(why), None) => RunOutcome::GaveUp(why),
        (Ok(()), CheckVerdict::Holds, None) => RunOutcome::Ok,
    };
    (history, board.counts(), outcome)
}

/// Selects the code for the scenario's page size. A checked scenario has a supported one.
fn play(scenario: &Scenario, seed: u64, board: &RunBoard) -> Result<(), String> {
    if let Some(inline_bytes) = scenario.cluster.inline_bytes {
        return with_page_words(BLOCK_PAGE_WORDS, || {
            play_blocks(scenario, seed, board, inline_bytes)
        });
    }
    match (scenario.cluster.keys, scenario.cluster.page_words) {
        (KeysSpec::Bytes, words @ 64) => {
            with_page_words(words, || play_design::<Bytes<CHOSEN>>(scenario, seed, board))
        }
        (KeysSpec::Bytes, words) => Err(format!("unsupported page size: {words} words")),
        (KeysSpec::U64, words) => {
            with_page_words(words, || play_design::<Fixed8<CHOSEN>>(scenario, seed, board))
        }
    }
}

/// The layout of scenarios with value blocks.
type WithBlocks = Bytes<CHOSEN>;
/// The page size of scenarios with value blocks, in words.
const BLOCK_PAGE_WORDS: usize = 64;

/// Runs a scenario with value blocks.
fn play_blocks(
    scenario: &Scenario,
    seed: u64,
    board: &RunBoard,
    inline_bytes: usize,
) -> Result<(), String> {
    let DesignSpec::Dex { moves, movers, .. } = &scenario.design else {
        return Err("only DEX has value blocks".to_owned());
    };
    if let Some(spec) = &scenario.processes {
        return processes::play::<WithBlocks, InBlocks>(scenario, spec, seed, board);
    }
    let options = block_options(inline_bytes, dex_options::<WithBlocks>(scenario)?);
    let (servers, compute) = set_up::<WithBlocks, DexWithBlocks>(scenario, &options)?;
    let object = <WithBlocks as CompiledDesign<DexWithBlocks>>::compute(compute.clone());
    let movers = if *moves > 0 { usize::from(*movers) } else { 0 };
    let beside = async |fabric, number: usize| {
        let which = (seed, number as u64);
        mover(fabric, compute.design(), board, scenario, which).await;
    };
    let beside = (movers, beside);
    let cluster = simulate(scenario, seed, board, &servers, &object, beside);
    count_blocks(scenario, board, &cluster, &object, compute.usage())
}

/// Compares the blocks in use with the values that need one, after a run in which every operation
/// had an answer: no block is lost, and none was given back twice.
fn count_blocks(
    scenario: &Scenario,
    board: &RunBoard,
    cluster: &SimCluster<MemoryServer<WithBlocks>>,
    compute: &AnyCompute<WithBlocks>,
    usage: BlockUsage,
) -> Result<(), String> {
    let is_certain = scenario.allowed_errors.is_empty()
        && scenario.faults.kill_compute_server.is_empty()
        && scenario.faults.declare_live_dead.is_empty();
    if board.fault().is_some() || !is_certain {
        return Ok(());
    }
    let observer = scenario.cluster.compute_servers;
    let mut scanned = cluster.run(&[observer], async |fabric, _| -> Result<_, IndexError> {
        let index = compute.open(fabric).await?;
        index.scan(&ScanRequest::range(..)).await
    });
    let records = match scanned.pop().flatten() {
        Some(Ok(records)) => records,
        other => return Err(format!("the index cannot be scanned at the end: {other:?}")),
    };
    let inline_bytes = scenario.cluster.inline_bytes.unwrap_or_default();
    let needed = records.iter().filter(|(_, value)| value.len() > inline_bytes).count() as u64;
    match usage.blocks_in_use == needed {
        true => Ok(()),
        false => Err(format!("at the end, {needed} values need blocks, but there are {usage:?}")),
    }
}

/// The low ends of the memory servers' shares of the keys, without the first one.
fn shares<L: NamedLayout>(scenario: &Scenario) -> Vec<OwnedKey<L>> {
    boundaries::<L>(scenario, scenario.cluster.memory_servers)
}

fn play_design<L>(scenario: &Scenario, seed: u64, board: &RunBoard) -> Result<(), String>
where
    L: SimulatedLayout,
{
    match &scenario.design {
        DesignSpec::Coarse(options) => {
            let options = options.divided(shares::<L>(scenario));
            play_on(scenario, seed, board, &<L as CompiledDesign<Coarse>>::design(options))
        }
        DesignSpec::Fine(options) => {
            play_on(scenario, seed, board, &<L as CompiledDesign<Fine>>::design(*options))
        }
        DesignSpec::Hybrid(options) => {
            let options = options.clone().divided(shares::<L>(scenario));
            play_on(scenario, seed, board, &<L as CompiledDesign<Hybrid>>::design(options))
        }
        DesignSpec::Sherman { cache_nodes, tree } => {
            let options = entrywise_options::<L>(*tree, *cache_nodes);
            // On servers of the layout of its pages, which the inspector reads.
            let design = <L::Entries as CompiledDesign<Sherman>>::design(options);
            play_on(scenario, seed, board, &design)
        }
        DesignSpec::Chime { cache_nodes, options } => {
            let tree = entrywise_options::<L>(options.tree, *cache_nodes);
            let options = ChimeOptions { tree, ..*options };
            play_on(scenario, seed, board, &<L::Hops as CompiledDesign<Chime>>::design(options))
        }
        DesignSpec::Smart { .. } => play_on(scenario, seed, board, &smart_design::<L>(scenario)?),
        DesignSpec::Dex { .. } => play_dex::<L>(scenario, seed, board),
        DesignSpec::Dlsm { .. } => play_dlsm::<L>(scenario, seed, board),
    }
}

/// Runs a scenario of dLSM and inspects its tree during the run and at the end.
fn play_dlsm<L>(scenario: &Scenario, seed: u64, board: &RunBoard) -> Result<(), String>
where
    L: SimulatedLayout,
{
    if scenario.crash.is_some() {
        return takeover::play::<L>(scenario, seed, board);
    }
    if let Some(spec) = &scenario.processes {
        return processes::play::<L, InShards>(scenario, spec, seed, board);
    }
    let options = dlsm_options(scenario)?;
    let (servers, shard) = set_up::<L, Dlsm>(scenario, &options)?;
    let compute = <L as CompiledDesign<Dlsm>>::compute(Arc::clone(&shard));
    let pool = InspectedPool::new(&servers, scenario);
    let tree = InspectedTree::new(&pool, &shard, scenario);
    let DesignSpec::Dlsm { workers, .. } = scenario.design else {
        return Err("the scenario's design is not dlsm".to_owned());
    };
    let beside = async |fabric, number: usize| match number {
        0 => watch(fabric, board, seed, || tree.look()).await,
        _ => lsm_worker::<L>(fabric, &shard, board).await,
    };
    let beside = (1 + usize::from(workers), beside);
    let cluster = simulate(scenario, seed, board, &servers, &compute, beside);
    match board.fault() {
        Some(_) => Ok(()),
        None => tree.look_at_the_end(&cluster, scenario.cluster.compute_servers),
    }
}

/// Memory servers with the empty index, and its compute side.
fn set_up<L: CompiledDesign<De>, De: Design<L>>(
    scenario: &Scenario,
    options: &De::Options,
) -> Result<(SimServers<L>, De::Compute), String> {
    let design = L::design(options.clone());
    let servers = start(scenario, async |fabric: &AnyFabric| design.create(fabric).await)?;
    let compute = De::compute(options);
    let compute = compute.map_err(|error| format!("cannot set up the compute side: {error}"))?;
    Ok((servers, compute))
}

/// The same of a design that is only known as an object.
fn set_up_any<L: Layout>(
    scenario: &Scenario,
    design: &AnyDesign<L>,
) -> Result<(SimServers<L>, AnyCompute<L>), String> {
    let servers = start(scenario, async |fabric: &AnyFabric| design.create(fabric).await)?;
    let compute = design.compute();
    Ok((servers, compute.map_err(|error| format!("cannot set up the compute side: {error}"))?))
}

fn play_on<L: NamedLayout>(
    scenario: &Scenario,
    seed: u64,
    board: &RunBoard,
    design: &AnyDesign<L>,
) -> Result<(), String> {
    let (servers, compute) = set_up_any(scenario, design)?;
    let pool = InspectedPool::new(&servers, scenario);
    let beside = (1, async |fabric, _| pool.watch(fabric, board, seed).await);
    let cluster = simulate(scenario, seed, board, &servers, &compute, beside);
    if board.fault().is_some() {
        return Ok(());
    }
    pool.look_at_the_end(&cluster, &compute, scenario.cluster.compute_servers)
}

fn play_uninspected<L: NamedLayout>(
    scenario: &Scenario,
    seed: u64,
    board: &RunBoard,
    design: &AnyDesign<L>,
) -> Result<(), String> {
    let (servers, compute) = set_up_any(scenario, design)?;
    let nothing = (0, async |_, _| ());
    simulate(scenario, seed, board, &servers, &compute, nothing);
    Ok(())
}

/// Runs a scenario of DEX and inspects its tree during the run and at the end.
fn play_dex<L: SimulatedLayout>(
    scenario: &Scenario,
    seed: u64,
    board: &RunBoard,
) -> Result<(), String> {
    if scenario.crash.is_some() {
        return crash::play::<L>(scenario, seed, board);
    }
    if let Some(spec) = &scenario.processes {
        return processes::play::<L, InLeaves>(scenario, spec, seed, board);
    }
    let options = dex_options::<L>(scenario)?;
    let (servers, compute) = set_up::<L, Dex>(scenario, &options)?;
    let object = <L as CompiledDesign<Dex>>::compute(Arc::clone(&compute));
    let pool = InspectedPool::new(&servers, scenario);
    let DesignSpec::Dex { movers, .. } = scenario.design else {
        return Err("the scenario's design is not dex".to_owned());
    };
    let beside = async |fabric, number: usize| match number {
        0 => pool.watch(fabric, board, seed).await,
        1 => mover(fabric, &compute, board, scenario, (seed, 0)).await,
        2 => balancer(fabric, &compute, board, scenario).await,
        3 => grower(fabric, &compute, board, scenario, seed).await,
        _ => {
            let mover = number as u64 - 3;
            crate::reshaping::mover(fabric, &compute, board, scenario, (seed, mover)).await;
        }
    };
    let beside = (3 + usize::from(movers), beside);
    let cluster = simulate(scenario, seed, board, &servers, &object, beside);
    if board.fault().is_some() {
        return Ok(());
    }
    if scenario.allowed_errors.contains(&ErrorKind::Indeterminate) {
        // Late messages may still land, and failed operations may be half done.
        return pool.look(ExpectedState::WellFormed).map(drop).map_err(at_the_end);
    }
    // Once everything is written back, the pool holds exactly the index's records.
    let observer = scenario.cluster.compute_servers;
    let mut flushed = cluster.run(&[observer], async |fabric, _| -> Result<_, IndexError> {
        let index = object.open(fabric).await?;
        index.flush().await?;
        ByName::<L, _>::new(index).scan(&ScanRequest::range(..)).await
    });
    let records = match flushed.pop().flatten() {
        Some(Ok(records)) => records,
        other => return Err(format!("the index cannot be written back: {other:?}")),
    };
    let held = pool.look(ExpectedState::Exact).map_err(at_the_end)?;
    if held != records {
        return Err(at_the_end(format!("it holds {held:?}, but the index returns {records:?}")));
    }
    Ok(())
}

/// Runs the scenario's clients and observer, and `others` additional tasks, numbered from 0, which
/// `beside` defines.
fn simulate<L, B>(
    scenario: &Scenario,
    seed: u64,
    board: &RunBoard,
    servers: &[Arc<MemoryServer<L>>],
    compute: &AnyCompute<L>,
    (others, beside): (usize, B),
) -> SimCluster<MemoryServer<L>>
where
    L: NamedLayout,
    B: AsyncFn(AnyFabric, usize) + Sync,
{
    let cluster = &scenario.cluster;
    let sim = sim_config(scenario, &mut workload::rng(seed, 0));
    let known_after_ns = scenario.faults.declare_dead_after_ns;
    let death = |&(compute_server, at_ns): &(u16, u64)| ServerDeath {
        compute_server,
        known_at_ns: at_ns.saturating_add(known_after_ns),
    };
    let mut deaths: Vec<ServerDeath> =
        sim.faults.kill_compute_server_at_ns.iter().map(death).collect();
    let mut rng = workload::rng(seed, u64::MAX / 9);
    deaths.extend(scenario.faults.declare_live_dead.iter().map(|wrong| ServerDeath {
        compute_server: wrong.server,
        known_at_ns: rng.random_range(wrong.earliest_ns..=wrong.latest_ns),
    }));
    let mut endpoints: Vec<u16> = (0..cluster.compute_servers)
        .flat_map(|server| (0..cluster.clients_per_compute_server).map(move |_| server))
        .collect();
    let clients = endpoints.len();
    // The observer's and inspector's compute server is not one of the scenario's, and never dies.
    endpoints.push(cluster.compute_servers);
    endpoints.extend(std::iter::repeat_n(cluster.compute_servers, others));
    let simulated = sim.start(servers.to_vec());
    board.reports_progress_to(simulated.control());
    simulated.run(&endpoints, async |fabric, number| {
        if number < clients {
            client(fabric, compute, board, scenario, seed, (number, 0)).await;
        } else if number == clients {
            let number = number as u32 * u32::from(cluster.in_flight_per_client);
            observer(fabric, compute, board, scenario, number, &deaths).await;
        } else {
            beside(fabric, number - clients - 1).await;
        }
    });
    simulated
}
