//! Compute servers that take over the keys of dead ones, in clusters of processes.

use crate::launched::{Launched, eventually, farleaf, signal, text};
use crate::serving::{compute, connect};
use farleaf_cluster::clock::MonotonicClock;
use farleaf_index::{IndexError, RangeIndex};
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn written(compute_servers: &str, more: &[&str]) -> Launched {
    let servers = ["--memory-servers", "2", "--compute-servers", compute_servers];
    let level = ["--transport", "tcp", "--acknowledge", "written", "--term-seconds", "1"];
    let sizes = ["--takeover", "on", "--pool-bytes", "64Mi", "--cache-bytes", "1Mi"];
    Launched::start(&[&servers[..], &level, &sizes, more].concat())
}

/// Keys of all three compute servers.
fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The numbers of the first `keys` keys that do not have the value that they should have.
fn lost_keys(
    cluster: &Launched,
    keys: u64,
    value: impl Fn(u64) -> u64 + Sync,
) -> Result<Vec<u64>, IndexError> {
    connect(cluster, Duration::from_secs(20)).run(async |client| {
        let mut lost = Vec::new();
        for number in 0..keys {
            if client.get(&key(number)).await? != Some(value(number)) {
                lost.push(number);
            }
        }
        Ok::<_, IndexError>(lost)
    })
}

#[test]
fn keys_of_a_dead_compute_server_are_served_by_another() {
    const KEYS: u64 = 300;
    let mut cluster = written("3", &[]);
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let longest = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let connection = connect(&cluster, Duration::from_secs(20));
            let mut longest = Duration::ZERO;
            let mut round = 0;
            while !over.load(Ordering::Acquire) {
                round += 1;
                let waited = connection.run(async |client| {
                    let (clock, mut before) = (MonotonicClock::start(), Duration::ZERO);
                    let mut waited = Duration::ZERO;
                    for number in 0..KEYS {
                        // A change that was under way at the death is unknown.
                        while let Err(error) = client.upsert(&key(number), &round).await {
                            assert!(matches!(error, IndexError::Indeterminate(_)), "{error}");
                        }
                        let now = clock.elapsed();
                        waited = waited.max(now - before);
                        before = now;
                    }
                    Ok::<_, IndexError>(waited)
                });
                longest = longest.max(waited.unwrap());
                answered.store(round, Ordering::Release);
            }
            longest
        });
        eventually("two rounds", || (answered.load(Ordering::Acquire) > 1).then_some(()));
        signal(compute(&cluster, 1).unwrap().pid, Signal::KILL);
        let before = answered.load(Ordering::Acquire);
        eventually("rounds without it", || {
            (answered.load(Ordering::Acquire) > before + 2).then_some(())
        });
        over.store(true, Ordering::Release);
        writer.join().unwrap()
    });
    let last = answered.load(Ordering::Acquire);
    assert_eq!(lost_keys(&cluster, KEYS, |_| last), Ok(Vec::new()));
    println!("the keys waited for {longest:?}");
    let said = text(&cluster.status().stdout);
    assert!(said.contains("2 ranges"), "{said}");
    cluster.end(Signal::TERM);
}

fn is_tortured(cluster: &mut Launched) {
    let torture = ["torture", "--dir", cluster.dir(), "--seconds", "8", "--kill", "compute"];
    let output = farleaf(&torture);
    let said = text(&output.stdout);
    let last = said.lines().last().unwrap_or_default();
    assert!(last.ends_with(" 0 lost: linearizable") && !last.contains(" 0 kills"), "{output:?}");
    cluster.end(Signal::TERM);
}

#[test]
fn a_cluster_is_tortured_without_restarts() {
    is_tortured(&mut written("3", &[]));
}

/// The trees of a dead compute server, with what its write-ahead log has.
#[test]
fn a_cluster_of_lsm_trees_is_tortured() {
    is_tortured(&mut written("3", &["--index", "dlsm", "--shards", "2", "--restart"]));
}

#[test]
fn takeovers_are_refused_where_a_death_can_lose_answers() {
    let servers = ["--transport", "tcp", "--memory-servers", "1", "--takeover", "on"];
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    for (more, needs) in [
        (&["--compute-servers", "2"][..], "--acknowledge written"),
        (&["--compute-servers", "2", "--index", "dlsm"], "--acknowledge written"),
        (&["--compute-servers", "1", "--acknowledge", "written"], "at least two"),
    ] {
        let output = farleaf(&[&["cluster", "--dir", dir][..], &servers, more].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--takeover on needs") && said.contains(needs), "{said}");
    }
}

/// `--set` won over `--acknowledge written` without a word, and options of the other design were
/// ignored: both lost what their users thought was kept.
#[test]
fn levels_that_contradict_each_other_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let servers = ["--transport", "tcp", "--memory-servers", "1", "--compute-servers", "2"];
    let written = ["--acknowledge", "written"];
    for (more, says) in [
        ([&written[..], &["--set", "dex.acknowledge=cached"]].concat(), "contradict each other"),
        (
            [&written[..], &["--index", "dlsm", "--set", "dlsm.acknowledge=cached"]].concat(),
            "contradict each other",
        ),
        (
            vec!["--index", "dlsm", "--set", "dex.acknowledge=written"],
            "this cluster has --index dlsm",
        ),
    ] {
        let output = farleaf(&[&["cluster", "--dir", dir][..], &servers, &more].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

/// The only neighbour of a dead compute server died while it took that server's keys over. Two
/// thirds of the keys stayed unserved, although a compute server was left.
#[test]
fn one_compute_server_is_left_and_takes_over_all_keys() {
    const KEYS: u64 = 300;
    let mut cluster = written("3", &[]);
    let connection = connect(&cluster, Duration::from_secs(20));
    let put = connection.run(async |client| {
        for number in 0..KEYS {
            client.upsert(&key(number), &number).await?;
        }
        Ok::<_, IndexError>(())
    });
    assert_eq!(put, Ok(()));
    let [first, second] = [2, 1].map(|number| compute(&cluster, number).unwrap().pid);
    signal(first, Signal::KILL);
    let catalog = std::path::Path::new(cluster.dir()).join("catalog.json");
    eventually("a takeover", || {
        let state = std::fs::read_to_string(&catalog).ok()?;
        state.contains("\\\"dead\\\":true").then_some(())
    });
    signal(second, Signal::KILL);
    assert_eq!(lost_keys(&cluster, KEYS, |number| number), Ok(Vec::new()));
    cluster.end(Signal::TERM);
}
