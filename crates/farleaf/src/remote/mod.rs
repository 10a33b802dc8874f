//! Protocols over the fabric, shared by all index designs: requests to memory servers with their bounded
//! retries, which server holds which keys, and the allocation of nodes.

mod allocate;
mod error;
mod rpc;
mod shares;

pub use allocate::NodeAllocator;
pub use error::RemoteError;
pub use rpc::RpcClient;
pub use shares::{BadShares, Partitioning, ShareMap};
