//! The command `farleaf` as used by scripts and people: exit codes, one line per error, valid JSON.

#[path = "../../command-line/tests/program/mod.rs"]
mod program;

use program::{Program, TestFile, text};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

const FARLEAF: Program = Program(env!("CARGO_BIN_EXE_farleaf"));

fn farleaf(arguments: &[&str]) -> Output {
    FARLEAF.run(arguments)
}

fn error(code: i32, arguments: &[&str]) -> String {
    FARLEAF.error(code, arguments)
}

#[test]
fn bad_values_end_with_one_line_and_code_2() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "a command is missing"),
        (&["bogus"], "unrecognized subcommand 'bogus'"),
        (&["demo", "--key-column", "k"], "not provided: --input"),
        (&["demo", "--value-bytes", "9"], "needs byte strings: --key-form"),
        (&["demo", "--key-form", "ycsb", "--input", "x.csv"], "cannot be used with"),
        (&["demo", "--key-form", "dlsm", "--value-bytes", "5"], "must have at least 8 bytes"),
        (&["demo", "--input", "x.csv", "--key-column", "k", "--keys", "5"], "cannot be used with"),
        (&["demo", "--value-column", "v"], "not provided: "),
        (&["demo", "--keys", "1000000000000000"], "is out of range"),
    ];
    for (arguments, expected) in cases {
        let error = error(2, arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

/// One program had all commands.
#[test]
fn a_command_that_has_moved_names_its_program() {
    for command in ["bench", "reproduce", "figures", "ablation", "sim"] {
        let program = format!("run `farleaf-lab {command}`");
        for more in [&[][..], &["--help"], &["--scenario", "all"]] {
            let line = error(2, &[&[command], more].concat());
            assert!(line.ends_with(&program), "{line}");
        }
    }
}

#[test]
fn bad_input_files_end_with_code_2() {
    let file = TestFile::new("bad-input.csv", b"id,amount\n1,2\nx,4\n");
    let input = ["demo", "--input", file.path(), "--key-column", "id"];
    assert!(error(2, &input).contains("line 3: column `id` is `x`"));
    let file = TestFile::new("cut.csv.gz", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0]);
    let input = ["demo", "--input", file.path(), "--key-column", "id"];
    assert!(!error(2, &input).is_empty());
}

/// An error printed what it quoted of a file, a name or an argument as it was: sequences that clear
/// a terminal or change its title.
#[test]
fn errors_escape_the_control_characters_that_they_quote() {
    let harm = "\x1b]0;title\x07\x1b[2J";
    let field = TestFile::new("field.csv", format!("1,2\n3,{harm}\n").as_bytes());
    let header = TestFile::new("header.csv", format!("{harm},b,c\n").as_bytes());
    let name = TestFile::new(&format!("{harm}.csv"), b"1,2\nx,2\n");
    // The parser of the command line leaves such sequences out of what it quotes.
    let quoted: [&[&str]; 6] = [
        &["demo", "--input", field.path()],
        &["demo", "--input", header.path()],
        &["demo", "--input", header.path(), "--key-column", harm, "--value-column", "x"],
        &["demo", "--input", name.path()],
        &["status", "--dir", harm],
        &["memory-server", "--config", harm],
    ];
    let parsed: [&[&str]; 3] = [&["demo", "--keys", harm], &["demo", harm], &[harm]];
    for arguments in quoted.iter().chain(&parsed) {
        let said = error(2, arguments);
        assert!(!said.contains(char::is_control), "{arguments:?}: {said:?}");
        assert!(said.contains("\\x1b") || parsed.contains(arguments), "{arguments:?}: {said}");
    }
    // The demo, which succeeds here, must not print the control characters of its file's name
    // either.
    let nothing = TestFile::new(&format!("{harm}-nothing.csv"), b"");
    let output = farleaf(&["demo", "--input", nothing.path()]);
    assert!(output.status.success() && !text(&output.stdout).contains('\x1b'), "{output:?}");
}

/// Whether this is a line of the demo about its work so far, such as `3 s: dex: load, 5 of 9`.
fn is_heartbeat(line: &str) -> bool {
    line.split_once(" s: ").is_some_and(|(seconds, _)| seconds.parse::<u64>().is_ok())
}

/// The demo was silent for a minute where no terminal is.
#[test]
fn the_demo_tells_what_it_is_doing() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["demo", "--keys", "1M"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It takes seconds, whatever the machine.
    let first = BufReader::new(child.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_heartbeat(&first), "{first}");
}

#[test]
fn the_demo_shows_every_workload() {
    let output = farleaf(&["demo", "--keys", "20k"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    for expected in ["read-only", "scan-intensive", "get(", "scan(", "of one operation"] {
        assert!(stdout.contains(expected), "{expected}: {stdout}");
    }
    let table = stdout.lines().filter(|line| line.starts_with(['│', '┌', '╞', '└']));
    assert!(table.map(|line| line.chars().count()).max().unwrap() <= 100, "{stdout}");
    assert!(!stdout.contains("an operation cost"), "the table is not said again: {stdout}");
    // No bars where no terminal is, but a line a second.
    assert!(text(&output.stderr).lines().all(is_heartbeat), "{}", text(&output.stderr));
}

#[test]
fn the_demo_shows_byte_strings() {
    let file = TestFile::new("demo.json", b"");
    let flags = ["--key-form", "ycsb", "--value-bytes", "8-60", "--json", file.path()];
    let output = farleaf(&[&["demo", "--keys", "5k"], &flags[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    for expected in ["get(user", "scan(user", "dlsm", "dex", "local"] {
        assert!(stdout.contains(expected), "{expected}: {stdout}");
    }
    let reports: Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    let reports = reports.as_array().unwrap();
    assert_eq!(reports.len(), 15, "5 workloads on 3 designs");
    for report in reports {
        assert_eq!((&report["errors"], &report["misses"]), (&0.into(), &0.into()), "{report}");
        assert_eq!((&report["key_form"], &report["key_bytes"]), (&"ycsb".into(), &23.0.into()));
    }
}

#[test]
fn the_demo_loads_a_file() {
    let mut rows = String::from("amount,id\n");
    for row in 0..3_000_u64 {
        rows.push_str(&format!("{row},{}\n", (row * 7919) % 2_000));
    }
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(rows.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    for (name, content) in [("input.csv", rows.as_bytes()), ("input.csv.gz", &packed)] {
        let file = TestFile::new(name, content);
        let columns = ["--key-column", "id", "--value-column", "amount", "--json", "-"];
        let output = farleaf(&[&["demo", "--input", file.path()], &columns[..]].concat());
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert!(stderr.contains("2,000 records") && stderr.contains("1,000 more rows"), "{stderr}");
        // 1,000 is 7919 * 1000 modulo 2,000: it occurs first in row 1,000 and not again before row
        // 3,000.
        assert!(stderr.contains("get(1000) = 1000"), "{stderr}");
        let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
        let reports = reports.as_array().unwrap();
        assert_eq!(reports.len() % 5, 0);
        assert!(reports.iter().all(|report| report["errors"] == 0 && report["misses"] == 0));
    }
}

#[test]
fn help_and_version_go_to_stdout() {
    for arguments in [&["--help"][..], &["--version"], &["demo", "-h"], &["cluster", "--help"]] {
        let output = farleaf(arguments);
        assert!(output.status.success() && !output.stdout.is_empty() && output.stderr.is_empty());
    }
}

#[test]
fn a_reader_that_leaves_is_no_crash() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["demo", "--keys", "1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.lines().all(is_heartbeat), "{said}");
}
