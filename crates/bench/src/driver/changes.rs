//! Planned and applied changes to the cluster during a run.
//!
//! *Thread safety*: plain values.

use super::moment::MeasurementMoment;
use crate::units::duration;
use farleaf_index::{IndexError, ReshapeCost};

/// What changes during a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reshaping {
    /// Compute servers that own no keys at first. They have clients only if
    /// [`super::BenchRun::own_keys`] is set.
    pub spare_compute_servers: u16,
    /// Runs a balancer during the measurement.
    pub balance: bool,
    /// Tasks of each compute server that write back: by age in designs with a limited cache, and
    /// by flushes and merges in dLSM. What they do counts towards the cost of the operations.
    pub write_back: u16,
    /// Planned changes, each with its moment.
    pub changes: Vec<PlannedChange>,
}

/// A change planned for a moment of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedChange {
    /// When to make it.
    pub at: MeasurementMoment,
    /// The change to make.
    pub change: TopologyChange,
}

/// A change of the compute side or of the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TopologyChange {
    /// Moves keys from one compute server to another.
    Move {
        /// The compute server that gives up keys.
        from: u16,
        /// The compute server that receives them.
        to: u16,
        /// The part of the range of `from` to move, from 0 to 1; 1 moves all of it.
        part: f64,
    },
    AddMemoryServer,
}

/// The outcome of one change.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedChange {
    /// When the change began, in nanoseconds from the start of the measurement.
    pub at_ns: u64,
    /// Whether the balancer made the change.
    pub by_balancer: bool,
    /// The planned change; `None` if the balancer decided on it.
    pub change: Option<TopologyChange>,
    /// The cost of the change, or the error.
    pub outcome: Result<ReshapeCost, IndexError>,
}

impl AppliedChange {
    /// A short description for timelines and reports.
    pub fn label(&self) -> String {
        let what = match (&self.outcome, self.change) {
            (Ok(ReshapeCost { moved: Some((from, to)), took_ns, bytes_written, .. }), _) => {
                let took = duration(*took_ns);
                format!("keys move {from} to {to} ({took}, {bytes_written} bytes written)")
            }
            (Ok(_), _) => "memory server added".to_owned(),
            (Err(error), Some(TopologyChange::Move { from, to, .. })) => {
                format!("keys do not move {from} to {to}: {error}")
            }
            (Err(error), _) => format!("no change: {error}"),
        };
        if self.by_balancer { format!("balance: {what}") } else { what }
    }
}
