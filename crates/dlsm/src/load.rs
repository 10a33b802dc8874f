//! Bulk loads, and what empties the MemTables: `flush` and `collect`.
//!
//! *Thread safety*: that of the handle.

use super::handle::DlsmIndex;
use super::memtable::MemTable;
use super::shard::{LsmShard, TreeRight};
use super::table_writer::{SsTableWriter, refused};
use super::version::{SsTable, TreeChange};
use crate::remote::ExtentUse;
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_index::{IndexError, ScanRequest, check_fill};
use farleaf_page::Layout;
use farleaf_page::table::{KeyBuf, RecordKind};
use farleaf_pool::remote::{ROOT_SERVER, RemoteError};
use farleaf_pool::wire::Refusal;

/// A bulk load needs an empty tree.
const NOT_EMPTY: IndexError =
    IndexError::Refused { server: ROOT_SERVER, refusal: Refusal::NotEmpty };

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Waits for `right`, which `begin` takes. Background tasks leave the right to a waiting call.
    pub(super) async fn until_begun<R>(
        &self,
        right: TreeRight,
        begin: fn(&Arc<LsmShard>) -> Option<R>,
    ) -> Result<R, IndexError> {
        let _waiting = LsmShard::begin_waiting(&self.shard, right);
        let mut wait = self.wait();
        loop {
            let seen = self.shard.changed.count();
            if let Some(right) = begin(&self.shard) {
                return Ok(right);
            }
            wait.for_change(&self.shard, seen).await?;
        }
    }

    /// Flushes everything that was written before the call.
    pub(super) async fn flush_everything(&self) -> Result<(), IndexError> {
        // Do not keep the version: flushes and compactions free nothing that a pinned version has.
        let (active, closed) = {
            let version = self.shard.pin();
            (Arc::clone(&version.active), version.immutables.first().cloned())
        };
        let newest = if active.is_empty() {
            closed
        } else {
            self.replace(&active).await?;
            Some(active)
        };
        let Some(newest) = newest else { return Ok(()) };
        let mut wait = self.wait();
        loop {
            let seen = self.shard.changed.count();
            let is_newest = |table: &Arc<MemTable>| Arc::ptr_eq(table, &newest);
            if !self.shard.pin().immutables.iter().any(is_newest) {
                return Ok(());
            }
            match LsmShard::begin_flush(&self.shard) {
                Some(flushing) => _ = self.flush_oldest(&flushing).await?,
                None => wait.for_change(&self.shard, seen).await?,
            }
        }
    }

    /// Flushes everything, if a MemTable has records with numbers up to `number`.
    pub(super) async fn flush_up_to(&self, number: u64) -> Result<(), IndexError> {
        match self.shard.oldest_unflushed() {
            Some(first) if first <= number => self.flush_everything().await,
            _ => Ok(()),
        }
    }

    /// Flushes everything and merges it into the deepest level.
    pub(super) async fn settle_tree(&self) -> Result<(), IndexError> {
        self.flush_everything().await?;
        let merging = self.until_begun(TreeRight::Merge, LsmShard::begin_compaction).await?;
        self.compact_everything(&merging).await?;
        self.settle_loans().await;
        Ok(())
    }

    /// Writes ascending records into the deepest level of an empty tree.
    pub(super) async fn load(
        &self,
        source: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        if !self.records(&ScanRequest::range(..).limit(1)).await?.is_empty() {
            return Err(NOT_EMPTY);
        }
        // Tombstones in higher levels would hide the loaded records.
        self.settle_tree().await?;
        let _flushing = self.until_begun(TreeRight::Flush, LsmShard::begin_flush).await?;
        let merging = self.until_begun(TreeRight::Merge, LsmShard::begin_compaction).await?;
        self.settle_change().await?;
        let below = self.bound_of_records().await?;
        self.check_no_records()?;
        self.end_records(below).await?;
        // One number for all: they become visible together. Later versions are newer.
        let mut loader = SsTableLoader::new(self, self.shard.sequences.take());
        let written = async {
            for record in source {
                let (key, value) = record?;
                loader.add(&key, &value).await?;
            }
            Ok(())
        };
        if let Err(error) = written.await {
            loader.abandon().await;
            return Err(error);
        }
        let count = loader.count;
        let tables = loader.finish().await?;
        self.publish_load(merging.merged(&[], self.shard.options.levels, tables)).await?;
        Ok(count)
    }

    /// Publishes the tables of a bulk load. If the outcome is unknown, the change stays pending as
    /// long as the caller has the rights to flush and to merge. The next flush or compaction then
    /// settles it, and the records may appear.
    pub(super) async fn publish_load(&self, change: TreeChange) -> Result<(), RemoteError> {
        let published = self.publish(change).await.map_err(RemoteError::from);
        match published {
            Err(error) if self.shard.is_changing() => Err(error.after_a_change(ROOT_SERVER)),
            outcome => outcome,
        }
    }

    /// Fails if the tree has versions of any key. The caller has the rights to flush and to merge.
    pub(super) fn check_no_records(&self) -> Result<(), IndexError> {
        let version = self.shard.pin();
        match version.tables().next().is_none() && version.memtables().all(|table| table.is_empty())
        {
            true => Ok(()),
            false => Err(NOT_EMPTY),
        }
    }
}

/// Writes ascending records into tables of the deepest level, which no version has yet.
pub(super) struct SsTableLoader<'h, F: Fabric, L: Layout> {
    index: &'h DlsmIndex<F, L>,
    sequence: u64,
    writer: SsTableWriter<'h, F, L>,
    tables: Vec<SsTable>,
    /// The last key, if there is one.
    last: Vec<u8>,
    /// Records so far.
    pub(super) count: u64,
}

impl<'h, F: Fabric, L: Layout> SsTableLoader<'h, F, L> {
    /// All records get the number `sequence`.
    pub(super) fn new(index: &'h DlsmIndex<F, L>, sequence: u64) -> Self {
        let writer = SsTableWriter::new(index, ExtentUse::Load);
        Self { index, sequence, writer, tables: Vec::new(), last: Vec::new(), count: 0 }
    }

    /// Appends a record.
    pub(super) async fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        let options = &self.index.shard.options;
        options.memtable.check(key.len(), value.len())?;
        if self.count > 0 && &self.last[..] >= key {
            return Err(IndexError::NotSorted { position: self.count });
        }
        if u64::from(self.writer.builder.data_words()) >= options.table_bytes / 8 {
            self.tables.extend(self.writer.replace().finish(options.levels as u8).await?);
        }
        let words = KeyBuf::from_bytes(key);
        self.writer.add(words.key(), self.sequence, RecordKind::Value, value).map_err(refused)?;
        self.writer.send().await?;
        self.last.clear();
        self.last.extend_from_slice(key);
        self.count += 1;
        Ok(())
    }

    /// Abandons all tables.
    pub(super) async fn abandon(self) {
        self.writer.abandon().await;
    }

    /// Finishes and returns the tables. All of their WRITEs have landed.
    pub(super) async fn finish(mut self) -> Result<Vec<SsTable>, IndexError> {
        let level = self.index.shard.options.levels as u8;
        self.tables.extend(self.writer.finish(level).await?);
        Ok(self.tables)
    }
}
