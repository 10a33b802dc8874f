//! Options of a SMART index.

use farleaf_index::{DEFAULT_CACHE_BYTES, design_options};

design_options! {
    /// Options of a new SMART index.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SmartOptions {
        /// How much memory a client takes from a memory server at once, in bytes.
        pub chunk_bytes: u64 = 256 << 10, in 1..=1_073_741_824;
        /// Size of the cached nodes of each compute server, in bytes. 0 disables the cache.
        pub cache_bytes: u64 = DEFAULT_CACHE_BYTES;
        /// Whether clients of a compute server execute operations on one key together: lookups
        /// share a READ, and changes a WRITE.
        pub combines: bool = true;
    }
}
