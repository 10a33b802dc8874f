//! The errors of arenas.
//!
//! *Thread safety*: plain values.

use farleaf_far_memory::FarError;
use thiserror::Error;

/// Why an arena cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FarAllocError {
    /// jemalloc has refused a setting or a request.
    #[error("jemalloc refuses {name}: {cause}")]
    Control {
        /// The name of the setting or request.
        name: String,
        /// The operating system's name of the refusal.
        cause: String,
    },
    /// There is no local memory for the metadata.
    #[error("cannot map {bytes} bytes of local memory for metadata: {cause}")]
    Pinned {
        /// Its size.
        bytes: usize,
        /// The operating system's answer.
        cause: String,
    },
    /// The region cannot be emptied.
    #[error("cannot discard what the region contains: {0}")]
    Region(#[from] FarError),
    /// As many arenas serve the program as can.
    #[error("{most} arenas serve this program already, use one of them")]
    TooManyArenas {
        /// The limit.
        most: usize,
    },
}
