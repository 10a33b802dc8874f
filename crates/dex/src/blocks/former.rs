//! Chunks that former incarnations of a compute server have left, while the free blocks in them are
//! looked for.
//!
//! No list says which of their blocks leaves refer to. So a scan of all stored values notes those,
//! while operations go on, and everything else in these chunks is free.
//!
//! *Invariants*
//! - blocks.X10. Only leaves of the compute server's own range refer to blocks in these chunks, and
//!   no new reference to one is stored: its former incarnations are fenced, and the chunks are not
//!   cut before the scan has ended. A reference that is there throughout the scan is noted; a block
//!   without a note has none, or a leaf has lost it since the round began.
//! - blocks.X11. A block that a leaf loses during a round belongs to the round. So the round ends
//!   only when every operation that began before the end of its scan has ended: no block without a
//!   note is reported as lost later, and would be free twice.
//!
//! *Thread safety*: belongs to its owner, which has a lock.

use farleaf_fabric::GlobalAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Blocks that are noted in one round. If there are more, some chunks wait for the next round,
/// which is another scan.
const MAX_NOTED: usize = 1 << 20;

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FormerStep {
    /// Scan the stored values from this key on, and note the references in them.
    Scan(Bound<Vec<u8>>),
    /// Wait for operations that began before the end of the scan.
    Drain,
    /// Write leaves back, and wait for readers: then use what was found.
    Rest,
}

/// Memory to which no leaf refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnreferencedMemory {
    pub(super) at: GlobalAddr,
    pub(super) bytes: u64,
    /// Whether it is all of a chunk.
    pub(super) is_chunk: bool,
}

/// The chunks, and what is known about them.
#[derive(Debug)]
pub(super) struct FormerChunks {
    /// Sizes of this round's chunks, by address.
    now: BTreeMap<GlobalAddr, u64>,
    /// Those of later rounds.
    later: BTreeMap<GlobalAddr, u64>,
    /// Sizes of the blocks that leaves refer to, by address.
    noted: BTreeMap<GlobalAddr, u64>,
    /// Blocks that leaves have lost since the round began.
    gone: BTreeSet<GlobalAddr>,
    /// After the round: memory to which no leaf of the caches refers.
    free: Vec<UnreferencedMemory>,
    step: FormerStep,
    most_noted: usize,
}

/// The chunk of `at` among `chunks`.
pub(super) fn chunk_of(
    chunks: &BTreeMap<GlobalAddr, u64>,
    at: GlobalAddr,
) -> Option<(GlobalAddr, u64)> {
    let (start, bytes) = chunks.range(..=at).next_back().map(|(start, bytes)| (*start, *bytes))?;
    let is_inside = start.server() == at.server() && at.offset() - start.offset() < bytes;
    is_inside.then_some((start, bytes))
}

impl FormerChunks {
    pub(super) fn new(chunks: impl IntoIterator<Item = (GlobalAddr, u64)>) -> Self {
        Self::with_limit(chunks, MAX_NOTED)
    }

    fn with_limit(chunks: impl IntoIterator<Item = (GlobalAddr, u64)>, most_noted: usize) -> Self {
        Self {
            now: chunks.into_iter().collect(),
            later: BTreeMap::new(),
            noted: BTreeMap::new(),
            gone: BTreeSet::new(),
            free: Vec::new(),
            step: FormerStep::Scan(Bound::Unbounded),
            most_noted,
        }
    }

    pub(super) fn step(&self) -> &FormerStep {
        &self.step
    }

    /// Notes a block that a leaf refers to.
    pub(super) fn note(&mut self, at: GlobalAddr, bytes: u64) {
        if chunk_of(&self.now, at).is_some() {
            self.noted.insert(at, bytes);
            self.postpone();
        }
    }

    /// Continues the scan at `next`, or ends it.
    pub(super) fn scan_on(&mut self, next: Option<Bound<Vec<u8>>>) {
        self.step = next.map_or(FormerStep::Drain, FormerStep::Scan);
    }

    /// Notes that a leaf has lost a block. Returns whether its chunk belongs to this round or to a
    /// later one, which then takes care of the block.
    pub(super) fn lose(&mut self, at: GlobalAddr) -> bool {
        if chunk_of(&self.now, at).is_some() {
            self.gone.insert(at);
            self.postpone();
            return true;
        }
        chunk_of(&self.later, at).is_some()
    }

    /// Leaves half of the chunks to the next round if too many of their blocks are noted.
    fn postpone(&mut self) {
        if self.noted.len() + self.gone.len() <= self.most_noted || self.now.len() < 2 {
            return;
        }
        let middle = self.now.keys().nth(self.now.len() / 2).copied();
        let Some(middle) = middle else { return };
        self.later.append(&mut self.now.split_off(&middle));
        self.noted.split_off(&middle);
        self.gone.split_off(&middle);
    }

    /// Ends the round. Returns how many blocks leaves refer to, and their bytes. From now on they
    /// are like any other block.
    pub(super) fn end_round(&mut self) -> (u64, u64) {
        let mut noted = std::mem::take(&mut self.noted);
        let gone = std::mem::take(&mut self.gone);
        noted.retain(|at, _| !gone.contains(at));
        for (start, bytes) in std::mem::take(&mut self.now) {
            let end = start.plus(bytes);
            let mut free_from = start;
            let blocks = noted.range(start..end).map(|(at, size)| (*at, *size));
            for (at, size) in blocks.chain([(end, 0)]) {
                if at > free_from {
                    let free_bytes = at.offset() - free_from.offset();
                    let is_chunk = free_bytes == bytes;
                    self.free.push(UnreferencedMemory {
                        at: free_from,
                        bytes: free_bytes,
                        is_chunk,
                    });
                }
                free_from = free_from.max(at.plus(size));
            }
        }
        self.step = FormerStep::Rest;
        (noted.len() as u64, noted.values().sum())
    }

    /// Takes out what the round has found, and begins the next one. Returns whether there is one.
    pub(super) fn take_free(&mut self) -> (Vec<UnreferencedMemory>, bool) {
        self.now = std::mem::take(&mut self.later);
        self.step = FormerStep::Scan(Bound::Unbounded);
        (std::mem::take(&mut self.free), !self.now.is_empty())
    }

    /// Ends the search before keys with references to these chunks leave the range. Memory that was
    /// found before stays free. Returns whether there is any.
    pub(super) fn give_up(&mut self) -> bool {
        if self.step != FormerStep::Rest {
            return false;
        }
        self.later.clear();
        true
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    fn at(server: u16, offset: u64) -> GlobalAddr {
        GlobalAddr::new(ServerId::new(server), offset)
    }

    #[test]
    fn what_no_leaf_refers_to_is_free() {
        let mut former =
            FormerChunks::new([(at(0, 1024), 1024), (at(1, 2048), 512), (at(1, 4096), 64)]);
        for (at, bytes) in [(at(0, 1024), 64), (at(0, 1216), 128), (at(1, 2496), 64)] {
            former.note(at, bytes);
        }
        former.note(at(0, 4096), 64); // in no chunk
        former.note(at(1, 2048), 80);
        assert!(former.lose(at(1, 2048)), "after the scan has seen it");
        assert!(former.lose(at(0, 1088)), "before that");
        assert!(!former.lose(at(0, 2048)) && !former.lose(at(0, 1023)), "just outside");
        assert_eq!(former.step(), &FormerStep::Scan(Bound::Unbounded));
        former.scan_on(Some(Bound::Excluded(vec![7])));
        assert_eq!(former.step(), &FormerStep::Scan(Bound::Excluded(vec![7])));
        former.scan_on(None);
        assert_eq!(former.step(), &FormerStep::Drain);
        assert_eq!(former.end_round(), (3, 64 + 128 + 64));
        assert!(!former.lose(at(0, 1024)), "it is like any other block");
        let part = |at, bytes| UnreferencedMemory { at, bytes, is_chunk: false };
        let found = vec![
            part(at(0, 1088), 128),
            part(at(0, 1344), 704),
            part(at(1, 2048), 448),
            UnreferencedMemory { at: at(1, 4096), bytes: 64, is_chunk: true },
        ];
        assert_eq!(former.take_free(), (found, false));
    }

    #[test]
    fn chunks_with_many_blocks_take_several_rounds() {
        let chunk = |number: u64| at(0, 1024 + number * 1024);
        let mut former = FormerChunks::with_limit((0..8).map(|number| (chunk(number), 1024)), 5);
        let (mut free, mut rounds, mut noted) = (0, 0, 0);
        loop {
            for number in 0..8 {
                former.note(chunk(number), 64);
                former.note(chunk(number).plus(512), 64);
            }
            former.lose(chunk(7));
            rounds += 1;
            noted += former.end_round().0;
            let (found, is_next) = former.take_free();
            free += found.iter().map(|found| found.bytes).sum::<u64>();
            if !is_next {
                break;
            }
        }
        assert!((3..=8).contains(&rounds), "{rounds}");
        assert_eq!((free, noted), (8 * 1024 - 15 * 64, 15));
    }

    #[test]
    fn what_was_found_before_keys_leave_stays_free() {
        let mut former = FormerChunks::new([(at(0, 1024), 1024)]);
        former.scan_on(None);
        assert!(!former.give_up());
        former.end_round();
        assert!(former.give_up());
        let found = UnreferencedMemory { at: at(0, 1024), bytes: 1024, is_chunk: true };
        assert_eq!(former.take_free(), (vec![found], false));
    }
}
