//! A client's handle on compute servers in this process: routing an operation to one of them is a
//! function call. The client's endpoint performs the remote operations on behalf of the owner.
//!
//! *Invariant* (`docs/internals/cache.md`)
//! - C26. While an operation of a handle waits at one compute server, the handle settles its
//!   unknown outcomes at the others. Otherwise two handles could wait for each other.
//!
//! *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.

use super::part::OwnerHandle;
use super::router::behind;
use super::{
    Balancer, ComputePool, MapRoute, PartitionMap, RangeOwners, RetryPolicy, Router, UnservedReason,
};
use crate::together::all;
use crate::{
    Background, EditAnswer, IndexAdmin, IndexError, KeyRange, KeyedRecords, LeafEdit, PartIndex,
    PartPool, PartitionOptions, Partitioned, Reshape, ReshapeCost, ScanRequest,
};
use crate::{CacheCounters, OwnedRange};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_page::rules;
use farleaf_page::{Layout, OwnedKey, OwnedValue};
use farleaf_pool::remote::RemoteError;
use std::future::poll_fn;
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::task::Context;

/// A client's handle on the index.
pub type RoutedIndex<D, F, L> = Router<PoolOwners<D, F, L>>;

/// The compute servers of a [`ComputePool`], accessed over one endpoint.
pub struct PoolOwners<D: Partitioned, F: Fabric, L: Layout> {
    pub(super) compute: Arc<ComputePool<D, L>>,
    pub(super) pool: D::Pool<F, L>,
    pub(super) parts: Vec<OwnerHandle<D, F, L>>,
}

/// How long an operation waits for moving keys, in nanoseconds, before it fails as contended.
pub const MAX_MOVE_NS: u64 = 10_000_000_000;
/// First and longest pause before looking for a newer map.
const MIN_WAIT_NS: u64 = 1_000;
const MAX_WAIT_NS: u64 = 1_000_000;

/// The keys are moving and have no owner for a while.
pub(super) fn no_owner() -> UnservedReason {
    UnservedReason::Elsewhere(IndexError::Contended { retries: 0 })
}

fn unserved(error: RemoteError) -> UnservedReason {
    match error {
        RemoteError::Moved => no_owner(),
        error => UnservedReason::Failed(error.into()),
    }
}

impl<D: Partitioned, F: Fabric, L: Layout> PoolOwners<D, F, L> {
    fn part(&self, compute_server: u16) -> &OwnerHandle<D, F, L> {
        &self.parts[usize::from(compute_server)]
    }

    /// Returns the handle on a compute server, once it has accepted an operation on `key`.
    #[inline]
    fn accepting(&self, owner: u16, key: &L::Key) -> Result<&D::Index<F, L>, UnservedReason> {
        let part = self.part(owner);
        match part.accept(key) {
            Ok(()) => Ok(&part.index),
            Err(_) => Err(no_owner()),
        }
    }

    /// Settles this handle's unknown outcomes at all compute servers, as far as possible now. Other
    /// handles may be waiting for them at compute servers that this handle no longer visits.
    async fn settle_some(&self) {
        for part in &self.parts {
            part.index.settle_some().await;
        }
        self.pool.doubtful().set(self.parts.iter().any(|part| part.index.has_doubts()));
    }

    /// Runs `work` and meanwhile settles this handle's unknown outcomes (C26). Otherwise this
    /// handle could wait for another one at one compute server while that one waits for this handle
    /// at another. `work` is pinned where it was made, so that no operation copies its state.
    pub(super) fn while_settling<T>(
        &self,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = T> {
        let mut settling = None;
        poll_fn(move |context| {
            let polled = work.as_mut().poll(context);
            if polled.is_pending() {
                self.settle_meanwhile(&mut settling, context);
            }
            polled
        })
    }

    /// Polls `settling`, or begins it if there is something to settle.
    fn settle_meanwhile<'a>(
        &'a self,
        settling: &mut Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
        context: &mut Context<'_>,
    ) {
        let settles = !self.pool.fabric().breaks(rules::DOUBTS_SETTLED_ELSEWHERE);
        if settles && (settling.is_some() || self.pool.doubtful().get()) {
            let settler = settling.get_or_insert_with(|| Box::pin(self.settle_until_certain()));
            if settler.as_mut().poll(context).is_ready() {
                *settling = None;
            }
        }
    }

    async fn settle_until_certain(&self) {
        while self.pool.doubtful().get() {
            self.pool.fabric().sleep(MAX_WAIT_NS).await;
            self.settle_some().await;
        }
    }
}

impl<D: Partitioned, F: Fabric, L: Layout> RangeOwners for PoolOwners<D, F, L> {
    type Fabric = F;
    type Layout = L;
    type Expected = OwnedRange<OwnedKey<L>>;

    fn fabric(&self) -> &F {
        self.pool.fabric()
    }

    fn retry_policy(&self) -> RetryPolicy {
        RetryPolicy {
            deadline_ns: MAX_MOVE_NS,
            attempt_ns: 0,
            shortest_wait_ns: MIN_WAIT_NS,
            longest_wait_ns: MAX_WAIT_NS,
            varies: false,
        }
    }

    #[inline]
    async fn begin(&self) {
        if self.pool.doubtful().get() {
            Box::pin(self.settle_some()).await;
        }
    }

    #[inline]
    async fn get(&self, owner: u16, key: &L::Key) -> Result<Option<OwnedValue<L>>, UnservedReason> {
        let index = self.accepting(owner, key)?;
        self.while_settling(pin!(index.get(key))).await.map_err(unserved)
    }

    async fn execute(
        &self,
        owner: u16,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, UnservedReason> {
        let index = self.accepting(owner, edit.key)?;
        self.while_settling(pin!(index.execute(edit))).await.map_err(unserved)
    }

    async fn execute_all(
        &self,
        owner: u16,
        edits: &[LeafEdit<&L::Key, &L::Value>],
        done: &impl Fn(usize, Result<EditAnswer<OwnedValue<L>>, UnservedReason>),
    ) {
        let part = self.part(owner);
        if edits.iter().any(|edit| part.accept(edit.key).is_err()) {
            return (0..edits.len()).for_each(|place| done(place, Err(no_owner())));
        }
        let done = |place, outcome: Result<_, RemoteError>| done(place, outcome.map_err(unserved));
        self.while_settling(pin!(part.index.execute_all(edits, done))).await;
    }

    fn expected(&self, map: &PartitionMap<OwnedKey<L>>, owner: u16) -> OwnedRange<OwnedKey<L>> {
        map.range_of(owner)
    }

    async fn scan(
        &self,
        owner: u16,
        expected: &OwnedRange<OwnedKey<L>>,
        scan: &ScanRequest<OwnedKey<L>>,
        out: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
    ) -> Result<Option<Bound<OwnedKey<L>>>, UnservedReason> {
        let (part, had) = (self.part(owner), out.len());
        let covered = self.while_settling(pin!(part.index.scan(scan, out))).await;
        let error = match covered {
            Ok(covered) if covered == *expected => {
                if let Some((key, _)) = out.get(had) {
                    part.sample(L::key(key));
                }
                return Ok(behind(scan, covered, &L::min_key()));
            }
            // The owner's range differs from the map's, or has changed: these records may not even
            // begin where the scan continues.
            Ok(_) => no_owner(),
            Err(error) => unserved(error),
        };
        out.truncate(had);
        Err(error)
    }

    async fn learn(&self, _asked: u16, route: &MapRoute<OwnedKey<L>>) -> bool {
        route.adopt(self.compute.map())
    }

    fn learn_known(&self, route: &MapRoute<OwnedKey<L>>) {
        route.adopt(self.compute.map());
    }

    /// The move may be waiting for this handle.
    fn before_wait(&self) -> impl Future<Output = ()> {
        self.settle_some()
    }

    fn load(
        router: &Router<Self>,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, IndexError>> {
        router.load_all(source, fill)
    }

    async fn flush(router: &Router<Self>) -> Result<(), IndexError> {
        let owners = router.owners();
        for part in &owners.parts {
            owners.while_settling(pin!(part.index.flush())).await?;
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
        let map = compute.map();
        Ok(Self::new(PoolOwners { compute: Arc::clone(compute), pool, parts }, map))
    }

    /// The index on one compute server, for tests and tools. It does not check which server owns a
    /// key.
    ///
    /// # Panics
    /// If there is no such compute server.
    pub fn part(&self, compute_server: u16) -> &D::Index<F, L> {
        &self.owners().part(compute_server).index
    }

    /// Switches to the newest map.
    pub(super) fn learn_map(&self) {
        self.owners().learn_known(self.route());
    }

    /// Adds one more memory server for new nodes: the next one that is reachable and unused. Nodes
    /// above the placement level go to it in turn with the others; nodes below go there when their
    /// own memory server is nearly full. Applies to all handles of the index in this process.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if all memory servers are in use.
    pub fn add_memory_server(&self) -> Result<ReshapeCost, IndexError> {
        if !self.owners().compute.memory().add_one() {
            return Err(IndexError::InvalidArgument("every memory server is already in use"));
        }
        let started_ns = self.fabric().now_ns();
        Ok(ReshapeCost { started_ns, ..ReshapeCost::default() })
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
    ) -> Result<Option<OwnedValue<L>>, IndexError> {
        let part = self.owners().part(compute_server);
        part.accept(key)?;
        Ok(part.index.get(key).await?)
    }
}

impl<D: Partitioned, F: Fabric, L: Layout> IndexAdmin for RoutedIndex<D, F, L> {
    async fn collect(&self) -> Result<(), IndexError> {
        let owners = self.owners();
        for part in &owners.parts {
            match owners.while_settling(pin!(part.index.collect())).await {
                // The compute server that takes the keys over collects there.
                Ok(()) | Err(RemoteError::Moved) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn declare_dead(&self, compute_server: u16) -> Result<(), IndexError> {
        Ok(self.owners().pool.declare_dead(compute_server).await?)
    }

    fn compute_server_of(&self, key: &L::Key) -> Option<u16> {
        Some(self.owner_of(key))
    }

    fn owned_by(&self, compute_server: u16) -> Option<KeyRange<OwnedKey<L>>> {
        let map = self.owners().compute.map();
        let OwnedRange { low, high } = map.range_of(compute_server);
        let owns = map.owners().contains(&compute_server);
        owns.then(|| (Bound::Included(low), high.map_or(Bound::Unbounded, Bound::Excluded)))
    }

    async fn reshape(&self, change: &Reshape<OwnedKey<L>>) -> Result<ReshapeCost, IndexError> {
        match change {
            Reshape::MoveKeys { from, to, near } => {
                self.move_keys(*from, *to, near.as_ref().map(L::key)).await
            }
            Reshape::AddMemoryServer => self.add_memory_server(),
        }
    }

    /// Balancing covers the whole index. A handle on a compute server's endpoint writes back the
    /// dirty nodes of that compute server; any other handle writes back those of all compute
    /// servers.
    async fn background(
        &self,
        work: Background,
        ended: &dyn Fn() -> bool,
        report: &dyn Fn(Result<ReshapeCost, IndexError>),
    ) -> Result<(), IndexError> {
        let owners = self.owners();
        match work {
            Background::Balance => {
                let options = owners.compute.options().balance().clone();
                Balancer::new(self, options).run(ended, report).await;
            }
            Background::WriteBack => {
                let here = usize::from(self.fabric().compute_server());
                let parts = match owners.parts.get(here) {
                    Some(part) => std::slice::from_ref(part),
                    None => &owners.parts,
                };
                all(parts.iter().map(|part| part.index.write_back_by_age(ended))).await;
            }
        }
        Ok(())
    }

    fn cache_counters(&self) -> CacheCounters {
        let mut sum = CacheCounters::default();
        self.owners().parts.iter().for_each(|part| sum += part.index.cache_counters());
        sum
    }
}
