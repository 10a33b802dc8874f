//! Options of a SMART index.

use farleaf_index::DEFAULT_CACHE_BYTES;
use farleaf_index::IndexError;

/// Options of a new SMART index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmartOptions {
    /// How much memory a client takes from a memory server at once, in bytes.
    pub chunk_bytes: u64,
    /// Size of the cached nodes of each compute server, in bytes. 0 disables the cache.
    pub cache_bytes: u64,
    /// Whether clients of a compute server execute operations on one key together: lookups share a
    /// READ, and changes a WRITE.
    pub combines: bool,
}

impl Default for SmartOptions {
    fn default() -> Self {
        Self { chunk_bytes: 256 << 10, cache_bytes: DEFAULT_CACHE_BYTES, combines: true }
    }
}

impl SmartOptions {
    pub(super) fn check(&self) -> Result<(), IndexError> {
        match (1..=1 << 30).contains(&self.chunk_bytes) {
            true => Ok(()),
            false => Err(IndexError::InvalidArgument("chunks have 1 byte to 1 GiB")),
        }
    }
}
