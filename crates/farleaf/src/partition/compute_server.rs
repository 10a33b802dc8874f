//! One compute server: it serves the keys that the map gives it, and no others.
//!
//! *Thread safety*: any number of threads.

use super::{LoadSamples, PartitionMap};
use crate::index::IndexError;
use crate::index::dex::DexServer;
use crate::page::Layout;
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};

/// A compute server and the map that it goes by.
#[derive(Debug)]
pub struct ComputeServer<L: Layout> {
    number: u16,
    dex: Arc<DexServer<L>>,
    map: Mutex<Arc<PartitionMap<L::Key>>>,
    /// The epoch of `map`, to see at a glance whether it has changed.
    epoch: AtomicU64,
    samples: LoadSamples<L::Key>,
}

impl<L: Layout> ComputeServer<L> {
    pub(super) fn new(number: u16, dex: DexServer<L>, map: Arc<PartitionMap<L::Key>>) -> Self {
        let epoch = AtomicU64::new(map.epoch());
        let samples = LoadSamples::default();
        Self { number, dex: Arc::new(dex), map: Mutex::new(map), epoch, samples }
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its part of the index.
    pub fn dex(&self) -> &Arc<DexServer<L>> {
        &self.dex
    }

    /// What is asked of it, by samples.
    pub fn samples(&self) -> &LoadSamples<L::Key> {
        &self.samples
    }

    /// The epoch of the map that it goes by.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The map that it goes by.
    pub fn map(&self) -> Arc<PartitionMap<L::Key>> {
        Arc::clone(&lock(&self.map))
    }

    /// Goes by another map from now on, if it is newer. For when no operation is under way here, or the range is that
    /// of the compute server already.
    pub(super) fn set_map(&self, map: &Arc<PartitionMap<L::Key>>) {
        let mut held = lock(&self.map);
        if map.epoch() > held.epoch() {
            *held = Arc::clone(map);
            let range = map.range_of(self.number);
            if self.dex.range() != range {
                self.dex.set_range(range);
            }
            self.epoch.store(map.epoch(), Ordering::Release);
        }
    }

    /// Accepts an operation on a key, or says whose it is.
    ///
    /// # Errors
    /// [`IndexError::NotOwner`] if it is another's.
    pub fn accept(&self, key: &L::Key) -> Result<(), IndexError> {
        let map = lock(&self.map);
        match map.owner_of(key) {
            owner if owner == self.number => Ok(()),
            owner => Err(IndexError::NotOwner { owner, epoch: map.epoch() }),
        }
    }
}
