//! Global addresses: where a word of the memory pool lives.
//!
//! ```text
//! [swizzled:1][memory server:15][offset:48]
//! ```
//!
//! The swizzle bit belongs to compute-side caches and is never set in the pool. Null is all zeros:
//! server 0, offset 0 holds a superblock, never a node.
//!
//! *Thread safety*: plain values.

use std::fmt;

/// A memory server, counted from 0; at most 2^15 of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(u16);

impl ServerId {
    /// The largest number of memory servers that an address can name.
    pub const LIMIT: u16 = 1 << 15;

    /// The server with this number.
    ///
    /// # Panics
    /// If `number` is not below [`ServerId::LIMIT`].
    pub const fn new(number: u16) -> Self {
        assert!(number < Self::LIMIT, "a memory server's number has 15 bits");
        Self(number)
    }

    /// The server's number.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The server's number, as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory server {}", self.0)
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The address of a byte in the memory pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct GlobalAddr(u64);

const OFFSET_BITS: u32 = 48;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
const SWIZZLED: u64 = 1 << 63;

const _: () = assert!(size_of::<GlobalAddr>() == 8);
const _: () = assert!(OFFSET_BITS + 15 + 1 == 64);

impl GlobalAddr {
    /// The null address.
    pub const NULL: Self = Self(0);

    /// The first offset that an address cannot name.
    pub const OFFSET_LIMIT: u64 = 1 << OFFSET_BITS;

    /// The byte at `offset` of `server`'s region.
    ///
    /// # Panics
    /// If `offset` does not fit 48 bits.
    pub const fn new(server: ServerId, offset: u64) -> Self {
        assert!(offset < Self::OFFSET_LIMIT, "an offset has 48 bits");
        Self(((server.0 as u64) << OFFSET_BITS) | offset)
    }

    /// The address in a word of a page or a message.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The word that represents this address in pages and messages.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Whether this is [`GlobalAddr::NULL`].
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Whether the word is a compute-side frame reference instead of an address of the pool.
    pub const fn is_swizzled(self) -> bool {
        self.0 & SWIZZLED != 0
    }

    /// The memory server.
    pub const fn server(self) -> ServerId {
        ServerId(((self.0 >> OFFSET_BITS) & 0x7fff) as u16)
    }

    /// The offset in bytes from the start of the server's region.
    pub const fn offset(self) -> u64 {
        self.0 & OFFSET_MASK
    }

    /// The address `bytes` further on in the same region.
    ///
    /// # Panics
    /// If the offset leaves its 48 bits.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self::new(self.server(), self.offset() + bytes)
    }
}

impl fmt::Debug for GlobalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_null() {
            return f.write_str("null");
        }
        let mark = if self.is_swizzled() { "~" } else { "" };
        write!(f, "{mark}{}:{:#x}", self.server().number(), self.offset())
    }
}

impl fmt::Display for GlobalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back() {
        let addr = GlobalAddr::new(ServerId::new(0x7fff), OFFSET_MASK);
        assert_eq!(addr.server().number(), 0x7fff);
        assert_eq!(addr.offset(), OFFSET_MASK);
        assert!(!addr.is_swizzled());
        assert!(!addr.is_null());
        assert!(GlobalAddr::from_bits(u64::MAX).is_swizzled());
        assert!(GlobalAddr::NULL.is_null());
    }
}
