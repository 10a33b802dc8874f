//! Clients shared by the tests of several designs.

use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::{Cluster, CounterSnapshot, Fabric, Provider};
use farleaf_index::{Design, IndexAdmin, IndexError, RangeIndex, ScanRequest};
use farleaf_page::Layout;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::SuiteSetup;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Memory servers with pools of `pool_bytes` bytes.
pub(crate) fn setup<P: Provider, O>(
    provider: &P,
    memory_servers: u16,
    pool_bytes: usize,
    options: O,
) -> SuiteSetup<'_, P, O> {
    let server = MemoryServerConfig { pool_bytes, ..Default::default() };
    SuiteSetup { provider, options, memory_servers, server }
}

/// The cost of an operation, from the counters.
pub(crate) async fn spent<F: Fabric>(
    fabric: &F,
    operation: impl Future<Output = ()>,
) -> CounterSnapshot {
    let start = fabric.counters().snapshot();
    operation.await;
    fabric.counters().snapshot() - start
}

/// READs, atomics, WRITEs and RPCs.
pub(crate) fn counts(cost: CounterSnapshot) -> [u64; 4] {
    [cost.reads, cost.atomics, cost.writes, cost.rpcs]
}

/// READs, WRITEs, atomics and RPCs, and bytes read and written.
pub(crate) fn verbs(cost: CounterSnapshot) -> (u64, u64, u64, u64, u64, u64) {
    let CounterSnapshot { reads, writes, atomics, rpcs, bytes_read, bytes_written, .. } = cost;
    (reads, writes, atomics, rpcs, bytes_read, bytes_written)
}

/// The cost of an operation that needs no memory server.
pub(crate) const NOTHING: (u64, u64, u64, u64, u64, u64) = (0, 0, 0, 0, 0, 0);

/// Inserts keys in random order until some are refused for lack of memory. Returns the accepted
/// records.
pub(crate) async fn fill_until_refused(
    index: &impl RangeIndex<Key = u64, Value = u64>,
) -> BTreeMap<u64, u64> {
    let mut model = BTreeMap::new();
    let mut refused = 0;
    for number in 0..2_000_u64 {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match index.insert(&key, &number).await {
            Ok(true) => drop(model.insert(key, number)),
            Err(IndexError::OutOfMemory { .. }) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(refused > 0 && model.len() > 50, "{refused} refused, {} accepted", model.len());
    model
}

/// Fills an index until it refuses keys: it must have the accepted ones, and find room again once
/// most of them are removed.
pub(crate) async fn stays_whole_without_memory(index: &impl IndexAdmin<Key = u64, Value = u64>) {
    let model = fill_until_refused(index).await;
    let contents: Vec<_> = model.into_iter().collect();
    assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), contents);
    let mut downwards = index.scan(&ScanRequest::range(..).reverse()).await.unwrap();
    downwards.reverse();
    assert_eq!(downwards, contents);
    for (key, value) in &contents {
        assert_eq!(index.get(key).await, Ok(Some(*value)));
        assert_eq!(index.update(key, &!value).await, Ok(true));
    }
    for (key, _) in contents.iter().skip(3) {
        assert_eq!(index.remove(key).await, Ok(true));
    }
    index.collect().await.unwrap();
    for key in 0..20 {
        assert_eq!(index.insert(&((key << 40) + 1), &1).await, Ok(true));
    }
}

/// Stages that clients reach one after the other.
#[derive(Debug, Default)]
pub(crate) struct Stages(Mutex<u32>);

impl Stages {
    /// Waits until so many stages are done.
    pub(crate) async fn reach(&self, fabric: &impl Fabric, wanted: u32) {
        while *self.0.lock().unwrap() < wanted {
            fabric.sleep(1_000).await;
        }
    }

    /// The next stage is done.
    pub(crate) fn done(&self) {
        *self.0.lock().unwrap() += 1;
    }
}

/// A client's knowledge of a key: the last acknowledged value, and the value in flight.
pub(crate) type Known = BTreeMap<u64, (Option<u64>, Option<Option<u64>>)>;

/// A client that changes its own keys until it is told to stop, or dies.
pub(crate) async fn write_for_ever(
    fabric: &impl Fabric,
    index: &impl RangeIndex<Key = u64, Value = u64>,
    known: &Mutex<Known>,
    base: u64,
    stop: &Mutex<bool>,
) {
    while !*stop.lock().unwrap() {
        let key = base + fabric.random() % 60 * 4;
        let value = fabric.random();
        let removes = fabric.random().is_multiple_of(3);
        let after = (!removes).then_some(value);
        known.lock().unwrap().entry(key).or_default().1 = Some(after);
        if removes {
            index.remove(&key).await.unwrap();
        } else {
            index.upsert(&key, &value).await.unwrap();
        }
        known.lock().unwrap().insert(key, (after, None));
    }
}

/// Fills an index and empties it again, in rounds. Returns how many bytes were allocated in each
/// round when it was full. `empty` checks what is left when it is empty.
pub(crate) async fn grow_and_shrink(
    index: &impl IndexAdmin<Key = u64, Value = u64>,
    rounds: u64,
    allocated: impl AsyncFn() -> u64,
    empty: impl AsyncFn(),
) -> Vec<u64> {
    let mut most = Vec::new();
    for round in 0..rounds {
        for number in 0..3_000_u64 {
            index.insert(&(number * 977 + round), &number).await.unwrap();
        }
        most.push(allocated().await);
        for number in 0..3_000_u64 {
            assert_eq!(index.remove(&(number * 977 + round)).await, Ok(true));
        }
        index.collect().await.unwrap();
        empty().await;
    }
    most
}

/// The number in an environment variable.
fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// How many seeds to run: `usual`, unless `FARLEAF_SEEDS` sets another number.
pub(crate) fn seeds(usual: u64) -> u64 {
    number_from("FARLEAF_SEEDS").unwrap_or(usual)
}

/// Runs `check` with [`seeds`] seeds, from that of `FARLEAF_SEED` on.
pub(crate) fn for_seeds(usual: u64, check: impl Fn(u64)) {
    let first = number_from("FARLEAF_SEED").unwrap_or(0);
    for seed in first..first + seeds(usual) {
        println!("seed {seed}");
        check(seed);
    }
}

/// A simulated cluster with every fault that the contract allows.
pub(crate) fn rough(seed: u64) -> SimConfig {
    SimConfig { seed, faults: Faults::rough(), ..SimConfig::default() }
}

/// The same with lost and late messages.
pub(crate) fn late_and_lossy(seed: u64) -> SimConfig {
    let faults = Faults {
        drop_probability: 0.01,
        late_probability: 0.01,
        max_late_ns: 150_000,
        timeout_ns: 60_000,
        ..Faults::rough()
    };
    SimConfig { faults, ..rough(seed) }
}

/// A compute server dies while its clients change keys, and is declared dead. The others go on, and
/// nothing that was acknowledged is lost. If the design `collects`, one of the clients that die
/// collects instead.
pub(crate) fn dying_holder<L, D>(config: SimConfig, options: D::Options, collects: bool)
where
    L: Layout<Key = u64, Value = u64>,
    D: Design<L>,
{
    let seed = config.seed;
    let provider = SimConfig { give_up_after_ns: 2_000_000_000, ..config };
    let setup = setup(&provider, 3, 16 << 20, options);
    let cluster = setup.with_index::<L, D>();
    let compute = &D::compute(&setup.options).unwrap();
    let known: [Mutex<Known>; 5] = Default::default();
    let stop = Mutex::new(false);
    let (known, stop, control) = (&known, &stop, &cluster.control());
    cluster.run(&[1, 1, 2, 2, 3], |fabric, client| async move {
        let index = D::open(fabric.clone(), compute).await.unwrap();
        match client {
            1 if collects => collect_for_ever(&fabric, &index, stop).await,
            0..4 => write_for_ever(&fabric, &index, &known[client], client as u64, stop).await,
            _ => {
                fabric.sleep(60_000 + fabric.random() % 600_000).await;
                control.kill_compute_server(1);
                fabric.sleep(30_000).await;
                index.declare_dead(1).await.unwrap();
                fabric.sleep(400_000).await;
                *stop.lock().unwrap() = true;
            }
        }
    });
    cluster.run(&[4], |fabric, _| async move {
        let index = D::open(fabric.clone(), compute).await.unwrap();
        let scanned = async |scan: ScanRequest<u64>| -> BTreeMap<u64, u64> {
            index.scan(&scan).await.unwrap().into_iter().collect()
        };
        for round in 0..2 {
            let up = scanned(ScanRequest::range(..)).await;
            let down = scanned(ScanRequest::range(..).reverse()).await;
            let keys: Vec<_> =
                known.iter().flat_map(|known| known.lock().unwrap().clone()).collect();
            for (key, (acknowledged, on_its_way)) in keys {
                let got = index.get(&key).await.unwrap();
                let found = [up.get(&key).copied(), down.get(&key).copied(), got];
                for held in found {
                    let is_right = match round {
                        0 => held == acknowledged || Some(held) == on_its_way,
                        _ => held == Some(!key),
                    };
                    assert!(
                        is_right,
                        "seed {seed}: {key} is {held:?}, not {acknowledged:?}, {on_its_way:?}"
                    );
                }
                // A change that the dead client had in flight may take effect between the reads,
                // when another client finishes it, but then it stays.
                let stays = found.is_sorted_by_key(|held| *held != acknowledged);
                assert!(stays || round > 0, "seed {seed}: {key} went back: {found:?}");
                // No lock of the dead is left on the way of a change.
                index.upsert(&key, &!key).await.unwrap();
                assert_eq!(index.get(&key).await, Ok(Some(!key)), "seed {seed}");
            }
            index.collect().await.unwrap();
        }
    });
}

/// A client that collects until it is told to stop, or dies.
async fn collect_for_ever(fabric: &impl Fabric, index: &impl IndexAdmin, stop: &Mutex<bool>) {
    while !*stop.lock().unwrap() {
        match index.collect().await {
            Ok(_) | Err(IndexError::Contended { .. }) => fabric.sleep(100).await,
            Err(error) => panic!("cannot collect: {error}"),
        }
    }
}
