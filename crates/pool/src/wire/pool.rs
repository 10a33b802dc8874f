//! Requests for a memory server's memory.

use super::table::{fields, messages};
use farleaf_fabric::GlobalAddr;

/// Maximum number of nodes in one [`PoolRequest::GiveBack`].
pub const GIVE_BACK_NODES: usize = 1024;
/// Maximum number of chunks in one reply to [`PoolRequest::ListChunks`].
pub const LISTED_CHUNKS: usize = 4096;
/// Maximum number of rings of a compute server's write-ahead log.
pub const MAX_RINGS: u16 = 1024;
/// Sizes of such a ring, in bytes.
pub const MIN_RING_BYTES: u64 = 4 << 10;
/// The largest one.
pub const MAX_RING_BYTES: u64 = 1 << 30;
/// Maximum number of leases of a memory server, all of which are in one reply to
/// [`PoolRequest::ListLeases`].
pub const MAX_LEASES: usize = 1024;

messages! {
    /// A request for a memory server's memory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum PoolRequest {
        /// Requests a chunk of memory to carve nodes from.
        9 => AllocateChunk {
            /// Its size; the server may allocate less.
            bytes: u64,
            /// Identifies the chunk: the client gets one chunk per token, however often the request
            /// arrives. Clients never share a token.
            token: u64,
        },
        /// Requests a chunk in which no node ever was, for anything that is not a node.
        28 => AllocateWhole {
            /// Its size; the server may allocate less if it has pieces that were returned.
            bytes: u64,
            /// The least size.
            least: u64,
            /// As for [`PoolRequest::AllocateChunk`].
            token: u64,
        },
        /// Requests a chunk of memory that was never used, so all its words are zero. It is not
        /// listed, and never returned.
        47 => AllocateUnused {
            /// Its size.
            bytes: u64,
            /// As for [`PoolRequest::AllocateChunk`].
            token: u64,
        },
        /// Asks how much of the memory is used.
        15 => Usage,
        /// Claims the pool for an index of this design, unless another index has it. The same claim
        /// can be repeated.
        16 => Claim {
            /// The superblock's option word: the design and its options.
            options: u64,
            /// The superblock's root, if it is on this server. In the hybrid design, where the
            /// server sets the root itself, the first leaf of its share.
            root: GlobalAddr,
        },
        /// Returns nodes that clients can no longer reach. They are handed out again as chunks.
        21 => GiveBack {
            /// The nodes, all on this server; at most [`GIVE_BACK_NODES`].
            nodes: Vec<GlobalAddr> as rest,
        },
        /// Requests the chunks of [`PoolRequest::AllocateWhole`] that this compute server has,
        /// since its last [`PoolRequest::ForgetChunks`] and in all its lives. Answered by
        /// [`Reply::Chunks`](super::Reply::Chunks).
        29 => ListChunks {
            /// The first chunk wanted, counted by address.
            from: u32,
        },
        /// Do not list the chunks any more that this compute server has so far.
        30 => ForgetChunks,
        /// Returns parts of listed chunks, which nothing uses any more. They are allocated again by
        /// [`PoolRequest::AllocateWhole`]. Refused if one of them is no part of a listed chunk.
        /// Must not be sent again if its outcome is unknown.
        31 => ReturnPieces {
            /// Addresses and sizes, in whole nodes; at most [`LISTED_CHUNKS`].
            pieces: Vec<(GlobalAddr, u64)> as rest,
        },
        /// Requests a chunk as [`PoolRequest::AllocateWhole`] does, in the lease of `owner`, which
        /// begins with the first one. All compute servers that ask for it are of one process.
        43 => Lease {
            /// The owner's number, which no other owner ever has.
            owner: u64,
            /// For how long the lease goes on without a [`PoolRequest::Renew`]; 0 without an end,
            /// for owners that renew nothing.
            term_ms: u32,
            /// The chunk's size.
            bytes: u64,
            /// As for [`PoolRequest::AllocateChunk`].
            token: u64,
        },
        /// Says that the owner of a lease is alive.
        44 => Renew {
            /// The owner.
            owner: u64,
        },
        /// Takes all chunks of a lease back. Can be repeated. If it is not the owner that asks, the
        /// owner's compute servers must be fenced before.
        45 => EndLease {
            /// The owner.
            owner: u64,
        },
        /// Requests all leases. Answered by [`Reply::Leases`](super::Reply::Leases).
        46 => ListLeases,
        /// Requests the memory of a ring of a compute server's write-ahead log. Answered by
        /// [`Reply::Chunk`](super::Reply::Chunk), the same each time, in all its lives, unless a
        /// larger ring is asked for. Its words are zero at first.
        53 => LogRing {
            /// The number of the compute server.
            compute_server: u16,
            /// The ring's number, below [`MAX_RINGS`].
            ring: u16,
            /// Its least size: at least [`MIN_RING_BYTES`] and at most [`MAX_RING_BYTES`].
            bytes: u64,
        },
        /// Requests all rings of a compute server on this memory server. Answered by
        /// [`Reply::Chunks`](super::Reply::Chunks), in the order of their numbers, those that were
        /// replaced by larger ones first.
        54 => LogRings {
            /// The number of the compute server.
            compute_server: u16,
        },
    }
}

/// A lease and a compute server of its owner, as the memory server knows them. The server has no
/// clock: whether the term has ended is judged by a client, from the renewals that it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseState {
    /// The owner's number.
    pub owner: u64,
    /// One of the compute servers that have asked for its chunks.
    pub compute_server: u16,
    /// For how long the lease goes on without a renewal; 0 without an end.
    pub term_ms: u32,
    /// Requests of the owner so far.
    pub renewals: u64,
    /// Bytes of its chunks, in the first entry of the owner; otherwise 0.
    pub bytes: u64,
}

fields!(LeaseState { owner, compute_server, term_ms, renewals, bytes });

/// How much of a memory server's memory is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the region.
    pub pool_bytes: u64,
    /// Bytes allocated in chunks, including the superblock's page.
    pub allocated_bytes: u64,
    /// Nodes of the server's own tree that are in use.
    pub nodes_in_use: u64,
    /// Nodes of that tree that were freed and can be reused.
    pub nodes_free: u64,
    /// Records that were deleted but not yet collected.
    pub deleted_records: u64,
    /// Levels of the server's own tree.
    pub height: u64,
}

fields!(Usage { pool_bytes, allocated_bytes, nodes_in_use, nodes_free, deleted_records, height });

impl Usage {
    /// The fraction of the region that is allocated.
    pub fn used_part(&self) -> f64 {
        self.allocated_bytes as f64 / self.pool_bytes.max(1) as f64
    }
}
