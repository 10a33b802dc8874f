//! Requests for compactions of an LSM index's tables on their memory server.

use super::table::messages;

/// Jobs of an epoch of a shard, as a power of two: numbers of later epochs are higher.
pub const EPOCH_JOBS_LOG2: u32 = 40;
/// Jobs of a lane in an epoch, as a power of two. A shard has 256 lanes, whose jobs run at the same
/// time; those of one lane follow one another.
pub const LANE_JOBS_LOG2: u32 = 32;

messages! {
    /// A request about a merge that this memory server runs. A shard of an LSM index numbers the
    /// jobs of a lane ascending, and has one of them at a time; every request can be repeated.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum CompactionRequest {
        /// Begins a job. Its steps are requests of their own.
        32 => Begin {
            /// The shard.
            owner: u64,
            /// The job's number.
            job: u64,
            /// What to merge:
            /// [`CompactionOrder::encode`](farleaf_page::table::CompactionOrder::encode).
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
