//! Operations that compute servers offload to this memory server: descents through nodes that
//! otherwise only compute servers read and change (Lu et al., §6).
//!
//! The compute server that offloads has marked the node, so no other client changes anything below
//! it meanwhile. Offloaded operations can meet at a leaf, so they use the latch in its word 0,
//! which no compute server touches at that time. They trust nothing in a request: an address on
//! another server is refused, and so is a page of the wrong level or with the wrong fences.
//!
//! *Invariants*
//! - offloads.W1. A change is made at most once for each ticket, and never after the ticket was
//!   closed.
//! - offloads.W2. A refused operation has changed nothing.
//! - offloads.W3. No operation splits or merges, or leaves this server.
//!
//! *Thread safety*: any number of threads; changes of leaves are serialized.

use crate::wire::{OffloadTicket, RecordRoom, Refusal, Reply, SCAN_REPLY_RECORDS};
use farleaf_fabric::sync::{Mutex, lock};
use farleaf_fabric::{Cpu, GlobalAddr, Work};
use farleaf_page::rules;
use farleaf_page::{
    DescentProbe, EditAnswer, FencePosition, Layout, LeafEdit, LeafOutcome, OwnedKey, OwnedValue,
    Page, ScanWindow, clipped, narrowed, slot_range,
};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Maximum number of attempts to read a leaf that other operations keep changing.
const MAX_READS: u32 = 1024;

/// The outcome of the latest ticket of a slot.
#[derive(Debug)]
struct LatestOutcome<V> {
    number: u32,
    /// The reply, if the change was made before the ticket was closed.
    done: Option<(Option<GlobalAddr>, EditAnswer<V>)>,
}

/// A leaf, with the range of keys that the path to it covers. The leaf may also hold other keys
/// (D7).
struct FoundLeaf<'a, L: Layout> {
    at: GlobalAddr,
    page: Page<'a, L>,
    keys: (OwnedKey<L>, Option<OwnedKey<L>>),
}

/// By client and slot.
type Tickets<V> = BTreeMap<(u16, u8), LatestOutcome<V>>;

/// The tickets that this server has seen: one entry for each slot of each client.
#[derive(Debug)]
pub(super) struct Offloads<L: Layout> {
    tickets: Mutex<Tickets<OwnedValue<L>>>,
}

impl<L: Layout> Default for Offloads<L> {
    fn default() -> Self {
        Self { tickets: Mutex::default() }
    }
}

/// The bounds of a scan below a node.
#[derive(Debug)]
pub(super) struct ScanBounds<K> {
    pub(super) lower: Bound<K>,
    pub(super) upper: Bound<K>,
    pub(super) reverse: bool,
    pub(super) limit: u32,
}

impl<L: Layout> Offloads<L> {
    /// Descends from `node` to the leaf that covers `probe`.
    async fn leaf<'a, C: Cpu>(
        cpu: &C,
        page_at: impl Fn(GlobalAddr) -> Option<Page<'a, L>>,
        node: GlobalAddr,
        level: u8,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<FoundLeaf<'a, L>, Refusal> {
        let (mut at, mut level) = (node, level);
        let mut keys = None;
        loop {
            let page = page_at(at).ok_or(Refusal::NotHere)?;
            cpu.charge(Work::VisitNode).await;
            let fits = page.address() == at
                && page.level() == level
                && L::reach(page, probe) == FencePosition::Inside;
            if !fits && !cpu.breaks(rules::OFFLOADS_DOUBT) {
                return Err(Refusal::NotHere);
            }
            let fences = (L::low(page), L::high(page));
            // A split may not have trimmed the child yet, so the path and the fences both limit its
            // keys.
            let led = keys.map_or(fences.clone(), |keys| narrowed(keys, fences));
            if level == 0 {
                return Ok(FoundLeaf { at, page, keys: led });
            }
            let slot = L::inner_slot(page, probe);
            keys = Some(narrowed(led, slot_range(page, slot)));
            at = L::inner_child(page, slot);
            level -= 1;
        }
    }

    /// Applies `read` to a leaf until it has run without a concurrent change, and returns its
    /// result.
    async fn read<C: Cpu, T>(
        cpu: &C,
        page: Page<'_, L>,
        mut read: impl FnMut() -> T,
    ) -> Result<T, Refusal> {
        for attempt in 0..MAX_READS {
            if let Some(version) = page.latch().optimistic() {
                let value = read();
                if page.latch().validate(version) {
                    return Ok(value);
                }
            }
            cpu.pause(attempt).await;
        }
        Err(Refusal::Contended)
    }

    /// Applies `edit` to the leaf of its key below `node`.
    pub(super) async fn edit<'a, C: Cpu>(
        &self,
        cpu: &C,
        page_at: impl Fn(GlobalAddr) -> Option<Page<'a, L>>,
        (node, level): (GlobalAddr, u8),
        edit: LeafEdit<&L::Key, &L::Value>,
        ticket: Option<OffloadTicket>,
    ) -> Result<Reply<L>, Refusal> {
        let found = Self::leaf(cpu, page_at, node, level, DescentProbe::At(edit.key)).await?;
        let FoundLeaf { at, page, keys } = found;
        if !edit.changes() {
            let look = || page.stamp_fits().then(|| edit.apply(page));
            return match Self::read(cpu, page, look).await? {
                Some(LeafOutcome::Nothing(answer)) => Ok(Reply::Offloaded { leaf: None, answer }),
                _ => Err(Refusal::Damaged),
            };
        }
        let ticket = ticket.ok_or(Refusal::Malformed)?;
        // After a crash, a leaf may have wider fences than its slot. A record added now could take
        // the room that trimming the leaf needs (D7), so the compute server must trim it first.
        let may_be_wide = level == 0 || keys != (L::low(page), L::high(page));
        if L::HAS_HEAP && may_be_wide {
            return Err(Refusal::Restructures); // offloads.W3
        }
        cpu.charge(Work::ChangeNode).await;
        let mut tickets = lock(&self.tickets);
        let last = tickets.get(&ticket.place());
        let closed = last.is_some_and(|last| last.number >= ticket.number);
        if closed && !cpu.breaks(rules::ONCE_PER_TICKET) {
            return Err(Refusal::TicketClosed); // offloads.W1
        }
        // Every change locks the tickets, so only a page that is not a leaf can be latched here.
        let version = page.latch().optimistic().ok_or(Refusal::NotHere)?;
        let _guard = page.latch().try_lock(version, 0).ok_or(Refusal::NotHere)?;
        if !page.stamp_fits() {
            return Err(Refusal::Damaged); // D8
        }
        if edit.would_leave_sparse(page) {
            return Err(Refusal::Restructures); // offloads.W3
        }
        let (leaf, answer) = match edit.apply(page) {
            LeafOutcome::Nothing(answer) => (None, answer),
            LeafOutcome::Changed { answer, .. } => {
                page.set_stamp();
                (Some(at), answer)
            }
            LeafOutcome::Full => return Err(Refusal::Restructures), // offloads.W3
        };
        let done = Some((leaf, answer.clone()));
        tickets.insert(ticket.place(), LatestOutcome { number: ticket.number, done });
        Ok(Reply::Offloaded { leaf, answer })
    }

    /// Closes a ticket: no change is made under it from now on. Returns the reply of the change
    /// that was made under it, if any.
    pub(super) fn close(&self, ticket: OffloadTicket) -> Reply<L> {
        let mut tickets = lock(&self.tickets);
        let last = tickets.entry(ticket.place()).or_insert(LatestOutcome { number: 0, done: None });
        if last.number < ticket.number {
            *last = LatestOutcome { number: ticket.number, done: None };
        }
        match &last.done {
            Some((leaf, answer)) if last.number == ticket.number => {
                Reply::Offloaded { leaf: *leaf, answer: answer.clone() }
            }
            _ => Reply::Done,
        }
    }

    /// The records below `node` that a scan asks for, up to its limit or that of one reply. `more`
    /// tells whether there may be more of them below the node.
    pub(super) async fn scan<'a, C: Cpu>(
        cpu: &C,
        page_at: impl Fn(GlobalAddr) -> Option<Page<'a, L>>,
        (node, level): (GlobalAddr, u8),
        stretch: ScanBounds<OwnedKey<L>>,
    ) -> Result<Reply<L>, Refusal> {
        let ScanBounds { lower, upper, reverse, limit } = stretch;
        let limit = (limit as usize).min(SCAN_REPLY_RECORDS);
        let top = page_at(node).ok_or(Refusal::NotHere)?;
        let (low, high) = (L::low(top), L::high(top));
        let mut records = Vec::new();
        let mut room = RecordRoom::for_records(SCAN_REPLY_RECORDS);
        // The next leaf to read: the one that covers this key, or the one before it.
        let mut place = match (reverse, &lower, &upper) {
            (false, Bound::Included(key) | Bound::Excluded(key), _) if *key > low => {
                Bound::Included(key.clone())
            }
            (false, ..) => Bound::Included(low.clone()),
            (true, _, Bound::Included(key)) if high.as_ref().is_none_or(|high| key < high) => {
                Bound::Included(key.clone())
            }
            (true, _, Bound::Excluded(key)) if high.as_ref().is_none_or(|high| key < high) => {
                Bound::Excluded(key.clone())
            }
            (true, ..) => high.clone().map_or(Bound::Unbounded, Bound::Excluded),
        };
        loop {
            let probe = match place.as_ref().map(L::key) {
                Bound::Included(key) => DescentProbe::At(key),
                Bound::Excluded(key) => DescentProbe::Before(key),
                Bound::Unbounded => DescentProbe::Last,
            };
            let FoundLeaf { page, keys, .. } =
                Self::leaf(cpu, &page_at, node, level, probe).await?;
            let had = records.len();
            // Records outside the range of the path to the leaf do not count (D7).
            let wanted = (lower.as_ref().map(L::key), upper.as_ref().map(L::key));
            let led = (L::key(&keys.0), keys.1.as_ref().map(L::key));
            let (lower, upper) = clipped(wanted, led);
            let window = ScanWindow { lower, upper, reverse, limit: limit - had };
            let collect = || {
                records.truncate(had);
                L::leaf_collect(page, &window, &mut records);
                page.stamp_fits()
            };
            if !Self::read(cpu, page, collect).await? {
                return Err(Refusal::Damaged); // D8
            }
            cpu.charge(Work::CopyRecords((records.len() - had) as u32)).await;
            let full = room.cut::<L>(&mut records, had) || records.len() >= limit;
            let asked = ScanWindow { lower: wanted.0, upper: wanted.1, reverse, limit };
            let next = match reverse {
                false => keys.1.filter(|end| high.as_ref().is_none_or(|high| end < high)),
                true => Some(keys.0).filter(|start| *start > low),
            };
            let next = next.filter(|fence| asked.goes_behind(L::key(fence)));
            match next {
                Some(key) if !full => {
                    place = if reverse { Bound::Excluded(key) } else { Bound::Included(key) };
                }
                // At the limit, the last leaf may have more records, even if no leaf follows it.
                _ => return Ok(Reply::Records { records, more: full }),
            }
        }
    }
}
