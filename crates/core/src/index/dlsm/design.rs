//! Creating and opening an LSM tree.
//!
//! The tree's MemTables and what it knows of its tables are in one process, so the memory servers
//! let only one in: server 0 has a word for its number. Handles of other processes are refused,
//! also after the process has ended, because the tables cannot be found again without it.
//!
//! *Thread safety*: plain functions.

use super::DlsmOptions;
use super::handle::DlsmIndex;
use super::shard::Shard;
use crate::index::{Design, Encoded, IndexError};
use crate::page::{DesignId, Layout};
use crate::remote::{ExtentClient, ExtentSpace, ROOT_SERVER};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};

/// The design.
#[derive(Clone, Copy, Debug)]
pub struct Dlsm;

impl<L: Layout<Key: Encoded, Value: Encoded>> Design<L> for Dlsm {
    const NAME: &'static str = "dlsm";

    type Options = DlsmOptions;
    type Compute = Arc<Shard>;
    type Index<F: Fabric> = DlsmIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, options: &Self::Options) -> Result<(), IndexError> {
        options.check()?;
        let space = Arc::new(ExtentSpace::new(L::page_words() as u64 * 8));
        let client = ExtentClient::<F, L>::new(fabric.clone(), &space, 0);
        for number in (0..fabric.memory_servers()).rev() {
            client.rpc().check_unclaimed(ServerId::new(number)).await?;
        }
        let owner = client.write_alone(ROOT_SERVER, &[0]).await?;
        Ok(client.rpc().claim_all(DesignId::Lsm as u64, &[owner]).await?)
    }

    fn compute(options: &Self::Options) -> Result<Self::Compute, IndexError> {
        options.check()?;
        Ok(Arc::new(Shard::new(options)?))
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<Self::Index<F>, IndexError> {
        let chunk_bytes = compute.options.chunk_bytes;
        let extents = ExtentClient::<F, L>::new(fabric.clone(), &compute.space, chunk_bytes);
        let mut owner = GlobalAddr::NULL;
        for number in (0..fabric.memory_servers()).rev() {
            let server = ServerId::new(number);
            owner = extents.rpc().claimed(server, DesignId::Lsm).await?.0.root;
        }
        if !extents.rpc().enter(owner, compute.owner(fabric.unique())).await? {
            return Err(IndexError::InvalidArgument(
                "another process has opened this index, which is in its memory",
            ));
        }
        Ok(DlsmIndex::new(compute, extents))
    }

    fn local_bytes(compute: &Self::Compute) -> u64 {
        let (memtables, indexes) = compute.local_bytes();
        memtables + indexes
    }
}
