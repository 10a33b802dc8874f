//! The structure of an experiment: figures as data, and what their claims compare.
//!
//! A figure is a grid of points: panels × rows × positions on its x axis. Each point is one line of
//! `farleaf-lab bench`. A claim is a statement of the paper, with a value computed from the points
//! and a rule that the value must satisfy.

use crate::plot::PlotAxes;
use clap::ValueEnum;
use farleaf_bench::report::Report;
use serde::Deserialize;

/// How large a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunScale {
    /// Minutes on one core
    Small,
    /// An hour or so
    Medium,
    /// The number of records of the paper
    Paper,
}

impl RunScale {
    /// The name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Paper => "paper",
        }
    }
}

/// The size of a paper's runs at one scale.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunSize {
    pub(super) keys: u64,
    /// Operations to measure, if the panel does not define them per client.
    pub(super) operations: u64,
    /// Operations before the measurement, to fill caches; with 0, the option is omitted.
    #[serde(default)]
    pub(super) warm_up: u64,
}

/// The sizes of a paper's runs.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaperSizes {
    small: RunSize,
    medium: RunSize,
    paper: RunSize,
}

impl PaperSizes {
    pub(super) fn at(&self, scale: RunScale) -> RunSize {
        match scale {
            RunScale::Small => self.small,
            RunScale::Medium => self.medium,
            RunScale::Paper => self.paper,
        }
    }
}

/// A paper and its figures.
#[derive(Debug)]
pub(super) struct PaperFigures {
    /// The name on the command line.
    pub(super) name: String,
    pub(super) citation: String,
    pub(super) sizes: PaperSizes,
    pub(super) figures: Vec<PaperFigure>,
}

/// One figure or table.
#[derive(Debug)]
pub(super) struct PaperFigure {
    /// The paper's number: `8`, `11a`, or `t2` for a table.
    pub(super) id: String,
    pub(super) title: String,
    /// Options of all points.
    pub(super) options: String,
    pub(super) panels: Vec<FigurePanel>,
    pub(super) rows: Vec<FigureRow>,
    /// Label of the x axis.
    pub(super) x: String,
    pub(super) positions: Vec<AxisPosition>,
    pub(super) axes: PlotAxes,
    pub(super) shape: FigureShape,
    pub(super) claims: Vec<PaperClaim>,
}

impl PaperFigure {
    /// The metric that a plot shows.
    pub(super) fn metric(&self) -> ReportMetric {
        match self.shape {
            FigureShape::Lines(metric) => metric,
            FigureShape::Closed(_) | FigureShape::Statements => ReportMetric::Throughput,
        }
    }
}

/// A part of a figure that has its own plot.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FigurePanel {
    pub(super) name: String,
    #[serde(default)]
    pub(super) options: String,
    /// Whether records are placed as in [`AxisPosition::skewed`], instead of evenly.
    #[serde(default)]
    pub(super) skewed: bool,
    /// Operations of each client, if the scale does not define them.
    pub(super) operations_per_client: Option<u64>,
}

/// A curve, or a row of a table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FigureRow {
    pub(super) name: String,
    /// The design; in a file, the name if it is left out. If this version does not have it, it is
    /// listed as missing.
    #[serde(default)]
    pub(super) design: String,
    #[serde(default)]
    pub(super) options: String,
    /// Whether it caches no nodes, so that warm-up operations would change nothing.
    #[serde(default)]
    pub(super) uncached: bool,
}

/// A position on the x axis.
#[derive(Clone, Debug)]
pub(super) struct AxisPosition {
    pub(super) x: f64,
    pub(super) compute_servers: u16,
    /// Threads of each compute server.
    pub(super) threads: u16,
    pub(super) options: String,
    /// Options for panels with skewed placement.
    pub(super) skewed: String,
    /// Number of records, as a multiple of the scale's.
    pub(super) keys: f64,
    /// Whether it is run by real threads, in real time.
    pub(super) real: bool,
}

/// How a figure is shown.
#[derive(Clone, Copy, Debug)]
pub(super) enum FigureShape {
    /// This metric, with one curve per row if there are several positions.
    Lines(ReportMetric),
    /// Computed without a run.
    Closed(fn() -> Vec<ClosedCurve>),
    /// Claims only.
    Statements,
}

/// A computed curve.
#[derive(Clone, Debug)]
pub(super) struct ClosedCurve {
    pub(super) panel: &'static str,
    pub(super) row: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// A figure of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ReportMetric {
    #[default]
    Throughput,
    Reads,
    Writes,
    Atomics,
    TwoSided,
    Bytes,
    /// All network operations per index operation.
    Remote,
    HitRatio,
    P50,
    P99,
    /// Payload bytes on the network per second.
    NetworkRate,
    /// Duration of the longest move of keys.
    MoveSeconds,
    /// Memory of the pool for each byte of the loaded records.
    PoolOverRaw,
}

impl ReportMetric {
    pub(super) fn of(self, report: &Report) -> f64 {
        let cost = &report.per_operation;
        match self {
            Self::Throughput => report.throughput_ops_per_s,
            Self::Reads => cost.reads,
            Self::Writes => cost.writes,
            Self::Atomics => cost.atomics,
            Self::TwoSided => cost.rpcs,
            Self::Bytes => cost.bytes(),
            Self::Remote => cost.remote(),
            Self::HitRatio => report.cache.hit_ratio,
            Self::P50 => report.latency_ns.p50 as f64,
            Self::P99 => report.latency_ns.p99 as f64,
            Self::NetworkRate => cost.bytes() * report.throughput_ops_per_s,
            Self::MoveSeconds => {
                let moves = report.changes.iter().filter(|change| change.done);
                moves.map(|change| change.took_ns).max().map_or(f64::NAN, |ns| ns as f64 / 1e9)
            }
            Self::PoolOverRaw => {
                let each = report.key_bytes.unwrap_or(8.0) + report.value_bytes.unwrap_or(8.0);
                let pool = report.memory.pool_bytes_allocated - report.memory.local_bytes;
                pool as f64 / (each * report.keys as f64)
            }
        }
    }

    /// The label of an axis.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Throughput => "operations/s",
            Self::Reads => "READs per operation",
            Self::Writes => "WRITEs per operation",
            Self::Atomics => "atomics per operation",
            Self::TwoSided => "RPCs per operation",
            Self::Bytes => "bytes per operation",
            Self::Remote => "remote operations per operation",
            Self::HitRatio => "hit ratio of leaves",
            Self::P50 => "median latency, ns",
            Self::P99 => "99th percentile of latency, ns",
            Self::NetworkRate => "bytes/s",
            Self::MoveSeconds => "seconds",
            Self::PoolOverRaw => "bytes of the pool for each byte of records",
        }
    }
}

/// A point of a figure, by its coordinates.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FigurePosition {
    pub(super) panel: String,
    pub(super) row: String,
    pub(super) x: f64,
}

/// What a claim compares.
#[derive(Clone, Debug)]
pub(super) enum ClaimValue {
    /// A metric of one point.
    Of(ReportMetric, FigurePosition),
    /// A metric of the first point divided by that of the second.
    Ratio(ReportMetric, FigurePosition, FigurePosition),
    /// In one panel, the smallest ratio of the first row to the second over these positions.
    Least { metric: ReportMetric, panel: String, rows: [String; 2], from: f64, to: f64 },
    /// Computed without a run.
    Closed(fn() -> f64),
    /// A value that this program cannot show, with the reason.
    Unsaid,
}

/// The rule that the value must satisfy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ClaimRule {
    /// The paper's figure, and the fraction of it by which the value may differ. With zero, the
    /// value must be less than one in a thousand operations.
    Within(f64, f64),
    /// The paper's ratio, and the factor by which the value may differ. However small the ratio, a
    /// gain must be a gain, and a saving a saving.
    Factor(f64, f64),
    /// An ordering or a bound.
    AtLeast(f64),
    AtMost(f64),
}

/// Counts may differ by a twentieth.
pub(super) const COUNT: f64 = 0.05;
/// Bytes may differ by this fraction, because harnesses count headers and locks differently.
pub(super) const BYTES: f64 = 0.12;
/// A row that is slightly below another one may be almost as far below again, but not above it.
pub(super) const NEAR: f64 = 0.11;
/// Ratios may differ by this factor, the limit given in `docs/internals/cost-model.md`.
pub(super) const RATIO: f64 = 1.5;

/// A statement of the paper.
#[derive(Clone, Debug)]
pub(super) struct PaperClaim {
    pub(super) statement: String,
    pub(super) value: ClaimValue,
    pub(super) rule: ClaimRule,
    /// The smallest scale at which the statement can be checked.
    pub(super) least: RunScale,
    /// Why the value differs, or cannot be shown.
    pub(super) because: String,
}
