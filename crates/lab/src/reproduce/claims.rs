//! Judges claims against the points of a figure.

use super::experiment::{
    ClaimRule, ClaimValue, FigurePosition, PaperClaim, ReportMetric, RunScale,
};
use super::points::MeasuredPoint;

/// Whether a claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimVerdict {
    Holds,
    Differs,
    /// The claim cannot be shown in virtual time or at this scale.
    CannotBeSaid,
    /// A design is missing, or the options excluded its points.
    NotRun,
}

impl ClaimVerdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Differs => "differs",
            Self::CannotBeSaid => "cannot be said here",
            Self::NotRun => "not run",
        }
    }
}

/// A claim with its outcome.
#[derive(Clone, Debug)]
pub(super) struct JudgedClaim {
    pub(super) claim: PaperClaim,
    pub(super) ours: Option<f64>,
    pub(super) verdict: ClaimVerdict,
    pub(super) why: String,
}

/// Judges a claim.
pub(super) fn judge(claim: &PaperClaim, points: &[MeasuredPoint], scale: RunScale) -> JudgedClaim {
    let judged = |ours, verdict, why: &str| JudgedClaim {
        claim: *claim,
        ours,
        verdict,
        why: why.to_owned(),
    };
    let ours = match value(&claim.value, points) {
        Ok(ours) => ours,
        Err(AbsentValue::Unsaid) => return judged(None, ClaimVerdict::CannotBeSaid, claim.because),
        Err(AbsentValue::Point(what)) => return judged(None, ClaimVerdict::NotRun, &what),
    };
    if scale < claim.least {
        let why = format!("stated for other sizes: --scale {} compares it", claim.least.name());
        return judged(Some(ours), ClaimVerdict::CannotBeSaid, &why);
    }
    match claim.rule.is_met(ours) {
        true => judged(Some(ours), ClaimVerdict::Holds, ""),
        false => judged(Some(ours), ClaimVerdict::Differs, claim.because),
    }
}

/// Why there is no value.
#[derive(Clone, Debug, PartialEq)]
enum AbsentValue {
    Unsaid,
    Point(String),
}

fn value(value: &ClaimValue, points: &[MeasuredPoint]) -> Result<f64, AbsentValue> {
    let at = |metric: ReportMetric, spot: FigurePosition| {
        let (_, row, x) = spot;
        let Some(point) = points.iter().find(|point| point.is_at(spot)) else {
            return Err(AbsentValue::Point(format!("`{row}` at {x} was left out")));
        };
        match point.median(metric) {
            Some(value) => Ok(value),
            None if point.is_missing => {
                Err(AbsentValue::Point(format!("needs the design `{}`", point.row.design)))
            }
            None => Err(AbsentValue::Point(format!("`{row}` at {x} did not run"))),
        }
    };
    match *value {
        ClaimValue::Of(metric, spot) => at(metric, spot),
        ClaimValue::Ratio(metric, over, under) => Ok(at(metric, over)? / at(metric, under)?),
        ClaimValue::Least { metric, panel, rows: [first, second], from, to } => {
            let mut positions: Vec<f64> = points.iter().map(|point| point.at.x).collect();
            positions.retain(|x| (from..=to).contains(x));
            positions.sort_by(f64::total_cmp);
            positions.dedup();
            let mut least = f64::INFINITY;
            for x in positions {
                let ratio = at(metric, (panel, first, x))? / at(metric, (panel, second, x))?;
                // `min` would drop it, and the claim could hold by the other positions.
                if ratio.is_nan() {
                    return Ok(ratio);
                }
                least = least.min(ratio);
            }
            match least.is_finite() {
                true => Ok(least),
                false => Err(AbsentValue::Point(format!("there is no point from {from} to {to}"))),
            }
        }
        ClaimValue::Closed(compute) => Ok(compute()),
        ClaimValue::Unsaid => Err(AbsentValue::Unsaid),
    }
}

/// Upper bound of values that count as zero, per operation.
const ZERO: f64 = 0.001;

impl ClaimRule {
    /// Whether the value meets the rule. A value that is not a number does not.
    pub(super) fn is_met(self, value: f64) -> bool {
        match self {
            Self::Within(0.0, _) => value.abs() < ZERO,
            Self::Within(stated, share) => (value - stated).abs() <= stated.abs() * share,
            Self::Factor(stated, factor) => {
                let is_other_way = (stated > 1.0 && value < 1.0) || (stated < 1.0 && value > 1.0);
                (stated / factor..=stated * factor).contains(&value) && !is_other_way
            }
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }

    /// The paper's figure with its tolerance.
    pub(super) fn text(self) -> String {
        match self {
            Self::Within(0.0, _) => "0".to_owned(),
            Self::Within(stated, share) => format!("{stated} ± {:.0}%", share * 100.0),
            Self::Factor(stated, factor) => format!("{stated} (within × {factor})"),
            Self::AtLeast(bound) => format!("≥ {bound}"),
            Self::AtMost(bound) => format!("≤ {bound}"),
        }
    }
}

/// A figure with three digits.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100_000.0 => farleaf_bench::units::rate(value),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        size if size < ZERO => format!("{value:.1e}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::experiment::{AxisPosition, COUNT, FigureRow, RATIO};
    use super::*;
    use farleaf_bench::report::{PerOperation, Report};

    const ROW: FigureRow = FigureRow { name: "dex", design: "dex", words: "", caches: true };
    const OTHER: FigureRow =
        FigureRow { name: "other", design: "no-design", words: "", caches: true };

    fn point(row: FigureRow, x: f64, reads: &[f64]) -> MeasuredPoint {
        let report = |reads: &f64| Report {
            throughput_ops_per_s: reads * 1e6,
            per_operation: PerOperation { reads: *reads, ..PerOperation::default() },
            ..Report::default()
        };
        MeasuredPoint {
            figure: "1",
            panel: "a",
            row,
            at: AxisPosition { x, ..AxisPosition::DEX },
            is_missing: reads.is_empty(),
            lines: Vec::new(),
            reports: reads.iter().map(report).collect(),
        }
    }

    fn verdict(claim: &PaperClaim, points: &[MeasuredPoint]) -> ClaimVerdict {
        judge(claim, points, RunScale::Small).verdict
    }

    #[test]
    fn a_count_outside_its_tolerance_differs() {
        let claim = PaperClaim::new(
            "0.33 READs",
            ClaimValue::Of(ReportMetric::Reads, ("a", "dex", 1.0)),
            ClaimRule::Within(0.33, COUNT),
        )
        .because("the reason");
        assert_eq!(verdict(&claim, &[point(ROW, 1.0, &[0.345])]), ClaimVerdict::Holds);
        let judged = judge(&claim, &[point(ROW, 1.0, &[0.35])], RunScale::Small);
        assert_eq!((judged.verdict, &*judged.why), (ClaimVerdict::Differs, "the reason"));
        assert_eq!(judged.ours, Some(0.35));
        let nan = [point(ROW, 1.0, &[f64::NAN])];
        assert_eq!(verdict(&claim, &nan), ClaimVerdict::Differs);
    }

    #[test]
    fn a_loss_is_no_small_gain() {
        let gain = ClaimRule::Factor(1.25, RATIO);
        assert!(gain.is_met(1.0) && gain.is_met(1.8));
        assert!(!gain.is_met(0.99) && !gain.is_met(1.9));
        let saving = ClaimRule::Factor(0.8, RATIO);
        assert!(saving.is_met(1.0) && saving.is_met(0.6) && !saving.is_met(1.01));
        assert!(ClaimRule::Factor(1.0, RATIO).is_met(0.7));
    }

    #[test]
    fn the_median_of_the_seeds_counts() {
        let claim = PaperClaim::new(
            "",
            ClaimValue::Of(ReportMetric::Reads, ("a", "dex", 1.0)),
            ClaimRule::Within(1.0, COUNT),
        );
        assert_eq!(verdict(&claim, &[point(ROW, 1.0, &[9.0, 1.0, 0.5])]), ClaimVerdict::Holds);
        assert_eq!(verdict(&claim, &[point(ROW, 1.0, &[9.0, 1.2, 0.5])]), ClaimVerdict::Differs);
    }

    #[test]
    fn orderings_are_exact_at_every_position() {
        let metric = ReportMetric::Throughput;
        let value =
            ClaimValue::Least { metric, panel: "a", rows: ["dex", "other"], from: 1.0, to: 2.0 };
        let claim = PaperClaim::new("", value, ClaimRule::AtLeast(1.0));
        let mut points = vec![
            point(ROW, 1.0, &[2.0]),
            point(ROW, 2.0, &[2.0]),
            point(OTHER, 1.0, &[1.0]),
            point(OTHER, 2.0, &[2.0]),
            // Outside the range.
            point(ROW, 3.0, &[1.0]),
            point(OTHER, 3.0, &[5.0]),
        ];
        assert_eq!(verdict(&claim, &points), ClaimVerdict::Holds);
        points[3] = point(OTHER, 2.0, &[2.0001]);
        assert_eq!(verdict(&claim, &points), ClaimVerdict::Differs);
        points[3] = point(OTHER, 2.0, &[f64::NAN]);
        assert_eq!(verdict(&claim, &points), ClaimVerdict::Differs);
    }

    #[test]
    fn ratios_have_a_factor_on_both_sides() {
        let spots = [("a", "dex", 1.0), ("a", "dex", 2.0)];
        let value = ClaimValue::Ratio(ReportMetric::Throughput, spots[0], spots[1]);
        let claim = PaperClaim::new("", value, ClaimRule::Factor(3.0, RATIO));
        for (ours, expected) in [
            (1.9, ClaimVerdict::Differs),
            (2.1, ClaimVerdict::Holds),
            (4.4, ClaimVerdict::Holds),
            (4.6, ClaimVerdict::Differs),
        ] {
            let points = [point(ROW, 1.0, &[ours]), point(ROW, 2.0, &[1.0])];
            assert_eq!(verdict(&claim, &points), expected, "{ours}");
        }
    }

    #[test]
    fn what_did_not_run_is_not_judged() {
        let value = ClaimValue::Of(ReportMetric::Reads, ("a", "other", 1.0));
        let claim = PaperClaim::new("", value, ClaimRule::Within(1.0, COUNT));
        let missing = judge(&claim, &[point(OTHER, 1.0, &[])], RunScale::Small);
        assert_eq!(missing.verdict, ClaimVerdict::NotRun);
        assert_eq!(missing.why, "needs the design `no-design`");
        assert_eq!(verdict(&claim, &[]), ClaimVerdict::NotRun);
        let unsaid = PaperClaim::unsaid("", "no locks in virtual time");
        let judged = judge(&unsaid, &[], RunScale::Paper);
        assert_eq!(
            (judged.verdict, &*judged.why),
            (ClaimVerdict::CannotBeSaid, "no locks in virtual time")
        );
    }

    #[test]
    fn a_small_run_does_not_judge_what_depends_on_size() {
        let value = ClaimValue::Of(ReportMetric::Reads, ("a", "dex", 1.0));
        let claim = PaperClaim::new("", value, ClaimRule::Within(1.0, COUNT)).from(RunScale::Paper);
        let points = [point(ROW, 1.0, &[2.0])];
        let small = judge(&claim, &points, RunScale::Medium);
        assert_eq!((small.verdict, small.ours), (ClaimVerdict::CannotBeSaid, Some(2.0)));
        assert_eq!(judge(&claim, &points, RunScale::Paper).verdict, ClaimVerdict::Differs);
    }

    #[test]
    fn zero_is_less_than_one_in_a_thousand() {
        assert!(ClaimRule::Within(0.0, COUNT).is_met(0.0002));
        assert!(!ClaimRule::Within(0.0, COUNT).is_met(0.002));
        assert_eq!(digits(0.0002), "2.0e-4");
        assert_eq!([digits(0.33), digits(333.9), digits(0.0)], ["0.330", "334", "0"]);
    }
}
