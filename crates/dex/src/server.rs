//! State shared by the threads of one compute server: the cache, its range of keys, and free nodes.
//! When a thread merges a node away, any thread can reuse it for its next split. An endpoint's
//! allocator ([`farleaf_pool::remote::NodeAllocator`]) belongs to one thread: it supplies nodes
//! when this list is empty, and returns the list's surplus to the memory servers.
//!
//! *Thread safety*: any number of threads.

use super::uncached::UncachedChanges;
use crate::cache::{CacheClient, CacheOptions, FrameCache, FrameId, mark_clean};
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{Fabric, GlobalAddr, RegionError, ServerId};
use farleaf_index::MemoryUse;
use farleaf_index::{OwnedRange, Ownership};
use farleaf_page::{Layout, OwnedKey, Page};
use farleaf_pool::remote::{MissCause, PageClient, RemoteError, TimedPointer};
use std::collections::BTreeMap;

/// One compute server.
pub struct DexServer<L: Layout> {
    cache: Arc<FrameCache<L>>,
    /// The number of the root's frame plus one; 0 until the root has been read.
    root_frame: AtomicU64,
    /// Nodes that were merged away, by memory server.
    free_nodes: Mutex<BTreeMap<ServerId, Vec<GlobalAddr>>>,
    /// Counts the changes in progress, for operations that bypass the cache.
    unsettled: UncachedChanges,
    memory: Arc<MemoryUse>,
}

/// Free nodes per memory server that a compute server keeps; any surplus is returned.
const KEPT_NODES: usize = 1024;

impl<L: Layout> DexServer<L> {
    /// Creates a compute server with an empty cache. It shares the set of used memory servers with
    /// other compute servers.
    ///
    /// # Errors
    /// [`RegionError`] if there is not enough memory for the cache.
    pub(super) fn new(
        options: &CacheOptions,
        range: OwnedRange<OwnedKey<L>>,
        memory: Arc<MemoryUse>,
    ) -> Result<Self, RegionError> {
        Ok(Self {
            cache: Arc::new(FrameCache::new(options, range)?),
            root_frame: AtomicU64::new(0),
            free_nodes: Mutex::default(),
            unsettled: UncachedChanges::default(),
            memory,
        })
    }

    /// The memory servers in use.
    pub(super) fn memory(&self) -> &MemoryUse {
        &self.memory
    }

    /// The cache that all threads of this compute server share.
    pub fn cache(&self) -> &Arc<FrameCache<L>> {
        &self.cache
    }

    /// Whether a node is shared with other compute servers (D1).
    pub(super) fn shares(&self, page: Page<'_, L>) -> bool {
        self.owns(page) != Ownership::All
    }

    /// How much of a node's range of keys this server owns.
    pub(super) fn owns(&self, page: Page<'_, L>) -> Ownership {
        self.cache.owned().of(&L::low(page), L::high(page).as_ref())
    }

    /// The root's frame. The first call reads the root.
    pub(super) async fn root_frame<F: Fabric>(
        &self,
        client: &CacheClient<F, L>,
        root: GlobalAddr,
    ) -> Result<FrameId, RemoteError> {
        let mut backoff = client.pages().backoff();
        loop {
            if let Some(number) = self.root_frame.load(Ordering::Acquire).checked_sub(1) {
                return Ok(FrameId::new(number as u32));
            }
            if let (Some(free), Ok(mark)) =
                (self.cache.take_free(), self.cache.mapping().begin_io(root.to_bits(), || true))
            {
                let copy = match client.pages().read(TimedPointer::fixed(root)).await {
                    Ok(copy) => copy,
                    Err(MissCause::Restart) => {
                        drop((free, mark));
                        client.before_retry(&mut backoff).await?;
                        continue;
                    }
                    Err(MissCause::Failed(error)) => return Err(error),
                };
                free.page().copy_all_but_latch(copy.page());
                mark_clean(free.page());
                self.cache.arena().set_remote_word(free.frame(), copy.word().to_bits());
                let frame = self.cache.publish_root(free, mark);
                self.root_frame.store(u64::from(frame.number()) + 1, Ordering::Release);
                return Ok(frame);
            }
            client.before_retry(&mut backoff).await?;
        }
    }

    /// Takes a freed node on `server`, or allocates one there.
    pub(super) async fn take_node<F: Fabric>(
        &self,
        pages: &PageClient<F, L>,
        server: ServerId,
    ) -> Result<GlobalAddr, RemoteError> {
        let freed = lock(&self.free_nodes).get_mut(&server).and_then(Vec::pop);
        match freed {
            Some(node) => Ok(node),
            None => pages.take_node(server).await,
        }
    }

    pub(super) fn has_free_node(&self, server: ServerId) -> bool {
        lock(&self.free_nodes).get(&server).is_some_and(|nodes| !nodes.is_empty())
    }

    /// Takes a freed node of any memory server.
    pub(super) fn take_freed(&self) -> Option<GlobalAddr> {
        lock(&self.free_nodes).values_mut().find_map(Vec::pop)
    }

    pub(super) fn unsettled(&self) -> &UncachedChanges {
        &self.unsettled
    }

    /// Takes back a node that nothing points to and no operation uses. Returns whether more nodes
    /// are free than this server keeps.
    pub(super) fn give_node(&self, node: GlobalAddr) -> bool {
        let mut free = lock(&self.free_nodes);
        let nodes = free.entry(node.server()).or_default();
        debug_assert!(!nodes.contains(&node), "a node is freed once");
        nodes.push(node);
        nodes.len() > KEPT_NODES
    }

    /// Removes and returns the free nodes on `server` beyond half of [`KEPT_NODES`].
    pub(super) fn surplus(&self, server: ServerId) -> Vec<GlobalAddr> {
        let mut free = lock(&self.free_nodes);
        let nodes = free.entry(server).or_default();
        nodes.split_off(nodes.len().min(KEPT_NODES / 2))
    }

    /// Removes and returns the free nodes beyond `keep` on each memory server.
    pub(super) fn unused(&self, keep: usize) -> Vec<GlobalAddr> {
        let mut free = lock(&self.free_nodes);
        free.values_mut().flat_map(|nodes| nodes.split_off(nodes.len().min(keep))).collect()
    }

    /// The number of free nodes that this compute server keeps.
    pub fn free_nodes(&self) -> usize {
        lock(&self.free_nodes).values().map(Vec::len).sum()
    }
}
