//! dLSM with several shards: each compute server owns a range of the keys, which is divided into
//! shards (section VII of the paper), each an LSM tree of its own.
//!
//! The trees of a compute server share one counter of numbers, so a scan sees all of them as of one
//! moment, and one budget of memory for their MemTables. Which keys a shard has never changes, and
//! compute servers own whole shards, which can move (`leave.rs`).
//!
//! ```text
//! design ─▶ pool ─▶ builder ─▶ opened ─▶ part ─▶ server ─▶ shard_map    a compute server's part
//!    ├────▶ options ◀──────────────────────────────┘
//!    └────▶ recovery ─▶ part                         what a dead life had in its log
//! ```
//!
//! [`farleaf_index::partition`] makes it a [`farleaf_index::Design`], and provides compute servers
//! in separate processes.

mod builder;
mod design;
mod opened;
mod options;
mod part;
mod pool;
mod recovery;
mod server;
mod shard_map;

pub use builder::{LoadBuilder, LoadedSsTables};
pub use design::ShardedDlsm;
pub use options::{DlsmServerOptions, ShardedOptions};
pub use part::{DlsmPart, LeftShards};
pub use pool::DlsmPool;
pub use server::DlsmServer;
pub use shard_map::MAX_SHARDS;
