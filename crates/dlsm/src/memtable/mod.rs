//! The MemTable: a skiplist of keys, each with a chain of versions, in one piece of memory.
//!
//! ```text
//! edit ──▶ table ──▶ skiplist ──▶ versions ──▶ arena     what an operation does next
//!            ├─────▶ close                     which numbers belong to the table
//!            └─────▶ filter
//! ```
//!
//! `docs/internals/memtable.md` draws the bytes and numbers the invariants.

mod arena;
mod close;
mod cursor;
mod edit;
mod filter;
mod search_key;
mod skiplist;
mod table;
mod versions;
mod writer;

pub use cursor::MemTableCursor;
pub use edit::{EditStep, MemTableEdit};
pub use search_key::{KeyWords, SearchKey};
pub use table::{
    LinkOutcome, MemTable, MemTableError, MemTableOptions, PendingVersion, PriorVersion,
};
pub use versions::{MemTableVersion, VersionKind};
pub use writer::MemTableWriter;
