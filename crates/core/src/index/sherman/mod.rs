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
//! *Invariants*
//! - sherman.S1. No node is freed once a client can reach it. A leaf keeps its address and its
//!   lowest key, except that a root that is a leaf becomes an inner node.
//! - sherman.S2. Records are changed under the entry lock of their leaf (entries.E1–E5), inner
//!   nodes by a CAS that expects the copy's version.
//! - sherman.S3. A client holds at most one entry lock at a time for an operation, and waits under
//!   it only for new nodes and for the whole page's lock, of which recovery is the only other user.
//!
//! *Thread safety*: a handle belongs to its endpoint's thread; operations of one handle may
//! overlap.

mod cache;
mod change;
mod collect;
mod locate;
mod options;
mod sides;

use options::DIVIDED;
pub use options::ShermanOptions;
pub use sides::ShermanCompute;

use super::one_sided::BlinkTree;
use super::{Design, IndexError};
use crate::page::{DesignId, Layout, OwnedKey, Superblock};
use crate::remote::{Image, PageClient, ROOT_SERVER, RpcClient};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use sides::Sides;

/// The design Sherman.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sherman;

/// Sherman with the keys divided among compute servers, as its paper's successors compare with:
/// only the owner of a leaf changes it, so a leaf that is written entry by entry needs no lock.
///
/// After Lu et al., *DEX* (VLDB 2024), §8.2, which calls it P-Sherman. Operations take the side of
/// the owner by a function call, as those of the other partitioned designs do within a process.
/// Keys do not move, and compute servers must not die: nothing in a leaf says whose change is torn.
/// The index belongs to the first compute side that opens it, in one process; others are refused.
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
        create::<F, L::Entries>(fabric, options.to_word()).await
    }

    fn compute(options: &ShermanOptions) -> Result<Self::Compute, IndexError> {
        Ok(ShermanCompute::new(*options, None))
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<Self::Index<F>, IndexError> {
        open(fabric, compute).await
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
        create::<F, L::Entries>(fabric, options.sherman.to_word() | DIVIDED).await
    }

    fn compute(options: &Self::Options) -> Result<Self::Compute, IndexError> {
        if !options.boundaries.is_sorted_by(|one, next| one < next) {
            return Err(IndexError::InvalidArgument("the boundaries must ascend"));
        }
        if options.sherman.by_versions {
            return Err(IndexError::InvalidArgument(
                "p-sherman has no locks, and so no versions: validate by sums",
            ));
        }
        Ok(ShermanCompute::new(options.sherman, Some(options.boundaries.clone())))
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<Self::Index<F>, IndexError> {
        open(fabric, compute).await
    }

    fn cached_bytes(compute: &Self::Compute) -> u64 {
        compute.cached_bytes()
    }
}

async fn create<F: Fabric, L: Layout>(fabric: &F, options: u64) -> Result<(), IndexError> {
    if ShermanOptions::is_by_versions(options) && !L::BY_ENTRIES {
        return Err(IndexError::InvalidArgument(
            "validation by versions needs keys and values of 8 bytes",
        ));
    }
    let chunk_bytes = ShermanOptions::chunk_bytes(options);
    let pages = PageClient::<F, L>::new(fabric.clone(), chunk_bytes);
    let make = async |roots: &[GlobalAddr]| {
        let image = Image::<L>::empty();
        image.page().format_empty(roots[0], 0, L::key(&L::min_key()), None);
        Ok::<_, IndexError>(vec![image])
    };
    let roots = pages.write_roots(1, make).await?;
    Ok(pages.rpc().claim_all(options, &roots).await?)
}

async fn open<F: Fabric, L: Layout>(
    fabric: F,
    compute: &ShermanCompute<L>,
) -> Result<ShermanIndex<F, L>, IndexError> {
    let rpc = RpcClient::<F, L>::new(fabric.clone());
    let (mut root, mut word) = (GlobalAddr::NULL, 0);
    for number in (0..fabric.memory_servers()).rev() {
        let (found, options) = rpc.claimed(ServerId::new(number), DesignId::Sherman).await?;
        (root, word) = (found.root, options);
    }
    let by_versions = ShermanOptions::is_by_versions(word);
    if by_versions != compute.is_by_versions() {
        return Err(IndexError::InvalidArgument(
            "the locks of this index have versions, or have none: validate as when it was created",
        ));
    }
    match (ShermanOptions::is_divided(word), compute.is_divided()) {
        (true, false) => {
            return Err(IndexError::InvalidArgument(
                "the keys of this index are divided among compute servers: open it as p-sherman",
            ));
        }
        (false, true) => {
            return Err(IndexError::InvalidArgument(
                "the compute servers of this index share all keys: open it as sherman",
            ));
        }
        // The turns of its owners, and the boundaries, are in one process's memory (sherman.O2).
        (true, true) => {
            let at = GlobalAddr::new(ROOT_SERVER, Superblock::SIDE_WORD as u64 * 8);
            if !rpc.enter(at, compute.number(fabric.unique())).await? {
                return Err(IndexError::InvalidArgument(
                    "this index belongs to another process, or to another compute side of this one",
                ));
            }
        }
        (false, false) => {}
    }
    let sides = compute.sides(fabric.compute_server());
    let pages = PageClient::new(fabric, ShermanOptions::chunk_bytes(word));
    let pages = pages.with_entry_locks(sides.any_locks());
    Ok(ShermanIndex { tree: BlinkTree::new(pages, root), sides, by_versions })
}

/// A handle on a Sherman index.
#[derive(Debug)]
pub struct ShermanIndex<F: Fabric, L: Layout> {
    tree: BlinkTree<F, L>,
    sides: Sides<L>,
    /// Whether lookups read the versions in locks (entries.V1).
    by_versions: bool,
}

impl<F: Fabric, L: Layout> ShermanIndex<F, L> {
    /// The client for the tree's pages, for tests and tools.
    pub fn pages(&self) -> &PageClient<F, L> {
        &self.tree.pages
    }
}
