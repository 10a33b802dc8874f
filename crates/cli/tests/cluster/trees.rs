//! Clusters of processes with dLSM: each compute server has several LSM trees. What clients are
//! answered, what is lost with a compute server or a memory server, and what is refused.

use crate::crashing::{kill_and_await, read_in_every_way, spread};
use crate::ending::{metrics, number};
use crate::launched::{Launched, eventually, farleaf, signal, text};
use crate::serving::{DEADLINE, compute, connect, connect_to, serving};
use crate::strings::{
    Model, assert_comes_back_from_a_file, assert_same, client, next_incarnation, work_with,
};
use farleaf_index::{IndexError, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_pool::wire::MAX_VALUE_BYTES;
use rand::RngExt;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::Duration;

const TREES: &[&str] = &["--index", "dlsm", "--shards", "3", "--restart", "--cache-bytes", "4Mi"];

/// Sets all keys to the value that `value` has for each.
fn put_all(cluster: &Launched, keys: &[u64], value: impl Fn(u64) -> u64 + Sync) {
    let written = connect(cluster, DEADLINE).run(async |client| {
        for &key in keys {
            client.upsert(&key, &value(key)).await?;
        }
        Ok::<_, IndexError>(())
    });
    assert_eq!(written, Ok(()));
}

/// A killed compute server loses what was in its MemTables, and nothing else: the keys have the
/// values that they had at the last flush.
#[test]
fn a_killed_compute_server_loses_its_memtables_only() {
    for transport in ["tcp", "shm"] {
        let mut cluster = serving(transport, TREES);
        let keys: Vec<u64> = (0..600).map(spread).collect();
        put_all(&cluster, &keys[..400], |key| key / 2);
        assert_eq!(farleaf(&["client", "--dir", cluster.dir(), "flush"]).status.code(), Some(0));
        put_all(&cluster, &keys[200..], |key| key / 3);
        kill_and_await(&mut cluster, 0);
        let is_lost = |key: u64| key < u64::MAX / 2;
        let mut expected: BTreeMap<u64, u64> =
            keys[..400].iter().map(|key| (*key, key / 2)).collect();
        let kept = keys[200..].iter().filter(|key| !is_lost(**key));
        expected.extend(kept.map(|key| (*key, key / 3)));
        let found = connect(&cluster, DEADLINE)
            .run(async |client| Ok::<_, IndexError>(read_in_every_way(&client, &keys).await));
        assert_eq!(found, Ok(expected), "over {transport}");
        // A clean end writes everything back.
        put_all(&cluster, &keys, |key| key / 5);
        for server in [0, 1] {
            let before = compute(&cluster, server).unwrap();
            signal(before.pid, Signal::TERM);
            eventually("its next life", || {
                let now = compute(&cluster, server).filter(|now| now.pid != before.pid)?;
                (now.generation > 0).then_some(())
            });
        }
        let expected = keys.iter().map(|key| (*key, key / 5)).collect();
        let found = connect(&cluster, DEADLINE)
            .run(async |client| Ok::<_, IndexError>(read_in_every_way(&client, &keys).await));
        assert_eq!(found, Ok(expected), "over {transport}");
        cluster.end(Signal::TERM);
    }
}

/// The index is lost with a memory server, and every operation ends: the next index is empty.
#[test]
fn a_killed_memory_server_ends_the_index_and_no_operation_hangs() {
    let mut cluster = serving("tcp", TREES);
    let keys: Vec<u64> = (0..300).map(spread).collect();
    put_all(&cluster, &keys, |key| key / 2);
    let before = compute(&cluster, 0).unwrap().generation;
    signal(cluster.memory(1).unwrap().pid, Signal::KILL);
    let outcomes = connect(&cluster, Duration::from_millis(500)).run(async |client| {
        let mut outcomes = Vec::new();
        for key in &keys {
            outcomes.push((*key, client.upsert(key, &1).await, client.get(key).await));
        }
        Ok::<_, IndexError>(outcomes)
    });
    for (key, _, got) in outcomes.unwrap() {
        // A lookup in the next index finds nothing, or what was just written there.
        let is_sensible =
            got.as_ref().is_ok_and(|got| [None, Some(1), Some(key / 2)].contains(got));
        assert!(is_sensible || got.is_err(), "{got:?}");
    }
    cluster.await_line("memory server 1 has been restarted");
    eventually("the next generation", || {
        let now = [0, 1].map(|number| compute(&cluster, number).map(|now| now.generation));
        now.iter().all(|now| now.is_some_and(|now| now > before)).then_some(())
    });
    put_all(&cluster, &keys, |key| key / 7);
    let found =
        connect(&cluster, DEADLINE).run(async |client| client.scan(&ScanRequest::range(..)).await);
    let mut expected: Vec<_> = keys.iter().map(|key| (*key, key / 7)).collect();
    expected.sort_unstable();
    assert_eq!(found, Ok(expected));
    cluster.end(Signal::TERM);
}

/// Byte strings of any length that messages have, through flushes, merges, loads and lives.
#[test]
fn long_byte_strings_are_served_from_trees() {
    let bytes = ["--keys", "bytes", "--boundaries", "m", "--metrics"];
    let mut cluster = serving("tcp", &[TREES, &bytes, &["--cache-bytes", "24Mi"]].concat());
    let mut model = Model::new();
    let work = |cluster: &Launched, model: &mut Model, seed| {
        work_with(cluster, model, seed, 300, &|rng| {
            let bytes = [0, 1, 30, 1_000, 20_000, 60_000][rng.random_range(0..6)];
            vec![rng.random(); bytes]
        });
    };
    work(&cluster, &mut model, 1);
    assert_same(&cluster, &model);
    assert_eq!(client(&cluster, &["flush"]).0, Some(0));
    next_incarnation(&mut cluster, 0, Signal::KILL);
    assert_same(&cluster, &model);
    work(&cluster, &mut model, 2);
    next_incarnation(&mut cluster, 1, Signal::TERM);
    assert_same(&cluster, &model);
    assert_comes_back_from_a_file(&cluster, &model);
    assert_eq!(client(&cluster, &["flush"]).0, Some(0));
    for server in [0, 1] {
        let seen = metrics(&compute(&cluster, server).unwrap().metrics.unwrap()).unwrap();
        assert_eq!(number(&seen, "farleaf_dlsm_shards"), 3, "{seen}");
        assert!(number(&seen, "farleaf_dlsm_flushes_total") > 0, "{seen}");
        assert!(number(&seen, "farleaf_dlsm_memtable_bytes") <= 12 << 20, "{seen}");
        assert_eq!(number(&seen, "farleaf_dlsm_failures_total"), 0, "{seen}");
    }
    let top = farleaf(&["top", "--dir", cluster.dir(), "--once", "--interval", "0.1"]);
    let top = text(&top.stdout);
    assert!(top.contains("MemTables") && top.contains("merged/s"), "{top}");
    let written = connect_to::<Bytes>(&cluster, DEADLINE)
        .run(async |client| client.upsert(b"the longest value", &vec![1; MAX_VALUE_BYTES]).await);
    assert_eq!(written, Ok(()));
    cluster.end(Signal::TERM);
}

/// All shards move to one compute server, and what they have is there.
#[test]
fn shards_move_and_what_trees_cannot_do_is_refused_by_one_line() {
    let mut cluster = serving("tcp", &[TREES, &["--metrics"]].concat());
    let dir = cluster.dir().to_owned();
    // Each compute server loads its own part.
    let sizes = ["--load", "--keys", "20000", "--operations", "5000", "--workload", "ycsb-a"];
    let bench = farleaf(&[&["client", "--dir", &dir, "bench"], &sizes[..]].concat());
    assert_eq!(bench.status.code(), Some(0), "{bench:?}");
    let put = farleaf(&["client", "--dir", &dir, "put", "7", "70"]);
    assert_eq!(put.status.code(), Some(0), "{put:?}");
    let moved = farleaf(&["drain", "--dir", &dir, "0"]);
    assert_eq!(moved.status.code(), Some(0), "{moved:?}");
    for (server, shards) in [(0, 0), (1, 6)] {
        // The new owner opens its shards after the move.
        let address = compute(&cluster, server).unwrap().metrics.unwrap();
        eventually("all shards at compute server 1", || {
            (number(&metrics(&address).unwrap(), "farleaf_dlsm_shards") == shards).then_some(())
        });
    }
    let found = farleaf(&["client", "--dir", &dir, "get", "7"]);
    assert!(text(&found.stdout).contains("70"), "{found:?}");
    cluster.end(Signal::TERM);
    for (words, text_of) in [
        (&["--index", "dex", "--shards", "2"][..], "are for --index dlsm"),
        (&["--index", "dex", "--most-shards", "2"], "are for --index dlsm"),
        (&["--index", "dlsm", "--shards", "65"], "not in 1..=64"),
        (&["--index", "btree", "--shards", "1"], "possible values: dex, dlsm"),
        (&["--index", "dlsm", "--shards", "64", "--compute-servers", "17"], "at most 1024"),
    ] {
        let servers = ["--memory-servers", "1", "--compute-servers", "1", "--transport", "tcp"];
        let refused = farleaf(&[&["cluster", "--dir", "/nowhere"], &servers[..], words].concat());
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(text_of), "{said}");
    }
}

/// A quarter of a compute server's keys move although it has one shard, which is divided for that.
/// Both parts are served from the same tables, also by the next lives of both compute servers.
#[test]
fn a_shard_is_divided_to_move_a_part_of_it() {
    for transport in ["tcp", "shm"] {
        let flags = ["--index", "dlsm", "--most-shards", "3", "--restart", "--metrics"];
        let mut cluster = serving(transport, &flags);
        let keys: Vec<u64> = (0..2_000).map(spread).collect();
        let check = |cluster: &Launched, part: u64| {
            let expected: BTreeMap<u64, u64> = keys.iter().map(|key| (*key, key / part)).collect();
            let found = connect(cluster, DEADLINE)
                .run(async |client| Ok::<_, IndexError>(read_in_every_way(&client, &keys).await));
            assert_eq!(found, Ok(expected), "over {transport}");
        };
        put_all(&cluster, &keys, |key| key / 2);
        let moved = farleaf(&["move", "--dir", cluster.dir(), "0", "1", "25"]);
        assert_eq!(moved.status.code(), Some(0), "{moved:?}");
        check(&cluster, 2);
        for (server, shards) in [(0, 1), (1, 2)] {
            let address = compute(&cluster, server).unwrap().metrics.unwrap();
            let found = number(&metrics(&address).unwrap(), "farleaf_dlsm_shards");
            assert_eq!(found, shards, "of compute server {server}");
        }
        put_all(&cluster, &keys, |key| key / 3);
        assert_eq!(farleaf(&["client", "--dir", cluster.dir(), "flush"]).status.code(), Some(0));
        kill_and_await(&mut cluster, 0);
        check(&cluster, 3);
        kill_and_await(&mut cluster, 1);
        check(&cluster, 3);
        // The part comes back whole.
        let moved = farleaf(&["move", "--dir", cluster.dir(), "1", "0", "25"]);
        assert_eq!(moved.status.code(), Some(0), "{moved:?}");
        check(&cluster, 3);
        cluster.end(Signal::TERM);
    }
}

/// The compute server that creates the index once waited without an end, as if its memory could
/// grow.
#[test]
fn a_creator_with_too_little_memory_ends() {
    let folder = tempfile::tempdir().unwrap();
    let ended = farleaf(&[
        "cluster",
        "--dir",
        folder.path().to_str().unwrap(),
        "--transport",
        "tcp",
        "--memory-servers",
        "1",
        "--compute-servers",
        "1",
        "--index",
        "dlsm",
        "--shards",
        "64",
        "--cache-bytes",
        "1Mi",
    ]);
    let said = text(&ended.stdout);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(said.contains("compute server 0") && said.contains("too little memory"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
