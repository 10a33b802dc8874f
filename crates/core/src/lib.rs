//! Farleaf: ordered key-value indexes whose nodes live in the memory of other machines.
//!
//! The modules follow the path of one key: [`partition`] → [`index`] → [`cache`]. Below them are
//! the pool (`farleaf_pool`), which has the memory servers and the protocols to use them, and the
//! bytes of pages (`farleaf_page`). [`client`] is the index for programs other than compute
//! servers. `together` runs futures of one task concurrently, for scans and multi-gets.
//! `ARCHITECTURE.md` traces the path of one key in detail.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod cache;
pub mod client;
pub mod index;
pub mod partition;
mod together;

pub use farleaf_fabric as fabric;
