//! Reads the requests of a trace file by its form.
//!
//! *Thread safety*: plain values.

use super::format::{Column, FieldSeparator, TraceFormat, TraceKeyKind, TraceRequest};
use crate::InputError;
use crate::columns::{lines, shortened};
use crate::content;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// At the start of text files of some programs.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Bits of a key below its volume's.
const KEY_BITS: u32 = 48;

/// A key as it is in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TraceKey {
    Number(u64),
    Text(Vec<u8>),
}

/// A row or record of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TraceRow {
    pub(super) request: TraceRequest,
    pub(super) key: TraceKey,
    /// Number of records, of a scan.
    pub(super) limit: u32,
    /// Number of equal requests that it stands for.
    pub(super) count: u64,
}

/// How keys are taken from a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceKeyFormat {
    pub(super) kind: TraceKeyKind,
    /// Replaces each key by a hash of its text.
    pub(super) hashed: bool,
}

/// The places of a form's columns in a file.
#[derive(Debug)]
struct ColumnPositions {
    key: usize,
    op: Option<usize>,
    volume: Option<usize>,
    count: Option<usize>,
    limit: Option<usize>,
}

/// What a file turned out to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TraceShape {
    /// It lacks the column of operations, and its form lets it.
    pub(super) lacks_operations: bool,
    /// Whether its first row is a header; `None` if it has no rows.
    pub(super) has_header: Option<bool>,
}

/// Passes the rows of a file to `take` until that returns `false`.
pub(super) fn read(
    path: &Path,
    format: &TraceFormat,
    keys: TraceKeyFormat,
    mut take: impl FnMut(TraceRow) -> bool,
) -> Result<TraceShape, InputError> {
    match format.record {
        Some(record) => read_records(path, record, keys, &mut take),
        None => read_lines(path, format, keys, &mut take),
    }
}

fn read_records(
    path: &Path,
    (bytes, at): (usize, usize),
    keys: TraceKeyFormat,
    take: &mut dyn FnMut(TraceRow) -> bool,
) -> Result<TraceShape, InputError> {
    let (path, mut content) = content::open(path)?;
    let mut record = vec![0; bytes];
    for number in 1_u64.. {
        let mut filled = 0;
        while filled < bytes {
            match content.read(&mut record[filled..]) {
                Ok(0) if filled == 0 => return Ok(TraceShape::default()),
                Ok(0) => {
                    let problem = format!("the file ends after {filled} of its {bytes} bytes");
                    return Err(InputError::BadRecord { path, record: number, problem });
                }
                Ok(read) => filled += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => return Err(InputError::Read { path, source }),
            }
        }
        let key = &record[at..at + 8];
        let key = match keys.hashed {
            true => TraceKey::Number(xxh3_64(key)),
            false => TraceKey::Number(u64::from_le_bytes(key.try_into().expect("eight bytes"))),
        };
        if !take(TraceRow { request: TraceRequest::Read, key, limit: 0, count: 1 }) {
            break;
        }
    }
    Ok(TraceShape::default())
}

fn read_lines(
    path: &Path,
    format: &TraceFormat,
    keys: TraceKeyFormat,
    take: &mut dyn FnMut(TraceRow) -> bool,
) -> Result<TraceShape, InputError> {
    let mut lines = lines(path)?;
    let path = lines.path().to_owned();
    let mut shape = TraceShape::default();
    let mut places: Option<ColumnPositions> = None;
    let mut fields = Vec::new();
    while let Some((number, line)) = lines.next_line()? {
        let bad = |problem| InputError::BadRow { path: path.clone(), line: number, problem };
        let line =
            if number == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line };
        split(line, format, &mut fields).map_err(bad)?;
        if fields.is_empty() {
            continue;
        }
        let row = Fields { line, fields: &fields };
        let known = match &places {
            Some(known) => known,
            None => {
                let (found, has_names) = ColumnPositions::find(&row, format, &path)?;
                shape.lacks_operations = format.is_op_optional && found.op.is_none();
                let is_header = has_names || found.is_header(&row, format, keys);
                shape.has_header = Some(is_header);
                let found = &*places.insert(found);
                if is_header {
                    continue;
                }
                found
            }
        };
        if let Some(request) = known.request(&row, format, keys).map_err(bad)?
            && !take(request)
        {
            break;
        }
    }
    Ok(shape)
}

/// Finds the fields of a line; none in an empty one. Separators above the form's number of columns
/// belong to the key.
fn split(line: &[u8], format: &TraceFormat, fields: &mut Vec<Range<usize>>) -> Result<(), String> {
    fields.clear();
    if line.is_empty() {
        return Ok(());
    }
    match format.separator {
        FieldSeparator::WhiteSpace => {
            let mut at = 0;
            for word in line.split(u8::is_ascii_whitespace) {
                if !word.is_empty() {
                    fields.push(at..at + word.len());
                }
                at += word.len() + 1;
            }
        }
        FieldSeparator::Byte(separator) => {
            let mut at = 0;
            for field in line.split(|byte| *byte == separator) {
                fields.push(at..at + field.len());
                at += field.len() + 1;
            }
        }
    }
    if let (Some(columns), Column::At(key)) = (format.columns, &format.key)
        && fields.len() > columns
        && *key < columns
    {
        let last = *key + fields.len() - columns;
        fields[*key].end = fields[last].end;
        fields.drain(*key + 1..=last);
    }
    if format.has_quotes {
        for field in fields {
            let text = &line[field.clone()];
            let opens = text.first() == Some(&b'"');
            if opens && (text.len() < 2 || text.last() != Some(&b'"')) {
                return Err("a separator within quotes, which a trace may not have".to_owned());
            }
            if opens {
                *field = field.start + 1..field.end - 1;
            }
        }
    }
    Ok(())
}

/// The fields of a line.
struct Fields<'a> {
    line: &'a [u8],
    fields: &'a [Range<usize>],
}

impl<'a> Fields<'a> {
    fn get(&self, place: usize) -> Result<&'a [u8], String> {
        let field = self.fields.get(place).ok_or_else(|| {
            format!("there are {} columns, expected at least {}", self.fields.len(), place + 1)
        })?;
        Ok(self.line[field.clone()].trim_ascii())
    }

    fn all(&self) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().map(|field| self.line[field.clone()].trim_ascii())
    }

    fn has_number(&self) -> bool {
        self.all().any(|field| parsed::<f64>(field).is_some())
    }
}

/// A field's text for an error message.
fn shown(field: &[u8]) -> String {
    shortened(&String::from_utf8_lossy(field))
}

fn parsed<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

impl ColumnPositions {
    /// Finds the columns by the first row. Returns whether it is a header: it is if it has a column
    /// that the form names.
    fn find(
        row: &Fields<'_>,
        format: &TraceFormat,
        path: &Path,
    ) -> Result<(Self, bool), InputError> {
        let mut is_header = false;
        let mut find = |column: &Column| match column {
            Column::At(place) => Ok(*place),
            Column::Named(names) => {
                let place = |name: &String| row.all().position(|found| found == name.as_bytes());
                let place = names.iter().find_map(place);
                is_header |= place.is_some();
                place.ok_or_else(|| names.join("` or `"))
            }
        };
        let missing = |column: String| InputError::NoColumn {
            path: path.to_owned(),
            column,
            columns: crate::columns::shown_fields(row.all().map(shown)),
        };
        let key = find(&format.key).map_err(missing)?;
        let op = match &format.op {
            Some(op) if format.is_op_optional => find(op).ok(),
            op => op.as_ref().map(&mut find).transpose().map_err(missing)?,
        };
        let mut other =
            |column: &Option<Column>| column.as_ref().map(&mut find).transpose().map_err(missing);
        let (volume, count) = (other(&format.volume)?, other(&format.count)?);
        let limit = other(&format.limit)?;
        Ok((Self { key, op, volume, count, limit }, is_header))
    }

    /// Whether the first row is a header, if it has none of the columns that the form names: it is
    /// not a request, names no operation and has no number.
    fn is_header(&self, row: &Fields<'_>, format: &TraceFormat, keys: TraceKeyFormat) -> bool {
        let op = self.op.and_then(|place| row.get(place).ok());
        self.request(row, format, keys).is_err()
            && op.is_none_or(|field| format.request(field).is_none())
            && !row.has_number()
    }

    /// The request of a row; `None` if the form skips it.
    fn request(
        &self,
        row: &Fields<'_>,
        format: &TraceFormat,
        keys: TraceKeyFormat,
    ) -> Result<Option<TraceRow>, String> {
        if let Some((place, text)) = &format.ignored
            && row.get(*place).is_ok_and(|field| field == text.as_bytes())
        {
            return Ok(None);
        }
        let request = match self.op {
            None => TraceRequest::Read,
            Some(op) => {
                let found = row.get(op);
                match found.as_ref().map(|field| format.request(field)) {
                    Ok(Some(request)) => request,
                    _ if format.skips_others => return Ok(None),
                    _ => {
                        let (found, expected) = (shown(found?), format.expected());
                        let column = self.named(&format.op, op);
                        return Err(format!("column `{column}` is `{found}`, expected {expected}"));
                    }
                }
            }
        };
        let volume = match self.volume {
            Some(place) => Some(row.get(place)?),
            None => None,
        };
        let limit = match (request, self.limit) {
            (TraceRequest::Scan, Some(place)) => {
                let field = row.get(place).unwrap_or_default();
                let limit = parsed(field);
                limit.ok_or_else(|| {
                    format!("expected a number of records, found `{}`", shown(field))
                })?
            }
            _ => 1,
        };
        let count = match self.count {
            Some(place) => {
                let (field, column) = (row.get(place)?, self.named(&format.count, place));
                parsed(field).ok_or_else(|| {
                    format!("column `{column}` is `{}`, expected a whole number", shown(field))
                })?
            }
            None => 1,
        };
        let field = row.get(self.key)?;
        let key = keys.key(field, volume).map_err(|expected| {
            let column = self.named(&Some(format.key.clone()), self.key);
            format!("column `{column}` is `{}`, expected {expected}", shown(field))
        })?;
        Ok(Some(TraceRow { request, key, limit, count }))
    }

    /// A column's name for an error message.
    fn named(&self, column: &Option<Column>, place: usize) -> String {
        match column {
            Some(Column::Named(names)) if names.len() == 1 => names[0].clone(),
            _ => (place + 1).to_string(),
        }
    }
}

impl TraceKeyFormat {
    /// The key that a field is, or what was expected.
    fn key(self, field: &[u8], volume: Option<&[u8]>) -> Result<TraceKey, String> {
        // Whatever is hashed, a header of a column of numbers is no request.
        if self.kind == TraceKeyKind::Signed && parsed::<i64>(field).is_none() {
            return Err("a whole number of 64 bits".to_owned());
        }
        if self.hashed || self.kind == TraceKeyKind::Text {
            let text = match volume {
                Some(volume) => [volume, b":", field].concat(),
                None => field.to_vec(),
            };
            if field.is_empty() {
                return Err("a key".to_owned());
            }
            return Ok(match self.hashed {
                true => TraceKey::Number(xxh3_64(&text)),
                false => TraceKey::Text(text),
            });
        }
        let number = match self.kind {
            TraceKeyKind::Signed => parsed::<i64>(field).map(|key| (key as u64) ^ (1 << 63)),
            TraceKeyKind::Hexadecimal => std::str::from_utf8(field).ok().and_then(|text| {
                let digits = text.strip_prefix("0x").unwrap_or(text);
                let is_plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                u64::from_str_radix(digits, 16).ok().filter(|_| is_plain)
            }),
            TraceKeyKind::Digits => {
                let letters = field.iter().take_while(|byte| !byte.is_ascii_digit()).count();
                parsed(&field[letters..])
            }
            _ => parsed(field),
        };
        let expected = match self.kind {
            TraceKeyKind::Signed => "a whole number of 64 bits",
            TraceKeyKind::Hexadecimal => "up to 16 hexadecimal digits; --hash-keys takes any text",
            TraceKeyKind::Digits => "a key such as user42",
            _ => "a whole number below 2^64; --hash-keys takes any text",
        };
        let number = number.ok_or(expected)?;
        let Some(volume) = volume else { return Ok(TraceKey::Number(number)) };
        let fits = number >> KEY_BITS == 0;
        let volume: u16 = parsed(volume).filter(|_| fits).ok_or_else(|| {
            format!("a number below 2^{KEY_BITS} of a volume below 2^16; --hash-keys takes any")
        })?;
        Ok(TraceKey::Number(u64::from(volume) << KEY_BITS | number))
    }
}
