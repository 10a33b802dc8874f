//! The one error type of the crate.

use farleaf_cluster::error::ProgramError;
use farleaf_index::IndexError;
use farleaf_pool::wire::Refusal;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// Why an operation failed.
///
/// With every variant but [`Error::Indeterminate`], the operation has changed nothing and will
/// change nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is unknown whether the operation has happened, or, if it concerns several records, which
    /// part of it. It may still happen.
    #[error(transparent)]
    Indeterminate(ErrorCause),
    /// The servers could not be reached, or are not serving now. Nothing has changed; the operation
    /// can be repeated.
    #[error(transparent)]
    Unavailable(ErrorCause),
    /// The operation lost against concurrent operations until it ran out of retries. Nothing has
    /// changed; the operation can be repeated.
    #[error(transparent)]
    Contended(ErrorCause),
    /// A compute server has crashed with changes that it had acknowledged and that were not
    /// flushed. They may be lost, and those of other programs, too. [`crate::Index::flush`] says
    /// it, once.
    #[error(transparent)]
    Lost(ErrorCause),
    /// The memory servers have no memory left. Nothing has changed.
    #[error(transparent)]
    OutOfMemory(ErrorCause),
    /// An argument or an option is invalid, or the index is not in the required state.
    #[error(transparent)]
    Invalid(ErrorCause),
    /// The source of a bulk load's records failed. Nothing has changed.
    #[error(transparent)]
    Source(ErrorCause),
    /// A server sent an invalid reply, or a part of the index is damaged.
    #[error(transparent)]
    Damaged(ErrorCause),
    /// The cluster could not be found or opened.
    #[error(transparent)]
    Connect(ErrorCause),
    /// The operating system refused a resource.
    #[error(transparent)]
    System(ErrorCause),
}

impl Error {
    /// Whether the operation may have happened, or may still happen. Otherwise it certainly has not
    /// and will not.
    pub fn is_indeterminate(&self) -> bool {
        matches!(self, Self::Indeterminate(_))
    }

    pub(crate) fn source_of_load(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Source(ErrorCause(Arc::from(error.into())))
    }

    pub(crate) fn system(what: &'static str, error: std::io::Error) -> Self {
        Self::System(ErrorCause::of(ExplainedCause { what, error }))
    }
}

/// The underlying cause of an [`Error`]: a text for people, and its sources.
#[derive(Clone)]
pub struct ErrorCause(Arc<dyn StdError + Send + Sync>);

impl ErrorCause {
    pub(crate) fn of(error: impl StdError + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self(Arc::from(Box::<dyn StdError + Send + Sync>::from(text.into())))
    }
}

impl fmt::Debug for ErrorCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ErrorCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for ErrorCause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}")]
struct ExplainedCause {
    what: &'static str,
    #[source]
    error: std::io::Error,
}

impl From<IndexError> for Error {
    fn from(error: IndexError) -> Self {
        let kind = match &error {
            IndexError::Indeterminate(_) => Self::Indeterminate,
            IndexError::OutOfMemory { .. } => Self::OutOfMemory,
            IndexError::Contended { .. } => Self::Contended,
            IndexError::ChangesLost { .. } => Self::Lost,
            IndexError::InvalidArgument(_)
            | IndexError::NotSorted { .. }
            | IndexError::SourceFailed
            | IndexError::TooLong(_)
            | IndexError::Refused { refusal: Refusal::NotEmpty, .. } => Self::Invalid,
            IndexError::Damaged { .. }
            | IndexError::BadReply { .. }
            | IndexError::BadPool { .. } => Self::Damaged,
            _ => Self::Unavailable,
        };
        kind(ErrorCause::of(error))
    }
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Self {
        Self::Connect(ErrorCause::of(error))
    }
}
