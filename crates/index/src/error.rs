//! Errors of index operations.

use farleaf_pool::remote::{BadShares, RemoteError};
use farleaf_pool::wire::ErrorCode;
use farleaf_pool::with_remote_errors;

with_remote_errors! {
    /// Why an operation failed.
    ///
    /// With every error but [`IndexError::Indeterminate`] the operation changed nothing.
    #[non_exhaustive]
    pub enum IndexError {
        /// The input of a bulk load does not ascend strictly.
        #[error("the input of a bulk load must ascend strictly, and record {position} does not")]
        NotSorted {
            /// The offending record, counted from 0.
            position: u64,
        },
        /// The source of a bulk load's records failed before its end.
        #[error("the source of a bulk load's records failed before its end: nothing was loaded")]
        SourceFailed,
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
        /// A compute server has begun another incarnation since it acknowledged changes that had
        /// not been flushed. What it has now is flushed.
        #[error(
            "compute server {compute_server} has begun another incarnation: changes that it acknowledged \
             before and had not flushed may be lost; make them again and flush again"
        )]
        ChangesLost {
            /// Number of the compute server.
            compute_server: u16,
        },
        /// The operating system refused this client a thread, a file descriptor or memory. Nothing
        /// was sent.
        #[error(
            "this client cannot start: {} (see the limits ulimit -n, -u and -v)",
            std::io::Error::from_raw_os_error(*.errno)
        )]
        NotStarted {
            /// The operating system's error number.
            errno: i32,
        },
    }
}

impl IndexError {
    /// The operating system's error as the reason why a client did not start.
    pub fn not_started(error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::NotStarted { errno },
            None => Self::InvalidArgument("this client cannot start: no endpoint was opened"),
        }
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
            RemoteError::TooLong(error) => Self::TooLong(error),
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
            IndexError::TooLong(error) => Self::TooLong(error),
            IndexError::NotItsKeys => Self::NotItsKeys,
            IndexError::NotSorted { .. } => Self::InvalidArgument("the keys must ascend strictly"),
            IndexError::SourceFailed => {
                Self::InvalidArgument("the source of a bulk load's records failed")
            }
            IndexError::InvalidArgument(what) => Self::InvalidArgument(what),
            IndexError::NotOwner { .. } => Self::Moved,
            IndexError::NotServed { .. }
            | IndexError::NotSent { .. }
            | IndexError::ChangesLost { .. }
            | IndexError::NotStarted { .. } => Self::Contended { retries: 0 },
        }
    }
}

impl From<BadShares> for IndexError {
    fn from(error: BadShares) -> Self {
        Self::InvalidArgument(error.0)
    }
}
