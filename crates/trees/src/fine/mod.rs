//! The fine-grained design: one B-link tree with its nodes spread round robin over the memory
//! servers. Clients access it only by one-sided verbs.
//!
//! After Ziegler et al., *Designing Distributed Tree-based Index Structures for Fast RDMA-capable
//! Networks* (SIGMOD 2019), §4, with these differences: a checksum proves that a page was read
//! untorn; a lock names its owner, and a log entry lets other clients finish what a dead owner
//! began; the root keeps its address.
//!
//! *Invariants*
//! - fine.B1. Following child words and siblings from the root reaches every record at every
//!   instant, even after clients have died: a node is written before anything points to it
//!   (blink.B1), and unlinked before it is freed.
//! - fine.B2. A node's high fence is its right sibling's low fence. The leftmost low fence is the
//!   smallest key, the rightmost high fence is infinite.
//! - fine.B3. Locks are taken from the top down and left before right, and the holder of a leaf's
//!   lock waits only for new nodes.
//!
//! *Thread safety*: a handle belongs to its endpoint's thread; operations of one handle may
//! overlap.

mod collect;
mod heads;
mod locate;
mod options;

pub use options::FineOptions;

use crate::one_sided::BlinkTree;
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_index::{Design, IndexError};
use farleaf_page::{DesignId, Layout};
use farleaf_pool::remote::{PageClient, PageImage, RpcClient};

/// The fine-grained design.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fine;

impl<L: Layout> Design<L> for Fine {
    const NAME: &'static str = "fine";
    type Options = FineOptions;
    type Compute = ();
    type Index<F: Fabric> = FineIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, options: &FineOptions) -> Result<(), IndexError> {
        let pages = PageClient::<F, L>::new(fabric.clone(), options.chunk_bytes());
        let make = async |roots: &[GlobalAddr]| {
            let image = PageImage::<L>::empty();
            image.page().format_empty(roots[0], 0, L::key(&L::min_key()), None);
            Ok::<_, IndexError>(vec![image])
        };
        let roots = pages.write_roots(1, make).await?;
        Ok(pages.rpc().claim_all(options.to_word(), &roots).await?)
    }

    fn compute(_options: &Self::Options) -> Result<(), IndexError> {
        Ok(())
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        _compute: &(),
    ) -> Result<FineIndex<F, L>, IndexError> {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        let mut root = GlobalAddr::NULL;
        let mut options = FineOptions::default();
        for number in (0..fabric.memory_servers()).rev() {
            let server = ServerId::new(number);
            let (found, word) = rpc.claimed(server, DesignId::Fine).await?;
            (root, options) = (found.root, FineOptions::from_word(word));
        }
        let pages = PageClient::new(fabric, options.chunk_bytes());
        pages.validate_by_versions(options.by_versions);
        Ok(FineIndex { tree: BlinkTree::new(pages, root), options })
    }
}

/// A handle on a fine-grained index.
#[derive(Debug)]
pub struct FineIndex<F: Fabric, L: Layout> {
    tree: BlinkTree<F, L>,
    options: FineOptions,
}

crate::range_index_by_locating!(FineIndex);

impl<F: Fabric, L: Layout> FineIndex<F, L> {
    /// The client for the tree's pages, for tests and tools.
    pub fn pages(&self) -> &PageClient<F, L> {
        &self.tree.pages
    }
}
