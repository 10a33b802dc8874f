//! The bytes of one RPC request or reply.

use smallvec::SmallVec;

/// An RPC message. Single-key operations fit in it without an allocation.
pub type Message = SmallVec<[u8; 64]>;

/// Maximum length of a request or a reply; longer content must be split into several.
pub const MAX_MESSAGE_BYTES: usize = 128 * 1024;
