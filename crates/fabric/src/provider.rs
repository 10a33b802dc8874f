//! Building blocks of providers that run in real time, for providers in other crates.
//!
//! *Thread safety*: see each item.

pub use crate::access::check_alignment;
pub use crate::body::OpBody;
pub use crate::clients::{run_here, run_on_threads};
pub use crate::clock::ClusterClock;
#[cfg(not(any(loom, shuttle)))]
pub use crate::gates::{ConnectionGate, ServerGates};
pub use crate::resources::{EndpointResources, EndpointSettings};
#[cfg(not(any(loom, shuttle)))]
pub use crate::sockets::{SocketRead, connect_socket, next_message, prepare_socket};
pub use crate::timers::Timers;
#[cfg(not(any(loom, shuttle)))]
pub use crate::wake::WakeFd;
