//! What the papers' files name instead of measuring it. First of all the scalability analysis of
//! Ziegler et al. (§2.3): Tables 1 and 2 and Figure 3 as closed forms.
//!
//! Symbols are the paper's, with the example values of its Table 1.

use super::experiment::ClosedCurve;
use farleaf_bench::workload::OperationMix;

/// A function by the name that a file has for it.
pub(super) type NamedFunction<T> = (&'static str, fn() -> T);

/// The formulas that a claim can name.
pub(super) const FORMULAS: [NamedFunction<f64>; 11] = [
    ("fanout", fanout),
    ("leaves", leaves),
    ("height", || height(1.0)),
    ("height, 4 servers", || height(4.0)),
    ("inserts of C", || inserts("insert:5")),
    ("inserts of D", || inserts("insert:50")),
    ("growth of points, fine, skewed", || growth("fine", true, 0.0)),
    ("growth of ranges, fine", || growth("fine", false, SELECTIVITY)),
    ("growth of ranges, fine, skewed", || growth("fine", true, SELECTIVITY)),
    ("growth of ranges, coarse, skewed", || growth("coarse", true, SELECTIVITY)),
    ("ranges, coarse by hash over by range", || {
        let most = |design| most(design, false, SELECTIVITY, 64.0);
        most("coarse, by hash") / most("coarse")
    }),
];

/// The computed curves that a figure can name.
pub(super) const CURVES: [NamedFunction<Vec<ClosedCurve>>; 2] =
    [("point queries", || curves(0.0)), ("ranges of 0.1%", || curves(SELECTIVITY))];

const BANDWIDTH: f64 = 50e9;
const PAGE: f64 = 1024.0;
const RECORDS: f64 = 100e6;
const KEY: f64 = 8.0;
/// The share of the leaves that a range query selects in Figure 3.
const SELECTIVITY: f64 = 0.001;
/// Read amplification of skewed workloads in Figure 3.
const AMPLIFICATION: f64 = 10.0;
const SERVERS: [f64; 6] = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

/// M = P / 3K.
fn fanout() -> f64 {
    PAGE / (3.0 * KEY)
}

/// L = D / M.
fn leaves() -> f64 {
    RECORDS / fanout()
}

/// The height of a tree over one of `parts` equal parts of the leaves.
fn height(parts: f64) -> f64 {
    ((leaves() / parts).ln() / fanout().ln()).ceil()
}

/// Maximum number of queries per second with this many memory servers. A selectivity of 0 is a
/// point query.
fn most(design: &str, skewed: bool, selectivity: f64, servers: f64) -> f64 {
    let fine = design == "fine";
    let bandwidth = BANDWIDTH * if skewed && !fine { 1.0 } else { servers };
    let height = height(if fine || skewed { 1.0 } else { servers });
    // Range queries under hash partitioning go to every server.
    let descents = if design == "coarse, by hash" && selectivity > 0.0 { servers } else { 1.0 };
    let amplified = if skewed { AMPLIFICATION } else { 1.0 };
    let pages = match selectivity {
        0.0 if skewed => AMPLIFICATION,
        0.0 => 0.0,
        share => share * amplified * leaves(),
    };
    bandwidth / ((descents * height + pages) * PAGE)
}

/// Throughput with 64 servers divided by that with 2.
fn growth(design: &str, skewed: bool, selectivity: f64) -> f64 {
    most(design, skewed, selectivity, 64.0) / most(design, skewed, selectivity, 2.0)
}

fn curves(selectivity: f64) -> Vec<ClosedCurve> {
    let mut curves = Vec::new();
    for (panel, skewed) in [("uniform", false), ("skewed", true)] {
        for row in ["coarse", "coarse, by hash", "fine"] {
            let at = |servers: &f64| (*servers, most(row, skewed, selectivity, *servers));
            curves.push(ClosedCurve { panel, row, points: SERVERS.iter().map(at).collect() });
        }
    }
    curves
}

/// The share of inserts of a mix (Table 3).
fn inserts(mix: &str) -> f64 {
    OperationMix::named(mix).map_or(f64::NAN, |mix| mix.insert_share())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by hand from the formulas of Table 2 with four servers.
    #[test]
    fn the_analysis_with_four_servers() {
        let rounded = |design, skewed| most(design, skewed, SELECTIVITY, 4.0).round();
        assert_eq!(rounded("fine", false), 83_191.0);
        assert_eq!(rounded("coarse", false), 83_191.0);
        assert_eq!(rounded("coarse, by hash", false), 82_768.0);
        assert_eq!(rounded("fine", true), 8_332.0);
        assert_eq!(rounded("coarse", true), 2_083.0);
        assert_eq!((height(1.0), height(4.0), height(64.0)), (4.0, 4.0, 3.0));
    }
}
