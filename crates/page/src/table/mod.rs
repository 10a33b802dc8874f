//! The bytes of the LSM index's tables, and nothing else: no I/O, no allocation of remote memory.
//! The paper is dLSM (ICDE 2023), sections V and VI.
//!
//! A table consists of words: records in order, then its index, then a footer.
//! `docs/internals/lsm.md` draws the bytes and numbers the invariants (lsm.B1 …, lsm.J5 …). All
//! functions work on private copies of words, and fail with [`DamagedSsTable`] on words that a
//! table cannot hold.

mod blocks;
mod builder;
mod cursor;
mod damaged;
mod fences;
mod filter;
mod footer;
mod full_index;
mod job;
mod key;
mod locate;
mod merge;
mod meta;
mod packed;
mod placed;
mod record;
mod sections;
mod survive;

pub use blocks::{VisibleVersion, pick};
pub use builder::{GROUP_RECORDS, IndexKind, RefusedRecord, SsTableBuilder, SsTableFinisher};
pub use cursor::{RecordCursor, RecordRun};
pub use damaged::{DamagedSsTable, SsTablePart};
pub use fences::SsTableFences;
pub use filter::{BloomFilter, MAX_BLOOM_BITS};
pub use footer::{FOOTER_WORDS, MAX_TABLE_WORDS, SsTableFooter};
pub use full_index::FullIndex;
pub use job::{CompactionOrder, JobSsTable};
pub use key::{KeyBuf, MAX_KEY_BYTES, TableKey, in_table_order};
pub use locate::{GroupPlace, LocateFunction, build_locate};
pub use merge::{
    Compaction, CompactionCounts, CompactionError, CompactionOptions, CompactionProgress,
};
pub use meta::{ExtentRun, MAX_RUNS, SsTableClip, SsTableMeta};
pub use meta::{push_key, take_key};
pub use placed::{PlacedSsTable, VersionChange};
pub use record::{
    HEADER_WORDS, MAX_SEQUENCE, MAX_VALUE_BYTES, RecordKind, SsTableRecord, record_words,
    words_needed,
};
pub use sections::{SsTableIndex, SsTableLookup};
pub use survive::{LowerLevels, Survival};
