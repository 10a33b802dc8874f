//! Keys as words: their comparison, and their form in a MemTable.
//!
//! A key is a byte string. In memory its bytes are in order, zero-padded to words; an empty key has
//! one word. For comparisons, a word is read as a big-endian number: the numbers have the order of
//! the bytes, and of two keys with equal words the shorter one is lower.
//!
//! *Thread safety*: plain values.

use farleaf_fabric::sync::{AtomicU64, Ordering};
use smallvec::SmallVec;
use std::cmp;

/// The number of words that a key of `bytes` bytes takes.
#[inline]
pub(super) fn key_words(bytes: usize) -> usize {
    bytes.div_ceil(8).max(1)
}

/// A key to search for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchKey {
    /// Big-endian numbers.
    words: SmallVec<[u64; 8]>,
    bytes: usize,
}

impl SearchKey {
    /// The key `bytes`.
    #[inline]
    pub fn new(bytes: &[u8]) -> Self {
        let (whole, rest) = bytes.as_chunks::<8>();
        let mut words: SmallVec<[u64; 8]> =
            whole.iter().map(|word| u64::from_be_bytes(*word)).collect();
        if !rest.is_empty() || words.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            words.push(u64::from_be_bytes(last));
        }
        Self { words, bytes: bytes.len() }
    }

    /// The length in bytes.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The length in words.
    #[inline]
    pub(super) fn words(&self) -> usize {
        self.words.len()
    }

    /// The hash for filters, which is the same in all MemTables.
    #[inline]
    pub(super) fn hash(&self) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let fold = |hash: u64, word: u64| {
            let product = u128::from(hash ^ word) * u128::from(ODD);
            (product as u64) ^ (product >> 64) as u64
        };
        let start = (self.bytes as u64).wrapping_mul(ODD) ^ ODD;
        let hash = self.words.iter().fold(start, |hash, word| fold(hash, *word).wrapping_add(ODD));
        fold(hash, hash >> 32)
    }

    /// Writes the key into `to`.
    #[inline]
    pub(super) fn store(&self, to: &[AtomicU64]) {
        for (word, to) in self.words.iter().zip(to) {
            to.store(word.to_be(), Ordering::Relaxed);
        }
    }

    /// Compares a stored key with this one. Its length is only read if the first words are equal.
    #[inline]
    pub(super) fn order_of(
        &self,
        stored: &[AtomicU64],
        bytes: impl FnOnce() -> usize,
    ) -> cmp::Ordering {
        let first = u64::from_be(stored[0].load(Ordering::Relaxed));
        match first.cmp(&self.words[0]) {
            cmp::Ordering::Equal => self.order_of_rest(stored, bytes()),
            unequal => unequal,
        }
    }

    fn order_of_rest(&self, stored: &[AtomicU64], bytes: usize) -> cmp::Ordering {
        let stored = &stored[1..key_words(bytes)];
        for (stored, own) in stored.iter().zip(&self.words[1..]) {
            let stored = u64::from_be(stored.load(Ordering::Relaxed));
            if stored != *own {
                return stored.cmp(own);
            }
        }
        bytes.cmp(&self.bytes)
    }
}

/// The expected common prefix of the keys of a MemTable. The four bytes after it are the *hint* of
/// a key, which distinguishes most keys. Every key has a hint, and hints never contradict the order
/// of keys, so a wrong prefix only makes hints equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Prefix {
    /// Big-endian numbers.
    words: SmallVec<[u64; 4]>,
    bytes: usize,
}

impl Prefix {
    /// The common prefix of two keys.
    pub(super) fn of(low: &[u8], high: &[u8]) -> Self {
        let bytes = low.iter().zip(high).take_while(|(low, high)| low == high).count();
        let SearchKey { words, .. } = SearchKey::new(&low[..bytes]);
        Self { words: SmallVec::from_slice(&words), bytes }
    }

    /// The hint of `key`.
    #[inline]
    pub(super) fn hint(&self, key: &SearchKey) -> u32 {
        let word = |index: usize| key.words.get(index).copied().unwrap_or(0);
        let (whole, rest) = (self.bytes / 8, 8 * (self.bytes % 8));
        // The words that contain the prefix, truncated after it.
        for (index, own) in self.words[..self.bytes.div_ceil(8)].iter().enumerate() {
            let cut = if index < whole { 0 } else { 64 - rest };
            match (word(index) >> cut).cmp(&(own >> cut)) {
                cmp::Ordering::Less => return 0,
                cmp::Ordering::Equal => {}
                cmp::Ordering::Greater => return u32::MAX,
            }
        }
        let window = u128::from(word(whole)) << 64 | u128::from(word(whole + 1));
        ((window << rest) >> 96) as u32
    }
}

/// A key in a MemTable.
#[derive(Clone, Copy, Debug)]
pub struct KeyWords<'t> {
    words: &'t [AtomicU64],
    bytes: usize,
}

impl<'t> KeyWords<'t> {
    pub(super) fn new(words: &'t [AtomicU64], bytes: usize) -> Self {
        Self { words, bytes }
    }

    /// Appends the key's bytes to `to`.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        append_bytes(self.words, self.bytes, to);
    }

    /// The key's bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.words.len() * 8);
        self.append_to(&mut bytes);
        bytes
    }

    /// Converts the key for use in a search.
    pub fn to_search_key(&self) -> SearchKey {
        let number = |word: &AtomicU64| u64::from_be(word.load(Ordering::Relaxed));
        SearchKey { words: self.words.iter().map(number).collect(), bytes: self.bytes }
    }
}

/// Appends the first `bytes` bytes of `words` to `to`.
pub(super) fn append_bytes(words: &[AtomicU64], bytes: usize, to: &mut Vec<u8>) {
    let length = to.len() + bytes;
    to.reserve(words.len() * 8);
    for word in words {
        to.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    to.truncate(length);
}

/// Writes `bytes` into `words`, zero-padded.
pub(super) fn store_bytes(bytes: &[u8], words: &[AtomicU64]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (bytes, word) in whole.iter().zip(words) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()].store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stored(key: &[u8]) -> Vec<AtomicU64> {
        let words = Vec::from_iter((0..key_words(key.len())).map(|_| AtomicU64::new(!0)));
        SearchKey::new(key).store(&words);
        words
    }

    proptest! {
        /// Few distinct bytes, so that the prefix is sometimes right.
        #[test]
        fn hints_never_order_against_keys(
            prefix in proptest::collection::vec(0_u8..2, 0..12),
            mut keys in proptest::collection::vec(proptest::collection::vec(0_u8..2, 0..18), 2),
        ) {
            let prefix = Prefix::of(&prefix, &prefix);
            keys.sort();
            let hints: Vec<_> =
                keys.iter().map(|key| prefix.hint(&SearchKey::new(key))).collect();
            prop_assert!(hints.is_sorted(), "{:?} {:?} {:?}", prefix, keys, hints);
        }

        /// Few distinct bytes, so that keys share prefixes and differ in their zeros.
        #[test]
        fn keys_order_as_byte_strings(
            one in proptest::collection::vec(0_u8..3, 0..20),
            other in proptest::collection::vec(0_u8..3, 0..20),
        ) {
            let words = stored(&one);
            let order = SearchKey::new(&other).order_of(&words, || one.len());
            prop_assert_eq!(order, one.cmp(&other));
            let key = KeyWords::new(&words, one.len());
            prop_assert_eq!(key.to_search_key(), SearchKey::new(&one));
            prop_assert_eq!(key.to_vec(), one);
        }
    }

    #[test]
    fn hints_are_the_bytes_behind_the_prefix() {
        let prefix = Prefix::of(b"customer/17", b"customer/29");
        let hint = |key: &[u8]| prefix.hint(&SearchKey::new(key)).to_be_bytes();
        assert_eq!(&hint(b"customer/24601"), b"2460");
        assert_eq!(&hint(b"customer/3"), b"3\0\0\0");
        assert_eq!(hint(b"customer"), [0; 4]);
        assert_eq!(hint(b"d"), [255; 4]);
    }
}
