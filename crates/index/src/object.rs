//! Designs, compute sides and handles as objects, so that what runs on any design is compiled once.
//!
//! A design's code is compiled where its [`AnyDesign`] is made. A call through an object allocates
//! its future. [`AnyIndex::run`] does so once for many operations, for loops that measure them.
//!
//! *Thread safety*: [`AnyDesign`] and [`AnyCompute`] may be shared; an [`AnyIndex`] belongs to its
//! endpoint's thread.

use crate::{
    Background, CacheCounters, Design, EditAnswer, IndexAdmin, IndexError, KeyRange, KeyedRecords,
    LeafEdit, OwnedForm, RangeIndex, RecordOf, RecordsOf, Reshape, ReshapeCost, ScanRequest,
};
use farleaf_fabric::sync::ObjectArc;
use farleaf_fabric::{AnyFabric, Fabric, Work};
use farleaf_page::{EditAction, Layout};
use std::borrow::Borrow;
use std::fmt::{self, Debug};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;

type ObjectFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
type ObjectOutcome<T> = Result<T, IndexError>;

/// A design with its options, as an object.
pub struct AnyDesign<L: Layout>(ObjectArc<dyn DesignObject<L>>);

/// The compute side of an index, as an object.
pub struct AnyCompute<L: Layout>(ObjectArc<dyn ComputeObject<L>>);

/// A handle on an index, as an object.
pub struct AnyIndex<K: ?Sized, V: ?Sized>(Rc<dyn IndexObject<K, V>>);

/// A handle on an index whose pages have layout `L`, as an object.
pub type AnyIndexOf<L> = AnyIndex<<L as Layout>::Key, <L as Layout>::Value>;

impl<L: Layout> Clone for AnyDesign<L> {
    fn clone(&self) -> Self {
        Self(ObjectArc::clone(&self.0))
    }
}

impl<L: Layout> Clone for AnyCompute<L> {
    fn clone(&self) -> Self {
        Self(ObjectArc::clone(&self.0))
    }
}

impl<K: ?Sized, V: ?Sized> Clone for AnyIndex<K, V> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<L: Layout> Debug for AnyDesign<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyDesign").field(&self.name()).finish()
    }
}

impl<L: Layout> Debug for AnyCompute<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyCompute").finish_non_exhaustive()
    }
}

impl<K: ?Sized, V: ?Sized> Debug for AnyIndex<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyIndex").finish_non_exhaustive()
    }
}

impl<L: Layout> AnyDesign<L> {
    /// Design `D` with these options.
    pub fn of<D: Design<L>>(options: D::Options) -> Self {
        Self(ObjectArc::new(WithOptions::<D, L> { options, layout: PhantomData }))
    }

    /// The name in reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// See [`Design::create`].
    ///
    /// # Errors
    ///
    /// Those of the design.
    pub async fn create(&self, fabric: &AnyFabric) -> Result<(), IndexError> {
        self.0.create(fabric).await
    }

    /// See [`Design::compute`].
    ///
    /// # Errors
    ///
    /// Those of the design.
    pub fn compute(&self) -> Result<AnyCompute<L>, IndexError> {
        self.0.compute()
    }
}

impl<L: Layout> AnyCompute<L> {
    /// The compute side of an index of design `D`.
    pub fn of<D: Design<L>>(compute: D::Compute) -> Self {
        Self(ObjectArc::new(ObjectOfDesign::<D, L> { compute, layout: PhantomData }))
    }

    /// See [`Design::open`].
    ///
    /// # Errors
    ///
    /// Those of the design.
    pub async fn open(&self, fabric: AnyFabric) -> Result<AnyIndexOf<L>, IndexError> {
        self.0.open(fabric).await
    }

    /// See [`Design::open_handle`].
    ///
    /// # Errors
    ///
    /// Those of the design.
    pub async fn open_handle(&self, fabric: AnyFabric) -> Result<AnyIndexOf<L>, IndexError> {
        self.0.open_handle(fabric).await
    }

    /// See [`Design::cached_bytes`].
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.0.cached_bytes()
    }

    /// See [`Design::local_bytes`].
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        self.0.local_bytes()
    }
}

/// An operation of an [`OperationLoop`].
pub enum LoopStep<'a, K: ?Sized + ToOwned, V: ?Sized> {
    /// A lookup or a change of one key.
    Edit(LeafEdit<&'a K, &'a V>),
    /// A lookup of a key, and an update if it is present.
    ReadModifyWrite(&'a K, &'a V),
    /// A lookup of several keys.
    MultiGet(&'a [OwnedForm<K>]),
    /// A scan.
    Scan(ScanRequest<OwnedForm<K>>),
}

/// Operations that run one after the other, each begun when the previous one has ended.
pub trait OperationLoop<K: ?Sized + ToOwned, V: ?Sized> {
    /// The next operation; the loop ends at `None`.
    fn next(&mut self) -> Option<LoopStep<'_, K, V>>;

    /// Tells how it ended: whether it found all it looked for, or changed something.
    fn ended(&mut self, outcome: Result<bool, IndexError>);
}

impl<K, V> AnyIndex<K, V>
where
    K: ?Sized + Ord + Debug + ToOwned<Owned: Clone + Ord + Debug + 'static> + 'static,
    V: ?Sized + Eq + Debug + ToOwned<Owned: Clone + Eq + Debug + 'static> + 'static,
{
    /// A handle as an object. `fabric` is charged the client's work of the operations that
    /// [`Self::run`] runs.
    pub fn of(index: impl IndexAdmin<Key = K, Value = V> + 'static, fabric: AnyFabric) -> Self {
        Self(Rc::new(OpenedObject { index, fabric }))
    }

    /// Runs operations until there is no next one, and charges each one's client work.
    pub async fn run(&self, operations: &mut dyn OperationLoop<K, V>) {
        self.0.run(operations).await;
    }
}

trait DesignObject<L: Layout>: Send + Sync {
    fn name(&self) -> &'static str;
    fn create<'a>(&'a self, fabric: &'a AnyFabric) -> ObjectFuture<'a, ObjectOutcome<()>>;
    fn compute(&self) -> ObjectOutcome<AnyCompute<L>>;
}

trait ComputeObject<L: Layout>: Send + Sync {
    fn open(&self, fabric: AnyFabric) -> ObjectFuture<'_, ObjectOutcome<AnyIndexOf<L>>>;
    fn open_handle(&self, fabric: AnyFabric) -> ObjectFuture<'_, ObjectOutcome<AnyIndexOf<L>>>;
    fn cached_bytes(&self) -> u64;
    fn local_bytes(&self) -> u64;
}

struct WithOptions<D: Design<L>, L: Layout> {
    options: D::Options,
    layout: PhantomData<L>,
}

impl<D: Design<L>, L: Layout> DesignObject<L> for WithOptions<D, L> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn create<'a>(&'a self, fabric: &'a AnyFabric) -> ObjectFuture<'a, ObjectOutcome<()>> {
        Box::pin(D::create(fabric, &self.options))
    }

    fn compute(&self) -> ObjectOutcome<AnyCompute<L>> {
        D::compute(&self.options).map(AnyCompute::of::<D>)
    }
}

struct ObjectOfDesign<D: Design<L>, L: Layout> {
    compute: D::Compute,
    layout: PhantomData<L>,
}

impl<D: Design<L>, L: Layout> ComputeObject<L> for ObjectOfDesign<D, L> {
    fn open(&self, fabric: AnyFabric) -> ObjectFuture<'_, ObjectOutcome<AnyIndexOf<L>>> {
        Box::pin(async {
            let index = D::open(fabric.clone(), &self.compute).await?;
            Ok(AnyIndex::of(index, fabric))
        })
    }

    fn open_handle(&self, fabric: AnyFabric) -> ObjectFuture<'_, ObjectOutcome<AnyIndexOf<L>>> {
        Box::pin(async {
            let index = D::open_handle(fabric.clone(), &self.compute).await?;
            Ok(AnyIndex::of(index, fabric))
        })
    }

    fn cached_bytes(&self) -> u64 {
        D::cached_bytes(&self.compute)
    }

    fn local_bytes(&self) -> u64 {
        D::local_bytes(&self.compute)
    }
}

/// [`RangeIndex`] and [`IndexAdmin`], with boxed futures.
trait IndexObject<K: ?Sized + ToOwned, V: ?Sized + ToOwned> {
    fn get<'a>(&'a self, key: &'a K) -> ObjectFuture<'a, ObjectOutcome<Option<V::Owned>>>;
    fn execute<'a>(
        &'a self,
        edit: LeafEdit<&'a K, &'a V>,
    ) -> ObjectFuture<'a, ObjectOutcome<EditAnswer<V::Owned>>>;
    fn scan<'a>(
        &'a self,
        scan: &'a ScanRequest<K::Owned>,
    ) -> ObjectFuture<'a, ObjectOutcome<KeyedRecords<K::Owned, V::Owned>>>;
    fn bulk_load_from<'a>(
        &'a self,
        source: &'a mut dyn Iterator<Item = ObjectOutcome<(K::Owned, V::Owned)>>,
        fill: f64,
    ) -> ObjectFuture<'a, ObjectOutcome<u64>>;
    fn flush(&self) -> ObjectFuture<'_, ObjectOutcome<()>>;
    fn operations_together(&self) -> usize;
    fn multi_get<'a>(
        &'a self,
        keys: &'a [&'a K],
    ) -> ObjectFuture<'a, ObjectOutcome<Vec<Option<V::Owned>>>>;
    fn execute_all<'a>(
        &'a self,
        edits: &'a [LeafEdit<&'a K, &'a V>],
    ) -> ObjectFuture<'a, Vec<ObjectOutcome<EditAnswer<V::Owned>>>>;
    fn settle(&self) -> ObjectFuture<'_, ObjectOutcome<()>>;
    fn collect(&self) -> ObjectFuture<'_, ObjectOutcome<()>>;
    fn declare_dead(&self, compute_server: u16) -> ObjectFuture<'_, ObjectOutcome<()>>;
    fn compute_server_of(&self, key: &K) -> Option<u16>;
    fn owned_by(&self, compute_server: u16) -> Option<KeyRange<K::Owned>>;
    fn reshape<'a>(
        &'a self,
        change: &'a Reshape<K::Owned>,
    ) -> ObjectFuture<'a, ObjectOutcome<ReshapeCost>>;
    fn background<'a>(
        &'a self,
        work: Background,
        ended: &'a dyn Fn() -> bool,
        report: &'a dyn Fn(ObjectOutcome<ReshapeCost>),
    ) -> ObjectFuture<'a, ObjectOutcome<()>>;
    fn cache_counters(&self) -> CacheCounters;
    fn run<'a>(&'a self, operations: &'a mut dyn OperationLoop<K, V>) -> ObjectFuture<'a, ()>;
}

struct OpenedObject<I> {
    index: I,
    fabric: AnyFabric,
}

impl<I: IndexAdmin> IndexObject<I::Key, I::Value> for OpenedObject<I> {
    fn get<'a>(
        &'a self,
        key: &'a I::Key,
    ) -> ObjectFuture<'a, ObjectOutcome<Option<OwnedForm<I::Value>>>> {
        Box::pin(self.index.get(key))
    }

    fn execute<'a>(
        &'a self,
        edit: LeafEdit<&'a I::Key, &'a I::Value>,
    ) -> ObjectFuture<'a, ObjectOutcome<EditAnswer<OwnedForm<I::Value>>>> {
        Box::pin(self.index.execute(edit))
    }

    fn scan<'a>(
        &'a self,
        scan: &'a ScanRequest<OwnedForm<I::Key>>,
    ) -> ObjectFuture<'a, ObjectOutcome<RecordsOf<I>>> {
        Box::pin(self.index.scan(scan))
    }

    fn bulk_load_from<'a>(
        &'a self,
        source: &'a mut dyn Iterator<Item = ObjectOutcome<RecordOf<I>>>,
        fill: f64,
    ) -> ObjectFuture<'a, ObjectOutcome<u64>> {
        Box::pin(self.index.bulk_load_from(source, fill))
    }

    fn flush(&self) -> ObjectFuture<'_, ObjectOutcome<()>> {
        Box::pin(self.index.flush())
    }

    fn operations_together(&self) -> usize {
        self.index.operations_together()
    }

    fn multi_get<'a>(
        &'a self,
        keys: &'a [&'a I::Key],
    ) -> ObjectFuture<'a, ObjectOutcome<Vec<Option<OwnedForm<I::Value>>>>> {
        Box::pin(self.index.multi_get(keys))
    }

    fn execute_all<'a>(
        &'a self,
        edits: &'a [LeafEdit<&'a I::Key, &'a I::Value>],
    ) -> ObjectFuture<'a, Vec<ObjectOutcome<EditAnswer<OwnedForm<I::Value>>>>> {
        Box::pin(self.index.execute_all(edits))
    }

    fn settle(&self) -> ObjectFuture<'_, ObjectOutcome<()>> {
        Box::pin(self.index.settle())
    }

    fn collect(&self) -> ObjectFuture<'_, ObjectOutcome<()>> {
        Box::pin(self.index.collect())
    }

    fn declare_dead(&self, compute_server: u16) -> ObjectFuture<'_, ObjectOutcome<()>> {
        Box::pin(self.index.declare_dead(compute_server))
    }

    fn compute_server_of(&self, key: &I::Key) -> Option<u16> {
        self.index.compute_server_of(key)
    }

    fn owned_by(&self, compute_server: u16) -> Option<KeyRange<OwnedForm<I::Key>>> {
        self.index.owned_by(compute_server)
    }

    fn reshape<'a>(
        &'a self,
        change: &'a Reshape<OwnedForm<I::Key>>,
    ) -> ObjectFuture<'a, ObjectOutcome<ReshapeCost>> {
        Box::pin(self.index.reshape(change))
    }

    fn background<'a>(
        &'a self,
        work: Background,
        ended: &'a dyn Fn() -> bool,
        report: &'a dyn Fn(ObjectOutcome<ReshapeCost>),
    ) -> ObjectFuture<'a, ObjectOutcome<()>> {
        Box::pin(self.index.background(work, ended, report))
    }

    fn cache_counters(&self) -> CacheCounters {
        self.index.cache_counters()
    }

    fn run<'a>(
        &'a self,
        operations: &'a mut dyn OperationLoop<I::Key, I::Value>,
    ) -> ObjectFuture<'a, ()> {
        Box::pin(async {
            while let Some(step) = operations.next() {
                let outcome = perform(&self.fabric, &self.index, step).await;
                operations.ended(outcome);
            }
        })
    }
}

/// Performs an operation, and charges the client's work. Returns whether it found all it looked
/// for, or changed something.
///
/// # Errors
///
/// Those of the operation.
#[inline]
pub async fn perform<I: RangeIndex>(
    fabric: &impl Fabric,
    index: &I,
    step: LoopStep<'_, I::Key, I::Value>,
) -> Result<bool, IndexError> {
    let operations = if let LoopStep::MultiGet(keys) = &step { keys.len() } else { 1 };
    for _ in 0..operations {
        fabric.charge(Work::Client).await;
    }
    Ok(match step {
        LoopStep::Edit(LeafEdit { key, action: EditAction::Get }) => {
            index.get(key).await?.is_some()
        }
        LoopStep::Edit(edit) => index.execute(edit).await?.applied,
        LoopStep::ReadModifyWrite(key, value) => {
            if index.get(key).await?.is_none() {
                return Ok(false);
            }
            fabric.charge(Work::Client).await;
            index.update(key, value).await?
        }
        LoopStep::MultiGet(keys) => index.multi_get(keys).await?.iter().all(Option::is_some),
        LoopStep::Scan(scan) => !index.scan(&scan).await?.is_empty(),
    })
}

impl<K, V> RangeIndex for AnyIndex<K, V>
where
    K: ?Sized + Ord + Debug + ToOwned<Owned: Clone + Ord + Debug + 'static> + 'static,
    V: ?Sized + Eq + Debug + ToOwned<Owned: Clone + Eq + Debug + 'static> + 'static,
{
    type Key = K;
    type Value = V;

    async fn get(&self, key: &K) -> ObjectOutcome<Option<V::Owned>> {
        self.0.get(key).await
    }

    async fn execute(&self, edit: LeafEdit<&K, &V>) -> ObjectOutcome<EditAnswer<V::Owned>> {
        self.0.execute(edit).await
    }

    async fn scan(&self, scan: &ScanRequest<K::Owned>) -> ObjectOutcome<RecordsOf<Self>> {
        self.0.scan(scan).await
    }

    async fn bulk_load_from(
        &self,
        mut source: impl Iterator<Item = ObjectOutcome<RecordOf<Self>>>,
        fill: f64,
    ) -> ObjectOutcome<u64> {
        self.0.bulk_load_from(&mut source, fill).await
    }

    async fn flush(&self) -> ObjectOutcome<()> {
        self.0.flush().await
    }

    fn operations_together(&self) -> usize {
        self.0.operations_together()
    }

    async fn multi_get<Q: Borrow<K>>(&self, keys: &[Q]) -> ObjectOutcome<Vec<Option<V::Owned>>> {
        let keys: Vec<&K> = keys.iter().map(Borrow::borrow).collect();
        self.0.multi_get(&keys).await
    }

    async fn execute_all(
        &self,
        edits: &[LeafEdit<&K, &V>],
    ) -> Vec<ObjectOutcome<EditAnswer<V::Owned>>> {
        self.0.execute_all(edits).await
    }

    async fn settle(&self) -> ObjectOutcome<()> {
        self.0.settle().await
    }
}

impl<K, V> IndexAdmin for AnyIndex<K, V>
where
    K: ?Sized + Ord + Debug + ToOwned<Owned: Clone + Ord + Debug + 'static> + 'static,
    V: ?Sized + Eq + Debug + ToOwned<Owned: Clone + Eq + Debug + 'static> + 'static,
{
    async fn collect(&self) -> ObjectOutcome<()> {
        self.0.collect().await
    }

    async fn declare_dead(&self, compute_server: u16) -> ObjectOutcome<()> {
        self.0.declare_dead(compute_server).await
    }

    fn compute_server_of(&self, key: &K) -> Option<u16> {
        self.0.compute_server_of(key)
    }

    fn owned_by(&self, compute_server: u16) -> Option<KeyRange<K::Owned>> {
        self.0.owned_by(compute_server)
    }

    async fn reshape(&self, change: &Reshape<K::Owned>) -> ObjectOutcome<ReshapeCost> {
        self.0.reshape(change).await
    }

    async fn background(
        &self,
        work: Background,
        ended: &dyn Fn() -> bool,
        report: &dyn Fn(ObjectOutcome<ReshapeCost>),
    ) -> ObjectOutcome<()> {
        self.0.background(work, ended, report).await
    }

    fn cache_counters(&self) -> CacheCounters {
        self.0.cache_counters()
    }
}
