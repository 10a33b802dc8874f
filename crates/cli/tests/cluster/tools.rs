//! How `farleaf client` handles files, and how its benchmark ends.
//!
//! `client bench` once kept running without output when a compute server died, and reported the run
//! as a success. `client load` accepted different files than `demo --input`, and treated any first
//! line as a header.

use crate::launched::{Launched, farleaf, signal, text};
use crate::serving::{compute, serving};
use farleaf_cluster::stop::StopSignal;
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

fn client(cluster: &Launched, words: &[&str]) -> (Option<i32>, String, String) {
    let output = farleaf(&[&["client", "--dir", cluster.dir()], words].concat());
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn file(cluster: &Launched, name: &str, content: &[u8]) -> String {
    let path = cluster.folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_benchmark_gives_up_when_a_compute_server_dies() {
    let mut cluster = serving("tcp", &[]);
    let words = ["--deadline-seconds", "1", "bench", "--operations", "100G", "--in-flight", "8"];
    let bench = Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["client", "--dir", cluster.dir()])
        .args(words)
        .args(["--most-failures", "20", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    StopSignal::default().wait(Duration::from_secs(2));
    signal(compute(&cluster, 1).unwrap().pid, Signal::KILL);
    let ended = bench.wait_with_output().unwrap();
    let (said, json) = (text(&ended.stderr), text(&ended.stdout));
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("gave up after") && said.contains("at compute server 1"), "{said}");
    let json: Value = serde_json::from_str(&json).unwrap();
    let failures = json["failed"].as_u64().unwrap() + json["indeterminate"].as_u64().unwrap();
    assert!(failures >= 20, "{json}");
    // Failed operations take the longest, at least half of the deadline, and do not count towards
    // the latencies.
    let none_done = json["operations"].as_u64().unwrap() == failures;
    assert!(none_done || json["latency_p50_us"].is_f64(), "{json}");
    let few = ["--deadline-seconds", "1", "bench", "--operations", "20", "--most-failures", "1M"];
    let (code, table, said) = client(&cluster, &few);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with("of 20 operations ") && said.contains("compute server 1"), "{said}");
    assert!(table.contains("failed, nothing changed"), "{table}");
    cluster.end(Signal::TERM);
}

#[test]
fn a_benchmark_ends_by_time_and_asks_for_the_keys_of_a_file() {
    let mut cluster = serving("tcp", &[]);
    let rows: String = (0..300).map(|row| format!("x,{}\n", row * 7 + 1)).collect();
    let keys = file(&cluster, "keys.csv.gz", &gzip(format!("name,id\n{rows}").as_bytes()));
    let from = ["--keys-from", &keys, "--key-column", "id", "--json"];
    let run = |more: &[&str]| {
        let (code, json, said) = client(&cluster, &[&["bench"], &from[..], more].concat());
        assert_eq!(code, Some(0), "{said}");
        serde_json::from_str::<Value>(&json).unwrap()
    };
    let loaded = run(&["--load", "--workload", "read-only", "--operations", "2000"]);
    let counts = ["keys", "operations", "absent", "present", "failed"].map(|name| &loaded[name]);
    assert_eq!(counts.map(|count| count.as_u64().unwrap()), [300, 2000, 0, 0, 0]);
    let popular = ["--distribution", "zipfian:1.2", "--clustered", "--shift-hotspot-at", "50%"];
    let timed = run(&[&["--seconds", "0.5"], &popular[..]].concat());
    assert!(timed["operations"].as_u64().unwrap() > 0 && timed["seconds"].as_f64().unwrap() >= 0.5);
    assert_eq!(timed["absent"], 0);
    let (code, _, said) = client(&cluster, &["bench", "--shift-hotspot-at", "50%"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("--shift-hotspot-at needs --distribution zipfian"), "{said}");
    let (code, _, said) = client(&cluster, &["bench", "--keys-from", "/nonexistent.csv"]);
    assert!(code == Some(2) && said.contains("cannot read /nonexistent.csv"), "{said}");
    let (code, table, _) = client(&cluster, &["bench", "--operations", "100", "--keys", "1k"]);
    assert_eq!(code, Some(0));
    assert!(table.contains("found no record") && !table.contains("or something"), "{table}");
    cluster.end(Signal::TERM);
}

#[test]
fn a_load_and_the_demo_read_the_same_files() {
    let mut cluster = serving("tcp", &[]);
    let quoted = b"note,\"amount\",id\n\"a, b\",50,5\n\"c\n d\",\"70\", 7\n";
    let columns = ["--key-column", "id", "--value-column", "amount"];
    let packed = file(&cluster, "packed.csv.gz", &gzip(quoted));
    let (code, out, said) = client(&cluster, &[&["load", &packed], &columns[..]].concat());
    assert_eq!((code, &*out), (Some(0), "2 records\n"), "{said}");
    assert_eq!(client(&cluster, &["scan", "0"]).1, "5,50\n7,70\n");
    let by_name = file(&cluster, "named.csv", b"value,key\n10,1\n");
    assert_eq!(client(&cluster, &["load", &by_name]).0, Some(0));
    assert_eq!(client(&cluster, &["get", "1"]).1, "10\n");
    let rows: String = (0..5000).map(|row| format!("{},{row}\n", 1000 + row)).collect();
    let long = format!("{rows}oops,{}\n", "1".repeat(10_000));
    let wrong = [
        (
            "words.csv",
            "id,amount\n1,2\n".to_owned(),
            "neither numbers nor a header with a column `key`",
        ),
        ("long.csv", long.clone(), "line 5001: column `1` is `oops`, expected a whole number"),
        ("huge.csv", format!("1,2\n3,{}\n", "x".repeat(9000)), "… (9000 bytes)`, expected"),
    ];
    for (name, content, why) in &wrong {
        let path = file(&cluster, name, content.as_bytes());
        for command in [&["client", "--dir", cluster.dir(), "load"][..], &["demo", "--input"]] {
            let output = farleaf(&[command, &[&path]].concat());
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{name}: {said}");
            assert!(said.contains(why) && said.len() < 600, "{name}: {said}");
        }
    }
    let nothing = file(&cluster, "nothing.csv.gz", &gzip(b""));
    let demo = farleaf(&["demo", "--input", &nothing, "--json", "-"]);
    assert_eq!((demo.status.code(), &*text(&demo.stdout)), (Some(0), "[]\n"), "{demo:?}");
    assert!(text(&demo.stderr).starts_with("0 records from "), "{demo:?}");
    let (code, _, said) = client(&cluster, &["bench", "--keys-from", &nothing]);
    assert_eq!(code, Some(2));
    assert!(said.contains("has no rows"), "{said}");
    // The rows before the error are loaded and counted.
    let path = file(&cluster, "again.csv", long.replace("1000,0\n", "1000,99\n").as_bytes());
    let (_, _, said) = client(&cluster, &["load", &path]);
    assert!(said.contains("records loaded before this: 5,000"), "{said}");
    let found = client(&cluster, &["scan", "1000", "--limit", "9000"]).1;
    assert_eq!((found.lines().count(), found.lines().next()), (5000, Some("1000,99")));
    let (code, _, said) = client(&cluster, &["load", &packed, "--key-column", "none"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("no column `none`; its columns are: note, amount, id"), "{said}");
    cluster.end(Signal::TERM);
}

/// A bulk load of a file with a bad row committed the rows before it, and said that it had loaded
/// none: the iterator of rows ended at its error, which the load took for the end of the file. The
/// next attempt then failed because the index was not empty.
#[test]
fn a_bulk_load_that_fails_loads_nothing_and_can_be_repeated() {
    let mut cluster = serving("tcp", &[]);
    let rows: String = (0..5_000).map(|row| format!("{row},{row}\n")).collect();
    let packed = gzip(rows.as_bytes());
    let files: [(&str, &[u8], &str); 6] = [
        ("bad.csv", b"1,1\n2,2\nx,3\n", "line 3: column `1` is `x`"),
        ("ragged.csv", b"1,1\n2,2\n3\n", "line 3: the number of fields is 1"),
        ("cut.csv.gz", &packed[..packed.len() - 100], "cannot read "),
        ("quote.csv", b"1,1\n2,\"2\n3,3\n4,4", "line 2: a quote is not closed"),
        ("unsorted.csv", b"1,1\n3,3\n2,2\n", "record 3 is out of order"),
        ("long.csv", b"1,1\n2,000000002\n", "line 2: a field has more than 8 bytes"),
    ];
    for (name, content, why) in files {
        let path = file(&cluster, name, content);
        let bound: &[&str] = if name == "long.csv" { &["--max-field-bytes", "8"] } else { &[] };
        let (code, out, said) = client(&cluster, &[&["load", "--bulk", &path], bound].concat());
        assert_eq!((code, &*out), (Some(2), ""), "{name}: {said}");
        assert!(said.contains(why) && said.contains("nothing was loaded"), "{name}: {said}");
        assert_eq!(client(&cluster, &["count"]).1, "0\n", "{name}");
    }
    // What is read from a file in another form is not taken for rows.
    let other = file(&cluster, "rows.csv.xz", b"\xfd7zXZ\0\0\x04");
    let (code, _, said) = client(&cluster, &["load", "--bulk", &other]);
    assert_eq!(code, Some(2));
    assert!(said.contains("this is xz") && said.contains("xz -dc"), "{said}");
    // The zeros of a tape behind the data are no error.
    let good = file(&cluster, "good.csv.gz", &[&packed[..], &[0; 3000]].concat());
    let (code, out, said) = client(&cluster, &["load", "--bulk", &good]);
    assert_eq!((code, &*out), (Some(0), "5000 records\n"), "{said}");
    assert_eq!(client(&cluster, &["count"]).1, "5000\n");
    cluster.end(Signal::TERM);
}

/// The export of an empty index was an empty file, which no load accepted. A benchmark on one's own
/// records asked for keys that were not there.
#[test]
fn an_index_is_exported_and_measured_as_it_is() {
    let mut cluster = serving("tcp", &[]);
    let path = cluster.folder.path().join("export.csv").to_str().unwrap().to_owned();
    let exported = || {
        let (code, _, said) = client(&cluster, &["export", &path]);
        assert_eq!(code, Some(0), "{said}");
        std::fs::read_to_string(&path).unwrap()
    };
    assert_eq!(exported(), "");
    for bulk in [&["--bulk"][..], &[]] {
        let (code, out, said) = client(&cluster, &[&["load", &path], bulk].concat());
        assert_eq!((code, &*out), (Some(0), "0 records\n"), "{said}");
    }
    let (code, _, said) = client(&cluster, &["bench", "--existing", "--operations", "10"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("the index is empty"), "{said}");
    let rows: String = (0..3_000_u64).map(|row| format!("{},{row}\n", row * row)).collect();
    let own = file(&cluster, "own.csv", rows.as_bytes());
    assert_eq!(client(&cluster, &["load", "--bulk", &own]).0, Some(0));
    for keys in ["1M", "100"] {
        let words = ["bench", "--existing", "--keys", keys, "--operations", "4000", "--json"];
        let (code, json, said) = client(&cluster, &words);
        assert_eq!(code, Some(0), "{said}");
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["absent"], &json["workload"]), (&0.into(), &"read-only".into()));
        let sampled = if keys == "100" { 100 } else { 3_000 };
        assert_eq!((&json["keys"], &json["operations"]), (&sampled.into(), &4_000.into()));
    }
    assert_eq!(exported(), rows);
    cluster.end(Signal::TERM);
}
