//! The bytes of a radix tree over keys of eight bytes, the highest byte first.
//!
//! ```text
//! slot  [byte of the key:8][present:1][is leaf:1][log2 of the node's slots:4][0:2]
//!       [memory server:8][offset / 64:40]
//! node  word 0  where the slot is that leads here
//!       word 1  [log2 of slots:5][bytes of the path:3][path:56]
//!       word 2… slots, in no order, used from the front
//! leaf  word 0  [locked:1][owner:15][version:48]
//!       word 1  where the slot is that leads here
//!       word 2  key         word 3  value
//!       word 4  [live:1][hash of address, version, key, value and the live bit:63]
//! ```
//!
//! *Invariants*
//! - radix.B1. A node's path is the beginning of all keys below it. It never changes, so a node
//!   tells of itself which keys it is for. A node always has room for 256 slots; its size says how
//!   many can be in use, and only grows.
//! - radix.B2. A leaf's key never changes. A copy of a leaf is whole iff its check matches; then it
//!   has a value and a state that the leaf had in the version in its word 0, while it was read.
//!
//! *Thread safety*: plain values.

use super::checksum::sum_of;
use super::lock_word::LockWord;
use farleaf_fabric::{GlobalAddr, ServerId};

/// Words of a leaf.
pub const LEAF_WORDS: usize = 5;
/// Alignment of nodes and leaves, in bytes.
pub(crate) const RADIX_ALIGN: u64 = 64;
/// Bytes that a leaf takes.
pub(crate) const LEAF_SPACE: u64 = RADIX_ALIGN;
/// Words of a node before its slots.
pub(crate) const NODE_HEADER_WORDS: usize = 2;
/// Bytes that a node takes, whatever its size is.
pub(crate) const NODE_SPACE: u64 =
    ((NODE_HEADER_WORDS as u64 + 256) * 8).next_multiple_of(RADIX_ALIGN);
/// The word of a leaf that says where its slot is.
pub(crate) const LEAF_REVERSE_WORD: u64 = 1;
/// The word of a leaf with its value; the check follows.
pub(crate) const LEAF_VALUE_WORD: u64 = 3;
/// The word of a leaf with its check.
pub(crate) const LEAF_CHECK_WORD: u64 = 4;

const LIVE: u64 = 1 << 63;
const PRESENT: u64 = 1 << 55;
const IS_LEAF: u64 = 1 << 54;
const SIZE_SHIFT: u32 = 50;
const SERVER_SHIFT: u32 = 40;
const OFFSET_MASK: u64 = (1 << SERVER_SHIFT) - 1;

/// Most memory servers that a slot can name.
pub(crate) const MOST_RADIX_SERVERS: u16 = 1 << 8;

const _: () = assert!(LEAF_WORDS as u64 * 8 <= LEAF_SPACE);

/// How many slots of a node can be in use: a power of two from 4 to 256.
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
    pub(crate) fn for_slots(slots: usize) -> Self {
        Self((slots.max(1).next_power_of_two().ilog2() as u8).clamp(2, 8))
    }

    /// The next larger size. `None` if there is none.
    pub(crate) fn grown(self) -> Option<Self> {
        (self < Self::LARGEST).then_some(Self(self.0 + 1))
    }

    /// The number of slots.
    pub const fn slots(self) -> usize {
        1 << self.0
    }

    /// Words of a node up to the last slot of this size.
    pub const fn words(self) -> usize {
        NODE_HEADER_WORDS + self.slots()
    }
}

/// The beginning of keys: up to seven bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPath {
    bytes: u8,
    /// The bytes, at the high end; the rest is zero.
    front: u64,
}

impl KeyPath {
    /// Most bytes of a path.
    pub(crate) const MOST_BYTES: usize = 7;

    /// The first `bytes` bytes of `key`, at most [`KeyPath::MOST_BYTES`].
    pub(crate) fn of(key: u64, bytes: usize) -> Self {
        debug_assert!(bytes <= Self::MOST_BYTES, "a path has at most seven bytes");
        Self { bytes: bytes as u8, front: key & !Self::below(bytes) }
    }

    /// The bits of a key behind its first `bytes` bytes.
    fn below(bytes: usize) -> u64 {
        u64::MAX.checked_shr(8 * bytes as u32).unwrap_or(0)
    }

    /// The number of bytes.
    pub fn length(self) -> usize {
        usize::from(self.bytes)
    }

    /// Whether `key` begins with this path.
    pub fn is_of(self, key: u64) -> bool {
        key & !Self::below(self.length()) == self.front
    }

    /// The lowest key with this path.
    pub fn low(self) -> u64 {
        self.front
    }

    /// The highest key with this path.
    pub fn high(self) -> u64 {
        self.front | Self::below(self.length())
    }

    /// The byte of `key` that follows the path.
    pub fn next_byte(self, key: u64) -> u8 {
        (key >> (56 - 8 * u32::from(self.bytes))) as u8
    }

    /// The lowest and the highest key with this path and `next` behind it.
    pub fn range_of(self, next: u8) -> (u64, u64) {
        let low = self.front | u64::from(next) << (56 - 8 * u32::from(self.bytes));
        (low, low | Self::below(self.length() + 1))
    }

    /// Whether a node with this path can lead to one with the path `child` by a slot for `next`.
    pub(crate) fn leads_to(self, next: u8, child: Self) -> bool {
        child.length() > self.length()
            && self.is_of(child.low())
            && self.next_byte(child.low()) == next
    }

    /// A number that no other path has.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.bytes) << 56 | self.front >> 8
    }
}

/// The number of bytes at the beginning of both keys that are equal.
pub(crate) fn common_bytes(one: u64, other: u64) -> usize {
    ((one ^ other).leading_zeros() / 8) as usize
}

/// Word 1 of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHeader {
    /// The node's size.
    pub size: NodeSize,
    /// The beginning of all keys below the node.
    pub path: KeyPath,
}

impl NodeHeader {
    /// The header in a word; `None` if the word is not one.
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        let bytes = (bits >> 56 & 7) as usize;
        let path = KeyPath::of(bits << 8, bytes);
        let size = NodeSize::from_log2(bits >> 59)?;
        (path.front == bits << 8).then_some(Self { size, path })
    }

    /// The word.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.size.0) << 59 | self.path.number()
    }
}

/// A slot of a node, or the one that leads to the whole tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Slot(u64);

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x} to {:?} at {:?}", self.byte(), self.child(), self.at())
    }
}

/// What a slot leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// Nothing: the slot is free.
    None,
    /// A leaf.
    Leaf,
    /// A node that has this size at least.
    Node(NodeSize),
}

impl Slot {
    /// A free slot.
    pub(crate) const FREE: Self = Self(0);

    fn to(byte: u8, at: GlobalAddr) -> u64 {
        debug_assert!(
            at.offset().is_multiple_of(RADIX_ALIGN) && at.server().number() < MOST_RADIX_SERVERS
        );
        let server = u64::from(at.server().number());
        u64::from(byte) << 56 | PRESENT | server << SERVER_SHIFT | (at.offset() / RADIX_ALIGN)
    }

    /// A slot for a leaf.
    pub(crate) fn leaf(byte: u8, at: GlobalAddr) -> Self {
        Self(Self::to(byte, at) | IS_LEAF)
    }

    /// A slot for a node.
    pub(crate) fn node(byte: u8, at: GlobalAddr, size: NodeSize) -> Self {
        Self(Self::to(byte, at) | u64::from(size.0) << SIZE_SHIFT)
    }

    /// The slot in a word.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The word.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// The byte of the key that the slot is for.
    pub fn byte(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// The same child, in a slot for another byte.
    pub(crate) fn with_byte(self, byte: u8) -> Self {
        Self(self.0 & !(0xff << 56) | u64::from(byte) << 56)
    }

    /// The same node, with a new size.
    pub(crate) fn with_size(self, size: NodeSize) -> Self {
        Self(self.0 & !(0xf << SIZE_SHIFT) | u64::from(size.0) << SIZE_SHIFT)
    }

    /// What the slot leads to. A word that is no slot counts as free.
    pub fn child(self) -> Child {
        match (self.0 & PRESENT != 0, self.0 & IS_LEAF != 0) {
            (false, _) => Child::None,
            (true, true) => Child::Leaf,
            (true, false) => {
                NodeSize::from_log2(self.0 >> SIZE_SHIFT & 0xf).map_or(Child::None, Child::Node)
            }
        }
    }

    /// The child's address.
    pub fn at(self) -> GlobalAddr {
        let server = ServerId::new((self.0 >> SERVER_SHIFT & 0xff) as u16);
        GlobalAddr::new(server, (self.0 & OFFSET_MASK) * RADIX_ALIGN)
    }
}

/// Where the slot with a number is in the node at `node`.
pub(crate) fn slot_place(node: GlobalAddr, number: usize) -> GlobalAddr {
    node.plus((NODE_HEADER_WORDS + number) as u64 * 8)
}

/// A copy of a node.
#[derive(Clone, Debug)]
pub struct NodeCopy {
    /// The node's address.
    pub at: GlobalAddr,
    /// Where the slot is that leads to it.
    pub reverse: GlobalAddr,
    /// Its header.
    pub header: NodeHeader,
    /// The slots that were read.
    pub slots: Vec<u64>,
}

/// The result of a search for a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// The slot with this number is for the byte.
    At(usize, Slot),
    /// None of the slots is, and this one is the first that is free.
    Free(usize),
    /// None of the slots is, and all that were read are in use.
    Full,
}

impl NodeCopy {
    /// The copy in words that were read at `at`; `None` if there is no node.
    pub fn new(at: GlobalAddr, words: impl Iterator<Item = u64>) -> Option<Self> {
        let mut words = words;
        let reverse = GlobalAddr::from_bits(words.next()?);
        let header = NodeHeader::from_bits(words.next()?)?;
        Some(Self { at, reverse, header, slots: words.collect() })
    }

    /// The words of a node.
    pub(crate) fn words(&self) -> impl ExactSizeIterator<Item = u64> {
        let front = [self.reverse.to_bits(), self.header.to_bits()];
        let count = NODE_HEADER_WORDS + self.slots.len();
        (0..count).map(move |word| match word.checked_sub(NODE_HEADER_WORDS) {
            None => front[word],
            Some(slot) => self.slots[slot],
        })
    }

    /// Looks for the slot for `byte`.
    pub(crate) fn search(&self, byte: u8) -> Search {
        let is_it = |slot: Slot| slot.byte() == byte && slot.child() != Child::None;
        // Keys that were loaded in ascending order have their slots there.
        if let Some(slot) = self.slots.get(usize::from(byte)).map(|bits| Slot::from_bits(*bits))
            && is_it(slot)
        {
            return Search::At(usize::from(byte), slot);
        }
        for (number, bits) in self.slots.iter().enumerate() {
            let slot = Slot::from_bits(*bits);
            if is_it(slot) {
                return Search::At(number, slot);
            }
            if slot == Slot::FREE {
                return Search::Free(number);
            }
        }
        Search::Full
    }

    /// The slots in use.
    pub fn in_use(&self) -> impl Iterator<Item = (usize, Slot)> {
        let slots = self.slots.iter().map(|bits| Slot::from_bits(*bits)).enumerate();
        slots.filter(|(_, slot)| slot.child() != Child::None)
    }
}

/// A copy of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafCopy {
    /// The leaf's address.
    pub at: GlobalAddr,
    /// Its word 0.
    pub word: LockWord,
    /// Where the slot is that leads to it.
    pub reverse: GlobalAddr,
    /// Its key.
    pub key: u64,
    /// Its value, which means something while the leaf is live.
    pub value: u64,
    check: u64,
}

impl LeafCopy {
    /// A live leaf of the first version.
    pub(crate) fn first(at: GlobalAddr, reverse: GlobalAddr, (key, value): (u64, u64)) -> Self {
        let word = LockWord::from_bits(1);
        let check = check_of(at, word.version(), (key, value), true);
        Self { at, word, reverse, key, value, check }
    }

    /// The copy in words that were read at `at`.
    pub fn new(at: GlobalAddr, word: impl Fn(usize) -> u64) -> Self {
        let reverse = GlobalAddr::from_bits(word(1));
        let lock = LockWord::from_bits(word(0));
        Self { at, word: lock, reverse, key: word(2), value: word(3), check: word(4) }
    }

    /// The leaf's words.
    pub(crate) fn words(&self) -> [u64; LEAF_WORDS] {
        [self.word.to_bits(), self.reverse.to_bits(), self.key, self.value, self.check]
    }

    /// Whether the check says that the key is present.
    pub fn is_live(&self) -> bool {
        self.check & LIVE != 0
    }

    /// Whether the copy is whole (radix.B2).
    pub fn is_whole(&self) -> bool {
        let record = (self.key, self.value);
        self.check == check_of(self.at, self.word.version(), record, self.is_live())
    }

    /// The value, if the key is present.
    pub fn found(&self) -> Option<u64> {
        self.is_live().then_some(self.value)
    }

    /// The same leaf with another word 0.
    pub(crate) fn with_word(self, word: LockWord) -> Self {
        Self { word, ..self }
    }

    /// The same leaf of the same version with this record.
    pub(crate) fn with_record(self, value: u64, live: bool) -> Self {
        let check = check_of(self.at, self.word.version(), (self.key, value), live);
        Self { value, check, ..self }
    }

    /// The leaf after a change by the client that holds it: the next version, unlocked.
    pub(crate) fn next(&self, value: u64, live: bool) -> Self {
        self.with_word(self.word.next_by(self.word.owner())).with_record(value, live)
    }
}

fn check_of(at: GlobalAddr, version: u64, (key, value): (u64, u64), live: bool) -> u64 {
    let sum = sum_of([at.to_bits(), version, key, value, live.into()].into_iter());
    sum & !LIVE | if live { LIVE } else { 0 }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn at(offset: u64) -> GlobalAddr {
        GlobalAddr::new(ServerId::new(7), offset)
    }

    #[test]
    fn slots_and_headers_keep_what_they_are_made_of() {
        let place = at((1 << 45) + 64);
        let leaf = Slot::leaf(0xfe, place);
        assert_eq!((leaf.byte(), leaf.child(), leaf.at()), (0xfe, Child::Leaf, place));
        let node = Slot::node(0, place, NodeSize::SMALLEST);
        assert_eq!((node.child(), node.at()), (Child::Node(NodeSize::SMALLEST), place));
        assert_ne!(node, Slot::FREE);
        let grown = node.with_size(NodeSize::LARGEST).with_byte(9);
        assert_eq!((grown.byte(), grown.child()), (9, Child::Node(NodeSize::LARGEST)));
        assert_eq!(grown.at(), place);
        assert_eq!(Slot::FREE.child(), Child::None);
        for bytes in 0..=KeyPath::MOST_BYTES {
            let path = KeyPath::of(0x1122_3344_5566_7788, bytes);
            for size in [NodeSize::SMALLEST, NodeSize::LARGEST] {
                let header = NodeHeader { size, path };
                assert_eq!(NodeHeader::from_bits(header.to_bits()), Some(header));
            }
            assert!(path.is_of(0x1122_3344_5566_7788) && path.is_of(path.low()));
            assert!(path.is_of(path.high()) && path.length() == bytes);
            let (low, high) = path.range_of(path.next_byte(0x1122_3344_5566_7788));
            assert!((low..=high).contains(&0x1122_3344_5566_7788));
            assert_eq!(high - low, KeyPath::below(bytes + 1));
            for below in 0..=KeyPath::MOST_BYTES {
                let child = KeyPath::of(0x1122_3344_5566_7788, below);
                let next = path.next_byte(0x1122_3344_5566_7788);
                assert_eq!(path.leads_to(next, child), below > bytes);
                assert!(!path.leads_to(next + 1, child), "of another byte");
                let other = KeyPath::of(0x9122_3344_5566_7788, below);
                assert_eq!(path.leads_to(0x91, other), bytes == 0 && below > 0);
            }
        }
        assert_eq!(NodeHeader::from_bits(0), None, "memory that was never used");
        assert!(!KeyPath::of(0x1100, 7).is_of(0x1200) && KeyPath::of(0x1100, 6).is_of(0x1200));
        assert_eq!([common_bytes(5, 5), common_bytes(5, 6), common_bytes(0, u64::MAX)], [8, 7, 0]);
    }

    #[test]
    fn sizes_are_powers_of_two() {
        let sizes: Vec<usize> =
            std::iter::successors(Some(NodeSize::SMALLEST), |size| size.grown())
                .map(NodeSize::slots)
                .collect();
        assert_eq!(sizes, [4, 8, 16, 32, 64, 128, 256]);
        for slots in 1..=256 {
            let size = NodeSize::for_slots(slots);
            assert!(size.slots() >= slots && (size.slots() < 2 * slots || slots < 4));
        }
    }

    #[test]
    fn a_search_finds_slots_in_any_order() {
        let header = NodeHeader { size: NodeSize::SMALLEST, path: KeyPath::of(0, 7) };
        let slot = |byte: u8| Slot::leaf(byte, at(64 * (1 + u64::from(byte)))).to_bits();
        let slots = vec![slot(9), slot(1), 0, 0];
        let mut node = NodeCopy { at: at(0), reverse: at(8), header, slots };
        assert_eq!(node.search(1), Search::At(1, Slot::from_bits(slot(1))));
        assert_eq!(node.search(9), Search::At(0, Slot::from_bits(slot(9))));
        assert_eq!(node.search(0), Search::Free(2));
        (node.slots[2], node.slots[3]) = (slot(7), slot(0));
        assert_eq!(node.search(0), Search::At(3, Slot::from_bits(slot(0))));
        assert_eq!(node.search(200), Search::Full);
        let words: Vec<u64> = node.words().collect();
        let again = NodeCopy::new(at(0), words.into_iter()).unwrap();
        assert_eq!((again.slots, again.header, again.reverse), (node.slots, header, at(8)));
    }

    /// A copy with words of two versions is not whole, whichever words are of which version.
    #[test]
    fn a_torn_leaf_is_not_whole() {
        let before = LeafCopy::first(at(64), at(8), (5, 6));
        assert!(before.is_whole() && before.is_live());
        let held = before.with_word(before.word.locked_by(3));
        assert!(held.is_whole(), "the lock is no part of the content");
        for (value, live) in [(7, true), (6, false), (6, true)] {
            let after = held.next(value, live);
            assert!(after.is_whole() && !after.word.is_locked() && after.is_live() == live);
            let (old, new) = (held.words(), after.words());
            for newer in 0..1_u32 << LEAF_WORDS {
                let word = |place: usize| if newer >> place & 1 == 1 { new } else { old }[place];
                let copy = LeafCopy::new(at(64), word);
                let all_old = word(0) == old[0] && word(3) == old[3] && word(4) == old[4];
                let all_new = word(0) == new[0] && word(3) == new[3] && word(4) == new[4];
                assert_eq!(copy.is_whole(), all_old || all_new, "{newer:b}");
            }
        }
        // Without a lock, the version stays.
        for (value, live) in [(7, true), (6, false)] {
            let after = before.with_record(value, live);
            let (old, new) = (before.words(), after.words());
            let torn = |newer: usize| {
                LeafCopy::new(at(64), |word| if word == newer { new } else { old }[word])
            };
            assert!(after.is_whole() && after.word == before.word && after.is_live() == live);
            assert_eq!(torn(3).is_whole(), value == 6, "the value is new, if it has changed");
            assert_eq!(torn(4).is_whole(), value == 6, "the check is new");
        }
        let elsewhere = LeafCopy::new(at(128), |word| before.words()[word]);
        assert!(!elsewhere.is_whole());
        assert!(!LeafCopy::new(at(64), |_| 0).is_whole());
    }
}
