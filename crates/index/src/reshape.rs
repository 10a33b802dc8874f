//! Changes to an index while operations run, in designs whose compute servers own keys. For callers
//! that know a design only as a [`super::RangeIndex`].

use super::IndexError;
use std::ops::Bound;

/// A change to an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reshape<K> {
    /// Move keys from one compute server to a neighbour, or to a server that owns nothing. A
    /// neighbour gets the keys on its side of a key near `near`; a server that owns nothing gets
    /// the keys from there on. Without `near`, all keys move.
    MoveKeys {
        /// The compute server that releases the keys.
        from: u16,
        /// The compute server that takes over the keys.
        to: u16,
        /// The approximate boundary; `None` moves all keys.
        near: Option<K>,
    },
    /// From now on, place new nodes on one more memory server: the next one that is present but
    /// unused.
    AddMemoryServer,
}

/// The cost of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReshapeCost {
    /// When it began, in nanoseconds of the fabric's time.
    pub started_ns: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// WRITEs of changed nodes. This is the endpoint's counter, so it includes other work that the
    /// handle did meanwhile.
    pub writes: u64,
    /// Their payload, in bytes.
    pub bytes_written: u64,
    /// The compute servers that released and took over keys; `None` for other changes.
    pub moved: Option<(u16, u16)>,
}

/// A range of keys as its bounds.
pub type KeyRange<K> = (Bound<K>, Bound<K>);

/// The answer of designs that support no changes while operations run.
pub(super) fn refused<T>() -> Result<T, IndexError> {
    Err(IndexError::InvalidArgument("this design cannot move keys or add memory servers"))
}
