//! Throughput over time: the operations that clients complete in each interval of a run, with marks
//! for events.
//!
//! *Invariants*
//! - timeline.T1. The operations of all intervals add up to those of the run, and so do the errors.
//! - timeline.T2. Intervals follow each other without a gap, from the start of the measurement to
//!   its end.
//!
//! *Thread safety*: a recorder belongs to its client and shares nothing. A timeline is a plain
//! value.

mod chart;
mod recorder;

pub use chart::chart;

pub(crate) use recorder::TimelineRecorder;

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// How long the intervals are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// This many nanoseconds of the fabric's time, doubled until there are at most
    /// [`MAX_INTERVALS`].
    Nanoseconds(u64),
    /// At most this many for the whole run, and more than half as many if the run is long enough.
    Parts(u32),
}

/// Upper bound on the intervals of a run.
pub const MAX_INTERVALS: u64 = 2_000;

/// Operations completed over time. All times are in nanoseconds from the start of the measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Length of each interval but the last, which takes the remainder: 0.5 to 1.5 of this length.
    pub interval_ns: u64,
    /// Total length of all intervals.
    pub elapsed_ns: u64,
    /// Operations that ended in each interval, including failed ones.
    pub operations: Vec<u64>,
    /// Failed operations in each interval.
    pub errors: Vec<u64>,
    /// Operations in each interval, by compute server. In designs whose compute servers own keys,
    /// this is the owner of the operation's (first) key; otherwise it is the client's compute
    /// server. Empty if there is only one compute server, or if there are too many.
    pub compute_servers: Vec<Vec<u64>>,
    /// Events, ordered by time.
    pub marks: Vec<TimelineMark>,
}

/// An event during the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineMark {
    /// When it happened.
    pub at_ns: u64,
    /// A short description.
    pub label: String,
}

impl Timeline {
    /// Combines the recordings of all clients from `start_ns` to `end_ns`. Returns `None` if there
    /// are none.
    pub(crate) fn of(recorders: Vec<TimelineRecorder>, start_ns: u64, end_ns: u64) -> Option<Self> {
        let (sum, kind) = TimelineRecorder::sum(recorders)?;
        let elapsed_ns = end_ns.saturating_sub(start_ns).max(1);
        let joined = match kind {
            Interval::Nanoseconds(_) => 1,
            Interval::Parts(parts) => {
                elapsed_ns.div_ceil(sum.interval_ns()).div_ceil(parts.max(1).into())
            }
        };
        let interval_ns = sum.interval_ns() * joined;
        // A remainder of less than half an interval joins the interval before it.
        let intervals = ((elapsed_ns + interval_ns / 2) / interval_ns).max(1) as usize;
        let mut timeline = Self {
            interval_ns,
            elapsed_ns,
            operations: vec![0; intervals],
            errors: vec![0; intervals],
            compute_servers: match sum.servers() {
                1 => Vec::new(),
                servers => vec![vec![0; intervals]; servers],
            },
            marks: Vec::new(),
        };
        for (number, row) in sum.rows().enumerate() {
            let interval = (number / joined as usize).min(intervals - 1);
            timeline.errors[interval] += row.errors;
            for (server, operations) in row.servers.iter().enumerate() {
                timeline.operations[interval] += operations;
                if let Some(of_server) = timeline.compute_servers.get_mut(server) {
                    of_server[interval] += operations;
                }
            }
        }
        Some(timeline)
    }

    /// Adds a mark, keeping marks ordered by time.
    pub fn mark(&mut self, at_ns: u64, label: impl Into<String>) {
        let place = self.marks.partition_point(|mark| mark.at_ns <= at_ns);
        self.marks.insert(place, TimelineMark { at_ns, label: label.into() });
    }

    /// Number of intervals.
    #[expect(clippy::len_without_is_empty, reason = "a timeline has at least one interval")]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// When an interval starts.
    pub fn start_ns(&self, interval: usize) -> u64 {
        self.interval_ns * interval as u64
    }

    pub fn length_ns(&self, interval: usize) -> u64 {
        match interval + 1 == self.len() {
            true => self.elapsed_ns - self.start_ns(interval),
            false => self.interval_ns,
        }
    }

    /// Successful operations per second in each interval.
    pub fn ops_per_s(&self) -> Vec<f64> {
        let succeeded = self.operations.iter().zip(&self.errors).map(|(all, failed)| all - failed);
        self.rates(succeeded)
    }

    /// One compute server's operations per second in each interval.
    ///
    /// # Panics
    /// If the timeline has no counts for this compute server.
    pub fn ops_per_s_of(&self, compute_server: usize) -> Vec<f64> {
        self.rates(self.compute_servers[compute_server].iter().copied())
    }

    /// One compute server's share of each interval's operations, from 0 to 1.
    ///
    /// # Panics
    /// If the timeline has no counts for this compute server.
    pub fn share_of(&self, compute_server: usize) -> Vec<f64> {
        let all = self.operations.iter().zip(&self.compute_servers[compute_server]);
        all.map(|(all, own)| *own as f64 / (*all).max(1) as f64).collect()
    }

    /// The largest share of any compute server in each interval; empty if the timeline has no
    /// counts by compute server.
    pub fn busiest_share(&self) -> Vec<f64> {
        let servers = 0..self.compute_servers.len();
        let larger = |most: Vec<f64>, share: Vec<f64>| {
            most.into_iter().zip(share).map(|(a, b)| a.max(b)).collect()
        };
        servers.map(|server| self.share_of(server)).reduce(larger).unwrap_or_default()
    }

    /// Each compute server's share of the whole run's operations.
    pub fn shares(&self) -> Vec<f64> {
        let all = self.operations.iter().sum::<u64>().max(1) as f64;
        let share = |own: &Vec<u64>| own.iter().sum::<u64>() as f64 / all;
        self.compute_servers.iter().map(share).collect()
    }

    fn rates(&self, counts: impl Iterator<Item = u64>) -> Vec<f64> {
        let rate = |(interval, count): (usize, u64)| {
            count as f64 / self.length_ns(interval).max(1) as f64 * 1e9
        };
        counts.enumerate().map(rate).collect()
    }

    /// A CSV file with a header and a row per interval. A mark appears, with its time, in the row
    /// of its interval.
    pub fn to_csv(&self) -> String {
        let mut text = String::from("interval_start_ms,interval_ms,operations,errors,ops_per_s");
        for server in 0..self.compute_servers.len() {
            let _ = write!(text, ",operations_of_compute_server_{server}");
        }
        let busiest = self.busiest_share();
        let shares: Vec<Vec<f64>> =
            (0..self.compute_servers.len()).map(|server| self.share_of(server)).collect();
        for server in 0..shares.len() {
            let _ = write!(text, ",share_of_compute_server_{server}");
        }
        if !busiest.is_empty() {
            text.push_str(",busiest_share");
        }
        text.push_str(",marks\n");
        for (interval, rate) in self.ops_per_s().into_iter().enumerate() {
            let (start_ns, length_ns) = (self.start_ns(interval), self.length_ns(interval));
            let _ = write!(
                text,
                "{},{},{},{},{rate:.1}",
                start_ns as f64 / 1e6,
                length_ns as f64 / 1e6,
                self.operations[interval],
                self.errors[interval],
            );
            for of_server in &self.compute_servers {
                let _ = write!(text, ",{}", of_server[interval]);
            }
            for share in shares.iter().chain(Some(&busiest).filter(|busiest| !busiest.is_empty())) {
                let _ = write!(text, ",{:.4}", share[interval]);
            }
            let is_last = interval + 1 == self.len();
            let inside = |mark: &&TimelineMark| {
                mark.at_ns >= start_ns && (is_last || mark.at_ns < start_ns + length_ns)
            };
            let marks = self.marks.iter().filter(inside);
            let marks: Vec<String> = marks
                .map(|mark| format!("{} ms: {}", mark.at_ns as f64 / 1e6, mark.label))
                .collect();
            let _ = match &*marks {
                [] => writeln!(text, ","),
                marks => writeln!(text, ",\"{}\"", marks.join("; ").replace('"', "\"\"")),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(interval: Interval, ends_ns: impl Iterator<Item = u64>, end_ns: u64) -> Timeline {
        let mut recorder = TimelineRecorder::new(interval, 100, 2, 1);
        for (number, end_ns) in ends_ns.enumerate() {
            recorder.record((number % 2) as u16, 100 + end_ns, number % 10 == 0);
        }
        Timeline::of(vec![recorder], 100, 100 + end_ns).unwrap()
    }

    #[test]
    fn intervals_add_up_to_the_run() {
        let every_ns = 7_000;
        for count in [1, 3, 100, 10_000, 1_000_000] {
            let ends = || (1..=count).map(|number| number * every_ns);
            for interval in [Interval::Parts(60), Interval::Nanoseconds(500_000)] {
                let timeline = recorded(interval, ends(), count * every_ns);
                assert_eq!(timeline.operations.iter().sum::<u64>(), count, "T1");
                assert_eq!(timeline.errors.iter().sum::<u64>(), count.div_ceil(10), "T1");
                let servers = timeline.compute_servers.iter().flatten().sum::<u64>();
                assert_eq!(servers, count, "T1");
                let lengths = (0..timeline.len()).map(|interval| timeline.length_ns(interval));
                assert_eq!(lengths.sum::<u64>(), timeline.elapsed_ns, "T2");
                assert!(timeline.len() as u64 <= MAX_INTERVALS);
            }
            let parts = recorded(Interval::Parts(60), ends(), count * every_ns).len();
            assert!(parts <= 60 && (count < 100 || parts > 30), "{count}: {parts} intervals");
        }
    }

    #[test]
    fn a_steady_rate_is_a_flat_line() {
        let ends = (1..=10_000).map(|number| number * 1_000);
        let timeline = recorded(Interval::Nanoseconds(300_000), ends, 10_000_000);
        assert_eq!(timeline.len(), 33);
        let rates = timeline.ops_per_s();
        // A tenth of the operations failed.
        assert!(rates.iter().all(|rate| (0.89e6..0.91e6).contains(rate)), "{rates:?}");
        assert_eq!(timeline.length_ns(32), 400_000, "the rest is part of the last interval");
    }

    #[test]
    fn intervals_that_are_too_many_become_longer() {
        let timeline = recorded(Interval::Nanoseconds(10), [5, 1_000_000].into_iter(), 1_000_000);
        assert_eq!(timeline.interval_ns, 640, "doubled until there are at most 2,000");
        assert_eq!((timeline.operations[0], timeline.operations.last()), (1, Some(&1)));
    }

    #[test]
    fn marks_are_kept_by_time_and_written_once() {
        let ends = (1..=100).map(|number| number * 10_000);
        let mut timeline = recorded(Interval::Nanoseconds(250_000), ends, 1_000_000);
        timeline.mark(500_000, "a boundary moves");
        timeline.mark(1_000_000, "the end");
        timeline.mark(300_000, "so called \"hotspot\" shifts");
        timeline.mark(500_000, "another");
        let csv = timeline.to_csv();
        let lines: Vec<&str> = csv.lines().collect();
        let columns = "interval_start_ms,interval_ms,operations,errors,ops_per_s,\
                       operations_of_compute_server_0,operations_of_compute_server_1,\
                       share_of_compute_server_0,share_of_compute_server_1,busiest_share,marks";
        assert_eq!((lines[0], lines.len()), (columns, 5));
        assert!(lines[1].starts_with("0,0.25,24,3,84000.0,12,12,0.5000,0.5000,0.5000,"), "{csv}");
        assert!(lines[2].ends_with(",\"0.3 ms: so called \"\"hotspot\"\" shifts\""), "{csv}");
        assert!(lines[3].ends_with(",\"0.5 ms: a boundary moves; 0.5 ms: another\""), "{csv}");
        assert!(lines[4].ends_with(",\"1 ms: the end\""), "{csv}");
    }
}
