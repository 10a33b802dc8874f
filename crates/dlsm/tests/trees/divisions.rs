//! Shards that are divided by references to the same tables: what a division costs, what becomes of
//! the tables that both parts have, and what the directory refuses.

use super::shards::{Options, Small, options, sharded};
use super::tree::KINDS;
use super::work::check_extents;
use farleaf_dlsm::{CompactionPlace, DlsmOptions, LsmShard, ShardedDlsm};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, Fabric, ServerId};
use farleaf_index::{Design, IndexAdmin, IndexError, RangeIndex, Reshape, ScanRequest};
use farleaf_page::NamedLayout;
use farleaf_pool::remote::RpcClient;
use farleaf_pool::wire::{DirectoryRequest, Refusal, Reply};
use farleaf_suites::providers::{AnyProvider, local, rough, sim, tcp};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Two compute servers with one shard each, which can become `most_shards`.
fn dividing(most_shards: usize) -> Options {
    let mut options = options(2, 2);
    options.server.most_shards = most_shards;
    options
}

fn key(number: u64) -> Vec<u8> {
    Small::key_named(number * (u64::MAX / 1_000))
}

fn to(from: u16, to: u16, near: &[u8]) -> Reshape<Vec<u8>> {
    Reshape::MoveKeys { from, to, near: Some(near.to_vec()) }
}

async fn fill(index: &impl RangeIndex<Key = [u8], Value = [u8]>) {
    for number in 0..400 {
        index.upsert(&key(number), &[7; 40]).await.unwrap();
    }
}

/// Tables of `shard`: all, and those that it has borrowed.
fn tables(shard: &LsmShard) -> (usize, usize) {
    let tables = shard.tables();
    let borrowed = tables.iter().filter(|table| table.extents.is_empty()).count();
    (tables.len(), borrowed)
}

fn lent_only(shard: &LsmShard) -> usize {
    let own = shard.tables().iter().map(|table| table.extents.len()).sum::<usize>();
    shard.used_extents().len() - own
}

/// Both parts of a divided shard have its records from the same tables at once, and after `collect`
/// on both sides each has tables of its own, and all memory is in use or free.
fn what_is_lent_comes_back(provider: &AnyProvider, tree: DlsmOptions) {
    let mut options = dividing(4);
    options.server.tree = DlsmOptions { ..tree };
    let cluster = sharded(provider, options.clone()).with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        let mut model = BTreeMap::new();
        for number in 0..400 {
            let value = vec![number as u8; 40];
            index.upsert(&key(number), &value).await.unwrap();
            model.insert(key(number), value);
        }
        index.flush().await.unwrap();
        let middle = key(250);
        index.reshape(&to(0, 1, &middle)).await.unwrap();
        let shards = |server: usize| compute.servers()[server].state().shards();
        let check = async |model: &BTreeMap<Vec<u8>, Vec<u8>>| {
            let expected: Vec<_> =
                model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), expected);
            let mut backwards = index.scan(&ScanRequest::range(..).reverse()).await.unwrap();
            backwards.reverse();
            assert_eq!(backwards, expected);
            for number in 0..400 {
                let found = index.get(&key(number)).await.unwrap();
                assert_eq!(found.as_ref(), model.get(&key(number)), "{number}");
            }
        };
        check(&model).await;
        let (low, high) = (Arc::clone(&shards(0)[0]), Arc::clone(&shards(1)[0]));
        assert_eq!((low.id(), high.id()), (0, 3), "the same memory server lists both");
        let (all, borrowed) = tables(&high);
        assert!(all > 1 && borrowed == all, "{borrowed} of {all} tables are borrowed");
        assert_eq!(tables(&low).1, 0);
        assert!(lent_only(&low) > 0, "tables with keys above only are lent and not used");
        // New versions, tombstones, and everything merged: in one part first.
        for number in 200..300 {
            match number % 3 {
                0 => {
                    index.upsert(&key(number), b"newer").await.unwrap();
                    model.insert(key(number), b"newer".to_vec());
                }
                1 => {
                    assert!(index.remove(&key(number)).await.unwrap());
                    model.remove(&key(number));
                }
                _ => {}
            }
        }
        check(&model).await;
        index.collect().await.unwrap();
        // The lender looks for what has come back when it merges next.
        index.upsert(&key(1), b"once more").await.unwrap();
        model.insert(key(1), b"once more".to_vec());
        index.collect().await.unwrap();
        check(&model).await;
        assert_eq!((tables(&high).1, lent_only(&low)), (0, 0));
        for shard in [&low, &high] {
            check_extents(shard);
            let usage = shard.extents();
            assert!(usage.leased > 0 && usage.lost == 0, "{usage:?}");
            let clip = shard.clip();
            for table in shard.tables() {
                let meta = table.meta;
                assert!(clip.has(meta.smallest.key()) && clip.has(meta.largest.key()));
            }
        }
    });
}

#[test]
fn what_is_lent_comes_back_everywhere() {
    for merges in [CompactionPlace::Compute, CompactionPlace::Memory] {
        for kind in KINDS {
            let tree = DlsmOptions { merges, ..super::tree::tiny(kind) };
            what_is_lent_comes_back(&local(LocalConfig::default()), tree);
        }
        let tree = DlsmOptions { merges, ..super::tree::tiny(KINDS[0]) };
        what_is_lent_comes_back(&sim(SimConfig::default()), tree.clone());
        what_is_lent_comes_back(&rough(5), tree.clone());
        what_is_lent_comes_back(&tcp(), tree);
    }
}

/// A division READs no record and writes none: it costs the giver one request more than a move,
/// and two looks at the divisions of all memory servers.
#[test]
fn a_division_moves_no_record() {
    let provider = local(LocalConfig::default());
    let options = dividing(4);
    let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let servers = u64::from(fabric.memory_servers());
        let index = <ShardedDlsm as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        fill(&index).await;
        index.flush().await.unwrap();
        let counts = || fabric.counters().snapshot();
        let before = counts();
        index.reshape(&to(0, 1, &key(250))).await.unwrap();
        let did = counts() - before;
        // A number is looked for, the shard is left and divided, and looked for again; the taker
        // looks as well, and asks for the new shard's owner. The part that moves was not opened.
        assert_eq!((did.rpcs, did.reads, did.writes), (3 * servers + 1 + 1, 0, 0));
        assert_eq!(index.owned_by(0).unwrap().1, Bound::Excluded(key(250)));
        let before = counts();
        assert_eq!(index.get(&key(1)).await.unwrap(), Some(vec![7; 40]));
        let did = counts() - before;
        let low = &compute.servers()[0].state().shards()[0];
        // The giver opens its part again: state, open, chunks, loans and tables, the index of each
        // table, and then the record.
        assert_eq!(did.rpcs, 4 + servers);
        assert_eq!(did.reads, tables(low).0 as u64 + 1);
    });
}

/// The bound on the shards of a compute server holds, and then whole shards move.
#[test]
fn a_compute_server_divides_no_more_than_it_may() {
    let provider = local(LocalConfig::default());
    let options = dividing(2);
    let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Small>>::open(fabric, compute).await.unwrap();
        index.upsert(&key(300), b"value").await.unwrap();
        let owned = |server: usize| {
            let shards = compute.servers()[server].state().shards();
            shards.iter().map(|shard| shard.id()).collect::<Vec<_>>()
        };
        index.reshape(&to(0, 1, &key(400))).await.unwrap();
        index.get(&key(450)).await.unwrap();
        assert_eq!((owned(0), owned(1)), (vec![0], vec![3, 1]));
        // The second compute server has two shards already, so it gives the whole first one.
        index.reshape(&to(1, 0, &key(450))).await.unwrap();
        index.get(&key(450)).await.unwrap();
        assert_eq!((owned(0), owned(1)), (vec![0, 3], vec![1]));
        // A shard begins at the key already.
        index.reshape(&to(0, 1, &key(400))).await.unwrap();
        index.get(&key(450)).await.unwrap();
        assert_eq!((owned(0), owned(1)), (vec![0], vec![3, 1]));
        assert_eq!(index.get(&key(300)).await.unwrap(), Some(b"value".to_vec()));
    });
}

/// What the directory answers to divisions, loans and returns that make no sense, or come late.
#[test]
fn the_directory_divides_once() {
    let provider = local(LocalConfig::default());
    let options = dividing(4);
    let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        fill(&index).await;
        index.flush().await.unwrap();
        let rpc = &RpcClient::<_, Small>::new(fabric.clone());
        let ask = async |request: DirectoryRequest| rpc.ask(ServerId::new(0), &request).await;
        let refusal = async |request: DirectoryRequest| match ask(request).await {
            Err(error) => match IndexError::from(error) {
                IndexError::Refused { refusal, .. } => Some(refusal),
                other => panic!("{other:?}"),
            },
            Ok(_) => None,
        };
        let state = async || match ask(DirectoryRequest::State { shard: 0 }).await.unwrap() {
            Reply::Shard { owner, epoch, loans, .. } => (owner, epoch, loans),
            other => panic!("{other:?}"),
        };
        let (owner, epoch, loans) = state().await;
        assert_eq!(loans, 0);
        let words = |key: &[u8]| {
            let mut words = vec![key.len() as u64];
            words.extend(key.chunks(8).map(|part| {
                let mut bytes = [0; 8];
                bytes[..part.len()].copy_from_slice(part);
                u64::from_le_bytes(bytes)
            }));
            words
        };
        let divide = |owner, epoch, into, at: &[u64]| DirectoryRequest::Divide {
            shard: 0,
            owner,
            epoch,
            into,
            at: at.to_vec(),
        };
        let at = words(&key(250));
        let cases = [
            (divide(owner, epoch, 2, &[]), Refusal::Malformed),
            (divide(owner, epoch, 2, &[1 << 60]), Refusal::Malformed),
            (divide(owner, epoch, 2, &[&at[..], &[0]].concat()), Refusal::Malformed),
            (divide(owner + 1, epoch, 2, &at), Refusal::OtherOwner),
            (divide(owner, epoch + 1, 2, &at), Refusal::OtherOwner),
            (divide(owner, epoch, 0, &at), Refusal::OtherOwner),
            (
                DirectoryRequest::Divide { shard: 9, owner, epoch, into: 2, at: at.clone() },
                Refusal::NoSuchShard,
            ),
            (DirectoryRequest::Loans { shard: 0, epoch: epoch + 1, from: 0 }, Refusal::OtherOwner),
            (
                DirectoryRequest::Return { shard: 0, epoch: epoch + 1, tables: vec![1] },
                Refusal::OtherOwner,
            ),
        ];
        for (request, expected) in cases {
            assert_eq!(refusal(request.clone()).await, Some(expected), "{request:?}");
        }
        assert_eq!(state().await, (owner, epoch, 0), "nothing has changed");
        assert_eq!(refusal(divide(owner, epoch, 2, &at)).await, None);
        let after = state().await;
        assert_eq!(after.1, epoch + 1);
        assert!(after.2 > 0, "it has lent tables");
        assert_eq!(refusal(divide(owner, epoch, 2, &at)).await, None, "repeated");
        assert_eq!(refusal(divide(owner, epoch, 4, &at)).await, Some(Refusal::OtherOwner));
        assert_eq!(state().await, after);
        let pieces = DirectoryRequest::Pieces { from: 0 };
        let all = [vec![2, at.len() as u64], at.clone()].concat();
        assert_eq!(ask(pieces).await, Ok(Reply::Tables { more: false, words: all.clone() }));
        let rest = Reply::Tables { more: false, words: all[1..].to_vec() };
        assert_eq!(ask(DirectoryRequest::Pieces { from: 1 }).await, Ok(rest));
        let none = Reply::Tables { more: false, words: Vec::new() };
        assert_eq!(ask(DirectoryRequest::Pieces { from: u64::MAX }).await, Ok(none));
        // A borrower that returns what it lists, or what it has not borrowed, returns nothing.
        let borrowed = match ask(DirectoryRequest::Loans { shard: 2, epoch: 1, from: 0 }).await {
            Ok(Reply::Tables { words, .. }) => words,
            other => panic!("{other:?}"),
        };
        // Each with no words of its own.
        assert!(!borrowed.is_empty() && borrowed.chunks(2).all(|table| table[1] == 0));
        let borrowed: Vec<u64> = borrowed.iter().copied().step_by(2).collect();
        let tables = [borrowed, vec![999_999]].concat();
        let given_back = DirectoryRequest::Return { shard: 2, epoch: 1, tables };
        assert_eq!(refusal(given_back).await, None);
        assert_eq!(state().await, after);
    });
}

/// A lender that compacted nothing once never asked which lent tables had come back. In a full pool
/// its flushes then failed for good, although memory was free.
#[test]
fn a_lender_without_memory_takes_back_what_was_returned() {
    let provider = local(LocalConfig::default());
    let mut options = dividing(4);
    let tree = &mut options.server.tree;
    (tree.level0_tables, tree.level0_stop) = (100, 200);
    let mut setup = sharded(&provider, options.clone());
    setup.server.pool_bytes = 128 << 10;
    let cluster = setup.with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        fill(&index).await;
        index.reshape(&to(0, 1, &key(100))).await.unwrap();
        // What is not open is not merged.
        index.get(&key(0)).await.unwrap();
        index.get(&key(399)).await.unwrap();
        // An idle tree looks once a second, and has just done so.
        for number in 0..100 {
            index.upsert(&key(number), &[7; 100]).await.unwrap();
        }
        index.collect().await.unwrap();
        let low = Arc::clone(&compute.servers()[0].state().shards()[0]);
        let before = lent_only(&low);
        assert!(before > 10, "{before} extents are lent and not used");
        // Each flush takes some, and none gives any back.
        let mut rounds = 0;
        while lent_only(&low) > 0 {
            rounds += 1;
            assert!(rounds < 90, "the pool is never full");
            for number in 0..15 {
                index.upsert(&key((rounds + number) % 100), &[8; 100]).await.unwrap();
            }
            index.flush().await.unwrap();
        }
        check_extents(&low);
        assert_eq!(index.get(&key(rounds % 100)).await.unwrap(), Some(vec![8; 100]));
        assert_eq!(index.get(&key(399)).await.unwrap(), Some(vec![7; 40]));
    });
}

/// A load asks each part by the part's own map. A compute server that did not know of a division
/// once claimed the keys of the new shard, and put them into the tables of the old one, where no
/// lookup finds them.
#[test]
fn a_load_knows_of_divisions_that_not_all_know() {
    let provider = local(LocalConfig::default());
    let mut options = options(3, 3);
    options.server.most_shards = 4;
    let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Small>>::open(fabric, compute).await.unwrap();
        index.reshape(&to(1, 2, &key(500))).await.unwrap();
        let records = || (0..900).map(|number| (key(number), vec![number as u8; 20]));
        assert_eq!(index.bulk_load(records(), 0.9).await.unwrap(), 900);
        for (key, value) in records() {
            assert_eq!(index.get(&key).await.unwrap(), Some(value));
        }
        assert_eq!(
            index.scan(&ScanRequest::range(..)).await.unwrap(),
            records().collect::<Vec<_>>()
        );
    });
}
