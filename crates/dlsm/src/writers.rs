//! A pool of idle writers, shared by the shards of a compute server.
//!
//! The shards share one sequence counter, and with it the seats of writers. Each shard prefers
//! writers that wrote to its own MemTables last, because these remember their position. An idle
//! writer blocks no seat: if all seats are taken, a shard takes an idle writer of another one.
//!
//! *Thread safety*: any number of threads; a mutex with no other inside.

use super::{MemTableWriter, Sequences, WriterSlot};
use farleaf_fabric::sync::{Arc, Mutex, lock};
use std::collections::BTreeMap;

/// Writers that are idle, by shard.
#[derive(Debug)]
pub(super) struct IdleWriters {
    sequences: Arc<Sequences>,
    idle: Mutex<BTreeMap<u64, Vec<MemTableWriter>>>,
}

impl IdleWriters {
    /// A counter of numbers with seats for this many writers.
    pub(super) fn new(seats: usize) -> Self {
        Self { sequences: Arc::new(Sequences::new(seats)), idle: Mutex::default() }
    }

    pub(super) fn sequences(&self) -> &Arc<Sequences> {
        &self.sequences
    }

    /// A writer for an operation on `shard`. `None` if all seats are taken. A new writer gets a
    /// random number from `seed`.
    pub(super) fn take(&self, shard: u64, seed: impl FnOnce() -> u64) -> Option<MemTableWriter> {
        let own = lock(&self.idle).get_mut(&shard).and_then(Vec::pop);
        let writer =
            own.or_else(|| Some(MemTableWriter::new(WriterSlot::take(&self.sequences)?, seed())));
        writer.or_else(|| lock(&self.idle).values_mut().find_map(Vec::pop))
    }

    /// Takes back a writer that an operation on `shard` had.
    pub(super) fn give(&self, shard: u64, writer: MemTableWriter) {
        lock(&self.idle).entry(shard).or_default().push(writer);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn idle_writers_of_other_shards_keep_no_seat() {
        let writers = IdleWriters::new(2);
        let [one, two] = [1, 2].map(|seed| writers.take(7, || seed).unwrap());
        assert!(writers.take(8, || 3).is_none(), "both seats are taken");
        writers.give(7, one);
        writers.give(7, two);
        let other = writers.take(8, || 4).expect("shard 7 does not use it");
        writers.give(8, other);
        let again = writers.take(8, || unreachable!("the one that it had before"));
        let another = writers.take(8, || 5);
        assert!(again.is_some() && another.is_some() && writers.take(8, || 6).is_none());
    }
}
