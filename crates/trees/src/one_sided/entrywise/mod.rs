//! A B-link tree that clients access only by one-sided verbs, with cached parents of leaves, leaves
//! that are written entry by entry, and locks that clients of one compute server hand to each
//! other: what Sherman and CHIME have in common. They differ in their leaves ([`Layout`]).
//!
//! With a layout whose leaves have no entries of one size, leaves are written as a whole, as in the
//! fine-grained design, and only the cache is left.
//!
//! *Invariants*
//! - entrywise.S1. No node is freed once a client can reach it. A leaf keeps its address and its
//!   lowest key, except that a root that is a leaf becomes an inner node.
//! - entrywise.S2. Records are changed under the entry lock of their leaf (entries.E1–E5), inner
//!   nodes by a CAS that expects the copy's version.
//! - entrywise.S3. A client holds at most one entry lock at a time for an operation, and waits
//!   under it only for new nodes and for the whole page's lock, of which recovery is the only other
//!   user.
//!
//! *Thread safety*: a handle belongs to its endpoint's thread; operations of one handle may
//! overlap.

mod cache;
mod change;
mod collect;
mod hot;
mod locate;
mod lookup;
mod options;
mod sides;
mod versions;
mod windows;

pub use options::EntrywiseOptions;
pub use sides::EntrywiseCompute;

use super::BlinkTree;
use crate::entry_lock::{EntryClient, EntryState};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_index::IndexError;
use farleaf_page::{DesignId, Layout};
use farleaf_pool::remote::{PageClient, PageImage, RpcClient};
use sides::ClientEntrySides;
use std::rc::Rc;

/// Divided keys are changed without locks.
pub(crate) const NO_VERSIONS: IndexError =
    IndexError::InvalidArgument("p-sherman has no locks, and so no versions: validate by sums");

/// Creates an empty index on memory servers that have none. With `divided`, its keys are divided
/// among compute servers.
pub(crate) async fn create<F: Fabric, L: Layout>(
    fabric: &F,
    design: DesignId,
    options: &EntrywiseOptions,
    divided: bool,
) -> Result<(), IndexError> {
    if options.by_versions && (!L::BY_ENTRIES || L::WINDOWS) {
        return Err(IndexError::InvalidArgument(
            "validation by versions needs keys and values of 8 bytes, and lookups of whole leaves",
        ));
    }
    if options.by_versions && divided {
        return Err(NO_VERSIONS);
    }
    let word = options.to_word(design, divided);
    let pages = PageClient::<F, L>::new(fabric.clone(), EntrywiseOptions::chunk_bytes(word));
    let make = async |roots: &[GlobalAddr]| {
        let image = PageImage::<L>::empty();
        image.page().format_empty(roots[0], 0, L::key(&L::min_key()), None);
        Ok::<_, IndexError>(vec![image])
    };
    let roots = pages.write_roots(1, make).await?;
    Ok(pages.rpc().claim_all(word, &roots).await?)
}

/// Opens a handle on an index of this design.
pub(crate) async fn open<F: Fabric, L: Layout>(
    fabric: F,
    design: DesignId,
    compute: &EntrywiseCompute<L>,
) -> Result<EntryTree<F, L>, IndexError> {
    let rpc = RpcClient::<F, L>::new(fabric.clone());
    let (mut root, mut word) = (GlobalAddr::NULL, 0);
    for number in (0..fabric.memory_servers()).rev() {
        let (found, options) = rpc.claimed(ServerId::new(number), design).await?;
        (root, word) = (found.root, options);
    }
    let by_versions = EntrywiseOptions::is_by_versions(word);
    if by_versions != compute.is_by_versions() {
        return Err(IndexError::InvalidArgument(
            "the locks of this index have versions, or have none: validate as when it was created",
        ));
    }
    compute.all.check_open(&rpc, EntrywiseOptions::is_divided(word)).await?;
    let sides = compute.sides(fabric.compute_server());
    let locking = Rc::new(EntryState::new(sides.any_locks()));
    let pages = PageClient::new(fabric, EntrywiseOptions::chunk_bytes(word));
    let pages = pages.with_leaf_protocol(locking.clone(), locking.unresolved());
    Ok(EntryTree { tree: BlinkTree::new(pages, root), locking, sides, by_versions })
}

/// A handle on an index with entrywise leaves.
#[derive(Debug)]
pub struct EntryTree<F: Fabric, L: Layout> {
    tree: BlinkTree<F, L>,
    /// Shared with the hook of the tree's pages.
    locking: Rc<EntryState>,
    sides: ClientEntrySides<L>,
    /// Whether lookups read the versions in locks (entries.V1).
    by_versions: bool,
}

crate::range_index_by_locating!(EntryTree);

impl<F: Fabric, L: Layout> EntryTree<F, L> {
    /// The client for the tree's pages, for tests and tools.
    pub fn pages(&self) -> &PageClient<F, L> {
        &self.tree.pages
    }

    /// The client for the leaves' entry locks, for tests too.
    pub fn entries(&self) -> EntryClient<'_, F, L> {
        EntryClient::new(&self.tree.pages, &self.locking)
    }
}
