//! Keys that move between the processes of a running cluster, while clients work.
//!
//! In a cluster of processes, the partition map once never changed: a compute server with all the
//! keys kept them, and one that was about to be stopped could not hand over its keys.

use crate::launched::{Launched, eventually, farleaf, signal, text};
use crate::serving::{compute, connect, serving};
use farleaf_cluster::launch::LauncherFolder;
use farleaf_cluster::stop::StopSignal;
use farleaf_index::{IndexError, RangeIndex, ScanRequest};
use futures_util::future::try_join_all;
use rustix::process::Signal;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROWS: u64 = 20_000;
const IN_FLIGHT: u64 = 64;
const KEYS_OF_A_TASK: usize = 200;
/// The first of the keys that a writer sets while keys move; it lies among the others.
const FIRST: u64 = 7_001;

/// Loads records with even numbers as keys, from 0 on.
fn load(cluster: &Launched) {
    let path = cluster.folder.path().join("rows.csv");
    let rows: String = (0..ROWS).map(|key| format!("{},{key}\n", key * 2)).collect();
    std::fs::write(&path, rows).unwrap();
    let words = ["client", "--dir", cluster.dir(), "load", "--bulk", path.to_str().unwrap()];
    let output = farleaf(&words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stderr), "", "the load warns of nothing");
}

fn map(cluster: &Launched) -> Value {
    let json = farleaf(&["status", "--dir", cluster.dir(), "--json"]);
    let json: Value = serde_json::from_str(&text(&json.stdout)).unwrap();
    json["map"].clone()
}

pub(crate) fn owners(cluster: &Launched) -> Vec<u64> {
    map(cluster)["owners"].as_array().unwrap().iter().filter_map(Value::as_u64).collect()
}

/// Runs a command on the cluster until it succeeds.
pub(crate) fn must(cluster: &Launched, words: &[&str]) -> String {
    eventually(&words.join(" "), || {
        let output = farleaf(&[&words[..1], &["--dir", cluster.dir()], &words[1..]].concat());
        (output.status.code() == Some(0)).then(|| text(&output.stdout))
    })
}

/// Checks that every key is there, by lookups and by scans in both directions.
fn all_are_there(cluster: &Launched, written: &[(u64, u64)]) {
    let connection = connect(cluster, Duration::from_secs(20));
    let expected: Vec<(u64, u64)> = {
        let mut keys: Vec<(u64, u64)> = (0..ROWS).map(|key| (key * 2, key)).collect();
        keys.extend(written);
        keys.sort_unstable();
        keys
    };
    let outcome: Result<(), IndexError> = connection.run(async |client| {
        let up = client.scan(&ScanRequest::range(..)).await?;
        assert!(up == expected, "a scan finds {} of {} records", up.len(), expected.len());
        let mut down = client.scan(&ScanRequest::range(..).reverse()).await?;
        down.reverse();
        assert!(down == expected, "a descending scan finds {} records", down.len());
        let keys: Vec<u64> = expected.iter().map(|(key, _)| *key).collect();
        let values = client.multi_get(&keys).await?;
        let found =
            expected.iter().zip(values).filter(|((_, value), found)| *found == Some(*value));
        assert_eq!(found.count(), expected.len());
        Ok(())
    });
    outcome.unwrap();
}

/// Keys move, a compute server is drained, and another one joins, while a client with 64 operations
/// in flight writes. The client sees no error, and no key is lost.
fn clients_see_no_move(transport: &str, rounds: usize) {
    let mut cluster = serving(transport, &[]);
    load(&cluster);
    let boundary: u64 = map(&cluster)["boundaries"][0].as_str().unwrap().parse().unwrap();
    assert!((ROWS / 2..ROWS * 2).contains(&boundary), "the boundary follows the load: {boundary}");
    let ended = AtomicBool::new(false);
    let connection = connect(&cluster, Duration::from_secs(5));
    let catalog = LauncherFolder(cluster.dir().into()).catalog().unwrap().to_string();
    let token = cluster.folder.path().join("token");
    let mut newcomer = Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["compute-server", "--number", "5", "--listen", "127.0.0.1:0"])
        .args(["--catalog", &catalog, "--token-file", token.to_str().unwrap()])
        .args(["--log", "off", "--term-seconds", "1"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let written: Result<Vec<(u64, u64)>, IndexError> = connection.run(async |client| {
                // Each task inserts its own keys, and then repeatedly changes them.
                let write = async |first: u64| {
                    let mut written: Vec<(u64, u64)> = Vec::new();
                    for turn in 0.. {
                        if ended.load(Ordering::Relaxed) {
                            break;
                        }
                        let place = turn % KEYS_OF_A_TASK;
                        let key = FIRST + 2 * (first + place as u64 * IN_FLIGHT);
                        match written.get_mut(place) {
                            None => {
                                assert!(client.insert(&key, &0).await?, "{key} was there already");
                                written.push((key, 0));
                            }
                            Some((_, value)) => {
                                assert_eq!(client.get(&key).await?, Some(*value));
                                assert!(client.update(&key, &(*value + 1)).await?, "{key}");
                                *value += 1;
                            }
                        }
                        let below = key - 1;
                        let expected = (below < 2 * ROWS).then_some(below / 2);
                        assert_eq!(client.get(&below).await?, expected);
                    }
                    Ok::<_, IndexError>(written)
                };
                let written = try_join_all((0..IN_FLIGHT).map(write)).await?;
                Ok(written.concat())
            });
            written
        });
        for _ in 0..rounds {
            must(&cluster, &["move", "0", "1", "40"]);
            must(&cluster, &["move", "1", "0", "40"]);
            must(&cluster, &["drain", "0"]);
            assert_eq!(owners(&cluster), [1]);
            must(&cluster, &["move", "1", "5", "50"]);
            assert_eq!(owners(&cluster), [1, 5]);
            must(&cluster, &["move", "5", "0", "50"]);
            must(&cluster, &["drain", "5"]);
            assert_eq!(owners(&cluster), [1, 0]);
        }
        ended.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    let written = written.expect("moves cost waits, never an error");
    assert!(written.len() > 100, "{} keys were written meanwhile", written.len());
    all_are_there(&cluster, &written);
    signal(newcomer.id(), Signal::TERM);
    assert_eq!(newcomer.wait().unwrap().code(), Some(0));
    all_are_there(&cluster, &written);
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

#[test]
fn clients_see_no_move_over_tcp() {
    clients_see_no_move("tcp", 3);
}

#[test]
fn clients_see_no_move_over_shm() {
    clients_see_no_move("shm", 3);
}

/// The same for longer, to be run manually: `cargo test -p farleaf-cli --test cluster -- --ignored
/// --exact moving::two_hundred_moves`.
#[test]
#[ignore = "takes minutes"]
fn two_hundred_moves() {
    for transport in ["tcp", "shm"] {
        clients_see_no_move(transport, 34);
    }
}

/// A compute server is killed at any point of a move. The cluster then serves all keys again that
/// had been written back.
#[test]
fn a_server_that_dies_in_a_move_leaves_no_key_without_an_owner() {
    let mut cluster = serving("tcp", &["--restart", "--term-seconds", "1"]);
    load(&cluster);
    for round in 0..4_u16 {
        let mover = ["move", "--dir", cluster.dir(), "0", "1", "30"];
        let mut moving = Command::new(env!("CARGO_BIN_EXE_farleaf"))
            .args(if round % 2 == 0 {
                mover
            } else {
                ["move", "--dir", cluster.dir(), "1", "0", "30"]
            })
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        StopSignal::default().wait(Duration::from_millis(20 + 17 * u64::from(round)));
        let doomed = compute(&cluster, round / 2).expect("it is registered").pid;
        signal(doomed, Signal::KILL);
        moving.wait().unwrap();
        eventually("a cluster that serves", || {
            let has_begun = compute(&cluster, round / 2).is_some_and(|record| record.pid != doomed);
            (has_begun && cluster.status().status.code() == Some(0)).then_some(())
        });
        all_are_there(&cluster, &[]);
    }
    // Not 0, because servers have died.
    assert_eq!(cluster.end(Signal::TERM), Some(1));
}

#[test]
fn moves_that_make_no_sense_end_with_one_line() {
    let mut cluster = serving("tcp", &[]);
    let said = |words: &[&str]| {
        let output = farleaf(&[&words[..1], &["--dir", cluster.dir()], &words[1..]].concat());
        (output.status.code(), text(&output.stderr))
    };
    let none =
        "error: cannot move keys from 7 to 0: the compute server to move keys from owns no keys\n";
    assert_eq!(said(&["move", "7", "0"]), (Some(1), none.to_owned()));
    let itself =
        "error: cannot move keys from 0 to 0: keys cannot move from a compute server to itself\n";
    assert_eq!(said(&["move", "0", "0"]), (Some(1), itself.to_owned()));
    let few =
        "error: cannot move keys from 0 to 1: there are too few keys to move a part of them\n";
    assert_eq!(said(&["move", "0", "1", "50"]), (Some(1), few.to_owned()));
    assert_eq!(said(&["move", "0", "1", "0"]).0, Some(2));
    assert_eq!(said(&["drain", "9"]), (Some(0), String::new()));
    assert_eq!(said(&["drain", "0"]), (Some(0), String::new()));
    let all = "error: compute server 1 owns all keys: there is no other to move them to\n";
    assert_eq!(said(&["drain", "1"]), (Some(1), all.to_owned()));
    // Compute server 9 does not run. No key may be released to it, because all keys would have no
    // owner until the giver cancels the move.
    let (code, why) = said(&["move", "1", "9"]);
    let absent = "error: cannot move keys from 1 to 9: compute server 9: the compute server is \
                  not registered\n";
    assert_eq!((code, why), (Some(1), absent.to_owned()));
    assert_eq!(owners(&cluster), [1], "nothing has moved");
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

/// A drained compute server may be stopped. `status` and `clear` once reported it as missing
/// forever, and no bulk load was possible, because number 0 built every tree. The death of a server
/// that had joined was not reported.
#[test]
fn a_drained_server_is_missed_by_nobody_and_a_dead_one_is() {
    let mut cluster = serving("tcp", &[]);
    must(&cluster, &["drain", "0"]);
    let first = compute(&cluster, 0).expect("it is registered").pid;
    signal(first, Signal::TERM);
    let said = |words: &[&str]| {
        let output = farleaf(&[&words[..1], &["--dir", cluster.dir()], &words[1..]].concat());
        (output.status.code(), text(&output.stderr))
    };
    eventually("server 0 has gone", || {
        let (code, why) = said(&["move", "1", "0"]);
        (code == Some(1) && why.contains("is not registered")).then_some(())
    });
    assert_eq!(said(&["status"]), (Some(0), String::new()), "the cluster serves without it");
    load(&cluster);
    all_are_there(&cluster, &[]);
    let (code, why) = said(&["client", "clear"]);
    assert_eq!((code, why), (Some(0), String::new()), "the others serve the next generation");
    let second = compute(&cluster, 1).expect("it is registered").pid;
    signal(second, Signal::KILL);
    eventually("server 1 is missed", || {
        let (code, _) = said(&["status"]);
        (code != Some(0)).then_some(())
    });
    cluster.end(Signal::TERM);
}
