//! A handle's router: it sends each operation to the owner of its key, and follows moving keys.
//!
//! A [`Router`] has a map, which may be stale. If the owner that the map names does not own the
//! key, the router looks for a newer map and retries there. If there is none yet, or if the owner
//! cannot serve now, the router waits, within the limits of its [`RetryPolicy`].
//!
//! [`RangeOwners`] defines how a router reaches the owners: by function calls
//! ([`super::RoutedIndex`]), or by messages ([`crate::client::ClientIndex`]).
//!
//! *Invariants*
//! - router.RT1. An operation is retried only if the last attempt had no effect, or if repeating it
//!   is harmless; [`UnservedReason`] distinguishes the cases.
//! - router.RT2. A scan takes the owner and its range from one map, and continues exactly where the
//!   owner's part ended. So it covers each range once, even if maps change in between.
//!
//! *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.

use super::{MapRoute, PartitionMap};
use crate::OwnedRange;
use crate::together::all;
use crate::{
    EditAnswer, IndexError, KeyedRecords, LeafEdit, OPERATIONS_PER_BATCH, RangeIndex, ScanRequest,
    rounds,
};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_page::{Layout, LengthError, OwnedKey, OwnedValue};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::future::Future;
use std::ops::Bound;

/// The keys of a router's index.
type KeyOf<O> = <<O as RangeOwners>::Layout as Layout>::Key;
/// The values of a router's index.
type ValueOf<O> = <<O as RangeOwners>::Layout as Layout>::Value;
/// Its keys in their owned form.
type OwnedKeyOf<O> = OwnedKey<<O as RangeOwners>::Layout>;
/// Its values in their owned form.
type OwnedValueOf<O> = OwnedValue<<O as RangeOwners>::Layout>;
/// The outcome of one of several operations; `None` before it ends.
type EndedOperation<O> = RefCell<Option<Result<EditAnswer<OwnedValueOf<O>>, IndexError>>>;

/// The compute servers of an index, accessed over one endpoint.
pub trait RangeOwners: Sized {
    /// The endpoint's type.
    type Fabric: Fabric;
    /// The layout of the index.
    type Layout: Layout;
    /// A map's description of an owner, which a scan compares with what the owner covers.
    type Expected;

    /// The endpoint on which the operations run.
    fn fabric(&self) -> &Self::Fabric;

    /// How long operations are retried.
    fn retry_policy(&self) -> RetryPolicy;

    /// When an operation begins, if its deadline counts from there. Otherwise it counts from the
    /// first failure, and operations that succeed need not read the clock.
    #[inline]
    fn begins_ns(&self) -> Option<u64> {
        None
    }

    /// Whether the owners can take a record.
    #[inline]
    fn check(key: &KeyOf<Self>, value: &ValueOf<Self>) -> Result<(), LengthError> {
        Self::Layout::check_record(key, value)
    }

    /// The steps before each call of the index.
    #[inline]
    fn begin(&self) -> impl Future<Output = ()> {
        async {}
    }

    /// Looks a key up at `owner`.
    fn get(
        &self,
        owner: u16,
        key: &KeyOf<Self>,
    ) -> impl Future<Output = Result<Option<OwnedValueOf<Self>>, UnservedReason>>;

    /// Executes a single-key operation at `owner`.
    fn execute(
        &self,
        owner: u16,
        edit: LeafEdit<&KeyOf<Self>, &ValueOf<Self>>,
    ) -> impl Future<Output = Result<EditAnswer<OwnedValueOf<Self>>, UnservedReason>>;

    /// Executes single-key operations on different keys at `owner`. When an operation ends, calls
    /// `done` with its position and outcome.
    fn execute_all(
        &self,
        owner: u16,
        edits: &[LeafEdit<&KeyOf<Self>, &ValueOf<Self>>],
        done: &impl Fn(usize, Result<EditAnswer<OwnedValueOf<Self>>, UnservedReason>),
    ) -> impl Future<Output = ()> {
        async move {
            let executed = edits.iter().enumerate().map(async |(place, edit)| {
                done(place, self.execute(owner, *edit).await);
            });
            all(executed).await;
        }
    }

    /// What a scan at `owner` must cover according to `map`.
    fn expected(&self, map: &PartitionMap<OwnedKeyOf<Self>>, owner: u16) -> Self::Expected;

    /// Appends records of `scan` that `owner` owns, until `out` has `scan.limit` records. Returns
    /// where the scan continues; `None` at its end. `out` is unchanged after an error.
    fn scan(
        &self,
        owner: u16,
        expected: &Self::Expected,
        scan: &ScanRequest<OwnedKeyOf<Self>>,
        out: &mut KeyedRecords<OwnedKeyOf<Self>, OwnedValueOf<Self>>,
    ) -> impl Future<Output = Result<Option<Bound<OwnedKeyOf<Self>>>, UnservedReason>>;

    /// Updates the route after `asked` has named another owner. Returns whether a newer map was
    /// found.
    fn learn(&self, asked: u16, route: &MapRoute<OwnedKeyOf<Self>>) -> impl Future<Output = bool>;

    /// Updates the route as far as possible without a message.
    fn learn_known(&self, route: &MapRoute<OwnedKeyOf<Self>>);

    /// Runs before waiting for another attempt.
    fn before_wait(&self) -> impl Future<Output = ()> {
        async {}
    }

    /// Maximum number of operations in flight for one call.
    fn operations_together(&self) -> usize {
        OPERATIONS_PER_BATCH
    }

    /// Fills an empty index ([`RangeIndex::bulk_load_from`]).
    fn load(
        router: &Router<Self>,
        source: impl Iterator<Item = Result<(OwnedKeyOf<Self>, OwnedValueOf<Self>), IndexError>>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, IndexError>>;

    /// Writes everything back at all owners ([`RangeIndex::flush`]).
    fn flush(router: &Router<Self>) -> impl Future<Output = Result<(), IndexError>>;

    /// Settles unknown outcomes ([`RangeIndex::settle`]).
    fn settle(&self) -> impl Future<Output = Result<(), IndexError>> {
        async { Ok(()) }
    }
}

/// Why an owner has not served an operation. If the operation is not retried, this error is its
/// result.
#[derive(Debug)]
pub enum UnservedReason {
    /// Another compute server owns the key, or will own it. Nothing has happened.
    Elsewhere(IndexError),
    /// The operation cannot be served now. Nothing has happened, or repeating it is harmless.
    Again(IndexError),
    /// The operation failed permanently, or with an outcome that forbids another attempt.
    Failed(IndexError),
}

/// How long operations are retried, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// The deadline of an operation, counted from [`RangeOwners::begins_ns`].
    pub deadline_ns: u64,
    /// Minimum time left before the deadline for another attempt.
    pub attempt_ns: u64,
    /// The first wait. Each further wait is twice as long as the previous one.
    pub shortest_wait_ns: u64,
    /// Upper bound on the waits.
    pub longest_wait_ns: u64,
    /// Whether to shorten each wait at random, by up to half.
    pub varies: bool,
}

/// One operation's attempts.
#[derive(Clone, Debug)]
pub(crate) struct OperationAttempts {
    policy: RetryPolicy,
    until_ns: u64,
    wait_ns: u64,
}

/// A handle on an index with partitioned keys.
pub struct Router<O: RangeOwners> {
    owners: O,
    route: MapRoute<OwnedKeyOf<O>>,
}

impl<O: RangeOwners> Router<O> {
    pub(crate) fn new(owners: O, map: Arc<PartitionMap<OwnedKeyOf<O>>>) -> Self {
        Self { owners, route: MapRoute::new(map) }
    }

    pub(crate) fn owners(&self) -> &O {
        &self.owners
    }

    pub(crate) fn route(&self) -> &MapRoute<OwnedKeyOf<O>> {
        &self.route
    }

    /// The endpoint on which the operations run.
    pub fn fabric(&self) -> &O::Fabric {
        self.owners.fabric()
    }

    /// The handle's current map.
    pub fn map(&self) -> Arc<PartitionMap<OwnedKeyOf<O>>> {
        self.route.map()
    }

    /// The owner of `key` in the handle's map.
    #[inline]
    pub(crate) fn owner_of(&self, key: &KeyOf<O>) -> u16 {
        self.route.look(|map| map.owner_of(key))
    }

    /// Runs an operation at the compute server that `owner` selects, and retries until it is
    /// served, fails, or runs out of time.
    pub(crate) async fn at_owner<T, W: Future<Output = Result<T, UnservedReason>>>(
        &self,
        owner: impl Fn(&PartitionMap<OwnedKeyOf<O>>) -> u16,
        work: impl Fn(u16) -> W,
    ) -> Result<T, IndexError> {
        let begun_ns = self.owners.begins_ns();
        let asked = self.route.look(&owner);
        // No answer lives across a further await: the state would keep it, and copy it once more.
        let unserved = match work(asked).await {
            Ok(served) => return Ok(served),
            Err(unserved) => unserved,
        };
        let served = Box::pin(self.go_on(owner, work, (asked, unserved), begun_ns)).await?;
        Ok(served)
    }

    /// Continues an operation whose first attempt was not served.
    #[cold]
    async fn go_on<T, W: Future<Output = Result<T, UnservedReason>>>(
        &self,
        owner: impl Fn(&PartitionMap<OwnedKeyOf<O>>) -> u16,
        work: impl Fn(u16) -> W,
        (mut asked, mut unserved): (u16, UnservedReason),
        begun_ns: Option<u64>,
    ) -> Result<T, IndexError> {
        let mut attempts = self.attempts_since(begun_ns);
        loop {
            // Another operation of this handle may have learnt the newer map meanwhile.
            let is_learnt = matches!(unserved, UnservedReason::Elsewhere(_))
                && self.route.look(&owner) != asked;
            if !is_learnt {
                self.after(asked, unserved, &mut attempts).await?;
            }
            asked = self.route.look(&owner);
            match work(asked).await {
                Ok(served) => return Ok(served),
                Err(again) => unserved = again,
            }
        }
    }

    /// Returns `Ok` if the operation should be retried, or its error.
    #[cold]
    pub(crate) async fn after(
        &self,
        asked: u16,
        unserved: UnservedReason,
        attempts: &mut OperationAttempts,
    ) -> Result<(), IndexError> {
        let error = match unserved {
            UnservedReason::Failed(error) => return Err(error),
            UnservedReason::Elsewhere(error) => match self.owners.learn(asked, &self.route).await {
                true => return Ok(()),
                false => error, // the compute server will get a newer map soon
            },
            UnservedReason::Again(error) => error,
        };
        match self.wait(attempts).await {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// The attempts of an operation that begins now.
    pub(crate) fn attempts(&self) -> OperationAttempts {
        self.attempts_since(None)
    }

    fn attempts_since(&self, begun_ns: Option<u64>) -> OperationAttempts {
        let policy = self.owners.retry_policy();
        let begun_ns = begun_ns.unwrap_or_else(|| self.fabric().now_ns());
        let until_ns = begun_ns.saturating_add(policy.deadline_ns);
        OperationAttempts { policy, until_ns, wait_ns: policy.shortest_wait_ns }
    }

    /// Waits before another attempt, and then updates the route. Returns `false` if there is no
    /// time for another attempt.
    pub(crate) async fn wait(&self, attempts: &mut OperationAttempts) -> bool {
        let (fabric, policy) = (self.fabric(), attempts.policy);
        let wait_ns = match policy.varies {
            true => attempts.wait_ns / 2 + fabric.random() % (attempts.wait_ns / 2 + 1),
            false => attempts.wait_ns,
        };
        let again_ns = fabric.now_ns().saturating_add(wait_ns);
        if again_ns.saturating_add(policy.attempt_ns) > attempts.until_ns {
            return false;
        }
        self.owners.before_wait().await;
        fabric.counters().count_retry();
        fabric.sleep(wait_ns).await;
        attempts.wait_ns = (attempts.wait_ns * 2).min(policy.longest_wait_ns);
        self.owners.learn_known(&self.route);
        true
    }

    /// Executes operations on different keys that `owner` owns according to the map.
    async fn execute_at(
        &self,
        owner: u16,
        edits: &[LeafEdit<&KeyOf<O>, &ValueOf<O>>],
        ended: &[&EndedOperation<O>],
    ) {
        let refused = RefCell::new(Vec::new());
        let done = |place: usize, outcome| match outcome {
            Ok(answer) => *ended[place].borrow_mut() = Some(Ok(answer)),
            Err(unserved) => refused.borrow_mut().push((place, unserved)),
        };
        let begun_ns = self.owners.begins_ns();
        self.owners.execute_all(owner, edits, &done).await;
        let again = refused.into_inner().into_iter().map(async |(place, unserved)| {
            let edit = edits[place];
            let work = |owner| self.owners.execute(owner, edit);
            let owner_of = |map: &PartitionMap<_>| map.owner_of(edit.key);
            let outcome = self.go_on(owner_of, work, (owner, unserved), begun_ns).await;
            *ended[place].borrow_mut() = Some(outcome);
        });
        all(again).await;
    }

    /// Executes a few operations, grouped by owner. Operations that may overlap run concurrently.
    async fn execute_some(
        &self,
        edits: &[LeafEdit<&KeyOf<O>, &ValueOf<O>>],
        ended: &[EndedOperation<O>],
    ) {
        let rounds = rounds(edits);
        let Some(first) = edits.first() else { return };
        let owner = self.owner_of(first.key);
        let is_owner = |edit: &LeafEdit<&KeyOf<O>, _>| self.owner_of(edit.key) == owner;
        if rounds.iter().all(|round| *round == 0) && edits.iter().all(is_owner) {
            let ended: SmallVec<[_; OPERATIONS_PER_BATCH]> = ended.iter().collect();
            return self.execute_at(owner, edits, &ended).await;
        }
        let mut places: SmallVec<[(usize, u16, usize); OPERATIONS_PER_BATCH]> = rounds
            .iter()
            .enumerate()
            .map(|(place, round)| (*round, self.owner_of(edits[place].key), place))
            .collect();
        places.sort_unstable();
        for round in places.chunk_by(|a, b| a.0 == b.0) {
            let parts = round.chunk_by(|a, b| a.1 == b.1).map(async |part| {
                let edits: SmallVec<[_; OPERATIONS_PER_BATCH]> =
                    part.iter().map(|(.., place)| edits[*place]).collect();
                let ended: SmallVec<[_; OPERATIONS_PER_BATCH]> =
                    part.iter().map(|(.., place)| &ended[*place]).collect();
                self.execute_at(part[0].1, &edits, &ended).await;
            });
            all(parts).await;
        }
    }

    /// Executes operations one after the other, because some have a key or a value that no page can
    /// hold, and fail by themselves.
    #[cold]
    async fn execute_in_turn(
        &self,
        edits: &[LeafEdit<&KeyOf<O>, &ValueOf<O>>],
    ) -> Vec<Result<EditAnswer<OwnedValueOf<O>>, IndexError>> {
        let mut answers = Vec::with_capacity(edits.len());
        for edit in edits {
            answers.push(self.execute(*edit).await);
        }
        answers
    }

    /// Runs one part of a scan at the owner of the keys where it begins.
    async fn scan_part(
        &self,
        rest: &ScanRequest<OwnedKeyOf<O>>,
        out: &mut KeyedRecords<OwnedKeyOf<O>, OwnedValueOf<O>>,
    ) -> Result<Option<Bound<OwnedKeyOf<O>>>, IndexError> {
        let begun_ns = self.owners.begins_ns();
        let mut attempts = None;
        loop {
            // RT2. Another operation of this handle may switch maps meanwhile.
            let (owner, expected) = self.route.look(|map| {
                let owner = map.owner_of_start(rest);
                (owner, self.owners.expected(map, owner))
            });
            match self.owners.scan(owner, &expected, rest, out).await {
                Ok(next) => return Ok(next),
                Err(unserved) => {
                    let attempts = attempts.get_or_insert_with(|| self.attempts_since(begun_ns));
                    Box::pin(self.after(owner, unserved, attempts)).await?;
                }
            }
        }
    }
}

impl<O: RangeOwners> RangeIndex for Router<O> {
    type Key = KeyOf<O>;
    type Value = ValueOf<O>;

    #[inline]
    #[expect(clippy::manual_async_fn, reason = "an async fn copies its arguments within its state")]
    fn get(
        &self,
        key: &KeyOf<O>,
    ) -> impl Future<Output = Result<Option<OwnedValueOf<O>>, IndexError>> {
        async move {
            O::Layout::check_key(key)?;
            self.owners.begin().await;
            self.at_owner(|map| map.owner_of(key), |owner| self.owners.get(owner, key)).await
        }
    }

    #[inline]
    #[expect(clippy::manual_async_fn, reason = "an async fn copies its arguments within its state")]
    fn execute(
        &self,
        edit: LeafEdit<&KeyOf<O>, &ValueOf<O>>,
    ) -> impl Future<Output = Result<EditAnswer<OwnedValueOf<O>>, IndexError>> {
        async move {
            edit.check_by::<O::Layout>(O::check)?;
            self.owners.begin().await;
            let owner = |map: &PartitionMap<_>| map.owner_of(edit.key);
            self.at_owner(owner, |owner| self.owners.execute(owner, edit)).await
        }
    }

    async fn execute_all(
        &self,
        edits: &[LeafEdit<&KeyOf<O>, &ValueOf<O>>],
    ) -> Vec<Result<EditAnswer<OwnedValueOf<O>>, IndexError>> {
        if edits.iter().any(|edit| edit.check_by::<O::Layout>(O::check).is_err()) {
            return Box::pin(self.execute_in_turn(edits)).await;
        }
        let ended: Vec<EndedOperation<O>> = edits.iter().map(|_| RefCell::new(None)).collect();
        let together = self.operations_together().max(1);
        for (edits, ended) in edits.chunks(together).zip(ended.chunks(together)) {
            self.owners.begin().await;
            self.execute_some(edits, ended).await;
        }
        let outcome =
            |ended: EndedOperation<O>| ended.into_inner().expect("every operation has ended");
        ended.into_iter().map(outcome).collect()
    }

    async fn scan(
        &self,
        scan: &ScanRequest<OwnedKeyOf<O>>,
    ) -> Result<KeyedRecords<OwnedKeyOf<O>, OwnedValueOf<O>>, IndexError> {
        scan.check::<O::Layout>()?;
        self.owners.begin().await;
        let mut records = KeyedRecords::new();
        let mut rest = scan.clone();
        while records.len() < scan.limit {
            let Some(next) = self.scan_part(&rest, &mut records).await? else { break };
            match rest.reverse {
                true => rest.upper = next,
                false => rest.lower = next,
            }
        }
        Ok(records)
    }

    async fn bulk_load_from(
        &self,
        source: impl Iterator<Item = Result<(OwnedKeyOf<O>, OwnedValueOf<O>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        O::load(self, source, fill).await
    }

    async fn flush(&self) -> Result<(), IndexError> {
        O::flush(self).await
    }

    fn operations_together(&self) -> usize {
        self.owners.operations_together()
    }

    async fn settle(&self) -> Result<(), IndexError> {
        self.owners.settle().await
    }
}

/// Where a scan continues after completing `range`; `None` if there can be no more records.
pub(super) fn behind<K: Clone + Ord>(
    scan: &ScanRequest<K>,
    range: OwnedRange<K>,
    lowest: &K,
) -> Option<Bound<K>> {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    if scan.reverse {
        let more = match &scan.lower {
            Included(start) | Excluded(start) => *start < range.low,
            Unbounded => range.low > *lowest,
        };
        return more.then_some(Excluded(range.low));
    }
    let high = range.high?;
    let more = match &scan.upper {
        Included(end) => *end >= high,
        Excluded(end) => *end > high,
        Unbounded => true,
    };
    more.then_some(Included(high))
}
