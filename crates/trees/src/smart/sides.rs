//! The state that the clients of a compute server share (its *side*), and which compute server's
//! state an operation uses.
//!
//! *Invariants*
//! - smart.O1. In the partitioned form, a key belongs to the compute server whose range has it. Its
//!   leaf is changed only in a turn of that compute server.
//! - smart.O2. A partitioned index is open to one compute side only ([`PerServer`]).
//!
//! *Thread safety*: shared by all threads of a process.

use super::SmartOptions;
use super::cache::SmartCache;
use super::together::KeyGroups;
use crate::entry_lock::EntryLocks;
use crate::sides::{ClientSides, PerServer, SideErrors};
use farleaf_fabric::sync::Arc;
use farleaf_index::IndexError;
use farleaf_page::{EditAction, EditAnswer, Octets, RadixSlot};

const REFUSALS: SideErrors = SideErrors {
    is_divided: "the keys of this index are divided among compute servers: open it as p-smart",
    is_shared: "the compute servers of this index share all keys: open it as smart",
    too_many: "p-smart has at most 65,535 boundaries",
};

/// What the clients of one compute server share.
#[derive(Debug)]
pub(super) struct RadixSide {
    pub(super) cache: SmartCache,
    pub(super) lookups: KeyGroups<(), Option<Octets>>,
    pub(super) changes: KeyGroups<EditAction<Octets>, EditAnswer<Octets>>,
    /// Turns at the leaves that only this compute server changes.
    pub(super) turns: Arc<EntryLocks>,
}

impl RadixSide {
    fn new(cache_bytes: u64) -> Self {
        Self {
            cache: SmartCache::new(cache_bytes),
            lookups: KeyGroups::new(false),
            changes: KeyGroups::new(true),
            turns: Arc::new(EntryLocks::exclusive()),
        }
    }
}

/// The compute side of an index: for each compute server, its cached nodes and its turns.
#[derive(Clone, Debug)]
pub struct SmartCompute {
    options: SmartOptions,
    pub(super) all: Arc<PerServer<Octets, RadixSide>>,
}

impl SmartCompute {
    /// With `boundaries`, each compute server owns a range of keys.
    ///
    /// # Errors
    /// Those of [`PerServer::new`].
    pub(super) fn new(
        options: SmartOptions,
        boundaries: Option<Vec<Octets>>,
    ) -> Result<Self, IndexError> {
        Ok(Self { options, all: PerServer::new(boundaries, &REFUSALS)? })
    }

    pub(super) fn options(&self) -> SmartOptions {
        self.options
    }

    /// The state that a client on `compute_server` uses.
    pub(super) fn sides(&self, compute_server: u16) -> ClientRadixSides {
        self.all.sides(compute_server, || RadixSide::new(self.options.cache_bytes))
    }

    pub(super) fn cached_bytes(&self) -> u64 {
        self.all.bytes(|side| side.cache.bytes())
    }
}

/// The state that one client uses: that of its own compute server, or of each key's owner.
pub(super) type ClientRadixSides = ClientSides<Octets, RadixSide>;

impl ClientRadixSides {
    /// The state for a key.
    #[inline]
    pub(super) fn of(&self, key: &[u8]) -> &RadixSide {
        self.side(self.owner(|low| low[..] <= *key))
    }

    /// Sets the root slot in the state of all of them.
    pub(super) fn note_root(&self, slot: RadixSlot) {
        self.all().for_each(|side| side.cache.note_root(slot));
    }
}
