//! The messages between clients and compute servers.
//!
//! A compute server answers each request according to its own copy of the partition map. It never
//! serves keys that it does not own: instead, the reply names the owner and the map's epoch, and
//! the client fetches the map.
//!
//! *Thread safety*: plain values.

use super::table::{MessageTable, messages};
use farleaf_fabric::{MAX_MESSAGE_BYTES, Message};
use farleaf_page::{
    EditAnswer, Layout, LeafEdit, LengthError, OwnedKey, OwnedValue, PutField, check_bounds,
};
use std::ops::Bound;

/// The longest value in a message between a client and a compute server, in bytes.
pub const MAX_VALUE_BYTES: usize = 60 << 10;
/// More than a message has besides values: the longest key of any layout, lengths and tags.
const REST_BYTES: usize = 4096;
// A compare-exchange has two values.
const _: () = assert!(2 * MAX_VALUE_BYTES + REST_BYTES <= MAX_MESSAGE_BYTES);

/// Whether a record can be sent to a compute server, whose limit on values may be lower.
///
/// # Errors
/// [`LengthError`] if it cannot.
#[inline]
pub fn check_sent<L: Layout>(key: &L::Key, value: &L::Value) -> Result<(), LengthError> {
    L::check_key(key)?;
    let (bytes, most) = (L::value_length(value), MAX_VALUE_BYTES);
    if bytes <= most { Ok(()) } else { Err(LengthError::Value { bytes, most }) }
}

/// The number of no bulk load: a compute server that ends halts without one.
pub const NO_LOAD: u64 = 0;

messages! {
    /// A request from a client to a compute server.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum ClientRequest<L: Layout> {
        /// An operation on one key. Answered by [`ClientResponse::Edited`], or by
        /// [`ClientResponse::Changed`] if it may change the key.
        0 => Edit(edit: LeafEdit<OwnedKey<L>, OwnedValue<L>>),
        /// Requests records of a range, as far as this compute server owns it. Answered by
        /// [`ClientResponse::Records`].
        1 => Scan {
            /// Where the range begins.
            lower: Bound<OwnedKey<L>>,
            /// Where the range ends.
            upper: Bound<OwnedKey<L>>,
            /// Whether the scan is descending.
            reverse: bool,
            /// Maximum number of records to return.
            limit: u32,
        },
        /// Upserts many keys, in this order. If the compute server does not own all of them when
        /// the request arrives, it sets none. After any later error, some may be set. Answered by
        /// [`ClientResponse::Upserted`].
        2 => UpsertAll {
            /// Keys and values.
            records: Vec<(OwnedKey<L>, OwnedValue<L>)>,
        },
        /// Requests the partition map. Answered by [`ClientResponse::Map`].
        3 => Map,
        /// Collects deleted records. Answered at the end, by [`ClientResponse::Covered`].
        4 => Collect,
        /// Stop serving, and write back what the memory servers do not have yet, because the tree
        /// is about to be replaced. A compute server that gets no further request resumes after a
        /// timeout, once the load can no longer replace the tree.
        5 => Halt {
            /// The load that replaces it, or [`NO_LOAD`].
            load: u64,
            /// The version of the map record at which the load may replace it.
            version: u64,
        },
        /// Resume serving, and discard all state of the old tree.
        6 => Resume {
            /// The load that the compute server halted for.
            load: u64,
        },
        /// Begin building a tree that will replace the empty one.
        7 => LoadBegin {
            /// A random number that identifies the load.
            load: u64,
            /// The fill of the pages, in thousandths.
            fill_permille: u16,
        },
        /// The next records of the tree.
        8 => LoadAppend {
            /// The load that they belong to.
            load: u64,
            /// Ascending, with keys above all previous ones.
            records: Vec<(OwnedKey<L>, OwnedValue<L>)>,
        },
        /// The tree replaces the empty one. Sent only when this compute server and all others have
        /// halted for this version. Answered by [`ClientResponse::Loaded`]; if it is repeated, with
        /// the outcome of the first.
        9 => LoadEnd {
            /// The load that built the tree.
            load: u64,
            /// The version of the map record that it replaces the tree at.
            version: u64,
        },
        /// Discard the tree that is being built.
        10 => LoadAbort {
            /// The load that builds it.
            load: u64,
        },
        /// Write back every change that was acknowledged before this request. Answered by
        /// [`ClientResponse::Covered`].
        11 => Flush,
        /// Release keys to another compute server, which receives [`ClientRequest::TakeOver`] at
        /// the same time. Answered by [`ClientResponse::Map`] once the other server owns them.
        12 => Release {
            /// The compute server that takes the keys over.
            to: u16,
            /// The approximate boundary between the keys that stay and those that move; `None`
            /// moves all.
            near: Option<OwnedKey<L>>,
        },
        /// Take over the keys that another compute server releases. Answered by
        /// [`ClientResponse::Map`] once this one owns them.
        13 => TakeOver {
            /// The compute server that releases the keys.
            from: u16,
        },
        /// Requests the load since the last such request. Answered by [`ClientResponse::Samples`].
        14 => Samples,
        /// Requests the fences of the leaf of a key. Answered by [`ClientResponse::Fences`].
        15 => Fences {
            /// The key to look up.
            key: OwnedKey<L>,
        },
        /// All records were sent: complete the tree, and name the version of the map record at
        /// which all compute servers have to halt. May be repeated, for a later version. Answered
        /// by [`ClientResponse::LoadReady`].
        16 => LoadReady {
            /// The load that builds the tree.
            load: u64,
        },
    }
}

messages! {
    /// A compute server's reply.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum ClientResponse<L: Layout> {
        /// Done, without a result.
        0 => Done,
        /// The result of an edit that changes nothing.
        1 => Edited(answer: EditAnswer<OwnedValue<L>>),
        /// Records of a scan.
        2 => Records {
            /// Where the scan continues, on this compute server or the next; `None` at the end.
            next: Option<Bound<OwnedKey<L>>>,
            /// In the order of the scan.
            records: Vec<(OwnedKey<L>, OwnedValue<L>)>,
        },
        /// The partition map. Range `i` belongs to `owners[i]`.
        3 => Map {
            /// Its epoch.
            epoch: u64,
            /// The low key of each range but the first.
            boundaries: Vec<OwnedKey<L>> as short,
            /// The owner of each range.
            owners: Vec<u16> as short,
        },
        /// Another compute server owns the key.
        4 => NotOwner {
            /// The compute server that owns the key.
            owner: u16,
            /// The epoch of the map that names this owner.
            epoch: u64,
        },
        /// The request failed.
        5 => Error(code: ErrorCode),
        /// The load of this compute server.
        6 => Samples {
            /// Number of sampled operations.
            samples: u64,
            /// The keys of some of them, ascending.
            keys: Vec<OwnedKey<L>>,
        },
        /// A bulk load has replaced the empty tree.
        8 => Loaded {
            /// Boundaries that give each owner about the same number of records, or none if there
            /// are too few.
            boundaries: Vec<OwnedKey<L>> as short,
        },
        /// The fences of a leaf.
        7 => Fences {
            /// The smallest key that it can hold.
            low: OwnedKey<L>,
            /// The smallest key beyond it; `None` is infinite.
            high: Option<OwnedKey<L>>,
        },
        /// The result of any other edit.
        9 => Changed {
            /// The incarnation that acknowledges it (client.N4).
            incarnation: u64,
            /// The result.
            answer: EditAnswer<OwnedValue<L>>,
        },
        /// The keys of a batch are set.
        10 => Upserted {
            /// The incarnation that acknowledges it (client.N4).
            incarnation: u64,
        },
        /// A flush or a collection is done for all keys that this compute server owns, by a map of
        /// which it serves its whole range.
        11 => Covered {
            /// The incarnation that has done it.
            incarnation: u64,
            /// How long this incarnation has been serving, in nanoseconds.
            age_ns: u64,
            /// The epoch of the map.
            epoch: u64,
        },
        /// The tree of a bulk load is complete.
        12 => LoadReady {
            /// The version of the map record at which the load may replace the empty tree.
            version: u64,
            /// The epoch of the map in that record.
            epoch: u64,
        },
    }
}

messages! {
    /// Why a compute server could not answer. Every code but [`ErrorCode::Indeterminate`] means
    /// that nothing has changed, except that [`ClientRequest::UpsertAll`] may have set some keys.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
    #[non_exhaustive]
    pub enum ErrorCode {
        /// The request cannot be decoded, or has invalid arguments.
        #[error("the request is malformed")]
        0 => Malformed,
        /// The compute server is not serving now: it is starting, its keys are moving, or the tree
        /// is being replaced.
        #[error("the compute server does not serve at present")]
        1 => Unavailable,
        /// The operation may have happened, or may still happen.
        #[error("the outcome is unknown: a memory server did not answer")]
        2 => Indeterminate,
        /// A memory server cannot be used, and the operation has not happened.
        #[error("a memory server cannot be used")]
        3 => NoMemoryServer,
        /// The operation ran out of retries: every attempt lost to a concurrent operation.
        #[error("too many retries against concurrent operations")]
        4 => Contended,
        /// The memory servers have no room for a new node.
        #[error("the memory servers have no memory left")]
        5 => OutOfMemory,
        /// A bulk load needs an empty index.
        #[error("the index is not empty")]
        6 => NotEmpty,
        /// The records of a bulk load do not ascend.
        #[error("the records are not in strictly ascending order")]
        7 => NotSorted,
        /// Another bulk load is in progress.
        #[error("another bulk load is in progress")]
        8 => Loading,
        /// The part of the index that the operation reached is damaged, or a memory server's reply
        /// was invalid.
        #[error("the index is damaged")]
        9 => Damaged,
        /// The compute server is known to be absent; no request was sent.
        #[error("the compute server is not registered")]
        10 => Absent,
        /// The keys of a load belong to another compute server, which has to load them.
        #[error("the keys belong to another compute server, which has to load them")]
        11 => NotItsKeys,
        /// A key is too long for the compute server.
        #[error("the key has {bytes} bytes, and keys can have at most {most}")]
        12 => KeyTooLong {
            /// Its length.
            bytes: u64,
            /// The longest key.
            most: u64,
        },
        /// A value is too long for the compute server.
        #[error("the value has {bytes} bytes, and a value of this key can have at most {most}")]
        13 => ValueTooLong {
            /// Its length.
            bytes: u64,
            /// The longest value of its key.
            most: u64,
        },
        /// The load has ended at this compute server, or never began in its current life.
        #[error(
            "the bulk load has ended there: the compute server was restarted, or got no request of \
             the load for too long; load again"
        )]
        14 => NoLoad,
    }
}

impl From<LengthError> for ErrorCode {
    fn from(error: LengthError) -> Self {
        match error {
            LengthError::Key { bytes, most } => {
                Self::KeyTooLong { bytes: bytes as u64, most: most as u64 }
            }
            LengthError::Value { bytes, most } => {
                Self::ValueTooLong { bytes: bytes as u64, most: most as u64 }
            }
        }
    }
}

impl<L: Layout> ClientRequest<L> {
    /// Whether a page can hold the keys of the request, and `record` accepts its records. Decoding
    /// accepts any length.
    ///
    /// # Errors
    /// [`LengthError`] if not.
    #[inline]
    pub fn check(
        &self,
        record: impl Fn(&L::Key, &L::Value) -> Result<(), LengthError>,
    ) -> Result<(), LengthError> {
        match self {
            Self::Edit(edit) => edit.as_ref().check_by::<L>(record),
            Self::UpsertAll { records } | Self::LoadAppend { records, .. } => {
                records.iter().try_for_each(|(key, value)| record(L::key(key), L::value(value)))
            }
            Self::Scan { lower, upper, .. } => check_bounds::<L, _>([lower, upper]),
            Self::Release { near: Some(key), .. } | Self::Fences { key } => {
                L::check_key(L::key(key))
            }
            _ => Ok(()),
        }
    }

    /// Whether the request may change the index, or guarantees that changes have reached the memory
    /// servers.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Edit(edit) => edit.changes(),
            Self::UpsertAll { .. } | Self::Flush => true,
            _ => false,
        }
    }

    /// Whether the request belongs to a bulk load.
    pub fn is_load(&self) -> bool {
        matches!(
            self,
            Self::LoadBegin { .. }
                | Self::LoadAppend { .. }
                | Self::LoadReady { .. }
                | Self::LoadEnd { .. }
                | Self::LoadAbort { .. }
        )
    }

    /// Encodes the request as a message.
    pub fn encode(&self) -> Message {
        super::encode(self)
    }

    /// Encodes [`ClientRequest::Edit`] as a message, without copying key and values.
    pub fn encode_edit(edit: LeafEdit<&L::Key, &L::Value>) -> Message {
        let mut to = Message::new();
        to.push(Self::TAGS[0]);
        edit.put(&mut to);
        to
    }

    /// Decodes the request in a message; `None` if the message is anything else.
    pub fn decode(message: &[u8]) -> Option<Self> {
        super::decode(message)
    }
}

impl<L: Layout> ClientResponse<L> {
    /// Encodes the reply as a message.
    pub fn encode(&self) -> Message {
        super::encode(self)
    }

    /// Decodes the reply in a message; `None` if the message is anything else.
    pub fn decode(message: &[u8]) -> Option<Self> {
        super::decode(message)
    }
}
