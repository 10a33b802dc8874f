//! What designs whose compute servers own keys can change while operations run, for those who know no more of a design
//! than [`super::RangeIndex`].

use super::IndexError;
use std::ops::Bound;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reshape<K> {
    /// Keys move from one compute server to a neighbour, or to one that owns nothing: those on the other's side of a key
    /// near `near` (for one that owns nothing: those from there on), or all.
    MoveKeys {
        /// Who lets go of them.
        from: u16,
        /// Who takes them over.
        to: u16,
        /// Where the boundary will be, about; all keys if there is none.
        near: Option<K>,
    },
    /// New nodes go to one memory server more from now on: the next one of those that are there and not used.
    AddMemoryServer,
}

/// What a change took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reshaped {
    /// When it began, in nanoseconds of the fabric's time.
    pub started_ns: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// WRITEs of changed nodes; the endpoint's, so that it counts what else the handle does meanwhile.
    pub writes: u64,
    /// Their payload, in bytes.
    pub bytes_written: u64,
    /// From which compute server to which keys have moved; none if it is about something else.
    pub moved: Option<(u16, u16)>,
}

/// A range of keys as its bounds.
pub type KeyRange<K> = (Bound<K>, Bound<K>);

/// The answer of designs that cannot.
pub(super) fn refused<T>() -> Result<T, IndexError> {
    Err(IndexError::InvalidArgument("in this design nothing can move while operations run"))
}
