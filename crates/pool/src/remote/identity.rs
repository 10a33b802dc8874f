//! A client's identity: its number, and the location of its log on each memory server. The client
//! requests both when its first change needs them; a client that only reads never does.

use super::redo::RedoPage;
use super::{PageClient, RemoteError};
use crate::wire::{
    LOG_SLOTS, OffloadTicket, OwnerRequest, Reply, Request, TICKETS, log_slot_bytes,
};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_page::Layout;
use std::cell::{Cell, RefCell};

/// The memory server that assigns numbers to clients and records the dead ones.
pub const REGISTRAR: ServerId = ServerId::new(0);

/// A client's number, logs and tickets. *Thread safety*: one endpoint's thread.
#[derive(Debug)]
pub(super) struct ClientIdentity {
    /// 0 until the client has registered.
    owner: Cell<u16>,
    /// By memory server: where the log is, once known, and which of its slots are in use.
    logs: RefCell<Vec<Option<RedoLog>>>,
    /// Slots kept for nodes that are not locked and may be half written.
    pinned: RefCell<Vec<PinnedSlot>>,
    /// Number of times a slot was pinned.
    pins: Cell<u64>,
    /// For each ticket slot: the last number issued, and whether it is in use.
    tickets: RefCell<[(u32, bool); TICKETS]>,
}

#[derive(Clone, Copy, Debug)]
struct RedoLog {
    at: GlobalAddr,
    used: u64,
    /// Used slots that operations do not free, because their pages may still be unwritten.
    kept: u64,
}

/// A slot of this client's log; dropping it frees it.
#[derive(Debug)]
pub struct RedoSlot<'a> {
    identity: &'a ClientIdentity,
    server: ServerId,
    number: u64,
    pub(super) at: GlobalAddr,
    /// Whether the entry may still be needed, so that the slot stays in use after the drop.
    pub(super) keep: bool,
    /// The slot stays in use until the node at this address is complete.
    pinned_for: Option<PinnedNode>,
}

/// A node that a slot is pinned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PinnedNode {
    at: GlobalAddr,
    /// Of a leaf: the mark that it has in the pool while it is incomplete (`leaf_entry.rs`).
    mark: Option<u64>,
}

/// A slot that is kept for a node. While one task READs the entries of slots, other tasks of this
/// thread may free and reuse them, so a result counts only if the pin has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PinnedSlot {
    node: PinnedNode,
    server: ServerId,
    number: u64,
    pub(super) at: GlobalAddr,
    /// Different each time a slot is pinned.
    pin: u64,
}

/// A slot that stays in use until it is freed explicitly.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetainedSlot {
    pub(super) at: GlobalAddr,
    server: ServerId,
    number: u64,
}

impl Drop for RedoSlot<'_> {
    fn drop(&mut self) {
        match self.pinned_for {
            Some(node) => {
                let Self { identity, server, number, at, .. } = *self;
                let pin = identity.pins.get();
                identity.pins.set(pin + 1);
                identity.pinned.borrow_mut().push(PinnedSlot { node, server, number, at, pin });
            }
            None => self.identity.free(self.server, self.number, self.keep),
        }
    }
}

impl RedoSlot<'_> {
    /// Keeps the slot in use until the node at `at`, which is not locked and may be half written,
    /// is known to be complete.
    pub fn pin(&mut self, at: GlobalAddr) {
        self.pinned_for = Some(PinnedNode { at, mark: None });
    }

    /// The same for a leaf, which is incomplete while it has this mark.
    pub(super) fn pin_marked(&mut self, at: GlobalAddr, mark: u64) {
        self.pinned_for = Some(PinnedNode { at, mark: Some(mark) });
    }

    /// Frees the slot on drop, because its node is complete, or none of the node was ever written.
    pub fn is_done(&mut self) {
        (self.keep, self.pinned_for) = (false, None);
    }

    /// Leaves the slot in use.
    pub(super) fn leave(self) -> RetainedSlot {
        let left = RetainedSlot { at: self.at, server: self.server, number: self.number };
        std::mem::forget(self);
        left
    }

    /// The number of the client that the log belongs to.
    pub fn owner(&self) -> u16 {
        self.identity.owner.get()
    }
}

impl ClientIdentity {
    pub(super) fn new(memory_servers: u16) -> Self {
        let logs = RefCell::new(vec![None; usize::from(memory_servers)]);
        Self {
            owner: Cell::new(0),
            logs,
            pinned: RefCell::default(),
            pins: Cell::new(0),
            tickets: RefCell::new([(0, false); TICKETS]),
        }
    }

    /// This client's number, if it has registered.
    pub(super) fn owner(&self) -> Option<u16> {
        Some(self.owner.get()).filter(|owner| *owner != 0)
    }

    /// Whether no slot is in use and no ticket was ever issued, because memory servers remember
    /// tickets by client number.
    pub(super) fn is_at_rest(&self) -> bool {
        self.pinned.borrow().is_empty()
            && self.logs.borrow().iter().flatten().all(|log| log.used == 0)
            && self.tickets.borrow().iter().all(|ticket| *ticket == (0, false))
    }

    /// Frees the kept slots: all of their pages are written by now.
    pub(super) fn free_kept(&self) {
        for log in self.logs.borrow_mut().iter_mut().flatten() {
            log.used &= !log.kept;
            log.kept = 0;
        }
    }

    /// Frees a slot that was left in use: its entry is no longer needed.
    pub(super) fn free_left(&self, slot: RetainedSlot) {
        self.free(slot.server, slot.number, false);
    }

    fn free(&self, server: ServerId, number: u64, keep: bool) {
        if let Some(log) = &mut self.logs.borrow_mut()[server.index()] {
            match keep {
                true => log.kept |= 1 << number,
                false => log.used &= !(1 << number),
            }
        }
    }

    /// A free slot. `None` if there is none, or if this server's log has not been prepared.
    ///
    /// Never a pinned slot, not even for another entry of its node: if the client died while it
    /// overwrote the entry, no entry would be left, and the node may be half written.
    /// The last `spare` free slots are left.
    pub(super) fn take(
        &self,
        server: ServerId,
        slot_bytes: u64,
        spare: usize,
    ) -> Option<RedoSlot<'_>> {
        let mut logs = self.logs.borrow_mut();
        let log = logs.get_mut(server.index())?.as_mut()?;
        let number = (0..LOG_SLOTS).filter(|number| log.used >> number & 1 == 0).nth(spare)?;
        log.used |= 1 << number;
        let at = log.at.plus(number * slot_bytes);
        Some(RedoSlot { identity: self, server, number, at, keep: false, pinned_for: None })
    }

    /// The slots of a server's log that are pinned for the inner node at `node`.
    pub(super) fn pinned_for(&self, server: ServerId, node: GlobalAddr) -> Vec<PinnedSlot> {
        let node = PinnedNode { at: node, mark: None };
        let pinned = self.pinned.borrow();
        pinned.iter().filter(|pin| (pin.node, pin.server) == (node, server)).copied().collect()
    }

    /// Whether a slot of a server's log is pinned for the leaf at `leaf`.
    pub(super) fn is_pinned_for_leaf(&self, server: ServerId, leaf: GlobalAddr) -> bool {
        let is_one = |pin: &PinnedSlot| {
            (pin.node.at, pin.server) == (leaf, server) && pin.node.mark.is_some()
        };
        self.pinned.borrow().iter().any(is_one)
    }

    /// Takes over a slot that is pinned for the node at `node`.
    fn take_pinned(&self, server: ServerId, node: GlobalAddr) -> Option<RedoSlot<'_>> {
        let PinnedSlot { number, at, node, .. } = *self.pinned_for(server, node).last()?;
        self.pinned.borrow_mut().retain(|pin| (pin.server, pin.number) != (server, number));
        Some(RedoSlot { identity: self, server, number, at, keep: false, pinned_for: Some(node) })
    }

    /// Frees a pinned slot, unless it has been freed or used since.
    fn unpin(&self, pin: PinnedSlot) {
        let mut pinned = self.pinned.borrow_mut();
        if let Some(place) = pinned.iter().position(|other| *other == pin) {
            pinned.swap_remove(place);
            self.free(pin.server, pin.number, false);
        }
    }

    /// Given the slots pinned for a node, and the versions of the complete entries found in them,
    /// frees the slots that the newest entry replaces. Frees nothing if the node's slots have
    /// changed since `found` was collected, because the newest entry may be gone.
    pub(super) fn unpin_replaced(
        &self,
        server: ServerId,
        node: GlobalAddr,
        found: &[(PinnedSlot, Option<u64>)],
    ) {
        if !self.pinned_for(server, node).iter().eq(found.iter().map(|(pin, _)| pin)) {
            return;
        }
        // A slot without a complete entry is useless too: its node's WRITE was posted after the
        // entry, so it has not landed.
        let newest = found.iter().filter_map(|(_, version)| *version).max();
        for (pin, version) in found {
            if version.is_none() || *version < newest {
                self.unpin(*pin);
            }
        }
    }
}

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// A ticket for a change that is offloaded to a memory server; `None` while all are in use.
    pub async fn take_ticket(&self) -> Result<Option<OffloadTicket>, RemoteError> {
        let owner = self.owner().await?;
        let mut tickets = self.identity.tickets.borrow_mut();
        let free =
            tickets.iter_mut().zip(0..).find(|((number, used), _)| !used && *number < u32::MAX);
        Ok(free.map(|((number, used), slot)| {
            (*number, *used) = (*number + 1, true);
            OffloadTicket { owner, slot, number: *number }
        }))
    }

    /// Returns a ticket under which nothing can happen any more.
    pub fn give_ticket(&self, ticket: OffloadTicket) {
        self.identity.tickets.borrow_mut()[usize::from(ticket.slot)].1 = false;
    }

    /// This client's number. The first call registers the client by one RPC.
    ///
    /// # Errors
    /// [`RemoteError`] if memory server 0 does not answer.
    pub async fn owner(&self) -> Result<u16, RemoteError> {
        if let Some(owner) = self.identity.owner() {
            return Ok(owner);
        }
        let owner = self.register().await?;
        // Another task of this thread may have registered first.
        if self.identity.owner().is_none() {
            self.identity.owner.set(owner);
        }
        Ok(self.identity.owner.get())
    }

    /// Registers a number.
    ///
    /// # Errors
    /// As [`PageClient::owner`].
    pub async fn register(&self) -> Result<u16, RemoteError> {
        // Retrying after an unknown outcome only wastes a number.
        let reply = self.rpc.ask_idempotent(REGISTRAR, &OwnerRequest::Register).await?;
        let Reply::Owner { owner, .. } = reply else {
            return Err(RemoteError::BadReply { server: REGISTRAR });
        };
        Ok(owner)
    }

    /// Where a client's log is on `server`.
    pub(super) async fn log_of(
        &self,
        owner: u16,
        server: ServerId,
        create: bool,
    ) -> Result<GlobalAddr, RemoteError> {
        let request = Request::from(OwnerRequest::LogArea { owner, create });
        match self.rpc.ask_idempotent(server, &request).await? {
            Reply::Chunk { at, bytes }
                if at.server() == server && bytes >= LOG_SLOTS * log_slot_bytes::<L>() =>
            {
                Ok(at)
            }
            _ => Err(RemoteError::BadReply { server }),
        }
    }

    /// Ensures that this client has a log on `server`. The first call takes one RPC. Returns the
    /// client's number.
    pub async fn prepare_log(&self, server: ServerId) -> Result<u16, RemoteError> {
        let owner = self.owner().await?;
        let known = |identity: &ClientIdentity| {
            identity.logs.borrow().get(server.index()).is_none_or(|log| log.is_some())
        };
        if !known(&self.identity) {
            let at = self.log_of(owner, server, true).await?;
            if !known(&self.identity) {
                self.identity.logs.borrow_mut()[server.index()] =
                    Some(RedoLog { at, used: 0, kept: 0 });
            }
        }
        Ok(owner)
    }

    /// The leaves on `server` that have entries of this client because their WRITEs have failed or
    /// are in flight.
    pub fn pinned_leaves(&self, server: ServerId) -> Vec<GlobalAddr> {
        let pinned = self.identity.pinned.borrow();
        let of_server = pinned.iter().filter(|pin| pin.server == server);
        of_server.filter(|pin| pin.node.mark.is_some()).map(|pin| pin.node.at).collect()
    }

    /// Frees the slots that were pinned for the node at `at`, which is now complete.
    pub fn unpin(&self, at: GlobalAddr) {
        self.unpin_unless(|node| node != at);
    }

    /// Frees the slots pinned for nodes that are no longer `needed`.
    pub fn unpin_unless(&self, needed: impl Fn(GlobalAddr) -> bool) {
        let pinned = self.identity.pinned.borrow().clone();
        pinned
            .into_iter()
            .filter(|pin| !needed(pin.node.at))
            .for_each(|pin| self.identity.unpin(pin));
    }

    /// Frees the slots pinned for nodes that are complete, because other clients have written them
    /// since, or because the failed WRITEs have landed whole, or not at all.
    pub(super) async fn unpin_whole(&self, server: ServerId) -> Result<(), RemoteError> {
        let pinned = self.identity.pinned.borrow().clone();
        // Leaves that an entry was found for.
        let mut needed: Vec<PinnedNode> = Vec::new();
        for pin in pinned.into_iter().filter(|pin| pin.server == server) {
            let found = self.read_raw(pin.node.at).await?;
            let is_needed = match pin.node.mark {
                None => !found.page().is_of_one_piece(),
                // Attempts with the same content have the same mark: one entry is enough.
                Some(mark) => {
                    found.page().stamp() == mark
                        && !needed.contains(&pin.node)
                        && self.entry_in(pin.at).await?.is_some_and(|entry| entry.sum() == mark)
                }
            };
            match is_needed {
                true => needed.push(pin.node),
                false => self.identity.unpin(pin),
            }
        }
        Ok(())
    }

    /// Frees slots pinned for the node at `node` if a newer complete entry replaces theirs.
    pub(super) async fn unpin_replaced(
        &self,
        server: ServerId,
        node: GlobalAddr,
    ) -> Result<(), RemoteError> {
        let mut found = Vec::new();
        for pin in self.identity.pinned_for(server, node) {
            // The slot may still hold an entry from its previous use.
            let entry = self.entry_in(pin.at).await?;
            let own = entry.filter(|entry| Some(entry.owner) == self.identity.owner());
            let page = own.and_then(|entry| {
                // An entry of a leaf that was at this place before says nothing of the node.
                let is_of_node = |page: &RedoPage| page.at == node && !page.is_of_leaf();
                entry.pages.into_iter().find(is_of_node)
            });
            found.push((pin, page.map(|page| page.version)));
        }
        self.identity.unpin_replaced(server, node, &found);
        Ok(())
    }

    /// Prepares this client's logs on all memory servers that have room, because they may have no
    /// room later.
    pub async fn prepare_logs(&self) {
        for number in 0..self.fabric().memory_servers() {
            // An operation that needs this log will report the error.
            let _ = self.prepare_log(ServerId::new(number)).await;
        }
    }

    /// Takes a slot of this client's log on `server`, which must have been prepared. The entry
    /// concerns `node`, which this client is about to write, or locked nodes if `node` is `None`.
    /// Waits while all slots are in use; a slot is in use for one or two round trips.
    pub async fn slot(
        &self,
        server: ServerId,
        node: Option<GlobalAddr>,
    ) -> Result<RedoSlot<'_>, RemoteError> {
        let take = || self.identity.take(server, log_slot_bytes::<L>(), 0);
        // Repeatedly failing WRITEs of one node must not take all slots.
        if let Some(node) = node
            && self.identity.pinned_for(server, node).len() > 1
        {
            self.unpin_replaced(server, node).await?;
        }
        let mut waits = 0;
        loop {
            if let Some(slot) = take() {
                return Ok(slot);
            }
            if waits == MAX_SLOT_WAITS {
                return Err(RemoteError::Contended { retries: waits });
            }
            if waits.is_multiple_of(WAITS_BEFORE_LOOK) {
                self.unpin_whole(server).await?;
                if let Some(node) = node {
                    self.unpin_replaced(server, node).await?;
                    if let Some(slot) = take() {
                        return Ok(slot);
                    }
                    // All slots are pinned, for nodes that only their next WRITEs can complete. One
                    // of these has to begin, even though a crash within its entry would then leave
                    // the node torn.
                    if waits > 0
                        && let Some(slot) = self.identity.take_pinned(server, node)
                    {
                        return Ok(slot);
                    }
                }
            }
            waits += 1;
            self.fabric().sleep(SLOT_WAIT_NS).await;
        }
    }
}

pub(super) const SLOT_WAIT_NS: u64 = 500;
pub(super) const MAX_SLOT_WAITS: u32 = 20_000;
pub(super) const WAITS_BEFORE_LOOK: u32 = 256;
