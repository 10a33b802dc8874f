//! A filter over the keys of one MemTable, which answers most lookups of absent keys.
//!
//! It is a Bloom filter in which all bits of a key are in one word, so a key costs one access. A
//! read passes up to 17 MemTables, and without filters each of them would cost a search.
//!
//! *Invariants* (`docs/internals/memtable.md`)
//! - memtable.M2. A key's bits are set before its first version is linked, and never cleared.
//!
//! *Thread safety*: any number of threads. A thread that knows of a version also sees its key's
//! bits, because they were set before the version was linked.

use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{prefetch, table};

/// Number of bits set per key.
const BITS: u32 = 4;

/// The bits of a key in its word.
fn bits_of(hash: u64) -> u64 {
    (0..BITS).fold(0, |bits, number| bits | 1 << (hash >> (6 * number) & 63))
}

/// The filter of one MemTable.
#[derive(Debug)]
pub(super) struct MemTableFilter(Box<[AtomicU64]>);

impl MemTableFilter {
    /// Creates a filter of `bytes` bytes, rounded down to words, but at least one word.
    pub(super) fn new(bytes: usize) -> Self {
        Self(table((bytes / 8).max(1), |_| AtomicU64::new(0)))
    }

    #[inline]
    fn word(&self, hash: u64) -> &AtomicU64 {
        // The upper half of the hash, which `bits_of` does not use.
        let place = ((hash >> 32) * self.0.len() as u64) >> 32;
        &self.0[place as usize]
    }

    /// Asks the processor for the bits of a key, which are changed after its search.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(self.word(hash));
    }

    /// Adds a key.
    #[inline]
    pub(super) fn add(&self, hash: u64) {
        self.word(hash).fetch_or(bits_of(hash), Ordering::Relaxed);
    }

    /// Whether the key may have been added. False only if it was not.
    #[inline]
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        let bits = bits_of(hash);
        self.word(hash).load(Ordering::Relaxed) & bits == bits
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::SearchKey;

    #[test]
    fn what_was_added_is_there_and_little_else() {
        const KEYS: u64 = 50_000;
        let hash = |key: u64| SearchKey::new(&key.to_be_bytes()).hash();
        let filter = MemTableFilter::new(2 * KEYS as usize);
        (0..KEYS).for_each(|key| filter.add(hash(key)));
        assert!((0..KEYS).all(|key| filter.may_hold(hash(key))));
        let wrong = (KEYS..2 * KEYS).filter(|key| filter.may_hold(hash(*key))).count() as f64;
        let share = wrong / KEYS as f64;
        // 16 bits per key: a word has 4 keys on average, which set 14 of its 64 bits.
        assert!((0.001..0.006).contains(&share), "{share}");
    }
}
