//! Writes the results of a run: `report.md`, `report.html`, CSV files, command lines and settings.

use super::claims::{ClaimVerdict, digits};
use super::experiment::{
    ClaimRule, ClaimValue, ClosedCurve, FigurePanel, FigurePosition, FigureShape, ReportMetric,
};
use super::points::MeasuredPoint;
use super::{ExperimentOptions, FigureOutcome};
use crate::plot::{AxisScale, BarColumn, CurvePlot, PlotAxes, PlotCurve};
use anyhow::Context;
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;

/// The header of the files in `data`, which `docs/reproducing.md` describes.
const COLUMNS: &str = "figure,panel,row,x,seed,operations_per_s,p50_ns,p99_ns,reads,writes,atomics,rpcs,bytes,\
                       remote_operations,retries,hit_ratio,network_bytes_per_s,placement_level,command\n";

/// Writes all files.
pub(super) fn write(
    outcomes: &[FigureOutcome],
    arguments: &ExperimentOptions,
) -> anyhow::Result<()> {
    let out = &arguments.out;
    let data = out.join("data");
    let figures = out.join("figures");
    for folder in [&data, &figures] {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let mut commands = String::new();
    let mut pictures = Vec::new();
    for outcome in outcomes {
        let name = format!("{}-{}", outcome.paper.name, outcome.figure.id);
        save(&data.join(format!("{name}.csv")), &csv(outcome))?;
        if shows_distributions(outcome) {
            save(&data.join(format!("{name}-latencies.csv")), &latencies(outcome))?;
        }
        let _ = writeln!(commands, "# {name}: {}", outcome.figure.title);
        for point in outcome.points.iter().filter(|point| !point.is_missing) {
            for line in &point.lines {
                let _ = writeln!(commands, "{line}");
            }
        }
        for (number, picture) in pictures_of(outcome, arguments).into_iter().enumerate() {
            let path = figures.join(format!("{name}-{}.svg", number + 1));
            picture.draw(&path)?;
            let svg = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            pictures.push((outcome.figure.id, outcome.paper.name, svg));
        }
    }
    save(&out.join("commands.txt"), &commands)?;
    save(&out.join("environment.json"), &environment(arguments))?;
    save(&out.join("report.md"), &markdown(outcomes, arguments))?;
    save(&out.join("report.html"), &html(outcomes, arguments, &pictures))
}

fn save(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The settings of the run and the machine. `environment.json` contains no time, so that equal runs
/// write equal bytes.
fn environment(arguments: &ExperimentOptions) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let environment = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "scale": arguments.scale.name(),
        "seed": arguments.seed,
        "seeds": arguments.seeds,
        "keys": arguments.keys,
        "operations": arguments.operations,
        "cores": cores,
        "cost_model": format!("{:?}", crate::designs::simulated(arguments.seed, false)),
    });
    format!("{environment:#}\n")
}

fn csv(outcome: &FigureOutcome) -> String {
    if let FigureShape::Closed(compute) = outcome.figure.shape {
        let mut text = String::from("figure,panel,row,x,value\n");
        for curve in compute() {
            for (x, y) in curve.points {
                let id = outcome.figure.id;
                let _ = writeln!(text, "{id},{},\"{}\",{x},{y:.1}", curve.panel, curve.row);
            }
        }
        return text;
    }
    let mut text = COLUMNS.to_owned();
    for point in &outcome.points {
        for (line, report) in point.lines.iter().zip(&point.reports) {
            let cost = &report.per_operation;
            let _ = writeln!(
                text,
                "{},\"{}\",\"{}\",{},{},{:.1},{},{},{:.5},{:.5},{:.5},{:.5},{:.2},{:.5},{:.5},{:.5},{:.0},{},\"{}\"",
                point.figure,
                point.panel,
                point.row.name,
                point.at.x,
                report.seed,
                report.throughput_ops_per_s,
                report.latency_ns.p50,
                report.latency_ns.p99,
                cost.reads,
                cost.writes,
                cost.atomics,
                cost.rpcs,
                cost.bytes(),
                cost.remote(),
                cost.retries,
                report.cache.hit_ratio,
                ReportMetric::NetworkRate.of(report),
                report.placement_level.map_or(String::new(), |level| level.to_string()),
                line.replace('"', "\"\""),
            );
        }
    }
    text
}

/// The distributions of latencies, with a line for each point, seed and fraction of the operations.
fn latencies(outcome: &FigureOutcome) -> String {
    let mut text = String::from("figure,panel,row,x,seed,share,latency_ns\n");
    for MeasuredPoint { figure, panel, row, at, reports, .. } in &outcome.points {
        for report in reports {
            for (share, ns) in &report.latencies {
                let (seed, row, x) = (report.seed, row.name, at.x);
                let _ = writeln!(text, "{figure},\"{panel}\",\"{row}\",{x},{seed},{share:.4},{ns}");
            }
        }
    }
    text
}

/// The rows of the first table: figure, statement, paper, ours, verdict, why.
fn verdicts(outcomes: &[FigureOutcome]) -> Vec<[String; 6]> {
    let mut rows = Vec::new();
    for outcome in outcomes {
        for judged in &outcome.judged {
            let stated = match judged.verdict {
                ClaimVerdict::CannotBeSaid if judged.ours.is_none() => "–".to_owned(),
                _ => judged.claim.rule.text(),
            };
            rows.push([
                format!("{} {}", outcome.paper.name, outcome.figure.id),
                judged.claim.statement.to_owned(),
                stated,
                judged.ours.map_or("–".to_owned(), digits),
                judged.verdict.name().to_owned(),
                judged.why.clone(),
            ]);
        }
    }
    rows
}

const HEADER: [&str; 6] = ["figure", "the paper's statement", "paper", "ours", "verdict", "why"];

/// The metrics shown in the tables of points.
const SHOWN: [ReportMetric; 9] = [
    ReportMetric::Throughput,
    ReportMetric::P50,
    ReportMetric::P99,
    ReportMetric::Reads,
    ReportMetric::Writes,
    ReportMetric::Atomics,
    ReportMetric::TwoSided,
    ReportMetric::Bytes,
    ReportMetric::HitRatio,
];

/// The table of a figure's points.
fn table(outcome: &FigureOutcome) -> (Vec<String>, Vec<Vec<String>>) {
    let mut header = vec!["panel".to_owned(), "row".to_owned(), outcome.figure.x.to_owned()];
    let mut rows = Vec::new();
    if let FigureShape::Closed(compute) = outcome.figure.shape {
        header.push("value".to_owned());
        for curve in compute() {
            rows.extend(curve.points.iter().map(|(x, y)| {
                vec![curve.panel.to_owned(), curve.row.to_owned(), x.to_string(), digits(*y)]
            }));
        }
        return (header, rows);
    }
    header.extend(SHOWN.iter().map(|metric| metric.label().to_owned()));
    header.push("placement level".to_owned());
    for point in outcome.points.iter().filter(|point| !point.reports.is_empty()) {
        let mut row =
            vec![point.panel.to_owned(), point.row.name.to_owned(), point.at.x.to_string()];
        row.extend(SHOWN.iter().map(|metric| point.median(*metric).map_or(String::new(), digits)));
        let level = point.typical().and_then(|report| report.placement_level);
        row.push(level.map_or("–".to_owned(), |level| level.to_string()));
        rows.push(row);
    }
    (header, rows)
}

fn markdown_table<H: AsRef<str>, R: AsRef<[String]>>(header: &[H], rows: &[R]) -> String {
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(header.iter().map(AsRef::as_ref).collect());
    text += &line(vec!["---"; header.len()]);
    for row in rows {
        text += &line(row.as_ref().iter().map(String::as_str).collect());
    }
    text
}

fn conditions(arguments: &ExperimentOptions) -> String {
    let ExperimentOptions { scale, seed, seeds, .. } = arguments;
    format!(
        "Scale {}, {seeds} seed(s) from {seed} on, farleaf {}. In virtual time unless a command says `--fabric local`: \
         figures show proportions (docs/internals/cost-model.md). Ratios may differ by a factor of 1.5, counts by 5%, \
         bytes by 12%; orderings are exact.",
        scale.name(),
        env!("CARGO_PKG_VERSION")
    )
}

fn markdown(outcomes: &[FigureOutcome], arguments: &ExperimentOptions) -> String {
    let mut text = format!("# Reproduction\n\n{}\n\n", conditions(arguments));
    text += &markdown_table(&HEADER, &verdicts(outcomes));
    for outcome in outcomes {
        let _ = write!(text, "\n## {}: {}\n\n", outcome.paper.name, outcome.figure.title);
        for why in &outcome.skipped {
            let _ = writeln!(text, "- Left out: {why}.");
        }
        let (header, rows) = table(outcome);
        if !rows.is_empty() {
            let _ = write!(text, "\n{}", markdown_table(&header, &rows));
        }
    }
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn html_table<H: AsRef<str>, R: AsRef<[String]>>(header: &[H], rows: &[R]) -> String {
    let mut text = String::from("<table><tr>");
    for cell in header {
        let _ = write!(text, "<th>{}</th>", escape(cell.as_ref()));
    }
    text += "</tr>\n";
    for row in rows {
        text += "<tr>";
        for cell in row.as_ref() {
            let _ = write!(text, "<td>{}</td>", escape(cell));
        }
        text += "</tr>\n";
    }
    text + "</table>\n"
}

fn html(
    outcomes: &[FigureOutcome],
    arguments: &ExperimentOptions,
    pictures: &[(&str, &str, String)],
) -> String {
    let mut text = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Reproduction</title>\n<style>\
         body{font-family:sans-serif;max-width:70em;margin:2em auto}table{border-collapse:collapse;font-size:85%}\
         td,th{border:1px solid #ccc;padding:.2em .5em;text-align:left}</style></head><body>\n<h1>Reproduction</h1>\n",
    );
    let _ = writeln!(text, "<p>{}</p>", escape(&conditions(arguments)));
    text += &html_table(&HEADER, &verdicts(outcomes));
    for outcome in outcomes {
        let (paper, figure) = (outcome.paper, outcome.figure);
        let _ = writeln!(text, "<h2>{}: {}</h2>", paper.name, escape(figure.title));
        let _ = writeln!(text, "<p>{}</p>", escape(paper.citation));
        for why in &outcome.skipped {
            let _ = writeln!(text, "<p>Left out: {}.</p>", escape(why));
        }
        for (id, name, svg) in pictures {
            if *id == figure.id && *name == paper.name {
                text += svg;
            }
        }
        let (header, rows) = table(outcome);
        if !rows.is_empty() {
            text += &html_table(&header, &rows);
        }
    }
    text + "</body></html>\n"
}

/// Something to draw.
enum ReportPicture {
    Curves(CurvePlot),
    Bars(BarColumn),
}

impl ReportPicture {
    fn draw(&self, path: &Path) -> anyhow::Result<()> {
        match self {
            Self::Curves(plot) => plot.draw(path),
            Self::Bars(bars) => bars.draw(path),
        }
    }
}

/// The pictures of a figure: curves if it has several positions, bars if it has one.
fn pictures_of(outcome: &FigureOutcome, arguments: &ExperimentOptions) -> Vec<ReportPicture> {
    match outcome.figure.xs.iter().filter(|at| !at.real).count() {
        1 => bars(outcome, arguments).into_iter().map(ReportPicture::Bars).collect(),
        _ => {
            let plots = plots(outcome, arguments).into_iter();
            plots.chain(distributions(outcome, arguments)).map(ReportPicture::Curves).collect()
        }
    }
}

/// Whether a figure is about latencies.
fn shows_distributions(outcome: &FigureOutcome) -> bool {
    matches!(outcome.figure.shape, FigureShape::Lines(ReportMetric::P50 | ReportMetric::P99))
}

/// For figures of latencies: their distribution at the last position, with a plot for each panel.
fn distributions(outcome: &FigureOutcome, arguments: &ExperimentOptions) -> Vec<CurvePlot> {
    let figure = outcome.figure;
    let Some(last) = figure.xs.last().filter(|_| shows_distributions(outcome)) else {
        return Vec::new();
    };
    let plot = |panel: &FigurePanel| {
        let points = outcome.points.iter();
        let points = points.filter(|point| point.panel == panel.name && point.at.x == last.x);
        let curve = |point: &MeasuredPoint| {
            let latencies = point.typical()?.latencies.iter();
            let points: Vec<_> = latencies.map(|(share, ns)| (*ns as f64, *share)).collect();
            let name = point.row.name.to_owned();
            (!points.is_empty()).then(|| PlotCurve { name, points, ..PlotCurve::default() })
        };
        CurvePlot {
            title: format!("{}: {}, {} {}", figure.title, panel.name, last.x, figure.x),
            caption: caption(outcome, arguments),
            x: "latency, ns",
            y: "share of the operations",
            axes: PlotAxes { x: AxisScale::Log(10.0), y: AxisScale::Linear, top: Some(1.0) },
            curves: points.filter_map(curve).collect(),
            dots: false,
            marks: Vec::new(),
        }
    };
    let plots = figure.panels.iter().map(plot);
    plots.filter(|plot| !plot.curves.is_empty()).collect()
}

/// One plot for each panel, with a bar for each row.
fn bars(outcome: &FigureOutcome, arguments: &ExperimentOptions) -> Vec<BarColumn> {
    let metric = outcome.figure.metric();
    let panels = outcome.figure.panels.iter().map(|panel| {
        let points = outcome.points.iter().filter(|p| p.panel == panel.name && !p.at.real);
        let bar = points.filter_map(|point| {
            let value = point.median(metric)?;
            Some((point.row.name.to_owned(), value, digits(value)))
        });
        BarColumn {
            title: format!("{}: {}, {}", outcome.figure.title, panel.name, metric.label()),
            caption: caption(outcome, arguments),
            bars: bar.collect(),
        }
    });
    panels.filter(|bars| !bars.bars.is_empty()).collect()
}

fn caption(outcome: &FigureOutcome, arguments: &ExperimentOptions) -> String {
    format!("{}, scale {}", outcome.paper.name, arguments.scale.name())
}

/// The paper's values for a metric of a row, as points. Each is a figure, or a ratio multiplied by
/// our figure for the row in its denominator.
fn stated(
    outcome: &FigureOutcome,
    metric: ReportMetric,
    panel: &str,
    row: &str,
) -> Vec<(f64, f64)> {
    let ours = |spot: FigurePosition| {
        outcome.points.iter().find(|point| point.is_at(spot))?.median(metric)
    };
    let claims = outcome.figure.claims.iter().filter_map(|claim| match (claim.value, claim.rule) {
        (ClaimValue::Of(of, spot), ClaimRule::Within(paper, _)) => Some((of, spot, paper)),
        (
            ClaimValue::Ratio(of, over, under),
            ClaimRule::Factor(paper, _) | ClaimRule::Within(paper, _),
        ) => Some((of, over, ours(under)? * paper)),
        _ => None,
    });
    let of_row = claims.filter(|(of, spot, _)| *of == metric && (spot.0, spot.1) == (panel, row));
    of_row.map(|(_, spot, value)| (spot.2, value)).collect()
}

/// One plot for each panel with curves of two or more points.
fn plots(outcome: &FigureOutcome, arguments: &ExperimentOptions) -> Vec<CurvePlot> {
    let figure = outcome.figure;
    let mut panels: Vec<(String, &'static str, Vec<PlotCurve>)> = Vec::new();
    let mut add = |panel: &str, y, curve: PlotCurve| {
        if curve.points.len() < 2 {
            return;
        }
        match panels.iter_mut().find(|(known, ..)| known == panel) {
            Some((_, _, curves)) => curves.push(curve),
            None => panels.push((panel.to_owned(), y, vec![curve])),
        }
    };
    if let FigureShape::Closed(compute) = figure.shape {
        for ClosedCurve { panel, row, points } in compute() {
            add(
                panel,
                "queries/s",
                PlotCurve { name: row.to_owned(), points, ..PlotCurve::default() },
            );
        }
    }
    let metric = figure.metric();
    for panel in figure.panels {
        for row in figure.rows {
            let of_curve = || {
                let points = outcome.points.iter();
                points.filter(|p| p.panel == panel.name && p.row.name == row.name && !p.at.real)
            };
            let median = |point: &MeasuredPoint| Some((point.at.x, point.median(metric)?));
            let span = |point: &MeasuredPoint| {
                let values = point.values(metric);
                let (low, high) = (*values.first()?, *values.last()?);
                (low < high).then_some((point.at.x, low, high))
            };
            let curve = PlotCurve {
                name: row.name.to_owned(),
                points: of_curve().filter_map(median).collect(),
                spans: of_curve().filter_map(span).collect(),
                stated: stated(outcome, metric, panel.name, row.name),
            };
            add(panel.name, metric.label(), curve);
        }
    }
    let plot = |(panel, y, curves): (String, &'static str, Vec<PlotCurve>)| CurvePlot {
        title: format!("{}: {panel}", figure.title),
        caption: match curves.iter().all(|curve| curve.stated.is_empty()) {
            true => caption(outcome, arguments),
            false => format!("{}, hollow: as stated", caption(outcome, arguments)),
        },
        x: figure.x,
        y,
        axes: figure.axes,
        curves,
        dots: true,
        marks: Vec::new(),
    };
    panels.into_iter().map(plot).collect()
}

/// The verdicts as readable text, one line each, and their number.
pub(super) fn summary(outcomes: &[FigureOutcome]) -> String {
    let mut text = String::new();
    for [figure, statement, stated, ours, verdict, why] in verdicts(outcomes) {
        let why = if why.is_empty() { why } else { format!(": {why}") };
        let _ =
            writeln!(text, "{figure:>9}  {verdict:19} {statement}: {ours}, paper {stated}{why}");
    }
    let count =
        |verdict| outcomes.iter().flat_map(|o| &o.judged).filter(|j| j.verdict == verdict).count();
    let counts = [
        ClaimVerdict::Holds,
        ClaimVerdict::Differs,
        ClaimVerdict::CannotBeSaid,
        ClaimVerdict::NotRun,
    ]
    .map(|verdict| format!("{} {}", count(verdict), verdict.name()));
    text + &counts.join(", ")
}
