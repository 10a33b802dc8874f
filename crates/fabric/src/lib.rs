//! The fabric: everything that crosses a machine boundary, behind one trait.
//!
//! Verbs, RPC, time and randomness go through [`Fabric`]. A server implements [`Calls`]; a memory
//! server is the simple case, an [`RpcService`] over a [`Region`]. The providers [`local`],
//! [`tcp`], [`shm`] and [`sim`] implement the same contract (`docs/internals/coherence.md`), and
//! [`conformance`] is the suite that each of them passes.
//!
//! *Thread safety*: a [`Fabric`] handle is one endpoint, used by one thread; a [`Region`] is shared
//! by all threads and is only accessed word by word, atomically.

#![deny(missing_debug_implementations, missing_docs)]

mod access;
mod addr;
pub mod any;
mod body;
mod buffer;
mod calls;
mod clients;
mod clock;
mod cluster;
pub mod conformance;
mod counters;
#[cfg(not(any(loom, shuttle)))]
pub mod endpoint;
mod error;
pub mod executor;
#[cfg(not(any(loom, shuttle)))]
mod gates;
pub mod handshake;
#[cfg(not(any(loom, shuttle)))]
pub mod listener;
pub mod local;
mod message;
pub mod numbers;
pub mod provider;
mod region;
mod resources;
mod service;
#[cfg(not(any(loom, shuttle)))]
pub mod shm;
pub mod sim;
#[cfg(not(any(loom, shuttle)))]
mod sockets;
pub mod sync;
#[cfg(not(any(loom, shuttle)))]
pub mod tcp;
mod timers;
mod verbs;
#[cfg(not(any(loom, shuttle)))]
mod wake;

pub use addr::{GlobalAddr, ServerId};
pub use any::AnyFabric;
pub use buffer::{BUFFER_BYTES, Buffer, BufferPool};
pub use calls::{CallTicket, Calls, LaterAnswers, ReplySink, ServiceCall};
pub use clients::ClientTask;
pub use cluster::{AnyCluster, AnyConfig, Cluster, Provider};
pub use counters::{CounterSnapshot, Counters};
pub use error::{FabricError, Uncertainty};
pub use message::{MAX_MESSAGE_BYTES, Message};
pub use region::{Region, RegionBacking, RegionError, prefetch, table};
pub use service::{CostModel, Cpu, InlineCpu, RpcService, Rule, Section, Work, now_or_never};
pub use verbs::Fabric;
