//! Which numbers belong to a MemTable.
//!
//! A MemTable gets its first number when it is made. Its last one is fixed when it is closed: after
//! a number of versions, as in the paper, or when its memory is used up. The next MemTable begins
//! with the number after that. So of two versions of a key in two MemTables, the one in the newer
//! table is the newer version, and a lookup can stop at the first it meets (section IV).
//!
//! *Invariants* (`docs/internals/memtable.md`)
//! - memtable.Q2. A MemTable holds only numbers of its range. Ranges follow one another without
//!   gaps. A writer with a number beyond the range abandons it and starts again in the next table.
//! - memtable.Q3. To close a range, a thread first marks it as closing, *then* takes a number, and
//!   then fixes that number as the last. A writer that sees no mark after taking its number took a
//!   lower one. A writer that sees the mark, but no last number yet, completes the closing.
//!
//! *Thread safety*: any number of threads. No thread waits for another. Checked by
//! `tests/loom/memtable.rs`.

use crate::Sequences;
use farleaf_fabric::sync::{AtomicU64, Ordering};

/// The values of `SequenceRange::last` while there is no last number yet.
const OPEN: u64 = u64::MAX;
const CLOSING: u64 = u64::MAX - 1;

/// The numbers of one MemTable.
#[derive(Debug)]
pub(super) struct SequenceRange {
    first: u64,
    /// A version with a number beyond this one closes the range.
    limit: u64,
    /// The last number, or a state.
    last: AtomicU64,
}

impl SequenceRange {
    /// The range from `first` on, which closes by itself after about `numbers` numbers.
    pub(super) fn new(first: u64, numbers: u64) -> Self {
        let limit = first.saturating_add(numbers.max(1) - 1).min(CLOSING - 1);
        Self { first, limit, last: AtomicU64::new(OPEN) }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The last number. `None` while it is not fixed.
    pub(super) fn last(&self) -> Option<u64> {
        let last = self.last.load(Ordering::Acquire);
        (last < CLOSING).then_some(last)
    }

    /// Whether a version with a number that was just taken belongs here. If not, the range is
    /// closed. The version that closes the range by its number belongs here, so each range takes
    /// at least one.
    #[inline]
    pub(super) fn admits(&self, number: u64, sequences: &Sequences) -> bool {
        debug_assert!(number >= self.first, "the table was made after its first number was fixed");
        match self.last.load(Ordering::Acquire) {
            OPEN if number <= self.limit => true,
            last if last < CLOSING => number <= last,
            _ => number <= self.close(sequences),
        }
    }

    /// Closes the range, unless it is closed already. Returns its last number.
    #[cold]
    pub(super) fn close(&self, sequences: &Sequences) -> u64 {
        let marked = self.last.compare_exchange(OPEN, CLOSING, Ordering::AcqRel, Ordering::Acquire);
        if let Err(last) = marked
            && last < CLOSING
        {
            return last;
        }
        // Several threads may get here. Each number is taken after the mark, so each will do. It
        // may lie beyond the limit: a range that ended there would leave the counter ahead of the
        // next range, whose limit it could exceed at once.
        let last = sequences.take();
        let fixed = self.last.compare_exchange(CLOSING, last, Ordering::AcqRel, Ordering::Acquire);
        fixed.map_or_else(|other| other, |_| last)
    }
}
