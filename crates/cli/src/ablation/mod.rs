//! `farleaf ablation`: what each part of DEX contributes, step by step. Every figure is one run of
//! `farleaf bench`; the CSV file has its arguments.

mod experiments;

use crate::bench;
use crate::output::{grouped, note};
use crate::plot::Bars;
use crate::units;
use anyhow::Context;
use clap::{Args, Parser};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use experiments::{EXPERIMENTS, Experiment, Machines, Part, Row, Words};
use farleaf_bench::report::Report;
use farleaf_bench::units::rate;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Options of `farleaf ablation`.
#[derive(Debug, Args)]
#[command(
    after_help = "After §8.3 of Lu et al., DEX (VLDB 2024). The trace is as for `farleaf bench --trace`.\n\n\
                  Exit codes: 0 success, 1 failure, 2 invalid command line or input file."
)]
pub(crate) struct Arguments {
    /// Run only these parts
    #[arg(long, value_enum, value_name = "PART,…", value_delimiter = ',')]
    part: Vec<Part>,
    /// Load this many records (the paper has 200M)
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::positive)]
    keys: u64,
    /// Measure this many operations of each run, after the same number to fill the caches
    #[arg(long, value_name = "N", default_value = "300k", value_parser = units::positive)]
    operations: u64,
    /// Seed the random numbers
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::seed)]
    seed: u64,
    /// Replay this trace; without a trace, skip that part
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write CSV and SVG files to this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Parses the arguments of one run.
#[derive(Debug, Parser)]
#[command(name = "farleaf bench")]
struct BenchLine {
    #[command(flatten)]
    arguments: bench::Arguments,
}

#[derive(Debug)]
struct Outcome {
    setting: &'static str,
    row: &'static str,
    machines: &'static str,
    line: String,
    report: Report,
}

/// Runs the selected experiments.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(folder) = &arguments.out {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let asked = |experiment: &&Experiment| {
        arguments.part.is_empty() || arguments.part.contains(&experiment.part)
    };
    for experiment in EXPERIMENTS.iter().filter(asked) {
        if experiment.part == Part::Trace && arguments.trace.is_none() {
            note("skipping the policies on a trace: they need --trace");
            continue;
        }
        let outcomes = measure(experiment, arguments)?;
        writeln!(std::io::stdout().lock(), "{}", summary(experiment, &outcomes))?;
        if let Some(folder) = &arguments.out {
            let name = format!("{:?}.csv", experiment.part).to_lowercase();
            write_csv(&folder.join(name), &outcomes)?;
            draw(folder, experiment, &outcomes, arguments)?;
        }
    }
    Ok(())
}

fn measure(experiment: &Experiment, arguments: &Arguments) -> anyhow::Result<Vec<Outcome>> {
    let Experiment { settings, rows, machines, .. } = experiment;
    let runs: usize = machines.iter().map(|on| on.runs).sum();
    let total = settings.len() * rows.len() * runs;
    let mut number = 0;
    let mut outcomes = Vec::new();
    for setting in *settings {
        for on in *machines {
            // Interleave the rows' runs, so that other load on the machine slows down all of them.
            let mut reports: Vec<Vec<Report>> = vec![Vec::new(); rows.len()];
            for _ in 0..on.runs {
                for (row, reports) in rows.iter().zip(&mut reports) {
                    number += 1;
                    note(&format!("{number}/{total}: {}, {}, {}", setting.0, row.name, on.name));
                    let words = words(experiment, setting, row, on, arguments);
                    let parsed = BenchLine::try_parse_from(&words)
                        .with_context(|| format!("in `{}`", words.join(" ")))?;
                    let report = bench::measure(&parsed.arguments)?;
                    bench::warn_of_errors(&report)?;
                    reports.push(report);
                }
            }
            for (row, reports) in rows.iter().zip(reports) {
                outcomes.push(Outcome {
                    setting: setting.0,
                    row: row.name,
                    machines: on.name,
                    line: words(experiment, setting, row, on, arguments).join(" "),
                    report: median(reports),
                });
            }
        }
    }
    Ok(outcomes)
}

/// The report with the median throughput.
fn median(mut reports: Vec<Report>) -> Report {
    reports.sort_by(|a, b| a.throughput_ops_per_s.total_cmp(&b.throughput_ops_per_s));
    let middle = reports.len() / 2;
    reports.swap_remove(middle)
}

/// Builds the command line of one run.
fn words(
    experiment: &Experiment,
    setting: &Words,
    row: &Row,
    on: &Machines,
    arguments: &Arguments,
) -> Vec<String> {
    let mut words = vec!["farleaf bench".to_owned()];
    for some in [experiment.words, setting.1, row.words, on.words] {
        words.extend(some.split_whitespace().map(str::to_owned));
    }
    let mut add = |name: &str, value: String| words.extend([name.to_owned(), value]);
    if let Some(percent) = row.cache_percent {
        add("--cache-percent", (percent * on.cache_share).to_string());
    }
    add("--seed", arguments.seed.to_string());
    match &arguments.trace {
        Some(trace) if experiment.part == Part::Trace => {
            add("--trace", trace.display().to_string());
        }
        _ => {
            add("--keys", arguments.keys.to_string());
            add("--operations", arguments.operations.to_string());
            add("--warm-up", arguments.operations.to_string());
        }
    }
    words
}

fn summary(experiment: &Experiment, outcomes: &[Outcome]) -> String {
    let mut text = format!("{}\n", experiment.title);
    for (setting, _) in experiment.settings {
        let find = |row: &str, machines: &str| {
            let same = |outcome: &&Outcome| {
                outcome.setting == *setting && outcome.row == row && outcome.machines == machines
            };
            outcomes.iter().find(same).map(|outcome| &outcome.report)
        };
        let timed = if experiment.shows_throughput { experiment.machines } else { &[] };
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        let costs = experiment.columns.iter().map(|column| column.name);
        let rates = timed.iter().map(|on| on.name);
        table.set_header(std::iter::once("per operation").chain(costs).chain(rates));
        for row in experiment.rows {
            let Some(report) = find(row.name, experiment.machines[0].name) else { continue };
            let costs = experiment.columns.iter().map(|column| (column.value)(report));
            let rates = timed.iter().map(|on| {
                let throughput = |row| find(row, on.name).map(|r| r.throughput_ops_per_s);
                let here = throughput(row.name).unwrap_or_default();
                match row.after.and_then(throughput) {
                    Some(before) => format!("{} ({:.2} x)", rate(here), here / before.max(1.0)),
                    None => rate(here),
                }
            });
            table.add_row(std::iter::once(row.name.to_owned()).chain(costs).chain(rates));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut levels: Vec<u8> =
            outcomes.iter().filter_map(|o| o.report.placement_level).collect();
        levels.sort_unstable();
        levels.dedup();
        let levels: Vec<String> = levels.iter().map(u8::to_string).collect();
        let placed = match &*levels.join(", ") {
            "" => String::new(),
            levels => format!(" (placement level {levels})"),
        };
        let _ = writeln!(text, "{setting}{placed}\n{table}");
    }
    for row in experiment.rows.iter().filter(|_| experiment.shows_throughput) {
        if let Some(after) = row.after {
            let _ = writeln!(text, "  `{}`: its factors are over `{after}`", row.name);
        }
    }
    if !experiment.paper.is_empty() {
        let _ = writeln!(text, "  {}", experiment.paper);
    }
    text
}

/// Draws one SVG per setting (`steps-a.svg` and so on) and per kind of machines with measured
/// throughput.
fn draw(
    folder: &Path,
    experiment: &Experiment,
    outcomes: &[Outcome],
    arguments: &Arguments,
) -> anyhow::Result<()> {
    let part = format!("{:?}", experiment.part).to_lowercase();
    for (number, (setting, _)) in experiment.settings.iter().enumerate() {
        let letter = char::from(b'a' + number as u8);
        for (place, on) in experiment.machines.iter().enumerate() {
            let of_plot =
                |outcome: &&Outcome| outcome.setting == *setting && outcome.machines == on.name;
            let bar = |Outcome { row, report, .. }: &Outcome| {
                let (length, figure) = match experiment.shows_throughput {
                    true => (report.throughput_ops_per_s, rate(report.throughput_ops_per_s)),
                    false => (report.cache.hit_ratio, format!("{:.3}", report.cache.hit_ratio)),
                };
                ((*row).to_owned(), length, figure)
            };
            let bars: Vec<_> = outcomes.iter().filter(of_plot).map(bar).collect();
            let Some(report) = outcomes.iter().find(of_plot).map(|outcome| &outcome.report) else {
                continue;
            };
            let what = if experiment.shows_throughput { "operations/s" } else { "hit ratio" };
            let file = format!("{part}-{letter}-{}", place + 1);
            let (fabric, keys) = (&report.fabric, grouped(report.keys));
            let bars = Bars {
                title: format!("{file}: {setting}, {}, {what}", on.name),
                caption: format!("{fabric} fabric, seed {}, {keys} keys", arguments.seed),
                bars,
            };
            bars.draw(&folder.join(file).with_extension("svg"))?;
        }
    }
    Ok(())
}

fn write_csv(path: &Path, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let mut text = String::from(
        "setting,row,machines,operations_per_s,p50_ns,p99_ns,reads,writes,atomics,rpcs,bytes,retries,\
         remote_operations,hit_ratio,evictions,errors,placement_level,command\n",
    );
    for Outcome { setting, row, machines, line, report } in outcomes {
        let (cost, cache) = (&report.per_operation, &report.cache);
        let _ = writeln!(
            text,
            "\"{setting}\",\"{row}\",{machines},{:.1},{},{},{:.4},{:.4},{:.4},{:.4},{:.1},{:.4},{:.4},{:.4},{:.4},\
             {},{},{line}",
            report.throughput_ops_per_s,
            report.latency_ns.p50,
            report.latency_ns.p99,
            cost.reads,
            cost.writes,
            cost.atomics,
            cost.rpcs,
            cost.bytes(),
            cost.retries,
            cost.remote(),
            cache.hit_ratio,
            cache.evictions,
            report.errors,
            report.placement_level.map_or(String::new(), |level| level.to_string()),
        );
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
