//! Offloading operations below a missing node to the memory server that has it (Lu et al., §6).
//!
//! If an exclusive node is missing here, the pool's content below it is current: hot nodes form
//! paths from the root (C10), so nothing below the missing node is hot, and cooling nodes are
//! clean. The node is marked while memory servers work below it. The mark also keeps its parent hot
//! (C19), so no other operation on this server descends below it meanwhile. The reply names the
//! leaf that the memory server changed, and this server drops its copy of that leaf.
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - C18. Nothing is offloaded while a hot node names no parent: it could be below the missing one.
//! - offload.O1. A change is requested under a ticket. If its outcome is unknown, the memory server
//!   is asked to close the ticket: it answers with what it did under the ticket, and executes
//!   nothing more under it. The mark stays until then.
//! - offload.O2. The requester never relies on the memory server to execute the operation. A memory
//!   server refuses any request that would split or merge a node or leave the server; the operation
//!   then runs here.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use super::descend::{MissingNode, OffloadOffer};
use super::scan_range::{next_fence, within};
use crate::cache::{MovingAverage, OffloadMark, OffloadName, OptimisticRef, Restart};
use farleaf_fabric::{CostModel, Fabric, ServerId};
use farleaf_index::{KeyedRecords, ScanRequest};
use farleaf_index::{LiveCounters, OwnedRange};
use farleaf_page::rules;
use farleaf_page::{EditAnswer, Layout, LeafEdit, OwnedKey, OwnedValue, ScanWindow, slot_range};
use farleaf_pool::remote::{RemoteError, SettleRight};
use farleaf_pool::wire::{AskOffload, OffloadRequest, OffloadTicket, Reply, Request};
use std::cell::{Cell, RefCell};

/// Time to search a cached node, in nanoseconds: the paper's l_s.
const SEARCH_NS: u64 = CostModel::DEFAULT.visit_node_ns;
/// Cost of fetching a node, in percent of the time for its READ and its search: the paper's c.
const BRINGING_PERCENT: u64 = 120;
/// One decision in this many goes against the estimates, to keep both of them current.
const CONTRARY: u64 = 100;
/// Records that a scan requests at a time. No other operation descends below the node meanwhile.
const RECORDS_AT_ONCE: usize = 1024;
/// Attempts to close a ticket before its outcome is left in doubt.
const CLOSINGS: u32 = 8;

/// A handle's offloading policy, cost estimates and open tickets.
#[derive(Debug)]
pub(super) struct Offloading {
    policy: OffloadName,
    /// Average duration of recent single-key requests.
    request_ns: MovingAverage,
    /// Average duration of recent scan requests.
    scan_request_ns: MovingAverage,
    /// Tickets that could not be closed yet.
    open: RefCell<Vec<OpenTicket>>,
    /// Whether a task is closing tickets now.
    settling: Cell<bool>,
}

/// A ticket under which a memory server may still change something below a node. The node stays
/// marked until the ticket is closed.
#[derive(Clone, Copy, Debug)]
struct OpenTicket {
    server: ServerId,
    ticket: OffloadTicket,
    mark: u64,
}

/// A requested change. Dropping this without [`RequestedChange::has_ended`] adds its ticket to the
/// list of tickets to close (offload.O1).
#[derive(Debug)]
struct RequestedChange<'a> {
    open: OpenTicket,
    list: &'a RefCell<Vec<OpenTicket>>,
    doubtful: &'a Cell<bool>,
}

impl RequestedChange<'_> {
    /// Marks the request as complete: nothing further happens under the ticket.
    fn has_ended(self) -> OpenTicket {
        let open = self.open;
        std::mem::forget(self);
        open
    }
}

impl Drop for RequestedChange<'_> {
    fn drop(&mut self) {
        self.list.borrow_mut().push(self.open);
        self.doubtful.set(true);
    }
}

/// The mark that keeps other operations away from a node while a memory server works below it.
enum OffloadMarking<'a> {
    Lookup(OffloadMark<'a>),
    Change(RequestedChange<'a>),
}

impl Offloading {
    pub(super) fn new(policy: OffloadName) -> Self {
        Self {
            policy,
            request_ns: MovingAverage::default(),
            scan_request_ns: MovingAverage::default(),
            open: RefCell::default(),
            settling: Cell::new(false),
        }
    }

    #[inline]
    pub(super) fn has_open_tickets(&self) -> bool {
        !self.open.borrow().is_empty()
    }

    /// Whether the policy ever offloads.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.policy != OffloadName::Never
    }

    /// Whether offloading is faster for a single-key operation that misses a node at `level` (Lu et
    /// al., §6.1).
    fn decide(&self, level: u8, read_ns: Option<u64>, random: u64) -> bool {
        decide(&self.request_ns, read_ns, random, |read_ns| {
            let node_ns = (read_ns + SEARCH_NS) * BRINGING_PERCENT / 100;
            (u64::from(level) + 1) * node_ns
        })
    }

    /// Whether offloading is faster for a scan that misses an inner node at `level` and needs
    /// `leaves` leaves below it, if it would otherwise read them `together` at a time.
    fn decide_scan(
        &self,
        (level, leaves, together): (u8, u64, u64),
        read_ns: Option<u64>,
        random: u64,
    ) -> bool {
        decide(&self.scan_request_ns, read_ns, random, |read_ns| {
            let reads = u64::from(level) + leaves.div_ceil(together);
            let searches = u64::from(level) + leaves;
            (reads * read_ns + searches * SEARCH_NS) * BRINGING_PERCENT / 100
        })
    }
}

/// Whether a request is faster than fetching the nodes. The cost of fetching depends on the
/// duration of a READ. One decision in [`CONTRARY`] is inverted.
fn decide(
    requests: &MovingAverage,
    read_ns: Option<u64>,
    random: u64,
    fetching_ns: impl FnOnce(u64) -> u64,
) -> bool {
    let cheaper = match (read_ns, requests.ns()) {
        (_, None) => true,
        (None, _) => false,
        (Some(read_ns), Some(request_ns)) => request_ns < fetching_ns(read_ns),
    };
    cheaper != random.is_multiple_of(CONTRARY)
}

/// What a memory server has found below a missing node.
#[derive(Debug)]
pub(super) struct OffloadedScan<L: Layout> {
    pub(super) records: KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
    /// There may be more records below the node, beyond the last one returned.
    pub(super) more: bool,
    /// Where the node ends in the direction of the scan.
    pub(super) fence: Option<OwnedKey<L>>,
}

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Decides whether to offload what `offer` describes. The child word at `slot` of `parent`
    /// points to a missing node at `level`.
    #[cold]
    pub(super) fn offers(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        level: u8,
        offer: OffloadOffer,
    ) -> bool {
        // A scan may need more leaves than the missing one. A leaf with a heap may have to be
        // trimmed before a change.
        let of_one_leaf = level == 0 && (offer != OffloadOffer::Edit || L::HAS_HEAP);
        if of_one_leaf
            || level > self.placement_level
            || self.has_detached()
            || !self.is_exclusive_slot(parent, slot)
        {
            return false;
        }
        match self.offload.policy {
            OffloadName::Never => false,
            OffloadName::Always => true,
            OffloadName::CostAware => {
                let read_ns = self.client.read_ns.as_ref().and_then(MovingAverage::ns);
                let random = self.fabric().random();
                match offer {
                    OffloadOffer::Nothing => false,
                    OffloadOffer::Edit => self.offload.decide(level, read_ns, random),
                    OffloadOffer::Scan { leaves } => {
                        let together = u64::from(self.leaves_together);
                        self.offload.decide_scan((level, leaves, together), read_ns, random)
                    }
                }
            }
        }
    }

    /// Whether a hot node names no parent (C18).
    fn has_detached(&self) -> bool {
        self.client.cache().arena().detached() > 0 && !self.fabric().breaks(rules::NONE_DETACHED)
    }

    /// Asks the memory server to apply `edit` below a missing node.
    ///
    /// # Errors
    /// [`Restart::Here`] if the memory server refuses; [`Restart::Failed`] if the outcome stays
    /// unknown.
    pub(super) async fn offload(
        &self,
        missing: MissingNode<'_, L>,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, Restart> {
        let MissingNode { parent, slot, address, level } = missing;
        let ticket = match edit.changes() {
            true => Some(self.client.pages().take_ticket().await?.ok_or(Restart::Here)?),
            false => None,
        };
        let give_ticket = || ticket.map(|ticket| self.client.pages().give_ticket(ticket));
        let begun = self.client.begin_remote(parent, slot, address).await;
        let mark = begun.inspect_err(|_| _ = give_ticket())?;
        if self.has_detached() {
            give_ticket();
            return Err(Restart::Here); // C18
        }
        let rpc = self.client.pages().rpc();
        let request = AskOffload { node: address, level, edit, ticket };
        let asked_ns = self.fabric().now_ns();
        let server = address.server();
        // A change may still happen after its future is dropped; a lookup changes nothing.
        let asked = match ticket {
            Some(ticket) => {
                OffloadMarking::Change(self.asks(OpenTicket { server, ticket, mark: mark.keep() }))
            }
            None => OffloadMarking::Lookup(mark),
        };
        let mut outcome = rpc.ask(server, &request).await;
        if outcome.is_ok() {
            self.offload.request_ns.add(self.fabric().now_ns().saturating_sub(asked_ns));
        }
        let closes = !self.fabric().breaks(rules::TICKETS_CLOSED);
        if let (Err(RemoteError::Indeterminate(_)), Some(ticket), true) = (&outcome, ticket, closes)
        {
            for _ in 0..CLOSINGS {
                match rpc.ask_idempotent(server, &OffloadRequest::CloseTicket { ticket }).await {
                    Err(RemoteError::Indeterminate(_)) => {}
                    // However the closing failed, the change may have happened.
                    Err(_) => break,
                    closed => {
                        outcome = closed;
                        break;
                    }
                }
            }
            if let Err(error) = outcome {
                return Err(error.into()); // the mark and the ticket stay until it can be closed
            }
        }
        let answer = match outcome {
            Ok(Reply::Offloaded { leaf, answer }) => {
                if let Some(leaf) = leaf
                    && !self.fabric().breaks(rules::CHANGED_COPIES_DROPPED)
                {
                    self.client.drop_copy(leaf).await;
                }
                LiveCounters::count(&self.client.counters.offloads);
                Ok(answer)
            }
            // The ticket is closed and nothing was done under it, or the request was a lookup,
            // which can be repeated.
            Ok(Reply::Done) | Err(RemoteError::Indeterminate(_)) => Err(Restart::Busy),
            Ok(_) => Err(RemoteError::BadReply { server }.into()),
            Err(RemoteError::Refused { .. } | RemoteError::Contended { .. }) => {
                LiveCounters::count(&self.client.counters.offload_refusals);
                Err(Restart::Here)
            }
            Err(error) => Err(error.into()),
        };
        match asked {
            OffloadMarking::Lookup(mark) => drop(mark),
            OffloadMarking::Change(asked) => {
                let OpenTicket { mark, .. } = asked.has_ended();
                drop(self.client.cache().mapping().resume(mark));
            }
        }
        give_ticket();
        answer
    }

    fn asks(&self, open: OpenTicket) -> RequestedChange<'_> {
        RequestedChange { open, list: &self.offload.open, doubtful: self.client.pages().doubtful() }
    }

    /// Closes the tickets of abandoned changes, which makes their nodes available again.
    ///
    /// # Errors
    /// [`RemoteError`] if a memory server cannot be reached.
    pub(super) async fn close_tickets(&self) -> Result<(), RemoteError> {
        // One task at a time. Each ticket stays in the list until it is closed, because this task
        // may be dropped at any time.
        let Some(_settling) = SettleRight::begin(&self.offload.settling) else { return Ok(()) };
        let (open, mut outcome) = (self.offload.open.borrow().clone(), Ok(()));
        for OpenTicket { server, ticket, mark } in open {
            let close = Request::from(OffloadRequest::CloseTicket { ticket });
            match self.client.pages().rpc().ask_idempotent(server, &close).await {
                Ok(Reply::Offloaded { leaf: Some(leaf), .. }) => self.client.drop_copy(leaf).await,
                Ok(_) => {}
                // Tickets on other memory servers do not wait for this one.
                Err(error) => {
                    outcome = Err(error);
                    continue;
                }
            }
            self.offload.open.borrow_mut().retain(|other| other.ticket != ticket);
            drop(self.client.cache().mapping().resume(mark));
            self.client.pages().give_ticket(ticket);
        }
        outcome
    }

    /// Asks the memory server for the records of a scan below a missing node. The result also says
    /// where that node ends.
    ///
    /// # Errors
    /// [`Restart::Here`] if the memory server refuses or does not reply in time.
    pub(super) async fn offload_scan(
        &self,
        missing: MissingNode<'_, L>,
        window: &ScanWindow<'_, L::Key>,
    ) -> Result<OffloadedScan<L>, Restart> {
        let MissingNode { parent, slot, address, level } = missing;
        let fence = next_fence(parent.page, slot, window.reverse);
        // The node may hold keys beyond the range that its parent routes to it (D7).
        let (low, high) = slot_range(parent.page, slot);
        let (lower, upper) =
            (window.lower.map(ToOwned::to_owned), window.upper.map(ToOwned::to_owned));
        let wanted = ScanRequest { lower, upper, reverse: window.reverse, limit: window.limit };
        let wanted = within(&wanted, &OwnedRange { low, high });
        // A late request changes nothing, so the mark can end with this call.
        let mark = self.client.begin_remote(parent, slot, address).await?;
        if self.has_detached() {
            return Err(Restart::Here); // C18
        }
        let request = Request::from(OffloadRequest::Scan {
            node: address,
            level,
            lower: wanted.lower,
            upper: wanted.upper,
            reverse: window.reverse,
            limit: window.limit.min(RECORDS_AT_ONCE) as u32,
        });
        let asked_ns = self.fabric().now_ns();
        let server = address.server();
        let outcome = self.client.pages().rpc().ask(server, &request).await;
        drop(mark);
        match outcome {
            Ok(Reply::Records { records, more }) => {
                self.offload.scan_request_ns.add(self.fabric().now_ns().saturating_sub(asked_ns));
                LiveCounters::count(&self.client.counters.offloads);
                // A reply with too many records, or with none although it announces more, would
                // make the scan loop.
                if records.len() > window.limit || (more && records.is_empty()) {
                    return Err(RemoteError::BadReply { server }.into());
                }
                Ok(OffloadedScan { records, more, fence })
            }
            Ok(_) => Err(RemoteError::BadReply { server }.into()),
            // The request could be repeated, but the caller might give up before it is answered.
            Err(RemoteError::Indeterminate(_)) => Err(Restart::Here),
            Err(RemoteError::Refused { .. } | RemoteError::Contended { .. }) => {
                LiveCounters::count(&self.client.counters.offload_refusals);
                Err(Restart::Here)
            }
            Err(error) => Err(error.into()),
        }
    }
}
