//! `verbs`: memory servers over RDMA (InfiniBand, RoCE), on reliable connections through
//! rdma-core's libibverbs. The library is loaded at run time: this crate builds and starts without
//! it, and [`probe`] reports what is missing.
//!
//! Only the devices execute READ, WRITE, CAS and FETCH-ADD, on the server's registered region.
//! Calls are messages between both sides' memory, served by threads of [`VerbsServer`]. Connections
//! are brought up over TCP, with the same handshake as the provider `tcp`.
//! `docs/internals/verbs.md` gives the reasons.
//!
//! `endpoint.rs` and the files `cluster.rs` and `link.rs` use each other: [`Verbs`] names the types
//! of its cluster and its links, which are generic over their transport.
//!
//! *Thread safety*: servers and clusters are for any number of threads; an endpoint belongs to one.

#![deny(missing_docs)]

mod acceptor;
mod bring_up;
mod cluster;
mod device;
mod endpoint;
mod ffi;
mod lane;
mod link;
mod memory;
mod objects;
#[cfg(test)]
mod on_device;
mod piece;
mod places;
mod server;
mod wire;

pub use cluster::{VerbsCluster, VerbsConfig};
pub use device::{DeviceChoice, RdmaUnavailable, RetryTimers, UsableDevice, probe};
pub use endpoint::{Verbs, VerbsDriver, VerbsFabric, VerbsOp};
pub use server::{VerbsServer, VerbsServerConfig, VerbsServerCounters};
