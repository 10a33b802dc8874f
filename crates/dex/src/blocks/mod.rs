//! Values of up to 1 MiB for keys and values that are byte strings: longer values are in immutable
//! blocks beside the leaves, and leaves refer to them.
//!
//! ```text
//! leaf record:  key │ value, if it is short
//!               key │ [address][length][check] ──▶ block: the value's words and nothing else
//!                      └───────── tree ─────────┘         └─ written once, READ by its exact size
//! ```
//!
//! [`DexWithBlocks`] has blocks above a whole index, whose compute servers are in one process;
//! [`InBlocks`] above one compute server's part, for compute servers that are processes of their
//! own. Both run the same operations (`handle.rs`) on what is below (`below.rs`).
//!
//! The tree depends on blocks in only one way: an edit that takes away a value with a reference's
//! length returns it ([`farleaf_page::EditAnswer::found`]), so that the block can be freed. Its
//! pages, messages and protocols are the same.
//!
//! The files of this folder enforce three of the invariants of blocks. A reference is stored only
//! after its block is written (blocks.X1). The operation that took a reference out of a leaf frees
//! the block, but only after [`farleaf_index::RangeIndex::flush`] and a grace period, because
//! until then the leaf may be only in a cache (blocks.X4). A block of an operation of unknown
//! outcome is abandoned (blocks.X8).
//!
//! *Thread safety*: handles belong to their endpoints' threads; the space and the cache are shared
//! by the handles of a process.

mod batch;
mod below;
mod cache;
mod client;
mod former;
mod handle;
mod load;
mod options;
mod part;
mod shared;
mod space;

pub use client::BlockClient;
pub use handle::BlockIndex;
pub use options::{BlockOptions, MAX_LOST};
pub use part::InBlocks;
pub use shared::{SharedBlocks, ValueBlocks};
pub use space::{BlockSpace, BlockUsage};

use crate::Dex;
use farleaf_fabric::Fabric;
use farleaf_index::{Design, IndexError, ValueForm};
use farleaf_page::Layout;

/// DEX with value blocks.
#[derive(Clone, Copy, Debug)]
pub struct DexWithBlocks;

/// The compute side of an index with value blocks.
#[derive(Clone, Debug)]
pub struct BlockCompute<C> {
    design: C,
    shared: SharedBlocks,
}

impl<C> BlockCompute<C> {
    /// The compute side of the index without blocks.
    pub fn design(&self) -> &C {
        &self.design
    }

    /// How much space the blocks of this process use.
    pub fn usage(&self) -> BlockUsage {
        self.shared.usage()
    }
}

impl<L: Layout<Key = [u8], Value = [u8]>> Design<L> for DexWithBlocks {
    const NAME: &'static str = <Dex as Design<L>>::NAME;

    type Options = BlockOptions<<Dex as Design<L>>::Options>;
    type Compute = BlockCompute<<Dex as Design<L>>::Compute>;
    type Index<F: Fabric> = BlockIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, options: &Self::Options) -> Result<(), IndexError> {
        <Dex as Design<L>>::create(fabric, &options.design).await?;
        Ok(<InBlocks as ValueForm<L>>::mark(fabric).await?)
    }

    fn compute(options: &Self::Options) -> Result<Self::Compute, IndexError> {
        let shared = SharedBlocks::new(options)?;
        Ok(BlockCompute { design: <Dex as Design<L>>::compute(&options.design)?, shared })
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<Self::Index<F>, IndexError> {
        let design = <Dex as Design<L>>::open_handle(fabric.clone(), &compute.design).await?;
        Ok(BlockIndex::new(design, ValueBlocks::new(&compute.shared, fabric)))
    }

    /// Leaves must have been written with blocks: a value of a reference's length would pass for
    /// one, and a longer one lose a byte.
    async fn check_values<F: Fabric>(fabric: &F) -> Result<(), IndexError> {
        Ok(<InBlocks as ValueForm<L>>::check_index(fabric).await?)
    }

    fn cached_bytes(compute: &Self::Compute) -> u64 {
        <Dex as Design<L>>::cached_bytes(&compute.design) + compute.shared.cached_bytes()
    }
}
