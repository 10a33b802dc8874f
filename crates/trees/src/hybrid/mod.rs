//! The hybrid design: the key space is divided among the memory servers by ranges. Each server has
//! a tree that tells where the leaves of its share begin, and clients query it by RPC. The leaves
//! themselves are spread round robin over all memory servers, and clients access them only by
//! one-sided verbs. A lookup is one RPC and one READ.
//!
//! After Ziegler et al., *Designing Distributed Tree-based Index Structures for Fast RDMA-capable
//! Networks* (SIGMOD 2019), §5. A server's tree is its ordinary one
//! ([`farleaf_pool::server::tree`]) with records `lowest key of a leaf → the leaf's address`. The
//! RPC that finds a leaf is a descending scan of one record. The address is a value of the layout
//! ([`Layout::value_of_address`]). The first leaf of a share has no record: the superblock names
//! it, and a scan that finds nothing leads to it. Instead of head nodes, one RPC names many leaves
//! to come.
//!
//! *Invariants*
//! - Y1. Following siblings from the first leaf of the first share reaches every record at every
//!   instant, even after clients have died. Records of the servers' trees are shortcuts; a missing
//!   one costs readers a step to the right.
//! - Y2. A leaf's high fence is its right sibling's low fence. No leaf reaches across the end of
//!   its share, and the first leaf of a share is never removed.
//! - Y3. As long as a record of a server's tree exists, it names a leaf that begins at its key. A
//!   client sends the record once the leaf exists, and sends it again only if the server refused
//!   it. The record is removed before the leaf dies or begins elsewhere, under the locks of the
//!   leaf and of its left neighbour.
//! - Y4. Locks are taken left before right. Their holder waits only for new nodes and for the
//!   servers' records of these leaves.
//!
//! *Thread safety*: a handle belongs to its endpoint's thread; operations of one handle may
//! overlap.

mod collect;
mod load;
mod locate;
mod options;
mod write;

pub use options::HybridOptions;

use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_index::{Design, IndexError};
use farleaf_page::{DesignId, Layout, OwnedKey};
use farleaf_pool::remote::{PageClient, PageImage, Partitioning, RemoteError, RpcClient, ShareMap};
use farleaf_pool::wire::{Refusal, Reply, TreeRequest, TreeShare};
use std::cell::RefCell;

/// The hybrid design.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hybrid;

impl<L: Layout> Design<L> for Hybrid {
    const NAME: &'static str = "hybrid";
    type Options = HybridOptions<OwnedKey<L>>;
    type Compute = ();
    type Index<F: Fabric> = HybridIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, options: &Self::Options) -> Result<(), IndexError> {
        let word = options.to_word();
        let pages = PageClient::<F, L>::new(fabric.clone(), options::chunk_bytes(word));
        if options.partitioning == Partitioning::Hash {
            return Err(IndexError::InvalidArgument("the hybrid design needs range partitioning"));
        }
        let shares = options.partitioning.shares::<L>(fabric.memory_servers())?;
        let make = async |firsts: &[GlobalAddr]| {
            let nexts = firsts.iter().skip(1).copied().chain([GlobalAddr::NULL]);
            let leaves = firsts.iter().zip(nexts).zip(&shares).filter_map(|((at, next), share)| {
                let TreeShare::Range { low, high } = share else { return None };
                Some(empty_leaf::<L>(*at, L::key(low), high.as_ref().map(L::key), next))
            });
            Ok::<_, IndexError>(leaves.collect())
        };
        let firsts = pages.write_roots(fabric.memory_servers(), make).await?;
        let create_tree = async |server: ServerId| {
            let share = shares[server.index()].clone();
            match pages.rpc().ask_idempotent(server, &TreeRequest::Create { share }).await {
                // No other client creates a tree in a claimed pool, so an existing tree is from
                // this call.
                Ok(Reply::Done)
                | Err(RemoteError::Refused { refusal: Refusal::TreeExists, .. }) => Ok(()),
                Ok(_) => Err(IndexError::BadReply { server }),
                Err(error) => Err(error.into()),
            }
        };
        pages.rpc().claim_each(word, &firsts, create_tree).await
    }

    fn compute(_options: &Self::Options) -> Result<(), IndexError> {
        Ok(())
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        _compute: &(),
    ) -> Result<Self::Index<F>, IndexError> {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        let (mut shares, mut firsts, mut word) = (Vec::new(), Vec::new(), 0);
        for number in 0..fabric.memory_servers() {
            let server = ServerId::new(number);
            let (found, options) = rpc.claimed(server, DesignId::Hybrid).await?;
            word = options;
            firsts.push(found.first_leaf);
            match rpc.ask_idempotent(server, &TreeRequest::Describe).await? {
                Reply::Description(Some(share)) => shares.push(share),
                Reply::Description(None) => {
                    return Err(IndexError::Refused { server, refusal: Refusal::NoTree });
                }
                _ => return Err(IndexError::BadReply { server }),
            }
        }
        let ShareMap::Range { boundaries } = ShareMap::from_shares::<L>(shares)? else {
            return Err(IndexError::InvalidArgument("the hybrid design needs range partitioning"));
        };
        let lows = std::iter::once(L::min_key()).chain(boundaries.iter().cloned());
        let highs = boundaries.iter().cloned().map(Some).chain(std::iter::once(None));
        let parts = lows.zip(highs).zip(firsts).map(|((low, high), first)| HybridShare {
            low,
            high,
            first,
        });
        Ok(HybridIndex {
            pages: PageClient::new(fabric, options::chunk_bytes(word)),
            parts: parts.collect(),
            pending: RefCell::default(),
        })
    }
}

/// Formats an empty leaf.
fn empty_leaf<L: Layout>(
    at: GlobalAddr,
    low: &L::Key,
    high: Option<&L::Key>,
    sibling: GlobalAddr,
) -> PageImage<L> {
    let image = PageImage::empty();
    image.page().format_empty(at, 0, low, high);
    image.page().set_sibling(sibling);
    image
}

/// The share of one memory server.
#[derive(Clone, Debug)]
struct HybridShare<K> {
    low: K,
    high: Option<K>,
    /// The leaf at `low`, which is never removed (Y2).
    first: GlobalAddr,
}

/// A handle on a hybrid index.
#[derive(Debug)]
pub struct HybridIndex<F: Fabric, L: Layout> {
    pages: PageClient<F, L>,
    /// The shares, by memory server.
    parts: Vec<HybridShare<OwnedKey<L>>>,
    /// New leaves of this client that the servers have refused to record so far.
    pending: RefCell<Vec<(OwnedKey<L>, GlobalAddr)>>,
}

crate::range_index_by_locating!(HybridIndex);

impl<F: Fabric, L: Layout> HybridIndex<F, L> {
    /// The client for the leaf pages, for tests and tools.
    pub fn pages(&self) -> &PageClient<F, L> {
        &self.pages
    }

    fn servers(&self) -> impl Iterator<Item = ServerId> + use<F, L> {
        (0..self.parts.len() as u16).map(ServerId::new)
    }
}
