//! Errors of index operations.

use crate::page::{SuperblockError, TooLong};
use crate::remote::{BadShares, RemoteError};
use crate::wire::{ErrorCode, Refusal};
use farleaf_fabric::{FabricError, GlobalAddr, ServerId};
use thiserror::Error;

/// Why an operation failed.
///
/// With every error but [`IndexError::Indeterminate`] the operation changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The operation needed memory that no memory server has. The index is intact.
    #[error("memory server {server} has no memory left for another node")]
    OutOfMemory {
        /// The memory server that ran out of memory.
        server: ServerId,
    },
    /// It is unknown whether the operation has taken effect or still will.
    #[error("the operation's outcome is unknown: {0}")]
    Indeterminate(FabricError),
    /// The operation lost against concurrent operations until it ran out of retries.
    #[error("{}", contended(*.retries))]
    Contended {
        /// The number of retries. 0 if the operation waited instead, or found at once that another
        /// operation was in progress.
        retries: u32,
    },
    /// A page on the path is torn, and no client is writing it: a WRITE of it stopped half-way when
    /// its compute server died. The page's content is lost.
    #[error("the page at {at:?} is damaged: a write of it stopped half-way")]
    Damaged {
        /// The address of the page.
        at: GlobalAddr,
    },
    /// The fabric did not execute the operation.
    #[error(transparent)]
    Fabric(FabricError),
    /// A memory server rejected the request.
    #[error("memory server {server} refused the request: {refusal}")]
    Refused {
        /// The server that refused.
        server: ServerId,
        /// Its reason.
        refusal: Refusal,
    },
    /// A memory server sent an invalid reply.
    #[error("memory server {server} sent an invalid reply")]
    BadReply {
        /// The server that sent the reply.
        server: ServerId,
    },
    /// A memory server holds a pool of a different kind.
    #[error("memory server {server}: {error}")]
    BadPool {
        /// The server whose superblock does not match.
        server: ServerId,
        /// The mismatch found in its superblock.
        error: SuperblockError,
    },
    /// The input of a bulk load does not ascend strictly.
    #[error("the input of a bulk load must ascend strictly, and record {position} does not")]
    NotSorted {
        /// The offending record, counted from 0.
        position: u64,
    },
    /// The source of a bulk load's records failed before its end.
    #[error("the source of a bulk load's records failed before its end: nothing was loaded")]
    SourceFailed,
    /// No page of the index can hold the key.
    #[error("{}", TooLong::Key { bytes: *bytes, most: *most })]
    KeyTooLong {
        /// The key's length.
        bytes: usize,
        /// The longest key.
        most: usize,
    },
    /// No page of the index can hold the value beside its key.
    #[error("{}", TooLong::Value { bytes: *bytes, most: *most })]
    ValueTooLong {
        /// The value's length.
        bytes: usize,
        /// The longest value of the same key.
        most: usize,
    },
    /// Another compute server owns the key.
    #[error("compute server {owner} owns the key, as of epoch {epoch} of the partition map")]
    NotOwner {
        /// The compute server that owns the key.
        owner: u16,
        /// The epoch of the partition map that names the owner.
        epoch: u64,
    },
    /// A compute server did not execute the operation.
    #[error("compute server {compute_server}: {code}")]
    NotServed {
        /// Number of the compute server that refused.
        compute_server: u16,
        /// Its reason.
        code: ErrorCode,
    },
    /// A compute server could not be reached, and nothing was sent to it.
    #[error(
        "compute server {compute_server} cannot be reached; nothing was sent to it, and nothing has changed"
    )]
    NotSent {
        /// Number of the unreachable compute server.
        compute_server: u16,
    },
    /// A compute server has begun another incarnation since it acknowledged changes that had not
    /// been flushed. What it has now is flushed.
    #[error(
        "compute server {compute_server} has begun another incarnation: changes that it acknowledged \
         before and had not flushed may be lost; make them again and flush again"
    )]
    ChangesLost {
        /// Number of the compute server.
        compute_server: u16,
    },
    /// The keys of a load belong to another compute server, which has to load them.
    #[error("{}", RemoteError::NotItsKeys)]
    NotItsKeys,
    /// An argument is out of range.
    #[error("{0}")]
    InvalidArgument(&'static str),
}

fn contended(retries: u32) -> String {
    match retries {
        0 => "another operation, a move of keys or a bulk load is in the way: try again".to_owned(),
        retries => format!("gave up after {retries} retries against concurrent operations"),
    }
}

impl From<RemoteError> for IndexError {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::OutOfMemory { server } => Self::OutOfMemory { server },
            RemoteError::Indeterminate(error) => Self::Indeterminate(error),
            RemoteError::Contended { retries } => Self::Contended { retries },
            RemoteError::Damaged { at } => Self::Damaged { at },
            RemoteError::Moved => Self::Contended { retries: 0 },
            RemoteError::NotItsKeys => Self::NotItsKeys,
            RemoteError::TooLong(error) => error.into(),
            RemoteError::InvalidArgument(what) => Self::InvalidArgument(what),
            RemoteError::Fabric(error) => Self::Fabric(error),
            RemoteError::Refused { server, refusal } => Self::Refused { server, refusal },
            RemoteError::BadReply { server } => Self::BadReply { server },
            RemoteError::BadPool { server, error } => Self::BadPool { server, error },
        }
    }
}

impl From<IndexError> for RemoteError {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::OutOfMemory { server } => Self::OutOfMemory { server },
            IndexError::Indeterminate(error) => Self::Indeterminate(error),
            IndexError::Contended { retries } => Self::Contended { retries },
            IndexError::Damaged { at } => Self::Damaged { at },
            IndexError::Fabric(error) => Self::Fabric(error),
            IndexError::Refused { server, refusal } => Self::Refused { server, refusal },
            IndexError::BadReply { server } => Self::BadReply { server },
            IndexError::BadPool { server, error } => Self::BadPool { server, error },
            IndexError::KeyTooLong { bytes, most } => Self::TooLong(TooLong::Key { bytes, most }),
            IndexError::ValueTooLong { bytes, most } => {
                Self::TooLong(TooLong::Value { bytes, most })
            }
            IndexError::NotItsKeys => Self::NotItsKeys,
            IndexError::NotSorted { .. } => Self::InvalidArgument("the keys must ascend strictly"),
            IndexError::SourceFailed => {
                Self::InvalidArgument("the source of a bulk load's records failed")
            }
            IndexError::InvalidArgument(what) => Self::InvalidArgument(what),
            IndexError::NotOwner { .. } => Self::Moved,
            IndexError::NotServed { .. }
            | IndexError::NotSent { .. }
            | IndexError::ChangesLost { .. } => Self::Contended { retries: 0 },
        }
    }
}

impl From<FabricError> for IndexError {
    fn from(error: FabricError) -> Self {
        RemoteError::from(error).into()
    }
}

impl From<TooLong> for IndexError {
    fn from(error: TooLong) -> Self {
        match error {
            TooLong::Key { bytes, most } => Self::KeyTooLong { bytes, most },
            TooLong::Value { bytes, most } => Self::ValueTooLong { bytes, most },
        }
    }
}

impl From<BadShares> for IndexError {
    fn from(error: BadShares) -> Self {
        Self::InvalidArgument(error.0)
    }
}
