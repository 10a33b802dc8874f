//! `tcp`: memory servers anywhere, over framed TCP.
//!
//! A server's I/O threads carry verbs out on its region (`server.rs`); an endpoint has one connection to each
//! memory server, opened when it is first needed, with many operations in flight (`endpoint.rs`). Both sides
//! send and receive many frames by one system call. [`frame`] has the bytes, `docs/internals/tcp.md` the reasons.
//!
//! *Thread safety*: servers and clusters are for any number of threads; an endpoint belongs to one.

mod calls;
mod cluster;
mod driver;
mod endpoint;
pub mod frame;
mod inbox;
mod link;
mod op;
mod queue;
mod served;
mod server;

pub use calls::{Call, Calls, ReplySink};
pub use cluster::{TcpCluster, TcpConfig};
pub use driver::TcpDriver;
pub use endpoint::TcpFabric;
pub use op::TcpOp;
pub use server::{TcpServer, TcpServerConfig, TcpServerCounters};

use std::os::fd::AsFd;
use std::time::Duration;

/// What a connection must bear, idle or not, before its peer is taken for gone. Operations have deadlines of
/// their own; this is so that a connection which will never carry anything again does not stay.
const SILENCE: Duration = Duration::from_secs(20);

/// Sets a socket up: nothing waits for more to send, and a peer that vanished without a word is found out.
fn prepare(socket: &impl AsFd) -> std::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE / 2)?;
    sockopt::set_tcp_keepintvl(socket, SILENCE / 4)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE.as_millis() as u32)?;
    Ok(())
}
