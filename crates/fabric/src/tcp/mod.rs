//! `tcp`: servers anywhere, over framed TCP.
//!
//! A server's I/O threads carry out verbs on its region (`server.rs`). An endpoint
//! ([`crate::endpoint`]) has one connection to each server, opened when it is first needed, with
//! many operations in flight (`link.rs`). Both sides send and receive many frames with one system
//! call. [`frame`] defines the bytes, and `docs/internals/tcp.md` gives the reasons.
//!
//! `endpoint.rs` and the files `cluster.rs` and `link.rs` use each other: [`Tcp`] names the types
//! of its cluster and its links, which are generic over their transport.
//!
//! *Thread safety*: servers and clusters are for any number of threads; an endpoint belongs to one.

mod cluster;
mod endpoint;
pub mod frame;
mod hosting;
mod inbox;
mod link;
mod op;
mod queue;
mod served;
mod server;
mod window;

pub use cluster::{TcpCluster, TcpConfig};
pub use endpoint::{Tcp, TcpDriver, TcpFabric, TcpOp};
pub use hosting::Hosting;
pub use server::{ServerThread, TcpServer, TcpServerConfig, TcpServerCounters};
