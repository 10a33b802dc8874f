//! What Sherman guarantees beyond the suite of all designs: its network cost, its behavior without
//! memory, and that a client that dies half-way through a change harms no other client.

use super::clients::{
    Stages, counts, dying_holder, fill_until_refused, late_and_lossy, rough, setup, spent,
};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::{AnyFabric, Cluster, Fabric, GlobalAddr};
use farleaf_index::{
    Design, EditAction, IndexAdmin, IndexError, LeafEdit, RangeIndex, ScanRequest,
};
use farleaf_page::{DesignId, Entries8, Fixed8, Layout};
use farleaf_pool::remote::{ROOT_SERVER, TimedPointer};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_pool::wire::Refusal;
use farleaf_suites::conformance::SuiteSetup;
use farleaf_trees::sherman::{
    PSherman, PShermanOptions, Sherman, ShermanCompute, ShermanIndex, ShermanOptions,
};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Mutex;
use std::task::Poll;

type Tiny = Fixed8<16>;
type Leaves<L> = <L as Layout>::Entries;

const FEW: ShermanOptions =
    ShermanOptions { chunk_nodes_log2: 4, cache_bytes: 1 << 12, hand_overs: 2, by_versions: false };
const PAGE: u64 = 1_024;

fn compute<L: Layout>(options: &ShermanOptions) -> ShermanCompute<Leaves<L>> {
    <Sherman as Design<L>>::compute(options).unwrap()
}

async fn open<F: Fabric, L: Layout>(
    fabric: F,
    compute: &ShermanCompute<Leaves<L>>,
) -> ShermanIndex<F, Leaves<L>> {
    <Sherman as Design<L>>::open(fabric, compute).await.unwrap()
}

/// Runs `check` on a loaded index of which all parents of leaves are cached.
fn on_a_loaded_index(
    options: ShermanOptions,
    check: impl AsyncFn(ShermanIndex<AnyFabric, Entries8>, AnyFabric) + Sync,
) {
    let provider = SimConfig::default();
    let cluster = setup(&provider, 3, 32 << 20, options).with_index::<Fixed8, Sherman>();
    let (compute, check) = (&compute::<Fixed8>(&options), &check);
    cluster.run_one(|fabric| async move {
        let index = open::<_, Fixed8>(fabric.clone(), compute).await;
        index.bulk_load((0..60_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        // The first scan caches the parents. The first change registers a number.
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 60_000);
        assert_eq!(index.update(&0, &0).await, Ok(true));
        check(index, fabric).await;
    });
}

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

/// By versions, a lookup READs the lock, the leaf and the lock again, and a change READs the word
/// that it expects in the lock. What is handed over costs the same.
#[test]
fn validation_by_versions_costs_two_more_reads() {
    let options = ShermanOptions { by_versions: true, ..ShermanOptions::default() };
    on_a_loaded_index(options, async |index, fabric| {
        for number in (0..60_000).step_by(1_001) {
            let key = number * 3;
            let get = async { assert_eq!(index.get(&key).await, Ok(Some(number))) };
            let cost = spent(&fabric, get).await;
            assert_eq!((counts(cost), cost.bytes_read), ([3, 0, 0, 0], PAGE + 8 + 8), "{cost:?}");
            let update = async { assert_eq!(index.update(&key, &!number).await, Ok(true)) };
            let cost = spent(&fabric, update).await;
            assert_eq!((counts(cost), cost.bytes_read), ([2, 1, 2, 0], 8 + PAGE), "{cost:?}");
            assert_eq!(cost.bytes_written, 16 + 8);
            assert_eq!(index.get(&key).await, Ok(Some(!number)));
        }
        let keys: Vec<u64> = (0..6).map(|n| 3_000 + n * 3).collect();
        let edits: Vec<_> =
            keys.iter().map(|key| LeafEdit { key, action: EditAction::Update(&7) }).collect();
        let update = async { drop(index.execute_all(&edits).await) };
        assert_eq!(counts(spent(&fabric, update).await), [6 + 1, 1, 6 + 1, 0]);
    });
    let provider = SimConfig::default();
    let cluster = setup(&provider, 1, 16 << 20, options).with_index::<Tiny, Sherman>();
    let by_sums = &compute::<Tiny>(&FEW);
    let divided = &PShermanOptions { sherman: options, boundaries: vec![7] };
    setup(&provider, 1, 16 << 20, FEW).start::<Tiny>().run_one(|fabric| async move {
        let refused = <PSherman as Design<Tiny>>::create(&fabric, divided).await;
        assert!(matches!(refused, Err(IndexError::InvalidArgument(_))), "{refused:?}");
        let create = <Sherman as Design<Tiny>>::create(&fabric, &FEW).await;
        assert_eq!(create, Ok(()), "no memory server was claimed");
    });
    cluster.run_one(|fabric| async move {
        let opened = <Sherman as Design<Tiny>>::open(fabric, by_sums).await;
        assert!(matches!(opened, Err(IndexError::InvalidArgument(_))), "its locks have versions");
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
                let edit = |key| LeafEdit { key, action: EditAction::Update(&7) };
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
        let edit = |key| LeafEdit { key, action: EditAction::Remove };
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
    let setup = setup(&provider, 3, 32 << 20, options);
    let cluster = setup.with_index::<Fixed8, PSherman>();
    let compute = &<PSherman as Design<Fixed8>>::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <PSherman as Design<Fixed8>>::open(fabric.clone(), compute).await.unwrap();
        index.bulk_load((0..60_000).map(|n| (n * 3, n)), 0.7).await.unwrap();
        let all = ScanRequest::range(..);
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
                let keys = ScanRequest::range(number * 3..).limit(100);
                up = index.scan(&keys).await.unwrap();
            };
            let cost = spent(&fabric, scans).await;
            assert_eq!(up, (number..number + 100).map(|n| (n * 3, n)).collect::<Vec<_>>());
            // 100 records are in four or five leaves.
            assert!((4..=6).contains(&cost.reads) && cost.doorbells <= 2, "{cost:?}");
            let scans = async {
                let keys = ScanRequest::range(..=number * 3).reverse().limit(100);
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
    let stages = &Stages::default();
    cluster.run(&[0, 1], |fabric, client| async move {
        let index = open::<_, Tiny>(fabric.clone(), compute).await;
        if client == 1 {
            stages.reach(&fabric, 1).await;
            for key in 0..4_000 {
                index.upsert(&key, &(key * 2)).await.unwrap();
            }
            return stages.done();
        }
        index.bulk_load((0..400).map(|n| (n * 10, n * 20)), 1.0).await.unwrap();
        index.scan(&ScanRequest::range(..)).await.unwrap();
        stages.done();
        stages.reach(&fabric, 2).await;
        let all: Vec<_> = (0..4_000).map(|key| (key, key * 2)).collect();
        let get_all = async || {
            for (key, value) in &all {
                assert_eq!(index.get(key).await, Ok(Some(*value)));
            }
        };
        let [reads, others @ ..] = counts(spent(&fabric, get_all()).await);
        assert!(others == [0; 3] && reads > 4_000, "{reads} READs, {others:?}");
        let [fewer, others @ ..] = counts(spent(&fabric, get_all()).await);
        assert!(others == [0; 3] && (4_000..reads).contains(&fewer), "{fewer}, {reads} before");
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), all);
        let down = index.scan(&ScanRequest::range(..).reverse()).await.unwrap();
        assert!(down.iter().rev().eq(&all));
        for (key, value) in &all {
            assert_eq!(index.get(key).await, Ok(Some(*value)));
            assert_eq!(index.remove(key).await, Ok(true));
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), []);
        let cached = <Sherman as Design<Tiny>>::cached_bytes(compute);
        // A leaf has one or two records, and a parent at most four leaves.
        assert!((4_000 / 8 * 128..=4_000 * 128).contains(&cached), "{cached}");
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
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), contents);
        for (key, value) in &contents {
            assert_eq!(index.get(key).await, Ok(Some(*value)));
            assert_eq!(index.update(key, &!value).await, Ok(true));
            assert_eq!(index.remove(key).await, Ok(true));
            assert_eq!(index.insert(key, value).await, Ok(true));
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), contents);
    });
}

/// The root of the index on these memory servers.
async fn root<F: Fabric>(index: &ShermanIndex<F, Leaves<Tiny>>) -> GlobalAddr {
    let rpc = index.pages().rpc();
    rpc.claimed(ROOT_SERVER, DesignId::Sherman).await.unwrap().0.root
}

/// A client that takes the root for a leaf locks it for a moment. Another client that installs a
/// separator wrote back its copy of that lock, after the first had released it: no client released
/// it again, and new handles that change something first waited for it for ever.
#[test]
fn a_lock_on_the_inner_root_neither_stays_nor_blocks() {
    let provider = SimConfig::default();
    let options = ShermanOptions { cache_bytes: 0, ..FEW };
    let cluster = setup(&provider, 1, 16 << 20, options).with_index::<Tiny, Sherman>();
    let computes = &[(); 3].map(|()| compute::<Tiny>(&options));
    cluster.run_one(|fabric| async move {
        let one = open::<_, Tiny>(fabric.clone(), &computes[0]).await;
        let other = open::<_, Tiny>(fabric.clone(), &computes[1]).await;
        let root = root(&one).await;
        let read = async || one.pages().read(TimedPointer::fixed(root)).await.unwrap();
        for key in 0..3 {
            one.insert(&key, &key).await.unwrap();
        }
        assert_eq!((read().await.page().level(), read().await.page().count()), (1, 2));
        let hold = other.entries().hold_entries(root).await.unwrap();
        assert!(read().await.page().entry_lock().is_locked());
        for key in 3..5 {
            one.insert(&key, &key).await.unwrap();
        }
        let copy = read().await;
        assert_eq!((copy.page().level(), copy.page().count()), (1, 4));
        assert!(!copy.page().entry_lock().is_locked(), "the new content has no lock");
        other.entries().release_entries(hold).await;
        let hold = other.entries().hold_entries(root).await.unwrap();
        let third = open::<_, Tiny>(fabric.clone(), &computes[2]).await;
        let update = async { assert_eq!(third.update(&4, &5).await, Ok(true)) };
        let [_, atomics, ..] = counts(spent(&fabric, update).await);
        assert_eq!(atomics, 1, "the lock of the leaf");
        other.entries().release_entries(hold).await;
    });
}

/// A load replaces the root, which an entry of unknown outcome could still be written to.
#[test]
fn a_load_waits_for_the_entry_lock_of_the_root() {
    let provider = SimConfig::default();
    let cluster = setup(&provider, 2, 16 << 20, FEW).with_index::<Tiny, Sherman>();
    let computes = &[(); 2].map(|()| compute::<Tiny>(&FEW));
    cluster.run_one(|fabric| async move {
        let one = open::<_, Tiny>(fabric.clone(), &computes[0]).await;
        let other = open::<_, Tiny>(fabric, &computes[1]).await;
        let hold = one.entries().hold_entries(root(&one).await).await.unwrap();
        let load = async || other.bulk_load((0..100).map(|key| (key, key)), 1.0).await;
        let refused = load().await;
        assert!(matches!(refused, Err(IndexError::Contended { .. })), "{refused:?}");
        one.entries().release_entries(hold).await;
        assert_eq!(load().await, Ok(100));
        assert_eq!(one.scan(&ScanRequest::range(..)).await.unwrap().len(), 100);
        assert_eq!(one.insert(&200, &1).await, Ok(true));
    });
}

/// Awaits an operation for at most `ns` nanoseconds, then drops it.
async fn for_at_most<F: Fabric>(fabric: &F, ns: u64, operation: impl Future) {
    let (mut operation, mut end) = (pin!(operation), pin!(fabric.sleep(ns)));
    poll_fn(|context| match operation.as_mut().poll(context) {
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => end.as_mut().poll(context),
    })
    .await
}

/// Operations that are dropped at any moment, with a lock that they wait for, hold or have just got
/// by hand-over, leave a leaf that others can change as soon as their client has settled.
#[test]
fn operations_that_are_dropped_half_way_leave_no_lock() {
    let (mut in_doubt, mut split) = (0, 0);
    for ns in (0..40_000).step_by(400) {
        let provider = SimConfig { seed: ns, ..SimConfig::default() };
        let cluster = setup(&provider, 2, 16 << 20, FEW).with_index::<Tiny, Sherman>();
        let computes = &[(); 2].map(|()| compute::<Tiny>(&FEW));
        let (doubted, grown) = (&Mutex::new(false), &Mutex::new(false));
        cluster.run_one(|fabric| async move {
            let [one, neighbor] =
                [(); 2].map(async |()| open::<_, Tiny>(fabric.clone(), &computes[0]).await);
            let (one, neighbor) = (one.await, neighbor.await);
            let other = open::<_, Tiny>(fabric.clone(), &computes[1]).await;
            for key in [1, 2] {
                one.insert(&key, &key).await.unwrap();
                neighbor.update(&key, &key).await.unwrap();
                other.update(&key, &key).await.unwrap();
            }
            let keys = [1_u64, 2, 3, 4];
            let edits =
                keys.each_ref().map(|key| LeafEdit { key, action: EditAction::Upsert(&77) });
            for_at_most(&fabric, ns, one.execute_all(&edits)).await;
            *doubted.lock().unwrap() = one.pages().has_doubts();
            one.pages().settle_all().await.unwrap();
            let held: BTreeMap<_, _> =
                other.scan(&ScanRequest::range(..)).await.unwrap().into_iter().collect();
            *grown.lock().unwrap() = held.contains_key(&3);
            for key in 1..=4 {
                let before = (key < 3).then_some(key);
                let found = held.get(&key).copied();
                assert!(found == before || found == Some(77), "{ns}: {key} is {found:?}");
                for index in [&other, &neighbor, &one] {
                    let replaced = index.upsert(&key, &key).await;
                    assert!(replaced.is_ok(), "{ns}: {key}: {replaced:?}");
                }
                assert_eq!(neighbor.get(&key).await, Ok(Some(key)), "{ns}");
            }
        });
        in_doubt += u32::from(*doubted.lock().unwrap());
        split += u32::from(*grown.lock().unwrap());
    }
    assert!(in_doubt > 10 && (10..90).contains(&split), "{in_doubt}, {split}");
}

/// A handle that is opened after its compute server was declared dead may not lock under the number
/// of those before it: others take the locks of the dead over.
#[test]
fn a_new_handle_of_a_dead_compute_server_is_refused() {
    let provider = SimConfig::default();
    let cluster = setup(&provider, 1, 16 << 20, FEW).with_index::<Tiny, Sherman>();
    let compute = &compute::<Tiny>(&FEW);
    cluster.run_one(|fabric| async move {
        let one = open::<_, Tiny>(fabric.clone(), compute).await;
        assert_eq!(one.insert(&1, &1).await, Ok(true));
        let second = open::<_, Tiny>(fabric.clone(), compute).await;
        let update = async { assert_eq!(second.update(&1, &2).await, Ok(true)) };
        assert_eq!(counts(spent(&fabric, update).await)[3], 1, "it asks once");
        let update = async { assert_eq!(second.update(&1, &3).await, Ok(true)) };
        assert_eq!(counts(spent(&fabric, update).await)[3], 0);
        one.declare_dead(fabric.compute_server()).await.unwrap();
        let late = open::<_, Tiny>(fabric, compute).await;
        let refused = late.update(&1, &4).await;
        let is_dead = |error: &IndexError| {
            matches!(error, IndexError::Refused { refusal: Refusal::DeclaredDead, .. })
        };
        assert!(refused.as_ref().is_err_and(is_dead), "{refused:?}");
        assert_eq!(late.get(&1).await, Ok(Some(3)));
    });
}

fn divided(boundaries: Vec<u64>) -> PShermanOptions<u64> {
    PShermanOptions { sherman: FEW, boundaries }
}

/// Turns and boundaries are in the memory of one compute side, so any other is refused.
#[test]
fn a_divided_index_belongs_to_one_compute_side() {
    let provider = SimConfig::default();
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..Default::default() };
    let setup_divided = SuiteSetup {
        provider: &provider,
        options: divided(vec![100]),
        memory_servers: 2,
        server: server.clone(),
    };
    let cluster = setup_divided.with_index::<Tiny, PSherman>();
    let new = || <PSherman as Design<Tiny>>::compute(&divided(vec![100])).unwrap();
    let (first, second, plain) = (&new(), &new(), &compute::<Tiny>(&FEW));
    let is_refused = |error: IndexError| matches!(error, IndexError::InvalidArgument(_));
    cluster.run_one(|fabric| async move {
        for _ in 0..2 {
            let index = <PSherman as Design<Tiny>>::open(fabric.clone(), first).await.unwrap();
            index.upsert(&150, &1).await.unwrap();
            assert_eq!(index.get(&150).await, Ok(Some(1)));
        }
        let opened = <PSherman as Design<Tiny>>::open(fabric.clone(), second).await;
        assert!(opened.is_err_and(is_refused), "another compute side");
        let opened = <Sherman as Design<Tiny>>::open(fabric, plain).await;
        assert!(opened.is_err_and(is_refused), "one that does not divide the keys");
    });
    let cluster = setup(&provider, 2, 16 << 20, FEW).with_index::<Tiny, Sherman>();
    cluster.run_one(|fabric| async move {
        let opened = <PSherman as Design<Tiny>>::open(fabric, second).await;
        assert!(opened.is_err_and(is_refused), "one that divides the keys of a shared index");
    });
}

/// The turn at a divided index's leaf stays with a change that was dropped half-way, whether of one
/// entry or of the whole leaf, until its client has settled it.
#[test]
fn a_turn_in_doubt_is_not_passed_on() {
    let mut in_doubt = 0;
    for ns in (0..40_000).step_by(400) {
        let provider = SimConfig { seed: ns, ..SimConfig::default() };
        let server = MemoryServerConfig { pool_bytes: 16 << 20, ..Default::default() };
        let options = divided(vec![1 << 40]);
        let setup = SuiteSetup { provider: &provider, options, memory_servers: 2, server };
        let cluster = setup.with_index::<Tiny, PSherman>();
        let compute = &<PSherman as Design<Tiny>>::compute(&setup.options).unwrap();
        let doubted = &Mutex::new(false);
        cluster.run_one(|fabric| async move {
            let one = <PSherman as Design<Tiny>>::open(fabric.clone(), compute).await.unwrap();
            let other = <PSherman as Design<Tiny>>::open(fabric.clone(), compute).await.unwrap();
            let root = root(&one).await;
            one.insert(&1, &1).await.unwrap();
            one.insert(&2, &2).await.unwrap();
            // The leaf is full.
            let changes = async {
                one.update(&2, &77).await.unwrap();
                one.insert(&3, &77).await.unwrap();
            };
            for_at_most(&fabric, ns, changes).await;
            *doubted.lock().unwrap() = one.pages().has_doubts();
            let hold = other.entries().hold_entries(root).await;
            assert_eq!(hold.is_err(), one.pages().has_doubts(), "{ns}");
            drop(hold);
            one.pages().settle_all().await.unwrap();
            drop(other.entries().hold_entries(root).await.unwrap());
            for key in 1..=3 {
                let found = other.get(&key).await.unwrap();
                let before = (key < 3).then_some(key);
                assert!(found == before || found == Some(77) && key > 1, "{ns}: {found:?}");
                other.upsert(&key, &key).await.unwrap();
                assert_eq!(one.get(&key).await, Ok(Some(key)), "{ns}");
            }
        });
        in_doubt += u32::from(*doubted.lock().unwrap());
    }
    assert!(in_doubt > 10, "{in_doubt}");
}

#[test]
fn a_client_that_dies_half_way_harms_no_other() {
    (0..60).for_each(|seed| dying_holder::<Tiny, Sherman>(rough(seed), FEW, false));
    let options = ShermanOptions { by_versions: true, ..FEW };
    for seed in 0..30 {
        dying_holder::<Tiny, Sherman>(rough(seed), options, false);
        dying_holder::<Tiny, Sherman>(late_and_lossy(seed), options, false);
    }
}

/// The same with lost and late messages, including those of the dead client.
#[test]
fn a_client_that_dies_leaves_late_messages() {
    for seed in 0..60 {
        dying_holder::<Tiny, Sherman>(late_and_lossy(seed), FEW, false);
    }
}
