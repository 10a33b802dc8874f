//! What the programs report when one of them ends, when a disk is full, or when clients overload
//! them.
//!
//! The launcher once reported the last line of a log as the reason for a death, treated a clean end
//! as a death, and left half a token on a full disk. 2,000 idle connections kept `/metrics` busy
//! for minutes. A memory server counted none of DEX's nodes. A server whose log was on a full disk
//! panicked on its next log line, and if it was a memory server, the index was lost.

use crate::crashing::spread;
use crate::launched::{Launched, eventually, farleaf, signal, text};
use crate::serving::{DEADLINE, compute, connect, serving};
use farleaf_index::{IndexError, RangeIndex};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

#[test]
fn the_launcher_says_why_a_server_ended_and_only_that() {
    let mut cluster = serving("tcp", &[]);
    signal(compute(&cluster, 1).unwrap().pid, Signal::TERM);
    let said = cluster.await_line("compute server 1 ");
    assert_eq!(said, "compute server 1 has ended on request");
    assert_eq!(cluster.end(Signal::TERM), Some(0), "nobody has died");
    let mut cluster = serving("tcp", &[]);
    signal(compute(&cluster, 0).unwrap().pid, Signal::KILL);
    assert_eq!(cluster.await_line("compute server 0 "), "compute server 0 has died: signal 9");
    assert_eq!(cluster.end(Signal::TERM), Some(1));
}

#[test]
fn a_full_disk_leaves_no_half_written_token() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("cluster");
    let words = ["--transport", "tcp", "--memory-servers", "1", "--compute-servers", "0"];
    // With a file size limit of 0, every write fails as on a full disk.
    let limited = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" cluster --dir \"$@\""])
        .arg(env!("CARGO_BIN_EXE_farleaf"))
        .arg(&dir)
        .args(words)
        .output()
        .unwrap();
    let said = text(&limited.stderr);
    assert_eq!(limited.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write") && said.contains("token"), "{said}");
    let left = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("token")).collect();
    assert!(left.is_empty(), "{left:?}");
    // Once there is room, it starts normally.
    std::fs::rename(&dir, folder.path().join("again")).unwrap();
    let again = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder.path().join("again")).unwrap() {
        let entry = entry.unwrap();
        std::fs::rename(entry.path(), again.path().join(entry.file_name())).unwrap();
    }
    let mut cluster = Launched::start_in(again, &words);
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

/// On a nearly full disk, a server could not even write why it ended, and the launcher said
/// *memory server 0 has died: exit code 1*, or waited for a minute and named no cause.
#[test]
fn a_nearly_full_disk_is_named_as_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    // A small file system, for this process and its children only.
    let within = |script: &str| {
        Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
            .arg(format!("mount -t tmpfs -o size=64k tmpfs \"$1\" && {script}"))
            .arg(env!("CARGO_BIN_EXE_farleaf"))
            .arg(dir)
            .output()
    };
    if !within("true").is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this machine gives no file system to a user");
        return;
    }
    for free in [0, 4, 8, 12, 16, 20, 24] {
        let script = format!(
            "head -c $(((64 - {free}) * 1024)) /dev/zero >\"$1\"/filled && \
             exec \"$0\" cluster --dir \"$1\"/cluster --transport tcp --memory-servers 1 \
             --compute-servers 1 --pool-bytes 8Mi"
        );
        let output = within(&script).unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{free}: {said}");
        let last = said.lines().last().unwrap();
        let path = format!("{dir}/cluster");
        let is_named = last.contains("No space left on device") && last.contains(&path);
        assert!(is_named, "{free} KiB: {said}");
    }
}

#[test]
fn a_log_that_cannot_be_written_ends_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    farleaf_cluster::config::make_token(folder.path().join("token").as_path()).unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["memory-server", "--number", "0", "--transport", "tcp", "--pool-bytes", "16Mi"])
        .args(["--memory-servers", "1", "--compute-servers", "0", "--token-file", &path("token")])
        .args(["--catalog-listen", "127.0.0.1:0", "--catalog-state", &path("catalog.json")])
        .args(["--catalog-address-file", &path("address"), "--log", "trace"])
        .stderr(full)
        .spawn()
        .unwrap();
    let address = eventually("the catalog's address", || {
        assert_eq!(server.try_wait().unwrap(), None, "it has ended");
        std::fs::read_to_string(path("address")).ok()
    });
    let reach = ["--catalog", address.trim(), "--token-file", &path("token")];
    eventually("a memory server that serves", || {
        assert_eq!(server.try_wait().unwrap(), None, "it has ended");
        let status = farleaf(&[&["status"], &reach[..]].concat());
        status.status.success().then_some(())
    });
    signal(server.id(), Signal::TERM);
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

/// Reads `/metrics`; an error if there is no answer.
pub(crate) fn metrics(address: &str) -> std::io::Result<String> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}

pub(crate) fn number(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().unwrap()
}

#[test]
fn metrics_stay_reachable_among_idle_connections() {
    const IDLE: usize = 2_000;
    let limit = getrlimit(Resource::Nofile);
    let wanted = Some(4 * IDLE as u64).min(limit.maximum.or(Some(u64::MAX)));
    setrlimit(Resource::Nofile, Rlimit { current: wanted, ..limit }).unwrap();
    let mut cluster = serving("tcp", &["--metrics"]);
    for address in [cluster.memory(0).unwrap().metrics, compute(&cluster, 0).unwrap().metrics] {
        let address = address.unwrap();
        let idle: Vec<TcpStream> =
            (0..IDLE).map(|_| TcpStream::connect(&address).unwrap()).collect();
        let answer = metrics(&address).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        drop(idle);
    }
    cluster.end(Signal::TERM);
}

#[test]
fn a_memory_server_counts_the_nodes_of_compute_servers() {
    let mut cluster = serving("tcp", &["--metrics"]);
    let load = ["client", "--dir", cluster.dir(), "bench", "--load", "--keys", "30k"];
    let loaded = farleaf(&[&load[..], &["--operations", "1k", "--workload", "read-only"]].concat());
    assert_eq!(loaded.status.code(), Some(0), "{loaded:?}");
    let in_use: u64 = [0, 1]
        .map(|number_of| cluster.memory(number_of).unwrap().metrics.unwrap())
        .map(|address| number(&metrics(&address).unwrap(), "farleaf_nodes_in_use"))
        .iter()
        .sum();
    // A page has room for 60 records.
    assert!(in_use > 30_000 / 60, "{in_use} nodes");
    let limited = ["client", "--dir", cluster.dir(), "scan", "0", "--limit", "2k"];
    assert_eq!(text(&farleaf(&limited).stdout).lines().count(), 2_000);
    cluster.end(Signal::TERM);
}

/// Each end of a compute server, clean or not, lost the nodes that it had free and the rest of its
/// chunks: the same records, inserted and removed in one life after the other, filled the pool.
#[test]
fn clean_ends_lose_no_memory() {
    let mut cluster = serving("tcp", &["--metrics", "--restart"]);
    let keys: Vec<u64> = (0..2_000).map(spread).collect();
    let mut in_use = Vec::new();
    for _ in 0..4 {
        let changed = connect(&cluster, DEADLINE).run(async |client| {
            for key in &keys {
                client.upsert(key, key).await?;
            }
            for key in &keys {
                client.remove(key).await?;
            }
            Ok::<_, IndexError>(())
        });
        assert_eq!(changed, Ok(()));
        for server in [0, 1] {
            let before = compute(&cluster, server).unwrap().pid;
            signal(before, Signal::TERM);
            eventually("its next life", || {
                let now = compute(&cluster, server).filter(|now| now.pid != before)?;
                (now.generation > 0).then_some(())
            });
        }
        let memory = [0, 1].map(|server| cluster.memory(server).unwrap().metrics.unwrap());
        let nodes = memory.map(|at| number(&metrics(&at).unwrap(), "farleaf_nodes_in_use"));
        in_use.push(nodes.iter().sum::<u64>());
    }
    // Leaves without records are joined sooner or later; a chunk has 256 nodes.
    assert!(in_use[3] < in_use[0] + 128, "{in_use:?}");
    cluster.end(Signal::TERM);
}

fn largest(value: &Value) -> f64 {
    match value {
        Value::Number(number) => number.as_f64().unwrap().abs(),
        Value::Array(values) => values.iter().map(largest).fold(0.0, f64::max),
        Value::Object(fields) => fields.values().map(largest).fold(0.0, f64::max),
        _ => 0.0,
    }
}

#[test]
fn no_number_of_json_is_too_large_for_its_readers() {
    let mut cluster = serving("tcp", &[]);
    let status = farleaf(&["status", "--dir", cluster.dir(), "--json"]);
    let json: Value = serde_json::from_str(&text(&status.stdout)).unwrap();
    assert!(json["memory"][0]["epoch"].is_string(), "{json}");
    assert!(largest(&json) <= 9_007_199_254_740_992.0, "{json}");
    assert_eq!(json["map"]["boundaries"][0], (u64::MAX / 2).to_string());
    cluster.end(Signal::TERM);
}
