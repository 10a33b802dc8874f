//! The swizzled pointer: what a child word of an inner node in a frame holds.
//!
//! ```text
//!                    attach: parent and child latched
//!        ┌─────────┐ ────────────────────────────────▶ ┌─────────┐
//!        │ Remote  │                                   │ Frame   │
//!        │ address │ ◀──────────────────────────────── │ number  │
//!        └─────────┘   cool: parent and child latched  └─────────┘
//! ```
//!
//! - *Remote*: the child's address in the pool. The child may be in the cache nevertheless, cooling
//!   or detached from another parent; the mapping table knows.
//! - *Frame*: the child is hot in this frame, and no other child word holds the frame. Bit 63 marks
//!   this state.
//!
//! Threads read child words without a latch, so until the parent's version is validated the value
//! can be arbitrary. A frame number is checked against the arena before use; an address is used
//! only after the validation.
//!
//! *Thread safety*: a plain value.

use super::FrameId;
use farleaf_fabric::GlobalAddr;

const SWIZZLED: u64 = 1 << 63;

/// A child word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swip {
    /// The child is in this frame.
    Frame(FrameId),
    /// The child is in the pool at this address.
    Remote(GlobalAddr),
}

impl Swip {
    /// Decodes a child word for an arena of `frames` frames. `None` if it is not a valid child
    /// word.
    #[inline]
    pub fn from_word(word: GlobalAddr, frames: u32) -> Option<Self> {
        if !word.is_swizzled() {
            return Some(Self::Remote(word));
        }
        let number = word.to_bits() & !SWIZZLED;
        (number < u64::from(frames)).then(|| Self::Frame(FrameId::new(number as u32)))
    }

    /// Encodes the child word.
    #[inline]
    pub fn to_word(self) -> GlobalAddr {
        match self {
            Self::Frame(frame) => GlobalAddr::from_bits(SWIZZLED | u64::from(frame.number())),
            Self::Remote(address) => address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    #[test]
    fn words_come_back_and_nonsense_does_not() {
        let frame = Swip::Frame(FrameId::new(7));
        assert_eq!(Swip::from_word(frame.to_word(), 8), Some(frame));
        assert_eq!(Swip::from_word(frame.to_word(), 7), None);
        let remote = Swip::Remote(GlobalAddr::new(ServerId::new(3), 4096));
        assert_eq!(Swip::from_word(remote.to_word(), 8), Some(remote));
        assert_eq!(Swip::from_word(GlobalAddr::from_bits(u64::MAX), u32::MAX), None);
    }
}
