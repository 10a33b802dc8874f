//! Formats figures with units, for people.

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
}
