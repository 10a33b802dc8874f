//! Who is in: the connections that a server has let in, by endpoint, and what has been fenced; for every provider whose
//! clients come from elsewhere.
//!
//! *Invariants*: G1. a request is carried out only while its connection's gate is held and open. G2. of one endpoint at most
//! one gate is open: who lets its next connection in, first closes the last. So once an endpoint has been welcomed again,
//! everything that it sent before has been applied or never will be (F9). G3. a fence closes all gates of its compute server, and
//! whoever was among them and comes back is refused (F10). G4. a gate is taken with no other gate held.
//!
//! *Thread safety*: any number of threads.

use crate::handshake::{Identity, NO_FENCES, Refusal, Role};
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use std::collections::BTreeMap;

/// One connection's right to have its requests carried out.
#[derive(Debug)]
pub struct Gate {
    /// Whose it is.
    pub peer: Identity,
    open: Mutex<bool>,
}

impl Gate {
    /// Holds the gate while requests are carried out; `None` if it is closed.
    #[inline]
    pub fn enter(&self) -> Option<MutexGuard<'_, bool>> {
        let open = lock(&self.open);
        open.then_some(open)
    }

    /// Waits until no request is being carried out, and lets no more in.
    fn close(&self) {
        *lock(&self.open) = false;
    }
}

#[derive(Debug, Default)]
struct State {
    gates: Vec<Arc<Gate>>,
    /// How often each compute server has been fenced, if at all.
    fences: BTreeMap<u16, u64>,
}

impl State {
    fn take_out(&mut self, which: impl Fn(&Gate) -> bool) -> Vec<Arc<Gate>> {
        let (out, stay) = self.gates.drain(..).partition(|gate| which(gate));
        self.gates = stay;
        out
    }
}

/// The gates of one server.
#[derive(Debug, Default)]
pub struct Gates {
    state: Mutex<State>,
}

impl Gates {
    /// Lets a connection of `peer` in, which knows of `fences`; its gate and what its next connection
    /// must know. Everything that an earlier connection of it brought has been applied or will never be.
    ///
    /// # Errors
    /// [`Refusal::Fenced`] if its compute server was fenced since it came first.
    pub fn admit(&self, peer: Identity, fences: u64) -> Result<(Arc<Gate>, u64), Refusal> {
        let mut state = lock(&self.state);
        let known = match peer.role {
            Role::ComputeServer => state.fences.get(&peer.number).copied().unwrap_or(0),
            _ => 0,
        };
        // Who knows of more has them from another life of this server, and sees that by the epoch.
        if fences != NO_FENCES && fences < known {
            return Err(Refusal::Fenced);
        }
        let earlier = state.take_out(|gate| gate.peer == peer);
        let gate = Arc::new(Gate { peer, open: Mutex::new(true) });
        state.gates.push(Arc::clone(&gate));
        drop(state);
        earlier.iter().for_each(|gate| gate.close());
        Ok((gate, known))
    }

    /// Shuts out what endpoints `compute_server` has now. Whether there was any.
    pub fn fence(&self, compute_server: u16) -> bool {
        let mut state = lock(&self.state);
        *state.fences.entry(compute_server).or_insert(0) += 1;
        let out = state.take_out(|gate| {
            gate.peer.role == Role::ComputeServer && gate.peer.number == compute_server
        });
        drop(state);
        out.iter().for_each(|gate| gate.close());
        !out.is_empty()
    }

    /// The connection has ended.
    pub fn leave(&self, gate: &Arc<Gate>) {
        lock(&self.state).gates.retain(|other| !Arc::ptr_eq(other, gate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(number: u16, epoch: u64) -> Identity {
        Identity { role: Role::ComputeServer, number, epoch }
    }

    #[test]
    fn the_next_connection_closes_the_last() {
        let gates = Gates::default();
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
        let gates = Gates::default();
        let (gate, fences) = gates.admit(endpoint(1, 10), NO_FENCES).unwrap();
        let (bystander, _) = gates.admit(endpoint(2, 20), NO_FENCES).unwrap();
        assert!(gates.fence(1));
        assert!(gate.enter().is_none() && bystander.enter().is_some());
        assert_eq!(gates.admit(endpoint(1, 10), fences).unwrap_err(), Refusal::Fenced);
        // An endpoint that comes for the first time is let in, and may come back.
        let (gate, fences) = gates.admit(endpoint(1, 12), NO_FENCES).unwrap();
        assert!(gate.enter().is_some());
        assert!(gates.admit(endpoint(1, 12), fences).is_ok());
        assert!(!gates.fence(9), "nobody was there");
    }
}
