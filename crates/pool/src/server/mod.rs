//! The memory server: its region, its allocator, its own tree, and the requests that it answers.
//!
//! It depends on pages, messages and the fabric, but not on the compute side's caches or
//! partitions.

mod chunks;
mod directory;
mod epoch;
mod loans;
mod log_rings;
mod memory_server;
mod merges;
mod nodes;
mod offloads;
mod owners;
pub mod tree;
mod whole;

pub use chunks::ChunkAllocator;
pub use epoch::{EpochGuard, Epochs};
pub use memory_server::{MemoryServer, MemoryServerConfig};
pub use nodes::NodePool;
pub use owners::ClientRegistry;
