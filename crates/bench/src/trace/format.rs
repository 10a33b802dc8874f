//! The forms of trace files, as data: which column has the key, which the operation, and how
//! operations are called.
//!
//! A form is a list of settings ([`TraceFormat::with`]). [`FORMATS`] names those of public traces;
//! `docs/traces.md` cites where each is described.
//!
//! *Thread safety*: plain values.

use std::str::FromStr;
use thiserror::Error;

/// The named forms: a name, its settings, and what has this form.
pub const FORMATS: [(&str, &str, &str); 13] = [
    (
        "csv",
        "separator=comma,quotes=yes,key=key|lbn,op=op?,read=28|read|get,\
         write=2a|write|set|put|update|insert,remove=delete|remove",
        "a header with a column `key` or `lbn` and perhaps `op`",
    ),
    ("libcachesim-csv", "separator=comma,key=lbn,op=op,read=28,write=2a", "libCacheSim's CSV"),
    ("oracle-general", "record=24,at=4", "libCacheSim's records of 24 bytes"),
    ("msr", "separator=comma,key=5,op=4,read=Read,write=Write", "MSR Cambridge, one volume"),
    ("alibaba", "separator=comma,key=3,volume=1,op=2,read=R,write=W", "Alibaba's block traces"),
    ("tencent", "separator=comma,key=2,volume=5,op=4,read=0,write=1", "Tencent's block traces"),
    (
        "twitter",
        "separator=comma,columns=7,key=2,keys=text,op=6,read=get|gets,\
         write=set|add|replace|cas|append|prepend|incr|decr,remove=delete",
        "Twitter's cache clusters",
    ),
    (
        "meta-kvcache",
        "separator=comma,key=key,keys=hex,op=op,count=op_count,read=GET|GET_LEASE,\
         write=SET|SET_LEASE,remove=DELETE",
        "Meta's key-value cache",
    ),
    ("wikimedia", "separator=tab,key=2,keys=signed", "Wikimedia's cache requests of 2019"),
    (
        "ibm",
        "separator=space,key=3,keys=hex,op=2,\
         read=REST.GET.OBJECT|REST.HEAD.OBJECT|REST.COPY.OBJECT_GET,\
         write=REST.PUT.OBJECT|REST.COPY.OBJECT,remove=REST.DELETE.OBJECT",
        "IBM's object store",
    ),
    (
        "ycsb",
        "separator=words,key=3,keys=digits,op=1,limit=4,read=READ,write=INSERT|UPDATE,\
         remove=DELETE,scan=SCAN,others=skip,ignore=2:-",
        "what YCSB prints with its binding `basic`, and go-ycsb",
    ),
    ("keys", "separator=comma,key=1", "a number on each line"),
    ("words", "separator=comma,columns=1,key=1,keys=text", "a text on each line"),
];

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// By its place, from 0.
    At(usize),
    /// By its name in the header; the first of these that the header has.
    Named(Vec<String>),
}

impl Column {
    fn parse(text: &str) -> Result<Self, String> {
        match text.parse::<usize>() {
            Ok(0) => Err("columns are counted from 1".to_owned()),
            Ok(place) if place > MAX_COLUMNS => Err(format!("there are {MAX_COLUMNS} at most")),
            Ok(place) => Ok(Self::At(place - 1)),
            Err(_) if text.is_empty() => Err("expected a column's name or place".to_owned()),
            Err(_) => Ok(Self::Named(text.split('|').map(str::to_owned).collect())),
        }
    }
}

/// What the text of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceKeyKind {
    /// A whole number.
    Number,
    /// A whole number that may be negative; its order is kept.
    Signed,
    /// Up to 16 hexadecimal digits.
    Hexadecimal,
    /// A whole number after a prefix that has no digits.
    Digits,
    /// Text.
    Text,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceRequest {
    Read,
    Write,
    Remove,
    Scan,
}

/// What separates fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldSeparator {
    /// This byte.
    Byte(u8),
    /// Any white space.
    WhiteSpace,
}

/// The form of a trace file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFormat {
    pub(super) separator: FieldSeparator,
    /// Fields may be in quotes, which are not part of them.
    pub(super) has_quotes: bool,
    /// Length of binary records and the offset of the key in them, a little-endian number.
    pub(super) record: Option<(usize, usize)>,
    pub(super) key: Column,
    pub(super) keys: TraceKeyKind,
    /// The column of operations; without it, all requests are reads.
    pub(super) op: Option<Column>,
    /// A file without the column `op` has reads only.
    pub(super) is_op_optional: bool,
    /// What operations are called. Letters of both cases are alike.
    pub(super) requests: Vec<(String, TraceRequest)>,
    /// Rows with an unknown operation are skipped.
    pub(super) skips_others: bool,
    /// A column that distinguishes equal keys.
    pub(super) volume: Option<Column>,
    /// The column of the number of requests that a row stands for.
    pub(super) count: Option<Column>,
    /// The column of the number of records of a scan.
    pub(super) limit: Option<Column>,
    /// Number of columns. Further separators belong to the key.
    pub(super) columns: Option<usize>,
    /// Rows with this text in this column are skipped.
    pub(super) ignored: Option<(usize, String)>,
}

/// Maximum number of a column, so that a typing error is refused.
const MAX_COLUMNS: usize = 1_000;
/// Limit on the length of binary records.
const MAX_RECORD_BYTES: usize = 4_096;

/// A mistake in the settings of a form.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct FormatError(String);

impl Default for TraceFormat {
    /// The form `csv`.
    fn default() -> Self {
        let (_, settings, _) = FORMATS[0];
        Self::from_settings(settings)
    }
}

impl FromStr for TraceFormat {
    type Err = FormatError;

    /// The form with this name.
    fn from_str(name: &str) -> Result<Self, FormatError> {
        let found = FORMATS.iter().find(|(known, ..)| *known == name);
        match found {
            Some((_, settings, _)) => Ok(Self::from_settings(settings)),
            None => {
                let names: Vec<_> = FORMATS.iter().map(|(name, ..)| *name).collect();
                Err(FormatError(format!("expected one of {}", names.join(", "))))
            }
        }
    }
}

impl TraceFormat {
    fn from_settings(settings: &str) -> Self {
        let empty = Self {
            separator: FieldSeparator::Byte(b','),
            has_quotes: false,
            record: None,
            key: Column::At(0),
            keys: TraceKeyKind::Number,
            op: None,
            is_op_optional: false,
            requests: Vec::new(),
            skips_others: false,
            volume: None,
            count: None,
            limit: None,
            columns: None,
            ignored: None,
        };
        empty.with(settings).expect("the table of forms is sound")
    }

    /// Whether its keys are byte strings, unless they are hashed.
    pub fn has_text(&self) -> bool {
        self.keys == TraceKeyKind::Text
    }

    /// The same form with these settings changed: a list of `SETTING=VALUE`, separated by commas.
    ///
    /// | setting | value |
    /// | --- | --- |
    /// | `key` | the column of keys: its place, from 1, or its name in the header |
    /// | `keys` | what they are: `number`, `signed`, `hex`, `digits` after letters, or `text` |
    /// | `op` | the column of operations; with `?` at its end, a file may lack it |
    /// | `read`, `write`, `remove`, `scan` | what they are called in it, separated by `\|` |
    /// | `others` | `skip` rows with other operations, or `fail` |
    /// | `volume` | a column that distinguishes equal keys |
    /// | `count` | the column of the number of requests that a row stands for |
    /// | `limit` | the column of the number of records of a scan |
    /// | `separator` | `comma`, `tab`, `space`, `words` (any white space), or a character |
    /// | `columns` | the number of columns: further separators belong to the key |
    /// | `quotes` | `yes` if fields may be in quotes, or `no` |
    /// | `ignore` | `COLUMN:TEXT`: skip rows with this text there |
    /// | `record`, `at` | bytes of a binary record, and where its key is, from 0 |
    ///
    /// # Errors
    /// [`FormatError`] about the first setting that is not one of these.
    pub fn with(mut self, settings: &str) -> Result<Self, FormatError> {
        for setting in settings.split(',').map(str::trim) {
            let wrong = |why: String| FormatError(format!("`{setting}`: {why}"));
            let Some((name, value)) = setting.split_once('=') else {
                return Err(wrong("expected SETTING=VALUE, such as key=2".to_owned()));
            };
            self.set(name, value).map_err(wrong)?;
        }
        let offset =
            self.record.map_or(0, |(bytes, at)| at.saturating_add(8).saturating_sub(bytes));
        if offset > 0 {
            return Err(FormatError("the key of 8 bytes is not within a record".to_owned()));
        }
        Ok(self)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = |least: usize, most: usize| {
            let number = value.parse().ok().filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| format!("expected a number from {least} to {most}"))
        };
        let chosen = |choices: [&str; 2]| match value {
            _ if value == choices[0] => Ok(true),
            _ if value == choices[1] => Ok(false),
            _ => Err(format!("expected {} or {}", choices[0], choices[1])),
        };
        match name {
            "key" => self.key = Column::parse(value)?,
            "keys" => {
                self.keys = match value {
                    "number" => TraceKeyKind::Number,
                    "signed" => TraceKeyKind::Signed,
                    "hex" => TraceKeyKind::Hexadecimal,
                    "digits" => TraceKeyKind::Digits,
                    "text" => TraceKeyKind::Text,
                    _ => return Err("expected number, signed, hex, digits or text".to_owned()),
                }
            }
            "op" => {
                let named = value.strip_suffix('?');
                self.op = Some(Column::parse(named.unwrap_or(value))?);
                self.is_op_optional = named.is_some();
            }
            "read" => self.call(TraceRequest::Read, value)?,
            "write" => self.call(TraceRequest::Write, value)?,
            "remove" => self.call(TraceRequest::Remove, value)?,
            "scan" => self.call(TraceRequest::Scan, value)?,
            "others" => self.skips_others = chosen(["skip", "fail"])?,
            "volume" => self.volume = Some(Column::parse(value)?),
            "count" => self.count = Some(Column::parse(value)?),
            "limit" => self.limit = Some(Column::parse(value)?),
            "separator" => {
                self.separator = match (value, value.as_bytes()) {
                    ("comma", _) => FieldSeparator::Byte(b','),
                    ("tab", _) => FieldSeparator::Byte(b'\t'),
                    ("space", _) => FieldSeparator::Byte(b' '),
                    ("words", _) => FieldSeparator::WhiteSpace,
                    (_, [byte]) if byte.is_ascii_punctuation() => FieldSeparator::Byte(*byte),
                    _ => return Err("expected comma, tab, space, words or a character".to_owned()),
                }
            }
            "columns" => self.columns = Some(number(1, MAX_COLUMNS)?),
            "quotes" => self.has_quotes = chosen(["yes", "no"])?,
            "ignore" => {
                let (place, text) = value.split_once(':').unwrap_or((value, ""));
                let Column::At(place) = Column::parse(place)? else {
                    return Err("expected a column's place, from 1, and a text: 2:-".to_owned());
                };
                self.ignored = Some((place, text.to_owned()));
            }
            "record" => self.record = Some((number(8, MAX_RECORD_BYTES)?, 0)),
            "at" => {
                let at = number(0, MAX_RECORD_BYTES - 8)?;
                let record = self.record.as_mut().ok_or("it needs a record's length before it")?;
                record.1 = at;
            }
            _ => {
                return Err("expected key, keys, op, read, write, remove, scan, others, volume, \
                            count, limit, separator, columns, quotes, ignore, record or at"
                    .to_owned());
            }
        }
        Ok(())
    }

    /// Gives a request these names, separated by `|`, instead of those that it has.
    fn call(&mut self, request: TraceRequest, names: &str) -> Result<(), String> {
        if names.split('|').any(str::is_empty) {
            return Err("expected what it is called".to_owned());
        }
        self.requests.retain(|(_, other)| *other != request);
        self.requests.extend(names.split('|').map(|name| (name.to_owned(), request)));
        Ok(())
    }

    /// What `text` asks for.
    pub(super) fn request(&self, text: &[u8]) -> Option<TraceRequest> {
        let is_it = |name: &str| name.as_bytes().eq_ignore_ascii_case(text);
        self.requests.iter().find(|(name, _)| is_it(name)).map(|(_, request)| *request)
    }

    /// The names of all requests, for an error message.
    pub(super) fn expected(&self) -> String {
        let of = |request: TraceRequest, what: &str| {
            let names = self.requests.iter().filter(|(_, found)| *found == request);
            let names: Vec<_> = names.map(|(name, _)| format!("`{name}`")).collect();
            (!names.is_empty()).then(|| format!("{} for a {what}", names.join(" or ")))
        };
        let all = [
            of(TraceRequest::Read, "read"),
            of(TraceRequest::Write, "write"),
            of(TraceRequest::Remove, "removal"),
            of(TraceRequest::Scan, "scan"),
        ];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_form_is_sound() {
        for (name, settings, what) in FORMATS {
            let format: TraceFormat = name.parse().unwrap();
            assert_eq!(format, TraceFormat::from_settings(settings));
            assert!(
                !what.is_empty() && (format.op.is_none() == format.requests.is_empty()),
                "{name}"
            );
        }
        assert!("CSV".parse::<TraceFormat>().unwrap_err().to_string().contains("oracle-general"));
    }

    #[test]
    fn settings_change_a_form() {
        let format = TraceFormat::default();
        let own = format.clone().with("key=5, op=4,read=Read,write=Write|Flush").unwrap();
        assert_eq!((own.key.clone(), own.op.clone()), (Column::At(4), Some(Column::At(3))));
        assert_eq!(own.request(b"READ"), Some(TraceRequest::Read));
        assert_eq!(own.request(b"flush"), Some(TraceRequest::Write));
        assert_eq!(
            (own.request(b"28"), own.request(b"delete")),
            (None, Some(TraceRequest::Remove))
        );
        assert_eq!(
            own.expected(),
            "`Read` for a read, `Write` or `Flush` for a write, `delete` or `remove` for a removal"
        );
        for (wrong, why) in [
            ("", "expected SETTING=VALUE"),
            ("key", "expected SETTING=VALUE"),
            ("key=0", "counted from 1"),
            ("key=1001", "1000 at most"),
            ("key=", "expected a column's name"),
            ("keys=base64", "expected number, signed, hex"),
            ("read=", "expected what it is called"),
            ("read=a||b", "expected what it is called"),
            ("separator=ab", "expected comma, tab"),
            ("separator=a", "expected comma, tab"),
            ("quotes=maybe", "expected yes or no"),
            ("others=drop", "expected skip or fail"),
            ("columns=0", "from 1 to 1000"),
            ("ignore=x", "expected a column's place"),
            ("record=7", "from 8 to 4096"),
            ("at=4", "needs a record's length"),
            ("record=24,at=17", "not within a record"),
            ("colour=red", "expected key, keys, op"),
        ] {
            let error = format.clone().with(wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
