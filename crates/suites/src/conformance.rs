//! The test suite for every index design on every provider, against `BTreeMap`.
//!
//! A design's tests call [`run`] with a provider and the design's options; the checks panic if the
//! index and the model differ. `L` can be a layout of tiny pages, so that a few hundred keys make a
//! tree of many levels. The model identifies keys and values by their names ([`NamedLayout`]).

use farleaf_fabric::sync::{Arc, AtomicU64, AtomicUsize, Ordering};
use farleaf_fabric::{AnyFabric, Cluster, Fabric, Provider, ServerId};
use farleaf_index::{
    Background, ByName, Design, EditAction, EditAnswer, Exchange, IndexAdmin, IndexError, LeafEdit,
    RangeIndex, ScanRequest,
};
use farleaf_page::{Layout, NamedLayout};
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Bound;

/// The environment of the suite.
#[derive(Debug)]
pub struct SuiteSetup<'a, P, O> {
    /// The provider that runs the cluster.
    pub provider: &'a P,
    /// Options for each new index.
    pub options: O,
    /// The number of memory servers.
    pub memory_servers: u16,
    /// The configuration of each memory server.
    pub server: MemoryServerConfig,
}

/// Background tasks that run beside the clients of the suite, on endpoints of their own.
#[derive(Debug, Default)]
pub struct SuiteBackground {
    /// The compute server of each.
    compute_servers: Vec<u16>,
    /// WRITEs of them all, after they had opened the index.
    writes: AtomicU64,
}

impl SuiteBackground {
    /// No background tasks: clients do that work themselves.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// One on each of the first two compute servers.
    fn two() -> Self {
        Self { compute_servers: vec![0, 1], ..Self::default() }
    }

    /// Runs clients as [`Cluster::run`] does, and background tasks until all of them have ended.
    fn run<L, D, C, T, Fut>(
        &self,
        cluster: &C,
        compute: &D::Compute,
        clients: &[u16],
        body: impl Fn(AnyFabric, usize) -> Fut + Sync,
    ) -> Vec<Option<T>>
    where
        L: Layout,
        D: Design<L>,
        C: Cluster,
        T: Send,
        Fut: Future<Output = T>,
    {
        let running = &AtomicUsize::new(clients.len());
        let waiting = &AtomicUsize::new(self.compute_servers.len());
        let all = [clients, &self.compute_servers].concat();
        let mut outcomes = cluster.run(&all, |fabric, number| {
            let client = (number < clients.len())
                .then(|| (body(fabric.clone(), number), RunningClient(running)));
            async move {
                if let Some((client, _running)) = client {
                    // On one thread, clients that never wait would otherwise end before the
                    // background tasks have begun.
                    for _ in 0..MAX_WAITS {
                        if waiting.load(Ordering::Acquire) == 0 {
                            break;
                        }
                        fabric.sleep(WAIT_NS).await;
                    }
                    return Some(client.await);
                }
                let index = D::open(fabric.clone(), compute).await.expect("the index opens");
                let opened = fabric.counters().snapshot();
                waiting.fetch_sub(1, Ordering::Release);
                let ended = || running.load(Ordering::Acquire) == 0;
                let report = |done: Result<_, _>| _ = done.expect("the background work succeeds");
                index.background(Background::WriteBack, &ended, &report).await.unwrap();
                let sent = fabric.counters().snapshot() - opened;
                self.writes.fetch_add(sent.writes, Ordering::Relaxed);
                None
            }
        });
        outcomes.truncate(clients.len());
        outcomes.into_iter().map(Option::flatten).collect()
    }

    /// Runs one client on compute server 0.
    fn run_one<L, D, C, Fut>(
        &self,
        cluster: &C,
        compute: &D::Compute,
        body: impl Fn(AnyFabric) -> Fut + Sync,
    ) where
        L: Layout,
        D: Design<L>,
        C: Cluster,
        Fut: Future<Output = ()>,
    {
        let ended = self.run::<L, D, C, _, _>(cluster, compute, &[0], |fabric, _| body(fabric));
        assert_eq!(ended, [Some(())]);
    }
}

/// How often, and for how long each time, clients wait for the background tasks to begin.
const MAX_WAITS: u32 = 10_000;
const WAIT_NS: u64 = 100_000;

/// A client that has not ended. Background tasks end after the last one, even if it panics.
struct RunningClient<'a>(&'a AtomicUsize);

impl Drop for RunningClient<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// A client's random numbers, from its endpoint.
struct ClientRandom<F>(F);

impl<F: Fabric> ClientRandom<F> {
    fn below(&self, limit: u64) -> u64 {
        self.0.random() % limit
    }

    /// A key of a small space that includes the extreme keys.
    fn key(&self, space: u64) -> u64 {
        match self.below(space) {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX - 1,
            number => number * (u64::MAX / space),
        }
    }
}

/// A cluster started by `SuiteSetup`.
type StartedCluster<L, P> = <P as Provider>::Cluster<MemoryServer<L>>;
type NumberModel = BTreeMap<u64, u64>;

impl<P: Provider, O: Clone> SuiteSetup<'_, P, O> {
    /// Starts the memory servers, without an index.
    ///
    /// # Panics
    /// If there is not enough memory for them.
    pub fn start<L: Layout>(&self) -> StartedCluster<L, P> {
        let server = |number| MemoryServer::new(ServerId::new(number), &self.server);
        let servers = (0..self.memory_servers).map(|number| Arc::new(server(number).unwrap()));
        self.provider.start(servers.collect())
    }

    /// Starts the memory servers with an empty index of design `D`.
    ///
    /// # Panics
    /// If that fails.
    pub fn with_index<L: Layout, D: Design<L, Options = O>>(&self) -> StartedCluster<L, P>
    where
        O: Sync,
    {
        let cluster = self.start();
        let options = &self.options;
        cluster.run_one(|fabric| async move { D::create(&fabric, options).await }).unwrap();
        cluster
    }
}

/// Runs every check.
///
/// # Panics
/// If one fails.
pub fn run<L, D, P>(setup: &SuiteSetup<'_, P, D::Options>)
where
    L: NamedLayout,
    D: Design<L>,
    P: Provider,
{
    opening::<L, D, P>(setup);
    every_check::<L, D, P>(setup, &SuiteBackground::nothing());
}

/// Runs every check as [`run`] does, but beside background tasks where there are operations.
///
/// # Panics
/// If one fails, or if no background task has written anything.
pub fn run_with_background<L, D, P>(setup: &SuiteSetup<'_, P, D::Options>)
where
    L: NamedLayout,
    D: Design<L>,
    P: Provider,
{
    opening::<L, D, P>(setup);
    let beside = SuiteBackground::two();
    every_check::<L, D, P>(setup, &beside);
    let writes = beside.writes.load(Ordering::Relaxed);
    assert!(writes > 0, "the background tasks have written nothing");
}

fn every_check<L, D, P>(setup: &SuiteSetup<'_, P, D::Options>, beside: &SuiteBackground)
where
    L: NamedLayout,
    D: Design<L>,
    P: Provider,
{
    single_operations::<L, D, P>(setup, beside);
    scans::<L, D, P>(setup, beside);
    bulk_load::<L, D, P>(setup, beside);
    concurrent_owners::<L, D, P>(setup, beside);
    concurrent_counters::<L, D, P>(setup, beside);
}

async fn open<L: NamedLayout, D: Design<L>, F: Fabric>(
    fabric: F,
    compute: &D::Compute,
) -> ByName<L, D::Index<F>> {
    ByName::new(D::open(fabric, compute).await.expect("the index opens"))
}

fn compute<L: Layout, D: Design<L>>(options: &D::Options) -> D::Compute {
    D::compute(options).expect("the options are valid")
}

/// Checks that an index is created only once, and cannot be opened before that.
pub fn opening<L, D, P>(setup: &SuiteSetup<'_, P, D::Options>)
where
    L: NamedLayout,
    D: Design<L>,
    P: Provider,
{
    let cluster = setup.start::<L>();
    let options = &setup.options;
    let compute = &compute::<L, D>(options);
    cluster.run_one(|fabric| async move {
        assert!(D::open(fabric.clone(), compute).await.is_err(), "there is no index yet");
        D::create(&fabric, options).await.unwrap();
        assert!(D::create(&fabric, options).await.is_err(), "there is an index already");
        let index = open::<L, D, _>(fabric, compute).await;
        assert_eq!(index.get(&7).await, Ok(None));
        assert_eq!(index.execute_all(&[]).await, []);
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(vec![]));
        assert_eq!(index.scan(&ScanRequest::range(..).reverse()).await, Ok(vec![]));
        assert_eq!(index.multi_get::<u64>(&[]).await, Ok(vec![]));
    });
}

/// Applies one random operation to index and model and compares their answers.
async fn random_operation<I, F>(
    index: &I,
    model: &mut NumberModel,
    dice: &ClientRandom<F>,
    key: u64,
) where
    I: RangeIndex<Key = u64, Value = u64>,
    F: Fabric,
{
    let value = dice.0.random();
    let there = model.contains_key(&key);
    match dice.below(8) {
        0 | 1 => {
            assert_eq!(index.insert(&key, &value).await, Ok(!there), "insert {key}");
            model.entry(key).or_insert(value);
        }
        2 => {
            assert_eq!(index.update(&key, &value).await, Ok(there), "update {key}");
            model.entry(key).and_modify(|held| *held = value);
        }
        3 => {
            assert_eq!(index.upsert(&key, &value).await, Ok(()), "upsert {key}");
            model.insert(key, value);
        }
        4 | 5 => {
            assert_eq!(index.remove(&key).await, Ok(there), "remove {key}");
            model.remove(&key);
        }
        6 => {
            let held = model.get(&key).copied();
            let expected = if dice.below(2) == 0 { held.unwrap_or(1) } else { !value };
            let outcome = index.compare_exchange(&key, &expected, &value).await;
            if held == Some(expected) {
                model.insert(key, value);
                assert_eq!(outcome, Ok(Exchange::Exchanged), "compare-exchange {key}");
            } else {
                assert_eq!(outcome, Ok(Exchange::Differs(held)), "compare-exchange {key}");
            }
        }
        _ => assert_eq!(index.get(&key).await, Ok(model.get(&key).copied()), "get {key}"),
    }
}

async fn same_contents<I: RangeIndex<Key = u64, Value = u64>>(index: &I, model: &NumberModel) {
    let expected: Vec<(u64, u64)> = model.iter().map(|(&key, &value)| (key, value)).collect();
    assert_eq!(
        index.scan(&ScanRequest::range(..)).await.unwrap(),
        expected,
        "a scan of everything"
    );
}

/// One client runs random operations, including the extreme keys and values.
pub fn single_operations<L, D, P>(setup: &SuiteSetup<'_, P, D::Options>, beside: &SuiteBackground)
where
    L: NamedLayout,
    D: Design<L>,
    P: Provider,
{
    let cluster = setup.with_index::<L, D>();
    let compute = &compute::<L, D>(&setup.options);
    beside.run_one::<L, D, _, _>(&cluster, compute, |fabric| async move {
        let dice = ClientRandom(fabric.clone());
        let index = open::<L, D, _>(fabric, compute).await;
        let mut model = NumberModel::new();
        for key in [0, u64::MAX] {
            for value in [0, u64::MAX] {
                index.upsert(&key, &value).await.unwrap();
                assert_eq!(index.get(&key).await, Ok(Some(value)));
                model.insert(key, value);
            }
        }
        for round in 0..2_500 {
            // Grow, then shrink, then grow again: the space widens and narrows.
            let space = if round / 500 % 2 == 0 { 400 } else { 90 };
            let key = dice.key(space);
            random_operation(&index, &mut model, &dice, key).await;
            if round % 20 == 19 {
                random_operations_together(&index, &mut model, &dice, space).await;
            }
            if round % 500 == 499 {
                same_contents(&index, &model).await;
                let keys: Vec<u64> = (0..300).map(|_| dice.key(400)).collect();
                let expected: Vec<_> = keys.iter().map(|key| model.get(key).copied()).collect();
                assert_eq!(index.multi_get(&keys).await.unwrap(), expected);
            }
        }
        for &key in model.keys() {
            assert_eq!(index.remove(&key).await, Ok(true));
        }
        index.collect().await.unwrap();
        same_contents(&index, &NumberModel::new()).await;
        assert_eq!(index.insert(&5, &6).await, Ok(true));
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(vec![(5, 6)]));
    });
}

/// Operations that are executed together have the same outcomes as in sequence, even if several use
/// one key.
async fn random_operations_together<I, F>(
    index: &I,
    model: &mut NumberModel,
    dice: &ClientRandom<F>,
    space: u64,
) where
    I: RangeIndex<Key = u64, Value = u64>,
    F: Fabric,
{
    let edit = |_| {
        let (key, value) = (dice.key(space), dice.below(8));
        let action = match dice.below(6) {
            0 => EditAction::Get,
            1 => EditAction::Insert(value),
            2 => EditAction::Update(value),
            3 => EditAction::Upsert(value),
            4 => EditAction::Remove,
            _ => EditAction::CompareExchange(dice.below(8), value),
        };
        LeafEdit { key, action }
    };
    let edits: Vec<LeafEdit<u64, u64>> = (0..dice.below(70)).map(edit).collect();
    let borrowed: Vec<_> = edits.iter().map(LeafEdit::as_ref).collect();
    let answers = index.execute_all(&borrowed).await;
    assert_eq!(answers.len(), edits.len());
    for (edit, answer) in edits.iter().zip(answers) {
        let held = model.get(&edit.key).copied();
        let mut answer = answer.unwrap_or_else(|error| panic!("{edit:?}: {error}"));
        if edit.changes() && answer.applied && answer.found.is_some() {
            // An applied change may return the value that it took away, and no other value.
            assert_eq!(answer.found.take(), held, "{edit:?}");
        }
        assert_eq!(answer, expected(model, edit), "{edit:?}");
    }
}

/// Applies an operation to the model and returns its answer.
fn expected(model: &mut NumberModel, edit: &LeafEdit<u64, u64>) -> EditAnswer<u64> {
    let (key, found) = (edit.key, model.get(&edit.key).copied());
    let (applied, found) = match edit.action {
        EditAction::Get => (found.is_some(), found),
        EditAction::Insert(_) => (found.is_none(), None),
        EditAction::Update(_) | EditAction::Remove => (found.is_some(), None),
        EditAction::Upsert(_) => (true, None),
        EditAction::CompareExchange(old, _) if found == Some(old) => (true, None),
        EditAction::CompareExchange(..) => (false, found),
    };
    match edit.action {
        EditAction::Insert(value)
        | EditAction::Update(value)
        | EditAction::Upsert(value)
        | EditAction::CompareExchange(_, value)
            if applied =>
        {
            model.insert(key, value);
        }
        EditAction::Remove => _ = model.remove(&key),
        _ => {}
    }
    EditAnswer { applied, found }
}

fn model_scan(model: &NumberModel, scan: &ScanRequest<u64>) -> Vec<(u64, u64)> {
    let inside = |&(key, _): &(&u64, &u64)| {
        let above = match scan.lower {
            Bound::Unbounded => true,
            Bound::Included(low) => *key >= low,
            Bound::Excluded(low) => *key > low,
        };
        let below = match scan.upper {
            Bound::Unbounded => true,
            Bound::Included(high) => *key <= high,
            Bound::Excluded(high) => *key < high,
        };
        above && below
    };
    let records = model.iter().filter(inside).map(|(&key, &value)| (key, value));
    if scan.reverse {
        records.rev().take(scan.limit).collect()
    } else {
        records.take(scan.limit).collect()
    }
}

/// Scans with every kind of bound, both directions, limits, and empty and crossed ranges.
pub fn scans<L, D, P>(setup: &SuiteSetup<'_, P, D::Options>, beside: &SuiteBackground)
where
    L: NamedLayout,
    D: Design<L>,
    P: Provider,
{
    let cluster = setup.with_index::<L, D>();
    let compute = &compute::<L, D>(&setup.options);
    beside.run_one::<L, D, _, _>(&cluster, compute, |fabric| async move {
        let dice = ClientRandom(fabric.clone());
        let index = open::<L, D, _>(fabric, compute).await;
        let mut model = NumberModel::new();
        for _ in 0..600 {
            let key = dice.key(300);
            index.upsert(&key, &!key).await.unwrap();
            model.insert(key, !key);
        }
        for _ in 0..150 {
            let key = dice.key(300);
            assert_eq!(index.remove(&key).await, Ok(model.remove(&key).is_some()));
        }
        let bound = || match dice.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(dice.key(300)),
            _ => Bound::Excluded(dice.key(300)),
        };
        for _ in 0..300 {
            let limit = [0, 1, 2, 7, 40, usize::MAX][dice.below(6) as usize];
            let mut scan = ScanRequest::range((bound(), bound())).limit(limit);
            if dice.below(2) == 0 {
                scan = scan.reverse();
            }
            let records = index.scan(&scan).await.unwrap();
            assert_eq!(records, model_scan(&model, &scan), "{scan:?}");
        }
        let everything_below_zero =
            ScanRequest { upper: Bound::Excluded(0), ..ScanRequest::range(..) };
        assert_eq!(index.scan(&everything_below_zero.reverse()).await, Ok(vec![]));
    });
}

/// Why a load from a source ended.
#[derive(Debug, PartialEq, Eq)]
enum SourceError {
    Source,
    Index(IndexError),
}

impl From<IndexError> for SourceError {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

/// Bulk loading: contents, order, and rejected loads that leave the index unchanged.
///
/// A load from a file with a bad row once committed the rows before it and reported that it had
/// loaded none, so the next attempt found an index that was not empty: a failed source was taken
/// for its end.
pub fn bulk_load<L, D, P>(setup: &SuiteSetup<'_, P, D::Options>, beside: &SuiteBackground)
where
    L: NamedLayout,
    D: Design<L>,
    P: Provider,
{
    for (count, fill) in [(0, 0.7), (1, 0.7), (5_000, 0.7), (3_000, 1.0), (700, 0.1)] {
        let cluster = setup.with_index::<L, D>();
        let compute = &compute::<L, D>(&setup.options);
        beside.run_one::<L, D, _, _>(&cluster, compute, |fabric| async move {
            let dice = ClientRandom(fabric.clone());
            let index = open::<L, D, _>(fabric, compute).await;
            let step = u64::MAX / count.max(2);
            let records = || (0..count).map(|number| (number * step, number));
            let mut model: NumberModel = records().collect();

            let unsorted = records().chain([(1, 1), (1, 2)]);
            let refused = index.bulk_load(unsorted, fill).await;
            assert!(matches!(refused, Err(IndexError::NotSorted { .. })), "{refused:?}");
            same_contents(&index, &NumberModel::new()).await;
            assert!(index.bulk_load(records(), 0.05).await.is_err(), "too empty pages");
            for good in [0, 1.min(count), count / 2, count] {
                // More records follow: the load must not ask for them.
                let failing = records().take(good as usize).map(Ok);
                let failing = failing.chain([Err(SourceError::Source)]);
                let failing = failing.chain(records().skip(good as usize).map(Ok));
                let failed = index.try_bulk_load(failing, fill).await;
                assert_eq!(failed, Err(SourceError::Source), "after {good} records");
                same_contents(&index, &NumberModel::new()).await;
            }

            assert_eq!(index.bulk_load(records(), fill).await, Ok(count));
            same_contents(&index, &model).await;
            if count > 0 {
                assert!(index.bulk_load(records(), fill).await.is_err(), "not empty any more");
                same_contents(&index, &model).await;
            }
            for _ in 0..600 {
                let key = dice.below(count.max(1)) * step + dice.below(3);
                random_operation(&index, &mut model, &dice, key).await;
            }
            same_contents(&index, &model).await;
        });
    }
}

/// Several clients at once, each the only one to change its own keys. Each sees exactly its own
/// changes, while other clients split, merge and collect the nodes around them.
pub fn concurrent_owners<L, D, P>(setup: &SuiteSetup<'_, P, D::Options>, beside: &SuiteBackground)
where
    L: NamedLayout,
    D: Design<L>,
    P: Provider,
{
    const CLIENTS: u64 = 4;
    let cluster = setup.with_index::<L, D>();
    let compute = &compute::<L, D>(&setup.options);
    let compute_servers = [0, 0, 1, 1];
    let models = beside.run::<L, D, _, _, _>(
        &cluster,
        compute,
        &compute_servers,
        |fabric, client| async move {
            let dice = ClientRandom(fabric.clone());
            let index = open::<L, D, _>(fabric, compute).await;
            let mut model = NumberModel::new();
            let mine = |number: u64| (number * CLIENTS + client as u64) * 0x0010_0000_0000_0001;
            for round in 0..900 {
                let space = if round / 150 % 2 == 0 { 150 } else { 40 };
                let key = mine(dice.below(space));
                random_operation(&index, &mut model, &dice, key).await;
                if round % 60 == 0 {
                    let seen = index.scan(&ScanRequest::range(..)).await.unwrap();
                    assert!(seen.is_sorted_by(|a, b| a.0 < b.0), "a scan ascends strictly");
                    let is_mine = |key: u64| (0..150).any(|number| mine(number) == key);
                    let mine: NumberModel =
                        seen.into_iter().filter(|&(key, _)| is_mine(key)).collect();
                    assert_eq!(mine, model, "a scan sees the keys that no other client changes");
                }
            }
            model
        },
    );
    let model: NumberModel = models.into_iter().flatten().flatten().collect();
    beside.run_one::<L, D, _, _>(&cluster, compute, |fabric| {
        let model = &model;
        async move { same_contents(&open::<L, D, _>(fabric, compute).await, model).await }
    });
}

/// Several clients at once on the same few keys: every compare-exchange counts exactly once.
pub fn concurrent_counters<L, D, P>(setup: &SuiteSetup<'_, P, D::Options>, beside: &SuiteBackground)
where
    L: NamedLayout,
    D: Design<L>,
    P: Provider,
{
    const ROUNDS: u64 = 150;
    let keys = [3, u64::MAX / 2, u64::MAX];
    let cluster = setup.with_index::<L, D>();
    let compute = &compute::<L, D>(&setup.options);
    let inserted =
        beside.run::<L, D, _, _, _>(&cluster, compute, &[0, 1, 2], |fabric, _| async move {
            let dice = ClientRandom(fabric.clone());
            let index = open::<L, D, _>(fabric, compute).await;
            let mut inserted = 0;
            for key in keys {
                inserted += u64::from(index.insert(&key, &0).await.unwrap());
            }
            for _ in 0..ROUNDS {
                let key = keys[dice.below(3) as usize];
                let mut held = index.get(&key).await.unwrap().expect("no client removes it");
                while let Exchange::Differs(now) =
                    index.compare_exchange(&key, &held, &(held + 1)).await.unwrap()
                {
                    held = now.expect("no client removes it");
                }
            }
            inserted
        });
    assert_eq!(inserted.iter().flatten().sum::<u64>(), 3, "of several inserts one succeeds");
    beside.run_one::<L, D, _, _>(&cluster, compute, |fabric| async move {
        let index = open::<L, D, _>(fabric, compute).await;
        let counters = index.multi_get(&keys).await.unwrap();
        assert_eq!(counters.into_iter().flatten().sum::<u64>(), 3 * ROUNDS);
    });
}
