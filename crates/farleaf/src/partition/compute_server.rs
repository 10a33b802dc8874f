//! One compute server: it serves the keys that the map gives it, and no others; and nobody while it has halted.
//!
//! *Invariant* Q3: who has halted a compute server and has seen no operation under way knows that none begins before it
//! serves again: an operation counts itself first, then looks whether it may begin.
//!
//! *Thread safety*: any number of threads.

use super::{LoadSamples, PartitionMap};
use crate::cache::CacheOptions;
use crate::index::IndexError;
use crate::index::dex::DexServer;
use crate::page::Layout;
use crate::remote::Detector;
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
    /// Operations of others' clients under way.
    under_way: AtomicU64,
    /// Until when nobody is served; [`SERVES`] or [`RESUMES`] otherwise.
    halted_until_ns: AtomicU64,
}

const SERVES: u64 = 0;
const RESUMES: u64 = u64::MAX;

/// One operation under way, until it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay<'a>(&'a AtomicU64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<L: Layout> ComputeServer<L> {
    pub(super) fn new(number: u16, dex: DexServer<L>, map: Arc<PartitionMap<L::Key>>) -> Self {
        let epoch = AtomicU64::new(map.epoch());
        Self {
            number,
            dex: Arc::new(dex),
            map: Mutex::new(map),
            epoch,
            samples: LoadSamples::default(),
            under_way: AtomicU64::new(0),
            halted_until_ns: AtomicU64::new(SERVES),
        }
    }

    /// A compute server with an empty cache.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if there is no memory for the cache.
    pub fn start(
        number: u16,
        cache: &CacheOptions,
        map: PartitionMap<L::Key>,
    ) -> Result<Self, IndexError> {
        let what = "there is no memory for a cache of this size";
        let dex = DexServer::new(cache, map.range_of(number));
        let dex = dex.map_err(|_| IndexError::InvalidArgument(what))?;
        Ok(Self::new(number, dex, Arc::new(map)))
    }

    /// Counts an operation, if anybody is served now (Q3).
    pub(super) fn enter(&self) -> Option<UnderWay<'_>> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let entered = UnderWay(&self.under_way);
        (self.halted_until_ns.load(Ordering::SeqCst) == SERVES).then_some(entered)
    }

    /// Serves nobody until then, at the longest. Wait for [`ComputeServer::is_idle`].
    pub fn halt(&self, until_ns: u64) {
        let until_ns = until_ns.clamp(SERVES + 1, RESUMES - 1);
        // Who resumes it at this moment goes first.
        let _ = self.halted_until_ns.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| {
            (held != RESUMES).then_some(until_ns)
        });
    }

    /// Whether no operation is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) == 0
    }

    /// Whether it has halted, and will not serve by itself before `now_ns`.
    pub(super) fn has_halted(&self, now_ns: u64) -> bool {
        let until_ns = self.halted_until_ns.load(Ordering::SeqCst);
        until_ns != RESUMES && until_ns > now_ns
    }

    /// The right to let it serve again, for one at a time: nothing if it serves, or has halted for longer than
    /// `now_ns`.
    pub(super) fn begin_resume(&self, now_ns: u64) -> Option<Resuming<'_>> {
        let halted = &self.halted_until_ns;
        let over = |held| (held != SERVES && held <= now_ns).then_some(RESUMES);
        let before = halted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, over).ok()?;
        Some(Resuming { halted, then: before })
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

    /// Which memory servers it can reach.
    pub fn detector(&self) -> &Detector {
        self.dex.cache().detector()
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
    pub fn set_map(&self, map: &Arc<PartitionMap<L::Key>>) {
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

/// Lets a compute server serve again when all is well; otherwise it stays halted.
#[derive(Debug)]
pub(super) struct Resuming<'a> {
    halted: &'a AtomicU64,
    then: u64,
}

impl Resuming<'_> {
    /// It serves from now on.
    pub(super) fn serve(mut self) {
        self.then = SERVES;
    }
}

impl Drop for Resuming<'_> {
    fn drop(&mut self) {
        self.halted.store(self.then, Ordering::SeqCst);
    }
}
