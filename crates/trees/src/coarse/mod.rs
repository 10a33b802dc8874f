//! The coarse-grained design: the key space is divided among the memory servers, by ranges or by a
//! hash. Each server has a tree of its own, and every operation is an RPC to one of them.
//!
//! After Ziegler et al., *Designing Distributed Tree-based Index Structures for Fast RDMA-capable
//! Networks* (SIGMOD 2019), §3. The trees are in [`farleaf_pool::server::tree`].
//!
//! *Thread safety*: a handle belongs to its endpoint's thread; operations of one handle may
//! overlap.

mod load;
mod scan;

pub use farleaf_pool::remote::Partitioning;

use farleaf_fabric::{Fabric, ServerId};
use farleaf_index::{
    Design, IndexAdmin, IndexError, KeyedRecords, RangeIndex, ScanRequest, design_options, named,
};
use farleaf_page::{DesignId, EditAction, EditAnswer, Layout, LeafEdit, OwnedKey, OwnedValue};
use farleaf_pool::remote::{RemoteError, RpcClient, ShareMap};
use farleaf_pool::wire::{AskEdit, Refusal, Reply, TreeRequest};
use std::borrow::Borrow;
use std::fmt::Debug;
use std::future::Future;

/// The coarse-grained design.
#[derive(Clone, Copy, Debug)]
pub struct Coarse;

/// A scheme of dividing keys among memory servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartitioningName {
    /// Each server holds a range of keys.
    #[default]
    Range,
    /// Each server holds the keys that hash to its number.
    Hash,
}

named!(PartitioningName, "range or hash", { Range: "range", Hash: "hash", });

design_options! {
    /// The options of a coarse-grained index that do not depend on its keys.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CoarseScheme {
        /// How the keys are divided among the memory servers.
        pub partitioning: PartitioningName = PartitioningName::default();
    }
}

impl CoarseScheme {
    /// The options of an index with these boundaries, if its servers hold ranges.
    pub fn divided<K>(self, boundaries: Vec<K>) -> CoarseOptions<K> {
        let partitioning = match self.partitioning {
            PartitioningName::Range => Partitioning::Range { boundaries },
            PartitioningName::Hash => Partitioning::Hash,
        };
        CoarseOptions { partitioning }
    }
}

/// Options of a new coarse-grained index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoarseOptions<K> {
    /// How the keys are divided among the memory servers.
    pub partitioning: Partitioning<K>,
}

impl<L: Layout> Design<L> for Coarse {
    const NAME: &'static str = "coarse";
    type Options = CoarseOptions<OwnedKey<L>>;
    type Compute = ();
    type Index<F: Fabric> = CoarseIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, options: &Self::Options) -> Result<(), IndexError> {
        let client = RpcClient::<F, L>::new(fabric.clone());
        let shares = options.partitioning.shares::<L>(fabric.memory_servers())?;
        for (number, share) in (0..).zip(shares) {
            let server = ServerId::new(number);
            client.expect_done(server, &TreeRequest::Create { share }).await?;
        }
        Ok(())
    }

    fn compute(_options: &Self::Options) -> Result<(), IndexError> {
        Ok(())
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        _compute: &(),
    ) -> Result<Self::Index<F>, IndexError> {
        let client = RpcClient::<F, L>::new(fabric);
        let mut shares = Vec::new();
        for number in 0..client.fabric().memory_servers() {
            let server = ServerId::new(number);
            let superblock = client.superblock(server).await?;
            match client.ask_idempotent(server, &TreeRequest::Describe).await? {
                Reply::Description(Some(share)) => shares.push(share),
                Reply::Description(None) => {
                    return Err(IndexError::Refused { server, refusal: Refusal::NoTree });
                }
                _ => return Err(IndexError::BadReply { server }),
            }
            // A pool of another design may have trees on its servers too.
            superblock
                .options_of(DesignId::Coarse)
                .map_err(|error| IndexError::BadPool { server, error })?;
        }
        let map = ShareMap::from_shares::<L>(shares)?;
        Ok(CoarseIndex { client, map })
    }
}

/// A handle on a coarse-grained index.
#[derive(Debug)]
pub struct CoarseIndex<F: Fabric, L: Layout> {
    client: RpcClient<F, L>,
    map: ShareMap<OwnedKey<L>>,
}

/// The request for the value of a key.
fn lookup<L: Layout>(key: &L::Key) -> AskEdit<'_, L> {
    AskEdit(LeafEdit { key, action: EditAction::Get })
}

impl<F: Fabric, L: Layout> CoarseIndex<F, L> {
    /// The RPC client of this handle, for tests and tools.
    pub fn rpc(&self) -> &RpcClient<F, L> {
        &self.client
    }
}

impl<F: Fabric, L: Layout> RangeIndex for CoarseIndex<F, L> {
    type Key = L::Key;
    type Value = L::Value;

    #[inline]
    async fn get(&self, key: &L::Key) -> Result<Option<OwnedValue<L>>, IndexError> {
        L::check_key(key)?;
        let server = self.map.server_of::<L>(key);
        match self.client.ask_idempotent(server, &lookup(key)).await? {
            Reply::Value(value) => Ok(value),
            _ => Err(IndexError::BadReply { server }),
        }
    }

    async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, IndexError> {
        if !edit.changes() {
            return Ok(EditAnswer::from_lookup(self.get(edit.key).await?));
        }
        edit.check::<L>()?;
        let server = self.map.server_of::<L>(edit.key);
        let reply = self.client.ask(server, &AskEdit(edit)).await?;
        reply.answer_to(edit).ok_or(IndexError::BadReply { server })
    }

    fn scan(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
    ) -> impl Future<Output = Result<KeyedRecords<OwnedKey<L>, OwnedValue<L>>, IndexError>> {
        self.scan_all(scan)
    }

    async fn multi_get<Q: Borrow<L::Key>>(
        &self,
        keys: &[Q],
    ) -> Result<Vec<Option<OwnedValue<L>>>, IndexError> {
        keys.iter().try_for_each(|key| L::check_key(key.borrow()))?;
        let mut values = Vec::with_capacity(keys.len());
        for window in keys.chunks(self.client.fabric().depth().max(1)) {
            let posted: Vec<_> = window
                .iter()
                .map(|key| {
                    let key = key.borrow();
                    let server = self.map.server_of::<L>(key);
                    (server, self.client.post(server, &lookup(key)), key)
                })
                .collect();
            for (server, operation, key) in posted {
                let value = match self.client.finish(server, operation, &lookup(key)).await {
                    Ok(Reply::Value(value)) => value,
                    Err(RemoteError::Indeterminate(_)) => self.get(key).await?,
                    Err(error) => return Err(error.into()),
                    Ok(_) => return Err(IndexError::BadReply { server }),
                };
                values.push(value);
            }
        }
        Ok(values)
    }

    fn bulk_load_from(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, IndexError>> {
        self.load_all(source, fill)
    }

    /// Returns at once: clients cache nothing.
    async fn flush(&self) -> Result<(), IndexError> {
        Ok(())
    }
}

impl<F: Fabric, L: Layout> IndexAdmin for CoarseIndex<F, L> {
    async fn collect(&self) -> Result<(), IndexError> {
        for server in self.map.servers() {
            self.client.expect_done(server, &TreeRequest::Collect).await?;
        }
        Ok(())
    }

    /// Aborts the server's bulk load; clients of this design hold nothing else.
    async fn declare_dead(&self, compute_server: u16) -> Result<(), IndexError> {
        Ok(self.client.abandon_loads(compute_server).await?)
    }
}
