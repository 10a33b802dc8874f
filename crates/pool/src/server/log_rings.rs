//! The rings of compute servers' write-ahead logs: memory that stays a compute server's through all
//! its lives, so that its next life, or the taker of its keys, finds them.
//!
//! *Invariant*: a ring keeps its place and its size as long as the memory server lives. It lies in
//! memory that was never used for anything else.
//!
//! *Thread safety*: any number of threads; a mutex.

use super::chunks::ChunkAllocator;
use crate::wire::{MAX_RINGS, Refusal};
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{Mutex, lock};
use std::collections::BTreeMap;

/// Maximum size of a ring, in bytes.
const MAX_RING_BYTES: u64 = 1 << 30;

/// Addresses and sizes, by compute server and number.
#[derive(Debug, Default)]
pub(super) struct LogRings(Mutex<BTreeMap<(u16, u16), (GlobalAddr, u64)>>);

impl LogRings {
    /// A compute server's ring with this number. If there is none, allocates one of `bytes` bytes.
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
        if ring >= MAX_RINGS || bytes == 0 || bytes > MAX_RING_BYTES {
            return Err(Refusal::Malformed);
        }
        let mut rings = lock(&self.0);
        if let Some(found) = rings.get(&(compute_server, ring)) {
            return Ok(*found);
        }
        let chunk = chunks.allocate_whole(bytes).ok_or(Refusal::OutOfMemory)?;
        rings.insert((compute_server, ring), chunk);
        Ok(chunk)
    }

    /// The rings of a compute server, in the order of their numbers.
    pub(super) fn of(&self, compute_server: u16) -> Vec<(GlobalAddr, u64)> {
        let all = (compute_server, 0)..=(compute_server, u16::MAX);
        lock(&self.0).range(all).map(|(_, ring)| *ring).collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    #[test]
    fn a_ring_stays_where_it_is() {
        let (rings, chunks) =
            (LogRings::default(), ChunkAllocator::new(ServerId::new(0), 64 << 10));
        let second = rings.ring((3, 1), 8_192, &chunks).unwrap();
        let first = rings.ring((3, 0), 4_096, &chunks).unwrap();
        assert_eq!(rings.ring((3, 1), 4_096, &chunks), Ok(second), "whatever is asked for now");
        assert_eq!(rings.of(3), [first, second]);
        assert_eq!(rings.of(2), []);
        assert_eq!(rings.ring((2, 0), 1 << 20, &chunks), Err(Refusal::OutOfMemory));
        for (ring, bytes) in [(MAX_RINGS, 4_096), (0, 0), (0, MAX_RING_BYTES + 1)] {
            assert_eq!(rings.ring((2, ring), bytes, &chunks), Err(Refusal::Malformed));
        }
    }
}
