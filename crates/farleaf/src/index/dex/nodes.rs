//! Nodes for splits, and where they go.
//!
//! *Placement* (Lu et al., §3): a subtree rooted at level M lies whole on one memory server, nodes above go round
//! the servers. So a new node at level M or below goes where its children, or the leaf that it is split from,
//! are. When that server has no memory left, another one is better than none.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::{DexIndex, DexServer};
use crate::cache::Discipline;
use crate::page::Layout;
use crate::remote::RemoteError;
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};

/// A node that nothing points to yet; dropped, it is free again.
#[derive(Debug)]
pub(super) struct NewNode<'a, L: Layout> {
    server: &'a DexServer<L>,
    at: GlobalAddr,
}

impl<L: Layout> NewNode<'_, L> {
    pub(super) fn at(&self) -> GlobalAddr {
        self.at
    }

    /// Something in the pool points to the node, or may.
    pub(super) fn used(self) {
        std::mem::forget(self);
    }
}

impl<L: Layout> Drop for NewNode<'_, L> {
    fn drop(&mut self) {
        self.server.give_node(self.at);
    }
}

impl<F: Fabric, L: Layout, D: Discipline> DexIndex<F, L, D> {
    /// A node for `level`, near `neighbour`.
    pub(super) async fn new_node(
        &self,
        level: u8,
        neighbour: ServerId,
    ) -> Result<NewNode<'_, L>, RemoteError> {
        let pages = self.client.pages();
        let near = if level <= self.placement_level {
            self.server.take_node(pages, neighbour).await
        } else {
            pages.take_node_anywhere().await
        };
        let at = match near {
            Err(error @ RemoteError::OutOfMemory { .. }) => match self.server.take_freed() {
                Some(node) => node,
                None => pages.take_node_anywhere().await.map_err(|_| error)?,
            },
            taken => taken?,
        };
        Ok(NewNode { server: &self.server, at })
    }

    /// Takes back a node that nothing points to any more.
    pub(super) async fn free_node(&self, node: GlobalAddr) {
        if self.server.give_node(node) {
            let pages = self.client.pages();
            self.server.surplus(node.server()).into_iter().for_each(|node| {
                pages.give_back_unseen(node);
            });
            // If the memory server does not take them, they stay in this endpoint's list.
            let _ = pages.share_free_nodes().await;
        }
    }
}
