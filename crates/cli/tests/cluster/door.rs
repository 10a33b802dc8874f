//! The crate for users, `farleaf`, as a client of a whole cluster: from tasks and from threads, and
//! across the death of a compute server.

use crate::crashing::{kill_and_await, spread};
use crate::launched::{Launched, eventually};
use crate::serving::{DEADLINE, connect, serving};
use farleaf::{ClusterOptions, Error, Exchange, Handle};
use farleaf_cluster::clock::Clock;
use farleaf_core::index::{IndexError, RangeIndex};
use futures_util::FutureExt;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout};

fn open(cluster: &Launched) -> Handle {
    ClusterOptions::folder(cluster.dir()).deadline(DEADLINE * 5).connect().unwrap()
}

/// Keys of one client, over the ranges of both compute servers.
fn own_keys(client: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |number| spread(client * 1_000_000 + number))
}

async fn use_from_a_task(index: Handle, client: u64) -> Result<(), Error> {
    for key in own_keys(client, 100) {
        assert!(index.insert(key, 1).await?);
        assert!(!index.insert(key, 2).await?);
        assert_eq!(index.get(key).await?, Some(1));
        assert!(index.update(key, 3).await?);
        assert_eq!(index.compare_exchange(key, 3, 4).await?, Exchange::Exchanged);
        index.upsert(key, key / 2).await?;
    }
    let keys: Vec<u64> = own_keys(client, 100).collect();
    let found = index.multi_get(keys.clone()).await?;
    assert!(keys.iter().zip(found).all(|(key, found)| found == Some(key / 2)));
    Ok(())
}

fn use_from_a_thread(index: &Handle, client: u64) -> Result<(), Error> {
    for key in own_keys(client, 100) {
        assert!(index.insert(key, 1).wait()?);
        assert_eq!(index.get(key).wait()?, Some(1));
        assert!(index.remove(key).wait()?);
        assert_eq!(index.get(key).wait()?, None);
        index.upsert(key, key / 2).wait()?;
    }
    Ok(())
}

fn use_from_threads(index: &Handle, clients: std::ops::Range<u64>) {
    std::thread::scope(|scope| {
        for client in clients {
            let index = index.clone();
            scope.spawn(move || use_from_a_thread(&index, client).unwrap());
        }
    });
}

async fn use_from_tasks(index: &Handle, clients: std::ops::Range<u64>) {
    let tasks = clients.map(|client| tokio::spawn(use_from_a_task(index.clone(), client)));
    for outcome in join_all(tasks).await {
        outcome.unwrap().unwrap();
    }
}

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).enable_all().build().unwrap()
}

fn all_records(index: &Handle) -> BTreeMap<u64, u64> {
    index.scan(..).into_iter().map(|record| record.unwrap()).collect()
}

#[test]
fn tasks_and_threads_use_a_cluster_and_outlive_a_compute_server() {
    let mut cluster = serving("tcp", &["--restart"]);
    let index = open(&cluster);
    use_from_threads(&index, 0..8);
    runtime(1).block_on(use_from_tasks(&index, 8..24));
    // Another runtime, and threads at the same time.
    std::thread::scope(|scope| {
        scope.spawn(|| use_from_threads(&index, 24..28));
        runtime(4).block_on(use_from_tasks(&index, 28..60));
    });
    let expected: BTreeMap<u64, u64> =
        (0..60).flat_map(|client| own_keys(client, 100)).map(|key| (key, key / 2)).collect();
    assert_eq!(all_records(&index), expected);
    runtime(1).block_on(async {
        let mut down = index.scan(..).reverse().limit(1_000);
        for (key, value) in expected.iter().rev().take(1_000) {
            assert_eq!(down.next().await, Some(Ok((*key, *value))));
        }
        assert_eq!(down.next().await, None);
        index.flush().await.unwrap();
    });
    for number in [0, 1] {
        kill_and_await(&mut cluster, number);
    }
    assert_eq!(all_records(&index), expected);
    use_from_threads(&index, 60..64);
    runtime(4).block_on(use_from_tasks(&index, 64..72));
}

/// Operations that run while a compute server dies end by their deadline, and each error tells
/// whether something may have happened.
#[test]
fn a_dying_compute_server_leaves_no_operation_without_an_answer() {
    let mut cluster = serving("tcp", &["--restart", "--write-back-ms", "1"]);
    let index = open(&cluster);
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..4)
        .map(|client| {
            let (index, stop) = (index.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let runtime = runtime(1);
                let mut errors = Vec::new();
                for key in own_keys(client, u64::MAX) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let outcome = match client % 2 {
                        0 => index.insert(key, 1).wait(),
                        _ => runtime.block_on(async { index.insert(key, 1).await }),
                    };
                    match outcome {
                        Ok(is_new) => assert!(is_new),
                        Err(error) => errors.push(error),
                    }
                }
                errors
            })
        })
        .collect();
    kill_and_await(&mut cluster, 1);
    eventually("service for all keys", || {
        own_keys(9, 10).all(|key| index.upsert(key, 1).wait().is_ok()).then_some(())
    });
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        for error in thread.join().unwrap() {
            let may_pass = matches!(error, Error::OutcomeUnknown(_) | Error::Unavailable(_));
            assert!(may_pass, "{error:?}");
        }
    }
}

/// A future that is dropped, or kept without being polled, delays no other caller.
#[test]
fn abandoned_futures_delay_no_other() {
    let cluster = serving("tcp", &[]);
    let index = open(&cluster);
    runtime(1).block_on(async {
        let mut idle = Vec::new();
        for key in own_keys(1, 300) {
            // Polled once, it is the one that watches the connection. Then it is dropped, or stays
            // in `idle` and is polled no more.
            let mut put = index.upsert(key, 1);
            let polled = (&mut put).now_or_never();
            match key % 2 {
                0 => drop(put),
                _ if polled.is_none() => idle.push(put),
                _ => {}
            }
            index.get(key).await.unwrap();
        }
        let began = Instant::now();
        let gets = own_keys(1, 300).map(|key| tokio::spawn(index.get(key)));
        for found in join_all(gets).await {
            found.unwrap().unwrap();
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        // The idle ones have not been polled, and have happened all the same.
        for put in idle {
            assert_eq!(timeout(DEADLINE, put).await.unwrap(), Ok(()));
        }
    });
}

#[test]
fn timers_of_the_runtime_go_on() {
    let cluster = serving("tcp", &[]);
    let index = open(&cluster);
    runtime(1).block_on(async {
        let fired = Arc::new(AtomicU64::new(0));
        let timer = {
            let fired = Arc::clone(&fired);
            tokio::spawn(async move {
                let mut interval = tokio::time::interval(Duration::from_millis(5));
                loop {
                    interval.tick().await;
                    fired.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1) {
            index.get(7).await.unwrap();
        }
        timer.abort();
        assert!(fired.load(Ordering::Relaxed) > 40, "{fired:?} of 200");
    });
}

/// Prints the time of a lookup through a kept handle, and through a connection's own thread.
#[test]
#[ignore = "a measurement, best in a release build"]
fn what_a_lookup_costs() {
    const COUNT: u64 = 1_000;
    let cluster = serving("tcp", &[]);
    let index = open(&cluster);
    for key in own_keys(1, COUNT) {
        index.upsert(key, key).wait().unwrap();
    }
    let connection = connect(&cluster, DEADLINE);
    let each = |clock: &Clock| clock.elapsed().as_secs_f64() * 1e6 / COUNT as f64;
    for round in 0..5 {
        let in_tokio = runtime(1).block_on(async {
            let clock = Clock::start();
            for key in own_keys(1, COUNT) {
                assert_eq!(index.get(key).await, Ok(Some(key)));
            }
            each(&clock)
        });
        let clock = Clock::start();
        for key in own_keys(1, COUNT) {
            assert_eq!(index.get(key).wait(), Ok(Some(key)));
        }
        let on_a_thread = each(&clock);
        let in_a_run = connection.run(async |client| {
            let clock = Clock::start();
            for key in own_keys(1, COUNT) {
                assert_eq!(client.get(&key).await?, Some(key));
            }
            Ok::<_, IndexError>(each(&clock))
        });
        println!(
            "round {round}: {in_tokio:.1} us in tokio, {on_a_thread:.1} us on a thread, {:.1} us in a run",
            in_a_run.unwrap()
        );
    }
}
