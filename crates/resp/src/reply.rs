//! Replies, and their bytes in both versions of the protocol.
//!
//! *Invariant*: resp.R1. The text of an error or a simple string has no CR and no LF, whatever a
//! client has sent, so that no reply can be taken for two.
//!
//! *Thread safety*: plain values.

use std::borrow::Cow;

/// The version of the protocol that a client has chosen by HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    #[default]
    V2,
    V3,
}

impl RespVersion {
    /// Its number.
    pub fn number(self) -> i64 {
        match self {
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }
}

/// A reply to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespReply {
    Simple(&'static str),
    /// The first word is the code.
    Error(Cow<'static, str>),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<RespReply>),
    /// An array in version 2, with keys and values in turn.
    Map(Vec<(RespReply, RespReply)>),
    /// An array in version 2.
    Set(Vec<RespReply>),
    /// Text for people; a bulk string in version 2.
    Verbatim(String),
}

/// The longest text of an error.
const MAX_ERROR_BYTES: usize = 512;

impl RespReply {
    pub const OK: Self = Self::Simple("OK");

    /// An error with the usual code, `ERR`.
    pub fn error(text: impl std::fmt::Display) -> Self {
        Self::Error(Cow::Owned(format!("ERR {text}")))
    }

    /// A bulk string.
    pub fn text(text: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(text.into())
    }

    /// The value, or nothing.
    pub fn value(value: Option<Vec<u8>>) -> Self {
        value.map_or(Self::Null, Self::Bulk)
    }

    /// Whether a change was made.
    pub fn flag(is_set: bool) -> Self {
        Self::Integer(i64::from(is_set))
    }

    /// A count.
    pub fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// The same error, with a code that no client takes as a reason to repeat a command by itself.
    pub(crate) fn not_repeated(self) -> Self {
        let Self::Error(text) = &self else { return self };
        for (code, other) in [("LOADING ", "UNAVAILABLE "), ("TRYAGAIN ", "CONTENDED ")] {
            if let Some(why) = text.strip_prefix(code) {
                return Self::Error(format!("{other}{why}").into());
            }
        }
        self
    }

    /// About how much memory it takes until it is encoded.
    pub(crate) fn held_bytes(&self) -> usize {
        let all = |replies: &[Self]| replies.iter().map(Self::held_bytes).sum();
        let more = match self {
            Self::Simple(_) | Self::Integer(_) | Self::Null => 0,
            Self::Error(text) => text.len(),
            Self::Bulk(bytes) => bytes.len(),
            Self::Verbatim(text) => text.len(),
            Self::Array(items) | Self::Set(items) => all(items),
            Self::Map(pairs) => {
                pairs.iter().map(|(key, value)| key.held_bytes() + value.held_bytes()).sum()
            }
        };
        size_of::<Self>() + more
    }

    /// Appends its bytes.
    pub fn encode(&self, version: RespVersion, output: &mut Vec<u8>) {
        match self {
            Self::Simple(text) => line(output, b'+', text.as_bytes()),
            Self::Error(text) => {
                output.push(b'-');
                let clean = |byte: u8| if byte.is_ascii_control() { b' ' } else { byte };
                output.extend(text.bytes().take(MAX_ERROR_BYTES).map(clean));
                output.extend(b"\r\n");
            }
            Self::Integer(number) => header(output, b':', *number),
            Self::Bulk(bytes) => bulk(output, bytes),
            Self::Null => output.extend(match version {
                RespVersion::V2 => &b"$-1\r\n"[..],
                RespVersion::V3 => b"_\r\n",
            }),
            Self::Array(items) => aggregate(output, b'*', items, version),
            Self::Set(items) => {
                let mark = if version == RespVersion::V3 { b'~' } else { b'*' };
                aggregate(output, mark, items, version);
            }
            Self::Map(pairs) => {
                match version {
                    RespVersion::V2 => header(output, b'*', length(pairs.len() * 2)),
                    RespVersion::V3 => header(output, b'%', length(pairs.len())),
                }
                for (key, value) in pairs {
                    key.encode(version, output);
                    value.encode(version, output);
                }
            }
            Self::Verbatim(text) => match version {
                RespVersion::V2 => bulk(output, text.as_bytes()),
                RespVersion::V3 => {
                    header(output, b'=', length(text.len() + 4));
                    output.extend(b"txt:");
                    output.extend(text.as_bytes());
                    output.extend(b"\r\n");
                }
            },
        }
    }
}

fn length(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

fn line(output: &mut Vec<u8>, mark: u8, text: &[u8]) {
    output.push(mark);
    output.extend(text);
    output.extend(b"\r\n");
}

/// A mark, a number and the end of the line.
fn header(output: &mut Vec<u8>, mark: u8, number: i64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    output.push(mark);
    if number < 0 {
        output.push(b'-');
    }
    line_end(output, &digits[at..]);
}

fn line_end(output: &mut Vec<u8>, text: &[u8]) {
    output.extend(text);
    output.extend(b"\r\n");
}

fn bulk(output: &mut Vec<u8>, bytes: &[u8]) {
    header(output, b'$', length(bytes.len()));
    line_end(output, bytes);
}

fn aggregate(output: &mut Vec<u8>, mark: u8, items: &[RespReply], version: RespVersion) {
    header(output, mark, length(items.len()));
    for item in items {
        item.encode(version, output);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(reply: &RespReply, version: RespVersion) -> String {
        let mut output = Vec::new();
        reply.encode(version, &mut output);
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn each_version_has_its_bytes() {
        let pair = (RespReply::text("a"), RespReply::Integer(i64::MIN));
        for (reply, two, three) in [
            (RespReply::OK, "+OK\r\n", "+OK\r\n"),
            (RespReply::Null, "$-1\r\n", "_\r\n"),
            (RespReply::Integer(-70), ":-70\r\n", ":-70\r\n"),
            (RespReply::Set(vec![]), "*0\r\n", "~0\r\n"),
            (
                RespReply::Map(vec![pair]),
                "*2\r\n$1\r\na\r\n:-9223372036854775808\r\n",
                "%1\r\n$1\r\na\r\n:-9223372036854775808\r\n",
            ),
            (RespReply::Verbatim("a\r\n".into()), "$3\r\na\r\n\r\n", "=7\r\ntxt:a\r\n\r\n"),
        ] {
            assert_eq!(bytes(&reply, RespVersion::V2), two);
            assert_eq!(bytes(&reply, RespVersion::V3), three);
        }
    }

    #[test]
    fn an_error_is_one_line() {
        let hostile = RespReply::error("a\r\n+OK\n\0");
        assert_eq!(bytes(&hostile, RespVersion::V2), "-ERR a  +OK  \r\n");
        assert!(bytes(&RespReply::error("é".repeat(1000)), RespVersion::V3).len() < 520);
    }
}
