//! The errors of operations over the fabric.

use crate::addr::{GlobalAddr, ServerId};
use crate::handshake::HandshakeError;
use thiserror::Error;

/// Why the outcome of an operation is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uncertainty {
    /// No completion arrived before the deadline; the operation may still happen later.
    TimedOut,
    /// The server was reached, but does not know the outcome itself.
    NotKnownThere,
    /// The connection broke or the peer died with the operation in flight.
    ConnectionLost,
}

impl std::fmt::Display for Uncertainty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "no completion came in time",
            Self::NotKnownThere => "the server does not know either",
            Self::ConnectionLost => "the connection was lost",
        })
    }
}

/// Why an operation did not succeed.
///
/// Every error except [`FabricError::Indeterminate`] means that the operation did **not** happen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The bytes are not all inside the server's region.
    #[error("{bytes} bytes at {at} are outside the region of {region_bytes} bytes")]
    OutOfBounds {
        /// The first byte requested.
        at: GlobalAddr,
        /// The length in bytes.
        bytes: usize,
        /// The region's size in bytes.
        region_bytes: usize,
    },
    /// Address or length is not a multiple of 8.
    #[error("{bytes} bytes at {at}: address and length must be multiples of 8")]
    Unaligned {
        /// The first byte requested.
        at: GlobalAddr,
        /// The length in bytes.
        bytes: usize,
    },
    /// There is no memory server with this number.
    #[error("there is no server {0}")]
    NoSuchServer(ServerId),
    /// A request or a reply is longer than [`crate::MAX_MESSAGE_BYTES`].
    #[error("an RPC message of {bytes} bytes is too large")]
    MessageTooLarge {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The endpoint has reached its limit of operations in flight.
    #[error("the endpoint already has {depth} operations in flight")]
    QueueFull {
        /// Maximum number of operations in flight.
        depth: usize,
    },
    /// The endpoint has no free scratch buffer of that size.
    #[error("no buffer of {bytes} bytes is free")]
    NoBuffer {
        /// The requested size.
        bytes: usize,
    },
    /// The server has been restarted, and the content of its memory is lost. This endpoint's
    /// knowledge of it is invalid, so it no longer uses that server.
    #[error("server {server} was restarted, and what it held is gone")]
    Restarted {
        /// The server that was addressed.
        server: ServerId,
    },
    /// The server refuses this endpoint, or is not the expected server.
    #[error("server {server} cannot be used: {why}")]
    NotLetIn {
        /// The server that refused the handshake.
        server: ServerId,
        /// The reason.
        why: HandshakeError,
    },
    /// The server could not be reached, and nothing of the operation was sent.
    #[error("server {server} cannot be reached; nothing was sent to it")]
    NotSent {
        /// The server that was addressed.
        server: ServerId,
    },
    /// It is unknown whether the operation has happened or still will.
    #[error("the outcome of an operation on server {server} is unknown: {why}")]
    Indeterminate {
        /// The server that the operation was sent to.
        server: ServerId,
        /// Why it is unknown.
        why: Uncertainty,
    },
}
