//! The command `farleaf-lab` as used by scripts and people: exit codes, one line per error, valid
//! JSON.

#[path = "../../command-line/tests/program/mod.rs"]
mod program;

use program::{Program, TestFile, text};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

const LAB: Program = Program(env!("CARGO_BIN_EXE_farleaf-lab"));

fn lab(arguments: &[&str]) -> Output {
    LAB.run(arguments)
}

fn error(code: i32, arguments: &[&str]) -> String {
    LAB.error(code, arguments)
}

fn json(arguments: &[&str]) -> Value {
    let output = lab(arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const STRINGS: [&str; 7] = ["bench", "--index", "dex", "--fabric", "sim", "--key-form", "ycsb"];
const SMALL: [&str; 5] = ["bench", "--keys", "10k", "--operations", "5k"];

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL, more].concat()
}

/// Without an RDMA device or another requirement, one line names what is missing.
#[test]
fn verbs_without_a_device_end_with_one_line() {
    let devices = std::fs::read_dir("/sys/class/infiniband");
    if devices.is_ok_and(|mut devices| devices.next().is_some()) {
        return;
    }
    let line = error(1, &small(&["--fabric", "verbs"]));
    assert!(line.starts_with("error: no RDMA: "), "{line}");
}

#[test]
fn bad_values_end_with_one_line_and_code_2() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "a command is missing"),
        (&["bogus"], "unrecognized subcommand 'bogus'"),
        (&["demo"], "unrecognized subcommand 'demo'"),
        (&["bench", "--bogus"], "unexpected argument '--bogus'"),
        (&["bench", "--index", "b-tree"], "[possible values: coarse"),
        (&["bench", "--workload", "ycsb-z"], "expected one of read-only,"),
        (&["bench", "--distribution", "zipf:1"], "expected `uniform`, `zipfian:THETA`"),
        (&["bench", "--distribution", "zipfian:-1"], "a number from 0 to 10"),
        (&["bench", "--keys", "0"], "must be at least 1"),
        (&["bench", "--keys", "1e6"], "500_000, 500k, 20M, 1G or 1T"),
        (&["bench", "--keys", "99999999999G"], "expected a whole number"),
        (&["bench", "--keys", "1000000000000000"], "is out of range"),
        (&["bench", "--operations", "0"], "must be at least 1"),
        (&["bench", "--seconds", "0"], "from 0.000001 to 86400"),
        (&["bench", "--seconds", "1", "--operations", "5"], "cannot be used with"),
        (&["bench", "--fill", "0.05"], "from 0.1 to 1.0"),
        (&["bench", "--fill", "1.1"], "from 0.1 to 1.0"),
        (&["bench", "--threads", "0"], "0 is not in 1..=1024"),
        (&["bench", "--threads", "2k"], "2k is not in 1..=1024"),
        (&["bench", "--seed", "18446744073709551615"], "is not in 0..=9007199254740992"),
        (&["bench", "--threads", "1000", "--compute-servers", "9"], "at most 1024 on the local"),
        (&["bench", "--memory-servers", "0"], "0 is not in 1..=1024"),
        (&["bench", "--placement", "80,12,5"], "has 3 weights, expected 4"),
        (&["bench", "--placement", "80,0,5,3"], "must be at least 1"),
        (
            &["bench", "--placement", "1,1,1,1", "--set", "coarse.partitioning=hash"],
            "--placement needs coarse.partitioning=range",
        ),
        (&["bench", "--cache-bytes", "1Mi", "--cache-percent", "8"], "cannot be used with"),
        (&["bench", "--cache-percent", "10001"], "from 0 to 10000"),
        (
            &["bench", "--index", "dex", "--set", "dex.write_back=bytes"],
            "--set dex.write_back=bytes: `write_back` must be words or pages, not `bytes`",
        ),
        (&["bench", "--own-keys", "--spare-compute-servers", "1"], "needs --seconds"),
        (&["bench", "--pool-bytes", "64KiB"], "64Ki"),
        (&["bench", "--pool-bytes", "4096"], "is out of range"),
        (&["bench", "--server-cores", "2"], "needs --fabric sim"),
        (
            &["bench", "--set", "chime.hot_bytes=1k"],
            "--set chime.hot_bytes=1000 needs --index chime",
        ),
        (
            &["bench", "--index", "chime", "--set", "chime.hot_bytes=2k", "--cache-bytes", "1k"],
            "at most the cache of a compute server, 1000 bytes",
        ),
        (
            &[
                "bench",
                "--index",
                "sherman",
                "--set",
                "sherman.by_versions=true",
                "--key-form",
                "urls",
            ],
            "needs keys that are numbers",
        ),
        (&["bench", "--fabric", "sim", "--server-threads", "2"], "needs --fabric local"),
        (
            &["bench", "--fabric", "verbs", "--server-threads", "0"],
            "at least 1 on the verbs fabric",
        ),
        (&["bench", "--fabric", "verbs", "--server-cores", "2"], "needs --fabric sim"),
        (
            &["bench", "--fabric", "verbs", "--network-latency-ns", "5"],
            "needs --fabric local or sim",
        ),
        (&["bench", "--network-latency-ns", "2G"], "at most 1G"),
        (&["bench", "--trace", "x.csv", "--keys", "5"], "cannot be used with"),
        (&["bench", "--key-form", "words"], "expected u64, ycsb, dlsm, urls or file:PATH"),
        (&["bench", "--value-bytes", "100"], "need byte strings: --key-form"),
        (&["bench", "--page-bytes", "3k"], "expected 1k, 2k or 4k"),
        (&[&STRINGS[..], &["--value-bytes", "400-100"]].concat(), "or a range such as 100-400"),
        (&[&STRINGS[..], &["--value-bytes", "4"]].concat(), "must have at least 8 bytes"),
        (&[&STRINGS[..], &["--value-bytes", "900"]].concat(), "the value has 900 bytes"),
        (&[&STRINGS[..], &["--own-keys"]].concat(), "cannot be combined with --own-keys"),
        (&["bench", "--trace", "x.csv", "--threads", "2"], "by one client"),
        (&["bench", "--trace-op-column", "op"], "not provided: --trace"),
        (&["bench", "--interval-ms", "5"], "not provided: --timeline"),
        (&["bench", "--timeline", "x", "--interval-ms", "0"], "from 0.000001 to 3600000"),
        (
            &["bench", "--timeline", "x", "--seconds", "1", "--interval-ms", "0.1"],
            "makes more than 2000 intervals of 1 seconds: at least 0.5",
        ),
        (
            &["bench", "--timeline", "x", "--seconds", "1", "--interval-ms", "1001"],
            "is longer than the run of 1000 ms",
        ),
        (&["bench", "--shift-hotspot-at", "half"], "such as 50%, or a number of seconds"),
        (&["bench", "--shift-hotspot-at", "100%"], "such as 50%, or a number of seconds"),
        (
            &["bench", "--shift-hotspot-at", "2", "--seconds", "2"],
            "after the end of the run of 2 seconds",
        ),
        (
            &["bench", "--shift-hotspot-at", "50%", "--distribution", "uniform"],
            "uniform has no hotspot",
        ),
        (&["bench", "--shift-hotspot-at", "50%", "--workload", "ycsb-d"], "latest:0.99 has no"),
        (&["bench", "--shift-hotspot-at", "50%", "--shift-hotspot-by", "0"], "above 0 and below"),
        (&["bench", "--shift-hotspot-by", "25"], "not provided: --shift-hotspot-at"),
        (&["bench", "--trace", "x.csv", "--timeline", "x"], "cannot be used with"),
        (&["sim", "--scenario", "nope"], "scenario nope"),
        (&["sim", "--count", "0"], "must be at least 1"),
    ];
    for (arguments, expected) in cases {
        let error = error(2, arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn failures_on_the_way_end_with_code_1() {
    assert!(error(1, &small(&["--json", "/nonexistent/x.json"])).contains("cannot write"));
    let file = TestFile::new("no-folder", b"");
    assert!(error(1, &small(&["--timeline", file.path()])).contains("cannot make the folder"));
    let tiny = ["bench", "--keys", "1M", "--pool-bytes", "4Mi"];
    assert!(error(1, &tiny).contains("has no memory left"));
}

#[test]
fn bad_input_files_end_with_code_2() {
    let absent = error(2, &["bench", "--trace", "/nonexistent/trace.csv"]);
    assert_eq!(absent.matches("No such file").count(), 1, "said once: {absent}");
    assert!(error(2, &["sim", "--scenario", "/nonexistent/x.toml"]).contains("No such file"));

    let file = TestFile::new("bad-trace.csv", b"op,lbn\n28,1\n99,2\n");
    assert!(error(2, &["bench", "--trace", file.path()]).contains("line 3: column `op` is `99`"));
    let column = ["bench", "--trace", file.path(), "--trace-key-column", "block"];
    assert!(error(2, &column).contains("no column `block`; its columns are: op, lbn"));
}

#[test]
fn json_alone_goes_to_stdout() {
    let arguments = small(&["--workload", "ycsb-f", "--json", "-", "--cache-percent", "8"]);
    let output = lab(&arguments);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["index"], "coarse");
    assert_eq!(report["workload"], "ycsb-f");
    assert_eq!(report["distribution"], "zipfian:0.99");
    assert_eq!(report["fabric"], "local");
    assert_eq!((&report["keys"], &report["operations"]), (&10_000.into(), &5_000.into()));
    assert_eq!((&report["errors"], &report["misses"]), (&0.into(), &0.into()));
    let rpcs = report["per_operation"]["rpcs"].as_f64().unwrap();
    assert!((1.4..1.6).contains(&rpcs), "half of the operations are two: {rpcs}");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("has no cache") && stderr.contains("ycsb-f"), "{stderr}");
}

#[test]
fn json_goes_to_a_file_and_the_table_to_stdout() {
    let file = TestFile::new("report.json", b"");
    let output = lab(&small(&["--json", file.path(), "--placement", "80,12,5,3"]));
    assert!(text(&output.stdout).contains("coarse on read-only (zipfian:0.99), 10,000 keys"));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    assert_eq!(report["placement"], serde_json::json!([80, 12, 5, 3]));
}

#[test]
fn the_single_machine_costs_nothing_on_the_network() {
    for fabric in ["local", "sim"] {
        let arguments = small(&["--index", "local", "--workload", "ycsb-a", "--fabric", fabric]);
        let report = json(&[&arguments[..], &["--json", "-"]].concat());
        assert_eq!(report["index"], "local");
        assert_eq!((&report["errors"], &report["misses"]), (&0.into(), &0.into()));
        let costs = report["per_operation"].as_object().unwrap();
        assert!(costs.values().all(|cost| *cost == 0.0), "{costs:?}");
        assert!(report["memory"]["pool_bytes_allocated"].as_u64().unwrap() > 160_000);
    }
    let tiny = ["bench", "--index", "local", "--keys", "1M", "--pool-bytes", "4Mi"];
    assert!(error(1, &tiny).contains("has no memory left"), "the pools of four are too small");
}

#[test]
fn every_design_runs_every_kind_of_workload() {
    let designs = [
        "coarse",
        "fine",
        "hybrid",
        "sherman",
        "p-sherman",
        "chime",
        "smart",
        "p-smart",
        "dlsm",
        "dex",
        "local",
    ];
    let workloads = [
        ("read-only", "5k"),
        ("read-intensive", "5k"),
        ("write-intensive", "5k"),
        ("insert-intensive", "5k"),
        ("scan-intensive", "500"),
    ];
    let forms: [&[&str]; 2] = [&[], &["--key-form", "ycsb", "--value-bytes", "8-60"]];
    for index in designs {
        for (workload, operations) in workloads {
            for form in forms {
                let what = ["bench", "--index", index, "--workload", workload];
                let size =
                    ["--keys", "5k", "--fill", "0.7", "--cache-percent", "33", "--operations"];
                let report = json(&[&what[..], &size, &[operations, "--json", "-"], form].concat());
                let counts = (&report["errors"], &report["misses"]);
                assert_eq!(counts, (&0.into(), &0.into()), "{report}");
                assert_eq!(report["index"], index);
            }
        }
    }
}

#[test]
fn every_design_runs_on_byte_strings() {
    let small = ["--keys", "4k", "--operations", "2k", "--json", "-", "--compute-servers", "2"];
    for index in
        ["coarse", "fine", "hybrid", "sherman", "p-sherman", "chime", "dlsm", "dex", "local"]
    {
        for (fabric, page, values, workload) in [
            ("local", "1k", "8-100", "ycsb-a"),
            ("sim", "1k", "8-100", "ycsb-e"),
            ("local", "2k", "200", "ycsb-d"),
            ("sim", "4k", "900", "ycsb-b"),
        ] {
            let what = ["bench", "--index", index, "--fabric", fabric, "--workload", workload];
            let form = ["--key-form", "ycsb", "--value-bytes", values, "--page-bytes", page];
            let report = json(&[&what[..], &form, &small].concat());
            assert_eq!((&report["errors"], &report["misses"]), (&0.into(), &0.into()), "{report}");
            assert_eq!((&report["index"], &report["fabric"]), (&index.into(), &fabric.into()));
            let bytes = (report["key_bytes"].as_f64(), report["value_bytes"].as_f64());
            let expected = if values == "8-100" { 54.0 } else { values.parse().unwrap() };
            assert_eq!(bytes, (Some(23.0), Some(expected)));
            let pool = report["memory"]["pool_bytes_per_key"].as_f64().unwrap();
            assert!(pool > expected, "the values are in the pages: {pool}: {report}");
        }
    }
}

/// What was asked for, and how often blocks were read.
#[test]
fn the_report_has_the_settings_and_counters_of_value_blocks() {
    let size = ["--keys", "4k", "--operations", "2k", "--json", "-"];
    let read = ["--workload", "read-only", "--compute-servers", "2"];
    let report = |more: &[&str]| json(&[&STRINGS[..], &size, &read, more].concat());
    let values = ["--value-bytes", "300", "--inline-bytes", "100"];
    let cached = ["--cache-percent", "40", "--block-cache-percent", "60"];
    let dex = report(&[&values[..], &cached].concat());
    let blocks = &dex["blocks"];
    assert_eq!((&blocks["inline_bytes"], &blocks["cache_percent"]), (&100.into(), &60.into()));
    let each = dex["cache_bytes_per_compute_server"].as_u64().unwrap();
    assert_eq!(blocks["cache_bytes"].as_u64(), Some(each / 100 * 60 * 2));
    let number = |name: &str| blocks[name].as_f64().unwrap();
    let (hits, misses) = (number("hits"), number("misses"));
    assert!((hits + misses - 1.0).abs() < 1e-9, "each lookup needs a block: {blocks}");
    assert!(hits > 0.1 && misses > 0.1 && (number("hit_ratio") - hits).abs() < 1e-9, "{blocks}");

    let uncached = report(&[&values[..], &["--block-cache-percent", "0"]].concat());
    let blocks = &uncached["blocks"];
    assert_eq!((&blocks["cache_percent"], &blocks["cache_bytes"]), (&0.into(), &0.into()));
    assert_eq!((&blocks["hits"], &blocks["misses"]), (&0.0.into(), &1.0.into()));
    assert!(report(&["--value-bytes", "100"]).get("blocks").is_none());
}

#[test]
fn designs_without_value_blocks_say_so() {
    let designs = ["coarse", "fine", "hybrid", "sherman", "p-sherman", "chime", "smart", "p-smart"];
    for index in designs.into_iter().chain(["dlsm", "local"]) {
        let blocks = ["--key-form", "ycsb", "--inline-bytes", "100"];
        let line = error(2, &[&["bench", "--index", index][..], &blocks].concat());
        assert!(line.contains(&format!("{index} has no values in blocks")), "{line}");
    }
}

#[test]
fn dex_can_be_run_as_in_its_paper() {
    let base =
        ["bench", "--index", "dex", "--compute-servers", "2", "--threads", "1", "--json", "-"];
    let run = |workload: &str, more: &[&str]| {
        let size = ["--workload", workload, "--keys", "40k", "--operations", "20k"];
        let report = json(&[&base, &size[..], more].concat());
        assert_eq!((&report["errors"], &report["misses"]), (&0.into(), &0.into()), "{report}");
        report
    };
    let harness = ["--dense", "--keep-values", "--scan-intervals", "--own-keys", "--fill", "0.5"];
    let paper = ["--set", "dex.admission=coin:0.1,dex.victims=random,dex.write_back=pages"];
    let small = [&harness[..], &["--cache-percent", "16"]].concat();
    let written = |report: &Value| {
        let cost = &report["per_operation"];
        cost["bytes_written"].as_f64().unwrap() / cost["writes"].as_f64().unwrap()
    };
    let pages = written(&run("write-intensive", &[&small[..], &paper].concat()));
    assert_eq!(pages.round(), 1016.0, "all of a page but its first word");
    assert!(written(&run("write-intensive", &small)) < 200.0);
    let all = run(
        "read-only",
        &[&harness[..], &["--cache-percent", "400", "--warm-up", "400k"]].concat(),
    );
    assert!(all["per_operation"]["reads"].as_f64().unwrap() < 0.001, "{all}");
    // Intervals of dense keys contain as many records as keys, except at the ends of the key space.
    let scans = run("scan-only", &[&small[..], &paper].concat());
    let leaves = ["leaf_hits", "leaf_misses"].map(|name| scans["cache"][name].as_f64().unwrap());
    // 100 records take 4.3 leaves of 30 records, and fewer at the end of the key space.
    assert!((4.0..4.4).contains(&leaves.iter().sum::<f64>()), "{scans}");
    let upserts = run("insert-intensive", &[&small[..], &["--upserts-among-more", "20k"]].concat());
    assert_eq!(upserts["placement_level"], 0, "{upserts}");
}

#[test]
fn the_same_seed_on_sim_gives_the_same_output() {
    let arguments = |seed| {
        let more = ["--fabric", "sim", "--compute-servers", "2", "--json", "-", "--seed", seed];
        small(&[&more[..], &["--workload", "insert-intensive"]].concat()).join(" ")
    };
    let run = |seed| {
        let arguments = arguments(seed);
        let output = lab(&arguments.split(' ').collect::<Vec<_>>());
        assert!(output.status.success());
        (text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn simulated_settings_matter() {
    let slow = json(&small(&["--fabric", "sim", "--network-latency-ns", "50k", "--json", "-"]));
    assert!(slow["latency_ns"]["p50"].as_u64().unwrap() > 50_000);
    let crowd = ["--fabric", "sim", "--threads", "64", "--seconds", "0.001", "--json", "-"];
    let throughput = |cores| {
        let arguments = [&["bench", "--keys", "10k", "--server-cores", cores], &crowd[..]].concat();
        let report = json(&arguments);
        let seconds = report["seconds"].as_f64().unwrap();
        assert!((0.001..0.0011).contains(&seconds), "virtual seconds: {seconds}");
        report["throughput_ops_per_s"].as_f64().unwrap()
    };
    assert!(throughput("4") > 2.0 * throughput("1"));
}

/// With one queue of cooling frames behind one lock, each eviction and each node that becomes hot
/// again takes a turn of one microsecond.
#[test]
fn threads_take_turns_at_the_queue_of_cooling_frames() {
    let run = |cooling: &str, model: &[&str]| {
        let dex = format!(
            "--index dex --fabric sim --threads 8 --cache-percent 10 --workload read-intensive \
             --json - --set dex.admission=hot,dex.cooling={cooling}"
        );
        let words = dex.split(' ');
        let report = json(&small(&words.chain(model.iter().copied()).collect::<Vec<_>>()));
        let figure = |value: &Value| value.as_f64().unwrap();
        let turns = figure(&report["cache"]["evictions"]) + figure(&report["cache"]["reheats"]);
        let throughput = figure(&report["throughput_ops_per_s"]);
        (throughput, turns * throughput)
    };
    let turns_of_1_us = ["--model", "cooling-queue=1k"];
    assert_eq!(run("map", &turns_of_1_us), run("map", &[]), "the map has no lock for all");
    let (free, free_turns) = run("queue", &[]);
    let (bound, turns) = run("queue", &turns_of_1_us);
    assert!(bound < free && free_turns > 1.5e6, "{bound} {free} {free_turns}");
    assert!((0.8e6..=1e6).contains(&turns), "{turns} turns of 1 µs in a second");
    let (_, turns) = run("queue", &["--model", "cooling-queue=1k,numa=3"]);
    assert!((0.3e6..0.6e6).contains(&turns), "{turns} turns of 1 to 3 µs in a second");
}

#[test]
fn a_timeline_is_shown_and_written() {
    let folder = std::env::temp_dir().join(format!("farleaf-{}-timeline", std::process::id()));
    let out = folder.to_str().unwrap();
    let shift = ["--clustered", "--shift-hotspot-at", "50%", "--timeline", out];
    let common = ["bench", "--keys", "10k", "--index", "dex", "--compute-servers", "2"];
    for (fabric, amount) in [("sim", "0.004"), ("local", "0.1")] {
        let arguments = [&common[..], &["--fabric", fabric, "--seconds", amount], &shift].concat();
        let output = lab(&[&arguments[..], &["--json", "-"]].concat());
        let shown = text(&output.stderr);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        // In real time, a run on a loaded machine may end late.
        let intervals = if fabric == "sim" { "60 intervals of 66.7 µs" } else { "intervals of" };
        for expected in ["operations/s over time", intervals, "hotspot shifts", "1 │", "█"] {
            assert!(shown.contains(expected), "{expected}: {shown}");
        }
        let operations = &report["timeline"]["operations"];
        let sum = |counts: &Value| {
            counts.as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum::<u64>()
        };
        assert_eq!(sum(operations), report["operations"].as_u64().unwrap());
        let mark = &report["timeline"]["marks"][0];
        assert_eq!(mark["at_ns"], report["hotspot_shift"]["at_ns"]);
        let csv = std::fs::read_to_string(folder.join("timeline.csv")).unwrap();
        let counts = csv.lines().skip(1).map(|line| {
            let count = line.split(',').nth(2).unwrap();
            count.parse::<u64>().unwrap()
        });
        assert_eq!(counts.sum::<u64>(), sum(operations), "{csv}");
        assert!(csv.contains(",marks\n") && csv.contains(" ms: hotspot shifts\""), "{csv}");
        let svg = std::fs::read_to_string(folder.join("timeline.svg")).unwrap();
        for expected in ["<svg", "hotspot shifts", "compute server 1", "time, ms"] {
            assert!(svg.contains(expected), "{expected}: {svg}");
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_timeline_by_operations_is_the_same_every_time() {
    let folder = std::env::temp_dir().join(format!("farleaf-{}-again", std::process::id()));
    let watched = ["--fabric", "sim", "--timeline", folder.to_str().unwrap(), "--json", "-"];
    let run = |more: &[&str]| json(&[&small(&watched)[..], more].concat());
    let intervals = |report: &Value| report["timeline"]["operations"].as_array().unwrap().len();
    let first = run(&[]);
    assert_eq!(first, run(&[]));
    assert!((30..=60).contains(&intervals(&first)), "{first}");
    let given = run(&["--interval-ms", "0.5"]);
    assert_eq!(given["timeline"]["interval_ns"], 500_000);
    assert_eq!(given["seconds"], first["seconds"], "watching takes no virtual time");
    assert!(json(&small(&["--json", "-"])).get("timeline").is_none());
    std::fs::remove_dir_all(folder).unwrap();

    let late = lab(&small(&["--fabric", "sim", "--shift-hotspot-at", "3000"]));
    assert!(text(&late.stderr).contains("before the hotspot would have shifted"));
}

#[test]
fn a_trace_is_replayed_alike_on_every_fabric() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/block-io.csv.gz");
    let Some(path) = path.to_str().filter(|path| Path::new(path).exists()) else {
        println!("skipped: the trace is not there");
        return;
    };
    for partitioning in ["range", "hash"] {
        let replay = |fabric| {
            let set = format!("coarse.partitioning={partitioning}");
            let arguments = ["bench", "--trace", path, "--set", &set, "--json", "-"];
            json(&[&arguments[..], &["--fabric", fabric]].concat())
        };
        let (local, sim) = (replay("local"), replay("sim"));
        for report in [&local, &sim] {
            assert_eq!(report["workload"], "trace");
            assert_eq!((&report["operations"], &report["errors"]), (&113_872.into(), &0.into()));
            assert_eq!(report["threads"], 1);
        }
        assert_eq!(local["keys"], sim["keys"]);
        assert_eq!(local["misses"], sim["misses"]);
        assert_eq!(local["per_operation"], sim["per_operation"]);
    }
}

/// A benchmark of which a quarter of the operations had failed ended with exit code 0.
#[test]
fn a_benchmark_whose_operations_fail_ends_with_code_1() {
    let words = ["bench", "--index", "coarse", "--keys", "100k", "--memory-servers", "1"];
    let more = ["--pool-bytes", "4Mi", "--workload", "insert-intensive", "--operations", "500k"];
    let output = lab(&[&words[..], &more].concat());
    let (table, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    let errors: Vec<&str> = said.lines().collect();
    assert_eq!(errors.len(), 1, "{said}");
    assert!(errors[0].starts_with("error: coarse on insert-intensive: "), "{said}");
    assert!(
        errors[0].contains("of 500,000 operations failed") && errors[0].contains("no memory left")
    );
    assert!(table.contains("500000 operations") || table.contains("500,000 operations"), "{table}");
}

#[test]
fn help_and_version_go_to_stdout() {
    for arguments in [&["--help"][..], &["--version"], &["bench", "--help"], &["sim", "-h"]] {
        let output = lab(arguments);
        assert!(output.status.success() && !output.stdout.is_empty() && output.stderr.is_empty());
    }
    let help = text(&lab(&["bench", "--help"]).stdout);
    for expected in [
        "--timeline",
        "--shift-hotspot-at",
        "--cache-percent",
        "zipfian:THETA",
        "Exit codes",
        "Examples",
        "nanoseconds",
    ] {
        assert!(help.contains(expected), "{expected}");
    }
}

#[test]
fn a_scenario_that_fails_ends_with_code_1() {
    let name = "canary-skipped-validation";
    let canary = lab(&["sim", "--scenario", name, "--count", "50"]);
    assert_eq!(canary.status.code(), Some(1));
    assert!(text(&canary.stdout).contains("replay: farleaf-lab sim --scenario "));
    let random = lab(&["sim", "--random", "3", "--kind", "fine-slow", "--seed", "5"]);
    assert!(random.status.success() && text(&random.stdout).lines().count() == 3);
    let unknown = lab(&["sim", "--mutants", "no_such_bug"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("no_such_bug"));
    assert!(lab(&["sim", "--scenario", "coarse-hot-keys"]).status.success());
}
