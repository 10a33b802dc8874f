//! Splits: a full page moves its upper half to a new right sibling; its parent is updated later.
//!
//! *Invariants*
//! - S1. The new nodes are allocated before the first change.
//! - S2. A new node is completely written before the page that points to it.
//! - S3. The separator goes into the parent afterwards. Until then, readers find the sibling
//!   through the page that was split.

use super::{LockedPage, MissCause, PageChange, PageClient, PageCopy, PageImage, RemoteError};
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_page::rules;
use farleaf_page::{Layout, LockWord, OverflowEntry, OwnedKey, Page, split_plan};

/// A separator that has yet to be inserted into the parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingSeparator<K> {
    /// The level of the parent.
    pub level: u8,
    /// The lowest key of the child.
    pub key: K,
    /// The address of the new child.
    pub child: GlobalAddr,
}

/// The two halves of a full page with one more entry.
struct PageHalves<L: Layout> {
    left: PageImage<L>,
    right: PageImage<L>,
    separator: OwnedKey<L>,
}

impl<L: Layout> PageHalves<L> {
    /// `None` if the entry has no room in its half, which layout.Y6 excludes.
    fn of<F: Fabric>(
        fabric: &F,
        full: Page<'_, L>,
        right_at: GlobalAddr,
        entry: &OverflowEntry<L>,
    ) -> Option<Self> {
        let plan = split_plan(full, Some(entry), fabric.breaks(rules::SEPARATORS_ABOVE));
        let (left, right) = (PageImage::of(full), PageImage::empty());
        L::split_copy(left.page(), right.page(), right_at, &plan);
        L::split_truncate(left.page(), &plan);
        let half = if entry.key() < L::key(&plan.separator) { &left } else { &right };
        if !entry.add_to(half.page()) {
            return None;
        }
        L::split_link(left.page(), L::key(&plan.separator), right_at);
        Some(Self { left, right, separator: plan.separator })
    }
}

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Splits the page that `copy` was read from, which is not the root. Its upper half moves to
    /// `node`, and `entry` goes into the half that covers its key.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if the page has changed; nothing has happened in that case, and the
    /// node is still free. After [`MissCause::Failed`], the node must not be reused.
    pub async fn split(
        &self,
        copy: &PageCopy<L>,
        node: GlobalAddr,
        entry: &OverflowEntry<L>,
    ) -> Result<PendingSeparator<OwnedKey<L>>, MissCause> {
        let fresh = self.fresh_word(node).await?;
        let locked = self.lock(copy).await?;
        self.fabric().charge(Work::RestructureNode).await;
        let halves = PageHalves::of(self.fabric(), copy.page(), node, entry);
        let Some(PageHalves { left, right, separator }) = halves else {
            return Err(self.without_room(locked).await);
        };
        let fresh = [(node, fresh, &right)];
        let change = PageChange::new(locked, copy, left);
        self.commit_with_fresh(&fresh, change).await?;
        Ok(PendingSeparator { level: copy.page().level() + 1, key: separator, child: node })
    }

    /// Splits the root: its content and `entry` move into two new pages. The root keeps its address
    /// and rises by one level.
    ///
    /// # Errors
    /// As [`PageClient::split`].
    pub async fn split_root(
        &self,
        copy: &PageCopy<L>,
        nodes: [GlobalAddr; 2],
        entry: &OverflowEntry<L>,
    ) -> Result<(), MissCause> {
        let fresh = [self.fresh_word(nodes[0]).await?, self.fresh_word(nodes[1]).await?];
        let locked = self.lock(copy).await?;
        self.fabric().charge(Work::RestructureNode).await;
        let full = copy.page();
        let content = PageImage::<L>::empty();
        content.page().format_empty(nodes[0], full.level(), L::key(&L::low(full)), None);
        content.page().copy_content(full);
        content.page().clear_entry_lock();
        L::seal_entries(content.page()); // for the version of the new page
        let halves = PageHalves::of(self.fabric(), content.page(), nodes[1], entry);
        let Some(PageHalves { left, right, separator }) = halves else {
            return Err(self.without_room(locked).await);
        };
        let root = PageImage::<L>::empty();
        let (low, high) = (L::low(full), L::high(full));
        root.page().format_empty(
            copy.at(),
            full.level() + 1,
            L::key(&low),
            high.as_ref().map(L::key),
        );
        let linked = L::inner_insert(root.page(), L::key(&low), nodes[0])
            && L::inner_insert(root.page(), L::key(&separator), nodes[1]);
        if !linked {
            return Err(self.without_room(locked).await);
        }
        let fresh = [(nodes[0], fresh[0], &left), (nodes[1], fresh[1], &right)];
        let change = PageChange::new(locked, copy, root);
        Ok(self.commit_with_fresh(&fresh, change).await?)
    }

    /// Abandons a split that has changed nothing.
    async fn without_room(&self, locked: LockedPage<'_>) -> MissCause {
        self.release(locked).await;
        RemoteError::Contended { retries: 0 }.into()
    }

    /// WRITEs new pages and then the page that points to them (S2).
    async fn commit_with_fresh(
        &self,
        fresh: &[(GlobalAddr, LockWord, &PageImage<L>)],
        change: PageChange<'_, L>,
    ) -> Result<(), RemoteError> {
        if self.fabric().breaks(rules::SIBLING_FIRST) {
            self.commit(change).await?;
            return self.write_fresh(fresh).await;
        }
        if let Err(error) = self.write_fresh(fresh).await {
            self.release(change.locked).await;
            return Err(error);
        }
        self.commit(change).await
    }
}
