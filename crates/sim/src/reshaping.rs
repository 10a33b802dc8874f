//! Tasks beside the clients of a run: they move keys, add memory servers and balance load, or flush
//! and merge. They look at no values, so they open handles of the design itself, also below value
//! blocks.
//!
//! *Thread safety*: a run is one thread.

use crate::client::{RunBoard, settle};
use crate::form::SimulatedLayout;
use crate::scenario::{DesignSpec, Scenario};
use crate::workload;
use farleaf_designs::CompiledDesign;
use farleaf_dex::Dex;
use farleaf_dlsm::{Dlsm, LsmShard};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{AnyFabric, Fabric};
use farleaf_index::partition::ComputePool;
use farleaf_index::{
    AnyIndexOf, Background, IndexAdmin, IndexError, RangeIndex, Reshape, ReshapeCost,
};
use rand::RngExt;

/// A handle of the design itself.
async fn handle<L: SimulatedLayout>(
    fabric: &AnyFabric,
    pool: &Arc<ComputePool<Dex, L>>,
) -> Result<AnyIndexOf<L>, IndexError> {
    <L as CompiledDesign<Dex>>::compute(Arc::clone(pool)).open_handle(fabric.clone()).await
}

/// Moves keys between compute servers at random moments, as often as the scenario says.
pub(crate) async fn mover<L>(
    fabric: AnyFabric,
    pool: &Arc<ComputePool<Dex, L>>,
    board: &RunBoard,
    scenario: &Scenario,
    (seed, which): (u64, u64),
) where
    L: SimulatedLayout,
{
    let DesignSpec::Dex { moves, .. } = scenario.design else { return };
    let key_space = scenario.workload.key_space;
    let mut rng = workload::rng(seed, u64::MAX / 3 - which);
    let index = match handle::<L>(&fabric, pool).await {
        Ok(index) if moves > 0 => index,
        _ => return,
    };
    for _ in 0..moves {
        fabric.sleep(rng.random_range(1..=MAX_PAUSE_NS)).await;
        if board.is_over() {
            break;
        }
        // Retry settling outcomes that were still in doubt after the last move.
        let _ = index.settle().await;
        let from = *pick(pool.map().owners(), &mut rng);
        let to = rng.random_range(0..pool.servers().len() as u16);
        let near = workload::key_at(rng.random_range(0..key_space), &scenario.workload);
        let near = rng.random_bool(0.8).then(|| L::key_named(near));
        match index.reshape(&Reshape::MoveKeys { from, to, near }).await {
            // The compute servers may not be neighbours, or no leaf may begin at the key.
            Ok(_) | Err(IndexError::InvalidArgument(_)) => {}
            // The balancer is moving keys.
            Err(IndexError::Contended { retries: 0 }) => {}
            Err(error) if board.allows(&error) => {}
            Err(error) => board.report(format!("cannot move keys: {error}")),
        }
    }
    settle(&fabric, &index).await;
}

/// Adds the spare memory servers one by one at random moments.
pub(crate) async fn grower<L>(
    fabric: AnyFabric,
    pool: &Arc<ComputePool<Dex, L>>,
    board: &RunBoard,
    scenario: &Scenario,
    seed: u64,
) where
    L: SimulatedLayout,
{
    let DesignSpec::Dex { spare_memory_servers: spares @ 1.., .. } = scenario.design else {
        return;
    };
    let mut rng = workload::rng(seed, u64::MAX / 5);
    let Ok(index) = handle::<L>(&fabric, pool).await else { return };
    for _ in 0..spares {
        fabric.sleep(rng.random_range(1..=MAX_UNTIL_GROWTH_NS)).await;
        if let Err(error) = index.reshape(&Reshape::AddMemoryServer).await {
            board.report(format!("cannot add a memory server: {error}"));
        }
    }
}

/// Balances load among compute servers, if the scenario asks for it.
pub(crate) async fn balancer<L>(
    fabric: AnyFabric,
    pool: &Arc<ComputePool<Dex, L>>,
    board: &RunBoard,
    scenario: &Scenario,
) where
    L: SimulatedLayout,
{
    if !scenario.design.balances() {
        return;
    }
    let Ok(index) = handle::<L>(&fabric, pool).await else { return };
    let report = |moved: Result<ReshapeCost, IndexError>| match moved {
        Ok(_) => board.count_balanced(),
        Err(IndexError::InvalidArgument(_) | IndexError::Contended { retries: 0 }) => {}
        Err(error) if board.allows(&error) => {}
        Err(error) => board.report(format!("cannot balance load: {error}")),
    };
    let balanced = index.background(Background::Balance, &|| board.is_over(), &report).await;
    balanced.unwrap_or_else(|error| board.report(format!("the balancer failed: {error}")));
    settle(&fabric, &index).await;
}

/// Flushes and merges until the run is over.
pub(crate) async fn lsm_worker<L>(fabric: AnyFabric, shard: &Arc<LsmShard>, board: &RunBoard)
where
    L: SimulatedLayout,
{
    let compute = <L as CompiledDesign<Dlsm>>::compute(Arc::clone(shard));
    let Some(index) = board.open(&fabric, &compute).await else { return };
    let report = |failed: Result<ReshapeCost, IndexError>| {
        if let Err(error) = failed
            && !board.allows(&error)
        {
            board.report(format!("cannot flush or merge: {error}"));
        }
    };
    let worked = index.background(Background::WriteBack, &|| board.is_over(), &report).await;
    worked.unwrap_or_else(|error| board.report(format!("background work failed: {error}")));
    settle(&fabric, &index).await;
}

pub(crate) fn pick<'a, T>(from: &'a [T], rng: &mut impl RngExt) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

/// Longest time until a memory server is added, in nanoseconds.
const MAX_UNTIL_GROWTH_NS: u64 = 600_000;

/// Longest time between two moves of keys, in nanoseconds.
const MAX_PAUSE_NS: u64 = 100_000;
