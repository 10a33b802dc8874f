//! The forms in which simulated compute servers keep values: all in leaves, or longer ones in
//! blocks, as scenarios with `inline_bytes` have it.
//!
//! *Thread safety*: plain functions.

use crate::inspect::Pool;
use crate::scenario::Scenario;
use crate::setup::block_options;
use farleaf_core::index::blocks::{Blocks, InBlocks, SharedBlocks};
use farleaf_core::index::dex::{Dex, DexOptions};
use farleaf_core::index::{Design, InLeaves, IndexError, ValueForm};
use farleaf_core::page::{BlockRef, Layout, Named, OwnedKey, Stored};
use farleaf_core::remote::BlockUsage;

/// A form, and how to look at values from outside the compute servers.
pub(crate) trait Form<L: Named>: ValueForm<L> {
    /// A reader of the whole index at the end of a run.
    type Reader: Design<L>;

    fn reader_options(
        scenario: &Scenario,
        options: DexOptions<OwnedKey<L>>,
    ) -> <Self::Reader as Design<L>>::Options;

    /// What the threads of a compute server share when it begins a life.
    fn shared(scenario: &Scenario) -> Result<Self::Shared, IndexError>;

    /// How the space of blocks is used in a life, if there are blocks.
    fn usage(shared: &Self::Shared) -> Option<BlockUsage>;

    /// The same inspector, which finds values of this form.
    fn inspector(pool: Pool<L>) -> Pool<L>;
}

impl<L: Named> Form<L> for InLeaves {
    type Reader = Dex;

    fn reader_options(
        _scenario: &Scenario,
        options: DexOptions<OwnedKey<L>>,
    ) -> DexOptions<OwnedKey<L>> {
        options
    }

    fn shared(_scenario: &Scenario) -> Result<(), IndexError> {
        Ok(())
    }

    fn usage((): &()) -> Option<BlockUsage> {
        None
    }

    fn inspector(pool: Pool<L>) -> Pool<L> {
        pool
    }
}

impl<L: Named + Layout<Key = [u8], Value = [u8]>> Form<L> for InBlocks {
    type Reader = Blocks<Dex>;

    fn reader_options(
        scenario: &Scenario,
        options: DexOptions<OwnedKey<L>>,
    ) -> <Blocks<Dex> as Design<L>>::Options {
        block_options(scenario.cluster.inline_bytes.unwrap_or(usize::MAX), options)
    }

    fn shared(scenario: &Scenario) -> Result<SharedBlocks, IndexError> {
        let inline_bytes = scenario.cluster.inline_bytes.unwrap_or(usize::MAX);
        SharedBlocks::new(&block_options(inline_bytes, ()))
    }

    fn usage(shared: &SharedBlocks) -> Option<BlockUsage> {
        Some(shared.usage())
    }

    fn inspector(pool: Pool<L>) -> Pool<L> {
        pool.with_blocks(value_in::<L>)
    }
}

/// The value for what a leaf in the pool has; `None` if there is none.
fn value_in<L: Layout<Key = [u8], Value = [u8]>>(pool: &Pool<L>, stored: &[u8]) -> Option<Vec<u8>> {
    let block = match Stored::of(stored) {
        Stored::Inline(value) => return Some(value.to_vec()),
        Stored::Block(block) => block,
    };
    let words = pool.words(block.at, block.words())?;
    if BlockRef::new(block.at, block.bytes, words.iter().copied()) != block {
        return None;
    }
    let mut value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    value.truncate(block.bytes);
    Some(value)
}
