//! Lookups: MemTables from the newest on, then tables from the newest on, each by one READ of
//! exactly one record, if its index says that it may have the key.
//!
//! *Thread safety*: that of the handle.

use super::SearchKey;
use super::handle::DlsmIndex;
use super::version::{SsTable, TreeVersion};
use farleaf_fabric::{Fabric, Work};
use farleaf_index::IndexError;
use farleaf_page::Layout;
use farleaf_page::table::{
    KeyBuf, MAX_SEQUENCE, RecordKind, SsTableLookup, TableKey, VisibleVersion, pick,
};

/// Attempts to READ a record that looks damaged.
const READS: u32 = 2;

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// The value of `key` now.
    pub(super) async fn value_of(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        self.shard.options.memtable.check(key.len(), 0)?;
        let version = self.shard.pin();
        let search = SearchKey::new(key);
        let mut searched = 0;
        let mut memtables = version.memtables().filter(|table| table.may_hold(&search));
        let newest = memtables.find_map(|table| {
            searched += 1;
            table.newest(&search)
        });
        let found = newest.map(|newest| (newest.number(), newest.value()));
        for _ in 0..searched {
            self.fabric().charge(Work::SearchMemTable).await;
        }
        match found {
            Some((number, value)) => {
                self.until_seen_durable(number).await?;
                Ok(value)
            }
            None => self.value_in_tables(&version, key).await,
        }
    }

    /// The value of `key` below the active MemTable, which is settled (memtable.Q5).
    pub(super) async fn value_below(
        &self,
        version: &TreeVersion,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, IndexError> {
        let search = SearchKey::new(key);
        let mut immutables = version.immutables.iter().filter(|table| table.may_hold(&search));
        let newest = immutables.find_map(|table| table.newest(&search));
        match newest {
            Some(newest) => Ok(newest.value()),
            None => self.value_in_tables(version, key).await,
        }
    }

    async fn value_in_tables(
        &self,
        version: &TreeVersion,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, IndexError> {
        let key = KeyBuf::from_bytes(key);
        let hash = key.key().hash();
        for table in version.tables_with(key.key()) {
            // The first hit is the newest version (V4).
            if let Some(value) = self.value_in_table(table, key.key(), hash).await? {
                return Ok(value);
            }
        }
        Ok(None)
    }

    /// The newest version of `key` in `table`: `None` if it has none, `Some(None)` for a tombstone.
    async fn value_in_table(
        &self,
        table: &SsTable,
        key: TableKey<'_>,
        hash: u64,
    ) -> Result<Option<Option<Vec<u8>>>, IndexError> {
        self.fabric().charge(Work::VisitNode).await;
        let found = table.index.find(key, hash, MAX_SEQUENCE);
        let words = match found.map_err(|_| Self::damaged(table))? {
            SsTableLookup::Absent => return Ok(None),
            SsTableLookup::Record { words, .. } | SsTableLookup::Group(words) => words,
        };
        for _ in 0..READS {
            let read = self.read(table, words.clone()).await?;
            self.fabric().charge(Work::CopyBytes(read.len() as u64 * 8)).await;
            match pick(&read, table.id(), key, MAX_SEQUENCE) {
                Ok(VisibleVersion::Record(record)) => {
                    let mut value = Vec::new();
                    record.append_value(&mut value);
                    return Ok(Some((record.kind() == RecordKind::Value).then_some(value)));
                }
                Ok(VisibleVersion::Absent | VisibleVersion::TooNew) => return Ok(None),
                Err(_) => {}
            }
        }
        Err(Self::damaged(table))
    }
}
