//! dLSM: an LSM tree whose tables lie in the memory pool (Wang et al., *dLSM: An LSM-Based Index
//! for Memory Disaggregation*, ICDE 2023).
//!
//! So far this has the parts in which writes are buffered on the compute server: the numbers of
//! versions ([`Sequences`]) and the MemTables that hold the versions (section IV of the paper).
//! `docs/internals/memtable.md` draws the bytes and numbers the invariants.

mod memtable;
mod sequence;

pub use memtable::{
    Cursor, Edit, KeyWords, Kind, Link, MemTable, MemTableError, MemTableOptions, Pending,
    SearchKey, Seen, Step, Version, Writer,
};
pub use sequence::{Announcement, Seat, Sequences, Snapshot};
