//! The network's state: when ports are free, and what each connection has to keep in order.

/// A NIC port: one message at a time, each way.
#[derive(Debug, Default)]
pub(super) struct Nic {
    pub(super) send: Direction,
    pub(super) receive: Direction,
}

/// One way through a port.
#[derive(Debug, Default)]
pub(super) struct Direction {
    free_ns: u64,
    pub(super) busy_ns: u64,
    pub(super) messages: u64,
}

impl Direction {
    /// Takes the port for `cost_ns`, from `ready_ns` or when it is free; returns when the message
    /// starts.
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
/// *Invariants*: a verb posted after a WRITE arrives no earlier than it (`write_arrives_ns`), and takes
/// effect only after the whole of it (`write_done_ns`): contract F3. A verb posted after a WRITE that
/// was lost is lost as well, so what took effect is never a later verb without the earlier WRITE.
#[derive(Clone, Debug, Default)]
pub(super) struct Connection {
    /// When the last WRITE sent is at the server.
    pub(super) write_arrives_ns: u64,
    /// When the last WRITE that arrived has taken effect.
    pub(super) write_done_ns: u64,
    /// Until when verbs are lost.
    pub(super) down_until_ns: u64,
    /// How often the endpoint has reset it; what was posted under an older number is void.
    pub(super) generation: u64,
    /// The sender died, and from here on nothing of what it sent takes effect.
    pub(super) cut: bool,
}

impl Connection {
    /// A new connection in the place of this one.
    pub(super) fn reset(&mut self) {
        *self = Self { generation: self.generation + 1, cut: self.cut, ..Self::default() };
    }
}
