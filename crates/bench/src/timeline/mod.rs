//! Throughput over time: what clients complete in each interval of a run, and what happened meanwhile.
//!
//! *Invariants*: T1. the operations of all intervals together are those of the run, and so are the errors.
//! T2. intervals follow each other without a gap, from the start of the measurement to its end.
//!
//! *Thread safety*: a recorder belongs to its client, nothing is shared; a timeline is a plain value.

mod chart;
mod recorder;

pub use chart::chart;

pub(crate) use recorder::Recorder;

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// How long intervals are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// So many nanoseconds of the fabric's time; twice, four times, … as many if there would be more than
    /// [`MOST_INTERVALS`].
    Nanoseconds(u64),
    /// At most so many for the whole run, and more than half as many if it is long enough.
    Parts(u32),
}

/// No run has more intervals.
pub const MOST_INTERVALS: u64 = 2_000;

/// What is completed over time. All times are in nanoseconds from the start of the measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// How long each interval is. The last one has what is left: from half to one and a half of it.
    pub interval_ns: u64,
    /// How long all of them are together.
    pub elapsed_ns: u64,
    /// Operations that ended in each interval, failed ones included.
    pub operations: Vec<u64>,
    /// Those that failed.
    pub errors: Vec<u64>,
    /// The same operations by the compute servers that did them: for designs whose compute servers own
    /// keys, the owner of the operation's (first) key, otherwise the client's. Empty if there are too many.
    pub compute_servers: Vec<Vec<u64>>,
    /// What happened, in the order of time.
    pub marks: Vec<Mark>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// When.
    pub at_ns: u64,
    /// What, in a few words.
    pub label: String,
}

impl Timeline {
    /// Sums up what clients recorded from `start_ns` on, until `end_ns`.
    pub(crate) fn of(recorders: Vec<Recorder>, start_ns: u64, end_ns: u64) -> Option<Self> {
        let (sum, kind) = Recorder::sum(recorders)?;
        let elapsed_ns = end_ns.saturating_sub(start_ns).max(1);
        let joined = match kind {
            Interval::Nanoseconds(_) => 1,
            Interval::Parts(parts) => {
                elapsed_ns.div_ceil(sum.interval_ns()).div_ceil(parts.max(1).into())
            }
        };
        let interval_ns = sum.interval_ns() * joined;
        // What is left of less than half an interval belongs to the one before.
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

    /// Adds a mark.
    pub fn mark(&mut self, at_ns: u64, label: impl Into<String>) {
        let place = self.marks.partition_point(|mark| mark.at_ns <= at_ns);
        self.marks.insert(place, Mark { at_ns, label: label.into() });
    }

    /// How many intervals there are.
    #[expect(clippy::len_without_is_empty, reason = "a timeline has at least one interval")]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// When an interval starts.
    pub fn start_ns(&self, interval: usize) -> u64 {
        self.interval_ns * interval as u64
    }

    /// How long an interval is.
    pub fn length_ns(&self, interval: usize) -> u64 {
        match interval + 1 == self.len() {
            true => self.elapsed_ns - self.start_ns(interval),
            false => self.interval_ns,
        }
    }

    /// Operations that did not fail, per second, in each interval.
    pub fn ops_per_s(&self) -> Vec<f64> {
        let succeeded = self.operations.iter().zip(&self.errors).map(|(all, failed)| all - failed);
        self.rates(succeeded)
    }

    /// Operations of one compute server per second, in each interval.
    ///
    /// # Panics
    /// If there are no figures of such a compute server.
    pub fn ops_per_s_of(&self, compute_server: usize) -> Vec<f64> {
        self.rates(self.compute_servers[compute_server].iter().copied())
    }

    /// The part of each interval's operations that one compute server did, from 0 to 1.
    ///
    /// # Panics
    /// If there are no figures of such a compute server.
    pub fn share_of(&self, compute_server: usize) -> Vec<f64> {
        let all = self.operations.iter().zip(&self.compute_servers[compute_server]);
        all.map(|(all, own)| *own as f64 / (*all).max(1) as f64).collect()
    }

    /// The part of each interval's operations that the compute server did which did most; empty if there are no figures
    /// of compute servers.
    pub fn busiest_share(&self) -> Vec<f64> {
        let servers = 0..self.compute_servers.len();
        let larger = |most: Vec<f64>, share: Vec<f64>| {
            most.into_iter().zip(share).map(|(a, b)| a.max(b)).collect()
        };
        servers.map(|server| self.share_of(server)).reduce(larger).unwrap_or_default()
    }

    /// The parts of the whole run's operations that the compute servers did.
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

    /// A line for each interval, and a header. Marks are with the interval that they fall into, with their
    /// times.
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
            let inside = |mark: &&Mark| {
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
        let mut recorder = Recorder::new(interval, 100, 2, 1);
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
                assert!(timeline.len() as u64 <= MOST_INTERVALS);
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
        // A tenth of them failed.
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
