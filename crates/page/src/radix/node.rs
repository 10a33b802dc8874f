//! Nodes of a radix tree.
//!
//! *Thread safety*: plain values.

use super::{NodeSize, Octets, RadixChild, RadixForm, RadixSlot};
use farleaf_fabric::GlobalAddr;

/// The header of a node: its size and its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHeader {
    /// The node's size.
    pub size: NodeSize,
    /// The number of bytes of its path.
    pub depth: usize,
    /// The last bytes of the path: those that the node stores.
    tail: Octets,
}

/// How a key compares with the part of a path that a node stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// The node is for the key, if its parent is.
    Same,
    /// The key differs from the path for the first time at this byte, which the path has.
    Differs(usize, u8),
    /// The key is the beginning of the path, which no key is.
    Never,
}

impl NodeHeader {
    /// The header of a node with this path.
    pub(crate) fn new(form: RadixForm, size: NodeSize, path: &[u8]) -> Self {
        let from = path.len().saturating_sub(form.most_tail());
        Self { size, depth: path.len(), tail: Octets::from_slice(&path[from..]) }
    }

    /// Decodes a header; `None` if the words are none.
    fn from_words(form: RadixForm, words: &[u64]) -> Option<Self> {
        let first = *words.first()?;
        let size = NodeSize::from_log2(first >> 59)?;
        let (depth, bytes): (_, Octets) = match form {
            RadixForm::Numbers => {
                ((first >> 56 & 7) as usize, Octets::from_slice(&(first << 8).to_be_bytes()[..7]))
            }
            RadixForm::Strings => (
                (first & 0xffff) as usize,
                words[1..].iter().flat_map(|w| w.to_be_bytes()).collect(),
            ),
        };
        let (tail, rest) = bytes.split_at_checked(depth.min(form.most_tail()))?;
        let is_one = rest.iter().all(|byte| *byte == 0);
        is_one.then(|| Self { size, depth, tail: Octets::from_slice(tail) })
    }

    /// Its first word, the only one that changes.
    pub fn to_bits(&self, form: RadixForm) -> u64 {
        let of_size = u64::from(self.size.0) << 59;
        match form {
            RadixForm::Numbers => of_size | (self.depth as u64) << 56 | self.tail_word(0) >> 8,
            RadixForm::Strings => of_size | self.depth as u64,
        }
    }

    fn tail_word(&self, number: usize) -> u64 {
        let byte = |place| self.tail.get(8 * number + place).copied().unwrap_or(0);
        u64::from_be_bytes(std::array::from_fn(byte))
    }

    /// Compares a key that begins with the path of the node's parent with this node's path.
    pub fn compare(&self, key: &[u8]) -> PathMatch {
        let from = self.depth - self.tail.len();
        for (at, byte) in (from..).zip(&self.tail) {
            match key.get(at) {
                Some(of_key) if of_key == byte => {}
                Some(_) => return PathMatch::Differs(at, *byte),
                None => return PathMatch::Never,
            }
        }
        if key.len() > self.depth { PathMatch::Same } else { PathMatch::Never }
    }

    /// The whole path of this node, found by a slot whose keys all begin with `known`. `None` if
    /// the path does not begin with `known`.
    pub fn path_below(&self, known: &[u8]) -> Option<Octets> {
        let from = self.depth - self.tail.len();
        let more = self.tail.get(known.len().checked_sub(from)?..)?;
        let overlap = super::common_bytes(&self.tail, &known[from..]);
        let is_longer = self.depth >= known.len() && overlap == known.len() - from;
        is_longer.then(|| known.iter().chain(more).copied().collect())
    }
}

/// A copy of a node.
#[derive(Clone, Debug)]
pub struct NodeCopy {
    /// Whether it is for numbers.
    pub form: RadixForm,
    /// The node's address.
    pub at: GlobalAddr,
    /// The reverse pointer: the address of the slot that leads to the node.
    pub reverse: GlobalAddr,
    /// Its header.
    pub header: NodeHeader,
    /// Its path: all of it once the reader has added what the parent knows.
    pub path: Octets,
    /// The slots that were read.
    pub slots: Vec<u64>,
}

/// The result of a search for a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotSearch {
    /// The slot with this number is for the byte.
    At(usize, RadixSlot),
    /// None of the slots is, and this one is the first that is free.
    Free(usize),
    /// None of the slots is, and all that were read are in use.
    Full,
}

impl NodeCopy {
    /// Words of a node up to the last slot of a size.
    pub const fn words_of(form: RadixForm, size: NodeSize) -> usize {
        form.header_words() + size.slots()
    }

    /// A node with this path.
    pub fn made(
        form: RadixForm,
        at: GlobalAddr,
        reverse: GlobalAddr,
        (path, size, slots): (&[u8], NodeSize, Vec<u64>),
    ) -> Self {
        let header = NodeHeader::new(form, size, path);
        Self { form, at, reverse, header, path: Octets::from_slice(path), slots }
    }

    /// Decodes the words that were read at `at`; `None` if they are no node.
    pub fn new(form: RadixForm, at: GlobalAddr, words: impl Iterator<Item = u64>) -> Option<Self> {
        let mut words = words;
        let reverse = GlobalAddr::from_bits(words.next()?);
        let front: smallvec::SmallVec<[u64; 8]> =
            words.by_ref().take(form.header_words() - 1).collect();
        let header = NodeHeader::from_words(form, &front)?;
        let path = header.tail.clone();
        Some(Self { form, at, reverse, header, path, slots: words.collect() })
    }

    /// The words of a node.
    pub fn words(&self) -> impl ExactSizeIterator<Item = u64> {
        let front = self.form.header_words();
        (0..front + self.slots.len()).map(move |word| match word {
            0 => self.reverse.to_bits(),
            1 => self.header.to_bits(self.form),
            tail if tail < front => self.header.tail_word(tail - 2),
            slot => self.slots[slot - front],
        })
    }

    /// Where the slot with a number is.
    pub fn slot_place(&self, number: usize) -> GlobalAddr {
        Self::place_in(self.form, self.at, number)
    }

    /// Where the slot with a number is in the node at `node`.
    pub fn place_in(form: RadixForm, node: GlobalAddr, number: usize) -> GlobalAddr {
        node.plus((form.header_words() + number) as u64 * 8)
    }

    /// The byte of `key` that follows the path.
    pub fn next_byte(&self, key: &[u8]) -> u8 {
        key.get(self.path.len()).copied().unwrap_or(0)
    }

    /// Looks for the slot for `byte`.
    pub fn search(&self, byte: u8) -> SlotSearch {
        let is_it = |slot: RadixSlot| slot.byte() == byte && slot.child() != RadixChild::None;
        // Keys that were loaded in ascending order have their slots there.
        if let Some(slot) =
            self.slots.get(usize::from(byte)).map(|bits| RadixSlot::from_bits(*bits))
            && is_it(slot)
        {
            return SlotSearch::At(usize::from(byte), slot);
        }
        for (number, bits) in self.slots.iter().enumerate() {
            let slot = RadixSlot::from_bits(*bits);
            if is_it(slot) {
                return SlotSearch::At(number, slot);
            }
            if slot == RadixSlot::FREE {
                return SlotSearch::Free(number);
            }
        }
        SlotSearch::Full
    }

    /// The slots in use.
    pub fn in_use(&self) -> impl Iterator<Item = (usize, RadixSlot)> {
        let slots = self.slots.iter().map(|bits| RadixSlot::from_bits(*bits)).enumerate();
        slots.filter(|(_, slot)| slot.child() != RadixChild::None)
    }
}
