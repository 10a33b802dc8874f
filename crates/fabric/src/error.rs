//! What an operation over the fabric can come to.

use crate::addr::{GlobalAddr, ServerId};
use crate::handshake::HandshakeError;
use thiserror::Error;

/// Why nobody knows whether an operation happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uncertainty {
    /// No completion came before the deadline; the operation may still happen, later.
    TimedOut,
    /// The server was reached, but does not know what became of the operation further on.
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

/// An operation's outcome when it is not success.
///
/// Everything but [`FabricError::Indeterminate`] says that the operation did **not** happen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The bytes are not all inside the server's region.
    #[error("{bytes} bytes at {at} are outside the region of {region_bytes} bytes")]
    OutOfBounds {
        /// The first byte asked for.
        at: GlobalAddr,
        /// How many bytes.
        bytes: usize,
        /// The region's size.
        region_bytes: usize,
    },
    /// Address or length is no multiple of 8.
    #[error("{bytes} bytes at {at}: address and length must be multiples of 8")]
    Unaligned {
        /// The first byte asked for.
        at: GlobalAddr,
        /// How many bytes.
        bytes: usize,
    },
    /// There is no memory server of this number.
    #[error("there is no server {0}")]
    NoSuchServer(ServerId),
    /// A request or a reply is longer than [`crate::MAX_MESSAGE_BYTES`].
    #[error("an RPC message of {bytes} bytes is too large")]
    MessageTooLarge {
        /// Its length.
        bytes: usize,
    },
    /// The endpoint has as many operations in flight as it may have.
    #[error("the endpoint already has {depth} operations in flight")]
    QueueFull {
        /// The bound.
        depth: usize,
    },
    /// The endpoint has no scratch buffer of that size left.
    #[error("no buffer of {bytes} bytes is free")]
    NoBuffer {
        /// The size asked for.
        bytes: usize,
    },
    /// The server is not the one that was there before: it was restarted, and what its memory held is
    /// gone. So is what this endpoint knows about it; it stays away from that server.
    #[error("server {server} was restarted, and what it held is gone")]
    Restarted {
        /// The server.
        server: ServerId,
    },
    /// The server does not let this endpoint in, or is none.
    #[error("server {server} cannot be used: {why}")]
    NotLetIn {
        /// The server.
        server: ServerId,
        /// Why not.
        why: HandshakeError,
    },
    /// The server could not be reached, and nothing of the operation was sent.
    #[error("server {server} cannot be reached; nothing was sent to it")]
    NotSent {
        /// The server.
        server: ServerId,
    },
    /// Nobody knows whether the operation happened, or will.
    #[error("the outcome of an operation on server {server} is unknown: {why}")]
    Indeterminate {
        /// The server it was sent to.
        server: ServerId,
        /// Why it is unknown.
        why: Uncertainty,
    },
}
