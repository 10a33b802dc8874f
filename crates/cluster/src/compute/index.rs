//! What is done with a whole index before it is served.
//!
//! *Thread safety*: blocks the calling thread.

use super::because;
use crate::error::ProgramError;
use farleaf::cache::CacheOptions;
use farleaf::index::dex::DexOptions;
use farleaf::index::{Design, IndexError};
use farleaf::page::Fixed8;
use farleaf::partition::Dex;
use farleaf::remote::RpcClient;
use farleaf::wire::Request;
use farleaf_fabric::{Cluster, Fabric, ServerId};

/// Whoever looks after the whole index has an endpoint of no compute server.
const NOBODY: u16 = 0x7ffe;
/// The memory server that knows the compute servers' clients.
const REGISTRAR: ServerId = ServerId::new(0);

fn run<C: Cluster, Fut: Future<Output = Result<(), IndexError>>>(
    cluster: &C,
    body: impl Fn(C::Fabric) -> Fut + Sync,
) -> Result<(), ProgramError> {
    let outcome = cluster.run(&[NOBODY], |fabric, _| body(fabric)).pop().flatten();
    let outcome = outcome.unwrap_or(Err(IndexError::InvalidArgument("no endpoint was opened")));
    outcome.map_err(because)
}

/// Makes an empty index.
pub(super) fn create<C: Cluster>(
    cluster: &C,
    boundaries: Vec<u64>,
    placement_level: u8,
) -> Result<(), ProgramError> {
    let with = DexOptions::with_boundaries(boundaries, CacheOptions::default());
    let options = &DexOptions { placement_level, ..with };
    run(cluster, async |fabric| <Dex as Design<Fixed8>>::create(&fabric, options).await)
}

/// Whatever this compute server was before: nothing of that takes effect any more, and others may finish or undo what
/// it was at.
pub(super) fn end_former_life<C: Cluster>(
    cluster: &C,
    compute_server: u16,
) -> Result<(), ProgramError> {
    run(cluster, async |fabric| {
        for number in 0..fabric.memory_servers() {
            fabric.fence(ServerId::new(number), compute_server).await?;
        }
        let client = RpcClient::<_, Fixed8>::new(fabric);
        Ok(client.expect_done(REGISTRAR, &Request::DeclareDead { compute_server }).await?)
    })
}
