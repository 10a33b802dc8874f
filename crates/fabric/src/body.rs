//! What a posted operation is, for providers that keep it until it has ended.
//!
//! *Thread safety*: an endpoint's thread.

use crate::{Buffer, GlobalAddr, Message};

/// The parameters of an operation, and later its result.
#[derive(Debug)]
pub enum OpBody {
    /// A READ.
    Read {
        /// The first byte to read.
        at: GlobalAddr,
        /// Where the bytes go.
        into: Buffer,
    },
    /// A WRITE.
    Write {
        /// The first byte to write.
        at: GlobalAddr,
        /// The bytes to write.
        from: Buffer,
    },
    /// A CAS.
    CompareSwap {
        /// The word.
        at: GlobalAddr,
        /// The value it must have.
        expected: u64,
        /// The value to set.
        new: u64,
    },
    /// A FETCH-ADD.
    FetchAdd {
        /// The word.
        at: GlobalAddr,
        /// The value to add.
        delta: u64,
    },
    /// The value that an atomic found.
    Found(u64),
    /// A request, and later its reply.
    Call(Message),
    /// A fence.
    Fence {
        /// The compute server to fence.
        compute_server: u16,
    },
    /// The slot is free.
    Taken,
}

impl OpBody {
    /// Whether this is a one-sided verb.
    pub fn is_verb(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::Write { .. }
                | Self::CompareSwap { .. }
                | Self::FetchAdd { .. }
        )
    }

    pub(crate) fn into_buffer(self) -> Buffer {
        match self {
            Self::Read { into: buffer, .. } | Self::Write { from: buffer, .. } => buffer,
            other => unreachable!("a READ or a WRITE ends as one, not as {other:?}"),
        }
    }

    pub(crate) fn into_value(self) -> u64 {
        match self {
            Self::Found(value) => value,
            other => unreachable!("an atomic ends with a value, not as {other:?}"),
        }
    }

    pub(crate) fn into_reply(self) -> Message {
        match self {
            Self::Call(reply) => reply,
            other => unreachable!("a call ends with a reply, not as {other:?}"),
        }
    }
}
