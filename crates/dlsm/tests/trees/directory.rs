//! The directory of dLSM's shards: what another process finds there, and what it refuses.

use super::tree::{KINDS, compute, key, setup, tiny, value};
use super::work::check_extents;
use farleaf_dlsm::{CompactionPlace, Dlsm, DlsmOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::sync::{AtomicBool, Ordering};
use farleaf_fabric::{Cluster, Fabric, GlobalAddr, Rule, ServerId};
use farleaf_index::{Design, IndexAdmin, IndexError, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_page::rules::KnownRule;
use farleaf_page::table::{PlacedSsTable, VersionChange};
use farleaf_pool::remote::RpcClient;
use farleaf_pool::wire::{DirectoryRequest, LEFT, Refusal, Reply};
use farleaf_suites::conformance::SuiteSetup;
use farleaf_suites::providers::{local, rough, sim, tcp};

type Small = Bytes<128>;

/// What a process has flushed and merged is there for the next one, and so is the rest of the
/// memory. What was in MemTables only is lost.
#[test]
fn another_process_opens_what_was_flushed() {
    for (provider, merges) in [
        (local(LocalConfig::default()), CompactionPlace::Compute),
        (sim(SimConfig::default()), CompactionPlace::Memory),
        (rough(4), CompactionPlace::Memory),
        (tcp(), CompactionPlace::Memory),
    ] {
        let setup = setup(&provider, DlsmOptions { merges, ..tiny(KINDS[0]) });
        let cluster = setup.with_index::<Small, Dlsm>();
        let trees = &[(); 4].map(|()| compute(&setup.options));
        cluster.run_one(|fabric| async move {
            let mut all = 0;
            for (life, tree) in trees.iter().enumerate() {
                if life > 0 {
                    let refused = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await;
                    assert!(matches!(refused, Err(IndexError::InvalidArgument(_))));
                    Dlsm::take_over::<_, Small>(fabric.clone(), tree).await.unwrap();
                }
                let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
                assert_eq!(tree.epoch(), life as u64 + 1);
                for number in 0..all {
                    let newest = value(number + u64::from(number < all / 2));
                    let newest = if number % 7 == 0 { None } else { Some(newest) };
                    assert_eq!(index.get(&key(number)).await.unwrap(), newest, "{number}");
                }
                let there = index.scan(&ScanRequest::range(..).limit(10_000)).await.unwrap();
                assert_eq!(there.len() as u64, all - all.div_ceil(7));
                check_extents(tree);

                all += 200;
                for number in 0..all {
                    // Newer versions, and tombstones, are newer also after this life.
                    index.upsert(&key(number), &value(number + 5)).await.unwrap();
                    let newest = value(number + u64::from(number < all / 2));
                    index.upsert(&key(number), &newest).await.unwrap();
                    if number % 7 == 0 {
                        assert!(index.remove(&key(number)).await.unwrap());
                    }
                }
                index.flush().await.unwrap();
                assert!(tree.counts().merges > 0, "{:?}", tree.counts());
                index.upsert(b"lost", b"with its MemTable").await.unwrap();
                index.settle().await.unwrap();
            }
        });
    }
}

/// A process whose tree was taken over changes nothing any more, and gets no memory.
#[test]
fn the_former_process_is_refused() {
    for provider in &[local(LocalConfig::default()), rough(9)] {
        let setup = setup(provider, tiny(KINDS[0]));
        let cluster = setup.with_index::<Small, Dlsm>();
        let (first, second) = (&compute(&setup.options), &compute(&setup.options));
        cluster.run_one(|fabric| async move {
            let former = <Dlsm as Design<Small>>::open(fabric.clone(), first).await.unwrap();
            former.upsert(b"kept", b"1").await.unwrap();
            former.flush().await.unwrap();
            former.upsert(b"late", b"1").await.unwrap();
            Dlsm::take_over::<_, Small>(fabric.clone(), second).await.unwrap();
            // What it still writes lands in free extents: here, nothing fences it.
            let refused = former.flush().await;
            let is_refused = |outcome: &Result<(), IndexError>| {
                matches!(outcome, Err(IndexError::Refused { refusal: Refusal::OtherOwner, .. }))
            };
            assert!(is_refused(&refused), "{refused:?}");
            // An attempt before the refused one could have listed this table, which is in use
            // then. So its extents stay leased, and nothing more is written.
            let before = (first.extents().leased, fabric.counters().snapshot().writes);
            assert!(is_refused(&former.flush().await));
            let refused = former.collect().await;
            assert!(is_refused(&refused), "{refused:?}");
            assert_eq!(before, (first.extents().leased, fabric.counters().snapshot().writes));
            let refused = <Dlsm as Design<Small>>::open(fabric.clone(), first).await.map(drop);
            assert!(is_refused(&refused), "{refused:?}");
            let index = <Dlsm as Design<Small>>::open(fabric.clone(), second).await.unwrap();
            index.upsert(b"kept", b"2").await.unwrap();
            index.collect().await.unwrap();
            let there = index.scan(&ScanRequest::range(..).limit(10)).await.unwrap();
            assert_eq!(there, [(b"kept".to_vec(), b"2".to_vec())]);
            check_extents(second);
        });
    }
}

/// The directory may still make the change that shows what was loaded, so the outcome is unknown,
/// although it was refused. This once was told as a load that has failed.
#[test]
fn a_load_whose_change_stays_pending_is_indeterminate() {
    let provider = local(LocalConfig::default());
    let setup = setup(&provider, tiny(KINDS[0]));
    let cluster = setup.with_index::<Small, Dlsm>();
    let (first, second) = (&compute(&setup.options), &compute(&setup.options));
    cluster.run_one(|fabric| async move {
        let former = <Dlsm as Design<Small>>::open(fabric.clone(), first).await.unwrap();
        // So that it has memory for the load.
        former.upsert(b"key", b"one").await.unwrap();
        former.flush().await.unwrap();
        former.remove(b"key").await.unwrap();
        former.collect().await.unwrap();
        Dlsm::take_over::<_, Small>(fabric, second).await.unwrap();
        let loaded = former.bulk_load([(b"key".to_vec(), b"new".to_vec())].into_iter(), 0.7).await;
        assert!(first.is_changing());
        assert!(matches!(loaded, Err(IndexError::Indeterminate(_))), "{loaded:?}");
    });
}

#[test]
fn a_directory_refuses_what_makes_no_sense() {
    const SERVER: ServerId = ServerId::new(0);
    const EXTENT: u64 = 2 << 10;
    let provider = &local(LocalConfig::default());
    let setup = SuiteSetup { memory_servers: 1, ..setup(provider, tiny(KINDS[0])) };
    let cluster = setup.with_index::<Small, Dlsm>();
    let tree = &compute(&setup.options);
    cluster.run_one(|fabric| async move {
        let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
        index.upsert(b"key", b"value").await.unwrap();
        index.flush().await.unwrap();
        let meta = tree.tables()[0].meta.clone();
        let rpc = RpcClient::<_, Small>::new(fabric.clone());
        let told = async |request: DirectoryRequest| match rpc.ask(SERVER, &request).await {
            Ok(Reply::Done) => Ok(()),
            Ok(Reply::Shard { .. }) => Ok(()),
            Err(farleaf_pool::remote::RemoteError::Refused { refusal, .. }) => Err(refusal),
            other => panic!("{other:?}"),
        };
        let open =
            |owner, after| DirectoryRequest::Open { shard: 9, owner, after, extent_bytes: EXTENT };
        let change = |number, part, more, words: &[u64]| {
            let words = words.to_vec();
            DirectoryRequest::Edit { shard: 9, epoch: 1, number, part, more, words }
        };
        let senseless = |owner, after, extent_bytes| DirectoryRequest::Open {
            shard: 8,
            owner,
            after,
            extent_bytes,
        };
        for open in [senseless(0, 0, EXTENT), senseless(5, 0, 0), senseless(5, u64::MAX, EXTENT)] {
            assert_eq!(told(open).await, Err(Refusal::Malformed));
        }
        assert_eq!(
            told(DirectoryRequest::Join { shard: 8, owner: 0 }).await,
            Err(Refusal::NoSuchShard)
        );
        // A shard that no process has.
        assert_eq!(told(change(1, 0, false, &[0])).await, Err(Refusal::NoSuchShard));
        assert_eq!(told(open(5, 1)).await, Err(Refusal::NoSuchShard));
        assert_eq!(
            told(DirectoryRequest::Join { shard: 9, owner: 5 }).await,
            Err(Refusal::NoSuchShard)
        );
        assert_eq!(told(open(5, 0)).await, Ok(()));
        assert_eq!(told(open(5, 0)).await, Ok(()), "repeated");
        assert_eq!(told(open(6, 0)).await, Err(Refusal::OtherOwner));
        assert_eq!(
            told(DirectoryRequest::Join { shard: 9, owner: 6 }).await,
            Err(Refusal::OtherOwner)
        );

        let allocate = DirectoryRequest::Allocate {
            shard: 9,
            epoch: 1,
            bytes: 8 * EXTENT,
            least: 8 * EXTENT,
            token: fabric.unique(),
        };
        let Ok(Reply::Chunk { at: chunk, .. }) = rpc.ask(SERVER, &allocate).await else {
            panic!("there is no chunk");
        };
        let table = |id, at: GlobalAddr, extents: u64| {
            let mut placed = PlacedSsTable {
                meta: meta.clone(),
                pieces: vec![(at.to_bits(), extents * EXTENT)],
            };
            placed.meta.footer.table = id;
            placed
        };
        let add = |added: Vec<PlacedSsTable>| VersionChange { removed: vec![], added }.encode();
        let extent = |number| chunk.plus(number * EXTENT);
        let first = add(vec![table(1, extent(0), 1), table(2, extent(1), 1)]);
        // In parts, of which one is repeated and one comes too early.
        let (begin, end) = first.split_at(7);
        assert_eq!(told(change(1, 1, false, end)).await, Err(Refusal::LateEdit));
        assert_eq!(told(change(1, 0, true, begin)).await, Ok(()));
        assert_eq!(told(change(1, 0, true, begin)).await, Ok(()));
        assert_eq!(told(change(1, 1, false, end)).await, Ok(()));
        assert_eq!(told(change(1, 1, false, end)).await, Ok(()), "repeated");

        let whole = async |number, words: Vec<u64>| told(change(number, 0, false, &words)).await;
        for (number, words) in [
            (2, add(vec![table(1, extent(2), 1)])), // the same id
            (3, add(vec![table(3, extent(1), 1)])), // another's memory
            (4, add(vec![table(3, extent(2), 2), table(4, extent(3), 1)])), // one another's
            (5, add(vec![table(3, extent(7), 2)])), // beyond the chunk
            (6, add(vec![table(3, GlobalAddr::new(SERVER, 1024), 1)])), // another shard's
            (7, add(vec![table(3, extent(2), 0)])), // none
            (8, add(vec![PlacedSsTable { pieces: vec![], ..table(3, extent(2), 1) }])),
            (9, vec![3 << 32 | 5]),
        ] {
            assert_eq!(whole(number, words).await, Err(Refusal::Malformed), "{number}");
        }
        let unknown = VersionChange { removed: vec![1, 7], added: vec![] }.encode();
        assert_eq!(whole(10, unknown.clone()).await, Err(Refusal::NoSuchTable));
        assert_eq!(whole(9, add(vec![table(3, extent(2), 1)])).await, Err(Refusal::LateEdit));
        let good = add(vec![table(3, extent(2), 1)]);
        assert_eq!(whole(10, good.clone()).await, Err(Refusal::NoSuchTable), "repeated");
        assert_eq!(whole(11, good).await, Ok(()));

        // All that was refused has changed nothing.
        let listed = DirectoryRequest::Tables { shard: 9, epoch: 1, from: 0 };
        let Ok(Reply::Tables { more: false, words }) = rpc.ask(SERVER, &listed).await else {
            panic!("the tables are not listed");
        };
        let mut rest = &words[..];
        let mut tables = Vec::new();
        while !rest.is_empty() {
            tables.push(PlacedSsTable::decode(&mut rest).unwrap());
        }
        let expected: Vec<_> = (0..3).map(|place| table(place + 1, extent(place), 1)).collect();
        let plain = |placed: &PlacedSsTable| (placed.meta.footer.table, placed.pieces.clone());
        assert_eq!(
            tables.iter().map(plain).collect::<Vec<_>>(),
            expected.iter().map(plain).collect::<Vec<_>>()
        );

        // Another process has it: nothing of the former epoch counts.
        assert_eq!(told(open(6, 1)).await, Ok(()));
        assert_eq!(whole(12, add(vec![table(4, extent(3), 1)])).await, Err(Refusal::OtherOwner));
        assert_eq!(told(open(5, 0)).await, Err(Refusal::OtherOwner));
        let chunks = DirectoryRequest::Chunks { shard: 9, epoch: 2, from: 0 };
        let chunks = rpc.ask(SERVER, &chunks).await;
        assert_eq!(chunks, Ok(Reply::Chunks { more: false, chunks: vec![(chunk, 8 * EXTENT)] }));
        let DirectoryRequest::Allocate { shard, epoch, bytes, least, .. } = allocate else {
            unreachable!("it is one");
        };
        let token = fabric.unique();
        let late = DirectoryRequest::Allocate { shard, epoch, bytes, least, token };
        assert_eq!(told(late).await, Err(Refusal::OtherOwner));
    });
}

/// A shard is left once, in the epoch of the process that has it. No later request of that epoch
/// counts, and the process that opens it next has nothing to fence.
#[test]
fn a_shard_is_left_once() {
    const SERVER: ServerId = ServerId::new(0);
    const EXTENT: u64 = 2 << 10;
    let provider = &local(LocalConfig::default());
    let setup = SuiteSetup { memory_servers: 1, ..setup(provider, tiny(KINDS[0])) };
    let cluster = setup.with_index::<Small, Dlsm>();
    let rpc_of = |fabric| RpcClient::<_, Small>::new(fabric);
    let told = async |fabric, request: DirectoryRequest| match rpc_of(fabric)
        .ask(SERVER, &request)
        .await
    {
        Ok(Reply::Shard { epoch, owner, unfenced, .. }) => Ok((epoch, owner, unfenced)),
        Ok(Reply::Done) => Ok((0, 0, Vec::new())),
        Err(farleaf_pool::remote::RemoteError::Refused { refusal, .. }) => Err(refusal),
        other => panic!("{other:?}"),
    };
    let told = &told;
    let open =
        |owner, after| DirectoryRequest::Open { shard: 9, owner, after, extent_bytes: EXTENT };
    let leave = |owner, epoch| DirectoryRequest::Leave { shard: 9, owner, epoch };
    let join = |owner| DirectoryRequest::Join { shard: 9, owner };
    let state = || DirectoryRequest::State { shard: 9 };
    let edit = |epoch, number| DirectoryRequest::Edit {
        shard: 9,
        epoch,
        number,
        part: 0,
        more: false,
        words: VersionChange::default().encode(),
    };
    let done = || Ok((0, 0, Vec::new()));
    cluster.run(&[3], |fabric, _| async move {
        let refused = Err(Refusal::NoSuchShard);
        assert_eq!(told(fabric.clone(), leave(5, 1)).await, refused);
        assert_eq!(told(fabric.clone(), open(5, 0)).await, Ok((1, 5, vec![])));
    });
    // Another compute server of the process, and what the process must not do.
    cluster.run(&[4], |fabric, _| async move {
        let told = async |request| told(fabric.clone(), request).await;
        assert_eq!(told(join(5)).await, Ok((1, 5, vec![])));
        assert_eq!(told(edit(1, 1)).await, done());
        let refused = Err(Refusal::OtherOwner);
        for senseless in [leave(6, 1), leave(5, 0), leave(5, 2), leave(0, 1), leave(LEFT, 1)] {
            assert_eq!(told(senseless).await, refused);
        }
        assert_eq!(told(leave(5, u64::MAX)).await, Err(Refusal::Malformed));
        assert_eq!(told(leave(5, 1)).await, done());
        assert_eq!(told(leave(5, 1)).await, done(), "repeated");
        assert_eq!(told(state()).await, Ok((2, LEFT, vec![])));
        // H3: all that is late.
        assert_eq!(told(edit(1, 1)).await, refused);
        assert_eq!(told(edit(1, 2)).await, refused);
        assert_eq!(told(join(5)).await, refused);
        assert_eq!(told(open(5, 0)).await, refused);
        assert_eq!(told(leave(LEFT, 2)).await, refused);
    });
    // The next one has nothing to fence. If it dies, the one after it has.
    cluster.run(&[7], |fabric, _| async move {
        let told = async |request| told(fabric.clone(), request).await;
        assert_eq!(told(open(6, 2)).await, Ok((3, 6, vec![])));
        assert_eq!(told(leave(5, 1)).await, Err(Refusal::OtherOwner));
    });
    cluster.run(&[8], |fabric, _| async move {
        let told = async |request| told(fabric.clone(), request).await;
        assert_eq!(told(open(7, 3)).await, Ok((4, 7, vec![7])));
        // One that is left before the fence was noted: whom it has to fence stays known.
        assert_eq!(told(leave(7, 4)).await, done());
        assert_eq!(told(state()).await, Ok((5, LEFT, vec![7])));
    });
}

/// A process that lives on while another one takes its tree over. Its compute servers are fenced,
/// so what it still writes reaches no extent that the other one uses. Returns how many of the other
/// one's records can be read.
fn read_beside_the_former_process(broken: Option<Rule>) -> usize {
    const RECORDS: u64 = 400;
    let faults = Faults { timeout_ns: 50_000, detect_death_ns: 10_000, ..Faults::default() };
    let provider = sim(SimConfig { broken, faults, ..SimConfig::default() });
    // No compaction gives the first extents back.
    let options = DlsmOptions { level0_tables: 50, level0_stop: 50, ..tiny(KINDS[0]) };
    let setup = SuiteSetup { memory_servers: 1, ..setup(&provider, options) };
    let cluster = setup.with_index::<Small, Dlsm>();
    let (first, second) = (&compute(&setup.options), &compute(&setup.options));
    let is_taken_over = &AtomicBool::new(false);
    let outcomes = cluster.run(&[0, 1], async |fabric, number| {
        if number == 0 {
            let former = <Dlsm as Design<Small>>::open(fabric.clone(), first).await.unwrap();
            former.upsert(b"first", b"1").await.unwrap();
            former.flush().await.unwrap();
            while !is_taken_over.load(Ordering::Acquire) {
                fabric.sleep(1_000).await;
            }
            let mut failed = 0;
            for number in 0..RECORDS {
                let written = former.upsert(&key(number), &[0; 400]).await;
                failed += usize::from(written.is_err());
                if failed > 2 {
                    break;
                }
            }
            return failed;
        }
        fabric.sleep(50_000).await;
        Dlsm::take_over::<_, Small>(fabric.clone(), second).await.unwrap();
        let index = <Dlsm as Design<Small>>::open(fabric.clone(), second).await.unwrap();
        for number in 0..RECORDS / 2 {
            index.upsert(&key(number), &value(number)).await.unwrap();
        }
        index.flush().await.unwrap();
        is_taken_over.store(true, Ordering::Release);
        fabric.sleep(1_000_000).await;
        let mut read = 0;
        for number in 0..RECORDS / 2 {
            read += usize::from(index.get(&key(number)).await == Ok(Some(value(number))));
        }
        read
    });
    assert!(outcomes[0].is_some_and(|failed| failed > 0), "the former process goes on for ever");
    outcomes[1].expect("the process has ended")
}

#[test]
fn the_former_process_is_fenced() {
    assert_eq!(read_beside_the_former_process(None), 200);
    let broken = KnownRule::with_bug("opens_unfenced").unwrap().rule;
    assert!(read_beside_the_former_process(Some(broken)) < 200, "the planted bug shows");
}
