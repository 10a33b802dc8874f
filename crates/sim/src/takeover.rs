//! Takeovers of a dLSM tree: all compute servers of a process die together at one of their WRITEs,
//! and another process opens the tree from the shard's directory.
//!
//! A run consists of rounds. In every round but the last, clients work until the crash. An auditor
//! then takes the tree over for the next process, inspects its tables and extents, and reads every
//! key in every way. The contents must be among those that the crash may leave ([`check_kept`]).
//! The next round begins with these contents, in the auditor's process or in one more. In the last
//! round no compute server dies.
//!
//! *Thread safety*: a run is one thread.

use crate::audit::{AuditedContents, Reader};
use crate::client::{self, ObserverGuard, RunBoard};
use crate::death::DeathAt;
use crate::form::SimulatedLayout;
use crate::inspect::{InspectedPool, InspectedTree, watch};
use crate::reshaping::lsm_worker;
use crate::rounds::play_round;
use crate::scenario::{DesignSpec, LoadSpec, Scenario};
use crate::setup::{SimServers, dlsm_options, sim_config, start};
use crate::workload;
use farleaf_designs::CompiledDesign;
use farleaf_dlsm::{Dlsm, DlsmOptions, LsmShard};
use farleaf_fabric::sim::SimCluster;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{AnyFabric, Cluster, Provider};
use farleaf_history::ClientAction;
use farleaf_history::checker::{CheckVerdict, check_kept};
use farleaf_index::{AnyCompute, ByName, Design, IndexError};
use farleaf_page::Layout;
use farleaf_pool::server::MemoryServer;
use rand::RngExt;

type TakeoverCluster<L> = SimCluster<MemoryServer<L>>;

/// What all rounds of a run share.
struct TakeoverRun<'a, L: Layout> {
    scenario: &'a Scenario,
    seed: u64,
    pool: InspectedPool<L>,
    options: DlsmOptions,
    /// Background tasks of each process.
    workers: u16,
}

/// Runs all rounds and adds their histories to `board`.
pub(crate) fn play<L>(scenario: &Scenario, seed: u64, board: &RunBoard) -> Result<(), String>
where
    L: SimulatedLayout,
{
    let (Some(spec), DesignSpec::Dlsm { workers, .. }) = (&scenario.crash, &scenario.design) else {
        return Err("this is no scenario of dlsm with [crash]".to_owned());
    };
    let (options, workers) = (dlsm_options(scenario)?, *workers);
    let design = <L as CompiledDesign<Dlsm>>::design(options.clone());
    let servers: SimServers<L> =
        start(scenario, async |fabric: &AnyFabric| design.create(fabric).await)?;
    let sim = sim_config(scenario, &mut workload::rng(seed, 0)).start(servers.clone());
    let pool = InspectedPool::new(&servers, scenario);
    let run = TakeoverRun { scenario, seed, pool, options, workers };
    let mut rng = workload::rng(seed, u64::MAX / 7);
    let mut found = AuditedContents::default();
    if scenario.workload.load == LoadSpec::Bulk {
        found.contents = workload::initial_contents(&scenario.workload);
    }
    let mut shard = run.process()?;
    let rounds = board.death().map_or(spec.rounds, |_| 1);
    for round in 0..=rounds {
        let is_last = round == rounds;
        let dying: Vec<u16> = (0..scenario.cluster.compute_servers).collect();
        let which = |report: String| format!("round {round}: {report}");
        let contents = std::mem::take(&mut found.contents);
        let clients = |board: &RunBoard| run.round(&sim, board, &shard, round, is_last);
        let death = board.death().unwrap_or_else(|| DeathAt::drawn(spec.max_writes, &mut rng));
        let death = (!is_last).then_some(death);
        let begin = (&dying[..], death, contents);
        let history = play_round(&sim, scenario, board, begin, clients).map_err(which)?;
        if is_last {
            break;
        }
        dying.iter().for_each(|server| sim.restart_compute_server(*server));
        shard = run.process()?;
        found = run.audit(&sim, &shard).map_err(which)?;
        let kept = check_kept(
            &history,
            &found.contents,
            &found.damaged,
            None,
            |_| true,
            |_, _| true,
            None,
        );
        match kept {
            CheckVerdict::Holds => {}
            CheckVerdict::Violated(report) | CheckVerdict::GaveUp(report) => {
                return Err(which(report));
            }
        }
        if rng.random_bool(0.5) {
            shard = run.process()?;
            run.take_over(&sim, &shard).map_err(which)?;
        }
    }
    run.tree(&shard).look_at_the_end(&sim, run.observer())
}

impl<L> TakeoverRun<'_, L>
where
    L: SimulatedLayout,
{
    /// The compute side of a process that has not opened the tree yet.
    fn process(&self) -> Result<Arc<LsmShard>, String> {
        let shard = <Dlsm as Design<L>>::compute(&self.options);
        shard.map_err(|error| format!("cannot set up the compute side: {error}"))
    }

    fn tree<'t>(&'t self, shard: &'t Arc<LsmShard>) -> InspectedTree<'t, L> {
        InspectedTree::new(&self.pool, shard, self.scenario)
    }

    /// The compute server number of the endpoints that never die.
    fn observer(&self) -> u16 {
        self.scenario.cluster.compute_servers
    }

    /// Runs the clients until all have ended or died.
    fn round(
        &self,
        sim: &TakeoverCluster<L>,
        board: &RunBoard,
        shard: &Arc<LsmShard>,
        round: u16,
        is_last: bool,
    ) {
        let (scenario, cluster) = (self.scenario, &self.scenario.cluster);
        let per_server = cluster.clients_per_compute_server;
        let of_server = |server| std::iter::repeat_n(server, usize::from(per_server));
        let mut endpoints: Vec<u16> = (0..cluster.compute_servers).flat_map(of_server).collect();
        let clients = endpoints.len();
        endpoints.extend([self.observer(), self.observer()]);
        endpoints.extend((0..self.workers).map(|worker| worker % cluster.compute_servers));
        // Different seeds and streams in each round, so that no two rounds write the same values.
        let streams = clients * usize::from(cluster.in_flight_per_client) + 1;
        let first_client = usize::from(round) * streams;
        let seed = self.seed ^ u64::from(round) << 48;
        let control = sim.control();
        board.reports_progress_to(control.clone());
        let tree = self.tree(shard);
        let compute = &<L as CompiledDesign<Dlsm>>::compute(Arc::clone(shard));
        sim.run(&endpoints, async |fabric, number| match number - clients.min(number) {
            _ if number < clients => {
                let place = (number, first_client);
                client::client(fabric, compute, board, scenario, seed, place).await;
            }
            0 => {
                let number = (first_client + streams - 1) as u32;
                self.keeper(fabric, board, compute, (round, number), is_last).await;
            }
            1 => watch(fabric, board, seed, || tree.look()).await,
            _ => lsm_worker::<L>(fabric, shard, board).await,
        });
    }

    /// The keeper's task: loads the index, and lets clients begin. At the end of the last round it
    /// reads everything.
    async fn keeper(
        &self,
        fabric: AnyFabric,
        board: &RunBoard,
        compute: &AnyCompute<L>,
        (round, number): (u16, u32),
        is_last: bool,
    ) {
        let _over = ObserverGuard(board);
        let opened = board.open(&fabric, compute).await;
        let Some(index) = opened else { return board.let_clients_begin() };
        if round == 0 {
            client::load(&fabric, &index, board, self.scenario, number).await;
            board.perform(&fabric, &index, number, &ClientAction::Flush).await;
        }
        board.let_clients_begin();
        board.wait_for_clients_or(&fabric, || false).await;
        if is_last {
            client::read_everything(&fabric, &index, board, self.scenario, number).await;
        }
    }

    /// Takes the tree over for the process of `shard`.
    fn take_over(&self, sim: &TakeoverCluster<L>, shard: &Arc<LsmShard>) -> Result<(), String> {
        let outcome = sim.run(&[self.observer()], async |fabric, _| -> Result<_, IndexError> {
            Dlsm::take_over::<_, L>(fabric, shard).await
        });
        match outcome.into_iter().next().flatten() {
            Some(Ok(())) => self.tree(shard).look_at_rest(),
            other => Err(format!("the tree cannot be taken over: {other:?}")),
        }
    }

    /// Takes the tree over for the process of `shard`, and reads everything in every way.
    fn audit(
        &self,
        sim: &TakeoverCluster<L>,
        shard: &Arc<LsmShard>,
    ) -> Result<AuditedContents, String> {
        self.take_over(sim, shard)?;
        let reader = Reader { spec: &self.scenario.workload, may_be_damaged: |_| false };
        let outcome = sim.run(&[self.observer()], async |fabric, _| {
            let compute = <L as CompiledDesign<Dlsm>>::compute(Arc::clone(shard));
            let opened = compute.open(fabric).await;
            let index = opened.map_err(|error| format!("the index cannot be opened: {error}"))?;
            let index = ByName::<L, _>::new(index);
            reader.read_all([&index; 3]).await
        });
        outcome.into_iter().next().flatten().ok_or("the auditor did not end")?
    }
}
