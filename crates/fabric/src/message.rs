//! The bytes of one RPC request or reply.

use smallvec::SmallVec;

/// An RPC message; point operations fit in it without an allocation.
pub type Message = SmallVec<[u8; 64]>;

/// No request and no reply is longer: who has more to say says it in several.
pub const MAX_MESSAGE_BYTES: usize = 128 * 1024;
