//! Gates: the admitted connections of a server, by endpoint, and its fences. Shared by all
//! providers that accept clients from other processes.
//!
//! *Invariants*: gates.G1. A request is carried out only while its connection's gate is held and
//! open. gates.G2. An endpoint has at most one open gate: admitting its next connection first
//! closes the gate of the last one. So once an endpoint has been welcomed again, everything that it
//! sent before has been applied or never will be (F9). gates.G3. A fence closes all gates of its
//! compute server, and an endpoint behind one of these gates is refused when it returns (F10).
//! gates.G4. A gate is taken with no other gate held.
//!
//! *Thread safety*: any number of threads.

use crate::handshake::{HandshakeRefusal, NO_FENCES, PeerIdentity, PeerRole};
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use std::collections::BTreeMap;

/// One connection's right to have its requests carried out.
#[derive(Debug)]
pub struct ConnectionGate {
    /// Identity of the peer.
    pub peer: PeerIdentity,
    open: Mutex<bool>,
}

impl ConnectionGate {
    /// Enters the gate, which keeps it from closing while requests are carried out; `None` if it is
    /// closed.
    #[inline]
    pub fn enter(&self) -> Option<MutexGuard<'_, bool>> {
        let open = lock(&self.open);
        open.then_some(open)
    }

    /// Waits for the requests in progress, and admits no more.
    fn close(&self) {
        *lock(&self.open) = false;
    }
}

#[derive(Debug, Default)]
struct GateState {
    gates: Vec<Arc<ConnectionGate>>,
    /// Number of times each compute server has been fenced; no entry if never.
    fences: BTreeMap<u16, u64>,
}

impl GateState {
    fn take_out(&mut self, which: impl Fn(&ConnectionGate) -> bool) -> Vec<Arc<ConnectionGate>> {
        let (out, stay) = self.gates.drain(..).partition(|gate| which(gate));
        self.gates = stay;
        out
    }
}

/// The gates of one server.
#[derive(Debug, Default)]
pub struct ServerGates {
    state: Mutex<GateState>,
}

impl ServerGates {
    /// Admits a connection of `peer`, which sent `fences`. Returns its gate and the fence count
    /// that its next connection must send. Everything that an earlier connection of this peer sent
    /// has then been applied or never will be.
    ///
    /// # Errors
    /// [`HandshakeRefusal::Fenced`] if its compute server was fenced since the peer's first
    /// connection.
    pub fn admit(
        &self,
        peer: PeerIdentity,
        fences: u64,
    ) -> Result<(Arc<ConnectionGate>, u64), HandshakeRefusal> {
        let mut state = lock(&self.state);
        let known = match peer.role {
            PeerRole::ComputeServer => state.fences.get(&peer.number).copied().unwrap_or(0),
            _ => 0,
        };
        // A higher count is from an earlier life of this server; the peer detects that by the
        // epoch.
        if fences != NO_FENCES && fences < known {
            return Err(HandshakeRefusal::Fenced);
        }
        let earlier = state.take_out(|gate| gate.peer == peer);
        let gate = Arc::new(ConnectionGate { peer, open: Mutex::new(true) });
        state.gates.push(Arc::clone(&gate));
        drop(state);
        earlier.iter().for_each(|gate| gate.close());
        Ok((gate, known))
    }

    /// Fences `compute_server`: closes the gates of all its current endpoints. Returns whether it
    /// had any.
    pub fn fence(&self, compute_server: u16) -> bool {
        let mut state = lock(&self.state);
        *state.fences.entry(compute_server).or_insert(0) += 1;
        let out = state.take_out(|gate| {
            gate.peer.role == PeerRole::ComputeServer && gate.peer.number == compute_server
        });
        drop(state);
        out.iter().for_each(|gate| gate.close());
        !out.is_empty()
    }

    /// Removes the gate of a connection that has ended.
    pub fn leave(&self, gate: &Arc<ConnectionGate>) {
        lock(&self.state).gates.retain(|other| !Arc::ptr_eq(other, gate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(number: u16, epoch: u64) -> PeerIdentity {
        PeerIdentity { role: PeerRole::ComputeServer, number, epoch }
    }

    #[test]
    fn the_next_connection_closes_the_last() {
        let gates = ServerGates::default();
        let (first, fences) = gates.admit(endpoint(1, 10), NO_FENCES).unwrap();
        let (other, _) = gates.admit(endpoint(1, 11), NO_FENCES).unwrap();
        assert!(first.enter().is_some());
        let (second, _) = gates.admit(endpoint(1, 10), fences).unwrap();
        assert!(first.enter().is_none());
        assert!(second.enter().is_some() && other.enter().is_some());
        gates.leave(&first);
        assert!(second.enter().is_some());
    }

    #[test]
    fn a_fence_shuts_out_those_who_were_there() {
        let gates = ServerGates::default();
        let (gate, fences) = gates.admit(endpoint(1, 10), NO_FENCES).unwrap();
        let (bystander, _) = gates.admit(endpoint(2, 20), NO_FENCES).unwrap();
        assert!(gates.fence(1));
        assert!(gate.enter().is_none() && bystander.enter().is_some());
        assert_eq!(gates.admit(endpoint(1, 10), fences).unwrap_err(), HandshakeRefusal::Fenced);
        // A new endpoint of the same compute server is admitted, and may reconnect.
        let (gate, fences) = gates.admit(endpoint(1, 12), NO_FENCES).unwrap();
        assert!(gate.enter().is_some());
        assert!(gates.admit(endpoint(1, 12), fences).is_ok());
        assert!(!gates.fence(9), "compute server 9 had no endpoint");
    }
}
