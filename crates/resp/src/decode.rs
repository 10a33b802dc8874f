//! The decoder of commands: arrays of bulk strings, and inline commands.
//!
//! Bytes arrive in pieces of any size. What has been decoded of a command is kept, so no byte is
//! looked at again when the next piece comes.
//!
//! *Invariants*
//! - resp.D1. The decoder holds at most one command of [`RespLimits::command_bytes`], and of the
//!   bytes behind it those of the last piece. An announced length or count allocates nothing.
//! - resp.D2. The same bytes give the same commands, in whatever pieces they come.
//! - resp.D3. A command that is too large is skipped to its end, so that the next one is decoded as
//!   if it had been short. Bytes that are no command end the session.
//!
//! *Thread safety*: none; each session has its own.

use crate::limits::RespLimits;
use std::fmt;

/// Memory for an argument besides its bytes, against [`RespLimits::command_bytes`].
const ARGUMENT_OVERHEAD_BYTES: usize = 32;
/// The longest line that announces a count or a length: a mark, a number, CR and LF.
const MAX_HEADER_BYTES: usize = 32;

/// Size of an empty buffer of input that is kept.
const KEPT_INPUT_BYTES: usize = 4 << 10;

/// Why bytes are no command. The session ends, because it is unknown where the next one begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespProtocolError {
    InlineTooLong,
    HeaderTooLong,
    BadCount,
    BadLength,
    NoBulkString(u8),
    NoLineEnd,
    UnbalancedQuotes,
    UnauthenticatedCount,
    UnauthenticatedLength,
}

impl fmt::Display for RespProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InlineTooLong => f.write_str("too big inline request"),
            Self::HeaderTooLong => f.write_str("too big mbulk count string"),
            Self::BadCount => f.write_str("invalid multibulk length"),
            Self::BadLength => f.write_str("invalid bulk length"),
            Self::NoBulkString(found) => {
                write!(f, "expected '$', got '{}'", found.escape_ascii())
            }
            Self::NoLineEnd => f.write_str("expected CRLF behind a bulk string"),
            Self::UnbalancedQuotes => f.write_str("unbalanced quotes in request"),
            Self::UnauthenticatedCount => f.write_str("unauthenticated multibulk length"),
            Self::UnauthenticatedLength => f.write_str("unauthenticated bulk length"),
        }
    }
}

/// Why a command was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkippedCommand {
    /// An argument has this many bytes.
    Argument { bytes: usize },
    /// Together its arguments are too large.
    Whole,
}

/// A command as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedCommand {
    /// Its words, the name first. If the command was skipped, only those before the one that was
    /// too large.
    pub words: Vec<Vec<u8>>,
    pub skipped: Option<SkippedCommand>,
}

#[derive(Clone, Copy, Debug)]
enum DecodeStep {
    /// Between commands.
    Start,
    /// Before the line of an argument's length, with this many arguments to come.
    Length { arguments: usize },
    /// Within an argument, with this many bytes to come.
    Body { arguments: usize, bytes: usize, is_kept: bool },
    /// Before the CR and LF behind an argument.
    End { arguments: usize },
}

/// The decoder of one session.
#[derive(Debug)]
pub struct RespDecoder {
    limits: RespLimits,
    is_authenticated: bool,
    input: Vec<u8>,
    /// Where the undecoded part of the input begins.
    at: usize,
    /// How much of the undecoded part is known to have no end of line.
    searched: usize,
    step: DecodeStep,
    command: DecodedCommand,
    command_bytes: usize,
}

impl RespDecoder {
    /// A decoder for a client that has, or has not, proved its password.
    pub fn new(limits: RespLimits, is_authenticated: bool) -> Self {
        Self {
            limits: if is_authenticated { limits } else { limits.unauthenticated() },
            is_authenticated,
            input: Vec::new(),
            at: 0,
            searched: 0,
            step: DecodeStep::Start,
            command: DecodedCommand { words: Vec::new(), skipped: None },
            command_bytes: 0,
        }
    }

    /// Uses these bounds from the next command on.
    pub fn set_limits(&mut self, limits: RespLimits, is_authenticated: bool) {
        self.limits = if is_authenticated { limits } else { limits.unauthenticated() };
        self.is_authenticated = is_authenticated;
    }

    /// Takes the next piece of input.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.input.drain(..self.at);
            self.at = 0;
        }
        self.input.extend_from_slice(bytes);
    }

    /// Size of the buffer of the input.
    pub fn held_bytes(&self) -> usize {
        self.input.capacity()
    }

    /// Number of bytes that are not decoded yet.
    pub fn undecoded_bytes(&self) -> usize {
        self.input.len() - self.at
    }

    /// Whether the input ended within a command.
    pub fn is_within_command(&self) -> bool {
        self.undecoded_bytes() > 0 || !matches!(self.step, DecodeStep::Start)
    }

    /// The next command, or `None` if more input is needed.
    ///
    /// # Errors
    /// [`RespProtocolError`] if the bytes are no command. The decoder is of no further use.
    pub fn next_command(&mut self) -> Result<Option<DecodedCommand>, RespProtocolError> {
        let decoded = self.decode();
        if matches!(decoded, Ok(None)) && self.undecoded_bytes() == 0 {
            self.input.clear();
            self.at = 0;
            // A connection that then sends nothing holds none of a large piece.
            self.input.shrink_to(KEPT_INPUT_BYTES);
        }
        decoded
    }

    fn decode(&mut self) -> Result<Option<DecodedCommand>, RespProtocolError> {
        loop {
            match self.step {
                DecodeStep::Start => match self.rest().first() {
                    None => return Ok(None),
                    Some(b'*') => {
                        let Some(count) = self.header()? else { return Ok(None) };
                        let count = number(count).ok_or(RespProtocolError::BadCount)?;
                        let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
                        if count > self.limits.arguments {
                            return Err(match self.is_authenticated {
                                true => RespProtocolError::BadCount,
                                false => RespProtocolError::UnauthenticatedCount,
                            });
                        }
                        if count > 0 {
                            self.step = DecodeStep::Length { arguments: count };
                        }
                    }
                    Some(_) => {
                        let Some(words) = self.inline()? else { return Ok(None) };
                        if !words.is_empty() {
                            return Ok(Some(DecodedCommand { words, skipped: None }));
                        }
                    }
                },
                DecodeStep::Length { arguments } => {
                    match self.rest().first() {
                        None => return Ok(None),
                        Some(b'$') => {}
                        Some(&other) => return Err(RespProtocolError::NoBulkString(other)),
                    }
                    let Some(length) = self.header()? else { return Ok(None) };
                    let bytes = number(length).and_then(|length| usize::try_from(length).ok());
                    let bytes = bytes.ok_or(RespProtocolError::BadLength)?;
                    if bytes > self.limits.announced_bytes {
                        return Err(match self.is_authenticated {
                            true => RespProtocolError::BadLength,
                            false => RespProtocolError::UnauthenticatedLength,
                        });
                    }
                    let is_kept = self.accepts(bytes);
                    if is_kept {
                        self.command.words.push(Vec::new());
                    }
                    self.step = DecodeStep::Body { arguments, bytes, is_kept };
                }
                DecodeStep::Body { arguments, bytes, is_kept } => {
                    let taken = bytes.min(self.undecoded_bytes());
                    let piece = &self.input[self.at..self.at + taken];
                    if is_kept && let Some(word) = self.command.words.last_mut() {
                        if word.is_empty() && taken == bytes {
                            *word = piece.to_vec();
                        } else {
                            word.extend_from_slice(piece);
                        }
                    }
                    self.at += taken;
                    if taken < bytes {
                        self.step = DecodeStep::Body { arguments, bytes: bytes - taken, is_kept };
                        return Ok(None);
                    }
                    self.step = DecodeStep::End { arguments };
                }
                DecodeStep::End { arguments } => {
                    let rest = self.rest();
                    if rest.len() < 2 {
                        return match rest {
                            [] | [b'\r'] => Ok(None),
                            _ => Err(RespProtocolError::NoLineEnd),
                        };
                    }
                    if !rest.starts_with(b"\r\n") {
                        return Err(RespProtocolError::NoLineEnd);
                    }
                    self.at += 2;
                    if arguments > 1 {
                        self.step = DecodeStep::Length { arguments: arguments - 1 };
                        continue;
                    }
                    self.step = DecodeStep::Start;
                    self.command_bytes = 0;
                    let none = DecodedCommand { words: Vec::new(), skipped: None };
                    return Ok(Some(std::mem::replace(&mut self.command, none)));
                }
            }
        }
    }

    fn rest(&self) -> &[u8] {
        &self.input[self.at..]
    }

    /// Whether an argument of this length is kept. Once one is not, the rest of the command is
    /// skipped.
    fn accepts(&mut self, bytes: usize) -> bool {
        self.command_bytes = self.command_bytes.saturating_add(bytes + ARGUMENT_OVERHEAD_BYTES);
        if self.command.skipped.is_none() {
            self.command.skipped = if bytes > self.limits.argument_bytes {
                Some(SkippedCommand::Argument { bytes })
            } else if self.command_bytes > self.limits.command_bytes {
                Some(SkippedCommand::Whole)
            } else {
                None
            };
        }
        self.command.skipped.is_none()
    }

    /// The rest of a line whose first byte is a mark, up to CR and LF.
    fn header(&mut self) -> Result<Option<&[u8]>, RespProtocolError> {
        let rest = &self.input[self.at..];
        let Some(end) = rest.iter().take(MAX_HEADER_BYTES).position(|byte| *byte == b'\n') else {
            return match rest.len() < MAX_HEADER_BYTES {
                true => Ok(None),
                false => Err(RespProtocolError::HeaderTooLong),
            };
        };
        let begun = self.at + 1;
        self.at += end + 1;
        let line = &self.input[begun..self.at - 1];
        // A number never ends in CR, so a line without it is refused as a number.
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(b"")))
    }

    /// The words of an inline command, up to LF.
    fn inline(&mut self) -> Result<Option<Vec<Vec<u8>>>, RespProtocolError> {
        let rest = &self.input[self.at..];
        let found = rest[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = found.map(|found| self.searched + found) else {
            self.searched = rest.len();
            return match rest.len() < self.limits.line_bytes {
                true => Ok(None),
                false => Err(RespProtocolError::InlineTooLong),
            };
        };
        if end >= self.limits.line_bytes {
            return Err(RespProtocolError::InlineTooLong);
        }
        let line = &rest[..end];
        let words = split_words(line.strip_suffix(b"\r").unwrap_or(line));
        (self.at, self.searched) = (self.at + end + 1, 0);
        words.map(Some)
    }
}

/// A decimal number with an optional minus sign.
fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// The words of a line, some of them in quotes: `"…"` with escapes, or `'…'` without.
fn split_words(line: &[u8]) -> Result<Vec<Vec<u8>>, RespProtocolError> {
    let (mut words, mut at) = (Vec::new(), 0);
    loop {
        while line.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        if at == line.len() {
            return Ok(words);
        }
        let (rest, mut word) = (&line[at..], Vec::new());
        let is_end = |byte: &u8| byte.is_ascii_whitespace();
        let end = rest.iter().position(is_end).unwrap_or(rest.len());
        at += match rest[..end].iter().position(|byte| matches!(byte, b'"' | b'\'')) {
            Some(open) => quoted(rest, open, &mut word)?,
            None => {
                word.extend_from_slice(&rest[..end]);
                end
            }
        };
        words.push(word);
    }
}

/// A word with a quote at `open`, such as `ab"c d"`; the other quote ends it. Returns its length.
fn quoted(rest: &[u8], open: usize, word: &mut Vec<u8>) -> Result<usize, RespProtocolError> {
    word.extend_from_slice(&rest[..open]);
    let (quote, mut at) = (rest[open], open + 1);
    loop {
        match rest.get(at) {
            None => return Err(RespProtocolError::UnbalancedQuotes),
            Some(byte) if *byte == quote => break,
            Some(b'\\') if quote == b'"' => at += unescape(&rest[at..], word),
            Some(b'\\') if rest.get(at + 1) == Some(&quote) => {
                word.push(quote);
                at += 2;
            }
            Some(byte) => {
                word.push(*byte);
                at += 1;
            }
        }
    }
    match rest.get(at + 1) {
        Some(byte) if !byte.is_ascii_whitespace() => Err(RespProtocolError::UnbalancedQuotes),
        _ => Ok(at + 1),
    }
}

/// Appends what the escape at the beginning of `text` stands for; returns its length.
fn unescape(text: &[u8], word: &mut Vec<u8>) -> usize {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    if text.get(1) == Some(&b'x')
        && let (Some(high), Some(low)) = (digit(2), digit(3))
    {
        word.push((high * 16 + low) as u8);
        return 4;
    }
    match text.get(1) {
        None => {
            word.push(b'\\');
            return 1;
        }
        Some(b'n') => word.push(b'\n'),
        Some(b'r') => word.push(b'\r'),
        Some(b't') => word.push(b'\t'),
        Some(b'b') => word.push(8),
        Some(b'a') => word.push(7),
        Some(other) => word.push(*other),
    }
    2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8], piece: usize) -> Result<Vec<DecodedCommand>, RespProtocolError> {
        let limits = RespLimits { argument_bytes: 64, command_bytes: 4096, ..Default::default() };
        let mut decoder = RespDecoder::new(limits, true);
        let mut commands = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.feed(piece);
            while let Some(command) = decoder.next_command()? {
                commands.push(command);
            }
        }
        Ok(commands)
    }

    fn words(bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
        let whole = decode(bytes, usize::MAX).unwrap();
        for piece in 1..6 {
            assert_eq!(decode(bytes, piece).unwrap(), whole, "pieces of {piece}");
        }
        whole.into_iter().map(|command| command.words).collect()
    }

    #[test]
    fn commands_come_out_of_any_pieces() {
        let expected: Vec<Vec<Vec<u8>>> =
            vec![vec![b"GET".into(), b"a\r\nb".into()], vec![b"PING".into()], vec![vec![]]];
        let bytes = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n\r\n*0\r\n*-1\r\nPING\r\n*1\r\n$0\r\n\r\n";
        assert_eq!(words(bytes), expected);
        let expected: Vec<Vec<Vec<u8>>> =
            vec![vec![b"SET".into(), b"a b\x01".into(), b"it's".into(), b"xy z".into()]];
        assert_eq!(words(b"SET \"a b\\x01\" 'it\\'s' x\"y z\"\n"), expected);
    }

    #[test]
    fn what_is_no_command_is_refused() {
        for (bytes, why) in [
            (&b"*3000000000\r\n"[..], RespProtocolError::BadCount),
            (b"*x\r\n", RespProtocolError::BadCount),
            (b"*1\n", RespProtocolError::BadCount),
            (b"*1\r\n$-1\r\n", RespProtocolError::BadLength),
            (b"*1\r\n$+1\r\n", RespProtocolError::BadLength),
            (b"*1\r\n$2000000000\r\n", RespProtocolError::BadLength),
            (b"*1\r\nfoo\r\n", RespProtocolError::NoBulkString(b'f')),
            (b"*1\r\n$1\r\nabc", RespProtocolError::NoLineEnd),
            (b"SET \"a\r\n", RespProtocolError::UnbalancedQuotes),
            (b"SET \"a\"b\r\n", RespProtocolError::UnbalancedQuotes),
            (&[b'*'; 40], RespProtocolError::HeaderTooLong),
            (&[b'a'; 70_000], RespProtocolError::InlineTooLong),
        ] {
            for piece in [1, 3, usize::MAX] {
                assert_eq!(decode(bytes, piece), Err(why.clone()));
            }
        }
    }

    #[test]
    fn a_command_that_is_too_large_is_skipped() {
        let mut bytes = b"*3\r\n$3\r\nSET\r\n$1000\r\n".to_vec();
        bytes.extend([b'*'; 1000]);
        bytes.extend(b"\r\n$1\r\nv\r\nPING\r\n");
        for piece in [1, 7, usize::MAX] {
            let commands = decode(&bytes, piece).unwrap();
            assert_eq!(commands[0].words, [b"SET"]);
            assert_eq!(commands[0].skipped, Some(SkippedCommand::Argument { bytes: 1000 }));
            assert_eq!(commands[1].words, [b"PING"]);
        }
        let many = [b"*200\r\n".to_vec(), b"$1\r\nk\r\n".repeat(200)].concat();
        assert_eq!(decode(&many, 9).unwrap()[0].skipped, Some(SkippedCommand::Whole));
    }

    #[test]
    fn an_empty_buffer_is_small() {
        let mut decoder = RespDecoder::new(RespLimits::default(), true);
        for piece in
            [&b"PING\r\n".repeat(10_000)[..], b"*2\r\n$3\r\nGET\r\n$60000\r\n", &[0; 50_000]]
        {
            decoder.feed(piece);
            assert!(decoder.held_bytes() >= piece.len());
            while decoder.next_command().unwrap().is_some() {}
            assert!(decoder.held_bytes() <= KEPT_INPUT_BYTES);
        }
    }

    #[test]
    fn before_the_password_little_is_taken() {
        let mut decoder = RespDecoder::new(RespLimits::default(), false);
        decoder.feed(b"*11\r\n");
        assert_eq!(decoder.next_command(), Err(RespProtocolError::UnauthenticatedCount));
        let mut decoder = RespDecoder::new(RespLimits::default(), false);
        decoder.feed(b"*1\r\n$20000\r\n");
        assert_eq!(decoder.next_command(), Err(RespProtocolError::UnauthenticatedLength));
    }
}
