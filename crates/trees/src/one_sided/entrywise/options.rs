//! Options of a new index with entrywise leaves. The superblock holds those of the memory servers.
//! From the low end up:
//!
//! ```text
//! [design:8][log2 of chunk nodes:7][divided:1][locks have versions:1][reserved:15][claim id:32]
//! ```

use farleaf_index::DEFAULT_CACHE_BYTES;
use farleaf_page::{DesignId, NodeCarver};

/// In the options' word: the keys are divided among compute servers.
const DIVIDED: u64 = 1 << 15;

/// Options of a new index with entrywise leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntrywiseOptions {
    /// How many nodes a client takes from a memory server at once, as a power of two.
    pub chunk_nodes_log2: u8,
    /// Size of the cached nodes of each compute server, in bytes. Only parents of leaves are
    /// cached.
    pub cache_bytes: u64,
    /// How many clients of a compute server in a row can get a leaf's lock by hand-over. 0 disables
    /// hand-over.
    pub hand_overs: u32,
    /// Whether a lookup trusts a leaf by the version in its lock, read before and after the leaf,
    /// instead of by the checks in it. For experiments.
    pub by_versions: bool,
}

impl Default for EntrywiseOptions {
    fn default() -> Self {
        let (chunk_nodes_log2, cache_bytes) = (8, DEFAULT_CACHE_BYTES);
        Self { chunk_nodes_log2, cache_bytes, hand_overs: 8, by_versions: false }
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
