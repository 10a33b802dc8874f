//! dLSM: an LSM tree whose tables lie in the memory pool (Wang et al., *dLSM: An LSM-Based Index
//! for Memory Disaggregation*, ICDE 2023).
//!
//! Writes go to a MemTable on the compute server (section IV of the paper), full MemTables are
//! flushed to the pool as sorted tables, and tables are merged level by level (section V). A lookup
//! READs exactly one record of each table that may have the key (section VI). One process at a time
//! has a tree; the next one opens it from the directory on a memory server. `parts/` has several
//! trees for each compute server, and is above all of this.
//!
//! ```text
//! operations ─▶ read, scan, write, load ─▶ flush, compact ─▶ table_writer    an operation
//!                            │             directory, leave       │
//!                            └───────────▶ handle ◀───────────────┘          what all use
//!                                            ├─▶ shard ─▶ version, gate      what handles share
//!                                            └─▶ memtable ─▶ sequence
//! ```
//!
//! `docs/internals/memtable.md` has the bytes and the invariants of MemTables,
//! `docs/internals/lsm-tree.md` those of versions, flushes and merges.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod background;
mod claim;
mod compact;
mod counts;
mod design;
mod directory;
mod flush;
mod gate;
mod handle;
mod leave;
mod lent;
mod load;
mod memtable;
mod near;
mod needs;
mod operations;
mod options;
mod parts;
mod place;
mod read;
mod remote;
mod room;
mod scan;
mod sequence;
mod shard;
#[cfg(all(test, not(any(loom, shuttle))))]
mod shard_tests;
mod table_writer;
mod version;
mod wal;
mod write;
mod writers;

pub use counts::TreeCounts;
pub use design::Dlsm;
pub use handle::DlsmIndex;
pub use memtable::{
    EditStep, KeyWords, LinkOutcome, MemTable, MemTableCursor, MemTableEdit, MemTableError,
    MemTableOptions, MemTableVersion, MemTableWriter, PendingVersion, PriorVersion, SearchKey,
    VersionKind,
};
pub use options::DlsmOptions;
pub use parts::{
    DlsmPart, DlsmPool, DlsmServer, DlsmServerOptions, LeftShards, LoadBuilder, LoadedSsTables,
    MAX_SHARDS, ShardedDlsm, ShardedOptions,
};
pub use place::CompactionPlace;
pub use remote::{ExtentClient, ExtentLease, ExtentSpace, ExtentWriter};
pub use sequence::{Announcement, Sequences, Snapshot, WriterSlot};
pub use shard::{LsmShard, SsTableView};
