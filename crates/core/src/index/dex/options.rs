//! Options of a new DEX index.
//!
//! The superblock holds the part that all compute servers must agree on, from the low end up:
//!
//! ```text
//! [design:8][log2 of chunk nodes:8][placement level:8][reserved:8][claim id:32]
//! ```

use crate::cache::{CacheOptions, named};
use crate::page::{DesignId, NodeCarver};

/// Where a bulk load puts the boundaries between compute servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Boundaries {
    /// At [`DexOptions::boundaries`].
    #[default]
    Kept,
    /// At leaves such that all servers get about the same number of records.
    EqualRecords,
}

named!(Boundaries, "keys or records", { Kept: "keys", EqualRecords: "records", });

/// When to balance load among compute servers, for tasks that run a balancer.
#[derive(Clone, Debug, PartialEq)]
pub struct BalanceOptions {
    /// Each handle samples one in this many operations, separately for each compute server.
    pub one_in: u32,
    /// Length of a window, in nanoseconds: loads are counted for this long before they are
    /// evaluated.
    pub window_ns: u64,
    /// Windows with fewer samples are ignored.
    pub least_samples: u64,
    /// A server counts as overloaded above this multiple of the mean load.
    pub threshold: f64,
    /// Once balancing has begun, it goes on until no server is above this multiple of the mean
    /// load.
    pub calm: f64,
    /// Loads that cannot be evened out are left alone until one has changed by more than this
    /// fraction of the mean.
    pub change: f64,
    /// A server must be overloaded in this many consecutive windows before keys move.
    pub windows: u32,
    /// A move must reduce the larger of the two loads by at least this fraction of the mean.
    pub least_gain: f64,
    /// Ignore this many windows after a move.
    pub rest_windows: u32,
    /// Move no keys back within this many windows after a move.
    pub no_return_windows: u64,
    /// Whether compute servers that own no keys take part. Otherwise they are left alone, as are
    /// servers that have left.
    pub uses_spares: bool,
}

impl BalanceOptions {
    /// Options for compute servers that are processes of their own. A server that has been drained
    /// stays without keys.
    pub fn for_processes() -> Self {
        Self { window_ns: 500_000_000, least_samples: 64, uses_spares: false, ..Self::default() }
    }
}

impl Default for BalanceOptions {
    fn default() -> Self {
        Self {
            one_in: 64,
            window_ns: 100_000_000,
            least_samples: 512,
            threshold: 1.3,
            calm: 1.15,
            change: 0.25,
            windows: 2,
            least_gain: 0.1,
            rest_windows: 1,
            no_return_windows: 8,
            uses_spares: true,
        }
    }
}

/// Options of a new DEX index.
#[derive(Clone, Debug, PartialEq)]
pub struct DexOptions<K> {
    /// The low ends of the compute servers' ranges except the first one's, strictly ascending: one
    /// fewer than there are compute servers.
    pub boundaries: Vec<K>,
    /// Further compute servers that own no keys at first. Keys can be moved to them.
    pub spare_compute_servers: u16,
    /// Memory servers that hold nothing at first: the last ones of the fabric's. Nodes can be
    /// placed on them later.
    pub spare_memory_servers: u16,
    /// How to balance load among compute servers, if a balancer runs.
    pub balance: BalanceOptions,
    /// How a bulk load treats the boundaries.
    pub at_load: Boundaries,
    /// The cache of each compute server.
    pub cache: CacheOptions,
    /// Each subtree of this level lies entirely on one memory server.
    pub placement_level: u8,
    /// How many nodes a client takes from a memory server at once, as a power of two.
    pub chunk_nodes_log2: u8,
}

impl<K> DexOptions<K> {
    /// The default options with these boundaries and this cache.
    pub fn with_boundaries(boundaries: Vec<K>, cache: CacheOptions) -> Self {
        Self {
            boundaries,
            spare_compute_servers: 0,
            spare_memory_servers: 0,
            balance: BalanceOptions::default(),
            at_load: Boundaries::default(),
            cache,
            placement_level: 3,
            chunk_nodes_log2: 8,
        }
    }

    pub(crate) fn chunk_bytes(&self) -> u64 {
        chunk_bytes(self.chunk_nodes_log2)
    }

    pub(crate) fn to_word(&self) -> u64 {
        DesignId::Dex as u64
            | u64::from(self.chunk_nodes_log2) << 8
            | u64::from(self.placement_level) << 16
    }
}

fn chunk_bytes(log2: u8) -> u64 {
    NodeCarver::NODE_ALIGN << log2.min(20)
}

/// The size of a chunk in bytes, and the placement level, from the options word in the superblock.
pub(crate) fn from_word(word: u64) -> (u64, u8) {
    (chunk_bytes((word >> 8) as u8), (word >> 16) as u8)
}
