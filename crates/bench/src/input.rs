//! Reads the records to load from a CSV file.
//!
//! *Thread safety*: plain values.

use crate::InputError;
use crate::columns::CsvColumns;
use crate::rows::MAX_FIELD_BYTES;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::path::Path;

/// All records of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordInput {
    /// The records, ascending by key, each key once.
    pub records: Vec<(u64, u64)>,
    /// Number of rows whose key occurs again in a later row. Only the last row of each key is used.
    pub duplicates: u64,
}

/// How to read a CSV file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvOptions {
    /// The column of keys; `key` by default.
    pub key: Option<String>,
    /// The column of values; by default `value`, if the file has one.
    pub value: Option<String>,
    /// Refuse a row with a longer field, and so bound the memory for a row.
    pub max_field_bytes: usize,
}

impl Default for CsvOptions {
    fn default() -> Self {
        Self { key: None, value: None, max_field_bytes: MAX_FIELD_BYTES }
    }
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
/// The first row is a header with the names of the columns. If [`CsvOptions`] names no columns, a
/// file of one or two columns needs no header if its first row consists of numbers: its columns are
/// then keys and values. If there is no column of values, the value is the row's number, from 0. An
/// empty file has no rows, and no header.
pub struct InputRows {
    columns: CsvColumns,
    key: usize,
    value: Option<usize>,
    read: u64,
}

impl InputRows {
    /// Opens a file, plain or compressed with gzip or zstd, or stdin for `-`.
    ///
    /// # Errors
    /// [`InputError`] if the file cannot be read, or if its first row does not identify the
    /// columns.
    pub fn open(path: &Path, options: &CsvOptions) -> Result<Self, InputError> {
        let mut columns = CsvColumns::open(path, options.max_field_bytes)?;
        if columns.width() == 0 {
            return Ok(Self::none(columns));
        }
        let is_named = options.key.is_some() || options.value.is_some();
        if !is_named && columns.width() <= 2 && columns.without_header() {
            let value = (columns.width() == 2).then_some(1);
            return Ok(Self { columns, key: 0, value, read: 0 });
        }
        let key = match &options.key {
            Some(name) => columns.column(name)?,
            None => columns.find("key").ok_or_else(|| columns.no_header("key"))?,
        };
        let value = match &options.value {
            Some(name) => Some(columns.column(name)?),
            None => columns.find("value"),
        };
        Ok(Self { columns, key, value, read: 0 })
    }

    /// The rows of an empty file, like the export of an empty index: none, and no header.
    fn none(columns: CsvColumns) -> Self {
        Self { columns, key: 0, value: None, read: 0 }
    }

    /// Opens a file whose fields are text. The first row is a header if `has_header`. Otherwise the
    /// file has one or two columns, of keys and values.
    ///
    /// # Errors
    /// [`InputError`] as for [`InputRows::open`].
    pub fn open_text(
        path: &Path,
        options: &CsvOptions,
        has_header: bool,
    ) -> Result<Self, InputError> {
        let mut columns = CsvColumns::open(path, options.max_field_bytes)?;
        if columns.width() == 0 {
            return Ok(Self::none(columns));
        }
        if !has_header {
            let width = columns.width();
            columns.take_first_row();
            if width > 2 {
                let problem = format!("{width} columns, expected one of keys and one of values");
                return Err(columns.bad_row(problem));
            }
            return Ok(Self { columns, key: 0, value: (width == 2).then_some(1), read: 0 });
        }
        let key = columns.column(options.key.as_deref().unwrap_or("key"))?;
        let value = match &options.value {
            Some(name) => Some(columns.column(name)?),
            None => columns.find("value"),
        };
        Ok(Self { columns, key, value, read: 0 })
    }

    /// Returns the next row, whose fields are as they were written; `None` at the end.
    ///
    /// # Errors
    /// [`InputError`] if the file cannot be read further, or the row is malformed.
    pub fn next_text(&mut self) -> Result<Option<TextRow<'_>>, InputError> {
        if !self.columns.next_row()? {
            return Ok(None);
        }
        let number = self.read;
        self.read += 1;
        let value = self.value.map(|column| self.columns.exact(column)).transpose()?;
        Ok(Some(TextRow { key: self.columns.exact(self.key)?, value, number }))
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
    let mut sample = KeySample::new(SAMPLED);
    while let Some(key) = next()? {
        sample.offer(key);
    }
    Ok(sample.into_sorted())
}

/// An even sample of keys that come one after the other (algorithm R): each key so far is in it
/// with the same probability.
#[derive(Debug)]
pub struct KeySample<K> {
    rng: Xoshiro256PlusPlus,
    keys: Vec<K>,
    most: usize,
    offered: u64,
}

impl<K: Ord> KeySample<K> {
    /// A sample of at most `most` keys.
    pub fn new(most: usize) -> Self {
        let rng = Xoshiro256PlusPlus::seed_from_u64(1);
        Self { rng, keys: Vec::new(), most, offered: 0 }
    }

    /// Takes a key into the sample, or not.
    pub fn offer(&mut self, key: K) {
        self.offered += 1;
        match self.keys.len() < self.most {
            true => self.keys.push(key),
            false => {
                let place = self.rng.random_range(0..self.offered);
                if let Some(kept) = self.keys.get_mut(place as usize) {
                    *kept = key;
                }
            }
        }
    }

    /// The keys, ascending and without duplicates.
    pub fn into_sorted(mut self) -> Vec<K> {
        self.keys.sort_unstable();
        self.keys.dedup();
        self.keys
    }
}

/// Reads all records of a file ([`InputRows`]), which may have none. Rows may come in any order.
///
/// # Errors
/// [`InputError`] if the file cannot be read, lacks a column, or has a malformed row.
pub fn read_records(path: &Path, options: &CsvOptions) -> Result<RecordInput, InputError> {
    let mut rows = InputRows::open(path, options)?;
    let mut records = Vec::new();
    while let Some(record) = rows.next_record()? {
        records.push(record);
    }
    let rows = records.len();
    // Reversing before the stable sort puts the last row of each key first, which dedup keeps.
    records.reverse();
    records.sort_by_key(|(key, _)| *key);
    records.dedup_by_key(|(key, _)| *key);
    Ok(RecordInput { duplicates: (rows - records.len()) as u64, records })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::tests::{TestFile, gzip};

    fn named(key: &str, value: Option<&str>) -> CsvOptions {
        let (key, value) = (Some(key.to_owned()), value.map(str::to_owned));
        CsvOptions { key, value, ..Default::default() }
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
        let read = |name: &str, content: &[u8], options: &CsvOptions, has_header| {
            let file = TestFile::new(name, content);
            let mut rows = InputRows::open_text(file.path(), options, has_header)?;
            let mut read = Vec::new();
            while let Some(TextRow { key, value, number }) = rows.next_text()? {
                read.push(format!("{key}={}", value.map_or(number.to_string(), str::to_owned)));
            }
            Ok::<_, InputError>(read)
        };
        let any = CsvOptions::default();
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
    }

    /// The reader of before trimmed fields after it had taken their quotes away, so that `" "` was
    /// an empty value, and left the quotes of `"a", "b"` in the value. What is stored is what was
    /// written, or the row is refused.
    #[test]
    fn text_is_what_was_written_or_refused() {
        let read = |content: &[u8]| {
            let file = TestFile::new("written.csv", content);
            let mut rows = InputRows::open_text(file.path(), &CsvOptions::default(), true).unwrap();
            let mut read = Vec::new();
            while let Some(TextRow { key, value, .. }) =
                rows.next_text().map_err(|error| error.to_string())?
            {
                read.push((key.to_owned(), value.unwrap().to_owned()));
            }
            Ok::<_, String>(read)
        };
        let one = |key: &str, value: &str| Ok(vec![(key.to_owned(), value.to_owned())]);
        assert_eq!(read(b"key, value\nk2,\" \"\n"), one("k2", " "));
        assert_eq!(read(b"key,value\n\"b2\", \"vb\"\n"), one("b2", "vb"));
        assert_eq!(read(b"key,value\n \"c3\",vc\n"), one("c3", "vc"));
        for blanks in ["a, 1", "a,1 ", " a,1", "a\t,1", "a, "] {
            let said = read(format!("key,value\nx,1\n{blanks}\n").as_bytes()).unwrap_err();
            assert!(said.contains("line 3: column") && said.contains("into quotes"), "{said}");
        }
    }

    /// The export of an empty index of numbers is an empty file, and was refused. Then it was
    /// refused where a header was expected.
    #[test]
    fn an_empty_file_has_no_rows() {
        let packed = gzip(b"");
        let frame = ruzstd::encoding::compress_to_vec(
            &b""[..],
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        for content in [&b""[..], b"\n\r\n", b"\xef\xbb\xbf", &packed, &frame] {
            let file = TestFile::new(&format!("void-{}.csv", content.len()), content);
            for options in [CsvOptions::default(), named("k", Some("v"))] {
                let mut rows = InputRows::open(file.path(), &options).unwrap();
                assert_eq!(rows.next_record().unwrap(), None);
                assert!(read_records(file.path(), &options).unwrap().records.is_empty());
                for has_header in [false, true] {
                    let mut rows = InputRows::open_text(file.path(), &options, has_header).unwrap();
                    assert_eq!(rows.next_text().unwrap(), None);
                }
            }
        }
    }

    #[test]
    fn a_header_is_needed_unless_there_are_only_keys_and_values() {
        let read = |name: &str, content: &[u8]| {
            let file = TestFile::new(name, content);
            read_records(file.path(), &CsvOptions::default())
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
        assert_eq!(read("tens.csv", b"\" 7\", 70\n").unwrap(), [(7, 70)]);
    }

    #[test]
    fn a_sample_of_many_keys_is_even() {
        let rows: String = (0..250_000).map(|key| format!("{}\n", key * 3)).collect();
        let file = TestFile::new("many.csv", rows.as_bytes());
        let keys_of = |file: &TestFile| {
            let mut rows = InputRows::open(file.path(), &CsvOptions::default()).unwrap();
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
    fn a_header_alone_has_no_rows() {
        let file = TestFile::new("empty.csv", b"k\n");
        assert!(read_records(file.path(), &named("k", None)).unwrap().records.is_empty());
        let error = read_records(file.path(), &named("x", None)).unwrap_err().to_string();
        assert!(error.ends_with("no column `x`; its columns are: k"), "{error}");
    }
}
