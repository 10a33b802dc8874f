//! Parser of `--model`: what the simulator's network has besides the defaults.

use crate::units;
use farleaf_fabric::sim::{MOST_PORTS, NetworkModel};

/// One change of the network's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelChange {
    /// Ports of each NIC.
    Ports(usize),
    /// Time for which a message occupies a port at least, in nanoseconds.
    Message(u64),
    /// Time for which an atomic occupies the memory server's NIC, in nanoseconds.
    AtomicUnit(u64),
    /// Time for which an atomic occupies its word, in nanoseconds.
    AtomicWord(u64),
    /// Compute server `i` and memory server `i` are one machine.
    CoLocated,
}

impl ModelChange {
    /// Makes the change.
    pub(super) fn apply(self, model: &mut NetworkModel) {
        match self {
            Self::Ports(ports) => model.ports = ports,
            Self::Message(ns) => model.ns_per_message = ns,
            Self::AtomicUnit(ns) => model.atomic_unit_ns = ns,
            Self::AtomicWord(ns) => model.atomic_word_ns = ns,
            Self::CoLocated => model.co_located = true,
        }
    }
}

/// Parses one change, `KEY=VALUE` or `co-located`.
pub(super) fn change(text: &str) -> Result<ModelChange, String> {
    let wrong = || {
        format!(
            "expected ports=N (1 to {MOST_PORTS}), message=NS, atomic-unit=NS, atomic-word=NS (up to 1M) or \
             co-located"
        )
    };
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    let ns = || units::count(value).ok().filter(|ns| *ns <= 1_000_000).ok_or_else(wrong);
    match key {
        "ports" => {
            let ports = value.parse().ok().filter(|ports| (1..=MOST_PORTS).contains(ports));
            Ok(ModelChange::Ports(ports.ok_or_else(wrong)?))
        }
        "message" => Ok(ModelChange::Message(ns()?)),
        "atomic-unit" => Ok(ModelChange::AtomicUnit(ns()?)),
        "atomic-word" => Ok(ModelChange::AtomicWord(ns()?)),
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
        assert_eq!(change("co-located"), Ok(ModelChange::CoLocated));
        for wrong in ["", "ports", "ports=0", "ports=5", "message=2M", "co-located=1", "nic=2"] {
            assert!(change(wrong).is_err(), "{wrong}");
        }
    }
}
