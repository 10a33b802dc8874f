//! What the threads of one compute server share: the cache, the range of keys that is theirs, free nodes.
//!
//! *Thread safety*: any number of threads.

use super::placement::MemoryUse;
use super::uncached::Unsettled;
use crate::cache::{Cache, CacheClient, CacheOptions, FrameId, OwnedRange, Ownership, mark_clean};
use crate::page::{Layout, Page};
use crate::remote::{Miss, PageClient, Pointer, RemoteError};
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{Fabric, GlobalAddr, RegionError, ServerId};
use std::collections::BTreeMap;

/// One compute server.
#[derive(Debug)]
pub struct DexServer<L: Layout> {
    cache: Arc<Cache<L>>,
    /// The root's frame, one up; 0 until it has been read.
    root_frame: AtomicU64,
    /// Nodes that were merged away, by memory server.
    free_nodes: Mutex<BTreeMap<ServerId, Vec<GlobalAddr>>>,
    /// What operations without a cache have to know of the others.
    unsettled: Unsettled,
    memory: Arc<MemoryUse>,
}

/// Free nodes of one memory server that a compute server keeps; more go back to the memory server.
const KEPT_NODES: usize = 1024;

impl<L: Layout> DexServer<L> {
    /// A compute server with an empty cache.
    ///
    /// # Errors
    /// [`RegionError`] if there is no memory for it.
    pub fn new(options: &CacheOptions, range: OwnedRange<L::Key>) -> Result<Self, RegionError> {
        Ok(Self {
            cache: Arc::new(Cache::new(options, range)?),
            root_frame: AtomicU64::new(0),
            free_nodes: Mutex::default(),
            unsettled: Unsettled::default(),
            memory: Arc::default(),
        })
    }

    /// The same, using the memory servers that others use.
    #[must_use]
    pub(crate) fn sharing(self, memory: &Arc<MemoryUse>) -> Self {
        Self { memory: Arc::clone(memory), ..self }
    }

    /// Which memory servers are used.
    pub(super) fn memory(&self) -> &MemoryUse {
        &self.memory
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<Cache<L>> {
        &self.cache
    }

    /// The range of keys that it owns.
    pub fn range(&self) -> OwnedRange<L::Key> {
        self.cache.owned().range()
    }

    /// Changes the range. For when no operation is under way and the cache holds nothing but the root, and for moves
    /// of keys (`hand_over.rs`).
    pub(crate) fn set_range(&self, range: OwnedRange<L::Key>) {
        self.cache.owned().set(range);
    }

    /// Whether a node is shared with other compute servers (D1).
    pub(super) fn shares(&self, page: Page<'_, L>) -> bool {
        self.owns(page) != Ownership::All
    }

    /// How much of a node's keys is owned.
    pub(super) fn owns(&self, page: Page<'_, L>) -> Ownership {
        self.cache.owned().of(&L::low(page), L::high(page).as_ref())
    }

    /// The root's frame; the first who asks reads it.
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
            if let (Some(spare), Ok(mark)) =
                (self.cache.take_spare(), self.cache.mapping().begin_io(root.to_bits(), || true))
            {
                let copy = match client.pages().read(Pointer::fixed(root)).await {
                    Ok(copy) => copy,
                    Err(Miss::Restart) => {
                        drop((spare, mark));
                        client.before_retry(&mut backoff).await?;
                        continue;
                    }
                    Err(Miss::Failed(error)) => return Err(error),
                };
                spare.page().copy_all_but_latch(copy.page());
                mark_clean(spare.page());
                self.cache.arena().set_remote_word(spare.frame(), copy.word().to_bits());
                let frame = self.cache.publish_root(spare, mark);
                self.root_frame.store(u64::from(frame.number()) + 1, Ordering::Release);
                return Ok(frame);
            }
            client.before_retry(&mut backoff).await?;
        }
    }

    /// A node on `server`, new or freed.
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

    /// Whether there is a freed node on `server`.
    pub(super) fn has_free_node(&self, server: ServerId) -> bool {
        lock(&self.free_nodes).get(&server).is_some_and(|nodes| !nodes.is_empty())
    }

    /// A freed node, wherever it is.
    pub(super) fn take_freed(&self) -> Option<GlobalAddr> {
        lock(&self.free_nodes).values_mut().find_map(Vec::pop)
    }

    /// What operations without a cache have to know of the others.
    pub(super) fn unsettled(&self) -> &Unsettled {
        &self.unsettled
    }

    /// Takes back a node that nothing points to and nobody is at. Says whether there are so many by now that
    /// some should go to the memory server.
    pub(super) fn give_node(&self, node: GlobalAddr) -> bool {
        let mut free = lock(&self.free_nodes);
        let nodes = free.entry(node.server()).or_default();
        debug_assert!(!nodes.contains(&node), "a node is freed once");
        nodes.push(node);
        nodes.len() > KEPT_NODES
    }

    /// The nodes of one memory server beyond half of what is kept.
    pub(super) fn surplus(&self, server: ServerId) -> Vec<GlobalAddr> {
        let mut free = lock(&self.free_nodes);
        let nodes = free.entry(server).or_default();
        nodes.split_off(nodes.len().min(KEPT_NODES / 2))
    }

    /// Nodes that are free on this compute server.
    pub fn free_nodes(&self) -> usize {
        lock(&self.free_nodes).values().map(Vec::len).sum()
    }
}
