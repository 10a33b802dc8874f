//! Chunks for anything but nodes, such as value blocks: which compute server has which, in all its
//! lives, and pieces of them that were returned.
//!
//! *Invariants*
//! - whole.C1. A piece is free, or part of the chunk of one compute server, or forgotten for good.
//!   Pieces never overlap.
//! - whole.C2. Only parts of a listed chunk can be returned, and only by its compute server.
//! - whole.C3. The chunk of a lease is part of no list. It is free when the lease ends, and never
//!   before.
//!
//! *Thread safety*: belongs to its owner, which has a lock.

use crate::wire::{LeaseState, MAX_LEASES, Refusal};
use farleaf_fabric::GlobalAddr;
use farleaf_page::NodeCarver;
use std::collections::{BTreeMap, BTreeSet};

/// The chunks of one memory server.
#[derive(Debug, Default)]
pub(super) struct WholeChunks {
    /// Sizes by address, by compute server.
    listed: BTreeMap<u16, BTreeMap<GlobalAddr, u64>>,
    /// By owner.
    leases: BTreeMap<u64, ChunkLease>,
    free: FreePieces,
}

/// Chunks that come back all together, when their owner has ended.
#[derive(Debug)]
struct ChunkLease {
    /// The compute servers by which the owner's process has asked for chunks.
    compute_servers: BTreeSet<u16>,
    term_ms: u32,
    renewals: u64,
    /// Addresses and sizes.
    chunks: Vec<(GlobalAddr, u64)>,
}

/// Pieces that were returned.
#[derive(Debug, Default)]
struct FreePieces {
    /// Sizes by address. None of them touches the next one.
    sizes: BTreeMap<GlobalAddr, u64>,
    /// The same pieces, by size.
    by_size: BTreeSet<(u64, GlobalAddr)>,
}

impl FreePieces {
    fn remove(&mut self, at: GlobalAddr) {
        if let Some(bytes) = self.sizes.remove(&at) {
            self.by_size.remove(&(bytes, at));
        }
    }

    /// Adds a piece, and joins it with the free pieces that it touches. Otherwise free memory would
    /// be fragmented further with each incarnation.
    fn insert(&mut self, mut at: GlobalAddr, mut bytes: u64) {
        let before = self.sizes.range(..at).next_back().map(|(at, bytes)| (*at, *bytes));
        if let Some((before, size)) = before
            && before.plus(size) == at
        {
            self.remove(before);
            (at, bytes) = (before, size + bytes);
        }
        let behind = at.plus(bytes);
        if let Some(size) = self.sizes.get(&behind).copied() {
            self.remove(behind);
            bytes += size;
        }
        self.sizes.insert(at, bytes);
        self.by_size.insert((bytes, at));
    }
}

impl WholeChunks {
    /// Takes a free piece of `bytes` bytes, rounded up to whole nodes, or else of as many as there
    /// are, but at least `least`.
    pub(super) fn take(&mut self, bytes: u64, least: u64) -> Option<(GlobalAddr, u64)> {
        let wanted = bytes.max(1).checked_next_multiple_of(NodeCarver::NODE_ALIGN)?;
        let by_size = &self.free.by_size;
        let enough = by_size.range((wanted, GlobalAddr::NULL)..).next();
        let (held, at) = enough.or_else(|| by_size.last()).copied()?;
        if held < least {
            return None;
        }
        self.free.remove(at);
        let taken = held.min(wanted);
        if held > taken {
            self.free.insert(at.plus(taken), held - taken);
        }
        Some((at, taken))
    }

    /// Lists a chunk that a compute server got.
    pub(super) fn add(&mut self, compute_server: u16, at: GlobalAddr, bytes: u64) {
        self.listed.entry(compute_server).or_default().insert(at, bytes);
    }

    /// Whether `owner` can have another chunk in its lease, which begins if there is none.
    pub(super) fn check_lease(&self, owner: u64, compute_server: u16) -> Result<(), Refusal> {
        let lease = self.leases.get(&owner);
        let is_known = lease.is_some_and(|lease| lease.compute_servers.contains(&compute_server));
        let listed: usize = self.leases.values().map(|lease| lease.compute_servers.len()).sum();
        if is_known || listed < MAX_LEASES { Ok(()) } else { Err(Refusal::TooManyLeases) }
    }

    /// Adds a chunk to the lease of `owner`, which renews it.
    pub(super) fn lease(
        &mut self,
        (owner, compute_server, term_ms): (u64, u16, u32),
        chunk: (GlobalAddr, u64),
    ) {
        let begin = || ChunkLease {
            compute_servers: BTreeSet::new(),
            term_ms,
            renewals: 0,
            chunks: Vec::new(),
        };
        let lease = self.leases.entry(owner).or_insert_with(begin);
        lease.compute_servers.insert(compute_server);
        lease.renewals += 1;
        lease.chunks.push(chunk);
    }

    /// Renews the lease of `owner`.
    pub(super) fn renew(&mut self, owner: u64) -> Result<(), Refusal> {
        let lease = self.leases.get_mut(&owner).ok_or(Refusal::NoSuchLease)?;
        lease.renewals += 1;
        Ok(())
    }

    /// Ends the lease of `owner`, if there is one.
    pub(super) fn end_lease(&mut self, owner: u64) {
        let lease = self.leases.remove(&owner);
        for (at, bytes) in lease.into_iter().flat_map(|lease| lease.chunks) {
            self.free.insert(at, bytes);
        }
    }

    /// All leases, once for each compute server of their owners. The first one has the bytes.
    pub(super) fn leases(&self) -> Vec<LeaseState> {
        let mut states = Vec::new();
        for (&owner, lease) in &self.leases {
            let (term_ms, renewals) = (lease.term_ms, lease.renewals);
            let mut bytes = lease.chunks.iter().map(|(_, bytes)| bytes).sum();
            for &compute_server in &lease.compute_servers {
                states.push(LeaseState { owner, compute_server, term_ms, renewals, bytes });
                bytes = 0;
            }
        }
        states
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

    /// Takes pieces back, if each is a part of a listed chunk, in whole nodes; otherwise none of
    /// them. Returns whether it has.
    #[must_use]
    pub(super) fn give_back(&mut self, compute_server: u16, pieces: &[(GlobalAddr, u64)]) -> bool {
        let Some(chunks) = self.listed.get_mut(&compute_server) else { return pieces.is_empty() };
        if !pieces.iter().all(|(at, bytes)| PiecePlace::of(chunks, *at, *bytes).is_some()) {
            return false;
        }
        for &(at, bytes) in pieces {
            // `None` if another one of these pieces has a part of it.
            let Some(PiecePlace { start, before, behind }) = PiecePlace::of(chunks, at, bytes)
            else {
                continue;
            };
            chunks.remove(&start);
            if before > 0 {
                chunks.insert(start, before);
            }
            if behind > 0 {
                chunks.insert(at.plus(bytes), behind);
            }
            self.free.insert(at, bytes);
        }
        true
    }
}

/// Where a piece is in its chunk.
struct PiecePlace {
    /// The chunk.
    start: GlobalAddr,
    /// Bytes of the chunk before the piece, and behind it.
    before: u64,
    behind: u64,
}

impl PiecePlace {
    /// A piece can be anything that a message can contain.
    fn of(chunks: &BTreeMap<GlobalAddr, u64>, at: GlobalAddr, bytes: u64) -> Option<Self> {
        let (start, size) = chunks.range(..=at).next_back().map(|(at, size)| (*at, *size))?;
        let before = at.offset().checked_sub(start.offset())?;
        let behind = size.checked_sub(before)?.checked_sub(bytes)?;
        let is_part = bytes > 0
            && at == GlobalAddr::new(start.server(), at.offset())
            && before.is_multiple_of(NodeCarver::NODE_ALIGN)
            && bytes.is_multiple_of(NodeCarver::NODE_ALIGN);
        is_part.then_some(Self { start, before, behind })
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
        let middle = at((1 << 20) + (4 << 10));
        // Of another compute server, in no chunk, beyond its end, and not in whole nodes.
        assert!(!whole.give_back(4, &[(at(1 << 20), 1024)]));
        for (offset, bytes) in [
            ((1 << 20) - 1024, 1024),
            ((1 << 20) + (15 << 10), 2048),
            ((1 << 20) + 512, 1024),
            (1 << 20, 1000),
            (1 << 20, 0),
            (1 << 20, u64::MAX - 1023),
        ] {
            assert!(
                !whole.give_back(3, &[(middle, 1024), (at(offset), bytes)]),
                "{offset} {bytes}"
            );
        }
        assert_eq!(whole.take(1, 1), None);
        assert!(whole.give_back(3, &[(middle, 8 << 10)]));
        assert!(!whole.give_back(3, &[(middle, 8 << 10)]), "it is no part of a chunk any more");
        let rest = [(1 << 20, 4 << 10), ((1 << 20) + (12 << 10), 4 << 10), (2 << 20, 4 << 10)];
        let rest: Vec<_> = rest.into_iter().map(|(offset, bytes)| (at(offset), bytes)).collect();
        assert_eq!(whole.list(3, 0, 9), (rest, false));
        assert_eq!(whole.take(3_000, 100), Some((middle, 3 << 10)));
        assert_eq!(whole.take(1 << 20, 6 << 10), None);
        assert_eq!(whole.take(1 << 20, 5 << 10), Some((middle.plus(3 << 10), 5 << 10)));
        assert_eq!(whole.take(1, 1), None);
        whole.forget(3);
        assert_eq!(whole.list(3, 0, 9), (vec![], false));
        assert!(!whole.give_back(3, &[(at(2 << 20), 4 << 10)]));
        assert_eq!(whole.take(1, 1), None);
    }

    /// A piece with the name of another server or of a frame is no part of a chunk, whatever its
    /// offset.
    #[test]
    fn pieces_elsewhere_are_refused() {
        let mut whole = WholeChunks::default();
        whole.add(3, at(1 << 20), 16 << 10);
        for offset in [1024, 1 << 20, 1 << 30] {
            let elsewhere = GlobalAddr::new(ServerId::new(1), offset);
            let of_a_frame = GlobalAddr::from_bits(at(offset).to_bits() | 1 << 63);
            assert!(!whole.give_back(3, &[(elsewhere, 1024)]), "{offset}");
            assert!(!whole.give_back(3, &[(of_a_frame, 1024)]), "{offset}");
        }
        assert_eq!(whole.take(1, 1), None);
        // The second of these is partly in the first.
        let pieces = [(at(1 << 20), 4 << 10), (at((1 << 20) + 1024), 4 << 10)];
        assert!(whole.give_back(3, &pieces));
        assert_eq!(whole.take(8 << 10, 1), Some((at(1 << 20), 4 << 10)));
        assert_eq!(whole.take(1, 1), None);
    }

    #[test]
    fn chunks_of_a_lease_come_back_when_it_ends() {
        let mut whole = WholeChunks::default();
        for chunk in 0..3 {
            whole.lease((7, 3, 50), (at((1 + chunk) << 20), 4 << 10));
        }
        whole.lease((8, 3, 0), (at((1 << 20) + (4 << 10)), 4 << 10));
        whole.renew(7).unwrap();
        let state = |owner, term_ms, renewals, bytes| LeaseState {
            owner,
            compute_server: 3,
            term_ms,
            renewals,
            bytes,
        };
        assert_eq!(whole.leases(), [state(7, 50, 4, 12 << 10), state(8, 0, 1, 4 << 10)]);
        // No piece of it can be returned, and nothing is listed.
        assert!(!whole.give_back(3, &[(at(1 << 20), 1024)]));
        assert_eq!((whole.list(3, 0, 9), whole.take(1, 1)), ((vec![], false), None));
        assert_eq!(whole.check_lease(7, 4), Ok(()));
        whole.lease((7, 4, 50), (at(5 << 20), 4 << 10));
        let two =
            [state(7, 50, 5, 16 << 10), LeaseState { compute_server: 4, ..state(7, 50, 5, 0) }];
        assert_eq!(whole.leases()[..2], two, "it has two compute servers");
        whole.end_lease(7);
        whole.end_lease(7);
        assert_eq!(whole.renew(7), Err(Refusal::NoSuchLease));
        assert_eq!(whole.take(5 << 10, 5 << 10), None, "lease 8 is between the pieces");
        whole.end_lease(8);
        assert_eq!(whole.take(8 << 10, 8 << 10), Some((at(1 << 20), 8 << 10)));
    }

    #[test]
    fn there_are_so_many_leases_at_most() {
        let mut whole = WholeChunks::default();
        for owner in 0..MAX_LEASES as u64 {
            assert_eq!(whole.check_lease(owner, 1), Ok(()));
            whole.lease((owner, 1, 1), (at(owner << 10), 1 << 10));
        }
        assert_eq!(whole.check_lease(u64::MAX, 1), Err(Refusal::TooManyLeases));
        assert_eq!(whole.check_lease(5, 1), Ok(()));
        whole.end_lease(5);
        assert_eq!(whole.check_lease(u64::MAX, 1), Ok(()));
    }

    #[test]
    fn free_neighbours_become_one_piece() {
        let start = at(1 << 20);
        let kib = |number: u64| start.plus(number << 10);
        let mut whole = WholeChunks::default();
        for chunk in 0..4 {
            whole.add(3, kib(4 * chunk), 4 << 10);
        }
        for number in [0, 8, 4] {
            assert!(whole.give_back(3, &[(kib(number), 4 << 10)]));
        }
        assert_eq!(whole.take(12 << 10, 12 << 10), Some((start, 12 << 10)));
        assert_eq!(whole.take(1, 1), None);
        whole.add(3, start, 12 << 10);
        for number in (0..16).step_by(2).chain((1..16).step_by(2)) {
            assert!(whole.give_back(3, &[(kib(number), 1 << 10)]));
        }
        assert_eq!(whole.take(3 << 10, 1), Some((start, 3 << 10)));
        assert_eq!(whole.take(1 << 20, 13 << 10), Some((kib(3), 13 << 10)));
        assert_eq!(whole.take(1, 1), None);
    }
}
