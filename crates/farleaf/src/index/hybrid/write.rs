//! Changes of single records, splits of full leaves, and what the memory servers are told of them.

use super::HybridIndex;
use crate::index::IndexError;
use crate::page::{Action, Answer, Layout, LeafEdit, Probe};
use crate::remote::{Entry, Miss, PageCopy, Pointer, RemoteError};
use crate::wire::Request;
use farleaf_fabric::{Fabric, GlobalAddr};

impl<F: Fabric, L: Layout<Value = u64>> HybridIndex<F, L> {
    /// Does `edit` to the leaf of its key, or splits the leaf if its record has no room there.
    pub(super) async fn change(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<Answer<L::Value>, IndexError> {
        self.pages.settle_doubts().await;
        let (mut spare, mut leaf) = (None, None);
        let attempt = async || self.try_change(edit, &mut leaf, &mut spare).await;
        let outcome = self.pages.attempts(attempt).await;
        spare.into_iter().for_each(|node| self.pages.give_back_unseen(node));
        Ok(outcome?)
    }

    async fn try_change(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
        leaf: &mut Option<Pointer>,
        spare: &mut Option<GlobalAddr>,
    ) -> Result<Answer<L::Value>, Miss> {
        // A change that lost against another begins again at the leaf where that was.
        let copy = match leaf.take() {
            Some(pointer) => self.walk(pointer, Probe::At(edit.key)).await?,
            None => self.find(Probe::At(edit.key)).await?,
        };
        *leaf = Some(copy.itself());
        if let Some(answer) = self.pages.edit(&copy, edit).await? {
            return Ok(answer);
        }
        let Some((key, value)) = edit.new_record() else {
            return Err(RemoteError::BadReply { server: copy.at().server() }.into());
        };
        self.split_and_add(&copy, &Entry::Record(key, value), spare).await?;
        Ok(Answer::of_change(true))
    }

    async fn split_and_add(
        &self,
        full: &PageCopy<L>,
        entry: &Entry<L>,
        spare: &mut Option<GlobalAddr>,
    ) -> Result<(), Miss> {
        let node = match spare.take() {
            Some(node) => node,
            None => self.pages.take_node_anywhere().await?,
        };
        match self.pages.split(full, node, entry).await {
            Ok(separator) => {
                self.pay_owed().await;
                self.note(&separator.key, separator.child).await;
                Ok(())
            }
            Err(Miss::Restart) => {
                *spare = Some(node);
                Err(Miss::Restart)
            }
            failed => failed.map(drop),
        }
    }

    /// Tells the server that the leaf at `at` begins at `low`. The leaf is in the chain: a server
    /// that does not learn of it costs readers a step to the right, and no more.
    ///
    /// What may have arrived is not sent again: it could arrive twice, the second time when the
    /// leaf is gone (Y3).
    pub(super) async fn note(&self, low: &L::Key, at: GlobalAddr) {
        let action = Action::Upsert(at.to_bits());
        let request = Request::Edit(LeafEdit { key: low.clone(), action });
        match self.pages.rpc().expect_done(self.server_of(Probe::At(low)), &request).await {
            Ok(()) | Err(RemoteError::Indeterminate(_)) => {}
            Err(_) => self.owed.borrow_mut().push((low.clone(), at)),
        }
    }

    /// Tells the servers once more what they refused to hear.
    pub(super) async fn pay_owed(&self) {
        let owed = std::mem::take(&mut *self.owed.borrow_mut());
        for (low, at) in owed {
            self.note(&low, at).await;
        }
    }
}
