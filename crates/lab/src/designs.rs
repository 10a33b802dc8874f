//! The table of index designs and fabrics.
//!
//! To add a design, add a variant to [`DesignName`] and an arm to [`design`]; `bench` needs no
//! change. `docs/own-design.md` goes through it.

use clap::ValueEnum;
use farleaf_bench::single_machine::{SingleMachine, SingleMachineOptions};
use farleaf_bench::sizing::RecordBytes;
use farleaf_designs::CompiledDesign;
use farleaf_dex::blocks::{BlockOptions, DexWithBlocks};
use farleaf_dex::{Dex, DexOptions};
use farleaf_dlsm::{Dlsm, DlsmOptions, DlsmServerOptions, ShardedDlsm, ShardedOptions};
use farleaf_fabric::AnyCluster;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Provider, RpcService};
#[cfg(feature = "verbs")]
use farleaf_fabric_verbs::VerbsConfig;
use farleaf_index::{AnyDesign, Design, OptionSchema};
use farleaf_page::{Bytes, CHOSEN, Fixed8, OwnedKey};
use farleaf_trees::chime::{Chime, ChimeOptions};
use farleaf_trees::coarse::{Coarse, CoarseScheme};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use farleaf_trees::sherman::{PSherman, PShermanOptions, Sherman, ShermanOptions};
use farleaf_trees::smart::{PSmart, PSmartOptions, Smart, SmartOptions};
use std::io;

/// The index designs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DesignName {
    /// Coarse-grained: each memory server has a tree for its share of the keys; every operation is
    /// an RPC
    Coarse,
    /// Fine-grained: one tree with its nodes placed on the memory servers in turn; every operation
    /// is one-sided
    Fine,
    /// Hybrid: the upper levels are trees on the memory servers, read by RPC; the leaves are
    /// one-sided
    Hybrid,
    /// Sherman: one tree as in `fine`, with cached parents of leaves, leaves that are written entry
    /// by entry, and locks handed over within a compute server
    Sherman,
    /// Sherman with the keys divided among compute servers: only the owner of a leaf changes it,
    /// and needs no lock
    PSherman,
    /// CHIME: as `sherman`, but leaves are hopscotch tables, so that a lookup reads a sixth of a
    /// leaf
    Chime,
    /// SMART: one radix tree with its nodes placed on the memory servers in turn, cached nodes, and
    /// a leaf of its own for each key
    Smart,
    /// SMART with the keys divided among compute servers: only the owner of a key changes its leaf,
    /// and needs no lock
    PSmart,
    /// dLSM: a tree of sorted tables on the memory servers; one process writes to memory of its own
    /// and flushes it as tables
    Dlsm,
    /// DEX: one tree with its nodes placed on the memory servers in turn; each compute server owns
    /// a range of keys and caches the paths to them
    Dex,
    /// No distribution: one tree in the memory of this machine, called directly; the baseline
    Local,
}

impl DesignName {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Coarse => <Coarse as Design<Fixed8>>::NAME,
            Self::Fine => <Fine as Design<Fixed8>>::NAME,
            Self::Hybrid => <Hybrid as Design<Fixed8>>::NAME,
            Self::Sherman => <Sherman as Design<Fixed8>>::NAME,
            Self::PSherman => <PSherman as Design<Fixed8>>::NAME,
            Self::Chime => <Chime as Design<Fixed8>>::NAME,
            Self::Smart => <Smart as Design<Fixed8>>::NAME,
            Self::PSmart => <PSmart as Design<Fixed8>>::NAME,
            Self::Dlsm => <Dlsm as Design<Fixed8>>::NAME,
            Self::Dex => <Dex as Design<Fixed8>>::NAME,
            Self::Local => <SingleMachine as Design<Fixed8>>::NAME,
        }
    }

    /// Upper bounds of the average bytes that a loaded record and an inserted one take, apart from
    /// free space. `keys` records at even distances are loaded. `in_page` is the size in designs
    /// with pages, and `string_bytes` the average length of a key that is a byte string.
    pub(crate) fn record_bytes(
        self,
        keys: u64,
        in_page: f64,
        string_bytes: Option<f64>,
    ) -> RecordBytes {
        const LEAF: f64 = 64.0;
        const NODE: f64 = 2_112.0;
        // Leaves of less have sizes in steps of 64 bytes, larger ones in steps of 1 KiB.
        const SMALL_LEAF: f64 = 2_048.0;
        const LARGE_STEP: f64 = 1_024.0;
        // Beyond 48 bytes in common, keys have a chain of nodes, each for 48 bytes and its slot's.
        const LINK_BYTES: f64 = 49.0;
        if !matches!(self, Self::Smart | Self::PSmart) {
            return RecordBytes::all(in_page);
        }
        if let Some(key) = string_bytes {
            // Room for two values.
            let leaf = 2.0 * in_page + LEAF;
            let leaf = if leaf > SMALL_LEAF { leaf + LARGE_STEP } else { leaf };
            // Less than one node for each key in which keys part, and the chains.
            let chain = if key < LINK_BYTES { 0.0 } else { key / LINK_BYTES };
            let each = leaf + NODE * (1.0 + chain);
            return RecordBytes::all(each);
        }
        // The deepest level that the keys fill, and at least two keys in each of its nodes.
        let levels = keys.max(2).ilog2() / 8;
        let nodes = 2_f64.powi(8 * levels as i32).min(keys as f64 / 2.0);
        let loaded = LEAF + NODE * nodes / keys.max(1) as f64;
        RecordBytes { loaded, inserted: LEAF + NODE }
    }

    /// Whether the design's compute servers cache nodes.
    pub(crate) fn has_cache(self) -> bool {
        match self {
            Self::Sherman
            | Self::PSherman
            | Self::Chime
            | Self::Smart
            | Self::PSmart
            | Self::Dex => true,
            Self::Coarse | Self::Fine | Self::Hybrid | Self::Dlsm | Self::Local => false,
        }
    }
}

/// Options of an index with keys `K`, for all designs.
#[derive(Clone, Debug, Default)]
pub(crate) struct IndexOptions<K = u64> {
    pub(crate) coarse: CoarseScheme,
    /// The boundaries of memory servers' ranges: one fewer than there are servers.
    pub(crate) boundaries: Vec<K>,
    pub(crate) fine: FineOptions,
    pub(crate) hybrid: HybridOptions<()>,
    pub(crate) sherman: ShermanOptions,
    /// Its guesses take a part of the cache of its tree.
    pub(crate) chime: ChimeOptions,
    pub(crate) smart: SmartOptions,
    /// DEX's partitioning among compute servers, and their caches.
    pub(crate) dex: DexOptions<K>,
    pub(crate) dlsm: DlsmOptions,
    /// Where dLSM's shards begin, without the first one. Without any there is one tree, which
    /// belongs to no compute server.
    pub(crate) shards: Vec<K>,
    /// Pool size of a design that has all its memory in one place.
    pub(crate) single_pool_bytes: usize,
    /// Which byte strings DEX keeps in value blocks, if any.
    pub(crate) blocks: Option<ValueBlockOptions>,
}

/// Options of value blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueBlockOptions {
    /// Longer values are in blocks.
    pub(crate) inline_bytes: usize,
    /// Bytes of cached blocks, of all compute servers together.
    pub(crate) cache_bytes: u64,
}

impl IndexOptions {
    /// The options of a design that can be set by name; `None` if it has none.
    pub(crate) fn of_design(&mut self, design: DesignName) -> Option<&mut dyn OptionSchema> {
        Some(match design {
            DesignName::Coarse => &mut self.coarse,
            DesignName::Fine => &mut self.fine,
            DesignName::Hybrid => &mut self.hybrid,
            DesignName::Sherman | DesignName::PSherman => &mut self.sherman,
            DesignName::Chime => &mut self.chime,
            DesignName::Smart | DesignName::PSmart => &mut self.smart,
            DesignName::Dlsm => &mut self.dlsm,
            DesignName::Dex => &mut self.dex,
            DesignName::Local => return None,
        })
    }

    /// The same options for keys that have these numbers.
    pub(crate) fn named<K>(&self, key: impl Fn(u64) -> K) -> IndexOptions<K> {
        let keys = |numbers: &[u64]| numbers.iter().copied().map(&key).collect();
        IndexOptions {
            coarse: self.coarse,
            boundaries: keys(&self.boundaries),
            fine: self.fine,
            hybrid: self.hybrid.clone(),
            sherman: self.sherman,
            chime: self.chime,
            smart: self.smart,
            dex: self.dex.clone().divided(keys(&self.dex.boundaries)),
            dlsm: self.dlsm.clone(),
            shards: keys(&self.shards),
            single_pool_bytes: self.single_pool_bytes,
            blocks: self.blocks,
        }
    }
}

/// A fabric with its settings.
#[derive(Clone, Debug)]
pub(crate) enum FabricConfig {
    /// Memory servers in this process.
    Local(LocalConfig),
    /// A simulated cluster.
    Sim(Box<SimConfig>),
    /// Memory servers in this process, reached through this machine's RDMA device.
    #[cfg(feature = "verbs")]
    Verbs(Box<VerbsConfig>),
}

/// A simulated cluster to measure. Where operations only read, threads may run ahead by half the
/// time of a READ; with changes they would hold latches for too long.
pub(crate) fn simulated(seed: u64, only_reads: bool) -> SimConfig {
    let quantum_ns = if only_reads { 1_000 } else { 0 };
    SimConfig { seed, quantum_ns, ..SimConfig::default() }
}

impl Provider for FabricConfig {
    type Cluster<S: RpcService> = AnyCluster<S>;

    fn try_start<S: RpcService>(&self, services: Vec<Arc<S>>) -> io::Result<AnyCluster<S>> {
        Ok(match self {
            Self::Local(config) => AnyCluster::Local(config.try_start(services)?),
            Self::Sim(config) => AnyCluster::Sim(config.try_start(services)?),
            #[cfg(feature = "verbs")]
            Self::Verbs(config) => AnyCluster::Other(Box::new(config.try_start(services)?)),
        })
    }
}

/// A layout of benchmarks: all designs are compiled for it.
pub(crate) trait BenchLayout:
    CompiledDesign<Coarse>
    + CompiledDesign<Fine>
    + CompiledDesign<Hybrid>
    + CompiledDesign<Sherman>
    + CompiledDesign<PSherman>
    + CompiledDesign<Chime>
    + CompiledDesign<Smart>
    + CompiledDesign<PSmart>
    + CompiledDesign<Dlsm>
    + CompiledDesign<ShardedDlsm>
{
    /// DEX, with its values where the layout has place for them.
    fn dex(
        options: DexOptions<OwnedKey<Self>>,
        blocks: Option<ValueBlockOptions>,
    ) -> AnyDesign<Self>;
}

impl BenchLayout for Fixed8 {
    fn dex(options: DexOptions<u64>, _blocks: Option<ValueBlockOptions>) -> AnyDesign<Self> {
        <Self as CompiledDesign<Dex>>::design(options)
    }
}

/// Values may be in blocks, and are where no page can hold them.
impl BenchLayout for Bytes<CHOSEN> {
    fn dex(options: DexOptions<Vec<u8>>, blocks: Option<ValueBlockOptions>) -> AnyDesign<Self> {
        let all_inline = BlockOptions::all_inline(options);
        let options = match blocks {
            Some(ValueBlockOptions { inline_bytes, cache_bytes }) => {
                BlockOptions { inline_bytes, cache_bytes, ..all_inline }
            }
            None => all_inline,
        };
        <Self as CompiledDesign<DexWithBlocks>>::design(options)
    }
}

/// A design with its options.
pub(crate) fn design<L: BenchLayout>(
    design: DesignName,
    options: &IndexOptions<OwnedKey<L>>,
) -> AnyDesign<L> {
    let boundaries = options.boundaries.clone();
    match design {
        DesignName::Coarse => {
            <L as CompiledDesign<Coarse>>::design(options.coarse.divided(boundaries))
        }
        // Nodes are placed on the servers in turn, whatever the boundaries are.
        DesignName::Fine => <L as CompiledDesign<Fine>>::design(options.fine),
        DesignName::Hybrid => {
            <L as CompiledDesign<Hybrid>>::design(options.hybrid.clone().divided(boundaries))
        }
        DesignName::Sherman => <L as CompiledDesign<Sherman>>::design(options.sherman),
        DesignName::PSherman => {
            let boundaries = options.dex.boundaries.clone();
            let options = PShermanOptions { sherman: options.sherman, boundaries };
            <L as CompiledDesign<PSherman>>::design(options)
        }
        DesignName::Chime => {
            let ChimeOptions { mut tree, hot_bytes } = options.chime;
            // Leaves with byte strings have no guesses.
            let hot_bytes = if L::HAS_HEAP { 0 } else { hot_bytes.min(tree.cache_bytes) };
            tree.cache_bytes -= hot_bytes;
            <L as CompiledDesign<Chime>>::design(ChimeOptions { tree, hot_bytes })
        }
        DesignName::Smart => <L as CompiledDesign<Smart>>::design(options.smart),
        DesignName::PSmart => {
            let boundaries = options.dex.boundaries.clone();
            let options = PSmartOptions { smart: options.smart, boundaries };
            <L as CompiledDesign<PSmart>>::design(options)
        }
        // Long values are in its tables.
        DesignName::Dlsm if options.shards.is_empty() => {
            <L as CompiledDesign<Dlsm>>::design(options.dlsm.clone())
        }
        DesignName::Dlsm => {
            let boundaries = options.dex.boundaries.clone();
            let is_within = |key: &&OwnedKey<L>| !boundaries.contains(key);
            let within = options.shards.iter().filter(is_within).cloned().collect();
            let server =
                DlsmServerOptions { tree: options.dlsm.clone(), ..DlsmServerOptions::default() };
            let all = ShardedOptions::with_boundaries(boundaries, server);
            <L as CompiledDesign<ShardedDlsm>>::design(ShardedOptions { within, ..all })
        }
        DesignName::Dex => L::dex(options.dex.clone(), options.blocks),
        DesignName::Local => {
            let options = SingleMachineOptions::with_pool_bytes(options.single_pool_bytes);
            AnyDesign::of::<SingleMachine>(options)
        }
    }
}
