//! Options of value blocks.
//!
//! *Thread safety*: plain values.

use farleaf_index::IndexError;

/// Default of [`BlockOptions::most_lost`].
pub const MAX_LOST: u64 = 16_384;

/// Options of an index with value blocks. All handles of an index should use the same options.
#[derive(Clone, Debug)]
pub struct BlockOptions<O> {
    /// The options of the index without blocks; `()` for the part of one compute server.
    pub design: O,
    /// Values of at most this many bytes are stored in leaves, if they fit there beside their keys.
    pub inline_bytes: usize,
    /// Maximum size of the cached blocks in this process, in bytes.
    pub cache_bytes: u64,
    /// The size of the chunks that blocks are cut from, in bytes.
    pub chunk_bytes: u64,
    /// Number of replaced blocks after which the leaves that referred to them are written back.
    /// Each time, a cache writes back all its changes, so a small number costs WRITEs, and a large
    /// one memory.
    pub most_lost: usize,
}

impl<O> BlockOptions<O> {
    /// Default length of the longest inline value. Inline storage takes less memory for shorter
    /// values; blocks leave room in the cache for more leaves.
    pub const INLINE_BYTES: usize = 200;

    /// Default options, without a cache for blocks.
    pub fn new(design: O) -> Self {
        Self {
            design,
            inline_bytes: Self::INLINE_BYTES,
            cache_bytes: 0,
            chunk_bytes: 1 << 20,
            most_lost: MAX_LOST as usize,
        }
    }

    /// Uses blocks only for values that no page can hold.
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
