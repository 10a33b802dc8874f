//! Probes: requests that change nothing, by which an endpoint learns whether memory servers answer
//! it.
//!
//! *Thread safety*: plain functions.

use crate::IndexError;
use farleaf_fabric::{Fabric, Message, ServerId};
use farleaf_page::Layout;
use farleaf_pool::wire::{PoolRequest, Request};

/// Posts the probe of a memory server, in one attempt: a request for its usage, which changes
/// nothing.
pub(super) fn probe<L: Layout, F: Fabric>(fabric: &F, server: ServerId) -> F::Op<Message> {
    fabric.call(server, Request::<L>::from(PoolRequest::Usage).encode())
}

/// Probes all memory servers, one after the other. If all answer, the endpoint is connected with
/// each, so a later fence cuts it off.
///
/// # Errors
/// [`IndexError`] of the first one that does not answer.
pub async fn probe_all<L: Layout>(fabric: &impl Fabric) -> Result<(), IndexError> {
    for number in 0..fabric.memory_servers() {
        probe::<L, _>(fabric, ServerId::new(number)).await?;
    }
    Ok(())
}
