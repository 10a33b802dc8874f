//! Options of a new DEX index.
//!
//! The superblock holds the options that all compute servers must agree on. From the low end up:
//!
//! ```text
//! [design:8][log2 of chunk nodes:8][placement level:8][reserved:8][claim id:32]
//! ```

use crate::cache::{AdmissionName, CacheOptions};
use farleaf_index::{BalanceOptions, Boundaries, IndexError, PartitionOptions};
use farleaf_page::{DesignId, NodeCarver};
use std::fmt::Debug;

/// Options of a new DEX index.
#[derive(Clone, Debug, PartialEq)]
pub struct DexOptions<K> {
    /// The low ends of the compute servers' ranges, without the first one; strictly ascending.
    /// There is one fewer than there are compute servers.
    pub boundaries: Vec<K>,
    /// Further compute servers that own no keys at first. Keys can be moved to them.
    pub spare_compute_servers: u16,
    /// Memory servers that hold nothing at first: the last ones of the fabric. Nodes can be placed
    /// on them later.
    pub spare_memory_servers: u16,
    /// How to balance load among compute servers while a balancer runs.
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

    pub(super) fn chunk_bytes(&self) -> u64 {
        chunk_bytes(self.chunk_nodes_log2)
    }

    pub(super) fn to_word(&self) -> u64 {
        DesignId::Dex as u64
            | u64::from(self.chunk_nodes_log2) << 8
            | u64::from(self.placement_level) << 16
    }
}

impl<K: Clone + Debug + Send + Sync> PartitionOptions<K> for DexOptions<K> {
    type ServerOptions = CacheOptions;

    fn boundaries(&self) -> &[K] {
        &self.boundaries
    }

    fn spare_compute_servers(&self) -> u16 {
        self.spare_compute_servers
    }

    fn spare_memory_servers(&self) -> u16 {
        self.spare_memory_servers
    }

    fn balance(&self) -> &BalanceOptions {
        &self.balance
    }

    fn at_load(&self) -> Boundaries {
        self.at_load
    }

    fn server(&self) -> &CacheOptions {
        &self.cache
    }

    fn check_moves(&self) -> Result<(), IndexError> {
        match self.cache.admission {
            AdmissionName::Never => {
                Err(IndexError::InvalidArgument("keys cannot move without a cache"))
            }
            _ => Ok(()),
        }
    }
}

fn chunk_bytes(log2: u8) -> u64 {
    NodeCarver::NODE_ALIGN << log2.min(20)
}

/// Decodes the options word of the superblock: the size of a chunk in bytes, and the placement
/// level.
pub(super) fn from_word(word: u64) -> (u64, u8) {
    (chunk_bytes((word >> 8) as u8), (word >> 16) as u8)
}
