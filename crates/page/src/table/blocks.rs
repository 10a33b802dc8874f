//! Looking up a key in contiguous records: a block, a group, or a single record.
//!
//! Blocks of B bytes are the ablation. They represent stores whose tables are designed for disks,
//! which have an index with a fence for each block, and READ a whole block for each lookup.
//!
//! *Thread safety*: plain values, over private copies of words.

use super::damaged::{DamagedSsTable, SsTablePart};
use super::key::TableKey;
use super::record::SsTableRecord;
use std::cmp::Ordering;

/// What records contain of a key as of a bound.
#[derive(Clone, Copy, Debug)]
pub enum VisibleVersion<'a> {
    /// The newest version at or below the bound.
    Record(SsTableRecord<'a>),
    /// Only versions above the bound; older ones may follow.
    TooNew,
    /// The key is not among them.
    Absent,
}

/// Looks up `key` as of `bound` in the records of `table` in exactly these words.
pub fn pick<'a>(
    words: &'a [u64],
    table: u64,
    key: TableKey<'_>,
    bound: u64,
) -> Result<VisibleVersion<'a>, DamagedSsTable> {
    let (mut rest, mut picked) = (words, VisibleVersion::Absent);
    while !rest.is_empty() {
        let record = SsTableRecord::parse(rest, table)?;
        match record.key().cmp(&key) {
            Ordering::Less => {
                // A key's records are adjacent.
                if matches!(picked, VisibleVersion::TooNew) {
                    return Err(DamagedSsTable::new(table, SsTablePart::Order));
                }
            }
            Ordering::Equal if record.sequence() <= bound => {
                return Ok(VisibleVersion::Record(record));
            }
            Ordering::Equal => picked = VisibleVersion::TooNew,
            Ordering::Greater => return Ok(picked),
        }
        rest = &rest[record.words()..];
    }
    Ok(picked)
}
