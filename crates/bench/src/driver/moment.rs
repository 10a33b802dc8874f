//! Moments of a run, and the gate at which its time begins.
//!
//! *Thread safety*: a [`Gate`] is shared by all clients; the rest are plain values.

use super::Amount;
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::{AtomicU64, AtomicUsize, Ordering};

/// A moment of the measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// When so much of the run's amount is done, from 0 to 1: of its time, or of each client's operations.
    Share(f64),
    /// After so many nanoseconds of the fabric's time.
    Nanoseconds(u64),
}

/// A moment as a client's loop sees it: the first of both.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    /// When the client has done so many operations.
    pub operations: u64,
    /// When the fabric's time is this, in nanoseconds.
    pub ns: u64,
}

impl Moment {
    /// For a client that has so much to do from `start_ns` on.
    pub fn due(self, amount: Amount, start_ns: u64) -> Due {
        let never = Due { operations: u64::MAX, ns: u64::MAX };
        let at = |after_ns: u64| Due { ns: start_ns.saturating_add(after_ns), ..never };
        match (self, amount) {
            (Self::Nanoseconds(ns), _) => at(ns),
            (Self::Share(share), Amount::Nanoseconds(ns)) => at((ns as f64 * share) as u64),
            (Self::Share(share), Amount::Operations(operations)) => {
                Due { operations: (operations as f64 * share) as u64, ..never }
            }
        }
    }
}

/// Lets clients through when all have come.
pub(super) struct Gate {
    clients: usize,
    arrived: AtomicUsize,
    /// When the first client went through.
    opened_ns: AtomicU64,
}

/// The gate is shut.
const NOT_YET: u64 = u64::MAX;

impl Gate {
    pub(super) fn new(clients: usize) -> Self {
        Self { clients, arrived: AtomicUsize::new(0), opened_ns: AtomicU64::new(NOT_YET) }
    }

    /// Returns one and the same time to all: when the first client went through.
    pub(super) async fn pass<F: Fabric>(&self, fabric: &F) -> u64 {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < self.clients {
            fabric.sleep(1_000).await;
        }
        let now_ns = fabric.now_ns();
        let opened =
            self.opened_ns.compare_exchange(NOT_YET, now_ns, Ordering::AcqRel, Ordering::Acquire);
        opened.err().unwrap_or(now_ns)
    }

    /// When it opened; none while it is shut.
    pub(super) fn opened_ns(&self) -> Option<u64> {
        Some(self.opened_ns.load(Ordering::Acquire)).filter(|ns| *ns != NOT_YET)
    }
}
