//! Cached value blocks. Blocks are immutable, so a cached copy never needs invalidation: an entry
//! is found only by the reference that its value was read with, and a different value has a
//! different reference.
//!
//! Eviction is CLOCK: a new block starts as unused, and a block that was used since the hand last
//! passed survives another round.
//!
//! *Invariants*
//! - blocks.X7. The values of a shard take at most the shard's part of the budget.
//! - blocks.X9. A value is returned only for the exact reference that it was read with. So if a
//!   block's memory is reused for another block, no invalidation is needed.
//!
//! *Thread safety*: any number of threads; one mutex for each shard, never held across a wait.

use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use farleaf_page::BlockRef;
use std::collections::BTreeMap;

/// Maximum number of shards.
const MAX_SHARDS: u64 = 16;
/// Minimum size of a shard.
const MIN_SHARD_BYTES: u64 = 1 << 20;
/// Estimated size of an entry without its value, in bytes.
const ENTRY_BYTES: u64 = 96;
/// A value that is larger than a shard divided by this is not cached.
const LARGEST_PART: u64 = 4;

/// The value blocks that a process has cached.
#[derive(Debug)]
pub(super) struct BlockCache {
    shards: Vec<Mutex<BlockCacheShard>>,
    shard_bytes: u64,
    used_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct BlockCacheShard {
    /// Positions in `entries`, by address.
    places: BTreeMap<u64, usize>,
    entries: Vec<Option<CachedBlock>>,
    /// Unused positions in `entries`.
    vacant: Vec<usize>,
    hand: usize,
    used_bytes: u64,
}

#[derive(Debug)]
struct CachedBlock {
    block: BlockRef,
    value: Arc<Vec<u8>>,
    is_used: bool,
}

impl CachedBlock {
    fn bytes(&self) -> u64 {
        self.value.len() as u64 + ENTRY_BYTES
    }
}

impl BlockCache {
    /// Creates an empty cache of at most `bytes` bytes. With 0, nothing is cached.
    pub(super) fn new(bytes: u64) -> Self {
        let shards = (bytes / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS);
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            shard_bytes: bytes / shards,
            used_bytes: AtomicU64::new(0),
        }
    }

    /// Bytes in use.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn shard(&self, block: BlockRef) -> &Mutex<BlockCacheShard> {
        &self.shards[(block.check % self.shards.len() as u64) as usize]
    }

    /// Returns the value of a block, if it is cached.
    pub(super) fn get(&self, block: BlockRef) -> Option<Vec<u8>> {
        let value = lock(self.shard(block)).get(block)?;
        Some(value.to_vec())
    }

    /// Caches the value that was read through the reference `block`.
    pub(super) fn keep(&self, block: BlockRef, value: &[u8]) {
        if value.len() as u64 + ENTRY_BYTES > self.shard_bytes / LARGEST_PART {
            return;
        }
        let entry = CachedBlock { block, value: Arc::new(value.to_vec()), is_used: false };
        self.change(block, |shard| shard.keep(entry, self.shard_bytes));
    }

    /// Drops a block that no leaf refers to any more.
    pub(super) fn forget(&self, block: BlockRef) {
        self.change(block, |shard| {
            if let Some(&place) = shard.places.get(&block.at.to_bits()) {
                shard.evict(place);
            }
        });
    }

    fn change(&self, block: BlockRef, work: impl FnOnce(&mut BlockCacheShard)) {
        let mut shard = lock(self.shard(block));
        let before = shard.used_bytes;
        work(&mut shard);
        let after = shard.used_bytes;
        drop(shard);
        self.used_bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl BlockCacheShard {
    fn get(&mut self, block: BlockRef) -> Option<Arc<Vec<u8>>> {
        let place = *self.places.get(&block.at.to_bits())?;
        let entry = self.entries[place].as_mut().filter(|entry| entry.block == block)?;
        entry.is_used = true;
        Some(Arc::clone(&entry.value))
    }

    fn keep(&mut self, entry: CachedBlock, most_bytes: u64) {
        if let Some(&place) = self.places.get(&entry.block.at.to_bits()) {
            self.evict(place);
        }
        while self.used_bytes + entry.bytes() > most_bytes {
            self.advance();
        }
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.used_bytes += entry.bytes();
        self.places.insert(entry.block.at.to_bits(), place);
        self.entries[place] = Some(entry);
    }

    /// Advances the hand by one position, and evicts the entry there if it was not used.
    fn advance(&mut self) {
        let place = self.hand % self.entries.len();
        self.hand = place + 1;
        match &mut self.entries[place] {
            Some(entry) if entry.is_used => entry.is_used = false,
            Some(_) => self.evict(place),
            None => {}
        }
    }

    fn evict(&mut self, place: usize) {
        if let Some(entry) = self.entries[place].take() {
            self.used_bytes -= entry.bytes();
            self.places.remove(&entry.block.at.to_bits());
            self.vacant.push(place);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::{GlobalAddr, ServerId};

    fn block(number: u64, value: &[u8]) -> BlockRef {
        let at = GlobalAddr::new(ServerId::new(0), 1024 + number * 64);
        BlockRef { at, bytes: value.len(), check: number / 1000 }
    }

    #[test]
    fn the_budget_holds_and_used_blocks_stay() {
        let cache = BlockCache::new(40 * (100 + ENTRY_BYTES));
        let value = |number: u64| vec![number as u8; 100];
        for number in 0..1000 {
            cache.keep(block(number, &value(number)), &value(number));
            assert_eq!(cache.get(block(0, &value(0))), Some(value(0)), "used all the time");
            assert!(cache.used_bytes() <= 40 * (100 + ENTRY_BYTES));
        }
        let left = (0..1000).filter(|number| cache.get(block(*number, &value(*number))).is_some());
        assert_eq!(left.count(), 40);
        cache.forget(block(0, &value(0)));
        assert_eq!(cache.get(block(0, &value(0))), None);
        assert_eq!(cache.used_bytes(), 39 * (100 + ENTRY_BYTES));
    }

    #[test]
    fn another_reference_to_the_same_place_finds_nothing() {
        let cache = BlockCache::new(1 << 20);
        let old = block(1, b"old value");
        cache.keep(old, b"old value");
        let new = BlockRef { check: old.check + 1, ..old };
        assert_eq!(cache.get(new), None);
        cache.keep(new, b"new value");
        assert_eq!((cache.get(new), cache.get(old)), (Some(b"new value".to_vec()), None));
        cache.keep(block(2, &[7; 1 << 19]), &[7; 1 << 19]);
        assert_eq!(cache.get(block(2, &[7; 1 << 19])), None, "too large a part");
        let none = BlockCache::new(0);
        none.keep(old, b"old value");
        assert_eq!((none.get(old), none.used_bytes()), (None, 0));
    }
}
