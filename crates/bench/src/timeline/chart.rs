//! Draws a timeline as a chart of block characters for a terminal.

use super::Timeline;
use crate::units::{duration, rate};
use std::fmt::Write as _;

/// Width of the drawing in columns. Labels take another 11, for a total of 97.
const WIDTH: usize = 86;

/// Height of the drawing in lines, each of eight steps.
const HEIGHT: usize = 6;

/// With more compute servers than this, the chart omits their lines.
const MAX_SERVERS: usize = 16;

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws a timeline, at most 100 columns wide: operations per second over time with a scale, then
/// the marks, then a line per compute server if there are several.
pub fn chart(timeline: &Timeline) -> String {
    let columns = ChartColumns::new(timeline);
    let all = columns.of(&timeline.ops_per_s());
    let most = all.iter().copied().fold(0.0, f64::max);
    let mut text = format!(
        "operations/s over time, {} intervals of {}\n",
        timeline.len(),
        duration(timeline.interval_ns)
    );
    for line in (0..HEIGHT).rev() {
        let label = match line + 1 {
            HEIGHT => rate(most),
            _ => String::new(),
        };
        let drawing: String = all.iter().map(|value| block(*value, most, line, HEIGHT)).collect();
        let _ = writeln!(text, "{label:>9} │{}", drawing.trim_end());
    }
    let mut axis: Vec<char> = vec!['─'; columns.width];
    for mark in &timeline.marks {
        axis[columns.at(mark.at_ns)] = '▲';
    }
    let _ = writeln!(text, "{:>9} └{}", "0", String::from_iter(axis));
    let end = duration(timeline.elapsed_ns);
    let _ = writeln!(text, "{:>9}  0{end:>width$}", "", width = columns.width.max(2) - 1);
    for mark in &timeline.marks {
        let _ = writeln!(text, "{:>9}  ▲ {}: {}", "", duration(mark.at_ns), mark.label);
    }
    if (2..=MAX_SERVERS).contains(&timeline.compute_servers.len()) {
        let servers = 0..timeline.compute_servers.len();
        let each: Vec<_> = servers.map(|one| columns.of(&timeline.ops_per_s_of(one))).collect();
        let most = each.iter().flatten().copied().fold(0.0, f64::max);
        let _ = writeln!(text, "of each compute server, 0 to {}", rate(most));
        for (number, values) in each.iter().enumerate() {
            let drawing: String = values.iter().map(|value| block(*value, most, 0, 1)).collect();
            let _ = writeln!(text, "{number:>9} │{}", drawing.trim_end());
        }
        let busiest = columns.of(&timeline.busiest_share());
        let drawing: String = busiest.iter().map(|share| block(*share, 1.0, 0, 1)).collect();
        let (first, last) = (busiest[0], busiest[busiest.len() - 1]);
        let _ = writeln!(
            text,
            "the busiest one's share, 0 to 100%: {:.0}% at first, {:.0}% at last",
            first * 100.0,
            last * 100.0
        );
        let _ = writeln!(text, "{:>9} │{}", "", drawing.trim_end());
    }
    text.truncate(text.trim_end().len());
    text
}

/// The character of one column on a line, where lines are counted from the bottom. A positive value
/// always draws at least one step.
fn block(value: f64, most: f64, line: usize, lines: usize) -> char {
    if value <= 0.0 {
        return BLOCKS[0];
    }
    let steps = ((value / most * 8.0 * lines as f64).round() as usize).max(1);
    BLOCKS[steps.saturating_sub(8 * line).min(8)]
}

/// Maps intervals to columns: if there are few intervals, each takes several columns; if there are
/// many, they share columns.
struct ChartColumns {
    width: usize,
    intervals: usize,
    elapsed_ns: u64,
}

impl ChartColumns {
    fn new(timeline: &Timeline) -> Self {
        let intervals = timeline.len();
        let width = match WIDTH / intervals {
            0 => WIDTH,
            each => each.min(8) * intervals,
        };
        Self { width, intervals, elapsed_ns: timeline.elapsed_ns.max(1) }
    }

    /// The average of the intervals in each column.
    fn of(&self, values: &[f64]) -> Vec<f64> {
        let column = |column: usize| {
            let from = column * self.intervals / self.width;
            let to = ((column + 1) * self.intervals).div_ceil(self.width).max(from + 1);
            values[from..to].iter().sum::<f64>() / (to - from) as f64
        };
        (0..self.width).map(column).collect()
    }

    fn at(&self, ns: u64) -> usize {
        let share = ns as f64 / self.elapsed_ns as f64;
        ((share * self.width as f64) as usize).min(self.width - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(operations: Vec<u64>) -> Timeline {
        let elapsed_ns = 1_000_000 * operations.len() as u64;
        let errors = vec![0; operations.len()];
        let halves: Vec<u64> = operations.iter().map(|count| count / 2).collect();
        let compute_servers = vec![halves.clone(), halves];
        let marks = Vec::new();
        Timeline { interval_ns: 1_000_000, elapsed_ns, operations, errors, compute_servers, marks }
    }

    #[test]
    fn a_dip_and_its_mark_are_drawn_where_they_are() {
        let mut dip = timeline([vec![2_000; 20], vec![500; 5], vec![2_000; 15]].concat());
        dip.mark(20_500_000, "hotspot shifts");
        let expected = "\
operations/s over time, 40 intervals of 1.0 ms
   2.00 M │████████████████████████████████████████          ██████████████████████████████
          │████████████████████████████████████████          ██████████████████████████████
          │████████████████████████████████████████          ██████████████████████████████
          │████████████████████████████████████████          ██████████████████████████████
          │████████████████████████████████████████▄▄▄▄▄▄▄▄▄▄██████████████████████████████
          │████████████████████████████████████████████████████████████████████████████████
        0 └─────────────────────────────────────────▲──────────────────────────────────────
           0                                                                        40.0 ms
           ▲ 20.5 ms: hotspot shifts
of each compute server, 0 to 1.00 M
        0 │████████████████████████████████████████▂▂▂▂▂▂▂▂▂▂██████████████████████████████
        1 │████████████████████████████████████████▂▂▂▂▂▂▂▂▂▂██████████████████████████████
the busiest one's share, 0 to 100%: 50% at first, 50% at last
          │▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄";
        assert_eq!(chart(&dip), expected);
    }

    #[test]
    fn a_chart_is_never_too_wide() {
        for intervals in [1, 2, 11, 59, 60, 61, 85, 86, 87, 500, 2_000] {
            let mut one = timeline((0..intervals).map(|number| number * 3).collect());
            one.mark(0, "start");
            one.mark(u64::MAX, "later than the end");
            let text = chart(&one);
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
            assert_eq!(text.lines().count(), 1 + HEIGHT + 2 + 2 + 3 + 2);
        }
        let nothing = chart(&timeline(vec![0; 5]));
        assert!(nothing.contains("0 │") && !nothing.contains('█'), "{nothing}");
    }
}
