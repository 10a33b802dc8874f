//! Bloom filters, as in the paper. They tell which keys a table may have.
//!
//! ```text
//! word 0  [bits:48][0:8][bits that a lookup tests:8]
//! then    the bits, zero-padded to a word
//! ```
//!
//! *Invariants*
//! - lsm.B6. No filter ever reports an added key as absent.
//!
//! *Thread safety*: plain values, over private copies of words.

use super::packed::take;

/// Maximum number of bits per key: with more, false positives would be rarer than one in 10,000
/// gets.
pub const MAX_BLOOM_BITS: u8 = 20;

/// The bits of `bits` that belong to `hash`.
#[inline]
fn probes(hash: u64, bits: u64, count: u8) -> impl Iterator<Item = u64> {
    // Double hashing: an arithmetic sequence of 64-bit numbers, scaled to the filter.
    let step = hash.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let number = move |round: u8| hash.wrapping_add(step.wrapping_mul(round.into()));
    (0..count).map(move |round| ((u128::from(number(round)) * u128::from(bits)) >> 64) as u64)
}

/// Appends the words of a filter with `bits_per_key` bits for each of `hashes`, from 1 to
/// [`MAX_BLOOM_BITS`].
pub(super) fn build_bloom(
    hashes: impl ExactSizeIterator<Item = u64>,
    bits: u8,
    out: &mut Vec<u64>,
) {
    let bits_per_key = u64::from(bits.clamp(1, MAX_BLOOM_BITS));
    // The best number of probes is the bits per key times ln 2.
    let count = ((bits_per_key * 693 + 500) / 1000).max(1) as u8;
    let bits = (hashes.len() as u64 * bits_per_key).next_multiple_of(64);
    out.push(bits << 16 | u64::from(count));
    let begin = out.len();
    out.resize(begin + (bits / 64) as usize, 0);
    for hash in hashes {
        for bit in probes(hash, bits, count) {
            out[begin + (bit / 64) as usize] |= 1 << (bit % 64);
        }
    }
}

/// The filter in a section's words.
#[derive(Clone, Copy, Debug)]
pub struct BloomFilter<'a> {
    words: &'a [u64],
    count: u8,
}

impl<'a> BloomFilter<'a> {
    /// The filter of a section that has exactly these words.
    pub fn open(words: &'a [u64]) -> Option<Self> {
        let mut rest = words;
        let head = take(&mut rest, 1)?[0];
        let (bits, count) = (head >> 16, head as u8);
        let fits = bits == rest.len() as u64 * 64 && (1..=MAX_BLOOM_BITS).contains(&count);
        fits.then_some(Self { words: rest, count })
    }

    /// Whether a key with this hash may be there.
    #[inline]
    pub fn may_have(self, hash: u64) -> bool {
        let is_set = |bit: u64| {
            let word = self.words.get((bit / 64) as usize).copied().unwrap_or(0);
            word >> (bit % 64) & 1 == 1
        };
        probes(hash, self.words.len() as u64 * 64, self.count).all(is_set)
    }
}
