//! What SMART guarantees beyond the suite of all designs: its network cost, its behavior without
//! memory, and that a client that dies half-way through a change harms no other client.

use super::clients::{
    counts, dying_holder, fill_until_refused, late_and_lossy, rough, setup, spent,
};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, Outage, SimConfig, Slow, Verb};
use farleaf_fabric::{AnyFabric, Cluster, Fabric, ServerId};
use farleaf_index::{Design, EditAction, IndexError, LeafEdit, RangeIndex, ScanRequest};
use farleaf_page::{Bytes, DesignId, Fixed8, RadixChild, RadixSlot};
use farleaf_pool::remote::{ENDLESS, Leases, RpcClient};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_pool::wire::Refusal;
use farleaf_suites::conformance::SuiteSetup;
use farleaf_trees::smart::{PSmart, PSmartOptions, Smart, SmartCompute, SmartIndex, SmartOptions};
use futures_util::future::join_all;

type Index = SmartIndex<AnyFabric, Fixed8>;

const LEAF: u64 = 40;

/// Bytes of a READ of a node with so many slots.
fn node(slots: u64) -> u64 {
    16 + 8 * slots
}

fn compute(options: &SmartOptions) -> SmartCompute {
    <Smart as Design<Fixed8>>::compute(options).unwrap()
}

async fn open(fabric: AnyFabric, compute: &SmartCompute) -> Index {
    <Smart as Design<Fixed8>>::open(fabric, compute).await.unwrap()
}

/// Runs `check` on an index of every `step`th key, of which all nodes are cached that fit.
fn on_a_loaded_index(
    options: SmartOptions,
    step: u64,
    check: impl AsyncFn(Index, AnyFabric) + Sync,
) {
    let provider = SimConfig::default();
    let setup = setup(&provider, 3, 32 << 20, options);
    let cluster = setup.with_index::<Fixed8, Smart>();
    let (compute, check) = (&compute(&options), &check);
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), compute).await;
        let records = (0..60_000).map(|n| (n * step, n));
        assert_eq!(index.bulk_load(records, 1.0).await, Ok(60_000));
        // The first scan caches the nodes. The first changes register a number and get memory.
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 60_000);
        assert_eq!(index.update(&0, &0).await, Ok(true));
        for key in 0..3 {
            assert_eq!(index.insert(&(u64::MAX - key), &0).await, Ok(true));
        }
        check(index, fabric).await;
    });
}

#[test]
fn operations_cost_what_the_design_says() {
    // A deepest node has 85 or 86 keys, and room for 128.
    on_a_loaded_index(SmartOptions::default(), 3, async |index, fabric| {
        for number in (0..60_000).step_by(1_001) {
            let key = number * 3;
            let get = async { assert_eq!(index.get(&key).await, Ok(Some(number))) };
            let cost = spent(&fabric, get).await;
            assert_eq!((counts(cost), cost.bytes_read), ([1, 0, 0, 0], LEAF), "get: {cost:?}");
            let update = async { assert_eq!(index.update(&key, &!number).await, Ok(true)) };
            let cost = spent(&fabric, update).await;
            // Value and check, and the word that unlocks.
            let written = ([1, 1, 2, 0], 16 + 8);
            assert_eq!((counts(cost), cost.bytes_written), written, "update: {cost:?}");
            let absent = async { assert_eq!(index.get(&(key + 1)).await, Ok(None)) };
            let cost = spent(&fabric, absent).await;
            assert_eq!((counts(cost), cost.bytes_read), ([1, 0, 0, 0], node(128)));
            let insert = async { assert_eq!(index.insert(&(key + 1), &7).await, Ok(true)) };
            let cost = spent(&fabric, insert).await;
            assert_eq!((counts(cost), cost.bytes_read), ([1, 1, 1, 0], node(128)), "{cost:?}");
            assert_eq!(cost.bytes_written, LEAF);
            let remove = async { assert_eq!(index.remove(&(key + 1)).await, Ok(true)) };
            let cost = spent(&fabric, remove).await;
            assert_eq!((counts(cost), cost.bytes_written), ([1, 1, 2, 0], 8 + 8), "{cost:?}");
            let absent = async { assert_eq!(index.remove(&(key + 1)).await, Ok(false)) };
            assert_eq!(counts(spent(&fabric, absent).await), [1, 0, 0, 0]);
            let revive = async { assert_eq!(index.insert(&(key + 1), &8).await, Ok(true)) };
            let cost = spent(&fabric, revive).await;
            assert_eq!((counts(cost), cost.bytes_written), ([1, 1, 3, 0], 8 + 8 + 8), "{cost:?}");
            assert_eq!(index.get(&key).await, Ok(Some(!number)));
            assert_eq!(index.get(&(key + 1)).await, Ok(Some(8)));
        }
    });
}

/// Operations of one compute server's clients on one key: the first one is executed by itself, and
/// all that come meanwhile together. Without that, each sends verbs of its own.
#[test]
fn operations_on_one_key_share_reads_and_writes() {
    on_a_loaded_index(SmartOptions::default(), 3, async |index, fabric| {
        let run = async |key: u64, actions: &[EditAction<&u64>]| {
            // Operations on one key of one `execute_all` would wait for each other.
            let edits = actions.iter().map(|action| LeafEdit { key: &key, action: *action });
            let operations: Vec<_> = edits.map(|edit| index.execute(edit)).collect();
            let mut answers = Vec::new();
            let all = async { answers = join_all(operations).await };
            let cost = spent(&fabric, all).await;
            let answers: Vec<_> = answers.into_iter().map(|answer| answer.unwrap()).collect();
            (answers, counts(cost), cost.bytes_read)
        };
        for together in 1..=6_u64 {
            let groups = together.min(2);
            let (answers, counts, bytes) =
                run(300, &vec![EditAction::Get; together as usize]).await;
            assert!(answers.iter().all(|answer| answer.found == Some(100)));
            assert_eq!((counts, bytes), ([groups, 0, 0, 0], groups * LEAF), "{together}");
            // Each finds what the one before has left.
            assert_eq!(index.update(&600, &0).await, Ok(true));
            let values: Vec<u64> = (0..=together).collect();
            let steps: Vec<_> = values
                .windows(2)
                .map(|pair| EditAction::CompareExchange(&pair[0], &pair[1]))
                .collect();
            let (answers, counts, bytes) = run(600, &steps).await;
            assert!(answers.iter().all(|answer| answer.applied), "{answers:?}");
            let expected = ([groups, groups, 2 * groups, 0], groups * LEAF);
            assert_eq!((counts, bytes), expected, "{together}");
            assert_eq!(index.get(&600).await, Ok(Some(together)));
            // One of them inserts the key. The others READ its leaf, and change nothing.
            let inserts = vec![EditAction::Insert(&7); together as usize];
            let (answers, counts, _) = run(601 + 3 * together, &inserts).await;
            assert_eq!(answers.iter().filter(|answer| answer.applied).count(), 1);
            assert_eq!(counts, [groups, 1, 1, 0], "{together}");
            // What cancels out needs no WRITE, and none but the first one is alone.
            let (one, two) = (EditAction::Insert(&7), EditAction::Remove);
            let (answers, counts, _) =
                run(602 + 3 * together, &[EditAction::Remove, one, two]).await;
            assert_eq!(
                answers.iter().map(|answer| answer.applied).collect::<Vec<_>>(),
                [false, true, true]
            );
            assert_eq!(counts, [2, 0, 0, 0], "{together}");
        }
    });
    let alone = SmartOptions { combines: false, ..SmartOptions::default() };
    on_a_loaded_index(alone, 3, async |index, fabric| {
        let gets = async { drop(join_all((0..5).map(|_| index.get(&300))).await) };
        assert_eq!(counts(spent(&fabric, gets).await), [5, 0, 0, 0]);
    });
}

/// Divided among compute servers, no leaf needs a lock, whichever compute server an operation
/// begins on. Nodes are shared.
#[test]
fn the_owner_of_a_key_needs_no_lock() {
    let provider = SimConfig::default();
    let options = PSmartOptions { smart: SmartOptions::default(), boundaries: vec![90_001] };
    let setup = setup(&provider, 3, 32 << 20, options);
    let cluster = setup.with_index::<Fixed8, PSmart>();
    let plain = &compute(&SmartOptions::default());
    let new = || <PSmart as Design<Fixed8>>::compute(&setup.options).unwrap();
    let (compute, other) = (&new(), &new());
    cluster.run_one(|fabric| async move {
        let index = <PSmart as Design<Fixed8>>::open(fabric.clone(), compute).await.unwrap();
        index.bulk_load((0..60_000).map(|n| (n * 3, n)), 1.0).await.unwrap();
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 60_000);
        for number in (0..60_000).step_by(1_001) {
            let key = number * 3;
            // Each owner caches what its operations need, and gets memory for a leaf.
            index.get(&key).await.unwrap();
            index.insert(&(key + 2), &1).await.unwrap();
            let get = async { assert_eq!(index.get(&key).await, Ok(Some(number))) };
            let cost = spent(&fabric, get).await;
            assert_eq!((counts(cost), cost.bytes_read), ([1, 0, 0, 0], LEAF), "get: {cost:?}");
            let update = async { assert_eq!(index.update(&key, &!number).await, Ok(true)) };
            let cost = spent(&fabric, update).await;
            assert_eq!((counts(cost), cost.bytes_written), ([1, 0, 1, 0], 16), "{cost:?}");
            let insert = async { assert_eq!(index.insert(&(key + 1), &7).await, Ok(true)) };
            assert_eq!(counts(spent(&fabric, insert).await), [1, 1, 1, 0]);
            let remove = async { assert_eq!(index.remove(&(key + 1)).await, Ok(true)) };
            let cost = spent(&fabric, remove).await;
            assert_eq!((counts(cost), cost.bytes_written), ([1, 0, 1, 0], 8), "{cost:?}");
            let revive = async { assert_eq!(index.insert(&(key + 1), &8).await, Ok(true)) };
            let cost = spent(&fabric, revive).await;
            assert_eq!((counts(cost), cost.bytes_written), ([1, 0, 2, 0], 8 + 8), "{cost:?}");
            assert_eq!(index.get(&key).await, Ok(Some(!number)));
            assert_eq!(index.get(&(key + 1)).await, Ok(Some(8)));
        }
        let is_refused = |error: IndexError| matches!(error, IndexError::InvalidArgument(_));
        let opened = <PSmart as Design<Fixed8>>::open(fabric.clone(), other).await;
        assert!(opened.is_err_and(is_refused), "another compute side");
        let opened = <Smart as Design<Fixed8>>::open(fabric, plain).await;
        assert!(opened.is_err_and(is_refused), "one that does not divide the keys");
    });
}

/// Without cached nodes, an operation reads one node a level.
#[test]
fn a_miss_costs_a_descent() {
    let options = SmartOptions { cache_bytes: 0, ..SmartOptions::default() };
    on_a_loaded_index(options, 3, async |index, fabric| {
        // The keys differ from the highest one in the first byte, and from each other in the last
        // three: nodes with 2, 3, at least 191 and 86 children.
        let nodes = node(4) + node(4) + node(256) + node(128);
        for number in (0..60_000).step_by(2_001) {
            let get = async { assert_eq!(index.get(&(number * 3)).await, Ok(Some(number))) };
            let cost = spent(&fabric, get).await;
            assert_eq!((counts(cost), cost.bytes_read), ([5, 0, 0, 0], nodes + LEAF), "{cost:?}");
            let update = async { assert_eq!(index.update(&(number * 3), &number).await, Ok(true)) };
            assert_eq!(counts(spent(&fabric, update).await), [5, 1, 2, 0]);
        }
    });
}

/// A node that is full grows in place; a leaf with another key gets a node above it.
#[test]
fn the_tree_grows_by_single_words() {
    let provider = SimConfig::default();
    let options = SmartOptions::default();
    let setup = setup(&provider, 1, 8 << 20, options);
    let cluster = setup.with_index::<Fixed8, Smart>();
    let computes = &[(); 2].map(|()| compute(&options));
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), &computes[0]).await;
        assert_eq!(index.insert(&0, &0).await, Ok(true));
        for number in 1..256 {
            let insert = async { assert_eq!(index.insert(&number, &number).await, Ok(true)) };
            let cost = spent(&fabric, insert).await;
            let expected = match number {
                // The leaf, its slot again, which was cached, and what tells where the slot is.
                1 => [2, 2, 2, 0],
                4 | 8 | 16 | 32 | 64 | 128 => [1, 2, 1, 0],
                _ => [1, 1, 1, 0],
            };
            assert_eq!(counts(cost), expected, "{number}: {cost:?}");
        }
        // Another compute server descends by the slot with the size of the beginning, once.
        let other = open(fabric.clone(), &computes[1]).await;
        let get = async { assert_eq!(other.get(&77).await, Ok(Some(77))) };
        assert_eq!(counts(spent(&fabric, get).await), [4, 1, 0, 0], "root slot, node twice, leaf");
        // A node above the one that is there.
        let insert = async { assert_eq!(index.insert(&(1 << 40), &1).await, Ok(true)) };
        let cost = spent(&fabric, insert).await;
        assert_eq!(counts(cost), [2, 2, 2, 0], "the node, the root slot: {cost:?}");
        for key in (0..256).chain([1 << 40]) {
            for index in [&index, &other] {
                assert!(index.get(&key).await.unwrap().is_some(), "{key}");
            }
        }
        let get = async { assert_eq!(other.get(&(1 << 40)).await, Ok(Some(1))) };
        assert_eq!(counts(spent(&fabric, get).await), [1, 0, 0, 0]);
        assert_eq!(other.scan(&ScanRequest::range(..)).await.unwrap().len(), 257);
    });
}

/// A cached parent learns how large a child has become, even if the child does not fit the cache.
#[test]
fn a_child_that_has_grown_is_read_twice_only_once() {
    let provider = SimConfig::default();
    let options = SmartOptions::default();
    let setup = setup(&provider, 1, 8 << 20, options);
    let cluster = setup.with_index::<Fixed8, Smart>();
    let small = compute(&SmartOptions { cache_bytes: 1_000, ..options });
    let computes = &[compute(&options), small];
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), &computes[0]).await;
        for key in [1 << 40, 0, 1] {
            assert_eq!(index.insert(&key, &key).await, Ok(true));
        }
        let other = open(fabric.clone(), &computes[1]).await;
        assert_eq!(other.get(&1).await, Ok(Some(1)), "both nodes are cached");
        for key in 2..256 {
            assert_eq!(index.insert(&key, &key).await, Ok(true));
        }
        let reads = async |key| {
            let get = async { assert_eq!(other.get(&key).await, Ok(Some(key))) };
            let cost = spent(&fabric, get).await;
            (counts(cost), cost.bytes_read)
        };
        let twice = ([3, 0, 0, 0], node(4) + node(256) + LEAF);
        assert_eq!(reads(77).await, twice, "from the cached child, which does not fit any more");
        assert_eq!(reads(77).await, twice, "from the cached parent");
        for key in [77, 0, 255] {
            assert_eq!(reads(key).await, ([2, 0, 0, 0], node(256) + LEAF), "{key}");
        }
    });
}

#[test]
fn a_scan_reads_its_leaves_with_their_nodes() {
    on_a_loaded_index(SmartOptions::default(), 1, async |index, fabric| {
        for number in (100..58_000).step_by(97) {
            let (mut up, mut down) = (Vec::new(), Vec::new());
            let nodes = (number + 99) / 256 - number / 256 + 1;
            let scan =
                async { up = index.scan(&ScanRequest::range(number..).limit(100)).await.unwrap() };
            let cost = spent(&fabric, scan).await;
            assert_eq!(up, (number..number + 100).map(|n| (n, n)).collect::<Vec<_>>());
            assert_eq!(counts(cost), [100 + nodes, 0, 0, 0], "{cost:?}");
            assert_eq!(cost.bytes_read, 100 * LEAF + nodes * node(256));
            assert_eq!(cost.doorbells, nodes, "{cost:?}");
            let keys = ScanRequest::range(..number + 100).reverse().limit(100);
            let scan = async { down = index.scan(&keys).await.unwrap() };
            let cost = spent(&fabric, scan).await;
            up.reverse();
            assert_eq!(down, up);
            assert_eq!((counts(cost), cost.doorbells), ([100 + nodes, 0, 0, 0], nodes));
        }
        let keys: Vec<u64> = (0..32).map(|n| n * 1_700).collect();
        let values = keys.iter().map(|key| Some(*key)).collect();
        let get = async { assert_eq!(index.multi_get(&keys).await, Ok(values)) };
        let cost = spent(&fabric, get).await;
        assert_eq!((counts(cost), cost.doorbells), ([32, 0, 0, 0], 1), "{cost:?}");
    });
}

/// Takes 2 MiB of a server in a lease, fills them, and gives them back.
async fn fill_and_return(fabric: &AnyFabric, server: ServerId) {
    let (rpc, leases) = (RpcClient::<_, Fixed8>::new(fabric.clone()), Leases::new(ENDLESS));
    for _ in 0..32 {
        let at = leases.take(&rpc, server, 64 << 10).await.unwrap();
        for offset in (0..64 << 10).step_by(4 << 10) {
            let buffer = fabric.buffer(4 << 10).unwrap();
            (0..512).for_each(|word| buffer.set(word, u64::MAX));
            fabric.write(at.plus(offset), buffer).await.unwrap();
        }
    }
    leases.end(&rpc, server).await.unwrap();
}

/// Other users of the memory servers, such as regions of far memory, return what they have filled.
#[test]
fn memory_that_others_have_used_is_not_taken_for_free_slots() {
    let options = SmartOptions { chunk_bytes: 16 << 10, ..SmartOptions::default() };
    let provider = SimConfig::default();
    let setup = setup(&provider, 1, 8 << 20, options);
    let compute = &compute(&options);
    setup.start::<Fixed8>().run_one(|fabric| async move {
        fill_and_return(&fabric, ServerId::new(0)).await;
        <Smart as Design<Fixed8>>::create(&fabric, &options).await.unwrap();
        let index = open(fabric.clone(), compute).await;
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(vec![]), "the root slot is free");
        fill_and_return(&fabric, ServerId::new(0)).await;
        let records: Vec<(u64, u64)> = (0..600).map(|n| (n << 5, n)).collect();
        for (key, value) in &records {
            assert_eq!(index.insert(key, value).await, Ok(true), "{key}");
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(records));
    });
}

#[test]
fn without_memory_the_operation_fails_and_the_index_stays_whole() {
    let options = SmartOptions { chunk_bytes: 1 << 14, ..SmartOptions::default() };
    let provider = LocalConfig::default();
    let setup = setup(&provider, 2, 256 << 10, options);
    let cluster = setup.with_index::<Fixed8, Smart>();
    let compute = &compute(&options);
    cluster.run_one(|fabric| async move {
        let index = <Smart as Design<Fixed8>>::open(fabric, compute).await.unwrap();
        // A load that fails leaves the index empty, and gives its memory back.
        let many = (0..20_000).map(|n| (n << 20, n));
        let refused = index.bulk_load(many, 1.0).await;
        assert!(matches!(refused, Err(IndexError::OutOfMemory { .. })), "{refused:?}");
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(vec![]));
        let model = fill_until_refused(&index).await;
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(model.into_iter().collect()));
        for key in [0, u64::MAX] {
            assert_eq!(index.get(&key).await, Ok((key == 0).then_some(0)));
        }
    });
}

/// An operation that waits for several buffers leaves those that are free to others (R5).
#[test]
fn an_operation_that_waits_for_buffers_holds_none() {
    let options = SmartOptions::default();
    let provider = SimConfig::default();
    let setup = setup(&provider, 1, 8 << 20, options);
    let cluster = setup.with_index::<Fixed8, Smart>();
    let compute = &compute(&options);
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), compute).await;
        for key in [1, 2, 1 << 20] {
            assert_eq!(index.insert(&key, &key).await, Ok(true));
        }
        assert_eq!(index.remove(&1).await, Ok(true));
        // A leaf that becomes live again takes three WRITEs; a leaf and a node above it take two.
        for key in [1, (1 << 20) + 1] {
            let mut held: Vec<_> = std::iter::from_fn(|| fabric.buffer(8).ok()).collect();
            drop(held.pop());
            let watch = async {
                fabric.sleep(100_000).await;
                for _ in 0..100 {
                    fabric.sleep(10_000).await;
                    assert!(fabric.buffer(8).is_ok(), "it holds the last buffer");
                }
                drop(held);
            };
            let (done, ()) = futures_util::future::join(index.insert(&key, &key), watch).await;
            assert_eq!(done, Ok(true));
            assert_eq!(index.get(&key).await, Ok(Some(key)));
        }
    });
}

/// A load that fails while a server is cut off gives its memory back, but for what a WRITE may
/// still change.
#[test]
fn a_load_that_fails_in_doubt_before_it_is_shown_leaves_its_memory() {
    const CUT_NS: u64 = 1_000_000;
    const BACK_NS: u64 = 200_000_000;
    const CHUNK_BYTES: u64 = 64 << 10;
    let load = |cut: Vec<Outage>| {
        let options = SmartOptions { chunk_bytes: CHUNK_BYTES, ..SmartOptions::default() };
        let faults = Faults { cut_memory_server: cut, ..Faults::default() };
        let faults = Faults { timeout_ns: 100_000, detect_death_ns: 10_000, ..faults };
        let provider = SimConfig { faults, ..SimConfig::default() };
        let setup = setup(&provider, 2, 32 << 20, options);
        let cluster = setup.with_index::<Fixed8, Smart>();
        let compute = &compute(&options);
        let is_cut = provider.faults.cut_memory_server.len() == 1;
        cluster.run_one(|fabric| async move {
            let index = open(fabric.clone(), compute).await;
            let rpc = RpcClient::<_, Fixed8>::new(fabric.clone());
            let used = async || {
                let usages = rpc.usages().await.unwrap();
                usages.iter().map(|usage| usage.allocated_bytes).sum::<u64>()
            };
            let records = || (0..20_000).map(|n| (n << 6, n));
            if is_cut {
                let outcome = index.bulk_load(records(), 1.0).await;
                assert!(matches!(outcome, Err(IndexError::Indeterminate(_))), "{outcome:?}");
                fabric.sleep(BACK_NS).await;
                assert!(used().await > 8 * CHUNK_BYTES, "it failed half-way");
            }
            assert_eq!(index.bulk_load(records(), 1.0).await, Ok(20_000));
            let found = index.scan(&ScanRequest::range(..)).await.unwrap();
            assert_eq!(found, records().collect::<Vec<_>>());
            used().await
        })
    };
    let whole = load(vec![]);
    let again = load(vec![Outage { server: 1, from_ns: CUT_NS, until_ns: BACK_NS }]);
    assert!(again <= whole + 2 * CHUNK_BYTES, "{again} bytes instead of {whole}");
}

/// The CAS of a slot is late, and the connection cannot be reset. The operation's outcome is
/// unknown then, but once the handle is settled, it does not change any more. The handle once took
/// itself for settled, and the key appeared after that.
#[test]
fn a_late_change_of_a_slot_is_settled_by_a_reset() {
    const BEGIN_NS: u64 = 10_000_000;
    const CUT_NS: u64 = 50_000;
    let mut unknown = 0;
    for seed in 0..20 {
        let cut = Outage { server: 0, from_ns: BEGIN_NS + CUT_NS, until_ns: BEGIN_NS + 6 * CUT_NS };
        let late = Slow {
            verbs: vec![Verb::Atomic],
            compute_servers: vec![],
            replies: false,
            probability: 0.5,
            max_ns: 5_000_000,
        };
        let faults = Faults {
            cut_memory_server: vec![cut],
            slow: vec![late],
            timeout_ns: 2 * CUT_NS,
            detect_death_ns: 10_000,
            ..Faults::default()
        };
        let provider = SimConfig { seed, faults, ..SimConfig::default() };
        let setup = setup(&provider, 1, 8 << 20, SmartOptions::default());
        let cluster = setup.with_index::<Fixed8, Smart>();
        let compute = &compute(&setup.options);
        unknown += cluster.run_one(|fabric| async move {
            let index = open(fabric.clone(), compute).await;
            index.upsert(&1, &0).await.unwrap();
            fabric.sleep(BEGIN_NS - fabric.now_ns()).await;
            let inserted = index.insert(&(2 << 32), &7).await;
            fabric.sleep(BEGIN_NS + 8 * CUT_NS - fabric.now_ns()).await;
            assert_eq!(index.settle().await, Ok(()));
            assert!(!index.has_doubts());
            let found = index.get(&(2 << 32)).await.unwrap();
            fabric.sleep(20_000_000).await;
            assert_eq!(index.get(&(2 << 32)).await.unwrap(), found, "seed {seed}, {inserted:?}");
            match &inserted {
                Ok(is_new) => assert_eq!(found, is_new.then_some(7)),
                Err(error) => assert!(matches!(error, IndexError::Indeterminate(_)), "{error}"),
            }
            u32::from(inserted.is_err())
        });
    }
    assert!(unknown > 0, "no change was late");
}

/// A handle whose change another handle has executed is not settled before that one (smart.T3).
#[test]
fn a_change_is_settled_by_the_handle_that_executed_it() {
    const BEGIN_NS: u64 = 10_000_000;
    const BACK_NS: u64 = 100_000_000;
    let waited_for = |after_ns: u64| {
        let cut = Outage { server: 0, from_ns: BEGIN_NS + after_ns, until_ns: BACK_NS };
        let faults = Faults { cut_memory_server: vec![cut], ..Faults::default() };
        let faults = Faults { timeout_ns: 100_000, detect_death_ns: 10_000, ..faults };
        let provider = SimConfig { faults, ..SimConfig::default() };
        let setup = setup(&provider, 1, 8 << 20, SmartOptions::default());
        let cluster = setup.with_index::<Fixed8, Smart>();
        let compute = &compute(&setup.options);
        cluster.run_one(|fabric| async move {
            let [first, second] = [open(fabric.clone(), compute), open(fabric.clone(), compute)];
            let (first, second) = (first.await, second.await);
            for index in [&first, &second] {
                index.upsert(&1, &0).await.unwrap();
            }
            fabric.sleep(BEGIN_NS - fabric.now_ns()).await;
            // One is executed alone, and then two together.
            let (values, indexes) = ([1, 2, 3], [&first, &first, &second]);
            let updates = values.iter().zip(indexes).map(|(value, index)| index.update(&1, value));
            let outcomes = join_all(updates).await;
            fabric.sleep(2 * BACK_NS - fabric.now_ns()).await;
            let settled = second.settle().await;
            if settled.is_err() {
                assert!(matches!(outcomes[2], Err(IndexError::Indeterminate(_))), "{outcomes:?}");
                assert!(first.has_doubts() && !second.has_doubts());
            }
            assert_eq!(first.settle().await, Ok(()));
            assert_eq!(second.settle().await, Ok(()));
            settled.is_err()
        })
    };
    let waits = (0..60).filter(|step| waited_for(step * 250)).count();
    assert!(waits > 0);
}

/// A slot that leads back to its own node ends a scan and a lookup.
#[test]
fn a_slot_that_leads_to_its_own_node_is_not_followed_for_ever() {
    let options = SmartOptions { cache_bytes: 0, ..SmartOptions::default() };
    let provider = SimConfig::default();
    let setup = setup(&provider, 1, 8 << 20, options);
    let cluster = setup.with_index::<Fixed8, Smart>();
    let compute = &compute(&options);
    cluster.run_one(|fabric| async move {
        let index = open(fabric.clone(), compute).await;
        for key in [0, 1] {
            assert_eq!(index.insert(&key, &key).await, Ok(true));
        }
        let rpc = RpcClient::<_, Fixed8>::new(fabric.clone());
        let root = rpc.claimed(ServerId::new(0), DesignId::Smart).await.unwrap().0.root;
        let word = async |at| fabric.read(at, fabric.buffer(8).unwrap()).await.unwrap().get(0);
        let to_node = RadixSlot::from_bits(word(root).await);
        assert!(matches!(to_node.child(), RadixChild::Node(_)), "{to_node:?}");
        // Its first slot is that of the key 0, for the same byte as the root slot.
        let slot = to_node.at().plus(16);
        let buffer = fabric.buffer(8).unwrap();
        buffer.set(0, word(root).await);
        fabric.write(slot, buffer).await.unwrap();
        for scan in [ScanRequest::range(..), ScanRequest::range(..).reverse()] {
            let found = index.scan(&scan).await;
            assert!(matches!(found, Err(IndexError::Contended { .. })), "{found:?}");
        }
        let found = index.get(&0).await;
        assert!(matches!(found, Err(IndexError::Contended { .. })), "{found:?}");
        assert_eq!(index.get(&1).await, Ok(Some(1)));
    });
}

/// Removed keys keep their leaves, which other compute servers may know.
#[test]
fn only_an_index_that_never_had_a_key_is_loaded() {
    let options = SmartOptions::default();
    let provider = LocalConfig::default();
    let setup = setup(&provider, 2, 8 << 20, options);
    let cluster = setup.with_index::<Fixed8, Smart>();
    let compute = &compute(&options);
    cluster.run_one(|fabric| async move {
        let index = <Smart as Design<Fixed8>>::open(fabric, compute).await.unwrap();
        assert_eq!(index.insert(&1, &1).await, Ok(true));
        assert_eq!(index.remove(&1).await, Ok(true));
        let refused = index.bulk_load([(2, 2)].into_iter(), 1.0).await;
        let is_it = matches!(refused, Err(IndexError::Refused { refusal: Refusal::NotEmpty, .. }));
        assert!(is_it, "{refused:?}");
    });
}

/// Keys of 12 bytes take two words with their end. Beside them, a leaf for a value of 20 bytes has
/// two areas of 40.
#[test]
fn operations_on_byte_strings_cost_what_the_design_says() {
    type Strings = Bytes<128>;
    let (provider, options) = (SimConfig::default(), SmartOptions::default());
    let server = MemoryServerConfig { pool_bytes: 32 << 20, ..Default::default() };
    let setup = SuiteSetup { provider: &provider, options, memory_servers: 3, server };
    let cluster = setup.with_index::<Strings, Smart>();
    let compute = &<Smart as Design<Strings>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <Smart as Design<Strings>>::open(fabric.clone(), compute).await.unwrap();
        let key = |number: usize| format!("user{number:08}").into_bytes();
        let records = (0..2_000).map(|number| (key(number), vec![1; 20]));
        assert_eq!(index.bulk_load(records, 1.0).await, Ok(2_000));
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 2_000);
        let long = |end: u8| [&[b'x'; 100][..], &[end]].concat();
        assert_eq!(index.insert(&long(b'a'), &[1; 20]).await, Ok(true));
        // The first change registers a number; the first ones on each memory server take memory.
        assert_eq!(index.update(&key(0), &[1; 20]).await, Ok(true));
        for number in 2_000..2_003 {
            assert_eq!(index.insert(&key(number), &[]).await, Ok(true));
        }
        // READs, atomics, WRITEs and RPCs, and the bytes that are read and written.
        let get = async |key: &[u8], value: &[u8]| {
            let get = async { assert_eq!(index.get(key).await, Ok(Some(value.to_vec()))) };
            let cost = spent(&fabric, get).await;
            (counts(cost), cost.bytes_read)
        };
        let upsert = async |key: &[u8], value: &[u8]| {
            let upsert = async { assert_eq!(index.upsert(key, value).await, Ok(())) };
            let cost = spent(&fabric, upsert).await;
            (counts(cost), cost.bytes_written)
        };
        for number in (3..2_000).step_by(101) {
            let key = key(number);
            assert_eq!(get(&key, &[1; 20]).await, ([1, 0, 0, 0], 128));
            // The value, the check, and the word that unlocks.
            assert_eq!(upsert(&key, &[2; 20]).await, ([1, 1, 3, 0], 24 + 8 + 8));
            assert_eq!(upsert(&key, &[3; 40]).await, ([1, 1, 3, 0], 40 + 8 + 8));
            let remove = async { assert_eq!(index.remove(&key).await, Ok(true)) };
            let cost = spent(&fabric, remove).await;
            assert_eq!((counts(cost), cost.bytes_written), ([1, 1, 2, 0], 8 + 8));
            assert_eq!(upsert(&key, &[4; 3]).await, ([1, 1, 3, 0], 8 + 8 + 8));
            // A larger leaf, the check and the unlocking word of the old one, and its slot.
            assert_eq!(upsert(&key, &[5; 41]).await, ([1, 2, 3, 0], (4 + 2 + 6) * 8 + 8 + 8));
            assert_eq!(get(&key, &[5; 41]).await, ([1, 0, 0, 0], 192));
        }
        // A node has 48 bytes of its path, so three of them lead to two keys with 100 in common.
        let nodes = 3 * (8 + 4) * 8;
        let leaf = (4 + 13 + 3) * 8;
        assert_eq!(upsert(&long(b'b'), &[1; 20]).await, ([2, 6, 4, 0], nodes + leaf));
        assert_eq!(get(&long(b'b'), &[1; 20]).await, ([1, 0, 0, 0], 192));
        assert_eq!(get(&long(b'a'), &[1; 20]).await, ([1, 0, 0, 0], 192));
    });
}

#[test]
fn a_client_that_dies_half_way_harms_no_other() {
    let options = SmartOptions { chunk_bytes: 1 << 14, cache_bytes: 4_000, combines: true };
    (0..60).for_each(|seed| dying_holder::<Fixed8, Smart>(rough(seed), options, false));
}

/// The same with lost and late messages, including those of the dead client.
#[test]
fn a_client_that_dies_leaves_late_messages() {
    let options = SmartOptions { chunk_bytes: 1 << 14, cache_bytes: 4_000, combines: true };
    (0..60).for_each(|seed| dying_holder::<Fixed8, Smart>(late_and_lossy(seed), options, false));
}
