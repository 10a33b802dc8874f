//! Parser of `--model`: changes to the simulator's default network and servers.

use farleaf_command_line::units;
use farleaf_fabric::sim::{MAX_PORTS, SimConfig};

/// One change of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelChange {
    /// Ports of each NIC.
    Ports(usize),
    /// Minimum time for which a message occupies a port, in nanoseconds.
    Message(u64),
    /// Time for which an atomic occupies the memory server's NIC, in nanoseconds.
    AtomicUnit(u64),
    /// Time for which an atomic occupies its word, in nanoseconds.
    AtomicWord(u64),
    /// Time of an access to the one queue of cooling frames, in nanoseconds.
    CoolingQueue(u64),
    /// The factor by which that takes longer after a thread of the other socket.
    Numa(u64),
    /// Compute server `i` and memory server `i` share one machine.
    CoLocated,
}

impl ModelChange {
    /// Makes the change.
    pub(super) fn apply(self, model: &mut SimConfig) {
        let SimConfig { network, cost, .. } = model;
        match self {
            Self::Ports(ports) => network.ports = ports,
            Self::Message(ns) => network.ns_per_message = ns,
            Self::AtomicUnit(ns) => network.atomic_unit_ns = ns,
            Self::AtomicWord(ns) => network.atomic_word_ns = ns,
            Self::CoolingQueue(ns) => cost.cooling_queue_ns = ns,
            Self::Numa(factor) => cost.numa_factor = factor,
            Self::CoLocated => network.co_located = true,
        }
    }
}

/// Limit on the factor of `numa`.
const MAX_NUMA: u64 = 100;

/// Parses one change, `KEY=VALUE` or `co-located`.
pub(super) fn change(text: &str) -> Result<ModelChange, String> {
    let wrong = || {
        format!(
            "expected ports=N (1 to {MAX_PORTS}), message=NS, atomic-unit=NS, atomic-word=NS, \
             cooling-queue=NS (up to 1M), numa=FACTOR (1 to {MAX_NUMA}) or co-located"
        )
    };
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    let ns = || units::count(value).ok().filter(|ns| *ns <= 1_000_000).ok_or_else(wrong);
    match key {
        "ports" => {
            let ports = value.parse().ok().filter(|ports| (1..=MAX_PORTS).contains(ports));
            Ok(ModelChange::Ports(ports.ok_or_else(wrong)?))
        }
        "message" => Ok(ModelChange::Message(ns()?)),
        "atomic-unit" => Ok(ModelChange::AtomicUnit(ns()?)),
        "atomic-word" => Ok(ModelChange::AtomicWord(ns()?)),
        "cooling-queue" => Ok(ModelChange::CoolingQueue(ns()?)),
        "numa" => {
            let factor = units::count(value).ok().filter(|factor| (1..=MAX_NUMA).contains(factor));
            Ok(ModelChange::Numa(factor.ok_or_else(wrong)?))
        }
        "co-located" if value.is_empty() => Ok(ModelChange::CoLocated),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_a_key_and_a_sensible_value() {
        assert_eq!(change("ports=2"), Ok(ModelChange::Ports(2)));
        assert_eq!(change("atomic-word=2k"), Ok(ModelChange::AtomicWord(2_000)));
        assert_eq!(change("cooling-queue=100"), Ok(ModelChange::CoolingQueue(100)));
        assert_eq!(change("numa=3"), Ok(ModelChange::Numa(3)));
        assert_eq!(change("co-located"), Ok(ModelChange::CoLocated));
        for wrong in [
            "",
            "ports",
            "ports=0",
            "ports=5",
            "message=2M",
            "numa=0",
            "numa=101",
            "co-located=1",
            "nic=2",
        ] {
            assert!(change(wrong).is_err(), "{wrong}");
        }
    }
}
