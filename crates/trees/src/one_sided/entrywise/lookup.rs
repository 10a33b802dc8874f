//! Lookups: of a key by the window of its leaf, or of several keys together.

use super::EntryTree;
use super::windows::RecordPlace;
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_index::IndexError;
use farleaf_page::rules;
use farleaf_page::{DescentProbe, FencePosition, Layout, OwnedValue, WalkStep};
use farleaf_pool::remote::{MissCause, PageCopy, PageImage, TimedPointer};
use std::borrow::Borrow;

impl<F: Fabric, L: Layout> EntryTree<F, L> {
    /// The value of a key by a READ of the entry that it is guessed in, or else by one of its
    /// window. `None` if the window does not say: it is torn, or
    /// the leaf is another one.
    pub(super) async fn get_by_window(
        &self,
        key: &L::Key,
    ) -> Result<Option<Option<OwnedValue<L>>>, MissCause> {
        let (pages, hot) = (&self.tree.pages, self.sides.hot(DescentProbe::At(key)));
        if let Some(place) = hot.guess(key) {
            if let Some(value) = self.read_record(&place, key).await? {
                return Ok(Some(Some(value)));
            }
            hot.forget(key);
        }
        let leaf = self.leaf_of(DescentProbe::At(key)).await?;
        let window = self.read_window(leaf, key).await?;
        pages.fabric().charge(Work::VisitNode).await;
        let Some(window) = self.covering(window, key) else { return Ok(None) };
        if hot.bytes() > 0
            && let Some(words) = L::record_place(window.page(), key)
        {
            hot.note(key, RecordPlace { leaf, words, version: window.page().lock_word() });
        }
        Ok(Some(L::leaf_get(window.page(), key)))
    }

    /// The window, if it is of the leaf that covers the key. Its low fence does: a parent never
    /// names a leaf on the right of a key's (entrywise.S1).
    pub(super) fn covering(
        &self,
        window: Option<PageImage<L>>,
        key: &L::Key,
    ) -> Option<PageImage<L>> {
        let window = window?;
        let covers = L::reach(window.page(), DescentProbe::At(key)) == FencePosition::Inside
            || self.tree.pages.fabric().breaks(rules::LEAF_FENCES);
        covers.then_some(window)
    }

    /// The values of keys whose parents of leaves are cached by their windows, all in one doorbell,
    /// and the others by whole pages.
    pub(super) async fn get_windows<Q: Borrow<L::Key>>(
        &self,
        keys: &[Q],
    ) -> Result<Vec<Option<Option<OwnedValue<L>>>>, IndexError> {
        let mut found = vec![None; keys.len()];
        let (mut posted, mut others) = (Vec::with_capacity(keys.len()), Vec::new());
        for (number, key) in keys.iter().enumerate() {
            let pending = match self.cached_leaf(key.borrow()) {
                Some(leaf) => self.post_window(leaf, key.borrow())?,
                None => None,
            };
            match pending {
                Some(pending) => posted.push((number, pending)),
                None => others.push(number),
            }
        }
        for (number, pending) in posted {
            let key = keys[number].borrow();
            let window = self.finish_window(pending, key).await?;
            self.tree.pages.fabric().charge(Work::VisitNode).await;
            match self.covering(window, key) {
                Some(window) => found[number] = Some(L::leaf_get(window.page(), key)),
                None => others.push(number),
            }
        }
        if !others.is_empty() {
            let rest: Vec<&L::Key> = others.iter().map(|number| keys[*number].borrow()).collect();
            for (number, value) in others.into_iter().zip(self.get_pages(&rest).await?) {
                found[number] = value;
            }
        }
        Ok(found)
    }

    /// Looks keys up by READs of whole leaves, instead of windows.
    pub(super) async fn get_pages<Q: Borrow<L::Key>>(
        &self,
        keys: &[Q],
    ) -> Result<Vec<Option<Option<OwnedValue<L>>>>, IndexError> {
        let from = |key: &L::Key| match self.cached_leaf(key) {
            Some(leaf) => TimedPointer::fixed(leaf),
            None => self.tree.root_pointer(),
        };
        let met = |copy: &PageCopy<L>, key: &L::Key, step: WalkStep| {
            self.tree.note_root(copy);
            match (copy.page().level(), step) {
                (1, WalkStep::Child(_)) => self.admit(copy, DescentProbe::At(key)),
                (0, WalkStep::Right(_) | WalkStep::Lost) => self.forget(DescentProbe::At(key)),
                _ => {}
            }
        };
        self.tree.get_together(keys, from, met).await
    }

    fn cached_leaf(&self, key: &L::Key) -> Option<GlobalAddr> {
        self.sides.cache(DescentProbe::At(key)).leaf(DescentProbe::At(key))
    }
}
