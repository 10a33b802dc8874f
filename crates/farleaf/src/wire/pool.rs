//! Requests for a memory server's memory.

use super::table::{fields, messages};
use farleaf_fabric::GlobalAddr;

/// The most nodes that one request gives back.
pub const GIVE_BACK_NODES: usize = 1024;

messages! {
    /// A request for a memory server's memory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum PoolRequest {
        /// A chunk of memory to carve nodes from.
        9 => AllocateChunk {
            /// Its size; the server may give less.
            bytes: u64,
            /// The same while the client asks for the same chunk: it gets one, however often the
            /// request arrives. Tokens of all clients differ.
            token: u64,
        },
        /// How much of the memory is used.
        15 => Usage,
        /// The pool becomes an index of this design, if it is none yet; the same claim can be made
        /// again.
        16 => Claim {
            /// For the superblock: the design and its options.
            options: u64,
            /// For the superblock: the root, if it is on this server; in the hybrid design, where
            /// the root is the server's own business, the first leaf of its share.
            root: GlobalAddr,
        },
        /// Nodes that nobody can reach any more, to be handed out again as chunks.
        21 => GiveBack {
            /// The nodes, all on this server; at most [`GIVE_BACK_NODES`].
            nodes: Vec<GlobalAddr> as rest,
        },
    }
}

/// How much of a memory server's memory is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the region.
    pub pool_bytes: u64,
    /// Bytes that are given out in chunks, the superblock's included.
    pub allocated_bytes: u64,
    /// Nodes of the server's own tree that are in use.
    pub nodes_in_use: u64,
    /// Nodes that were freed and wait for reuse.
    pub nodes_free: u64,
    /// Records deleted and not yet collected.
    pub deleted_records: u64,
    /// Levels of the server's own tree.
    pub height: u64,
}

fields!(Usage { pool_bytes, allocated_bytes, nodes_in_use, nodes_free, deleted_records, height });
