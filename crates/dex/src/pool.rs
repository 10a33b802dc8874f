//! Access to the tree in the memory pool over one endpoint.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::load::{BuiltTree, DexTreeBuilder};
use super::mend::mend;
use super::options::from_word;
use super::replace::{is_empty, nodes_below, replace_root};
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::OwnedRange;
use farleaf_index::{IndexError, PartPool};
use farleaf_page::rules;
use farleaf_page::{DesignId, Layout, OwnedKey};
use farleaf_pool::remote::{PageClient, ROOT_SERVER, RemoteError, RpcClient};
use std::cell::Cell;
use std::rc::Rc;

/// Maximum number of WRITEs of a node that are posted together: an entry of two pieces, a mark, a
/// leaf and its stamp. An endpoint that always refused one of them could never complete the node.
const WRITES_PER_BATCH: usize = 5;

/// Access to the tree's pages, and the tree's description from the superblock.
#[derive(Debug)]
pub struct DexPool<F: Fabric, L: Layout> {
    pub(super) pages: Rc<PageClient<F, L>>,
    pub(super) root: GlobalAddr,
    pub(super) placement_level: u8,
}

impl<F: Fabric, L: Layout> DexPool<F, L> {
    /// Opens the tree that the memory servers hold.
    pub(super) async fn open(fabric: F) -> Result<Self, IndexError> {
        if fabric.depth() < WRITES_PER_BATCH {
            return Err(IndexError::InvalidArgument(
                "an endpoint of DEX needs a depth of at least 5 operations in flight",
            ));
        }
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        let (found, word) = rpc.claimed(ROOT_SERVER, DesignId::Dex).await?;
        let (chunk_bytes, placement_level) = from_word(word);
        let pages = Rc::new(PageClient::new(fabric, chunk_bytes));
        Ok(Self { pages, root: found.root, placement_level })
    }
}

impl<F: Fabric, L: Layout> PartPool<F, L> for DexPool<F, L> {
    type Builder<'a> = DexTreeBuilder<'a, F, L>;
    type Built = BuiltTree<L>;
    type Former = Vec<GlobalAddr>;

    fn fabric(&self) -> &F {
        self.pages.fabric()
    }

    fn doubtful(&self) -> &Cell<bool> {
        self.pages.doubtful()
    }

    fn use_servers(&self, servers: u16) {
        self.pages.use_servers(servers);
    }

    fn builder(&self, fill: f64, boundaries: Vec<OwnedKey<L>>) -> DexTreeBuilder<'_, F, L> {
        DexTreeBuilder::new(&self.pages, fill, self.placement_level, boundaries)
    }

    fn is_empty(&self) -> impl Future<Output = Result<bool, IndexError>> {
        is_empty(&self.pages, self.root)
    }

    /// The nodes below the root, whose address does not change.
    fn occupied(&self) -> impl Future<Output = Result<Vec<GlobalAddr>, IndexError>> {
        nodes_below(&self.pages, self.root)
    }

    fn replace(&self, built: &BuiltTree<L>) -> impl Future<Output = Result<(), RemoteError>> {
        replace_root(&self.pages, self.root, &built.root)
    }

    fn give_back(&self, former: Vec<GlobalAddr>) {
        former.into_iter().for_each(|node| self.pages.give_back_unseen(node));
    }

    fn declare_dead(&self, compute_server: u16) -> impl Future<Output = Result<(), RemoteError>> {
        self.pages.declare_dead(compute_server)
    }

    /// Finishes the changes of shared nodes that the previous life had logged, and completes the
    /// exclusive inner nodes and the leaves that it left half written (D9, ack.A3). If several
    /// compute servers share a process, any of their endpoints may have written a node, so `range`
    /// is all keys.
    async fn end_former_incarnation(
        &self,
        compute_server: u16,
        range: &OwnedRange<OwnedKey<L>>,
    ) -> Result<(), IndexError> {
        let pages = &self.pages;
        let breaks = |rule| pages.fabric().breaks(rule);
        if !breaks(rules::FORMER_LIFE_DECLARED) {
            pages.declare_fenced(compute_server).await?;
        }
        if !breaks(rules::FORMER_CHANGES_FINISHED) {
            pages.finish_all(compute_server).await?;
        }
        if !breaks(rules::HALF_WRITTEN_MENDED) {
            mend(pages, self.root, compute_server, range).await?;
        }
        Ok(())
    }
}
