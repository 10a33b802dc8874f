//! Killed servers in a cluster of processes: what survives, and how soon the others notice.

use crate::launched::{Launched, eventually, farleaf, signal, stop, text};
use crate::serving::{DEADLINE, compute, connect, serving};
use farleaf_cluster::client::ClusterClient;
use farleaf_cluster::clock::MonotonicClock;
use farleaf_cluster::stop::StopSignal;
use farleaf_index::{IndexError, RangeIndex, ScanRequest};
use futures_util::future::join_all;
use rustix::process::Signal;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Spreads keys over both compute servers' ranges.
pub(crate) fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Kills a compute server, and waits until its successor with the same number serves.
pub(crate) fn kill_and_await(cluster: &mut Launched, number: u16) {
    let before = compute(cluster, number).unwrap();
    signal(before.pid, Signal::KILL);
    cluster.await_line(&format!("compute server {number} has been restarted"));
    eventually("its next life", || {
        let now = compute(cluster, number).filter(|now| now.pid != before.pid)?;
        (now.generation > 0).then_some(())
    });
}

/// Reads all records by scans in both directions, which must agree with each other and with gets of
/// these keys.
pub(crate) async fn read_in_every_way(client: &ClusterClient, keys: &[u64]) -> BTreeMap<u64, u64> {
    let up = client.scan(&ScanRequest::range(..)).await.unwrap();
    let mut down = client.scan(&ScanRequest::range(..).reverse()).await.unwrap();
    down.reverse();
    assert!(up == down, "{} records upwards, {} downwards", up.len(), down.len());
    let found: BTreeMap<u64, u64> = up.into_iter().collect();
    let gets = client.multi_get(keys).await.unwrap();
    for (key, got) in keys.iter().zip(gets) {
        assert_eq!(found.get(key).copied(), got, "key {key}: the scans, and a get");
    }
    found
}

fn put_all(cluster: &Launched, keys: &[u64]) {
    let written = connect(cluster, DEADLINE).run(async |client| {
        for key in keys {
            client.upsert(key, &(key / 2)).await?;
        }
        Ok::<_, IndexError>(())
    });
    assert_eq!(written, Ok(()));
}

fn assert_all_there(cluster: &Launched, keys: &[u64]) {
    let found = connect(cluster, DEADLINE)
        .run(async |client| Ok::<_, IndexError>(read_in_every_way(&client, keys).await));
    let expected = keys.iter().map(|key| (*key, key / 2)).collect();
    assert_eq!(found, Ok(expected));
}

#[test]
fn what_was_flushed_outlives_a_kill() {
    for transport in ["tcp", "shm"] {
        let mut cluster = serving(transport, &["--restart", "--write-back-ms", "0"]);
        let keys: Vec<u64> = (0..500).map(spread).collect();
        put_all(&cluster, &keys);
        let flushed = farleaf(&["client", "--dir", cluster.dir(), "flush"]);
        assert_eq!(flushed.status.code(), Some(0), "{flushed:?}");
        for number in [0, 1] {
            kill_and_await(&mut cluster, number);
        }
        assert_all_there(&cluster, &keys);
        cluster.end(Signal::TERM);
    }
}

#[test]
fn what_was_written_back_by_age_outlives_a_kill() {
    let mut cluster = serving("tcp", &["--restart", "--write-back-ms", "50", "--metrics"]);
    let keys: Vec<u64> = (0..500).map(spread).collect();
    put_all(&cluster, &keys);
    eventually("a clean cache", || {
        let seen = farleaf(&["top", "--dir", cluster.dir(), "--once", "--interval", "0.5"]);
        let seen = text(&seen.stdout);
        let rows: Vec<_> = seen.lines().filter(|line| line.contains("compute ")).collect();
        assert!(rows.len() >= 2, "{seen}");
        (rows.iter().filter(|row| row.contains(" 0 B ")).count() == 2).then_some(())
    });
    for number in [0, 1] {
        kill_and_await(&mut cluster, number);
    }
    assert_all_there(&cluster, &keys);
    cluster.end(Signal::TERM);
}

/// The lease of the memory server is long, so the compute servers must notice its death in another
/// way.
#[test]
fn no_change_is_acknowledged_when_a_memory_server_is_known_to_be_gone() {
    for transport in ["tcp", "shm"] {
        let mut cluster = serving(transport, &["--term-seconds", "120"]);
        let keys: Vec<u64> = (0..200).map(spread).collect();
        put_all(&cluster, &keys);
        let missed = "compute server 0 cannot reach memory server 1";
        let says = |missing: bool| {
            let said = text(&cluster.status().stdout);
            (said.contains(missed) == missing).then_some(())
        };
        let pid = cluster.memory(1).unwrap().pid;
        stop(pid);
        eventually("news of it", || says(true));
        signal(pid, Signal::CONT);
        eventually("better news", || says(false));
        put_all(&cluster, &keys);
        assert_all_there(&cluster, &keys);
        signal(pid, Signal::KILL);
        eventually("news of its end", || says(true));
        let outcomes = connect(&cluster, Duration::from_millis(500)).run(async |client| {
            let changes = join_all(keys.iter().map(async |key| client.upsert(key, &1).await));
            Ok::<_, IndexError>(changes.await)
        });
        let acknowledged = outcomes.unwrap().iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(acknowledged, 0, "of {} changes over {transport}", keys.len());
        cluster.end(Signal::TERM);
    }
}

#[test]
fn what_was_exported_can_be_loaded_elsewhere() {
    let mut cluster = serving("tcp", &[]);
    let keys: Vec<u64> = (1..=3_000).map(spread).chain([0, u64::MAX]).collect();
    let client = |cluster: &Launched, words: &[&str]| {
        let output = farleaf(&[&["client", "--dir", cluster.dir()], words].concat());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.csv");
    let name = file.to_str().unwrap();
    assert_eq!(client(&cluster, &["export", name]), (Some(0), "".into(), "0 records\n".into()));
    put_all(&cluster, &keys);
    let (code, out, _) = client(&cluster, &["export"]);
    let expected: BTreeMap<u64, u64> = keys.iter().map(|key| (*key, key / 2)).collect();
    let expected: String = expected.iter().map(|(key, value)| format!("{key},{value}\n")).collect();
    assert_eq!((code, out == expected), (Some(0), true));
    let exported = (Some(0), String::new(), format!("{} records\n", keys.len()));
    assert_eq!(client(&cluster, &["export", name]), exported);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), expected);

    // An existing file keeps its permissions, and a link stays a link.
    let (link, target) = (folder.path().join("link.csv"), folder.path().join("target.csv"));
    std::os::unix::fs::symlink("target.csv", &link).unwrap();
    assert_eq!(client(&cluster, &["export", link.to_str().unwrap()]), exported);
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&target, private).unwrap();
    assert_eq!(client(&cluster, &["export", link.to_str().unwrap()]), exported);
    assert_eq!(std::fs::read_to_string(&target).unwrap(), expected);
    let mode = std::os::unix::fs::PermissionsExt::mode(&target.metadata().unwrap().permissions());
    assert_eq!((mode & 0o777, link.is_symlink()), (0o600, true));

    // A failed export does not change the old file, and leaves no temporary file.
    let (code, _, said) = client(&cluster, &["export", "/dev/full"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("No space left") && said.lines().count() == 1, "{said}");
    let (code, _, said) = client(&cluster, &["export", "/no/such/folder/all.csv"]);
    assert_eq!(code, Some(1), "{said}");
    let deadline = ["--deadline-seconds", "0.5"];
    signal(compute(&cluster, 1).unwrap().pid, Signal::KILL);
    let (code, _, said) = client(&cluster, &[&deadline[..], &["export", name]].concat());
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), expected);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    cluster.end(Signal::TERM);

    let mut other = serving("shm", &[]);
    let (code, _, said) = client(&other, &["load", "--bulk", name]);
    assert_eq!(code, Some(0), "{said}");
    assert_all_there(&other, &keys);
    other.end(Signal::TERM);
}

/// The changes of a key, recorded by its only writer.
#[derive(Debug, Default)]
struct Written {
    /// The last value that was sent; values ascend from 1.
    last: u64,
    /// Acknowledged values, and when each was acknowledged.
    acknowledged: Vec<(u64, Duration)>,
}

const WRITERS: u64 = 64;
const KEYS_OF_A_WRITER: u64 = 40;
const WRITE_BACK: Duration = Duration::from_millis(1000);
const GRACE: Duration = Duration::from_millis(500);

/// Kills servers once under load. Returns how many acknowledged changes had to survive, and how
/// many later ones were lost.
fn kill_under_load(transport: &str, run_for: Duration, both: bool) -> (usize, usize) {
    let mut cluster = serving(transport, &["--restart"]);
    let dir = cluster.dir().to_owned();
    let bench = ["client", "--dir", &dir, "bench", "--load", "--keys", "20k", "--workload"];
    let more = ["write-intensive", "--operations", "1G", "--in-flight", "64"];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(bench)
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (clock, ended) = (MonotonicClock::start(), AtomicBool::new(false));
    let keys: Vec<u64> = (0..WRITERS * KEYS_OF_A_WRITER).map(|n| spread(n) | 1).collect();
    let connection = connect(&cluster, DEADLINE);
    let (written, killed) = std::thread::scope(|scope| {
        let writers = scope.spawn(|| {
            connection.run(async |client| {
                let written: Vec<RefCell<Written>> =
                    keys.iter().map(|_| Default::default()).collect();
                let mine = |writer: u64| (0..KEYS_OF_A_WRITER).map(move |n| n * WRITERS + writer);
                join_all((0..WRITERS).map(async |writer| {
                    for place in mine(writer).cycle() {
                        if ended.load(Ordering::Acquire) {
                            break;
                        }
                        let (place, key) = (place as usize, keys[place as usize]);
                        let value = written[place].borrow().last + 1;
                        written[place].borrow_mut().last = value;
                        if client.upsert(&key, &value).await.is_ok() {
                            let acknowledged = (value, clock.elapsed());
                            written[place].borrow_mut().acknowledged.push(acknowledged);
                        }
                    }
                }))
                .await;
                let written = written.into_iter().map(RefCell::into_inner);
                Ok::<_, IndexError>(written.collect::<Vec<_>>())
            })
        });
        StopSignal::default().wait(run_for);
        let killed = clock.elapsed();
        let doomed = if both { vec![0, 1] } else { vec![0] };
        let pids: Vec<_> =
            doomed.iter().map(|number| compute(&cluster, *number).unwrap().pid).collect();
        pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
        ended.store(true, Ordering::Release);
        let written = writers.join().unwrap().unwrap();
        bench.kill().unwrap();
        bench.wait().unwrap();
        eventually("their next lives", || {
            let reborn = |number: &u16| {
                compute(&cluster, *number)
                    .is_some_and(|now| now.generation > 0 && !pids.contains(&now.pid))
            };
            doomed.iter().all(reborn).then_some(())
        });
        (written, killed)
    });
    let deadline = Duration::from_secs(30);
    let found = connect(&cluster, deadline)
        .run(async |client| Ok::<_, IndexError>(read_in_every_way(&client, &keys).await))
        .unwrap();
    let old_enough = killed.saturating_sub(WRITE_BACK + GRACE);
    let (mut kept, mut lost) = (0, 0);
    for (key, written) in keys.iter().zip(&written) {
        let at = found.get(key).copied().unwrap_or(0);
        let old = written.acknowledged.iter().filter(|(_, when)| *when <= old_enough);
        kept += old.clone().count();
        let least = old.map(|(value, _)| *value).max().unwrap_or(0);
        assert!(at >= least, "key {key} has {at}, and {least} was acknowledged long before");
        assert!(at <= written.last, "key {key} has {at}, nobody wrote more than {}", written.last);
        lost += written.acknowledged.iter().filter(|(value, _)| *value > at).count();
    }
    assert!(kept > 1000, "{kept} changes were old enough: the load is too small to show anything");
    cluster.end(Signal::TERM);
    (kept, lost)
}

/// Forty kills, which take several minutes: `scripts/kills-under-load`.
#[test]
#[ignore = "takes ten minutes"]
fn kills_under_load_lose_the_last_moments_only() {
    for transport in ["tcp", "shm"] {
        for kill in 0..20_u64 {
            let run_for = Duration::from_millis(2_500 + 137 * kill % 1_500);
            let (kept, lost) = kill_under_load(transport, run_for, kill % 2 == 1);
            println!(
                "{transport} {kill:2}: {kept} changes were old enough, all there; {lost} later ones lost"
            );
        }
    }
}
