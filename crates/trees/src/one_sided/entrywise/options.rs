//! Options of a new index with entrywise leaves. The superblock holds those of the memory servers.
//! From the low end up:
//!
//! ```text
//! [design:8][log2 of chunk nodes:7][divided:1][locks have versions:1][reserved:15][claim id:32]
//! ```

use farleaf_index::{DEFAULT_CACHE_BYTES, design_options};
use farleaf_page::{DesignId, NodeCarver};

/// In the options' word: the keys are divided among compute servers.
const DIVIDED: u64 = 1 << 15;

design_options! {
    /// Options of a new index with entrywise leaves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EntrywiseOptions {
        /// How many nodes a client takes from a memory server at once, as a power of two.
        pub chunk_nodes_log2: u8 = 8, in 0..=20;
        /// Size of the cached nodes of each compute server, in bytes. Only parents of leaves are
        /// cached.
        pub cache_bytes: u64 = DEFAULT_CACHE_BYTES;
        /// How many clients of a compute server in a row can get a leaf's lock by hand-over. 0
        /// disables hand-over.
        pub hand_overs: u32 = 8, in 0..=1_000;
        /// Whether a lookup trusts a leaf by the version in its lock, read before and after the
        /// leaf, instead of by the checks in it. For experiments, only in Sherman.
        pub by_versions: bool = false;
    }
}

impl EntrywiseOptions {
    pub(super) fn to_word(self, design: DesignId, divided: bool) -> u64 {
        let divided = if divided { DIVIDED } else { 0 };
        let versions = u64::from(self.by_versions) << 16;
        design as u64 | u64::from(self.chunk_nodes_log2 & 0x7f) << 8 | divided | versions
    }

    /// Whether entry locks have versions.
    pub(super) fn is_by_versions(word: u64) -> bool {
        word >> 16 & 1 == 1
    }

    /// Whether the keys are divided among compute servers.
    pub(super) fn is_divided(word: u64) -> bool {
        word & DIVIDED != 0
    }

    pub(super) fn chunk_bytes(word: u64) -> u64 {
        NodeCarver::NODE_ALIGN << ((word >> 8) as u8 & 0x7f).min(20)
    }
}
