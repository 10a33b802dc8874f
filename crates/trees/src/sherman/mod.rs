//! Sherman: a B-link tree that clients access only by one-sided verbs, with cached parents of
//! leaves, leaves that are written entry by entry, and locks that clients of one compute server
//! hand to each other.
//!
//! After Wang et al., *Sherman: A Write-Optimized Distributed B+Tree Index on Disaggregated Memory*
//! (SIGMOD 2022), with these differences: each entry has a check of 63 bits instead of two versions
//! of 4 bits, so a torn one is read again instead of counting as absent; the lock is a word of the
//! leaf instead of one in the NIC's memory that several leaves share, so that a dead holder's lock
//! leads to what it has left; the root keeps its address. `docs/internals/sherman.md` has the
//! reasons.
//!
//! Byte strings have no entries of one size. With them, leaves are written as a whole, as in the
//! fine-grained design, and only the cache is Sherman's.
//!
//! What it shares with CHIME is in `one_sided/entrywise/`.

use crate::one_sided::entrywise::{self, EntryTree, EntrywiseCompute, EntrywiseOptions};
use farleaf_fabric::Fabric;
use farleaf_index::{Design, IndexError};
use farleaf_page::{DesignId, Layout, OwnedKey};

/// Options of a new Sherman index.
pub type ShermanOptions = EntrywiseOptions;
/// The compute side of a Sherman index.
pub type ShermanCompute<L> = EntrywiseCompute<L>;
/// A handle on a Sherman index.
pub type ShermanIndex<F, L> = EntryTree<F, L>;

/// The design Sherman.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sherman;

/// Sherman with the keys divided among compute servers, as its paper's successors compare with:
/// only the owner of a leaf changes it, so a leaf that is written entry by entry needs no lock.
///
/// After Lu et al., *DEX* (VLDB 2024), §8.2, which calls it P-Sherman. Operations use the owner's
/// state by a function call, as those of the other partitioned designs do within a process. Keys do
/// not move, and compute servers must not die: nothing in a leaf says whose change is torn. The
/// index belongs to the first compute side that opens it, in one process; others are refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct PSherman;

/// Options of a new index that is divided among compute servers.
#[derive(Clone, Debug)]
pub struct PShermanOptions<K> {
    /// The options that both forms have. Locks are not handed over, because there are none.
    pub sherman: ShermanOptions,
    /// Where the keys of each compute server but the first begin.
    pub boundaries: Vec<K>,
}

impl<L: Layout> Design<L> for Sherman {
    const NAME: &'static str = "sherman";
    type Options = ShermanOptions;
    type Compute = ShermanCompute<L::Entries>;
    type Index<F: Fabric> = ShermanIndex<F, L::Entries>;

    async fn create<F: Fabric>(fabric: &F, options: &ShermanOptions) -> Result<(), IndexError> {
        entrywise::create::<F, L::Entries>(fabric, DesignId::Sherman, options, false).await
    }

    fn compute(options: &ShermanOptions) -> Result<Self::Compute, IndexError> {
        ShermanCompute::new(*options, None)
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<Self::Index<F>, IndexError> {
        entrywise::open(fabric, DesignId::Sherman, compute).await
    }

    fn cached_bytes(compute: &Self::Compute) -> u64 {
        compute.cached_bytes()
    }
}

impl<L: Layout> Design<L> for PSherman {
    const NAME: &'static str = "p-sherman";
    type Options = PShermanOptions<OwnedKey<L>>;
    type Compute = ShermanCompute<L::Entries>;
    type Index<F: Fabric> = ShermanIndex<F, L::Entries>;

    async fn create<F: Fabric>(fabric: &F, options: &Self::Options) -> Result<(), IndexError> {
        entrywise::create::<F, L::Entries>(fabric, DesignId::Sherman, &options.sherman, true).await
    }

    fn compute(options: &Self::Options) -> Result<Self::Compute, IndexError> {
        if options.sherman.by_versions {
            return Err(entrywise::NO_VERSIONS);
        }
        ShermanCompute::new(options.sherman, Some(options.boundaries.clone()))
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<Self::Index<F>, IndexError> {
        entrywise::open(fabric, DesignId::Sherman, compute).await
    }

    fn cached_bytes(compute: &Self::Compute) -> u64 {
        compute.cached_bytes()
    }
}
