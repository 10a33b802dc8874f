//! Commands as values, and how their words are parsed.
//!
//! What is not understood completely is refused, and nothing is done: an option is never ignored.
//!
//! *Thread safety*: plain values.

use crate::glob;
use crate::number::{self, DecimalNumber};
use crate::reply::{RespReply, RespVersion};
use crate::store::StoreRange;
use smallvec::SmallVec;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Bound;

/// A parsed command, or the reply that refuses it.
pub(crate) type ParsedCommand = Result<RespCommand, RespReply>;

/// A command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RespCommand {
    /// Runs on the store.
    Store(StoreCommand),
    /// As [`RespCommand::Store`], on the index of this name.
    OfIndex(Vec<u8>, StoreCommand),
    /// Concerns the connection or the server.
    Connection(ConnectionCommand),
    /// Has always this reply.
    Reply(RespReply),
}

/// When SET sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetCondition {
    Always,
    IfAbsent,
    IfPresent,
    IfEqual(Vec<u8>),
}

/// What a command that sets a key replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAnswer {
    /// OK, or nothing if the condition was not met.
    Done,
    /// 1 or 0.
    Flag,
    /// The value before.
    Former,
}

/// What RI.SCAN and RI.RANGE return of each record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordFields {
    Key,
    Value,
    #[default]
    Both,
}

/// A command that runs on the store.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreCommand {
    Get(Vec<u8>),
    Set { key: Vec<u8>, value: Vec<u8>, condition: SetCondition, answer: SetAnswer },
    Remove(Vec<Vec<u8>>),
    Exists(Vec<Vec<u8>>),
    Length(Vec<u8>),
    GetRange { key: Vec<u8>, start: i64, end: i64 },
    SetRange { key: Vec<u8>, offset: usize, piece: Vec<u8> },
    Append { key: Vec<u8>, piece: Vec<u8> },
    GetBit { key: Vec<u8>, at: usize },
    SetBit { key: Vec<u8>, at: usize, is_set: bool },
    Increment { key: Vec<u8>, by: i64 },
    IncrementDecimal { key: Vec<u8>, by: DecimalNumber },
    GetMany(Vec<Vec<u8>>),
    SetMany(Vec<(Vec<u8>, Vec<u8>)>),
    Type(Vec<u8>),
    TimeToLive(Vec<u8>),
    Scan { cursor: u64, pattern: Option<Vec<u8>>, count: usize, has_strings: bool },
    Keys(Vec<u8>),
    Count { is_exact: bool },
    Clear,
    Time,
    Range { range: StoreRange, limit: usize, fields: RecordFields },
    RangeCount(StoreRange),
    RangeRemove { range: StoreRange, limit: usize },
}

/// What else may run at the same time for the same connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyAccess {
    /// Everything.
    Free,
    /// Commands without these keys, which are hashed: two keys with one hash only wait needlessly.
    Keys(SmallVec<[u64; 4]>),
    /// Nothing.
    Exclusive,
}

fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl StoreCommand {
    /// The keys that it concerns.
    pub(crate) fn access(&self) -> KeyAccess {
        let keys = match self {
            Self::Get(key)
            | Self::Set { key, .. }
            | Self::Length(key)
            | Self::GetRange { key, .. }
            | Self::SetRange { key, .. }
            | Self::Append { key, .. }
            | Self::GetBit { key, .. }
            | Self::SetBit { key, .. }
            | Self::Increment { key, .. }
            | Self::IncrementDecimal { key, .. }
            | Self::Type(key)
            | Self::TimeToLive(key) => SmallVec::from_slice(&[hash(key)]),
            Self::Remove(keys) | Self::Exists(keys) | Self::GetMany(keys) => {
                keys.iter().map(|key| hash(key)).collect()
            }
            Self::SetMany(records) => records.iter().map(|(key, _)| hash(key)).collect(),
            Self::Time => return KeyAccess::Free,
            Self::Scan { .. }
            | Self::Keys(_)
            | Self::Count { .. }
            | Self::Clear
            | Self::Range { .. }
            | Self::RangeCount(_)
            | Self::RangeRemove { .. } => return KeyAccess::Exclusive,
        };
        KeyAccess::Keys(keys)
    }
}

/// A command about the connection or the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionCommand {
    Hello {
        version: Option<RespVersion>,
        password: Option<(Vec<u8>, Vec<u8>)>,
        name: Option<Vec<u8>>,
    },
    Auth {
        user: Vec<u8>,
        password: Vec<u8>,
    },
    ClientId,
    ClientName(Vec<u8>),
    ClientGetName,
    ClientLibrary {
        attribute: Vec<u8>,
        value: Vec<u8>,
    },
    ClientInfo,
    ClientList,
    Info(Vec<Vec<u8>>),
    ConfigGet(Vec<Vec<u8>>),
    CommandList,
    CommandCount,
    CommandInfo(Vec<Vec<u8>>),
    CommandDocs(Vec<Vec<u8>>),
    CommandNames,
    IndexExists(Vec<u8>),
    Reset,
    Quit,
}

/// The words behind a command's name. Their number has been checked against the table.
#[derive(Debug)]
pub(crate) struct CommandWords {
    name: &'static str,
    rest: std::vec::IntoIter<Vec<u8>>,
}

impl CommandWords {
    /// The words of a command whose name in the table is `name`.
    pub(crate) fn new(name: &'static str, words: Vec<Vec<u8>>) -> Self {
        let mut rest = words.into_iter();
        rest.next();
        Self { name, rest }
    }

    fn take(&mut self) -> Vec<u8> {
        self.rest.next().unwrap_or_default()
    }

    /// The next word as an option's name.
    fn option(&mut self) -> Option<String> {
        self.rest.next().map(|word| upper(&word))
    }

    fn required(&mut self) -> Result<Vec<u8>, RespReply> {
        self.rest.next().ok_or_else(syntax)
    }

    fn integer(&mut self) -> Result<i64, RespReply> {
        let word = self.required()?;
        number::integer(&word)
            .ok_or_else(|| RespReply::error("value is not an integer or out of range"))
    }

    /// A number of records.
    fn limit(&mut self) -> Result<usize, RespReply> {
        let limit = self.integer()?;
        let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0);
        limit.ok_or_else(|| RespReply::error("value is out of range, must be positive"))
    }

    fn end(mut self, command: StoreCommand) -> ParsedCommand {
        match self.rest.next() {
            None => Ok(RespCommand::Store(command)),
            Some(_) => Err(syntax()),
        }
    }

    fn all(self) -> Vec<Vec<u8>> {
        self.rest.collect()
    }
}

/// A word in upper case, for comparisons. Bytes that are no text are kept as marks.
pub(crate) fn upper(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_ascii_uppercase()
}

fn syntax() -> RespReply {
    RespReply::error("syntax error")
}

fn no_expiry(option: &str) -> RespReply {
    RespReply::error(format!("this cluster has no expiry: {option} is refused, nothing was done"))
}

fn wrong_number(name: &str) -> RespReply {
    RespReply::error(format!(
        "wrong number of arguments for '{}' command",
        name.to_ascii_lowercase()
    ))
}

const EXPIRY_OPTIONS: [&str; 4] = ["EX", "PX", "EXAT", "PXAT"];

pub(crate) fn get(mut words: CommandWords) -> ParsedCommand {
    let key = words.take();
    words.end(StoreCommand::Get(key))
}

pub(crate) fn set(mut words: CommandWords) -> ParsedCommand {
    let (key, value) = (words.take(), words.take());
    let (mut condition, mut answer) = (SetCondition::Always, SetAnswer::Done);
    while let Some(option) = words.option() {
        let is_free = condition == SetCondition::Always;
        match option.as_str() {
            "NX" if is_free => condition = SetCondition::IfAbsent,
            "XX" if is_free => condition = SetCondition::IfPresent,
            "IFEQ" if is_free => condition = SetCondition::IfEqual(words.required()?),
            "GET" => answer = SetAnswer::Former,
            // No key has a time to live.
            "KEEPTTL" => {}
            expiry if EXPIRY_OPTIONS.contains(&expiry) => return Err(no_expiry(expiry)),
            "IFNE" | "IFDEQ" | "IFDNE" => {
                return Err(RespReply::error(format!("SET {option} is refused")));
            }
            _ => return Err(syntax()),
        }
    }
    Ok(RespCommand::Store(StoreCommand::Set { key, value, condition, answer }))
}

pub(crate) fn set_absent(mut words: CommandWords) -> ParsedCommand {
    let (key, value) = (words.take(), words.take());
    let (condition, answer) = (SetCondition::IfAbsent, SetAnswer::Flag);
    words.end(StoreCommand::Set { key, value, condition, answer })
}

pub(crate) fn get_set(mut words: CommandWords) -> ParsedCommand {
    let (key, value) = (words.take(), words.take());
    let (condition, answer) = (SetCondition::Always, SetAnswer::Former);
    words.end(StoreCommand::Set { key, value, condition, answer })
}

/// GETEX without a time is GET.
pub(crate) fn get_expire(mut words: CommandWords) -> ParsedCommand {
    let key = words.take();
    match words.option() {
        None => {}
        Some(option) if option == "PERSIST" => {}
        Some(option) if EXPIRY_OPTIONS.contains(&option.as_str()) => {
            return Err(no_expiry(&option));
        }
        Some(_) => return Err(syntax()),
    }
    words.end(StoreCommand::Get(key))
}

pub(crate) fn remove(words: CommandWords) -> ParsedCommand {
    Ok(RespCommand::Store(StoreCommand::Remove(words.all())))
}

pub(crate) fn exists(words: CommandWords) -> ParsedCommand {
    Ok(RespCommand::Store(StoreCommand::Exists(words.all())))
}

pub(crate) fn length(mut words: CommandWords) -> ParsedCommand {
    let key = words.take();
    words.end(StoreCommand::Length(key))
}

pub(crate) fn get_range(mut words: CommandWords) -> ParsedCommand {
    let key = words.take();
    let (start, end) = (words.integer()?, words.integer()?);
    words.end(StoreCommand::GetRange { key, start, end })
}

pub(crate) fn set_range(mut words: CommandWords) -> ParsedCommand {
    let (key, offset) = (words.take(), words.integer()?);
    let offset = usize::try_from(offset).map_err(|_| RespReply::error("offset is out of range"))?;
    let piece = words.take();
    words.end(StoreCommand::SetRange { key, offset, piece })
}

/// The number of a bit, below that of the largest value of Redis.
fn bit(word: &[u8]) -> Result<usize, RespReply> {
    let at = number::integer(word).and_then(|at| usize::try_from(at).ok());
    at.filter(|at| *at < 1 << 32)
        .ok_or_else(|| RespReply::error("bit offset is not an integer or out of range"))
}

pub(crate) fn get_bit(mut words: CommandWords) -> ParsedCommand {
    let (key, at) = (words.take(), bit(&words.take())?);
    words.end(StoreCommand::GetBit { key, at })
}

pub(crate) fn set_bit(mut words: CommandWords) -> ParsedCommand {
    let (key, at) = (words.take(), bit(&words.take())?);
    let is_set = match words.take().as_slice() {
        b"0" => false,
        b"1" => true,
        _ => return Err(RespReply::error("bit is not an integer or out of range")),
    };
    words.end(StoreCommand::SetBit { key, at, is_set })
}

pub(crate) fn append(mut words: CommandWords) -> ParsedCommand {
    let (key, piece) = (words.take(), words.take());
    words.end(StoreCommand::Append { key, piece })
}

pub(crate) fn increment(mut words: CommandWords) -> ParsedCommand {
    let key = words.take();
    words.end(StoreCommand::Increment { key, by: 1 })
}

pub(crate) fn decrement(mut words: CommandWords) -> ParsedCommand {
    let key = words.take();
    words.end(StoreCommand::Increment { key, by: -1 })
}

pub(crate) fn increment_by(mut words: CommandWords) -> ParsedCommand {
    let (key, by) = (words.take(), words.integer()?);
    words.end(StoreCommand::Increment { key, by })
}

pub(crate) fn decrement_by(mut words: CommandWords) -> ParsedCommand {
    let (key, by) = (words.take(), words.integer()?);
    let by = by.checked_neg().ok_or_else(|| RespReply::error("decrement would overflow"))?;
    words.end(StoreCommand::Increment { key, by })
}

pub(crate) fn increment_decimal(mut words: CommandWords) -> ParsedCommand {
    let (key, by) = (words.take(), words.take());
    let by = DecimalNumber::parse(&by);
    let by = by.ok_or_else(|| RespReply::error("value is not a valid float"))?;
    words.end(StoreCommand::IncrementDecimal { key, by })
}

pub(crate) fn get_many(words: CommandWords) -> ParsedCommand {
    Ok(RespCommand::Store(StoreCommand::GetMany(words.all())))
}

pub(crate) fn set_many(mut words: CommandWords) -> ParsedCommand {
    let mut records = Vec::new();
    while let Some(key) = words.rest.next() {
        let value = words.rest.next().ok_or_else(|| wrong_number(words.name))?;
        records.push((key, value));
    }
    Ok(RespCommand::Store(StoreCommand::SetMany(records)))
}

pub(crate) fn type_of(mut words: CommandWords) -> ParsedCommand {
    let key = words.take();
    words.end(StoreCommand::Type(key))
}

pub(crate) fn time_to_live(mut words: CommandWords) -> ParsedCommand {
    let key = words.take();
    words.end(StoreCommand::TimeToLive(key))
}

pub(crate) fn persist(_words: CommandWords) -> ParsedCommand {
    Ok(RespCommand::Reply(RespReply::Integer(0)))
}

/// How many records a page of SCAN has by default, and at most.
const SCAN_COUNT: usize = 10;
const MAX_SCAN_COUNT: usize = 10_000;

pub(crate) fn scan(mut words: CommandWords) -> ParsedCommand {
    let cursor = number::cursor(&words.take());
    let cursor = cursor.ok_or_else(|| RespReply::error("invalid cursor"))?;
    let (mut pattern, mut count, mut has_strings) = (None, SCAN_COUNT, true);
    while let Some(option) = words.option() {
        match option.as_str() {
            "MATCH" => pattern = Some(glob::checked(words.required()?)?),
            "COUNT" => match words.integer()? {
                limit @ 1.. => count = usize::try_from(limit).unwrap_or(MAX_SCAN_COUNT),
                _ => return Err(syntax()),
            },
            "TYPE" => has_strings = upper(&words.required()?) == "STRING",
            _ => return Err(syntax()),
        }
    }
    let count = count.min(MAX_SCAN_COUNT);
    Ok(RespCommand::Store(StoreCommand::Scan { cursor, pattern, count, has_strings }))
}

pub(crate) fn keys(mut words: CommandWords) -> ParsedCommand {
    let pattern = glob::checked(words.take())?;
    words.end(StoreCommand::Keys(pattern))
}

pub(crate) fn count(mut words: CommandWords) -> ParsedCommand {
    let is_exact = match words.option() {
        None => false,
        Some(option) if option == "SCAN" => true,
        Some(_) => return Err(syntax()),
    };
    words.end(StoreCommand::Count { is_exact })
}

pub(crate) fn clear(mut words: CommandWords) -> ParsedCommand {
    // Both are done before the reply.
    match words.option().as_deref() {
        None | Some("SYNC" | "ASYNC") => words.end(StoreCommand::Clear),
        Some(_) => Err(syntax()),
    }
}

pub(crate) fn time(words: CommandWords) -> ParsedCommand {
    words.end(StoreCommand::Time)
}

pub(crate) fn index_set(mut words: CommandWords) -> ParsedCommand {
    let (index, key, value) = (words.take(), words.take(), words.take());
    let (condition, answer) = (SetCondition::Always, SetAnswer::Done);
    of_index(index, StoreCommand::Set { key, value, condition, answer })
}

pub(crate) fn index_get(mut words: CommandWords) -> ParsedCommand {
    of_index(words.take(), StoreCommand::Get(words.take()))
}

pub(crate) fn index_remove(mut words: CommandWords) -> ParsedCommand {
    of_index(words.take(), StoreCommand::Remove(words.all()))
}

pub(crate) fn index_exists(mut words: CommandWords) -> ParsedCommand {
    let index = words.take();
    match words.all() {
        keys if keys.is_empty() => connection(ConnectionCommand::IndexExists(index)),
        keys if keys.len() == 1 => of_index(index, StoreCommand::Exists(keys)),
        _ => Err(wrong_number("RI.EXISTS")),
    }
}

fn of_index(index: Vec<u8>, command: StoreCommand) -> ParsedCommand {
    Ok(RespCommand::OfIndex(index, command))
}

/// The options of the commands on ranges.
#[derive(Default)]
struct RangeOptions {
    limit: Option<usize>,
    fields: RecordFields,
    is_reverse: bool,
    end: Option<Vec<u8>>,
    is_start_open: bool,
    is_end_open: bool,
}

impl RangeOptions {
    /// Parses those that `name` has.
    fn parse(words: &mut CommandWords, allowed: &[&str]) -> Result<Self, RespReply> {
        let mut options = Self::default();
        while let Some(option) = words.option() {
            if !allowed.contains(&option.as_str()) {
                return Err(syntax());
            }
            match option.as_str() {
                "COUNT" | "LIMIT" => options.limit = Some(words.limit()?),
                "FIELDS" => {
                    options.fields = match words.option().as_deref() {
                        Some("KEY") => RecordFields::Key,
                        Some("VALUE") => RecordFields::Value,
                        Some("BOTH") => RecordFields::Both,
                        _ => return Err(syntax()),
                    }
                }
                "REV" => options.is_reverse = true,
                "END" => options.end = Some(words.required()?),
                _ => match words.option().as_deref() {
                    Some("START") => options.is_start_open = true,
                    Some("END") => options.is_end_open = true,
                    Some("BOTH") => (options.is_start_open, options.is_end_open) = (true, true),
                    _ => return Err(syntax()),
                },
            }
        }
        Ok(options)
    }

    /// The lower bound. An empty word sets none, but an open one leaves out the empty key.
    fn lower(key: Vec<u8>, is_open: bool) -> Bound<Vec<u8>> {
        match key {
            key if is_open => Bound::Excluded(key),
            key if key.is_empty() => Bound::Unbounded,
            key => Bound::Included(key),
        }
    }

    /// The upper bound. An empty word sets none, unless the page before, downwards, has ended with
    /// the empty key.
    fn upper(key: Vec<u8>, is_open: bool, is_reverse: bool) -> Bound<Vec<u8>> {
        match key {
            key if key.is_empty() && !(is_open && is_reverse) => Bound::Unbounded,
            key if is_open => Bound::Excluded(key),
            key => Bound::Included(key),
        }
    }
}

/// The index and the range between two words, of which the second is not before the first.
fn range(
    words: &mut CommandWords,
    allowed: &[&str],
) -> Result<(Vec<u8>, StoreRange, RangeOptions), RespReply> {
    let (index, start, end) = (words.take(), words.take(), words.take());
    let options = RangeOptions::parse(words, allowed)?;
    let is_reverse = options.is_reverse;
    let lower = RangeOptions::lower(start, options.is_start_open);
    let upper = RangeOptions::upper(end, options.is_end_open, is_reverse);
    Ok((index, StoreRange { lower, upper, is_reverse }, options))
}

pub(crate) fn index_range(mut words: CommandWords) -> ParsedCommand {
    let allowed = ["LIMIT", "FIELDS", "REV", "EXCLUSIVE"];
    let (index, range, options) = range(&mut words, &allowed)?;
    let RangeOptions { limit, fields, .. } = options;
    let limit = limit.unwrap_or(usize::MAX);
    of_index(index, StoreCommand::Range { range, limit, fields })
}

pub(crate) fn index_count(mut words: CommandWords) -> ParsedCommand {
    let (index, range, _) = range(&mut words, &["EXCLUSIVE"])?;
    of_index(index, StoreCommand::RangeCount(range))
}

pub(crate) fn index_remove_range(mut words: CommandWords) -> ParsedCommand {
    let (index, range, options) = range(&mut words, &["LIMIT", "EXCLUSIVE"])?;
    let limit = options.limit.unwrap_or(usize::MAX);
    of_index(index, StoreCommand::RangeRemove { range, limit })
}

/// A scan begins at its first word in its own direction.
pub(crate) fn index_scan(mut words: CommandWords) -> ParsedCommand {
    let (index, start) = (words.take(), words.take());
    let allowed = ["COUNT", "FIELDS", "REV", "END", "EXCLUSIVE"];
    let options = RangeOptions::parse(&mut words, &allowed)?;
    let Some(limit) = options.limit else {
        return Err(RespReply::error("RI.SCAN needs COUNT"));
    };
    let RangeOptions { is_reverse, is_start_open, is_end_open, .. } = options;
    let (lower, upper) = if is_reverse {
        let lower = options.end.map(|end| RangeOptions::lower(end, is_end_open));
        let upper = RangeOptions::upper(start, is_start_open, true);
        (lower.unwrap_or(Bound::Unbounded), upper)
    } else {
        let upper = RangeOptions::upper(options.end.unwrap_or_default(), is_end_open, false);
        (RangeOptions::lower(start, is_start_open), upper)
    };
    let range = StoreRange { lower, upper, is_reverse };
    of_index(index, StoreCommand::Range { range, limit, fields: options.fields })
}

fn connection(command: ConnectionCommand) -> ParsedCommand {
    Ok(RespCommand::Connection(command))
}

pub(crate) fn ping(mut words: CommandWords) -> ParsedCommand {
    let reply = words.rest.next().map_or(RespReply::Simple("PONG"), RespReply::Bulk);
    match words.rest.next() {
        None => Ok(RespCommand::Reply(reply)),
        Some(_) => Err(wrong_number("ping")),
    }
}

pub(crate) fn echo(mut words: CommandWords) -> ParsedCommand {
    Ok(RespCommand::Reply(RespReply::Bulk(words.take())))
}

pub(crate) fn hello(mut words: CommandWords) -> ParsedCommand {
    let version = match words.rest.next().as_deref() {
        None => None,
        Some(b"2") => Some(RespVersion::V2),
        Some(b"3") => Some(RespVersion::V3),
        Some(other) if number::integer(other).is_none() => {
            return Err(RespReply::error("Protocol version is not an integer or out of range"));
        }
        Some(_) => {
            return Err(RespReply::Error("NOPROTO unsupported protocol version".into()));
        }
    };
    let (mut password, mut name) = (None, None);
    while let Some(option) = words.option() {
        match option.as_str() {
            "AUTH" => password = Some((words.required()?, words.required()?)),
            "SETNAME" => name = Some(client_name(words.required()?)?),
            _ => return Err(RespReply::error(format!("Syntax error in HELLO option '{option}'"))),
        }
    }
    connection(ConnectionCommand::Hello { version, password, name })
}

pub(crate) fn auth(words: CommandWords) -> ParsedCommand {
    let mut given = words.all();
    let (Some(password), user) = (given.pop(), given.pop()) else { return Err(syntax()) };
    if !given.is_empty() {
        return Err(syntax());
    }
    let user = user.unwrap_or_else(|| b"default".to_vec());
    connection(ConnectionCommand::Auth { user, password })
}

/// A name that does not disturb the lines of CLIENT LIST.
fn client_name(name: Vec<u8>) -> Result<Vec<u8>, RespReply> {
    match name.len() <= 128 && name.iter().all(u8::is_ascii_graphic) {
        true => Ok(name),
        false => Err(RespReply::error(
            "Client names have at most 128 bytes, and no spaces, newlines or special characters",
        )),
    }
}

pub(crate) fn client(mut words: CommandWords) -> ParsedCommand {
    let subcommand = words.option().unwrap_or_default();
    let arguments = words.rest.len();
    let command = match (subcommand.as_str(), arguments) {
        ("ID", 0) => ConnectionCommand::ClientId,
        ("GETNAME", 0) => ConnectionCommand::ClientGetName,
        ("SETNAME", 1) => ConnectionCommand::ClientName(client_name(words.take())?),
        ("SETINFO", 2) => {
            let (attribute, value) = (words.take(), client_name(words.take())?);
            ConnectionCommand::ClientLibrary { attribute, value }
        }
        ("INFO", 0) => ConnectionCommand::ClientInfo,
        ("LIST", 0) => ConnectionCommand::ClientList,
        // Nothing is evicted, and nothing has a time of its last use.
        ("NO-EVICT" | "NO-TOUCH", 1) => match words.option().as_deref() {
            Some("ON" | "OFF") => return Ok(RespCommand::Reply(RespReply::OK)),
            _ => return Err(syntax()),
        },
        ("ID" | "GETNAME" | "SETNAME" | "SETINFO" | "INFO" | "NO-EVICT" | "NO-TOUCH", _) => {
            return Err(wrong_number(&format!("client|{subcommand}")));
        }
        _ => return Err(subcommand_refused("CLIENT", &subcommand)),
    };
    connection(command)
}

fn subcommand_refused(name: &str, subcommand: &str) -> RespReply {
    RespReply::error(format!("unknown subcommand or wrong arguments: {name} {subcommand}"))
}

/// There is nothing to list, and all is flushed already.
pub(crate) fn function(mut words: CommandWords) -> ParsedCommand {
    match words.option().as_deref() {
        Some("FLUSH") => Ok(RespCommand::Reply(RespReply::OK)),
        Some("LIST") if words.name == "FUNCTION" => {
            Ok(RespCommand::Reply(RespReply::Array(Vec::new())))
        }
        subcommand => Err(subcommand_refused(words.name, subcommand.unwrap_or_default())),
    }
}

pub(crate) fn info(words: CommandWords) -> ParsedCommand {
    connection(ConnectionCommand::Info(words.all()))
}

/// The most patterns of CONFIG GET.
const MAX_PATTERNS: usize = 64;

pub(crate) fn config(mut words: CommandWords) -> ParsedCommand {
    match words.option() {
        Some(get) if get == "GET" && (1..=MAX_PATTERNS).contains(&words.rest.len()) => {
            let patterns = words.rest.map(glob::checked).collect::<Result<_, _>>()?;
            connection(ConnectionCommand::ConfigGet(patterns))
        }
        subcommand => Err(subcommand_refused("CONFIG", &subcommand.unwrap_or_default())),
    }
}

pub(crate) fn command(mut words: CommandWords) -> ParsedCommand {
    connection(match words.option().as_deref() {
        None => ConnectionCommand::CommandList,
        Some("COUNT") => ConnectionCommand::CommandCount,
        Some("INFO") => ConnectionCommand::CommandInfo(words.all()),
        Some("DOCS") => ConnectionCommand::CommandDocs(words.all()),
        Some("LIST") if words.rest.len() == 0 => ConnectionCommand::CommandNames,
        Some(other) => return Err(subcommand_refused("COMMAND", other)),
    })
}

pub(crate) fn select(mut words: CommandWords) -> ParsedCommand {
    match words.integer()? {
        0 => Ok(RespCommand::Reply(RespReply::OK)),
        _ => Err(RespReply::error("DB index is out of range: there is only database 0")),
    }
}

/// No change has a replica.
pub(crate) fn wait(mut words: CommandWords) -> ParsedCommand {
    words.integer()?;
    words.integer()?;
    Ok(RespCommand::Reply(RespReply::Integer(0)))
}

pub(crate) fn reset(_words: CommandWords) -> ParsedCommand {
    connection(ConnectionCommand::Reset)
}

pub(crate) fn quit(_words: CommandWords) -> ParsedCommand {
    connection(ConnectionCommand::Quit)
}
