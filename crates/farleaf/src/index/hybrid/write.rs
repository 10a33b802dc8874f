//! Changes of single records, splits of full leaves, and what the memory servers are told of them.

use super::HybridIndex;
use crate::index::IndexError;
use crate::page::{Layout, Page, Probe};
use crate::remote::{Edit, Entry, Miss, PageCopy, Pointer, RemoteError};
use crate::wire::Request;
use farleaf_fabric::{Fabric, GlobalAddr};

impl<F: Fabric, L: Layout<Value = u64>> HybridIndex<F, L> {
    /// Applies `edit` to the leaf of `key`. If there is no room, splits the leaf and adds the record of
    /// `entry` to it, whose outcome comes with it.
    pub(super) async fn change<T: Clone>(
        &self,
        key: &L::Key,
        edit: impl Fn(Page<'_, L>) -> Edit<T>,
        entry: Option<(&Entry<L>, T)>,
    ) -> Result<T, IndexError> {
        self.pages.settle_doubts().await;
        let (mut spare, mut leaf) = (None, None);
        let mut backoff = self.pages.backoff();
        let outcome = loop {
            let attempt = match self.try_change(key, &mut leaf, &edit).await {
                Ok((Edit::Full, copy)) => match &entry {
                    None => Err(RemoteError::BadReply { server: copy.at().server() }.into()),
                    Some((entry, done)) => {
                        self.split_and_add(&copy, entry, &mut spare).await.map(|()| done.clone())
                    }
                },
                Ok((Edit::Nothing(answer) | Edit::Done(answer), _)) => Ok(answer),
                Err(miss) => Err(miss),
            };
            match attempt {
                Ok(answer) => break Ok(answer),
                Err(Miss::Failed(error)) => break Err(error),
                Err(Miss::Restart) => {}
            }
            if let Err(error) = self.pages.before_retry(&mut backoff).await {
                break Err(error);
            }
        };
        spare.into_iter().for_each(|node| self.pages.give_back_unseen(node));
        Ok(outcome?)
    }

    async fn try_change<T>(
        &self,
        key: &L::Key,
        leaf: &mut Option<Pointer>,
        edit: impl Fn(Page<'_, L>) -> Edit<T>,
    ) -> Result<(Edit<T>, PageCopy<L>), Miss> {
        // Who lost against another begins again at the leaf where that was.
        let copy = match leaf.take() {
            Some(pointer) => self.walk(pointer, Probe::At(key)).await?,
            None => self.find(Probe::At(key)).await?,
        };
        *leaf = Some(copy.itself());
        Ok((self.pages.edit(&copy, edit).await?, copy))
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

    /// Tells the server that the leaf at `at` begins at `low`. The leaf is in the chain: a server that does
    /// not learn of it costs readers a step to the right, and no more.
    ///
    /// What may have arrived is not sent again: it could arrive twice, the second time when the leaf is gone
    /// (Y3).
    pub(super) async fn note(&self, low: &L::Key, at: GlobalAddr) {
        let request = Request::Upsert { key: low.clone(), value: at.to_bits() };
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
