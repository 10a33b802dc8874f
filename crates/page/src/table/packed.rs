//! Bytes and small numbers in words, and the hash of words.
//!
//! Words hold bytes in little-endian order. Reading beyond the end gives zeros, so that a wrong
//! position in damaged words leads to a wrong byte, but never out of the slice (lsm.B8).

use xxhash_rust::xxh3::xxh3_64;

/// Eight bytes, starting at byte `at`, as a little-endian number.
#[inline]
pub(super) fn load(words: &[u64], at: usize) -> u64 {
    let (index, shift) = (at / 8, at % 8 * 8);
    let word = |index: usize| words.get(index).copied().unwrap_or(0);
    match shift {
        0 => word(index),
        _ => word(index) >> shift | word(index + 1) << (64 - shift),
    }
}

/// The lowest `bytes` bytes of `word`; all of them if `bytes` is 8 or more.
#[inline]
pub(super) fn lowest(word: u64, bytes: usize) -> u64 {
    if bytes < 8 { word & ((1 << (bytes * 8)) - 1) } else { word }
}

/// The 32-bit number at `index`, two to a word.
#[inline]
pub(super) fn half(words: &[u64], index: usize) -> u32 {
    let word = words.get(index / 2).copied().unwrap_or(0);
    (word >> (index % 2 * 32)) as u32
}

/// The high and the low half of a word.
#[inline]
pub(super) fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// A word of two halves.
#[inline]
pub(super) fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Takes the next `count` words.
#[inline]
pub(super) fn take<'a>(words: &mut &'a [u64], count: usize) -> Option<&'a [u64]> {
    let (taken, rest) = words.split_at_checked(count)?;
    *words = rest;
    Some(taken)
}

/// Appends `bytes` bytes of `words`, starting at byte `at`, to `out`.
pub(super) fn copy_out(words: &[u64], at: usize, bytes: usize, out: &mut Vec<u8>) {
    let (begin, whole, shift) = (out.len(), bytes / 8, at % 8 * 8);
    out.resize(begin + whole * 8, 0);
    let to = out[begin..].as_chunks_mut::<8>().0;
    let inside = words.get(at / 8..at / 8 + whole + usize::from(shift > 0));
    // One loop for each case, without a check of each word, so that the compiler makes vectors.
    match inside {
        Some(from) if shift == 0 => {
            to.iter_mut().zip(from).for_each(|(to, word)| *to = word.to_le_bytes());
        }
        Some(from) => {
            for (to, [low, high]) in to.iter_mut().zip(from.array_windows()) {
                *to = (low >> shift | high << (64 - shift)).to_le_bytes();
            }
        }
        None => {
            for (index, to) in to.iter_mut().enumerate() {
                *to = load(words, at + index * 8).to_le_bytes();
            }
        }
    }
    let last = load(words, at + bytes / 8 * 8).to_le_bytes();
    out.extend_from_slice(&last[..bytes % 8]);
}

/// Appends bytes to words without gaps.
#[derive(Debug)]
pub(super) struct BytePacker<'a> {
    out: &'a mut Vec<u64>,
    /// The word being filled, with zeros above its `held` bytes.
    word: u64,
    held: usize,
}

impl<'a> BytePacker<'a> {
    pub(super) fn new(out: &'a mut Vec<u64>) -> Self {
        Self { out, word: 0, held: 0 }
    }

    /// The lowest `bytes` bytes of `word`, at most 8; the others are zero.
    #[inline]
    pub(super) fn push(&mut self, word: u64, bytes: usize) {
        let shift = self.held * 8;
        self.word |= word << shift;
        self.held += bytes;
        if self.held >= 8 {
            self.out.push(self.word);
            self.held -= 8;
            self.word = if shift == 0 { 0 } else { word >> (64 - shift) };
        }
    }

    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<8>();
        let shift = self.held * 8;
        let mut held = self.word;
        // As `push` for each word, but the vector grows once.
        self.out.extend(whole.iter().map(|bytes| {
            let word = u64::from_le_bytes(*bytes);
            let full = held | word << shift;
            held = if shift == 0 { 0 } else { word >> (64 - shift) };
            full
        }));
        self.word = held;
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.push(u64::from_le_bytes(last), rest.len());
    }

    /// Fills the last word with zeros.
    pub(super) fn finish(self) {
        if self.held > 0 {
            self.out.push(self.word);
        }
    }
}

/// XXH3 of `first`, `middle` and `last`, in pieces of 63 words; the last piece may have 64. The
/// first word of each further piece is the hash of the previous one. This is part of the format:
/// memory servers and compute servers must compute the same.
#[inline]
pub(super) fn hash(first: u64, middle: &[u64], last: Option<u64>) -> u64 {
    // Keys are short, and clearing a whole piece would cost more than hashing them.
    match middle.len() {
        0..=6 => hash_pieces::<64>(first, middle, last),
        _ => hash_pieces::<512>(first, middle, last),
    }
}

#[inline]
fn hash_pieces<const BYTES: usize>(first: u64, middle: &[u64], last: Option<u64>) -> u64 {
    let mut piece = [0; BYTES];
    let mut first = first;
    let mut rest = middle;
    loop {
        let part;
        (part, rest) = rest.split_at(rest.len().min(BYTES / 8 - 2));
        piece[..8].copy_from_slice(&first.to_le_bytes());
        for (to, word) in piece[8..].as_chunks_mut::<8>().0.iter_mut().zip(part) {
            *to = word.to_le_bytes();
        }
        let mut bytes = 8 + part.len() * 8;
        if rest.is_empty() {
            if let Some(last) = last {
                piece[bytes..bytes + 8].copy_from_slice(&last.to_le_bytes());
                bytes += 8;
            }
            return xxh3_64(&piece[..bytes]);
        }
        first = xxh3_64(&piece[..bytes]);
    }
}

/// The sum of a section.
pub(super) fn sum_of(words: &[u64]) -> u64 {
    hash(words.len() as u64, words, None)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The byte at `at`, zero beyond the end.
    fn byte(words: &[u64], at: usize) -> u8 {
        words.get(at / 8).map_or(0, |word| word.to_le_bytes()[at % 8])
    }

    proptest! {
        #[test]
        fn words_are_copied_as_their_bytes(
            words in proptest::collection::vec(any::<u64>(), 0..6),
            at in 0_usize..60,
            bytes in 0_usize..60,
        ) {
            let mut out = vec![7];
            copy_out(&words, at, bytes, &mut out);
            let expected = (at..at + bytes).map(|at| byte(&words, at));
            prop_assert_eq!(out, Vec::from_iter([7].into_iter().chain(expected)));
        }

        #[test]
        fn pieces_are_packed_without_gaps(
            pieces in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..30),
                0..6,
            ),
        ) {
            let all = pieces.concat();
            let mut words = vec![7];
            let mut packer = BytePacker::new(&mut words);
            pieces.iter().for_each(|piece| packer.push_bytes(piece));
            packer.finish();
            prop_assert_eq!(words[0], 7);
            prop_assert_eq!(words.len(), 1 + all.len().div_ceil(8));
            let packed = (0..all.len().next_multiple_of(8)).map(|at| byte(&words[1..], at));
            let padded = all.iter().copied().chain(std::iter::repeat(0));
            prop_assert!(packed.zip(padded).all(|(packed, byte)| packed == byte));
        }
    }
}
