//! The bytes of the LSM index's tables, and nothing else: no I/O, no allocation of remote memory.
//! The paper is dLSM (ICDE 2023), sections V and VI.
//!
//! A table consists of words: records in order, then its index, then a footer.
//! `docs/internals/lsm.md` draws the bytes and numbers the invariants (lsm.B1 …, lsm.J5 …). All
//! functions work on private copies of words, and fail with [`Damaged`] on words that a table
//! cannot hold.

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

pub use blocks::{Picked, pick};
pub use builder::{Builder, Finishing, GROUP_RECORDS, IndexKind, Refused};
pub use cursor::{Cursor, Run};
pub use damaged::{Damaged, Part};
pub use fences::Fences;
pub use filter::{Bloom, MAX_BLOOM_BITS};
pub use footer::{FOOTER_WORDS, Footer, MAX_TABLE_WORDS};
pub use full_index::FullIndex;
pub use job::{JobTable, MergeJob};
pub use key::{Key, KeyBuf, MAX_KEY_BYTES, in_table_order};
pub use locate::{Locate, Place, build_locate};
pub use merge::{Merge, MergeCounts, MergeError, MergeOptions, Progress};
pub use meta::{Clip, ExtentRun, MAX_RUNS, Meta};
pub use meta::{push_key, take_key};
pub use placed::{Placed, VersionChange};
pub use record::{
    HEADER_WORDS, Kind, MAX_SEQUENCE, MAX_VALUE_BYTES, Record, record_words, words_needed,
};
pub use sections::{Found, Index};
pub use survive::{Below, Survival};
