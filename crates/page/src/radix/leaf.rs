//! Leaves of a radix tree.
//!
//! *Thread safety*: plain values.

use super::{Octets, RADIX_ALIGN, RadixForm, RadixSlot};
use crate::checksum::sum_of;
use crate::lock_word::LockWord;
use farleaf_fabric::GlobalAddr;
use smallvec::SmallVec;

/// The word of a leaf with its reverse pointer: the address of the slot that leads to it.
pub const LEAF_REVERSE_WORD: u64 = 1;
/// The word of a number's leaf with its value. The word with the check follows.
pub const LEAF_VALUE_WORD: u64 = 3;
/// The word of a number's leaf with its check.
pub const LEAF_CHECK_WORD: u64 = 4;
/// The word of a string's leaf with its check.
pub const STRING_CHECK_WORD: u64 = 3;
/// The first word of a string's key.
const KEY_WORD: usize = 4;

const LIVE: u64 = 1 << 63;
const MOVED: u64 = 1 << 62;
const SECOND_AREA: u64 = 1 << 61;
const VALUE_BYTES_SHIFT: u32 = 48;
const MAX_RADIX_VALUE_BYTES: usize = (1 << 13) - 1;
const SLOT_MASK: u64 = (1 << 56) - 1;

/// Memory of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafMemory {
    /// Where it begins.
    pub at: GlobalAddr,
    /// 0 for a number; for a string, up to 32 in steps of 64 bytes, then of 1 KiB.
    pub size: u8,
}

impl LeafMemory {
    const STEPS: u8 = 32;
    const MAX_SIZE: u8 = 63;

    /// Words of a leaf.
    pub fn words(self) -> usize {
        match self.size {
            0 => super::LEAF_WORDS,
            size if size <= Self::STEPS => usize::from(size) * 8,
            size => usize::from(Self::STEPS) * 8 + usize::from(size - Self::STEPS) * 128,
        }
    }

    /// Bytes that a leaf of a size takes.
    pub fn space(size: u8) -> u64 {
        let room = Self { at: GlobalAddr::NULL, size };
        (room.words() as u64 * 8).next_multiple_of(RADIX_ALIGN)
    }

    /// The size of a leaf for a record; `None` if it is too large.
    pub fn size_for(form: RadixForm, key: &[u8], value: &[u8]) -> Option<u8> {
        if form == RadixForm::Numbers {
            return Some(0);
        }
        let area = value.len().div_ceil(8).max(1);
        let words = KEY_WORD + key.len().div_ceil(8) + 2 * area;
        let has_room = |size: &u8| Self { at: GlobalAddr::NULL, size: *size }.words() >= words;
        (1..=Self::MAX_SIZE).find(has_room).filter(|_| value.len() <= MAX_RADIX_VALUE_BYTES)
    }
}

/// A copy of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafCopy {
    form: RadixForm,
    /// The leaf's memory.
    pub room: LeafMemory,
    /// Its word 0.
    pub word: LockWord,
    /// The reverse pointer: the address of the slot that leads to the leaf.
    pub reverse: GlobalAddr,
    /// Its key.
    pub key: Octets,
    /// Its value, which is valid only while the leaf is live.
    pub value: Octets,
    check: u64,
}

fn bytes_in(words: &[u64], bytes: usize) -> Octets {
    let all = words.iter().flat_map(|word| word.to_be_bytes());
    all.take(bytes).collect()
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_be_bytes(word)
    })
}

impl LeafCopy {
    /// A live leaf of the first version.
    pub fn first(
        form: RadixForm,
        room: LeafMemory,
        reverse: GlobalAddr,
        (key, value): (&[u8], &[u8]),
    ) -> Self {
        let (key, value) = (Octets::from_slice(key), Octets::from_slice(value));
        let word = LockWord::from_bits(1);
        let leaf = Self { form, room, word, reverse, key, value, check: LIVE | SECOND_AREA };
        let value = leaf.value.clone();
        leaf.with_record(&value, true)
    }

    /// A copy of the words that were read at a leaf's place. If they are no leaf, the copy is not
    /// whole.
    pub fn new(form: RadixForm, room: LeafMemory, words: &[u64]) -> Self {
        let word = LockWord::from_bits(words[0]);
        let reverse = GlobalAddr::from_bits(words[1]);
        let (mut key, mut value, mut check) = (Octets::new(), Octets::new(), 0);
        match form {
            RadixForm::Numbers => {
                (key, value) = (bytes_in(&words[2..3], 8), bytes_in(&words[3..4], 8));
                check = words[4];
            }
            RadixForm::Strings => {
                let bytes = (words[2] & 0xffff) as usize;
                let key_end = KEY_WORD + bytes.div_ceil(8);
                if words[2] >> 16 == u64::from(room.size) && key_end + 2 <= words.len() {
                    key = bytes_in(&words[KEY_WORD..key_end], bytes);
                    check = words[STRING_CHECK_WORD as usize];
                    let area = (words.len() - key_end) / 2;
                    let from = key_end + if check & SECOND_AREA != 0 { area } else { 0 };
                    let bytes = (check >> VALUE_BYTES_SHIFT) as usize & MAX_RADIX_VALUE_BYTES;
                    if check & LIVE != 0 && bytes <= area * 8 {
                        value = bytes_in(&words[from..from + area], bytes);
                    }
                }
            }
        }
        Self { form, room, word, reverse, key, value, check }
    }

    /// The size of the leaf whose third word this is.
    pub fn size_in(word: u64) -> u8 {
        (word >> 16) as u8 & LeafMemory::MAX_SIZE
    }

    /// Where the leaf begins.
    pub fn at(&self) -> GlobalAddr {
        self.room.at
    }

    /// The leaf's words, up to the end of its value.
    pub fn words(&self) -> SmallVec<[u64; 8]> {
        let mut words = SmallVec::from_slice(&[self.word.to_bits(), self.reverse.to_bits()]);
        match self.form {
            RadixForm::Numbers => {
                words.extend(words_of(&self.key).chain(words_of(&self.value)).chain([self.check]));
            }
            RadixForm::Strings => {
                words.push(u64::from(self.room.size) << 16 | self.key.len() as u64);
                words.push(self.check);
                words.extend(words_of(&self.key));
                let (from, value) = self.value_words();
                words.resize(from as usize, 0);
                words.extend(value);
            }
        }
        words
    }

    /// A string's value, and the word where its area begins.
    pub fn value_words(&self) -> (u64, Vec<u64>) {
        let key_end = KEY_WORD + self.key.len().div_ceil(8);
        let is_second = self.check & SECOND_AREA != 0;
        let from = key_end + if is_second { self.area_words() } else { 0 };
        (from as u64, words_of(&self.value).collect())
    }

    /// Words of each of the areas for a string's value.
    fn area_words(&self) -> usize {
        let key_end = KEY_WORD + self.key.len().div_ceil(8);
        self.room.words().saturating_sub(key_end) / 2
    }

    /// Whether a value has room in the leaf.
    pub fn has_room(&self, value: &[u8]) -> bool {
        self.form == RadixForm::Numbers || value.len() <= self.area_words() * 8
    }

    /// The check word.
    pub fn check(&self) -> u64 {
        self.check
    }

    /// Whether the check says that the key is present.
    pub fn is_live(&self) -> bool {
        self.check & LIVE != 0
    }

    /// The slot of the leaf that took this one's place, without its byte (radix.B4).
    pub fn moved(&self) -> Option<RadixSlot> {
        let is_moved = self.form == RadixForm::Strings && self.check & (LIVE | MOVED) == MOVED;
        is_moved.then(|| RadixSlot::from_bits(self.check & SLOT_MASK))
    }

    /// Whether the copy is whole (radix.B2).
    pub fn is_whole(&self) -> bool {
        self.moved().is_some() || self.check == self.check_for(self.word.version())
    }

    /// Whether the copy would be whole if its version were this one.
    pub fn is_whole_in(&self, version: u64) -> bool {
        self.check == self.check_for(version)
    }

    /// The value, if the key is present.
    pub fn found(&self) -> Option<Octets> {
        self.is_live().then(|| self.value.clone())
    }

    /// The same leaf with another word 0.
    pub fn with_word(self, word: LockWord) -> Self {
        Self { word, ..self }
    }

    /// The same leaf in the same version with this record. A string's value goes to the other area
    /// (radix.B3).
    pub fn with_record(self, value: &[u8], live: bool) -> Self {
        let mut to = Self { value: Octets::from_slice(value), ..self };
        to.check = match (to.form, live) {
            (RadixForm::Numbers, true) => LIVE,
            (RadixForm::Numbers, false) => 0,
            (RadixForm::Strings, true) => {
                let bytes = (to.value.len() as u64) << VALUE_BYTES_SHIFT;
                LIVE | (to.check & SECOND_AREA ^ SECOND_AREA) | bytes
            }
            (RadixForm::Strings, false) => {
                to.value.clear();
                to.check & SECOND_AREA
            }
        };
        to.check = to.check_for(to.word.version());
        to
    }

    /// The leaf after a change by the client that holds it: the next version, unlocked.
    pub fn next(self, value: &[u8], live: bool) -> Self {
        let word = self.word.next_by(self.word.owner());
        self.with_word(word).with_record(value, live)
    }

    /// The same leaf after it was replaced by a larger one (radix.B4).
    pub fn moved_to(self, larger: LeafMemory) -> Self {
        Self { check: MOVED | RadixSlot::leaf(0, larger).to_bits(), ..self }
    }

    /// The check word for the content of the copy in a version.
    fn check_for(&self, version: u64) -> u64 {
        let (at, live) = (self.room.at.to_bits(), self.is_live());
        match self.form {
            RadixForm::Numbers => {
                let (key, value) = (words_of(&self.key), words_of(&self.value));
                let record = key.chain(value).chain([live.into()]);
                let sum = sum_of([at, version].into_iter().chain(record));
                sum & !LIVE | if live { LIVE } else { 0 }
            }
            RadixForm::Strings => {
                let state =
                    LIVE | SECOND_AREA | (MAX_RADIX_VALUE_BYTES as u64) << VALUE_BYTES_SHIFT;
                let state = self.check & state;
                let front = [at, version, state, self.key.len() as u64];
                let (key, value) = (words_of(&self.key), words_of(&self.value));
                let sum = sum_of(front.into_iter().chain(key).chain(value));
                state | sum & ((1 << VALUE_BYTES_SHIFT) - 1)
            }
        }
    }
}
