//! The errors of far memory.
//!
//! *Thread safety*: plain values.

use farleaf_fabric::{FabricError, ServerId};
use thiserror::Error;

/// Why far memory cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FarError {
    /// A setting is outside its limits.
    #[error("far memory cannot have {fault}")]
    Config {
        /// The setting, and what to use instead.
        fault: String,
    },
    /// A range does not lie inside the region.
    #[error("{bytes} bytes from byte {from} on are not inside the region of {region_bytes} bytes")]
    Outside {
        /// First byte.
        from: usize,
        /// Length in bytes.
        bytes: usize,
        /// Size of the region.
        region_bytes: usize,
    },
    /// The memory server that has the content does not answer, or refuses this process for now.
    /// The content is still there if the server comes back. Over `shm`, a lost connection is not
    /// opened again.
    #[error("page {page} of far memory is on memory server {server}, which fails: {cause}")]
    Unreachable {
        /// The page's number.
        page: u32,
        /// The memory server.
        server: ServerId,
        /// The last error.
        cause: FabricError,
    },
    /// The content is gone: its memory server was restarted.
    #[error("page {page} of far memory was on memory server {server} and is lost: {cause}")]
    Lost {
        /// The page's number.
        page: u32,
        /// The memory server.
        server: ServerId,
        /// The reason.
        cause: FabricError,
    },
    /// The buffer is full of pages that cannot leave it.
    #[error(
        "page {page} of far memory finds no room, because no page can leave the buffer: {cause}"
    )]
    NoRoom {
        /// The page's number.
        page: u32,
        /// Why pages cannot leave.
        cause: Box<FarError>,
    },
    /// No memory server has memory left.
    #[error("no memory server has {bytes} bytes left for far memory; add memory or a server")]
    NoSpace {
        /// The memory asked for.
        bytes: u64,
    },
    /// More pages should be held than the buffer allows.
    #[error(
        "{pages} pages cannot be held in the buffer, which allows {most}; hold fewer at a time"
    )]
    TooManyHeld {
        /// The pages that would be held.
        pages: u64,
        /// The limit.
        most: u32,
    },
    /// A page that is held cannot be discarded.
    #[error("page {page} of far memory is held; release it before discarding it")]
    Held {
        /// The page's number.
        page: u32,
    },
    /// The pager has stopped.
    #[error("the pager of this far memory has stopped")]
    Stopped,
    /// The operating system lacks what paging needs.
    #[error("cannot {action}: {cause}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The operating system's answer.
        cause: String,
    },
}
