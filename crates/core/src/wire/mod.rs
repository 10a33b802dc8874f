//! The messages between compute and memory servers; `front.rs` has those between clients and
//! compute servers.
//!
//! A message is a tag byte and its fields: integers little-endian, keys and values as their types
//! define. Tables (`table.rs`) list the tags and fields. Requests have one table for each part of a
//! memory server, with distinct tags. Any bytes may arrive: decoding never panics, never allocates
//! more than the message's length, and rejects trailing bytes.
//!
//! `table.rs` and `fields.rs` use each other: a table's code calls the codecs of fields, and a
//! field can be a struct with a table of its own.
//!
//! *Thread safety*: plain values.

mod fields;
mod front;
mod offload;
mod owners;
mod pool;
mod reply;
mod table;
mod tree;

pub use front::{ClientRequest, ClientResponse, ErrorCode};
pub use offload::{OffloadRequest, TICKETS, Ticket};
pub use owners::{DEAD_OWNERS, LOG_SLOTS, OwnerRequest, log_slot_bytes};
pub use pool::{GIVE_BACK_NODES, PoolRequest, Usage};
pub use reply::{Refusal, Reply};
pub use tree::{SCAN_REPLY_RECORDS, Share, TreeRequest};

use crate::page::{Fixed8, Layout, LeafEdit, Wire};
use farleaf_fabric::Message;
use fields::{ACTIONS, put_edit, take_edit};
use table::{Table, are_distinct};

/// A request to a memory server, by the part of the server that answers it. Each part has its own
/// table of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<L: Layout> {
    /// An operation on one key of the server's own tree. Answered as in [`Reply::from_edit`].
    Edit(LeafEdit<L::Key, L::Value>),
    /// A request to the server's own tree.
    Tree(TreeRequest<L>),
    /// A request for the pool's memory.
    Pool(PoolRequest),
    /// A request about clients that hold locks.
    Owners(OwnerRequest),
    /// An operation offloaded to nodes below a given one.
    Offload(OffloadRequest<L>),
}

/// The tags of [`Request::Edit`]: one for each action, in order.
const EDIT_TAGS: &[u8] = &[2, 3, 4, 5, 6, 7];
const FIRST_EDIT: u8 = EDIT_TAGS[0];
const LAST_EDIT: u8 = FIRST_EDIT + ACTIONS - 1;

const _: () = assert!(EDIT_TAGS.len() == ACTIONS as usize && EDIT_TAGS[5] == LAST_EDIT);
const _: () = assert!(
    are_distinct(&[
        EDIT_TAGS,
        TreeRequest::<Fixed8>::TAGS,
        PoolRequest::TAGS,
        OwnerRequest::TAGS,
        OffloadRequest::<Fixed8>::TAGS,
    ]),
    "two request tables share a tag"
);

impl<L: Layout> Wire for Request<L> {
    #[inline]
    fn put(&self, to: &mut Message) {
        match self {
            Self::Edit(edit) => put_edit(FIRST_EDIT, edit, to),
            Self::Tree(request) => request.put(to),
            Self::Pool(request) => request.put(to),
            Self::Owners(request) => request.put(to),
            Self::Offload(request) => request.put(to),
        }
    }

    #[inline]
    fn take(from: &mut &[u8]) -> Option<Self> {
        let tag = *from.first()?;
        if (FIRST_EDIT..=LAST_EDIT).contains(&tag) {
            *from = &from[1..];
            return take_edit(tag - FIRST_EDIT, from).map(Self::Edit);
        }
        match tag {
            tag if TreeRequest::<L>::TAGS.contains(&tag) => Wire::take(from).map(Self::Tree),
            tag if PoolRequest::TAGS.contains(&tag) => Wire::take(from).map(Self::Pool),
            tag if OwnerRequest::TAGS.contains(&tag) => Wire::take(from).map(Self::Owners),
            _ => Wire::take(from).map(Self::Offload),
        }
    }
}

impl<L: Layout> Request<L> {
    /// The request as a message.
    #[inline]
    pub fn encode(&self) -> Message {
        encode(self)
    }

    /// The request in a message; `None` if that is anything else.
    #[inline]
    pub fn decode(message: &[u8]) -> Option<Self> {
        decode(message)
    }
}

impl<L: Layout> From<TreeRequest<L>> for Request<L> {
    fn from(request: TreeRequest<L>) -> Self {
        Self::Tree(request)
    }
}

impl<L: Layout> From<PoolRequest> for Request<L> {
    fn from(request: PoolRequest) -> Self {
        Self::Pool(request)
    }
}

impl<L: Layout> From<OwnerRequest> for Request<L> {
    fn from(request: OwnerRequest) -> Self {
        Self::Owners(request)
    }
}

impl<L: Layout> From<OffloadRequest<L>> for Request<L> {
    fn from(request: OffloadRequest<L>) -> Self {
        Self::Offload(request)
    }
}

/// Encodes a message by itself.
#[inline]
fn encode(message: &impl Wire) -> Message {
    let mut to = Message::new();
    message.put(&mut to);
    to
}

/// Decodes a whole message; `None` if bytes are left over.
#[inline]
fn decode<M: Wire>(message: &[u8]) -> Option<M> {
    let mut from = message;
    let decoded = M::take(&mut from)?;
    from.is_empty().then_some(decoded)
}
