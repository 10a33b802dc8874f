//! Flushes: a closed MemTable becomes a table of level 0, or several tables with ascending keys.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.F4. A flush that fails leaves its MemTable where it is.
//!
//! *Thread safety*: that of the handle. One handle at a time flushes.

use super::handle::DlsmIndex;
use super::memtable::{MemTable, MemTableVersion, VersionKind};
use super::shard::FlushRight;
use super::table_writer::{SsTableWriter, refused};
use super::version::SsTable;
use crate::remote::ExtentUse;
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_index::IndexError;
use farleaf_page::Layout;
use farleaf_page::rules::{
    FLUSHES_AWAIT_LOG, FLUSHES_SETTLED, OLDEST_FLUSHED_FIRST, SNAPSHOTS_KEPT, TOMBSTONES_KEPT,
};
use farleaf_page::table::{self, KeyBuf, LowerLevels, MAX_TABLE_WORDS, RefusedRecord, Survival};

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Flushes the oldest closed MemTable. Returns whether there was one.
    pub(super) async fn flush_oldest(&self, flushing: &FlushRight) -> Result<bool, IndexError> {
        self.settle_change().await?;
        let (oldest, ranges) = {
            // Do not keep this version: it would pin the extents that compactions free meanwhile.
            let version = self.shard.pin();
            let closed = match self.fabric().breaks(OLDEST_FLUSHED_FIRST) {
                true => version.immutables.first(),
                false => version.immutables.last(),
            };
            let Some(oldest) = closed else { return Ok(false) };
            // Compactions only move keys down or drop them, so these ranges cover all later
            // versions, too.
            (Arc::clone(oldest), self.ranges_below(version.tables()))
        };
        let oldest = &oldest;
        let last = oldest.last().unwrap_or(u64::MAX);
        if !self.fabric().breaks(FLUSHES_SETTLED) {
            // From here on, no more versions appear in the MemTable (Q7).
            self.until_settled(last).await?;
        }
        // Otherwise an older record of a key could outlive its version in a table (log.L5).
        self.until_durable(last, FLUSHES_AWAIT_LOG).await?;
        self.shard.space.turn_to_flush();
        let tables = match self.write_memtable(ranges.clone(), oldest).await {
            // Tables that other shards have returned may have freed memory: try again.
            Err(IndexError::OutOfMemory { .. }) if self.settle_loans().await => {
                self.write_memtable(ranges, oldest).await
            }
            written => written,
        };
        let published = async { self.publish(flushing.flushed(oldest, tables?)).await };
        let published = published.await;
        self.shard.space.turn_to_flush();
        published.map(|()| true)
    }

    /// The bounds of the snapshots in use.
    pub(super) fn snapshot_bounds(&self) -> Vec<u64> {
        match self.fabric().breaks(SNAPSHOTS_KEPT) {
            true => Vec::new(),
            false => self.shard.sequences.snapshot_bounds(),
        }
    }

    /// The smallest and largest keys of `tables`, which lie below an output.
    pub(super) fn ranges_below<'t>(
        &self,
        tables: impl Iterator<Item = &'t Arc<SsTable>>,
    ) -> Vec<(KeyBuf, KeyBuf)> {
        if self.fabric().breaks(TOMBSTONES_KEPT) {
            return Vec::new();
        }
        let range =
            |table: &Arc<SsTable>| (table.meta.smallest.clone(), table.meta.largest.clone());
        tables.map(range).collect()
    }

    /// The keys that `tables`, which lie below an output, may have.
    pub(super) fn below<'t>(&self, tables: impl Iterator<Item = &'t Arc<SsTable>>) -> LowerLevels {
        LowerLevels::tables(self.ranges_below(tables))
    }

    async fn write_memtable(
        &self,
        ranges_below: Vec<(KeyBuf, KeyBuf)>,
        memtable: &MemTable,
    ) -> Result<Vec<SsTable>, IndexError> {
        // Later snapshots are newer than all versions of the closed MemTable (J5).
        let below = LowerLevels::tables(ranges_below);
        let mut survival = Survival::new(self.snapshot_bounds(), below);
        let (mut tables, mut writer) = (Vec::new(), SsTableWriter::new(self, ExtentUse::Flush));
        // Twice the usual size, so that a MemTable of the usual size mostly becomes one table.
        let most_words = (self.shard.options.table_bytes / 4).min(u64::from(MAX_TABLE_WORDS / 2));
        let (mut bytes, mut value) = (Vec::new(), Vec::new());
        // Tombstones before the first value.
        let (mut tombstones, mut lowest, mut has_values) = (0, None, false);
        let mut cursor = memtable.cursor(u64::MAX);
        cursor.seek_first();
        let written = async {
            while let Some(words) = cursor.key() {
                bytes.clear();
                words.append_to(&mut bytes);
                let key = KeyBuf::from_bytes(&bytes);
                if u64::from(writer.builder.data_words()) >= most_words {
                    tables.extend(writer.replace().finish(0).await?);
                }
                let is_value =
                    cursor.version().is_some_and(|newest| newest.kind() == VersionKind::Value);
                if is_value && !std::mem::replace(&mut has_values, true) {
                    let lowest: Option<&Vec<u8>> = lowest.as_ref();
                    self.shard.note_hidden((lowest.unwrap_or(&bytes), &bytes), tombstones);
                }
                lowest.get_or_insert_with(|| bytes.clone());
                tombstones += 1;
                let mut is_first = true;
                for version in std::iter::successors(cursor.version(), MemTableVersion::older) {
                    let kind = match version.kind() {
                        VersionKind::Value => table::RecordKind::Value,
                        VersionKind::Tombstone => table::RecordKind::Tombstone,
                    };
                    let number = version.number();
                    if survival.keeps(key.key(), number, kind, is_first) {
                        value.clear();
                        version.append_value_to(&mut value);
                        let mut added = writer.add(key.key(), number, kind, &value);
                        if added == Err(RefusedRecord::Full)
                            && is_first
                            && writer.builder.records() > 0
                        {
                            // With its index, the table is larger than its records. All versions of
                            // a key are in one table (J7).
                            tables.extend(writer.replace().finish(0).await?);
                            added = writer.add(key.key(), number, kind, &value);
                        }
                        added.map_err(refused)?;
                    }
                    is_first = false;
                }
                writer.send().await?;
                cursor.next();
            }
            Ok(())
        };
        let written = written.await;
        if !has_values && let Some(lowest) = &lowest {
            bytes.push(0); // the next key
            self.shard.note_hidden((lowest, &bytes), tombstones);
        }
        match written {
            Ok(()) => {
                tables.extend(writer.finish(0).await?);
                Ok(tables)
            }
            Err(error) => {
                writer.abandon().await;
                Err(error)
            }
        }
    }
}
