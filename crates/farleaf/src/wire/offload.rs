//! Requests for work below a node, which the client that asks has to itself.

use super::table::messages;
use crate::page::{Layout, LeafEdit, Wire};
use farleaf_fabric::{GlobalAddr, Message};
use std::ops::Bound;

/// Changes that one client can have under way on memory servers at a time: a memory server
/// remembers as many for each.
pub const TICKETS: usize = 64;

messages! {
    /// A request for work below a node, which the client that asks has to itself.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum OffloadRequest<L: Layout> {
        /// Do this below a node. Answered by [`Reply::Walked`](super::Reply::Walked).
        22 => Walk {
            /// The node.
            node: GlobalAddr,
            /// Its level.
            level: u8,
            /// What to do.
            edit: LeafEdit<L::Key, L::Value>,
            /// For a change: what makes it happen once.
            ticket: Option<Ticket>,
        },
        /// Records of a range below a node; the reply says whether there may be more below it.
        23 => WalkScan {
            /// The node.
            node: GlobalAddr,
            /// Its level.
            level: u8,
            /// The lower bound.
            lower: Bound<L::Key>,
            /// The upper bound.
            upper: Bound<L::Key>,
            /// Descending.
            reverse: bool,
            /// At most so many.
            limit: u32,
        },
        /// Do nothing under this ticket from now on. Answered by what was done, or
        /// [`Reply::Done`](super::Reply::Done) if nothing was.
        24 => CloseTicket {
            /// The ticket.
            ticket: Ticket,
        },
    }
}

/// What makes a change that is left to a memory server happen once: a client gives each out once,
/// in ascending order for each of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The client, as [`OwnerRequest::Register`](super::OwnerRequest::Register) numbers it.
    pub owner: u16,
    /// Which of its [`TICKETS`].
    pub slot: u8,
    /// How often that was used before, from 1.
    pub number: u32,
}

impl Ticket {
    /// What has its own order of numbers.
    pub(crate) fn place(self) -> (u16, u8) {
        (self.owner, self.slot)
    }
}

impl Wire for Ticket {
    fn put(&self, to: &mut Message) {
        self.owner.put(to);
        self.slot.put(to);
        self.number.put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let owner = u16::take(from)?;
        let slot = u8::take(from).filter(|slot| usize::from(*slot) < TICKETS)?;
        Some(Self { owner, slot, number: u32::take(from)? })
    }
}

#[cfg(test)]
mod tests {
    use super::{OffloadRequest, TICKETS, Ticket};
    use crate::page::Fixed8;
    use crate::wire::Request;

    /// A memory server keeps an array of tickets for each client: what is beyond it must not get
    /// that far.
    #[test]
    fn tickets_beyond_the_last_are_no_requests() {
        for slot in 0..=u8::MAX {
            let ticket = Ticket { owner: 3, slot, number: 7 };
            let request = Request::<Fixed8>::from(OffloadRequest::CloseTicket { ticket });
            let decoded = Request::<Fixed8>::decode(&request.encode());
            assert_eq!(decoded.is_some(), usize::from(slot) < TICKETS, "slot {slot}");
        }
    }
}
