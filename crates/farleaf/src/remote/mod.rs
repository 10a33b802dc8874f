//! Protocols over the fabric, shared by all index designs: requests to memory servers with their bounded
//! retries, and the allocation of nodes.

mod allocate;
mod error;
mod rpc;

pub use allocate::NodeAllocator;
pub use error::RemoteError;
pub use rpc::RpcClient;
