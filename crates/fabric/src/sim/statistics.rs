//! What a simulated cluster has done so far.

use super::network::Nic;
use super::world::World;

/// A simulated cluster's work so far, since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimStatistics {
    /// The virtual time, in nanoseconds.
    pub now_ns: u64,
    /// Events that happened: what the simulation itself costs.
    pub events: u64,
    /// A digest of all events in their order. Equal settings and clients give equal digests.
    pub trace_hash: u64,
    /// The memory servers, by number.
    pub memory_servers: Vec<MemoryServerStatistics>,
    /// The compute servers' NICs, by number; up to the last one that had a client.
    pub compute_server_nics: Vec<NicStatistics>,
}

/// One memory server's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryServerStatistics {
    /// How long its cores were busy, all together, in nanoseconds. Work counts when it begins.
    pub core_busy_ns: u64,
    /// Requests that a core took.
    pub requests: u64,
    /// The most requests that ever waited for a core.
    pub longest_queue: usize,
    /// Its NIC.
    pub nic: NicStatistics,
}

/// One NIC's work, each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicStatistics {
    /// How long it was sending, in nanoseconds.
    pub send_busy_ns: u64,
    /// How long it was receiving, in nanoseconds.
    pub receive_busy_ns: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
}

impl SimStatistics {
    pub(super) fn of(world: &World) -> Self {
        let memory_servers = world.memory.iter().map(|server| MemoryServerStatistics {
            core_busy_ns: server.core_busy_ns,
            requests: server.requests,
            longest_queue: server.longest_queue,
            nic: NicStatistics::of(&server.nic),
        });
        Self {
            now_ns: world.events.now_ns(),
            events: world.events.happened(),
            trace_hash: world.events.trace_hash(),
            memory_servers: memory_servers.collect(),
            compute_server_nics: world.compute.iter().map(|c| NicStatistics::of(&c.nic)).collect(),
        }
    }
}

impl NicStatistics {
    fn of(nic: &Nic) -> Self {
        Self {
            send_busy_ns: nic.send.busy_ns,
            receive_busy_ns: nic.receive.busy_ns,
            messages_sent: nic.send.messages,
            messages_received: nic.receive.messages,
        }
    }
}
