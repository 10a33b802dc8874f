//! The messages between compute and memory servers; `front.rs` has those between clients and
//! compute servers.
//!
//! A message is a tag byte and its fields: integers in little-endian order, keys and values as
//! their types define. Tables (`table.rs`) list the tags and fields. Requests have one table for
//! each part of a memory server, with distinct tags. Any bytes may arrive: decoding never panics,
//! never allocates more than a few times the message's length, and rejects trailing bytes.
//!
//! `table.rs` and `fields.rs` use each other: a table's code calls the codecs of fields, and a
//! field can be a struct with a table of its own.
//!
//! *Thread safety*: plain values.

mod directory;
mod front;
mod merge;
mod offload;
mod owners;
mod pool;
mod reply;
mod room;
mod table;
mod tree;

pub use directory::{DirectoryRequest, LEFT, NO_PROCESS};
pub use front::{ClientRequest, ClientResponse, ErrorCode, MAX_VALUE_BYTES, NO_LOAD, check_sent};
pub use merge::{CompactionRequest, EPOCH_JOBS_LOG2, LANE_JOBS_LOG2};
pub use offload::{AskOffload, OffloadRequest, OffloadTicket, TICKETS};
pub use owners::{DEAD_OWNERS, LOG_SLOTS, OwnerRequest, log_slot_bytes};
pub use pool::{
    GIVE_BACK_NODES, LISTED_CHUNKS, LeaseState, MAX_LEASES, MAX_RING_BYTES, MAX_RINGS,
    MIN_RING_BYTES, PoolRequest, Usage,
};
pub use reply::{Refusal, Reply};
pub use room::RecordRoom;
pub use tree::{SCAN_REPLY_RECORDS, TreeRequest, TreeShare};

use farleaf_fabric::Message;
use farleaf_page::fields::{ACTIONS, put_edit, take_edit};
use farleaf_page::{
    Fixed8, Layout, LeafEdit, LengthError, OwnedKey, OwnedValue, PutField, WireField, check_bounds,
};
use table::{MessageTable, are_distinct};

/// A request to a memory server, by the part of the server that answers it. Each part has its own
/// table of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<L: Layout> {
    /// An operation on one key of the server's own tree. Answered as in [`Reply::from_edit`].
    Edit(LeafEdit<OwnedKey<L>, OwnedValue<L>>),
    /// A request to the server's own tree.
    Tree(TreeRequest<L>),
    /// A request for the pool's memory.
    Pool(PoolRequest),
    /// A request about clients that hold locks.
    Owners(OwnerRequest),
    /// An operation offloaded to nodes below a given one.
    Offload(OffloadRequest<L>),
    /// A merge of tables of an LSM index.
    Merge(CompactionRequest),
    /// A request to the directory of an LSM index's shards.
    Directory(DirectoryRequest),
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
        CompactionRequest::TAGS,
        DirectoryRequest::TAGS,
    ]),
    "two request tables share a tag"
);

impl<L: Layout> PutField for Request<L> {
    #[inline]
    fn put(&self, to: &mut Message) {
        match self {
            Self::Edit(edit) => put_edit(FIRST_EDIT, edit, to),
            Self::Tree(request) => request.put(to),
            Self::Pool(request) => request.put(to),
            Self::Owners(request) => request.put(to),
            Self::Offload(request) => request.put(to),
            Self::Merge(request) => request.put(to),
            Self::Directory(request) => request.put(to),
        }
    }
}

impl<L: Layout> WireField for Request<L> {
    #[inline]
    fn take(from: &mut &[u8]) -> Option<Self> {
        let tag = *from.first()?;
        if (FIRST_EDIT..=LAST_EDIT).contains(&tag) {
            *from = &from[1..];
            return take_edit(tag - FIRST_EDIT, from).map(Self::Edit);
        }
        match tag {
            tag if TreeRequest::<L>::TAGS.contains(&tag) => WireField::take(from).map(Self::Tree),
            tag if PoolRequest::TAGS.contains(&tag) => WireField::take(from).map(Self::Pool),
            tag if OwnerRequest::TAGS.contains(&tag) => WireField::take(from).map(Self::Owners),
            tag if CompactionRequest::TAGS.contains(&tag) => WireField::take(from).map(Self::Merge),
            tag if DirectoryRequest::TAGS.contains(&tag) => {
                WireField::take(from).map(Self::Directory)
            }
            _ => WireField::take(from).map(Self::Offload),
        }
    }
}

impl<L: Layout> Request<L> {
    /// Whether a page can hold the keys and values of the request. Decoding accepts any length.
    ///
    /// # Errors
    /// [`LengthError`] if no page can.
    #[inline]
    pub fn check(&self) -> Result<(), LengthError> {
        match self {
            Self::Edit(edit) | Self::Offload(OffloadRequest::Edit { edit, .. }) => {
                edit.as_ref().check::<L>()
            }
            Self::Tree(request) => request.check(),
            Self::Offload(OffloadRequest::Scan { lower, upper, .. }) => {
                check_bounds::<L, _>([lower, upper])
            }
            _ => Ok(()),
        }
    }

    /// Encodes the request as a message.
    #[inline]
    pub fn encode(&self) -> Message {
        encode(self)
    }

    /// Decodes the request in a message; `None` if the message is anything else.
    #[inline]
    pub fn decode(message: &[u8]) -> Option<Self> {
        decode(message)
    }
}

/// Anything that encodes to the bytes of a [`Request`].
pub trait Ask<L: Layout>: PutField {}

impl<L: Layout> Ask<L> for Request<L> {}
impl<L: Layout> Ask<L> for TreeRequest<L> {}
impl<L: Layout> Ask<L> for PoolRequest {}
impl<L: Layout> Ask<L> for OwnerRequest {}
impl<L: Layout> Ask<L> for CompactionRequest {}
impl<L: Layout> Ask<L> for DirectoryRequest {}
impl<L: Layout> Ask<L> for OffloadRequest<L> {}

/// [`Request::Edit`] with a borrowed edit, so that encoding it copies neither key nor values.
#[derive(Clone, Copy, Debug)]
pub struct AskEdit<'e, L: Layout>(pub LeafEdit<&'e L::Key, &'e L::Value>);

impl<L: Layout> PutField for AskEdit<'_, L> {
    #[inline]
    fn put(&self, to: &mut Message) {
        put_edit(FIRST_EDIT, &self.0, to);
    }
}

impl<L: Layout> Ask<L> for AskEdit<'_, L> {}

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

impl<L: Layout> From<DirectoryRequest> for Request<L> {
    fn from(request: DirectoryRequest) -> Self {
        Self::Directory(request)
    }
}

impl<L: Layout> From<CompactionRequest> for Request<L> {
    fn from(request: CompactionRequest) -> Self {
        Self::Merge(request)
    }
}

/// Encodes a message into a buffer of its own.
#[inline]
pub(crate) fn encode(message: &impl PutField) -> Message {
    let mut to = Message::new();
    message.put(&mut to);
    to
}

/// Decodes a whole message; `None` if bytes are left over.
#[inline]
fn decode<M: WireField>(message: &[u8]) -> Option<M> {
    let mut from = message;
    let decoded = M::take(&mut from)?;
    from.is_empty().then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::{GlobalAddr, ServerId};
    use farleaf_page::EditAction;

    type NumberEdit = LeafEdit<u64, u64>;

    fn edits() -> [NumberEdit; 6] {
        let edit = |action| LeafEdit { key: 7, action };
        [
            edit(EditAction::Get),
            edit(EditAction::Insert(1)),
            edit(EditAction::Update(2)),
            edit(EditAction::Upsert(3)),
            edit(EditAction::Remove),
            edit(EditAction::CompareExchange(4, 5)),
        ]
    }

    /// Requests that borrow their fields are encoded by separate code, not by that of the requests
    /// that the server decodes.
    #[test]
    fn borrowed_requests_have_the_bytes_of_owned_ones() {
        let node = GlobalAddr::new(ServerId::new(2), 4096);
        for (edit, ticket) in edits().into_iter().flat_map(|edit| {
            [None, Some(OffloadTicket { owner: 3, slot: 1, number: 9 })]
                .map(|ticket| (edit, ticket))
        }) {
            let borrowed = edit.as_ref();
            assert_eq!(
                encode(&AskEdit::<Fixed8>(borrowed)),
                Request::<Fixed8>::Edit(edit).encode()
            );
            let asked = AskOffload::<Fixed8> { node, level: 2, edit: borrowed, ticket };
            let owned = OffloadRequest::<Fixed8>::Edit { node, level: 2, edit, ticket };
            assert_eq!(encode(&asked), encode(&owned));
            let front = ClientRequest::<Fixed8>::Edit(edit).encode();
            assert_eq!(ClientRequest::<Fixed8>::encode_edit(borrowed), front);
        }
    }
}
