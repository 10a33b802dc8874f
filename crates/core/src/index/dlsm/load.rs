//! Bulk loads, and what empties the MemTables: `flush` and `collect`.
//!
//! *Thread safety*: that of the handle.

use super::MemTable;
use super::handle::DlsmIndex;
use super::shard::{Right, Shard};
use super::table_writer::{TableWriter, refused};
use crate::index::{IndexError, Scan, check_fill};
use crate::page::Layout;
use crate::remote::ROOT_SERVER;
use crate::table::{KeyBuf, Kind};
use crate::wire::Refusal;
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;

fn is_empty(table: &MemTable) -> bool {
    let mut cursor = table.cursor(u64::MAX);
    cursor.seek_first();
    cursor.key().is_none()
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Waits for `right`, which `begin` returns. Tasks that do what is due leave it to the call.
    pub(super) async fn until_begun<R>(
        &self,
        right: Right,
        begin: fn(&Arc<Shard>) -> Option<R>,
    ) -> Result<R, IndexError> {
        let _waiting = Shard::begin_waiting(&self.shard, right);
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
        // Without its version: flushes and merges free nothing that a version in use has.
        let (active, closed) = {
            let version = self.shard.pin();
            (Arc::clone(&version.active), version.immutables.first().cloned())
        };
        let newest = if is_empty(&active) {
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
            match Shard::begin_flush(&self.shard) {
                Some(flushing) => _ = self.flush_oldest(&flushing).await?,
                None => wait.for_change(&self.shard, seen).await?,
            }
        }
    }

    /// Flushes everything and merges it into the deepest level.
    pub(super) async fn settle_tree(&self) -> Result<(), IndexError> {
        self.flush_everything().await?;
        let merging = self.until_begun(Right::Merge, Shard::begin_merge).await?;
        self.merge_everything(&merging).await
    }

    /// Writes ascending records into the deepest level of an empty tree.
    pub(super) async fn load(
        &self,
        records: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        let not_empty = IndexError::Refused { server: ROOT_SERVER, refusal: Refusal::NotEmpty };
        if !self.records(&Scan::range(..).limit(1)).await?.is_empty() {
            return Err(not_empty);
        }
        // Tombstones above would hide what is loaded.
        self.settle_tree().await?;
        let _flushing = self.until_begun(Right::Flush, Shard::begin_flush).await?;
        let merging = self.until_begun(Right::Merge, Shard::begin_merge).await?;
        self.settle_change().await?;
        let version = self.shard.pin();
        if version.tables().next().is_some() || !version.memtables().all(|table| is_empty(table)) {
            return Err(not_empty);
        }
        let options = &self.shard.options;
        let table_words = options.table_bytes / 8;
        // One number for all: they become visible together. Later versions are newer.
        let sequence = self.shard.sequences.take();
        let (mut tables, mut writer) = (Vec::new(), TableWriter::new(self));
        let mut last: Option<Vec<u8>> = None;
        let mut count = 0;
        let written = async {
            for (key, value) in records {
                options.memtable.check(key.len(), value.len())?;
                if last.as_ref().is_some_and(|last| *last >= key) {
                    return Err(IndexError::NotSorted { position: count });
                }
                if u64::from(writer.builder.data_words()) >= table_words {
                    tables.extend(writer.replace().finish(options.levels as u8).await?);
                }
                let words = KeyBuf::from_bytes(&key);
                writer.add(words.key(), sequence, Kind::Value, &value).map_err(refused)?;
                writer.send().await?;
                (last, count) = (Some(key), count + 1);
            }
            Ok(())
        };
        if let Err(error) = written.await {
            writer.abandon().await;
            return Err(error);
        }
        tables.extend(writer.finish(options.levels as u8).await?);
        self.publish(merging.merged(&[], options.levels, tables)).await?;
        Ok(count)
    }
}
