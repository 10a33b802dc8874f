//! Requests to the directory of an LSM index's shards.

use super::table::messages;

/// Names no process: the owner of a shard whose process has ended.
pub const NO_PROCESS: u64 = 1;
/// Names no process: the owner of a shard whose process has left it.
pub const LEFT: u64 = 2;

messages! {
    /// A request to the directory of a shard: which process has it, its tables, and the memory that
    /// they lie in. All but [`DirectoryRequest::Allocate`] and [`DirectoryRequest::Chunks`] go to
    /// the shard's own memory server. Every request can be repeated.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum DirectoryRequest {
        /// Asks which process has the shard. Answered by [`Reply::Shard`](super::Reply::Shard), as
        /// are the next two requests.
        35 => State {
            /// The shard.
            shard: u64,
        },
        /// Gives the shard to a process, in the epoch behind `after`. Refused if `after` is not the
        /// shard's epoch.
        36 => Open {
            /// The shard.
            shard: u64,
            /// A number that no other process has.
            owner: u64,
            /// The epoch that the process knows, 0 for a new shard.
            after: u64,
            /// The size of an extent.
            extent_bytes: u64,
        },
        /// Notes that the compute server changes the shard's tables, for the process that has it.
        37 => Join {
            /// The shard.
            shard: u64,
            /// The process.
            owner: u64,
        },
        /// The compute servers of earlier epochs are fenced at all memory servers.
        38 => Fenced {
            /// The shard.
            shard: u64,
            /// The epoch.
            epoch: u64,
        },
        /// A part of a change of the tables. It takes effect with its last part.
        39 => Edit {
            /// The shard.
            shard: u64,
            /// The epoch.
            epoch: u64,
            /// The change's number. Numbers ascend.
            number: u64,
            /// Counts the parts, from 0.
            part: u32,
            /// Whether there are more.
            more: bool,
            /// The next words of
            /// [`VersionChange::encode`](farleaf_page::table::VersionChange::encode).
            words: Vec<u64> as rest,
        },
        /// Asks for the tables. Answered by [`Reply::Tables`](super::Reply::Tables).
        40 => Tables {
            /// The shard.
            shard: u64,
            /// The epoch.
            epoch: u64,
            /// The first word wanted.
            from: u64,
        },
        /// Requests a chunk for the shard's tables.
        41 => Allocate {
            /// The shard.
            shard: u64,
            /// The epoch.
            epoch: u64,
            /// Its size; the server may allocate less if it has pieces that were returned.
            bytes: u64,
            /// The least size.
            least: u64,
            /// As for [`PoolRequest::AllocateChunk`](super::PoolRequest::AllocateChunk).
            token: u64,
        },
        /// Ends the allocation of chunks in earlier epochs, and asks for the shard's chunks on this
        /// server. Answered by [`Reply::Chunks`](super::Reply::Chunks).
        42 => Chunks {
            /// The shard.
            shard: u64,
            /// The epoch.
            epoch: u64,
            /// The first chunk wanted, counted by address.
            from: u32,
        },
        /// Ends an epoch in which everything is settled: no request of it, and no WRITE, may still
        /// take effect, so its compute servers need no fence. No process has the shard then, in
        /// the epoch behind this one.
        48 => Leave {
            /// The shard.
            shard: u64,
            /// The process that has it.
            owner: u64,
            /// The epoch that ends.
            epoch: u64,
        },
        /// The same, and divides the shard: another shard begins, without a process, which has the
        /// keys from `at` on. It borrows the tables that have such keys.
        49 => Divide {
            /// The shard.
            shard: u64,
            /// The process that has it.
            owner: u64,
            /// The epoch that ends.
            epoch: u64,
            /// The number of the other shard, which must be free.
            into: u64,
            /// The other shard's lowest key: its bytes, and its words.
            at: Vec<u64> as rest,
        },
        /// Asks for all shards that divisions have made on this memory server, from a word on.
        /// Answered by [`Reply::Tables`](super::Reply::Tables) with the number of each, the number
        /// of words of its lowest key, and these as in [`DirectoryRequest::Divide`].
        50 => Pieces {
            /// The first word wanted.
            from: u64,
        },
        /// Asks for the tables that the shard has borrowed, and for those that it has lent.
        /// Answered by [`Reply::Tables`](super::Reply::Tables): of each its id, the number of its
        /// words, 0 if it was borrowed, and these words. All of a table's words are in one reply.
        51 => Loans {
            /// The shard.
            shard: u64,
            /// The epoch.
            epoch: u64,
            /// The least id wanted.
            from: u64,
        },
        /// The shard has borrowed these tables, does not list them any more, and never READs them
        /// again.
        52 => Return {
            /// The shard.
            shard: u64,
            /// The epoch.
            epoch: u64,
            /// The ids of the tables.
            tables: Vec<u64> as rest,
        },
    }
}
