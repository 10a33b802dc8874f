//! Clients that change pages one-sided: their numbers, their logs, and which of them are dead.
//!
//! Memory server 0 numbers the clients and keeps the list of dead ones. Every memory server lends
//! each client that changes its pages some memory for a log. All of this is control plane: a client
//! registers once, and other clients ask about it only when they suspect that it has died.
//!
//! *Invariants*
//! - owners.O1. A number has one client at a time. It is reused only after its client has reported
//!   that nothing is locked, logged or in flight under it.
//! - owners.O2. A dead client stays dead.
//! - owners.O3. The log of a number never moves.
//!
//! The tables have at most [`LockWord::OWNER_LIMIT`] entries.
//!
//! *Thread safety*: any number of threads. Mutexes are never held across a wait.

use super::chunks::ChunkAllocator;
use crate::wire::Refusal;
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{Mutex, lock};
use farleaf_page::LockWord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One registered client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredClient {
    /// The compute server that it runs on.
    pub compute_server: u16,
    /// Whether it has been declared dead.
    pub dead: bool,
    /// Whether it has been declared fenced at all memory servers.
    pub fenced: bool,
    /// How many clients were registered before it.
    pub since: u64,
}

#[derive(Debug, Default)]
struct ClientRegistration {
    /// By number, from 1; `None` while no client has the number.
    owners: Vec<Option<RegisteredClient>>,
    /// Compute servers that were declared dead and may still be running. They must not register
    /// clients: recovery fences the compute server, so a new client's locks would never be
    /// released.
    buried: BTreeSet<u16>,
    /// How many clients were registered so far.
    registrations: u64,
    /// Numbers free for reuse, the least recently freed one first.
    free: VecDeque<u16>,
}

/// The clients that one memory server knows.
#[derive(Debug, Default)]
pub struct ClientRegistry {
    registered: Mutex<ClientRegistration>,
    logs: Mutex<BTreeMap<u16, (GlobalAddr, u64)>>,
}

impl ClientRegistry {
    /// Registers a new client and returns its number.
    ///
    /// # Errors
    /// [`Refusal::TooManyClients`] if all numbers are in use. [`Refusal::DeclaredDead`] for a
    /// compute server that was declared dead and has not been declared fenced since; declaring it
    /// fenced is how its next incarnation begins.
    pub fn register(&self, compute_server: u16) -> Result<u16, Refusal> {
        let mut registered = lock(&self.registered);
        if registered.buried.contains(&compute_server) {
            return Err(Refusal::DeclaredDead);
        }
        let since = registered.registrations;
        registered.registrations += 1;
        let owner = Some(RegisteredClient { compute_server, dead: false, fenced: false, since });
        if let Some(number) = registered.free.pop_front() {
            registered.owners[usize::from(number) - 1] = owner;
            return Ok(number);
        }
        if registered.owners.len() >= usize::from(LockWord::OWNER_LIMIT) {
            return Err(Refusal::TooManyClients);
        }
        registered.owners.push(owner);
        Ok(registered.owners.len() as u16)
    }

    /// Frees the number of a client of this compute server, unless the client is dead: recovery
    /// looks for what dead clients left behind under their numbers.
    pub fn retire(&self, owner: u16, compute_server: u16) {
        let mut registered = lock(&self.registered);
        let place = usize::from(owner).wrapping_sub(1);
        let Some(held) = registered.owners.get_mut(place) else { return };
        if held.is_some_and(|owner| !owner.dead && owner.compute_server == compute_server) {
            *held = None;
            registered.free.push_back(owner);
        }
    }

    /// The state of a client.
    ///
    /// # Errors
    /// [`Refusal::NoSuchOwner`] if no client has the number.
    pub fn state(&self, owner: u16) -> Result<RegisteredClient, Refusal> {
        let place = usize::from(owner).checked_sub(1).ok_or(Refusal::NoSuchOwner)?;
        let registered = lock(&self.registered);
        registered.owners.get(place).copied().flatten().ok_or(Refusal::NoSuchOwner)
    }

    /// Declares all clients of a compute server dead and, with `fenced`, fenced at all memory
    /// servers. Clients that it registers later are neither.
    pub fn declare_dead(&self, compute_server: u16, fenced: bool) {
        let mut registered = lock(&self.registered);
        match fenced {
            true => _ = registered.buried.remove(&compute_server),
            false => _ = registered.buried.insert(compute_server),
        }
        for owner in registered.owners.iter_mut().flatten() {
            if owner.compute_server == compute_server {
                (owner.dead, owner.fenced) = (true, owner.fenced || fenced);
            }
        }
    }

    /// The dead clients of a compute server, latest first, at most `most`.
    pub fn dead_of(&self, compute_server: u16, most: usize) -> Vec<u16> {
        let registered = lock(&self.registered);
        let is_dead =
            |owner: &RegisteredClient| owner.dead && owner.compute_server == compute_server;
        let owners = registered.owners.iter().zip(1..);
        let dead =
            owners.filter_map(|(owner, number)| Some((owner.filter(is_dead)?.since, number)));
        // Numbers are reused, so they are not in the order of registration.
        let mut dead: Vec<(u64, u16)> = dead.collect();
        dead.sort_unstable_by_key(|owner| std::cmp::Reverse(*owner));
        dead.into_iter().map(|(_, number)| number).take(most).collect()
    }

    /// A client's log on this server. If it has none yet, allocates one of `bytes` bytes from
    /// `chunks`.
    ///
    /// # Errors
    /// [`Refusal::OutOfMemory`] if there is no room for it; [`Refusal::NoSuchOwner`] if it has none
    /// and `chunks` is `None`; [`Refusal::Malformed`] for a number that no client can have.
    pub fn log_area(
        &self,
        owner: u16,
        bytes: u64,
        chunks: Option<&ChunkAllocator>,
    ) -> Result<(GlobalAddr, u64), Refusal> {
        if owner == 0 || owner > LockWord::OWNER_LIMIT {
            return Err(Refusal::Malformed);
        }
        let mut logs = lock(&self.logs);
        if let Some(area) = logs.get(&owner) {
            return Ok(*area);
        }
        let chunks = chunks.ok_or(Refusal::NoSuchOwner)?;
        let (at, size) = chunks.allocate_whole(bytes).ok_or(Refusal::OutOfMemory)?;
        logs.insert(owner, (at, size));
        Ok((at, size))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    /// A number that is used again is lower than those of older clients. Who asked for the latest
    /// dead clients missed it.
    #[test]
    fn the_latest_of_the_dead_may_have_the_lowest_number() {
        let owners = ClientRegistry::default();
        for number in 1..=3 {
            assert_eq!(owners.register(4), Ok(number));
        }
        owners.retire(1, 4);
        assert_eq!(owners.register(4), Ok(1));
        owners.declare_dead(4, true);
        assert_eq!(owners.dead_of(4, 9), [1, 3, 2]);
        assert_eq!(owners.dead_of(4, 1), [1]);
    }

    #[test]
    fn the_dead_stay_dead_and_logs_stay_where_they_are() {
        let owners = ClientRegistry::default();
        let chunks = ChunkAllocator::new(ServerId::new(0), 8192);
        let (first, second) = (owners.register(4).unwrap(), owners.register(5).unwrap());
        owners.declare_dead(4, false);
        assert_eq!(owners.register(4), Err(Refusal::DeclaredDead));
        assert!(!owners.state(1).unwrap().fenced && owners.state(1).unwrap().dead);
        owners.declare_dead(4, true);
        let third = owners.register(4).unwrap();
        assert_eq!([first, second, third], [1, 2, 3]);
        let dead = |owner| owners.state(owner).unwrap().dead;
        assert_eq!([dead(1), dead(2), dead(3)], [true, false, false]);
        owners.declare_dead(4, true);
        assert!(owners.state(1).unwrap().fenced && !owners.state(2).unwrap().fenced);
        assert_eq!((owners.dead_of(4, 9), owners.dead_of(4, 1)), (vec![3, 1], vec![3]));
        assert_eq!(owners.dead_of(5, 9), Vec::<u16>::new());
        assert_eq!(owners.state(0), Err(Refusal::NoSuchOwner));
        assert_eq!(owners.state(4), Err(Refusal::NoSuchOwner));

        owners.retire(1, 4);
        owners.retire(2, 4);
        owners.retire(9, 4);
        assert_eq!(
            owners.register(6),
            Ok(4),
            "only the live client that has a number can retire it"
        );
        owners.retire(4, 6);
        assert_eq!(owners.state(4), Err(Refusal::NoSuchOwner));
        assert_eq!(owners.register(7), Ok(4));
        assert_eq!(owners.state(4).unwrap().compute_server, 7);
        owners.retire(4, 7);

        let area = owners.log_area(2, 3000, Some(&chunks)).unwrap();
        assert_eq!(owners.log_area(2, 3000, None).unwrap(), area);
        assert_eq!(owners.log_area(3, 3000, None), Err(Refusal::NoSuchOwner));
        assert_ne!(owners.log_area(3, 3000, Some(&chunks)).unwrap().0, area.0);
        assert_eq!(owners.log_area(4, 3000, Some(&chunks)), Err(Refusal::OutOfMemory));
        assert_eq!(owners.log_area(0, 1, Some(&chunks)), Err(Refusal::Malformed));
    }

    #[test]
    fn a_full_table_says_so_until_a_client_retires() {
        let owners = ClientRegistry::default();
        for number in 1..=LockWord::OWNER_LIMIT {
            assert_eq!(owners.register(3), Ok(number));
        }
        assert_eq!(owners.register(3), Err(Refusal::TooManyClients));
        owners.retire(17, 3);
        assert_eq!(owners.register(3), Ok(17));
        assert_eq!(owners.register(3), Err(Refusal::TooManyClients));
    }
}
