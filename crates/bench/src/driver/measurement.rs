//! What came out of a run.
//!
//! *Thread safety*: plain values.

use super::Made;
use crate::timeline::Timeline;
use farleaf::cache::CacheCounters;
use farleaf::index::IndexError;
use farleaf_fabric::CounterSnapshot;
use hdrhistogram::Histogram;

/// What clients did and what it cost.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Operations, failed ones included.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that found no record, or for an insertion one that was there already.
    pub misses: u64,
    /// New keys that were inserted, by the warm-up too.
    pub inserted: u64,
    /// From the first client's start to the last one's end, in nanoseconds.
    pub elapsed_ns: u64,
    /// The latencies of the operations that did not fail, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// What all endpoints did together.
    pub counters: CounterSnapshot,
    /// What the caches did.
    pub cache: CacheCounters,
    /// The first error of the first client that had any.
    pub first_error: Option<IndexError>,
    /// When the first client's hotspot shifted, in nanoseconds from the start; none if no client's did.
    pub shifted_at_ns: Option<u64>,
    /// What was done over time, if the run asks for it.
    pub timeline: Option<Timeline>,
    /// What changed beside the clients, in the order of time.
    pub made: Vec<Made>,
}

impl Measurement {
    pub(super) fn new() -> Self {
        Self {
            operations: 0,
            errors: 0,
            misses: 0,
            inserted: 0,
            elapsed_ns: 0,
            latency_ns: Histogram::new_with_max(LONGEST_LATENCY_NS, 3).expect("valid bounds"),
            counters: CounterSnapshot::default(),
            cache: CacheCounters::default(),
            first_error: None,
            shifted_at_ns: None,
            timeline: None,
            made: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn record(&mut self, result: Result<bool, IndexError>, latency_ns: u64) {
        self.operations += 1;
        match result {
            Ok(found) => {
                self.misses += u64::from(!found);
                self.latency_ns.saturating_record(latency_ns);
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
        self.inserted += other.inserted;
        self.latency_ns.add(other.latency_ns).expect("equal bounds");
        self.counters += other.counters;
        self.cache += other.cache;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// Longer ones count as this: an hour.
const LONGEST_LATENCY_NS: u64 = 3_600_000_000_000;
