//! The error of every function that reads words from a table.

use std::fmt;

/// The part of a table with invalid content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SsTablePart {
    /// A record's header, size or check.
    Record,
    /// The order of records.
    Order,
    /// The footer at the end of the table.
    Footer,
    /// A section between records and footer.
    Section,
    /// A version's description of the table.
    Meta,
}

impl fmt::Display for SsTablePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Record => "a record",
            Self::Order => "the order of records",
            Self::Footer => "the footer",
            Self::Section => "an index section",
            Self::Meta => "the description",
        })
    }
}

/// Words that are not what the table should hold, because of a stray WRITE, an extent reused by
/// another table, or a READ of a table that no longer exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table {table}: {part} is damaged; read it again by the shard's current version")]
pub struct DamagedSsTable {
    /// The table that was read.
    pub table: u64,
    /// The damaged part.
    pub part: SsTablePart,
}

impl DamagedSsTable {
    pub(super) fn new(table: u64, part: SsTablePart) -> Self {
        Self { table, part }
    }
}
