//! The messages between clients and compute servers.
//!
//! What a client asks a compute server is answered as of the map that this goes by. Keys that it does not own it never
//! serves: the answer names the owner and the map's epoch, and the client asks for the map.
//!
//! *Thread safety*: plain values.

use super::fields::*;
use crate::page::{Answer, Layout, LeafEdit};
use farleaf_fabric::Message;
use std::ops::Bound;

/// What a client asks of a compute server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask<L: Layout> {
    /// An operation on one key. Answered by [`Told::Edited`].
    Edit(LeafEdit<L::Key, L::Value>),
    /// Records of a range, as far as this compute server owns it. Answered by [`Told::Records`].
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
    /// Many keys are set. If not all are owned, none is.
    UpsertAll {
        /// Keys and values.
        records: Vec<(L::Key, L::Value)>,
    },
    /// The map. Answered by [`Told::Map`].
    Map,
    /// Housekeeping, to its end.
    Collect,
    /// Write back everything that was acknowledged before.
    Flush,
    /// Serve nobody from now on, and write back what the memory servers do not have: the tree is about to be replaced.
    /// A compute server that hears nothing more serves again after a while.
    Halt,
    /// Serve again, and forget all of the tree that was.
    Resume,
    /// Begin to build a tree in place of the empty one.
    LoadBegin {
        /// How full to make the pages, in thousandths.
        fill_permille: u16,
    },
    /// The next records of the tree.
    LoadAppend {
        /// Ascending, above all before.
        records: Vec<(L::Key, L::Value)>,
    },
    /// The tree is complete: it replaces the empty one. Only for a compute server that has halted, as all others have.
    LoadEnd,
    /// Forget the tree that is being built.
    LoadAbort,
}

/// What a compute server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told<L: Layout> {
    /// Done, nothing to say.
    Done,
    /// An operation was done.
    Edited(Answer<L::Value>),
    /// Records of a scan.
    Records {
        /// In the order of the scan.
        records: Vec<(L::Key, L::Value)>,
        /// Where the scan goes on: here, or at the next compute server. `None` if there is nothing more.
        next: Option<Bound<L::Key>>,
    },
    /// The partition map.
    Map {
        /// Its epoch.
        epoch: u64,
        /// Where each range begins but the first.
        boundaries: Vec<L::Key>,
        /// The owner of each range.
        owners: Vec<u16>,
    },
    /// The key is another's.
    NotOwner {
        /// Whose.
        owner: u16,
        /// As of this epoch of the map.
        epoch: u64,
    },
    /// No.
    No(Trouble),
}

/// Why a compute server has no answer. Everything but [`Trouble::Indeterminate`] says that nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The request makes no sense.
    #[error("the request is malformed")]
    Malformed,
    /// The compute server does not serve now: it starts, or its keys are moving, or the tree is being replaced.
    #[error("the compute server does not serve at present")]
    Unavailable,
    /// The compute server is known not to be there; nothing was asked.
    #[error("the compute server is not registered")]
    Absent,
    /// Nobody knows whether the operation happened, or will.
    #[error("the outcome is unknown: a memory server did not answer")]
    Indeterminate,
    /// A memory server cannot be reached, and the operation has not happened.
    #[error("a memory server cannot be used")]
    NoMemoryServer,
    /// The operation lost against others as often as it may.
    #[error("too many retries against concurrent operations")]
    Contended,
    /// There is no memory for another node.
    #[error("the memory servers have no memory left")]
    OutOfMemory,
    /// A bulk load needs an empty index.
    #[error("the index is not empty")]
    NotEmpty,
    /// The records of a bulk load do not ascend.
    #[error("the records are not in strictly ascending order")]
    NotSorted,
    /// A bulk load is going on, or none is.
    #[error("a bulk load is in progress, or none has begun")]
    Loading,
    /// The index is damaged where the operation went, or a memory server's reply made no sense.
    #[error("the index is damaged")]
    Damaged,
}

const TROUBLES: [Trouble; 11] = [
    Trouble::Malformed,
    Trouble::Unavailable,
    Trouble::Indeterminate,
    Trouble::NoMemoryServer,
    Trouble::Contended,
    Trouble::OutOfMemory,
    Trouble::NotEmpty,
    Trouble::NotSorted,
    Trouble::Loading,
    Trouble::Damaged,
    Trouble::Absent,
];

impl<L: Layout> Ask<L> {
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
        let mut to = Message::new();
        match self {
            Self::Edit(edit) => {
                to.push(0);
                put_edit::<L>(0, edit, &mut to);
            }
            Self::Scan { lower, upper, reverse, limit } => {
                to.push(1);
                put_bound::<L>(lower, &mut to);
                put_bound::<L>(upper, &mut to);
                to.push(u8::from(*reverse));
                to.extend_from_slice(&limit.to_le_bytes());
            }
            Self::UpsertAll { records } => {
                to.push(2);
                put_records::<L>(records, &mut to);
            }
            Self::Map => to.push(3),
            Self::Collect => to.push(4),
            Self::Halt => to.push(5),
            Self::Resume => to.push(6),
            Self::LoadBegin { fill_permille } => {
                to.push(7);
                to.extend_from_slice(&fill_permille.to_le_bytes());
            }
            Self::LoadAppend { records } => {
                to.push(8);
                put_records::<L>(records, &mut to);
            }
            Self::LoadEnd => to.push(9),
            Self::LoadAbort => to.push(10),
            Self::Flush => to.push(11),
        }
        to
    }

    /// The request in a message, if it is one and nothing more.
    pub fn decode(message: &[u8]) -> Option<Self> {
        let mut from = message;
        let ask = match take_u8(&mut from)? {
            0 => Self::Edit(take_edit::<L>(take_u8(&mut from)?, &mut from)?),
            1 => Self::Scan {
                lower: take_bound::<L>(&mut from)?,
                upper: take_bound::<L>(&mut from)?,
                reverse: take_bool(&mut from)?,
                limit: take_u32(&mut from)?,
            },
            2 => Self::UpsertAll { records: take_records::<L>(&mut from)? },
            3 => Self::Map,
            4 => Self::Collect,
            5 => Self::Halt,
            6 => Self::Resume,
            7 => Self::LoadBegin { fill_permille: take_u16(&mut from)? },
            8 => Self::LoadAppend { records: take_records::<L>(&mut from)? },
            9 => Self::LoadEnd,
            10 => Self::LoadAbort,
            11 => Self::Flush,
            _ => return None,
        };
        whole(ask, from)
    }
}

impl<L: Layout> Told<L> {
    /// The answer as a message.
    pub fn encode(&self) -> Message {
        let mut to = Message::new();
        match self {
            Self::Done => to.push(0),
            Self::Edited(Answer { applied, found }) => {
                to.push(1);
                to.push(u8::from(*applied));
                put_option(found.as_ref(), &mut to, L::put_value);
            }
            Self::Records { records, next } => {
                to.push(2);
                put_option(next.as_ref(), &mut to, put_bound::<L>);
                put_records::<L>(records, &mut to);
            }
            Self::Map { epoch, boundaries, owners } => {
                to.push(3);
                to.extend_from_slice(&epoch.to_le_bytes());
                to.extend_from_slice(&(boundaries.len() as u16).to_le_bytes());
                boundaries.iter().for_each(|boundary| L::put_key(boundary, &mut to));
                to.extend_from_slice(&(owners.len() as u16).to_le_bytes());
                owners.iter().for_each(|owner| to.extend_from_slice(&owner.to_le_bytes()));
            }
            Self::NotOwner { owner, epoch } => {
                to.push(4);
                to.extend_from_slice(&owner.to_le_bytes());
                to.extend_from_slice(&epoch.to_le_bytes());
            }
            Self::No(trouble) => {
                let number = TROUBLES.iter().position(|known| known == trouble);
                to.push(5);
                to.push(number.unwrap_or(0) as u8);
            }
        }
        to
    }

    /// The answer in a message, if it is one and nothing more.
    pub fn decode(message: &[u8]) -> Option<Self> {
        let mut from = message;
        let told = match take_u8(&mut from)? {
            0 => Self::Done,
            1 => Self::Edited(Answer {
                applied: take_bool(&mut from)?,
                found: take_option(&mut from, L::take_value)?,
            }),
            2 => {
                let next = take_option(&mut from, take_bound::<L>)?;
                Self::Records { records: take_records::<L>(&mut from)?, next }
            }
            3 => {
                let epoch = take_u64(&mut from)?;
                let count = take_u16(&mut from)?;
                let boundaries = (0..count).map(|_| L::take_key(&mut from));
                let boundaries = boundaries.collect::<Option<_>>()?;
                let count = take_u16(&mut from)?;
                let owners = (0..count).map(|_| take_u16(&mut from)).collect::<Option<_>>()?;
                Self::Map { epoch, boundaries, owners }
            }
            4 => Self::NotOwner { owner: take_u16(&mut from)?, epoch: take_u64(&mut from)? },
            5 => Self::No(*TROUBLES.get(usize::from(take_u8(&mut from)?))?),
            _ => return None,
        };
        whole(told, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Action, Fixed8};

    #[test]
    fn messages_come_back_as_they_were_and_no_shorter() {
        use Bound::{Excluded, Included, Unbounded};
        let edit = |action| Ask::<Fixed8>::Edit(LeafEdit { key: 7, action });
        let asks = [
            edit(Action::Get),
            edit(Action::CompareExchange(1, u64::MAX)),
            Ask::Scan { lower: Included(3), upper: Unbounded, reverse: true, limit: 9 },
            Ask::UpsertAll { records: vec![(1, 2), (3, 4)] },
            Ask::Map,
            Ask::LoadBegin { fill_permille: 700 },
            Ask::LoadAppend { records: vec![(u64::MAX, 0)] },
            Ask::LoadEnd,
            Ask::Flush,
        ];
        for ask in asks {
            let message = ask.encode();
            assert_eq!(Ask::decode(&message), Some(ask));
            assert_eq!(Ask::<Fixed8>::decode(&message[..message.len() - 1]), None);
        }
        let mut tolds = vec![
            Told::<Fixed8>::Edited(Answer { applied: true, found: Some(5) }),
            Told::Records { records: vec![(1, 2)], next: Some(Excluded(1)) },
            Told::Map { epoch: 3, boundaries: vec![10, 20], owners: vec![0, 2, 1] },
            Told::NotOwner { owner: 1, epoch: 9 },
        ];
        tolds.extend(TROUBLES.map(Told::No));
        for told in tolds {
            let message = told.encode();
            assert_eq!(Told::decode(&message), Some(told));
            assert_eq!(Told::<Fixed8>::decode(&message[..message.len() - 1]), None);
        }
    }
}
