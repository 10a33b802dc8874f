//! Formats reports as tables for terminals.

use crate::report::Report;
use comfy_table::{CellAlignment, Table, presets};

/// A table with one row per report.
pub fn table(reports: &[Report]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "design", "workload", "ops/s", "p50", "p99", "p99.9", "reads", "writes", "atomics", "RPCs",
        "bytes", "errors",
    ]);
    for report in reports {
        let cost = &report.per_operation;
        table.add_row([
            report.index.clone(),
            report.workload.clone(),
            rate(report.throughput_ops_per_s),
            duration(report.latency_ns.p50),
            duration(report.latency_ns.p99),
            duration(report.latency_ns.p999),
            format!("{:.3}", cost.reads),
            format!("{:.3}", cost.writes),
            format!("{:.3}", cost.atomics),
            format!("{:.3}", cost.rpcs),
            format!("{:.1}", cost.bytes()),
            report.errors.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// A table less than 100 columns wide. It omits the 99.9th percentile, and the errors if there are
/// none.
pub fn narrow_table(reports: &[Report]) -> String {
    let has_errors = reports.iter().any(|report| report.errors > 0);
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    let header =
        ["design", "workload", "ops/s", "p50", "p99", "reads", "writes", "CAS", "RPCs", "bytes"];
    table.set_header(header.into_iter().chain(has_errors.then_some("errors")));
    for report in reports {
        let cost = &report.per_operation;
        let cells = [
            report.index.clone(),
            report.workload.clone(),
            rate(report.throughput_ops_per_s),
            duration(report.latency_ns.p50),
            duration(report.latency_ns.p99),
            format!("{:.3}", cost.reads),
            format!("{:.3}", cost.writes),
            format!("{:.3}", cost.atomics),
            format!("{:.3}", cost.rpcs),
            format!("{:.0}", cost.bytes()),
        ];
        table.add_row(cells.into_iter().chain(has_errors.then(|| report.errors.to_string())));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// Formats a rate with a unit prefix, such as `1.25 M`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

/// Formats a duration with a unit, such as `12.3 µs`.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_units() {
        assert_eq!([rate(12.0), rate(12_345.0), rate(2_345_678.0)], ["12", "12.3 k", "2.35 M"]);
        let times = [duration(999), duration(1_500), duration(2_500_000), duration(3_000_000_000)];
        assert_eq!(times, ["999 ns", "1.5 µs", "2.5 ms", "3.00 s"]);
    }

    #[test]
    fn every_report_is_a_row() {
        let report = Report { index: "coarse".to_owned(), ..Report::default() };
        let text = table(&[report.clone(), report.clone()]);
        assert_eq!(text.matches("coarse").count(), 2);
        let failed = Report { errors: 7, ..report.clone() };
        assert!(!narrow_table(std::slice::from_ref(&report)).contains("errors"));
        assert!(narrow_table(&[report, failed]).contains("errors"));
    }
}
