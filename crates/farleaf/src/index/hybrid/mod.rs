//! The hybrid design: the key space is divided among the memory servers by ranges, each knows by a tree of
//! its own where the leaves of its share begin, and tells by RPC; the leaves themselves go round all memory
//! servers, and clients do everything to them one-sided. A lookup is one RPC and one READ.
//!
//! After Ziegler et al., *Designing Distributed Tree-based Index Structures for Fast RDMA-capable Networks*
//! (SIGMOD 2019), §5. A server's tree is its ordinary one ([`crate::server::tree`]) with records
//! `lowest key of a leaf → the leaf's address`; the RPC that finds a leaf is a descending scan of one record.
//! For that, values are words: `L::Value = u64`. The first leaf of a share has no record: it is named in the
//! superblock, and is where a scan leads that finds nothing. Instead of head nodes, one RPC names many leaves
//! to come.
//!
//! *Invariants*
//! - Y1. Following siblings from the first leaf of the first share reaches every record at every instant,
//!   whoever has died: records of the servers' trees are short cuts, and one that is missing costs its
//!   readers a step to the right.
//! - Y2. A leaf's high fence is its right sibling's low fence; no leaf reaches across the end of its share,
//!   and the first leaf of a share is there for ever.
//! - Y3. A record of a server's tree names a leaf that begins at its key, from before it is there until it
//!   is gone: it is sent when the leaf is there, never twice unless the first was refused, and taken out,
//!   under the locks of the leaf and of the one before, before the leaf dies or begins elsewhere.
//! - Y4. Locks are taken left before right. Who holds them waits for new nodes and for the records that
//!   concern these leaves, and for nothing else.
//!
//! *Thread safety*: a handle belongs to its endpoint's thread; operations of one handle may overlap.

mod collect;
mod load;
mod locate;
mod options;
mod scan;
mod write;

pub use collect::CollectCursor;
pub use options::HybridOptions;

use super::{Design, IndexAdmin, IndexError, RangeIndex, Records, Scan};
use crate::page::{Answer, DesignId, Layout, LeafEdit};
use crate::remote::{Image, PageClient, Partitioning, RemoteError, RpcClient, ShareMap};
use crate::wire::{PoolRequest, Refusal, Reply, Share, TreeRequest, Usage};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use std::cell::RefCell;
use std::future::Future;

/// The hybrid design.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hybrid;

impl<L: Layout<Value = u64>> Design<L> for Hybrid {
    const NAME: &'static str = "hybrid";
    type Options = HybridOptions<L::Key>;
    type Compute = ();
    type Index<F: Fabric> = HybridIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, options: &Self::Options) -> Result<(), IndexError> {
        let word = options.to_word();
        let pages = PageClient::<F, L>::new(fabric.clone(), options::chunk_bytes(word));
        if options.partitioning == Partitioning::Hash {
            return Err(IndexError::InvalidArgument("the hybrid design divides keys by ranges"));
        }
        let shares = options.partitioning.shares::<L>(fabric.memory_servers())?;
        for number in (0..fabric.memory_servers()).rev() {
            let server = ServerId::new(number);
            if pages.rpc().superblock(server).await?.options != 0 {
                return Err(IndexError::Refused { server, refusal: Refusal::TreeExists });
            }
        }
        let mut firsts = Vec::new();
        for number in 0..fabric.memory_servers() {
            firsts.push(pages.take_node(ServerId::new(number)).await?);
        }
        for (number, share) in shares.iter().enumerate() {
            let Share::Range { low, high } = share else { continue };
            let next = firsts.get(number + 1).copied().unwrap_or(GlobalAddr::NULL);
            let image = empty_leaf::<L>(firsts[number], low, high.as_ref(), next);
            let fresh = pages.fresh_word(firsts[number]).await?;
            pages.write_fresh(&[(firsts[number], fresh, &image)]).await?;
        }
        // Server 0 last: until then there is nothing to open. Of two who try, one gets past the first; a
        // random number tells them apart, so that each can ask again.
        let word = word | fabric.random() << 32;
        for (root, share) in firsts.into_iter().zip(shares).rev() {
            let (server, rpc) = (root.server(), pages.rpc());
            match rpc
                .ask_harmless(server, &PoolRequest::Claim { options: word, root }.into())
                .await?
            {
                Reply::Done => {}
                _ => return Err(IndexError::BadReply { server }),
            }
            match rpc.ask_harmless(server, &TreeRequest::Create { share }.into()).await {
                // Nobody makes a tree where another has claimed the pool: it is ours.
                Ok(Reply::Done)
                | Err(RemoteError::Refused { refusal: Refusal::TreeExists, .. }) => {}
                Ok(_) => return Err(IndexError::BadReply { server }),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn compute(_options: &Self::Options) -> Result<(), IndexError> {
        Ok(())
    }

    async fn open<F: Fabric>(fabric: F, _compute: &()) -> Result<Self::Index<F>, IndexError> {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        let (mut shares, mut firsts, mut word) = (Vec::new(), Vec::new(), 0);
        for number in 0..fabric.memory_servers() {
            let server = ServerId::new(number);
            let found = rpc.superblock(server).await?;
            word = found
                .options_of(DesignId::Hybrid)
                .map_err(|error| IndexError::BadPool { server, error })?;
            firsts.push(found.first_leaf);
            match rpc.ask_harmless(server, &TreeRequest::Describe.into()).await? {
                Reply::Description(Some(share)) => shares.push(share),
                Reply::Description(None) => {
                    return Err(IndexError::Refused { server, refusal: Refusal::NoTree });
                }
                _ => return Err(IndexError::BadReply { server }),
            }
        }
        let ShareMap::Range { boundaries } = ShareMap::from_shares::<L>(shares)? else {
            return Err(IndexError::InvalidArgument("the hybrid design divides keys by ranges"));
        };
        let lows = std::iter::once(L::min_key()).chain(boundaries.iter().cloned());
        let highs = boundaries.iter().cloned().map(Some).chain(std::iter::once(None));
        let parts =
            lows.zip(highs).zip(firsts).map(|((low, high), first)| Part { low, high, first });
        Ok(HybridIndex {
            pages: PageClient::new(fabric, options::chunk_bytes(word)),
            parts: parts.collect(),
            owed: RefCell::default(),
        })
    }
}

/// An empty leaf.
fn empty_leaf<L: Layout>(
    at: GlobalAddr,
    low: &L::Key,
    high: Option<&L::Key>,
    sibling: GlobalAddr,
) -> Image<L> {
    let image = Image::empty();
    image.page().format_empty(at, 0, low, high);
    image.page().set_sibling(sibling);
    image
}

/// The share of one memory server.
#[derive(Clone, Debug)]
struct Part<K> {
    low: K,
    high: Option<K>,
    /// The leaf at `low`, for ever (Y2).
    first: GlobalAddr,
}

/// A handle on a hybrid index.
#[derive(Debug)]
pub struct HybridIndex<F: Fabric, L: Layout> {
    pages: PageClient<F, L>,
    /// By memory server.
    parts: Vec<Part<L::Key>>,
    /// Leaves of this client's making that the servers have refused to note, so far.
    owed: RefCell<Vec<(L::Key, GlobalAddr)>>,
}

impl<F: Fabric, L: Layout<Value = u64>> HybridIndex<F, L> {
    /// The leaves below, for tests and tools.
    pub fn pages(&self) -> &PageClient<F, L> {
        &self.pages
    }

    /// How much of each memory server's memory is given out, and how large its tree is.
    ///
    /// # Errors
    /// [`IndexError`] if a server does not answer.
    pub async fn usage(&self) -> Result<Vec<Usage>, IndexError> {
        let mut usages = Vec::new();
        for server in self.servers() {
            match self.pages.rpc().ask_harmless(server, &PoolRequest::Usage.into()).await? {
                Reply::Usage(usage) => usages.push(usage),
                _ => return Err(IndexError::BadReply { server }),
            }
        }
        Ok(usages)
    }

    fn servers(&self) -> impl Iterator<Item = ServerId> + use<F, L> {
        (0..self.parts.len() as u16).map(ServerId::new)
    }
}

impl<F: Fabric, L: Layout<Value = u64>> RangeIndex for HybridIndex<F, L> {
    type Key = L::Key;
    type Value = L::Value;

    async fn get(&self, key: &L::Key) -> Result<Option<L::Value>, IndexError> {
        Ok(self.pages.attempts(async || self.try_get(key).await).await?)
    }

    async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<Answer<L::Value>, IndexError> {
        match edit.changes() {
            true => self.change(edit).await,
            false => Ok(Answer::of_lookup(self.get(edit.key).await?)),
        }
    }

    fn scan(
        &self,
        scan: &Scan<L::Key>,
    ) -> impl Future<Output = Result<Records<L::Key, L::Value>, IndexError>> {
        self.scan_all(scan)
    }

    fn multi_get(
        &self,
        keys: &[L::Key],
    ) -> impl Future<Output = Result<Vec<Option<L::Value>>, IndexError>> {
        self.get_all(keys)
    }

    fn bulk_load(
        &self,
        records: impl Iterator<Item = (L::Key, L::Value)>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, IndexError>> {
        self.load_all(records, fill)
    }

    /// Clients write every change through.
    async fn flush(&self) -> Result<(), IndexError> {
        Ok(())
    }

    async fn settle(&self) -> Result<(), IndexError> {
        Ok(self.pages.settle_all().await?)
    }
}

impl<F: Fabric, L: Layout<Value = u64>> IndexAdmin for HybridIndex<F, L> {
    fn collect(&self) -> impl Future<Output = Result<(), IndexError>> {
        self.collect_all()
    }

    async fn declare_dead(&self, compute_server: u16) -> Result<(), IndexError> {
        Ok(self.pages.declare_dead(compute_server).await?)
    }
}
