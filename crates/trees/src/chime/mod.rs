//! CHIME: a B-link tree whose leaves are hopscotch tables, so that a lookup READs only the few
//! entries that can hold its key, and a cache needs only the parents of leaves.
//!
//! After Luo et al., *CHIME: A Cache-Efficient and High-Performance Hybrid Index on Disaggregated
//! Memory* (SOSP 2024), with these differences: two entries share a check of 62 bits instead of
//! each having versions of 4 bits and a bitmap of hops, so that records change their entries only
//! together with the page's version; tables do not wrap around, so that a neighbourhood is one
//! READ; the replicas have the high fence instead of the sibling's address; locks are words of the
//! leaf. `docs/internals/chime.md` has the reasons.
//!
//! What it shares with Sherman is in `one_sided/entrywise/`. Byte strings have no entries of one
//! size. With them, leaves are written as a whole, and only the cache is left.
//!
//! *Thread safety*: a handle belongs to its endpoint's thread; operations of one handle may
//! overlap.

use crate::one_sided::entrywise::{self, EntryTree, EntrywiseCompute, EntrywiseOptions};
use farleaf_fabric::Fabric;
use farleaf_index::{Design, IndexError, OptionSchema, design_options};
use farleaf_page::{DesignId, Layout};

design_options! {
    /// Options of a new CHIME index.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ChimeOptions {
        /// Size of each compute server's guesses where popular records are, in bytes. They are used
        /// where a leaf is a hopscotch table, and take their memory at once. 0 disables them.
        pub hot_bytes: u64 = 0, in 0..=17_179_869_184;
    }
    with {
        /// The options that Sherman has too.
        pub tree: EntrywiseOptions;
    }
}

/// The compute side of a CHIME index.
pub type ChimeCompute<L> = EntrywiseCompute<L>;
/// A handle on a CHIME index.
pub type ChimeIndex<F, L> = EntryTree<F, L>;

/// The design CHIME.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chime;

impl<L: Layout> Design<L> for Chime {
    const NAME: &'static str = "chime";
    type Options = ChimeOptions;
    type Compute = ChimeCompute<L::Hops>;
    type Index<F: Fabric> = ChimeIndex<F, L::Hops>;

    async fn create<F: Fabric>(fabric: &F, options: &ChimeOptions) -> Result<(), IndexError> {
        entrywise::create::<F, L::Hops>(fabric, DesignId::Chime, &options.tree, false).await
    }

    fn compute(options: &ChimeOptions) -> Result<Self::Compute, IndexError> {
        options.check_bounds()?;
        Ok(ChimeCompute::new(options.tree, None)?.with_hot_entries(options.hot_bytes))
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<Self::Index<F>, IndexError> {
        entrywise::open(fabric, DesignId::Chime, compute).await
    }

    fn cached_bytes(compute: &Self::Compute) -> u64 {
        compute.cached_bytes()
    }
}
