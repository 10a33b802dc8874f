//! Collection of leaves, run by any client: removes deleted records, merges or rebalances sparse
//! neighbours, and frees nodes. The memory servers collect their own trees.
//!
//! *Invariants*
//! - hybrid.G1. Two leaves are merged or rebalanced under the locks of both, and only if the
//!   server's tree has the right one. So a record that has not reached the server yet finds its
//!   leaf unchanged.
//! - hybrid.G2. The server's record of the right leaf is removed before either leaf changes:
//!   readers then reach the left leaf and step to the right. Both leaves change together or not at
//!   all; the one that loses keys is written first.
//! - hybrid.G3. A leaf is dead, and nothing points to it, before it is retired.
//!
//! A record that was lost stays missing: readers take one more step there, and the collection
//! leaves the two leaves alone. Leaves of different shares are never joined.

use super::HybridIndex;
use crate::one_sided::{Collect, CollectCursor, JoinedNodes, LeafLocator, compact, join, lock_all};
use farleaf_fabric::{Fabric, ServerId, Work};
use farleaf_index::IndexError;
use farleaf_page::rules;
use farleaf_page::{DescentProbe, EditAction, Layout, LeafEdit, OwnedKey, are_too_empty};
use farleaf_pool::remote::{MissCause, PageChange, PageCopy, RemoteError};
use farleaf_pool::wire::{AskEdit, Reply, TreeRequest};
use std::ops::Bound;

/// Leaves that are read together.
const LEAVES_AHEAD: usize = 16;

impl<F: Fabric, L: Layout> Collect for HybridIndex<F, L> {
    async fn collect_all(&self) -> Result<(), IndexError> {
        self.pages.settle_doubts().await;
        self.install_pending().await;
        let mut cursor = CollectCursor::default();
        while let Some(next) = self.collect_step(cursor).await? {
            cursor = next;
        }
        for server in self.servers() {
            match self.pages.rpc().ask_idempotent(server, &TreeRequest::Collect).await? {
                Reply::Done => {}
                _ => return Err(IndexError::BadReply { server }),
            }
        }
        Ok(self.pages.share_free_nodes().await?)
    }

    /// Collects a few leaves. Starts at the first leaf if the cursor has no key.
    async fn collect_step(
        &self,
        cursor: CollectCursor<OwnedKey<L>>,
    ) -> Result<Option<CollectCursor<OwnedKey<L>>>, IndexError> {
        let mut key = cursor.key.unwrap_or_else(L::min_key);
        let next = self.pages.attempts(async || self.collect_from(&mut key).await).await?;
        Ok(next.map(|key| CollectCursor { key: Some(key), ..CollectCursor::default() }))
    }

    /// Completes a pass. The memory servers collect their own trees.
    async fn end_pass(&self) -> Result<(), IndexError> {
        self.install_pending().await;
        Ok(self.pages.share_free_nodes().await?)
    }

    /// Aborts the server's bulk load.
    async fn abandon(&self, compute_server: u16) -> Result<(), IndexError> {
        Ok(self.pages.rpc().abandon_loads(compute_server).await?)
    }
}

impl<F: Fabric, L: Layout> HybridIndex<F, L> {
    /// Collects the leaf of `key` and the leaves after it that the server names in the same reply.
    /// Returns where to continue. `key` records the progress of an attempt.
    async fn collect_from(&self, key: &mut OwnedKey<L>) -> Result<Option<OwnedKey<L>>, MissCause> {
        let server = self.server_of(DescentProbe::At(L::key(key)));
        let start = Bound::Excluded(key.clone());
        let asked = self.post(server, start, Bound::Unbounded, false, LEAVES_AHEAD);
        let mut left = self.find(DescentProbe::At(L::key(key))).await?;
        let named = self.finish(asked).await?;
        self.compact(&mut left).await?;
        let post = |(low, pointer)| Ok((low, self.pages.post_together(pointer)?));
        let posted: Vec<_> =
            named.leaves.into_iter().map(post).collect::<Result<_, MissCause>>()?;
        for (low, read) in posted {
            let mut right = self.pages.finish_read(read).await?;
            self.pages.fabric().charge(Work::VisitNode).await;
            if right.page().level() != 0 || L::low(right.page()) != low {
                return Err(MissCause::Restart);
            }
            self.compact(&mut right).await?;
            // The server may not know a leaf between the two. In that case both stay unchanged.
            let are_neighbours = left.page().sibling() == right.at()
                || self.pages.fabric().breaks(rules::NEIGHBOURS_ONLY);
            if are_neighbours && are_too_empty(left.page(), right.page()) {
                if self.join(server, &left, &right).await? {
                    left = self.pages.read(left.itself()).await?;
                    continue;
                }
                right = self.pages.read(right.itself()).await?;
            }
            *key = L::low(right.page());
            left = right;
        }
        if named.more {
            return Ok(Some(key.clone()));
        }
        Ok(self.part(server).high.clone())
    }

    /// Joins the leaf of `key`, which a removal has emptied, with the leaf before it. The first
    /// leaf of a share stays.
    pub(super) async fn join_emptied(&self, key: &L::Key) -> Result<(), MissCause> {
        self.install_pending().await;
        let right = self.find(DescentProbe::At(key)).await?;
        let low = L::low(right.page());
        let server = self.server_of(DescentProbe::At(key));
        if low == self.part(server).low {
            return Ok(());
        }
        let left = self.find(DescentProbe::Before(L::key(&low))).await?;
        let are_neighbours = left.page().sibling() == right.at()
            || self.pages.fabric().breaks(rules::NEIGHBOURS_ONLY);
        if are_neighbours && are_too_empty(left.page(), right.page()) {
            self.join(server, &left, &right).await?;
        }
        Ok(())
    }

    /// Removes deleted records from a leaf, and rereads it if there were any.
    async fn compact(&self, leaf: &mut PageCopy<L>) -> Result<(), MissCause> {
        if leaf.page().deleted_count() == 0 {
            return Ok(());
        }
        compact(&self.pages, leaf).await?;
        *leaf = self.pages.read(leaf.itself()).await?;
        Ok(())
    }

    /// Merges or rebalances two neighbours (hybrid.G1, hybrid.G2). Returns whether the right one
    /// was removed.
    async fn join(
        &self,
        server: ServerId,
        left: &PageCopy<L>,
        right: &PageCopy<L>,
    ) -> Result<bool, MissCause> {
        let begins = L::low(right.page());
        let Some(JoinedNodes { left: lower, right: upper, separator, left_loses }) =
            join(&self.pages, left.page(), right.page(), |_| true)
        else {
            return Ok(false);
        };
        let [left_lock, right_lock] = lock_all(&self.pages, [left, right]).await?;
        let forgotten = match self.pages.fabric().breaks(rules::RECORDS_GO_FIRST) {
            true => Ok(true),
            false => self.forget(server, L::key(&begins), right).await,
        };
        if !matches!(forgotten, Ok(true)) {
            self.pages.release(right_lock).await;
            self.pages.release(left_lock).await;
            return Ok(forgotten?);
        }
        self.pages.fabric().charge(Work::RestructureNode).await;
        self.pages.fabric().charge(Work::ChangeNode).await;
        let lower = PageChange::new(left_lock, left, lower);
        let upper = PageChange::new(right_lock, right, upper);
        let changes = if left_loses { vec![lower, upper] } else { vec![upper, lower] };
        match (self.pages.commit_together(changes).await, separator) {
            (Ok(()), None) => {
                self.pages.retire(right.at());
                Ok(true)
            }
            (Ok(()), Some(separator)) => {
                self.install(L::key(&separator), right.at()).await;
                Ok(false)
            }
            (Err(error @ RemoteError::Indeterminate(_)), _) => Err(error.into()),
            (Err(error), _) => {
                self.install(L::key(&begins), right.at()).await;
                Err(error.into())
            }
        }
    }

    /// Removes the record of a leaf that this client has locked from the server's tree. Returns
    /// `false` if the server does not know the leaf. The leaf's lock keeps other clients from doing
    /// the same, so the request can be repeated until it succeeds. If a copy of it arrives later,
    /// it only removes a shortcut (Y1).
    async fn forget(
        &self,
        server: ServerId,
        low: &L::Key,
        leaf: &PageCopy<L>,
    ) -> Result<bool, RemoteError> {
        let rpc = self.pages.rpc();
        let request = |action| AskEdit(LeafEdit { key: low, action });
        match rpc.ask_idempotent(server, &request(EditAction::Get)).await? {
            Reply::Value(Some(at)) if L::address_of_value(L::value(&at)) == leaf.at() => {}
            Reply::Value(_) => return Ok(false),
            _ => return Err(RemoteError::BadReply { server }),
        }
        match rpc.ask_idempotent(server, &request(EditAction::Remove)).await? {
            Reply::Applied(_) => Ok(true),
            _ => Err(RemoteError::BadReply { server }),
        }
    }
}
