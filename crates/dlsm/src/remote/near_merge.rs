//! Compactions that a memory server runs: their requests, and the extents lent to them.
//!
//! The extents lent to a job are used again only after its close was answered (lsm.J3): a step that
//! is late writes nothing after that.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::extent_space::{ExtentLease, JobId};
use super::extents::ExtentClient;
use super::given_up::HeldLease;
use farleaf_fabric::Fabric;
use farleaf_page::Layout;
use farleaf_pool::remote::{RemoteError, RpcClient};
use farleaf_pool::wire::{CompactionRequest, Reply};

/// A compaction that a memory server runs. Dropping it on the way leaves its extents to
/// [`ExtentClient::settle`], which closes it.
#[derive(Debug)]
pub(crate) struct OffloadedCompaction<'c, F: Fabric, L: Layout> {
    rpc: &'c RpcClient<F, L>,
    held: HeldLease<'c>,
    id: JobId,
    steps: u32,
}

impl<'c, F: Fabric, L: Layout> OffloadedCompaction<'c, F, L> {
    /// Begins a job whose outputs go to `lease`.
    ///
    /// # Errors
    /// [`RemoteError`]; the job may have begun.
    pub(crate) async fn begin(
        client: &'c ExtentClient<F, L>,
        id: JobId,
        lease: ExtentLease,
        words: Vec<u64>,
    ) -> Result<Self, RemoteError> {
        let merge = Self { rpc: client.rpc(), held: client.hold(lease, id), id, steps: 0 };
        let JobId { server, owner, job } = id;
        let begin = CompactionRequest::Begin { owner, job, words };
        match merge.rpc.ask_idempotent(server, &begin).await? {
            Reply::Done => Ok(merge),
            _ => Err(RemoteError::BadReply { server }),
        }
    }

    /// Has the memory server make one step of the job. Returns whether the job is complete, and the
    /// encoded descriptions of the outputs.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(crate) async fn step(&mut self) -> Result<(bool, Vec<u64>), RemoteError> {
        self.steps += 1;
        let JobId { server, owner, job } = self.id;
        let step = CompactionRequest::Step { owner, job, step: self.steps };
        match self.rpc.ask_idempotent(server, &step).await? {
            Reply::Merged { done, outputs } => Ok((done, outputs)),
            _ => Err(RemoteError::BadReply { server }),
        }
    }

    /// Ends the job. Returns the extents that were lent to it.
    ///
    /// # Errors
    /// [`RemoteError`]; the extents are given back once the job is closed.
    pub(crate) async fn close(self) -> Result<ExtentLease, RemoteError> {
        self.id.close(self.rpc).await?;
        let Self { held, id, .. } = self;
        held.settled().ok_or(RemoteError::BadReply { server: id.server })
    }
}
