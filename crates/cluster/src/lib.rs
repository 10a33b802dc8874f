//! The programs of a cluster: memory servers, compute servers, the catalog of live servers, and the
//! launcher that starts and monitors them. This is a separate crate because of its dependencies:
//! the library needs no signals, no sockets for metrics, and no etcd.
//!
//! *Thread safety*: see each module. All code here is control plane and blocks threads. Operations
//! on the index do not pass through it, except for the requests that a compute server receives.

#![forbid(unsafe_code)]

pub mod address;
pub mod balance;
pub mod catalog;
pub mod client;
pub mod clock;
pub mod compute;
pub mod config;
pub mod error;
pub mod launch;
pub mod layouts;
pub mod logging;
pub mod membership;
pub mod memory_server;
pub mod metrics;
pub mod records;
pub mod scrape;
pub mod settings;
pub mod status;
pub mod stop;
pub mod text;
