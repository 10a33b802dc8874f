//! Operations on a whole index, before a compute server serves it.
//!
//! *Thread safety*: blocks the calling thread.

use super::because;
use super::design::{ClusterDesign, SharedValues};
use super::map_store::CatalogMap;
use crate::config::ConfigError;
use crate::error::ProgramError;
use crate::layouts::ClusterLayout;
use farleaf_fabric::sync::{Mutex, lock};
use farleaf_fabric::{AnyFabric, Cluster};
use farleaf_index::partition::{self, DeadServer, PartitionMap};
use farleaf_index::{Design, IndexError, ValueForm};
use farleaf_page::OwnedKey;

/// The compute server number used by endpoints that manage the whole index; no server has it.
const NOBODY: u16 = 0x7ffe;

fn run<C: Cluster, T: Send, Fut: Future<Output = Result<T, IndexError>>>(
    cluster: &C,
    compute_server: u16,
    body: impl Fn(AnyFabric) -> Fut + Sync,
) -> Result<T, ProgramError> {
    let outcomes = cluster.try_run(&[compute_server], |fabric, _| body(fabric));
    let mut outcomes = outcomes.map_err(ProgramError::system("cannot open an endpoint"))?;
    let outcome = outcomes.pop().flatten();
    let outcome = outcome.unwrap_or(Err(IndexError::InvalidArgument("no endpoint was opened")));
    outcome.map_err(because)
}

/// Creates an empty index.
pub(super) fn create<L: ClusterLayout, D: ClusterDesign<L>, C: Cluster>(
    cluster: &C,
    options: &D::Options<L>,
) -> Result<(), ProgramError> {
    run(cluster, NOBODY, async |fabric| {
        <D as Design<L>>::create(&fabric, options).await?;
        Ok(D::Values::mark(&fabric).await?)
    })
}

/// Checks that this compute server has the memory for its part of the index.
///
/// # Errors
/// [`ProgramError::Config`] if it has not.
pub(super) fn check_part<L: ClusterLayout, D: ClusterDesign<L>, C: Cluster>(
    cluster: &C,
    state: &D::State<L>,
) -> Result<(), ProgramError> {
    let checked = run(cluster, NOBODY, async |fabric| {
        let pool = D::open_pool::<_, L>(fabric).await?;
        Ok(D::check_part(state, &pool))
    })?;
    checked.map_err(|error| ConfigError::Settings(error.to_string()).into())
}

/// Takes over what former incarnations of this compute server have left beside leaves. Call it when
/// they have ended, before the next incarnation writes anything.
pub(super) fn adopt<L: ClusterLayout, D: ClusterDesign<L>, C: Cluster>(
    cluster: &C,
    compute_server: u16,
    values: &SharedValues<L, D>,
) -> Result<(), ProgramError> {
    run(cluster, compute_server, async |fabric| {
        Ok(<D::Values as ValueForm<L>>::adopt(values, fabric).await?)
    })
}

/// Ends the previous life of this compute server, if it had one, so that a new life can begin.
/// Returns the map to serve by. `options` are those of the new life.
pub(super) fn begin_incarnation<L: ClusterLayout, D: ClusterDesign<L>, C: Cluster>(
    cluster: &C,
    (compute_server, options): (u16, &D::ServerOptions),
    store: &CatalogMap<L>,
) -> Result<PartitionMap<OwnedKey<L>>, ProgramError> {
    run(cluster, NOBODY, async |fabric| {
        partition::fence_former_incarnation(&fabric, compute_server).await
    })?;
    let store = Mutex::new(store.clone());
    let map = run(cluster, NOBODY, async |fabric| {
        let store = lock(&store).clone();
        let map = partition::begin_incarnation(&fabric, &store, compute_server).await?;
        // Once more behind the put: it cuts off a taker of the former life (over.T3).
        partition::fence_former_incarnation(&fabric, compute_server).await?;
        Ok(map)
    })?;
    let range = &map.range_of(compute_server);
    run(cluster, compute_server, async |fabric| {
        partition::end_former_incarnation::<D, _, L>(fabric, options, compute_server, range).await
    })?;
    Ok(map)
}

/// Ends the life of a dead compute server on behalf of its taker.
pub(super) fn end_dead_incarnation<L: ClusterLayout, D: ClusterDesign<L>, C: Cluster>(
    cluster: &C,
    options: &D::ServerOptions,
    store: &CatalogMap<L>,
    dead: &DeadServer<OwnedKey<L>>,
) -> Result<(), ProgramError> {
    let store = Mutex::new(store.clone());
    run(cluster, dead.number, async |fabric| {
        let store = lock(&store).clone();
        partition::end_dead_incarnation::<D, _, L, D::Values>(fabric, options, &store, dead).await
    })
}

/// Asks every memory server over a new endpoint of no compute server.
pub(super) fn reaches_memory<L: ClusterLayout, C: Cluster>(
    cluster: &C,
) -> Result<(), ProgramError> {
    run(cluster, NOBODY, async |fabric| partition::probe_all::<L>(&fabric).await)
}
