//! Why a program of the cluster ended, or did not start.

use crate::catalog::CatalogError;
use crate::config::ConfigError;
use crate::records::RecordError;
use std::io;
use thiserror::Error;

/// Why a program of the cluster ended, or did not start; each is one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// It was told nothing sensible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The catalog did not do what was needed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The catalog holds an invalid entry.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The operating system refused.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: String,
        /// What it said.
        error: io::Error,
    },
    /// The transport cannot be used, by this program or on this machine, and no other is taken
    /// instead.
    #[error("{0}")]
    Transport(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl ProgramError {
    /// Says why the transport cannot be used.
    pub(crate) fn transport(why: impl std::fmt::Display) -> Self {
        Self::Transport(why.to_string())
    }

    /// Says what was tried when the operating system refused.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::System { what, error }
    }
}
