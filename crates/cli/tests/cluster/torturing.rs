//! `farleaf torture` on clusters of processes. Its verdicts on wrong answers are tested on a model,
//! in `crates/cli/src/programs/torture/model_tests.rs`.

use crate::launched::{Launched, farleaf, text};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Output;

fn small(more: &[&str]) -> Launched {
    let servers = ["--transport", "tcp", "--memory-servers", "1", "--compute-servers", "2"];
    Launched::start(&[&servers, more].concat())
}

fn torture(cluster: &Launched, more: &[&str]) -> Output {
    farleaf(&[&["torture", "--dir", cluster.dir()], more].concat())
}

/// The last line, of a run that has done something.
fn last_line(output: &Output) -> String {
    let stdout = text(&output.stdout);
    let last = stdout.lines().last().unwrap_or_default().to_owned();
    assert!(!last.starts_with("0 operations"), "{output:?}");
    last
}

fn assert_refused(output: &Output, why: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(why) && said.lines().count() == 1, "{said}");
}

#[test]
fn without_faults_nothing_is_lost() {
    let mut cluster = small(&["--restart"]);
    let file = cluster.folder.path().join("history.jsonl");
    let json = ["--json", file.to_str().unwrap()];
    let output = torture(&cluster, &[&["--seconds", "3", "--keys", "200"][..], &json].concat());
    let last = last_line(&output);
    assert!(last.ends_with(" operations, 0 kills, 0 unknown, 0 lost: linearizable"), "{output:?}");
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains(" s: "), "it says every second what it does");

    // Every operation of the history is a line.
    let history = std::fs::read_to_string(&file).unwrap();
    let count: String = last.split(' ').next().unwrap().replace(',', "");
    assert_eq!(history.lines().count().to_string(), count);
    let mut last_call = 0;
    for line in history.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let [call, returned] = ["call", "return"].map(|field| line[field].as_u64().unwrap());
        assert!(call > last_call && returned > call, "{line}");
        last_call = call;
    }

    // It does not change what others have written.
    assert_refused(&torture(&cluster, &["--seconds", "1"]), "the index is not empty");
    cluster.end(Signal::TERM);
}

#[test]
fn byte_strings_and_lsm_trees_are_linearizable_too() {
    let mut cluster = small(&["--keys", "bytes", "--index", "dlsm", "--boundaries", "m"]);
    let output = torture(&cluster, &["--seconds", "2", "--clients", "4", "--stop", "compute"]);
    let last = last_line(&output);
    assert!(last.ends_with(" 0 lost: linearizable"), "{output:?}");
    assert_eq!(output.status.code(), Some(0));
    cluster.end(Signal::TERM);
}

#[test]
fn what_cannot_be_tortured_is_refused() {
    let none = farleaf(&["torture", "--dir", "/nonexistent", "--seconds", "1"]);
    assert_refused(&none, "/nonexistent");
    let cluster = small(&[]);
    let without = torture(&cluster, &["--seconds", "1", "--kill", "compute"]);
    assert_refused(&without, "started without --restart");
    assert_refused(&torture(&cluster, &["--seconds", "0"]), "--seconds");
    assert_refused(&torture(&cluster, &["--seconds", "1", "--kill", "disk"]), "compute or memory");
}
