//! What the clients of a compute server share, and whose side of an index an operation takes.
//!
//! *Invariants*
//! - entrywise.O1. In the partitioned form, a leaf belongs to the compute server that owns its
//!   lowest key, which never changes. Its entries are changed in a turn of that compute server.
//! - entrywise.O2. A partitioned index is open to one compute side only ([`PerServer`]).
//!
//! *Thread safety*: shared by all threads of a process.

use super::EntrywiseOptions;
use super::cache::NodeCache;
use super::hot::HotEntries;
use crate::entry_lock::EntryLocks;
use crate::sides::{ClientSides, PerServer, SideErrors};
use farleaf_fabric::sync::Arc;
use farleaf_index::IndexError;
use farleaf_page::{DescentProbe, Layout, OwnedKey};

const REFUSALS: SideErrors = SideErrors {
    is_divided: "the keys of this index are divided among compute servers: open it as p-sherman",
    is_shared: "the compute servers of this index share all keys: open it as sherman",
    too_many: "p-sherman has at most 65,535 boundaries",
};

/// What the clients of one compute server share.
#[derive(Debug)]
pub(super) struct EntrySide<L: Layout> {
    cache: NodeCache<L>,
    hot: HotEntries<L>,
    locks: Arc<EntryLocks>,
}

impl<L: Layout> EntrySide<L> {
    fn new(options: EntrywiseOptions, hot_bytes: u64, is_exclusive: bool) -> Self {
        let locks = match is_exclusive {
            true => EntryLocks::exclusive(),
            false if options.by_versions => EntryLocks::new(options.hand_overs).with_versions(),
            false => EntryLocks::new(options.hand_overs),
        };
        let (cache, hot) = (NodeCache::new(options.cache_bytes), HotEntries::new(hot_bytes));
        Self { cache, hot, locks: Arc::new(locks) }
    }
}

/// The compute side of an index: for each compute server, its cached nodes and its turns at locks.
#[derive(Debug)]
pub struct EntrywiseCompute<L: Layout> {
    options: EntrywiseOptions,
    hot_bytes: u64,
    pub(super) all: Arc<PerServer<OwnedKey<L>, EntrySide<L>>>,
}

// Not derived: the derive would require more of `L`.
impl<L: Layout> Clone for EntrywiseCompute<L> {
    fn clone(&self) -> Self {
        Self { options: self.options, hot_bytes: self.hot_bytes, all: self.all.clone() }
    }
}

impl<L: Layout> EntrywiseCompute<L> {
    /// With `boundaries`, each compute server owns a range of keys.
    ///
    /// # Errors
    /// Those of [`PerServer::new`].
    pub(crate) fn new(
        options: EntrywiseOptions,
        boundaries: Option<Vec<OwnedKey<L>>>,
    ) -> Result<Self, IndexError> {
        Ok(Self { options, hot_bytes: 0, all: PerServer::new(boundaries, &REFUSALS)? })
    }

    /// Gives each compute server so many bytes for guesses where popular records are.
    pub(crate) fn with_hot_entries(mut self, bytes: u64) -> Self {
        self.hot_bytes = bytes;
        self
    }

    /// Whether entry locks have versions.
    pub(super) fn is_by_versions(&self) -> bool {
        self.options.by_versions
    }

    /// The sides that a client on a compute server takes.
    pub(super) fn sides(&self, compute_server: u16) -> ClientEntrySides<L> {
        let is_exclusive = self.all.is_divided();
        self.all
            .sides(compute_server, || EntrySide::new(self.options, self.hot_bytes, is_exclusive))
    }

    pub(crate) fn cached_bytes(&self) -> u64 {
        self.all.bytes(|side| side.cache.bytes() + side.hot.bytes())
    }
}

/// The sides that one client takes.
pub(super) type ClientEntrySides<L> = ClientSides<OwnedKey<L>, EntrySide<L>>;

impl<L: Layout> ClientEntrySides<L> {
    /// The number of the side for a probe.
    #[inline]
    pub(super) fn owner_of(&self, probe: DescentProbe<'_, L::Key>) -> usize {
        match probe {
            DescentProbe::At(key) => self.owner(|low| L::key(low) <= key),
            DescentProbe::Before(key) => self.owner(|low| L::key(low) < key),
            DescentProbe::Last => self.owner(|_| true),
        }
    }

    #[inline]
    pub(super) fn cache(&self, probe: DescentProbe<'_, L::Key>) -> &NodeCache<L> {
        &self.side(self.owner_of(probe)).cache
    }

    pub(super) fn hot(&self, probe: DescentProbe<'_, L::Key>) -> &HotEntries<L> {
        &self.side(self.owner_of(probe)).hot
    }

    pub(super) fn locks(&self, owner: usize) -> &Arc<EntryLocks> {
        &self.side(owner).locks
    }

    /// The locks of the first side, for recovery and for a bulk load, which locks the root: the
    /// first side owns its lowest key (entrywise.O1).
    pub(super) fn any_locks(&self) -> Arc<EntryLocks> {
        self.locks(0).clone()
    }
}
