//! What time it is in a program of the cluster, for leases and bounded waits; the only place that
//! reads a clock.
//!
//! *Thread safety*: any number of threads; copies are the same clock.

use std::time::{Duration, Instant};

/// A clock that never goes back, counted from its start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is where the programs' time comes from"
        )]
        let started = Instant::now();
        Self { started }
    }

    /// How long ago it was started.
    pub fn elapsed(&self) -> Duration {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is where the programs' time comes from"
        )]
        let now = Instant::now();
        now.duration_since(self.started)
    }

    /// Nanoseconds since it was started.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
