//! Replies of a memory server.

use super::table::messages;
use super::{LeaseState, TreeShare, Usage};
use farleaf_fabric::{GlobalAddr, Message};
use farleaf_page::{EditAction, EditAnswer, Layout, LeafEdit, OwnedKey, OwnedValue, PutField};
use thiserror::Error;

messages! {
    /// A memory server's reply.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Reply<L: Layout> {
        /// Done, without a result.
        0 => Done,
        /// Whether the operation's condition held, so that it was applied.
        1 => Applied(applied: bool),
        /// The value, if the key has one.
        2 => Value(value: Option<OwnedValue<L>>),
        /// The compare-exchange failed: the key's actual value.
        3 => Differs(value: Option<OwnedValue<L>>),
        /// Records of a scan.
        4 => Records {
            /// Whether there may be more records in the range.
            more: bool,
            /// In the order of the scan.
            records: Vec<(OwnedKey<L>, OwnedValue<L>)>,
        },
        /// A chunk for the client to allocate nodes from.
        5 => Chunk {
            /// Its address.
            at: GlobalAddr,
            /// Its size.
            bytes: u64,
        },
        /// The server's share, if it has a tree.
        6 => Description(share: Option<TreeShare<OwnedKey<L>>>),
        /// Answers [`PoolRequest::Usage`](super::PoolRequest::Usage).
        7 => Usage(usage: Usage),
        /// The server refused the request.
        8 => Refused(refusal: Refusal),
        /// A registered client.
        9 => Owner {
            /// Its number, from 1.
            owner: u16,
            /// The compute server that it runs on.
            compute_server: u16,
            /// Whether it has been declared dead.
            dead: bool,
            /// Whether it has been declared fenced at all memory servers.
            fenced: bool,
        },
        /// The result of an operation below a node.
        10 => Offloaded {
            /// The leaf that it changed, if any.
            leaf: Option<GlobalAddr>,
            /// The result of the edit.
            answer: EditAnswer<OwnedValue<L>>,
        },
        /// The numbers of clients.
        11 => Owners(owners: Vec<u16> as rest),
        /// The edit was applied and took away this value, which may be a reference to a block.
        12 => Replaced(value: OwnedValue<L>),
        /// Answers [`PoolRequest::ListChunks`](super::PoolRequest::ListChunks).
        13 => Chunks {
            /// Whether there are more.
            more: bool,
            /// Sizes by address, in ascending order.
            chunks: Vec<(GlobalAddr, u64)> as rest,
        },
        /// A step of a merge was made.
        14 => Merged {
            /// Whether the compaction is complete.
            done: bool,
            /// The outputs that it has ended:
            /// [`SsTableMeta::encode`](farleaf_page::table::SsTableMeta::encode) of each, with
            /// places in the job's list of extents.
            outputs: Vec<u64> as rest,
        },
        /// What a directory knows of a shard.
        15 => Shard {
            /// Its epoch; 0 if no process has ever had it.
            epoch: u64,
            /// The process that has it.
            owner: u64,
            /// The number of the latest change of its tables.
            edit: u64,
            /// The highest id of a table so far.
            highest_table: u64,
            /// The size of its extents.
            extent_bytes: u64,
            /// The tables that it has borrowed, and those that it has lent.
            loans: u64,
            /// Compute servers that changed it in earlier epochs, and are not known to be fenced.
            unfenced: Vec<u16> as rest,
        },
        /// Tables of a shard.
        16 => Tables {
            /// Whether there are more words.
            more: bool,
            /// The next words:
            /// [`PlacedSsTable::encode`](farleaf_page::table::PlacedSsTable::encode) of each table.
            words: Vec<u64> as rest,
        },
        /// All leases of the server, by owner.
        17 => Leases(leases: Vec<LeaseState> as rest),
    }
}

messages! {
    /// Why a memory server refused a request. It has changed nothing, except that a refused
    /// [`TreeRequest::LoadAppend`](super::TreeRequest::LoadAppend) may abort the load.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
    #[non_exhaustive]
    pub enum Refusal {
        /// The request cannot be decoded, or has invalid arguments.
        #[error("the request is malformed")]
        0 => Malformed,
        /// There is not enough memory.
        #[error("out of memory")]
        1 => OutOfMemory,
        /// There is no tree.
        #[error("there is no index")]
        2 => NoTree,
        /// There is a tree already.
        #[error("there is already an index")]
        3 => TreeExists,
        /// A bulk load needs an empty tree.
        #[error("the index is not empty")]
        4 => NotEmpty,
        /// No bulk load is in progress.
        #[error("no bulk load is in progress")]
        5 => NotLoading,
        /// A bulk load is in progress already.
        #[error("a bulk load is in progress")]
        6 => Loading,
        /// The records of a bulk load do not ascend.
        #[error("the records are not in strictly ascending order")]
        7 => NotSorted,
        /// The key belongs to another memory server.
        #[error("the key belongs to another memory server")]
        8 => NotMine,
        /// The operation ran out of restarts: every attempt lost to a concurrent operation.
        #[error("too many restarts against concurrent operations")]
        9 => Contended,
        /// The part of the tree that the operation reached is damaged.
        #[error("the tree is damaged")]
        10 => Damaged,
        /// No client has this number.
        #[error("no client with this number is registered")]
        11 => NoSuchOwner,
        /// The node is not the one that the request expects, or points to another memory server.
        #[error("the node has changed: another identity, level or range")]
        12 => NotHere,
        /// The change would split or merge a node.
        #[error("the change would split or merge a node")]
        13 => Restructures,
        /// The ticket is closed: no further change is made under it.
        #[error("the ticket is closed")]
        14 => TicketClosed,
        /// All client numbers are in use, by live clients or dead ones.
        #[error("too many clients of this index are registered, dead ones included")]
        15 => TooManyClients,
        /// The compute server was declared dead, and has not begun another life.
        #[error("this compute server was declared dead")]
        16 => DeclaredDead,
        /// There is no such merge job or step, or the job is closed.
        #[error("there is no such merge, or it is closed")]
        17 => NoSuchJob,
        /// A table is not where the merge job says.
        #[error("there is no such table")]
        18 => NoSuchTable,
        /// As many merges run as the server allows.
        #[error("too many merges are running")]
        19 => TooManyMerges,
        /// There is no such shard.
        #[error("there is no such shard")]
        20 => NoSuchShard,
        /// Another process has the shard, or has had it since.
        #[error("another process has the shard")]
        21 => OtherOwner,
        /// The change of a shard's tables is not the next one.
        #[error("the change of the tables comes too late")]
        22 => LateEdit,
        /// The lease has ended.
        #[error("there is no such lease, or it has ended")]
        23 => NoSuchLease,
        /// The memory server has as many leases as it can have.
        #[error("the memory server has too many leases")]
        24 => TooManyLeases,
    }
}

impl<L: Layout> Reply<L> {
    /// The reply to [`Request::Edit`](super::Request::Edit).
    pub fn from_edit(
        edit: LeafEdit<&L::Key, &L::Value>,
        answer: EditAnswer<OwnedValue<L>>,
    ) -> Self {
        match edit.action {
            EditAction::Get => Self::Value(answer.found),
            _ if answer.applied && answer.found.is_some() => {
                answer.found.map_or(Self::Done, Self::Replaced)
            }
            EditAction::Insert(_) | EditAction::Update(_) | EditAction::Remove => {
                Self::Applied(answer.applied)
            }
            EditAction::Upsert(_) => Self::Done,
            EditAction::CompareExchange(..) if answer.applied => Self::Done,
            EditAction::CompareExchange(..) => Self::Differs(answer.found),
        }
    }

    /// Interprets this reply as the answer to an edit; `None` if it does not match the edit.
    pub fn answer_to(
        self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Option<EditAnswer<OwnedValue<L>>> {
        Some(match (edit.action, self) {
            (EditAction::Get, Self::Value(found)) => EditAnswer::from_lookup(found),
            (
                EditAction::Insert(_) | EditAction::Update(_) | EditAction::Remove,
                Self::Applied(applied),
            ) => EditAnswer::from_change(applied),
            (EditAction::Upsert(_) | EditAction::CompareExchange(..), Self::Done) => {
                EditAnswer::from_change(true)
            }
            (EditAction::Get, Self::Replaced(_)) => return None,
            (_, Self::Replaced(lost)) => EditAnswer { applied: true, found: Some(lost) },
            (EditAction::CompareExchange(..), Self::Differs(found)) => {
                EditAnswer { applied: false, found }
            }
            _ => return None,
        })
    }

    /// Appends the reply to an empty message.
    #[inline]
    pub fn encode(&self, to: &mut Message) {
        self.put(to);
    }

    /// Decodes the reply in a message; `None` if the message is anything else.
    #[inline]
    pub fn decode(message: &[u8]) -> Option<Self> {
        super::decode(message)
    }
}
