//! Why a file that a person gave cannot be used.
//!
//! *Thread safety*: plain values.

use std::path::PathBuf;
use thiserror::Error;

/// Why a file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file cannot be opened, read or decompressed.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file's path.
        path: PathBuf,
        /// The error of the operating system or of the decompressor.
        source: std::io::Error,
    },
    /// The file has a form that is recognised but not read, such as another compression.
    #[error(
        "cannot read {}: this is {form}, and only plain text, gzip and zstd are read: use \
         `{command} {} | farleaf …`, with - for the file",
        path.display(), if *is_stdin { "FILE".into() } else { path.to_string_lossy() }
    )]
    OtherForm {
        /// The file's path.
        path: PathBuf,
        /// The form's name.
        form: &'static str,
        /// The command that makes plain text of it.
        command: &'static str,
        /// Whether it came from stdin, so that its name is not known.
        is_stdin: bool,
    },
    /// The header does not have the requested column.
    #[error("{} has no column `{column}`; its columns are: {}", path.display(), columns.join(", "))]
    NoColumn {
        /// The file's path.
        path: PathBuf,
        /// The missing column's name.
        column: String,
        /// The columns that the file has.
        columns: Vec<String>,
    },
    /// The first row is neither numbers nor a header with the expected column.
    #[error(
        "{}, line {line}: the first row is neither numbers nor a header with a column `{column}`, it is: {}",
        path.display(), fields.join(", ")
    )]
    NoHeader {
        /// The file's path.
        path: PathBuf,
        /// Line number of the first row.
        line: u64,
        /// The expected column's name.
        column: String,
        /// The fields of the first row.
        fields: Vec<String>,
    },
    /// A row cannot be parsed.
    #[error("{}, line {line}: {problem}", path.display())]
    BadRow {
        /// The file's path.
        path: PathBuf,
        /// Line number, counted from 1 including the header.
        line: u64,
        /// What was found and what was expected.
        problem: String,
    },
    /// A binary record cannot be read.
    #[error("{}, record {record}: {problem}", path.display())]
    BadRecord {
        /// The file's path.
        path: PathBuf,
        /// The record's number, counted from 1.
        record: u64,
        /// What was found and what was expected.
        problem: String,
    },
    /// The file has no rows besides a header, or is empty, and at least one is needed.
    #[error("{} has no rows", path.display())]
    Empty {
        /// The file's path.
        path: PathBuf,
    },
}
