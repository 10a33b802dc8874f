//! The pool: memory servers, the messages to them, and the protocols by which clients use their
//! memory. Everything that far memory needs, and no index.
//!
//! [`wire`] defines the bytes of messages, [`server`] answers them, and [`remote`] is the clients'
//! side: requests with bounded retries, and pages that are read, locked and written one-sided.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod remote;
pub mod server;
pub mod wire;
