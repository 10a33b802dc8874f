//! The messages between clients and compute servers.
//!
//! What a client asks a compute server is answered as of the map that this goes by. Keys that it
//! does not own it never serves: the answer names the owner and the map's epoch, and the client
//! asks for the map.
//!
//! *Thread safety*: plain values.

use super::table::messages;
use crate::page::{Answer, Layout, LeafEdit};
use farleaf_fabric::Message;
use std::ops::Bound;

messages! {
    /// What a client asks of a compute server.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum ClientRequest<L: Layout> {
        /// An operation on one key. Answered by [`ClientResponse::Edited`].
        0 => Edit(edit: LeafEdit<L::Key, L::Value>),
        /// Records of a range, as far as this compute server owns it. Answered by
        /// [`ClientResponse::Records`].
        1 => Scan {
            /// The lower bound.
            lower: Bound<L::Key>,
            /// The upper bound.
            upper: Bound<L::Key>,
            /// Descending.
            reverse: bool,
            /// At most so many.
            limit: u32,
        },
        /// Many keys are set. If not all are owned, none is.
        2 => UpsertAll {
            /// Keys and values.
            records: Vec<(L::Key, L::Value)>,
        },
        /// The map. Answered by [`ClientResponse::Map`].
        3 => Map,
        /// Housekeeping, to its end.
        4 => Collect,
        /// Stop serving, and write back what the memory servers do not have: the tree is about to
        /// be replaced. A compute server that hears nothing more serves again after a while.
        5 => Halt,
        /// Serve again, and forget all of the tree that was.
        6 => Resume,
        /// Begin to build a tree in place of the empty one.
        7 => LoadBegin {
            /// How full to make the pages, in thousandths.
            fill_permille: u16,
        },
        /// The next records of the tree.
        8 => LoadAppend {
            /// Ascending, above all before.
            records: Vec<(L::Key, L::Value)>,
        },
        /// The tree is complete: it replaces the empty one. Only for a compute server that has
        /// halted, as all others have.
        9 => LoadEnd,
        /// Forget the tree that is being built.
        10 => LoadAbort,
        /// Write back everything that was acknowledged before.
        11 => Flush,
    }
}

messages! {
    /// What a compute server answers.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum ClientResponse<L: Layout> {
        /// Done, nothing to say.
        0 => Done,
        /// An operation was done.
        1 => Edited(answer: Answer<L::Value>),
        /// Records of a scan.
        2 => Records {
            /// Where the scan goes on: here, or at the next compute server. `None` if there is
            /// nothing more.
            next: Option<Bound<L::Key>>,
            /// In the order of the scan.
            records: Vec<(L::Key, L::Value)>,
        },
        /// The partition map.
        3 => Map {
            /// Its epoch.
            epoch: u64,
            /// Where each range begins but the first.
            boundaries: Vec<L::Key> as short,
            /// The owner of each range.
            owners: Vec<u16> as short,
        },
        /// The key is another's.
        4 => NotOwner {
            /// Whose.
            owner: u16,
            /// As of this epoch of the map.
            epoch: u64,
        },
        /// No.
        5 => Error(code: ErrorCode),
    }
}

messages! {
    /// Why a compute server has no answer. Everything but [`ErrorCode::Indeterminate`] says that
    /// nothing has changed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
    #[non_exhaustive]
    pub enum ErrorCode {
        /// The request makes no sense.
        #[error("the request is malformed")]
        0 => Malformed,
        /// The compute server does not serve now: it starts, or its keys are moving, or the tree is
        /// being replaced.
        #[error("the compute server does not serve at present")]
        1 => Unavailable,
        /// Nobody knows whether the operation happened, or will.
        #[error("the outcome is unknown: a memory server did not answer")]
        2 => Indeterminate,
        /// A memory server cannot be reached, and the operation has not happened.
        #[error("a memory server cannot be used")]
        3 => NoMemoryServer,
        /// The operation lost against others as often as it may.
        #[error("too many retries against concurrent operations")]
        4 => Contended,
        /// There is no memory for another node.
        #[error("the memory servers have no memory left")]
        5 => OutOfMemory,
        /// A bulk load needs an empty index.
        #[error("the index is not empty")]
        6 => NotEmpty,
        /// The records of a bulk load do not ascend.
        #[error("the records are not in strictly ascending order")]
        7 => NotSorted,
        /// A bulk load is going on, or none is.
        #[error("a bulk load is in progress, or none has begun")]
        8 => Loading,
        /// The index is damaged where the operation went, or a memory server's reply made no sense.
        #[error("the index is damaged")]
        9 => Damaged,
        /// The compute server is known not to be there; nothing was asked.
        #[error("the compute server is not registered")]
        10 => Absent,
    }
}

impl<L: Layout> ClientRequest<L> {
    /// Whether it may change the index, or promises that what was changed is in the memory servers.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Edit(edit) => edit.changes(),
            Self::UpsertAll { .. } | Self::Flush => true,
            _ => false,
        }
    }

    /// The request as a message.
    pub fn encode(&self) -> Message {
        super::encode(self)
    }

    /// The request in a message, if it is one and nothing more.
    pub fn decode(message: &[u8]) -> Option<Self> {
        super::decode(message)
    }
}

impl<L: Layout> ClientResponse<L> {
    /// The answer as a message.
    pub fn encode(&self) -> Message {
        super::encode(self)
    }

    /// The answer in a message, if it is one and nothing more.
    pub fn decode(message: &[u8]) -> Option<Self> {
        super::decode(message)
    }
}
