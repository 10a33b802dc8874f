//! RocksDB as an engine, by the feature `rocksdb`: files in memory, no log, no compression, Bloom
//! filters of 10 bits, and a cache that holds all blocks.
//!
//! *Thread safety*: may be used by several threads.

use super::engines::{BLOOM_BITS, WORKERS, folder_in_memory, on_threads, until_idle};
use super::records::WrittenRecords;
use super::{EmptyEngine, EngineSizes};
use anyhow::Context;
use rocksdb::properties;
use rocksdb::{
    BlockBasedOptions, BottommostLevelCompaction, Cache, CompactOptions, DB, DBCompressionType,
    Options, WriteOptions,
};
use tempfile::TempDir;

/// Its threads flush and merge.
pub(super) struct RocksDb {
    // Before its folder, so that it is closed first.
    database: DB,
    writes: WriteOptions,
    _folder: TempDir,
}

/// Properties that are zero once the database has nothing left to do.
const WORK: [&properties::PropName; 4] = [
    properties::MEM_TABLE_FLUSH_PENDING,
    properties::NUM_RUNNING_FLUSHES,
    properties::COMPACTION_PENDING,
    properties::NUM_RUNNING_COMPACTIONS,
];

impl RocksDb {
    /// The sizes of levels are those of dLSM.
    pub(super) fn new(sizes: &EngineSizes) -> anyhow::Result<Self> {
        let folder = folder_in_memory()?;
        let mut blocks = BlockBasedOptions::default();
        let cache_bytes = sizes.data_bytes * 4 + (64 << 20);
        blocks.set_block_cache(&Cache::new_lru_cache(cache_bytes as usize));
        blocks.set_bloom_filter(BLOOM_BITS.into(), false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&blocks);
        options.set_compression_type(DBCompressionType::None);
        options.set_write_buffer_size(sizes.table_bytes as usize);
        options.set_target_file_size_base(sizes.table_bytes);
        options.set_max_bytes_for_level_base(sizes.table_bytes * 4);
        // On by default since RocksDB 8.4: levels then have other sizes than those of dLSM.
        options.set_level_compaction_dynamic_level_bytes(false);
        options.set_max_background_jobs(WORKERS as i32);
        let mut writes = WriteOptions::default();
        writes.disable_wal(true);
        Ok(Self { database: DB::open(&options, folder.path())?, writes, _folder: folder })
    }

    fn settle(&self) -> anyhow::Result<()> {
        until_idle(|| {
            let mut work = 0;
            for name in WORK {
                let value = self.database.property_int_value(name)?;
                work += value.context("RocksDB does not say whether it has work")?;
            }
            Ok(work == 0)
        })
    }
}

impl EmptyEngine for RocksDb {
    fn fill(&self, records: &WrittenRecords, threads: usize) -> anyhow::Result<()> {
        on_threads(threads, |thread| {
            for place in records.share(thread, threads) {
                let (key, value) = (records.key(place), records.value(place));
                self.database.put_opt(key, value, &self.writes)?;
            }
            Ok(())
        })?;
        self.database.flush()?;
        self.settle()
    }

    fn get(&self, records: &WrittenRecords, threads: usize) -> anyhow::Result<()> {
        on_threads(threads, |thread| {
            for place in records.lookups(thread, threads) {
                let value = self.database.get_pinned(records.key(place))?;
                records.check(place, &value.context("not found")?)?;
            }
            Ok(())
        })
    }

    fn scan(&self, records: &WrittenRecords) -> anyhow::Result<()> {
        let mut scanned = records.scanned();
        let mut found = self.database.raw_iterator();
        found.seek_to_first();
        while let Some((key, value)) = found.item() {
            scanned.see(key, value)?;
            found.next();
        }
        found.status()?;
        scanned.end()
    }

    fn merge(&self, _records: &WrittenRecords) -> anyhow::Result<()> {
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        self.database.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
        self.settle()
    }
}
