//! What comes before a compute server serves: the end of its former life.
//!
//! *Thread safety*: private to one task.

use super::design::open_pool;
use crate::index::IndexError;
use crate::index::dex::mend;
use crate::page::Layout;
use crate::rules;
use farleaf_fabric::{Fabric, ServerId};

/// Shuts whatever life the compute server of this number had before out of all memory servers: nothing of it takes effect any
/// more. Over an endpoint of another compute server.
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

/// Ends that life: what it had logged of shared nodes is finished, and the inner nodes that it left half written are whole.
/// Over an endpoint of the compute server itself that was opened after [`fence_former_life`]: if this does not end, it is part of
/// the life that is ended next.
///
/// # Errors
/// [`IndexError`] if a memory server does not answer, or they hold no index of DEX.
pub async fn end_former_life<F: Fabric, L: Layout>(
    fabric: F,
    compute_server: u16,
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
        mend(&pages, root, compute_server).await?;
    }
    Ok(())
}
