//! The versions of a key: a chain from the newest to the oldest.
//!
//! ```text
//! word 0   [number:56][kind:8]
//! word 1   [value bytes:32][older version:32]
//! word 2 … the value, zero-padded
//! ```
//!
//! *Invariants* (`docs/internals/memtable.md`)
//! - memtable.Q4. A version is linked by a CAS that expects the head read *before* its number was
//!   taken. So numbers descend along a chain: any version in it was linked before that read, with a
//!   lower number.
//! - memtable.M5. A linked version never changes, and stays as long as its table.
//!
//! *Thread safety*: the words of a version are written before it is linked.

use super::arena::{ArenaEnd, ArenaOffset, MemTableArena, NOWHERE};
use super::search_key::{append_bytes, store_bytes};
use farleaf_fabric::prefetch;
use farleaf_fabric::sync::{AtomicU64, Ordering};

const HEADER_WORDS: usize = 2;

/// The meaning of a version for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VersionKind {
    /// The key has a value.
    Value = 1,
    /// The key was removed.
    Tombstone = 2,
}

/// Memory for a version that is not linked yet. Its writer reuses it if linking fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlankVersion {
    place: ArenaOffset,
    value_words: usize,
}

impl BlankVersion {
    /// Takes memory for a value of `value_bytes` bytes.
    pub(super) fn take(arena: &MemTableArena, value_bytes: usize) -> Option<Self> {
        let value_words = value_bytes.div_ceil(8);
        let place = arena.take(HEADER_WORDS + value_words, ArenaEnd::Back)?;
        Some(Self { place, value_words })
    }

    /// Whether a value of `value_bytes` bytes takes exactly this memory.
    pub(super) fn fits(&self, value_bytes: usize) -> bool {
        self.value_words == value_bytes.div_ceil(8)
    }

    pub(super) fn place(&self) -> ArenaOffset {
        self.place
    }

    /// Writes the value and the place of the next older version.
    pub(super) fn fill(&self, words: &[AtomicU64], value: &[u8], older: ArenaOffset) {
        let place = self.place as usize;
        let lengths = (value.len() as u64) << 32 | u64::from(older);
        words[place + 1].store(lengths, Ordering::Relaxed);
        let first = place + HEADER_WORDS;
        store_bytes(value, &words[first..first + self.value_words]);
    }

    /// Writes the number, as the last step before the version is linked.
    #[inline]
    pub(super) fn number(&self, words: &[AtomicU64], number: u64, kind: VersionKind) {
        words[self.place as usize].store(number << 8 | kind as u64, Ordering::Relaxed);
    }
}

/// A version in a MemTable.
#[derive(Clone, Copy, Debug)]
pub struct MemTableVersion<'t> {
    words: &'t [AtomicU64],
    place: usize,
}

impl<'t> MemTableVersion<'t> {
    #[inline]
    pub(super) fn at(words: &'t [AtomicU64], place: ArenaOffset) -> Option<Self> {
        (place != NOWHERE).then_some(Self { words, place: place as usize })
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        self.words[self.place + index].load(Ordering::Relaxed)
    }

    /// The version's number.
    #[inline]
    pub fn number(&self) -> u64 {
        self.word(0) >> 8
    }

    /// The kind of the version.
    #[inline]
    pub fn kind(&self) -> VersionKind {
        if self.word(0) as u8 == VersionKind::Value as u8 {
            VersionKind::Value
        } else {
            VersionKind::Tombstone
        }
    }

    /// The length of the value in bytes, 0 for a tombstone.
    #[inline]
    pub fn value_bytes(&self) -> usize {
        (self.word(1) >> 32) as usize
    }

    fn value_words(&self) -> &'t [AtomicU64] {
        let first = self.place + HEADER_WORDS;
        &self.words[first..first + self.value_bytes().div_ceil(8)]
    }

    /// Asks the processor for the version and the first bytes of its value.
    #[inline]
    pub(super) fn prefetch(&self) {
        /// As many as the processor can wait for together.
        const MAX_WORDS: usize = 64;
        let end = self.words.len().min(self.place + MAX_WORDS);
        prefetch(&self.words[self.place..end]);
    }

    /// Appends the value to `to`.
    pub fn append_value_to(&self, to: &mut Vec<u8>) {
        append_bytes(self.value_words(), self.value_bytes(), to);
    }

    /// The value. `None` for a tombstone.
    pub fn value(&self) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        self.append_value_to(&mut value);
        (self.kind() == VersionKind::Value).then_some(value)
    }

    /// The next older version of the key in this table.
    #[inline]
    pub fn older(&self) -> Option<Self> {
        Self::at(self.words, self.word(1) as ArenaOffset)
    }

    /// The newest version with a number up to `bound`, starting from this one.
    #[inline]
    pub(super) fn up_to(self, bound: u64) -> Option<Self> {
        std::iter::successors(Some(self), Self::older).find(|version| version.number() <= bound)
    }
}
