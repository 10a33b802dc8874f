//! Reads the records to load from a CSV file.
//!
//! *Thread safety*: plain values.

use crate::InputError;
use crate::columns::Columns;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::path::Path;

/// All records of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The records, ascending by key, each key once.
    pub records: Vec<(u64, u64)>,
    /// Number of rows whose key occurs again in a later row. Only the last row of each key is used.
    pub duplicates: u64,
}

/// Names of a file's columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnNames {
    /// The column of keys; `key` by default.
    pub key: Option<String>,
    /// The column of values; by default `value`, if the file has one.
    pub value: Option<String>,
}

/// A row of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRow<'a> {
    /// The key.
    pub key: &'a str,
    /// The value, if the file has a column of values.
    pub value: Option<&'a str>,
    /// The row's number, from 0.
    pub number: u64,
}

/// Reads the records of a file row by row.
///
/// The first row is a header with the names of the columns. If [`ColumnNames`] has no names, a file
/// of one or two columns needs no header if its first row consists of numbers: its columns are then
/// keys and values. If there is no column of values, the value is the row's number, from 0.
pub struct Rows {
    columns: Columns,
    key: usize,
    value: Option<usize>,
    read: u64,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("read", &self.read).finish_non_exhaustive()
    }
}

impl Rows {
    /// Opens a file, plain or gzip-compressed, or stdin for `-`.
    ///
    /// # Errors
    /// [`InputError`] if the file cannot be read, or if its first row does not identify the
    /// columns.
    pub fn open(path: &Path, names: &ColumnNames) -> Result<Self, InputError> {
        let mut columns = Columns::of(path)?;
        let is_named = names.key.is_some() || names.value.is_some();
        if !is_named && columns.width() <= 2 && columns.without_header() {
            let value = (columns.width() == 2).then_some(1);
            return Ok(Self { columns, key: 0, value, read: 0 });
        }
        let key = match &names.key {
            Some(name) => columns.column(name)?,
            None => columns.find("key").ok_or_else(|| columns.no_header("key"))?,
        };
        let value = match &names.value {
            Some(name) => Some(columns.column(name)?),
            None => columns.find("value"),
        };
        Ok(Self { columns, key, value, read: 0 })
    }

    /// Opens a file whose fields are text. The first row is a header if `has_header`. Otherwise the
    /// file has one or two columns, of keys and values.
    ///
    /// # Errors
    /// [`InputError`] as for [`Rows::open`].
    pub fn open_text(
        path: &Path,
        names: &ColumnNames,
        has_header: bool,
    ) -> Result<Self, InputError> {
        let mut columns = Columns::of(path)?;
        if !has_header {
            let width = columns.width();
            columns.take_first_row();
            if width > 2 {
                let problem = format!("{width} columns, expected one of keys and one of values");
                return Err(columns.bad_row(problem));
            }
            return Ok(Self { columns, key: 0, value: (width == 2).then_some(1), read: 0 });
        }
        let key = columns.column(names.key.as_deref().unwrap_or("key"))?;
        let value = match &names.value {
            Some(name) => Some(columns.column(name)?),
            None => columns.find("value"),
        };
        Ok(Self { columns, key, value, read: 0 })
    }

    /// Returns the next row; `None` at the end.
    ///
    /// # Errors
    /// [`InputError`] if the file cannot be read further.
    pub fn next_text(&mut self) -> Result<Option<TextRow<'_>>, InputError> {
        if !self.columns.next_row()? {
            return Ok(None);
        }
        let value = self.value.map(|column| self.columns.field(column));
        self.read += 1;
        Ok(Some(TextRow { key: self.columns.field(self.key), value, number: self.read - 1 }))
    }

    /// Creates an error about the row that was read last.
    pub fn bad_row(&self, problem: String) -> InputError {
        self.columns.bad_row(problem)
    }

    /// Returns the next record, or `None` at the end.
    ///
    /// # Errors
    /// [`InputError`] if the file cannot be read further, or the row is malformed.
    pub fn next_record(&mut self) -> Result<Option<(u64, u64)>, InputError> {
        if !self.columns.next_row()? {
            return Ok(None);
        }
        let key = self.columns.number(self.key)?;
        let value = match self.value {
            Some(column) => self.columns.number(column)?,
            None => self.read,
        };
        self.read += 1;
        Ok(Some((key, value)))
    }
}

/// Maximum number of keys in a sample: enough for boundaries that give each of a hundred servers
/// its share to within a few percent.
const SAMPLED: usize = 100_000;

/// The keys that `next` returns until it is exhausted, ascending and without duplicates. If there
/// are more than `SAMPLED` keys, an even sample of them.
///
/// # Errors
/// That of `next`.
pub fn sample<K: Ord, E>(mut next: impl FnMut() -> Result<Option<K>, E>) -> Result<Vec<K>, E> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut keys: Vec<K> = Vec::new();
    let mut read = 0_u64;
    // Algorithm R: each key read so far is in the sample with the same probability.
    while let Some(key) = next()? {
        read += 1;
        match keys.len() < SAMPLED {
            true => keys.push(key),
            false => {
                let place = rng.random_range(0..read);
                if let Some(kept) = keys.get_mut(place as usize) {
                    *kept = key;
                }
            }
        }
    }
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

/// Reads all records of a file ([`Rows`]). Rows may come in any order.
///
/// # Errors
/// [`InputError`] if the file cannot be read, lacks a column, has no rows or a malformed one.
pub fn read_records(path: &Path, names: &ColumnNames) -> Result<Input, InputError> {
    let mut rows = Rows::open(path, names)?;
    let mut records = Vec::new();
    while let Some(record) = rows.next_record()? {
        records.push(record);
    }
    if records.is_empty() {
        return Err(rows.columns.empty());
    }
    let rows = records.len();
    // Reversing before the stable sort puts the last row of each key first, which dedup keeps.
    records.reverse();
    records.sort_by_key(|(key, _)| *key);
    records.dedup_by_key(|(key, _)| *key);
    Ok(Input { duplicates: (rows - records.len()) as u64, records })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::tests::TestFile;

    fn named(key: &str, value: Option<&str>) -> ColumnNames {
        ColumnNames { key: Some(key.to_owned()), value: value.map(str::to_owned) }
    }

    #[test]
    fn rows_are_sorted_and_the_last_of_a_key_wins() {
        let file = TestFile::new("input.csv", b"k,v,w\n5,50,0\n1,10,0\n5,51,0\n3,30,0\n5,52,0\n");
        let input = read_records(file.path(), &named("k", Some("v"))).unwrap();
        assert_eq!(input.records, [(1, 10), (3, 30), (5, 52)]);
        assert_eq!(input.duplicates, 2);
        let numbered = read_records(file.path(), &named("k", None)).unwrap();
        assert_eq!(numbered.records, [(1, 1), (3, 3), (5, 4)]);
        let error = read_records(file.path(), &named("k", Some("x"))).unwrap_err().to_string();
        assert!(error.ends_with("its columns are: k, v, w"), "{error}");
    }

    #[test]
    fn text_has_a_header_unless_it_is_said_to_have_none() {
        let read = |name: &str, content: &[u8], names: &ColumnNames, has_header| {
            let file = TestFile::new(name, content);
            let mut rows = Rows::open_text(file.path(), names, has_header)?;
            let mut read = Vec::new();
            while let Some(TextRow { key, value, number }) = rows.next_text()? {
                read.push(format!("{key}={}", value.map_or(number.to_string(), str::to_owned)));
            }
            Ok::<_, InputError>(read)
        };
        let any = ColumnNames::default();
        let file = b"value,key\n\"a, b\",x\n,\n";
        assert_eq!(read("text.csv", file, &any, true).unwrap(), ["x=a, b", "="]);
        assert_eq!(read("rows.csv", file, &any, false).unwrap(), ["value=key", "a, b=x", "="]);
        assert_eq!(read("one.csv", b"7\n7\n", &any, false).unwrap(), ["7=0", "7=1"]);
        let names = named("word", Some("gloss"));
        let file = b"word,gloss,n\nox,animal,1\n";
        assert_eq!(read("named.csv", file, &names, true).unwrap(), ["ox=animal"]);
        let said = read("none.csv", file, &any, true).unwrap_err().to_string();
        assert!(said.ends_with("no column `key`; its columns are: word, gloss, n"), "{said}");
        let said = read("wide.csv", file, &any, false).unwrap_err().to_string();
        assert!(said.contains("line 1: 3 columns, expected one of keys and one of"), "{said}");
        let said = read("empty.csv", b"", &any, true).unwrap_err().to_string();
        assert!(said.ends_with("has no rows"), "{said}");
    }

    #[test]
    fn a_header_is_needed_unless_there_are_only_keys_and_values() {
        let read = |name: &str, content: &[u8]| {
            let file = TestFile::new(name, content);
            read_records(file.path(), &ColumnNames::default())
                .map(|input| input.records)
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("pairs.csv", b"7,70\n2,20\n").unwrap(), [(2, 20), (7, 70)]);
        assert_eq!(read("keys.csv", b"7\n\n2\n").unwrap(), [(2, 1), (7, 0)]);
        let quoted = b"value,\"key\"\n\"70\",7\n20,\"2\"\n";
        assert_eq!(read("quoted.csv", quoted).unwrap(), [(2, 20), (7, 70)]);
        let error = read("words.csv", b"id,amount\n1,2\n").unwrap_err();
        let expected = "line 1: the first row is neither numbers nor a header with a column `key`, it is: id, amount";
        assert!(error.ends_with(expected), "{error}");
        assert!(
            read("three.csv", b"1,2,3\n").unwrap_err().contains("neither numbers nor a header")
        );
        assert!(
            read("later.csv", b"1,2\nx,3\n").unwrap_err().contains("line 2: column `1` is `x`")
        );
        assert!(read("nothing.csv", b"").unwrap_err().ends_with("has no rows"));
    }

    #[test]
    fn a_sample_of_many_keys_is_even() {
        let rows: String = (0..250_000).map(|key| format!("{}\n", key * 3)).collect();
        let file = TestFile::new("many.csv", rows.as_bytes());
        let keys_of = |file: &TestFile| {
            let mut rows = Rows::open(file.path(), &ColumnNames::default()).unwrap();
            sample(|| Ok::<_, InputError>(rows.next_record()?.map(|(key, _)| key))).unwrap()
        };
        let keys = keys_of(&file);
        assert_eq!(keys.len(), SAMPLED);
        // The median's position has a standard deviation of about 0.16% of the keys.
        let middle = keys[keys.len() / 2];
        assert!((367_500..382_500).contains(&middle), "{middle}");
        let few = TestFile::new("few.csv", b"9\n1\n5\n7\n");
        assert_eq!(keys_of(&few), [1, 5, 7, 9]);
    }

    #[test]
    fn a_file_without_rows_is_an_error() {
        let file = TestFile::new("empty.csv", b"k\n");
        let error = read_records(file.path(), &named("k", None)).unwrap_err().to_string();
        assert!(error.ends_with("has no rows"), "{error}");
    }
}
