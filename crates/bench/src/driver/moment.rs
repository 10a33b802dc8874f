//! Moments of a run, and the gate at which its time begins.
//!
//! *Thread safety*: a [`ClientBarrier`] is shared by all clients; the rest are plain values.

use super::WorkAmount;
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::{AtomicU64, AtomicUsize, Ordering};

/// A moment of the measurement, given by progress or by time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MeasurementMoment {
    /// When this share of the run is over, from 0 to 1: of its time, or of each client's
    /// operations.
    Share(f64),
    /// This many nanoseconds of fabric time after the start.
    Nanoseconds(u64),
}

/// A moment as a client's loop checks it: it is due when either limit is reached.
#[derive(Clone, Copy, Debug)]
pub struct DueMoment {
    /// Number of operations after which the moment is due.
    pub operations: u64,
    /// Time of the fabric, in nanoseconds.
    pub ns: u64,
}

impl MeasurementMoment {
    /// The limits for a client that begins `amount` of work at `start_ns`.
    pub fn due(self, amount: WorkAmount, start_ns: u64) -> DueMoment {
        let never = DueMoment { operations: u64::MAX, ns: u64::MAX };
        let at = |after_ns: u64| DueMoment { ns: start_ns.saturating_add(after_ns), ..never };
        match (self, amount) {
            (Self::Nanoseconds(ns), _) => at(ns),
            (Self::Share(share), WorkAmount::Nanoseconds(ns)) => at((ns as f64 * share) as u64),
            (Self::Share(share), WorkAmount::Operations(operations)) => {
                DueMoment { operations: (operations as f64 * share) as u64, ..never }
            }
        }
    }
}

/// A barrier: lets clients through when all have arrived.
pub(super) struct ClientBarrier {
    clients: usize,
    arrived: AtomicUsize,
    /// When the first client passed, or [`NOT_YET`].
    opened_ns: AtomicU64,
}

/// The gate has not opened.
const NOT_YET: u64 = u64::MAX;

impl ClientBarrier {
    pub(super) fn new(clients: usize) -> Self {
        Self { clients, arrived: AtomicUsize::new(0), opened_ns: AtomicU64::new(NOT_YET) }
    }

    /// Waits for all clients. Returns the time at which the first client passed, which is the same
    /// for all.
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

    /// When the gate opened, or `None` while it is shut.
    pub(super) fn opened_ns(&self) -> Option<u64> {
        Some(self.opened_ns.load(Ordering::Acquire)).filter(|ns| *ns != NOT_YET)
    }
}
