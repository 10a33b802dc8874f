//! The rings of compute servers' write-ahead logs: memory that stays a compute server's through all
//! its lives, so that its next life, or the taker of its keys, finds them.
//!
//! *Invariant*: a ring keeps its place and its size as long as the memory server lives, unless a
//! larger one is asked for. Then both stay, since the former one may have what is to be recovered.
//! Rings lie in memory that was never used for anything else.
//!
//! *Thread safety*: any number of threads; a mutex.

use super::chunks::ChunkAllocator;
use crate::wire::{MAX_RING_BYTES, MAX_RINGS, MIN_RING_BYTES, Refusal};
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{Mutex, lock};
use std::collections::BTreeMap;

/// How often a ring can be replaced by a larger one.
const MAX_REPLACED: usize = 3;

/// Addresses and sizes, by compute server and number; the present one comes last.
type RingChunks = BTreeMap<(u16, u16), Vec<(GlobalAddr, u64)>>;

/// All rings of a memory server.
#[derive(Debug, Default)]
pub(super) struct LogRings(Mutex<RingChunks>);

impl LogRings {
    /// A compute server's ring with this number, of at least `bytes` bytes. Allocates one if there
    /// is none; in place of a smaller one that was not replaced too often, if there is room for it.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] for a number or a size that no ring can have;
    /// [`Refusal::OutOfMemory`] if there is no room for it.
    pub(super) fn ring(
        &self,
        (compute_server, ring): (u16, u16),
        bytes: u64,
        chunks: &ChunkAllocator,
    ) -> Result<(GlobalAddr, u64), Refusal> {
        if ring >= MAX_RINGS || !(MIN_RING_BYTES..=MAX_RING_BYTES).contains(&bytes) {
            return Err(Refusal::Malformed);
        }
        let mut rings = lock(&self.0);
        let former = rings.get(&(compute_server, ring)).map_or(&[][..], Vec::as_slice);
        if let Some(found) = former.last()
            && (found.1 >= bytes || former.len() > MAX_REPLACED)
        {
            return Ok(*found);
        }
        let Some(chunk) = chunks.allocate_whole(bytes) else {
            return former.last().copied().ok_or(Refusal::OutOfMemory);
        };
        rings.entry((compute_server, ring)).or_default().push(chunk);
        Ok(chunk)
    }

    /// The rings of a compute server, in the order of their numbers, replaced ones first.
    pub(super) fn of(&self, compute_server: u16) -> Vec<(GlobalAddr, u64)> {
        let all = (compute_server, 0)..=(compute_server, u16::MAX);
        lock(&self.0).range(all).flat_map(|(_, ring)| ring).copied().collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    #[test]
    fn a_ring_stays_where_it_is_until_a_larger_one_is_wanted() {
        let (rings, chunks) =
            (LogRings::default(), ChunkAllocator::new(ServerId::new(0), 64 << 10));
        let second = rings.ring((3, 1), 8_192, &chunks).unwrap();
        let first = rings.ring((3, 0), 4_096, &chunks).unwrap();
        assert_eq!(rings.ring((3, 1), 4_096, &chunks), Ok(second), "it is large enough");
        assert_eq!(rings.of(3), [first, second]);
        let larger = rings.ring((3, 0), 8_192, &chunks).unwrap();
        assert_eq!(rings.of(3), [first, larger, second]);
        assert_eq!(rings.ring((3, 1), 1 << 20, &chunks), Ok(second), "there is no room");
        assert_eq!(rings.of(2), []);
        assert_eq!(rings.ring((2, 0), 1 << 20, &chunks), Err(Refusal::OutOfMemory));
        for (ring, bytes) in [(MAX_RINGS, 4_096), (0, 64), (0, MAX_RING_BYTES + 1)] {
            assert_eq!(rings.ring((2, ring), bytes, &chunks), Err(Refusal::Malformed));
        }
    }
}
