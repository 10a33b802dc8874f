//! Operations that compute servers leave to this memory server: walks down nodes that otherwise only they read and
//! change (Lu et al., §6).
//!
//! The compute server that asks has marked the node, so that while walks go on below it nobody else changes what is
//! there. Walks can meet at a leaf: they use the latch in its word 0, which no compute server touches meanwhile. What a
//! walk is told it does not believe: an address that is not here, a page of another level
//! or with other fences, is a refusal.
//!
//! *Invariants*: W1. a change is made at most once for each ticket, and never after the ticket was closed. W2. a refused
//! walk has changed nothing. W3. no walk splits or merges, or leaves this server.
//!
//! *Thread safety*: any number of threads; changes of leaves one after the other.

use crate::page::{
    Answer, FencePosition, Layout, LeafEdit, LeafOutcome, Page, Probe, ScanWindow, clipped,
    narrowed, slot_range,
};
use crate::rules;
use crate::wire::{Refusal, Reply, SCAN_REPLY_RECORDS, Ticket};
use farleaf_fabric::sync::{Mutex, lock};
use farleaf_fabric::{Cpu, GlobalAddr, Work};
use std::collections::BTreeMap;
use std::ops::Bound;

/// How often a leaf is read that others change.
const MOST_READS: u32 = 1024;

/// What was done under the last ticket of a slot.
#[derive(Debug)]
struct Last<V> {
    number: u32,
    /// The reply, if something was done before it was closed.
    done: Option<(Option<GlobalAddr>, Answer<V>)>,
}

/// A leaf, and the keys that the way leads to it for: it may have more (D7).
struct Found<'a, L: Layout> {
    at: GlobalAddr,
    page: Page<'a, L>,
    keys: (L::Key, Option<L::Key>),
}

/// By client and slot.
type Tickets<V> = BTreeMap<(u16, u8), Last<V>>;

/// The tickets that this server has seen: one entry for each slot of each client.
#[derive(Debug)]
pub(super) struct Walks<L: Layout> {
    tickets: Mutex<Tickets<L::Value>>,
}

impl<L: Layout> Default for Walks<L> {
    fn default() -> Self {
        Self { tickets: Mutex::default() }
    }
}

/// Where a scan below a node is.
#[derive(Debug)]
pub(super) struct Stretch<K> {
    pub(super) lower: Bound<K>,
    pub(super) upper: Bound<K>,
    pub(super) reverse: bool,
    pub(super) limit: u32,
}

impl<L: Layout> Walks<L> {
    /// The leaf below `node` that the probe lies in, and the keys that the way leads to it for.
    async fn leaf<'a, C: Cpu>(
        cpu: &C,
        page_at: impl Fn(GlobalAddr) -> Option<Page<'a, L>>,
        node: GlobalAddr,
        level: u8,
        probe: Probe<'_, L::Key>,
    ) -> Result<Found<'a, L>, Refusal> {
        let (mut at, mut level) = (node, level);
        let mut keys = None;
        loop {
            let page = page_at(at).ok_or(Refusal::NotHere)?;
            cpu.charge(Work::VisitNode).await;
            let fits = page.address() == at
                && page.level() == level
                && L::reach(page, probe) == FencePosition::Inside;
            if !fits && !cpu.breaks(rules::WALKS_DOUBT) {
                return Err(Refusal::NotHere);
            }
            let fences = (L::low(page), L::high(page));
            let led = keys.map_or(fences.clone(), |keys| narrowed(keys, fences));
            if level == 0 {
                return Ok(Found { at, page, keys: led });
            }
            let slot = L::inner_slot(page, probe);
            keys = Some(narrowed(led, slot_range(page, slot)));
            at = L::inner_child(page, slot);
            level -= 1;
        }
    }

    /// What `read` makes of a leaf while nobody changes it.
    async fn read<C: Cpu, T>(
        cpu: &C,
        page: Page<'_, L>,
        mut read: impl FnMut() -> T,
    ) -> Result<T, Refusal> {
        for attempt in 0..MOST_READS {
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

    /// Does `edit` to the leaf of its key below `node`.
    pub(super) async fn walk<'a, C: Cpu>(
        &self,
        cpu: &C,
        page_at: impl Fn(GlobalAddr) -> Option<Page<'a, L>>,
        (node, level): (GlobalAddr, u8),
        edit: LeafEdit<&L::Key, &L::Value>,
        ticket: Option<Ticket>,
    ) -> Result<Reply<L>, Refusal> {
        let found = Self::leaf(cpu, page_at, node, level, Probe::At(edit.key)).await?;
        let Found { at, page, .. } = found;
        if !edit.changes() {
            let look = || page.stamp_fits().then(|| edit.apply(page));
            return match Self::read(cpu, page, look).await? {
                Some(LeafOutcome::Nothing(answer)) => Ok(Reply::Walked { leaf: None, answer }),
                _ => Err(Refusal::Damaged),
            };
        }
        let ticket = ticket.ok_or(Refusal::Malformed)?;
        cpu.charge(Work::ChangeNode).await;
        let mut tickets = lock(&self.tickets);
        let last = tickets.get(&ticket.place());
        let closed = last.is_some_and(|last| last.number >= ticket.number);
        if closed && !cpu.breaks(rules::ONCE_PER_TICKET) {
            return Err(Refusal::TicketClosed); // W1
        }
        // All changes hold the tickets, so nobody else has the latch, unless the page is none of a leaf.
        let version = page.latch().optimistic().ok_or(Refusal::NotHere)?;
        let _guard = page.latch().try_lock(version, 0).ok_or(Refusal::NotHere)?;
        if !page.stamp_fits() {
            return Err(Refusal::Damaged); // D8
        }
        if edit.would_leave_sparse(page) {
            return Err(Refusal::Restructures); // W3
        }
        let (leaf, answer) = match edit.apply(page) {
            LeafOutcome::Nothing(answer) => (None, answer),
            LeafOutcome::Changed { answer, .. } => {
                page.set_stamp();
                (Some(at), answer)
            }
            LeafOutcome::Full => return Err(Refusal::Restructures), // W3
        };
        let done = Some((leaf, answer.clone()));
        tickets.insert(ticket.place(), Last { number: ticket.number, done });
        Ok(Reply::Walked { leaf, answer })
    }

    /// Nothing is done under a ticket from now on; what was is the reply.
    pub(super) fn close(&self, ticket: Ticket) -> Reply<L> {
        let mut tickets = lock(&self.tickets);
        let last = tickets.entry(ticket.place()).or_insert(Last { number: 0, done: None });
        if last.number < ticket.number {
            *last = Last { number: ticket.number, done: None };
        }
        match &last.done {
            Some((leaf, answer)) if last.number == ticket.number => {
                Reply::Walked { leaf: *leaf, answer: answer.clone() }
            }
            _ => Reply::Done,
        }
    }

    /// The records below `node` that a scan asks for, at most until its limit or that of a reply; `more` says that there
    /// may be some beyond them below the node.
    pub(super) async fn scan<'a, C: Cpu>(
        cpu: &C,
        page_at: impl Fn(GlobalAddr) -> Option<Page<'a, L>>,
        (node, level): (GlobalAddr, u8),
        stretch: Stretch<L::Key>,
    ) -> Result<Reply<L>, Refusal> {
        let Stretch { lower, upper, reverse, limit } = stretch;
        let limit = (limit as usize).min(SCAN_REPLY_RECORDS);
        let top = page_at(node).ok_or(Refusal::NotHere)?;
        let (low, high) = (L::low(top), L::high(top));
        let mut records = Vec::new();
        // The leaf to go on with: of its key, or the one before it.
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
            let probe = match &place {
                Bound::Included(key) => Probe::At(key),
                Bound::Excluded(key) => Probe::Before(key),
                Bound::Unbounded => Probe::Last,
            };
            let Found { page, keys, .. } = Self::leaf(cpu, &page_at, node, level, probe).await?;
            let had = records.len();
            // What the leaf has beyond the keys that led to it does not count (D7).
            let wanted = (lower.as_ref(), upper.as_ref());
            let (lower, upper) = clipped(wanted, (&keys.0, keys.1.as_ref()));
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
            let full = records.len() >= limit;
            let asked = ScanWindow { lower: wanted.0, upper: wanted.1, reverse, limit };
            let next = match reverse {
                false => keys.1.filter(|end| high.as_ref().is_none_or(|high| end < high)),
                true => Some(keys.0).filter(|start| *start > low),
            };
            let next = next.filter(|fence| asked.goes_behind(fence));
            match next {
                Some(key) if !full => {
                    place = if reverse { Bound::Excluded(key) } else { Bound::Included(key) };
                }
                // The last leaf may have some beyond the limit, even if nothing comes behind it.
                _ => return Ok(Reply::Records { records, more: full }),
            }
        }
    }
}
