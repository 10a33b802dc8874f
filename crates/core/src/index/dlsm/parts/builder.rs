//! Bulk loads into the trees of the parts that were opened over one endpoint: all tables are
//! written first, then each tree gets its own.
//!
//! *Thread safety*: private to one task.

use super::opened::OpenedParts;
use crate::index::dlsm::load::Loader;
use crate::index::dlsm::shard::{Right, Shard};
use crate::index::dlsm::version::Table;
use crate::index::{Built, BulkBuilder, Encoded};
use crate::page::Layout;
use crate::remote::{ROOT_SERVER, RemoteError};
use farleaf_fabric::Fabric;
use std::cell::RefCell;
use std::fmt::{self, Debug, Formatter};

/// The tables of a bulk load under construction.
pub struct LoadBuilder<'p, F: Fabric, L: Layout> {
    opened: &'p OpenedParts<F, L>,
    /// The number of the records in each part; parts have counters of their own.
    sequences: Vec<Option<u64>>,
    /// The tree that records go to, by its place among all trees.
    now: Option<(usize, Loader<'p, F, L>)>,
    loaded: LoadedTables,
}

impl<F: Fabric, L: Layout> Debug for LoadBuilder<'_, F, L> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadBuilder").field("loaded", &self.loaded).finish_non_exhaustive()
    }
}

/// The tables of a bulk load, by the place of their tree among all trees.
#[derive(Debug, Default)]
pub struct LoadedTables {
    tables: RefCell<Vec<(usize, Vec<Table>)>>,
}

impl<K> Built<K> for LoadedTables {
    /// Shards keep their keys.
    fn equal_boundaries(&self, _parts: usize) -> Option<Vec<K>> {
        None
    }
}

impl<'p, F: Fabric, L: Layout> LoadBuilder<'p, F, L> {
    pub(super) fn new(opened: &'p OpenedParts<F, L>) -> Self {
        Self { opened, sequences: Vec::new(), now: None, loaded: LoadedTables::default() }
    }

    /// The loader of the tree that has `key`.
    async fn loader(&mut self, key: &[u8]) -> Result<&mut Loader<'p, F, L>, RemoteError> {
        let mut before = 0;
        let mut found = None;
        for (number, part) in self.opened.iter().enumerate() {
            if let Some(place) = part.place_of(key) {
                found = Some((number, before + place, &part.handles[place]));
                break;
            }
            before += part.handles.len();
        }
        let (part, place, tree) = found.ok_or(RemoteError::KeysStay)?;
        if self.now.as_ref().is_none_or(|(now, _)| *now != place) {
            self.end_tree().await?;
            if self.sequences.len() <= part {
                self.sequences.resize(part + 1, None);
            }
            // One number for all. Trees get their tables one after the other, so the caller must
            // keep scans away meanwhile: it has halted the server, or is its only client.
            let sequence = *self.sequences[part].get_or_insert_with(|| tree.shard.sequences.take());
            self.now = Some((place, Loader::new(tree, sequence)));
        }
        let (_, loader) = self.now.as_mut().expect("it was just set");
        Ok(loader)
    }

    async fn end_tree(&mut self) -> Result<(), RemoteError> {
        if let Some((place, loader)) = self.now.take() {
            let tables = loader.finish().await?;
            self.loaded.tables.borrow_mut().push((place, tables));
        }
        Ok(())
    }
}

impl<F: Fabric, L: Layout> BulkBuilder<L> for LoadBuilder<'_, F, L> {
    type Built = LoadedTables;

    /// # Errors
    /// [`RemoteError::KeysStay`] if the key belongs to a part that was not opened over this
    /// endpoint.
    async fn append(&mut self, key: &L::Key, value: &L::Value) -> Result<(), RemoteError> {
        let key = key.encoded();
        let loader = self.loader(key.as_ref()).await?;
        Ok(loader.add(key.as_ref(), value.encoded().as_ref()).await?)
    }

    async fn finish(&mut self) -> Result<LoadedTables, RemoteError> {
        self.end_tree().await?;
        Ok(std::mem::take(&mut self.loaded))
    }

    /// Tables that were finished give their extents back by themselves.
    async fn abort(self) {
        if let Some((_, loader)) = self.now {
            loader.abandon().await;
        }
    }
}

impl LoadedTables {
    /// Gives each tree its tables. All trees must be empty.
    pub(super) async fn install<F: Fabric, L: Layout>(
        &self,
        opened: &OpenedParts<F, L>,
    ) -> Result<(), RemoteError> {
        let trees: Vec<_> = opened.trees().collect();
        let mut rights = Vec::new();
        for tree in &trees {
            // Tombstones above would hide what is loaded.
            tree.settle_tree().await?;
            let flushing = tree.until_begun(Right::Flush, Shard::begin_flush).await?;
            let merging = tree.until_begun(Right::Merge, Shard::begin_merge).await?;
            tree.settle_change().await?;
            tree.check_no_records()?;
            rights.push((flushing, merging));
        }
        let loaded = self.tables.take();
        let mut has_changed = false;
        for (place, tables) in loaded {
            let (tree, (_, merging)) = (trees[place], &rights[place]);
            let level = tree.shard.options.levels;
            if let Err(error) = tree.publish_load(merging.merged(&[], level, tables)).await {
                return Err(if has_changed { error.after_a_change(ROOT_SERVER) } else { error });
            }
            has_changed = true;
        }
        Ok(())
    }
}
