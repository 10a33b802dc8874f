//! Keys and values as text: on command lines, in CSV files and tables, and in the catalog.
//!
//! A number is written in decimal. A byte string is written either as text, in which printable
//! characters of UTF-8 stand for themselves, `\\` for a backslash, and `\xNN` for any other byte,
//! or as hexadecimal digits.
//!
//! *Invariants*
//! - text.TX1. Parsing the written text gives the same key, in both notations.
//! - text.TX2. Written text has no control characters, no white space at its ends, and no white
//!   space other than the plain space.
//!
//! *Thread safety*: plain functions.

use farleaf_fabric::numbers::{THOUSANDS, scaled};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Bound;

/// How byte strings are written. Numbers are always decimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notation {
    /// Text with escapes.
    #[default]
    Escaped,
    /// Two hexadecimal digits for each byte.
    Hex,
}

/// A key in a catalog record: a JSON number, or a JSON string with escapes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KeyRecord {
    Number(u64),
    Text(String),
}

impl fmt::Display for KeyRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// The bounds of a range of keys.
pub type KeyBounds<K> = (Bound<K>, Bound<K>);

/// Keys and values with a text form for people.
pub trait Textual: ToOwned {
    /// What all keys of this kind are, for error messages.
    const ARE: &'static str;

    /// Parses text.
    ///
    /// # Errors
    /// What is wrong with the text, in one line.
    fn parse(text: &str, notation: Notation) -> Result<Self::Owned, String>;

    /// Appends the text.
    fn write(&self, notation: Notation, to: &mut String);

    /// The value's text in a notation.
    fn text(&self, notation: Notation) -> String {
        let mut text = String::new();
        self.write(notation, &mut text);
        text
    }

    /// The key in the form that the catalog stores.
    fn to_record(&self) -> KeyRecord;

    /// Decodes a key from the catalog; `None` if it is of another kind.
    fn of_record(record: &KeyRecord) -> Option<Self::Owned>;

    /// The range of the keys that begin with `prefix`; `None` if these keys have no prefixes.
    fn with_prefix(prefix: Self::Owned) -> Option<KeyBounds<Self::Owned>>;

    /// The initial boundaries between `servers` compute servers of a cluster for which none were
    /// given.
    fn first_boundaries(servers: u16) -> Vec<Self::Owned>;

    /// The keys that divide those from `low` to `high`, exclusive, into this many ranges; without
    /// `high`, all from `low` on. `None` if there are too few keys.
    fn divided(
        low: &Self::Owned,
        high: Option<&Self::Owned>,
        parts: u16,
    ) -> Option<Vec<Self::Owned>>;
}

/// The numbers that divide those from `low` to `end`, exclusive, into this many ranges.
fn divided_numbers(low: u64, end: u128, parts: u16) -> Option<Vec<u64>> {
    if parts <= 1 {
        return Some(Vec::new());
    }
    let (low, parts) = (u128::from(low), u128::from(parts));
    let size = end.checked_sub(low).filter(|size| *size >= parts)?;
    (1..parts).map(|part| u64::try_from(low + size * part / parts).ok()).collect()
}

/// Quotes text for a message, truncated if it is long.
fn quoted(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        None => format!("`{text}`"),
        Some((end, _)) => format!("`{}…` ({} bytes)", &text[..end], text.len()),
    }
}

impl Textual for u64 {
    const ARE: &'static str = "whole numbers from 0 to 2^64 - 1";

    fn parse(text: &str, _notation: Notation) -> Result<u64, String> {
        scaled(text, &THOUSANDS)
            .ok_or_else(|| format!("{} is not a whole number from 0 to 2^64 - 1", quoted(text)))
    }

    fn write(&self, _notation: Notation, to: &mut String) {
        to.push_str(&self.to_string());
    }

    fn to_record(&self) -> KeyRecord {
        KeyRecord::Number(*self)
    }

    fn of_record(record: &KeyRecord) -> Option<u64> {
        match record {
            KeyRecord::Number(number) => Some(*number),
            KeyRecord::Text(_) => None,
        }
    }

    fn with_prefix(_prefix: u64) -> Option<KeyBounds<u64>> {
        None
    }

    /// Divides all numbers into equal parts.
    fn first_boundaries(servers: u16) -> Vec<u64> {
        let step = u64::MAX / u64::from(servers.max(1));
        (1..servers).map(|number| step * u64::from(number)).collect()
    }

    fn divided(low: &u64, high: Option<&u64>, parts: u16) -> Option<Vec<u64>> {
        divided_numbers(*low, high.map_or(1 << 64, |high| u128::from(*high)), parts)
    }
}

/// Whether a character stands for itself. White space other than the plain space would be invisible
/// or break lines, and so would control characters and those that change the direction of text.
fn is_plain(character: char) -> bool {
    match character {
        '\\' => false,
        '"' | '\'' => true,
        character => character.escape_debug().len() == 1,
    }
}

fn escape(bytes: &[u8], to: &mut String) {
    bytes.iter().for_each(|byte| to.push_str(&format!("\\x{byte:02x}")));
}

fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escaped = &rest[at + 1..];
        let hex = escaped.strip_prefix('x').and_then(|hex| hex.get(..2)).and_then(digits);
        match hex {
            Some(byte) => {
                bytes.push(byte);
                rest = &escaped[3..];
            }
            None if escaped.starts_with('\\') => {
                bytes.push(b'\\');
                rest = &escaped[1..];
            }
            None => {
                let expected = "a backslash begins \\\\ or \\xNN with two hexadecimal digits";
                return Err(format!("{}: {expected}", quoted(text)));
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

/// The byte that two hexadecimal digits stand for.
fn digits(two: &str) -> Option<u8> {
    // `from_str_radix` accepts a sign.
    let are_digits = two.bytes().all(|digit| digit.is_ascii_hexdigit());
    are_digits.then(|| u8::from_str_radix(two, 16).ok()).flatten()
}

fn of_hex(text: &str) -> Result<Vec<u8>, String> {
    let byte = |at: usize| text.get(at..at + 2).and_then(digits);
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
    bytes.ok_or_else(|| format!("{} is not pairs of hexadecimal digits", quoted(text)))
}

impl Textual for [u8] {
    const ARE: &'static str = "byte strings, written as text with \\xNN for bytes that are no \
                               printable character and \\\\ for a backslash";

    fn parse(text: &str, notation: Notation) -> Result<Vec<u8>, String> {
        match notation {
            Notation::Escaped => unescape(text),
            Notation::Hex => of_hex(text),
        }
    }

    fn write(&self, notation: Notation, to: &mut String) {
        if notation == Notation::Hex {
            self.iter().for_each(|byte| to.push_str(&format!("{byte:02x}")));
            return;
        }
        let begin = to.len();
        for chunk in self.utf8_chunks() {
            for character in chunk.valid().chars() {
                match is_plain(character) && !(character == ' ' && to.len() == begin) {
                    true => to.push(character),
                    false if character == '\\' => to.push_str("\\\\"),
                    false => escape(character.encode_utf8(&mut [0; 4]).as_bytes(), to),
                }
            }
            escape(chunk.invalid(), to);
        }
        // A space at the end would be trimmed or overlooked.
        if to.len() > begin && to.ends_with(' ') {
            to.pop();
            escape(b" ", to);
        }
    }

    fn to_record(&self) -> KeyRecord {
        KeyRecord::Text(self.text(Notation::Escaped))
    }

    fn of_record(record: &KeyRecord) -> Option<Vec<u8>> {
        match record {
            KeyRecord::Number(_) => None,
            KeyRecord::Text(text) => unescape(text).ok(),
        }
    }

    fn with_prefix(prefix: Vec<u8>) -> Option<KeyBounds<Vec<u8>>> {
        let mut end = prefix.clone();
        while end.pop_if(|last| *last == u8::MAX).is_some() {}
        let upper = match end.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(end)
            }
            // No key is above a prefix that consists only of bytes 255, or above the empty prefix.
            None => Bound::Unbounded,
        };
        Some((Bound::Included(prefix), upper))
    }

    /// No byte of UTF-8 is 255, so the first server owns all text, and the others own empty ranges.
    /// They must own ranges, because bulk loads and the balancer give keys only to neighbours.
    fn first_boundaries(servers: u16) -> Vec<Vec<u8>> {
        let boundary = |number: u16| [&[u8::MAX][..], &number.to_be_bytes()].concat();
        (1..servers).map(boundary).collect()
    }

    /// By the eight bytes behind those that both ends begin with.
    fn divided(low: &Vec<u8>, high: Option<&Vec<u8>>, parts: u16) -> Option<Vec<Vec<u8>>> {
        let both = high.map_or(0, |high| low.iter().zip(high).take_while(|(a, b)| a == b).count());
        let number = |key: &[u8]| {
            let mut bytes = [0; 8];
            let taken = key.len().min(8);
            bytes[..taken].copy_from_slice(&key[..taken]);
            u64::from_be_bytes(bytes)
        };
        let end = high.map_or(1 << 64, |high| u128::from(number(&high[both..])));
        let key = |number: u64| {
            let bytes = number.to_be_bytes();
            let length = 8 - number.trailing_zeros() as usize / 8;
            [&low[..both], &bytes[..length]].concat()
        };
        // Above all keys that begin with the same eight bytes as the low end.
        let first = number(&low[both..]);
        let numbers = divided_numbers(first, end, parts)?;
        numbers.iter().all(|number| *number > first).then(|| numbers.into_iter().map(key).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn escaped(bytes: &[u8]) -> String {
        bytes.text(Notation::Escaped)
    }

    #[test]
    fn byte_strings_are_readable_text() {
        let cases: [(&[u8], &str); 8] = [
            (b"", ""),
            (b"user1", "user1"),
            ("Straße, 京".as_bytes(), "Straße, 京"),
            (b"a\\b", "a\\\\b"),
            (b"a\0\n\xff", "a\\x00\\x0a\\xff"),
            (b" a b ", "\\x20a b\\x20"),
            (b" ", "\\x20"),
            // Characters that change the direction of text, or are invisible.
            ("\u{202e}\u{a0}".as_bytes(), "\\xe2\\x80\\xae\\xc2\\xa0"),
        ];
        for (bytes, text) in cases {
            assert_eq!(escaped(bytes), text);
            assert_eq!(<[u8]>::parse(text, Notation::Escaped).as_deref(), Ok(bytes));
        }
        assert_eq!(<[u8]>::parse("\\x0A", Notation::Escaped).unwrap(), b"\n");
        for wrong in ["\\", "a\\n", "\\x", "\\x1", "\\xg0", "\\x+1", "\\xß"] {
            let said = <[u8]>::parse(wrong, Notation::Escaped).unwrap_err();
            assert!(said.contains("\\xNN") && !said.contains('\n'), "{said}");
        }
        for wrong in ["0", "0g", "+1", "ß"] {
            assert!(<[u8]>::parse(wrong, Notation::Hex).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_read_as_people_write_them() {
        let parse = |text| u64::parse(text, Notation::Escaped);
        assert_eq!((parse("7"), parse("20_000"), parse("3k")), (Ok(7), Ok(20_000), Ok(3_000)));
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
        for wrong in ["", "x", "-1", "1.5", "18446744073709551616"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_prefix_ends_below_the_next_one() {
        let range = |prefix: &[u8]| <[u8]>::with_prefix(prefix.to_vec()).unwrap();
        let from = |prefix: &[u8]| Bound::Included(prefix.to_vec());
        assert_eq!(range(b"ab"), (from(b"ab"), Bound::Excluded(b"ac".to_vec())));
        assert_eq!(range(b"a\xff\xff"), (from(b"a\xff\xff"), Bound::Excluded(b"b".to_vec())));
        assert_eq!(range(b"\xff"), (from(b"\xff"), Bound::Unbounded));
        assert_eq!(range(b""), (from(b""), Bound::Unbounded));
    }

    #[test]
    fn first_boundaries_ascend_from_above_the_lowest_key() {
        let text = <[u8]>::first_boundaries(600);
        assert!(text.len() == 599 && text.is_sorted_by(|a, b| a < b));
        assert!("\u{10ffff}".as_bytes() < &*text[0], "text belongs to the first server");
        assert_eq!(u64::first_boundaries(2), [u64::MAX / 2]);
        assert!(u64::first_boundaries(1).is_empty() && <[u8]>::first_boundaries(0).is_empty());
    }

    #[test]
    fn keys_are_divided_into_equal_ranges() {
        assert_eq!(u64::divided(&0, None, 4), Some(vec![1 << 62, 1 << 63, 3 << 62]));
        assert_eq!(u64::divided(&10, Some(&20), 2), Some(vec![15]));
        assert_eq!(u64::divided(&10, Some(&12), 1), Some(vec![]));
        assert_eq!(u64::divided(&10, Some(&12), 3), None);
        let keys = |low: &str, high: Option<&str>, parts| {
            let high = high.map(|high| high.as_bytes().to_vec());
            <[u8]>::divided(&low.as_bytes().to_vec(), high.as_ref(), parts)
        };
        assert_eq!(keys("", None, 4), Some(vec![vec![0x40], vec![0x80], vec![0xc0]]));
        assert_eq!(keys("user1", Some("user5"), 2), Some(vec![b"user3".to_vec()]));
        assert_eq!(keys("same", Some("same\0"), 2), None);
        assert_eq!(keys("same", Some("same\0"), 1), Some(vec![]));
        let (low, high) = (b"k".to_vec(), b"kz".to_vec());
        let parts = <[u8]>::divided(&low, Some(&high), 7).unwrap();
        assert!(parts.len() == 6 && parts.is_sorted_by(|a, b| a < b));
        assert!(low < parts[0] && parts[5] < high);
    }

    /// Byte strings of all kinds, often text with characters that need an escape.
    fn byte_strings() -> impl Strategy<Value = Vec<u8>> {
        let text = prop::collection::vec(
            prop_oneof![
                any::<char>(),
                prop::sample::select(vec!['\\', 'x', '0', 'f', ' ', '\t', ',', '"', '\u{85}']),
            ],
            0..12,
        );
        let text = text.prop_map(|text| text.into_iter().collect::<String>().into_bytes());
        prop_oneof![prop::collection::vec(any::<u8>(), 0..40), text]
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(bytes in byte_strings()) {
            for notation in [Notation::Escaped, Notation::Hex] {
                let text = bytes.text(notation);
                prop_assert_eq!(text.trim(), &*text);
                prop_assert!(!text.chars().any(char::is_control));
                let plain = |symbol: char| !symbol.is_whitespace() || symbol == ' ';
                prop_assert!(text.chars().all(plain));
                prop_assert_eq!(<[u8]>::parse(&text, notation).unwrap(), &*bytes);
            }
            let record = bytes.to_record();
            let json = serde_json::to_string(&record).unwrap();
            prop_assert_eq!(&serde_json::from_str::<KeyRecord>(&json).unwrap(), &record);
            prop_assert_eq!(<[u8]>::of_record(&record).unwrap(), bytes);
        }

        #[test]
        fn any_text_is_read_or_refused(text in any::<String>()) {
            for notation in [Notation::Escaped, Notation::Hex] {
                if let Ok(bytes) = <[u8]>::parse(&text, notation) {
                    prop_assert_eq!(<[u8]>::parse(&bytes.text(notation), notation), Ok(bytes));
                }
            }
        }

        #[test]
        fn prefixes_bound_their_keys(
            prefix in prop::collection::vec(prop::sample::select(vec![0_u8, 97, 254, 255]), 0..4),
            key in prop::collection::vec(prop::sample::select(vec![0_u8, 97, 254, 255]), 0..6),
        ) {
            use std::ops::RangeBounds;
            let range = <[u8]>::with_prefix(prefix.clone()).unwrap();
            prop_assert_eq!(range.contains(&key), key.starts_with(&prefix));
        }
    }
}
