//! The distribution of keys: shares, boundaries from a file, and an index that is emptied.
//!
//! Dense keys once all went to one of two compute servers without a warning, `--boundaries` was
//! silently ignored if the index had different ones, and the only way to empty an index was to kill
//! a memory server.

use crate::launched::{Launched, eventually, farleaf, text};
use crate::serving::{DEADLINE, connect, serving};
use farleaf_cluster::stop::StopSignal;
use farleaf_index::{IndexError, RangeIndex, ScanRequest};
use rustix::process::Signal;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROWS: u64 = 12_000;

fn rows(cluster: &Launched) -> String {
    let path = cluster.folder.path().join("rows.csv");
    let rows: String = (0..ROWS).map(|key| format!("{key},{}\n", key + 1)).collect();
    std::fs::write(&path, rows).unwrap();
    path.to_str().unwrap().to_owned()
}

fn client(cluster: &Launched, words: &[&str]) -> (Option<i32>, String, String) {
    let output = farleaf(&[&["client", "--dir", cluster.dir()], words].concat());
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn keys_that_fill_one_server_are_warned_of() {
    let mut cluster = serving("tcp", &["--metrics"]);
    let (code, _, said) = client(&cluster, &["load", &rows(&cluster)]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("100.0% of the records went to compute server 0"), "{said}");
    assert!(said.contains("--boundaries-from"), "{said}");
    let status = text(&cluster.status().stdout);
    assert!(status.contains("share") && status.contains("100%"), "{status}");
    assert!(status.contains("warning: compute server 0 has done"), "{status}");
    let json = farleaf(&["status", "--dir", cluster.dir(), "--json"]);
    let json: Value = serde_json::from_str(&text(&json.stdout)).unwrap();
    assert!(json["shares"]["compute server 0"].as_f64().unwrap() > 0.99, "{json}");
    let memory = [0, 1].map(|number| json["shares"][format!("memory server {number}")].as_f64());
    assert!((memory[0].unwrap() + memory[1].unwrap() - 1.0).abs() < 1e-6, "{json}");
    let top = farleaf(&["top", "--dir", cluster.dir(), "--once", "--interval", "0.2"]);
    let top = text(&top.stdout);
    assert!(top.contains("share") && top.contains("100%"), "{top}");
    cluster.end(Signal::TERM);
}

#[test]
fn boundaries_come_from_a_file_and_stay() {
    let (mut folder, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = files.path().join("dense.csv");
    let rows: String = (0..ROWS).map(|key| format!("{key}\n")).collect();
    std::fs::write(&path, rows).unwrap();
    let path = path.to_str().unwrap().to_owned();
    let servers =
        ["--transport", "tcp", "--memory-servers", "1", "--compute-servers", "2", "--restart"];
    let with = |more: &[&str]| -> Vec<String> {
        servers.iter().chain(more).map(|word| (*word).to_owned()).collect()
    };
    let start = |folder, more: &[&str]| {
        let words = with(more);
        Launched::start_in(folder, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut cluster = start(folder, &["--boundaries-from", &path]);
    let map = farleaf(&["status", "--dir", cluster.dir(), "--json"]);
    let map: Value = serde_json::from_str(&text(&map.stdout)).unwrap();
    let boundary = map["map"]["boundaries"][0].as_str().unwrap().to_owned();
    assert_eq!(boundary, (ROWS / 2).to_string());
    let (code, out, said) = client(&cluster, &["load", &path]);
    assert_eq!((code, &*out, &*said), (Some(0), "12000 records\n", ""));
    assert_eq!(cluster.end(Signal::TERM), Some(0));
    // Different boundaries are refused; the same ones, or none, are accepted.
    folder = std::mem::replace(&mut cluster.folder, tempfile::tempdir().unwrap());
    let dir = folder.path().to_str().unwrap().to_owned();
    let words = with(&["--boundaries", "5"]);
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|w| *w != "--restart").collect();
    let refused = farleaf(&[&["cluster", "--dir", &dir][..], &words].concat());
    let said = text(&refused.stdout);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    let why = format!("this cluster was made with {boundary} as the boundaries, not 5");
    let is_told = |line: &str| {
        let words = line.split_once(" has died: exit code 2: ");
        words.is_some_and(|(server, said)| {
            server.starts_with("compute server") && said == format!("error: {why}")
        })
    };
    assert!(said.lines().any(is_told), "{said}");
    let mut again = start(folder, &["--boundaries", &boundary]);
    assert_eq!(again.end(Signal::TERM), Some(0));
    let one = files.path().join("one.csv");
    std::fs::write(&one, "7\n7\n").unwrap();
    let few = "one.csv has 1 keys: too few for 2 compute servers";
    for (path, why) in [("/nonexistent.csv", "cannot read"), (one.to_str().unwrap(), few)] {
        let words = ["cluster", "--dir", &dir, "--transport", "tcp", "--memory-servers", "1"];
        let words = [&words[..], &["--compute-servers", "2", "--boundaries-from", path]].concat();
        let output = farleaf(&words);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(why), "{output:?}");
    }
}

#[test]
fn an_index_is_emptied_whole_while_others_write() {
    let mut cluster = serving("tcp", &[]);
    assert_eq!(client(&cluster, &["load", &rows(&cluster)]).0, Some(0));
    let connection = connect(&cluster, DEADLINE * 5);
    let ended = AtomicBool::new(false);
    const FIRST: u64 = 1 << 40;
    let told = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut told = Vec::new();
            for key in FIRST.. {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                let written = connection.run(async |client| client.upsert(&key, &key).await);
                let is_last = written.is_ok();
                told.push((key, written));
                if is_last && told.len() > 50_000 {
                    break;
                }
            }
            told
        });
        let (code, _, said) = client(&cluster, &["clear"]);
        assert_eq!(code, Some(0), "{said}");
        ended.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    // Every write gets an answer, and every error correctly states what is known about the outcome.
    for (key, outcome) in &told {
        let is_honest = matches!(
            outcome,
            Ok(())
                | Err(IndexError::Indeterminate(_)
                    | IndexError::NotServed { .. }
                    | IndexError::NotSent { .. })
        );
        assert!(is_honest, "{key}: {outcome:?}");
    }
    let old: Result<_, IndexError> =
        connection.run(async |client| client.scan(&ScanRequest::range(..FIRST)).await);
    assert_eq!(old.unwrap(), []);
    // Changes acknowledged from now on survive.
    assert_eq!(client(&cluster, &["put", "5", "50"]).0, Some(0));
    assert_eq!(client(&cluster, &["scan", "0", "--limit", "1"]).1, "5,50\n");
    cluster.end(Signal::TERM);
}

#[test]
fn a_client_that_dies_while_it_empties_leaves_all_or_nothing() {
    let mut cluster = serving("tcp", &[]);
    let file = rows(&cluster);
    for round in 0..4 {
        assert_eq!(client(&cluster, &["load", &file]).0, Some(0));
        let mut clearing = Command::new(env!("CARGO_BIN_EXE_farleaf"))
            .args(["client", "--dir", cluster.dir(), "clear"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        StopSignal::default().wait(Duration::from_millis(20 + 60 * round));
        clearing.kill().unwrap();
        clearing.wait().unwrap();
        eventually("a cluster that serves", || {
            (cluster.status().status.code() == Some(0)).then_some(())
        });
        let found = client(&cluster, &["scan", "0", "--limit", "20000"]).1.lines().count() as u64;
        assert!(found == 0 || found == ROWS, "round {round}: {found} records are left");
    }
    assert_eq!(client(&cluster, &["clear"]), (Some(0), String::new(), String::new()));
    assert_eq!(client(&cluster, &["scan", "0"]).1, "");
    cluster.end(Signal::TERM);
}
