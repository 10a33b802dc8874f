//! Sherman: a B-link tree that clients access only by one-sided verbs, with cached parents of
//! leaves, leaves that are written entry by entry, and locks that clients of one compute server hand
//! to each other.
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
//! - sherman.S2. Records are changed under the entry lock of their leaf (entries.E1–E5), inner nodes
//!   by a CAS that expects the copy's version.
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

pub use options::ShermanOptions;

use super::one_sided::BlinkTree;
use super::{Design, IndexError};
use crate::page::{DesignId, Layout};
use crate::remote::{EntryLocks, Image, PageClient, ROOT_SERVER, RpcClient};
use cache::NodeCache;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use std::collections::BTreeMap;

/// The design Sherman.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sherman;

/// What the clients of one compute server share.
#[derive(Debug)]
struct ServerSide<L: Layout> {
    cache: NodeCache<L>,
    locks: Arc<EntryLocks>,
}

/// The compute side: for each compute server, its cached nodes and its turns at locks.
#[derive(Debug)]
pub struct ShermanCompute<L: Layout> {
    options: ShermanOptions,
    servers: Arc<Mutex<Servers<L>>>,
}

type Servers<L> = BTreeMap<u16, Arc<ServerSide<L>>>;

// Not derived: the derive would require more of `L`.
impl<L: Layout> Clone for ShermanCompute<L> {
    fn clone(&self) -> Self {
        Self { options: self.options, servers: self.servers.clone() }
    }
}

impl<L: Layout> ShermanCompute<L> {
    fn server(&self, number: u16) -> Arc<ServerSide<L>> {
        let ShermanOptions { cache_bytes, hand_overs, .. } = self.options;
        let new = || {
            let locks = Arc::new(EntryLocks::new(hand_overs));
            Arc::new(ServerSide { cache: NodeCache::new(cache_bytes), locks })
        };
        lock(&self.servers).entry(number).or_insert_with(new).clone()
    }
}

impl<L: Layout> Design<L> for Sherman {
    const NAME: &'static str = "sherman";
    type Options = ShermanOptions;
    type Compute = ShermanCompute<L::Entries>;
    type Index<F: Fabric> = ShermanIndex<F, L::Entries>;

    async fn create<F: Fabric>(fabric: &F, options: &ShermanOptions) -> Result<(), IndexError> {
        let chunk_bytes = ShermanOptions::chunk_bytes(options.to_word());
        let pages = PageClient::<F, L::Entries>::new(fabric.clone(), chunk_bytes);
        let make = async |roots: &[GlobalAddr]| {
            let image = Image::<L::Entries>::empty();
            image.page().format_empty(roots[0], 0, L::key(&L::min_key()), None);
            Ok::<_, IndexError>(vec![image])
        };
        let roots = pages.write_roots(1, make).await?;
        Ok(pages.rpc().claim_all(options.to_word(), &roots).await?)
    }

    fn compute(options: &ShermanOptions) -> Result<Self::Compute, IndexError> {
        let servers = Arc::new(Mutex::new(BTreeMap::new()));
        Ok(ShermanCompute { options: *options, servers })
    }

    async fn open<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<Self::Index<F>, IndexError> {
        let rpc = RpcClient::<F, L::Entries>::new(fabric.clone());
        let (mut root, mut word) = (GlobalAddr::NULL, 0);
        for number in (0..fabric.memory_servers()).rev() {
            let (found, options) = rpc.claimed(ServerId::new(number), DesignId::Sherman).await?;
            (root, word) = (found.root, options);
        }
        debug_assert!(root.is_null() || root.server() == ROOT_SERVER);
        let server = compute.server(fabric.compute_server());
        let pages = PageClient::new(fabric, ShermanOptions::chunk_bytes(word));
        let pages = pages.with_entry_locks(server.locks.clone());
        Ok(ShermanIndex { tree: BlinkTree::new(pages, root), server })
    }

    fn cached_bytes(compute: &Self::Compute) -> u64 {
        lock(&compute.servers).values().map(|server| server.cache.bytes()).sum()
    }
}

/// A handle on a Sherman index.
#[derive(Debug)]
pub struct ShermanIndex<F: Fabric, L: Layout> {
    tree: BlinkTree<F, L>,
    server: Arc<ServerSide<L>>,
}

impl<F: Fabric, L: Layout> ShermanIndex<F, L> {
    /// The client for the tree's pages, for tests and tools.
    pub fn pages(&self) -> &PageClient<F, L> {
        &self.tree.pages
    }
}
