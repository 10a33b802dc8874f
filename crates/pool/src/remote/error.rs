//! Errors of the protocols over the fabric.

use farleaf_fabric::{FabricError, ServerId, Uncertainty};

/// Defines an enum of errors: its own, and those of exchanges with memory servers, which all layers
/// above pass on. So each of these has one text, and can be matched without a wrapper.
#[doc(hidden)]
#[macro_export] // for `IndexError`, in a crate above
macro_rules! with_remote_errors {
    ($(#[$meta:meta])* pub enum $name:ident { $($own:tt)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum $name {
            /// It needed memory that no memory server has, or not the one that it belongs to.
            #[error("memory server {server} has no memory left for another node")]
            OutOfMemory {
                /// The memory server that ran out of memory.
                server: farleaf_fabric::ServerId,
            },
            /// It is unknown whether it has taken effect or still will.
            #[error("the operation's outcome is unknown: {0}")]
            Indeterminate(farleaf_fabric::FabricError),
            /// It lost against concurrent operations until it ran out of retries.
            #[error("{}", $crate::remote::contended(*.retries))]
            Contended {
                /// The number of retries. 0 if it waited instead, or found at once that another
                /// operation was in progress.
                retries: u32,
            },
            /// A page on the path is torn, and no client is writing it: a WRITE of it stopped
            /// half-way when its compute server died. The page's content is lost.
            #[error("the page at {at:?} is damaged: a write of it stopped half-way")]
            Damaged {
                /// The address of the page.
                at: farleaf_fabric::GlobalAddr,
            },
            /// The keys of a load belong to another compute server, which has to load them.
            #[error(
                "each compute server of this index loads its own keys, and these are another one's"
            )]
            NotItsKeys,
            /// The index cannot hold the key, or the value beside it.
            #[error(transparent)]
            TooLong(#[from] farleaf_page::LengthError),
            /// An argument is out of range.
            #[error("{0}")]
            InvalidArgument(&'static str),
            /// The fabric did not execute it.
            #[error(transparent)]
            Fabric(farleaf_fabric::FabricError),
            /// A memory server refused the request.
            #[error("memory server {server} refused the request: {refusal}")]
            Refused {
                /// The server that refused.
                server: farleaf_fabric::ServerId,
                /// Its reason.
                refusal: $crate::wire::Refusal,
            },
            /// A memory server sent a reply that does not match the request.
            #[error("memory server {server} sent an invalid reply")]
            BadReply {
                /// The server that sent the reply.
                server: farleaf_fabric::ServerId,
            },
            /// A memory server holds a pool of another kind or format.
            #[error("memory server {server}: {error}")]
            BadPool {
                /// The server with that pool.
                server: farleaf_fabric::ServerId,
                /// What is wrong with its superblock.
                error: farleaf_page::SuperblockError,
            },
            $($own)*
        }

        impl From<farleaf_fabric::FabricError> for $name {
            fn from(error: farleaf_fabric::FabricError) -> Self {
                match error {
                    farleaf_fabric::FabricError::Indeterminate { .. } => Self::Indeterminate(error),
                    other => Self::Fabric(other),
                }
            }
        }
    };
}
with_remote_errors! {
    /// Why an exchange with a memory server failed.
    ///
    /// Every variant except [`RemoteError::Indeterminate`] guarantees that the exchange changed
    /// nothing.
    pub enum RemoteError {
        /// The keys now belong to another compute server.
        #[error("the keys have moved to another compute server")]
        Moved,
    }
}

/// The text of an error that ended an operation after this many retries.
pub fn contended(retries: u32) -> String {
    match retries {
        0 => "another operation, a move of keys or a bulk load is in the way: try again".to_owned(),
        retries => format!("gave up after {retries} retries against concurrent operations"),
    }
}

impl RemoteError {
    /// The error of an operation that has begun to change pages on `server` and could not be
    /// completed. Its outcome is unknown whatever stopped it, even if the last verb itself
    /// certainly had no effect.
    pub fn after_a_change(self, server: ServerId) -> Self {
        match self {
            Self::Indeterminate(error) => Self::Indeterminate(error),
            _ => {
                let why = Uncertainty::ConnectionLost;
                Self::Indeterminate(FabricError::Indeterminate { server, why })
            }
        }
    }
}

/// Why an attempt failed.
#[derive(Clone, Debug)]
pub enum MissCause {
    /// A concurrent operation interfered: retry.
    Restart,
    /// Retrying cannot help.
    Failed(RemoteError),
}

impl From<RemoteError> for MissCause {
    fn from(error: RemoteError) -> Self {
        Self::Failed(error)
    }
}

impl From<FabricError> for MissCause {
    fn from(error: FabricError) -> Self {
        Self::Failed(error.into())
    }
}
