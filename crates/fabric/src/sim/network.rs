//! The network's state: when ports become free, and the order that each connection must keep.

use super::config::MAX_PORTS;
use std::collections::BTreeMap;

/// A NIC: one message at a time in each direction of each port.
#[derive(Debug, Default)]
pub(super) struct Nic {
    pub(super) send: PortDirection,
    pub(super) receive: PortDirection,
    pub(super) atomics: Atomics,
}

/// For networks where atomics take turns: when a memory server's NIC can execute the next atomic.
#[derive(Debug, Default)]
pub(super) struct Atomics {
    free_ns: u64,
    /// By offset of the word.
    words: BTreeMap<u64, u64>,
}

/// Number of recently used words to track; beyond it, old ones are swept.
const MAX_WORDS: usize = 4096;

impl Atomics {
    /// The time at which an atomic on the word at `offset` takes effect if it is ready at
    /// `ready_ns`. It then occupies the unit and the word for the given times.
    pub(super) fn take(
        &mut self,
        ready_ns: u64,
        offset: u64,
        (unit_ns, word_ns): (u64, u64),
    ) -> u64 {
        let of_word = self.words.get(&offset).copied().unwrap_or_default();
        let start_ns = ready_ns.max(self.free_ns).max(of_word);
        self.free_ns = start_ns + unit_ns;
        if word_ns > 0 {
            if self.words.len() >= MAX_WORDS {
                self.words.retain(|_, free_ns| *free_ns > ready_ns);
            }
            self.words.insert(offset, start_ns + word_ns);
        }
        start_ns
    }
}

/// One direction of all ports.
#[derive(Debug, Default)]
pub(super) struct PortDirection {
    free_ns: [u64; MAX_PORTS],
    pub(super) busy_ns: u64,
    pub(super) messages: u64,
}

impl PortDirection {
    /// Occupies one of `ports` ports for `cost_ns`, from `ready_ns` or when it becomes free;
    /// returns the start time of the message.
    #[inline]
    pub(super) fn take(&mut self, ready_ns: u64, cost_ns: u64, ports: usize) -> u64 {
        let first_free = self.free_ns[..ports].iter().enumerate().min_by_key(|(_, ns)| **ns);
        let port = first_free.map_or(0, |(port, _)| port);
        let start_ns = self.free_ns[port].max(ready_ns);
        self.free_ns[port] = start_ns + cost_ns;
        self.busy_ns += cost_ns;
        self.messages += 1;
        start_ns
    }
}

/// One endpoint's connection to one memory server.
///
/// *Invariants*: a verb posted after a WRITE arrives no earlier than the WRITE
/// (`write_arrives_ns`), and takes effect only after the whole of it (`write_done_ns`): contract
/// F3. A verb posted after a lost WRITE is lost as well, so a later verb never takes effect without
/// the earlier WRITE.
#[derive(Clone, Debug, Default)]
pub(super) struct SimConnection {
    /// Arrival time of the last WRITE sent.
    pub(super) write_arrives_ns: u64,
    /// Time at which the last WRITE that arrived has taken effect.
    pub(super) write_done_ns: u64,
    /// Verbs are lost until this time.
    pub(super) down_until_ns: u64,
    /// Number of resets by the endpoint; operations posted under an older number are void.
    pub(super) generation: u64,
    /// The sender died, and no further message of it takes effect.
    pub(super) cut: bool,
}

impl SimConnection {
    /// Replaces the connection by a new one.
    pub(super) fn reset(&mut self) {
        *self = Self { generation: self.generation + 1, cut: self.cut, ..Self::default() };
    }
}
