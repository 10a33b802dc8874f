//! Operations below a missing node, left to the memory server that has it (Lu et al., §6).
//!
//! What is below a node that is missing here, and exclusive, is in the pool as it is: hot nodes form paths from the
//! root (C10), so nothing below it is hot, and what cools is clean. The node is marked while memory
//! servers walk below it, which also keeps its parent hot (C19), so nobody here comes below it meanwhile. What the memory
//! server has changed it names, and a copy of that is dropped.
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - C18. Nothing is offloaded while a hot node names no parent: it could be below the missing one.
//! - O1. A change is asked for under a ticket. If its outcome is unknown, the memory server is asked to close the
//!   ticket: it answers with what it did under it, or will never do it. The mark stays until that is known.
//! - O2. Who asks never believes that what it asked for can be done: a memory server refuses whatever would split or
//!   merge, or leads elsewhere, and it is done here.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use super::descend::Missing;
use crate::cache::{Detour, Discipline, LiveCounters, MovingAverage, OffloadName, Seen};
use crate::page::{Answer, Layout, LeafEdit};
use crate::remote::RemoteError;
use crate::wire::{Reply, Request};
use farleaf_fabric::Fabric;

/// How long the search of a cached node takes, in nanoseconds: the paper's l_s.
const SEARCH_NS: u64 = 105;
/// What a node costs that is brought here beside its READ and its search, in percent of these: the paper's c.
const BRINGING_PERCENT: u64 = 120;
/// One decision in so many goes against the estimates, so that both stay fresh.
const CONTRARY: u64 = 100;
/// How often a ticket is asked to be closed.
const CLOSINGS: u32 = 8;

/// What one handle knows of offloading.
#[derive(Debug)]
pub(super) struct Offloading {
    policy: OffloadName,
    /// How long requests took lately.
    request_ns: MovingAverage,
}

impl Offloading {
    pub(super) fn new(policy: OffloadName) -> Self {
        Self { policy, request_ns: MovingAverage::default() }
    }

    /// Whether anything is ever left to memory servers.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.policy != OffloadName::Never
    }

    /// Whether an operation that misses a node at `level` takes less time on the memory server (Lu et al., §6.1).
    fn decide(&self, level: u8, read_ns: Option<u64>, random: u64) -> bool {
        let cheaper = match (read_ns, self.request_ns.ns()) {
            (_, None) => true,
            (None, _) => false,
            (Some(read_ns), Some(request_ns)) => {
                let node_ns = (read_ns + SEARCH_NS) * BRINGING_PERCENT / 100;
                request_ns < (u64::from(level) + 1) * node_ns
            }
        };
        cheaper != random.is_multiple_of(CONTRARY)
    }
}

impl<F: Fabric, L: Layout, D: Discipline> DexIndex<F, L, D> {
    /// Whether an operation should be left to the memory server that misses the node at `level`, to which the
    /// child word at `slot` of `parent` points.
    #[cold]
    pub(super) fn offers(&self, parent: Seen<'_, L>, slot: usize, level: u8) -> bool {
        if level > self.placement_level
            || self.client.cache().arena().detached() > 0
            || !self.is_exclusive_slot(parent, slot)
        {
            return false;
        }
        match self.offload.policy {
            OffloadName::Never => false,
            OffloadName::Always => true,
            OffloadName::CostAware => {
                let read_ns = self.client.read_ns.as_ref().and_then(MovingAverage::ns);
                self.offload.decide(level, read_ns, self.fabric().random())
            }
        }
    }

    /// Lets the memory server do `edit` below a missing node.
    ///
    /// # Errors
    /// [`Detour::Here`] if it will not; [`Detour::Failed`] if it cannot be said whether it did.
    pub(super) async fn offload(
        &self,
        missing: Missing<'_, L>,
        edit: &LeafEdit<L>,
    ) -> Result<Answer<L::Value>, Detour> {
        let Missing { parent, slot, address, level } = missing;
        let ticket = match edit.changes() {
            true => Some(self.client.pages().take_ticket().await?.ok_or(Detour::Here)?),
            false => None,
        };
        let give_ticket = || ticket.map(|ticket| self.client.pages().give_ticket(ticket));
        let begun = self.client.begin_remote(parent, slot, address);
        let mark = begun.inspect_err(|_| _ = give_ticket())?;
        if self.client.cache().arena().detached() > 0 {
            give_ticket();
            return Err(Detour::Here); // C18
        }
        // From here to the end of the request the mark stays, even if nobody waits for it any more (O1).
        let mark = mark.keep();
        let rpc = self.client.pages().rpc();
        let request = Request::Walk { node: address, level, edit: edit.clone(), ticket };
        let asked_ns = self.fabric().now_ns();
        let server = address.server();
        let mut outcome = rpc.ask(server, &request).await;
        if outcome.is_ok() {
            self.offload.request_ns.add(self.fabric().now_ns().saturating_sub(asked_ns));
        }
        if let (Err(RemoteError::Indeterminate(_)), Some(ticket)) = (&outcome, ticket) {
            for _ in 0..CLOSINGS {
                outcome = rpc.ask_harmless(server, &Request::CloseTicket { ticket }).await;
                if !matches!(outcome, Err(RemoteError::Indeterminate(_))) {
                    break;
                }
            }
            if let Err(error @ RemoteError::Indeterminate(_)) = outcome {
                return Err(error.into()); // the mark and the ticket stay
            }
        }
        let answer = match outcome {
            Ok(Reply::Walked { leaf, answer }) => {
                if let Some(leaf) = leaf
                    && D::DROPS_CHANGED_COPIES
                {
                    self.client.drop_copy(leaf).await;
                }
                LiveCounters::count(&self.client.counters.offloads);
                Ok(answer)
            }
            // The ticket is closed, and nothing was done under it; or it was a lookup, which can be asked again.
            Ok(Reply::Done) | Err(RemoteError::Indeterminate(_)) => Err(Detour::Busy),
            Ok(_) => Err(RemoteError::BadReply { server }.into()),
            Err(RemoteError::Refused { .. } | RemoteError::Contended { .. }) => {
                LiveCounters::count(&self.client.counters.offload_refusals);
                Err(Detour::Here)
            }
            Err(error) => Err(error.into()),
        };
        drop(self.client.cache().mapping().resume(mark));
        give_ticket();
        answer
    }
}
