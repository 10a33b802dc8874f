//! How a scenario describes compute servers that are separate processes, and deaths.
//!
//! *Thread safety*: plain values.

use serde::{Deserialize, Serialize};

/// A server's death; the seed draws its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DeathSpec {
    /// The server's number.
    pub server: u16,
    /// Earliest moment, in nanoseconds.
    pub earliest_ns: u64,
    /// Latest moment, in nanoseconds.
    pub latest_ns: u64,
}

/// Compute servers that are separate processes: clients send them messages, and each has its own
/// cache.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessesSpec {
    /// The deadline of an operation, in nanoseconds.
    pub deadline_ns: u64,
    /// Processes that die and begin another life.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kills: Vec<DeathSpec>,
    /// How many times a process dies in the middle of a move in which it gives or takes keys.
    #[serde(default)]
    pub kills_in_moves: u16,
    /// How many times a process dies in the middle of a bulk load: soon after a request of the load
    /// that is drawn from the seed, to any process, has arrived.
    #[serde(default)]
    pub kills_in_loads: u16,
    /// Longest life of a process, in nanoseconds: each dies again and again. With 0, only in the
    /// ways above.
    #[serde(default)]
    pub lives_ns: u64,
    /// Whether a process answers before it has written back, so that a death loses changes. Then
    /// the answers are not judged, but the flushes: all processes die at the end, and nothing that
    /// a completed flush covers may be lost.
    #[serde(default)]
    pub forgets: bool,
    /// Number of threads of a process.
    #[serde(default = "one_thread")]
    pub threads: u16,
    /// Longest time until a process that died begins its next incarnation, in nanoseconds.
    #[serde(default)]
    pub restart_after_ns: u64,
    /// The map record fails once in this many times: a read has no result, or a put has an unknown
    /// outcome. With 0 it never fails.
    #[serde(default)]
    pub record_fails_one_in: u64,
    /// If set, living processes take over the keys of dead ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<TakeoverSpec>,
}

/// How processes take over the keys of dead ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TakeoverSpec {
    /// How long a process may answer after the posting of its latest answered probe, in
    /// nanoseconds.
    pub right_ns: u64,
    /// Interval at which a process looks for dead ones, in nanoseconds, and how old a list of the
    /// registered ones may be.
    pub poll_ns: u64,
    /// How long a process that has died stays registered, in nanoseconds.
    pub term_ns: u64,
    /// How many times a process is dropped from the list although it lives.
    #[serde(default)]
    pub suspects: u16,
    /// The latest moment at which that happens, in nanoseconds.
    #[serde(default)]
    pub suspected_until_ns: u64,
}

/// Most threads of a process.
pub(crate) const MAX_THREADS: u16 = 8;

impl ProcessesSpec {
    /// Whether processes die.
    pub(crate) fn has_deaths(&self) -> bool {
        let in_steps = self.kills_in_moves + self.kills_in_loads;
        let may_be_fenced = self.takeover.is_some_and(|takeover| takeover.suspects > 0);
        may_be_fenced || in_steps > 0 || !self.kills.is_empty() || self.lives_ns > 0
    }
}

fn one_thread() -> u16 {
    1
}
