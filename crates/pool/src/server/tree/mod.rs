//! The memory server's own tree: a B-link tree with all of its nodes in the server's region.
//!
//! Readers couple optimistically: a reader takes a node's version, reads the node, takes the
//! child's version, validates the node's version, and continues at the child. A writer turns the
//! leaf version that it has read into a lock. A split node points to its new right sibling, so the
//! tree is complete before the sibling is in the parent; the separator is inserted there
//! afterwards. Deleting marks a record. The collection (`collect`) drops marked records, merges and
//! rebalances nodes, and retires nodes into epochs.
//!
//! After Ziegler et al., *Designing Distributed Tree-based Index Structures for Fast RDMA-capable
//! Networks*, §3, with these differences: the root keeps its address (its content moves into two
//! new children when it splits), and nodes have both fences, so that a misdirected descent is
//! detected.
//!
//! *Invariants*
//! - T1. At every instant at which no latch on the path is held, child words and siblings lead from
//!   the root to every record.
//! - T2. A node's high fence is its right sibling's low fence; the leftmost low fence is the
//!   smallest key, and the rightmost high fence is infinite.
//! - T3. Latches are taken from the top down, and left before right. The holder of a leaf's latch
//!   waits only for new nodes.
//! - T4. A node is retired only when no parent and no sibling points to it.
//!
//! *Thread safety*: any number of threads, through `&self`.

mod collect;
mod descend;
mod group;
mod load;
mod point;
mod scan;
mod split;

pub use load::TreeLoader;

use super::chunks::ChunkAllocator;
use super::epoch::Epochs;
use super::nodes::NodePool;
use crate::wire::Refusal;
use collect::Collector;
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};
use farleaf_fabric::{GlobalAddr, Region, ServerId};
use farleaf_page::{Layout, NodeCarver, OwnedKey, Page, Superblock};

/// Restarts before an operation gives up with [`Refusal::Contended`].
pub const MAX_RESTARTS: u32 = 10_000;
/// Polls of one latch before the attempt restarts.
const MAX_SPINS: u32 = 10_000;

/// Why an attempt failed.
#[derive(Clone, Copy, Debug)]
enum TreeFailure {
    /// A concurrent operation interfered: retry.
    Restart,
    /// Retrying cannot help.
    Refused(Refusal),
}

impl From<Refusal> for TreeFailure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A tree in one region.
#[derive(Debug)]
pub struct ServerTree<L: Layout> {
    server: ServerId,
    region: Arc<Region>,
    nodes: NodePool,
    epochs: Epochs,
    collector: Collector<OwnedKey<L>>,
    deleted: AtomicU64,
}

impl<L: Layout> ServerTree<L> {
    /// Creates the handle of a region that has a superblock and no tree yet.
    pub(super) fn new(
        server: ServerId,
        region: Arc<Region>,
        chunks: Arc<ChunkAllocator>,
        chunk_bytes: u64,
    ) -> Self {
        Self {
            server,
            region,
            nodes: NodePool::new(chunks, L::page_words() * 8, chunk_bytes),
            epochs: Epochs::new(),
            collector: Collector::default(),
            deleted: AtomicU64::new(0),
        }
    }

    /// Creates an empty tree.
    ///
    /// # Errors
    /// [`Refusal`] if there already is a tree, or if there is not enough memory for a node.
    pub fn create(&self) -> Result<(), Refusal> {
        if !self.root().is_null() {
            return Err(Refusal::TreeExists);
        }
        let root = self.nodes.take(1).ok_or(Refusal::OutOfMemory)?[0];
        let page = self.page(root).ok_or(Refusal::Damaged)?;
        page.format_empty(root, 0, L::key(&L::min_key()), None);
        Superblock::set_root(self.superblock(), root);
        Ok(())
    }

    fn superblock(&self) -> &[AtomicU64] {
        &self.region.words()[..Superblock::WORDS]
    }

    /// The root's address; null while there is no tree.
    #[inline]
    pub fn root(&self) -> GlobalAddr {
        Superblock::root(self.superblock())
    }

    /// The page at an address, if a node can be there.
    #[inline]
    fn page(&self, at: GlobalAddr) -> Option<Page<'_, L>> {
        if at.is_null() || at.server() != self.server || at.is_swizzled() {
            return None;
        }
        if !at.offset().is_multiple_of(NodeCarver::NODE_ALIGN) {
            return None;
        }
        self.region.slice(at.offset(), L::page_words()).map(Page::new)
    }

    /// The size of the tree.
    pub fn usage(&self) -> TreeUsage {
        let (nodes_in_use, nodes_free) = self.nodes.usage();
        let deleted_records = self.deleted.load(Ordering::Relaxed);
        let height = self.page(self.root()).map_or(0, |root| u64::from(root.level()) + 1);
        TreeUsage { nodes_in_use, nodes_free, deleted_records, height }
    }

    /// Nodes that have been removed from the tree (T4), while operations that may have seen them
    /// still run.
    pub fn retired_nodes(&self) -> Vec<GlobalAddr> {
        self.epochs.retired_nodes()
    }

    /// Nodes of the tree's chunks that are not in use.
    pub(super) fn unused_nodes(&self) -> Vec<GlobalAddr> {
        self.nodes.unused()
    }

    /// Counts the deleted records that one change added to a leaf or dropped from it.
    fn count_deleted(&self, before: usize, after: usize) {
        if after > before {
            self.deleted.fetch_add((after - before) as u64, Ordering::Relaxed);
        } else if before > after {
            self.deleted.fetch_sub((before - after) as u64, Ordering::Relaxed);
        }
    }
}

/// The size of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeUsage {
    /// Nodes in use.
    pub nodes_in_use: u64,
    /// Freed nodes that have not been reused.
    pub nodes_free: u64,
    /// Records deleted and not yet collected.
    pub deleted_records: u64,
    /// Number of levels.
    pub height: u64,
}
