//! Farleaf: ordered key-value indexes whose nodes live in the memory of other machines.
//!
//! The modules follow the path of one key: [`index`] → [`remote`] → the fabric → [`server`].
//! [`page`] knows only the bytes of nodes, [`table`] those of an LSM index's tables, and [`wire`]
//! the messages between machines. [`client`] is the index for programs other than compute servers.
//! `together` runs futures of one task concurrently, for scans and multi-gets. [`rules`] lists the
//! protocol rules that the simulator can break. `ARCHITECTURE.md` traces the path of one key in
//! detail.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod cache;
pub mod client;
pub mod index;
pub mod page;
pub mod partition;
pub mod remote;
pub mod rules;
pub mod server;
pub mod table;
mod together;
pub mod wire;

pub use farleaf_fabric as fabric;
