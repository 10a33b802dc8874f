//! Word 7 of pages that clients READ one-sided: a checksum over all other words.
//!
//! A READ is atomic only word by word, so no version *inside* the page can prove that a copy is
//! consistent. This sum can. A bijection first mixes each word with its position. So a page that
//! differs from a sealed one in a single word never passes, and one that differs in several words
//! passes with probability 2^-64. Because it is a sum, it could be updated from the changed words
//! alone.
//!
//! Of word 0, only the version counts, because the lock bit and the owner change by CAS without the
//! rest of the page.
//!
//! *Thread safety*: for private copies. Over shared memory, the result describes some mixture of
//! words.

use super::layout::Layout;
use super::lock_word::LockWord;
use super::view::{ENTRY_LOCK_WORD, Page};

/// The word with the checksum.
const CHECKSUM_WORD: usize = 7;

/// A word's contribution to the sum: a bijection of the word, different for each position.
#[inline(always)]
fn mix(place: usize, word: u64) -> u64 {
    let mut mixed = word.wrapping_add((place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ mixed >> 29).wrapping_mul(0xa076_1d64_78bd_642f);
    mixed ^ mixed >> 32
}

/// The sum over `words`, the first of which is at position 0.
#[inline]
pub fn sum_of(words: impl Iterator<Item = u64>) -> u64 {
    words.enumerate().fold(0, |sum, (place, word)| sum.wrapping_add(mix(place, word)))
}

/// A sum over `words` that adds little to the cost of a cache miss: one folded multiplication per
/// two words, chained.
#[inline]
pub(super) fn chained_sum(mut words: impl Iterator<Item = u64>) -> u64 {
    let mut sum = 0x9e37_79b9_7f4a_7c15_u64;
    while let Some(first) = words.next() {
        let second = words.next().unwrap_or(0xd6e8_feb8_6659_fd93);
        let first = u128::from(first ^ 0x2d35_8dcc_aa6c_78a5);
        let product = first * u128::from(second ^ 0x8bb8_4b93_962e_acc9);
        sum = sum.rotate_left(23) ^ (product as u64) ^ (product >> 64) as u64;
    }
    sum
}

impl<L: Layout> Page<'_, L> {
    fn sum(self, word: LockWord) -> u64 {
        let mut sum = mix(0, word.version());
        // Entries that are written one by one have checks of their own.
        let (front, end) = match L::BY_ENTRIES {
            true if self.level() == 0 => (ENTRY_LOCK_WORD, CHECKSUM_WORD + 1),
            true => (ENTRY_LOCK_WORD, L::page_words()),
            false => (CHECKSUM_WORD, L::page_words()),
        };
        for index in (1..front).chain(CHECKSUM_WORD + 1..end) {
            sum = sum.wrapping_add(mix(index, self.load(index)));
        }
        sum
    }

    /// The latch in word 0.
    #[inline]
    pub fn lock_word(self) -> LockWord {
        LockWord::from_bits(self.load(0))
    }

    /// Stores `word` in word 0, and the checksum of the resulting page in word 7.
    ///
    /// The checksum covers all words, so the unused words of an inner page are set to zero. A log
    /// entry has only the words that change, so the other words must equal the pool's instead of
    /// whatever the frame held before.
    pub fn seal(self, word: LockWord) {
        if self.level() > 0 {
            L::clear_unused(self);
        }
        self.store(0, word.to_bits());
        L::seal_entries(self);
        self.store(CHECKSUM_WORD, self.sum(word));
    }

    /// Whether all words belong to the version of the page that word 0 names. A lock on that
    /// version does not matter.
    #[inline]
    pub fn is_of_one_piece(self) -> bool {
        self.has_whole_header() && L::entries_are_whole(self)
    }

    /// Whether all words outside of entries that are written one by one belong to the version that
    /// word 0 names.
    #[inline]
    pub fn has_whole_header(self) -> bool {
        self.load(CHECKSUM_WORD) == self.sum(self.lock_word())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::{Fixed8, Layout};
    use super::*;
    use farleaf_fabric::sync::{AtomicU64, Ordering};
    use farleaf_fabric::{GlobalAddr, ServerId};

    #[test]
    fn every_word_counts_and_so_does_its_place() {
        let words: Vec<AtomicU64> = (0..128).map(|_| AtomicU64::new(0)).collect();
        let page = Page::<Fixed8>::new(&words);
        assert!(!page.is_of_one_piece(), "a page of zeros was never sealed");
        page.format_empty(GlobalAddr::new(ServerId::new(1), 4096), 0, &5, None);
        for key in 5..40 {
            Fixed8::<128>::leaf_insert(page, &key, &(key * 3));
        }
        let word = LockWord::from_bits(0).next_by(3);
        page.seal(word);
        assert!(page.is_of_one_piece());
        for (index, held) in words.iter().enumerate() {
            let before = held.fetch_add(1 << (index % 48), Ordering::Relaxed);
            assert!(!page.is_of_one_piece(), "word {index}");
            held.store(before, Ordering::Relaxed);
        }
        for index in 20..30 {
            let swap = |a: usize, b: usize| {
                let held = words[a].load(Ordering::Relaxed);
                words[a].store(words[b].swap(held, Ordering::Relaxed), Ordering::Relaxed);
            };
            swap(index, index + 1);
            assert!(!page.is_of_one_piece(), "words {index} and {} swapped", index + 1);
            swap(index, index + 1);
        }
        words[0].store(word.locked_by(7).to_bits(), Ordering::Relaxed);
        assert!(page.is_of_one_piece(), "a lock on this version does not change the page");
    }
}
