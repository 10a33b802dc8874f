//! The crate `farleaf` with a cluster of processes: one long-lived handle, used from threads, from
//! runtimes and from a program outside the workspace, which survives the restart of a compute
//! server.

use crate::launched::{Launched, eventually, signal, stop, text};
use crate::serving::{KEYS, compute, serving};
use farleaf::{ConnectOptions, Error, Exchange, Index, connect, connect_bytes};
use farleaf_cluster::clock::MonotonicClock;
use futures_util::StreamExt;
use futures_util::future::join_all;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

fn options(cluster: &Launched) -> ConnectOptions {
    ConnectOptions::new(cluster.dir()).deadline(Duration::from_secs(10))
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Polls a future once, and returns it without a result.
fn poll_once<F: Future + Unpin>(mut future: F) -> F {
    let polled = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "the reply cannot be there yet");
    future
}

/// A key in the range of either compute server.
fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

async fn agree_with_a_model(index: &Index) {
    let (mut dice, mut model) = (SmallRng::seed_from_u64(1), BTreeMap::new());
    for _ in 0..1_500 {
        let (key, value) = (key(dice.random_range(0..200)), dice.next_u64());
        let held = model.get(&key).copied();
        match dice.random_range(0..8) {
            0 => {
                assert_eq!(index.insert(key, value).await.unwrap(), held.is_none());
                model.entry(key).or_insert(value);
            }
            1 => {
                assert_eq!(index.update(key, value).await.unwrap(), held.is_some());
                model.entry(key).and_modify(|held| *held = value);
            }
            2 => {
                index.upsert(key, value).await.unwrap();
                model.insert(key, value);
            }
            3 => {
                assert_eq!(index.remove(key).await.unwrap(), held.is_some());
                model.remove(&key);
            }
            4 => {
                let expected = held.unwrap_or(1);
                let outcome = index.compare_exchange(key, expected, value).await.unwrap();
                match held {
                    Some(_) => {
                        assert_eq!(outcome, Exchange::Exchanged);
                        model.insert(key, value);
                    }
                    None => assert_eq!(outcome, Exchange::Differs(None)),
                }
            }
            5 => {
                let records: Vec<(u64, u64)> = (0..30)
                    .map(|_| (self::key(dice.random_range(0..200)), dice.next_u64()))
                    .collect();
                index.upsert_all(records.clone()).await.unwrap();
                model.extend(records);
            }
            6 => {
                let keys: Vec<u64> = (0..200).map(self::key).collect();
                let expected: Vec<_> = keys.iter().map(|key| model.get(key).copied()).collect();
                assert_eq!(index.multi_get(keys).await.unwrap(), expected);
            }
            _ => assert_eq!(index.get(key).await.unwrap(), held),
        }
    }
    index.flush().await.unwrap();
    let up: Vec<_> = index.scan(..).stream().map(Result::unwrap).collect().await;
    assert!(up == model.clone().into_iter().collect::<Vec<_>>());
    let down: Vec<_> = index.scan(..).reverse().stream().map(Result::unwrap).collect().await;
    assert!(down == model.into_iter().rev().collect::<Vec<_>>());
}

/// A program learns the page size from the cluster.
#[test]
fn a_handle_of_byte_strings_serves_clusters_of_them() {
    for (size, value_bytes) in [("1k", 80), ("1k", 9_000), ("4k", 900)] {
        let flags = ["--keys", "bytes", "--page-bytes", size, "--boundaries", "m"];
        let cluster = serving("tcp", &flags);
        let index: Index<[u8]> = connect_bytes(options(&cluster)).unwrap();
        let record = |number: usize| {
            let side = ["apple", "zebra"][number % 2];
            (format!("{side}/{number:04}").into_bytes(), vec![number as u8; value_bytes])
        };
        let expected: BTreeMap<_, _> = (0..1_000).map(record).collect();
        current_thread().block_on(async {
            for (key, value) in expected.iter().take(500) {
                assert!(index.insert(key, value).await.unwrap());
            }
            index.upsert_all(expected.clone().into_iter().collect::<Vec<_>>()).await.unwrap();
            let found = index.multi_get(expected.keys().cloned().collect::<Vec<_>>()).await;
            assert!(found.unwrap().into_iter().eq(expected.values().cloned().map(Some)));
            assert!(index.remove("apple/0000").await.unwrap());
        });
        let all = index.scan(..).map(Result::unwrap);
        assert!(all.eq(expected.clone().into_iter().skip(1)));
        let down = index.scan_prefix("zebra/").reverse().map(|record| record.unwrap().0);
        let zebras = expected.keys().rev().filter(|key| key.starts_with(b"zebra/"));
        assert!(down.eq(zebras.cloned()));
        let Err(Error::Connect(why)) = connect(options(&cluster)) else { panic!("u64") };
        assert!(why.to_string().contains("this cluster has bytes keys in pages"), "{why}");
    }
    let cluster = serving("tcp", &[]);
    let Err(Error::Connect(why)) = connect_bytes(options(&cluster)) else { panic!("bytes") };
    assert!(why.to_string().contains("this cluster has u64 keys in pages of 1024"), "{why}");
}

#[test]
fn one_handle_serves_runtimes_and_threads_together() {
    let cluster = serving("tcp", &[]);
    for connections in [1, 2] {
        let index = connect(options(&cluster).connections(connections)).unwrap();
        let idle = current_thread();
        idle.block_on(agree_with_a_model(&index));
        // From here on, that runtime no longer runs, and others must not depend on it.
        for number in 0..1_000 {
            index.upsert(number, 0).wait().unwrap();
        }
        let workers = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let add_one = async |index: Index, key: u64| {
            let mut held = index.get(key).await.unwrap().unwrap();
            while let Exchange::Differs(now) =
                index.compare_exchange(key, held, held + 1).await.unwrap()
            {
                held = now.unwrap();
            }
        };
        let tasks: Vec<_> = (0..64)
            .map(|task| {
                let index = index.clone();
                workers.spawn(async move {
                    for round in 0..20 {
                        add_one(index.clone(), (task + round) % 10).await;
                    }
                })
            })
            .collect();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let index = &index;
                scope.spawn(move || {
                    for round in 0..100 {
                        let key = (thread + round) % 10;
                        let mut held = index.get(key).wait().unwrap().unwrap();
                        while let Exchange::Differs(now) =
                            index.compare_exchange(key, held, held + 1).wait().unwrap()
                        {
                            held = now.unwrap();
                        }
                    }
                });
            }
        });
        workers.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        let sum: u64 = index.scan(..10).map(|record| record.unwrap().1).sum();
        assert_eq!(sum, 64 * 20 + 8 * 100);
        for key in index.scan(..).map(|record| record.unwrap().0).collect::<Vec<_>>() {
            assert!(index.remove(key).wait().unwrap());
        }
        drop(idle);
    }
}

#[test]
fn operations_that_are_not_polled_any_more_hold_up_nothing_and_go_on() {
    let cluster = serving("tcp", &[]);
    let index = connect(options(&cluster).connections(1)).unwrap();
    current_thread().block_on(async {
        index.upsert(1, 1).await.unwrap();
        let kept: Vec<_> = (0..50).map(|number| poll_once(index.upsert(key(number), 7))).collect();
        (50..100).for_each(|number| drop(poll_once(index.upsert(key(number), 7))));
        let others = join_all((100..200).map(|number| index.upsert(key(number), 7))).await;
        assert!(others.iter().all(Result::is_ok), "{others:?}");
        // The abandoned ones were sent earlier, so they end soon after the later ones have ended.
        while index.scan(..).stream().count().await < 201 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for operation in kept {
            operation.await.unwrap();
        }
    });
    assert_eq!(index.get(key(75)).wait().unwrap(), Some(7));
}

#[test]
fn more_operations_than_the_depth_wait_in_order() {
    let cluster = serving("tcp", &[]);
    let index = connect(options(&cluster).connections(1).depth(8)).unwrap();
    current_thread().block_on(async {
        let done = join_all((0..3_000).map(|number| index.upsert(key(number), number))).await;
        assert!(done.iter().all(Result::is_ok));
        let keys: Vec<u64> = (0..3_000).map(key).collect();
        let values = index.multi_get(keys).await.unwrap();
        assert!(values.into_iter().eq((0..3_000).map(Some)));
    });
}

#[test]
fn timers_fire_and_others_are_served_while_an_operation_hangs() {
    let cluster = serving("tcp", &[]);
    let deadline = Duration::from_secs(2);
    let index = connect(options(&cluster).deadline(deadline)).unwrap();
    for key in KEYS {
        index.upsert(key, 1).wait().unwrap();
    }
    let stopped = compute(&cluster, 0).unwrap().pid;
    stop(stopped);
    current_thread().block_on(async {
        let ticks = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&ticks);
        let ticking = tokio::spawn(async move {
            let mut interval = tokio::time::interval(Duration::from_millis(10));
            loop {
                interval.tick().await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let hanging = tokio::spawn(index.upsert(KEYS[0], 2));
        while ticks.load(Ordering::Relaxed) < 20 {
            assert_eq!(index.get(KEYS[1]).await.unwrap(), Some(1));
        }
        let abandoned = tokio::time::timeout(Duration::from_millis(50), index.get(KEYS[0])).await;
        assert!(abandoned.is_err());
        let outcome = hanging.await.unwrap();
        assert!(matches!(outcome, Err(Error::Indeterminate(_))), "{outcome:?}");
        ticking.abort();
    });
    signal(stopped, Signal::CONT);
    eventually("the server that stood still", || index.get(KEYS[0]).wait().ok());
}

#[test]
fn a_kept_handle_outlives_a_killed_compute_server() {
    struct Service {
        index: Index,
    }
    let mut cluster = serving("tcp", &["--restart"]);
    let service = Service { index: connect(options(&cluster)).unwrap() };
    let (index, runtime) = (&service.index, current_thread());
    for key in KEYS {
        index.upsert(key, 3).wait().unwrap();
    }
    index.flush().wait().unwrap();
    for round in 0..2 {
        let before = compute(&cluster, 0).unwrap();
        signal(before.pid, Signal::KILL);
        let clock = MonotonicClock::start();
        // Whatever fails meanwhile must report whether it has happened.
        let outcome = index.insert(KEYS[0], 4).wait();
        assert!(!matches!(outcome, Ok(true)), "it is there already");
        cluster.await_line("compute server 0 has been restarted");
        eventually("the handle's next success", || match round {
            0 => index.get(KEYS[0]).wait().ok(),
            _ => runtime.block_on(async { index.get(KEYS[0]).await.ok() }),
        });
        assert_ne!(compute(&cluster, 0).unwrap().pid, before.pid);
        eprintln!("round {round}: served again after {:?}", clock.elapsed());
        for key in KEYS {
            assert_eq!(index.get(key).wait().unwrap(), Some(3));
        }
        index.upsert(KEYS[0], 3).wait().unwrap();
        index.flush().wait().unwrap();
    }
}

#[test]
fn a_catalog_and_a_token_find_a_cluster_too() {
    let cluster = serving("tcp", &[]);
    let read = |name: &str| std::fs::read_to_string(cluster.folder.path().join(name)).unwrap();
    let address = read("catalog.address").trim().to_owned();
    let error = connect(address.as_str()).unwrap_err();
    assert!(matches!(error, Error::Connect(_)) && error.to_string().contains("token"), "{error}");
    let other = ConnectOptions::new(&address).token("another token of some length");
    assert!(matches!(connect(other), Err(Error::Connect(_))));
    let by_text = connect(ConnectOptions::new(&address).token(read("token"))).unwrap();
    by_text.upsert(5, 6).wait().unwrap();
    let file = cluster.folder.path().join("token");
    let by_file = connect(ConnectOptions::new(&address).token_file(file)).unwrap();
    assert_eq!(by_file.get(5).wait().unwrap(), Some(6));
    let elsewhere = connect(ConnectOptions::new(cluster.dir()).cluster("other")).unwrap_err();
    assert!(elsewhere.to_string().contains("no cluster other"), "{elsewhere}");
    // `connect` may be called within a runtime.
    let within = current_thread().block_on(async { connect(cluster.dir()) });
    assert_eq!(within.unwrap().get(5).wait().unwrap(), Some(6));
}

const OUTSIDE: &str = r#"
use farleaf::{Embedded, EmbeddedOptions, Error, Index};

async fn try_out(index: Index) -> Result<(), Error> {
    index.upsert(42, 7).await?;
    assert_eq!(index.get(42).await?, Some(7));
    let threads = (0..4_u64).map(|number| {
        let index = index.clone();
        std::thread::spawn(move || index.insert(100 + number, number).wait())
    });
    for thread in threads.collect::<Vec<_>>() {
        assert!(thread.join().unwrap()?);
    }
    let mut records = index.scan(100..).limit(3).stream();
    while let Some(record) = records.next().await {
        println!("{:?}", record?);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    try_out(Embedded::open(EmbeddedOptions::default())?).await?;
    try_out(farleaf::connect(std::env::args().nth(1).unwrap())?).await
}
"#;

#[test]
fn a_crate_outside_the_workspace_uses_the_door() {
    let Some(cargo) = std::env::var_os("CARGO") else {
        eprintln!("skipped: there is no cargo");
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies]\nfarleaf = {{ path = {:?} }}\n\
         tokio = {{ version = \"1\", features = [\"macros\", \"rt-multi-thread\"] }}\n",
        root.join("crates/farleaf")
    );
    std::fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    std::fs::create_dir(folder.path().join("src")).unwrap();
    std::fs::write(folder.path().join("src/main.rs"), OUTSIDE).unwrap();
    std::fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    let built = Command::new(cargo)
        .args(["build", "--offline", "--quiet"])
        .current_dir(folder.path())
        .env("CARGO_TARGET_DIR", &target)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let cluster = serving("tcp", &[]);
    let ran = Command::new(target.join("debug/outside")).arg(cluster.dir()).output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert_eq!(text(&ran.stdout), "(100, 0)\n(101, 1)\n(102, 2)\n".repeat(2));
}
