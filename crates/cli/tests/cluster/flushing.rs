//! What a `flush` and a `load` promise when keys move and compute servers die.

use crate::crashing::{kill_and_await, spread};
use crate::launched::{Launched, eventually, farleaf, signal, text};
use crate::serving::{compute, connect, serving};
use farleaf_index::{IndexError, RangeIndex};
use rustix::process::Signal;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(20);
/// Nothing is written back by age, so that only a flush keeps changes.
const KEPT_BY_FLUSHES: [&str; 3] = ["--restart", "--write-back-ms", "0"];

/// A shell was open while another client moved keys to a compute server that had owned none, and
/// changed them there. `flush` in the shell asked only the owners of its own map, and said ok;
/// after a kill the keys had their old values.
#[test]
fn a_flush_covers_owners_that_the_client_has_not_heard_of() {
    let mut cluster = serving("tcp", &KEPT_BY_FLUSHES);
    let drained = farleaf(&["drain", "--dir", cluster.dir(), "1"]);
    assert_eq!(drained.status.code(), Some(0), "{drained:?}");
    let old = connect(&cluster, DEADLINE);
    let keys: Vec<u64> = (0..500).map(spread).collect();
    let put_all = async |client: farleaf_cluster::client::ClusterClient, value: u64| {
        for key in &keys {
            client.upsert(key, &value).await?;
        }
        Ok::<_, IndexError>(())
    };
    assert_eq!(old.run(async |client| put_all(client, 1).await), Ok(()));
    assert_eq!(old.run(async |client| client.flush().await), Ok(()));
    let other = connect(&cluster, DEADLINE);
    let moved = other.run(async |client| client.move_keys(0, 1, Some(&(u64::MAX / 2))).await);
    assert!(moved.is_ok(), "{moved:?}");
    assert_eq!(other.run(async |client| put_all(client, 2).await), Ok(()));
    let known = old.run(async |client| Ok::<_, IndexError>(client.map().owners().to_vec()));
    assert_eq!(known, Ok(vec![0]), "the client has heard of the move");
    assert_eq!(old.run(async |client| client.flush().await), Ok(()));
    for number in [0, 1] {
        kill_and_await(&mut cluster, number);
    }
    let found = connect(&cluster, DEADLINE).run(async |client| client.multi_get(&keys).await);
    let lost = found.unwrap().into_iter().filter(|value| *value != Some(2)).count();
    assert_eq!(lost, 0, "keys have lost what was flushed");
    cluster.end(Signal::TERM);
}

/// A flush was sent again to the next incarnation of a killed compute server, which had nothing to
/// flush and said ok for what the kill had lost.
#[test]
fn a_flush_reports_once_what_a_kill_has_lost() {
    let mut cluster = serving("tcp", &KEPT_BY_FLUSHES);
    let connection = connect(&cluster, DEADLINE);
    let put = |value: u64| {
        connection.run(async |client| {
            for key in (0..100).map(spread) {
                client.upsert(&key, &value).await?;
            }
            Ok::<_, IndexError>(())
        })
    };
    let flush = || connection.run(async |client| client.flush().await);
    assert_eq!((put(1), flush()), (Ok(()), Ok(())));
    // With nothing unflushed there is nothing to lose.
    kill_and_await(&mut cluster, 0);
    assert_eq!(flush(), Ok(()));
    assert_eq!(put(2), Ok(()));
    kill_and_await(&mut cluster, 0);
    assert_eq!(flush(), Err(IndexError::ChangesLost { compute_server: 0 }));
    assert_eq!((put(2), flush()), (Ok(()), Ok(())));
    for number in [0, 1] {
        kill_and_await(&mut cluster, number);
    }
    let keys: Vec<u64> = (0..100).map(spread).collect();
    let found = connection.run(async |client| client.multi_get(&keys).await).unwrap();
    assert!(found.iter().all(|value| *value == Some(2)), "{found:?}");
    cluster.end(Signal::TERM);
}

/// The shell connects anew and repeats a line if a compute server has restarted. A flush over the
/// new connection knew of no changes and said ok.
#[test]
fn a_flush_in_the_shell_reports_what_a_kill_has_lost() {
    let mut cluster = serving("tcp", &KEPT_BY_FLUSHES);
    let mut shell = Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["shell", "--dir", cluster.dir()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = shell.stdin.take().unwrap();
    lines.write_all(b"put 5 50\n").unwrap();
    let connection = connect(&cluster, DEADLINE);
    eventually("the change", || {
        connection.run(async |client| client.get(&5).await).unwrap().filter(|value| *value == 50)
    });
    kill_and_await(&mut cluster, 0);
    lines.write_all(b"get 6\nflush\nput 5 51\nflush\n").unwrap();
    drop(lines);
    let output = shell.wait_with_output().unwrap();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), &*said), (Some(1), "ok\nok\nok\n"), "{errors}");
    let errors: Vec<&str> = errors.lines().collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert_eq!(errors[0], "error: line 2: key 6 is absent");
    let lost = "error: line 3: compute server 0 has begun another incarnation";
    assert!(errors[1].starts_with(lost), "{errors:?}");
    cluster.end(Signal::TERM);
}

fn file_of(cluster: &Launched, rows: impl Iterator<Item = (u64, u64)>) -> String {
    let path = cluster.folder.path().join("rows.csv");
    let rows: String = rows.map(|(key, value)| format!("{key},{value}\n")).collect();
    std::fs::write(&path, rows).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A compute server was killed during a load and came back: the load said success, but the rows
/// that the killed one had acknowledged were missing.
fn a_load_outlives_a_kill(index: &[&str]) {
    const ROWS: u64 = 200_000;
    let mut cluster = serving("tcp", &[&KEPT_BY_FLUSHES[..], index].concat());
    let path = file_of(&cluster, (0..ROWS).map(|row| (spread(row), row)));
    let loading = Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["client", "--dir", cluster.dir(), "--deadline-seconds", "60", "load", &path])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let connection = connect(&cluster, DEADLINE);
    // A row of the middle, of compute server 0.
    let row = (ROWS / 3..).find(|row| spread(*row) < u64::MAX / 2).unwrap();
    eventually("a part of the load", || {
        let got = connection.run(async |client| client.get(&spread(row)).await);
        got.ok().flatten()
    });
    signal(compute(&cluster, 0).unwrap().pid, Signal::KILL);
    let loaded = loading.wait_with_output().unwrap();
    assert_eq!(loaded.status.code(), Some(0), "{}", text(&loaded.stderr));
    cluster.await_line("compute server 0 has been restarted");
    let missing = connection.run(async |client| {
        let mut missing = 0;
        for first in (0..ROWS).step_by(1000) {
            let keys: Vec<u64> = (first..first + 1000).map(spread).collect();
            let found = client.multi_get(&keys).await?;
            missing += (first..).zip(found).filter(|(row, found)| *found != Some(*row)).count();
        }
        Ok::<_, IndexError>(missing)
    });
    assert_eq!(missing, Ok(0));
    cluster.end(Signal::TERM);
}

#[test]
fn a_load_of_dex_outlives_a_kill() {
    a_load_outlives_a_kill(&[]);
}

#[test]
fn a_load_of_dlsm_outlives_a_kill() {
    a_load_outlives_a_kill(&["--index", "dlsm", "--shards", "2"]);
}

/// A load has several requests in flight, and of two rows with one key in different requests the
/// earlier one sometimes won.
#[test]
fn the_last_row_of_a_key_wins() {
    const ROWS: u64 = 150_000;
    const KEYS: u64 = 3_000;
    let mut cluster = serving("tcp", &[]);
    let path = file_of(&cluster, (0..ROWS).map(|row| (spread(row % KEYS), row)));
    let loaded = farleaf(&["client", "--dir", cluster.dir(), "load", &path]);
    assert_eq!(loaded.status.code(), Some(0), "{loaded:?}");
    let keys: Vec<u64> = (0..KEYS).map(spread).collect();
    let found = connect(&cluster, DEADLINE).run(async |client| client.multi_get(&keys).await);
    let wrong: Vec<_> =
        (ROWS - KEYS..).zip(found.unwrap()).filter(|(last, found)| *found != Some(*last)).collect();
    assert!(wrong.is_empty(), "{} keys have an earlier row: {:?}", wrong.len(), wrong.first());
    cluster.end(Signal::TERM);
}
