//! Allocating and freeing nodes for splits, and choosing their memory server.
//!
//! *Placement* (Lu et al., §3): a subtree rooted at level M lies entirely on one memory server;
//! nodes above level M are spread round robin. So a new node at level M or below goes to the server
//! of its children, or of the leaf that was split, unless that server is nearly full
//! (`placement.rs`). If that server has no memory left, another one is used.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::{DexIndex, DexServer};
use crate::cache::{MappedNode, RemoteIoMark, Restart};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_page::Layout;
use farleaf_pool::remote::RemoteError;
use std::mem::ManuallyDrop;

/// A node that nothing points to yet. Dropping it frees the node.
pub(super) struct NewNode<'a, L: Layout> {
    node: FreeNodeGuard<'a, L>,
    /// Keeps other operations from fetching the node through an old copy of a shared node (D3).
    mark: RemoteIoMark<'a>,
}

impl<'a, L: Layout> NewNode<'a, L> {
    pub(super) fn at(&self) -> GlobalAddr {
        self.node.at
    }

    /// Abandons the node after a failed WRITE. If the WRITE may still land, the node is never
    /// reused.
    pub(super) fn lost_after(self, restart: &Restart, breaks: bool) {
        if matches!(restart, Restart::Failed(_)) && !breaks {
            drop(self.used());
        }
    }

    /// Records that a node in the pool points to this node, or may do so. Returns the mark, which
    /// publishes the node.
    pub(super) fn used(self) -> RemoteIoMark<'a> {
        self.about_to_be_used().stays()
    }

    /// From now on a node in the pool may come to point to this node, even if this task is dropped.
    pub(super) fn about_to_be_used(self) -> LinkingNode<'a, L> {
        let Self { node, mark } = self;
        LinkingNode { node: ManuallyDrop::new(node), mark }
    }
}

/// A node that a parent in the pool may already point to. If this is dropped, the node is never
/// reused.
pub(super) struct LinkingNode<'a, L: Layout> {
    node: ManuallyDrop<FreeNodeGuard<'a, L>>,
    mark: RemoteIoMark<'a>,
}

impl<'a, L: Layout> LinkingNode<'a, L> {
    /// Keeps the node. Returns the mark, which publishes the node.
    pub(super) fn stays(self) -> RemoteIoMark<'a> {
        self.mark
    }

    /// Frees the node. Nothing points to it, and nothing will.
    pub(super) fn give_back(self) {
        drop(ManuallyDrop::into_inner(self.node));
    }
}

/// Returns the node to the free list when dropped.
struct FreeNodeGuard<'a, L: Layout> {
    server: &'a DexServer<L>,
    at: GlobalAddr,
}

impl<L: Layout> Drop for FreeNodeGuard<'_, L> {
    fn drop(&mut self) {
        self.server.give_node(self.at);
    }
}

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Allocates a node for `level`, near `neighbour`.
    ///
    /// # Errors
    /// [`Restart::Failed`] if no memory server has one, [`Restart::Busy`] if another operation is
    /// still using the node's former content.
    pub(super) async fn new_node(
        &self,
        level: u8,
        neighbour: ServerId,
    ) -> Result<NewNode<'_, L>, Restart> {
        let node =
            FreeNodeGuard { server: &self.server, at: self.take_node(level, neighbour).await? };
        let (cache, at) = (self.client.cache(), node.at);
        let mut mark = cache.mapping().begin_io(at.to_bits(), || true);
        if let Err(MappedNode::Frame(frame)) = mark
            && let Some(free) = cache.forget_lost(frame, at)
        {
            self.client.keep(free);
            mark = cache.mapping().begin_io(at.to_bits(), || true);
        }
        let mark = mark.map_err(|_| Restart::Busy)?;
        Ok(NewNode { node, mark })
    }

    async fn take_node(&self, level: u8, neighbour: ServerId) -> Result<GlobalAddr, RemoteError> {
        let pages = self.client.pages();
        let used = self.server.memory().used(pages.fabric().memory_servers());
        pages.use_servers(used);
        let near = if level <= self.placement_level {
            let place = match self.server.has_free_node(neighbour) {
                true => neighbour,
                false => self.placement.near(pages, neighbour, used).await,
            };
            self.server.take_node(pages, place).await
        } else {
            pages.take_node_anywhere().await
        };
        match near {
            Err(error @ RemoteError::OutOfMemory { .. }) => match self.server.take_freed() {
                Some(node) => Ok(node),
                None => pages.take_node_anywhere().await.map_err(|_| error),
            },
            taken => taken,
        }
    }

    /// Takes back a node that nothing points to.
    pub(super) async fn free_node(&self, node: GlobalAddr) {
        if self.server.give_node(node) {
            let pages = self.client.pages();
            self.server.surplus(node.server()).into_iter().for_each(|node| {
                pages.give_back_unseen(node);
            });
            // If the memory server does not accept them, they stay in this endpoint's list.
            let _ = pages.share_free_nodes().await;
        }
    }

    /// Returns nodes that nothing points to, beyond `keep` on each memory server, to these.
    pub(super) async fn share_unused_nodes(&self, keep: usize) -> Result<(), RemoteError> {
        let pages = self.client.pages();
        self.server.unused(keep).into_iter().for_each(|node| pages.give_back_unseen(node));
        pages.share_unused_nodes(keep).await
    }
}
