//! What a simulated cluster is like: its network, its processors, and what goes wrong.
//!
//! `docs/internals/cost-model.md` says where the default figures come from.

use crate::{CostModel, Rule};

/// A simulated cluster. Two runs with equal settings and equal clients do exactly the same.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Where randomness starts.
    pub seed: u64,
    /// What messages cost.
    pub network: NetworkModel,
    /// What compute work costs, on both sides.
    pub cost: CostModel,
    /// Cores of each memory server that serve RPCs.
    pub cores_per_memory_server: usize,
    /// What goes wrong.
    pub faults: Faults,
    /// A rule that the code above breaks.
    pub broken: Option<Rule>,
    /// How many operations an endpoint may have in flight.
    pub depth: usize,
    /// How long `sleep(0)` takes, in nanoseconds: a turn of the poll loop. At least 1, because a task
    /// that waits by yielding must let virtual time pass.
    pub yield_ns: u64,
    /// The virtual time without progress after which clients that have not ended count as caught in an endless loop, in
    /// nanoseconds; 0 is without limit. It begins with a `run`, and again with each `SimControl::progress`.
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
            give_up_after_ns: 0,
        }
    }
}

/// The network: every server, compute or memory, has one NIC with one port. A message takes the
/// sender's port and the receiver's port for [`NetworkModel::message_ns`] each; the receiver starts
/// with the first byte (cut-through), so an unloaded message pays that once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkModel {
    /// From one port to another: wire, switch and both NICs' pipelines, in nanoseconds.
    pub one_way_ns: u64,
    /// How fast a port is, each way, in bytes per second; 0 is without limit.
    pub bandwidth_bytes_per_s: u64,
    /// The least that a message takes of a port, in nanoseconds: the reciprocal of the message rate.
    pub ns_per_message: u64,
    /// What each message has on the wire beside its payload, in bytes.
    pub header_bytes: u64,
    /// The memory server's NIC reaches its memory, in nanoseconds; one-sided verbs only.
    pub remote_access_ns: u64,
    /// The endpoint's thread writes one work request, in nanoseconds.
    pub post_ns: u64,
    /// The endpoint's thread rings the NIC's doorbell, once per batch, in nanoseconds.
    pub doorbell_ns: u64,
}

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
        }
    }
}

impl NetworkModel {
    /// How long a message with a payload of `payload_bytes` occupies a port, in nanoseconds.
    #[inline]
    pub fn message_ns(&self, payload_bytes: usize) -> u64 {
        let sending_ns = match self.bandwidth_bytes_per_s {
            0 => 0,
            rate => ((payload_bytes as u64 + self.header_bytes) * 1_000_000_000).div_ceil(rate),
        };
        sending_ns.max(self.ns_per_message)
    }

    /// The time from the call to the completion of a one-sided verb on an idle, fault-free network:
    /// it sends `sent_bytes` of payload and gets `received_bytes` back.
    pub fn unloaded_verb_ns(&self, sent_bytes: usize, received_bytes: usize) -> u64 {
        self.doorbell_ns
            + self.post_ns
            + self.message_ns(sent_bytes)
            + self.remote_access_ns
            + self.message_ns(received_bytes)
            + 2 * self.one_way_ns
    }
}

/// What becomes of the messages that a compute server has on their way when it dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastWords {
    /// Each connection carries some of them, as chance has it, up to a part of a torn verb.
    #[default]
    Some,
    /// None takes effect.
    None,
    /// All of them do.
    All,
}

/// What goes wrong. The default is: nothing.
///
/// A connection (one endpoint, one memory server) never loses a WRITE and then delivers a verb posted
/// after it: like a reliable connection's queue pair it stays broken until the lost WRITE's deadline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// How often a READ or a WRITE takes effect in pieces, from 0 to 1.
    pub tear_probability: f64,
    /// Over how long the pieces are spread at most, in nanoseconds.
    pub tear_window_ns: u64,
    /// Every message takes up to this much longer, in nanoseconds: messages overtake each other.
    pub jitter_ns: u64,
    /// How often a message is delayed further, from 0 to 1.
    pub delay_probability: f64,
    /// The longest such delay, in nanoseconds.
    pub max_delay_ns: u64,
    /// Messages that are delayed beside that.
    pub slow: Vec<Slow>,
    /// How often a message is lost, from 0 to 1: a request without an effect, a reply after it. Needs
    /// a timeout.
    pub drop_probability: f64,
    /// How often a request arrives only after its deadline, from 0 to 1: the client sees an
    /// indeterminate outcome, and the effect comes later. Needs a timeout.
    pub late_probability: f64,
    /// By how much such a request misses its deadline at most, in nanoseconds.
    pub max_late_ns: u64,
    /// How long an operation may take before it ends as indeterminate, in nanoseconds; 0 is without
    /// limit, and the setting for measurements.
    pub timeout_ns: u64,
    /// How long it takes to notice that a memory server is dead, in nanoseconds.
    pub detect_death_ns: u64,
    /// Memory servers that die, each with its moment.
    pub kill_memory_server_at_ns: Vec<(u16, u64)>,
    /// Compute servers that die, each with its moment.
    pub kill_compute_server_at_ns: Vec<(u16, u64)>,
    /// After a message is lost, all messages between the two servers are lost for up to so long, in nanoseconds: so
    /// that trying again at once does not help.
    pub drop_burst_ns: u64,
    /// Clocks of compute servers differ by up to so much, in nanoseconds.
    pub clock_offset_ns: u64,
    /// Clocks of compute servers are too fast or too slow by up to so much, in parts per million; less than a million.
    pub clock_drift_ppm: u64,
    /// Only the clocks of the first so many compute servers differ.
    pub clocks: u16,
    /// Compute servers that stand still: nothing runs there, and what comes is noticed afterwards.
    pub pause_compute_server: Vec<Outage>,
    /// Memory servers that are out of reach: requests and replies are lost, and connections cannot be reset.
    pub cut_memory_server: Vec<Outage>,
}

/// What a message belongs to.
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

/// Some messages are delayed by themselves, which others overtake.
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    /// Of which operations; of all, if none is named.
    pub verbs: Vec<Verb>,
    /// Of which compute servers; of all, if none is named.
    pub compute_servers: Vec<u16>,
    /// The replies, and not the requests.
    pub replies: bool,
    /// How often, from 0 to 1.
    pub probability: f64,
    /// The longest delay, in nanoseconds.
    pub max_ns: u64,
}

impl Slow {
    /// Whether it is about such a message.
    pub(super) fn is_about(&self, verb: Verb, compute_server: u16, reply: bool) -> bool {
        self.replies == reply
            && (self.verbs.is_empty() || self.verbs.contains(&verb))
            && (self.compute_servers.is_empty() || self.compute_servers.contains(&compute_server))
    }
}

/// Something is not there for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The server's number.
    pub server: u16,
    /// From when.
    pub from_ns: u64,
    /// Until when.
    pub until_ns: u64,
}

impl Outage {
    /// The end of the last of these outages that this server has now.
    pub(super) fn end_of(outages: &[Self], server: u16, now_ns: u64) -> Option<u64> {
        let now = |outage: &&Self| {
            outage.server == server && (outage.from_ns..outage.until_ns).contains(&now_ns)
        };
        outages.iter().filter(now).map(|outage| outage.until_ns).max()
    }
}

impl Faults {
    /// Everything that the contract allows short of losing messages or servers: verbs in pieces, and
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
    /// If a setting makes no sense.
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
        assert!(self.clock_drift_ppm < 1_000_000, "a clock that stands still or goes back");
        let loses = self.drop_probability > 0.0
            || self.late_probability > 0.0
            || !self.cut_memory_server.is_empty();
        assert!(!loses || self.timeout_ns > 0, "lost and late messages need a timeout_ns");
    }
}
