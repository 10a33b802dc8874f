//! What can be chosen when a DEX index is made.
//!
//! The part that all compute servers must know is in the superblock:
//!
//! ```text
//! [design:8][log2 of chunk nodes:8][placement level:8][reserved:8][whose claim:32]     from the low end up
//! ```

use crate::cache::CacheOptions;
use crate::page::{DesignId, NodeCarver};

/// Where a bulk load puts the boundaries between compute servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Boundaries {
    /// Where the options have them.
    #[default]
    Kept,
    /// So that all have equal numbers of records.
    EqualRecords,
}

/// When load is balanced among compute servers, by who runs a balancer.
#[derive(Clone, Debug, PartialEq)]
pub struct BalanceOptions {
    /// One operation in so many is sampled, by each handle for each compute server.
    pub one_in: u32,
    /// How long loads are counted before they are looked at, in nanoseconds.
    pub window_ns: u64,
    /// Windows with fewer samples say nothing.
    pub least_samples: u64,
    /// A compute server does too much from so many times the mean on.
    pub threshold: f64,
    /// Once load is being balanced, it is enough when none does more than so many times the mean.
    pub calm: f64,
    /// Loads that cannot be evened out are left alone until one has changed by this part of the mean.
    pub change: f64,
    /// It must do too much in so many windows after each other.
    pub windows: u32,
    /// A move must make the larger of the two loads less by this part of the mean.
    pub least_gain: f64,
    /// After a move so many windows are not looked at.
    pub rest_windows: u32,
    /// So many windows after a move no keys go back.
    pub no_return_windows: u64,
    /// Whether compute servers that own nothing take part. Otherwise they are left alone, as those are that have left.
    pub uses_spares: bool,
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

/// The choices.
#[derive(Clone, Debug, PartialEq)]
pub struct DexOptions<K> {
    /// Where each compute server's range begins but the first's, ascending strictly: one less than there are
    /// compute servers.
    pub boundaries: Vec<K>,
    /// Compute servers that own no keys at first, beside these: keys can move to them.
    pub spare_compute_servers: u16,
    /// Memory servers that hold nothing at first, the last ones of those that are there: nodes can go to them later.
    pub spare_memory_servers: u16,
    /// How load is balanced among compute servers, if somebody does.
    pub balance: BalanceOptions,
    /// What a bulk load makes of them.
    pub at_load: Boundaries,
    /// The cache of each compute server.
    pub cache: CacheOptions,
    /// Subtrees of this level lie whole on one memory server.
    pub placement_level: u8,
    /// How many nodes a client takes from a memory server at once, as a power of two.
    pub chunk_nodes_log2: u8,
}

impl<K> DexOptions<K> {
    /// The usual choices.
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

/// The bytes of a chunk and the placement level, as the options word in the superblock says.
pub(crate) fn of_word(word: u64) -> (u64, u8) {
    (chunk_bytes((word >> 8) as u8), (word >> 16) as u8)
}
