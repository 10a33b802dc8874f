//! A client's handle: it has a map, which may be stale, and routes each operation to the owner of
//! its key.
//!
//! All compute servers are in this process, so routing an operation to one is a function call. The
//! client's endpoint performs the remote operations for the owner.
//!
//! *Invariant* (`docs/internals/cache.md`)
//! - C26. While an operation of a handle waits at one compute server, the handle settles what it
//!   has in doubt at the others. Otherwise two handles could wait for each other.
//!
//! *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.

use super::part::OwnerHandle;
use super::{Balancer, ComputePool, PartitionMap};
use crate::cache::{CacheCounters, OwnedRange};
use crate::index::{
    Answer, Background, IndexAdmin, IndexError, KeyRange, LeafEdit, PartIndex, PartPool,
    PartitionOptions, Partitioned, RangeIndex, Records, Reshape, Reshaped, Scan,
};
use crate::page::Layout;
use crate::remote::RemoteError;
use crate::rules;
use crate::together::all;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, Work};
use std::cell::RefCell;
use std::fmt::{self, Debug, Formatter};
use std::future::poll_fn;
use std::ops::Bound;
use std::pin::{Pin, pin};

/// A client's handle on the index.
pub struct RoutedIndex<D: Partitioned, F: Fabric, L: Layout> {
    pub(super) compute: Arc<ComputePool<D, L>>,
    pub(super) pool: D::Pool<F, L>,
    /// The client's copy of the map. It may be stale.
    route: RefCell<Arc<PartitionMap<L::Key>>>,
    pub(super) parts: Vec<OwnerHandle<D, F, L>>,
}

/// How long an operation waits for keys that are moving, in nanoseconds. After that, it ends as
/// contended.
pub const LONGEST_MOVE_NS: u64 = 10_000_000_000;
/// The first and the longest pause before looking for a newer map.
const SHORTEST_WAIT_NS: u64 = 1_000;
const LONGEST_WAIT_NS: u64 = 1_000_000;

/// How long an operation keeps waiting for a newer map.
#[derive(Debug)]
pub(super) struct Patience {
    until_ns: u64,
    wait_ns: u64,
}

impl<D: Partitioned, F: Fabric, L: Layout> Debug for RoutedIndex<D, F, L> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutedIndex")
            .field("route", &self.route)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl<D: Partitioned, F: Fabric, L: Layout> RoutedIndex<D, F, L> {
    pub(super) async fn open(
        compute: &Arc<ComputePool<D, L>>,
        pool: D::Pool<F, L>,
    ) -> Result<Self, RemoteError> {
        let mut parts = Vec::new();
        let one_in = compute.options().balance().one_in;
        for server in compute.servers() {
            parts.push(OwnerHandle::open(server, &pool, one_in).await?);
        }
        let route = RefCell::new(compute.map());
        Ok(Self { compute: Arc::clone(compute), pool, route, parts })
    }

    /// The index on one compute server, for tests and tools. It does not check which server owns a
    /// key.
    ///
    /// # Panics
    /// If there is no such compute server.
    pub fn part(&self, compute_server: u16) -> &D::Index<F, L> {
        &self.parts[usize::from(compute_server)].index
    }

    /// The owner of `key` in this client's map.
    fn owner(&self, key: &L::Key) -> u16 {
        self.route.borrow().owner_of(key)
    }

    /// Switches to the newest map.
    pub(super) fn learn_map(&self) {
        *self.route.borrow_mut() = self.compute.map();
    }

    /// Settles what this handle has in doubt at any compute server, as far as possible now. Other
    /// handles may wait for it at a compute server that this handle's operations no longer visit.
    async fn settle_some(&self) {
        for part in &self.parts {
            part.index.settle_some().await;
        }
        self.pool.doubtful().set(self.parts.iter().any(|part| part.index.has_doubts()));
    }

    /// Does `work` and meanwhile settles what this handle has in doubt (C26). Otherwise this handle
    /// could wait for another one at one compute server while that one waits for this handle at
    /// another.
    pub(super) async fn while_settling<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut settling: Option<Pin<Box<dyn Future<Output = ()> + '_>>> = None;
        poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            let settles = !self.pool.fabric().breaks(rules::DOUBTS_SETTLED_ELSEWHERE);
            if polled.is_pending() && settles && (settling.is_some() || self.pool.doubtful().get())
            {
                let settler = settling.get_or_insert_with(|| Box::pin(self.settle_until_certain()));
                if settler.as_mut().poll(context).is_ready() {
                    settling = None;
                }
            }
            polled
        })
        .await
    }

    async fn settle_until_certain(&self) {
        while self.pool.doubtful().get() {
            self.pool.fabric().sleep(LONGEST_WAIT_NS).await;
            self.settle_some().await;
        }
    }

    /// The steps before each operation.
    #[inline]
    async fn begin(&self) {
        self.pool.fabric().charge(Work::Client).await;
        if self.pool.doubtful().get() {
            Box::pin(self.settle_some()).await;
        }
    }

    /// Finds the owner of `key`, which has accepted the operation.
    #[inline]
    async fn find_owner(&self, key: &L::Key) -> Result<&D::Index<F, L>, IndexError> {
        self.begin().await;
        let part = &self.parts[usize::from(self.owner(key))];
        match part.accept(key) {
            Ok(()) => Ok(&part.index),
            Err(_) => self.redirect(key, &mut self.patience()).await,
        }
    }

    #[cold]
    async fn redirect(
        &self,
        key: &L::Key,
        patience: &mut Patience,
    ) -> Result<&D::Index<F, L>, IndexError> {
        loop {
            self.wait_for_map(patience).await?;
            let part = &self.parts[usize::from(self.owner(key))];
            if part.accept(key).is_ok() {
                return Ok(&part.index);
            }
        }
    }

    /// Runs an operation at the owner of `key`, and again at the new owner if the key moves
    /// meanwhile.
    async fn at_owner<'a, T, W: Future<Output = Result<T, RemoteError>>>(
        &'a self,
        key: &L::Key,
        work: impl Fn(&'a D::Index<F, L>) -> W,
    ) -> Result<T, IndexError> {
        match self.while_settling(work(self.find_owner(key).await?)).await {
            Err(RemoteError::Moved) => {}
            outcome => return Ok(outcome?),
        }
        let mut patience = self.patience();
        loop {
            let part = self.redirect(key, &mut patience).await?;
            match self.while_settling(work(part)).await {
                Err(RemoteError::Moved) => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    pub(super) fn patience(&self) -> Patience {
        let until_ns = self.pool.fabric().now_ns().saturating_add(LONGEST_MOVE_NS);
        Patience { until_ns, wait_ns: SHORTEST_WAIT_NS }
    }

    /// Switches to the newest map, after a pause if there is no newer one yet: keys that are moving
    /// have no owner for a while.
    pub(super) async fn wait_for_map(&self, patience: &mut Patience) -> Result<(), IndexError> {
        let fabric = self.pool.fabric();
        let before = self.route.borrow().epoch();
        self.learn_map();
        if self.route.borrow().epoch() > before {
            return Ok(());
        }
        if fabric.now_ns() >= patience.until_ns {
            return Err(IndexError::Contended { retries: 0 });
        }
        self.settle_some().await; // the move may be waiting for this handle
        fabric.counters().count_retry();
        fabric.sleep(patience.wait_ns).await;
        patience.wait_ns = (patience.wait_ns * 2).min(LONGEST_WAIT_NS);
        self.learn_map();
        Ok(())
    }

    /// Lets new nodes go to one more memory server, the next one that is reachable and unused.
    /// Nodes above the placement level go to it in turn with the others; nodes below it do when
    /// their own memory server is nearly full. Applies to all handles of the index in this process.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if all memory servers are in use.
    pub fn add_memory_server(&self) -> Result<Reshaped, IndexError> {
        if !self.compute.memory().add_one() {
            return Err(IndexError::InvalidArgument("every memory server is already in use"));
        }
        let started_ns = self.pool.fabric().now_ns();
        Ok(Reshaped { started_ns, ..Reshaped::default() })
    }

    /// Looks a key up at a given compute server.
    ///
    /// # Errors
    /// [`IndexError::NotOwner`] if another compute server owns the key.
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

impl<D: Partitioned, F: Fabric, L: Layout> RangeIndex for RoutedIndex<D, F, L> {
    type Key = L::Key;
    type Value = L::Value;

    #[inline]
    async fn get(&self, key: &L::Key) -> Result<Option<L::Value>, IndexError> {
        self.at_owner(key, |index| index.get(key)).await
    }

    /// The keys of one owner descend together.
    async fn multi_get(&self, keys: &[L::Key]) -> Result<Vec<Option<L::Value>>, IndexError> {
        self.begin().await;
        let mut values = vec![None; keys.len()];
        let mut places: Vec<(u16, usize)> =
            keys.iter().enumerate().map(|(place, key)| (self.owner(key), place)).collect();
        // The order within an owner does not matter.
        places.sort_unstable();
        for of_owner in places.chunk_by(|a, b| a.0 == b.0) {
            let part = &self.parts[usize::from(of_owner[0].0)];
            let wanted: Vec<&L::Key> = of_owner.iter().map(|(_, place)| &keys[*place]).collect();
            let mut found = vec![None; wanted.len()];
            let accepted = wanted.iter().all(|key| part.accept(key).is_ok());
            let outcome = match accepted {
                true => self.while_settling(part.index.multi_get(&wanted, &mut found)).await,
                false => Err(RemoteError::Moved),
            };
            match outcome {
                Ok(()) => {}
                Err(RemoteError::Moved) => {
                    for (key, found) in wanted.iter().zip(&mut found) {
                        *found = self.get(key).await?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
            for ((_, place), found) in of_owner.iter().zip(found) {
                values[*place] = found;
            }
        }
        Ok(values)
    }

    async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<Answer<L::Value>, IndexError> {
        self.at_owner(edit.key, |index| index.execute(edit)).await
    }

    async fn scan(&self, scan: &Scan<L::Key>) -> Result<Records<L::Key, L::Value>, IndexError> {
        self.begin().await;
        let mut records = Records::new();
        let mut rest = scan.clone();
        let mut patience = None;
        while records.len() < scan.limit {
            // Take both from one map: another operation of this handle may switch maps meanwhile.
            let (owner, expected) = {
                let map = self.route.borrow();
                let owner = map.owner_of_start(&rest);
                (owner, map.range_of(owner))
            };
            let had = records.len();
            let part = &self.parts[usize::from(owner)];
            let covered = self.while_settling(part.index.scan(&rest, &mut records)).await;
            match covered {
                Ok(range) if range == expected => {
                    if let Some((key, _)) = records.get(had) {
                        part.sample(key);
                    }
                    match go_behind(&mut rest, range, &L::min_key()) {
                        true => continue,
                        false => break,
                    }
                }
                // The owner's range differs from the map's, or has changed: continue from here with
                // the newest map.
                Ok(_) | Err(RemoteError::Moved) => {}
                Err(error) => return Err(error.into()),
            }
            // These records may not even begin where the scan was.
            records.truncate(had);
            self.wait_for_map(patience.get_or_insert_with(|| self.patience())).await?;
        }
        Ok(records)
    }

    async fn bulk_load(
        &self,
        records: impl Iterator<Item = (L::Key, L::Value)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        self.load_all(records, fill).await
    }

    async fn flush(&self) -> Result<(), IndexError> {
        for part in &self.parts {
            self.while_settling(part.index.flush()).await?;
        }
        Ok(())
    }

    async fn settle(&self) -> Result<(), IndexError> {
        let mut settled = Ok(());
        for part in &self.parts {
            settled = settled.and(part.index.settle().await);
        }
        Ok(settled?)
    }
}

impl<D: Partitioned, F: Fabric, L: Layout> IndexAdmin for RoutedIndex<D, F, L> {
    async fn collect(&self) -> Result<(), IndexError> {
        for part in &self.parts {
            match self.while_settling(part.index.collect()).await {
                // The compute server that takes the keys over collects there.
                Ok(()) | Err(RemoteError::Moved) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn declare_dead(&self, compute_server: u16) -> Result<(), IndexError> {
        Ok(self.pool.declare_dead(compute_server).await?)
    }

    fn compute_server_of(&self, key: &L::Key) -> Option<u16> {
        Some(self.owner(key))
    }

    fn owned_by(&self, compute_server: u16) -> Option<KeyRange<L::Key>> {
        let map = self.compute.map();
        let OwnedRange { low, high } = map.range_of(compute_server);
        let owns = map.owners().contains(&compute_server);
        owns.then(|| (Bound::Included(low), high.map_or(Bound::Unbounded, Bound::Excluded)))
    }

    async fn reshape(&self, change: &Reshape<L::Key>) -> Result<Reshaped, IndexError> {
        match change {
            Reshape::MoveKeys { from, to, near } => self.move_keys(*from, *to, near.as_ref()).await,
            Reshape::AddMemoryServer => self.add_memory_server(),
        }
    }

    /// Balancing covers the whole index. A handle on a compute server's endpoint writes back the
    /// dirty nodes of that compute server, any other handle those of all.
    async fn background(
        &self,
        work: Background,
        ended: &dyn Fn() -> bool,
        report: &dyn Fn(Result<Reshaped, IndexError>),
    ) -> Result<(), IndexError> {
        match work {
            Background::Balance => {
                let options = self.compute.options().balance().clone();
                Balancer::new(self, options).run(ended, report).await;
            }
            Background::WriteBack => {
                let here = usize::from(self.pool.fabric().compute_server());
                let parts = match self.parts.get(here) {
                    Some(part) => std::slice::from_ref(part),
                    None => &self.parts,
                };
                all(parts.iter().map(|part| part.index.write_back_by_age(ended))).await;
            }
        }
        Ok(())
    }

    fn cache_counters(&self) -> CacheCounters {
        let mut sum = CacheCounters::default();
        self.parts.iter().for_each(|part| sum += part.index.cache_counters());
        sum
    }
}

/// Advances a scan past a range that it has completed. Returns whether there can be more records.
pub(super) fn go_behind<K: Clone + Ord>(
    rest: &mut Scan<K>,
    range: OwnedRange<K>,
    lowest: &K,
) -> bool {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    if rest.reverse {
        let more = match &rest.lower {
            Included(start) | Excluded(start) => *start < range.low,
            Unbounded => range.low > *lowest,
        };
        rest.upper = Excluded(range.low);
        return more;
    }
    let Some(high) = range.high else { return false };
    let more = match &rest.upper {
        Included(end) => *end >= high,
        Excluded(end) => *end > high,
        Unbounded => true,
    };
    rest.lower = Included(high);
    more
}
