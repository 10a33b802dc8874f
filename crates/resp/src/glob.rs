//! Patterns of SCAN, KEYS and CONFIG GET: `*`, `?`, `[a-z]`, `[^a]`, and `\` before a literal byte.
//!
//! *Thread safety*: plain functions.

use crate::reply::RespReply;

/// The longest pattern. Matching takes the product of its length and that of the text.
const MAX_PATTERN_BYTES: usize = 1024;

/// The pattern, unless it is too long.
pub(crate) fn checked(pattern: Vec<u8>) -> Result<Vec<u8>, RespReply> {
    match pattern.len() {
        0..=MAX_PATTERN_BYTES => Ok(pattern),
        bytes => Err(RespReply::error(format!(
            "the pattern has {bytes} bytes, and can have at most {MAX_PATTERN_BYTES}"
        ))),
    }
}

/// The bytes that every match begins with, and whether the rest of the pattern is one `*`: then
/// every key with this prefix matches.
pub(crate) fn literal_prefix(pattern: &[u8]) -> (Vec<u8>, bool) {
    let (mut prefix, mut at) = (Vec::new(), 0);
    while let Some(byte) = pattern.get(at) {
        match byte {
            b'*' | b'?' | b'[' => break,
            b'\\' if at + 1 < pattern.len() => {
                at += 1;
                prefix.push(pattern[at]);
            }
            _ => prefix.push(*byte),
        }
        at += 1;
    }
    (prefix, &pattern[at..] == b"*")
}

/// Whether the whole text matches. Takes at most the product of both lengths in steps.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    // Where to continue if what follows the last `*` does not match: only the last one matters.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let matched = match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, read));
                at += 1;
                continue;
            }
            None if read == text.len() => return true,
            None => None,
            Some(_) => text.get(read).and_then(|byte| one(&pattern[at..], *byte)),
        };
        match (matched, &mut star) {
            (Some(length), _) => {
                at += length;
                read += 1;
            }
            (None, Some((behind, begun))) if *begun < text.len() => {
                *begun += 1;
                (at, read) = (*behind, *begun);
            }
            (None, _) => return false,
        }
    }
}

/// The length of the pattern's first element, if it matches this byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', ..] => set(pattern, byte),
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

/// As [`one`], for a set. One without an end reaches to the end of the pattern.
fn set(pattern: &[u8], byte: u8) -> Option<usize> {
    let is_negated = pattern.get(1) == Some(&b'^');
    let mut at = if is_negated { 2 } else { 1 };
    let mut is_in = false;
    while let Some(first) = pattern.get(at) {
        match first {
            b']' => {
                at += 1;
                break;
            }
            b'\\' if at + 1 < pattern.len() => {
                is_in |= pattern[at + 1] == byte;
                at += 2;
            }
            _ if pattern.get(at + 1) == Some(&b'-') && at + 2 < pattern.len() => {
                let (low, high) = (*first.min(&pattern[at + 2]), *first.max(&pattern[at + 2]));
                is_in |= (low..=high).contains(&byte);
                at += 3;
            }
            _ => {
                is_in |= *first == byte;
                at += 1;
            }
        }
    }
    (is_in != is_negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_documented() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*b*c", "axxbxxbc", true),
            ("a*b*c", "axxbxxb", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[a-e]llo", "hello", true),
            ("h[e-a]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[^e]llo", "hallo", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("a[\\]]", "a]", true),
            ("", "", true),
            ("", "a", false),
            ("a[", "a", false),
            ("[abc", "b", true),
            ("*a", "aaab", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        // Takes no exponential time.
        assert!(!matches(&b"a*".repeat(40), &[b'a'; 2000].map(|_| b'b')));
        assert!(!matches(&[b"*a".repeat(40), b"c".to_vec()].concat(), &[b'a'; 5000]));
    }

    #[test]
    fn a_prefix_is_literal() {
        assert_eq!(literal_prefix(b"user:*"), (b"user:".to_vec(), true));
        assert_eq!(literal_prefix(b"a\\*b?"), (b"a*b".to_vec(), false));
        assert_eq!(literal_prefix(b"abc"), (b"abc".to_vec(), false));
        assert_eq!(literal_prefix(b"*"), (Vec::new(), true));
    }
}
