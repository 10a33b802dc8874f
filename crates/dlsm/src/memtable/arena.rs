//! The memory of one MemTable: one piece, with nodes at its front and versions at its back.
//!
//! The nodes are separate from the values, so that a search, which passes many nodes, finds them
//! close together. The piece is a [`Region`], so a fabric can register it, and positions in it are
//! offsets, so the bytes have the same meaning on another machine. Nothing grows: a table whose
//! memory is used up is closed.
//!
//! *Invariants* (`docs/internals/memtable.md`)
//! - memtable.M1. A place is handed out once. The thread that takes it writes all of it before it
//!   publishes a pointer to it, so the former content of the memory does not matter.
//!
//! *Thread safety*: any number of threads take places. Words are atomics, and only the words that
//! later change (heads and links) are accessed with an order stronger than relaxed.

use farleaf_fabric::Region;
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};

/// An offset in words. No entry is at [`NOWHERE`].
pub(super) type ArenaOffset = u32;

pub(super) const NOWHERE: ArenaOffset = 0;

/// Maximum number of words of an arena. Places have twice as many values, so that the counts below
/// cannot overflow because of refused requests.
pub(super) const MAX_WORDS: usize = 1 << 31;

/// The words taken: `[from the back:32][from the front:32]`. On its own cache line, because every
/// writer changes it, and readers of the fields around it should not miss because of that.
#[derive(Debug)]
#[repr(align(128))]
struct TakenWords(AtomicU64);

/// The end of the arena from which an entry is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArenaEnd {
    /// Nodes, which grow from the front.
    Front,
    /// Versions, which grow from the back.
    Back,
}

/// The memory of one MemTable.
#[derive(Debug)]
pub(super) struct MemTableArena {
    memory: Arc<Region>,
    words: u64,
    taken: TakenWords,
}

fn counts(taken: u64) -> (u64, u64) {
    (taken >> 32, taken & 0xffff_ffff)
}

impl MemTableArena {
    /// Creates an arena in the first `words` words of `memory`. The first `reserved` of them are
    /// not handed out.
    ///
    /// # Panics
    /// If there are fewer words, or more than [`MAX_WORDS`].
    pub(super) fn new(memory: Arc<Region>, words: usize, reserved: usize) -> Self {
        assert!(words <= MAX_WORDS && words <= memory.words().len(), "the memory has the words");
        Self { memory, words: words as u64, taken: TakenWords(AtomicU64::new(reserved as u64)) }
    }

    /// Returns the memory, for reuse by another arena.
    pub(super) fn into_memory(self) -> Arc<Region> {
        self.memory
    }

    /// All words. Callers load this once per operation.
    #[inline]
    pub(super) fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// Takes `words` adjacent words. `None` if there are not enough left.
    #[inline]
    pub(super) fn take(&self, words: usize, end: ArenaEnd) -> Option<ArenaOffset> {
        let used = |taken| {
            let (back, front) = counts(taken);
            back + front
        };
        // Nothing is added to a full arena, so the counts cannot overflow however often writers
        // try.
        if used(self.taken.0.load(Ordering::Relaxed)) + words as u64 > self.words {
            return None;
        }
        let more = if end == ArenaEnd::Front { words as u64 } else { (words as u64) << 32 };
        let taken = self.taken.0.fetch_add(more, Ordering::Relaxed);
        let (back, front) = counts(taken);
        if used(taken) + words as u64 > self.words {
            return None;
        }
        let first = if end == ArenaEnd::Front { front } else { self.words - back - words as u64 };
        Some(first as ArenaOffset)
    }

    /// The bytes handed out so far.
    pub(super) fn taken_bytes(&self) -> usize {
        let (back, front) = counts(self.taken.0.load(Ordering::Relaxed));
        8 * (back + front).min(self.words) as usize
    }
}
