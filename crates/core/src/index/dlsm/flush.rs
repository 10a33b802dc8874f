//! Flushes: a closed MemTable becomes a table of level 0.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.F4. A flush that fails leaves its MemTable where it is.
//!
//! *Thread safety*: that of the handle. One handle at a time works.

use super::handle::DlsmIndex;
use super::memtable::{Kind, MemTable, Version};
use super::shard::Working;
use super::table_writer::{TableWriter, refused};
use super::version::{Table, TreeVersion};
use crate::index::IndexError;
use crate::page::Layout;
use crate::table::{self, Below, KeyBuf, Survival};
use farleaf_fabric::Fabric;

/// Flushes and merges of one call of [`DlsmIndex::work`]. The next one goes on.
const STEPS: u32 = 16;

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Flushes what waits, and merges what is due.
    pub(super) async fn work(&self, working: &Working) -> Result<(), IndexError> {
        for _ in 0..STEPS {
            if !self.flush_oldest(working).await? && !self.merge_what_is_due(working).await? {
                break;
            }
        }
        Ok(())
    }

    /// Flushes the oldest closed MemTable. Returns whether there was one.
    pub(super) async fn flush_oldest(&self, working: &Working) -> Result<bool, IndexError> {
        let version = self.shard.pin();
        let Some(oldest) = version.immutables.last() else { return Ok(false) };
        let last = oldest.last().unwrap_or(u64::MAX);
        // No more versions appear in it (Q7).
        self.until_settled(last).await?;
        let table = self.write_memtable(&version, oldest).await?;
        working.flushed(table);
        Ok(true)
    }

    async fn write_memtable(
        &self,
        version: &TreeVersion,
        memtable: &MemTable,
    ) -> Result<Option<Table>, IndexError> {
        // Later snapshots are newer than all versions of the closed MemTable (J5).
        let snapshots = self.shard.sequences.snapshot_bounds();
        let ranges = version.tables().map(|table| {
            let meta = &table.meta;
            (meta.smallest.clone(), meta.largest.clone())
        });
        let mut survival = Survival::new(snapshots, Below::tables(ranges.collect()));
        let mut writer = TableWriter::new(self);
        let (mut bytes, mut value) = (Vec::new(), Vec::new());
        let mut cursor = memtable.cursor(u64::MAX);
        cursor.seek_first();
        let written = async {
            while let Some(words) = cursor.key() {
                bytes.clear();
                words.append_to(&mut bytes);
                let key = KeyBuf::from_bytes(&bytes);
                let mut is_first = true;
                for version in std::iter::successors(cursor.version(), Version::older) {
                    let kind = match version.kind() {
                        Kind::Value => table::Kind::Value,
                        Kind::Tombstone => table::Kind::Tombstone,
                    };
                    if survival.keeps(key.key(), version.number(), kind, is_first) {
                        value.clear();
                        version.append_value_to(&mut value);
                        let TableWriter { builder, out, .. } = &mut writer;
                        let added = builder.add(key.key(), version.number(), kind, &value, out);
                        added.map_err(refused)?;
                    }
                    is_first = false;
                }
                writer.send().await?;
                cursor.next();
            }
            Ok(())
        };
        match written.await {
            Ok(()) => writer.finish(0).await,
            Err(error) => {
                writer.abandon().await;
                Err(error)
            }
        }
    }
}
