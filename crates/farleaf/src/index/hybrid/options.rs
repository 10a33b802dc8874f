//! What can be chosen when a hybrid index is made. The part that is not the partitioning is in the
//! superblock; the memory servers know their shares:
//!
//! ```text
//! [design:8][log2 of chunk nodes:8][reserved:16][random:32]     from the low end up
//! ```

use crate::page::{DesignId, NodeCarver};
use crate::remote::Partitioning;

/// The choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HybridOptions<K> {
    /// Which memory server knows the leaves of which keys: [`Partitioning::Range`], nothing else.
    pub partitioning: Partitioning<K>,
    /// How many nodes a client takes from a memory server at once, as a power of two.
    pub chunk_nodes_log2: u8,
}

impl<K> HybridOptions<K> {
    /// The usual choices, with the shares of the memory servers divided at `boundaries`.
    pub fn with_boundaries(boundaries: Vec<K>) -> Self {
        Self { partitioning: Partitioning::Range { boundaries }, chunk_nodes_log2: 8 }
    }

    pub(super) fn to_word(&self) -> u64 {
        DesignId::Hybrid as u64 | u64::from(self.chunk_nodes_log2) << 8
    }
}

/// The bytes of a chunk, as the options word in the superblock says.
pub(super) fn chunk_bytes(word: u64) -> u64 {
    NodeCarver::NODE_ALIGN << ((word >> 8) as u8).min(20)
}
