//! What the handles of one process share of an index's value blocks, and one handle's access.
//!
//! *Thread safety*: [`SharedBlocks`] is for any number of threads; [`ValueBlocks`] belongs to its
//! endpoint's thread.

use super::BlockOptions;
use super::cache::BlockCache;
use super::client::BlockClient;
use super::space::{BlockSpace, BlockUsage};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_index::{CacheCounters, IndexError, LiveCounters};
use farleaf_page::Layout;

/// The value blocks of one process: their space, and the cached ones.
#[derive(Clone, Debug)]
pub struct SharedBlocks {
    space: Arc<BlockSpace>,
    cache: Arc<BlockCache>,
    inline_bytes: usize,
    chunk_bytes: u64,
}

impl SharedBlocks {
    /// Creates the state of an index without blocks. The other options do not matter.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if an option is out of range.
    pub fn new<O>(options: &BlockOptions<O>) -> Result<Self, IndexError> {
        options.check()?;
        Ok(Self {
            space: Arc::new(BlockSpace::new(options.most_lost)),
            cache: Arc::new(BlockCache::new(options.cache_bytes)),
            inline_bytes: options.inline_bytes,
            chunk_bytes: options.chunk_bytes,
        })
    }

    /// What the space holds.
    pub fn usage(&self) -> BlockUsage {
        self.space.usage()
    }

    /// Bytes of cached blocks.
    pub fn cached_bytes(&self) -> u64 {
        self.cache.used_bytes()
    }
}

/// One handle's access to value blocks, without the index whose leaves refer to them.
#[derive(Debug)]
pub struct ValueBlocks<F: Fabric, L: Layout> {
    pub(super) blocks: BlockClient<F, L>,
    pub(super) cache: Arc<BlockCache>,
    pub(super) counters: LiveCounters,
    pub(super) inline_bytes: usize,
}

impl<F: Fabric, L: Layout> ValueBlocks<F, L> {
    pub(super) fn new(shared: &SharedBlocks, fabric: F) -> Self {
        Self {
            blocks: BlockClient::new(fabric, &shared.space, shared.chunk_bytes),
            cache: Arc::clone(&shared.cache),
            counters: LiveCounters::default(),
            inline_bytes: shared.inline_bytes,
        }
    }

    /// Whether no value needs a block, however long it is.
    pub(super) fn are_inline(&self) -> bool {
        self.inline_bytes == usize::MAX
    }

    pub(super) fn counters(&self) -> CacheCounters {
        self.counters.snapshot()
    }
}
