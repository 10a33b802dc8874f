//! Merging tables in bounded steps. Compute servers and memory servers run the same code.
//!
//! A merge does no I/O. It reports which source it needs words from, and its caller feeds them in
//! pieces of any size, so the caller decides how far to read ahead. A source is a table, or several
//! tables with ascending keys, one after the other.
//!
//! *Invariants*
//! - lsm.J8. Words that are not records of the source's table, and records out of order, end the
//!   merge with [`Damaged`]. Its output up to that point contains only what precedes them.
//!
//! *Thread safety*: a plain value.

use super::builder::{Builder, Refused};
use super::damaged::{Damaged, Part};
use super::key::{Key, KeyBuf};
use super::meta::Clip;
use super::record::{Record, words_needed};
use super::survive::{Below, Survival};
use std::cmp::Ordering;

/// Options of a merge.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// Merge only keys of this range.
    pub range: Clip,
    /// The bounds of snapshots in use.
    pub snapshots: Vec<u64>,
    /// The levels below that of the output.
    pub below: Below,
    /// Keys before which outputs end. Ascending.
    pub cuts: Vec<KeyBuf>,
    /// An output ends at the first new key after this number of words of records.
    pub table_words: u32,
}

/// Why a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The step has read its words. The next step continues.
    Spent,
    /// This source needs more words, or [`Merge::end`].
    NeedsInput(usize),
    /// The builder has everything that belongs in its table. The next builder takes what follows.
    TableEnds,
    /// All sources have ended.
    Done,
}

/// Why a merge failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// The content of a source is invalid.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// A table cannot take a record that belongs in it.
    #[error("cannot write the merged table: {0}")]
    Refused(#[from] Refused),
}

/// Counts of a merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeCounts {
    /// Number of records read.
    pub records_in: u64,
    /// Number of records written.
    pub records_out: u64,
    /// Number of words of the records read.
    pub words_in: u64,
    /// Number of words of the records written.
    pub words_out: u64,
}

/// A sequence of records, of which some have been fed.
#[derive(Clone, Debug, Default)]
struct Source {
    table: u64,
    words: Vec<u64>,
    /// The first word of the next record.
    at: usize,
    /// The beginning of its key.
    head: u64,
    has_ended: bool,
}

impl Source {
    fn damaged(&self, part: Part) -> Damaged {
        Damaged::new(self.table, part)
    }

    /// The next record, after checking it. `None` if it is still incomplete.
    fn checked(&self) -> Result<Option<Record<'_>>, Damaged> {
        let rest = &self.words[self.at..];
        let Some(&first) = rest.first() else { return Ok(None) };
        let needed = words_needed(first).ok_or(self.damaged(Part::Record))?;
        if needed > rest.len() {
            return Ok(None);
        }
        Record::parse(rest, self.table).map(Some)
    }

    /// The next record, which has been checked before.
    #[inline]
    fn record(&self) -> Result<Record<'_>, Damaged> {
        let record = Record::checked_before(&self.words[self.at..], self.table);
        record.ok_or(self.damaged(Part::Record))
    }

    fn end(&mut self) {
        (self.words, self.at, self.has_ended) = (Vec::new(), 0, true);
    }
}

/// A merge in progress.
#[derive(Debug)]
pub struct Merge {
    options: MergeOptions,
    survival: Survival,
    sources: Vec<Source>,
    /// The sources that have a next record. The one with the first record is last.
    order: Vec<usize>,
    /// The sources without a next record that have not ended.
    waiting: Vec<usize>,
    /// The last record read: its key and sequence number.
    last: Option<(KeyBuf, u64)>,
    next_cut: usize,
    counts: MergeCounts,
    failed: Option<MergeError>,
}

impl Merge {
    /// Creates a merge of `sources` sources, none of which has words yet.
    pub fn new(sources: usize, options: MergeOptions) -> Self {
        let survival = Survival::new(options.snapshots.clone(), options.below.clone());
        Self {
            options,
            survival,
            sources: vec![Source::default(); sources],
            order: Vec::with_capacity(sources),
            waiting: (0..sources).rev().collect(),
            last: None,
            next_cut: 0,
            counts: MergeCounts::default(),
            failed: None,
        }
    }

    /// What has been read and written so far.
    pub fn counts(&self) -> MergeCounts {
        self.counts
    }

    /// Number of words that a source has been fed and that have not been merged yet.
    pub fn held_words(&self, source: usize) -> usize {
        self.sources[source].words.len() - self.sources[source].at
    }

    /// Appends words of `table` to a source: contiguous records, the last of which may be
    /// incomplete. Words of the next table may be fed only when the source needs input. Words
    /// beyond the range are dropped.
    pub fn feed(&mut self, source: usize, table: u64, words: &[u64]) -> Result<(), MergeError> {
        let held = &mut self.sources[source];
        if held.has_ended || words.is_empty() {
            return Ok(());
        }
        if held.table != table && held.at < held.words.len() {
            return self.fail(self.sources[source].damaged(Part::Record));
        }
        held.table = table;
        held.words.drain(..held.at);
        held.at = 0;
        held.words.extend_from_slice(words);
        self.look_if_waiting(source)
    }

    /// Records that a source has no more words.
    pub fn end(&mut self, source: usize) -> Result<(), MergeError> {
        self.sources[source].has_ended = true;
        self.look_if_waiting(source)
    }

    fn fail<T>(&mut self, damaged: Damaged) -> Result<T, MergeError> {
        self.failed = Some(damaged.into());
        Err(damaged.into())
    }

    fn look_if_waiting(&mut self, source: usize) -> Result<(), MergeError> {
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
    fn look(&mut self, index: usize) -> Result<(), Damaged> {
        let source = &mut self.sources[index];
        loop {
            let Some(record) = source.checked()? else {
                if !source.has_ended {
                    self.waiting.push(index);
                } else if source.at < source.words.len() {
                    return Err(source.damaged(Part::Record));
                }
                return Ok(());
            };
            let (key, words) = (record.key(), record.words());
            if self.options.range.has(key) {
                source.head = key.head();
                break;
            }
            if self.options.range.upper.as_ref().is_some_and(|upper| upper.key() <= key) {
                source.end();
                return Ok(());
            }
            source.at += words;
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
    fn compare(&self, one: usize, two: usize) -> Result<Ordering, Damaged> {
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
        builder: &mut Builder,
        out: &mut Vec<u64>,
    ) -> Result<Progress, MergeError> {
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
        builder: &mut Builder,
        out: &mut Vec<u64>,
    ) -> Result<Progress, MergeError> {
        let end = self.counts.words_in.saturating_add(budget_words);
        loop {
            if let Some(&source) = self.waiting.last() {
                return Ok(Progress::NeedsInput(source));
            }
            let Some(&index) = self.order.last() else { return Ok(Progress::Done) };
            if self.counts.words_in >= end {
                return Ok(Progress::Spent);
            }
            let source = &self.sources[index];
            let record = source.record()?;
            let (key, sequence) = (record.key(), record.sequence());
            let is_first = match &self.last {
                None => true,
                Some((last, above)) => match last.key().cmp(&key) {
                    Ordering::Less => true,
                    Ordering::Equal if sequence <= *above => false,
                    _ => return Err(source.damaged(Part::Order).into()),
                },
            };
            if is_first && ends_before(key, builder, &self.options, &mut self.next_cut) {
                return Ok(Progress::TableEnds);
            }
            let words = record.words() as u64;
            if self.survival.keeps(record, is_first) {
                match builder.put(record, out) {
                    // Nothing has changed; the next table takes the key.
                    Err(Refused::Full) if is_first && builder.records() > 0 => {
                        return Ok(Progress::TableEnds);
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
    key: Key<'_>,
    builder: &Builder,
    options: &MergeOptions,
    next_cut: &mut usize,
) -> bool {
    let cuts = options.cuts.get(*next_cut..).unwrap_or(&[]);
    let passed = cuts.iter().take_while(|cut| cut.key() <= key).count();
    *next_cut += passed;
    builder.records() > 0 && (passed > 0 || builder.data_words() >= options.table_words)
}
