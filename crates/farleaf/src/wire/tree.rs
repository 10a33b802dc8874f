//! Requests to a memory server's own tree, apart from edits.

use super::table::messages;
use crate::page::{Layout, Wire};
use farleaf_fabric::Message;
use std::ops::Bound;

/// Records that one reply to a scan holds at most; a longer scan goes on with another request.
pub const SCAN_REPLY_RECORDS: usize = 4096;

messages! {
    /// A request to a memory server's own tree.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum TreeRequest<L: Layout> {
        /// What is there? Answered by [`Reply::Description`](super::Reply::Description).
        0 => Describe,
        /// Make an empty tree for the keys that `share` gives to this server.
        1 => Create {
            /// The server's share of the key space.
            share: Share<L::Key>,
        },
        /// Records of a range; the reply says whether there may be more than it holds.
        8 => Scan {
            /// The lower bound.
            lower: Bound<L::Key>,
            /// The upper bound.
            upper: Bound<L::Key>,
            /// Descending.
            reverse: bool,
            /// At most so many.
            limit: u32,
        },
        /// Start a bulk load into the empty tree.
        10 => LoadBegin {
            /// How full to make the pages, in thousandths.
            fill_permille: u16,
        },
        /// The next records of the bulk load.
        11 => LoadAppend {
            /// Ascending, above all before.
            records: Vec<(L::Key, L::Value)>,
        },
        /// The bulk load is complete: show it.
        12 => LoadEnd,
        /// The bulk load is off: forget it.
        13 => LoadAbort,
        /// Collect deleted records now; answered when a whole pass is done.
        14 => Collect,
    }
}

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

impl<K: Wire> Wire for Share<K> {
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

    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(match u8::take(from)? {
            0 => Self::Range { low: K::take(from)?, high: Wire::take(from)? },
            1 => Self::Hash { servers: u16::take(from)? },
            _ => return None,
        })
    }
}
