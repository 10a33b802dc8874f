//! The superblock: page 0 of every memory server, which describes the rest of the region.
//!
//! ```text
//! word 0  magic            word 1  [reserved:32][page words:16][format:16]
//! word 2  root address     word 3  placement level M
//! word 4  pool bytes       word 5  options
//! word 6  first leaf of the server's share, if leaves are not nodes of the server's tree;
//!         on server 0, the number of the only compute side that may use a divided index
//! word 7  1 if values may be in blocks; on server 0 only
//! ```
//!
//! The addresses of the root and of the first leaf never change once they are set. *Thread safety*:
//! written before the server serves; words 2, 5, 6 and 7 are set once, later, word 7 and the
//! number in word 6 by a client's CAS; any client may read it.

use super::layout::Layout;
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{AtomicU64, Ordering};
use thiserror::Error;

const MAGIC: u64 = u64::from_le_bytes(*b"Farleaf\x01");

/// Why a superblock cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// The region has no superblock.
    #[error("the region has no superblock")]
    Missing,
    /// The pages have a different layout than the reader's.
    #[error(
        "the pool has pages of {page_words} words in format {format}, not {ours_words} in {ours}"
    )]
    OtherLayout {
        /// The pool's format.
        format: u16,
        /// The pool's page size in words.
        page_words: usize,
        /// The reader's format.
        ours: u16,
        /// The reader's page size in words.
        ours_words: usize,
    },
    /// The pool holds an index of another design, or none.
    #[error("the pool's index is of design {found}, not {ours} (0 is none)")]
    OtherDesign {
        /// The pool's design, or 0 if there is none.
        found: u8,
        /// The reader's design.
        ours: u8,
    },
    /// The reader expects value blocks, and the index was created without them.
    #[error(
        "the index was created without value blocks: open it without them, or load its records \
         into one with value blocks"
    )]
    NoBlocks,
    /// The reader expects all values in leaves, and the index was created with value blocks.
    #[error(
        "the index was created with value blocks: open it with them, or its references to blocks \
         would be read as values"
    )]
    HasBlocks,
}

/// The index designs, as encoded in the low byte of the superblock's options. 0 means that none is
/// set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DesignId {
    /// A tree on each memory server, kept by that server.
    Coarse = 1,
    /// One tree over all memory servers, accessed one-sided.
    Fine = 2,
    /// Memory servers keep the upper levels; leaves are accessed one-sided.
    Hybrid = 3,
    /// One tree over all memory servers, partitioned among compute servers that cache it.
    Dex = 4,
    /// No records on any memory server: the tree is on the compute side.
    SingleMachine = 5,
    /// A tree of sorted tables, written by one compute server at a time.
    Lsm = 6,
    /// One tree over all memory servers, accessed one-sided, with leaves written entry by entry
    /// where the layout permits it.
    Sherman = 7,
    /// A radix tree over all memory servers, accessed one-sided, with a leaf for each key.
    Smart = 8,
    /// One tree over all memory servers, accessed one-sided, with leaves that are hopscotch tables
    /// where the layout permits it.
    Chime = 9,
}

/// The default of [`Superblock::placement_level`].
pub const DEFAULT_PLACEMENT_LEVEL: u8 = 3;

/// The content of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The root of the server's own tree. Null while there is none.
    pub root: GlobalAddr,
    /// Each subtree of this level lies entirely on one memory server.
    pub placement_level: u64,
    /// Size of the region in bytes.
    pub pool_bytes: u64,
    /// The options of the index design, in its own encoding.
    pub options: u64,
    /// The leaf where the keys of this server's share begin, if the design keeps leaves outside the
    /// server's own tree; otherwise null.
    pub first_leaf: GlobalAddr,
    /// Whether values may be in blocks, as only server 0 says.
    pub has_blocks: bool,
}

impl Superblock {
    /// Size of a superblock in words.
    pub const WORDS: usize = 8;
    /// The word that becomes 1 if values may be in blocks.
    pub const BLOCKS_WORD: usize = 7;

    /// The word with the number of the only compute side that may use the index, or 0, in a design
    /// without first leaves.
    pub const SIDE_WORD: usize = 6;

    /// Writes the superblock of a new pool with pages of `L`.
    ///
    /// # Panics
    /// If `words` has fewer than [`Superblock::WORDS`] words.
    pub fn write<L: Layout>(&self, words: &[AtomicU64]) {
        let format = u64::from(L::FORMAT) | (L::page_words() as u64) << 16;
        let content = [MAGIC, format, 0, self.placement_level, self.pool_bytes, self.options];
        for (word, value) in words.iter().zip(content) {
            word.store(value, Ordering::Relaxed);
        }
        words[Self::BLOCKS_WORD].store(self.has_blocks.into(), Ordering::Relaxed);
        Self::set_first_leaf(words, self.first_leaf);
        Self::set_root(words, self.root);
    }

    /// Sets the root, once the tree below it is complete.
    ///
    /// # Panics
    /// If `words` has fewer than [`Superblock::WORDS`] words.
    pub fn set_root(words: &[AtomicU64], root: GlobalAddr) {
        words[2].store(root.to_bits(), Ordering::Release);
    }

    /// The root. Null while there is none.
    ///
    /// # Panics
    /// If `words` has fewer than [`Superblock::WORDS`] words.
    #[inline]
    pub fn root(words: &[AtomicU64]) -> GlobalAddr {
        GlobalAddr::from_bits(words[2].load(Ordering::Acquire))
    }

    /// Sets the first leaf, once.
    ///
    /// # Panics
    /// If `words` has fewer than [`Superblock::WORDS`] words.
    pub fn set_first_leaf(words: &[AtomicU64], leaf: GlobalAddr) {
        words[6].store(leaf.to_bits(), Ordering::Release);
    }

    /// Sets the options, once.
    ///
    /// # Panics
    /// If `words` has fewer than [`Superblock::WORDS`] words.
    pub fn set_options(words: &[AtomicU64], options: u64) {
        words[5].store(options, Ordering::Release);
    }

    /// Returns the options if the index has this design.
    ///
    /// # Errors
    /// [`SuperblockError::OtherDesign`] if it has another design, or if there is no index.
    pub fn options_of(&self, design: DesignId) -> Result<u64, SuperblockError> {
        let (found, ours) = (self.options as u8, design as u8);
        if found == ours {
            Ok(self.options)
        } else {
            Err(SuperblockError::OtherDesign { found, ours })
        }
    }

    /// Reads a superblock of a pool with pages of `L`.
    ///
    /// # Errors
    /// [`SuperblockError`] if there is none, or if the pages have a different layout.
    pub fn read<L: Layout>(words: &[AtomicU64]) -> Result<Self, SuperblockError> {
        let word = |index: usize| words[index].load(Ordering::Relaxed);
        if words.len() < Self::WORDS || word(0) != MAGIC {
            return Err(SuperblockError::Missing);
        }
        let (format, page_words) = (word(1) as u16, (word(1) >> 16) as u16 as usize);
        let (ours, ours_words) = (u16::from(L::FORMAT), L::page_words());
        if (format, page_words) != (ours, ours_words) {
            return Err(SuperblockError::OtherLayout { format, page_words, ours, ours_words });
        }
        Ok(Self {
            root: Self::root(words),
            placement_level: word(3),
            pool_bytes: word(4),
            options: word(5),
            first_leaf: GlobalAddr::from_bits(word(6)),
            has_blocks: word(Self::BLOCKS_WORD) != 0,
        })
    }
}
