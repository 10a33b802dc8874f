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
        let mut words = SmallVec::with_capacity(key_words(bytes.len()));
        for word in whole {
            words.push(u64::from_be_bytes(*word));
        }
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

/// What the keys of a MemTable are expected to have in common: a prefix and, behind it, the upper
/// halves of some bytes, which are the same in all decimal digits. What differs is the *hint* of a
/// key. Every key has a hint, and hints never contradict the order of keys, so a wrong expectation
/// only makes hints equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommonPrefix {
    /// Big-endian numbers.
    words: SmallVec<[u64; 4]>,
    bytes: usize,
    /// Those of the 16 bytes behind the prefix. `None` if they are not expected to be the same.
    upper_halves: Option<u128>,
}

const UPPER_HALVES: u128 = u128::MAX / 0xff * 0xf0;
/// The first 12 of 16 bytes: a hint has at most as many halves if the memory has 512 KiB or more,
/// and up to 13 in less.
const FIRST_TWELVE: u128 = !(u128::MAX >> 96);

/// The lower halves of all bytes.
fn lower_halves(eight: u64) -> u64 {
    let halves = eight & 0x0f0f_0f0f_0f0f_0f0f;
    let bytes = (halves | halves >> 4) & 0x00ff_00ff_00ff_00ff;
    let pairs = (bytes | bytes >> 8) & 0x0000_ffff_0000_ffff;
    (pairs | pairs >> 16) & 0xffff_ffff
}

impl CommonPrefix {
    /// What two keys have in common: at least the lowest and the highest one.
    pub(super) fn of(low: &[u8], high: &[u8]) -> Self {
        let bytes = low.iter().zip(high).take_while(|(low, high)| low == high).count();
        let SearchKey { words, .. } = SearchKey::new(&low[..bytes]);
        Self { words: SmallVec::from_slice(&words), bytes, upper_halves: None }
    }

    /// The same, after a look at more keys.
    pub(super) fn refined(self, keys: &[SearchKey]) -> Self {
        let mut halves = keys.iter().map(|key| self.sixteen_behind(key) & UPPER_HALVES);
        let first = halves.next();
        let is_same = |first: &u128| halves.all(|each| (each ^ first) & FIRST_TWELVE == 0);
        let upper_halves = first.filter(is_same);
        Self { upper_halves, ..self }
    }

    /// The 16 bytes behind the prefix, zero-padded.
    #[inline]
    fn sixteen_behind(&self, key: &SearchKey) -> u128 {
        let word = |index: usize| u128::from(key.words.get(index).copied().unwrap_or(0));
        let (whole, rest) = (self.bytes / 8, 8 * (self.bytes % 8));
        let last = (word(whole + 2) << rest) >> 64;
        (word(whole) << 64 | word(whole + 1)) << rest | last
    }

    /// The hint of `key`, of which the upper bits count more.
    #[inline]
    pub(super) fn hint(&self, key: &SearchKey) -> u64 {
        let word = |index: usize| key.words.get(index).copied().unwrap_or(0);
        let (whole, rest) = (self.bytes / 8, 8 * (self.bytes % 8));
        // The words that contain the prefix, truncated after it.
        for (index, own) in self.words[..self.bytes.div_ceil(8)].iter().enumerate() {
            let cut = if index < whole { 0 } else { 64 - rest };
            match (word(index) >> cut).cmp(&(own >> cut)) {
                cmp::Ordering::Less => return 0,
                cmp::Ordering::Equal => {}
                cmp::Ordering::Greater => return u64::MAX,
            }
        }
        let bytes = self.sixteen_behind(key);
        let Some(expected) = self.upper_halves else { return (bytes >> 64) as u64 };
        let hint = lower_halves((bytes >> 64) as u64) << 32 | lower_halves(bytes as u64);
        let found = bytes & UPPER_HALVES;
        if found == expected {
            return hint;
        }
        // From the first unexpected half on, the key is below or above all expected ones.
        let expected_bytes = (found ^ expected).leading_zeros() / 8;
        let rest = u64::MAX >> (4 * expected_bytes);
        if found < expected { hint & !rest } else { hint | rest }
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
    let begin = to.len();
    to.resize(begin + words.len() * 8, 0);
    for (to, word) in to[begin..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    to.truncate(begin + bytes);
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
            expected in proptest::option::of(proptest::collection::vec(15_u8..18, 0..30)),
            mut keys in proptest::collection::vec(
                (
                    proptest::collection::vec(0_u8..2, 0..12),
                    proptest::collection::vec(15_u8..18, 0..18),
                ),
                2,
            ),
        ) {
            let expected: Vec<_> = expected.iter().map(|key| SearchKey::new(key)).collect();
            let prefix = CommonPrefix::of(&prefix, &prefix).refined(&expected);
            let mut keys: Vec<_> = keys.drain(..).map(|(one, other)| [one, other].concat()).collect();
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
        let prefix = CommonPrefix::of(b"customer/17", b"customer/29");
        let hint = |key: &[u8]| prefix.hint(&SearchKey::new(key)).to_be_bytes();
        assert_eq!(&hint(b"customer/2460132197"), b"24601321");
        assert_eq!(&hint(b"customer/3"), b"3\0\0\0\0\0\0\0");
        assert_eq!(hint(b"customer"), [0; 8]);
        assert_eq!(hint(b"d"), [255; 8]);
    }

    #[test]
    fn hints_of_digits_have_only_their_lower_halves() {
        let key = SearchKey::new;
        let plain = CommonPrefix::of(b"customer/1", b"customer/9");
        let digits = [key(b"customer/1234567890123"), key(b"customer/9999999999999")];
        let prefix = plain.clone().refined(&digits);
        assert_eq!(prefix.hint(&key(b"customer/2460132197024")), 0x2460_1321_9702_4000);
        assert_eq!(prefix.hint(&key(b"customer/246")), 0x2460 << 48, "below all digits");
        assert_eq!(prefix.hint(&key(b"customer/246x")), 0x246f_ffff_ffff_ffff, "above them");
        assert_eq!(prefix.hint(&key(b"customer")), 0);
        let others = [key(b"customer/1234567890123"), key(b"customer/12345678901x3")];
        assert_eq!(plain.clone().refined(&others), plain, "the upper halves differ");
        assert_eq!(plain.clone().refined(&[]), plain);
    }
}
