//! Keys and values at their limits and beyond, and messages of records of maximum size.

use super::suite::{hash, range, server};
use farleaf_fabric::local::{LocalCluster, LocalConfig};
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{
    AnyFabric, Calls, Cluster, Cpu, Fabric, GlobalAddr, MAX_MESSAGE_BYTES, Message, Provider,
    Region, ServerId, ServiceCall,
};
use farleaf_index::client::{ClientIndex, ClientOptions};
use farleaf_index::{Design, Exchange, IndexAdmin, IndexError, RangeIndex, ScanRequest};
use farleaf_page::{
    Bytes, EditAction, EditAnswer, Layout, LeafEdit, LengthError, NamedLayout, Page,
};
use farleaf_pool::server::MemoryServer;
use farleaf_pool::wire::{
    ClientRequest, ClientResponse, OffloadRequest, OffloadTicket, PoolRequest, Refusal, Reply,
    Request, TreeRequest, TreeShare,
};
use farleaf_suites::conformance::SuiteSetup;
use farleaf_suites::providers::local;
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use std::ops::Bound;

/// Keys of maximum length that differ only in their last bytes: a page omits most of each key as a
/// prefix, but a message has complete keys.
fn crowded<const W: usize>(number: u32) -> Vec<u8> {
    let mut key = vec![b'x'; Bytes::<W>::max_key() - 4];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The longest keys with the longest values, and values that shrink to nothing and grow again.
/// Updates and exchanges split leaves, and no batch or reply is too large for a message.
fn largest<const W: usize>(options: &CoarseOptions<Vec<u8>>) {
    let provider = &local(LocalConfig::default());
    let setup =
        SuiteSetup { provider, options: options.clone(), memory_servers: 3, server: server() };
    let cluster = setup.with_index::<Bytes<W>, Coarse>();
    let value = |byte: u8| vec![byte; Bytes::<W>::longest_value_beside(Bytes::<W>::max_key())];
    let count = 1_500;
    let records = |values: &dyn Fn(u32) -> Vec<u8>| -> Vec<(Vec<u8>, Vec<u8>)> {
        (0..count).map(|number| (crowded::<W>(number), values(number))).collect()
    };
    cluster.run_one(|fabric| async move {
        let index = <Coarse as Design<Bytes<W>>>::open(fabric, &()).await.unwrap();
        let full = records(&|_| value(1));
        assert_eq!(index.bulk_load(full.clone().into_iter(), 1.0).await, Ok(u64::from(count)));
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), full);
        for (key, _) in &full {
            assert_eq!(index.update(key, b"").await, Ok(true));
        }
        let empty = records(&|_| Vec::new());
        index.collect().await.unwrap();
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), empty);
        let reversed: Vec<_> = empty.iter().rev().cloned().collect();
        assert_eq!(index.scan(&ScanRequest::range(..).reverse()).await.unwrap(), reversed);
        let some = index.scan(&ScanRequest::range(..).reverse().limit(700)).await.unwrap();
        assert_eq!(some, reversed[..700]);
        for (number, (key, _)) in full.iter().enumerate() {
            match number % 2 {
                0 => assert_eq!(index.update(key, &value(2)).await, Ok(true)),
                _ => {
                    let exchanged = index.compare_exchange(key, b"", &value(2)).await;
                    assert_eq!(exchanged, Ok(Exchange::Exchanged));
                }
            }
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), records(&|_| value(2)));
        let keys: Vec<_> = full.iter().map(|(key, _)| &key[..]).collect();
        let values = index.multi_get(&keys).await.unwrap();
        assert!(values.into_iter().all(|found| found == Some(value(2))));
        for (key, _) in &full {
            assert_eq!(index.remove(key).await, Ok(true));
        }
        index.collect().await.unwrap();
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(vec![]));
        assert!(index.rpc().usages().await.unwrap().iter().all(|usage| usage.height == 1));
    });
}

#[test]
fn the_largest_records() {
    let thirds = vec![crowded::<128>(500), crowded::<128>(1_000)];
    largest::<128>(&CoarseOptions { partitioning: Partitioning::Range { boundaries: thirds } });
    largest::<512>(&hash());
}

/// Operations that fail with an error that names the limit. They change nothing.
fn limits<const W: usize, D: Design<Bytes<W>>>(options: D::Options) {
    let provider = &local(LocalConfig::default());
    let setup = SuiteSetup { provider, options, memory_servers: 3, server: server() };
    let cluster = setup.with_index::<Bytes<W>, D>();
    let compute = &D::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = D::open(fabric, compute).await.unwrap();
        let most = Bytes::<W>::max_key();
        let (longest, long) = (vec![7; most], vec![7; most + 1]);
        let error = IndexError::from(LengthError::Key { bytes: most + 1, most });
        assert!(error.to_string().contains(&most.to_string()), "{error}");
        assert_eq!(index.get(&long).await, Err(error.clone()));
        assert_eq!(index.insert(&long, b"1").await, Err(error.clone()));
        assert_eq!(index.update(&long, b"1").await, Err(error.clone()));
        assert_eq!(index.upsert(&long, b"1").await, Err(error.clone()));
        assert_eq!(index.remove(&long).await, Err(error.clone()));
        assert_eq!(index.compare_exchange(&long, b"1", b"2").await, Err(error.clone()));
        assert_eq!(index.multi_get(&[&b"a"[..], &long[..]]).await, Err(error.clone()));
        for bound in [Bound::Included(long.clone()), Bound::Excluded(long.clone())] {
            let scan = ScanRequest { lower: bound.clone(), ..ScanRequest::range(..) };
            assert_eq!(index.scan(&scan).await, Err(error.clone()));
            let scan = ScanRequest { upper: bound, ..ScanRequest::range(..) };
            assert_eq!(index.scan(&scan).await, Err(error.clone()));
        }

        let most = Bytes::<W>::longest_value_beside(longest.len());
        let (value, long_value) = (vec![8; most], vec![8; most + 1]);
        let value_error = IndexError::from(LengthError::Value { bytes: most + 1, most });
        assert_eq!(index.insert(&longest, &long_value).await, Err(value_error.clone()));
        let exchanged = index.compare_exchange(&longest, &long_value, b"").await;
        assert_eq!(exchanged, Err(value_error.clone()));
        let exchanged = index.compare_exchange(&longest, b"", &long_value).await;
        assert_eq!(exchanged, Err(value_error.clone()));

        let loads = [
            (vec![(b"a".to_vec(), b"1".to_vec()), (long.clone(), b"1".to_vec())], &error),
            (vec![(b"a".to_vec(), b"1".to_vec()), (longest.clone(), long_value)], &value_error),
        ];
        for (records, error) in loads {
            assert_eq!(index.bulk_load(records.into_iter(), 0.7).await, Err(error.clone()));
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(vec![]));

        // The other operations of a batch are executed.
        let insert = |key| LeafEdit { key, action: EditAction::Insert(&b"1"[..]) };
        let batch = [insert(&b"a"[..]), insert(&long), insert(b"b"), insert(b"a")];
        let answers = index.execute_all(&batch).await;
        let done = |applied| Ok(EditAnswer { applied, found: None });
        assert_eq!(answers, [done(true), Err(error), done(true), done(false)]);

        for value in [&value[..], b"", &value[..most / 2], &value[..]] {
            index.upsert(&longest, value).await.unwrap();
            assert_eq!(index.get(&longest).await, Ok(Some(value.to_vec())));
        }
        assert_eq!(index.insert(b"", b"").await, Ok(true), "empty keys and values are valid");
        assert_eq!(index.get(b"").await, Ok(Some(vec![])));
    });
}

#[test]
fn what_is_too_long_ends_in_one_error() {
    limits::<128, Coarse>(range::<Bytes<128>>());
    limits::<512, Coarse>(hash());
    limits::<128, Fine>(FineOptions::default());
    let boundaries = vec![vec![7, 7], b"k".to_vec()];
    limits::<128, Hybrid>(HybridOptions::with_boundaries(boundaries));
}

/// The sizes of all records but the first add up to `MAX_MESSAGE_BYTES / 2`.
const MAX_LOAD_BYTES: usize = MAX_MESSAGE_BYTES / 2 + 1_024;

/// Runs a client that can send a memory server any request.
fn with_server<const W: usize, T: Send, Fut: Future<Output = T>>(
    work: impl Fn(AnyFabric) -> Fut + Sync,
) -> T {
    let server = MemoryServer::<Bytes<W>>::new(ServerId::new(0), &server()).unwrap();
    LocalConfig::default().start(vec![Arc::new(server)]).run_one(work)
}

async fn ask<const W: usize>(fabric: &impl Fabric, request: Message) -> (Reply<Bytes<W>>, usize) {
    let reply = fabric.call(ServerId::new(0), request).await.expect("the server replies");
    (Reply::decode(&reply).expect("every reply is valid"), reply.len())
}

/// A page of 4 KB can hold 470 keys of 256 bytes, which take 124 KB in a message.
#[test]
fn a_walk_s_reply_is_bounded_by_bytes() {
    const W: usize = 512;
    with_server::<W, _, _>(|fabric| async move {
        let (reply, _) = ask::<W>(
            &fabric,
            Request::<Bytes<W>>::from(PoolRequest::AllocateChunk { bytes: 8192, token: 1 })
                .encode(),
        )
        .await;
        let Reply::Chunk { at, .. } = reply else { panic!("{reply:?}") };
        let buffer = fabric.buffer(W * 8).unwrap();
        let words: Vec<AtomicU64> = (0..W).map(|_| AtomicU64::new(0)).collect();
        let page = Page::<Bytes<W>>::new(&words);
        page.format_empty(at, 0, &crowded::<W>(0), Some(&crowded::<W>(1 << 16)));
        let mut count = 0;
        while Bytes::<W>::leaf_has_room(page, &crowded::<W>(count), b"") {
            Bytes::<W>::leaf_insert(page, &crowded::<W>(count), b"");
            count += 1;
        }
        assert!(count > 440, "{count}");
        page.set_stamp();
        for (to, from) in buffer.words().iter().zip(&words) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        fabric.write(at, buffer).await.unwrap();
        for reverse in [false, true] {
            let (mut found, mut last, mut replies) = (Vec::new(), Bound::Unbounded, 0);
            loop {
                let (lower, upper) = match reverse {
                    true => (Bound::Unbounded, last),
                    false => (last, Bound::Unbounded),
                };
                let limit = u32::MAX;
                let scan =
                    OffloadRequest::Scan { node: at, level: 0, lower, upper, reverse, limit };
                let request = Request::<Bytes<W>>::from(scan).encode();
                let (reply, bytes) = ask::<W>(&fabric, request).await;
                let Reply::Records { records, more } = reply else { panic!("{reply:?}") };
                assert!(bytes <= MAX_LOAD_BYTES, "{bytes}");
                replies += 1;
                found.extend(records.into_iter().map(|(key, _)| key));
                if !more {
                    break;
                }
                last = Bound::Excluded(found.last().unwrap().clone());
            }
            if reverse {
                found.reverse();
            }
            assert_eq!(found, (0..count).map(crowded::<W>).collect::<Vec<_>>());
            assert_eq!(replies, 2);
        }
    });
}

/// Requests with keys and values that no page can hold, truncated requests, and corrupted ones: the
/// server refuses what it must, and keeps working.
#[test]
fn a_server_survives_any_request() {
    const W: usize = 128;
    type L = Bytes<W>;
    with_server::<W, _, _>(|fabric| async move {
        let create =
            TreeRequest::<L>::Create { share: TreeShare::Range { low: vec![], high: None } };
        let create = Request::from(create).encode();
        assert!(matches!(ask::<W>(&fabric, create).await.0, Reply::Done));
        let superblock =
            fabric.read(GlobalAddr::new(ServerId::new(0), 0), fabric.buffer(512).unwrap());
        let superblock = superblock.await.unwrap();
        let root = farleaf_page::Superblock::read::<L>(superblock.words()).unwrap().root;

        let ticket = |number| Some(OffloadTicket { owner: 1, slot: 1, number });
        let requests = |key: &[u8], value: &[u8], number| -> Vec<Request<L>> {
            let (key, value) = (key.to_vec(), value.to_vec());
            let edit = |action| LeafEdit { key: key.clone(), action };
            let below = |edit, ticket| {
                Request::from(OffloadRequest::Edit { node: root, level: 0, edit, ticket })
            };
            let (lower, upper) = (Bound::Included(key.clone()), Bound::Excluded(key.clone()));
            let (reverse, limit) = (false, 10);
            let records = vec![(key.clone(), value.clone())];
            vec![
                Request::Edit(edit(EditAction::Upsert(value.clone()))),
                Request::Edit(edit(EditAction::CompareExchange(vec![], value.clone()))),
                below(edit(EditAction::Upsert(value.clone())), ticket(number)),
                TreeRequest::LoadAppend { load: 1, records }.into(),
                Request::Edit(edit(EditAction::Get)),
                Request::Edit(edit(EditAction::Remove)),
                TreeRequest::Create { share: TreeShare::Range { low: key.clone(), high: None } }
                    .into(),
                TreeRequest::Scan { lower: lower.clone(), upper: Bound::Unbounded, reverse, limit }
                    .into(),
                TreeRequest::Scan { lower: Bound::Unbounded, upper: upper.clone(), reverse, limit }
                    .into(),
                below(edit(EditAction::Get), None),
                OffloadRequest::Scan { node: root, level: 0, lower, upper, reverse, limit }.into(),
            ]
        };
        let (most, longest) = (L::longest_value_beside(3), vec![1; L::max_key()]);
        let values = |key: &[u8]| vec![1; L::longest_value_beside(key.len())];
        for key in [vec![2; L::max_key() + 1], vec![2; 1_023], vec![2; 60_000]] {
            for request in requests(&key, b"1", 1) {
                let reply = ask::<W>(&fabric, request.encode()).await.0;
                assert_eq!(reply, Reply::Refused(Refusal::Malformed), "{request:?}");
            }
        }
        for (key, length) in [(&b"key"[..], most + 1), (b"key", 1_023), (&longest, most)] {
            for request in &requests(key, &vec![3; length], 1)[..4] {
                let reply = ask::<W>(&fabric, request.encode()).await.0;
                assert_eq!(reply, Reply::Refused(Refusal::Malformed), "{request:?}");
            }
        }
        for round in 0..30_000_u32 {
            let name = fabric.random();
            let key = match fabric.random() % 3 {
                0 => L::key_named(name),
                1 => crowded::<W>(name as u32 % 500),
                _ => longest.clone(),
            };
            let value = if round % 2 == 0 { values(&key) } else { L::value_named(name) };
            let mut all = requests(&key, &value, round + 2);
            all.push(TreeRequest::LoadBegin { load: 1, fill_permille: 1000 }.into());
            all.push(TreeRequest::LoadEnd { load: 1 }.into());
            let request = &all[fabric.random() as usize % all.len()];
            let mut bytes = request.encode();
            for _ in 0..fabric.random() % 3 {
                let place = fabric.random() as usize % bytes.len().max(1);
                match fabric.random() % 4 {
                    0 => bytes.truncate(place),
                    1 => bytes.insert(place, fabric.random() as u8),
                    _ if place < bytes.len() => bytes[place] = fabric.random() as u8,
                    _ => {}
                }
            }
            ask::<W>(&fabric, bytes).await;
        }
        let limit = u32::MAX;
        let (lower, upper) = (Bound::Unbounded, Bound::Unbounded);
        let scan = TreeRequest::<L>::Scan { lower, upper, reverse: false, limit };
        let (reply, bytes) = ask::<W>(&fabric, Request::from(scan).encode()).await;
        let Reply::Records { records, more } = reply else { panic!("{reply:?}") };
        assert!(records.is_sorted_by(|a, b| a.0 < b.0) && more);
        assert!((MAX_LOAD_BYTES / 2..=MAX_LOAD_BYTES).contains(&bytes), "{bytes}");
    });
}

/// A compute server that records the requests it receives.
#[derive(Default)]
struct Recorder(Mutex<Vec<(ClientRequest<Bytes>, usize)>>);

impl Calls for Recorder {
    fn memory(&self) -> Option<&Arc<Region>> {
        None
    }

    async fn call<C: Cpu>(&self, _cpu: &C, call: ServiceCall<'_>) {
        let ask = ClientRequest::<Bytes>::decode(call.request).expect("a client sends requests");
        let told = match ask {
            ClientRequest::Map => {
                ClientResponse::Map { epoch: 1, boundaries: Vec::new(), owners: vec![0] }
            }
            ClientRequest::Scan { .. } => {
                ClientResponse::Records { records: Vec::new(), next: None }
            }
            ClientRequest::LoadReady { .. } => ClientResponse::LoadReady { version: 1, epoch: 1 },
            ClientRequest::LoadEnd { .. } => ClientResponse::Loaded { boundaries: Vec::new() },
            ClientRequest::UpsertAll { .. } => ClientResponse::Upserted { incarnation: 1 },
            _ => ClientResponse::<Bytes>::Done,
        };
        lock(&self.0).push((ask, call.request.len()));
        call.reply.extend_from_slice(&told.encode());
    }
}

/// A client's batches fit messages, are as few as possible, and keep the order of records.
#[test]
fn a_client_s_batches_are_bounded_by_bytes() {
    let recorder = Arc::new(Recorder::default());
    let cluster = LocalCluster::start(LocalConfig::default(), vec![Arc::clone(&recorder)]).unwrap();
    let record = |number: u64| {
        let name = number * (u64::MAX / 3_000);
        (Bytes::<128>::key_named(name), Bytes::<128>::value_named(name))
    };
    let records: Vec<_> = (0..3_000).map(record).collect();
    cluster.run_one(|fabric| {
        let records = records.clone();
        async move {
            let options = ClientOptions { deadline_ns: 20_000_000, request_ns: 0 };
            let client = ClientIndex::<_, Bytes>::open(fabric, options).await.unwrap();
            assert_eq!(client.bulk_load(records.clone().into_iter(), 0.7).await, Ok(3_000));
            client.upsert_all(records).await.unwrap();
            let error = IndexError::from(LengthError::Key { bytes: 129, most: 128 });
            assert_eq!(client.upsert_all(vec![(vec![1; 129], vec![])]).await, Err(error.clone()));
            assert_eq!(client.get(&[1; 129]).await, Err(error));
        }
    });
    let asked = lock(&recorder.0);
    let (mut loaded, mut upserted, mut requests) = (Vec::new(), Vec::new(), 0);
    for (ask, bytes) in asked.iter() {
        assert!(*bytes <= MAX_LOAD_BYTES, "{bytes}");
        match ask {
            ClientRequest::LoadAppend { records, .. } => loaded.extend_from_slice(records),
            ClientRequest::UpsertAll { records } => upserted.extend_from_slice(records),
            _ => continue,
        }
        requests += 1;
    }
    assert!(loaded == records && upserted == records);
    let bytes: usize = records.iter().map(|(key, value)| 8 + key.len() + value.len()).sum();
    let fewest = 2 * bytes.div_ceil(MAX_MESSAGE_BYTES / 2);
    assert!(fewest > 6 && requests <= fewest + 2, "{requests} requests, {fewest} at least");
}
