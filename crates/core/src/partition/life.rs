//! Ends the former life of a compute server before the next life serves.
//!
//! *Thread safety*: private to one task.

use super::design::open_pool;
use crate::cache::OwnedRange;
use crate::index::IndexError;
use crate::index::dex::mend;
use crate::page::Layout;
use crate::rules;
use farleaf_fabric::{Fabric, ServerId};

/// Fences every former life of a compute server at all memory servers, so that none of its requests
/// takes effect any more. Call it over an endpoint of another compute server.
///
/// # Errors
/// [`IndexError`] if a memory server does not answer.
pub async fn fence_former_life<F: Fabric>(
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

/// Ends the former life: finishes the changes of shared nodes that it had logged, and completes the
/// inner nodes that it left half written in `range`: the range that the next life owns. Where
/// several compute servers share a process, any of their endpoints may have written a node, and
/// `range` is all keys. Call it over an endpoint of the compute server itself, opened after
/// [`fence_former_life`]. If this does not run to the end, it counts as part of the life that is
/// ended next.
///
/// # Errors
/// [`IndexError`] if a memory server does not answer, or if they hold no DEX index.
pub async fn end_former_life<F: Fabric, L: Layout>(
    fabric: F,
    compute_server: u16,
    range: &OwnedRange<L::Key>,
) -> Result<(), IndexError> {
    let (pages, root, _) = open_pool::<F, L>(fabric).await?;
    let breaks = |rule| pages.fabric().breaks(rule);
    if !breaks(rules::FORMER_LIFE_DECLARED) {
        pages.declare_fenced(compute_server).await?;
    }
    if !breaks(rules::FORMER_CHANGES_FINISHED) {
        pages.finish_all(compute_server).await?;
    }
    if !breaks(rules::HALF_WRITTEN_MENDED) {
        mend(&pages, root, compute_server, range).await?;
    }
    Ok(())
}
