//! The options and output of timelines and shifting hotspots.

use super::arguments::BenchArguments;
use crate::plot::{CurvePlot, PlotAxes, PlotCurve};
use anyhow::Context;
use farleaf_bench::driver::MeasurementMoment;
use farleaf_bench::report::Report;
use farleaf_bench::timeline::{Interval, MAX_INTERVALS, Timeline};
use farleaf_bench::units::duration;
use farleaf_bench::workload::Distribution;
use farleaf_command_line::output;
use farleaf_command_line::usage;
use std::path::{Path, PathBuf};

/// Default number of intervals of a run.
const PARTS: u32 = 60;

/// The intervals of a run without a timeline.
pub(super) const USUAL: Interval = Interval::Parts(PARTS);

/// Maximum number of compute servers for which separate curves are drawn.
const MAX_CURVES: usize = 5;

/// The intervals that the options request.
pub(super) fn intervals(arguments: &BenchArguments) -> anyhow::Result<Option<Interval>> {
    if arguments.timeline.is_none() {
        return Ok(None);
    }
    let Some(ms) = arguments.interval_ms else {
        let parts = |seconds: f64| (seconds * 1e9 / f64::from(PARTS)) as u64;
        return Ok(Some(match arguments.seconds.map(parts) {
            Some(ns) => Interval::Nanoseconds(ns.max(1)),
            // The length of the run is not known.
            None => Interval::Parts(PARTS),
        }));
    };
    if let Some(seconds) = arguments.seconds {
        let run_ms = seconds * 1e3;
        if ms > run_ms {
            return usage(format!("--interval-ms {ms} is longer than the run of {run_ms} ms"));
        }
        let least = run_ms / MAX_INTERVALS as f64;
        if ms < least {
            return usage(format!(
                "--interval-ms {ms} makes more than {MAX_INTERVALS} intervals of {seconds} seconds: at \
                 least {least}"
            ));
        }
    }
    Ok(Some(Interval::Nanoseconds((ms * 1e6).round() as u64)))
}

/// Checks that a shift of the hotspot is possible with these options.
pub(super) fn check_shift(
    arguments: &BenchArguments,
    distribution: Distribution,
) -> anyhow::Result<()> {
    let Some(at) = arguments.shift_hotspot_at else { return Ok(()) };
    if !matches!(distribution, Distribution::Zipfian { .. }) {
        return usage(format!(
            "--shift-hotspot-at needs --distribution zipfian:THETA: {distribution} has no hotspot"
        ));
    }
    match (at, arguments.seconds) {
        (MeasurementMoment::Nanoseconds(ns), Some(seconds)) if ns as f64 >= seconds * 1e9 => {
            usage(format!(
                "--shift-hotspot-at {} seconds is after the end of the run of {seconds} seconds",
                ns as f64 / 1e9
            ))
        }
        _ => Ok(()),
    }
}

/// Warns about requested output that the report does not have.
pub(super) fn warn(report: &Report, asked: Option<Interval>) {
    if report.hotspot_shift.is_some_and(|shift| shift.at_ns.is_none()) {
        output::note("warning: the run had ended before the hotspot would have shifted");
    }
    if let (Some(Interval::Nanoseconds(ns)), Some(timeline)) = (asked, &report.timeline)
        && timeline.interval_ns != ns
    {
        let interval = duration(timeline.interval_ns);
        output::note(&format!(
            "note: intervals are {interval} long, so that there are at most {MAX_INTERVALS}"
        ));
    }
}

/// The folder of a timeline.
pub(super) struct TimelineFolder(PathBuf);

impl TimelineFolder {
    /// Creates the folder at once, so that a run of minutes does not fail at its end.
    pub(super) fn make(path: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(path)
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Self(path.to_owned()))
    }

    /// Writes `timeline.csv` and `timeline.svg`.
    pub(super) fn write(
        &self,
        timeline: &Timeline,
        (title, caption): (&str, &str),
    ) -> anyhow::Result<()> {
        let csv = self.0.join("timeline.csv");
        std::fs::write(&csv, timeline.to_csv())
            .with_context(|| format!("cannot write {}", csv.display()))?;
        plot(timeline, title, caption).draw(&self.0.join("timeline.svg"))
    }
}

/// The curve of all operations, and one for each compute server if there are few.
fn plot(timeline: &Timeline, title: &str, caption: &str) -> CurvePlot {
    let middle_ms = |interval: usize| {
        (timeline.start_ns(interval) as f64 + timeline.length_ns(interval) as f64 / 2.0) / 1e6
    };
    let curve = |name: String, rates: Vec<f64>| {
        let points = rates.into_iter().enumerate();
        let points = points.map(|(at, rate)| (middle_ms(at), rate)).collect();
        PlotCurve { name, points, ..PlotCurve::default() }
    };
    let servers = match timeline.compute_servers.len() {
        few @ 2..=MAX_CURVES => few,
        _ => 0,
    };
    let of_servers =
        (0..servers).map(|one| curve(format!("compute server {one}"), timeline.ops_per_s_of(one)));
    let all = curve("all".to_owned(), timeline.ops_per_s());
    CurvePlot {
        title: title.to_owned(),
        caption: caption.to_owned(),
        x: "time, ms",
        y: "operations/s",
        axes: PlotAxes::default(),
        curves: std::iter::once(all).chain(of_servers).collect(),
        dots: false,
        marks: timeline
            .marks
            .iter()
            .map(|mark| (mark.at_ns as f64 / 1e6, mark.label.clone()))
            .collect(),
    }
}
