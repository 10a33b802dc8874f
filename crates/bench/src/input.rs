//! Records to load, from a CSV file.
//!
//! *Thread safety*: plain values.

use crate::InputError;
use crate::columns::Columns;
use std::path::Path;

/// The records of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Ascending by key, each key once.
    pub records: Vec<(u64, u64)>,
    /// How many rows had a key that a later row has too: the last one counts.
    pub duplicates: u64,
}

/// Reads keys from one column and values from another, or the rows' numbers, from 0, as values. The
/// rows may come in any order.
///
/// # Errors
/// [`InputError`] if the file cannot be read, lacks a column, has no rows or a malformed one.
pub fn read_records(
    path: &Path,
    key_column: &str,
    value_column: Option<&str>,
) -> Result<Input, InputError> {
    let mut columns = Columns::open(path)?;
    let key_column = columns.column(key_column)?;
    let value_column = value_column.map(|name| columns.column(name)).transpose()?;
    let mut records = Vec::new();
    while columns.next_row()? {
        let key = columns.number(key_column)?;
        let value = match value_column {
            Some(column) => columns.number(column)?,
            None => records.len() as u64,
        };
        records.push((key, value));
    }
    if records.is_empty() {
        return Err(columns.empty());
    }
    let rows = records.len();
    // Backwards and stably sorted, the last row of each key is the first of its kind.
    records.reverse();
    records.sort_by_key(|(key, _)| *key);
    records.dedup_by_key(|(key, _)| *key);
    Ok(Input { duplicates: (rows - records.len()) as u64, records })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::tests::TestFile;

    #[test]
    fn rows_are_sorted_and_the_last_of_a_key_wins() {
        let file = TestFile::new("input.csv", b"k,v,w\n5,50,0\n1,10,0\n5,51,0\n3,30,0\n5,52,0\n");
        let input = read_records(file.path(), "k", Some("v")).unwrap();
        assert_eq!(input.records, [(1, 10), (3, 30), (5, 52)]);
        assert_eq!(input.duplicates, 2);
        let numbered = read_records(file.path(), "k", None).unwrap();
        assert_eq!(numbered.records, [(1, 1), (3, 3), (5, 4)]);
        let error = read_records(file.path(), "k", Some("x")).unwrap_err().to_string();
        assert!(error.ends_with("its columns are: k, v, w"), "{error}");
    }

    #[test]
    fn a_file_without_rows_is_an_error() {
        let file = TestFile::new("empty.csv", b"k\n");
        let error = read_records(file.path(), "k", None).unwrap_err().to_string();
        assert!(error.ends_with("has no rows"), "{error}");
    }
}
