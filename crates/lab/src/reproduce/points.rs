//! The points of a figure: their command lines, and the reports of their runs.

use super::experiment::{
    AxisPosition, FigurePanel, FigurePosition, FigureRow, PaperFigure, ReportMetric, RunSize,
};
use crate::designs::DesignName;
use clap::ValueEnum;
use farleaf_bench::report::Report;
use std::path::Path;

/// Settings of the command line that apply to all points.
#[derive(Clone, Debug)]
pub(super) struct PointSelection<'a> {
    pub(super) size: RunSize,
    /// Seeds of the runs of each point.
    pub(super) seeds: Vec<u64>,
    /// Designs to run; empty for all.
    pub(super) designs: &'a [String],
    pub(super) trace: Option<&'a Path>,
    /// Whether to run the points that need real threads.
    pub(super) real_threads: bool,
}

/// One point of a figure, with a report for each seed.
#[derive(Clone, Debug)]
pub(super) struct MeasuredPoint {
    pub(super) figure: &'static str,
    pub(super) panel: &'static str,
    pub(super) row: FigureRow,
    pub(super) at: AxisPosition,
    /// Whether this version lacks the design.
    pub(super) is_missing: bool,
    /// The command lines, one for each seed.
    pub(super) lines: Vec<String>,
    /// The reports, in the same order; empty if the design is missing.
    pub(super) reports: Vec<Report>,
}

impl MeasuredPoint {
    /// Whether the point is at this position of its figure.
    pub(super) fn is_at(&self, (panel, row, x): FigurePosition) -> bool {
        self.panel == panel && self.row.name == row && self.at.x == x
    }

    /// The metric of each seed, ascending.
    pub(super) fn values(&self, metric: ReportMetric) -> Vec<f64> {
        let mut values: Vec<f64> = self.reports.iter().map(|report| metric.of(report)).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    /// The median over the seeds; of two middle values, the lower one.
    pub(super) fn median(&self, metric: ReportMetric) -> Option<f64> {
        let values = self.values(metric);
        values.get(values.len().checked_sub(1)? / 2).copied()
    }

    /// The report with the median throughput.
    pub(super) fn typical(&self) -> Option<&Report> {
        let middle = self.median(ReportMetric::Throughput)?;
        self.reports.iter().find(|report| report.throughput_ops_per_s == middle)
    }
}

/// Whether this version has the design.
pub(super) fn is_there(design: &str) -> bool {
    DesignName::from_str(design, false).is_ok()
}

/// The points of a figure without their reports, and why points were left out.
pub(super) fn points(
    figure: &PaperFigure,
    selection: &PointSelection<'_>,
) -> (Vec<MeasuredPoint>, Vec<String>) {
    let mut points = Vec::new();
    let mut skipped = Vec::new();
    let asked = |row: &&FigureRow| {
        selection.designs.is_empty() || selection.designs.iter().any(|name| name == row.design)
    };
    if figure.words.contains("--trace") && selection.trace.is_none() {
        return (points, vec!["its points replay a trace: --trace FILE".to_owned()]);
    }
    for panel in figure.panels {
        for row in figure.rows.iter().filter(asked) {
            for at in figure.xs {
                if at.real && !selection.real_threads {
                    skipped.push("points of real threads run with --real-threads".to_owned());
                    continue;
                }
                let is_missing = !is_there(row.design);
                if is_missing {
                    skipped.push(format!("`{}` needs the design `{}`", row.name, row.design));
                }
                let line = |seed: &u64| line(figure, panel, row, at, *seed, selection);
                points.push(MeasuredPoint {
                    figure: figure.id,
                    panel: panel.name,
                    row: *row,
                    at: *at,
                    is_missing,
                    lines: selection.seeds.iter().map(line).collect(),
                    reports: Vec::new(),
                });
            }
        }
    }
    skipped.sort();
    skipped.dedup();
    (points, skipped)
}

/// The command line of one run. Two words differ from those of `farleaf-lab bench`: `--cache-each
/// P` gives each compute server a cache of P% of the data, and `scan:P%` scans P% of the records.
fn line(
    figure: &PaperFigure,
    panel: &FigurePanel,
    row: &FigureRow,
    at: &AxisPosition,
    seed: u64,
    selection: &PointSelection<'_>,
) -> String {
    let size = &selection.size;
    let keys = ((size.keys as f64 * at.keys).round() as u64).max(1);
    let mut words = vec!["farleaf-lab".to_owned(), "bench".to_owned()];
    let mut add = |more: &[&str]| words.extend(more.iter().map(|word| (*word).to_owned()));
    add(&["--index", row.design, "--fabric", if at.real { "local" } else { "sim" }]);
    let skewed = if panel.skewed { at.skewed } else { "" };
    let mut more = [figure.words, panel.words, row.words, at.words, skewed]
        .into_iter()
        .flat_map(str::split_whitespace);
    while let Some(word) = more.next() {
        let share = word.strip_prefix("scan:").and_then(|word| word.strip_suffix('%'));
        if word == "--cache-each" {
            let each: f64 = more.next().and_then(|each| each.parse().ok()).unwrap_or_default();
            add(&["--cache-percent", &(each * f64::from(at.compute_servers)).to_string()]);
        } else if word == "--trace" {
            more.next(); // the word that stands for the file
            let path = selection.trace.map(|path| path.display().to_string());
            add(&["--trace", &shlex::try_quote(&path.unwrap_or_default()).unwrap_or_default()]);
        } else if let Some(percent) = share.and_then(|share| share.parse::<f64>().ok()) {
            let records = (keys as f64 * percent / 100.0).round().max(1.0);
            add(&[&format!("scan:{records}")]);
        } else {
            add(&[word]);
        }
    }
    drop(more);
    if !figure.words.contains("--trace") {
        let fills = [figure.words, panel.words].iter().any(|all| all.contains("fill-random"));
        add(&["--compute-servers", &at.compute_servers.to_string()]);
        add(&["--threads", &at.threads.to_string(), "--keys", &keys.to_string()]);
        if !figure.words.contains("--seconds") {
            let clients = u64::from(at.compute_servers) * u64::from(at.threads);
            // `bench` warms up by a twentieth more, so that a fill takes each key once.
            let of_scale = if fills { (keys / 21 * 20).max(1) } else { size.operations };
            let operations = panel.each.map_or(of_scale, |each| clients * each);
            add(&["--operations", &operations.to_string()]);
        }
        if panel.each.is_none() && row.caches && size.warm_up > 0 && !fills {
            add(&["--warm-up", &size.warm_up.to_string()]);
        }
    }
    add(&["--seed", &seed.to_string()]);
    words.join(" ")
}
