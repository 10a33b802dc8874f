//! The network's state: when ports are free, and the order that each connection has to keep.

/// A NIC port: one message at a time in each direction.
#[derive(Debug, Default)]
pub(super) struct Nic {
    pub(super) send: Direction,
    pub(super) receive: Direction,
}

/// One direction of a port.
#[derive(Debug, Default)]
pub(super) struct Direction {
    free_ns: u64,
    pub(super) busy_ns: u64,
    pub(super) messages: u64,
}

impl Direction {
    /// Occupies the port for `cost_ns`, from `ready_ns` or when it becomes free; returns the start
    /// time of the message.
    #[inline]
    pub(super) fn take(&mut self, ready_ns: u64, cost_ns: u64) -> u64 {
        let start_ns = self.free_ns.max(ready_ns);
        self.free_ns = start_ns + cost_ns;
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
pub(super) struct Connection {
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

impl Connection {
    /// Replaces the connection by a new one.
    pub(super) fn reset(&mut self) {
        *self = Self { generation: self.generation + 1, cut: self.cut, ..Self::default() };
    }
}
