//! Merges of dLSM on memory servers: what they cost, what a server refuses, and what damage does.

use super::tree::{KINDS, compute, key, paper, setup, tiny, value};
use super::work::check_extents;
use farleaf_dlsm::{CompactionPlace, Dlsm, DlsmOptions, LsmShard, SsTableView};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, Fabric, ServerId};
use farleaf_index::{Design, IndexAdmin, IndexError, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_page::table::{CompactionOrder, IndexKind, JobSsTable, SsTableClip, SsTableMeta};
use farleaf_pool::remote::{RemoteError, RpcClient};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_pool::wire::{CompactionRequest, PoolRequest, Refusal, Reply};
use farleaf_suites::conformance::{self, SuiteSetup};
use farleaf_suites::providers::spent;
use farleaf_suites::providers::{local, rough, sim, tcp};
use futures_util::future::{Either, select};
use std::pin::pin;

type Small = Bytes<128>;

const SERVER: ServerId = ServerId::new(0);

fn near(merges: CompactionPlace, index: IndexKind) -> DlsmOptions {
    DlsmOptions { merges, ..tiny(index) }
}

#[test]
fn dlsm_conforms_with_merges_on_memory_servers() {
    for kind in KINDS {
        let provider = &local(LocalConfig::default());
        conformance::run::<Small, Dlsm, _>(&setup(provider, near(CompactionPlace::Memory, kind)));
    }
    for (provider, place) in [
        (sim(SimConfig::default()), CompactionPlace::ByCost),
        (rough(7), CompactionPlace::Memory),
        (tcp(), CompactionPlace::Memory),
    ] {
        conformance::run::<Small, Dlsm, _>(&setup(&provider, near(place, KINDS[0])));
    }
}

/// Bytes that one upsert moves over the network, beside its flush, for merges at `merges`; the
/// merges, and how many of them ran on the memory server.
fn merge_bytes(merges: CompactionPlace, index: IndexKind) -> (f64, u64, u64) {
    const RECORDS: u64 = 20_000;
    let provider = &local(LocalConfig::default());
    let server = MemoryServerConfig { pool_bytes: 64 << 20, ..Default::default() };
    let options = DlsmOptions { merges, index, level0_tables: 1, level1_bytes: 1 << 20, ..paper() };
    let setup = SuiteSetup { memory_servers: 1, server, ..setup(provider, options) };
    let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
    cluster.run_one(|fabric| async move {
        let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
        let cost = spent(&fabric, async {
            for number in 0..RECORDS {
                index.upsert(&key(number), &value(number)).await.unwrap();
            }
            index.flush().await.unwrap();
        });
        let (cost, counts) = (cost.await, tree.counts());
        if merges == CompactionPlace::Memory {
            // Of the outputs, the compute server reads the indexes and nothing else.
            assert_eq!(cost.bytes_written, counts.flushed_bytes);
            assert_eq!(cost.bytes_read, counts.merged_index_bytes);
        }
        for number in 0..RECORDS {
            assert_eq!(index.get(&key(number)).await.unwrap(), Some(value(number)));
        }
        check_extents(tree);
        let bytes = cost.bytes_read + cost.bytes_written - counts.flushed_bytes;
        (bytes as f64 / RECORDS as f64, counts.merges, counts.near_merges)
    })
}

/// With merges on the memory server, only indexes cross the network.
#[test]
fn near_merges_move_only_indexes() {
    for (index, most) in [(IndexKind::Compact, 95.0), (IndexKind::Full { bloom_bits: 10 }, 720.0)] {
        let (near, merges, on_server) = merge_bytes(CompactionPlace::Memory, index);
        let (far, ..) = merge_bytes(CompactionPlace::Compute, index);
        println!(
            "{index:?}: {near} bytes an upsert near the data, {far} otherwise; {merges} merges"
        );
        assert!(merges > 10 && on_server == merges, "{on_server} of {merges} merges");
        assert!(near <= most && far > 8.0 * near, "{near} and {far} bytes");
    }
}

fn job_of(tables: &[SsTableView], extents: &[u64]) -> CompactionOrder {
    let table = |view: &SsTableView| {
        vec![JobSsTable {
            id: view.meta.footer.table,
            data_words: view.meta.footer.data_words,
            words: 0..view.meta.footer.data_words,
            pieces: view.pieces.iter().map(|(at, words)| (at.offset(), *words)).collect(),
        }]
    };
    CompactionOrder {
        sources: tables.iter().map(table).collect(),
        range: SsTableClip::default(),
        snapshots: Vec::new(),
        below: Vec::new(),
        table_words: 1 << 20,
        index: IndexKind::Compact,
        level: 1,
        first_output: 1_000,
        outputs: 1,
        extent_words: 256,
        extents: extents.to_vec(),
    }
}

/// A tree with at least three tables in level 0, on one server.
async fn three_tables<F: Fabric>(
    fabric: &F,
    tree: &Arc<LsmShard>,
) -> impl IndexAdmin<Key = [u8], Value = [u8]> {
    let index = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
    for round in 0..3_u64 {
        for number in 0..20 {
            index.upsert(&key(number), &value(round)).await.unwrap();
        }
        index.flush().await.unwrap();
    }
    index
}

fn one_server() -> DlsmOptions {
    let mut options = near(CompactionPlace::Memory, KINDS[0]);
    (options.level0_tables, options.level0_stop) = (50, 50);
    options
}

#[test]
fn a_memory_server_refuses_jobs_that_make_no_sense() {
    let provider = &local(LocalConfig::default());
    let setup = SuiteSetup { memory_servers: 1, ..setup(provider, one_server()) };
    let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
    cluster.run_one(|fabric| async move {
        let _index = three_tables(&fabric, tree).await;
        let tables = tree.tables();
        let rpc = &RpcClient::<_, Small>::new(fabric.clone());
        let ask = async |request: CompactionRequest| rpc.ask(SERVER, &request).await;
        let refused = |refusal| Err(RemoteError::Refused { server: SERVER, refusal });
        let begin = |job, words: Vec<u64>| CompactionRequest::Begin { owner: 7, job, words };
        // Extents in the middle of the first table's: nothing is written before a step.
        let at = tables[0].pieces[0].0.offset();
        let good = job_of(&tables, &[at]);
        let mut other_id = good.clone();
        other_id.sources[1][0].id += 1;
        let mut other_place = good.clone();
        other_place.sources[0][0].pieces[0].0 += 8;
        let mut other_size = good.clone();
        other_size.sources[0][0].data_words -= 1;
        other_size.sources[0][0].words.end -= 1;
        for job in [other_id, other_place, other_size] {
            assert_eq!(ask(begin(1, job.encode())).await, refused(Refusal::NoSuchTable));
        }
        let outside = job_of(&tables, &[1 << 40]);
        assert_eq!(ask(begin(1, outside.encode())).await, refused(Refusal::Malformed));
        assert_eq!(ask(begin(1, vec![1, 2, 3])).await, refused(Refusal::Malformed));
        let step = |job, step| CompactionRequest::Step { owner: 7, job, step };
        assert_eq!(ask(step(1, 1)).await, refused(Refusal::NoSuchJob));

        assert_eq!(ask(begin(5, good.encode())).await, Ok(Reply::Done));
        assert_eq!(ask(begin(5, good.encode())).await, Ok(Reply::Done), "it can be repeated");
        let mut other = good.clone();
        other.sources.pop();
        let taken = ask(begin(5, other.encode())).await;
        assert_eq!(taken, refused(Refusal::TooManyMerges), "another job of that number");
        assert_eq!(ask(begin(6, good.encode())).await, refused(Refusal::TooManyMerges));
        for (job, number) in [(4, 1), (6, 1), (5, 0), (5, 2)] {
            assert_eq!(ask(step(job, number)).await, refused(Refusal::NoSuchJob), "{job} {number}");
        }
        let other = CompactionRequest::Step { owner: 8, job: 5, step: 1 };
        assert_eq!(ask(other).await, refused(Refusal::NoSuchJob));
        let close = CompactionRequest::Close { owner: 7, job: 5 };
        assert_eq!(ask(close.clone()).await, Ok(Reply::Done));
        assert_eq!(ask(close).await, Ok(Reply::Done));
        assert_eq!(ask(step(5, 1)).await, refused(Refusal::NoSuchJob));
        assert_eq!(ask(begin(5, good.encode())).await, refused(Refusal::NoSuchJob), "it is late");
        // Each process has one job, and all together have 16.
        for owner in 10..26 {
            let words = good.encode();
            assert_eq!(
                ask(CompactionRequest::Begin { owner, job: 1, words }).await,
                Ok(Reply::Done)
            );
        }
        assert_eq!(ask(begin(9, good.encode())).await, refused(Refusal::TooManyMerges));
        // Nothing was written.
        for table in tree.tables() {
            assert!(tables.iter().any(|before| before.meta == table.meta));
        }
        assert_eq!(_index.scan(&ScanRequest::range(..)).await.unwrap().len(), 20);
    });
}

/// Requests that were refused once counted their process for good, until the server knew as many as
/// it can: then it refused also to close the jobs of others, whose extents never came back.
#[test]
fn refused_merges_leave_no_trace() {
    let provider = &local(LocalConfig::default());
    let setup = SuiteSetup { memory_servers: 1, ..setup(provider, one_server()) };
    let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
    cluster.run_one(|fabric| async move {
        let _index = three_tables(&fabric, tree).await;
        let tables = tree.tables();
        let rpc = &RpcClient::<_, Small>::new(fabric.clone());
        let ask = async |request: CompactionRequest| rpc.ask(SERVER, &request).await;
        let refused = |refusal| Err(RemoteError::Refused { server: SERVER, refusal });
        let good = job_of(&tables, &[tables[0].pieces[0].0.offset()]);
        let begin = |owner, job, description: &CompactionOrder| CompactionRequest::Begin {
            owner,
            job,
            words: description.encode(),
        };
        let empty = job_of(&[], &good.extents);
        let endless = CompactionOrder { first_output: u64::MAX - 1, ..good.clone() };
        for owner in 1..100 {
            for (job, description) in [(1, &empty), (0, &good), (1, &endless)] {
                let begun = ask(begin(owner, job, description)).await;
                assert_eq!(begun, refused(Refusal::Malformed), "{owner} {job}");
            }
        }
        // As many processes as the server remembers.
        for owner in 1..=64 {
            assert_eq!(ask(begin(owner, 1, &good)).await, Ok(Reply::Done), "{owner}");
            assert_eq!(ask(CompactionRequest::Close { owner, job: 1 }).await, Ok(Reply::Done));
        }
        assert_eq!(ask(begin(65, 1, &good)).await, refused(Refusal::TooManyMerges));
        assert_eq!(ask(CompactionRequest::Close { owner: 65, job: 1 }).await, Ok(Reply::Done));
        assert_eq!(ask(begin(65, 1, &good)).await, refused(Refusal::TooManyMerges));
        assert_eq!(ask(begin(64, 2, &good)).await, Ok(Reply::Done));
    });
}

/// A step that is repeated gets the same answer, and a job without room for its output fails.
#[test]
fn steps_can_be_repeated() {
    let provider = &local(LocalConfig::default());
    let setup = SuiteSetup { memory_servers: 1, ..setup(provider, one_server()) };
    let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
    cluster.run_one(|fabric| async move {
        let _index = three_tables(&fabric, tree).await;
        let rpc = &RpcClient::<_, Small>::new(fabric.clone());
        let ask = async |request: CompactionRequest| rpc.ask(SERVER, &request).await;
        let chunk = PoolRequest::AllocateWhole { bytes: 64 << 10, least: 64 << 10, token: 5 };
        let Ok(Reply::Chunk { at, .. }) = rpc.ask(SERVER, &chunk).await else { panic!("no chunk") };
        let places: Vec<u64> = (0..32).map(|extent| at.offset() + extent * 2_048).collect();
        for (job, extents, fails) in [(1, &places[..], false), (2, &places[..1], true)] {
            let words = job_of(&tree.tables(), extents).encode();
            let begun = ask(CompactionRequest::Begin { owner: 7, job, words }).await;
            assert_eq!(begun, Ok(Reply::Done));
            let (mut number, mut outputs) = (0, Vec::new());
            let ended = loop {
                number += 1;
                let step = CompactionRequest::Step { owner: 7, job, step: number };
                let (first, again) = (ask(step.clone()).await, ask(step).await);
                assert_eq!(first, again, "step {number}");
                match first {
                    Ok(Reply::Merged { done, outputs: words }) => {
                        outputs.extend(words);
                        if done {
                            break Ok(());
                        }
                    }
                    other => break other.map(drop),
                }
            };
            if fails {
                assert_eq!(ended, Err(RemoteError::OutOfMemory { server: SERVER }));
            } else {
                assert_eq!(ended, Ok(()));
                let meta = SsTableMeta::decode(&mut &outputs[..]).unwrap();
                assert_eq!((meta.footer.records, meta.footer.table, meta.level), (20, 1_000, 1));
                let next = CompactionRequest::Step { owner: 7, job, step: number + 1 };
                assert!(ask(next).await.is_err(), "all is merged");
            }
            assert_eq!(ask(CompactionRequest::Close { owner: 7, job }).await, Ok(Reply::Done));
        }
    });
}

/// Words of a table that are not its records end the compaction on either side, and lose nothing.
#[test]
fn a_damaged_table_ends_a_merge() {
    let provider = &local(LocalConfig::default());
    let setup = SuiteSetup { memory_servers: 1, ..setup(provider, one_server()) };
    let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
    cluster.run_one(|fabric| async move {
        let index = three_tables(&fabric, tree).await;
        let before = tree.tables().len();
        let oldest = tree.tables().pop().unwrap();
        let at = oldest.pieces[0].0.plus(80);
        let buffer = fabric.buffer(8).unwrap();
        buffer.set(0, 0xdead_beef);
        fabric.write(at, buffer).await.unwrap();
        let damaged = index.collect().await;
        assert!(matches!(damaged, Err(IndexError::Damaged { .. })), "{damaged:?}");
        assert_eq!(tree.tables().len(), before);
        for number in 0..20 {
            assert_eq!(index.get(&key(number)).await.unwrap(), Some(value(2)), "{number}");
        }
        index.settle().await.unwrap();
        check_extents(tree);
    });
}

/// A compaction that is dropped at any moment leaves its inputs, and its job is closed before its
/// extents are used again.
#[test]
fn a_dropped_merge_loses_nothing() {
    for provider in &[sim(SimConfig::default()), rough(8)] {
        let setup = SuiteSetup { memory_servers: 1, ..setup(provider, one_server()) };
        let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
        cluster.run_one(|fabric| async move {
            let index = three_tables(&fabric, tree).await;
            let mut dropped = 0;
            for round in 0..40_u64 {
                for number in 0..20 {
                    index.upsert(&key(number), &value(round)).await.unwrap();
                }
                index.flush().await.unwrap();
                let (merge, timer) = (pin!(index.collect()), pin!(fabric.sleep(round * 2_000)));
                match select(merge, timer).await {
                    Either::Left((merged, _)) => merged.unwrap(),
                    Either::Right(_) => dropped += 1,
                }
                for number in 0..20 {
                    assert_eq!(index.get(&key(number)).await.unwrap(), Some(value(round)));
                }
            }
            assert!(dropped >= 5, "{dropped} merges were dropped");
            index.upsert(&key(0), &value(40)).await.unwrap();
            index.flush().await.unwrap();
            let before = tree.counts();
            index.collect().await.unwrap();
            // The server has one job of a process: those that were dropped are closed.
            let after = tree.counts();
            assert_eq!(
                (after.merges, after.near_merges),
                (before.merges + 1, before.near_merges + 1)
            );
            index.settle().await.unwrap();
            check_extents(tree);
        });
    }
}

/// A compaction that was dropped with its handle once lost the extents of all its outputs.
#[test]
fn another_handle_closes_the_job_of_a_dropped_one() {
    let provider = &sim(SimConfig::default());
    let setup = SuiteSetup { memory_servers: 1, ..setup(provider, one_server()) };
    let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
    cluster.run_one(|fabric| async move {
        let index = three_tables(&fabric, tree).await;
        let mut left = 0;
        for round in 0..40_u64 {
            for number in 0..20 {
                index.upsert(&key(number), &value(round)).await.unwrap();
            }
            index.flush().await.unwrap();
            {
                let other = <Dlsm as Design<Small>>::open(fabric.clone(), tree).await.unwrap();
                let (merge, timer) = (pin!(other.collect()), pin!(fabric.sleep(round * 2_000)));
                select(merge, timer).await;
            }
            let used: u64 = tree.tables().iter().map(|table| table.extents.len() as u64).sum();
            left += u64::from(tree.extents().leased > used);
            assert_eq!(tree.extents().lost, 0, "round {round}");
            index.settle().await.unwrap();
            check_extents(tree);
        }
        assert!(left >= 5, "{left} merges were dropped half-way");
    });
}
