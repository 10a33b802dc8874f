//! A cursor over contiguous records, in both directions.
//!
//! *Thread safety*: plain values, over private copies of words.

use super::damaged::{DamagedSsTable, SsTablePart};
use super::key::{TableKey, in_table_order};
use super::record::{SsTableRecord, words_needed};

/// Complete, contiguous records of one table.
#[derive(Clone, Debug)]
pub struct RecordRun<W> {
    words: W,
    table: u64,
    /// The first word of each record, and the end.
    starts: Vec<u32>,
}

impl<W: AsRef<[u64]>> RecordRun<W> {
    /// The records of `table` in exactly these words. Each record is checked when it is read.
    pub fn new(words: W, table: u64) -> Result<Self, DamagedSsTable> {
        let damaged = DamagedSsTable::new(table, SsTablePart::Record);
        let (all, mut at) = (words.as_ref(), 0);
        let mut starts = vec![0];
        while let Some(&word) = all.get(at) {
            at += words_needed(word).ok_or(damaged)?;
            starts.push(u32::try_from(at).map_err(|_| damaged)?);
        }
        if at == all.len() { Ok(Self { words, table, starts }) } else { Err(damaged) }
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The record at `index`, checked.
    ///
    /// # Panics
    /// If `index` is not below [`RecordRun::len`].
    pub fn record(&self, index: usize) -> Result<SsTableRecord<'_>, DamagedSsTable> {
        let words = self.starts[index] as usize..self.starts[index + 1] as usize;
        SsTableRecord::parse(&self.words.as_ref()[words], self.table)
    }
}

/// A position in a [`RecordRun`]: between two records, or at either end.
#[derive(Clone, Copy, Debug)]
pub struct RecordCursor<'a, W> {
    run: &'a RecordRun<W>,
    /// The next record to the right.
    next: usize,
}

impl<'a, W: AsRef<[u64]>> RecordCursor<'a, W> {
    /// Before the first record.
    pub fn at_start(run: &'a RecordRun<W>) -> Self {
        Self { run, next: 0 }
    }

    /// After the last record.
    pub fn at_end(run: &'a RecordRun<W>) -> Self {
        Self { run, next: run.len() }
    }

    /// Moves between the last record before (`key`, `sequence`) in table order and the first one
    /// not before it. So with the highest sequence number it moves before all versions of `key`,
    /// and with a bound it moves before the version to read as of that bound.
    pub fn seek(&mut self, key: TableKey<'_>, sequence: u64) -> Result<(), DamagedSsTable> {
        let (mut low, mut high) = (0, self.run.len());
        while low < high {
            let middle = low.midpoint(high);
            let record = self.run.record(middle)?;
            let order = in_table_order((record.key(), record.sequence()), (key, sequence));
            if order.is_lt() { low = middle + 1 } else { high = middle }
        }
        self.next = low;
        Ok(())
    }

    /// Returns the record to the right and moves past it. `None` at the end.
    #[expect(clippy::should_implement_trait, reason = "`prev` is its equal")]
    pub fn next(&mut self) -> Result<Option<SsTableRecord<'a>>, DamagedSsTable> {
        if self.next == self.run.len() {
            return Ok(None);
        }
        let record = self.run.record(self.next)?;
        self.next += 1;
        Ok(Some(record))
    }

    /// Returns the record to the left and moves past it. `None` at the beginning.
    pub fn prev(&mut self) -> Result<Option<SsTableRecord<'a>>, DamagedSsTable> {
        let Some(before) = self.next.checked_sub(1) else { return Ok(None) };
        let record = self.run.record(before)?;
        self.next = before;
        Ok(Some(record))
    }
}
