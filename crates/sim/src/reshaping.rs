//! Tasks beside the clients of a run: they move keys, add memory servers and balance load, or flush
//! and merge. They look at no values, so they open handles of the design itself, also below value
//! blocks.
//!
//! *Thread safety*: a run is one thread.

use crate::client::{RunBoard, settle};
use crate::scenario::{DesignSpec, Scenario};
use crate::workload;
use farleaf_dex::Dex;
use farleaf_dlsm::{Dlsm, LsmShard};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_index::partition::ComputePool;
use farleaf_index::{Background, Design, IndexAdmin, IndexError, RangeIndex, ReshapeCost};
use farleaf_page::{Layout, NamedLayout};
use rand::RngExt;

/// Moves keys between compute servers at random moments, as often as the scenario says.
pub(crate) async fn mover<L, F>(
    fabric: F,
    compute: &Arc<ComputePool<Dex, L>>,
    board: &RunBoard,
    scenario: &Scenario,
    (seed, which): (u64, u64),
) where
    L: NamedLayout,
    F: Fabric,
{
    let DesignSpec::Dex { moves, .. } = scenario.design else { return };
    let key_space = scenario.workload.key_space;
    let mut rng = workload::rng(seed, u64::MAX / 3 - which);
    let index = match <Dex as Design<L>>::open_handle(fabric.clone(), compute).await {
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
        let from = *pick(compute.map().owners(), &mut rng);
        let to = rng.random_range(0..compute.servers().len() as u16);
        let near = workload::key_at(rng.random_range(0..key_space), &scenario.workload);
        let near = rng.random_bool(0.8).then(|| L::key_named(near));
        match index.move_keys(from, to, near.as_ref().map(|near| L::key(near))).await {
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
pub(crate) async fn grower<L, F>(
    fabric: F,
    compute: &Arc<ComputePool<Dex, L>>,
    board: &RunBoard,
    scenario: &Scenario,
    seed: u64,
) where
    L: NamedLayout,
    F: Fabric,
{
    let DesignSpec::Dex { spare_memory_servers: spares @ 1.., .. } = scenario.design else {
        return;
    };
    let mut rng = workload::rng(seed, u64::MAX / 5);
    let Ok(index) = <Dex as Design<L>>::open_handle(fabric.clone(), compute).await else { return };
    for _ in 0..spares {
        fabric.sleep(rng.random_range(1..=MAX_UNTIL_GROWTH_NS)).await;
        if let Err(error) = index.add_memory_server() {
            board.report(format!("cannot add a memory server: {error}"));
        }
    }
}

/// Balances load among compute servers, if the scenario asks for it.
pub(crate) async fn balancer<L, F>(
    fabric: F,
    compute: &Arc<ComputePool<Dex, L>>,
    board: &RunBoard,
    scenario: &Scenario,
) where
    L: NamedLayout,
    F: Fabric,
{
    let DesignSpec::Dex { balance_window_ns: 1.., .. } = scenario.design else { return };
    let Ok(index) = <Dex as Design<L>>::open_handle(fabric.clone(), compute).await else { return };
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
pub(crate) async fn lsm_worker<L, F>(fabric: F, shard: &Arc<LsmShard>, board: &RunBoard)
where
    L: Layout,
    F: Fabric,
{
    let Some(index) = board.open::<L, Dlsm, F>(&fabric, shard).await else { return };
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
