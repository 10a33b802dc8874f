//! The table of index designs and fabrics.
//!
//! To add a design, add a variant to [`DesignName`] and an arm to [`run`]; `bench` and `demo` need
//! no change. `docs/own-design.md` goes through it.

use clap::ValueEnum;
use farleaf_bench::single_machine::{SingleMachine, SingleMachineOptions};
use farleaf_core::index::Design;
use farleaf_core::index::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_core::index::dex::{Dex, DexOptions};
use farleaf_core::index::fine::{Fine, FineOptions};
use farleaf_core::index::hybrid::{Hybrid, HybridOptions};
use farleaf_core::page::Fixed8;
#[cfg(feature = "verbs")]
use farleaf_fabric::Either;
use farleaf_fabric::Provider;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
#[cfg(feature = "verbs")]
use farleaf_fabric_verbs::VerbsConfig;

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
            Self::Dex => <Dex as Design<Fixed8>>::NAME,
            Self::Local => <SingleMachine as Design<Fixed8>>::NAME,
        }
    }

    /// Whether the design can divide keys among memory servers in this way.
    pub(crate) fn takes(self, partitioning: PartitioningName) -> bool {
        match self {
            Self::Coarse => true,
            Self::Fine | Self::Hybrid | Self::Dex | Self::Local => {
                partitioning == PartitioningName::Range
            }
        }
    }

    /// Whether the design's compute servers cache nodes.
    pub(crate) fn has_cache(self) -> bool {
        match self {
            Self::Dex => true,
            Self::Coarse | Self::Fine | Self::Hybrid | Self::Local => false,
        }
    }
}

/// A scheme of dividing keys among memory servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PartitioningName {
    /// Each server holds a range of keys
    Range,
    /// Each server holds the keys that hash to its number
    Hash,
}

impl PartitioningName {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Range => "range",
            Self::Hash => "hash",
        }
    }
}

/// Options of an index, for all designs.
#[derive(Clone, Debug)]
pub(crate) struct IndexOptions {
    /// How keys are divided among memory servers.
    pub(crate) partitioning: PartitioningName,
    /// The boundaries under range partitioning: one fewer than there are servers.
    pub(crate) boundaries: Vec<u64>,
    pub(crate) fine: FineOptions,
    /// DEX's partitioning among compute servers, and their caches.
    pub(crate) dex: DexOptions<u64>,
    /// Pool size of a design that has all its memory in one place.
    pub(crate) single_pool_bytes: usize,
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

/// Work to do with a design on a fabric, generic over both.
pub(crate) trait Task {
    /// The result.
    type Output;

    /// Does the work.
    fn run<D: Design<Fixed8>, P: Provider>(
        self,
        provider: &P,
        options: &D::Options,
    ) -> Self::Output;
}

/// Runs `task` with a design on a fabric.
pub(crate) fn run<T: Task>(
    design: DesignName,
    options: &IndexOptions,
    fabric: &FabricConfig,
    task: T,
) -> T::Output {
    let boundaries = options.boundaries.clone();
    match design {
        DesignName::Coarse => {
            let partitioning = match options.partitioning {
                PartitioningName::Range => Partitioning::Range { boundaries },
                PartitioningName::Hash => Partitioning::Hash,
            };
            on_fabric::<Coarse, T>(&CoarseOptions { partitioning }, fabric, task)
        }
        // Nodes are placed on the servers in turn, whatever the boundaries are.
        DesignName::Fine => on_fabric::<Fine, T>(&options.fine, fabric, task),
        DesignName::Hybrid => {
            on_fabric::<Hybrid, T>(&HybridOptions::with_boundaries(boundaries), fabric, task)
        }
        DesignName::Dex => on_fabric::<Dex, T>(&options.dex, fabric, task),
        DesignName::Local => {
            let options = SingleMachineOptions::with_pool_bytes(options.single_pool_bytes);
            on_fabric::<SingleMachine, T>(&options, fabric, task)
        }
    }
}

fn on_fabric<D: Design<Fixed8>, T: Task>(
    options: &D::Options,
    fabric: &FabricConfig,
    task: T,
) -> T::Output {
    // Each provider is another copy of all designs. Those whose processor time does not matter
    // share one.
    #[cfg(feature = "verbs")]
    let other = |config: &SimConfig| Either::<_, VerbsConfig>::Left(config.clone());
    #[cfg(not(feature = "verbs"))]
    let other = SimConfig::clone;
    match fabric {
        FabricConfig::Local(config) => task.run::<D, _>(config, options),
        FabricConfig::Sim(config) => task.run::<D, _>(&other(config), options),
        #[cfg(feature = "verbs")]
        FabricConfig::Verbs(config) => {
            task.run::<D, _>(&Either::<SimConfig, _>::Right((**config).clone()), options)
        }
    }
}
