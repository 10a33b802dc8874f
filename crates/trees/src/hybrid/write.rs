//! Splits of full leaves, and reporting them to the memory servers.

use super::HybridIndex;
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_page::{DescentProbe, EditAction, Layout, LeafEdit, OverflowEntry};
use farleaf_pool::remote::{MissCause, PageCopy, RemoteError};
use farleaf_pool::wire::AskEdit;

impl<F: Fabric, L: Layout> HybridIndex<F, L> {
    pub(super) async fn split_leaf(
        &self,
        full: &PageCopy<L>,
        entry: &OverflowEntry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<(), MissCause> {
        let node = match spare.pop() {
            Some(node) => node,
            None => self.pages.take_node_anywhere().await?,
        };
        match self.pages.split(full, node, entry).await {
            Ok(separator) => {
                self.install_pending().await;
                self.install(L::key(&separator.key), separator.child).await;
                Ok(())
            }
            Err(MissCause::Restart) => {
                spare.push(node);
                Err(MissCause::Restart)
            }
            failed => failed.map(drop),
        }
    }

    /// Reports to the server that the leaf at `at` begins at `low`. The leaf is already in the
    /// chain: if the report is lost, readers only take one more step to the right.
    ///
    /// A request that may have arrived is not sent again: it could arrive twice, the second time
    /// after the leaf has been removed (Y3).
    pub(super) async fn install(&self, low: &L::Key, at: GlobalAddr) {
        let value = L::value_of_address(at);
        let request = AskEdit(LeafEdit { key: low, action: EditAction::Upsert(L::value(&value)) });
        match self.pages.rpc().expect_done(self.server_of(DescentProbe::At(low)), &request).await {
            Ok(()) | Err(RemoteError::Indeterminate(_)) => {}
            Err(_) => self.pending.borrow_mut().push((low.to_owned(), at)),
        }
    }

    /// Reports again the leaves that servers have refused to record.
    pub(super) async fn install_pending(&self) {
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        for (low, at) in pending {
            self.install(L::key(&low), at).await;
        }
    }
}
