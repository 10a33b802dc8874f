//! `bench --trace` as people use it: files in public forms, from stdin, on a loaded index.
//!
//! A trace of lookups was replayed on an empty index, and reported a hit ratio of 0.9999995 without
//! a word about the records that were not there. A trace without operations was refused.

use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn path(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/tests/traces");
    Path::new(folder).join(name).to_str().unwrap().to_owned()
}

fn replay(trace: &str, more: &[&str], stdin: Stdio) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farleaf-lab"))
        .args(["bench", "--fabric", "sim", "--index", "dex", "--json", "-", "--trace", trace])
        .args(more)
        .stdin(stdin)
        .output()
        .unwrap()
}

/// The report of a replay, and what it said besides.
fn report(name: &str, more: &[&str]) -> (Value, String) {
    let output = replay(&path(name), more, Stdio::null());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{name}: {said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

fn error(name: &str, more: &[&str]) -> String {
    let output = replay(&path(name), more, Stdio::null());
    assert_eq!(output.status.code(), Some(2), "{name} {more:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn lookups_find_the_keys_of_a_trace_unless_it_starts_empty() {
    let (loaded, said) = report("reads.csv", &[]);
    assert_eq!((&loaded["lookups"], &loaded["found_ratio"]), (&3.into(), &1.0.into()));
    assert_eq!((&loaded["keys"], &loaded["trace_start"]), (&2.into(), &"loaded".into()));
    assert!(said.contains("the first row of the trace is its header"), "{said}");
    assert!(said.contains("no column `op`: all its requests are lookups"), "{said}");
    assert!(said.contains("100.00 % of 3 lookups found a record"), "{said}");
    assert!(!said.contains("warning"), "{said}");

    let (empty, said) = report("reads.csv", &["--trace-start", "empty"]);
    assert_eq!((&empty["lookups"], &empty["found_ratio"]), (&3.into(), &0.0.into()));
    assert_eq!((&empty["keys"], &empty["misses"]), (&0.into(), &3.into()));
    assert!(said.contains("warning: 0.00 % of 3 lookups found a record"), "{said}");
    assert!(said.contains("--trace-start loaded"), "{said}");
}

/// The same fault without a trace.
#[test]
fn a_workload_on_an_empty_index_is_warned_of() {
    let output = Command::new(env!("CARGO_BIN_EXE_farleaf-lab"))
        .args(["bench", "--fabric", "sim", "--keys", "1k", "--operations", "1k", "--load", "none"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("warning: 0.00 % of 1,000 lookups"), "{said}");
}

#[test]
fn forms_have_names_and_parts() {
    for (name, form, requests, keys) in [
        ("msr.csv", "msr", 4, 2),
        ("alibaba.csv", "alibaba", 4, 3),
        ("tencent.csv", "tencent", 4, 3),
        ("twitter.csv.zst", "twitter", 7, 3),
        ("meta-kvcache-2024.csv", "meta-kvcache", 5, 1),
        ("wikimedia.tsv.gz", "wikimedia", 3, 2),
        ("ibm.txt", "ibm", 5, 2),
        ("oracle-general.zst", "oracle-general", 3, 2),
        ("libcachesim.csv", "libcachesim-csv", 3, 2),
        ("go-ycsb.txt", "ycsb", 4, 2),
    ] {
        for more in [&[][..], &["--hash-keys"]] {
            let (report, _) = report(name, &[&["--trace-format", form], more].concat());
            let found = (&report["operations"], &report["keys"], &report["errors"]);
            assert_eq!(found, (&requests.into(), &keys.into(), &0.into()), "{name} {more:?}");
            let is_text = form == "twitter" && more.is_empty();
            assert_eq!(report.get("key_form").is_some(), is_text, "{name} {more:?}");
        }
    }
    let own = ["--trace-columns", "key=5,op=4,read=Read,write=Write"];
    assert_eq!(report("msr.csv", &own).0["operations"], 4);
    let old = ["--trace-key-column", "5", "--trace-op-column", "4", "--trace-read", "Read"];
    let old = [&old[..], &["--trace-write", "Write"]].concat();
    assert_eq!(report("msr.csv", &old).0["lookups"], 2);
    let (cut, said) = report("msr.csv", &[&own[..], &["--trace-requests", "3"]].concat());
    assert_eq!(cut["operations"], 3);
    assert!(said.contains("only the first 3 requests of the trace are replayed"), "{said}");
}

#[test]
fn a_trace_may_come_from_stdin() {
    let stdin = File::open(path("twitter.csv.zst")).unwrap();
    let output = replay("-", &["--trace-format", "twitter"], Stdio::from(stdin));
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["operations"], &report["key_form"]), (&7.into(), &"trace".into()));
}

#[test]
fn what_is_wrong_is_said() {
    for (name, more, expected) in [
        ("reads.csv", &["--trace-format", "csv2"][..], "invalid value 'csv2'"),
        (
            "reads.csv",
            &["--trace-columns", "key"],
            "the form of the trace: `key`: expected SETTING=VALUE",
        ),
        (
            "reads.csv",
            &["--trace-op-column", "kind"],
            "no column `kind`; its columns are: time, key",
        ),
        (
            "msr.csv",
            &["--trace-format", "alibaba"],
            "line 1: column `2` is `usr`, expected `R` for a read",
        ),
        (
            "twitter.csv.zst",
            &["--trace-format", "oracle-general"],
            "record 11: the file ends after 2 of",
        ),
        (
            "twitter.csv.zst",
            &["--trace-format", "twitter", "--value-bytes", "2000"],
            "--hash-keys makes numbers of a trace's keys",
        ),
        ("reads.csv", &["--value-bytes", "20"], "or a trace with keys that are text"),
        ("reads.csv", &["--trace-requests", "0"], "must be at least 1"),
    ] {
        let said = error(name, more);
        assert!(said.contains(expected), "{more:?}: {said}");
    }
}
