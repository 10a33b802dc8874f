//! The collection of the leaves, run by any client: throws deleted records out, merges and evens out
//! neighbours that have become too empty, frees nodes. The memory servers collect their own trees.
//!
//! *Invariants*
//! - G1. Two leaves are merged or evened out under the locks of both, and only if the server knows the right
//!   one: so a record that is still on its way to the server finds its leaf as it was.
//! - G2. The server's record of the right leaf is gone before either changes: readers come to the left leaf
//!   and step to the right. Both change together or not at all, the one that loses keys first.
//! - G3. A leaf is dead, and nothing points to it, before it is retired.
//!
//! A record that got lost stays missing: readers take one step more there, and the collection leaves the two
//! leaves alone. The leaves of two shares are never joined.

use super::HybridIndex;
use crate::index::IndexError;
use crate::page::{Action, Layout, LeafEdit, Page, Probe};
use crate::remote::{Change, Image, Locked, Miss, PageCopy, RemoteError};
use crate::rules;
use crate::wire::{Reply, Request, TreeRequest};
use farleaf_fabric::{Fabric, ServerId, Work};
use std::ops::Bound;

/// Leaves that are looked at together.
const LEAVES_AHEAD: usize = 16;

/// Where a collection stands that goes on step by step: at the leaf of this key.
#[derive(Clone, Debug)]
pub struct CollectCursor<K>(K);

impl<F: Fabric, L: Layout<Value = u64>> HybridIndex<F, L> {
    /// Collects all that there is to collect.
    pub(super) async fn collect_all(&self) -> Result<(), IndexError> {
        self.pages.settle_doubts().await;
        self.pay_owed().await;
        let mut cursor = None;
        loop {
            cursor = self.collect_step(cursor).await?;
            if cursor.is_none() {
                break;
            }
        }
        for server in self.servers() {
            match self.pages.rpc().ask_harmless(server, &TreeRequest::Collect.into()).await? {
                Reply::Done => {}
                _ => return Err(IndexError::BadReply { server }),
            }
        }
        Ok(self.pages.share_free_nodes().await?)
    }

    /// Collects for ever, beside the other operations of this and other clients, until `stop` says so: a
    /// step, a few leaves, every `pause_ns` nanoseconds.
    ///
    /// # Errors
    /// [`IndexError`] if a step fails for another reason than the others' operations.
    pub async fn collect_in_background(
        &self,
        pause_ns: u64,
        stop: impl Fn() -> bool,
    ) -> Result<(), IndexError> {
        let mut cursor = None;
        while !stop() {
            self.pages.settle_doubts().await;
            cursor = match self.collect_step(cursor).await {
                Ok(None) => {
                    self.pay_owed().await;
                    self.pages.share_free_nodes().await?;
                    None
                }
                Ok(next) => next,
                Err(IndexError::Contended { .. }) => None,
                Err(error) => return Err(error),
            };
            self.pages.fabric().sleep(pause_ns).await;
        }
        Ok(())
    }

    /// Collects a few leaves, the first ones without a cursor; `None` at the end of a pass.
    ///
    /// # Errors
    /// [`IndexError::Contended`] if it lost too often against others.
    pub async fn collect_step(
        &self,
        cursor: Option<CollectCursor<L::Key>>,
    ) -> Result<Option<CollectCursor<L::Key>>, IndexError> {
        let mut key = cursor.map_or_else(L::min_key, |cursor| cursor.0);
        let next = self.pages.attempts(async || self.collect_from(&mut key).await).await?;
        Ok(next.map(CollectCursor))
    }

    /// Collects the leaf that `key` is in and those after it that the server names together with it; returns
    /// where to go on. What an attempt has done, `key` remembers.
    async fn collect_from(&self, key: &mut L::Key) -> Result<Option<L::Key>, Miss> {
        let server = self.server_of(Probe::At(key));
        self.pages.fabric().charge(Work::Client).await;
        let start = Bound::Excluded(key.clone());
        let asked = self.post(server, start, Bound::Unbounded, false, LEAVES_AHEAD);
        let mut left = self.find(Probe::At(key)).await?;
        let named = self.finish(asked).await?;
        self.compact(&mut left).await?;
        let post = |(low, pointer)| Ok((low, self.pages.post_together(pointer)?));
        let posted: Vec<_> = named.leaves.into_iter().map(post).collect::<Result<_, Miss>>()?;
        for (low, read) in posted {
            let mut right = self.pages.finish_read(read).await?;
            self.pages.fabric().charge(Work::VisitNode).await;
            if right.page().level() != 0 || L::low(right.page()) != low {
                return Err(Miss::Restart);
            }
            self.compact(&mut right).await?;
            // Between the two may be one that the server does not know: then they stay as they are.
            let are_neighbours = left.page().sibling() == right.at()
                || self.pages.fabric().breaks(rules::NEIGHBOURS_ONLY);
            if are_neighbours && Self::too_empty(left.page(), right.page()) {
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

    /// Throws deleted records out of a leaf, and reads it again if there were any.
    async fn compact(&self, leaf: &mut PageCopy<L>) -> Result<(), Miss> {
        if leaf.page().deleted_count() == 0 {
            return Ok(());
        }
        let image = Image::of(leaf.page());
        if L::leaf_compact(image.page()) > 0 {
            self.pages.replace(leaf, image).await?;
        }
        *leaf = self.pages.read(leaf.itself()).await?;
        Ok(())
    }

    /// Whether one of two neighbours is below half, so that they should be merged or evened out.
    fn too_empty(left: Page<'_, L>, right: Page<'_, L>) -> bool {
        let (lefts, rights) = (left.live_count(), right.live_count());
        lefts.min(rights) < L::CAPACITY / 2
            && (L::fits_merged(left, right) || lefts.abs_diff(rights) > L::CAPACITY / 4)
    }

    /// Merges or evens out two neighbours (G1, G2); says whether the right one is gone.
    async fn join(
        &self,
        server: ServerId,
        left: &PageCopy<L>,
        right: &PageCopy<L>,
    ) -> Result<bool, Miss> {
        let (lower, upper) = (Image::of(left.page()), Image::of(right.page()));
        L::leaf_compact(lower.page());
        L::leaf_compact(upper.page());
        let before = lower.page().count();
        let begins = L::low(right.page());
        let separator = if L::fits_merged(lower.page(), upper.page()) {
            L::merge(lower.page(), upper.page());
            if !self.pages.fabric().breaks(rules::FREED_ARE_DEAD) {
                upper.page().set_dead();
            }
            None
        } else if lower.page().count().abs_diff(upper.page().count()) > 1 {
            Some(L::rebalance(lower.page(), upper.page()))
        } else {
            return Ok(false);
        };
        let left_loses = lower.page().count() < before;
        let (left_lock, right_lock) = self.lock_both(left, right).await?;
        let forgotten = match self.pages.fabric().breaks(rules::RECORDS_GO_FIRST) {
            true => Ok(true),
            false => self.forget(server, &begins, right).await,
        };
        if !matches!(forgotten, Ok(true)) {
            self.pages.release(right_lock).await;
            self.pages.release(left_lock).await;
            return Ok(forgotten?);
        }
        self.pages.fabric().charge(Work::RestructureNode).await;
        self.pages.fabric().charge(Work::ChangeNode).await;
        let lower = Change::new(left_lock, left, lower);
        let upper = Change::new(right_lock, right, upper);
        let changes = if left_loses { vec![lower, upper] } else { vec![upper, lower] };
        match (self.pages.commit_together(changes).await, separator) {
            (Ok(()), None) => {
                self.pages.retire(right.at());
                Ok(true)
            }
            (Ok(()), Some(separator)) => {
                self.note(&separator, right.at()).await;
                Ok(false)
            }
            (Err(error @ RemoteError::Indeterminate(_)), _) => Err(error.into()),
            (Err(error), _) => {
                self.note(&begins, right.at()).await;
                Err(error.into())
            }
        }
    }

    /// Locks two neighbours, both or none.
    async fn lock_both(
        &self,
        left: &PageCopy<L>,
        right: &PageCopy<L>,
    ) -> Result<(Locked<'_>, Locked<'_>), Miss> {
        let left_lock = self.pages.lock(left).await?;
        match self.pages.lock(right).await {
            Ok(right_lock) => Ok((left_lock, right_lock)),
            Err(miss) => {
                self.pages.release(left_lock).await;
                Err(miss)
            }
        }
    }

    /// Takes the record of a leaf, which this client holds, out of the server's tree; `false` if the server
    /// does not know the leaf. Under the leaf's lock nobody else does the same, so it can be asked for
    /// until it is done; and if it arrives once more later, it takes out a short cut (Y1).
    async fn forget(
        &self,
        server: ServerId,
        low: &L::Key,
        leaf: &PageCopy<L>,
    ) -> Result<bool, RemoteError> {
        let rpc = self.pages.rpc();
        let request = |action| Request::Edit(LeafEdit { key: low.clone(), action });
        match rpc.ask_harmless(server, &request(Action::Get)).await? {
            Reply::Value(Some(at)) if at == leaf.at().to_bits() => {}
            Reply::Value(_) => return Ok(false),
            _ => return Err(RemoteError::BadReply { server }),
        }
        match rpc.ask_harmless(server, &request(Action::Remove)).await? {
            Reply::Applied(_) => Ok(true),
            _ => Err(RemoteError::BadReply { server }),
        }
    }
}
