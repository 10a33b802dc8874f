//! Columns of CSV files by their names, plain or compressed with gzip.
//!
//! *Thread safety*: none needed; a file is read by whoever opened it.

use csv::StringRecord;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a file could not be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InputError {
    /// It cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system or the decompressor said.
        source: std::io::Error,
    },
    /// It has no such column.
    #[error("{} has no column `{column}`; its columns are: {}", path.display(), columns.join(", "))]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The column asked for.
        column: String,
        /// Those that there are.
        columns: Vec<String>,
    },
    /// A row is not what it should be.
    #[error("{}, line {line}: {problem}", path.display())]
    BadRow {
        /// The file.
        path: PathBuf,
        /// The line, the header being line 1.
        line: u64,
        /// What was found and what was expected.
        problem: String,
    },
    /// It has a header and nothing else, or not even that.
    #[error("{} has no rows", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// A CSV file whose header has been read.
pub(crate) struct Columns {
    path: PathBuf,
    reader: csv::Reader<Box<dyn Read>>,
    header: StringRecord,
    row: StringRecord,
}

impl Columns {
    /// Opens a file; gzip is recognised by its first bytes, whatever the name.
    pub(crate) fn open(path: &Path) -> Result<Self, InputError> {
        let unreadable = |source| InputError::Read { path: path.to_owned(), source };
        let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(unreadable)?);
        let compressed = file.fill_buf().map_err(unreadable)?.starts_with(&[0x1f, 0x8b]);
        let plain: Box<dyn Read> = match compressed {
            true => Box::new(MultiGzDecoder::new(file)),
            false => Box::new(file),
        };
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(plain);
        let header = reader.headers().cloned().map_err(|error| row_error(path, error))?;
        Ok(Self { path: path.to_owned(), reader, header, row: StringRecord::new() })
    }

    /// The number of the column called `name`.
    pub(crate) fn column(&self, name: &str) -> Result<usize, InputError> {
        self.header.iter().position(|column| column == name).ok_or_else(|| InputError::NoColumn {
            path: self.path.clone(),
            column: name.to_owned(),
            columns: self.header.iter().map(str::to_owned).collect(),
        })
    }

    /// Goes on to the next row; `false` at the end.
    pub(crate) fn next_row(&mut self) -> Result<bool, InputError> {
        self.reader.read_record(&mut self.row).map_err(|error| row_error(&self.path, error))
    }

    /// The row's field in a column; every row has as many as the header.
    pub(crate) fn field(&self, column: usize) -> &str {
        &self.row[column]
    }

    /// The row's field as a number.
    pub(crate) fn number(&self, column: usize) -> Result<u64, InputError> {
        self.field(column).parse().map_err(|_| {
            self.bad_row(format!(
                "column `{}` is `{}`, expected a whole number from 0 to {}",
                &self.header[column],
                self.field(column),
                u64::MAX
            ))
        })
    }

    /// The error that the current row is not as it should be.
    pub(crate) fn bad_row(&self, problem: String) -> InputError {
        let line = self.row.position().map_or(0, csv::Position::line);
        InputError::BadRow { path: self.path.clone(), line, problem }
    }

    /// The error that there are no rows.
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
            let problem =
                format!("the number of fields is {len}, expected {expected_len} as in the header");
            InputError::BadRow { path, line, problem }
        }
        csv::ErrorKind::Utf8 { .. } => {
            InputError::BadRow { path, line, problem: "not UTF-8 text".to_owned() }
        }
        other => InputError::BadRow { path, line, problem: format!("{other:?}") },
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Write;

    /// A file that is removed when the test ends.
    pub(crate) struct TestFile(PathBuf);

    impl TestFile {
        pub(crate) fn new(name: &str, content: &[u8]) -> Self {
            let name = format!("farleaf-bench-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, content).unwrap();
            Self(path)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for TestFile {
        fn drop(&mut self) {
            // Nothing depends on it.
            let _ = std::fs::remove_file(&self.0);
        }
    }

    pub(crate) fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

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
            ragged.contains("line 4: the number of fields is 1, expected 2 as in the header"),
            "{ragged}"
        );
        let rows: String = (0..2000).map(|row| format!("x,{row}\n")).collect();
        let packed = gzip(format!("a,n\n{rows}").as_bytes());
        let cut = error("cut.gz", &packed[..packed.len() - 12]);
        assert!(cut.starts_with("cannot read ") && !cut.contains('\n'), "{cut}");
        let binary = error("binary.csv", b"a,n\n\xff\xfe,1\n");
        assert!(binary.contains("line 2: not UTF-8 text"), "{binary}");
        let absent = sum(Path::new("/nonexistent/x.csv")).unwrap_err().to_string();
        assert!(absent.starts_with("cannot read /nonexistent/x.csv"), "{absent}");
    }
}
