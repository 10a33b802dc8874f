//! Keys as stored in tables: byte strings in words, in the order of `memcmp`.
//!
//! A number's key is its eight bytes, most significant first, so that keys have the order of their
//! numbers.
//!
//! *Invariants*
//! - lsm.B1. Order, equality and hash of a key depend only on its bytes, not on the other bytes of
//!   its last word, which belong to the value.
//!
//! *Thread safety*: plain values.

use super::packed;
use smallvec::SmallVec;
use std::cmp::Ordering;

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 65_535;

/// A key that begins at a word.
#[derive(Clone, Copy, Debug)]
pub struct TableKey<'a> {
    /// As many words as the bytes need.
    words: &'a [u64],
    bytes: usize,
}

impl<'a> TableKey<'a> {
    /// The key in the first `bytes` bytes of `words`. `None` if there are fewer.
    #[inline]
    pub fn new(words: &'a [u64], bytes: usize) -> Option<Self> {
        Some(Self { words: words.get(..bytes.div_ceil(8))?, bytes })
    }

    /// Its length in bytes.
    #[inline]
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Its length in words, the last of which may be partly used.
    #[inline]
    pub fn words(self) -> usize {
        self.words.len()
    }

    /// The word at `index`, with zeros after the key's end.
    #[inline]
    pub fn word(self, index: usize) -> u64 {
        let word = self.words.get(index).copied().unwrap_or(0);
        packed::lowest(word, self.bytes.saturating_sub(index * 8))
    }

    /// Its first `bytes` bytes, or all if it has fewer.
    #[inline]
    pub(super) fn first(self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        Self { words: &self.words[..bytes.div_ceil(8)], bytes }
    }

    /// Eight bytes, starting at byte `at`, as a big-endian number, with zeros after the key's end.
    #[inline]
    pub(super) fn eight_from(self, at: usize) -> u64 {
        packed::lowest(packed::load(self.words, at), self.bytes.saturating_sub(at)).swap_bytes()
    }

    /// A number that orders keys whose first eight bytes differ.
    #[inline]
    pub fn head(self) -> u64 {
        self.word(0).swap_bytes()
    }

    /// The length of the longest common prefix.
    pub(super) fn common_bytes(self, other: Self) -> usize {
        let shorter = self.bytes.min(other.bytes);
        for index in 0..shorter.div_ceil(8) {
            let differ = self.word(index) ^ other.word(index);
            if differ != 0 {
                return shorter.min(index * 8 + differ.trailing_zeros() as usize / 8);
            }
        }
        shorter
    }

    /// The hash for filters and static functions: XXH3 of length and words.
    #[inline]
    pub fn hash(self) -> u64 {
        match self.words.split_last() {
            None => packed::hash(0, &[], None),
            Some((_, whole)) => {
                packed::hash(self.bytes as u64, whole, Some(self.word(whole.len())))
            }
        }
    }

    /// Its bytes.
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        packed::copy_out(self.words, 0, self.bytes, &mut bytes);
        bytes
    }

    /// The number that this key stands for; `None` if it does not have eight bytes.
    #[inline]
    pub fn number(self) -> Option<u64> {
        (self.bytes == 8).then(|| self.head())
    }
}

impl Ord for TableKey<'_> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let whole = self.bytes.min(other.bytes) / 8;
        for (one, two) in self.words[..whole].iter().zip(other.words) {
            if one != two {
                return one.swap_bytes().cmp(&two.swap_bytes());
            }
        }
        let (one, two) = (self.word(whole).swap_bytes(), other.word(whole).swap_bytes());
        one.cmp(&two).then(self.bytes.cmp(&other.bytes))
    }
}

impl PartialOrd for TableKey<'_> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for TableKey<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for TableKey<'_> {}

/// An owned key.
#[derive(Clone, Debug, Default)]
pub struct KeyBuf {
    words: SmallVec<[u64; 4]>,
    bytes: usize,
}

impl KeyBuf {
    /// The key of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let (whole, rest) = bytes.as_chunks::<8>();
        let mut words = SmallVec::with_capacity(bytes.len().div_ceil(8));
        for word in whole {
            words.push(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            words.push(u64::from_le_bytes(last));
        }
        Self { words, bytes: bytes.len() }
    }

    /// The key of a number.
    pub fn from_number(number: u64) -> Self {
        Self { words: SmallVec::from_slice(&[number.swap_bytes()]), bytes: 8 }
    }

    /// Replaces the content with a copy of `key`.
    #[inline]
    pub fn set(&mut self, key: TableKey<'_>) {
        self.words.clear();
        self.words.extend_from_slice(key.words);
        self.bytes = key.bytes;
    }

    /// Its borrowed form.
    #[inline]
    pub fn key(&self) -> TableKey<'_> {
        TableKey { words: &self.words, bytes: self.bytes }
    }
}

impl From<TableKey<'_>> for KeyBuf {
    fn from(key: TableKey<'_>) -> Self {
        let mut copy = Self::default();
        copy.set(key);
        copy
    }
}

impl Ord for KeyBuf {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for KeyBuf {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for KeyBuf {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for KeyBuf {}

/// The order of records in a table: keys ascend, and the versions of a key descend, so that the
/// newest comes first.
#[inline]
pub fn in_table_order(one: (TableKey<'_>, u64), two: (TableKey<'_>, u64)) -> Ordering {
    one.0.cmp(&two.0).then(two.1.cmp(&one.1))
}
