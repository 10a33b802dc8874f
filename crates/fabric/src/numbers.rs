//! Numbers as people write them: `20_000_000`, `20M`. It is here because the programs of a cluster
//! and the laboratory read them alike, and have no other crate in common.
//!
//! *Thread safety*: plain functions.

/// Parses a number as people write it: digits, optionally with `_` between them, and one of these
/// suffixes, which stand for factors.
pub fn scaled(text: &str, suffixes: &[(&str, u64)]) -> Option<u64> {
    let found = suffixes
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|digits| (digits, *factor)));
    let (digits, factor) = found.unwrap_or((text, 1));
    let separated = digits.starts_with(|first: char| first.is_ascii_digit())
        && digits.chars().all(|character| character.is_ascii_digit() || character == '_')
        && !digits.ends_with('_');
    let number: u64 = if separated { digits.replace('_', "").parse().ok()? } else { return None };
    number.checked_mul(factor)
}

/// The suffixes of counts.
pub const THOUSANDS: [(&str, u64); 4] =
    [("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000)];

/// The suffixes of bytes: those of counts, and powers of 1024.
pub const BYTES: [(&str, u64); 8] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];
