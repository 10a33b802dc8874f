//! Requests for work below a node to which the requesting client has exclusive access.

use super::Ask;
use super::table::{MessageTable, messages};
use farleaf_fabric::{GlobalAddr, Message};
use farleaf_page::{Layout, LeafEdit, OwnedKey, OwnedValue, PutField, WireField};
use std::ops::Bound;

/// Maximum number of offloaded changes that one client can have in flight. A memory server
/// remembers this many for each client.
pub const TICKETS: usize = 64;

messages! {
    /// A request for work below a node to which the requesting client has exclusive access.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum OffloadRequest<L: Layout> {
        /// Applies an edit below a node. Answered by [`Reply::Offloaded`](super::Reply::Offloaded).
        22 => Edit {
            /// Address of the node to start from.
            node: GlobalAddr,
            /// Level of that node.
            level: u8,
            /// The change to make below it.
            edit: LeafEdit<OwnedKey<L>, OwnedValue<L>>,
            /// For a change: ensures that it happens at most once.
            ticket: Option<OffloadTicket>,
        },
        /// Requests records of a range below a node. The reply tells whether there may be more of
        /// them below it.
        23 => Scan {
            /// Address of the node to start from.
            node: GlobalAddr,
            /// Level of that node.
            level: u8,
            /// Where the range begins.
            lower: Bound<OwnedKey<L>>,
            /// Where the range ends.
            upper: Bound<OwnedKey<L>>,
            /// Whether the scan is descending.
            reverse: bool,
            /// Maximum number of records to return.
            limit: u32,
        },
        /// Make no change under this ticket from now on. Answered by the result of the change made
        /// under it, or by [`Reply::Done`](super::Reply::Done) if there was none.
        24 => CloseTicket {
            /// The ticket to close.
            ticket: OffloadTicket,
        },
    }
}

/// [`OffloadRequest::Edit`] with a borrowed edit, so that encoding it copies neither key nor
/// values.
#[derive(Clone, Copy, Debug)]
pub struct AskOffload<'e, L: Layout> {
    /// Address of the node to start from.
    pub node: GlobalAddr,
    /// Level of that node.
    pub level: u8,
    /// The change to make below it.
    pub edit: LeafEdit<&'e L::Key, &'e L::Value>,
    /// For a change: ensures that it happens at most once.
    pub ticket: Option<OffloadTicket>,
}

impl<L: Layout> PutField for AskOffload<'_, L> {
    fn put(&self, to: &mut Message) {
        to.push(OffloadRequest::<L>::TAGS[0]);
        self.node.put(to);
        self.level.put(to);
        self.edit.put(to);
        self.ticket.put(to);
    }
}

impl<L: Layout> Ask<L> for AskOffload<'_, L> {}

/// Ensures that an offloaded change happens at most once. A client uses each ticket once, with
/// ascending numbers for each of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadTicket {
    /// The client's number from [`OwnerRequest::Register`](super::OwnerRequest::Register).
    pub owner: u16,
    /// The slot, below [`TICKETS`].
    pub slot: u8,
    /// Counts the slot's tickets, from 1.
    pub number: u32,
}

impl OffloadTicket {
    /// The client and the slot. Tickets with the same place are ordered by number.
    pub(crate) fn place(self) -> (u16, u8) {
        (self.owner, self.slot)
    }
}

impl PutField for OffloadTicket {
    fn put(&self, to: &mut Message) {
        self.owner.put(to);
        self.slot.put(to);
        self.number.put(to);
    }
}

impl WireField for OffloadTicket {
    fn take(from: &mut &[u8]) -> Option<Self> {
        let owner = u16::take(from)?;
        let slot = u8::take(from).filter(|slot| usize::from(*slot) < TICKETS)?;
        Some(Self { owner, slot, number: u32::take(from)? })
    }
}

#[cfg(test)]
mod tests {
    use super::{OffloadRequest, OffloadTicket, TICKETS};
    use crate::wire::Request;
    use farleaf_page::Fixed8;

    /// A memory server remembers one ticket for each slot of a client, so decoding must reject
    /// slots beyond the last.
    #[test]
    fn tickets_beyond_the_last_are_no_requests() {
        for slot in 0..=u8::MAX {
            let ticket = OffloadTicket { owner: 3, slot, number: 7 };
            let request = Request::<Fixed8>::from(OffloadRequest::CloseTicket { ticket });
            let decoded = Request::<Fixed8>::decode(&request.encode());
            assert_eq!(decoded.is_some(), usize::from(slot) < TICKETS, "slot {slot}");
        }
    }
}
