//! Options of a new DEX index.
//!
//! The superblock holds the options that all compute servers must agree on. From the low end up:
//!
//! ```text
//! [design:8][log2 of chunk nodes:8][placement level:8][reserved:8][claim id:32]
//! ```

use crate::cache::{AdmissionName, CacheOptions};
use farleaf_index::{BalanceOptions, Boundaries, IndexError, PartitionOptions, design_options};
use farleaf_page::{DEFAULT_PLACEMENT_LEVEL, DesignId, NodeCarver};
use std::fmt::Debug;

design_options! {
    /// Options of a new DEX index.
    #[derive(Clone, Debug, PartialEq)]
    pub struct DexOptions<K> {
        /// Each subtree of this level lies entirely on one memory server.
        pub placement_level: u8 = DEFAULT_PLACEMENT_LEVEL, in 0..=15;
        /// How many nodes a client takes from a memory server at once, as a power of two.
        pub chunk_nodes_log2: u8 = 8, in 0..=20;
        /// How a bulk load treats the boundaries: it keeps those between keys, or makes new ones
        /// between equal numbers of records.
        pub at_load: Boundaries = Boundaries::default();
    }
    with {
        /// The cache of each compute server.
        pub cache: CacheOptions;
        /// How to balance load among compute servers while a balancer runs.
        pub balance: BalanceOptions;
    }
    given {
        /// The low ends of the compute servers' ranges, without the first one; strictly ascending.
        /// There is one fewer than there are compute servers.
        pub boundaries: Vec<K> = Vec::new();
        /// Further compute servers that own no keys at first. Keys can be moved to them.
        pub spare_compute_servers: u16 = 0;
        /// Memory servers that hold nothing at first: the last ones of the fabric. Nodes can be
        /// placed on them later.
        pub spare_memory_servers: u16 = 0;
    }
}

impl<K> DexOptions<K> {
    /// The default options with these boundaries and this cache.
    pub fn with_boundaries(boundaries: Vec<K>, cache: CacheOptions) -> Self {
        Self { boundaries, cache, ..Self::default() }
    }

    /// The same options with other boundaries.
    pub fn divided<Q>(self, boundaries: Vec<Q>) -> DexOptions<Q> {
        DexOptions {
            placement_level: self.placement_level,
            chunk_nodes_log2: self.chunk_nodes_log2,
            at_load: self.at_load,
            cache: self.cache,
            balance: self.balance,
            boundaries,
            spare_compute_servers: self.spare_compute_servers,
            spare_memory_servers: self.spare_memory_servers,
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
