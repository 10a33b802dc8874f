//! The designs whose nodes all compute servers share, as the papers publish them: by RPC
//! ([`coarse`]), one-sided ([`fine`], [`hybrid`]), with cached parents of leaves ([`sherman`],
//! [`chime`]), and a radix tree ([`smart`]). No design uses another; [`one_sided`] is what several
//! of them share, [`entry_lock`] what those with locks of entries do, and `sides` what the clients
//! of a compute server do.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod chime;
pub mod coarse;
pub mod entry_lock;
pub mod fine;
pub mod hybrid;
pub mod one_sided;
pub mod sherman;
mod sides;
pub mod smart;
