//! What a protocol over the fabric can come to when it does not succeed.

use crate::page::SuperblockError;
use crate::wire::Refusal;
use farleaf_fabric::{FabricError, GlobalAddr, ServerId, Uncertainty};
use thiserror::Error;

/// Why an exchange with a memory server did not succeed.
///
/// Everything but [`RemoteError::Indeterminate`] says that it changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The server has no memory for what was asked.
    #[error("memory server {server} has no memory left for another node")]
    OutOfMemory {
        /// Where there was none.
        server: ServerId,
    },
    /// Nobody knows whether the operation happened, or will.
    #[error("the operation's outcome is unknown: {0}")]
    Indeterminate(FabricError),
    /// The operation lost against others as often as it may.
    #[error("gave up after {retries} retries against concurrent operations")]
    Contended {
        /// How often it was tried again.
        retries: u32,
    },
    /// A page is neither of one piece nor being written: a WRITE of it stopped half-way.
    #[error("the page at {at:?} is damaged: a write of it stopped half-way")]
    Damaged {
        /// The page.
        at: GlobalAddr,
    },
    /// The keys are another compute server's by now.
    #[error("the keys have moved to another compute server")]
    Moved,
    /// The fabric did not carry out the operation.
    #[error(transparent)]
    Fabric(FabricError),
    /// A memory server did not accept the request.
    #[error("memory server {server} refused the request: {refusal}")]
    Refused {
        /// The server.
        server: ServerId,
        /// Its reason.
        refusal: Refusal,
    },
    /// A memory server's reply makes no sense.
    #[error("memory server {server} sent a reply that makes no sense")]
    BadReply {
        /// The server.
        server: ServerId,
    },
    /// A memory server holds another kind of pool.
    #[error("memory server {server}: {error}")]
    BadPool {
        /// The server.
        server: ServerId,
        /// What is wrong with it.
        error: SuperblockError,
    },
}

impl RemoteError {
    /// The error of an operation that has begun to change pages on `server` and could not be brought to its end: its outcome
    /// is unknown, whatever stopped it, though the last verb may say that it did not happen itself.
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

/// Why an attempt did not get through.
#[derive(Clone, Debug)]
pub enum Miss {
    /// Another operation got in between: try again.
    Restart,
    /// It cannot succeed.
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
