//! What simulated compute servers keep as processes: DEX with all values in leaves, or with longer
//! ones in blocks, as scenarios with `inline_bytes` have it, or the shards of dLSM.
//!
//! *Thread safety*: plain functions.

use crate::inspect::{ExpectedState, InspectedPool, NamedRecords, ProcessShards};
use crate::scenario::Scenario;
use crate::setup::{block_options, dex_options, sharded_options};
use farleaf_designs::CompiledDesign;
use farleaf_dex::blocks::{BlockUsage, DexWithBlocks, InBlocks, SharedBlocks};
use farleaf_dex::{Dex, DexOptions};
use farleaf_dlsm::{Dlsm, ShardedDlsm};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_index::partition::{ComputePool, ComputeServer, end_former_incarnation};
use farleaf_index::{AnyCompute, Design, InLeaves, IndexError, Partitioned, ValueForm};
use farleaf_page::{BlockRef, Bytes, CHOSEN, Fixed8, Layout, NamedLayout, OwnedKey, StoredValue};
use farleaf_trees::chime::Chime;
use farleaf_trees::coarse::Coarse;
use farleaf_trees::fine::Fine;
use farleaf_trees::hybrid::Hybrid;
use farleaf_trees::sherman::Sherman;
use farleaf_trees::smart::{PSmart, Smart};

/// A layout of simulations: all designs are compiled for it.
pub(crate) trait SimulatedLayout:
    NamedLayout<
        Entries: NamedLayout + CompiledDesign<Sherman>,
        Hops: NamedLayout + CompiledDesign<Chime>,
    > + CompiledDesign<Coarse>
    + CompiledDesign<Fine>
    + CompiledDesign<Hybrid>
    + CompiledDesign<Smart>
    + CompiledDesign<PSmart>
    + CompiledDesign<Dex>
    + CompiledDesign<Dlsm>
    + CompiledDesign<ShardedDlsm>
{
}

impl SimulatedLayout for Fixed8<CHOSEN> {}
impl SimulatedLayout for Bytes<CHOSEN> {}

/// An index behind compute servers, and how to look at it from outside.
pub(crate) trait IndexForm<L: NamedLayout>: Sized + 'static {
    /// The design of the index.
    type Design: Partitioned;
    /// How it keeps values.
    type Values: ValueForm<L>;
    /// A reader of the whole index at the end of a run.
    type Reader: Design<L>;
    /// What looks at the pool during a run.
    type Inspector: Sync;

    fn options(scenario: &Scenario) -> Result<<Self::Design as Partitioned>::Options<L>, String>;

    fn reader_options(scenario: &Scenario) -> Result<<Self::Reader as Design<L>>::Options, String>;

    /// The reader's compute side as an object.
    fn reader(compute: &<Self::Reader as Design<L>>::Compute) -> AnyCompute<L>;

    /// Makes the index readable after all processes have ended.
    fn end_all<F: Fabric>(
        _fabric: &F,
        _reader: &<Self::Reader as Design<L>>::Compute,
    ) -> impl Future<Output = Result<(), IndexError>> {
        async { Ok(()) }
    }

    /// What the threads of a compute server share when it begins a life.
    fn shared(scenario: &Scenario) -> Result<<Self::Values as ValueForm<L>>::Shared, IndexError>;

    /// How the space of blocks is used in a life, if there are blocks.
    fn usage(_shared: &<Self::Values as ValueForm<L>>::Shared) -> Option<BlockUsage> {
        None
    }

    fn inspector(pool: InspectedPool<L>, scenario: &Scenario) -> Self::Inspector;

    /// A process serves.
    fn begins(_inspector: &Self::Inspector, _server: &Arc<ComputeServer<Self::Design, L>>) {}

    /// A process has died.
    fn dies(_inspector: &Self::Inspector, _number: u16) {}

    /// Looks at the index at any moment.
    fn look(inspector: &Self::Inspector) -> Result<(), String>;

    /// The records that the pool holds at the end of a run, once a reader has opened the index.
    fn held(
        inspector: &Self::Inspector,
        reader: &<Self::Reader as Design<L>>::Compute,
        expect: ExpectedState,
    ) -> Result<NamedRecords, String>;
}

impl<L: SimulatedLayout> IndexForm<L> for InLeaves {
    type Design = Dex;
    type Values = Self;
    type Reader = Dex;
    type Inspector = InspectedPool<L>;

    fn options(scenario: &Scenario) -> Result<DexOptions<OwnedKey<L>>, String> {
        dex_options::<L>(scenario)
    }

    /// One that owns all keys.
    fn reader_options(scenario: &Scenario) -> Result<DexOptions<OwnedKey<L>>, String> {
        Ok(dex_options::<L>(scenario)?.divided(Vec::new()))
    }

    fn reader(compute: &Arc<ComputePool<Dex, L>>) -> AnyCompute<L> {
        <L as CompiledDesign<Dex>>::compute(compute.clone())
    }

    fn shared(_scenario: &Scenario) -> Result<(), IndexError> {
        Ok(())
    }

    fn inspector(pool: InspectedPool<L>, _scenario: &Scenario) -> InspectedPool<L> {
        pool
    }

    fn look(inspector: &InspectedPool<L>) -> Result<(), String> {
        inspector.look(ExpectedState::WellFormed).map(drop)
    }

    fn held(
        inspector: &InspectedPool<L>,
        _reader: &<Dex as Design<L>>::Compute,
        expect: ExpectedState,
    ) -> Result<NamedRecords, String> {
        inspector.look(expect)
    }
}

impl<L> IndexForm<L> for InBlocks
where
    L: SimulatedLayout + Layout<Key = [u8], Value = [u8]> + CompiledDesign<DexWithBlocks>,
{
    type Design = Dex;
    type Values = Self;
    type Reader = DexWithBlocks;
    type Inspector = InspectedPool<L>;

    fn options(scenario: &Scenario) -> Result<DexOptions<OwnedKey<L>>, String> {
        dex_options::<L>(scenario)
    }

    fn reader_options(
        scenario: &Scenario,
    ) -> Result<<DexWithBlocks as Design<L>>::Options, String> {
        let options = <InLeaves as IndexForm<L>>::reader_options(scenario)?;
        Ok(block_options(scenario.cluster.inline_bytes.unwrap_or(usize::MAX), options))
    }

    fn reader(compute: &<DexWithBlocks as Design<L>>::Compute) -> AnyCompute<L> {
        <L as CompiledDesign<DexWithBlocks>>::compute(compute.clone())
    }

    fn shared(scenario: &Scenario) -> Result<SharedBlocks, IndexError> {
        let inline_bytes = scenario.cluster.inline_bytes.unwrap_or(usize::MAX);
        SharedBlocks::new(&block_options(inline_bytes, ()))
    }

    fn usage(shared: &SharedBlocks) -> Option<BlockUsage> {
        Some(shared.usage())
    }

    fn inspector(pool: InspectedPool<L>, _scenario: &Scenario) -> InspectedPool<L> {
        pool.with_blocks(value_in::<L>)
    }

    fn look(inspector: &InspectedPool<L>) -> Result<(), String> {
        <InLeaves as IndexForm<L>>::look(inspector)
    }

    fn held(
        inspector: &InspectedPool<L>,
        _reader: &<DexWithBlocks as Design<L>>::Compute,
        expect: ExpectedState,
    ) -> Result<NamedRecords, String> {
        inspector.look(expect)
    }
}

/// The shards of dLSM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InShards;

impl<L: SimulatedLayout> IndexForm<L> for InShards {
    type Design = ShardedDlsm;
    type Values = InLeaves;
    type Reader = ShardedDlsm;
    type Inspector = ProcessShards<L>;

    fn options(scenario: &Scenario) -> Result<<ShardedDlsm as Partitioned>::Options<L>, String> {
        sharded_options::<L>(scenario)
    }

    /// One in whose process all compute servers are.
    fn reader_options(scenario: &Scenario) -> Result<<ShardedDlsm as Design<L>>::Options, String> {
        sharded_options::<L>(scenario)
    }

    fn reader(compute: &Arc<ComputePool<ShardedDlsm, L>>) -> AnyCompute<L> {
        <L as CompiledDesign<ShardedDlsm>>::compute(compute.clone())
    }

    /// No process has the shards any longer.
    async fn end_all<F: Fabric>(
        fabric: &F,
        reader: &Arc<ComputePool<ShardedDlsm, L>>,
    ) -> Result<(), IndexError> {
        for server in reader.servers() {
            let range = reader.map().range_of(server.number());
            let options = &reader.options().server;
            let (fabric, number) = (fabric.clone(), server.number());
            end_former_incarnation::<ShardedDlsm, _, L>(fabric, options, number, &range).await?;
        }
        Ok(())
    }

    fn shared(_scenario: &Scenario) -> Result<(), IndexError> {
        Ok(())
    }

    fn inspector(pool: InspectedPool<L>, scenario: &Scenario) -> ProcessShards<L> {
        ProcessShards::new(pool, scenario)
    }

    fn begins(inspector: &ProcessShards<L>, server: &Arc<ComputeServer<ShardedDlsm, L>>) {
        inspector.begins(server.number(), server.state());
    }

    fn dies(inspector: &ProcessShards<L>, number: u16) {
        inspector.dies(number);
    }

    fn look(inspector: &ProcessShards<L>) -> Result<(), String> {
        inspector.look()
    }

    fn held(
        inspector: &ProcessShards<L>,
        reader: &Arc<ComputePool<ShardedDlsm, L>>,
        _expect: ExpectedState,
    ) -> Result<NamedRecords, String> {
        let shards = reader.servers().iter().flat_map(|server| server.state().shards());
        inspector.held(shards)
    }
}

/// The value for what a leaf in the pool has; `None` if there is none.
fn value_in<L: Layout<Key = [u8], Value = [u8]>>(
    pool: &InspectedPool<L>,
    stored: &[u8],
) -> Option<Vec<u8>> {
    let block = match StoredValue::of(stored) {
        StoredValue::Inline(value) => return Some(value.to_vec()),
        StoredValue::Block(block) => block,
    };
    let words = pool.words(block.at, block.words())?;
    if BlockRef::new(block.at, block.bytes, words.iter().copied()) != block {
        return None;
    }
    let mut value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    value.truncate(block.bytes);
    Some(value)
}
