//! Clients that change pages one-sided: their numbers, their logs, and which of them are dead.
//!
//! Memory server 0 numbers the clients and keeps the list of the dead; every memory server lends each
//! client that changes pages there a piece of memory for its log. All of it is control plane: a client
//! asks once, and others ask about it only when they suspect that it has died.
//!
//! *Invariants*: O1. a number is given out once. O2. who is dead stays dead. O3. a client's log is where
//! it is for ever. The tables have at most [`LockWord::OWNER_LIMIT`] entries.
//!
//! *Thread safety*: any number of threads; mutexes that are never held across a wait.

use super::chunks::ChunkAllocator;
use crate::page::LockWord;
use crate::wire::Refusal;
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{Mutex, lock};
use std::collections::BTreeMap;

/// One registered client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Where it runs.
    pub compute_server: u16,
    /// Whether it has been declared dead.
    pub dead: bool,
    /// Whether it has been declared to be shut out of all memory servers.
    pub fenced: bool,
}

/// The clients, as one memory server knows them.
#[derive(Debug, Default)]
pub struct Owners {
    /// By number, from 1.
    registered: Mutex<Vec<Owner>>,
    logs: Mutex<BTreeMap<u16, (GlobalAddr, u64)>>,
}

impl Owners {
    /// A number for a new client.
    ///
    /// # Errors
    /// [`Refusal::OutOfMemory`] if all numbers are given out.
    pub fn register(&self, compute_server: u16) -> Result<u16, Refusal> {
        let mut registered = lock(&self.registered);
        if registered.len() >= usize::from(LockWord::OWNER_LIMIT) {
            return Err(Refusal::OutOfMemory);
        }
        registered.push(Owner { compute_server, dead: false, fenced: false });
        Ok(registered.len() as u16)
    }

    /// What is known of a client.
    ///
    /// # Errors
    /// [`Refusal::NoSuchOwner`] if the number was never given out.
    pub fn state(&self, owner: u16) -> Result<Owner, Refusal> {
        let place = usize::from(owner).checked_sub(1).ok_or(Refusal::NoSuchOwner)?;
        lock(&self.registered).get(place).copied().ok_or(Refusal::NoSuchOwner)
    }

    /// All clients of a compute server are dead, and perhaps shut out of all memory servers; those that it registers later are
    /// not.
    pub fn declare_dead(&self, compute_server: u16, fenced: bool) {
        for owner in lock(&self.registered).iter_mut() {
            if owner.compute_server == compute_server {
                (owner.dead, owner.fenced) = (true, owner.fenced || fenced);
            }
        }
    }

    /// The dead clients of a compute server, the latest first, `most` at most.
    pub fn dead_of(&self, compute_server: u16, most: usize) -> Vec<u16> {
        let registered = lock(&self.registered);
        let is_dead = |owner: &Owner| owner.dead && owner.compute_server == compute_server;
        let dead = registered.iter().enumerate().rev().filter(|(_, owner)| is_dead(owner));
        dead.map(|(place, _)| place as u16 + 1).take(most).collect()
    }

    /// The log of a client on this server; a new one of `bytes` bytes from `chunks`, if it has none yet.
    ///
    /// # Errors
    /// [`Refusal::OutOfMemory`] if there is no room for it; [`Refusal::NoSuchOwner`] without `chunks`, if
    /// it has none; [`Refusal::Malformed`] for a number that no client has.
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

    #[test]
    fn the_dead_stay_dead_and_logs_stay_where_they_are() {
        let owners = Owners::default();
        let chunks = ChunkAllocator::new(ServerId::new(0), 8192);
        let (first, second) = (owners.register(4).unwrap(), owners.register(5).unwrap());
        owners.declare_dead(4, false);
        let third = owners.register(4).unwrap();
        assert_eq!([first, second, third], [1, 2, 3]);
        let dead = |owner| owners.state(owner).unwrap().dead;
        assert_eq!([dead(1), dead(2), dead(3)], [true, false, false]);
        assert!(!owners.state(1).unwrap().fenced);
        owners.declare_dead(4, true);
        assert!(owners.state(1).unwrap().fenced && !owners.state(2).unwrap().fenced);
        assert_eq!((owners.dead_of(4, 9), owners.dead_of(4, 1)), (vec![3, 1], vec![3]));
        assert_eq!(owners.dead_of(5, 9), Vec::<u16>::new());
        assert_eq!(owners.state(0), Err(Refusal::NoSuchOwner));
        assert_eq!(owners.state(4), Err(Refusal::NoSuchOwner));

        let area = owners.log_area(2, 3000, Some(&chunks)).unwrap();
        assert_eq!(owners.log_area(2, 3000, None).unwrap(), area);
        assert_eq!(owners.log_area(3, 3000, None), Err(Refusal::NoSuchOwner));
        assert_ne!(owners.log_area(3, 3000, Some(&chunks)).unwrap().0, area.0);
        assert_eq!(owners.log_area(4, 3000, Some(&chunks)), Err(Refusal::OutOfMemory));
        assert_eq!(owners.log_area(0, 1, Some(&chunks)), Err(Refusal::Malformed));
    }
}
