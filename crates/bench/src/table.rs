//! Formats reports as tables for terminals.

use crate::report::Report;
use crate::units::{duration, rate};
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

#[cfg(test)]
mod tests {
    use super::*;

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
