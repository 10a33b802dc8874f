//! Records: one version of one key.
//!
//! ```text
//! word 0  [check:16][key bytes:16][value bytes:32]      from the high end down
//! word 1  [sequence:56][kind:8]
//! word 2  key, then value, without a gap, then zeros to the end of the word
//! ```
//!
//! *Invariants*
//! - lsm.B2. A record begins at a word boundary, and its check covers all its words: it is the low
//!   16 bits of the hash of the record with a zero check, XOR those of its table's id. So tables
//!   whose ids differ in the low 16 bits never accept each other's records, and a merge moves a
//!   record between tables without hashing it again.
//!
//! *Thread safety*: plain values, over private copies of words.

use super::damaged::{DamagedSsTable, SsTablePart};
use super::key::TableKey;
use super::packed;

/// Number of words before the key.
pub const HEADER_WORDS: usize = 2;

/// The longest value, in bytes: a quarter of the paper's MemTable.
pub const MAX_VALUE_BYTES: usize = 16 << 20;

/// The highest sequence number.
pub const MAX_SEQUENCE: u64 = (1 << 56) - 1;

/// The meaning of a version for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordKind {
    /// The key has this value.
    Value,
    /// The key is absent. The value is empty.
    Tombstone,
}

impl RecordKind {
    fn of_bits(bits: u64) -> Option<Self> {
        match bits as u8 {
            0 => Some(Self::Value),
            1 => Some(Self::Tombstone),
            _ => None,
        }
    }

    fn bits(self) -> u64 {
        match self {
            Self::Value => 0,
            Self::Tombstone => 1,
        }
    }
}

/// Number of words of a record with a key and a value of these lengths.
#[inline]
pub const fn record_words(key_bytes: usize, value_bytes: usize) -> usize {
    HEADER_WORDS + (key_bytes + value_bytes).div_ceil(8)
}

/// Number of words of the record whose first word is `word`. `None` if no record begins like this.
#[inline]
pub fn words_needed(word: u64) -> Option<usize> {
    let value_bytes = word as u32 as usize;
    (value_bytes <= MAX_VALUE_BYTES)
        .then(|| record_words((word >> 32) as u16 as usize, value_bytes))
}

const CHECK_SHIFT: u32 = 48;
const WITHOUT_CHECK: u64 = u64::MAX >> 16;

fn check_of(word: u64, rest: &[u64], table: u64) -> u64 {
    (packed::hash(word & WITHOUT_CHECK, rest, None) ^ table) & 0xffff
}

/// A record with a valid check.
#[derive(Clone, Copy, Debug)]
pub struct SsTableRecord<'a> {
    words: &'a [u64],
    table: u64,
    kind: RecordKind,
}

impl<'a> SsTableRecord<'a> {
    /// The record of `table` that begins at the first of `words`, which may extend beyond it.
    #[inline]
    pub fn parse(words: &'a [u64], table: u64) -> Result<Self, DamagedSsTable> {
        Self::checked(words, table).ok_or(DamagedSsTable::new(table, SsTablePart::Record))
    }

    #[inline]
    fn checked(words: &'a [u64], table: u64) -> Option<Self> {
        let record = Self::checked_before(words, table)?;
        let (&first, rest) = record.words.split_first()?;
        (first >> CHECK_SHIFT == check_of(first, rest, table)).then_some(record)
    }

    /// A record whose check has been verified before.
    #[inline]
    pub(super) fn checked_before(words: &'a [u64], table: u64) -> Option<Self> {
        let &first = words.first()?;
        let words = words.get(..words_needed(first)?)?;
        let kind = RecordKind::of_bits(words[1])?;
        let has_right_value = kind == RecordKind::Value || first as u32 == 0;
        has_right_value.then_some(Self { words, table, kind })
    }

    /// The table it was read from.
    #[inline]
    pub fn table(self) -> u64 {
        self.table
    }

    /// Number of its words.
    #[inline]
    pub fn words(self) -> usize {
        self.words.len()
    }

    /// Its key.
    #[inline]
    pub fn key(self) -> TableKey<'a> {
        TableKey::new(&self.words[HEADER_WORDS..], self.key_bytes()).expect("checked by `parse`")
    }

    #[inline]
    fn key_bytes(self) -> usize {
        (self.words[0] >> 32) as u16 as usize
    }

    /// Its sequence number.
    #[inline]
    pub fn sequence(self) -> u64 {
        self.words[1] >> 8
    }

    /// Its kind.
    #[inline]
    pub fn kind(self) -> RecordKind {
        self.kind
    }

    /// The length of its value.
    #[inline]
    pub fn value_bytes(self) -> usize {
        self.words[0] as u32 as usize
    }

    /// Appends its value to `out`.
    pub fn append_value(self, out: &mut Vec<u8>) {
        let at = HEADER_WORDS * 8 + self.key_bytes();
        packed::copy_out(self.words, at, self.value_bytes(), out);
    }

    /// Appends the record to the words of `table`.
    #[inline]
    pub fn append_to(self, table: u64, out: &mut Vec<u64>) {
        let at = out.len();
        out.extend_from_slice(self.words);
        out[at] ^= (self.table ^ table) << CHECK_SHIFT;
    }
}

/// Appends a record to the words of `table`. The caller must check the limits on key, value and
/// sequence number.
pub(super) fn append_record(
    table: u64,
    key: TableKey<'_>,
    sequence: u64,
    kind: RecordKind,
    value: &[u8],
    out: &mut Vec<u64>,
) {
    let at = out.len();
    out.push((key.bytes() as u64) << 32 | value.len() as u64);
    out.push(sequence << 8 | kind.bits());
    let mut packer = packed::BytePacker::new(out);
    for index in 0..key.words() {
        packer.push(key.word(index), (key.bytes() - index * 8).min(8));
    }
    packer.push_bytes(value);
    packer.finish();
    out[at] |= check_of(out[at], &out[at + 1..], table) << CHECK_SHIFT;
}
