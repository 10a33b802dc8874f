//! Errors of the protocols over the fabric.

use crate::page::{SuperblockError, TooLong};
use crate::wire::Refusal;
use farleaf_fabric::{FabricError, GlobalAddr, ServerId, Uncertainty};
use thiserror::Error;

/// Why an exchange with a memory server failed.
///
/// Every variant except [`RemoteError::Indeterminate`] guarantees that the exchange changed
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The server has too little free memory for the request.
    #[error("memory server {server} has no memory left for another node")]
    OutOfMemory {
        /// The server that ran out.
        server: ServerId,
    },
    /// The operation may have happened, or may still happen.
    #[error("the operation's outcome is unknown: {0}")]
    Indeterminate(FabricError),
    /// The operation ran out of retries: every attempt lost to a concurrent operation.
    #[error("gave up after {retries} retries against concurrent operations")]
    Contended {
        /// Retries made.
        retries: u32,
    },
    /// A page fails its checksum, and no client is writing it: a WRITE of it stopped half-way.
    #[error("the page at {at:?} is damaged: a write of it stopped half-way")]
    Damaged {
        /// The page's address.
        at: GlobalAddr,
    },
    /// The keys now belong to another compute server.
    #[error("the keys have moved to another compute server")]
    Moved,
    /// The keys of a load belong to another compute server, which has to load them.
    #[error("each compute server of this index loads its own keys, and these are another one's")]
    NotItsKeys,
    /// The index cannot hold the key, or the value beside it.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// An argument is out of range.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// The fabric rejected or failed the operation.
    #[error(transparent)]
    Fabric(FabricError),
    /// A memory server refused the request.
    #[error("memory server {server} refused the request: {refusal}")]
    Refused {
        /// The server that refused.
        server: ServerId,
        /// Its reason.
        refusal: Refusal,
    },
    /// A memory server sent a reply that does not match the request.
    #[error("memory server {server} sent an invalid reply")]
    BadReply {
        /// The server that replied.
        server: ServerId,
    },
    /// A memory server holds a pool of another format.
    #[error("memory server {server}: {error}")]
    BadPool {
        /// The server with that pool.
        server: ServerId,
        /// What is wrong with its superblock.
        error: SuperblockError,
    },
}

impl RemoteError {
    /// The error of an operation that has begun to change pages on `server` and could not be
    /// completed. Its outcome is unknown whatever stopped it, even if the last verb itself
    /// certainly had no effect.
    pub(crate) fn after_a_change(self, server: ServerId) -> Self {
        match self {
            Self::Indeterminate(error) => Self::Indeterminate(error),
            _ => {
                let why = Uncertainty::ConnectionLost;
                Self::Indeterminate(FabricError::Indeterminate { server, why })
            }
        }
    }
}

impl From<FabricError> for RemoteError {
    fn from(error: FabricError) -> Self {
        match error {
            FabricError::Indeterminate { .. } => Self::Indeterminate(error),
            other => Self::Fabric(other),
        }
    }
}

/// Why an attempt failed.
#[derive(Clone, Debug)]
pub enum Miss {
    /// A concurrent operation interfered: retry.
    Restart,
    /// Retrying cannot help.
    Failed(RemoteError),
}

impl From<RemoteError> for Miss {
    fn from(error: RemoteError) -> Self {
        Self::Failed(error)
    }
}

impl From<FabricError> for Miss {
    fn from(error: FabricError) -> Self {
        Self::Failed(error.into())
    }
}
