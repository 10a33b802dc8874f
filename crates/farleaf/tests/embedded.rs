//! A handle on an embedded index, used in every way that programs use one.

use farleaf::{Embedded, EmbeddedOptions, Error, Exchange, Handle};
use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn open() -> Handle {
    // A small cache, so that nodes come and go.
    let options = EmbeddedOptions::default().pool_bytes(64 << 20).cache_bytes(256 << 10);
    Embedded::open(options).unwrap()
}

/// One random operation.
#[derive(Clone, Copy, Debug)]
enum Step {
    Get(u64),
    Insert(u64, u64),
    Update(u64, u64),
    Upsert(u64, u64),
    Remove(u64),
    Exchange(u64, u64, u64),
    MultiGet(u64),
    Up(u64, u64, usize),
    Down(u64, u64, usize),
}

/// What it returns, as text.
type Told = String;

fn steps(seed: u64, count: usize) -> Vec<Step> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let step = |_| {
        let (key, value) = (rng.random_range(0..2_000), rng.random_range(0..4));
        match rng.random_range(0..20) {
            0..4 => Step::Get(key),
            4..8 => Step::Insert(key, value),
            8..10 => Step::Update(key, value),
            10..13 => Step::Upsert(key, value),
            13..15 => Step::Remove(key),
            15..17 => Step::Exchange(key, value, value + 1),
            17 => Step::MultiGet(key),
            18 => Step::Up(key, key + 900, rng.random_range(0..700)),
            _ => Step::Down(key, key + 900, rng.random_range(0..700)),
        }
    };
    (0..count).map(step).collect()
}

fn on_map(map: &mut BTreeMap<u64, u64>, step: Step) -> Told {
    match step {
        Step::Get(key) => format!("{:?}", map.get(&key).copied()),
        Step::Insert(key, value) => {
            let is_new = !map.contains_key(&key);
            map.entry(key).or_insert(value);
            format!("{is_new:?}")
        }
        Step::Update(key, value) => {
            format!("{:?}", map.get_mut(&key).map(|old| *old = value).is_some())
        }
        Step::Upsert(key, value) => {
            map.insert(key, value);
            "()".to_owned()
        }
        Step::Remove(key) => format!("{:?}", map.remove(&key).is_some()),
        Step::Exchange(key, expected, new) => match map.get_mut(&key) {
            Some(value) if *value == expected => {
                *value = new;
                format!("{:?}", Exchange::<u64>::Exchanged)
            }
            found => format!("{:?}", Exchange::Differs(found.copied())),
        },
        Step::MultiGet(key) => {
            let keys = key..key + 100;
            format!("{:?}", keys.map(|key| map.get(&key).copied()).collect::<Vec<_>>())
        }
        Step::Up(low, high, limit) => {
            let records = map.range(low..high).map(|(key, value)| (*key, *value));
            format!("{:?}", records.take(limit).collect::<Vec<_>>())
        }
        Step::Down(low, high, limit) => {
            let records = map.range(low..high).rev().map(|(key, value)| (*key, *value));
            format!("{:?}", records.take(limit).collect::<Vec<_>>())
        }
    }
}

async fn by_await(index: &Handle, step: Step) -> Result<Told, Error> {
    Ok(match step {
        Step::Get(key) => format!("{:?}", index.get(key).await?),
        Step::Insert(key, value) => format!("{:?}", index.insert(key, value).await?),
        Step::Update(key, value) => format!("{:?}", index.update(key, value).await?),
        Step::Upsert(key, value) => format!("{:?}", index.upsert(key, value).await?),
        Step::Remove(key) => format!("{:?}", index.remove(key).await?),
        Step::Exchange(key, expected, new) => {
            format!("{:?}", index.compare_exchange(key, expected, new).await?)
        }
        Step::MultiGet(key) => format!("{:?}", index.multi_get(key..key + 100).await?),
        Step::Up(low, high, limit) => {
            let mut scan = index.scan(low..high).limit(limit);
            let mut records = Vec::new();
            while let Some(record) = scan.next().await {
                records.push(record?);
            }
            format!("{records:?}")
        }
        Step::Down(low, high, limit) => {
            let scan = index.scan(low..high).limit(limit).reverse();
            let records = scan.collect::<Vec<_>>().await;
            format!("{:?}", records.into_iter().collect::<Result<Vec<_>, _>>()?)
        }
    })
}

fn by_wait(index: &Handle, step: Step) -> Result<Told, Error> {
    Ok(match step {
        Step::Get(key) => format!("{:?}", index.get(key).wait()?),
        Step::Insert(key, value) => format!("{:?}", index.insert(key, value).wait()?),
        Step::Update(key, value) => format!("{:?}", index.update(key, value).wait()?),
        Step::Upsert(key, value) => format!("{:?}", index.upsert(key, value).wait()?),
        Step::Remove(key) => format!("{:?}", index.remove(key).wait()?),
        Step::Exchange(key, expected, new) => {
            format!("{:?}", index.compare_exchange(key, expected, new).wait()?)
        }
        Step::MultiGet(key) => format!("{:?}", index.multi_get(key..key + 100).wait()?),
        Step::Up(low, high, limit) => {
            let records = index.scan(low..high).limit(limit).into_iter();
            format!("{:?}", records.collect::<Result<Vec<_>, _>>()?)
        }
        Step::Down(low, high, limit) => {
            let records = index.scan(low..high).reverse().limit(limit).into_iter();
            format!("{:?}", records.collect::<Result<Vec<_>, _>>()?)
        }
    })
}

#[test]
fn waiting_agrees_with_a_map() {
    let (index, mut map) = (open(), BTreeMap::new());
    for step in steps(1, 20_000) {
        assert_eq!(by_wait(&index, step).unwrap(), on_map(&mut map, step), "{step:?}");
    }
    index.flush().wait().unwrap();
}

async fn agrees_with_a_map(seed: u64) {
    let (index, mut map) = (open(), BTreeMap::new());
    for step in steps(seed, 20_000) {
        assert_eq!(by_await(&index, step).await.unwrap(), on_map(&mut map, step), "{step:?}");
    }
    index.flush().await.unwrap();
}

#[tokio::test]
async fn awaiting_agrees_with_a_map() {
    agrees_with_a_map(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn awaiting_on_many_threads_agrees_with_a_map() {
    tokio::spawn(agrees_with_a_map(3)).await.unwrap();
}

/// Each client has keys of its own, so each can check its results against a map of its own.
fn own_key(step: Step, client: u64) -> Step {
    let key = |key| key + client * 1_000_000;
    match step {
        Step::Get(at) => Step::Get(key(at)),
        Step::Insert(at, value) => Step::Insert(key(at), value),
        Step::Update(at, value) => Step::Update(key(at), value),
        Step::Upsert(at, value) => Step::Upsert(key(at), value),
        Step::Remove(at) => Step::Remove(key(at)),
        Step::Exchange(at, expected, new) => Step::Exchange(key(at), expected, new),
        Step::MultiGet(at) => Step::MultiGet(key(at)),
        Step::Up(low, high, limit) => Step::Up(key(low), key(high), limit),
        Step::Down(low, high, limit) => Step::Down(key(low), key(high), limit),
    }
}

#[test]
fn eight_threads_share_a_handle() {
    let index = open();
    std::thread::scope(|scope| {
        for client in 0..8 {
            let index = index.clone();
            scope.spawn(move || {
                let mut map = BTreeMap::new();
                for step in steps(client, 3_000).into_iter().map(|step| own_key(step, client)) {
                    assert_eq!(by_wait(&index, step).unwrap(), on_map(&mut map, step), "{step:?}");
                }
            });
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_and_threads_share_a_handle() {
    let index = Arc::new(open());
    let thread = {
        let index = Arc::clone(&index);
        std::thread::spawn(move || {
            let mut map = BTreeMap::new();
            for step in steps(9, 3_000).into_iter().map(|step| own_key(step, 100)) {
                assert_eq!(by_wait(&index, step).unwrap(), on_map(&mut map, step), "{step:?}");
            }
        })
    };
    let tasks = (0..32).map(|client| {
        let index = Arc::clone(&index);
        tokio::spawn(async move {
            let mut map = BTreeMap::new();
            for step in steps(client, 500).into_iter().map(|step| own_key(step, client)) {
                let told = by_await(&index, step).await.unwrap();
                assert_eq!(told, on_map(&mut map, step), "{step:?}");
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    thread.join().unwrap();
}

#[tokio::test]
async fn a_dropped_future_disturbs_no_other() {
    let index = open();
    drop(index.insert(1, 1));
    assert_eq!(index.get(1).await, Ok(None), "a change that was never polled does not happen");
    for key in 2..2_000 {
        // Without a budget it would not even begin.
        tokio::task::yield_now().await;
        let polled = index.insert(key, key).now_or_never();
        assert!(matches!(polled, None | Some(Ok(true))), "{polled:?}");
    }
    for key in 2..2_000 {
        assert_eq!(index.get(key).await, Ok(Some(key)));
    }
}

#[tokio::test]
async fn timers_go_on_while_operations_run() {
    let (index, fired) = (open(), Arc::new(AtomicU64::new(0)));
    let ended = Arc::new(AtomicBool::new(false));
    let timer = {
        let (fired, ended) = (Arc::clone(&fired), Arc::clone(&ended));
        tokio::spawn(async move {
            let mut interval = tokio::time::interval(Duration::from_millis(5));
            while !ended.load(Ordering::Relaxed) {
                interval.tick().await;
                fired.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let until = tokio::time::Instant::now() + Duration::from_millis(500);
    let mut key = 0;
    while tokio::time::Instant::now() < until {
        index.upsert(key, key).await.unwrap();
        key += 1;
    }
    ended.store(true, Ordering::Relaxed);
    timer.await.unwrap();
    assert!(fired.load(Ordering::Relaxed) > 20, "{fired:?} of 100, and {key} operations");
}

#[test]
fn scans_continue_behind_each_page() {
    let index = open();
    for key in 0..5_000 {
        index.insert(key * 3, key).wait().unwrap();
    }
    index.insert(u64::MAX, 1).wait().unwrap();
    let up: Vec<u64> = index.scan(..).into_iter().map(|record| record.unwrap().0).collect();
    let mut expected: Vec<u64> = (0..5_000).map(|key| key * 3).chain([u64::MAX]).collect();
    assert_eq!(up, expected);
    expected.reverse();
    let down = index.scan(..).reverse().into_iter().map(|record| record.unwrap().0);
    assert_eq!(down.collect::<Vec<_>>(), expected);
    for limit in [0, 1, 255, 256, 257, 512, 513] {
        assert_eq!(index.scan(40..).limit(limit).into_iter().count(), limit);
    }
    // A record that is inserted ahead of the current page is seen; one behind it is not.
    let mut records = index.scan(3..).into_iter();
    assert_eq!(records.next(), Some(Ok((3, 1))));
    index.insert(4, 0).wait().unwrap();
    index.insert(6_001, 0).wait().unwrap();
    let keys: Vec<u64> = records.map(|record| record.unwrap().0).collect();
    assert!(!keys.contains(&4) && keys.contains(&6_001));
}

#[test]
fn any_executor_can_poll() {
    let index = open();
    let told = std::thread::spawn(move || {
        let mut future = std::pin::pin!(index.insert(1, 2));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        loop {
            if let std::task::Poll::Ready(told) = future.as_mut().poll(&mut context) {
                return told;
            }
        }
    });
    assert_eq!(told.join().unwrap(), Ok(true));
}

#[test]
fn opening_reports_what_is_wrong() {
    let none = Embedded::open(EmbeddedOptions::default().memory_servers(0));
    assert!(matches!(none, Err(Error::Open(_))), "{none:?}");
    let gone = farleaf::connect("/nonexistent/folder");
    assert!(matches!(gone, Err(Error::Open(_))), "{gone:?}");
    assert!(gone.unwrap_err().nothing_happened());
}

#[test]
fn a_full_pool_is_told_and_the_index_goes_on() {
    let options = EmbeddedOptions::default().memory_servers(1).pool_bytes(2 << 20);
    let index = Embedded::open(options).unwrap();
    let full = (0..200_000).find_map(|key| index.insert(key, key).wait().err());
    let full = full.expect("2 MiB do not hold 200,000 records");
    assert!(matches!(full, Error::OutOfMemory(_)) && full.nothing_happened(), "{full:?}");
    assert_eq!(index.get(0).wait(), Ok(Some(0)));
}

/// A handle can be kept where a program keeps its state.
#[test]
fn a_handle_is_send_sync_and_clone() {
    fn check<T: Send + Sync + Clone + 'static>(_: &T) {}
    fn sends<T: Send>(_: &T) {}
    let index = open();
    check(&index);
    sends(&index.get(1));
    sends(&index.scan(..));
}
