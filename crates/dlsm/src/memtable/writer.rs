//! The state that one writer keeps between its writes.
//!
//! *Thread safety*: a writer belongs to one operation at a time.

use super::skiplist::{MAX_LEVELS, Splice};
use super::versions::BlankVersion;
use crate::{Sequences, WriterSlot};
use farleaf_fabric::sync::Arc;

/// A writer of MemTables of one compute server.
#[derive(Debug)]
pub struct MemTableWriter {
    pub(super) seat: WriterSlot,
    /// The MemTable that the other fields refer to, 0 for none.
    table: u64,
    pub(super) splice: Splice,
    /// Memory of a version that could not be linked.
    pub(super) blank: Option<BlankVersion>,
    random: u64,
}

impl MemTableWriter {
    /// Creates a writer with the seat `seat`. `seed` is any random number; it determines the
    /// heights of nodes.
    pub fn new(seat: WriterSlot, seed: u64) -> Self {
        Self { seat, table: 0, splice: Splice::new(), blank: None, random: seed | 1 }
    }

    /// The counter of the writer's compute server.
    pub fn sequences(&self) -> &Arc<Sequences> {
        self.seat.sequences()
    }

    /// Takes a number that belongs to no version, and passes it to `act` before it is settled.
    pub(crate) fn number(&mut self, act: impl FnOnce(u64)) -> u64 {
        let announcement = self.seat.announce();
        let number = announcement.take();
        act(number);
        number
    }

    /// Resets the fields that refer to a MemTable other than `table`.
    #[inline]
    pub(super) fn turn_to(&mut self, table: u64) {
        if self.table != table {
            self.table = table;
            self.splice = Splice::new();
            self.blank = None;
        }
    }

    /// The number of levels of the next node. Each additional level has a probability of 1/2: links
    /// have hints, so a search waits for the nodes that it passes through only, and these are
    /// fewest then.
    pub(super) fn levels(&mut self) -> usize {
        // Xorshift; the multiplication spreads it over the bits used.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let bits = self.random.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (1 + bits.trailing_zeros() as usize).min(MAX_LEVELS)
    }
}
