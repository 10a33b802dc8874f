//! A region's counts as text in Prometheus' format, under the names that a server's metrics have:
//! `farleaf_`, the name, and `_total` for what only grows.
//!
//! *Thread safety*: plain functions.

use crate::mode::FaultMode;
use crate::stats::FarStats;
use std::fmt::Write;

/// Whether a value only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarMetricKind {
    Counter,
    Gauge,
}

/// The counts, each with its name and its meaning.
fn table(stats: &FarStats) -> [(FarMetricKind, &'static str, &'static str, u64); 25] {
    use FarMetricKind::{Counter, Gauge};
    // Without `..`, so that no count is forgotten.
    let FarStats {
        touches,
        zero_fills,
        fills,
        fills_ahead,
        ahead_hits,
        reads,
        writes,
        bytes_in,
        bytes_out,
        clean_evictions,
        write_backs,
        kept,
        passed_over,
        discards,
        write_backs_saved,
        waits_for_room,
        retries,
        failed_fills,
        failed_write_backs,
        remote_bytes,
        resident,
        peak_resident,
        buffer_pages,
        held,
        lost_copies,
    } = *stats;
    [
        (Counter, "touches", "Faults, and pages that were asked for", touches),
        (Counter, "zero_fills", "Pages that began as zeros", zero_fills),
        (Counter, "fills", "Pages read because they were touched", fills),
        (Counter, "fills_ahead", "Pages read ahead", fills_ahead),
        (Counter, "ahead_hits", "Pages read ahead that were touched", ahead_hits),
        (Counter, "reads", "READs posted", reads),
        (Counter, "writes", "WRITEs posted", writes),
        (Counter, "read_bytes", "Bytes read", bytes_in),
        (Counter, "written_bytes", "Bytes written", bytes_out),
        (Counter, "clean_evictions", "Pages that left without a WRITE", clean_evictions),
        (Counter, "write_backs", "Pages that left after a WRITE", write_backs),
        (Counter, "kept", "Pages that stayed after their WRITE", kept),
        (Counter, "passed_over", "Pages that the policy passed over", passed_over),
        (Counter, "discards", "Pages discarded", discards),
        (Counter, "write_backs_saved", "Changed pages discarded", write_backs_saved),
        (Counter, "waits_for_room", "Touches that found the buffer full", waits_for_room),
        (Counter, "retries", "READs and WRITEs repeated", retries),
        (Counter, "failed_fills", "Pages whose READ failed for good", failed_fills),
        (Counter, "failed_write_backs", "Pages whose WRITE failed", failed_write_backs),
        (Gauge, "remote_bytes", "Bytes taken from memory servers", remote_bytes),
        (Gauge, "resident_pages", "Pages in local memory", resident.into()),
        (Gauge, "peak_resident_pages", "Most pages in local memory", peak_resident.into()),
        (Gauge, "buffer_pages", "Pages of the buffer", buffer_pages.into()),
        (Gauge, "held_pages", "Pages held in the buffer", held.into()),
        (Counter, "lost_copies", "Second copies of chunks that are missing", lost_copies),
    ]
}

/// The text of these counts, all with the label `region`.
pub(crate) fn text(region: &str, mode: FaultMode, stats: &FarStats) -> String {
    let mut label = String::new();
    for letter in region.chars() {
        match letter {
            '\n' => label.push_str("\\n"),
            '\\' | '"' => label.extend(['\\', letter]),
            _ => label.push(letter),
        }
    }
    let (name, kernel) = match mode {
        FaultMode::Userfaultfd { kernel_faults } => ("userfaultfd", kernel_faults),
        FaultMode::Signal => ("signal", false),
    };
    let mut text = format!(
        "# HELP farleaf_far_mode How faults are noticed, and whether system calls wait for pages.\n\
         # TYPE farleaf_far_mode gauge\n\
         farleaf_far_mode{{region=\"{label}\",mode=\"{name}\",system_calls_wait=\"{kernel}\"}} 1\n"
    );
    for (kind, name, help, value) in table(stats) {
        let (kind, ending) = match kind {
            FarMetricKind::Counter => ("counter", "_total"),
            FarMetricKind::Gauge => ("gauge", ""),
        };
        let name = format!("farleaf_far_{name}{ending}");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name}{{region=\"{label}\"}} {value}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_count_has_one_line() {
        let stats = FarStats {
            touches: 101,
            zero_fills: 102,
            fills: 103,
            fills_ahead: 104,
            ahead_hits: 105,
            reads: 106,
            writes: 107,
            bytes_in: 108,
            bytes_out: 109,
            clean_evictions: 110,
            write_backs: 111,
            kept: 112,
            passed_over: 113,
            discards: 114,
            write_backs_saved: 115,
            waits_for_room: 116,
            retries: 117,
            failed_fills: 118,
            failed_write_backs: 119,
            remote_bytes: 120,
            resident: 121,
            peak_resident: 122,
            buffer_pages: 123,
            held: 124,
            lost_copies: 125,
        };
        let text = text("a\"b", FaultMode::Signal, &stats);
        let mode =
            "farleaf_far_mode{region=\"a\\\"b\",mode=\"signal\",system_calls_wait=\"false\"} 1";
        assert!(text.lines().any(|line| line == mode), "{text}");
        let is_sample = |line: &&str| !line.starts_with('#') && *line != mode;
        let mut names = BTreeSet::new();
        let mut values = Vec::new();
        for line in text.lines().filter(is_sample) {
            let (name, value) = line.split_once("{region=\"a\\\"b\"} ").unwrap();
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name}");
            assert!(names.insert(name), "{name} is there twice");
            values.push(value.parse::<u64>().unwrap());
        }
        assert_eq!(values, (101..=125).collect::<Vec<_>>());
    }
}
