//! The handle of a client: it knows a map, which may be old, and brings each operation to the owner.
//!
//! All compute servers are in this process, so that bringing it there is a call; the client's endpoint does
//! the remote operations, on behalf of the owner.
//!
//! *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.

use super::{ComputePool, ComputeServer, PartitionMap};
use crate::cache::{CacheCounters, Discipline, Sound};
use crate::index::dex::{DexIndex, OwnedRange};
use crate::index::{Exchange, IndexError, RangeIndex, Records, Scan};
use crate::page::Layout;
use crate::remote::{PageClient, RemoteError};
use crate::together::all;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// One compute server, as a handle of this process reaches it.
#[derive(Debug)]
pub(super) struct Part<F: Fabric, L: Layout, D: Discipline> {
    pub(super) server: Arc<ComputeServer<L>>,
    pub(super) index: DexIndex<F, L, D>,
    /// Its range as of this epoch.
    range: RefCell<OwnedRange<L::Key>>,
    epoch: Cell<u64>,
}

/// A client's handle.
#[derive(Debug)]
pub struct RoutedIndex<F: Fabric, L: Layout, D: Discipline = Sound> {
    pub(super) pool: Arc<ComputePool<L>>,
    pub(super) pages: Rc<PageClient<F, L>>,
    pub(super) root: GlobalAddr,
    /// The map that this client goes by.
    route: RefCell<Arc<PartitionMap<L::Key>>>,
    pub(super) parts: Vec<Part<F, L, D>>,
}

/// How often an operation is sent on to another owner.
const MOST_REDIRECTIONS: u32 = 64;
/// Lookups of one multi-get that are in flight together.
const LOOKUPS_TOGETHER: usize = 32;

impl<F: Fabric, L: Layout, D: Discipline> Part<F, L, D> {
    /// Accepts an operation on a key, or says whose it is.
    #[inline]
    fn accept(&self, key: &L::Key) -> Result<(), IndexError> {
        if self.server.epoch() == self.epoch.get() && self.range.borrow().has(key) {
            return Ok(());
        }
        self.accept_by_the_map(key)
    }

    #[cold]
    fn accept_by_the_map(&self, key: &L::Key) -> Result<(), IndexError> {
        self.server.accept(key)?;
        let map = self.server.map();
        *self.range.borrow_mut() = map.range_of(self.server.number());
        self.epoch.set(map.epoch());
        Ok(())
    }
}

impl<F: Fabric, L: Layout, D: Discipline> RoutedIndex<F, L, D> {
    pub(super) async fn open(
        pool: &Arc<ComputePool<L>>,
        pages: PageClient<F, L>,
        root: GlobalAddr,
        placement_level: u8,
    ) -> Result<Self, RemoteError> {
        let pages = Rc::new(pages);
        let mut parts = Vec::new();
        for server in pool.servers() {
            let dex = Arc::clone(server.dex());
            let index = DexIndex::open(dex, Rc::clone(&pages), root, placement_level).await?;
            let map = server.map();
            parts.push(Part {
                server: Arc::clone(server),
                index,
                range: RefCell::new(map.range_of(server.number())),
                epoch: Cell::new(map.epoch()),
            });
        }
        let route = RefCell::new(pool.map());
        Ok(Self { pool: Arc::clone(pool), pages, root, route, parts })
    }

    /// The index on a compute server, for tests and tools: it does not ask who owns what.
    ///
    /// # Panics
    /// If there is no such compute server.
    pub fn part(&self, compute_server: u16) -> &DexIndex<F, L, D> {
        &self.parts[usize::from(compute_server)].index
    }

    /// The owner of `key`, as far as this client knows.
    fn owner(&self, key: &L::Key) -> u16 {
        self.route.borrow().owner_of(key)
    }

    /// Goes by the newest map from now on.
    pub(super) fn learn_map(&self) {
        *self.route.borrow_mut() = self.pool.map();
    }

    /// The owner of `key`, who accepts the operation.
    #[inline]
    async fn find_owner(&self, key: &L::Key) -> Result<&DexIndex<F, L, D>, IndexError> {
        self.pages.fabric().charge(Work::Client).await;
        let part = &self.parts[usize::from(self.owner(key))];
        match part.accept(key) {
            Ok(()) => Ok(&part.index),
            Err(_) => self.redirect(key).await,
        }
    }

    #[cold]
    async fn redirect(&self, key: &L::Key) -> Result<&DexIndex<F, L, D>, IndexError> {
        let mut refusal = None;
        for _ in 0..MOST_REDIRECTIONS {
            self.learn_map();
            let part = &self.parts[usize::from(self.owner(key))];
            match part.accept(key) {
                Ok(()) => return Ok(&part.index),
                Err(error) => refusal = Some(error),
            }
            self.pages.fabric().counters().count_retry();
            self.pages.fabric().sleep(1_000).await;
        }
        Err(refusal.unwrap_or(IndexError::Contended { retries: MOST_REDIRECTIONS }))
    }

    /// The value of a key from the compute server of this number, whoever owns it.
    ///
    /// # Errors
    /// [`IndexError::NotOwner`] if another one does.
    ///
    /// # Panics
    /// If there is no such compute server.
    pub async fn get_from(
        &self,
        compute_server: u16,
        key: &L::Key,
    ) -> Result<Option<L::Value>, IndexError> {
        let part = &self.parts[usize::from(compute_server)];
        part.accept(key)?;
        Ok(part.index.get(key).await?)
    }
}

impl<F: Fabric, L: Layout, D: Discipline> RangeIndex for RoutedIndex<F, L, D> {
    type Key = L::Key;
    type Value = L::Value;

    #[inline]
    async fn get(&self, key: &L::Key) -> Result<Option<L::Value>, IndexError> {
        Ok(self.find_owner(key).await?.get(key).await?)
    }

    async fn insert(&self, key: &L::Key, value: &L::Value) -> Result<bool, IndexError> {
        Ok(self.find_owner(key).await?.insert(key, value).await?)
    }

    async fn update(&self, key: &L::Key, value: &L::Value) -> Result<bool, IndexError> {
        Ok(self.find_owner(key).await?.update(key, value).await?)
    }

    async fn upsert(&self, key: &L::Key, value: &L::Value) -> Result<(), IndexError> {
        Ok(self.find_owner(key).await?.upsert(key, value).await?)
    }

    async fn remove(&self, key: &L::Key) -> Result<bool, IndexError> {
        Ok(self.find_owner(key).await?.remove(key).await?)
    }

    async fn compare_exchange(
        &self,
        key: &L::Key,
        expected: &L::Value,
        new: &L::Value,
    ) -> Result<Exchange<L::Value>, IndexError> {
        Ok(self.find_owner(key).await?.compare_exchange(key, expected, new).await?)
    }

    async fn scan(&self, scan: &Scan<L::Key>) -> Result<Records<L::Key, L::Value>, IndexError> {
        self.pages.fabric().charge(Work::Client).await;
        let mut records = Records::new();
        let mut owners: Vec<&Part<F, L, D>> = self.parts.iter().collect();
        if scan.reverse {
            owners.reverse();
        }
        for part in owners {
            if records.len() >= scan.limit {
                break;
            }
            if touches(scan, &part.index.server().range()) {
                part.index.scan(scan, &mut records).await?;
            }
        }
        Ok(records)
    }

    async fn multi_get(&self, keys: &[L::Key]) -> Result<Vec<Option<L::Value>>, IndexError> {
        let mut values = Vec::with_capacity(keys.len());
        for together in keys.chunks(LOOKUPS_TOGETHER) {
            for value in all(together.iter().map(|key| self.get(key))).await {
                values.push(value?);
            }
        }
        Ok(values)
    }

    async fn bulk_load(
        &self,
        records: impl Iterator<Item = (L::Key, L::Value)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        self.load_all(records, fill).await
    }

    async fn collect(&self) -> Result<(), IndexError> {
        for part in &self.parts {
            part.index.collect().await?;
        }
        Ok(())
    }

    async fn declare_dead(&self, compute_server: u16) -> Result<(), IndexError> {
        Ok(self.pages.declare_dead(compute_server).await?)
    }

    fn compute_server_of(&self, key: &L::Key) -> Option<u16> {
        Some(self.owner(key))
    }

    fn cache_counters(&self) -> CacheCounters {
        let mut sum = CacheCounters::default();
        self.parts.iter().for_each(|part| sum += part.index.cache_counters());
        sum
    }
}

/// Whether a scan can find anything in a range.
fn touches<K: Ord>(scan: &Scan<K>, range: &OwnedRange<K>) -> bool {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let from_below = match &scan.upper {
        Included(end) => *end >= range.low,
        Excluded(end) => *end > range.low,
        Unbounded => true,
    };
    let from_above = match (&scan.lower, &range.high) {
        (Included(start) | Excluded(start), Some(high)) => start < high,
        _ => true,
    };
    from_below && from_above
}
