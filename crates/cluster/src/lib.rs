//! The programs that make a cluster: memory servers, the catalog of live servers, and what starts
//! and watches them all. A crate of its own because of what it links: the library needs neither
//! signals nor sockets for metrics nor etcd.
//!
//! *Thread safety*: as each module says. Everything here is control plane: it blocks threads, and
//! no operation on the index passes through it.

#![forbid(unsafe_code)]

pub mod catalog;
pub mod client;
pub mod clock;
pub mod compute;
pub mod config;
pub mod error;
pub mod launch;
pub mod logging;
pub mod membership;
pub mod memory_server;
pub mod metrics;
pub mod records;
pub mod scrape;
pub mod settings;
pub mod status;
pub mod stop;
