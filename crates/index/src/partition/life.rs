//! Cleans up after the previous life of a compute server before the next incarnation serves.
//!
//! *Thread safety*: private to one task.

use crate::OwnedRange;
use crate::{IndexError, PartPool, Partitioned};
use farleaf_fabric::{Fabric, ServerId};
use farleaf_page::rules;
use farleaf_page::{Layout, OwnedKey};

/// Fences every previous life of a compute server at all memory servers, so that none of its
/// requests can still take effect. Call it over an endpoint of another compute server.
///
/// # Errors
/// [`IndexError`] if a memory server does not answer.
pub async fn fence_former_incarnation<F: Fabric>(
    fabric: &F,
    compute_server: u16,
) -> Result<(), IndexError> {
    for number in 0..fabric.memory_servers() {
        if fabric.breaks(rules::FORMER_LIFE_FENCED) {
            continue;
        }
        fabric.fence(ServerId::new(number), compute_server).await?;
    }
    Ok(())
}

/// Cleans up after the previous life: completes whatever it left half done in `range`, the range
/// that the next incarnation owns, and brings back what it had in its log. `options` are those of
/// the next incarnation. If several compute servers share a process, the endpoints of all
/// of them may have written there, so `range` is all keys. Call it over an endpoint of the compute
/// server itself, opened after [`fence_former_incarnation`]. If this does not run to the end, its
/// own changes count as part of the life that is ended next.
///
/// # Errors
/// [`IndexError`] if a memory server does not answer, or if they hold no index of design `D`.
pub async fn end_former_incarnation<D: Partitioned, F: Fabric, L: Layout>(
    fabric: F,
    options: &D::ServerOptions,
    compute_server: u16,
    range: &OwnedRange<OwnedKey<L>>,
) -> Result<(), IndexError> {
    let pool = D::open_pool::<F, L>(fabric).await?;
    end_life_in::<D, F, L>(&pool, options, compute_server, range).await
}

/// Ends the life of a compute server, which is fenced at all memory servers, over an endpoint of
/// that server.
pub(super) async fn end_life_in<D: Partitioned, F: Fabric, L: Layout>(
    pool: &D::Pool<F, L>,
    options: &D::ServerOptions,
    compute_server: u16,
    range: &OwnedRange<OwnedKey<L>>,
) -> Result<(), IndexError> {
    pool.end_former_incarnation(compute_server, range).await?;
    D::recover(pool, options, compute_server, range).await
}
