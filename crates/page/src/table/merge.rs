//! Merging tables in bounded steps. Compute servers and memory servers run the same code.
//!
//! A merge does no I/O. It says which source it needs words from, and its caller feeds them, in
//! pieces of any size; so a caller decides what it reads ahead. A source is a table, or several
//! tables with ascending keys, one after the other, each with the range of its keys that counts.
//!
//! *Invariants*
//! - lsm.J7. All versions of a key are in one output.
//! - lsm.J8. Words that are no records of the source's table, and records out of order, end the
//!   merge with [`DamagedSsTable`]. Until then its output has only records that belong before the
//!   damaged ones. Records outside the range count too: a source goes on to its end, and a key of
//!   the range that comes behind one above the range is out of order.
//!
//! *Thread safety*: a plain value.

use super::builder::{RefusedRecord, SsTableBuilder};
use super::damaged::{DamagedSsTable, SsTablePart};
use super::footer::MAX_TABLE_WORDS;
use super::key::{KeyBuf, TableKey};
use super::meta::SsTableClip;
use super::record::{SsTableRecord, words_needed};
use super::survive::{LowerLevels, Survival};
use std::cmp::Ordering;

/// Options of a compaction.
#[derive(Clone, Debug)]
pub struct CompactionOptions {
    /// Merge only keys of this range.
    pub range: SsTableClip,
    /// The bounds of snapshots in use.
    pub snapshots: Vec<u64>,
    /// The levels below that of the output.
    pub below: LowerLevels,
    /// Keys before which outputs end. Ascending.
    pub cuts: Vec<KeyBuf>,
    /// Outputs end at the first key beyond this number of words of records, or beyond 1 GiB.
    pub table_words: u32,
}

/// Why a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionProgress {
    /// The step has read its words. The next step continues.
    Spent,
    /// This source needs more words, or [`Compaction::end`].
    NeedsInput(usize),
    /// The builder has everything that belongs in its table. The next builder takes what follows.
    TableEnds,
    /// All sources have ended.
    Done,
}

/// Why a merge failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompactionError {
    /// The content of a source is invalid.
    #[error(transparent)]
    Damaged(#[from] DamagedSsTable),
    /// A table cannot take a record that belongs in it.
    #[error("cannot write the merged table: {0}")]
    Refused(#[from] RefusedRecord),
    /// The versions of one key that snapshots still see are too many for a table. Nothing is wrong
    /// with the sources: another merge succeeds once snapshots are gone.
    #[error("the versions of one key do not fit in a table; drop snapshots, and merge again")]
    KeyTooLarge,
}

/// Counts of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionCounts {
    /// Number of records read.
    pub records_in: u64,
    /// Number of records written.
    pub records_out: u64,
    /// Words of the records read, with those outside the range.
    pub words_in: u64,
    /// Number of words of the records written.
    pub words_out: u64,
}

/// A part of a table, by the keys that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum SsTableStretch {
    #[default]
    Below,
    Inside,
    Above,
}

/// A sequence of records, of which a part was fed.
#[derive(Clone, Debug, Default)]
struct CompactionSource {
    table: u64,
    /// The keys of the table that count.
    clip: SsTableClip,
    /// Where the next record lies.
    part: SsTableStretch,
    words: Vec<u64>,
    /// The first word of the next record.
    at: usize,
    /// The beginning of its key.
    head: u64,
    has_ended: bool,
}

impl CompactionSource {
    fn damaged(&self, part: SsTablePart) -> DamagedSsTable {
        DamagedSsTable::new(self.table, part)
    }

    /// The next record, after checking it. `None` if it is still incomplete.
    fn checked(&self) -> Result<Option<SsTableRecord<'_>>, DamagedSsTable> {
        let rest = &self.words[self.at..];
        let Some(&first) = rest.first() else { return Ok(None) };
        let needed = words_needed(first).ok_or(self.damaged(SsTablePart::Record))?;
        if needed > rest.len() {
            return Ok(None);
        }
        SsTableRecord::parse(rest, self.table).map(Some)
    }

    /// The next record, which has been checked before.
    #[inline]
    fn record(&self) -> Result<SsTableRecord<'_>, DamagedSsTable> {
        let record = SsTableRecord::checked_before(&self.words[self.at..], self.table);
        record.ok_or(self.damaged(SsTablePart::Record))
    }

    fn part_of(&self, key: TableKey<'_>) -> SsTableStretch {
        if self.clip.has(key) {
            SsTableStretch::Inside
        } else if self.clip.upper.as_ref().is_some_and(|upper| upper.key() <= key) {
            SsTableStretch::Above
        } else {
            SsTableStretch::Below
        }
    }
}

/// A compaction in progress.
#[derive(Debug)]
pub struct Compaction {
    options: CompactionOptions,
    survival: Survival,
    sources: Vec<CompactionSource>,
    /// The sources that have a next record. The one with the first record is last.
    order: Vec<usize>,
    /// The sources without a next record that have not ended.
    waiting: Vec<usize>,
    /// The last record read: its key and sequence number.
    last: Option<(KeyBuf, u64)>,
    next_cut: usize,
    counts: CompactionCounts,
    failed: Option<CompactionError>,
}

impl Compaction {
    /// Outputs end at a key beyond this many words, so that a key that begins below has as much
    /// room again for its versions (lsm.J7).
    const MAX_OUTPUT_WORDS: u32 = MAX_TABLE_WORDS / 2;

    /// A compaction of `sources` sources, none of which has its first table yet.
    pub fn new(sources: usize, mut options: CompactionOptions) -> Self {
        options.table_words = options.table_words.min(Self::MAX_OUTPUT_WORDS);
        let survival = Survival::new(options.snapshots.clone(), options.below.clone());
        Self {
            options,
            survival,
            sources: vec![CompactionSource::default(); sources],
            order: Vec::with_capacity(sources),
            waiting: (0..sources).rev().collect(),
            last: None,
            next_cut: 0,
            counts: CompactionCounts::default(),
            failed: None,
        }
    }

    /// What has been read and written so far.
    pub fn counts(&self) -> CompactionCounts {
        self.counts
    }

    /// From now on, outputs end at the first key beyond this many words of records.
    pub fn limit_tables(&mut self, table_words: u32) {
        self.options.table_words = table_words.min(Self::MAX_OUTPUT_WORDS);
    }

    /// The first key that is in no output yet. `None` if there is none, or if a source needs input.
    pub fn next_key(&self) -> Option<KeyBuf> {
        if !self.waiting.is_empty() {
            return None;
        }
        let record = self.sources[*self.order.last()?].record().ok()?;
        Some(record.key().into())
    }

    /// Number of words that a source has been fed and that have not been merged yet.
    pub fn held_words(&self, source: usize) -> usize {
        self.sources[source].words.len() - self.sources[source].at
    }

    /// Names the table of the next words of a source. Of it, only keys of `clip` count, and of
    /// these only those of the compaction's range. Call this before the first words of each table,
    /// when the source needs input.
    pub fn begin(
        &mut self,
        source: usize,
        table: u64,
        clip: &SsTableClip,
    ) -> Result<(), CompactionError> {
        let held = &mut self.sources[source];
        if held.at < held.words.len() {
            return self.fail(self.sources[source].damaged(SsTablePart::Record));
        }
        held.table = table;
        held.clip = clip.within(&self.options.range);
        held.part = SsTableStretch::Below;
        Ok(())
    }

    /// Appends words of a source's table: records back to back, the last of which may be cut off.
    /// The caller feeds all words from a place that has no key of the range before it up to one
    /// that has none behind it.
    pub fn feed(&mut self, source: usize, words: &[u64]) -> Result<(), CompactionError> {
        let held = &mut self.sources[source];
        if held.has_ended || words.is_empty() {
            return Ok(());
        }
        held.words.drain(..held.at);
        held.at = 0;
        held.words.extend_from_slice(words);
        self.look_if_waiting(source)
    }

    /// Records that a source has no more words.
    pub fn end(&mut self, source: usize) -> Result<(), CompactionError> {
        self.sources[source].has_ended = true;
        self.look_if_waiting(source)
    }

    fn fail<T>(&mut self, damaged: DamagedSsTable) -> Result<T, CompactionError> {
        self.failed = Some(damaged.into());
        Err(damaged.into())
    }

    fn look_if_waiting(&mut self, source: usize) -> Result<(), CompactionError> {
        if let Some(at) = self.waiting.iter().position(|&waiting| waiting == source) {
            self.waiting.swap_remove(at);
            if let Err(damaged) = self.look(source) {
                return self.fail(damaged);
            }
        }
        Ok(())
    }

    /// Finds the next record of a source within the range, and inserts the source at its position
    /// among the others.
    fn look(&mut self, index: usize) -> Result<(), DamagedSsTable> {
        let source = &mut self.sources[index];
        loop {
            let Some(record) = source.checked()? else {
                if !source.has_ended {
                    self.waiting.push(index);
                } else if source.at < source.words.len() {
                    return Err(source.damaged(SsTablePart::Record));
                }
                return Ok(());
            };
            let (key, words) = (record.key(), record.words());
            let (head, part) = (key.head(), source.part_of(key));
            if part < source.part {
                return Err(source.damaged(SsTablePart::Order));
            }
            source.part = part;
            if part == SsTableStretch::Inside {
                source.head = head;
                break;
            }
            source.at += words;
            // They cost as much as the others.
            self.counts.words_in += words as u64;
        }
        let (mut low, mut high) = (0, self.order.len());
        while low < high {
            let middle = low.midpoint(high);
            let is_behind = self.compare(self.order[middle], index)?.is_gt();
            if is_behind { low = middle + 1 } else { high = middle }
        }
        self.order.insert(low, index);
        Ok(())
    }

    /// The order of the next records of two sources.
    #[inline]
    fn compare(&self, one: usize, two: usize) -> Result<Ordering, DamagedSsTable> {
        let order = self.sources[one].head.cmp(&self.sources[two].head);
        if order.is_ne() {
            return Ok(order);
        }
        let (one, two) = (self.sources[one].record()?, self.sources[two].record()?);
        let order = one.key().cmp(&two.key());
        Ok(order.then(two.sequence().cmp(&one.sequence())))
    }

    /// Merges about `budget_words` words of input into `builder`'s table, whose words go to `out`.
    pub fn step(
        &mut self,
        budget_words: u64,
        builder: &mut SsTableBuilder,
        out: &mut Vec<u64>,
    ) -> Result<CompactionProgress, CompactionError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let progress = self.advance(budget_words, builder, out);
        self.failed = progress.err();
        progress
    }

    fn advance(
        &mut self,
        budget_words: u64,
        builder: &mut SsTableBuilder,
        out: &mut Vec<u64>,
    ) -> Result<CompactionProgress, CompactionError> {
        let end = self.counts.words_in.saturating_add(budget_words);
        loop {
            if let Some(&source) = self.waiting.last() {
                return Ok(CompactionProgress::NeedsInput(source));
            }
            let Some(&index) = self.order.last() else { return Ok(CompactionProgress::Done) };
            if self.counts.words_in >= end {
                return Ok(CompactionProgress::Spent);
            }
            let source = &self.sources[index];
            let record = source.record()?;
            let (key, sequence) = (record.key(), record.sequence());
            let is_first = match &self.last {
                None => true,
                Some((last, above)) => match last.key().cmp(&key) {
                    Ordering::Less => true,
                    Ordering::Equal if sequence <= *above => false,
                    _ => return Err(source.damaged(SsTablePart::Order).into()),
                },
            };
            if is_first && ends_before(key, builder, &self.options, &mut self.next_cut) {
                return Ok(CompactionProgress::TableEnds);
            }
            let words = record.words() as u64;
            if self.survival.keeps(key, sequence, record.kind(), is_first) {
                match builder.put(record, out) {
                    // Nothing has changed; the next table takes the key.
                    Err(RefusedRecord::Full) if is_first && builder.records() > 0 => {
                        return Ok(CompactionProgress::TableEnds);
                    }
                    Err(RefusedRecord::Full) if !is_first => {
                        return Err(CompactionError::KeyTooLarge);
                    }
                    put => put?,
                }
                self.counts.records_out += 1;
                self.counts.words_out += words;
            }
            let last = self.last.get_or_insert_default();
            if is_first {
                last.0.set(key);
            }
            last.1 = sequence;
            self.counts.records_in += 1;
            self.counts.words_in += words;
            self.sources[index].at += words as usize;
            self.order.pop();
            self.look(index)?;
        }
    }
}

/// Whether `builder`'s table ends before `key`, which is a new key (lsm.J7).
fn ends_before(
    key: TableKey<'_>,
    builder: &SsTableBuilder,
    options: &CompactionOptions,
    next_cut: &mut usize,
) -> bool {
    let cuts = options.cuts.get(*next_cut..).unwrap_or(&[]);
    let passed = cuts.iter().take_while(|cut| cut.key() <= key).count();
    *next_cut += passed;
    builder.records() > 0 && (passed > 0 || builder.data_words() >= options.table_words)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::builder::FIXED_WORDS;
    use super::super::{IndexKind, RecordKind};
    use super::*;

    fn small(table: u64, room: u32) -> SsTableBuilder {
        let mut builder = SsTableBuilder::new(table, 0, IndexKind::Compact);
        builder.most_words = FIXED_WORDS as u32 + room;
        builder
    }

    /// Merges a table of keys 0 to 9, each with `versions` versions of 80 bytes, all of which
    /// snapshots see, into tables with little room, which end at a key beyond `table_words`. The
    /// records of each.
    fn tables_of(versions: u64, room: u32, table_words: u32) -> Result<Vec<u64>, CompactionError> {
        let (mut source, mut words) = (SsTableBuilder::new(1, 0, IndexKind::Compact), Vec::new());
        for number in 0..10 {
            let key = KeyBuf::from_number(number);
            for sequence in (1..=versions).rev() {
                source.add(key.key(), sequence, RecordKind::Value, &[1; 80], &mut words).unwrap();
            }
        }
        let mut merge = Compaction::new(
            1,
            CompactionOptions {
                range: SsTableClip::default(),
                snapshots: (1..=versions).collect(),
                below: LowerLevels::everything(),
                cuts: Vec::new(),
                table_words,
            },
        );
        merge.begin(0, 1, &SsTableClip::default())?;
        merge.feed(0, &words)?;
        merge.end(0)?;
        let (mut builder, mut records) = (small(2, room), Vec::new());
        loop {
            let progress = merge.step(u64::MAX, &mut builder, &mut Vec::new())?;
            let next = small(builder.table() + 1, room);
            records.push(std::mem::replace(&mut builder, next).records());
            if progress == CompactionProgress::Done {
                return Ok(records);
            }
        }
    }

    /// A record has 13 words, and a table with 100 words of room takes 6 of them beside its index.
    /// lsm.J7.
    #[test]
    fn a_full_table_ends_between_keys() {
        assert_eq!(tables_of(1, 100, u32::MAX), Ok(vec![6, 4]));
        assert_eq!(tables_of(2, 100, u32::MAX), Ok(vec![6, 6, 6, 2]));
        // A key that begins in the first half has room, however many versions there are before it.
        assert_eq!(tables_of(3, 100, 50), Ok(vec![6, 6, 6, 6, 6]));
        assert_eq!(tables_of(4, 100, 50), Ok(vec![4; 10]));
        // One key is too much for any table.
        assert_eq!(tables_of(8, 100, 50), Err(CompactionError::KeyTooLarge));
        assert_eq!(tables_of(8, 250, 50), Ok(vec![8; 10]));
    }
}
