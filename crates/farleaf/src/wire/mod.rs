//! The messages between compute and memory servers; `front.rs` has those between clients and compute servers.
//!
//! A message is a tag byte and its fields, integers little-endian, keys and values as the layout writes
//! them. Any bytes may arrive: decoding never panics, never allocates more than the message is long, and
//! says no to what is left over at the end.
//!
//! *Thread safety*: plain values.

mod fields;
mod front;

pub use front::{Ask, Told, Trouble};

use crate::page::{Action, Answer, Layout, LeafEdit};
use farleaf_fabric::{GlobalAddr, Message};
use fields::*;
use std::ops::Bound;
use thiserror::Error;

/// Records that one reply to a scan holds at most; a longer scan goes on with another request.
pub const SCAN_REPLY_RECORDS: usize = 4096;

/// A request to a memory server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<L: Layout> {
    /// What is there? Answered by [`Reply::Description`].
    Describe,
    /// Make an empty tree for the keys that `share` gives to this server.
    Create {
        /// The server's share of the key space.
        share: Share<L::Key>,
    },
    /// Do this to a key. Answered as [`Reply::answer_to`] says.
    Edit(LeafEdit<L::Key, L::Value>),
    /// Records of a range; the reply says whether there may be more than it holds.
    Scan {
        /// The lower bound.
        lower: Bound<L::Key>,
        /// The upper bound.
        upper: Bound<L::Key>,
        /// Descending.
        reverse: bool,
        /// At most so many.
        limit: u32,
    },
    /// A chunk of memory to carve nodes from.
    AllocateChunk {
        /// Its size; the server may give less.
        bytes: u64,
    },
    /// Start a bulk load into the empty tree.
    LoadBegin {
        /// How full to make the pages, in thousandths.
        fill_permille: u16,
    },
    /// The next records of the bulk load.
    LoadAppend {
        /// Ascending, above all before.
        records: Vec<(L::Key, L::Value)>,
    },
    /// The bulk load is complete: show it.
    LoadEnd,
    /// The bulk load is off: forget it.
    LoadAbort,
    /// Collect deleted records now; answered when a whole pass is done.
    Collect,
    /// How much of the memory is used.
    Usage,
    /// The pool becomes an index of this design, if it is none yet; the same claim can be made again.
    Claim {
        /// For the superblock: the design and its options.
        options: u64,
        /// For the superblock: the root, if it is on this server; in the hybrid design, where the root
        /// is the server's own business, the first leaf of its share.
        root: GlobalAddr,
    },
    /// A number for a client, to hold locks under; of memory server 0. Answered by [`Reply::Owner`].
    Register,
    /// The client that asks has ended with nothing locked, logged or on its way: another may have its number, and its logs with it.
    /// Of memory server 0.
    Retire {
        /// The client.
        owner: u16,
    },
    /// The memory that a client logs its changes to this server's pages in; answered by
    /// [`Reply::Chunk`], the same each time.
    LogArea {
        /// The client.
        owner: u16,
        /// Make it if it is not there; else the refusal is [`Refusal::NoSuchOwner`].
        create: bool,
    },
    /// All clients that a compute server has registered so far are dead, and stay so; of memory server 0.
    DeclareDead {
        /// The compute server.
        compute_server: u16,
        /// They are shut out of all memory servers already: whoever finishes what they were at must not fence the compute
        /// server, which may have begun another life.
        fenced: bool,
    },
    /// Whether a client has been declared dead; of memory server 0. Answered by [`Reply::Owner`].
    OwnerState {
        /// The client.
        owner: u16,
    },
    /// The clients of a compute server that were declared dead, the latest first, [`DEAD_OWNERS`] at most; of memory
    /// server 0. Answered by [`Reply::Owners`].
    DeadOwners {
        /// The compute server.
        compute_server: u16,
    },
    /// Nodes that nobody can reach any more, to be handed out again as chunks.
    GiveBack {
        /// The nodes, all on this server.
        nodes: Vec<GlobalAddr>,
    },
    /// Do this below a node, which the client has to itself. Answered by [`Reply::Walked`].
    Walk {
        /// The node.
        node: GlobalAddr,
        /// Its level.
        level: u8,
        /// What to do.
        edit: LeafEdit<L::Key, L::Value>,
        /// For a change: what makes it happen once.
        ticket: Option<Ticket>,
    },
    /// Records of a range below a node, which the client has to itself; the reply says whether there may be more
    /// below it.
    WalkScan {
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
    /// Do nothing under this ticket from now on. Answered by what was done, or [`Reply::Done`] if nothing was.
    CloseTicket {
        /// The ticket.
        ticket: Ticket,
    },
}

/// Changes that one client can have under way on memory servers at a time: a memory server remembers as many for each.
pub const TICKETS: usize = 64;

/// What makes a change that is left to a memory server happen once: a client gives each out once, in ascending
/// order for each of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The client, as [`Request::Register`] numbers it.
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

/// Changes that a client can log at the same time on one memory server.
pub const LOG_SLOTS: u64 = 4;

/// The bytes of one slot of a client's log: room for the changed words of three pages, and what says
/// where they go.
pub const fn log_slot_bytes<L: Layout>() -> u64 {
    let words = 8 + 3 * (L::PAGE_WORDS + 8);
    (words as u64 * 8).next_multiple_of(1024)
}

/// The most clients that [`Reply::Owners`] names: those of the last lives of a compute server.
pub const DEAD_OWNERS: usize = 256;

/// The most nodes that one request gives back.
pub const GIVE_BACK_NODES: usize = 1024;

/// Which keys a memory server's tree holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share<K> {
    /// Those from `low`, inclusive, to `high`, exclusive (`None`: infinite).
    Range {
        /// The lowest key.
        low: K,
        /// The first key that is not included.
        high: Option<K>,
    },
    /// Those whose hash, modulo `servers`, is the server's number.
    Hash {
        /// How many servers there are.
        servers: u16,
    },
}

/// How much of a memory server's memory is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the region.
    pub pool_bytes: u64,
    /// Bytes that are given out in chunks, the superblock's included.
    pub allocated_bytes: u64,
    /// Nodes of the server's own tree that are in use.
    pub nodes_in_use: u64,
    /// Nodes that were freed and wait for reuse.
    pub nodes_free: u64,
    /// Records deleted and not yet collected.
    pub deleted_records: u64,
    /// Levels of the server's own tree.
    pub height: u64,
}

/// A memory server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<L: Layout> {
    /// Done, nothing to say.
    Done,
    /// Done, or not, as the operation's condition was.
    Applied(bool),
    /// A value, or none.
    Value(Option<L::Value>),
    /// The compare-exchange failed against this.
    Differs(Option<L::Value>),
    /// Records of a scan.
    Records {
        /// In the order of the scan.
        records: Vec<(L::Key, L::Value)>,
        /// Whether there may be more.
        more: bool,
    },
    /// A chunk.
    Chunk {
        /// Where it starts.
        at: GlobalAddr,
        /// Its size.
        bytes: u64,
    },
    /// The server's share, if it has a tree.
    Description(Option<Share<L::Key>>),
    /// Answers [`Request::Usage`].
    Usage(Usage),
    /// An operation was done below a node.
    Walked {
        /// The leaf that it changed.
        leaf: Option<GlobalAddr>,
        /// What it found and did.
        answer: Answer<L::Value>,
    },
    /// A client that is registered.
    Owner {
        /// Its number, from 1.
        owner: u16,
        /// Where it runs.
        compute_server: u16,
        /// Whether it has been declared dead.
        dead: bool,
        /// Whether it has been declared to be shut out of all memory servers.
        fenced: bool,
    },
    /// The numbers of clients.
    Owners(Vec<u16>),
    /// No.
    Refused(Refusal),
}

/// Why a memory server says no. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request makes no sense.
    #[error("the request is malformed")]
    Malformed,
    /// There is no memory for what was asked.
    #[error("out of memory")]
    OutOfMemory,
    /// There is no tree.
    #[error("there is no index")]
    NoTree,
    /// There is a tree already.
    #[error("there is already an index")]
    TreeExists,
    /// A bulk load needs an empty tree.
    #[error("the index is not empty")]
    NotEmpty,
    /// No bulk load is going on.
    #[error("no bulk load is in progress")]
    NotLoading,
    /// A bulk load is going on.
    #[error("a bulk load is in progress")]
    Loading,
    /// The records of a bulk load do not ascend.
    #[error("the records are not in strictly ascending order")]
    NotSorted,
    /// The key belongs to another server.
    #[error("the key belongs to another memory server")]
    NotMine,
    /// The operation lost against others as often as it may.
    #[error("too many restarts against concurrent operations")]
    Contended,
    /// The tree is damaged where the operation went.
    #[error("the tree is damaged")]
    Damaged,
    /// There is no client of this number.
    #[error("no client with this number is registered")]
    NoSuchOwner,
    /// The node is not what the request takes it for, or leads to another memory server.
    #[error("the node has changed: another identity, level or range")]
    NotHere,
    /// The change would split or merge a node.
    #[error("the change would split or merge a node")]
    Restructures,
    /// Under this ticket nothing is done any more.
    #[error("the ticket is closed")]
    TicketClosed,
    /// All numbers of clients are given out, to those that live and to those that died.
    #[error("too many clients have changed this index and died, or still live")]
    TooManyClients,
    /// The compute server was declared dead, and has not begun another life.
    #[error("this compute server was declared dead")]
    DeclaredDead,
}

const REFUSALS: [Refusal; 17] = [
    Refusal::Malformed,
    Refusal::OutOfMemory,
    Refusal::NoTree,
    Refusal::TreeExists,
    Refusal::NotEmpty,
    Refusal::NotLoading,
    Refusal::Loading,
    Refusal::NotSorted,
    Refusal::NotMine,
    Refusal::Contended,
    Refusal::Damaged,
    Refusal::NoSuchOwner,
    Refusal::NotHere,
    Refusal::Restructures,
    Refusal::TicketClosed,
    Refusal::TooManyClients,
    Refusal::DeclaredDead,
];

fn put_ticket(ticket: &Ticket, to: &mut Message) {
    to.extend_from_slice(&ticket.owner.to_le_bytes());
    to.push(ticket.slot);
    to.extend_from_slice(&ticket.number.to_le_bytes());
}

fn take_ticket(from: &mut &[u8]) -> Option<Ticket> {
    let owner = take_u16(from)?;
    let slot = take_u8(from).filter(|slot| usize::from(*slot) < TICKETS)?;
    Some(Ticket { owner, slot, number: take_u32(from)? })
}

fn put_share<L: Layout>(share: &Share<L::Key>, to: &mut Message) {
    match share {
        Share::Range { low, high } => {
            to.push(0);
            L::put_key(low, to);
            put_option(high.as_ref(), to, L::put_key);
        }
        Share::Hash { servers } => {
            to.push(1);
            to.extend_from_slice(&servers.to_le_bytes());
        }
    }
}

fn take_share<L: Layout>(from: &mut &[u8]) -> Option<Share<L::Key>> {
    Some(match take_u8(from)? {
        0 => Share::Range { low: L::take_key(from)?, high: take_option(from, L::take_key)? },
        1 => Share::Hash { servers: take_u16(from)? },
        _ => return None,
    })
}

/// The tags of [`Request::Edit`]: one for each action.
const FIRST_EDIT: u8 = 2;
const LAST_EDIT: u8 = 7;

impl<L: Layout> Request<L> {
    /// The request as a message.
    #[inline]
    pub fn encode(&self) -> Message {
        let mut to = Message::new();
        match self {
            Self::Describe => to.push(0),
            Self::Create { share } => {
                to.push(1);
                put_share::<L>(share, &mut to);
            }
            Self::Edit(edit) => put_edit::<L>(FIRST_EDIT, edit, &mut to),
            Self::Scan { lower, upper, reverse, limit } => {
                to.push(8);
                put_bound::<L>(lower, &mut to);
                put_bound::<L>(upper, &mut to);
                to.push(u8::from(*reverse));
                to.extend_from_slice(&limit.to_le_bytes());
            }
            Self::AllocateChunk { bytes } => {
                to.push(9);
                to.extend_from_slice(&bytes.to_le_bytes());
            }
            Self::LoadBegin { fill_permille } => {
                to.push(10);
                to.extend_from_slice(&fill_permille.to_le_bytes());
            }
            Self::LoadAppend { records } => {
                to.push(11);
                put_records::<L>(records, &mut to);
            }
            Self::LoadEnd => to.push(12),
            Self::LoadAbort => to.push(13),
            Self::Collect => to.push(14),
            Self::Usage => to.push(15),
            Self::Claim { options, root } => {
                to.push(16);
                to.extend_from_slice(&options.to_le_bytes());
                to.extend_from_slice(&root.to_bits().to_le_bytes());
            }
            Self::Register => to.push(17),
            Self::LogArea { owner, create } => {
                to.push(18);
                to.extend_from_slice(&owner.to_le_bytes());
                to.push(u8::from(*create));
            }
            Self::DeclareDead { compute_server, fenced } => {
                to.push(19);
                to.extend_from_slice(&compute_server.to_le_bytes());
                to.push(u8::from(*fenced));
            }
            Self::OwnerState { owner } => {
                to.push(20);
                to.extend_from_slice(&owner.to_le_bytes());
            }
            Self::Retire { owner } => {
                to.push(26);
                to.extend_from_slice(&owner.to_le_bytes());
            }
            Self::GiveBack { nodes } => {
                to.push(21);
                nodes.iter().for_each(|node| put_address(*node, &mut to));
            }
            Self::Walk { node, level, edit, ticket } => {
                to.push(22);
                put_address(*node, &mut to);
                to.push(*level);
                put_edit::<L>(0, edit, &mut to);
                put_option(ticket.as_ref(), &mut to, put_ticket);
            }
            Self::WalkScan { node, level, lower, upper, reverse, limit } => {
                to.push(23);
                put_address(*node, &mut to);
                to.push(*level);
                put_bound::<L>(lower, &mut to);
                put_bound::<L>(upper, &mut to);
                to.push(u8::from(*reverse));
                to.extend_from_slice(&limit.to_le_bytes());
            }
            Self::CloseTicket { ticket } => {
                to.push(24);
                put_ticket(ticket, &mut to);
            }
            Self::DeadOwners { compute_server } => {
                to.push(25);
                to.extend_from_slice(&compute_server.to_le_bytes());
            }
        }
        to
    }

    /// The request in a message, if it is one and nothing more.
    #[inline]
    pub fn decode(message: &[u8]) -> Option<Self> {
        let mut from = message;
        let tag = take_u8(&mut from)?;
        let request = match tag {
            0 => Self::Describe,
            1 => Self::Create { share: take_share::<L>(&mut from)? },
            FIRST_EDIT..=LAST_EDIT => Self::Edit(take_edit::<L>(tag - FIRST_EDIT, &mut from)?),
            8 => Self::Scan {
                lower: take_bound::<L>(&mut from)?,
                upper: take_bound::<L>(&mut from)?,
                reverse: take_bool(&mut from)?,
                limit: take_u32(&mut from)?,
            },
            9 => Self::AllocateChunk { bytes: take_u64(&mut from)? },
            10 => Self::LoadBegin { fill_permille: take_u16(&mut from)? },
            11 => Self::LoadAppend { records: take_records::<L>(&mut from)? },
            12 => Self::LoadEnd,
            13 => Self::LoadAbort,
            14 => Self::Collect,
            15 => Self::Usage,
            16 => Self::Claim {
                options: take_u64(&mut from)?,
                root: GlobalAddr::from_bits(take_u64(&mut from)?),
            },
            17 => Self::Register,
            18 => Self::LogArea { owner: take_u16(&mut from)?, create: take_bool(&mut from)? },
            19 => Self::DeclareDead {
                compute_server: take_u16(&mut from)?,
                fenced: take_bool(&mut from)?,
            },
            20 => Self::OwnerState { owner: take_u16(&mut from)? },
            21 => {
                let mut nodes = Vec::with_capacity(from.len() / 8);
                while !from.is_empty() {
                    nodes.push(GlobalAddr::from_bits(take_u64(&mut from)?));
                }
                Self::GiveBack { nodes }
            }
            22 => Self::Walk {
                node: take_address(&mut from)?,
                level: take_u8(&mut from)?,
                edit: take_edit::<L>(take_u8(&mut from)?, &mut from)?,
                ticket: take_option(&mut from, take_ticket)?,
            },
            23 => Self::WalkScan {
                node: take_address(&mut from)?,
                level: take_u8(&mut from)?,
                lower: take_bound::<L>(&mut from)?,
                upper: take_bound::<L>(&mut from)?,
                reverse: take_bool(&mut from)?,
                limit: take_u32(&mut from)?,
            },
            24 => Self::CloseTicket { ticket: take_ticket(&mut from)? },
            26 => Self::Retire { owner: take_u16(&mut from)? },
            25 => Self::DeadOwners { compute_server: take_u16(&mut from)? },
            _ => return None,
        };
        whole(request, from)
    }
}

impl<L: Layout> Reply<L> {
    /// The reply to [`Request::Edit`].
    pub fn of_edit(edit: LeafEdit<&L::Key, &L::Value>, answer: Answer<L::Value>) -> Self {
        match edit.action {
            Action::Get => Self::Value(answer.found),
            Action::Insert(_) | Action::Update(_) | Action::Remove => Self::Applied(answer.applied),
            Action::Upsert(_) => Self::Done,
            Action::CompareExchange(..) if answer.applied => Self::Done,
            Action::CompareExchange(..) => Self::Differs(answer.found),
        }
    }

    /// What this says of an edit, if it is a reply to it.
    pub fn answer_to(self, edit: LeafEdit<&L::Key, &L::Value>) -> Option<Answer<L::Value>> {
        Some(match (edit.action, self) {
            (Action::Get, Self::Value(found)) => Answer::of_lookup(found),
            (Action::Insert(_) | Action::Update(_) | Action::Remove, Self::Applied(applied)) => {
                Answer::of_change(applied)
            }
            (Action::Upsert(_) | Action::CompareExchange(..), Self::Done) => {
                Answer::of_change(true)
            }
            (Action::CompareExchange(..), Self::Differs(found)) => Answer { applied: false, found },
            _ => return None,
        })
    }

    /// Appends the reply to an empty message.
    #[inline]
    pub fn encode(&self, to: &mut Message) {
        match self {
            Self::Done => to.push(0),
            Self::Applied(applied) => to.extend_from_slice(&[1, u8::from(*applied)]),
            Self::Value(value) => {
                to.push(2);
                put_option(value.as_ref(), to, L::put_value);
            }
            Self::Differs(value) => {
                to.push(3);
                put_option(value.as_ref(), to, L::put_value);
            }
            Self::Records { records, more } => {
                to.extend_from_slice(&[4, u8::from(*more)]);
                put_records::<L>(records, to);
            }
            Self::Chunk { at, bytes } => {
                to.push(5);
                to.extend_from_slice(&at.to_bits().to_le_bytes());
                to.extend_from_slice(&bytes.to_le_bytes());
            }
            Self::Description(share) => {
                to.push(6);
                put_option(share.as_ref(), to, put_share::<L>);
            }
            Self::Usage(usage) => {
                to.push(7);
                for field in usage.fields() {
                    to.extend_from_slice(&field.to_le_bytes());
                }
            }
            Self::Owner { owner, compute_server, dead, fenced } => {
                to.push(9);
                to.extend_from_slice(&owner.to_le_bytes());
                to.extend_from_slice(&compute_server.to_le_bytes());
                to.extend_from_slice(&[u8::from(*dead), u8::from(*fenced)]);
            }
            Self::Walked { leaf, answer } => {
                to.push(10);
                put_option(leaf.as_ref(), to, |leaf, to| put_address(*leaf, to));
                to.push(u8::from(answer.applied));
                put_option(answer.found.as_ref(), to, L::put_value);
            }
            Self::Owners(owners) => {
                to.push(11);
                owners.iter().for_each(|owner| to.extend_from_slice(&owner.to_le_bytes()));
            }
            Self::Refused(refusal) => {
                let number = REFUSALS.iter().position(|other| other == refusal).unwrap_or(0);
                to.extend_from_slice(&[8, number as u8]);
            }
        }
    }

    /// The reply in a message, if it is one and nothing more.
    #[inline]
    pub fn decode(message: &[u8]) -> Option<Self> {
        let mut from = message;
        let reply = match take_u8(&mut from)? {
            0 => Self::Done,
            1 => Self::Applied(take_bool(&mut from)?),
            2 => Self::Value(take_option(&mut from, L::take_value)?),
            3 => Self::Differs(take_option(&mut from, L::take_value)?),
            4 => {
                let more = take_bool(&mut from)?;
                Self::Records { records: take_records::<L>(&mut from)?, more }
            }
            5 => Self::Chunk {
                at: GlobalAddr::from_bits(take_u64(&mut from)?),
                bytes: take_u64(&mut from)?,
            },
            6 => Self::Description(take_option(&mut from, take_share::<L>)?),
            7 => {
                let mut fields = [0; 6];
                for field in &mut fields {
                    *field = take_u64(&mut from)?;
                }
                Self::Usage(Usage::from_fields(fields))
            }
            9 => Self::Owner {
                owner: take_u16(&mut from)?,
                compute_server: take_u16(&mut from)?,
                dead: take_bool(&mut from)?,
                fenced: take_bool(&mut from)?,
            },
            10 => {
                let leaf = take_option(&mut from, take_address)?;
                let applied = take_bool(&mut from)?;
                let found = take_option(&mut from, L::take_value)?;
                Self::Walked { leaf, answer: Answer { applied, found } }
            }
            11 => {
                let mut owners = Vec::with_capacity(from.len() / 2);
                while !from.is_empty() {
                    owners.push(take_u16(&mut from)?);
                }
                Self::Owners(owners)
            }
            8 => Self::Refused(*REFUSALS.get(take_u8(&mut from)? as usize)?),
            _ => return None,
        };
        whole(reply, from)
    }
}

impl Usage {
    fn fields(&self) -> [u64; 6] {
        let Self { pool_bytes, allocated_bytes, nodes_in_use, nodes_free, deleted_records, height } =
            *self;
        [pool_bytes, allocated_bytes, nodes_in_use, nodes_free, deleted_records, height]
    }

    fn from_fields(fields: [u64; 6]) -> Self {
        let [pool_bytes, allocated_bytes, nodes_in_use, nodes_free, deleted_records, height] =
            fields;
        Self { pool_bytes, allocated_bytes, nodes_in_use, nodes_free, deleted_records, height }
    }
}

#[cfg(test)]
mod tests {
    use super::{Request, TICKETS, Ticket};
    use crate::page::Fixed8;

    /// A memory server keeps an array of tickets for each client: what is beyond it must not get that far.
    #[test]
    fn tickets_beyond_the_last_are_no_requests() {
        for slot in 0..=u8::MAX {
            let ticket = Ticket { owner: 3, slot, number: 7 };
            let message = Request::<Fixed8>::CloseTicket { ticket }.encode();
            let decoded = Request::<Fixed8>::decode(&message);
            assert_eq!(decoded.is_some(), usize::from(slot) < TICKETS, "slot {slot}");
        }
    }
}
