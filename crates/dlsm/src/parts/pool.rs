//! Access to the shards' directories and trees over one endpoint.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::builder::{LoadBuilder, LoadedSsTables};
use super::opened::OpenedParts;
use super::part::{DlsmPart, PartTrees};
use super::server::{DlsmServer, shards_of};
use super::shard_map::ShardMap;
use crate::directory::end_process;
use crate::remote::{ExtentClient, ExtentSpace, divided_shards};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_index::OwnedRange;
use farleaf_index::together::all;
use farleaf_index::{IndexError, PartPool, ScanRequest};
use farleaf_page::{DesignId, Layout, OwnedKey};
use farleaf_pool::remote::{ROOT_SERVER, RemoteError, RpcClient, WalWriter};
use std::cell::Cell;
use std::rc::Rc;

/// Access to the index over one endpoint.
#[derive(Debug)]
pub struct DlsmPool<F: Fabric, L: Layout> {
    fabric: F,
    map: Arc<ShardMap>,
    /// Bytes of the memory servers' pools.
    pool_bytes: u64,
    /// Always false: no operation waits for one of unknown outcome.
    doubtful: Cell<bool>,
    /// The parts that were opened over this endpoint: a load writes into their trees.
    opened: OpenedParts<F, L>,
}

impl<F: Fabric, L: Layout> DlsmPool<F, L> {
    /// Opens the index that the memory servers hold.
    pub(super) async fn open(fabric: F) -> Result<Self, IndexError> {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        for number in (1..fabric.memory_servers()).rev() {
            rpc.claimed(ServerId::new(number), DesignId::Lsm).await?;
        }
        let (found, _) = rpc.claimed(ROOT_SERVER, DesignId::Lsm).await?;
        let created = ShardMap::read::<F, L>(&fabric, found.root).await?;
        let map = created.divided(&divided_shards(&rpc).await?);
        let map = Arc::new(map.ok_or(IndexError::Damaged { at: found.root })?);
        let pool_bytes = rpc.usages().await?.iter().map(|usage| usage.pool_bytes).sum();
        let (doubtful, opened) = (Cell::new(false), OpenedParts::new());
        Ok(Self { fabric, map, pool_bytes, doubtful, opened })
    }

    /// Tells a compute server which shards there are.
    pub(super) fn tell(&self, server: &DlsmServer<L>) -> Result<(), IndexError> {
        server.learn(&self.map, self.pool_bytes)
    }

    /// Opens all trees of a compute server. The first handle opens them from their directories.
    pub(super) async fn open_part(
        &self,
        server: &Arc<DlsmServer<L>>,
    ) -> Result<DlsmPart<F, L>, IndexError> {
        self.tell(server)?;
        let log = match server.log() {
            Some((log, number)) => {
                Some(Rc::new(WalWriter::open(self.fabric.clone(), &log, number).await?))
            }
            None => None,
        };
        let part = Rc::new(PartTrees::new(self.fabric.clone(), server, log));
        for entered in all(server.owned().shards().iter().map(|shard| part.enter(*shard))).await {
            match entered {
                // Another handle of the process moves it, and had opened it before.
                Ok(_) | Err(RemoteError::Moved) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.opened.add(Rc::clone(&part));
        Ok(DlsmPart::new(part))
    }
}

impl<F: Fabric, L: Layout> PartPool<F, L> for DlsmPool<F, L> {
    type Builder<'a>
        = LoadBuilder<'a, F, L>
    where
        Self: 'a;
    type Built = LoadedSsTables;
    type Former = ();

    fn fabric(&self) -> &F {
        &self.fabric
    }

    fn doubtful(&self) -> &Cell<bool> {
        &self.doubtful
    }

    /// Nothing to do: a shard's tables use all memory servers.
    fn use_servers(&self, _servers: u16) {}

    /// The records go to the trees of the parts that were opened over this endpoint.
    fn builder(&self, _fill: f64, _boundaries: Vec<OwnedKey<L>>) -> LoadBuilder<'_, F, L> {
        LoadBuilder::new(&self.opened)
    }

    async fn is_empty(&self) -> Result<bool, IndexError> {
        for (tree, _visit) in &self.opened.enter_all().await? {
            if !tree.records(&ScanRequest::range(..).limit(1)).await?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn occupied(&self) -> Result<(), IndexError> {
        Ok(())
    }

    fn replace(&self, built: &LoadedSsTables) -> impl Future<Output = Result<(), RemoteError>> {
        built.install(&self.opened)
    }

    fn give_back(&self, (): ()) {}

    /// Compute servers hold no locks.
    async fn declare_dead(&self, _compute_server: u16) -> Result<(), RemoteError> {
        Ok(())
    }

    /// Takes the shards of the range from the former incarnation. What it had in MemTables only is
    /// lost, unless it had a log.
    async fn end_former_incarnation(
        &self,
        _compute_server: u16,
        range: &OwnedRange<OwnedKey<L>>,
    ) -> Result<(), IndexError> {
        let space = Arc::new(ExtentSpace::new(1));
        let client = ExtentClient::<F, L>::new(self.fabric.clone(), &space, 1);
        // The former incarnation may have divided a shard since this endpoint looked.
        let pieces = divided_shards(client.rpc()).await?;
        let map = self.map.divided(&pieces).ok_or(IndexError::Damaged { at: GlobalAddr::NULL })?;
        for shard in map.shards(shards_of::<L>(&map, range)?) {
            end_process(&client.directory(*shard as u64)).await?;
        }
        Ok(())
    }
}
