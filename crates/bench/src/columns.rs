//! Reads CSV files by the names of their columns.
//!
//! *Thread safety*: none needed; one thread opens and reads a file.

use crate::content::{self, Content};
use csv::StringRecord;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
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
        "cannot read {}: this is {form}, and only plain text, gzip and zstd are read: use the output of \
         `{command} {}`, with - for stdin",
        path.display(), path.display()
    )]
    OtherForm {
        /// The file's path.
        path: PathBuf,
        /// The form's name.
        form: &'static str,
        /// The command that makes plain text of it.
        command: &'static str,
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
    /// The file has no rows besides a header, or is empty.
    #[error("{} has no rows", path.display())]
    Empty {
        /// The file's path.
        path: PathBuf,
    },
}

/// Longest line, in bytes. It bounds memory when a file without line breaks is not a CSV file.
const LINE_BYTES: usize = 1 << 20;
/// How much of a file an error message quotes: characters per field, and fields per row.
const SHOWN_CHARACTERS: usize = 40;
const SHOWN_FIELDS: usize = 12;

/// Shortens a field for an error message.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
    }
}

fn shown(row: &StringRecord) -> Vec<String> {
    shown_fields(row.iter().map(shortened))
}

/// The first of these fields, and the number of the others, for an error message.
pub(crate) fn shown_fields(fields: impl Iterator<Item = String>) -> Vec<String> {
    let mut shown: Vec<_> = fields.collect();
    let more = shown.len().saturating_sub(SHOWN_FIELDS);
    shown.truncate(SHOWN_FIELDS);
    shown.extend((more > 0).then(|| format!("and {more} more")));
    shown
}

/// Fails on lines longer than [`LINE_BYTES`].
struct Lines<R> {
    inner: R,
    /// Bytes since the last line break.
    bytes: usize,
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        let mut lines = into[..read].split(|byte| *byte == b'\n');
        self.bytes += lines.next().map_or(0, <[u8]>::len);
        let mut longest = self.bytes;
        for line in lines {
            self.bytes = line.len();
            longest = longest.max(line.len());
        }
        if longest > LINE_BYTES {
            return Err(io::Error::other(format!("a line has more than {LINE_BYTES} bytes")));
        }
        Ok(read)
    }
}

/// The lines of a file of any encoding, without their ends.
pub(crate) struct LineReader {
    path: PathBuf,
    content: BufReader<Lines<Content>>,
    line: Vec<u8>,
    number: u64,
}

/// Opens a file, or stdin for `-`, to read it line by line.
pub(crate) fn lines(path: &Path) -> Result<LineReader, InputError> {
    let (path, inner) = content::open(path)?;
    let content = BufReader::new(Lines { inner, bytes: 0 });
    Ok(LineReader { path, content, line: Vec::new(), number: 0 })
}

impl LineReader {
    /// The file's name for error messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The next line and its number, from 1.
    pub(crate) fn next_line(&mut self) -> Result<Option<(u64, &[u8])>, InputError> {
        self.line.clear();
        let read = self.content.read_until(b'\n', &mut self.line);
        let read = read.map_err(|source| InputError::Read { path: self.path.clone(), source })?;
        self.number += 1;
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Ok((read > 0).then_some((self.number, line)))
    }
}

/// A CSV file with its first row already read.
pub(crate) struct Columns {
    path: PathBuf,
    reader: csv::Reader<Lines<Content>>,
    header: StringRecord,
    row: StringRecord,
    /// Set if the first row is data: [`Columns::next_row`] returns it first.
    is_first_next: bool,
}

impl Columns {
    /// Opens a file, or stdin for `-`, and reads its first row.
    pub(crate) fn open(path: &Path) -> Result<Self, InputError> {
        let (path, inner) = content::open(path)?;
        let mut options = csv::ReaderBuilder::new();
        let mut reader =
            options.trim(csv::Trim::All).has_headers(false).from_reader(Lines { inner, bytes: 0 });
        let mut header = StringRecord::new();
        reader.read_record(&mut header).map_err(|error| row_error(&path, error))?;
        let row = StringRecord::new();
        Ok(Self { path, reader, header, row, is_first_next: false })
    }

    /// As [`Columns::open`], for a file with at least one row.
    pub(crate) fn of(path: &Path) -> Result<Self, InputError> {
        let columns = Self::open(path)?;
        match columns.width() {
            0 => Err(columns.empty()),
            _ => Ok(columns),
        }
    }

    /// Index of the column called `name`.
    pub(crate) fn column(&self, name: &str) -> Result<usize, InputError> {
        self.find(name).ok_or_else(|| InputError::NoColumn {
            path: self.path.clone(),
            column: name.to_owned(),
            columns: shown(&self.header),
        })
    }

    /// Index of the column called `name`, or `None`.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|column| column == name)
    }

    /// Number of columns; 0 for an empty file.
    pub(crate) fn width(&self) -> usize {
        self.header.len()
    }

    /// Treats the first row as data if all its fields are numbers; returns whether it did.
    pub(crate) fn without_header(&mut self) -> bool {
        self.is_first_next =
            !self.header.is_empty() && self.header.iter().all(|field| field.parse::<u64>().is_ok());
        self.is_first_next
    }

    /// Treats the first row as data.
    pub(crate) fn take_first_row(&mut self) {
        self.is_first_next = true;
    }

    /// The error for a first row that is neither numbers nor a header with the column `name`.
    pub(crate) fn no_header(&self, name: &str) -> InputError {
        InputError::NoHeader {
            path: self.path.clone(),
            line: self.header.position().map_or(1, csv::Position::line),
            column: name.to_owned(),
            fields: shown(&self.header),
        }
    }

    /// Advances to the next row; returns `false` at the end.
    pub(crate) fn next_row(&mut self) -> Result<bool, InputError> {
        if std::mem::take(&mut self.is_first_next) {
            self.row = self.header.clone();
            self.header = (1..=self.row.len()).map(|number| number.to_string()).collect();
            return Ok(true);
        }
        self.reader.read_record(&mut self.row).map_err(|error| row_error(&self.path, error))
    }

    /// The current row's field in a column. Every row has as many fields as the header.
    pub(crate) fn field(&self, column: usize) -> &str {
        &self.row[column]
    }

    /// The current row's field as a number.
    pub(crate) fn number(&self, column: usize) -> Result<u64, InputError> {
        self.field(column).parse().map_err(|_| {
            self.bad_row(format!(
                "column `{}` is `{}`, expected a whole number from 0 to {}",
                &self.header[column],
                shortened(self.field(column)),
                u64::MAX
            ))
        })
    }

    /// An error about the current row.
    pub(crate) fn bad_row(&self, problem: String) -> InputError {
        let row = if self.is_first_next { &self.header } else { &self.row };
        let line = row.position().map_or(0, csv::Position::line);
        InputError::BadRow { path: self.path.clone(), line, problem }
    }

    /// The error for a file without rows.
    pub(crate) fn empty(&self) -> InputError {
        InputError::Empty { path: self.path.clone() }
    }
}

fn row_error(path: &Path, error: csv::Error) -> InputError {
    let path = path.to_owned();
    let line = error.position().map_or(0, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(source) => InputError::Read { path, source },
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            let problem = format!(
                "the number of fields is {len}, expected {expected_len} as in the first row"
            );
            InputError::BadRow { path, line, problem }
        }
        csv::ErrorKind::Utf8 { .. } => {
            InputError::BadRow { path, line, problem: "not UTF-8 text".to_owned() }
        }
        other => InputError::BadRow { path, line, problem: format!("{other:?}") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::tests::{TestFile, gzip};

    fn sum(path: &Path) -> Result<u64, InputError> {
        let mut columns = Columns::open(path)?;
        let column = columns.column("n")?;
        let mut sum = 0;
        while columns.next_row()? {
            sum += columns.number(column)?;
        }
        Ok(sum)
    }

    #[test]
    fn plain_and_compressed_files_read_alike() {
        let text = b"name, n\na, 1\nb, 41\n";
        for (name, content) in [("plain.csv", text.to_vec()), ("packed.txt", gzip(text))] {
            assert_eq!(sum(TestFile::new(name, &content).path()).unwrap(), 42);
        }
        let two = [gzip(b"n\n1\n"), gzip(b"2\n")].concat();
        assert_eq!(sum(TestFile::new("members.gz", &two).path()).unwrap(), 3);
    }

    #[test]
    fn errors_say_where_and_what() {
        let error = |name: &str, content: &[u8]| {
            let file = TestFile::new(name, content);
            sum(file.path()).unwrap_err().to_string()
        };
        let missing = error("column.csv", b"a,b\n1,2\n");
        assert!(missing.ends_with("no column `n`; its columns are: a, b"), "{missing}");
        let number = error("number.csv", b"a,n\nx,1\nx,-3\n");
        assert!(number.contains("line 3: column `n` is `-3`, expected a whole"), "{number}");
        let ragged = error("ragged.csv", b"a,n\nx,1\nx,2\nx\n");
        assert!(
            ragged.contains("line 4: the number of fields is 1, expected 2 as in the first row"),
            "{ragged}"
        );
        let rows: String = (0..2000).map(|row| format!("x,{row}\n")).collect();
        let packed = gzip(format!("a,n\n{rows}").as_bytes());
        let cut = error("cut.gz", &packed[..packed.len() - 12]);
        assert!(cut.starts_with("cannot read ") && !cut.contains('\n'), "{cut}");
        let binary = error("binary.csv", b"a,n\n\xff\xfe,1\n");
        assert!(binary.contains("line 2: not UTF-8 text"), "{binary}");
        let long = format!("a,n\nx,{}\n", "9".repeat(5_000));
        let long = error("long.csv", long.as_bytes());
        assert!(long.contains("… (5000 bytes)`, expected") && long.len() < 300, "{long}");
        let endless = error("endless.csv", &[&b"a,n\nx,"[..], &vec![b'1'; 2 << 20]].concat());
        assert!(endless.contains("a line has more than 1048576 bytes"), "{endless}");
        let absent = sum(Path::new("/nonexistent/x.csv")).unwrap_err().to_string();
        assert!(absent.starts_with("cannot read /nonexistent/x.csv"), "{absent}");
    }
}
