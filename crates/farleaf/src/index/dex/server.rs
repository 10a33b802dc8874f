//! What the threads of one compute server share: the cache, the range of keys that is theirs, free nodes.
//!
//! *Thread safety*: any number of threads.

use super::uncached::Unsettled;
use crate::cache::{Cache, CacheClient, CacheOptions, Discipline, FrameId, mark_clean};
use crate::page::{Layout, Page, lies_within};
use crate::remote::{PageClient, Pointer, RemoteError};
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{Fabric, GlobalAddr, RegionError, ServerId};
use std::collections::BTreeMap;

/// A compute server's range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRange<K> {
    /// The smallest key.
    pub low: K,
    /// The first key beyond; `None` is infinite.
    pub high: Option<K>,
}

impl<K: Ord> OwnedRange<K> {
    /// Whether the range has `key`.
    #[inline]
    pub fn has(&self, key: &K) -> bool {
        *key >= self.low && self.high.as_ref().is_none_or(|high| key < high)
    }

    /// Whether the range has all keys from `low`, inclusive, to `high`, exclusive.
    pub fn covers(&self, low: &K, high: Option<&K>) -> bool {
        lies_within((low, high), (&self.low, self.high.as_ref()))
    }
}

/// One compute server.
#[derive(Debug)]
pub struct DexServer<L: Layout> {
    cache: Arc<Cache<L>>,
    range: Mutex<OwnedRange<L::Key>>,
    /// The root's frame, one up; 0 until it has been read.
    root_frame: AtomicU64,
    /// Nodes that were merged away, by memory server.
    free_nodes: Mutex<BTreeMap<ServerId, Vec<GlobalAddr>>>,
    /// What operations without a cache have to know of the others.
    unsettled: Unsettled,
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
            cache: Arc::new(Cache::new(options)?),
            range: Mutex::new(range),
            root_frame: AtomicU64::new(0),
            free_nodes: Mutex::default(),
            unsettled: Unsettled::default(),
        })
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<Cache<L>> {
        &self.cache
    }

    /// The range of keys that it owns.
    pub fn range(&self) -> OwnedRange<L::Key> {
        lock(&self.range).clone()
    }

    /// Changes the range. For when no operation is under way and the cache holds nothing but the root.
    pub(crate) fn set_range(&self, range: OwnedRange<L::Key>) {
        *lock(&self.range) = range;
    }

    /// Whether a node is shared with other compute servers (D1).
    pub(super) fn shares(&self, page: Page<'_, L>) -> bool {
        !lock(&self.range).covers(&L::low(page), L::high(page).as_ref())
    }

    /// The root's frame; the first who asks reads it.
    pub(super) async fn root_frame<F: Fabric, D: Discipline>(
        &self,
        client: &CacheClient<F, L, D>,
        root: GlobalAddr,
    ) -> Result<FrameId, RemoteError> {
        let mut backoff = client.pages().backoff();
        loop {
            if let Some(number) = self.root_frame.load(Ordering::Acquire).checked_sub(1) {
                return Ok(FrameId::new(number as u32));
            }
            if let (Some(spare), Ok(mark)) =
                (self.cache.take_spare(), self.cache.mapping().begin_io(root.to_bits(), || true))
                && let Ok(copy) = client.pages().read(Pointer::fixed(root)).await
            {
                spare.page().copy_all_but_latch(copy.page());
                mark_clean(spare.page());
                self.cache.arena().set_remote_word(spare.frame(), copy.word().to_bits());
                let frame = self.cache.publish_root(spare, mark);
                self.root_frame.store(u64::from(frame.number()) + 1, Ordering::Release);
                return Ok(frame);
            }
            client.pages().before_retry(&mut backoff).await?;
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
