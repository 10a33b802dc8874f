//! Chunks for anything but nodes, such as value blocks: which compute server has which, in all its
//! lives, and pieces of them that were returned.
//!
//! *Invariants*
//! - whole.C1. A piece is free, or part of the chunk of one compute server, or forgotten for good.
//!   Pieces never overlap.
//! - whole.C2. Only parts of a listed chunk can be returned, and only by its compute server.
//!
//! *Thread safety*: belongs to its owner, which has a lock.

use crate::page::NodeCarver;
use farleaf_fabric::GlobalAddr;
use std::collections::{BTreeMap, BTreeSet};

/// The chunks of one memory server.
#[derive(Debug, Default)]
pub(super) struct WholeChunks {
    /// Sizes by address, by compute server.
    listed: BTreeMap<u16, BTreeMap<GlobalAddr, u64>>,
    /// Sizes and addresses of pieces that were returned.
    free: BTreeSet<(u64, GlobalAddr)>,
}

impl WholeChunks {
    /// Takes a free piece of `bytes` bytes, rounded up to whole nodes, or else of as many as there
    /// are, but at least `least`.
    pub(super) fn take(&mut self, bytes: u64, least: u64) -> Option<(GlobalAddr, u64)> {
        let wanted = bytes.max(1).checked_next_multiple_of(NodeCarver::NODE_ALIGN)?;
        let enough = self.free.range((wanted, GlobalAddr::NULL)..).next();
        let (held, at) = enough.or_else(|| self.free.last()).copied()?;
        if held < least {
            return None;
        }
        self.free.remove(&(held, at));
        let taken = held.min(wanted);
        if held > taken {
            self.free.insert((held - taken, at.plus(taken)));
        }
        Some((at, taken))
    }

    /// Lists a chunk that a compute server got.
    pub(super) fn add(&mut self, compute_server: u16, at: GlobalAddr, bytes: u64) {
        self.listed.entry(compute_server).or_default().insert(at, bytes);
    }

    /// At most `most` chunks of a compute server, by address, from the one numbered `from` on, and
    /// whether there are more.
    pub(super) fn list(
        &self,
        compute_server: u16,
        from: usize,
        most: usize,
    ) -> (Vec<(GlobalAddr, u64)>, bool) {
        let all = self.listed.get(&compute_server).into_iter().flatten();
        let mut rest = all.skip(from).map(|(at, bytes)| (*at, *bytes));
        let some = rest.by_ref().take(most).collect();
        (some, rest.next().is_some())
    }

    /// Forgets the chunks of a compute server.
    pub(super) fn forget(&mut self, compute_server: u16) {
        self.listed.remove(&compute_server);
    }

    /// Takes a piece back, if it is a part of a listed chunk, in whole nodes.
    pub(super) fn give_back(&mut self, compute_server: u16, at: GlobalAddr, bytes: u64) {
        let Some(chunks) = self.listed.get_mut(&compute_server) else { return };
        let Some((start, size)) = chunks.range(..=at).next_back().map(|(at, size)| (*at, *size))
        else {
            return;
        };
        let before = at.offset() - start.offset();
        let is_part = bytes > 0
            && start.server() == at.server()
            && before.checked_add(bytes).is_some_and(|end| end <= size)
            && before.is_multiple_of(NodeCarver::NODE_ALIGN)
            && bytes.is_multiple_of(NodeCarver::NODE_ALIGN);
        if !is_part {
            return;
        }
        chunks.remove(&start);
        if before > 0 {
            chunks.insert(start, before);
        }
        if before + bytes < size {
            chunks.insert(at.plus(bytes), size - before - bytes);
        }
        self.free.insert((bytes, at));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    fn at(offset: u64) -> GlobalAddr {
        GlobalAddr::new(ServerId::new(0), offset)
    }

    #[test]
    fn parts_of_a_chunk_are_returned_and_allocated_again() {
        let mut whole = WholeChunks::default();
        whole.add(3, at(1 << 20), 16 << 10);
        whole.add(3, at(2 << 20), 4 << 10);
        assert_eq!(whole.list(3, 0, 1), (vec![(at(1 << 20), 16 << 10)], true));
        assert_eq!(whole.list(3, 1, 1), (vec![(at(2 << 20), 4 << 10)], false));
        assert_eq!(whole.list(4, 0, 9), (vec![], false));
        // Of another compute server, in no chunk, beyond its end, and not in whole nodes.
        whole.give_back(4, at(1 << 20), 1024);
        whole.give_back(3, at((1 << 20) - 1024), 1024);
        whole.give_back(3, at((1 << 20) + (15 << 10)), 2048);
        whole.give_back(3, at((1 << 20) + 512), 1024);
        whole.give_back(3, at(1 << 20), 1000);
        whole.give_back(3, at(1 << 20), 0);
        assert_eq!(whole.take(1, 1), None);
        let middle = at((1 << 20) + (4 << 10));
        whole.give_back(3, middle, 8 << 10);
        whole.give_back(3, middle, 8 << 10); // it is no part of a chunk any more
        let rest = [(1 << 20, 4 << 10), ((1 << 20) + (12 << 10), 4 << 10), (2 << 20, 4 << 10)];
        let rest: Vec<_> = rest.into_iter().map(|(offset, bytes)| (at(offset), bytes)).collect();
        assert_eq!(whole.list(3, 0, 9), (rest, false));
        assert_eq!(whole.take(3_000, 100), Some((middle, 3 << 10)));
        assert_eq!(whole.take(1 << 20, 6 << 10), None);
        assert_eq!(whole.take(1 << 20, 5 << 10), Some((middle.plus(3 << 10), 5 << 10)));
        assert_eq!(whole.take(1, 1), None);
        whole.forget(3);
        assert_eq!(whole.list(3, 0, 9), (vec![], false));
        whole.give_back(3, at(2 << 20), 4 << 10);
        assert_eq!(whole.take(1, 1), None);
    }
}
