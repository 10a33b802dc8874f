//! Options of a new fine-grained index. The superblock holds them for all clients. From the low end
//! up:
//!
//! ```text
//! [design:8][log2 of chunk nodes:7][by versions:1][leaves between heads:16][claim id:32]
//! ```

use farleaf_index::design_options;
use farleaf_page::{DesignId, NodeCarver};

design_options! {
    /// Options of a new fine-grained index.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FineOptions {
        /// How many nodes a client takes from a memory server at once, as a power of two.
        pub chunk_nodes_log2: u8 = 8, in 0..=20;
        /// A head, which lists the leaves after it, follows after this many leaves. 0 disables
        /// heads.
        pub leaves_per_head: u16 = 16;
        /// Whether a descent reads each node's version, the node, and the version again, as in the
        /// paper, although the node's checksum makes one READ enough. For comparisons. Scans read
        /// leaves ahead without these extra READs.
        pub by_versions: bool = false;
    }
}

impl FineOptions {
    pub(super) fn chunk_bytes(self) -> u64 {
        NodeCarver::NODE_ALIGN << self.chunk_nodes_log2.min(20)
    }

    pub(super) fn to_word(self) -> u64 {
        DesignId::Fine as u64
            | u64::from(self.chunk_nodes_log2 & 0x7f) << 8
            | u64::from(self.by_versions) << 15
            | u64::from(self.leaves_per_head) << 16
    }

    pub(super) fn from_word(word: u64) -> Self {
        Self {
            chunk_nodes_log2: (word >> 8) as u8 & 0x7f,
            leaves_per_head: (word >> 16) as u16,
            by_versions: word >> 15 & 1 == 1,
        }
    }
}
