//! What the ports of the simulated memory servers can serve at most, computed from what an
//! operation sends: so a run says whether it was bound by a port, and by which of its limits.

use farleaf_bench::report::{PerOperation, Report};
use farleaf_fabric::sim::NetworkModel;
use std::fmt;

/// Limit of all ports of the memory servers together, if these are used evenly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PortLimit {
    /// Operations a second at most.
    ops_per_s: f64,
    /// Whether the number of messages limits them, and not their bytes.
    by_messages: bool,
    /// The part of the limit that the run has reached.
    reached: f64,
}

impl PortLimit {
    /// The limit for the operations of a run; `None` if they need no port.
    pub(super) fn of(network: &NetworkModel, report: &Report) -> Option<Self> {
        let PerOperation { reads, writes, atomics, rpcs, .. } = report.per_operation;
        let PerOperation { bytes_read, bytes_written, rpc_bytes, .. } = report.per_operation;
        // Each verb is a message in each direction. A message takes a port for its bytes, but not
        // for less than a minimum, so this is what it takes at least.
        let messages = reads + writes + atomics + rpcs;
        let headers = messages * network.header_bytes as f64;
        let payload = (bytes_read + 8.0 * atomics).max(bytes_written + rpc_bytes);
        let by_bytes_ns = match network.bandwidth_bytes_per_s {
            0 => 0.0,
            rate => (payload + headers) * 1e9 / rate as f64,
        };
        let by_messages_ns = messages * network.ns_per_message as f64;
        let ports = f64::from(report.memory_servers) * network.ports as f64;
        let ops_per_s = ports * 1e9 / by_bytes_ns.max(by_messages_ns);
        ops_per_s.is_finite().then(|| Self {
            ops_per_s,
            by_messages: by_messages_ns >= by_bytes_ns,
            reached: report.throughput_ops_per_s / ops_per_s,
        })
    }
}

impl fmt::Display for PortLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.by_messages { "the number of messages" } else { "bytes" };
        write!(
            f,
            "ports of the memory servers: at most {:.1} M operations/s, by {by}; {:.0} % reached",
            self.ops_per_s / 1e6,
            self.reached * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(reads: f64, bytes_read: f64) -> Report {
        let per_operation = PerOperation { reads, bytes_read, ..PerOperation::default() };
        Report { per_operation, memory_servers: 2, throughput_ops_per_s: 25e6, ..Report::default() }
    }

    #[test]
    fn small_reads_are_bound_by_messages_and_pages_by_bytes() {
        let network = NetworkModel {
            ns_per_message: 20,
            header_bytes: 60,
            bandwidth_bytes_per_s: 12_500_000_000,
            ports: 1,
            ..NetworkModel::default()
        };
        // Two ports of 50 M messages a second each.
        let small = PortLimit::of(&network, &report(1.0, 128.0)).unwrap();
        assert_eq!((small.ops_per_s, small.by_messages, small.reached), (100e6, true, 0.25));
        // 1,076 bytes at 12.5 GB/s are 86.08 ns.
        let pages = PortLimit::of(&network, &report(1.0, 1_016.0)).unwrap();
        assert!((pages.ops_per_s - 2e9 / 86.08).abs() < 1.0 && !pages.by_messages);
        assert!(pages.to_string().starts_with("ports of the memory servers: at most 23.2 M"));
        assert_eq!(PortLimit::of(&network, &report(0.0, 0.0)), None);
    }
}
