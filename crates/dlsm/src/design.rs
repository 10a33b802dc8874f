//! Creating and opening an LSM tree.
//!
//! The tree's MemTables are in one process, so the directory gives the tree to one process at a
//! time. Handles of others are refused until one of them takes the tree over, and opens its tables
//! from the directory.
//!
//! *Thread safety*: plain functions.

use super::DlsmOptions;
use super::handle::DlsmIndex;
use super::shard::LsmShard;
use crate::remote::ExtentClient;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, ServerId};
use farleaf_index::{AcknowledgeName, Design, IndexError};
use farleaf_page::{DesignId, Layout};
use farleaf_pool::remote::RpcClient;

/// The number of the tree in the directory.
const THE_SHARD: u64 = 0;

/// The design.
#[derive(Clone, Copy, Debug)]
pub struct Dlsm;

impl<L: Layout> Design<L> for Dlsm {
    const NAME: &'static str = "dlsm";

    type Options = DlsmOptions;
    type Compute = Arc<LsmShard>;
    type Index<F: Fabric> = DlsmIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, options: &Self::Options) -> Result<(), IndexError> {
        options.check()?;
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        for number in (0..fabric.memory_servers()).rev() {
            rpc.check_unclaimed(ServerId::new(number)).await?;
        }
        Ok(rpc.claim_all(DesignId::Lsm as u64, &[]).await?)
    }

    /// # Errors
    /// [`IndexError::InvalidArgument`] also for answers that wait: a single tree has no log.
    fn compute(options: &Self::Options) -> Result<Self::Compute, IndexError> {
        options.check()?;
        if options.acknowledge == AcknowledgeName::Written {
            return Err(IndexError::InvalidArgument(
                "only an index of shards has a write-ahead log, so answers of one tree cannot wait \
                 until they are written",
            ));
        }
        Ok(Arc::new(LsmShard::new(THE_SHARD, options)?))
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<Self::Index<F>, IndexError> {
        let index = Self::handle(fabric, compute).await?;
        index.open_shard(false).await?;
        Ok(index)
    }

    fn local_bytes(compute: &Self::Compute) -> u64 {
        let (memtables, indexes) = compute.local_bytes();
        memtables + indexes
    }
}

impl Dlsm {
    async fn handle<F: Fabric, L: Layout>(
        fabric: F,
        compute: &Arc<LsmShard>,
    ) -> Result<DlsmIndex<F, L>, IndexError> {
        let chunk_bytes = compute.options.chunk_bytes;
        let extents = ExtentClient::<F, L>::new(fabric.clone(), &compute.space, chunk_bytes);
        for number in (0..fabric.memory_servers()).rev() {
            let server = ServerId::new(number);
            let (found, _) = extents.rpc().claimed(server, DesignId::Lsm).await?;
            if !found.root.is_null() {
                return Err(IndexError::InvalidArgument(
                    "this index is divided into shards, which this program opens as one",
                ));
            }
        }
        Ok(DlsmIndex::new(compute, extents, None))
    }

    /// Takes over the tree of a process that has ended, for the process of `compute`, and opens all
    /// tables that the former process has flushed or compacted. The contents of its MemTables are
    /// lost.
    ///
    /// All compute servers that had joined the former process are fenced at all memory servers. The
    /// one exception is the compute server of `fabric`, if it had joined, too: it must have been
    /// fenced before its present life began, by [`Fabric::fence`] of another compute server. A
    /// process from which the tree was taken needs a new `compute` to take it back.
    ///
    /// # Errors
    /// [`IndexError`]. The former process may have lost the tree nevertheless; call this again
    /// then.
    pub async fn take_over<F: Fabric, L: Layout>(
        fabric: F,
        compute: &Arc<LsmShard>,
    ) -> Result<(), IndexError> {
        Self::handle::<F, L>(fabric, compute).await?.open_shard(true).await
    }
}
