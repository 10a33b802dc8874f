//! What the clients of a compute server share, and whose side of an index an operation takes.
//!
//! *Invariants*
//! - entrywise.O1. In the partitioned form, a leaf belongs to the compute server that owns its
//!   lowest key, which never changes. Its entries are changed in a turn of that compute server.
//! - entrywise.O2. A partitioned index is open to one compute side only, because the turns and the
//!   boundaries are in its memory. Its number is in the superblock of server 0, for good.
//!
//! *Thread safety*: shared by all threads of a process.

use super::EntrywiseOptions;
use super::cache::NodeCache;
use super::hot::HotEntries;
use crate::page::{Layout, OwnedKey, Probe};
use crate::remote::EntryLocks;
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use std::collections::BTreeMap;

/// What the clients of one compute server share.
#[derive(Debug)]
struct Side<L: Layout> {
    cache: NodeCache<L>,
    hot: HotEntries<L>,
    locks: Arc<EntryLocks>,
}

impl<L: Layout> Side<L> {
    fn new(options: EntrywiseOptions, hot_bytes: u64, is_exclusive: bool) -> Arc<Self> {
        let locks = match is_exclusive {
            true => EntryLocks::exclusive(),
            false if options.by_versions => EntryLocks::new(options.hand_overs).with_versions(),
            false => EntryLocks::new(options.hand_overs),
        };
        let (cache, hot) = (NodeCache::new(options.cache_bytes), HotEntries::new(hot_bytes));
        Arc::new(Self { cache, hot, locks: Arc::new(locks) })
    }
}

/// The compute side of an index: for each compute server, its cached nodes and its turns at locks.
#[derive(Debug)]
pub struct EntrywiseCompute<L: Layout> {
    options: EntrywiseOptions,
    hot_bytes: u64,
    /// Where the keys of each compute server but the first begin; `None` if they share all keys.
    boundaries: Option<Arc<Vec<OwnedKey<L>>>>,
    sides: Arc<Mutex<BTreeMap<u16, Arc<Side<L>>>>>,
    /// 0 until it is drawn.
    number: Arc<AtomicU64>,
}

// Not derived: the derive would require more of `L`.
impl<L: Layout> Clone for EntrywiseCompute<L> {
    fn clone(&self) -> Self {
        let Self { options, hot_bytes, boundaries, sides, number } = self;
        let (boundaries, sides) = (boundaries.clone(), sides.clone());
        Self { options: *options, hot_bytes: *hot_bytes, boundaries, sides, number: number.clone() }
    }
}

impl<L: Layout> EntrywiseCompute<L> {
    pub(crate) fn new(options: EntrywiseOptions, boundaries: Option<Vec<OwnedKey<L>>>) -> Self {
        let sides = Arc::new(Mutex::new(BTreeMap::new()));
        let number = Arc::new(AtomicU64::new(0));
        Self { options, hot_bytes: 0, boundaries: boundaries.map(Arc::new), sides, number }
    }

    /// Gives each compute server so many bytes for guesses where popular records are.
    pub(crate) fn with_hot_entries(mut self, bytes: u64) -> Self {
        self.hot_bytes = bytes;
        self
    }

    /// Whether each compute server owns a range of keys.
    pub(super) fn is_divided(&self) -> bool {
        self.boundaries.is_some()
    }

    /// Whether entry locks have versions.
    pub(super) fn is_by_versions(&self) -> bool {
        self.options.by_versions
    }

    /// The number of this compute side: the first one that was drawn.
    pub(super) fn number(&self, drawn: u64) -> u64 {
        match self.number.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => drawn,
            Err(earlier) => earlier,
        }
    }

    fn side(&self, compute_server: u16) -> Arc<Side<L>> {
        let new = || Side::new(self.options, self.hot_bytes, self.boundaries.is_some());
        lock(&self.sides).entry(compute_server).or_insert_with(new).clone()
    }

    /// The sides that a client on a compute server takes.
    pub(super) fn sides(&self, compute_server: u16) -> Sides<L> {
        match &self.boundaries {
            None => {
                let own = self.side(compute_server);
                Sides { boundaries: Arc::default(), of: vec![own] }
            }
            Some(boundaries) => {
                let numbers = 0..=boundaries.len() as u16;
                let of = numbers.map(|number| self.side(number)).collect();
                Sides { boundaries: boundaries.clone(), of }
            }
        }
    }

    pub(crate) fn cached_bytes(&self) -> u64 {
        lock(&self.sides).values().map(|side| side.cache.bytes() + side.hot.bytes()).sum()
    }
}

/// The sides that one client takes: that of its compute server for all keys, or for each key that
/// of its owner.
#[derive(Debug)]
pub(super) struct Sides<L: Layout> {
    boundaries: Arc<Vec<OwnedKey<L>>>,
    of: Vec<Arc<Side<L>>>,
}

impl<L: Layout> Sides<L> {
    /// The number of the side for a probe.
    #[inline]
    pub(super) fn owner(&self, probe: Probe<'_, L::Key>) -> usize {
        match probe {
            Probe::At(key) => self.boundaries.partition_point(|low| L::key(low) <= key),
            Probe::Before(key) => self.boundaries.partition_point(|low| L::key(low) < key),
            Probe::Last => self.boundaries.len(),
        }
    }

    #[inline]
    pub(super) fn cache(&self, probe: Probe<'_, L::Key>) -> &NodeCache<L> {
        &self.of[self.owner(probe)].cache
    }

    pub(super) fn hot(&self, probe: Probe<'_, L::Key>) -> &HotEntries<L> {
        &self.of[self.owner(probe)].hot
    }

    pub(super) fn locks(&self, owner: usize) -> &Arc<EntryLocks> {
        &self.of[owner].locks
    }

    /// The locks of the first side, for recovery and for a bulk load, which locks the root: the
    /// first side owns its lowest key (entrywise.O1).
    pub(super) fn any_locks(&self) -> Arc<EntryLocks> {
        self.of[0].locks.clone()
    }
}
