//! Counts one client's operations by interval.
//!
//! *Thread safety*: belongs to its client.

use super::{Interval, MAX_INTERVALS};

/// Initial length of intervals, unless the run sets it.
const MIN_NS: u64 = 1_000;

/// Number of intervals that are recorded for each requested one. With more of them, joined
/// intervals are closer to the requested length.
const FINER: u64 = 16;

/// Upper bound on the total number of per-server counters of all clients, each of 8 bytes.
const MAX_COUNTERS: u64 = 1 << 26;

/// Counts completed operations. Its memory is bounded for runs of any length.
#[derive(Clone, Debug)]
pub(crate) struct TimelineRecorder {
    kind: Interval,
    start_ns: u64,
    interval_ns: u64,
    /// Number of compute servers that are counted separately; 1 counts them together.
    servers: usize,
    most: u64,
    /// Per interval: the operations of each compute server, then the errors.
    counts: Vec<u64>,
}

/// The counts of one interval.
pub(super) struct IntervalCounts<'a> {
    pub(super) servers: &'a [u64],
    pub(super) errors: u64,
}

impl TimelineRecorder {
    /// Creates an empty recorder, one of `clients`, for `compute_servers`.
    pub(crate) fn new(kind: Interval, start_ns: u64, compute_servers: u16, clients: usize) -> Self {
        let (interval_ns, most) = match kind {
            Interval::Nanoseconds(ns) => (ns.max(1), MAX_INTERVALS),
            Interval::Parts(parts) => (MIN_NS, u64::from(parts.max(1)) * FINER),
        };
        let counters = u64::from(compute_servers) * clients as u64 * most;
        let servers = match counters <= MAX_COUNTERS {
            true => usize::from(compute_servers).max(1),
            false => 1,
        };
        Self { kind, start_ns, interval_ns, servers, most, counts: Vec::new() }
    }

    /// Counts an operation that a compute server has completed.
    #[inline]
    pub(crate) fn record(&mut self, compute_server: u16, end_ns: u64, failed: bool) {
        let since_ns = end_ns.saturating_sub(self.start_ns);
        let mut interval = since_ns / self.interval_ns;
        while interval >= self.most {
            self.double();
            interval = since_ns / self.interval_ns;
        }
        let width = self.servers + 1;
        let from = interval as usize * width;
        if self.counts.len() < from + width {
            self.counts.resize(from + width, 0);
        }
        let server = usize::from(compute_server).min(self.servers - 1);
        self.counts[from + server] += 1;
        self.counts[from + self.servers] += u64::from(failed);
    }

    /// Joins each pair of neighbouring intervals.
    #[cold]
    fn double(&mut self) {
        self.interval_ns = self.interval_ns.saturating_mul(2);
        let width = self.servers + 1;
        let intervals = self.counts.len() / width;
        for interval in 0..intervals {
            for column in 0..width {
                let count = std::mem::take(&mut self.counts[interval * width + column]);
                self.counts[interval / 2 * width + column] += count;
            }
        }
        self.counts.truncate(intervals.div_ceil(2) * width);
    }

    /// Sums up all recorders of a run, and returns the kind of intervals that the run requested;
    /// `None` if there are no recorders.
    pub(super) fn sum(mut recorders: Vec<Self>) -> Option<(Self, Interval)> {
        let coarsest = recorders.iter().map(|recorder| recorder.interval_ns).max()?;
        let mut sum = recorders.pop()?;
        sum.coarsen(coarsest);
        for mut other in recorders {
            other.coarsen(coarsest);
            if sum.counts.len() < other.counts.len() {
                std::mem::swap(&mut sum.counts, &mut other.counts);
            }
            for (count, more) in sum.counts.iter_mut().zip(&other.counts) {
                *count += more;
            }
        }
        let kind = sum.kind;
        Some((sum, kind))
    }

    /// Doubles intervals up to `interval_ns`. All recorders of a run start with the same length, so
    /// they all reach it exactly.
    fn coarsen(&mut self, interval_ns: u64) {
        while self.interval_ns < interval_ns {
            self.double();
        }
    }

    pub(super) fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    pub(super) fn servers(&self) -> usize {
        self.servers
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = IntervalCounts<'_>> {
        self.counts
            .chunks_exact(self.servers + 1)
            .map(|row| IntervalCounts { servers: &row[..self.servers], errors: row[self.servers] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_unequal_lengths_are_summed_exactly() {
        let interval = Interval::Parts(60);
        let record = |operations: u64| {
            let mut recorder = TimelineRecorder::new(interval, 0, 1, 3);
            (0..operations).for_each(|number| recorder.record(0, number * 1_000, false));
            recorder
        };
        // The second recorder needs longer intervals than the others, so 960 intervals of 1 µs are
        // kept.
        let (sum, _) =
            TimelineRecorder::sum(vec![record(500), record(3_000), record(900)]).unwrap();
        assert_eq!(sum.interval_ns(), 4_000);
        let rows: Vec<u64> = sum.rows().map(|row| row.servers[0]).collect();
        assert_eq!(rows.iter().sum::<u64>(), 4_400);
        assert_eq!((rows[0], rows[124], rows[125], rows[224], rows[225]), (12, 12, 8, 8, 4));
    }

    #[test]
    fn compute_servers_are_left_out_when_they_are_too_many() {
        let mut recorder = TimelineRecorder::new(Interval::Nanoseconds(1_000), 0, 1_024, 16_384);
        recorder.record(1_023, 5, true);
        let (sum, _) = TimelineRecorder::sum(vec![recorder]).unwrap();
        assert_eq!(sum.servers(), 1);
        let row = sum.rows().next().unwrap();
        assert_eq!((row.servers, row.errors), (&[1_u64][..], 1));
    }
}
