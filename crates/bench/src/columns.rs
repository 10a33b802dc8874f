//! Reads CSV files by the names of their columns.
//!
//! *Thread safety*: none needed; one thread opens and reads a file.

use crate::InputError;
use crate::content::{self, InputContent};
use crate::rows::{CsvRow, RowError, RowReader};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Longest line of a file of lines, in bytes. It bounds memory when a file has no line breaks.
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

fn shown(row: &[String]) -> Vec<String> {
    shown_fields(row.iter().map(|field| shortened(field)))
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
struct LineLimitReader<R> {
    inner: R,
    /// Bytes since the last line break.
    bytes: usize,
}

impl<R: Read> Read for LineLimitReader<R> {
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
    content: BufReader<LineLimitReader<InputContent>>,
    line: Vec<u8>,
    number: u64,
}

/// Opens a file, or stdin for `-`, to read it line by line.
pub(crate) fn lines(path: &Path) -> Result<LineReader, InputError> {
    let (path, inner) = content::open(path)?;
    let content = BufReader::new(LineLimitReader { inner, bytes: 0 });
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
pub(crate) struct CsvColumns {
    path: PathBuf,
    reader: RowReader<InputContent>,
    /// The names of the columns.
    header: Vec<String>,
    row: CsvRow,
    /// Set if the first row is data: [`CsvColumns::next_row`] returns it first.
    is_first_next: bool,
}

impl CsvColumns {
    /// Opens a file, or stdin for `-`, and reads its first row. Fields have at most
    /// `max_field_bytes`.
    pub(crate) fn open(path: &Path, max_field_bytes: usize) -> Result<Self, InputError> {
        let (path, content) = content::open(path)?;
        let unreadable = |source| InputError::Read { path: path.clone(), source };
        let mut reader = RowReader::new(content, max_field_bytes).map_err(unreadable)?;
        let mut row = CsvRow::default();
        reader.read(&mut row).map_err(|error| row_error(&path, error))?;
        let header = row.iter().map(str::to_owned).collect();
        Ok(Self { path, reader, header, row, is_first_next: false })
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
        let is_number = |field: &String| field.trim().parse::<u64>().is_ok();
        let are_numbers = !self.header.is_empty() && self.header.iter().all(is_number);
        if are_numbers {
            self.take_first_row();
        }
        are_numbers
    }

    /// Treats the first row as data.
    pub(crate) fn take_first_row(&mut self) {
        self.is_first_next = self.width() > 0;
        self.header = (1..=self.header.len()).map(|number| number.to_string()).collect();
    }

    /// The error for a first row that is neither numbers nor a header with the column `name`.
    pub(crate) fn no_header(&self, name: &str) -> InputError {
        InputError::NoHeader {
            path: self.path.clone(),
            line: self.row.line(),
            column: name.to_owned(),
            fields: shown(&self.header),
        }
    }

    /// Advances to the next row; returns `false` at the end.
    pub(crate) fn next_row(&mut self) -> Result<bool, InputError> {
        if std::mem::take(&mut self.is_first_next) {
            return Ok(true);
        }
        if !self.reader.read(&mut self.row).map_err(|error| row_error(&self.path, error))? {
            return Ok(false);
        }
        let (fields, expected) = (self.row.len(), self.header.len());
        match fields == expected {
            true => Ok(true),
            false => Err(self.bad_row(format!(
                "the number of fields is {fields}, expected {expected} as in the first row"
            ))),
        }
    }

    /// The current row's field in a column, without blanks at its ends unless they are within
    /// quotes. Every row has as many fields as the header.
    pub(crate) fn field(&self, column: usize) -> &str {
        self.row.field(column)
    }

    /// The current row's field in a column as it was written.
    ///
    /// # Errors
    /// [`InputError::BadRow`] if blanks at its ends are not within quotes: some writers mean them,
    /// and others do not.
    pub(crate) fn exact(&self, column: usize) -> Result<&str, InputError> {
        self.row.exact(column).ok_or_else(|| {
            self.bad_row(format!(
                "column `{}` is `{}` with blanks at its ends: put it into quotes, with the blanks or \
                 without",
                &self.header[column],
                shortened(self.field(column)),
            ))
        })
    }

    /// The current row's field as a number.
    pub(crate) fn number(&self, column: usize) -> Result<u64, InputError> {
        self.field(column).trim().parse().map_err(|_| {
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
        InputError::BadRow { path: self.path.clone(), line: self.row.line(), problem }
    }
}

fn row_error(path: &Path, error: RowError) -> InputError {
    let path = path.to_owned();
    match error {
        RowError::Io(source) => InputError::Read { path, source },
        RowError::Malformed(line, problem) => InputError::BadRow { path, line, problem },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::tests::{TestFile, gzip};
    use crate::rows::MAX_FIELD_BYTES;

    fn sum(path: &Path) -> Result<u64, InputError> {
        let mut columns = CsvColumns::open(path, MAX_FIELD_BYTES)?;
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
        assert!(endless.contains("line 2: a field has more than 1048576 bytes"), "{endless}");
        let absent = sum(Path::new("/nonexistent/x.csv")).unwrap_err().to_string();
        assert!(absent.starts_with("cannot read /nonexistent/x.csv"), "{absent}");
    }
}
