//! Runs points as separate processes, several at a time, and keeps their reports.
//!
//! Each command line has one file in the folder `points`, which appears, complete, when its process
//! has ended. An interrupted run continues with the lines that have no file. A file counts only for
//! the same line and the same version of the program.
//!
//! *Thread safety*: the workers share the queue and the results, protected by one lock.

use anyhow::{Context, anyhow};
use farleaf_bench::report::Report;
use farleaf_command_line::output::bar;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// The reports by command line.
pub(super) type ReportsByCommand = BTreeMap<String, Report>;

/// Runs every line that has no report yet, at most `jobs` at the same time.
///
/// Lines that use real threads run last and alone, so that others do not disturb them.
pub(super) fn run(
    lines: &BTreeSet<String>,
    folder: &Path,
    jobs: usize,
) -> anyhow::Result<ReportsByCommand> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let mut reports = ReportsByCommand::new();
    let mut waiting = Vec::new();
    for line in lines {
        match stored(line, folder) {
            Some(report) => drop(reports.insert(line.clone(), report)),
            None => waiting.push(line.clone()),
        }
    }
    let progress = bar("points", Some(lines.len() as u64));
    progress.inc(reports.len() as u64);
    let (real, simulated): (Vec<_>, Vec<_>) =
        waiting.into_iter().partition(|line| line.contains(" --fabric local "));
    for (waiting, jobs) in [(simulated, jobs), (real, 1)] {
        let ran = run_side_by_side(waiting, folder, jobs, &|| progress.inc(1))?;
        reports.extend(ran);
    }
    progress.finish_and_clear();
    Ok(reports)
}

fn run_side_by_side(
    mut waiting: Vec<String>,
    folder: &Path,
    jobs: usize,
    done: &(dyn Fn() + Sync),
) -> anyhow::Result<ReportsByCommand> {
    waiting.reverse();
    let workers = jobs.min(waiting.len());
    let queue = Mutex::new((waiting, Ok(ReportsByCommand::new())));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let next = match &mut *queue.lock().expect("no worker panics") {
                        (waiting, Ok(_)) => waiting.pop(),
                        // After a failure, no further line is started.
                        _ => None,
                    };
                    let Some(line) = next else { return };
                    // Read it back, so that a continued run sees the same bytes.
                    let ran = execute(&line).and_then(|report| {
                        store(&line, &report, folder)?;
                        stored(&line, folder).ok_or_else(|| anyhow!("`{line}` left no report"))
                    });
                    let (_, results) = &mut *queue.lock().expect("no worker panics");
                    match (ran, results) {
                        (Ok(report), Ok(reports)) => drop(reports.insert(line, report)),
                        (Err(error), results @ Ok(_)) => *results = Err(error),
                        (_, Err(_)) => (),
                    }
                    done();
                }
            });
        }
    });
    queue.into_inner().expect("no worker panics").1
}

/// Runs `farleaf-lab bench` as a child process.
fn execute(line: &str) -> anyhow::Result<Report> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let words = shlex::split(line).ok_or_else(|| anyhow!("cannot split `{line}`"))?;
    let output = Command::new(program)
        .args(&words[1..])
        .args(["--json", "-"])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{line}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().last().unwrap_or("it was killed");
        return Err(anyhow!("`{line}` failed: {}", last.trim_start_matches("error: ")));
    }
    let report: Report = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("cannot read the report of `{line}`"))?;
    match report.first_error {
        Some(first) => Err(anyhow!("operations of `{line}` failed: {first}")),
        None => Ok(report),
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn path(line: &str, folder: &Path) -> PathBuf {
    // FNV-1a. The file contains its line, so a collision only costs a run.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in line.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    folder.join(format!("{hash:016x}.json"))
}

fn stored(line: &str, folder: &Path) -> Option<Report> {
    let text = std::fs::read_to_string(path(line, folder)).ok()?;
    let mut file: Value = serde_json::from_str(&text).ok()?;
    let fits = file["command"] == line && file["version"] == VERSION;
    if fits { serde_json::from_value(file["report"].take()).ok() } else { None }
}

fn store(line: &str, report: &Report, folder: &Path) -> anyhow::Result<()> {
    let path = path(line, folder);
    let file = json!({ "version": VERSION, "command": line, "report": report });
    let whole = path.with_extension("part");
    std::fs::write(&whole, serde_json::to_string_pretty(&file)?)
        .and_then(|()| std::fs::rename(&whole, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}
