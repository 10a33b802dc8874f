//! Keeping heads up to date. There is a head after every n-th leaf. There is also one after the
//! last leaf of a parent if the previous head is at least n/2 leaves back, because a scan that came
//! through the parent needs one there.

use super::FineIndex;
use crate::one_sided::{head_image, head_leaves};
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_index::IndexError;
use farleaf_page::{DescentProbe, Layout, OwnedKey};
use farleaf_pool::remote::{MissCause, PageChange, PageCopy, PageImage};

/// Leaves, each with its low key and address.
type Leaves<K> = Vec<(K, GlobalAddr)>;

/// What a walk has learned about the last head.
struct HeadWalk {
    /// The leaves passed since then.
    leaves: usize,
    /// How many leaves the head has room for, if known.
    listed: usize,
}

impl<F: Fabric, L: Layout> FineIndex<F, L> {
    /// Walks along the leaves once: adds missing heads, removes heads that are too close together,
    /// and rewrites those whose lists are outdated.
    pub(super) async fn refresh_heads(&self) -> Result<(), IndexError> {
        if self.options.leaves_per_head == 0 {
            return Ok(());
        }
        let mut key = Some(L::min_key());
        let mut since = HeadWalk { leaves: 0, listed: head_leaves::<L>() };
        while let Some(from) = key {
            let mut from = from;
            key = self
                .tree
                .pages
                .attempts(async || self.refresh_below(&mut from, &mut since).await)
                .await?;
        }
        Ok(())
    }

    /// The children of a parent of leaves, starting at slot `first`.
    fn children(parent: &PageCopy<L>, first: usize) -> Leaves<OwnedKey<L>> {
        let page = parent.page();
        (first..page.count())
            .map(|slot| (L::inner_key(page, slot), L::inner_child(page, slot)))
            .collect()
    }

    /// Refreshes the head after the leaf of `key` and those after the following leaves of the same
    /// parent. `since` describes the head before that leaf. Returns where to continue.
    ///
    /// `key` and `since` record the progress of an attempt: over a slow network the parent's
    /// pointers grow too old before all of its leaves have been read.
    async fn refresh_below(
        &self,
        key: &mut OwnedKey<L>,
        since: &mut HeadWalk,
    ) -> Result<Option<OwnedKey<L>>, MissCause> {
        let root = self.tree.pages.read(self.tree.root_pointer()).await?;
        if root.page().level() == 0 {
            return Ok(None);
        }
        drop(root);
        let parent = self.tree.descend(DescentProbe::At(L::key(key)), 1).await?;
        let mut children = Self::children(&parent, 0);
        let own = children.len();
        let next_parent = parent.page().sibling();
        if !next_parent.is_null() {
            let next = self.tree.pages.read(parent.pointer(next_parent)).await?;
            if next.page().level() == 1 {
                children.extend(Self::children(&next, 0));
            }
        }
        let usual = usize::from(self.options.leaves_per_head).min(head_leaves::<L>());
        for number in L::inner_slot(parent.page(), DescentProbe::At(L::key(key)))..own {
            // The list after the last leaf of the last parent would be empty.
            let following = &children[number + 1..];
            let listed = &following[..following.len().min(usual)];
            let leaves = since.leaves + 1;
            let every = usual.min(since.listed);
            let due = leaves >= every || (number + 1 == own && 2 * leaves >= every);
            let wanted = due && !listed.is_empty();
            let pointer = parent.pointer(children[number].1);
            let leaf = self.tree.pages.read(pointer).await?;
            self.tree.pages.fabric().charge(Work::VisitNode).await;
            let next_is_known = following.first().map(|(_, at)| *at) == Some(leaf.page().sibling());
            if next_is_known && wanted {
                self.add_head(&leaf, listed).await?;
            } else if !next_is_known && !leaf.page().sibling().is_null() {
                self.refresh_head(&leaf, listed, wanted).await?;
            }
            *since = match wanted {
                true => HeadWalk { leaves: 0, listed: room_for::<L>(listed) },
                false => HeadWalk { leaves, ..*since },
            };
            if let Some((low, _)) = children[..own].get(number + 1) {
                *key = low.clone();
            }
        }
        Ok(L::high(parent.page()))
    }

    async fn add_head(
        &self,
        leaf: &PageCopy<L>,
        listed: &[(OwnedKey<L>, GlobalAddr)],
    ) -> Result<(), MissCause> {
        if L::high(leaf.page()).as_ref() != listed.first().map(|(low, _)| low) {
            return Ok(());
        }
        // A head is optional: skip it if there is no memory.
        let Ok(at) = self.tree.pages.take_node_anywhere().await else { return Ok(()) };
        let image = head_image::<L>(at, listed);
        let outcome = async {
            let fresh = self.tree.pages.fresh_word(at).await?;
            let locked = self.tree.pages.lock(leaf).await?;
            if let Err(error) = self.tree.pages.write_fresh(&[(at, fresh, &image)]).await {
                self.tree.pages.release(locked).await;
                return Err(error.into());
            }
            let linked = PageImage::of(leaf.page());
            linked.page().set_sibling(at);
            Ok(self.tree.pages.commit(PageChange::new(locked, leaf, linked)).await?)
        }
        .await;
        if let Err(MissCause::Restart) = outcome {
            self.tree.pages.give_back_unseen(at);
        }
        outcome
    }

    /// Updates or removes the head after a leaf. Called if the leaf's sibling is not the next leaf
    /// of the parent; does nothing if the sibling is not a head.
    async fn refresh_head(
        &self,
        leaf: &PageCopy<L>,
        listed: &[(OwnedKey<L>, GlobalAddr)],
        wanted: bool,
    ) -> Result<(), MissCause> {
        let head = self.tree.pages.read(leaf.pointer(leaf.page().sibling())).await?;
        if !head.page().is_head() {
            return Ok(());
        }
        if !wanted {
            return self.remove_head(leaf, &head).await;
        }
        let page = head.page();
        let first = (L::low(page), page.sibling());
        if listed.first() != Some(&first) {
            return Ok(()); // between the two is a leaf that the parent does not know yet
        }
        let wanted = head_image::<L>(head.at(), listed);
        let same = |slot: usize| {
            L::inner_key(page, slot) == listed[slot].0
                && L::inner_child(page, slot) == listed[slot].1
        };
        let count = wanted.page().count();
        if page.count() == count && (0..count).all(same) {
            return Ok(());
        }
        let image = PageImage::of(page);
        image.page().copy_content(wanted.page());
        self.tree.pages.replace(&head, image).await
    }
}

/// How many leaves fit a head that lists these. If all of them fit, more may fit.
fn room_for<L: Layout>(leaves: &[(OwnedKey<L>, GlobalAddr)]) -> usize {
    match head_image::<L>(GlobalAddr::NULL, leaves).page().count() {
        all if all == leaves.len() => head_leaves::<L>(),
        some => some,
    }
}
