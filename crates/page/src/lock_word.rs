//! Word 0 as a value: `[locked:1][owner:15][version:48]`, for clients that lock by a remote CAS.
//!
//! The owner is the client that last changed or locked the page. It stays in the word when the page
//! is unlocked, so that a half-written page names the client that was writing it.
//!
//! *Thread safety*: plain values. [`super::Latch`] is the same word, used as a latch within one
//! server.

use std::fmt;

const LOCKED: u64 = 1 << 63;
const OWNER_SHIFT: u32 = 48;
const OWNER_MASK: u64 = 0x7fff;
const VERSION_MASK: u64 = (1 << OWNER_SHIFT) - 1;

/// A copy of a page's word 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LockWord(u64);

impl LockWord {
    /// The largest owner number. 0 means that there is none.
    pub const OWNER_LIMIT: u16 = OWNER_MASK as u16;

    /// The word with these bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits as they are in a page or in a CAS.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Whether the lock is held.
    pub const fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    /// The client that holds the lock, or held it last.
    pub const fn owner(self) -> u16 {
        (self.0 >> OWNER_SHIFT & OWNER_MASK) as u16
    }

    /// The page's version.
    pub const fn version(self) -> u64 {
        self.0 & VERSION_MASK
    }

    /// The same version, locked by `owner`.
    #[must_use]
    pub const fn locked_by(self, owner: u16) -> Self {
        Self(LOCKED | (owner as u64 & OWNER_MASK) << OWNER_SHIFT | self.version())
    }

    /// The same version, unlocked, with `owner` as the last owner.
    #[must_use]
    pub const fn unlocked_by(self, owner: u16) -> Self {
        Self((owner as u64 & OWNER_MASK) << OWNER_SHIFT | self.version())
    }

    /// The same word with another version.
    #[must_use]
    pub const fn with_version(self, version: u64) -> Self {
        Self(self.0 & !VERSION_MASK | version & VERSION_MASK)
    }

    /// The next version, unlocked, written by `owner`.
    #[must_use]
    pub const fn next_by(self, owner: u16) -> Self {
        let version = (self.version() + 1) & VERSION_MASK;
        Self((owner as u64 & OWNER_MASK) << OWNER_SHIFT | version)
    }
}

impl fmt::Debug for LockWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_locked() { "locked" } else { "unlocked" };
        write!(f, "v{} {state} by {}", self.version(), self.owner())
    }
}
