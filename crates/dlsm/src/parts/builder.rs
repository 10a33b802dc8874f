//! Bulk loads into the trees of the parts that were opened over one endpoint: all tables are
//! written first, then each tree gets its own.
//!
//! *Thread safety*: private to one task.

use super::opened::OpenedParts;
use super::part::PartTrees;
use crate::gate::TreeVisit;
use crate::load::SsTableLoader;
use crate::shard::{LsmShard, TreeRight};
use crate::version::SsTable;
use farleaf_fabric::Fabric;
use farleaf_index::{BuiltContent, BulkBuilder, Encoded};
use farleaf_page::Layout;
use farleaf_pool::remote::{ROOT_SERVER, RemoteError};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The tables of a bulk load under construction.
pub struct LoadBuilder<'p, F: Fabric, L: Layout> {
    opened: &'p OpenedParts<F, L>,
    /// The sequence number of the records in each part; parts have counters of their own.
    sequences: Vec<Option<u64>>,
    now: Option<CurrentShardLoad<'p, F, L>>,
    loaded: LoadedSsTables,
}

/// The part and the shard that records go to. Its tree is neither left nor divided meanwhile.
type CurrentShardLoad<'p, F, L> = ((usize, usize), SsTableLoader<'p, F, L>, TreeVisit<'p>);

/// The tables of a bulk load, by their shard.
#[derive(Debug, Default)]
pub struct LoadedSsTables {
    tables: RefCell<Vec<(u64, Vec<SsTable>)>>,
}

impl<K> BuiltContent<K> for LoadedSsTables {
    /// Boundaries cannot be chosen freely: shards keep their keys, and compute servers whole
    /// shards.
    fn equal_boundaries(&self, _parts: usize) -> Option<Vec<K>> {
        None
    }
}

impl<'p, F: Fabric, L: Layout> LoadBuilder<'p, F, L> {
    pub(super) fn new(opened: &'p OpenedParts<F, L>) -> Self {
        Self { opened, sequences: Vec::new(), now: None, loaded: LoadedSsTables::default() }
    }

    /// The loader of the tree that has `key`.
    async fn loader(&mut self, key: &[u8]) -> Result<&mut SsTableLoader<'p, F, L>, RemoteError> {
        let mut parts = self.opened.iter().enumerate();
        let now = self.now.as_ref().map(|(now, ..)| *now);
        // By the part's own map: others may not know of a division.
        let of_key = |(number, part): (usize, &'p PartTrees<F, L>)| {
            let shard = part.map().shard_of(key);
            let is_now = now == Some((number, shard));
            let is_owned = is_now || part.server.owned().shards().contains(&shard);
            is_owned.then_some((number, part, shard))
        };
        let found = parts.find_map(of_key);
        let (number, part, shard) = found.ok_or(RemoteError::NotItsKeys)?;
        if now != Some((number, shard)) {
            self.end_tree().await?;
            // The shard may have been split while the last tree was completed.
            let (shard, (tree, visit)) = part.enter_at(key).await?;
            if self.sequences.len() <= number {
                self.sequences.resize(number + 1, None);
            }
            // One number for all. Trees get their tables one after the other, so the caller must
            // keep scans away meanwhile: it has halted the server, or is its only client.
            let sequence =
                *self.sequences[number].get_or_insert_with(|| tree.shard.sequences.take());
            self.now = Some(((number, shard), SsTableLoader::new(tree, sequence), visit));
        }
        let (_, loader, _) = self.now.as_mut().expect("it was just set");
        Ok(loader)
    }

    async fn end_tree(&mut self) -> Result<(), RemoteError> {
        if let Some(((_, shard), loader, _visit)) = self.now.take() {
            let tables = loader.finish().await?;
            self.loaded.tables.borrow_mut().push((shard as u64, tables));
        }
        Ok(())
    }
}

impl<F: Fabric, L: Layout> BulkBuilder<L> for LoadBuilder<'_, F, L> {
    type Built = LoadedSsTables;

    /// # Errors
    /// [`RemoteError::NotItsKeys`] if the key belongs to a part that was not opened over this
    /// endpoint.
    async fn append(&mut self, key: &L::Key, value: &L::Value) -> Result<(), RemoteError> {
        let key = key.encoded();
        let loader = self.loader(key.as_ref()).await?;
        Ok(loader.add(key.as_ref(), value.encoded().as_ref()).await?)
    }

    async fn finish(&mut self) -> Result<LoadedSsTables, RemoteError> {
        self.end_tree().await?;
        Ok(std::mem::take(&mut self.loaded))
    }

    /// Dropping the finished tables frees their extents.
    async fn abort(self) {
        if let Some((_, loader, _visit)) = self.now {
            loader.abandon().await;
        }
    }
}

impl LoadedSsTables {
    /// Gives each tree its tables. All trees must be empty.
    pub(super) async fn install<F: Fabric, L: Layout>(
        &self,
        opened: &OpenedParts<F, L>,
    ) -> Result<(), RemoteError> {
        let trees = opened.enter_all().await?;
        let mut rights = BTreeMap::new();
        for (tree, _visit) in &trees {
            // Tombstones above would hide what is loaded.
            tree.settle_tree().await?;
            let flushing = tree.until_begun(TreeRight::Flush, LsmShard::begin_flush).await?;
            let merging = tree.until_begun(TreeRight::Merge, LsmShard::begin_compaction).await?;
            tree.settle_change().await?;
            let below = tree.bound_of_records().await?;
            tree.check_no_records()?;
            tree.end_records(below).await?;
            rights.insert(tree.shard.id, (*tree, flushing, merging));
        }
        let loaded = self.tables.take();
        let mut has_changed = false;
        for (shard, tables) in loaded {
            // Its tree may have moved since its tables were written.
            let Some((tree, _, merging)) = rights.get(&shard) else {
                let moved = RemoteError::Contended { retries: 0 };
                return Err(if has_changed { moved.after_a_change(ROOT_SERVER) } else { moved });
            };
            let level = tree.shard.options.levels;
            if let Err(error) = tree.publish_load(merging.merged(&[], level, tables)).await {
                return Err(if has_changed { error.after_a_change(ROOT_SERVER) } else { error });
            }
            has_changed = true;
        }
        Ok(())
    }
}
