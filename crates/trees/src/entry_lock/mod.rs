//! Leaves that are changed entry by entry, under a lock of their own: what Sherman, CHIME and the
//! partitioned forms share, SMART's included.
//!
//! [`EntryClient`] locks, writes and releases; [`EntryLocks`] has the turns of one compute server's
//! clients. What a client has left in doubt is in its [`EntryState`], which the page client settles
//! through its hook ([`LeafProtocol`](farleaf_pool::remote::LeafProtocol)).

mod entries;
mod turns;

pub use entries::{EntryClient, EntryHold, EntryState};
pub(crate) use entries::{EntryWords, EntryWrites, entry_lock_of};
pub use turns::EntryLocks;
