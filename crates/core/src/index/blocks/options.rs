//! Options of value blocks.
//!
//! *Thread safety*: plain values.

use crate::index::IndexError;

/// How many replaced blocks wait by default before leaves are written back.
pub const MOST_LOST: u64 = 16_384;

/// Options of an index with value blocks. All handles of an index should have the same.
#[derive(Clone, Debug)]
pub struct BlockOptions<O> {
    /// The options of the design below.
    pub design: O,
    /// Values of at most this many bytes are in leaves, if they fit there beside their keys.
    pub inline_bytes: usize,
    /// The most bytes of cached blocks in this process.
    pub cache_bytes: u64,
    /// The size of the chunks that blocks are cut from, in bytes.
    pub chunk_bytes: u64,
    /// So many replaced blocks wait until the leaves that referred to them are written back. Each
    /// time a cache writes all its changes back, so few means many WRITEs, and many means memory.
    pub most_lost: usize,
}

impl<O> BlockOptions<O> {
    /// The longest value that is inline by default. Shorter values take less memory in the leaf,
    /// and longer ones leave room in the cache for more leaves.
    pub const INLINE_BYTES: usize = 200;

    /// Default options, without a cache for blocks.
    pub fn new(design: O) -> Self {
        Self {
            design,
            inline_bytes: Self::INLINE_BYTES,
            cache_bytes: 0,
            chunk_bytes: 1 << 20,
            most_lost: MOST_LOST as usize,
        }
    }

    /// No blocks but for values that no page holds.
    pub fn all_inline(design: O) -> Self {
        Self { inline_bytes: usize::MAX, ..Self::new(design) }
    }

    pub(super) fn check(&self) -> Result<(), IndexError> {
        match self.chunk_bytes {
            1024..=0x4000_0000 => Ok(()),
            _ => Err(IndexError::InvalidArgument("chunks of blocks have 1 KiB to 1 GiB")),
        }
    }
}
