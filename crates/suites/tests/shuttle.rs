//! Whole operations of several threads on one DEX cache with few frames. `shuttle` runs them with
//! all accesses to shared memory in random orders:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p farleaf-suites --release --test shuttle`
//!
//! Each client has its own keys, so it always knows their values. The values of other clients' keys
//! must only grow. When all clients have ended, the test checks the frames and the contents:
//! through the cache and, after a flush, in the pool.
//!
//! Orders come from a fixed seed. `FARLEAF_SHUTTLE_SEED` and `FARLEAF_SHUTTLE_RUNS` select other
//! orders, and more of them. All accesses are sequentially consistent here; `tests/loom.rs` checks
//! weaker ones.
#![cfg(shuttle)]

use farleaf_dex::cache::{
    AdmissionName, CacheOptions, FrameCache, FrameId, FrameState, MappedNode, is_clean,
};
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::{LocalCluster, LocalConfig};
use farleaf_fabric::sync::{Arc, Ordering};
use farleaf_fabric::{
    AnyFabric, Buffer, Cluster, Fabric, FabricError, GlobalAddr, Message, Rule, ServerId,
    now_or_never,
};
use farleaf_index::CacheCounters;
use farleaf_index::partition::{ComputePool, RoutedIndex};
use farleaf_index::{AcknowledgeName, Design, Exchange, IndexAdmin, RangeIndex, ScanRequest};
use farleaf_page::rules::KnownRule;
use farleaf_page::{Fixed8, Layout};
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_suites::conformance::SuiteSetup;
use shuttle::rand::{RngCore, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;

/// Pages of four entries, so that few keys make a high tree.
type Tiny = Fixed8<16>;
/// Pages of eight entries. With fewer entries, two neighbours that do not fit one page have nothing
/// to rebalance.
type Small = Fixed8<24>;
type Model = BTreeMap<u64, u64>;

trait Pages: Layout<Key = u64, Value = u64> {}
impl<L: Layout<Key = u64, Value = u64>> Pages for L {}

/// The local provider with delayed WRITEs. A WRITE takes effect once it is awaited and other tasks
/// have had a turn, or before the next operation that its endpoint posts to that server, whichever
/// comes first (F3, F8).
#[derive(Debug)]
struct Late<F> {
    inner: F,
    posted: Rc<RefCell<VecDeque<Posted>>>,
    /// The rule to break, if any.
    broken: Option<Rule>,
}

/// The outcome of a WRITE, once it has landed.
type Landed = Rc<RefCell<Option<Result<Buffer, FabricError>>>>;

#[derive(Debug)]
struct Posted {
    at: GlobalAddr,
    from: Buffer,
    landed: Landed,
}

impl<F: Clone> Clone for Late<F> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), posted: Rc::clone(&self.posted), broken: self.broken }
    }
}

impl<F: Fabric> Late<F> {
    fn new(inner: F, bug: &str) -> Self {
        let broken = KnownRule::with_bug(bug).map(|known| known.rule);
        Self { inner, posted: Rc::default(), broken }
    }

    /// Makes all WRITEs that were posted to `server` take effect.
    fn land(&self, server: ServerId) {
        let next = || {
            let mut posted = self.posted.borrow_mut();
            let first = posted.iter().position(|write| write.at.server() == server)?;
            posted.remove(first)
        };
        while let Some(write) = next() {
            let outcome = now_or_never(self.inner.write(write.at, write.from));
            *write.landed.borrow_mut() = Some(outcome);
        }
    }

    fn land_all(&self) {
        (0..self.memory_servers()).for_each(|number| self.land(ServerId::new(number)));
    }
}

impl<F: Fabric> Fabric for Late<F> {
    type Op<T: 'static> = Pin<Box<dyn Future<Output = Result<T, FabricError>>>>;

    fn read(&self, at: GlobalAddr, into: Buffer) -> Self::Op<Buffer> {
        self.land(at.server());
        Box::pin(self.inner.read(at, into))
    }

    fn write(&self, at: GlobalAddr, from: Buffer) -> Self::Op<Buffer> {
        let landed = Landed::default();
        let posted = Posted { at, from, landed: Rc::clone(&landed) };
        self.posted.borrow_mut().push_back(posted);
        let fabric = self.clone();
        Box::pin(async move {
            if fabric.random() % 2 == 0 {
                fabric.sleep(1_000).await;
            }
            fabric.land(at.server());
            landed.borrow_mut().take().expect("it has landed")
        })
    }

    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Self::Op<u64> {
        self.land(at.server());
        Box::pin(self.inner.compare_swap(at, expected, new))
    }

    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> Self::Op<u64> {
        self.land(at.server());
        Box::pin(self.inner.fetch_add(at, delta))
    }

    fn call(&self, server: ServerId, request: Message) -> Self::Op<Message> {
        self.land(server);
        Box::pin(self.inner.call(server, request))
    }

    async fn reset(&self, server: ServerId) -> Result<(), FabricError> {
        self.land(server);
        self.inner.reset(server).await
    }

    async fn fence(&self, server: ServerId, compute_server: u16) -> Result<(), FabricError> {
        self.land(server);
        self.inner.fence(server, compute_server).await
    }

    farleaf_fabric::forward_fabric!(inner);

    fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }
}

/// Relative frequencies of the clients' operations.
#[derive(Clone, Copy, Debug)]
struct Mix {
    insert: u64,
    update: u64,
    remove: u64,
    get: u64,
    /// Looks up a key of another client.
    peek: u64,
    flush: u64,
}

const NOTHING: Mix = Mix { insert: 0, update: 0, remove: 0, get: 0, peek: 0, flush: 0 };

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    /// Number of records at the beginning; their keys are even.
    records: u64,
    /// The fill of the nodes at the beginning.
    fill: f64,
    clients: u64,
    rounds: u64,
    mix: Mix,
    /// The first key of a second compute server, if there is one.
    boundary: Option<u64>,
    acknowledge: AcknowledgeName,
    /// The planted bug; empty for none.
    bug: &'static str,
}

/// Memory servers with a loaded index, and its compute side.
struct World<L: Pages> {
    memory: LocalCluster<MemoryServer<L>>,
    pool: Arc<ComputePool<Dex, L>>,
    options: DexOptions<u64>,
}

impl<L: Pages> World<L> {
    fn new(records: u64, fill: f64, boundary: Option<u64>, acknowledge: AcknowledgeName) -> Self {
        let mut dice = thread_rng();
        let provider = LocalConfig { depth: 8, seed: dice.next_u64(), ..LocalConfig::default() };
        let admission = match dice.next_u64() % 4 {
            0 | 1 => AdmissionName::Hot,
            2 => AdmissionName::Cold,
            _ => AdmissionName::Coin(0.3),
        };
        // The smallest possible cache.
        let cache = CacheOptions { bytes: 0, admission, acknowledge, ..CacheOptions::default() };
        let options = DexOptions {
            chunk_nodes_log2: 2,
            placement_level: 1,
            ..DexOptions::with_boundaries(boundary.into_iter().collect(), cache)
        };
        let server = MemoryServerConfig { pool_bytes: 112 << 10, ..Default::default() };
        let setup =
            SuiteSetup { provider: &provider, options: options.clone(), memory_servers: 2, server };
        let memory = setup.with_index::<L, Dex>();
        let pool = <Dex as Design<L>>::compute(&options).unwrap();
        let world = Self { memory, pool, options };
        world.memory.run_one(|fabric| {
            let pool = &world.pool;
            async move {
                let index = open(fabric, pool).await;
                index.bulk_load((0..records).map(|number| (number * 2, 1)), fill).await.unwrap();
                // Fill the frames.
                assert_eq!(
                    index.scan(&ScanRequest::range(..)).await.unwrap().len(),
                    records as usize
                );
            }
        });
        world
    }

    /// Checks everything after all clients have ended.
    fn ends_as(&self, model: &Model) {
        let expected: Vec<(u64, u64)> = model.iter().map(|(&key, &value)| (key, value)).collect();
        let expected = &expected;
        self.pool.servers().iter().for_each(|server| frames_are_sound(server.state().cache()));
        // ack.A1: what was answered is in the pool already, so nobody looks or flushes before.
        if self.options.cache.acknowledge == AcknowledgeName::Cached {
            self.memory.run_one(|fabric| async move {
                let index = open(fabric, &self.pool).await;
                let found = index.scan(&ScanRequest::range(..)).await.unwrap();
                assert_eq!(found, *expected, "through the cache");
                for part in self.pool.servers() {
                    index.part(part.number()).flush().await.unwrap();
                }
            });
        }
        self.pool.servers().iter().for_each(|server| frames_are_sound(server.state().cache()));
        let others = <Dex as Design<L>>::compute(&self.options).unwrap();
        let others = &others;
        self.memory.run_one(|fabric| async move {
            let found = open(fabric, others).await.scan(&ScanRequest::range(..)).await.unwrap();
            assert_eq!(found, *expected, "in the pool");
        });
    }
}

async fn open<F: Fabric, L: Pages>(
    fabric: F,
    pool: &Arc<ComputePool<Dex, L>>,
) -> RoutedIndex<Dex, F, L> {
    <Dex as Design<L>>::open(fabric, pool).await.unwrap()
}

/// Checks inv. C1, C2, C5, C9, C10, C11 of a cache that no client uses.
fn frames_are_sound<L: Pages>(cache: &FrameCache<L>) {
    let arena = cache.arena();
    let frames = || (0..arena.frames()).map(FrameId::new);
    let mut pointed_to_by = BTreeMap::new();
    for frame in frames() {
        if matches!(arena.state(frame), FrameState::Hot | FrameState::Pinned) {
            for (_, child) in cache.swizzled(arena.page(frame)) {
                let other = pointed_to_by.insert(child, frame);
                assert_eq!(other, None, "C9: two parents of {child:?}, {frame:?}");
            }
        }
    }
    for frame in frames() {
        let (page, state) = (arena.page(frame), arena.state(frame));
        let address = page.address();
        if state == FrameState::Free {
            // A frame that has never been used is not locked yet.
            let fresh = page.words().iter().all(|word| word.load(Ordering::Relaxed) == 0);
            assert!(fresh || cache.seen(frame).is_none(), "C2: {frame:?}");
            continue;
        }
        assert_eq!(cache.mapping().get(address.to_bits()), MappedNode::Frame(frame), "C5");
        assert!(cache.seen(frame).is_some() && !arena.is_writing(frame), "{frame:?} is left over");
        let parent = pointed_to_by.get(&frame).copied();
        match state {
            FrameState::Hot => assert!(parent.is_none() || arena.parent(frame) == parent, "C9"),
            FrameState::Cooling => {
                assert_eq!((parent, arena.parent(frame)), (None, None), "C10, C11");
                assert!(is_clean(page), "C11");
                assert_eq!(cache.swizzled(page).count(), 0, "C10");
            }
            FrameState::Pinned | FrameState::Free => assert_eq!(parent, None),
        }
        for (_, child) in cache.swizzled(page) {
            assert_eq!(arena.state(child), FrameState::Hot, "C10: {child:?} of {frame:?}");
        }
    }
}

/// A client with its own keys.
struct Client<L: Pages> {
    index: RoutedIndex<Dex, Late<AnyFabric>, L>,
    fabric: Late<AnyFabric>,
    number: u64,
    scenario: Scenario,
    /// The values of its keys.
    model: Model,
    /// The newest values of other clients' keys that it has seen.
    seen: Model,
    /// The last value that it has written.
    stamp: u64,
}

impl<L: Pages> Client<L> {
    fn below(&self, limit: u64) -> u64 {
        self.fabric.random() % limit
    }

    /// A random key of `client`: each of its even keys or the odd one after it. Half of the time,
    /// one of its first few.
    fn key_of(&self, client: u64) -> u64 {
        let pairs = self.scenario.records / self.scenario.clients;
        let pairs = if self.below(2) == 0 { pairs.min(3) } else { pairs };
        (self.below(pairs) * self.scenario.clients + client) * 2 + self.below(2)
    }

    async fn one_operation(&mut self) {
        let Mix { insert, update, remove, get, peek, flush } = self.scenario.mix;
        let mut drawn = self.below(insert + update + remove + get + peek + flush);
        let mut is = |weight: u64| {
            let is = drawn < weight;
            drawn = drawn.wrapping_sub(weight);
            is
        };
        let chosen = [insert, update, remove, get, peek].into_iter().position(&mut is);
        let key = self.key_of(self.number);
        let held = self.model.get(&key).copied();
        self.stamp += 1;
        match chosen {
            Some(0) => {
                let done = self.index.insert(&key, &self.stamp).await;
                assert_eq!(done, Ok(held.is_none()), "insert {key}");
                self.model.entry(key).or_insert(self.stamp);
            }
            Some(1) => {
                let done = self.index.update(&key, &self.stamp).await;
                assert_eq!(done, Ok(held.is_some()), "update {key}");
                self.model.entry(key).and_modify(|value| *value = self.stamp);
            }
            Some(2) => {
                // Mostly the first key, so that empty leaves and full ones become neighbours.
                let first = self.model.first_key_value().filter(|_| self.below(4) > 0);
                let (key, held) = first.map_or((key, held), |(&key, &value)| (key, Some(value)));
                assert_eq!(self.index.remove(&key).await, Ok(held.is_some()), "remove {key}");
                self.model.remove(&key);
            }
            Some(3) => assert_eq!(self.index.get(&key).await, Ok(held), "get {key}"),
            Some(_) => {
                let other = (self.number + 1 + self.below(self.scenario.clients - 1))
                    % self.scenario.clients;
                let key = self.key_of(other);
                if let Some(value) = self.index.get(&key).await.unwrap() {
                    let before = self.seen.insert(key, value).unwrap_or(0);
                    assert!(before <= value, "key {key} went back from {before} to {value}");
                }
            }
            None => {
                let part = self.below(self.index_parts()) as u16;
                self.index.part(part).flush().await.unwrap();
            }
        }
    }

    fn index_parts(&self) -> u64 {
        1 + u64::from(self.scenario.boundary.is_some())
    }
}

/// One run of a scenario.
fn play<L: Pages>(scenario: Scenario) -> CacheCounters {
    let Scenario { records, fill, clients, rounds, boundary, acknowledge, .. } = scenario;
    let world = World::<L>::new(records, fill, boundary, acknowledge);
    let pool = &world.pool;
    let ended = world.memory.run(&vec![0; clients as usize], |fabric, number| async move {
        let (fabric, number) = (Late::new(fabric, scenario.bug), number as u64);
        let mut client = Client::<L> {
            index: open(fabric.clone(), pool).await,
            fabric,
            number,
            scenario,
            model: (0..records)
                .filter(|pair| pair % clients == number)
                .map(|pair| (pair * 2, 1))
                .collect(),
            seen: Model::new(),
            stamp: 1,
        };
        for _ in 0..rounds {
            client.one_operation().await;
        }
        client.fabric.land_all();
        (client.model, client.index.cache_counters())
    });
    let (mut model, mut counters) = (Model::new(), CacheCounters::default());
    for (its, count) in ended.into_iter().flatten() {
        model.extend(its);
        counters += count;
    }
    world.ends_as(&model);
    counters
}

fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// Runs `body` in random orders, and in orders with few priority changes. Returns the sum of the
/// caches' counters.
fn in_many_orders(body: impl Fn() -> CacheCounters + Send + Sync + 'static) -> CacheCounters {
    const RUNS: u64 = 300;
    let seed = environment("FARLEAF_SHUTTLE_SEED", 1);
    let runs = environment("FARLEAF_SHUTTLE_RUNS", RUNS) as usize;
    let mut config = Config::new();
    config.stack_size = 1 << 19;
    config.silence_warnings = true;
    config.failure_persistence = FailurePersistence::None;
    let body = std::sync::Arc::new(body);
    let total = std::sync::Arc::new(std::sync::Mutex::new(CacheCounters::default()));
    let run = || {
        let (body, total) = (std::sync::Arc::clone(&body), std::sync::Arc::clone(&total));
        move || {
            let counters = body();
            *total.lock().unwrap() += counters;
        }
    };
    Runner::new(RandomScheduler::new_from_seed(seed, runs), config.clone()).run(run());
    Runner::new(PctScheduler::new_from_seed(seed, 4, runs), config).run(run());
    let total = *total.lock().unwrap();
    println!("{total:?}");
    total
}

const UPDATES: Scenario = Scenario {
    records: 66,
    fill: 0.7,
    clients: 3,
    rounds: 12,
    mix: Mix { insert: 1, update: 5, get: 3, peek: 3, ..NOTHING },
    boundary: None,
    acknowledge: AcknowledgeName::Cached,
    bug: "",
};

/// More leaves than frames: clients evict each other's leaves.
#[test]
fn changes_beside_evictions() {
    let done = in_many_orders(|| play::<Tiny>(UPDATES));
    assert!(done.evictions > 0 && done.write_backs > 0 && done.reheats > 0, "{done:?}");
}

const SPLITS: Scenario = Scenario {
    records: 72,
    fill: 1.0,
    mix: Mix { insert: 6, get: 2, peek: 3, ..NOTHING },
    ..UPDATES
};

/// Full leaves below full inner nodes.
#[test]
fn splits_beside_lookups() {
    let done = in_many_orders(|| play::<Tiny>(SPLITS));
    assert!(done.splits > 0 && done.evictions > 0, "{done:?}");
}

const REMOVALS: Scenario =
    Scenario { mix: Mix { remove: 6, update: 2, insert: 1, get: 2, peek: 2, flush: 0 }, ..UPDATES };

#[test]
fn merges_beside_lookups_and_updates() {
    let done = in_many_orders(|| play::<Tiny>(REMOVALS));
    assert!(done.merges > 0 && done.evictions > 0, "{done:?}");
}

#[test]
fn neighbours_are_evened_out_beside_lookups_and_updates() {
    let scenario = Scenario { records: 150, fill: 1.0, ..REMOVALS };
    let done = in_many_orders(move || play::<Small>(scenario));
    assert!(done.borrows > 0 && done.evictions > 0, "{done:?}");
}

/// Few leaves, all cached. Their entries move while other clients search them (D5: a search of a
/// leaf that changed meanwhile is discarded).
#[test]
fn lookups_beside_shifts() {
    let mix = Mix { insert: 4, remove: 4, get: 8, ..NOTHING };
    let scenario = Scenario { records: 9, fill: 0.8, rounds: 16, mix, ..UPDATES };
    in_many_orders(move || play::<Small>(scenario));
}

/// inv. C14: no acknowledged change is lost.
#[test]
fn write_backs_beside_changes() {
    let mix = Mix { update: 6, get: 3, peek: 2, flush: 2, ..NOTHING };
    let done = in_many_orders(move || play::<Tiny>(Scenario { mix, ..UPDATES }));
    assert!(done.write_backs > 0, "{done:?}");
}

/// inv. ack.A1: what is answered is in the pool, while leaves split and merge and others read them.
#[test]
fn written_changes_beside_splits_and_merges() {
    let mix = Mix { insert: 4, update: 4, remove: 3, get: 3, peek: 3, flush: 0 };
    let acknowledge = AcknowledgeName::Written;
    let scenario = Scenario { mix, acknowledge, fill: 1.0, ..UPDATES };
    let done = in_many_orders(move || play::<Tiny>(scenario));
    assert!(done.splits > 0 && done.write_backs > 0 && done.evictions > 0, "{done:?}");
}

const SHARED: Scenario = Scenario {
    records: 120,
    mix: Mix { insert: 6, remove: 2, get: 2, peek: 2, ..NOTHING },
    boundary: Some(120),
    ..SPLITS
};

/// inv. C9: two compute servers split nodes that both have cached, and hot nodes change parents.
#[test]
fn shared_nodes_become_old() {
    let done = in_many_orders(|| play::<Tiny>(SHARED));
    assert!(done.shared_splits > 0 && done.refreshes > 0 && done.evictions > 0, "{done:?}");
}

/// Every acknowledged exchange has happened.
#[test]
fn one_hot_key() {
    in_many_orders(|| {
        const KEY: u64 = 20;
        let world = World::<Tiny>::new(24, 0.7, None, AcknowledgeName::Cached);
        let pool = &world.pool;
        let ended = world.memory.run(&[0; 3], |fabric, _| async move {
            let fabric = Late::new(fabric, "");
            let index = open(fabric.clone(), pool).await;
            let (mut held, mut done) = (1, 0);
            for _ in 0..5 {
                match index.compare_exchange(&KEY, &held, &(held + 1)).await.unwrap() {
                    Exchange::Exchanged => {
                        held += 1;
                        done += 1;
                    }
                    Exchange::Differs(found) => held = found.expect("no client removes it"),
                }
                if fabric.random() % 2 == 0 {
                    index.part(0).flush().await.unwrap();
                }
            }
            fabric.land_all();
            (done, index.cache_counters())
        });
        let (mut sum, mut counters) = (0, CacheCounters::default());
        for (done, count) in ended.into_iter().flatten() {
            sum += done;
            counters += count;
        }
        let mut model: Model = (0..24).map(|number| (number * 2, 1)).collect();
        model.insert(KEY, 1 + sum);
        world.ends_as(&model);
        counters
    });
}

/// A canary: the checks must notice that a frame is reused while its write-back is in flight.
#[test]
#[should_panic(expected = "left == right")]
fn canary_frees_frames_early() {
    in_many_orders(|| play::<Tiny>(Scenario { bug: "frees_frames_early", ..UPDATES }));
}

/// A canary: the checks must notice that descents trust old parents. (A scan then loops forever.)
#[test]
#[should_panic]
fn canary_skips_fences() {
    in_many_orders(|| play::<Tiny>(Scenario { bug: "skips_fences", ..SHARED }));
}
