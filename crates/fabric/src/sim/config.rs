//! Configuration of a simulated cluster: its network, its processors, and its faults.
//!
//! `docs/internals/cost-model.md` has the sources of the default figures.

use crate::{CostModel, Rule};

/// A simulated cluster. Two runs with equal settings and equal clients are identical.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Cost of messages.
    pub network: NetworkModel,
    /// Cost of compute work, on both sides.
    pub cost: CostModel,
    /// Number of cores per memory server, which serve RPCs.
    pub cores_per_memory_server: usize,
    /// Faults to inject.
    pub faults: Faults,
    /// A rule that the code above the fabric breaks.
    pub broken: Option<Rule>,
    /// Limit on an endpoint's operations in flight.
    pub depth: usize,
    /// Duration of `sleep(0)`, in nanoseconds: one turn of the poll loop. At least 1, because a
    /// task that waits by yielding must advance virtual time.
    pub yield_ns: u64,
    /// How far the thread of an endpoint may run ahead of virtual time while it searches and
    /// copies, in nanoseconds. With 0, each charge waits for its end. A thread that runs ahead
    /// posts at its own time. Others see its writes to local memory up to this much too early,
    /// which matters to a checker of histories but not to throughput, and the simulator needs fewer
    /// events.
    pub quantum_ns: u64,
    /// Virtual time without progress after which the remaining clients count as caught in an
    /// endless loop, in nanoseconds; 0 for no limit. It restarts with each `run` and each call of
    /// `SimControl::progress`.
    pub give_up_after_ns: u64,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            network: NetworkModel::default(),
            cost: CostModel::default(),
            cores_per_memory_server: 4,
            faults: Faults::default(),
            broken: None,
            depth: 256,
            yield_ns: 20,
            quantum_ns: 0,
            give_up_after_ns: 0,
        }
    }
}

/// The network: every server, compute or memory, has one NIC, usually with one port. A message
/// occupies a port of the sender and one of the receiver for [`NetworkModel::message_ns`] each. The
/// receiver's time starts with the first byte (cut-through), so on an idle network a message takes
/// this time once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkModel {
    /// Time from one port to another (wire, switch and the pipelines of both NICs), in nanoseconds.
    pub one_way_ns: u64,
    /// Bandwidth of a port in each direction, in bytes per second; 0 for no limit.
    pub bandwidth_bytes_per_s: u64,
    /// Minimum time that a message occupies a port, in nanoseconds: the reciprocal of the message
    /// rate.
    pub ns_per_message: u64,
    /// Bytes of a message on the wire in addition to its payload.
    pub header_bytes: u64,
    /// Time of the memory server's NIC to access its memory, in nanoseconds; one-sided verbs only.
    pub remote_access_ns: u64,
    /// Time of the endpoint's thread to write one work request, in nanoseconds.
    pub post_ns: u64,
    /// Time of the endpoint's thread to ring the NIC's doorbell, once per batch, in nanoseconds.
    pub doorbell_ns: u64,
    /// Number of ports per NIC, 1 to [`MAX_PORTS`]. A message takes the port that is free first.
    pub ports: usize,
    /// Time for which an atomic occupies the memory server's NIC, in nanoseconds, during which no
    /// other atomic can run; 0 for no such limit.
    pub atomic_unit_ns: u64,
    /// The same for atomics on one word.
    pub atomic_word_ns: u64,
    /// Whether compute server `i` and memory server `i` are one machine. A message between the two
    /// then occupies no port and has no travel time; it takes only the time of its bytes, plus the
    /// memory access for a verb.
    pub co_located: bool,
}

/// Limit on [`NetworkModel::ports`].
pub const MAX_PORTS: usize = 4;

impl Default for NetworkModel {
    fn default() -> Self {
        Self {
            one_way_ns: 850,
            bandwidth_bytes_per_s: 12_500_000_000,
            ns_per_message: 10,
            header_bytes: 60,
            remote_access_ns: 160,
            post_ns: 40,
            doorbell_ns: 80,
            ports: 1,
            atomic_unit_ns: 0,
            atomic_word_ns: 0,
            co_located: false,
        }
    }
}

impl NetworkModel {
    /// Time that a message with a payload of `payload_bytes` occupies a port, in nanoseconds.
    #[inline]
    pub fn message_ns(&self, payload_bytes: usize) -> u64 {
        let sending_ns = match self.bandwidth_bytes_per_s {
            0 => 0,
            rate => ((payload_bytes as u64 + self.header_bytes) * 1_000_000_000).div_ceil(rate),
        };
        sending_ns.max(self.ns_per_message)
    }

    /// Time from the call to the completion of a one-sided verb on an idle, fault-free network; the
    /// verb sends `sent_bytes` of payload and receives `received_bytes`.
    pub fn unloaded_verb_ns(&self, sent_bytes: usize, received_bytes: usize) -> u64 {
        self.doorbell_ns
            + self.post_ns
            + self.message_ns(sent_bytes)
            + self.remote_access_ns
            + self.message_ns(received_bytes)
            + 2 * self.one_way_ns
    }
}

/// The fate of a dying compute server's messages in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastWords {
    /// Each connection delivers a random prefix of them, possibly ending within a torn verb.
    #[default]
    Some,
    /// No message takes effect.
    None,
    /// All messages take effect.
    All,
}

/// Faults to inject; none by default.
///
/// A connection (one endpoint, one memory server) never loses a WRITE and then delivers a verb
/// posted after it. Like the queue pair of a reliable connection, it stays broken until the
/// deadline of the lost WRITE.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Probability that a READ or a WRITE takes effect in pieces, from 0 to 1.
    pub tear_probability: f64,
    /// Longest time between the first and the last piece, in nanoseconds.
    pub tear_window_ns: u64,
    /// Every message takes up to this much longer, in nanoseconds, so messages overtake each other.
    pub jitter_ns: u64,
    /// Probability of a further delay of a message, from 0 to 1.
    pub delay_probability: f64,
    /// Longest such delay, in nanoseconds.
    pub max_delay_ns: u64,
    /// Additional delays of some messages only.
    pub slow: Vec<Slow>,
    /// Probability that a message is lost, from 0 to 1: either a request before its effect, or a
    /// reply after it. Needs a timeout.
    pub drop_probability: f64,
    /// Probability that a request arrives only after its deadline, from 0 to 1: the client sees an
    /// indeterminate outcome, and the effect comes later. Needs a timeout.
    pub late_probability: f64,
    /// Longest time by which such a request misses its deadline, in nanoseconds.
    pub max_late_ns: u64,
    /// Time limit of an operation, in nanoseconds, after which it ends as indeterminate. 0 for no
    /// limit; use this for measurements.
    pub timeout_ns: u64,
    /// Time to notice that a memory server is dead, in nanoseconds.
    pub detect_death_ns: u64,
    /// Memory servers that die, each with the time of its death.
    pub kill_memory_server_at_ns: Vec<(u16, u64)>,
    /// Memory servers that restart, each with its time; their memory is lost. Once one operation
    /// has noticed, all others end as [`FabricError::Restarted`](crate::FabricError::Restarted),
    /// whichever endpoint posts them.
    pub restart_memory_server_at_ns: Vec<(u16, u64)>,
    /// Compute servers that die, each with its time.
    pub kill_compute_server_at_ns: Vec<(u16, u64)>,
    /// After a loss, all messages between the two servers are lost for up to this long, in
    /// nanoseconds, so that an immediate retry does not help.
    pub drop_burst_ns: u64,
    /// Maximum offset of compute servers' clocks, in nanoseconds.
    pub clock_offset_ns: u64,
    /// Maximum drift of compute servers' clocks, fast or slow, in parts per million; less than a
    /// million.
    pub clock_drift_ppm: u64,
    /// Number of compute servers whose clocks deviate, counted from the first.
    pub clocks: u16,
    /// Compute servers that pause: no task runs there, and arrivals are noticed only afterwards.
    pub pause_compute_server: Vec<Outage>,
    /// Memory servers that are unreachable: requests and replies are lost, and connections cannot
    /// be reset.
    pub cut_memory_server: Vec<Outage>,
}

/// The kinds of operations that a message can belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A READ.
    Read,
    /// A WRITE.
    Write,
    /// A CAS or FETCH-ADD.
    Atomic,
    /// A call.
    Call,
}

/// Delays individual messages, so that others overtake them.
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    /// The operations whose messages are delayed; all if empty.
    pub verbs: Vec<Verb>,
    /// The compute servers whose messages are delayed; all if empty.
    pub compute_servers: Vec<u16>,
    /// Whether replies are delayed, instead of requests.
    pub replies: bool,
    /// Share of the messages that are delayed, from 0 to 1.
    pub probability: f64,
    /// The longest delay, in nanoseconds.
    pub max_ns: u64,
}

impl Slow {
    /// Whether this delay applies to such a message.
    pub(super) fn is_about(&self, verb: Verb, compute_server: u16, reply: bool) -> bool {
        self.replies == reply
            && (self.verbs.is_empty() || self.verbs.contains(&verb))
            && (self.compute_servers.is_empty() || self.compute_servers.contains(&compute_server))
    }
}

/// A temporary outage of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The server's number.
    pub server: u16,
    /// Start of the outage.
    pub from_ns: u64,
    /// End of the outage.
    pub until_ns: u64,
}

impl Outage {
    /// The latest end of this server's current outages.
    pub(super) fn end_of(outages: &[Self], server: u16, now_ns: u64) -> Option<u64> {
        let now = |outage: &&Self| {
            outage.server == server && (outage.from_ns..outage.until_ns).contains(&now_ns)
        };
        outages.iter().filter(now).map(|outage| outage.until_ns).max()
    }
}

impl Faults {
    /// Everything that the contract allows short of losing messages or servers: torn verbs, and
    /// messages that overtake each other.
    pub fn rough() -> Self {
        Self {
            tear_probability: 0.5,
            tear_window_ns: 3_000,
            jitter_ns: 1_000,
            delay_probability: 0.05,
            max_delay_ns: 20_000,
            detect_death_ns: 10_000,
            ..Self::default()
        }
    }

    /// # Panics
    /// If a setting is invalid.
    pub(super) fn check(&self) {
        let probabilities = [
            ("tear_probability", self.tear_probability),
            ("delay_probability", self.delay_probability),
            ("drop_probability", self.drop_probability),
            ("late_probability", self.late_probability),
        ];
        for (name, value) in probabilities {
            assert!((0.0..=1.0).contains(&value), "{name} is {value}, not a probability");
        }
        for Slow { probability, .. } in &self.slow {
            assert!((0.0..=1.0).contains(probability), "{probability} is not a probability");
        }
        assert!(self.clock_drift_ppm < 1_000_000, "clock_drift_ppm must be less than a million");
        let loses = self.drop_probability > 0.0
            || self.late_probability > 0.0
            || !self.cut_memory_server.is_empty();
        assert!(!loses || self.timeout_ns > 0, "lost and late messages need a timeout_ns");
    }
}
