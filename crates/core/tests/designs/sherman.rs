//! What Sherman guarantees beyond the suite of all designs: its network cost, its behavior without
//! memory, and that a client that dies half-way through a change harms no other client.

use super::clients::{Known, fill_until_refused, write_for_ever};
use farleaf_core::index::conformance::Setup;
use farleaf_core::index::sherman::{
    PSherman, PShermanOptions, Sherman, ShermanCompute, ShermanIndex, ShermanOptions,
};
use farleaf_core::index::{Action, Design, IndexAdmin, LeafEdit, RangeIndex, Scan};
use farleaf_core::page::{Entries8, Fixed8, Layout};
use farleaf_core::server::MemoryServerConfig;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::{Cluster, CounterSnapshot, Fabric, Provider};
use std::collections::BTreeMap;
use std::sync::Mutex;

type Tiny = Fixed8<16>;
type Leaves<L> = <L as Layout>::Entries;

const FEW: ShermanOptions =
    ShermanOptions { chunk_nodes_log2: 4, cache_bytes: 1 << 12, hand_overs: 2 };
const PAGE: u64 = 1_024;

fn setup<P: Provider>(
    provider: &P,
    servers: u16,
    pool_bytes: usize,
    options: ShermanOptions,
) -> Setup<'_, P, ShermanOptions> {
    let server = MemoryServerConfig { pool_bytes, ..Default::default() };
    Setup { provider, options, memory_servers: servers, server }
}

fn compute<L: Layout>(options: &ShermanOptions) -> ShermanCompute<Leaves<L>> {
    <Sherman as Design<L>>::compute(options).unwrap()
}

async fn open<F: Fabric, L: Layout>(
    fabric: F,
    compute: &ShermanCompute<Leaves<L>>,
) -> ShermanIndex<F, Leaves<L>> {
    <Sherman as Design<L>>::open(fabric, compute).await.unwrap()
}

/// The cost of an operation, from the counters.
async fn spent<F: Fabric>(fabric: &F, operation: impl Future<Output = ()>) -> CounterSnapshot {
    let start = fabric.counters().snapshot();
    operation.await;
    fabric.counters().snapshot() - start
}

/// READs, atomics, WRITEs and RPCs.
fn counts(cost: CounterSnapshot) -> [u64; 4] {
    [cost.reads, cost.atomics, cost.writes, cost.rpcs]
}

/// Runs `check` on a loaded index of which all parents of leaves are cached.
fn on_a_loaded_index(
    options: ShermanOptions,
    check: impl AsyncFn(ShermanIndex<SimFabric, Entries8>, SimFabric) + Sync,
) {
    let provider = SimConfig::default();
    let cluster = setup(&provider, 3, 32 << 20, options).with_index::<Fixed8, Sherman>();
    let (compute, check) = (&compute::<Fixed8>(&options), &check);
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone(), compute).await;
        index.bulk_load((0..60_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        // The first scan caches the parents. The first change registers a number.
        assert_eq!(index.scan(&Scan::range(..)).await.unwrap().len(), 60_000);
        assert_eq!(index.update(&0, &0).await, Ok(true));
        check(index, fabric).await;
    });
}

type SimFabric = <<SimConfig as Provider>::Cluster<
    farleaf_core::server::MemoryServer<Fixed8>,
> as Cluster>::Fabric;

#[test]
fn operations_cost_what_the_design_says() {
    on_a_loaded_index(ShermanOptions::default(), async |index, fabric| {
        for number in (0..60_000).step_by(1_001) {
            let key = number * 3;
            let get = async { assert_eq!(index.get(&key).await, Ok(Some(number))) };
            let cost = spent(&fabric, get).await;
            assert_eq!((counts(cost), cost.bytes_read), ([1, 0, 0, 0], PAGE), "get: {cost:?}");
            let update = async { assert_eq!(index.update(&key, &!number).await, Ok(true)) };
            let cost = spent(&fabric, update).await;
            // The value and the check of one entry, and the release of the lock.
            assert_eq!((counts(cost), cost.bytes_written), ([1, 1, 2, 0], 16 + 8), "{cost:?}");
            let insert = async { assert_eq!(index.insert(&(key + 1), &7).await, Ok(true)) };
            let cost = spent(&fabric, insert).await;
            assert_eq!((counts(cost), cost.bytes_written), ([1, 1, 3, 0], 16 + 8 + 8), "{cost:?}");
            let remove = async { assert_eq!(index.remove(&(key + 1)).await, Ok(true)) };
            let cost = spent(&fabric, remove).await;
            assert_eq!((counts(cost), cost.bytes_written), ([1, 1, 2, 0], 8 + 8), "{cost:?}");
            let absent = async { assert_eq!(index.remove(&(key + 1)).await, Ok(false)) };
            assert_eq!(counts(spent(&fabric, absent).await), [1, 1, 1, 0], "only the release");
            assert_eq!(index.get(&key).await, Ok(Some(!number)));
            assert_eq!(index.get(&(key + 1)).await, Ok(None));
        }
    });
}

/// Without the parent in the cache, an operation reads one node a level.
#[test]
fn a_miss_costs_a_descent() {
    let options = ShermanOptions { cache_bytes: 0, ..ShermanOptions::default() };
    on_a_loaded_index(options, async |index, fabric| {
        // 28 records per leaf and 42 children per node make 2,143 leaves, 52 parents, 2 nodes and
        // the root.
        let height = 4;
        for number in (0..60_000).step_by(2_001) {
            let get = async { assert_eq!(index.get(&(number * 3)).await, Ok(Some(number))) };
            let cost = spent(&fabric, get).await;
            assert_eq!((counts(cost), cost.bytes_read), ([height, 0, 0, 0], height * PAGE));
            let update = async { assert_eq!(index.update(&(number * 3), &number).await, Ok(true)) };
            assert_eq!(counts(spent(&fabric, update).await), [height, 1, 2, 0]);
        }
    });
}

/// Operations on one leaf at the same time: each but the first gets the lock by hand-over, and
/// costs one READ and one WRITE; the last one also releases the lock.
#[test]
fn a_lock_that_is_handed_over_costs_no_cas() {
    let expected = |hand_overs: u32, together: u64| match hand_overs {
        0 => [together, together, 2 * together, 0],
        _ => [together, 1, together + 1, 0],
    };
    for hand_overs in [0, 8] {
        let options = ShermanOptions { hand_overs, ..ShermanOptions::default() };
        on_a_loaded_index(options, async |index, fabric| {
            for together in 1..=6 {
                let keys: Vec<u64> = (0..together).map(|n| 3_000 + n * 3).collect();
                let edit = |key| LeafEdit { key, action: Action::Update(&7) };
                let edits: Vec<_> = keys.iter().map(edit).collect();
                let update = async {
                    let answers = index.execute_all(&edits).await;
                    assert!(answers.into_iter().all(|answer| answer.unwrap().applied));
                };
                let cost = spent(&fabric, update).await;
                assert_eq!(counts(cost), expected(hand_overs, together), "{together}: {cost:?}");
            }
        });
    }
    // At most so many in a row, then the lock is released.
    let options = ShermanOptions { hand_overs: 2, ..ShermanOptions::default() };
    on_a_loaded_index(options, async |index, fabric| {
        let keys: Vec<u64> = (0..6).map(|n| 3_000 + n * 3).collect();
        let edit = |key| LeafEdit { key, action: Action::Remove };
        let edits: Vec<_> = keys.iter().map(edit).collect();
        let remove = async { drop(index.execute_all(&edits).await) };
        assert_eq!(counts(spent(&fabric, remove).await), [6, 2, 6 + 2, 0]);
    });
}

/// Divided among compute servers, no operation needs a lock, whichever compute server it begins on.
#[test]
fn the_owner_of_a_leaf_needs_no_lock() {
    let provider = SimConfig::default();
    let boundaries = vec![60_001, 120_001];
    let options = PShermanOptions { sherman: ShermanOptions::default(), boundaries };
    let server = MemoryServerConfig { pool_bytes: 32 << 20, ..Default::default() };
    let setup = Setup { provider: &provider, options, memory_servers: 3, server };
    let cluster = setup.with_index::<Fixed8, PSherman>();
    let compute = &<PSherman as Design<Fixed8>>::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <PSherman as Design<Fixed8>>::open(fabric.clone(), compute).await.unwrap();
        index.bulk_load((0..60_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        let all = Scan::range(..);
        assert_eq!(index.scan(&all).await.unwrap().len(), 60_000);
        // Each owner caches what its operations need, also of leaves that cross a boundary.
        let keys: Vec<u64> = (0..60_000).map(|n| n * 3).collect();
        assert_eq!(index.multi_get(&keys).await.unwrap().len(), 60_000);
        for number in (0..60_000).step_by(1_001) {
            let key = number * 3;
            let get = async { assert_eq!(index.get(&key).await, Ok(Some(number))) };
            let cost = spent(&fabric, get).await;
            assert_eq!((counts(cost), cost.bytes_read), ([1, 0, 0, 0], PAGE), "get: {cost:?}");
            let update = async { assert_eq!(index.update(&key, &number).await, Ok(true)) };
            let cost = spent(&fabric, update).await;
            assert_eq!((counts(cost), cost.bytes_written), ([1, 0, 1, 0], 16), "{cost:?}");
            let insert = async { assert_eq!(index.insert(&(key + 1), &7).await, Ok(true)) };
            assert_eq!(counts(spent(&fabric, insert).await), [1, 0, 2, 0]);
            let remove = async { assert_eq!(index.remove(&(key + 1)).await, Ok(true)) };
            assert_eq!(counts(spent(&fabric, remove).await), [1, 0, 1, 0]);
            let absent = async { assert_eq!(index.remove(&(key + 1)).await, Ok(false)) };
            assert_eq!(counts(spent(&fabric, absent).await), [1, 0, 0, 0]);
        }
        let descending = PShermanOptions { boundaries: vec![2, 1], ..setup_options() };
        assert!(<PSherman as Design<Fixed8>>::compute(&descending).is_err());
    });
}

fn setup_options() -> PShermanOptions<u64> {
    PShermanOptions { sherman: ShermanOptions::default(), boundaries: Vec::new() }
}

#[test]
fn reads_of_known_leaves_leave_together() {
    on_a_loaded_index(ShermanOptions::default(), async |index, fabric| {
        let keys: Vec<u64> = (0..64).map(|n| n * 2_700).collect();
        let get = async {
            let values = index.multi_get(&keys).await.unwrap();
            assert!(values.iter().zip(&keys).all(|(value, key)| *value == Some(key / 3)));
        };
        let cost = spent(&fabric, get).await;
        assert_eq!((counts(cost), cost.doorbells), ([64, 0, 0, 0], 1), "{cost:?}");
        for number in (0..59_000).step_by(97) {
            let (mut up, mut down) = (Vec::new(), Vec::new());
            let scans = async {
                let keys = Scan::range(number * 3..).limit(100);
                up = index.scan(&keys).await.unwrap();
            };
            let cost = spent(&fabric, scans).await;
            assert_eq!(up, (number..number + 100).map(|n| (n * 3, n)).collect::<Vec<_>>());
            // 100 records are in four or five leaves.
            assert!((4..=6).contains(&cost.reads) && cost.doorbells <= 2, "{cost:?}");
            let scans = async {
                let keys = Scan::range(..=number * 3).reverse().limit(100);
                down = index.scan(&keys).await.unwrap();
            };
            let cost = spent(&fabric, scans).await;
            let expected = (0..=number).rev().take(100).map(|n| (n * 3, n));
            assert_eq!(down, expected.collect::<Vec<_>>());
            assert!(cost.reads <= 6 && cost.doorbells <= 3, "{cost:?}");
        }
    });
}

/// One compute server's cached parents grow old while another one's clients split the leaves.
#[test]
fn old_cached_parents_cost_reads_and_nothing_else() {
    let provider = SimConfig::default();
    let options = ShermanOptions { chunk_nodes_log2: 4, ..ShermanOptions::default() };
    let cluster = setup(&provider, 3, 16 << 20, options).with_index::<Tiny, Sherman>();
    let compute = &compute::<Tiny>(&options);
    let stage = &Mutex::new(0);
    cluster.run(&[0, 1], |fabric, client| async move {
        let index = open::<_, Tiny>(fabric.clone(), compute).await;
        let reach = async |wanted: u32| {
            while *stage.lock().unwrap() < wanted {
                fabric.sleep(1_000).await;
            }
        };
        let done = || *stage.lock().unwrap() += 1;
        if client == 1 {
            reach(1).await;
            for key in 0..4_000 {
                index.upsert(&key, &(key * 2)).await.unwrap();
            }
            return done();
        }
        index.bulk_load((0..400).map(|n| (n * 10, n * 20)), 1.0).await.unwrap();
        index.scan(&Scan::range(..)).await.unwrap();
        done();
        reach(2).await;
        let all: Vec<_> = (0..4_000).map(|key| (key, key * 2)).collect();
        assert_eq!(index.scan(&Scan::range(..)).await.unwrap(), all);
        let down = index.scan(&Scan::range(..).reverse()).await.unwrap();
        assert!(down.iter().rev().eq(&all));
        for (key, value) in &all {
            assert_eq!(index.get(key).await, Ok(Some(*value)));
            assert_eq!(index.remove(key).await, Ok(true));
        }
        assert_eq!(index.scan(&Scan::range(..)).await.unwrap(), []);
        let cached = <Sherman as Design<Tiny>>::cached_bytes(compute);
        assert!((1 << 10..4_000 * 128).contains(&cached), "{cached}");
    });
}

#[test]
fn without_memory_the_operation_fails_and_the_index_stays_whole() {
    let provider = LocalConfig::default();
    let options = ShermanOptions { chunk_nodes_log2: 2, ..FEW };
    let cluster = setup(&provider, 2, 128 << 10, options).with_index::<Tiny, Sherman>();
    let compute = &compute::<Tiny>(&options);
    cluster.run_one(|fabric| async move {
        let index = open::<_, Tiny>(fabric.clone(), compute).await;
        let model = fill_until_refused(&index).await;
        let contents: Vec<_> = model.iter().map(|(&key, &value)| (key, value)).collect();
        assert_eq!(index.scan(&Scan::range(..)).await.unwrap(), contents);
        for (key, value) in &contents {
            assert_eq!(index.get(key).await, Ok(Some(*value)));
            assert_eq!(index.update(key, &!value).await, Ok(true));
            assert_eq!(index.remove(key).await, Ok(true));
            assert_eq!(index.insert(key, value).await, Ok(true));
        }
        assert_eq!(index.scan(&Scan::range(..)).await.unwrap(), contents);
    });
}

fn dying_holder(config: SimConfig) {
    let seed = config.seed;
    let provider = SimConfig { give_up_after_ns: 2_000_000_000, ..config };
    let cluster = setup(&provider, 3, 16 << 20, FEW).with_index::<Tiny, Sherman>();
    let compute = &compute::<Tiny>(&FEW);
    let known: [Mutex<Known>; 5] = Default::default();
    let stop = Mutex::new(false);
    let (known, stop, control) = (&known, &stop, &cluster.control());
    cluster.run(&[1, 1, 2, 2, 3], |fabric, client| async move {
        let index = open::<_, Tiny>(fabric.clone(), compute).await;
        if client < 4 {
            return write_for_ever(&fabric, &index, &known[client], client as u64, stop).await;
        }
        // Two of the four writers die.
        fabric.sleep(60_000 + fabric.random() % 600_000).await;
        control.kill_compute_server(1);
        fabric.sleep(30_000).await;
        index.declare_dead(1).await.unwrap();
        fabric.sleep(400_000).await;
        *stop.lock().unwrap() = true;
    });
    cluster.run(&[4], |fabric, _| async move {
        let index = open::<_, Tiny>(fabric.clone(), compute).await;
        for round in 0..2 {
            let scanned = index.scan(&Scan::range(..)).await.unwrap();
            let contents: BTreeMap<u64, u64> = scanned.into_iter().collect();
            let keys: Vec<_> =
                known.iter().flat_map(|known| known.lock().unwrap().clone()).collect();
            for (key, (acknowledged, on_its_way)) in keys {
                let found = [contents.get(&key).copied(), index.get(&key).await.unwrap()];
                for held in found {
                    let is_right = round == 1 && held == Some(!key)
                        || held == acknowledged
                        || Some(held) == on_its_way;
                    assert!(
                        is_right,
                        "seed {seed}: {key} is {held:?}, not {acknowledged:?}, {on_its_way:?}"
                    );
                }
                // No lock of the dead is left on the way of a change.
                index.upsert(&key, &!key).await.unwrap();
                assert_eq!(index.get(&key).await, Ok(Some(!key)), "seed {seed}");
            }
        }
    });
}

/// A simulated cluster with every fault that the contract allows.
fn rough(seed: u64) -> SimConfig {
    SimConfig { seed, faults: Faults::rough(), ..SimConfig::default() }
}

#[test]
fn a_client_that_dies_half_way_harms_no_other() {
    (0..60).for_each(|seed| dying_holder(rough(seed)));
}

/// The same with lost and late messages, including those of the dead client.
#[test]
fn a_client_that_dies_leaves_late_messages() {
    for seed in 0..60 {
        let faults = Faults {
            drop_probability: 0.01,
            late_probability: 0.01,
            max_late_ns: 150_000,
            timeout_ns: 60_000,
            ..Faults::rough()
        };
        dying_holder(SimConfig { faults, ..rough(seed) });
    }
}
