//! Chunks: the first step of the two-step allocation. A memory server hands out its region in
//! chunks of megabytes, to compute servers and to its own tree; the holder of a chunk carves nodes
//! from it.
//!
//! *Invariant*: chunks never overlap and never include page 0, which holds the superblock.
//!
//! *Thread safety*: any number of threads; one atomic word.

use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_page::NodeCarver;

/// The unallocated rest of one region.
#[derive(Debug)]
pub struct ChunkAllocator {
    server: ServerId,
    region_bytes: u64,
    next: AtomicU64,
}

impl ChunkAllocator {
    /// Creates the allocator of a region of `region_bytes` bytes, all free except the superblock's
    /// page.
    pub fn new(server: ServerId, region_bytes: u64) -> Self {
        Self { server, region_bytes, next: AtomicU64::new(NodeCarver::NODE_ALIGN) }
    }

    /// Allocates a chunk of `bytes` bytes, rounded up to whole nodes. The last chunk may be
    /// smaller; `None` if nothing is left.
    pub fn allocate(&self, bytes: u64) -> Option<(GlobalAddr, u64)> {
        let wanted = bytes.max(1).checked_next_multiple_of(NodeCarver::NODE_ALIGN)?;
        let size_at = |next: u64| {
            let left = self.region_bytes.saturating_sub(next);
            wanted.min(left - left % NodeCarver::NODE_ALIGN)
        };
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let size = size_at(next);
            if size == 0 {
                return None;
            }
            let swapped =
                self.next.compare_exchange(next, next + size, Ordering::Relaxed, Ordering::Relaxed);
            match swapped {
                Ok(_) => return Some((GlobalAddr::new(self.server, next), size)),
                Err(now) => next = now,
            }
        }
    }

    /// Allocates a chunk of at least `bytes` bytes, rounded up to whole nodes; `None` if there is
    /// no room for it.
    pub fn allocate_whole(&self, bytes: u64) -> Option<(GlobalAddr, u64)> {
        let wanted = bytes.max(1).checked_next_multiple_of(NodeCarver::NODE_ALIGN)?;
        let advance = |next: u64| next.checked_add(wanted).filter(|end| *end <= self.region_bytes);
        let taken = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance).ok()?;
        Some((GlobalAddr::new(self.server, taken), wanted))
    }

    /// Bytes allocated so far, including the superblock's page.
    pub fn allocated_bytes(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Bytes of the region.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_disjoint_and_end_with_the_region() {
        let allocator = ChunkAllocator::new(ServerId::new(2), 8192);
        let (first, size) = allocator.allocate(2000).unwrap();
        assert_eq!((first.offset(), size), (1024, 2048));
        let (second, size) = allocator.allocate(1 << 40).unwrap();
        assert_eq!((second.offset(), size), (3072, 5120));
        assert_eq!(allocator.allocate(1), None);
        assert_eq!(allocator.allocate(u64::MAX), None);
        assert_eq!(allocator.allocated_bytes(), 8192);
    }
}
