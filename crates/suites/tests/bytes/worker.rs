//! A compute server that is a process of its own keeps long values in blocks: its answers, what it
//! frees, and what it refuses.

use super::designs::{caches, dex};
use farleaf_dex::blocks::{BlockClient, BlockOptions, BlockSpace, InBlocks, SharedBlocks};
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::sim::{Faults, SimConfig, Slow, Verb};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, Fabric, MAX_MESSAGE_BYTES, ServerId};
use farleaf_index::partition::{
    ComputeServer, LoadEnded, MapState, MapStore, PartitionMap, PutOutcome, ServedClients,
    ThreadQueue, Worker,
};
use farleaf_index::{InLeaves, IndexError, ValueForm};
use farleaf_page::{Bytes, EditAction, LeafEdit, LengthError, NamedLayout, SuperblockError};
use farleaf_pool::remote::GRACE_NS;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_pool::wire::{ClientRequest, ClientResponse, ErrorCode, MAX_VALUE_BYTES};
use farleaf_suites::conformance::SuiteSetup;
use farleaf_suites::providers::{AnyProvider, rough, sim};
use futures_util::future::{LocalBoxFuture, join};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

type Small = Bytes<128>;
type Ask = ClientRequest<Small>;
type Told = ClientResponse<Small>;

/// A map record that nothing else changes.
#[derive(Debug)]
struct Alone {
    state: RefCell<MapState<Vec<u8>>>,
    version: Cell<u64>,
}

impl MapStore<Vec<u8>> for Alone {
    fn read(&self) -> LocalBoxFuture<'_, Option<(MapState<Vec<u8>>, u64)>> {
        Box::pin(async { Some((self.state.borrow().clone(), self.version.get())) })
    }

    fn put_if<'a>(
        &'a self,
        version: u64,
        state: &'a MapState<Vec<u8>>,
    ) -> LocalBoxFuture<'a, PutOutcome> {
        Box::pin(async move {
            if self.version.get() != version {
                return PutOutcome::Changed;
            }
            self.version.set(version + 1);
            self.state.replace(state.clone());
            PutOutcome::Done
        })
    }
}

/// Opens a compute server that owns all keys of an index with values in the form `V`.
async fn open<V: ValueForm<Small>, F: Fabric>(
    fabric: F,
    cache: CacheOptions,
    values: &V::Shared,
) -> Worker<Dex, F, Small, V> {
    V::mark(&fabric).await.unwrap();
    try_open::<V, F>(fabric, cache, values).await.unwrap()
}

/// The same without marking the index.
async fn try_open<V: ValueForm<Small>, F: Fabric>(
    fabric: F,
    cache: CacheOptions,
    values: &V::Shared,
) -> Result<Worker<Dex, F, Small, V>, IndexError> {
    open_owned_by::<V, F>(0, fabric, cache, values).await
}

/// Opens compute server 0 while compute server `owner` owns all keys.
async fn open_owned_by<V: ValueForm<Small>, F: Fabric>(
    owner: u16,
    fabric: F,
    cache: CacheOptions,
    values: &V::Shared,
) -> Result<Worker<Dex, F, Small, V>, IndexError> {
    let map = PartitionMap::from_owners::<Small>(1, Vec::new(), vec![owner]).unwrap();
    let state = MapState::settled(map.clone());
    let store = Rc::new(Alone { state: RefCell::new(state), version: Cell::new(1) });
    let server = Arc::new(ComputeServer::start(0, &cache, map).unwrap());
    Worker::open(&server, fabric, store, values).await
}

/// Few cached blocks, and leaves that are written back often.
fn shared() -> SharedBlocks {
    SharedBlocks::new(&options()).unwrap()
}

fn options() -> BlockOptions<()> {
    BlockOptions {
        inline_bytes: 30,
        cache_bytes: 200_000,
        chunk_bytes: 1 << 16,
        most_lost: 20,
        ..BlockOptions::new(())
    }
}

fn setup(
    provider: &AnyProvider,
    pool_bytes: usize,
) -> SuiteSetup<'_, AnyProvider, DexOptions<Vec<u8>>> {
    let SuiteSetup { options, memory_servers, server, .. } = dex(provider, caches()[1]);
    let server = MemoryServerConfig { pool_bytes, ..server };
    SuiteSetup { provider, options, memory_servers, server }
}

/// Lengths around each limit: of short values, of references, of leaves, of pieces, of messages.
const LENGTHS: [usize; 14] =
    [0, 1, 18, 19, 20, 29, 30, 31, 500, 4_096, 4_097, 20_001, MAX_VALUE_BYTES - 1, MAX_VALUE_BYTES];

fn value(random: u64) -> Vec<u8> {
    let length = LENGTHS[(random % LENGTHS.len() as u64) as usize];
    let first = (random >> 32) as u8;
    (0..length).map(|place| first.wrapping_add(place as u8)).collect()
}

fn key(random: u64) -> Vec<u8> {
    Small::key_named(random % 60 * (u64::MAX / 60))
}

/// All records in one direction, by as many messages as they need.
async fn scanned<V: ValueForm<Small>, F: Fabric>(
    worker: &Worker<Dex, F, Small, V>,
    reverse: bool,
    limit: u32,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut lower, mut upper) = (Bound::Unbounded, Bound::Unbounded);
    let mut all: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    loop {
        let left = limit - all.len() as u32;
        let (lower_now, upper_now) = (lower.clone(), upper.clone());
        let ask = Ask::Scan { lower: lower_now, upper: upper_now, reverse, limit: left };
        let told = worker.answer(ask).await;
        assert!(told.encode().len() <= MAX_MESSAGE_BYTES);
        let Told::Records { next, records } = told else { panic!("{told:?}") };
        assert!(next.is_none() || !records.is_empty(), "a reply has at least one record");
        all.extend(records);
        match next {
            Some(next) if all.len() < limit as usize => match reverse {
                true => upper = next,
                false => lower = next,
            },
            _ => return all,
        }
    }
}

/// Any operations with values of all lengths, alone and as batches, against a model; then another
/// life of the compute server, which finds all that was flushed.
fn answers(provider: &AnyProvider, cache: CacheOptions) {
    let setup = setup(provider, 64 << 20);
    let cluster = setup.with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let blocks = shared();
        let worker = open::<InBlocks, _>(fabric.clone(), cache, &blocks).await;
        let value = || value(fabric.random());
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for round in 0..300 {
            let key = key(fabric.random());
            let before = model.get(&key).cloned();
            let (action, applied, after) = match fabric.random() % 7 {
                0 => (EditAction::Get, before.is_some(), before.clone()),
                1 => {
                    let value = value();
                    let after = before.clone().or(Some(value.clone()));
                    (EditAction::Insert(value), before.is_none(), after)
                }
                2 => {
                    let value = value();
                    let after = before.as_ref().map(|_| value.clone());
                    (EditAction::Update(value), before.is_some(), after)
                }
                3 => (EditAction::Remove, before.is_some(), None),
                4 => {
                    let (right, new) = (fabric.random().is_multiple_of(2), value());
                    let expected = before.clone().filter(|_| right);
                    let expected = expected.unwrap_or_else(value);
                    let is_so = before.as_ref() == Some(&expected);
                    let after = if is_so { Some(new.clone()) } else { before.clone() };
                    (EditAction::CompareExchange(expected, new), is_so, after)
                }
                5 => {
                    let records: Vec<_> =
                        (0..4).map(|_| (self::key(fabric.random()), value())).collect();
                    model.extend(records.iter().cloned());
                    // More than one message has, but the compute server does not mind.
                    let told = worker.answer(Ask::UpsertAll { records }).await;
                    assert!(matches!(told, Told::Upserted { .. }), "round {round}: {told:?}");
                    continue;
                }
                _ => {
                    let value = value();
                    (EditAction::Upsert(value.clone()), true, Some(value))
                }
            };
            let finds = matches!(action, EditAction::Get)
                || (matches!(action, EditAction::CompareExchange(..)) && !applied);
            let told = worker.answer(Ask::Edit(LeafEdit { key: key.clone(), action })).await;
            let (Told::Edited(answer) | Told::Changed { answer, .. }) = told else {
                panic!("round {round}: {told:?}")
            };
            assert_eq!(answer.applied, applied, "round {round}");
            if finds {
                assert_eq!(answer.found, before, "round {round}");
            }
            match after {
                Some(after) => model.insert(key, after),
                None => model.remove(&key),
            };
        }
        let records: Vec<_> = model.clone().into_iter().collect();
        let backwards: Vec<_> = records.iter().rev().cloned().collect();
        assert!(records.len() > 20);
        assert_eq!(scanned(&worker, false, 1_000).await, records);
        assert_eq!(scanned(&worker, true, 1_000).await, backwards);
        assert_eq!(scanned(&worker, true, 7).await, backwards[..7]);
        let in_blocks = model.values().filter(|value| value.len() > 30).count() as u64;
        assert_eq!(blocks.usage().blocks_in_use, in_blocks, "each lost block was taken back once");

        assert!(matches!(worker.answer(Ask::Flush).await, Told::Covered { .. }));
        drop(worker);
        let worker = open::<InBlocks, _>(fabric.clone(), cache, &shared()).await;
        assert_eq!(scanned(&worker, false, 1_000).await, records);
        for (key, value) in records {
            let told = worker.answer(Ask::Edit(LeafEdit { key, action: EditAction::Get })).await;
            assert!(matches!(told, Told::Edited(answer) if answer.found == Some(value)));
        }
        let counters = worker.cache_counters();
        assert!(counters.block_misses > 0 && counters.block_hits > 0, "{counters:?}");
    });
}

#[test]
fn a_compute_server_answers_with_values_of_all_lengths() {
    for cache in caches() {
        answers(&sim(SimConfig::default()), cache);
        answers(&rough(2), cache);
    }
}

/// Answers of one queue, by the number of the request.
#[derive(Debug, Default)]
struct Kept(RefCell<BTreeMap<usize, Told>>);

impl ServedClients<Small> for Kept {
    type Reply = usize;

    fn begin(&self, _ask: &Ask, _reply: &usize) -> bool {
        true
    }

    fn answer(&self, reply: usize, told: Told) {
        assert!(self.0.borrow_mut().insert(reply, told).is_none(), "one answer to each request");
    }
}

/// Requests that wait together are served as a group: short and long values, lookups and removes.
#[test]
fn a_group_of_operations_is_answered_as_alone() {
    let provider = &sim(SimConfig::default());
    let cluster = setup(provider, 64 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let blocks = shared();
        let worker = open::<InBlocks, _>(fabric, caches()[1], &blocks).await;
        // Operations of a group are on different keys, so each of them has one answer.
        let long = |number: u8| vec![number; 100 + 1_000 * usize::from(number)];
        for round in 0..4_u8 {
            let queue = ThreadQueue::<Small, usize>::default();
            let clients = Kept::default();
            for number in 0..16_u8 {
                let action = match (round, number % 4) {
                    (0, 0) => EditAction::Insert(vec![number; 10]),
                    (0, _) => EditAction::Insert(long(number)),
                    (1, _) => EditAction::Get,
                    (2, 0) => EditAction::Update(long(number)),
                    (2, 1) => EditAction::CompareExchange(long(number), vec![9; 29]),
                    (2, 2) => EditAction::Remove,
                    (2, _) => EditAction::Upsert(vec![7; 19]),
                    _ => EditAction::Get,
                };
                let edit = LeafEdit { key: vec![b'k', number], action };
                assert_eq!(queue.push(Ask::Edit(edit), usize::from(number)), None);
            }
            let closed = async {
                while clients.0.borrow().len() < 16 {
                    worker.fabric().sleep(1_000).await;
                }
                queue.close()
            };
            let _ = join(worker.answer_all(&queue, &clients), closed).await;
            let answers = clients.0.into_inner();
            for (number, told) in (0..16_u8).zip(answers.into_values()) {
                let (Told::Edited(answer) | Told::Changed { answer, .. }) = told else {
                    panic!("{round}, {number}: {told:?}")
                };
                let found = match (round, number % 4) {
                    (1, 0) => Some(vec![number; 10]),
                    (1, _) | (3, 0) => Some(long(number)),
                    (3, 1) => Some(vec![9; 29]),
                    (3, 3) => Some(vec![7; 19]),
                    _ => None,
                };
                let is_absent = (round, number % 4) == (3, 2);
                assert_eq!(answer.found, found, "{round}, {number}");
                assert_eq!(answer.applied, !is_absent, "{round}, {number}");
            }
        }
        assert_eq!(blocks.usage().blocks_in_use, 4);
    });
}

/// Without any request to flush: the compute server writes leaves back when it has lost many
/// blocks.
#[test]
fn what_a_compute_server_has_lost_is_used_again() {
    let provider = &sim(SimConfig::default());
    let cluster = setup(provider, 1 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let blocks = shared();
        let worker = open::<InBlocks, _>(fabric.clone(), caches()[1], &blocks).await;
        for round in 0..300_u32 {
            for key in 0..10_u8 {
                let value = vec![round as u8; 5_000 + 300 * usize::from(key)];
                let edit = LeafEdit { key: vec![key], action: EditAction::Upsert(value) };
                let told = worker.answer(Ask::Edit(edit)).await;
                assert!(matches!(told, Told::Changed { .. }), "{round}: {told:?}");
            }
            if round % 10 == 9 {
                fabric.sleep(GRACE_NS).await;
            }
        }
        let usage = blocks.usage();
        assert_eq!(usage.blocks_in_use, 10);
        assert!(usage.blocks_waiting < 200, "{usage:?}");
    });
}

/// Loads records in bulk, and abandons the load if it fails.
async fn load<V: ValueForm<Small>, F: Fabric>(
    worker: &Worker<Dex, F, Small, V>,
    records: Vec<(Vec<u8>, Vec<u8>)>,
) -> Result<(), IndexError> {
    let number = worker.fabric().unique();
    let mut load = worker.begin_load(number, 0.7).await?;
    let outcome = async {
        for part in records.chunks(7) {
            load.append(part.to_vec()).await?;
        }
        let (version, _) = load.ready().await?;
        worker.halt_for(number, version).await?;
        match load.end(version).await {
            LoadEnded::Loaded(_) => Ok(()),
            LoadEnded::Again(error) | LoadEnded::Failed(error) | LoadEnded::Unknown(error) => {
                Err(error)
            }
        }
    };
    let outcome = outcome.await;
    if outcome.is_err() {
        load.abandon().await;
    }
    worker.resume(number).await?;
    outcome
}

/// A bulk load writes its blocks while records arrive; one that fails leaves nothing.
#[test]
fn bulk_loads() {
    let provider = &sim(SimConfig::default());
    let cluster = setup(provider, 64 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let blocks = shared();
        let worker = open::<InBlocks, _>(fabric, caches()[1], &blocks).await;
        let lengths = || LENGTHS.into_iter().cycle();
        let records: Vec<(Vec<u8>, Vec<u8>)> = (0..200_u8)
            .zip(lengths())
            .map(|(key, length)| (vec![key], vec![key; length]))
            .collect();
        let load = async |records| load(&worker, records).await;
        let mut unsorted = records.clone();
        unsorted.push((vec![3], vec![3; 500]));
        assert!(matches!(load(unsorted).await, Err(IndexError::NotSorted { .. })));
        assert_eq!(blocks.usage().blocks_in_use, 0);
        let mut too_long = records.clone();
        too_long.push((vec![250], vec![0; MAX_VALUE_BYTES + 1]));
        assert!(matches!(
            load(too_long).await,
            Err(IndexError::TooLong(LengthError::Value { .. }))
        ));
        assert_eq!(blocks.usage().blocks_in_use, 0);
        assert!(blocks.usage().chunk_bytes > 0, "some blocks had been written");

        load(records.clone()).await.unwrap();
        let in_blocks = records.iter().filter(|(_, value)| value.len() > 30).count() as u64;
        assert_eq!(blocks.usage().blocks_in_use, in_blocks);
        assert!(load(records.clone()).await.is_err(), "the index is not empty");
        assert_eq!(blocks.usage().blocks_in_use, in_blocks);
        assert_eq!(scanned(&worker, false, 1_000).await, records);
    });
}

/// Regression test: the time after which a bulk load without a client is abandoned, and after which
/// a halted compute server serves again, began anew with each refused request of other clients. A
/// client that tried again every few seconds never got in.
#[test]
fn clients_that_wait_do_not_prolong_a_lost_load() {
    const SECOND_NS: u64 = 1_000_000_000;
    let provider = &sim(SimConfig::default());
    let cluster = setup(provider, 4 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let worker = open::<InLeaves, _>(fabric, caches()[1], &()).await;
        let (queue, clients) = (ThreadQueue::<Small, usize>::default(), Kept::default());
        let begin = |load| Ask::LoadBegin { load, fill_permille: 700 };
        let waiting = async {
            assert_eq!(queue.push(begin(1), 0), None);
            worker.fabric().sleep(SECOND_NS).await;
            // The client of the first load dies after it has halted this server.
            assert_eq!(worker.answer(Ask::Halt { load: 1, version: 1 }).await, Told::Done);
            let is_served = |told: Told| told == Told::Done;
            let (mut began, mut halted) = (None, None);
            for second in (3..60_usize).step_by(3) {
                worker.fabric().sleep(3 * SECOND_NS).await;
                let halt = Ask::Halt { load: 2, version: 1 };
                if halted.is_none() && is_served(worker.answer(halt).await) {
                    halted = Some(second);
                }
                if began.is_none() {
                    assert_eq!(queue.push(begin(2), second), None);
                    worker.fabric().sleep(1_000).await;
                    let told = clients.0.borrow().get(&second).cloned();
                    began = told.filter(|told| is_served(told.clone())).map(|_| second);
                }
            }
            let _ = queue.close();
            (began, halted)
        };
        let (waited, ()) = join(waiting, worker.serve_loads(&queue, &clients, |_| ())).await;
        assert_eq!(waited, (Some(30), Some(21)));
    });
}

/// A life that begins between the halt and the replacement of the tree, and a resume, each raise
/// the record's version, so the load cannot replace the tree. It halts all servers again and can.
#[test]
fn a_tree_is_replaced_only_at_the_version_of_the_halt() {
    let provider = &sim(SimConfig::default());
    let cluster = setup(provider, 4 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let worker = open::<InLeaves, _>(fabric, caches()[1], &()).await;
        let mut load = worker.begin_load(7, 0.7).await.unwrap();
        load.append(vec![(vec![1], vec![10])]).await.unwrap();
        let (version, _) = load.ready().await.unwrap();
        assert!(matches!(load.end(version).await, LoadEnded::Again(_)), "it serves");
        worker.halt_for(7, version).await.unwrap();
        worker.resume(8).await.unwrap();
        worker.resume(7).await.unwrap();
        assert!(worker.halt_for(7, version).await.is_err(), "the resume has raised the version");
        assert!(matches!(load.end(version).await, LoadEnded::Again(_)));
        assert_eq!(scanned(&worker, false, 10).await, vec![], "it serves");
        let (later, _) = load.ready().await.unwrap();
        assert_eq!(later, version + 1);
        worker.halt_for(7, later).await.unwrap();
        assert!(matches!(load.end(version).await, LoadEnded::Again(_)), "a late request");
        assert!(matches!(load.end(later).await, LoadEnded::Loaded(_)));
        worker.resume(7).await.unwrap();
        assert_eq!(scanned(&worker, false, 10).await, vec![(vec![1], vec![10])]);
    });
}

/// What is too long is refused before anything is written.
#[test]
fn limits_of_a_compute_server() {
    let provider = &sim(SimConfig::default());
    let cluster = setup(provider, 64 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let blocks = shared();
        let worker = open::<InBlocks, _>(fabric.clone(), caches()[1], &blocks).await;
        let long = vec![1; MAX_VALUE_BYTES + 1];
        let refused = |key: Vec<u8>, action| worker.answer(Ask::Edit(LeafEdit { key, action }));
        let most = MAX_VALUE_BYTES as u64;
        let too_long = Told::Error(ErrorCode::ValueTooLong { bytes: most + 1, most });
        assert_eq!(refused(vec![1], EditAction::Upsert(long.clone())).await, too_long);
        let exchange = EditAction::CompareExchange(vec![], long.clone());
        assert_eq!(refused(vec![1], exchange).await, too_long);
        let long_key = Told::Error(ErrorCode::KeyTooLong { bytes: 129, most: 128 });
        assert_eq!(refused(vec![1; 129], EditAction::Get).await, long_key);
        let records = vec![(vec![1], vec![]), (vec![2], long)];
        assert_eq!(worker.answer(Ask::UpsertAll { records }).await, too_long);
        assert_eq!(scanned(&worker, false, 10).await, vec![]);
        assert_eq!(blocks.usage().chunk_bytes, 0);
    });
    // Without blocks the limit is that of a page.
    let cluster = setup(provider, 64 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let worker = open::<InLeaves, _>(fabric, caches()[1], &()).await;
        let upsert = |length| {
            let action = EditAction::Upsert(vec![1; length]);
            worker.answer(Ask::Edit(LeafEdit { key: vec![1], action }))
        };
        let most = Small::longest_value_beside(1);
        assert!(matches!(upsert(most).await, Told::Changed { .. }));
        let bytes = most as u64 + 1;
        let too_long = ErrorCode::ValueTooLong { bytes, most: most as u64 };
        assert_eq!(upsert(most + 1).await, Told::Error(too_long));
    });
}

/// All compute servers of an index keep values in the same form.
#[test]
fn a_compute_server_refuses_values_in_another_form() {
    let provider = &sim(SimConfig::default());
    let cluster = setup(provider, 4 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let refused = |error| Err(IndexError::BadPool { server: ServerId::new(0), error });
        let (cache, blocks) = (caches()[1], shared());
        let in_blocks =
            async || try_open::<InBlocks, _>(fabric.clone(), cache, &blocks).await.map(drop);
        let in_leaves =
            async || try_open::<InLeaves, _>(fabric.clone(), cache, &()).await.map(drop);
        assert_eq!(in_blocks().await, refused(SuperblockError::NoBlocks));
        assert_eq!(in_leaves().await, Ok(()));
        <InBlocks as ValueForm<Small>>::mark(&fabric).await.unwrap();
        assert_eq!(in_leaves().await, refused(SuperblockError::HasBlocks));
        assert_eq!(in_blocks().await, Ok(()));
    });
}

/// Blocks arrive late, when the leaves refer to longer values already: the reply has no room for
/// all of these.
#[test]
fn a_scan_reply_is_cut_again_if_its_values_have_grown() {
    let slow = Slow {
        verbs: vec![Verb::Read],
        compute_servers: vec![],
        replies: false,
        probability: 1.0,
        max_ns: 4 * GRACE_NS,
    };
    let faults = Faults { slow: vec![slow], ..Faults::default() };
    let give_up_after_ns = 60_000_000_000;
    let provider = &sim(SimConfig { faults, give_up_after_ns, ..SimConfig::default() });
    let cluster = setup(provider, 64 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let blocks = BlockOptions { cache_bytes: 0, most_lost: 1_000, ..options() };
        let blocks = SharedBlocks::new(&blocks).unwrap();
        let worker = open::<InBlocks, _>(fabric, caches()[1], &blocks).await;
        let upsert_all = async |length: usize| {
            for key in 0..40 {
                let action = EditAction::Upsert(vec![key; length]);
                let told = worker.answer(Ask::Edit(LeafEdit { key: vec![key], action })).await;
                assert!(matches!(told, Told::Changed { .. }), "{told:?}");
            }
        };
        // All of the short ones have room in a message, and two of the long ones.
        let (short, long) = (2_000, 50_000);
        for reverse in [false, true] {
            upsert_all(short).await;
            let (records, ()) = join(scanned(&worker, reverse, 1_000), upsert_all(long)).await;
            let mut keys: Vec<u8> = records.iter().map(|(key, _)| key[0]).collect();
            if reverse {
                keys.reverse();
            }
            assert_eq!(keys, (0..40).collect::<Vec<u8>>(), "each key once");
            assert!(records.iter().all(|(key, value)| value.iter().all(|byte| *byte == key[0])));
            let grown = records.iter().filter(|(_, value)| value.len() == long).count();
            assert!(grown > 20, "{grown} of the values are long");
        }
    });
}

/// Blocks that a load has written are free again whatever ends it, unless the tree may have been
/// replaced: here memory that runs out within a group of blocks, and a client that is lost.
#[test]
fn a_load_that_ends_early_frees_its_blocks() {
    let provider = &sim(SimConfig::default());
    let cluster = setup(provider, 1 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let blocks = shared();
        let worker = open::<InBlocks, _>(fabric, caches()[1], &blocks).await;
        let records: Vec<_> = (0..250_u8).map(|key| (vec![key], vec![key; 20_001])).collect();
        let mut given_up = worker.begin_load(1, 0.7).await.unwrap();
        for part in records[..40].chunks(7) {
            given_up.append(part.to_vec()).await.unwrap();
        }
        assert_eq!(blocks.usage().blocks_in_use, 40);
        given_up.abandon().await;
        assert_eq!(blocks.usage().blocks_in_use, 0);

        let mut too_large = worker.begin_load(2, 0.7).await.unwrap();
        let (mut in_use, mut loaded) = (0, Ok(()));
        for part in records.chunks(7) {
            in_use = blocks.usage().blocks_in_use;
            loaded = too_large.append(part.to_vec()).await;
            if loaded.is_err() {
                break;
            }
        }
        assert!(matches!(loaded, Err(IndexError::OutOfMemory { .. })), "{loaded:?}");
        assert!(in_use > 40, "{in_use}");
        too_large.abandon().await;
        assert_eq!(blocks.usage().blocks_in_use, 0);
        assert_eq!(scanned(&worker, false, 10).await, vec![]);
    });
}

/// A compute server dies again and again, with free blocks, lost ones and waiting ones. Each life
/// finds those of the lives before it while it serves, and no block is there twice.
#[test]
fn a_life_finds_the_free_blocks_of_former_lives() {
    for cache in caches() {
        let provider = &sim(SimConfig::default());
        let cluster = setup(provider, 4 << 20).with_index::<Small, Dex>();
        cluster.run_one(|fabric| async move {
            let length = |key: u8| 2_000 + 300 * usize::from(key);
            let mut chunk_bytes = Vec::new();
            for life in 0..20_u8 {
                let blocks = shared();
                <InBlocks as ValueForm<Small>>::adopt(&blocks, fabric.clone()).await.unwrap();
                assert_eq!(blocks.usage().chunk_bytes > 0, life > 0);
                let worker = open::<InBlocks, _>(fabric.clone(), cache, &blocks).await;
                let found = Cell::new(false);
                let reclaim = async {
                    worker.reclaim(&|| false).await;
                    found.set(true);
                };
                let work = async {
                    let mut round = 0_u32;
                    while !found.get() || round < 10 {
                        for key in 0..20 {
                            let value = vec![life ^ round as u8; length(key)];
                            let action = EditAction::Upsert(value);
                            let edit = LeafEdit { key: vec![key], action };
                            let told = worker.answer(Ask::Edit(edit)).await;
                            assert!(matches!(told, Told::Changed { .. }), "{life}: {told:?}");
                        }
                        round += 1;
                        fabric.sleep(GRACE_NS / 4).await;
                    }
                };
                join(reclaim, work).await;
                let usage = blocks.usage();
                assert_eq!(usage.blocks_in_use, 20, "{life}: {usage:?}");
                chunk_bytes.push(usage.chunk_bytes);
                assert!(matches!(worker.answer(Ask::Flush).await, Told::Covered { .. }));
                let records = scanned(&worker, false, 100).await;
                let whole = |(key, value): &(Vec<u8>, Vec<u8>)| {
                    value.len() == length(key[0]) && value.iter().all(|byte| *byte == value[0])
                };
                assert!(records.len() == 20 && records.iter().all(whole), "{life}");
            }
            assert!(chunk_bytes[19] <= chunk_bytes[2], "{chunk_bytes:?}");
        });
    }
}

/// Leaves of other compute servers may refer to blocks of shared chunks, so no later life looks for
/// free ones in them.
#[test]
fn chunks_that_others_share_are_not_adopted() {
    let provider = &sim(SimConfig::default());
    let cluster = setup(provider, 4 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let client = || {
            let space = Arc::new(BlockSpace::new(1));
            let client = BlockClient::<_, Small>::new(fabric.clone(), &space, 1 << 16);
            (space, client)
        };
        let (_, first) = client();
        first.write(&[1; 5_000]).await.unwrap();
        let (space, second) = client();
        second.adopt().await.unwrap();
        assert_eq!(space.usage().chunk_bytes, 1 << 16);
        second.share_chunks().await.unwrap();
        let (space, third) = client();
        third.adopt().await.unwrap();
        assert_eq!(space.usage().chunk_bytes, 0);
        third.write(&[1; 5_000]).await.unwrap();
        let (space, fourth) = client();
        fourth.adopt().await.unwrap();
        assert_eq!(space.usage().chunk_bytes, 1 << 16, "only what it has taken since");
    });
}

/// Regression test: a client may choose the builder of a bulk load by an old map, so the builder
/// may own no keys. It took itself for the only owner, so its next incarnation found no reference
/// in its own range, and reused the blocks of all loaded values.
#[test]
fn blocks_that_are_loaded_for_another_compute_server_are_not_adopted() {
    for owner in [0, 1] {
        let provider = &sim(SimConfig::default());
        let cluster = setup(provider, 4 << 20).with_index::<Small, Dex>();
        cluster.run_one(|fabric| async move {
            let (cache, blocks) = (caches()[1], shared());
            <InBlocks as ValueForm<Small>>::mark(&fabric).await.unwrap();
            let worker = open_owned_by::<InBlocks, _>(owner, fabric.clone(), cache, &blocks);
            let worker = worker.await.unwrap();
            let records: Vec<_> = (0..40_u8).map(|key| (vec![key], vec![key; 5_000])).collect();
            load(&worker, records).await.unwrap();
            assert_eq!(blocks.usage().blocks_in_use, 40);
            let next_incarnation = shared();
            <InBlocks as ValueForm<Small>>::adopt(&next_incarnation, fabric).await.unwrap();
            let adopted = if owner == 0 { blocks.usage().chunk_bytes } else { 0 };
            assert_eq!(next_incarnation.usage().chunk_bytes, adopted, "owner {owner}");
        });
    }
}

/// Regression test: chunks become shared while a search has found something in them and not yet
/// returned it, as a move of keys or a bulk load does. The memory servers take none of it back, and
/// neither this life nor a later one used it.
#[test]
fn what_is_found_in_chunks_that_others_share_is_used() {
    let provider = &sim(SimConfig::default());
    let cluster = setup(provider, 4 << 20).with_index::<Small, Dex>();
    cluster.run_one(|fabric| async move {
        let cache = caches()[1];
        let upsert_all = async |worker: &Worker<Dex, _, Small, InBlocks>, bytes: usize| {
            for key in 0..40 {
                let action = EditAction::Upsert(vec![key; bytes]);
                let told = worker.answer(Ask::Edit(LeafEdit { key: vec![key], action })).await;
                assert!(matches!(told, Told::Changed { .. }), "{told:?}");
            }
            assert!(matches!(worker.answer(Ask::Flush).await, Told::Covered { .. }));
        };
        let first = shared();
        let worker = open::<InBlocks, _>(fabric.clone(), cache, &first).await;
        upsert_all(&worker, 5_000).await;
        upsert_all(&worker, 10).await;
        let chunk_bytes = first.usage().chunk_bytes;
        assert!(chunk_bytes >= 3 << 16, "{chunk_bytes}");

        let second = shared();
        <InBlocks as ValueForm<Small>>::adopt(&second, fabric.clone()).await.unwrap();
        let worker = open::<InBlocks, _>(fabric.clone(), cache, &second).await;
        let space = Arc::new(BlockSpace::new(1));
        BlockClient::<_, Small>::new(fabric, &space, 1 << 16).share_chunks().await.unwrap();
        worker.reclaim(&|| false).await;
        assert_eq!(second.usage().chunk_bytes, chunk_bytes);
        upsert_all(&worker, 4_000).await;
        assert_eq!(second.usage().chunk_bytes, chunk_bytes, "it needs no other chunk");
        assert_eq!(second.usage().blocks_in_use, 40);
    });
}
