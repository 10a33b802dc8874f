//! The errors with which the programs of a cluster end or fail to start.

use crate::catalog::CatalogError;
use crate::config::ConfigError;
use crate::records::RecordError;
use std::io;
use thiserror::Error;

/// Why a program of the cluster ended or did not start; each message is one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// Invalid settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A call to the catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The catalog holds an invalid entry.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// What the program tried to do.
        what: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// This program or this machine cannot use the transport. The program does not fall back to
    /// another one.
    #[error("{0}")]
    Transport(String),
    /// Any other error.
    #[error("{0}")]
    Failed(String),
}

impl ProgramError {
    /// Wraps the reason why the transport cannot be used.
    pub(crate) fn transport(why: impl std::fmt::Display) -> Self {
        Self::Transport(why.to_string())
    }

    /// Adds what the program tried to do to an error of the operating system.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::System { what, error }
    }
}
