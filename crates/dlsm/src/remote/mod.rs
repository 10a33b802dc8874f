//! What dLSM adds to the pool's protocols: memory in extents, the directory of a shard on a memory
//! server, and compactions that memory servers do.
//!
//! *Thread safety*: clients belong to their endpoint's thread; the space is the process's.

mod extent_space;
mod extents;
mod given_up;
mod near_merge;
mod shard_client;

pub use extent_space::{ExtentLease, ExtentSpace};
pub(crate) use extent_space::{ExtentUsage, ExtentUse, JobId};
pub(crate) use extents::TRANSFER_WORDS;
pub use extents::{ExtentClient, ExtentWriter};
pub(crate) use near_merge::OffloadedCompaction;
pub(crate) use shard_client::{ShardClient, ShardLoans, ShardState, divided_shards};
