//! The memory server: its region, its allocator, its own tree, and the requests that it answers.
//!
//! It knows pages, messages and the fabric, and nothing of caches or partitions of the compute side.

mod chunks;
mod epoch;
mod memory_server;
mod nodes;
mod owners;
pub mod tree;
mod walks;

pub use chunks::ChunkAllocator;
pub use epoch::{EpochGuard, Epochs};
pub use memory_server::{MemoryServer, MemoryServerConfig};
pub use nodes::NodePool;
pub use owners::Owners;
