//! Extents that may still be written to although their table was given up, and what must happen
//! before they are used again (lsm.K3, lsm.J3).
//!
//! WRITEs belong to a connection, so only their own endpoint settles them. A job can be closed by
//! any endpoint of the process; its extents wait in the [`ExtentSpace`], and outlive their handle.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::extent_space::{ExtentLease, ExtentSpace, JobId};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, ServerId};
use farleaf_page::Layout;
use farleaf_page::rules::JOBS_CLOSED;
use farleaf_pool::remote::{RemoteError, RpcClient};
use farleaf_pool::wire::CompactionRequest;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// How long a lease waits after an attempt to settle it has failed, unless the caller asks for all:
/// 100 ms.
const PAUSE_NS: u64 = 100_000_000;

impl JobId {
    /// Ends the job: it writes nothing from now on.
    pub(super) async fn close<F: Fabric, L: Layout>(
        self,
        rpc: &RpcClient<F, L>,
    ) -> Result<(), RemoteError> {
        let Self { server, owner, job } = self;
        rpc.expect_done_idempotent(server, &CompactionRequest::Close { owner, job }).await
    }
}

/// What may still write to a lease.
#[derive(Debug)]
enum PossibleWriter {
    /// WRITEs of this endpoint to these servers.
    Writes(BTreeSet<ServerId>),
    /// A job.
    Job(JobId),
}

/// A lease that may still be written to.
#[derive(Debug)]
pub(super) struct UnresolvedLease {
    pub(super) lease: ExtentLease,
    doubt: PossibleWriter,
    /// When the next attempt to settle it is due.
    pub(super) due_ns: u64,
}

impl UnresolvedLease {
    /// A lease that was given up with WRITEs in flight.
    pub(super) fn written(lease: ExtentLease) -> Self {
        let doubt = PossibleWriter::Writes(lease.servers());
        Self { lease, doubt, due_ns: 0 }
    }

    /// A lease that a job writes to.
    pub(super) fn lent(lease: ExtentLease, job: JobId) -> Self {
        Self { lease, doubt: PossibleWriter::Job(job), due_ns: 0 }
    }

    /// Makes sure that nothing is written to the lease.
    async fn settle<F: Fabric, L: Layout>(
        &mut self,
        rpc: &RpcClient<F, L>,
        servers: &mut SettleServers,
    ) -> Result<(), RemoteError> {
        match &mut self.doubt {
            PossibleWriter::Job(_) if rpc.fabric().breaks(JOBS_CLOSED) => Ok(()),
            PossibleWriter::Job(job) => {
                servers.check(job.server)?;
                servers.note(job.server, job.close(rpc).await)
            }
            PossibleWriter::Writes(left) => {
                let mut outcome = Ok(());
                for server in left.clone() {
                    match servers.reset(rpc, server).await {
                        Ok(()) => _ = left.remove(&server),
                        Err(error) => outcome = outcome.and(Err(error)),
                    }
                }
                outcome
            }
        }
    }
}

/// What one call of [`UnresolvedLeases::settle`] knows of the servers.
#[derive(Debug, Default)]
struct SettleServers {
    /// Servers whose connection this call has reset. That settles all leases at hand, which were
    /// given up before.
    reset: BTreeSet<ServerId>,
    /// Those that did not answer. They are not waited for again.
    failed: BTreeMap<ServerId, RemoteError>,
}

impl SettleServers {
    fn check(&self, server: ServerId) -> Result<(), RemoteError> {
        self.failed.get(&server).map_or(Ok(()), |error| Err(error.clone()))
    }

    fn note(
        &mut self,
        server: ServerId,
        outcome: Result<(), RemoteError>,
    ) -> Result<(), RemoteError> {
        if let Err(error @ (RemoteError::Indeterminate(_) | RemoteError::Fabric(_))) = &outcome {
            self.failed.insert(server, error.clone());
        }
        outcome
    }

    async fn reset<F: Fabric, L: Layout>(
        &mut self,
        rpc: &RpcClient<F, L>,
        server: ServerId,
    ) -> Result<(), RemoteError> {
        self.check(server)?;
        if !self.reset.contains(&server) {
            let reset = rpc.fabric().reset(server).await; // F9
            self.note(server, reset.map_err(RemoteError::from))?;
            self.reset.insert(server);
        }
        Ok(())
    }
}

/// The leases that an endpoint has given up with WRITEs in flight.
#[derive(Debug, Default)]
pub(super) struct UnresolvedLeases(RefCell<Vec<UnresolvedLease>>);

impl UnresolvedLeases {
    pub(super) fn add(&self, doubtful: UnresolvedLease) {
        match doubtful {
            UnresolvedLease { lease, doubt: PossibleWriter::Job(job), due_ns } => {
                lease.leave_to_space(job, due_ns)
            }
            written => self.0.borrow_mut().push(written),
        }
    }

    /// Takes the leases whose attempt is due at `now_ns`, also of jobs of the process.
    fn take(&self, space: &Arc<ExtentSpace>, now_ns: u64) -> Vec<HeldLease<'_>> {
        let of_jobs = ExtentSpace::take_of_jobs(space, now_ns).into_iter();
        let mut all: Vec<_> =
            of_jobs.map(|(job, lease)| UnresolvedLease::lent(lease, job)).collect();
        all.extend(self.0.borrow_mut().extract_if(.., |doubtful| doubtful.due_ns <= now_ns));
        all.into_iter().map(|doubtful| HeldLease::new(self, doubtful)).collect()
    }

    /// Makes sure that nothing is written to the leases whose attempt is due at `now_ns`, and gives
    /// them back. One that cannot be settled does not keep the others.
    pub(super) async fn settle<F: Fabric, L: Layout>(
        &self,
        space: &Arc<ExtentSpace>,
        rpc: &RpcClient<F, L>,
        now_ns: u64,
    ) -> Result<(), RemoteError> {
        let mut outcome = Ok(());
        let mut servers = SettleServers::default();
        // If this future is dropped, the leases taken out are given up again, not lost.
        for mut held in self.take(space, now_ns) {
            let Some(doubtful) = &mut held.doubtful else { continue };
            match doubtful.settle(rpc, &mut servers).await {
                Ok(()) => drop(held.settled()),
                Err(error) => {
                    doubtful.due_ns = rpc.fabric().now_ns() + PAUSE_NS;
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }
}

/// A lease in use that something may still write to. Dropping it gives it up, unless it was
/// settled.
#[derive(Debug)]
pub(crate) struct HeldLease<'c> {
    home: &'c UnresolvedLeases,
    doubtful: Option<UnresolvedLease>,
}

impl<'c> HeldLease<'c> {
    pub(super) fn new(home: &'c UnresolvedLeases, doubtful: UnresolvedLease) -> Self {
        Self { home, doubtful: Some(doubtful) }
    }

    /// Returns the lease, once nothing can write to it any more.
    pub(super) fn settled(mut self) -> Option<ExtentLease> {
        let mut lease = self.doubtful.take()?.lease;
        lease.set_settled(true);
        Some(lease)
    }
}

impl Drop for HeldLease<'_> {
    fn drop(&mut self) {
        if let Some(doubtful) = self.doubtful.take() {
            self.home.add(doubtful);
        }
    }
}
