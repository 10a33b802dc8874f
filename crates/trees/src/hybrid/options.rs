//! Options of a new hybrid index. The memory servers store their shares; the superblock holds the
//! rest. From the low end up:
//!
//! ```text
//! [design:8][log2 of chunk nodes:8][reserved:16][random:32]
//! ```

use farleaf_index::design_options;
use farleaf_page::{DesignId, NodeCarver};
use farleaf_pool::remote::Partitioning;

design_options! {
    /// Options of a new hybrid index.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct HybridOptions<K> {
        /// How many nodes a client takes from a memory server at once, as a power of two.
        pub chunk_nodes_log2: u8 = 8, in 0..=20;
    }
    given {
        /// Maps keys to the memory servers that index their leaves. Only [`Partitioning::Range`] is
        /// allowed.
        pub partitioning: Partitioning<K> = Partitioning::Range { boundaries: Vec::new() };
    }
}

impl<K> HybridOptions<K> {
    /// The default options, with the key space divided among the memory servers at `boundaries`.
    pub fn with_boundaries(boundaries: Vec<K>) -> Self {
        HybridOptions::<()>::default().divided(boundaries)
    }

    /// The same options, with the key space divided among the memory servers at `boundaries`.
    pub fn divided<Q>(self, boundaries: Vec<Q>) -> HybridOptions<Q> {
        let partitioning = Partitioning::Range { boundaries };
        HybridOptions { chunk_nodes_log2: self.chunk_nodes_log2, partitioning }
    }

    pub(super) fn to_word(&self) -> u64 {
        DesignId::Hybrid as u64 | u64::from(self.chunk_nodes_log2) << 8
    }
}

/// The size of a chunk in bytes, from the options word in the superblock.
pub(super) fn chunk_bytes(word: u64) -> u64 {
    NodeCarver::NODE_ALIGN << ((word >> 8) as u8).min(20)
}
