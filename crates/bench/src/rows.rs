//! Rows of fields that are separated by commas, as RFC 4180 defines them, and nothing else: a row
//! with another meaning than its writer's is refused, not guessed.
//!
//! *Invariants*
//! - rows.C1. A field within quotes is exactly what is between them, with `""` for a quote. Blanks
//!   before and behind the quotes do not belong to it. Anything else there is an error, and so is a
//!   quote within a field that does not begin with one, and one that is not closed.
//! - rows.C2. Blanks at the ends of a field without quotes are not part of [`CsvRow::field`], and
//!   [`CsvRow::exact`] tells that there were some.
//! - rows.C3. A row takes memory in proportion to the longest field allowed, whatever the file has.
//!
//! Rows end with LF, CR LF or CR, and empty lines are no rows. The crate `csv` has no such mode: it
//! ends an open quote at the end of the file, takes a quote in the middle of a field for a
//! character, and does not tell which fields had quotes.
//!
//! *Thread safety*: none needed; one thread reads a file.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

/// How long a field may be unless the caller says otherwise, in bytes.
pub(crate) const MAX_FIELD_BYTES: usize = 1 << 20;
/// How long a row may be, in fields of the greatest length.
const MAX_ROW_LENGTHS: usize = 4;
/// How many fields a row may have.
const MAX_FIELDS: usize = 1 << 16;

/// The mark of UTF-8 that some programs put at the beginning of a file.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Why a row cannot be read.
#[derive(Debug)]
pub(crate) enum RowError {
    /// The file cannot be read.
    Io(io::Error),
    /// The row is malformed: its line, from 1, and what is wrong.
    Malformed(u64, String),
}

impl From<io::Error> for RowError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// One field of a row.
#[derive(Clone, Copy, Debug)]
struct Field {
    /// Where its text ends; it begins where that of the field before ends.
    end: usize,
    /// Whether blanks at its ends were left out (rows.C2).
    is_trimmed: bool,
}

/// A row of text.
#[derive(Clone, Debug, Default)]
pub(crate) struct CsvRow {
    text: String,
    fields: Vec<Field>,
    line: u64,
}

impl CsvRow {
    /// Number of fields.
    pub(crate) fn len(&self) -> usize {
        self.fields.len()
    }

    /// The line that it begins at, from 1.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// A field without blanks at its ends, unless they are within quotes.
    pub(crate) fn field(&self, place: usize) -> &str {
        let begin = place.checked_sub(1).map_or(0, |before| self.fields[before].end);
        &self.text[begin..self.fields[place].end]
    }

    /// A field as it was written; `None` if blanks at its ends were left out.
    pub(crate) fn exact(&self, place: usize) -> Option<&str> {
        (!self.fields[place].is_trimmed).then(|| self.field(place))
    }

    /// All fields.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|place| self.field(place))
    }
}

/// What precedes the next byte of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldState {
    /// Nothing but blanks.
    Start { has_blanks: bool },
    /// Text without quotes.
    Plain { has_blanks: bool },
    /// Text within quotes.
    Quoted,
    /// Text within quotes, and a quote: the closing one, or the first of two.
    Quote,
    /// The closing quote and blanks.
    Closed,
}

/// The row that is being read.
struct OpenRow {
    bytes: Vec<u8>,
    fields: Vec<Field>,
    place: FieldState,
    /// Where the current field begins in `bytes`, and its line.
    begin: usize,
    begin_line: u64,
}

/// Reads rows.
pub(crate) struct RowReader<R> {
    input: BufReader<Chain<Cursor<Vec<u8>>, R>>,
    max_field_bytes: usize,
    /// The current line, from 1.
    line: u64,
    /// Whether the last row ended with a CR: an LF now belongs to it.
    is_behind_cr: bool,
}

fn malformed<T>(line: u64, problem: impl Into<String>) -> Result<T, RowError> {
    Err(RowError::Malformed(line, problem.into()))
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

impl OpenRow {
    /// Whether there is nothing yet: at its end, the line is empty.
    fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.place == FieldState::Start { has_blanks: false }
    }

    fn push(&mut self, byte: u8, most: usize) -> Result<(), RowError> {
        self.bytes.push(byte);
        if self.bytes.len() - self.begin > most {
            let open =
                if self.place == FieldState::Quoted { ", or its quote is not closed" } else { "" };
            let problem = format!(
                "a field has more than {most} bytes{open}; `load --max-field-bytes` takes longer ones"
            );
            return malformed(self.begin_line, problem);
        }
        let most = most.saturating_mul(MAX_ROW_LENGTHS);
        match self.bytes.len() > most {
            true => malformed(self.begin_line, format!("a row has more than {most} bytes")),
            false => Ok(()),
        }
    }

    /// Ends the current field.
    fn end_field(&mut self, line: u64) -> Result<(), RowError> {
        let is_trimmed = match self.place {
            FieldState::Start { has_blanks } => has_blanks,
            FieldState::Plain { has_blanks } => {
                let text = self.bytes.iter().rposition(|byte| !is_blank(*byte));
                let end = text.map_or(0, |last| last + 1).max(self.begin);
                let has_more = end < self.bytes.len();
                self.bytes.truncate(end);
                has_blanks || has_more
            }
            FieldState::Quoted => {
                return malformed(self.begin_line, "a quote is not closed");
            }
            FieldState::Quote | FieldState::Closed => false,
        };
        if self.fields.len() == MAX_FIELDS {
            return malformed(line, format!("a row has more than {MAX_FIELDS} fields"));
        }
        self.fields.push(Field { end: self.bytes.len(), is_trimmed });
        self.place = FieldState::Start { has_blanks: false };
        self.begin = self.bytes.len();
        self.begin_line = line;
        Ok(())
    }

    /// Takes a byte that is neither a comma nor the end of a line, except within quotes.
    fn take(&mut self, byte: u8, line: u64, most: usize) -> Result<(), RowError> {
        self.place = match (self.place, byte) {
            (FieldState::Start { .. }, b'"') => {
                self.begin_line = line;
                FieldState::Quoted
            }
            (FieldState::Start { .. }, byte) if is_blank(byte) => {
                FieldState::Start { has_blanks: true }
            }
            (FieldState::Start { has_blanks } | FieldState::Plain { has_blanks }, byte) => {
                if byte == b'"' {
                    let problem = "a quote within a field that does not begin with one: put the \
                                   field into quotes, and write \"\" for each quote in it";
                    return malformed(line, problem);
                }
                self.place = FieldState::Plain { has_blanks };
                self.push(byte, most)?;
                self.place
            }
            (FieldState::Quoted, b'"') => FieldState::Quote,
            (FieldState::Quoted, byte) => {
                self.push(byte, most)?;
                FieldState::Quoted
            }
            (FieldState::Quote, b'"') => {
                self.push(byte, most)?;
                FieldState::Quoted
            }
            (FieldState::Quote | FieldState::Closed, byte) if is_blank(byte) => FieldState::Closed,
            (FieldState::Quote | FieldState::Closed, _) => {
                let problem =
                    "text behind the closing quote of a field: write \"\" for a quote in it";
                return malformed(line, problem);
            }
        };
        Ok(())
    }
}

impl<R: Read> RowReader<R> {
    /// Reads rows with fields of at most `max_field_bytes`.
    ///
    /// # Errors
    /// That of the first read.
    pub(crate) fn new(mut input: R, max_field_bytes: usize) -> io::Result<Self> {
        let mut first = Vec::new();
        input.by_ref().take(MARK.len() as u64).read_to_end(&mut first)?;
        if first == MARK {
            first.clear();
        }
        let input = BufReader::with_capacity(1 << 16, Cursor::new(first).chain(input));
        Ok(Self { input, max_field_bytes, line: 1, is_behind_cr: false })
    }

    /// Reads the next row into `row`; `false` at the end of the file.
    pub(crate) fn read(&mut self, row: &mut CsvRow) -> Result<bool, RowError> {
        let mut bytes = std::mem::take(&mut row.text).into_bytes();
        let mut fields = std::mem::take(&mut row.fields);
        bytes.clear();
        fields.clear();
        let place = FieldState::Start { has_blanks: false };
        row.line = self.line;
        let mut open = OpenRow { bytes, fields, place, begin: 0, begin_line: self.line };
        while !self.read_some(&mut open, row)? {}
        if open.fields.is_empty() {
            return Ok(false);
        }
        row.fields = open.fields;
        match String::from_utf8(open.bytes) {
            Ok(text) => row.text = text,
            Err(_) => return malformed(row.line, "not UTF-8 text"),
        }
        // A field may have bytes that are only together with those of the next one a character.
        match row.fields.iter().all(|field| row.text.is_char_boundary(field.end)) {
            true => Ok(true),
            false => malformed(row.line, "not UTF-8 text"),
        }
    }

    /// Continues with the bytes that are there; returns whether the row, or the file, has ended.
    fn read_some(&mut self, open: &mut OpenRow, row: &mut CsvRow) -> Result<bool, RowError> {
        let bytes = match self.input.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if bytes.is_empty() {
            if !open.is_empty() {
                open.end_field(self.line)?;
            }
            return Ok(true);
        }
        let mut used = 0;
        let mut has_ended = false;
        for &byte in bytes {
            used += 1;
            let is_of_cr = std::mem::take(&mut self.is_behind_cr) && byte == b'\n';
            if is_of_cr {
                continue;
            }
            let is_quoted = open.place == FieldState::Quoted;
            match byte {
                b'\n' | b'\r' if !is_quoted => {
                    self.is_behind_cr = byte == b'\r';
                    self.line += 1;
                    if open.is_empty() {
                        (row.line, open.begin_line) = (self.line, self.line);
                        continue;
                    }
                    open.end_field(self.line)?;
                    has_ended = true;
                    break;
                }
                b',' if !is_quoted => open.end_field(self.line)?,
                byte => {
                    open.take(byte, self.line, self.max_field_bytes)?;
                    self.line += u64::from(byte == b'\n');
                }
            }
        }
        self.input.consume(used);
        Ok(has_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time, so that all states meet the ends of buffers.
    struct FewBytesReader<'a>(&'a [u8]);

    impl Read for FewBytesReader<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let most = into.len().min(2);
            self.0.read(&mut into[..most])
        }
    }

    /// A row's line and its fields.
    type Numbered = (u64, Vec<String>);

    /// The rows of `file`, by fields, or the line and the problem of the first bad one.
    fn rows_of(file: &[u8], most: usize) -> Result<Vec<Numbered>, (u64, String)> {
        let mut reader = RowReader::new(FewBytesReader(file), most).unwrap();
        let (mut row, mut rows) = (CsvRow::default(), Vec::new());
        loop {
            match reader.read(&mut row) {
                Ok(true) => rows.push((row.line(), row.iter().map(str::to_owned).collect())),
                Ok(false) => return Ok(rows),
                Err(RowError::Malformed(line, problem)) => return Err((line, problem)),
                Err(RowError::Io(error)) => panic!("{error}"),
            }
        }
    }

    fn fields(file: &str) -> Vec<Vec<String>> {
        rows_of(file.as_bytes(), 100).unwrap().into_iter().map(|(_, fields)| fields).collect()
    }

    fn problem(file: &str) -> (u64, String) {
        rows_of(file.as_bytes(), 100).unwrap_err()
    }

    #[test]
    fn rows_are_what_was_written() {
        assert_eq!(
            fields("a,1\n\n b , 2 \r\nc,3\rd,"),
            [["a", "1"], ["b", "2"], ["c", "3"], ["d", ""]]
        );
        assert_eq!(fields("k2,\" \"\n"), [["k2", " "]]);
        assert_eq!(fields("\"a,\"\"b\"\"\",\"\"\n"), [["a,\"b\"", ""]]);
        // Blanks around quotes.
        assert_eq!(fields("\"b2\", \"vb\"\n"), [["b2", "vb"]]);
        assert_eq!(fields(" \"c3\" \t,vc\n"), [["c3", "vc"]]);
        assert_eq!(fields("\u{feff}\"key\",value\n"), [["key", "value"]]);
        assert_eq!(fields("\u{a0}x\u{a0}"), [["\u{a0}x\u{a0}"]]);
        assert_eq!(fields(""), Vec::<Vec<String>>::new());
        assert_eq!(fields("\n\r\n\n"), Vec::<Vec<String>>::new());
        assert_eq!(fields("\"\""), [[""]]);
        let lines = rows_of(b"a\r\n\"b\nb\"\n\nc", 100).unwrap();
        let lines: Vec<u64> = lines.into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [1, 2, 5]);
    }

    /// An open quote took the rows behind it into its field, and the file ended as if it were
    /// complete: `load` said *2 records* of four rows.
    #[test]
    fn quotes_that_do_not_pair_are_refused_with_their_line() {
        let (line, said) = problem("a,1\nb,\"2\nc,3\nd,4");
        assert_eq!((line, said.as_str()), (2, "a quote is not closed"));
        let (line, said) = problem("a,1\nb,\"2\nc,\"3\nd,4\n");
        assert!(line == 3 && said.contains("behind the closing quote"), "{line} {said}");
        let (line, said) = problem("a,1\nb,2\"\n");
        assert!(line == 2 && said.contains("within a field"), "{line} {said}");
        let (line, said) = problem("\"a\"b,1\n");
        assert!(line == 1 && said.contains("behind the closing quote"), "{line} {said}");
        assert_eq!(problem("\"").1, "a quote is not closed");
    }

    #[test]
    fn blanks_that_were_left_out_are_known() {
        let mut reader = RowReader::new(&b"a, b,c ,  ,\" d \", \"e\" ,\n"[..], 100).unwrap();
        let mut row = CsvRow::default();
        assert!(reader.read(&mut row).unwrap());
        let exact: Vec<Option<&str>> = (0..row.len()).map(|place| row.exact(place)).collect();
        assert_eq!(exact, [Some("a"), None, None, None, Some(" d "), Some("e"), Some("")]);
        assert_eq!(row.iter().collect::<Vec<_>>(), ["a", "b", "c", "", " d ", "e", ""]);
    }

    #[test]
    fn memory_is_bounded() {
        let endless = ["a,1\nb,\"".to_owned(), "x\n".repeat(1000)].concat();
        let (line, said) = problem(&endless);
        assert!(line == 2 && said.contains("more than 100 bytes"), "{line} {said}");
        assert!(said.contains("its quote is not closed"), "{said}");
        let (line, said) = problem(&["k\n", &"x".repeat(101)].concat());
        assert!(line == 2 && said.contains("more than 100 bytes; `load"), "{said}");
        assert_eq!(fields(&"x".repeat(100)).len(), 1);
        let (_, said) = problem(&["x".repeat(90), ",".to_owned()].concat().repeat(9));
        assert!(said.contains("a row has more than 400 bytes"), "{said}");
        let (_, said) = rows_of(&vec![b','; MAX_FIELDS + 2], usize::MAX).unwrap_err();
        assert!(said.contains("more than 65536 fields"), "{said}");
    }

    #[test]
    fn text_is_utf_8() {
        assert_eq!(
            rows_of(b"a,1\n\xff\xfe,1\n", 100).unwrap_err(),
            (2, "not UTF-8 text".to_owned())
        );
        // The bytes of one character in two fields.
        assert_eq!(rows_of(b"\xc3,\xa4\n", 100).unwrap_err().1, "not UTF-8 text");
        assert_eq!(fields("Straße,京"), [["Straße", "京"]]);
    }

    /// What another writer of CSV writes is read as it was, and what its reader reads is read
    /// alike, unless it is refused.
    #[test]
    fn another_writers_rows_are_read_as_they_were() {
        use rand::rngs::Xoshiro256PlusPlus;
        use rand::{RngExt, SeedableRng};
        let mut dice = Xoshiro256PlusPlus::seed_from_u64(7);
        let characters = ['a', 'ß', ',', '"', '\n', '\r', ' ', '\t', '\\'];
        for _ in 0..2_000 {
            let (rows, width) = (dice.random_range(1..5), dice.random_range(1..4));
            let mut written: Vec<Vec<String>> = Vec::new();
            for _ in 0..rows {
                let field = |dice: &mut Xoshiro256PlusPlus| -> String {
                    let length = dice.random_range(0..5);
                    (0..length)
                        .map(|_| characters[dice.random_range(0..characters.len())])
                        .collect()
                };
                written.push((0..width).map(|_| field(&mut dice)).collect());
            }
            let style = ::csv::QuoteStyle::Always;
            let mut writer = ::csv::WriterBuilder::new().quote_style(style).from_writer(Vec::new());
            written.iter().for_each(|row| writer.write_record(row).unwrap());
            let file = String::from_utf8(writer.into_inner().unwrap()).unwrap();
            assert_eq!(fields(&file), written, "{file:?}");
            // Any text: it is read as `csv` reads it, or refused.
            let length = dice.random_range(0..12);
            let text: String =
                (0..length).map(|_| characters[dice.random_range(0..characters.len())]).collect();
            let mut reader = ::csv::ReaderBuilder::new();
            let mut reader = reader.has_headers(false).flexible(true).from_reader(text.as_bytes());
            let theirs: Vec<Vec<String>> = reader
                .records()
                .map(|row| row.unwrap().iter().map(str::to_owned).collect())
                .collect();
            if let Ok(ours) = rows_of(text.as_bytes(), 100) {
                let ours: Vec<Vec<String>> = ours.into_iter().map(|(_, fields)| fields).collect();
                let has_blanks = text.contains([' ', '\t']);
                assert!(has_blanks || ours == theirs, "{text:?}: {ours:?}, not {theirs:?}");
            }
        }
    }
}
