//! Farleaf: ordered key-value indexes whose nodes live in the memory of other machines.
//!
//! The modules follow the way of one key: [`index`] → [`remote`] → the fabric → [`server`]. [`page`]
//! knows the bytes of nodes and nothing else, [`wire`] the messages between machines. [`client`] is the index for
//! programs that are no compute server. `together` runs
//! futures of one task side by side, for scans and multi-gets. [`rules`] are those that the simulator can break.
//! `ARCHITECTURE.md` walks the whole way.

#![forbid(unsafe_code)]

pub mod cache;
pub mod client;
pub mod index;
pub mod page;
pub mod partition;
pub mod remote;
pub mod rules;
pub mod server;
mod together;
pub mod wire;

pub use farleaf_fabric as fabric;
