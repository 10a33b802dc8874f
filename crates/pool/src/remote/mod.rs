//! Protocols over the fabric, shared by all index designs: requests to memory servers with bounded
//! retries, the map from keys to servers, node allocation, and pages that are read, locked and
//! written one-sided.
//!
//! A one-sided change takes three steps. [`PageClient::read`] fetches a validated copy, and the
//! design changes a [`PageImage`] of it. [`PageClient::lock`] proves by one CAS that the copy is
//! still current. [`PageClient::commit`] writes a log entry and the page in one doorbell, which
//! also unlocks the page.
//!
//! `pages.rs` defines [`PageClient`]. `lock.rs`, `commit.rs` and `identity.rs` add its functions
//! for changes, and define the state that it keeps for them; `leaf_protocol.rs` defines what a
//! design can add, which gets the client. So these five files use each other.

mod allocate;
mod backoff;
mod chunks;
mod claim;
mod commit;
mod copy;
mod detector;
mod edit;
mod error;
mod fresh;
mod identity;
#[cfg(all(test, not(any(loom, shuttle))))]
mod identity_tests;
mod leaf_entry;
mod leaf_protocol;
mod leases;
mod leaves;
mod loads;
mod lock;
mod pages;
mod pieces;
mod recover;
mod redo;
mod rpc;
mod settle;
mod shares;
mod signal;
mod split;
mod unreset;
mod wal;

pub use allocate::NodeAllocator;
pub use backoff::Backoff;
pub use chunks::{ChunkClient, ChunkUse};
pub use claim::ROOT_SERVER;
pub use commit::{CommitState, PageChange};
pub use copy::{PageCopy, PageImage, TimedPointer};
pub use detector::{FailureDetector, ProbeRound};
pub use error::{MissCause, RemoteError, contended};
pub use fresh::{FreshNode, FreshWriter};
pub use identity::{REGISTRAR, RedoSlot as LogSlot};
pub use leaf_entry::HalfWritten;
pub use leaf_protocol::{HookFuture, LeafProtocol, UnresolvedCount};
pub use leases::{ENDLESS, Leases, end_leases_of};
pub use leaves::LeafStream;
pub use lock::{LockedPage, PageHold, SettleRight};
pub use pages::{
    BUSY_WAIT_NS, BUSY_WAITS, GRACE_NS, PageClient, PendingRead, READ_RETRIES, REREADS, SETTLES,
};
pub use pieces::{Pieces, all_done, both, pieces, until_landed};
pub use rpc::RpcClient;
pub use shares::{BadShares, Partitioning, ShareMap};
pub use signal::ChangeSignal;
pub use split::PendingSeparator;
pub use unreset::UnendedOperation;
pub use wal::{
    RecoveredWal, Wal, WalKeeper, WalRecord, WalRoom, WalSource, WalWriter, end_wal, recover_wal,
};
