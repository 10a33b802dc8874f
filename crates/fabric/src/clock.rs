//! The clock of a cluster that runs in real time.
//!
//! Under shuttle, only waiting takes time: a thread whose tasks all wait keeps yielding, and each
//! yield advances time a little. So waiting is only a sequence of scheduling points, and a schedule
//! can be replayed. A longer wait still lets other threads do more; otherwise, threads that back
//! off could collide forever.
//!
//! *Thread safety*: any number of threads; clones are the same clock.

#[cfg(shuttle)]
use crate::sync::{Arc, AtomicU64, Ordering, thread};
#[cfg(not(shuttle))]
use std::time::Instant;

/// The clock of one cluster.
#[derive(Clone, Debug)]
pub struct ClusterClock {
    #[cfg(not(shuttle))]
    started: Instant,
    #[cfg(shuttle)]
    now_ns: Arc<AtomicU64>,
}

#[cfg(not(shuttle))]
impl ClusterClock {
    /// A clock that starts now.
    pub fn start() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is where the fabric's time comes from")]
        let started = Instant::now();
        Self { started }
    }

    /// Nanoseconds since the clock started.
    pub fn now_ns(&self) -> u64 {
        #[expect(clippy::disallowed_methods, reason = "this is where the fabric's time comes from")]
        let now = Instant::now();
        u64::try_from(now.duration_since(self.started).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Called when all tasks of the thread are waiting, the first of them until `at_ns`. Real time
    /// passes by itself.
    pub(crate) fn all_wait(&self, _at_ns: Option<u64>) {}
}

#[cfg(shuttle)]
impl ClusterClock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { now_ns: Arc::new(AtomicU64::new(0)) }
    }

    /// Nanoseconds since the clock started.
    pub fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn all_wait(&self, at_ns: Option<u64>) {
        /// Time per yield. A wait of a few microseconds then gives another thread enough turns to
        /// complete an operation.
        const TURN_NS: u64 = 100;
        thread::yield_now();
        while at_ns.is_some_and(|at_ns| self.now_ns() < at_ns) {
            self.now_ns.fetch_add(TURN_NS, Ordering::Relaxed);
            thread::yield_now();
        }
    }
}
