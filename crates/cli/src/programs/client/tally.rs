//! Counters and output of a client's benchmark.
//!
//! *Thread safety*: a [`ClientTally`] belongs to its client; all clients share one
//! [`ClientProgress`].

use comfy_table::{Table, presets};
use farleaf_bench::workload::WorkloadOperation;
use farleaf_command_line::output::{self, grouped};
use farleaf_fabric::sync::{AtomicU64, Mutex, Ordering, lock};
use farleaf_index::IndexError;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use std::collections::BTreeMap;

/// Counters of one client.
pub(super) struct ClientTally {
    /// Latencies of the operations that were completed.
    pub(super) latency_ns: Histogram<u64>,
    /// Lookups, changes and scans that found no record.
    pub(super) absent: u64,
    /// Insertions of keys that existed already.
    pub(super) present: u64,
    pub(super) failed: u64,
    pub(super) unknown: u64,
    pub(super) first_error: Option<IndexError>,
    /// Consecutive failures, by compute server.
    in_a_row: BTreeMap<u16, u64>,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

impl ClientTally {
    pub(super) fn new(start_ns: u64) -> anyhow::Result<Self> {
        Ok(Self {
            latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
            absent: 0,
            present: 0,
            failed: 0,
            unknown: 0,
            first_error: None,
            in_a_row: BTreeMap::new(),
            start_ns,
            end_ns: start_ns,
        })
    }

    /// Counts an operation. Returns the number of consecutive failures at the same compute server.
    pub(super) fn record(
        &mut self,
        operation: &WorkloadOperation,
        owner: u16,
        outcome: Result<bool, IndexError>,
        ns: u64,
    ) -> u64 {
        let in_a_row = self.in_a_row.entry(owner).or_default();
        let error = match outcome {
            Ok(found) => {
                match operation {
                    WorkloadOperation::Insert { .. } => self.present += u64::from(!found),
                    _ => self.absent += u64::from(!found),
                }
                self.latency_ns.saturating_record(ns);
                *in_a_row = 0;
                return 0;
            }
            Err(error) => error,
        };
        match error {
            IndexError::Indeterminate(_) => self.unknown += 1,
            _ => self.failed += 1,
        }
        self.first_error.get_or_insert(error);
        *in_a_row += 1;
        *in_a_row
    }

    /// Adds another client's counters.
    pub(super) fn add(&mut self, other: Self) -> anyhow::Result<()> {
        self.latency_ns.add(&other.latency_ns)?;
        self.absent += other.absent;
        self.present += other.present;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.first_error = self.first_error.take().or(other.first_error);
        self.start_ns = self.start_ns.min(other.start_ns);
        self.end_ns = self.end_ns.max(other.end_ns);
        Ok(())
    }

    pub(super) fn operations(&self) -> u64 {
        self.latency_ns.len() + self.failed + self.unknown
    }

    pub(super) fn seconds(&self) -> f64 {
        self.end_ns.saturating_sub(self.start_ns) as f64 / 1e9
    }

    pub(super) fn done_per_second(&self) -> f64 {
        self.latency_ns.len() as f64 / self.seconds().max(1e-9)
    }

    /// A quantile of the latencies in microseconds; `None` if no operation was completed.
    pub(super) fn microseconds(&self, quantile: f64) -> Option<f64> {
        let nothing = self.latency_ns.is_empty();
        (!nothing).then(|| self.latency_ns.value_at_quantile(quantile) as f64 / 1e3)
    }

    /// The reason why the run failed, if it did.
    pub(super) fn trouble(&self) -> Option<String> {
        let error = self.first_error.as_ref()?;
        Some(format!(
            "of {} operations {} failed, and the outcome of {} is unknown; the first one: {error}",
            grouped(self.operations()),
            grouped(self.failed),
            grouped(self.unknown)
        ))
    }

    pub(super) fn table(&self, load_keys_per_s: Option<f64>) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["", "figure"]);
        let mut row = |name: &str, figure: String| {
            table.add_row([name.to_owned(), figure]);
        };
        if let Some(rate) = load_keys_per_s {
            row("keys loaded per second", grouped(rate as u64));
        }
        row("operations", grouped(self.operations()));
        row("of these: failed, nothing changed", grouped(self.failed));
        row("of these: outcome unknown", grouped(self.unknown));
        row("seconds", format!("{:.2}", self.seconds()));
        row("operations done per second", grouped(self.done_per_second() as u64));
        row("done: found no record", grouped(self.absent));
        row("done: inserted nothing, the key was there", grouped(self.present));
        for (name, quantile) in [("median", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
            let latency = self.microseconds(quantile);
            let latency = latency.map_or("-".to_owned(), |us| format!("{us:.1} us"));
            row(&format!("latency of those done, {name}"), latency);
        }
        table.to_string()
    }
}

/// Interval between progress lines if no bar can be drawn.
const SAY_EVERY_NS: u64 = 5_000_000_000;

/// Progress of all clients, and whether they have given up.
pub(super) struct ClientProgress {
    bar: ProgressBar,
    done: AtomicU64,
    failed: AtomicU64,
    start_ns: AtomicU64,
    said_ns: AtomicU64,
    gave_up: Mutex<Option<String>>,
    /// Not 0 once `gave_up` is set; can be read without the lock.
    has_given_up: AtomicU64,
}

impl ClientProgress {
    pub(super) fn new(operations: Option<u64>) -> Self {
        Self {
            bar: output::bar("operations", operations),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            start_ns: AtomicU64::new(0),
            said_ns: AtomicU64::new(0),
            gave_up: Mutex::new(None),
            has_given_up: AtomicU64::new(0),
        }
    }

    pub(super) fn start(&self, now_ns: u64) {
        for start in [&self.start_ns, &self.said_ns] {
            // The first client sets the start.
            let _ = start.compare_exchange(0, now_ns, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Counts an operation that has ended.
    pub(super) fn count(&self, has_failed: bool, now_ns: u64) {
        let done = self.done.fetch_add(1, Ordering::AcqRel) + 1;
        let failed = self.failed.fetch_add(has_failed.into(), Ordering::AcqRel);
        self.bar.inc(1);
        if has_failed {
            self.bar.set_message(format!("operations, {} failed", grouped(failed + 1)));
        }
        let said_ns = self.said_ns.load(Ordering::Acquire);
        if self.bar.is_hidden()
            && now_ns.saturating_sub(said_ns) >= SAY_EVERY_NS
            && self
                .said_ns
                .compare_exchange(said_ns, now_ns, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        {
            let seconds =
                now_ns.saturating_sub(self.start_ns.load(Ordering::Acquire)) / 1_000_000_000;
            let (done, failed) = (grouped(done), grouped(failed + u64::from(has_failed)));
            output::note(&format!("{seconds} s: {done} operations, {failed} failed"));
        }
    }

    pub(super) fn give_up(&self, why: String) {
        lock(&self.gave_up).get_or_insert(why);
        self.has_given_up.store(1, Ordering::Release);
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.has_given_up.load(Ordering::Acquire) != 0
    }

    /// Ends the bar; returns why the run was given up, if it was.
    pub(super) fn end(self) -> Option<String> {
        self.bar.finish_and_clear();
        lock(&self.gave_up).take()
    }
}
