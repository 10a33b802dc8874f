//! How leaves store values if there are value blocks: inline, or as a reference to a block.
//!
//! ```text
//! inline value of fewer than 19 bytes       its bytes
//! inline value of 19 bytes and more         its bytes, then one zero byte
//! reference, 19 bytes                       [address:64][length:24][check:64]
//! ```
//!
//! The length alone tells the two apart, so short values take no extra byte.
//!
//! *Invariants*
//! - blocks.X3. `check` is a sum over the address, the length and all words of the block. Two
//!   blocks have equal references only if they have equal content.
//!
//! *Thread safety*: plain values.

use super::checksum::sum_of;
use farleaf_fabric::GlobalAddr;
use std::borrow::Cow;

/// The length of a reference.
pub const REFERENCE_BYTES: usize = 19;
/// Maximum length of a value in a block.
pub const MAX_BLOCK_BYTES: usize = 1 << 20;

const LENGTH_BYTES: usize = REFERENCE_BYTES - 2 * size_of::<u64>();
const _: () = assert!(MAX_BLOCK_BYTES < 1 << (8 * LENGTH_BYTES));

/// A reference to a value block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRef {
    /// Where the block begins; aligned to a word.
    pub at: GlobalAddr,
    /// The length of the value.
    pub bytes: usize,
    /// The sum over the block (blocks.X3).
    pub check: u64,
}

impl BlockRef {
    /// The reference to a block of `words`, the last one zero-padded, at `at`.
    pub fn new(at: GlobalAddr, bytes: usize, words: impl Iterator<Item = u64>) -> Self {
        let check = sum_of([at.to_bits(), bytes as u64].into_iter().chain(words));
        Self { at, bytes, check }
    }

    /// The number of words of the block.
    pub fn words(&self) -> usize {
        self.bytes.div_ceil(size_of::<u64>())
    }

    /// The bytes that represent the reference in a leaf.
    pub fn to_stored(self) -> [u8; REFERENCE_BYTES] {
        let mut stored = [0; REFERENCE_BYTES];
        let (address, rest) = stored.split_at_mut(size_of::<u64>());
        let (length, check) = rest.split_at_mut(LENGTH_BYTES);
        address.copy_from_slice(&self.at.to_bits().to_le_bytes());
        length.copy_from_slice(&(self.bytes as u32).to_le_bytes()[..LENGTH_BYTES]);
        check.copy_from_slice(&self.check.to_le_bytes());
        stored
    }

    fn from_stored(stored: &[u8; REFERENCE_BYTES]) -> Self {
        let word = |at: usize, bytes: usize| {
            let mut word = [0; size_of::<u64>()];
            word[..bytes].copy_from_slice(&stored[at..at + bytes]);
            u64::from_le_bytes(word)
        };
        Self {
            at: GlobalAddr::from_bits(word(0, 8)),
            bytes: word(8, LENGTH_BYTES) as usize,
            check: word(8 + LENGTH_BYTES, 8),
        }
    }
}

/// The meaning of the bytes of a value in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredValue<'a> {
    /// The value itself.
    Inline(&'a [u8]),
    /// The value is in this block.
    Block(BlockRef),
}

impl<'a> StoredValue<'a> {
    /// Decodes `stored`. Any bytes decode to something; a reader must check that the block exists.
    pub fn of(stored: &'a [u8]) -> Self {
        match <&[u8; REFERENCE_BYTES]>::try_from(stored) {
            Ok(reference) => Self::Block(BlockRef::from_stored(reference)),
            Err(_) if stored.len() < REFERENCE_BYTES => Self::Inline(stored),
            Err(_) => Self::Inline(&stored[..stored.len() - 1]),
        }
    }
}

/// The bytes that represent `value` in a leaf, if it is inline.
pub fn stored_inline(value: &[u8]) -> Cow<'_, [u8]> {
    if value.len() < REFERENCE_BYTES {
        return Cow::Borrowed(value);
    }
    let mut stored = Vec::with_capacity(value.len() + 1);
    stored.extend_from_slice(value);
    stored.push(0);
    Cow::Owned(stored)
}

/// The words of a block that holds `value`.
pub fn block_words(value: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; size_of::<u64>()];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    value.chunks(size_of::<u64>()).map(word).collect()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    #[test]
    fn inline_values_of_all_lengths_are_themselves() {
        for length in 0..64 {
            let value: Vec<u8> = (0..length).map(|byte| byte as u8 ^ 0xa5).collect();
            let stored = stored_inline(&value);
            assert_ne!(stored.len(), REFERENCE_BYTES);
            assert_eq!(stored.len(), length + usize::from(length >= REFERENCE_BYTES));
            assert_eq!(StoredValue::of(&stored), StoredValue::Inline(&value));
        }
    }

    #[test]
    fn references_are_themselves() {
        for (server, offset, bytes) in [(0, 8, 0), (3, 1 << 40, 1), (32_000, 4096, MAX_BLOCK_BYTES)]
        {
            let at = GlobalAddr::new(ServerId::new(server), offset);
            let reference = BlockRef::new(at, bytes, [7, u64::MAX].into_iter());
            assert_eq!(StoredValue::of(&reference.to_stored()), StoredValue::Block(reference));
        }
    }

    #[test]
    fn a_check_covers_address_length_and_every_word() {
        let at = |offset| GlobalAddr::new(ServerId::new(1), offset);
        let words = block_words(b"a value of some words");
        let check =
            |at, bytes, words: &[u64]| BlockRef::new(at, bytes, words.iter().copied()).check;
        let sound = check(at(64), 21, &words);
        assert_ne!(sound, check(at(72), 21, &words));
        assert_ne!(sound, check(at(64), 20, &words));
        for word in 0..words.len() {
            for bit in 0..64 {
                let mut torn = words.clone();
                torn[word] ^= 1 << bit;
                assert_ne!(sound, check(at(64), 21, &torn), "bit {bit} of word {word}");
            }
        }
    }
}
