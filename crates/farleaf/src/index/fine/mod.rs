//! The fine-grained design: one B-link tree whose nodes go round the memory servers, and clients that do
//! everything to it one-sided.
//!
//! After Ziegler et al., *Designing Distributed Tree-based Index Structures for Fast RDMA-capable Networks*
//! (SIGMOD 2019), §4, with these differences: a page READ proves by a checksum that it is of one piece; a
//! lock names its owner, and a log entry lets others finish what a dead owner began; the root stays where it
//! is.
//!
//! *Invariants*
//! - B1. Following child words and siblings from the root reaches every record at every instant, whoever has
//!   died: a node is written before anything points to it, and taken out before it is freed.
//! - B2. A node's high fence is its right sibling's low fence; the leftmost low fence is the smallest key,
//!   the rightmost high fence infinite.
//! - B3. Locks are taken from the top down and left before right, and who holds a leaf's waits for nothing
//!   but new nodes.
//!
//! *Thread safety*: a handle belongs to its endpoint's thread; operations of one handle may overlap.

mod collect;
mod descend;
mod heads;
mod load;
mod options;
mod scan;
mod write;

pub use collect::CollectCursor;
pub use options::FineOptions;

use super::{Design, IndexAdmin, IndexError, RangeIndex, Records, Scan};
use crate::page::{Answer, DesignId, Layout, LeafEdit, Superblock};
use crate::remote::{Image, PageClient, RpcClient};
use crate::wire::{PoolRequest, Refusal, Reply, Usage};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use std::cell::Cell;
use std::future::Future;

/// The fine-grained design.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fine;

/// Where the root is.
const ROOT_SERVER: ServerId = ServerId::new(0);

impl<L: Layout> Design<L> for Fine {
    const NAME: &'static str = "fine";
    type Options = FineOptions;
    type Compute = ();
    type Index<F: Fabric> = FineIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, options: &FineOptions) -> Result<(), IndexError> {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        let found = superblock(&rpc, ROOT_SERVER).await?;
        if found.options != 0 || !found.root.is_null() {
            let refusal = Refusal::TreeExists;
            return Err(IndexError::Refused { server: ROOT_SERVER, refusal });
        }
        let pages = PageClient::<F, L>::new(fabric.clone(), options.chunk_bytes());
        let root = pages.take_node(ROOT_SERVER).await?;
        let image = Image::<L>::empty();
        image.page().format_empty(root, 0, &L::min_key(), None);
        let fresh = pages.fresh_word(root).await?;
        pages.write_fresh(&[(root, fresh, &image)]).await?;
        // The root's server last: until then there is nothing to open. Of two who try, one gets past the
        // first; a random number tells them apart, so that each can ask again.
        let options = options.to_word() | fabric.random() << 32;
        for number in (0..fabric.memory_servers()).rev() {
            let server = ServerId::new(number);
            let root = if server == ROOT_SERVER { root } else { GlobalAddr::NULL };
            match rpc.ask_harmless(server, &PoolRequest::Claim { options, root }.into()).await? {
                Reply::Done => {}
                _ => return Err(IndexError::BadReply { server }),
            }
        }
        Ok(())
    }

    fn compute(_options: &Self::Options) -> Result<(), IndexError> {
        Ok(())
    }

    async fn open<F: Fabric>(fabric: F, _compute: &()) -> Result<FineIndex<F, L>, IndexError> {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        let mut root = GlobalAddr::NULL;
        let mut options = FineOptions::default();
        for number in (0..fabric.memory_servers()).rev() {
            let server = ServerId::new(number);
            let found = superblock(&rpc, server).await?;
            let word = found
                .options_of(DesignId::Fine)
                .map_err(|error| IndexError::BadPool { server, error })?;
            (root, options) = (found.root, FineOptions::from_word(word));
        }
        let pages = PageClient::new(fabric, options.chunk_bytes());
        Ok(FineIndex { pages, options, root, root_level: Cell::new(0) })
    }
}

/// A memory server's superblock: one READ.
async fn superblock<F: Fabric, L: Layout>(
    rpc: &RpcClient<F, L>,
    server: ServerId,
) -> Result<Superblock, IndexError> {
    Ok(rpc.superblock(server).await?)
}

/// A handle on a fine-grained index.
#[derive(Debug)]
pub struct FineIndex<F: Fabric, L: Layout> {
    pages: PageClient<F, L>,
    options: FineOptions,
    root: GlobalAddr,
    /// The root's level when it was last read.
    root_level: Cell<u8>,
}

impl<F: Fabric, L: Layout> FineIndex<F, L> {
    /// The pages below, for tests and tools.
    pub fn pages(&self) -> &PageClient<F, L> {
        &self.pages
    }

    /// How much of each memory server's memory is given out.
    ///
    /// # Errors
    /// [`IndexError`] if a server does not answer.
    pub async fn usage(&self) -> Result<Vec<Usage>, IndexError> {
        let mut usages = Vec::new();
        for number in 0..self.pages.fabric().memory_servers() {
            let server = ServerId::new(number);
            match self.pages.rpc().ask_harmless(server, &PoolRequest::Usage.into()).await? {
                Reply::Usage(usage) => usages.push(usage),
                _ => return Err(IndexError::BadReply { server }),
            }
        }
        Ok(usages)
    }
}

impl<F: Fabric, L: Layout> RangeIndex for FineIndex<F, L> {
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

impl<F: Fabric, L: Layout> IndexAdmin for FineIndex<F, L> {
    async fn declare_dead(&self, compute_server: u16) -> Result<(), IndexError> {
        Ok(self.pages.declare_dead(compute_server).await?)
    }

    fn collect(&self) -> impl Future<Output = Result<(), IndexError>> {
        self.collect_all()
    }
}
