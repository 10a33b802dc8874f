//! The error of every operation.

use farleaf_core::index::IndexError;
use farleaf_core::wire::ErrorCode;
use thiserror::Error;

/// Why an operation has no answer.
///
/// [`Error::OutcomeUnknown`] and [`Error::Broken`] leave open whether a change has happened; with
/// any other error, nothing has happened and nothing will.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The index could not be opened.
    #[error("cannot open the index: {0}")]
    Open(String),
    /// The change may have happened, or may still happen. Look the key up, or repeat the change if
    /// doing it twice is harmless.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// The server of the key could not be reached, or did not serve it in time. Nothing has
    /// happened; try again later.
    #[error("nothing has happened: {0}")]
    Unavailable(String),
    /// The operation lost to concurrent operations until its retries were used up. Nothing has
    /// happened; try again.
    #[error("nothing has happened: {0}")]
    Contended(String),
    /// The memory servers have no room left. Nothing has happened, and the index is intact.
    #[error("nothing has happened: {0}")]
    OutOfMemory(String),
    /// The operation failed for another reason. Nothing has happened.
    #[error("nothing has happened: {0}")]
    Failed(String),
    /// An operation of this handle has panicked, so the handle cannot be used any more. What it had
    /// in flight may have happened.
    #[error("the handle is unusable, because an operation panicked; the outcome is unknown")]
    Broken,
}

impl Error {
    /// Whether it is certain that the operation has changed nothing and will not.
    pub fn nothing_happened(&self) -> bool {
        !matches!(self, Self::OutcomeUnknown(_) | Self::Broken)
    }
}

/// The error that a caller sees. What is not known to be harmless counts as unknown.
pub(crate) fn seen(error: &IndexError) -> Error {
    let text = error.to_string();
    match error {
        // A server that sends nonsense may have done the change before.
        IndexError::Indeterminate(_) | IndexError::BadReply { .. } => Error::OutcomeUnknown(text),
        IndexError::NotSent { .. } | IndexError::NotOwner { .. } => Error::Unavailable(text),
        IndexError::NotServed { code, .. } => match code {
            ErrorCode::Indeterminate => Error::OutcomeUnknown(text),
            ErrorCode::Unavailable | ErrorCode::Absent | ErrorCode::NoMemoryServer => {
                Error::Unavailable(text)
            }
            ErrorCode::Contended => Error::Contended(text),
            ErrorCode::OutOfMemory => Error::OutOfMemory(text),
            _ => Error::Failed(text),
        },
        IndexError::Contended { .. } => Error::Contended(text),
        IndexError::OutOfMemory { .. } => Error::OutOfMemory(text),
        _ => Error::Failed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::{FabricError, ServerId, Uncertainty};

    #[test]
    fn only_an_unknown_outcome_leaves_it_open() {
        let server = ServerId::new(1);
        let fabric = FabricError::Indeterminate { server, why: Uncertainty::TimedOut };
        let unknown = [IndexError::Indeterminate(fabric), IndexError::BadReply { server }];
        assert!(unknown.iter().all(|error| !seen(error).nothing_happened()));
        let harmless = [
            IndexError::NotSent { compute_server: 1 },
            IndexError::NotServed { compute_server: 1, code: ErrorCode::Unavailable },
            IndexError::Contended { retries: 3 },
            IndexError::OutOfMemory { server },
            IndexError::InvalidArgument("a limit"),
        ];
        assert!(harmless.iter().all(|error| seen(error).nothing_happened()));
        assert!(!Error::Broken.nothing_happened());
    }
}
