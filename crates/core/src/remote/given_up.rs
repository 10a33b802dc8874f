//! Extents that may still be written to although their table was given up, and what must happen
//! before they are used again (lsm.K3, lsm.J3).
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::extent_space::Lease;
use super::{RemoteError, RpcClient};
use crate::page::Layout;
use crate::wire::{MergeRequest, Reply};
use farleaf_fabric::{Fabric, ServerId};
use std::cell::RefCell;

/// A merge job: its memory server, the process that it belongs to, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobId {
    /// The memory server that runs it.
    pub server: ServerId,
    /// The process.
    pub owner: u64,
    /// Its number.
    pub job: u64,
}

impl JobId {
    /// Ends the job: it writes nothing from now on.
    pub(super) async fn close<F: Fabric, L: Layout>(
        self,
        rpc: &RpcClient<F, L>,
    ) -> Result<(), RemoteError> {
        let Self { server, owner, job } = self;
        match rpc.ask_harmless(server, &MergeRequest::Close { owner, job }).await? {
            Reply::Done => Ok(()),
            _ => Err(RemoteError::BadReply { server }),
        }
    }
}

/// A lease that may still be written to: by WRITEs in flight, or by a job.
#[derive(Debug)]
pub(super) struct Doubtful {
    pub(super) lease: Lease,
    /// The job that may write, and not this endpoint.
    pub(super) job: Option<JobId>,
}

/// The leases that an endpoint has given up.
#[derive(Debug, Default)]
pub(super) struct GivenUp(RefCell<Vec<Doubtful>>);

impl GivenUp {
    pub(super) fn add(&self, doubtful: Doubtful) {
        self.0.borrow_mut().push(doubtful);
    }

    /// Makes sure that nothing is written to the leases, and gives them back.
    pub(super) async fn settle<F: Fabric, L: Layout>(
        &self,
        rpc: &RpcClient<F, L>,
    ) -> Result<(), RemoteError> {
        loop {
            let Some(doubtful) = self.0.borrow_mut().pop() else { return Ok(()) };
            // Dropping it on the way keeps the lease here.
            let held = Held::new(self, doubtful);
            match held.job() {
                Some(job) => job.close(rpc).await?,
                None => {
                    for server in held.servers() {
                        rpc.fabric().reset(server).await?; // F9
                    }
                }
            }
            drop(held.settled());
        }
    }
}

/// A doubtful lease in use, which is given up unless it is settled.
#[derive(Debug)]
pub(super) struct Held<'c> {
    home: &'c GivenUp,
    doubtful: Option<Doubtful>,
}

impl<'c> Held<'c> {
    pub(super) fn new(home: &'c GivenUp, doubtful: Doubtful) -> Self {
        Self { home, doubtful: Some(doubtful) }
    }

    fn job(&self) -> Option<JobId> {
        self.doubtful.as_ref()?.job
    }

    fn servers(&self) -> impl Iterator<Item = ServerId> + use<> {
        self.doubtful.iter().flat_map(|held| held.lease.servers()).collect::<Vec<_>>().into_iter()
    }

    /// The lease, to which nothing is written any more.
    pub(super) fn settled(mut self) -> Option<Lease> {
        let mut lease = self.doubtful.take()?.lease;
        lease.set_settled(true);
        Some(lease)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(doubtful) = self.doubtful.take() {
            self.home.add(doubtful);
        }
    }
}
