//! The results of a run.
//!
//! *Thread safety*: plain values.

use super::AppliedChange;
use crate::timeline::Timeline;
use farleaf_fabric::CounterSnapshot;
use farleaf_index::CacheCounters;
use farleaf_index::IndexError;
use hdrhistogram::Histogram;

/// The work of the clients and its cost.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Operations, including failed ones.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that found no record or, for insertions, an existing one.
    pub misses: u64,
    /// Successful lookups and scans.
    pub lookups: u64,
    /// Those of them that found a record; a lookup of several keys counts if it found all of them.
    pub found: u64,
    /// New keys inserted, including those of the warm-up.
    pub inserted: u64,
    /// From the first client's start to the last one's end, in nanoseconds, without the time that
    /// every client spends drawing operations.
    pub elapsed_ns: u64,
    /// Processor time of the clients' threads, without drawing operations, in nanoseconds.
    pub cpu_ns: u64,
    /// Latencies of the successful operations, in nanoseconds. It grows with the longest one: with
    /// room for an hour, those of thousands of clients would take more memory than the index.
    pub latency_ns: Histogram<u64>,
    /// Fabric counters, summed over the endpoints of clients and of write-back by age.
    pub counters: CounterSnapshot,
    /// Cache counters of the same endpoints.
    pub cache: CacheCounters,
    /// The first error of the first client that had one.
    pub first_error: Option<IndexError>,
    /// When the first hotspot shifted, in nanoseconds from the start; `None` if none did.
    pub shifted_at_ns: Option<u64>,
    /// Operations over time, if the run records a timeline.
    pub timeline: Option<Timeline>,
    /// Changes made while the clients ran, ordered by time.
    pub changes: Vec<AppliedChange>,
}

impl Measurement {
    pub(super) fn new() -> Self {
        Self {
            operations: 0,
            errors: 0,
            misses: 0,
            lookups: 0,
            found: 0,
            inserted: 0,
            elapsed_ns: 0,
            cpu_ns: 0,
            latency_ns: Histogram::new(3).expect("a sensible precision"),
            counters: CounterSnapshot::default(),
            cache: CacheCounters::default(),
            first_error: None,
            shifted_at_ns: None,
            timeline: None,
            changes: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn record(
        &mut self,
        is_lookup: bool,
        result: Result<bool, IndexError>,
        latency_ns: u64,
    ) {
        self.operations += 1;
        match result {
            Ok(found) => {
                self.lookups += u64::from(is_lookup);
                self.found += u64::from(is_lookup && found);
                self.misses += u64::from(!found);
                let latency_ns = latency_ns.min(MAX_LATENCY_NS);
                self.latency_ns.record(latency_ns).expect("the histogram grows");
            }
            Err(error) => self.record_error(error),
        }
    }

    #[cold]
    fn record_error(&mut self, error: IndexError) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }

    pub(super) fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.errors += other.errors;
        self.misses += other.misses;
        self.lookups += other.lookups;
        self.found += other.found;
        self.inserted += other.inserted;
        self.cpu_ns += other.cpu_ns;
        self.latency_ns.add(other.latency_ns).expect("the histogram grows");
        self.counters += other.counters;
        self.cache += other.cache;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// Upper bound of recorded latencies, one hour. Longer ones are recorded as one hour.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;
