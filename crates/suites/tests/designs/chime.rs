//! What CHIME guarantees beyond the suite of all designs: its network cost, that old cached parents
//! and old guesses cost READs and nothing else, and that a client that dies half-way through a
//! change harms no other client.

use super::clients::{Stages, counts, dying_holder, late_and_lossy, rough, setup, spent};
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::{AnyFabric, Cluster, Fabric};
use farleaf_index::{Design, IndexAdmin, RangeIndex, ScanRequest};
use farleaf_page::{Fixed8, Layout};
use farleaf_trees::chime::{Chime, ChimeCompute, ChimeIndex, ChimeOptions};
use farleaf_trees::one_sided::entrywise::EntrywiseOptions;

type Leaves<L> = <L as Layout>::Hops;
/// Leaves of 20 entries.
type Small = Fixed8<64>;

const PAGE: u64 = 1_024;
/// Eight entries with their checks, and a replica.
const WINDOW: u64 = 176;
/// Two entries with their check.
const BUCKET: u64 = 40;

fn few(hot_bytes: u64) -> ChimeOptions {
    let tree = EntrywiseOptions {
        chunk_nodes_log2: 4,
        cache_bytes: 1 << 14,
        hand_overs: 2,
        ..Default::default()
    };
    ChimeOptions { tree, hot_bytes }
}

async fn open<F: Fabric, L: Layout>(
    fabric: F,
    compute: &ChimeCompute<Leaves<L>>,
) -> ChimeIndex<F, Leaves<L>> {
    <Chime as Design<L>>::open(fabric, compute).await.unwrap()
}

/// Runs `check` on a loaded index of which all parents of leaves are cached.
fn on_a_loaded_index(
    options: ChimeOptions,
    check: impl AsyncFn(ChimeIndex<AnyFabric, Leaves<Fixed8>>, AnyFabric) + Sync,
) {
    let provider = SimConfig::default();
    let cluster = setup(&provider, 3, 32 << 20, options).with_index::<Fixed8, Chime>();
    let compute = &<Chime as Design<Fixed8>>::compute(&options).unwrap();
    let check = &check;
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone(), compute).await;
        index.bulk_load((0..60_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        // The first scan caches the parents. The first change registers a number, and the first
        // change of a whole leaf takes a place in a log.
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 60_000);
        for key in 0..3_000 {
            index.upsert(&(key * 3 + 2), &key).await.unwrap();
            index.remove(&(key * 3 + 2)).await.unwrap();
        }
        index.scan(&ScanRequest::range(..)).await.unwrap();
        check(index, fabric).await;
    });
}

#[test]
fn operations_cost_what_the_design_says() {
    on_a_loaded_index(ChimeOptions::default(), async |index, fabric| {
        let (mut at_once, mut moved, mut split) = (0, 0, 0);
        for number in (3_010..60_000).step_by(97) {
            let key = number * 3;
            let get = async { assert_eq!(index.get(&key).await, Ok(Some(number))) };
            let cost = spent(&fabric, get).await;
            assert_eq!((counts(cost), cost.bytes_read), ([1, 0, 0, 0], WINDOW), "get: {cost:?}");
            let update = async { assert_eq!(index.update(&key, &!number).await, Ok(true)) };
            let cost = spent(&fabric, update).await;
            // The value and the check of one entry, and the release of the lock.
            assert_eq!((counts(cost), cost.bytes_written), ([1, 1, 2, 0], 16 + 8), "{cost:?}");
            let insert = async { assert_eq!(index.insert(&(key + 1), &7).await, Ok(true)) };
            let cost = spent(&fabric, insert).await;
            match counts(cost) {
                [1, 1, 3, 0] => {
                    assert_eq!((cost.bytes_read, cost.bytes_written), (WINDOW, 16 + 8 + 8));
                    at_once += 1;
                }
                // Records move: the leaf is READ, locked as a whole, logged and written.
                [2, 2, 4, 0] => {
                    assert_eq!(cost.bytes_read, WINDOW + PAGE);
                    moved += 1;
                }
                // The leaf splits: there is also a new leaf, and its parent is found and changed.
                of_split => {
                    let read = WINDOW + PAGE + 8 + 3 * PAGE;
                    assert_eq!((of_split, cost.bytes_read), ([6, 3, 8, 0], read));
                    split += 1;
                    // The compute server has forgotten the parent.
                    assert_eq!(index.get(&(key + 1)).await, Ok(Some(7)));
                    continue;
                }
            }
            let remove = async { assert_eq!(index.remove(&(key + 1)).await, Ok(true)) };
            let cost = spent(&fabric, remove).await;
            assert_eq!((counts(cost), cost.bytes_written), ([1, 1, 2, 0], 8 + 8), "{cost:?}");
            let absent = async { assert_eq!(index.remove(&(key + 1)).await, Ok(false)) };
            assert_eq!(counts(spent(&fabric, absent).await), [1, 1, 1, 0], "only the release");
            assert_eq!(index.get(&key).await, Ok(Some(!number)));
            assert_eq!(index.get(&(key + 1)).await, Ok(None));
        }
        let inserts = format!("{at_once} inserts at once, {moved} with moves, {split} with splits");
        assert!(moved > 0 && at_once > 2 * moved && moved > 4 * split, "{inserts}");
    });
}

#[test]
fn reads_of_known_leaves_leave_together() {
    on_a_loaded_index(ChimeOptions::default(), async |index, fabric| {
        let keys: Vec<u64> = (0..64).map(|n| n * 2_700).collect();
        let get = async {
            let values = index.multi_get(&keys).await.unwrap();
            assert!(values.iter().zip(&keys).all(|(value, key)| *value == Some(key / 3)));
        };
        let cost = spent(&fabric, get).await;
        assert_eq!((counts(cost), cost.doorbells), ([64, 0, 0, 0], 1), "{cost:?}");
        assert_eq!(cost.bytes_read, 64 * WINDOW);
        for number in (3_010..59_000).step_by(997) {
            let mut up = Vec::new();
            let scan = async {
                let keys = ScanRequest::range(number * 3..).limit(100);
                up = index.scan(&keys).await.unwrap();
            };
            let cost = spent(&fabric, scan).await;
            assert_eq!(up, (number..number + 100).map(|n| (n * 3, n)).collect::<Vec<_>>());
            // 100 records are in four or five leaves, which are READ whole.
            assert!((4..=6).contains(&cost.reads) && cost.doorbells <= 2, "{cost:?}");
            assert_eq!(cost.bytes_read, cost.reads * PAGE);
        }
    });
}

/// A second lookup of a key READs only the entry that the first one found it in. If the record has
/// gone, it costs one READ more.
#[test]
fn a_popular_key_costs_one_entry() {
    let options = ChimeOptions { hot_bytes: 1 << 20, ..ChimeOptions::default() };
    on_a_loaded_index(options, async |index, fabric| {
        let cost_of = async |key: u64, value: Option<u64>| {
            let get = async { assert_eq!(index.get(&key).await, Ok(value)) };
            let cost = spent(&fabric, get).await;
            (counts(cost), cost.bytes_read)
        };
        for number in (3_010..60_000).step_by(6_007) {
            let key = number * 3;
            assert_eq!(cost_of(key, Some(number)).await, ([1, 0, 0, 0], WINDOW));
            assert_eq!(cost_of(key, Some(number)).await, ([1, 0, 0, 0], BUCKET));
            index.update(&key, &8).await.unwrap();
            assert_eq!(cost_of(key, Some(8)).await, ([1, 0, 0, 0], BUCKET));
            index.remove(&key).await.unwrap();
            assert_eq!(cost_of(key, None).await, ([2, 0, 0, 0], BUCKET + WINDOW));
            assert_eq!(cost_of(key, None).await, ([1, 0, 0, 0], WINDOW));
        }
    });
}

/// One compute server's cached parents and guesses grow old while another one's clients split the
/// leaves and move the records.
#[test]
fn old_hints_cost_reads_and_nothing_else() {
    let provider = SimConfig::default();
    let options = few(1 << 16);
    let cluster = setup(&provider, 3, 16 << 20, options).with_index::<Small, Chime>();
    let compute = &<Chime as Design<Small>>::compute(&options).unwrap();
    let stages = &Stages::default();
    cluster.run(&[0, 1], |fabric, client| async move {
        let index = open::<_, Small>(fabric.clone(), compute).await;
        if client == 1 {
            stages.reach(&fabric, 1).await;
            for key in 0..4_000 {
                index.upsert(&key, &(key * 2 + 1)).await.unwrap();
            }
            return stages.done();
        }
        index.bulk_load((0..400).map(|n| (n * 10, n)), 1.0).await.unwrap();
        for key in (0..4_000).step_by(10) {
            for _ in 0..2 {
                assert_eq!(index.get(&key).await, Ok(Some(key / 10)));
            }
        }
        stages.done();
        stages.reach(&fabric, 2).await;
        let get_all = async || {
            for key in 0..4_000 {
                assert_eq!(index.get(&key).await, Ok(Some(key * 2 + 1)));
            }
        };
        let [reads, others @ ..] = counts(spent(&fabric, get_all()).await);
        assert!(others == [0; 3] && reads > 4_000, "{reads} READs, {others:?}");
        let all: Vec<_> = (0..4_000).map(|key| (key, key * 2 + 1)).collect();
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), all);
        let down = index.scan(&ScanRequest::range(..).reverse()).await.unwrap();
        assert!(down.iter().rev().eq(&all));
        for (key, _) in &all {
            assert_eq!(index.remove(key).await, Ok(true));
            assert_eq!(index.get(key).await, Ok(None));
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), []);
        index.collect().await.unwrap();
    });
}

#[test]
fn a_client_that_dies_half_way_harms_no_other() {
    for seed in 0..30 {
        dying_holder::<Small, Chime>(rough(seed), few(4_000), false);
        dying_holder::<Small, Chime>(late_and_lossy(seed), few(0), false);
    }
}
