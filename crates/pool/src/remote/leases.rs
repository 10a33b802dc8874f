//! Leases: memory of memory servers that comes back when its owner has ended.
//!
//! An owner is whatever takes chunks for itself and shares them with no other process, such as a
//! region of far memory. It has a number of its own, and its chunks on a memory server are one
//! lease there, which it ends when it needs them no longer. If it dies, a client of another compute
//! server ends the lease: one that needs memory, when the term has passed without a renewal, or one
//! that has declared the owner's compute server dead.
//!
//! *Invariants*
//! - leases.L1. A lease that its owner has not ended is ended only after all compute servers of the
//!   owner were fenced at that memory server (F10). So nothing that the owner has posted reaches
//!   chunks that another owner has by then.
//! - leases.L2. A compute server is fenced for its terms only if each of its leases on that memory
//!   server, and of those that share a lease with it, has a term, and this client saw none of them
//!   renewed for as long as its term. Between two looks no more than [`STRIDES`] allows counts: a
//!   client that was stopped itself, perhaps together with the owner, has seen nothing.
//! - leases.L3. A number belongs to one owner for ever, so a request to end its lease can arrive
//!   late, or twice.
//!
//! A compute server that joins a lease of several between the list of the leases and the end of
//! this one is not fenced (L1). Far memory's leases have one compute server each.
//!
//! `local` has no fences, so there L1 protects only from what was posted before.
//!
//! A request for a chunk that arrives after the end of the lease begins another one, which ends
//! with its term.
//!
//! *Thread safety*: belongs to one endpoint's thread, and can move there from another.

use super::chunks::{ChunkTokens, ChunkUse};
use super::{RemoteError, RpcClient};
use crate::wire::{LeaseState, PoolRequest, Reply};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_page::Layout;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// The term of leases that end only with their compute servers.
pub const ENDLESS: u32 = 0;

/// A term has ended after more looks than this, in which nothing was renewed.
const STRIDES: u64 = 4;

/// A lease at a memory server: the server and the owner.
type LeasePlace = (u16, u64);

/// What is known of a lease.
#[derive(Clone, Copy, Debug)]
struct KnownLease {
    renewals: u64,
    at_ns: u64,
    /// For how long there was no renewal.
    silent_ns: u64,
    /// Whether a renewal was seen within a term, so that the owner was alive.
    was_renewed: bool,
}

impl KnownLease {
    /// Whether a lease with this term may have missed a renewal, or none was ever seen.
    fn is_silent(&self, term_ns: u64) -> bool {
        !self.was_renewed || self.silent_ns >= term_ns / STRIDES
    }
}

/// The leases of one owner.
#[derive(Debug)]
pub struct Leases {
    owner: Cell<Option<u64>>,
    term_ms: u32,
    tokens: ChunkTokens,
    /// Where it has chunks, or may have one because an outcome is unknown: how many requests.
    servers: RefCell<BTreeMap<u16, u32>>,
    /// Leases of any owner.
    seen: RefCell<BTreeMap<LeasePlace, KnownLease>>,
    /// By memory server: when to look again, if a lease there may end by its term.
    awaited_ns: RefCell<BTreeMap<u16, u64>>,
}

impl Leases {
    /// An owner without chunks, whose leases have this term in milliseconds.
    pub fn new(term_ms: u32) -> Self {
        Self {
            owner: Cell::new(None),
            term_ms,
            tokens: ChunkTokens::default(),
            servers: RefCell::default(),
            seen: RefCell::default(),
            awaited_ns: RefCell::default(),
        }
    }

    /// The term in milliseconds.
    pub fn term_ms(&self) -> u32 {
        self.term_ms
    }

    /// The number of the owner, which it gets when it is first asked for.
    pub fn owner<F: Fabric>(&self, fabric: &F) -> u64 {
        let owner = self.owner.get().unwrap_or_else(|| fabric.unique());
        self.owner.set(Some(owner));
        owner
    }

    /// A chunk of `bytes` bytes, rounded up to whole nodes, on `server`, in the owner's lease.
    ///
    /// # Errors
    /// [`RemoteError`]. After an unknown outcome, the next request asks for the same chunk.
    pub async fn take<F: Fabric, L: Layout>(
        &self,
        rpc: &RpcClient<F, L>,
        server: ServerId,
        bytes: u64,
    ) -> Result<GlobalAddr, RemoteError> {
        let purpose = ChunkUse::Lease { owner: self.owner(rpc.fabric()), term_ms: self.term_ms };
        // Before the answer: without one, the lease may have begun, and must be renewed.
        *self.servers.borrow_mut().entry(server.number()).or_default() += 1;
        let answer = self.tokens.allocate(rpc, server, bytes, purpose).await;
        if let Err(error) = &answer
            && !matches!(error, RemoteError::Indeterminate(_) | RemoteError::BadReply { .. })
        {
            let mut servers = self.servers.borrow_mut();
            if let Some(requests) = servers.get_mut(&server.number()) {
                *requests -= 1;
            }
            servers.retain(|_, requests| *requests > 0);
        }
        Ok(answer?.0)
    }

    /// The memory servers that the owner has chunks on, or may have because an answer was lost.
    pub fn servers(&self) -> Vec<ServerId> {
        self.servers.borrow().keys().copied().map(ServerId::new).collect()
    }

    /// Renews the lease on `server`, in one attempt.
    ///
    /// # Errors
    /// [`RemoteError`]; refused if the lease has ended.
    pub async fn renew<F: Fabric, L: Layout>(
        &self,
        rpc: &RpcClient<F, L>,
        server: ServerId,
    ) -> Result<(), RemoteError> {
        let owner = self.owner(rpc.fabric());
        rpc.expect_done(server, &PoolRequest::Renew { owner }).await
    }

    /// Ends the lease on `server`. Nothing that was posted to its chunks may take effect any more,
    /// and no chunk is asked for meanwhile.
    ///
    /// # Errors
    /// [`RemoteError`]; the lease ends with its term then.
    pub async fn end<F: Fabric, L: Layout>(
        &self,
        rpc: &RpcClient<F, L>,
        server: ServerId,
    ) -> Result<(), RemoteError> {
        self.servers.borrow_mut().remove(&server.number());
        // A repeated request would get a chunk that is another owner's by then.
        self.tokens.forget(server);
        end(rpc, server, self.owner(rpc.fabric())).await
    }

    /// Ends the leases on `server` of compute servers that have renewed none of them for a term
    /// (L2). Returns how many bytes have come back. It takes several calls for a lease, about a
    /// quarter of its term after one another or less.
    ///
    /// # Errors
    /// [`RemoteError`] if the memory server does not answer.
    pub async fn reclaim<F: Fabric, L: Layout>(
        &self,
        rpc: &RpcClient<F, L>,
        server: ServerId,
    ) -> Result<u64, RemoteError> {
        self.awaited_ns.borrow_mut().remove(&server.number());
        let mut leases = list(rpc, server).await?;
        let mut ended = self.judge(server, &leases, rpc.fabric().now_ns());
        // Its own compute server could be fenced only with itself.
        let mine = together(&leases, BTreeSet::from([rpc.fabric().compute_server()]));
        ended.retain(|it| !mine.contains(it));
        let mut bytes = 0;
        for compute_server in &ended {
            bytes += end_leases_of(rpc, server, *compute_server).await?;
        }
        leases.retain(|lease| !ended.contains(&lease.compute_server));
        let next_ns = self.next_look_ns(server, &leases, mine);
        self.awaited_ns.borrow_mut().extend(next_ns.map(|ns| (server.number(), ns)));
        Ok(bytes)
    }

    /// In how many nanoseconds to call [`Leases::reclaim`] again, because an owner may be dead
    /// whose term has not passed yet. `None` if each was renewed of late, or does not end by its
    /// term. Memory servers that did not answer the last call do not count.
    pub fn look_again_ns(&self) -> Option<u64> {
        self.awaited_ns.borrow().values().copied().min()
    }

    /// The same for `server`, where the compute servers of `mine` are alive.
    fn next_look_ns(
        &self,
        server: ServerId,
        leases: &[LeaseState],
        mine: BTreeSet<u16>,
    ) -> Option<u64> {
        let seen = self.seen.borrow();
        let may_be_dead = |lease: &LeaseState| {
            let known = seen.get(&(server.number(), lease.owner));
            lease.term_ms != ENDLESS && known.is_some_and(|it| it.is_silent(term_ns(lease)))
        };
        let alive = leases.iter().filter(|lease| !may_be_dead(lease));
        let alive = together(leases, alive.map(|lease| lease.compute_server).chain(mine).collect());
        let rest = leases.iter().filter(|lease| !alive.contains(&lease.compute_server));
        rest.map(|lease| term_ns(lease) / STRIDES).min()
    }

    /// The compute servers all of whose leases on `server` have ended by their terms.
    fn judge(&self, server: ServerId, leases: &[LeaseState], now_ns: u64) -> BTreeSet<u16> {
        let mut seen = self.seen.borrow_mut();
        let is_there = |owner| leases.iter().any(|lease| lease.owner == owner);
        seen.retain(|(number, owner), _| *number != server.number() || is_there(*owner));
        let (mut ended, mut alive) = (BTreeSet::new(), BTreeSet::new());
        for lease in leases {
            let term_ns = term_ns(lease);
            let new = KnownLease {
                renewals: lease.renewals,
                at_ns: now_ns,
                silent_ns: 0,
                was_renewed: false,
            };
            let place = (server.number(), lease.owner);
            let known = seen.entry(place).or_insert(new);
            if known.renewals == lease.renewals {
                known.silent_ns += (now_ns - known.at_ns).min(term_ns / STRIDES);
                known.at_ns = now_ns;
            } else {
                // An older look does not say that the owner is alive now.
                let was_renewed = now_ns - known.at_ns <= term_ns;
                *known = KnownLease { was_renewed, ..new };
            }
            let has_ended = lease.term_ms != ENDLESS && known.silent_ns >= term_ns;
            let group = if has_ended { &mut ended } else { &mut alive };
            group.insert(lease.compute_server);
        }
        let alive = together(leases, alive);
        ended.into_iter().filter(|it| !alive.contains(it)).collect()
    }
}

fn term_ns(lease: &LeaseState) -> u64 {
    u64::from(lease.term_ms) * 1_000_000
}

/// These compute servers and those that share leases with one of them: the processes are the same.
fn together(leases: &[LeaseState], compute_servers: BTreeSet<u16>) -> BTreeSet<u16> {
    let (mut all, mut known) = (compute_servers, 0);
    while all.len() > known {
        known = all.len();
        let shared = leases.iter().filter(|lease| all.contains(&lease.compute_server));
        let owners: BTreeSet<u64> = shared.map(|lease| lease.owner).collect();
        let of_owners = leases.iter().filter(|lease| owners.contains(&lease.owner));
        all.extend(of_owners.map(|lease| lease.compute_server));
    }
    all
}

/// Fences `compute_server` at `server`, with those that share leases with it, and ends all their
/// leases there. For a process that was declared dead. Call it over an endpoint of another one.
/// Returns how many bytes have come back.
///
/// # Errors
/// [`RemoteError`] if the memory server does not answer; then the call can be repeated.
pub async fn end_leases_of<F: Fabric, L: Layout>(
    rpc: &RpcClient<F, L>,
    server: ServerId,
    compute_server: u16,
) -> Result<u64, RemoteError> {
    // Those that begin later are of endpoints that the fence does not concern.
    let mut leases = list(rpc, server).await?;
    let fenced = together(&leases, BTreeSet::from([compute_server]));
    for compute_server in &fenced {
        rpc.fabric().fence(server, *compute_server).await?; // L1
    }
    leases.retain(|lease| fenced.contains(&lease.compute_server));
    let owners: BTreeSet<u64> = leases.iter().map(|lease| lease.owner).collect();
    for owner in owners {
        end(rpc, server, owner).await?;
    }
    Ok(leases.iter().map(|lease| lease.bytes).sum())
}

async fn list<F: Fabric, L: Layout>(
    rpc: &RpcClient<F, L>,
    server: ServerId,
) -> Result<Vec<LeaseState>, RemoteError> {
    match rpc.ask_idempotent(server, &PoolRequest::ListLeases).await? {
        Reply::Leases(leases) => Ok(leases),
        _ => Err(RemoteError::BadReply { server }),
    }
}

async fn end<F: Fabric, L: Layout>(
    rpc: &RpcClient<F, L>,
    server: ServerId,
    owner: u64,
) -> Result<(), RemoteError> {
    rpc.expect_done_idempotent(server, &PoolRequest::EndLease { owner }).await
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId::new(2);

    fn lease(owner: u64, compute_server: u16, term_ms: u32, renewals: u64) -> LeaseState {
        LeaseState { owner, compute_server, term_ms, renewals, bytes: 1024 }
    }

    #[test]
    fn owners_that_may_be_dead_are_looked_at_again() {
        let (leases, ms) = (Leases::new(1), 1_000_000);
        let look = |states: &[LeaseState], now_ms: u64| {
            leases.judge(SERVER, states, now_ms * ms);
            leases.next_look_ns(SERVER, states, BTreeSet::from([9])).map(|ns| ns / ms)
        };
        let mut states = [lease(1, 3, 8, 1), lease(2, 4, 40, 1), lease(3, 5, ENDLESS, 1)];
        assert_eq!(look(&states, 1), Some(2), "they were only noted");
        states[0].renewals = 2;
        assert_eq!(look(&states, 3), Some(10), "3 is alive");
        states[1].renewals = 2;
        assert_eq!(look(&states, 4), None, "both are alive");
        assert_eq!(look(&states, 6), Some(2), "a renewal of 3 is late");
        states[1].compute_server = 5;
        assert_eq!(look(&states[1..], 20), None, "5 does not end by its term");
        assert_eq!(look(&[lease(4, 9, 8, 1)], 21), None, "its own compute server does not");
        // Renewals since a look that is long ago do not say that an owner is alive.
        assert_eq!(look(&states[..1], 30), Some(2));
        states[0].renewals = 3;
        assert_eq!(look(&states[..1], 50), Some(2));
        states[0].renewals = 4;
        assert_eq!(look(&states[..1], 52), None);
    }

    #[test]
    fn a_term_ends_if_no_lease_of_the_compute_server_was_renewed() {
        let leases = Leases::new(1);
        let ms = 1_000_000;
        let judge = |states: &[LeaseState], now_ns| {
            leases.judge(SERVER, states, now_ns).into_iter().collect::<Vec<_>>()
        };
        let mut states =
            [lease(1, 3, 8, 1), lease(2, 4, 8, 1), lease(3, 4, 40, 1), lease(4, 5, ENDLESS, 1)];
        assert_eq!(judge(&states, ms), [], "they were only noted");
        for now_ms in [3, 5, 7] {
            assert_eq!(judge(&states, now_ms * ms), []);
        }
        assert_eq!(judge(&states, 9 * ms), [3], "a lease of 4 goes on");
        states[0].renewals = 2;
        assert_eq!(judge(&states, 10 * ms), [], "it was renewed");
        assert_eq!(judge(&states, 1_000 * ms), [], "it may have been stopped as this client was");
        assert_eq!(judge(&states, 1_010 * ms), []);
        assert_eq!(judge(&states, 1_020 * ms), []);
        assert_eq!(judge(&states, 1_030 * ms), [3, 4]);
        assert_eq!(judge(&states[1..], 1_031 * ms), [4]);
        assert_eq!(judge(&states, 1_040 * ms), [4], "a lease that was gone is noted anew");
        assert_eq!(leases.judge(ServerId::new(1), &states, 2_000 * ms), BTreeSet::new());
        // A compute server with an endless lease does not lose those with a term, nor does another
        // one of the same process.
        states[0].compute_server = 5;
        for now_ms in 1_041..1_099 {
            assert_eq!(judge(&states, now_ms * ms), [4]);
        }
        states[2].owner = 2;
        states[2].compute_server = 5;
        assert_eq!(together(&states, BTreeSet::from([4])), BTreeSet::from([4, 5]));
        for now_ms in 1_099..1_199 {
            assert_eq!(judge(&states, now_ms * ms), []);
        }
    }
}
