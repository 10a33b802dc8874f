//! An embedded index from plain threads, from tokio, and from other executors.

use farleaf::{Embedded, EmbeddedOptions, Error, Exchange, Index};
use futures_util::StreamExt;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

fn small() -> EmbeddedOptions {
    EmbeddedOptions::default().memory_bytes(64 << 20).cache_bytes(1 << 20)
}

fn open() -> Index {
    Embedded::open(small()).unwrap()
}

/// A small key space that includes the extreme keys.
fn key(dice: &mut SmallRng) -> u64 {
    match dice.random_range(0..300_u64) {
        0 => 0,
        1 => u64::MAX,
        number => number << 40,
    }
}

/// One random operation on the index and on the model; both must agree.
async fn step(index: &Index, model: &mut BTreeMap<u64, u64>, dice: &mut SmallRng) {
    let (key, value) = (key(dice), dice.next_u64());
    let held = model.get(&key).copied();
    match dice.random_range(0..10) {
        0 | 1 => {
            assert_eq!(index.insert(key, value).await.unwrap(), held.is_none());
            model.entry(key).or_insert(value);
        }
        2 => {
            assert_eq!(index.update(key, value).await.unwrap(), held.is_some());
            model.entry(key).and_modify(|held| *held = value);
        }
        3 => {
            index.upsert(key, value).await.unwrap();
            model.insert(key, value);
        }
        4 => {
            assert_eq!(index.remove(key).await.unwrap(), held.is_some());
            model.remove(&key);
        }
        5 => {
            let expected = if dice.random() { held.unwrap_or(1) } else { !value };
            let outcome = index.compare_exchange(key, expected, value).await.unwrap();
            if held == Some(expected) {
                assert_eq!(outcome, Exchange::Exchanged);
                model.insert(key, value);
            } else {
                assert_eq!(outcome, Exchange::Differs(held));
            }
        }
        6 => {
            let keys: Vec<u64> = (0..20).map(|_| self::key(dice)).collect();
            let expected: Vec<_> = keys.iter().map(|key| model.get(key).copied()).collect();
            assert_eq!(index.multi_get(keys).await.unwrap(), expected);
        }
        7 => {
            let records: Vec<(u64, u64)> =
                (0..20).map(|_| (self::key(dice), dice.next_u64())).collect();
            index.upsert_all(records.clone()).await.unwrap();
            model.extend(records);
        }
        8 => {
            let (limit, reverse) = (dice.random_range(0..400), dice.random());
            let mut scan = index.scan(key..).limit(limit);
            let range = model.range(key..).map(|(key, value)| (*key, *value));
            let expected: Vec<_> = if reverse {
                scan = scan.reverse();
                range.rev().take(limit).collect()
            } else {
                range.take(limit).collect()
            };
            let found: Vec<_> = scan.stream().map(Result::unwrap).collect().await;
            assert_eq!(found, expected);
        }
        _ => assert_eq!(index.get(key).await.unwrap(), held),
    }
}

async fn agree_with_a_model(index: Index, seed: u64) {
    let (mut dice, mut model) = (SmallRng::seed_from_u64(seed), BTreeMap::new());
    for _ in 0..3_000 {
        step(&index, &mut model, &mut dice).await;
    }
    index.flush().await.unwrap();
    let all: BTreeMap<u64, u64> = index.scan(..).stream().map(Result::unwrap).collect().await;
    assert_eq!(all, model);
}

#[tokio::test]
async fn random_operations_agree_with_a_model_in_a_current_thread_runtime() {
    agree_with_a_model(open(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn random_operations_agree_with_a_model_in_a_runtime_of_several_threads() {
    let tasks = (0..3).map(|seed| tokio::spawn(agree_with_a_model(open(), seed)));
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Outside tokio, an operation is a future like any other.
#[test]
fn random_operations_agree_with_a_model_in_another_executor() {
    block_on(agree_with_a_model(open(), 4));
}

/// A minimal executor.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (waker, mut future) = (Waker::from(Arc::new(Unpark(std::thread::current()))), pin!(future));
    loop {
        if let std::task::Poll::Ready(value) =
            future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return value;
        }
        std::thread::park();
    }
}

#[test]
fn blocking_operations_agree_with_themselves() {
    let index = open();
    assert!(index.insert(42, 7).wait().unwrap());
    assert!(!index.insert(42, 8).wait().unwrap());
    assert_eq!(index.get(42).wait().unwrap(), Some(7));
    assert!(index.update(42, 9).wait().unwrap());
    assert_eq!(index.compare_exchange(42, 9, 10).wait().unwrap(), Exchange::Exchanged);
    index.upsert_all([(1, 1), (2, 2)]).wait().unwrap();
    assert_eq!(index.multi_get([1, 2, 3]).wait().unwrap(), [Some(1), Some(2), None]);
    let down: Result<Vec<_>, _> = index.scan(2..).reverse().collect();
    assert_eq!(down.unwrap(), [(42, 10), (2, 2)]);
    assert!(index.remove(42).wait().unwrap());
    index.flush().wait().unwrap();
}

#[test]
fn eight_threads_share_a_handle_without_losing_anything() {
    struct Service {
        index: Index,
    }
    for engines in [1, 2, 8] {
        let index = Embedded::open(small().engines(engines)).unwrap();
        let service = Arc::new(Service { index });
        for counter in 0..4 {
            service.index.insert(counter, 0).wait().unwrap();
        }
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let service = &service;
                scope.spawn(move || {
                    for round in 0..400_u64 {
                        let own = 100 + round * 8 + thread;
                        assert!(service.index.insert(own, round).wait().unwrap());
                        assert_eq!(service.index.get(own).wait().unwrap(), Some(round));
                        add_one(&service.index, round % 4);
                    }
                });
            }
        });
        let sum: u64 = (0..4).map(|key| service.index.get(key).wait().unwrap().unwrap()).sum();
        assert_eq!(sum, 8 * 400);
        assert_eq!(service.index.scan(100..).count(), 8 * 400);
    }
}

fn add_one(index: &Index, key: u64) {
    let mut held = index.get(key).wait().unwrap().unwrap();
    while let Exchange::Differs(now) = index.compare_exchange(key, held, held + 1).wait().unwrap() {
        held = now.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_and_threads_use_one_handle_together() {
    let index = Embedded::open(small().engines(2)).unwrap();
    index.insert(0, 0).await.unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let index = index.clone();
            std::thread::spawn(move || (0..500).for_each(|_| add_one(&index, 0)))
        })
        .collect();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let index = index.clone();
            tokio::spawn(async move {
                for _ in 0..500 {
                    let mut held = index.get(0).await.unwrap().unwrap();
                    while let Exchange::Differs(now) =
                        index.compare_exchange(0, held, held + 1).await.unwrap()
                    {
                        held = now.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    tokio::task::spawn_blocking(|| threads.into_iter().for_each(|t| t.join().unwrap()))
        .await
        .unwrap();
    assert_eq!(index.get(0).await.unwrap(), Some(4_000));
}

#[tokio::test]
async fn timers_of_the_caller_keep_firing() {
    let index = open();
    let ticks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&ticks);
    let clock = tokio::spawn(async move {
        let mut interval = tokio::time::interval(Duration::from_millis(1));
        loop {
            interval.tick().await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    for key in 0..20_000 {
        // Each operation is ready at once.
        index.upsert(key, key).await.unwrap();
    }
    clock.abort();
    assert!(ticks.load(Ordering::Relaxed) > 5, "{ticks:?}");
}

#[tokio::test]
async fn dropped_operations_lose_nothing() {
    let index = open();
    for key in 0..200 {
        let never_polled = index.upsert(key, 1);
        drop(never_polled);
        let mut polled = index.upsert(1_000 + key, 2);
        let _ = std::pin::Pin::new(&mut polled).poll(&mut Context::from_waker(Waker::noop()));
        drop(polled);
    }
    assert_eq!(index.scan(..1_000).stream().count().await, 0);
    assert_eq!(index.scan(1_000..).stream().count().await, 200);
}

#[test]
fn a_long_scan_sees_everything_page_by_page() {
    let index = open();
    let records = (0..100_000_u64).map(|number| (number * 3, number));
    assert_eq!(index.bulk_load(records).wait().unwrap(), 100_000);
    assert!(matches!(index.bulk_load([(1, 1)]).wait(), Err(Error::Invalid(_))));
    let mut expected = 0;
    for record in index.scan(..) {
        let (key, value) = record.unwrap();
        assert_eq!((key, value), (expected * 3, expected));
        // Removing keys that the scan has passed changes nothing.
        if expected % 1_000 == 0 {
            index.remove(key).wait().unwrap();
        }
        expected += 1;
    }
    assert_eq!(expected, 100_000);
    assert_eq!(index.scan(..).reverse().count(), 99_900);
    assert_eq!(index.scan(3..=9).limit(2).count(), 2);
    assert_eq!(index.scan(..).limit(0).count(), 0);
    assert_eq!(index.scan(u64::MAX..).count(), 0);
}

#[test]
fn handles_are_shared_and_ended_by_the_last_clone() {
    fn is_shareable<T: Send + Sync + Clone + 'static>() {}
    is_shareable::<Index>();
    let index = open();
    let operation = index.clone().get(1);
    drop(index);
    assert_eq!(operation.wait().unwrap(), None);
}

#[test]
fn invalid_options_and_full_memory_are_errors() {
    for options in [small().memory_servers(0), small().engines(0)] {
        assert!(matches!(Embedded::open(options), Err(Error::Invalid(_))));
    }
    let index = Embedded::open(small().memory_bytes(1 << 20)).unwrap();
    let full = (0..100_000).find_map(|key| index.insert(key, key).wait().err()).unwrap();
    assert!(matches!(full, Error::OutOfMemory(_)), "{full:?}");
    assert!(!full.is_indeterminate());
    assert_eq!(index.get(0).wait().unwrap(), Some(0));
    let nowhere = farleaf::connect("/does/not/exist").unwrap_err();
    assert!(matches!(nowhere, Error::Connect(_)) && nowhere.to_string().contains("/does/not"));
}
