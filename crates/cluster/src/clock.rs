//! The clock of a cluster program, for leases and bounded waits; no other module reads a clock.
//!
//! *Thread safety*: any number of threads; copies share one start.

use std::time::{Duration, Instant};

/// A monotonic clock that counts from its start.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    started: Instant,
}

impl MonotonicClock {
    /// Starts a clock at the current time.
    pub fn start() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is where the programs' time comes from"
        )]
        let started = Instant::now();
        Self { started }
    }

    /// Time since its start.
    pub fn elapsed(&self) -> Duration {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is where the programs' time comes from"
        )]
        let now = Instant::now();
        now.duration_since(self.started)
    }

    /// Nanoseconds since its start.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
