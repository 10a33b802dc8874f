//! What the clients of a compute server share, and whose side an operation takes.
//!
//! *Invariants*
//! - smart.O1. In the partitioned form, a key belongs to the compute server whose range has it. Its
//!   leaf is changed only in a turn of that compute server.
//! - smart.O2. A partitioned index is open to one compute side only, because the turns and the
//!   boundaries are in its memory. Its number is in the superblock of server 0, for good.
//!
//! *Thread safety*: shared by all threads of a process.

use super::SmartOptions;
use super::cache::SmartCache;
use super::together::Groups;
use crate::page::{Action, Answer, Slot};
use crate::remote::EntryLocks;
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use std::collections::BTreeMap;

/// What the clients of one compute server share.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) cache: SmartCache,
    pub(super) lookups: Groups<(), Option<u64>>,
    pub(super) changes: Groups<Action<u64>, Answer<u64>>,
    /// Turns at the leaves that only this compute server changes.
    pub(super) turns: Arc<EntryLocks>,
}

/// The compute side of an index: for each compute server, its cached nodes and its turns.
#[derive(Clone, Debug)]
pub struct SmartCompute {
    options: SmartOptions,
    /// Where the keys of each compute server but the first begin; `None` if they share all keys.
    boundaries: Option<Arc<Vec<u64>>>,
    sides: Arc<Mutex<BTreeMap<u16, Arc<Side>>>>,
    /// 0 until it is drawn.
    number: Arc<AtomicU64>,
}

impl SmartCompute {
    pub(super) fn new(options: SmartOptions, boundaries: Option<Vec<u64>>) -> Self {
        let sides = Arc::new(Mutex::new(BTreeMap::new()));
        let number = Arc::new(AtomicU64::new(0));
        Self { options, boundaries: boundaries.map(Arc::new), sides, number }
    }

    pub(super) fn options(&self) -> SmartOptions {
        self.options
    }

    /// Whether each compute server owns a range of keys.
    pub(super) fn is_divided(&self) -> bool {
        self.boundaries.is_some()
    }

    /// The number of this compute side: the first one that was drawn.
    pub(super) fn number(&self, drawn: u64) -> u64 {
        match self.number.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => drawn,
            Err(earlier) => earlier,
        }
    }

    fn side(&self, compute_server: u16) -> Arc<Side> {
        let new = || {
            Arc::new(Side {
                cache: SmartCache::new(self.options.cache_bytes),
                lookups: Groups::new(false),
                changes: Groups::new(true),
                turns: Arc::new(EntryLocks::exclusive()),
            })
        };
        lock(&self.sides).entry(compute_server).or_insert_with(new).clone()
    }

    /// The sides that a client on a compute server takes.
    pub(super) fn sides(&self, compute_server: u16) -> Sides {
        let numbers = match &self.boundaries {
            None => compute_server..=compute_server,
            Some(boundaries) => 0..=boundaries.len() as u16,
        };
        let of = numbers.map(|number| self.side(number)).collect();
        Sides { boundaries: self.boundaries.clone().unwrap_or_default(), of }
    }

    pub(super) fn cached_bytes(&self) -> u64 {
        lock(&self.sides).values().map(|side| side.cache.bytes()).sum()
    }
}

/// The sides that one client takes: that of its compute server for all keys, or for each key that
/// of its owner.
#[derive(Debug)]
pub(super) struct Sides {
    boundaries: Arc<Vec<u64>>,
    of: Vec<Arc<Side>>,
}

impl Sides {
    /// The side for a key.
    #[inline]
    pub(super) fn of(&self, key: u64) -> &Side {
        &self.of[self.boundaries.partition_point(|low| *low <= key)]
    }

    /// Tells all of them the root slot.
    pub(super) fn note_root(&self, slot: Slot) {
        self.of.iter().for_each(|side| side.cache.note_root(slot));
    }
}
