//! Requests for merges of an LSM index's tables on their memory server.

use super::table::messages;

messages! {
    /// A request about a merge that this memory server runs. A shard of an LSM index numbers its
    /// jobs ascending, and has one at a time; every request can be repeated.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum MergeRequest {
        /// Begins a job. Its steps are requests of their own.
        32 => Begin {
            /// The shard.
            owner: u64,
            /// The job's number.
            job: u64,
            /// What to merge: [`MergeJob::encode`](crate::table::MergeJob::encode).
            words: Vec<u64> as rest,
        },
        /// Makes the next step, of at most 256 KiB of input. Answered by
        /// [`Reply::Merged`](super::Reply::Merged), the same for a repeated request.
        33 => Step {
            /// The shard.
            owner: u64,
            /// The job's number.
            job: u64,
            /// Counts the steps, from 1.
            step: u32,
        },
        /// Ends a job, if it has begun, and never begins it from now on. Nothing of its outputs is
        /// written after the reply.
        34 => Close {
            /// The shard.
            owner: u64,
            /// The job's number.
            job: u64,
        },
    }
}
