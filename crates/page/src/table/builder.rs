//! Writes a table: records in, words out.
//!
//! The caller sends the words on whenever it has enough of them. The builder keeps only what the
//! index needs: 16 bytes per key and up to 4 per record, or the entries of a full index.
//!
//! *Invariants*
//! - lsm.B3. Keys ascend; the versions of a key descend and differ.
//!
//! *Thread safety*: a plain value.

use super::fences::{FenceGrouping, FenceWriter};
use super::filter::{MAX_BLOOM_BITS, build_bloom};
use super::footer::{MAX_TABLE_WORDS, Membership, SearchMethod, SsTableFooter};
use super::full_index::FullWriter;
use super::key::{KeyBuf, MAX_KEY_BYTES, TableKey};
use super::locate::{LocateBuilder, PLACES};
use super::meta::{SsTableClip, SsTableMeta};
use super::packed::sum_of;
use super::record::{
    MAX_SEQUENCE, MAX_VALUE_BYTES, RecordKind, SsTableRecord, append_record, record_words,
};
use std::cmp::Ordering;

/// Number of records in a group of the compact index.
pub const GROUP_RECORDS: u32 = 16;
const _: () = assert!(GROUP_RECORDS == PLACES, "the newest version of a key has a place");

/// Number of seeds tried for a static function. With distinct hashes, one of the first nearly
/// always works.
const SEEDS: u64 = 64;

/// Bits per key of the filter that replaces a static function if all seeds fail.
const FALLBACK_BLOOM_BITS: u8 = 12;

/// The kind of a table's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// Fences of groups and a static function: one READ of one record, at about 5 bytes per record.
    Compact,
    /// An entry for each record, and a Bloom filter, as in the paper.
    Full {
        /// Bits per key, from 1 to 20.
        bloom_bits: u8,
    },
    /// A fence for each block, and a Bloom filter.
    Blocks {
        /// Maximum size of a block with several records, in bytes.
        block_bytes: u32,
        /// Bits per key, from 1 to 20.
        bloom_bits: u8,
    },
}

/// Why a builder refused a record. The table is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedRecord {
    /// The key is too long.
    #[error("the key has {bytes} bytes, and keys can have at most {MAX_KEY_BYTES}")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The value is too long.
    #[error("the value has {bytes} bytes, and values can have at most {MAX_VALUE_BYTES}")]
    ValueTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A tombstone comes with a value, or the sequence number has more than 56 bits.
    #[error(
        "the record cannot be stored; pass tombstones without a value, and sequence numbers below 2^56"
    )]
    Malformed,
    /// The record does not follow the previous one in table order.
    #[error("the record is out of order; pass keys ascending, and versions of a key descending")]
    OutOfOrder,
    /// The table is at its limit.
    #[error("the table is full; finish it, and put the record into another one")]
    Full,
}

#[derive(Debug)]
enum SearchWriter {
    Fences(FenceWriter),
    Full(FullWriter),
    /// It is in the caller's words.
    Written,
}

/// A table under construction.
#[derive(Debug)]
pub struct SsTableBuilder {
    table: u64,
    shard: u64,
    kind: IndexKind,
    search: SearchWriter,
    /// The hash of each key, and the position of its newest version in its group.
    keys: Vec<(u64, u8)>,
    smallest: KeyBuf,
    last: KeyBuf,
    last_sequence: u64,
    records: u64,
    tombstones: u64,
    data_words: u32,
    lowest: u64,
    highest: u64,
    /// Fewer in tests of the case that all seeds fail.
    seeds: u64,
    /// Fewer in the tests of full tables.
    pub(super) most_words: u32,
}

/// Words that sections and footer take beside what grows with the records, generously.
pub(super) const FIXED_WORDS: u64 = 1 << 17;

impl SsTableBuilder {
    /// Creates a table without records.
    pub fn new(table: u64, shard: u64, kind: IndexKind) -> Self {
        let search = match kind {
            IndexKind::Compact => {
                SearchWriter::Fences(FenceWriter::new(FenceGrouping::Records(GROUP_RECORDS), true))
            }
            IndexKind::Full { .. } => SearchWriter::Full(FullWriter::default()),
            IndexKind::Blocks { block_bytes, .. } => {
                SearchWriter::Fences(FenceWriter::new(FenceGrouping::Words(block_bytes / 8), false))
            }
        };
        Self {
            table,
            shard,
            kind,
            search,
            keys: Vec::new(),
            smallest: KeyBuf::default(),
            last: KeyBuf::default(),
            last_sequence: 0,
            records: 0,
            tombstones: 0,
            data_words: 0,
            lowest: u64::MAX,
            highest: 0,
            seeds: SEEDS,
            most_words: MAX_TABLE_WORDS,
        }
    }

    /// Its id.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// Number of records so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Number of words of the records so far.
    pub fn data_words(&self) -> u32 {
        self.data_words
    }

    /// Appends a record to the table, and its words to `out`.
    pub fn add(
        &mut self,
        key: TableKey<'_>,
        sequence: u64,
        kind: RecordKind,
        value: &[u8],
        out: &mut Vec<u64>,
    ) -> Result<(), RefusedRecord> {
        if key.bytes() > MAX_KEY_BYTES {
            return Err(RefusedRecord::KeyTooLong { bytes: key.bytes() });
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(RefusedRecord::ValueTooLong { bytes: value.len() });
        }
        let has_wrong_value = kind == RecordKind::Tombstone && !value.is_empty();
        if sequence > MAX_SEQUENCE || has_wrong_value {
            return Err(RefusedRecord::Malformed);
        }
        let words = record_words(key.bytes(), value.len()) as u32;
        self.note(key, sequence, kind, words)?;
        append_record(self.table, key, sequence, kind, value, out);
        Ok(())
    }

    /// Appends a record of another table, and its words to `out`.
    #[inline]
    pub fn put(
        &mut self,
        record: SsTableRecord<'_>,
        out: &mut Vec<u64>,
    ) -> Result<(), RefusedRecord> {
        self.note(record.key(), record.sequence(), record.kind(), record.words() as u32)?;
        record.append_to(self.table, out);
        Ok(())
    }

    fn note(
        &mut self,
        key: TableKey<'_>,
        sequence: u64,
        kind: RecordKind,
        words: u32,
    ) -> Result<(), RefusedRecord> {
        let previous = (self.records > 0).then(|| self.last.key());
        let is_first = match previous.map(|previous| previous.cmp(&key)) {
            None | Some(Ordering::Less) => true,
            Some(Ordering::Equal) if sequence < self.last_sequence => false,
            Some(_) => return Err(RefusedRecord::OutOfOrder),
        };
        // Upper bound of the sections' size, assuming the longest fences.
        let (index_bytes, each) = match &self.search {
            SearchWriter::Fences(fences) => (fences.bytes() + 24 + key.bytes(), 16),
            SearchWriter::Full(full) => (full.bytes() + 24 + key.bytes(), 8),
            SearchWriter::Written => (0, 0),
        };
        let sections = index_bytes as u64 / 8 + (self.records + 1) * each / 8 + FIXED_WORDS;
        let data_words = u64::from(self.data_words) + u64::from(words);
        if data_words + sections > self.most_words.into() {
            return Err(RefusedRecord::Full);
        }
        let place = match &mut self.search {
            SearchWriter::Fences(fences) => fences.push(previous, key, words),
            SearchWriter::Full(full) => {
                full.push(key, sequence, self.data_words..data_words as u32);
                0
            }
            SearchWriter::Written => 0,
        };
        if is_first {
            self.keys.push((key.hash(), place as u8));
            self.last.set(key);
        }
        if self.records == 0 {
            self.smallest.set(key);
        }
        self.last_sequence = sequence;
        self.records += 1;
        self.tombstones += u64::from(kind == RecordKind::Tombstone);
        self.data_words = data_words as u32;
        self.lowest = self.lowest.min(sequence);
        self.highest = self.highest.max(sequence);
        Ok(())
    }

    /// Appends the sections and the footer to `out`, and describes the table, for `level` and
    /// without extents yet. `None` if it has no records.
    pub fn finish(self, level: u8, out: &mut Vec<u64>) -> Option<SsTableMeta> {
        let mut finishing = self.finishing(level);
        loop {
            if let Some(meta) = finishing.step(usize::MAX, out) {
                return meta;
            }
        }
    }

    /// As [`SsTableBuilder::finish`], in steps.
    pub fn finishing(self, level: u8) -> SsTableFinisher {
        SsTableFinisher { builder: self, level, begun: None }
    }
}

/// A table whose index is being written.
#[derive(Debug)]
pub struct SsTableFinisher {
    builder: SsTableBuilder,
    level: u8,
    begun: Option<WrittenSearch>,
}

/// What is known once the search section is written.
#[derive(Debug)]
struct WrittenSearch {
    search: SearchMethod,
    /// Where the search and the membership section begin in the caller's words.
    sections: [usize; 2],
    locate: Option<LocateBuilder>,
}

impl SsTableFinisher {
    /// Goes on with about `budget` keys, which takes some 30 ns each. What it returns once it is
    /// done is that of [`SsTableBuilder::finish`]. Until then the caller leaves `out` as it is.
    pub fn step(&mut self, budget: usize, out: &mut Vec<u64>) -> Option<Option<SsTableMeta>> {
        if self.builder.records == 0 {
            return Some(None);
        }
        let Some(begun) = &mut self.begun else {
            self.begun = Some(self.builder.begin_index(out));
            return None;
        };
        let is_located = match &mut begun.locate {
            Some(building) => building.step(budget, out)?,
            None => false,
        };
        let WrittenSearch { search, sections, .. } = *begun;
        let builder = &mut self.builder;
        let membership = if is_located {
            Membership::Locate
        } else {
            let hashes = builder.keys.iter().map(|key| key.0);
            build_bloom(hashes, builder.bloom_bits().clamp(1, MAX_BLOOM_BITS), out);
            Membership::Bloom
        };
        let footer = builder.footer(search, membership, sections, out);
        out.extend_from_slice(&footer.encode());
        Some(Some(SsTableMeta {
            level: self.level,
            footer,
            smallest: std::mem::take(&mut builder.smallest),
            largest: std::mem::take(&mut builder.last),
            clip: SsTableClip::default(),
            extents: Vec::new(),
        }))
    }
}

impl SsTableBuilder {
    /// Appends the search section.
    fn begin_index(&mut self, out: &mut Vec<u64>) -> WrittenSearch {
        let begin = out.len();
        let search = match std::mem::replace(&mut self.search, SearchWriter::Written) {
            SearchWriter::Fences(fences) => {
                fences.finish(out);
                SearchMethod::Fences
            }
            SearchWriter::Full(full) => {
                full.finish(out);
                SearchMethod::Full
            }
            SearchWriter::Written => unreachable!("a builder is finished once"),
        };
        let locate = (self.kind == IndexKind::Compact)
            .then(|| LocateBuilder::new(self.keys.clone(), 0..self.seeds));
        WrittenSearch { search, sections: [begin, out.len()], locate }
    }

    fn bloom_bits(&self) -> u8 {
        match self.kind {
            IndexKind::Compact => FALLBACK_BLOOM_BITS,
            IndexKind::Full { bloom_bits } | IndexKind::Blocks { bloom_bits, .. } => bloom_bits,
        }
    }

    /// The footer behind the sections, of which the first begins at `begin`.
    fn footer(
        &self,
        search: SearchMethod,
        membership: Membership,
        [begin, middle]: [usize; 2],
        out: &[u64],
    ) -> SsTableFooter {
        let unit = match self.kind {
            IndexKind::Compact => GROUP_RECORDS,
            IndexKind::Full { .. } => 1,
            IndexKind::Blocks { block_bytes, .. } => block_bytes / 8,
        };
        SsTableFooter {
            search,
            membership,
            unit,
            table: self.table,
            shard: self.shard,
            records: self.records,
            keys: self.keys.len() as u64,
            tombstones: self.tombstones,
            data_words: self.data_words,
            membership_start: self.data_words + (middle - begin) as u32,
            footer_start: self.data_words + (out.len() - begin) as u32,
            sums: [sum_of(&out[begin..middle]), sum_of(&out[middle..])],
            lowest: self.lowest,
            highest: self.highest,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::{SsTableIndex, SsTableLookup, VisibleVersion, pick};
    use super::*;

    const KEYS: u64 = 100;

    /// A compact table of `KEYS` numbers whose builder `change` has changed before the end. The
    /// READs of each key, if it is looked up by `hash_of` its number.
    fn reads(
        change: impl Fn(&mut SsTableBuilder),
        hash_of: impl Fn(u64) -> u64,
    ) -> Vec<SsTableLookup> {
        let (mut builder, mut words) = (SsTableBuilder::new(1, 0, IndexKind::Compact), Vec::new());
        for number in 0..KEYS {
            let key = KeyBuf::from_number(number);
            builder
                .add(key.key(), 1, RecordKind::Value, &number.to_le_bytes(), &mut words)
                .unwrap();
        }
        change(&mut builder);
        let data = builder.finish(0, &mut words).unwrap().footer.data_words as usize;
        let index = SsTableIndex::open(words.split_off(data), 1).unwrap();
        let find = |number| {
            let key = KeyBuf::from_number(number);
            let found = index.find(key.key(), hash_of(number), 1).unwrap();
            let range = match &found {
                SsTableLookup::Absent => return found,
                SsTableLookup::Group(range) | SsTableLookup::Record { words: range, .. } => range,
            };
            let read = &words[range.start as usize..range.end as usize];
            assert!(
                matches!(pick(read, 1, key.key(), 1), Ok(VisibleVersion::Record(_))),
                "{number}"
            );
            found
        };
        (0..KEYS).map(find).collect()
    }

    fn hash(number: u64) -> u64 {
        KeyBuf::from_number(number).key().hash()
    }

    /// Checks lsm.B5 when no static function can be built, and for keys with equal hashes.
    #[test]
    fn lookups_read_groups_where_the_static_function_fails() {
        let found = reads(|_| {}, hash);
        assert!(found.iter().all(|found| matches!(found, SsTableLookup::Record { .. })));
        let found = reads(|builder| builder.seeds = 0, hash);
        assert!(found.iter().all(|found| matches!(found, SsTableLookup::Group(_))));
        // Treat keys 3 and 70 as if their hashes were equal.
        let alike = |number| hash(if number == 70 { 3 } else { number });
        let found = reads(|builder| builder.keys[70].0 = hash(3), alike);
        for (number, found) in found.iter().enumerate() {
            assert_eq!(
                matches!(found, SsTableLookup::Group(_)),
                [3, 70].contains(&number),
                "{number}"
            );
        }
    }
}
