//! The bytes of a radix tree over byte strings, of which numbers are those of eight bytes.
//!
//! ```text
//! slot  [byte of the key:8][present:1][is leaf:1][log2 of a node's slots:4, or a leaf's size:6]
//!       [memory server:8][offset / 64:40]
//! node  word 0  where the slot is that leads here
//!       word 1  numbers: [log2 of slots:5][bytes of the path:3][path:56]
//!               strings: [log2 of slots:5][0:43][bytes of the path:16]; words 2 to 7: its last 48
//!       then    slots, in no order, used from the front
//! leaf  word 0  [locked:1][owner:15][version:48]
//!       word 1  where the slot is that leads here
//!       numbers word 2  key         word 3  value
//!               word 4  [live:1][hash of address, version, key, value and the live bit:63]
//!       strings word 2  [size:16][bytes of the key:16]
//!               word 3  [live:1][moved:1][area:1][bytes of the value:13][hash of all these:48],
//!                       or [0:1][moved:1][0:6][slot of the leaf that took its place:56]
//!               then    the key, and two areas of the same size for the value
//! ```
//!
//! *Invariants*
//! - radix.B1. A node's path is the beginning of all keys below it. It never changes, so a reader
//!   can tell from the node alone which keys it is for. If the path is longer than what the node
//!   stores, the rest is the path of the parent below which it was made. A node always has room for
//!   256 slots; its size says how many can be in use, and only grows.
//! - radix.B2. A leaf's key never changes. A copy of a leaf is whole iff its check matches; then it
//!   has a value and a state that the leaf had in the version in its word 0, while it was read.
//! - radix.B3. A string's value changes in the area that the check does not name; then the check
//!   names it. So one word makes the change, and what a dead client has left is never torn.
//! - radix.B4. A leaf whose value has outgrown its areas has moved to a larger leaf of the same
//!   key, for good. So the chain from a leaf to the one that has the value is short and has no
//!   cycle.
//!
//! *Thread safety*: plain values.

mod key;
mod leaf;
mod node;

pub use key::{Octets, RadixForm, common_bytes};
pub use key::{just_after, just_before};
pub use leaf::{LEAF_CHECK_WORD, LEAF_REVERSE_WORD, LEAF_VALUE_WORD, STRING_CHECK_WORD};
pub use leaf::{LeafCopy, LeafMemory};
pub use node::{NodeCopy, NodeHeader};
pub use node::{PathMatch, SlotSearch};

use farleaf_fabric::{GlobalAddr, ServerId};

/// Words of a number's leaf.
pub const LEAF_WORDS: usize = 5;
/// Alignment of nodes and leaves, in bytes.
pub(crate) const RADIX_ALIGN: u64 = 64;
/// Bytes that the smallest leaf takes.
pub const LEAF_SPACE: u64 = RADIX_ALIGN;
/// Bytes that a node takes, whatever its size is.
pub const NODE_SPACE: u64 =
    ((RadixForm::Strings.header_words() as u64 + 256) * 8).next_multiple_of(RADIX_ALIGN);

const PRESENT: u64 = 1 << 55;
const IS_LEAF: u64 = 1 << 54;
const NODE_SIZE_SHIFT: u32 = 50;
const LEAF_SIZE_SHIFT: u32 = 48;
const SERVER_SHIFT: u32 = 40;
const OFFSET_MASK: u64 = (1 << SERVER_SHIFT) - 1;

/// Maximum number of memory servers that a slot can name.
pub const MAX_RADIX_SERVERS: u16 = 1 << 8;

const _: () = assert!(LEAF_WORDS as u64 * 8 <= LEAF_SPACE && NODE_SPACE == 2_112);

/// The number of slots of a node that can be in use: a power of two from 4 to 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeSize(u8);

impl NodeSize {
    /// Four slots.
    pub const SMALLEST: Self = Self(2);
    /// 256 slots.
    pub const LARGEST: Self = Self(8);

    fn from_log2(log2: u64) -> Option<Self> {
        (2..=8).contains(&log2).then_some(Self(log2 as u8))
    }

    /// The smallest size with room for so many slots.
    pub fn for_slots(slots: usize) -> Self {
        Self((slots.max(1).next_power_of_two().ilog2() as u8).clamp(2, 8))
    }

    /// The next larger size. `None` if there is none.
    pub fn grown(self) -> Option<Self> {
        (self < Self::LARGEST).then_some(Self(self.0 + 1))
    }

    /// The number of slots.
    pub const fn slots(self) -> usize {
        1 << self.0
    }
}

/// A slot of a node, or the one that leads to the whole tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RadixSlot(u64);

impl std::fmt::Debug for RadixSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x} to {:?} at {:?}", self.byte(), self.child(), self.at())
    }
}

/// What a slot leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RadixChild {
    /// Nothing: the slot is free.
    None,
    /// A leaf.
    Leaf,
    /// A node of at least this size.
    Node(NodeSize),
}

impl RadixSlot {
    /// A free slot.
    pub const FREE: Self = Self(0);

    fn to(byte: u8, at: GlobalAddr) -> u64 {
        debug_assert!(
            at.offset().is_multiple_of(RADIX_ALIGN) && at.server().number() < MAX_RADIX_SERVERS
        );
        let server = u64::from(at.server().number());
        u64::from(byte) << 56 | PRESENT | server << SERVER_SHIFT | (at.offset() / RADIX_ALIGN)
    }

    /// A slot for a leaf.
    pub fn leaf(byte: u8, leaf: LeafMemory) -> Self {
        Self(Self::to(byte, leaf.at) | IS_LEAF | u64::from(leaf.size) << LEAF_SIZE_SHIFT)
    }

    /// The leaf that the slot leads to.
    pub fn leaf_room(self) -> LeafMemory {
        LeafMemory { at: self.at(), size: (self.0 >> LEAF_SIZE_SHIFT & 0x3f) as u8 }
    }

    /// Words of the leaf that the slot leads to.
    pub fn leaf_words(self) -> usize {
        self.leaf_room().words()
    }

    /// A slot for a node.
    pub fn node(byte: u8, at: GlobalAddr, size: NodeSize) -> Self {
        Self(Self::to(byte, at) | u64::from(size.0) << NODE_SIZE_SHIFT)
    }

    /// The slot in a word.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The word.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The byte of the key that the slot is for.
    pub fn byte(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// The same child, in a slot for another byte.
    pub fn with_byte(self, byte: u8) -> Self {
        Self(self.0 & !(0xff << 56) | u64::from(byte) << 56)
    }

    /// The same node, with a new size.
    pub fn with_size(self, size: NodeSize) -> Self {
        Self(self.0 & !(0xf << NODE_SIZE_SHIFT) | u64::from(size.0) << NODE_SIZE_SHIFT)
    }

    /// What the slot leads to. A word that is no slot counts as free.
    pub fn child(self) -> RadixChild {
        match (self.0 & PRESENT != 0, self.0 & IS_LEAF != 0) {
            (false, _) => RadixChild::None,
            (true, true) => RadixChild::Leaf,
            (true, false) => NodeSize::from_log2(self.0 >> NODE_SIZE_SHIFT & 0xf)
                .map_or(RadixChild::None, RadixChild::Node),
        }
    }

    /// The child's address.
    pub fn at(self) -> GlobalAddr {
        let server = ServerId::new((self.0 >> SERVER_SHIFT & 0xff) as u16);
        GlobalAddr::new(server, (self.0 & OFFSET_MASK) * RADIX_ALIGN)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
