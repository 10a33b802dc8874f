//! One entry for each record, as in the paper (section VI). This index finds every version without
//! a READ, and takes the most memory.
//!
//! ```text
//! word 0  [records:32][bytes of all entries:32]
//! begins  half a word for each record: the first byte of its entry, zero-padded to a word
//! entries without gaps, zero-padded to a word:
//!         [sequence:8 bytes][first word:4][words:4][key bytes: 1 to 3][key]
//! ```
//!
//! The length of a key is encoded in groups of seven bits, lowest first, where all but the last
//! have the high bit set. For a key of 20 bytes, an entry and its offset take 41 bytes, as in the
//! paper's code (a block of LevelDB that shares no prefixes).
//!
//! *Thread safety*: plain values, over private copies of words.

use super::key::{KeyBuf, MAX_KEY_BYTES, TableKey};
use super::packed::{self, BytePacker, half, halves, joined, take};
use std::cmp::Ordering;
use std::ops::Range;

/// Size of an entry before the key's length, in bytes.
const ENTRY_BYTES: usize = 16;

/// Collects entries while records are written.
#[derive(Debug, Default)]
pub(super) struct FullWriter {
    begins: Vec<u32>,
    entries: Vec<u8>,
}

impl FullWriter {
    pub(super) fn push(&mut self, key: TableKey<'_>, sequence: u64, words: Range<u32>) {
        self.begins.push(self.entries.len() as u32);
        self.entries.extend_from_slice(&sequence.to_le_bytes());
        self.entries.extend_from_slice(&words.start.to_le_bytes());
        self.entries.extend_from_slice(&(words.end - words.start).to_le_bytes());
        let mut rest = key.bytes();
        while rest >= 128 {
            self.entries.push(rest as u8 | 128);
            rest >>= 7;
        }
        self.entries.push(rest as u8);
        let end = self.entries.len() + key.bytes();
        for index in 0..key.words() {
            self.entries.extend_from_slice(&key.word(index).to_le_bytes());
        }
        self.entries.truncate(end);
    }

    /// Size of the entries so far, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn finish(self, out: &mut Vec<u64>) {
        out.push(joined(self.begins.len() as u32, self.entries.len() as u32));
        let mut packer = BytePacker::new(out);
        self.begins.iter().for_each(|&begin| packer.push(begin.into(), 4));
        packer.finish();
        let mut packer = BytePacker::new(out);
        packer.push_bytes(&self.entries);
        packer.finish();
    }
}

/// The index in a section's words.
#[derive(Clone, Copy, Debug)]
pub struct FullIndex<'a> {
    records: u32,
    begins: &'a [u64],
    entries: &'a [u64],
}

impl<'a> FullIndex<'a> {
    /// Opens the index of a section that consists of exactly these words. The cost does not depend
    /// on the size.
    pub fn open(words: &'a [u64]) -> Option<Self> {
        let mut rest = words;
        let (records, bytes) = halves(take(&mut rest, 1)?[0]);
        let begins = take(&mut rest, (records as usize).div_ceil(2))?;
        let fits = rest.len() == (bytes as usize).div_ceil(8);
        fits.then_some(Self { records, begins, entries: rest })
    }

    /// The number of records.
    pub fn records(self) -> u32 {
        self.records
    }

    /// Where the entry of a record begins, and where its key does with how many bytes.
    fn entry(self, record: u32) -> (usize, usize, usize) {
        let begin = half(self.begins, record as usize) as usize;
        let at = begin + ENTRY_BYTES;
        let (mut bytes, mut at_key) = (0, at);
        for round in 0..3 {
            let seven = packed::load(self.entries, at + round) as usize & 0xff;
            bytes |= (seven & 127) << (7 * round);
            at_key += 1;
            if seven < 128 {
                break;
            }
        }
        (begin, at_key, bytes)
    }

    /// The key of a record.
    pub fn key(self, record: u32) -> KeyBuf {
        let (_, at_key, bytes) = self.entry(record);
        let mut key = Vec::new();
        let there = (self.entries.len() * 8).saturating_sub(at_key);
        packed::copy_out(self.entries, at_key, bytes.min(MAX_KEY_BYTES).min(there), &mut key);
        KeyBuf::from_bytes(&key)
    }

    /// How the entry of a record compares with the newest version of `key` at or below `bound`.
    fn order(self, record: u32, key: TableKey<'_>, bound: u64) -> Ordering {
        let (begin, at_key, bytes) = self.entry(record);
        for done in (0..bytes.min(key.bytes())).step_by(8) {
            let eight = packed::lowest(packed::load(self.entries, at_key + done), bytes - done);
            let order = eight.swap_bytes().cmp(&key.eight_from(done));
            if order.is_ne() {
                return order;
            }
        }
        let version = packed::load(self.entries, begin);
        bytes.cmp(&key.bytes()).then(bound.cmp(&version))
    }

    /// The first record that is not before `key`'s newest version at or below `bound`.
    pub fn seek(self, key: TableKey<'_>, bound: u64) -> u32 {
        let (mut low, mut high) = (0, self.records);
        while low < high {
            let middle = low.midpoint(high);
            if self.order(middle, key, bound).is_lt() { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The words of a record. `None` if there is no such record.
    pub fn record_words(self, record: u32) -> Option<Range<u32>> {
        if record >= self.records {
            return None;
        }
        let begin = half(self.begins, record as usize) as usize;
        let (count, first) = halves(packed::load(self.entries, begin + 8));
        let end = first.checked_add(count)?;
        (count > 0).then_some(first..end)
    }

    /// The words of `key`'s newest version at or below `bound`.
    pub fn find(self, key: TableKey<'_>, bound: u64) -> Option<Range<u32>> {
        let record = self.seek(key, bound);
        let is_of_key = record < self.records && {
            // This bound is above every sequence number, so the order is that of the keys.
            let above = self.order(record, key, u64::MAX);
            let below = self.order(record, key, 0);
            above.is_ge() && below.is_le()
        };
        if is_of_key { self.record_words(record) } else { None }
    }
}
