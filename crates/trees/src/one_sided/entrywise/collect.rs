//! Collection: none. Leaves are not merged, as in the paper's program: deleted records leave free
//! slots, and empty leaves stay. So no reachable node is ever freed, and cached nodes never lead to
//! a node that was used again.

use super::super::{Collect, CollectCursor};
use super::EntryTree;
use farleaf_fabric::Fabric;
use farleaf_index::IndexError;
use farleaf_page::{Layout, OwnedKey};

impl<F: Fabric, L: Layout> Collect for EntryTree<F, L> {
    async fn collect_all(&self) -> Result<(), IndexError> {
        self.tree.pages.settle_doubts().await;
        self.end_pass().await
    }

    async fn collect_step(
        &self,
        _cursor: CollectCursor<OwnedKey<L>>,
    ) -> Result<Option<CollectCursor<OwnedKey<L>>>, IndexError> {
        Ok(None)
    }

    /// Returns nodes that were allocated and not used.
    async fn end_pass(&self) -> Result<(), IndexError> {
        Ok(self.tree.pages.share_free_nodes().await?)
    }
}
