//! Statistics of a simulated cluster.

use super::network::Nic;
use super::world::SimWorld;

/// The work of a simulated cluster since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimStatistics {
    /// The virtual time, in nanoseconds.
    pub now_ns: u64,
    /// Number of events: the cost of the simulation itself.
    pub events: u64,
    /// A digest of all events in order. Equal settings and clients give equal digests.
    pub trace_hash: u64,
    /// The memory servers, by number.
    pub memory_servers: Vec<MemoryServerStatistics>,
    /// The compute servers' NICs, by number, up to the last one that had a client.
    pub compute_server_nics: Vec<NicStatistics>,
}

/// One memory server's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryServerStatistics {
    /// Busy time of all its cores together, in nanoseconds. Work is counted when it begins.
    pub core_busy_ns: u64,
    /// Requests that a core took.
    pub requests: u64,
    /// Maximum number of requests that waited for a core.
    pub longest_queue: usize,
    /// Its NIC.
    pub nic: NicStatistics,
}

/// One NIC's work in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicStatistics {
    /// Time spent sending, in nanoseconds.
    pub send_busy_ns: u64,
    /// Time spent receiving, in nanoseconds.
    pub receive_busy_ns: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
}

impl SimStatistics {
    pub(super) fn of(world: &SimWorld) -> Self {
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
