//! Why operations start again.

use farleaf_fabric::{FabricError, GlobalAddr};
use farleaf_pool::remote::{MissCause, RemoteError};

/// Why an attempt at an operation did not succeed, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Another operation is using a node: try again after a pause.
    Busy,
    /// A node was fetched or created: start again from the root at once.
    Again,
    /// The shared nodes on the way are stale: refresh them, then try again.
    Refresh,
    /// The operation cannot be offloaded, or the memory server refused it: start again from the
    /// root without offloading.
    Here,
    /// The page at this address is inconsistent. Unless the path to it was stale, a WRITE of the
    /// page was torn.
    Torn(GlobalAddr),
    /// Another compute server owns the keys now.
    Moved,
    /// The operation cannot succeed.
    Failed(RemoteError),
}

impl From<RemoteError> for Restart {
    fn from(error: RemoteError) -> Self {
        Self::Failed(error)
    }
}

impl From<FabricError> for Restart {
    fn from(error: FabricError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<MissCause> for Restart {
    fn from(miss: MissCause) -> Self {
        match miss {
            MissCause::Restart => Self::Busy,
            MissCause::Failed(error) => Self::Failed(error),
        }
    }
}
