//! A table's index: the sections between its records and its end, as cached by a compute server.
//!
//! ```text
//! [records][search: fences or full index][membership: locate or Bloom filter][footer]
//! ```
//!
//! *Invariants*
//! - lsm.B7. No part of a section is used before its checksum has been verified, so an index never
//!   answers from words that are not its own. If an answer leads to another key's record, the key
//!   in the record shows it.
//!
//! *Thread safety*: plain values.

use super::damaged::{DamagedSsTable, SsTablePart};
use super::fences::SsTableFences;
use super::filter::BloomFilter;
use super::footer::{FOOTER_WORDS, Membership, SearchMethod, SsTableFooter};
use super::full_index::FullIndex;
use super::key::{KeyBuf, TableKey};
use super::locate::{GroupPlace, LocateFunction};
use super::packed::sum_of;
use std::ops::Range;

/// Where a table may have a key. Words are counted from the first word of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SsTableLookup {
    /// The table does not have the key.
    Absent,
    /// Either this record belongs to the key, or the key is absent. With a full index, it is the
    /// newest version at or below the bound. Otherwise it is the newest of all versions, and older
    /// ones may follow it, up to `end`.
    Record {
        /// The record.
        words: Range<u32>,
        /// The end of its group.
        end: u32,
    },
    /// The key is among the records of this group or block, or absent.
    Group(Range<u32>),
}

/// The sections and the footer of a table.
#[derive(Clone, Debug)]
pub struct SsTableIndex {
    footer: SsTableFooter,
    words: Vec<u64>,
}

impl SsTableIndex {
    /// Opens the index of `table` in the words between its records and the table's end.
    pub fn open(words: Vec<u64>, table: u64) -> Result<Self, DamagedSsTable> {
        let damaged = DamagedSsTable::new(table, SsTablePart::Footer);
        let at = words.len().checked_sub(FOOTER_WORDS).ok_or(damaged)?;
        let footer = SsTableFooter::decode(&words[at..], table)?;
        if at as u64 != u64::from(footer.footer_start - footer.data_words) {
            return Err(damaged);
        }
        let index = Self { footer, words };
        let is_intact = sum_of(index.search()) == footer.sums[0]
            && sum_of(index.membership()) == footer.sums[1]
            && index.sections_open();
        if is_intact { Ok(index) } else { Err(DamagedSsTable::new(table, SsTablePart::Section)) }
    }

    fn sections_open(&self) -> bool {
        let opens = match self.footer.search {
            SearchMethod::Fences => SsTableFences::open(self.search()).is_some(),
            SearchMethod::Full => FullIndex::open(self.search()).is_some(),
        };
        opens
            && match self.footer.membership {
                Membership::Locate => LocateFunction::open(self.membership()).is_some(),
                Membership::Bloom => BloomFilter::open(self.membership()).is_some(),
            }
    }

    /// The table's footer.
    pub fn footer(&self) -> &SsTableFooter {
        &self.footer
    }

    /// Its size in memory, without the fixed part, in bytes.
    pub fn bytes(&self) -> usize {
        self.words.len() * 8
    }

    fn search(&self) -> &[u64] {
        &self.words[..(self.footer.membership_start - self.footer.data_words) as usize]
    }

    fn membership(&self) -> &[u64] {
        &self.words[self.search().len()..self.words.len() - FOOTER_WORDS]
    }

    fn damaged(&self) -> DamagedSsTable {
        DamagedSsTable::new(self.footer.table, SsTablePart::Section)
    }

    fn fences(&self) -> Result<SsTableFences<'_>, DamagedSsTable> {
        SsTableFences::open(self.search()).ok_or(self.damaged())
    }

    fn full(&self) -> Result<FullIndex<'_>, DamagedSsTable> {
        FullIndex::open(self.search()).ok_or(self.damaged())
    }

    /// What the membership section tells about a key with this hash.
    #[inline]
    fn place(&self, hash: u64) -> Result<GroupPlace, DamagedSsTable> {
        match self.footer.membership {
            Membership::Locate => {
                Ok(LocateFunction::open(self.membership()).ok_or(self.damaged())?.find(hash))
            }
            Membership::Bloom => {
                let bloom = BloomFilter::open(self.membership()).ok_or(self.damaged())?;
                Ok(if bloom.may_have(hash) { GroupPlace::Anywhere } else { GroupPlace::Absent })
            }
        }
    }

    /// Whether the table may have a key with this hash.
    pub fn may_have(&self, hash: u64) -> Result<bool, DamagedSsTable> {
        Ok(self.place(hash)? != GroupPlace::Absent)
    }

    /// Where `key`, whose hash is `hash`, is as of the sequence number `bound`.
    pub fn find(
        &self,
        key: TableKey<'_>,
        hash: u64,
        bound: u64,
    ) -> Result<SsTableLookup, DamagedSsTable> {
        let place = self.place(hash)?;
        if place == GroupPlace::Absent {
            return Ok(SsTableLookup::Absent);
        }
        if self.footer.search == SearchMethod::Full {
            let Some(words) = self.full()?.find(key, bound) else {
                return Ok(SsTableLookup::Absent);
            };
            let end = words.end;
            let lies_inside = end <= self.footer.data_words;
            return lies_inside
                .then_some(SsTableLookup::Record { words, end })
                .ok_or(self.damaged());
        }
        let fences = self.fences()?;
        let group = fences.group_of(key);
        let all = fences.group_words(group);
        let lies_inside = |all: &Range<u32>| all.end <= self.footer.data_words;
        let all = all.filter(lies_inside).ok_or(self.damaged())?;
        Ok(match place {
            GroupPlace::Anywhere | GroupPlace::Absent => SsTableLookup::Group(all),
            // A position from another group's key may not exist here.
            GroupPlace::At(place) => match fences.record_words(group, place) {
                Some(words) => SsTableLookup::Record { words, end: all.end },
                None => SsTableLookup::Absent,
            },
        })
    }

    /// The number of positions where reading can begin: groups, or records of a full index.
    fn units(&self) -> Result<u32, DamagedSsTable> {
        match self.footer.search {
            SearchMethod::Fences => Ok(self.fences()?.groups() as u32),
            SearchMethod::Full => Ok(self.full()?.records()),
        }
    }

    /// The first word of a unit; for the unit after the last, the end of the data.
    fn unit_start(&self, unit: u32) -> Result<u32, DamagedSsTable> {
        let words = match self.footer.search {
            SearchMethod::Fences => self.fences()?.group_words(unit as usize),
            SearchMethod::Full => self.full()?.record_words(unit),
        };
        match words {
            Some(words) if words.end <= self.footer.data_words => Ok(words.start),
            None if unit == self.units()? => Ok(self.footer.data_words),
            _ => Err(self.damaged()),
        }
    }

    /// The first unit for whose first word `is_behind` returns true; the number of units if there
    /// is none.
    fn first_unit(&self, is_behind: impl Fn(u32) -> bool) -> Result<u32, DamagedSsTable> {
        let (mut low, mut high) = (0, self.units()?);
        while low < high {
            let middle = low.midpoint(high);
            if is_behind(self.unit_start(middle)?) { high = middle } else { low = middle + 1 }
        }
        Ok(low)
    }

    /// The first word of a record at or before the first one with a key of at least `key`. Reading
    /// from there on misses none of these records.
    pub fn seek(&self, key: TableKey<'_>) -> Result<u32, DamagedSsTable> {
        let unit = match self.footer.search {
            SearchMethod::Fences => self.fences()?.group_of(key) as u32,
            SearchMethod::Full => self.full()?.seek(key, u64::MAX),
        };
        self.unit_start(unit)
    }

    /// A word at which a record begins, or the end of the data, with no record of `key` or below
    /// behind it.
    pub fn seek_behind(&self, key: TableKey<'_>) -> Result<u32, DamagedSsTable> {
        let unit = match self.footer.search {
            SearchMethod::Fences => self.fences()?.group_of(key) as u32 + 1,
            SearchMethod::Full => self.full()?.seek(key, 0),
        };
        self.unit_start(unit.min(self.units()?))
    }

    /// Keys that cut the table into at most `parts` parts with about as many records each,
    /// ascending and above the first key: a compaction can be cut there for several workers.
    pub fn split_keys(&self, parts: u32) -> Result<Vec<KeyBuf>, DamagedSsTable> {
        let units = self.units()?;
        let mut keys: Vec<KeyBuf> = Vec::new();
        for part in 1..parts.min(units) {
            let unit = (u64::from(units) * u64::from(part) / u64::from(parts.min(units))) as u32;
            let key = match self.footer.search {
                SearchMethod::Fences => self.fences()?.fence(unit as usize),
                SearchMethod::Full => self.full()?.key(unit),
            };
            // Records of a full index may be versions of one key.
            let above = match keys.last() {
                Some(last) => *last < key,
                None => self.footer.search == SearchMethod::Fences || self.full()?.key(0) < key,
            };
            if above {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// Records from `word` on: about `at_most` words, but at least a group. Empty at the end. Only
    /// for words from [`SsTableIndex::seek`] and [`SsTableIndex::seek_behind`], and the ends of
    /// such ranges.
    pub fn after(&self, word: u32, at_most: u32) -> Result<Range<u32>, DamagedSsTable> {
        let reach = word.saturating_add(at_most);
        let next = self.unit_start(self.first_unit(|start| start > word)?)?;
        let last = match self.footer.data_words {
            end if end <= reach => end,
            _ => {
                let beyond = self.first_unit(|start| start > reach)?;
                self.unit_start(beyond.saturating_sub(1))?
            }
        };
        Ok(word..next.max(last).max(word))
    }

    /// Records ending at `word`: about `at_most` words, but at least a group. Empty at the
    /// beginning. Only for words from [`SsTableIndex::seek`] and [`SsTableIndex::seek_behind`], the
    /// beginnings of such ranges, and the end of the data.
    pub fn before(&self, word: u32, at_most: u32) -> Result<Range<u32>, DamagedSsTable> {
        let own = self.first_unit(|start| start >= word)?;
        let reached = self.first_unit(|start| start >= word.saturating_sub(at_most))?;
        Ok(self.unit_start(reached.min(own.saturating_sub(1)))?.min(word)..word)
    }
}
