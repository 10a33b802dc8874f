//! The partitioning of keys among compute servers: the partition map, the compute servers of an
//! index, and the handle that routes each operation to the owner of its key.
//!
//! [`PartitionMap`] names the owner of a key, and a [`Router`] sends the operation there. The
//! owner's [`ComputeServer`] accepts it, or redirects it to another owner with the epoch of its
//! map. Then the owner's part of the index runs the operation. (Lu et al., *DEX: Scalable Range
//! Indexing on Disaggregated Memory*, VLDB 2024, §4.)
//!
//! Any design that implements [`crate::Partitioned`] can be partitioned; this module refers
//! to none by name.
//!
//! Compute servers in one process share a [`ComputePool`], and a [`RoutedIndex`] moves keys between
//! them. Compute servers in separate processes take requests from a [`ThreadQueue`], answer them
//! with a [`Worker`], and move keys through the record of a [`MapStore`].

mod answering;
mod balance;
mod balancer;
mod bulk_load;
mod compute_pool;
mod compute_server;
mod design;
mod life;
mod load;
mod loading;
mod map;
mod moves;
mod part;
mod probe;
mod queue;
mod record;
mod right;
mod route;
mod routed;
mod router;
mod samples;
mod takeover;
mod transfer;
mod worker;

pub use balance::{BalancePolicy, MoveProposal};
pub use balancer::{BalanceTarget, Balancer};
pub use bulk_load::{BulkLoad, LoadEnded};
pub use compute_pool::ComputePool;
pub use compute_server::ComputeServer;
pub use life::{end_former_incarnation, fence_former_incarnation};
pub use map::{KeyMove, PartitionMap};
pub use probe::probe_all;
pub use queue::{RequestQueues, ServedClients, ThreadQueue};
pub use record::{MapState, MapStore, PendingMove, PutOutcome, Replacement, begin_incarnation};
pub use right::TakeoverOptions;
pub use route::MapRoute;
pub use routed::{MAX_MOVE_NS, PoolOwners, RoutedIndex};
pub(crate) use router::OperationAttempts;
pub use router::{RangeOwners, RetryPolicy, Router, UnservedReason};
pub use samples::{LoadSamples, SampledLoad};
pub use takeover::{DeadServer, TakeoverHost, end_dead_incarnation};
pub use worker::Worker;
