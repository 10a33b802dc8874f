//! Requests to a memory server's own tree, apart from edits.

use super::table::messages;
use farleaf_fabric::Message;
use farleaf_page::{
    Layout, LengthError, OwnedKey, OwnedValue, PutField, WireField, check_bounds, check_records,
};
use std::ops::Bound;

/// Maximum number of records in one reply to a scan, if they are small ([`RecordRoom`]); a longer
/// scan needs further requests.
///
/// [`RecordRoom`]: super::RecordRoom
pub const SCAN_REPLY_RECORDS: usize = 4096;

messages! {
    /// A request to a memory server's own tree.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum TreeRequest<L: Layout> {
        /// Requests the server's share. Answered by
        /// [`Reply::Description`](super::Reply::Description).
        0 => Describe,
        /// Creates an empty tree for the keys that `share` assigns to this server.
        1 => Create {
            /// The server's share of the key space.
            share: TreeShare<OwnedKey<L>>,
        },
        /// Requests records of a range. The reply tells whether there may be more.
        8 => Scan {
            /// Where the range begins.
            lower: Bound<OwnedKey<L>>,
            /// Where the range ends.
            upper: Bound<OwnedKey<L>>,
            /// Whether the scan is descending.
            reverse: bool,
            /// Maximum number of records to return.
            limit: u32,
        },
        /// Start a bulk load into the empty tree.
        10 => LoadBegin {
            /// The load's number. A repeated request is harmless; a request with another number
            /// replaces an open load of the same compute server.
            load: u64,
            /// The fill of the pages, in thousandths.
            fill_permille: u16,
        },
        /// The next records of the bulk load.
        11 => LoadAppend {
            /// The load's number.
            load: u64,
            /// Ascending, with keys above all previous ones.
            records: Vec<(OwnedKey<L>, OwnedValue<L>)>,
        },
        /// Completes the bulk load and publishes the tree.
        12 => LoadEnd {
            /// The load's number.
            load: u64,
        },
        /// Aborts the bulk load, if it is open.
        13 => LoadAbort {
            /// The load's number.
            load: u64,
        },
        /// Aborts the bulk load of a dead compute server, if one is open.
        27 => LoadAbandon {
            /// The dead compute server.
            compute_server: u16,
        },
        /// Collects deleted records; answered after a whole pass.
        14 => Collect,
    }
}

impl<L: Layout> TreeRequest<L> {
    /// Whether a page can hold the keys and values of the request.
    pub(super) fn check(&self) -> Result<(), LengthError> {
        match self {
            Self::Create { share: TreeShare::Range { low, high } } => {
                L::check_key(L::key(low))?;
                high.as_ref().map_or(Ok(()), |high| L::check_key(L::key(high)))
            }
            Self::Scan { lower, upper, .. } => check_bounds::<L, _>([lower, upper]),
            Self::LoadAppend { records, .. } => check_records::<L>(records),
            _ => Ok(()),
        }
    }
}

/// The keys that a memory server's tree holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeShare<K> {
    /// The keys from `low`, inclusive, to `high`, exclusive; all from `low` on if `high` is `None`.
    Range {
        /// The lowest key.
        low: K,
        /// The first key that is not included.
        high: Option<K>,
    },
    /// Keys whose hash modulo `servers` equals the server's number.
    Hash {
        /// The number of servers.
        servers: u16,
    },
}

impl<K: PutField> PutField for TreeShare<K> {
    fn put(&self, to: &mut Message) {
        match self {
            Self::Range { low, high } => {
                to.push(0);
                low.put(to);
                high.put(to);
            }
            Self::Hash { servers } => {
                to.push(1);
                servers.put(to);
            }
        }
    }
}

impl<K: WireField> WireField for TreeShare<K> {
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(match u8::take(from)? {
            0 => Self::Range { low: K::take(from)?, high: WireField::take(from)? },
            1 => Self::Hash { servers: u16::take(from)? },
            _ => return None,
        })
    }
}
