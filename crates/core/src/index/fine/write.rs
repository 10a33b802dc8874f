//! Splits of full leaves, and separators for the levels above.

use super::FineIndex;
use crate::page::{Entry, Layout, OwnedKey, Probe};
use crate::remote::{Image, Miss, PageCopy, RemoteError, Separator};
use farleaf_fabric::{Fabric, GlobalAddr};

impl<F: Fabric, L: Layout> FineIndex<F, L> {
    /// Takes nodes until `spare` has `count`. Call it before the first change, for all splits that
    /// can follow from it.
    async fn provide(&self, spare: &mut Vec<GlobalAddr>, count: usize) -> Result<(), RemoteError> {
        while spare.len() < count {
            spare.push(self.pages.take_node_anywhere().await?);
        }
        Ok(())
    }

    pub(super) async fn split_leaf(
        &self,
        full: &PageCopy<L>,
        entry: &Entry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<(), Miss> {
        // One node per level up to the root, two for the root, and one in case the root grows
        // meanwhile.
        self.provide(spare, usize::from(self.root_level.get()) + 3).await?;
        let mut separator = self.split_page(full, entry, spare).await?;
        while let Some(known) = separator {
            // The record is stored. If a separator cannot be installed, readers take one more step
            // to the right.
            separator = self
                .pages
                .attempts(async || self.install(&known, spare).await)
                .await
                .unwrap_or(None);
        }
        Ok(())
    }

    /// Splits a page, which may be the root. Returns the separator to install in its parent.
    async fn split_page(
        &self,
        full: &PageCopy<L>,
        entry: &Entry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<Option<Separator<OwnedKey<L>>>, Miss> {
        let needed = if full.at() == self.root { 2 } else { 1 };
        self.provide(spare, needed).await?;
        let nodes = spare.split_off(spare.len() - needed);
        let outcome = match nodes[..] {
            [left, right] => self.pages.split_root(full, [left, right], entry).await.map(|()| None),
            _ => self.pages.split(full, nodes[0], entry).await.map(Some),
        };
        if let Err(Miss::Restart) = outcome {
            spare.extend(nodes);
        }
        outcome
    }

    /// Adds a separator at its level. If that splits a node, returns the next separator.
    pub(super) async fn install(
        &self,
        separator: &Separator<OwnedKey<L>>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<Option<Separator<OwnedKey<L>>>, Miss> {
        let Separator { level, key, child } = separator;
        let node = self.descend(Probe::At(L::key(key)), *level).await?;
        let entry = Entry::Child(key.clone(), *child);
        if L::inner_key(node.page(), L::inner_slot(node.page(), Probe::At(L::key(key)))) == *key {
            return Ok(None); // another has installed it
        }
        let image = Image::of(node.page());
        if entry.add_to(image.page()) {
            self.pages.replace(&node, image).await?;
            return Ok(None);
        }
        self.split_page(&node, &entry, spare).await
    }
}
