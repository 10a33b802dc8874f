//! Scans: a merge of cursors over MemTables and tables, in both directions, as of one bound.
//!
//! A scan takes a snapshot, waits until its bound is settled and pins a version *then*. Merges keep
//! what the snapshot sees, so nothing that the scan must see is missing in the version.
//!
//! *Thread safety*: that of the handle.

use super::handle::DlsmIndex;
use super::memtable::Cursor;
use super::version::{Table, TreeVersion};
use super::{SearchKey, Snapshot};
use crate::index::{IndexError, Records, Scan};
use crate::page::Layout;
use crate::rules::{SCANS_SETTLED, SNAPSHOT_HELD};
use crate::table::{Damaged, IndexKind, KeyBuf, Kind, Run};
use crate::together::all;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, Work};
use std::cmp::Ordering;
use std::ops::Bound;

/// The most words of the first READ of a table.
const FIRST_WORDS: u32 = 8_192;
/// The most words of the following ones, each of which is twice as large as the one before.
const MOST_WORDS: u32 = 32_768;

/// The newest version of a key up to the bound, in one source. Without a value it is a tombstone.
struct Entry {
    key: Vec<u8>,
    sequence: u64,
    value: Option<Vec<u8>>,
}

/// What a scan sees. While it exists, flushes and merges keep that in the newest version of each
/// tree.
pub(super) struct View {
    /// The highest number that the scan sees, which is settled.
    pub(super) bound: u64,
    _snapshot: Option<Snapshot>,
}

enum Source<'v> {
    MemTable(Cursor<'v>),
    Tables(TableSource<'v>),
}

/// Tables with ascending keys, of which a part is here.
struct TableSource<'v> {
    /// Those that are not begun, in the order of the scan.
    tables: Vec<&'v Arc<Table>>,
    /// The table that is read, and the words of it that follow.
    now: Option<(&'v Arc<Table>, u32)>,
    run: Option<Run<Vec<u64>>>,
    /// Records of the run that were passed.
    passed: usize,
    /// About so many words come next.
    words: u32,
    /// Records that the scan wants at most.
    limit: usize,
    /// Ascending: the last key passed. Descending: the key's newest version so far.
    last: Option<Entry>,
}

fn is_above(scan: &Scan<Vec<u8>>, key: &[u8]) -> bool {
    match &scan.upper {
        Bound::Unbounded => false,
        Bound::Included(bound) => key > &bound[..],
        Bound::Excluded(bound) => key >= &bound[..],
    }
}

fn is_below(scan: &Scan<Vec<u8>>, key: &[u8]) -> bool {
    match &scan.lower {
        Bound::Unbounded => false,
        Bound::Included(bound) => key < &bound[..],
        Bound::Excluded(bound) => key <= &bound[..],
    }
}

/// The key of a bound.
fn key_of(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Unbounded => None,
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
    }
}

/// Whether `key` lies behind the range, in the direction of the scan.
fn is_behind(scan: &Scan<Vec<u8>>, key: &[u8]) -> bool {
    if scan.reverse { is_below(scan, key) } else { is_above(scan, key) }
}

/// Whether `key` lies before the range, in the direction of the scan.
fn is_before(scan: &Scan<Vec<u8>>, key: &[u8]) -> bool {
    if scan.reverse { is_above(scan, key) } else { is_below(scan, key) }
}

/// Moves a cursor to where the scan begins.
fn seek(cursor: &mut Cursor<'_>, scan: &Scan<Vec<u8>>) {
    let is_at =
        |cursor: &Cursor<'_>, key: &[u8]| cursor.key().is_some_and(|found| found.to_vec() == key);
    match (scan.reverse, if scan.reverse { &scan.upper } else { &scan.lower }) {
        (false, Bound::Unbounded) => cursor.seek_first(),
        (false, Bound::Included(key)) => cursor.seek(&SearchKey::new(key)),
        (false, Bound::Excluded(key)) => {
            cursor.seek(&SearchKey::new(key));
            if is_at(cursor, key) {
                cursor.next();
            }
        }
        (true, Bound::Unbounded) => cursor.seek_last(),
        (true, Bound::Excluded(key)) => cursor.seek_below(&SearchKey::new(key)),
        (true, Bound::Included(key)) => {
            cursor.seek(&SearchKey::new(key));
            if !is_at(cursor, key) {
                cursor.seek_below(&SearchKey::new(key));
            }
        }
    }
}

/// The entry that a cursor is on, which it passes.
fn pass(cursor: &mut Cursor<'_>, scan: &Scan<Vec<u8>>) -> Option<Entry> {
    let key = cursor.key()?.to_vec();
    if is_behind(scan, &key) {
        return None;
    }
    let version = cursor.version()?;
    let entry = Entry { key, sequence: version.number(), value: version.value() };
    if scan.reverse {
        cursor.prev()
    } else {
        cursor.next()
    }
    Some(entry)
}

impl<'v> TableSource<'v> {
    /// The tables of one level, or one of level 0.
    fn new(tables: &'v [Arc<Table>], scan: &Scan<Vec<u8>>) -> Self {
        let starts_above = |table: &Arc<Table>| {
            key_of(&scan.upper).is_some_and(|key| table.meta.smallest > KeyBuf::from_bytes(key))
        };
        let ends_below = |table: &Arc<Table>| {
            key_of(&scan.lower).is_some_and(|key| table.meta.largest < KeyBuf::from_bytes(key))
        };
        let wanted = tables.iter().filter(|table| !starts_above(table) && !ends_below(table));
        let mut tables: Vec<_> = wanted.collect();
        if !scan.reverse {
            tables.reverse(); // the next one is the last of the list
        }
        let (now, run, last) = (None, None, None);
        Self { tables, now, run, passed: 0, words: 0, limit: scan.limit, last }
    }

    /// The word of `table` where the scan begins.
    fn first_word(table: &Table, scan: &Scan<Vec<u8>>) -> Result<u32, Damaged> {
        let bound = if scan.reverse { &scan.upper } else { &scan.lower };
        let Some(key) = key_of(bound) else {
            return Ok(if scan.reverse { table.meta.footer.data_words } else { 0 });
        };
        let key = KeyBuf::from_bytes(key);
        match scan.reverse {
            false => table.index.seek(key.key()),
            true => table.index.seek_behind(key.key()),
        }
    }

    /// READs the next records. Returns whether there were any.
    async fn fetch<F: Fabric, L: Layout>(
        &mut self,
        index: &DlsmIndex<F, L>,
        scan: &Scan<Vec<u8>>,
    ) -> Result<bool, IndexError> {
        loop {
            let Some((table, word)) = self.now else {
                let Some(table) = self.tables.pop() else { return Ok(false) };
                let damaged = |_| DlsmIndex::<F, L>::damaged(table);
                self.now = Some((table, Self::first_word(table, scan).map_err(damaged)?));
                if self.words == 0 {
                    let footer = &table.meta.footer;
                    let each = u64::from(footer.data_words).div_ceil(footer.records.max(1));
                    let wanted = each.saturating_mul(self.limit as u64);
                    self.words = wanted.min(FIRST_WORDS.into()) as u32;
                }
                continue;
            };
            let damaged = |_: Damaged| DlsmIndex::<F, L>::damaged(table);
            let range = match scan.reverse {
                false => table.index.after(word, self.words),
                true => table.index.before(word, self.words),
            };
            let range = range.map_err(damaged)?;
            if range.is_empty() {
                self.now = None;
                continue;
            }
            self.words = self.words.saturating_mul(2).clamp(1, MOST_WORDS);
            self.now = Some((table, if scan.reverse { range.start } else { range.end }));
            let words = index.read(table, range).await?;
            let bytes = words.len() as u64 * 8;
            let run = Run::new(words, table.id()).map_err(damaged)?;
            let fabric = index.fabric();
            fabric.charge(Work::CopyBytes(bytes)).await;
            fabric.charge(Work::MergeRecords(run.len() as u32)).await;
            if let IndexKind::Blocks { block_bytes, .. } = index.shard.options.index {
                let blocks = (bytes as usize).div_ceil(block_bytes.max(1) as usize);
                for _ in 0..blocks.min(run.len()) {
                    fabric.charge(Work::VisitNode).await;
                }
            }
            (self.run, self.passed) = (Some(run), 0);
            return Ok(true);
        }
    }

    /// The next entry.
    async fn next<F: Fabric, L: Layout>(
        &mut self,
        index: &DlsmIndex<F, L>,
        scan: &Scan<Vec<u8>>,
        bound: u64,
    ) -> Result<Option<Entry>, IndexError> {
        loop {
            let run = self.run.as_ref().filter(|run| self.passed < run.len());
            let Some((run, (table, _))) = run.zip(self.now) else {
                if self.fetch(index, scan).await? {
                    continue;
                }
                return Ok(if scan.reverse { self.last.take() } else { None });
            };
            let place = if scan.reverse { run.len() - 1 - self.passed } else { self.passed };
            let record = run.record(place).map_err(|_| DlsmIndex::<F, L>::damaged(table))?;
            let key = record.key().to_vec();
            let order = self.last.as_ref().map_or(Ordering::Less, |last| key.cmp(&last.key));
            if scan.reverse && self.last.is_some() && order.is_ne() {
                return Ok(self.last.take()); // this record comes again
            }
            self.passed += 1;
            if record.sequence() > bound || !scan.reverse && order.is_eq() {
                continue;
            }
            if is_before(scan, &key) {
                continue;
            }
            if is_behind(scan, &key) {
                (self.run, self.now, self.tables) = (None, None, Vec::new());
                return Ok(self.last.take().filter(|_| scan.reverse));
            }
            let mut value = Vec::new();
            record.append_value(&mut value);
            let value = (record.kind() == Kind::Value).then_some(value);
            let entry = Entry { key, sequence: record.sequence(), value };
            if scan.reverse {
                self.last = Some(entry); // unless a newer version of the key follows
            } else {
                let passed = Entry { key: Vec::new(), sequence: 0, value: None };
                self.last.get_or_insert(passed).key.clone_from(&entry.key);
                return Ok(Some(entry));
            }
        }
    }
}

impl Source<'_> {
    async fn next<F: Fabric, L: Layout>(
        &mut self,
        index: &DlsmIndex<F, L>,
        scan: &Scan<Vec<u8>>,
        bound: u64,
    ) -> Result<Option<Entry>, IndexError> {
        match self {
            Self::MemTable(cursor) => Ok(pass(cursor, scan)),
            Self::Tables(tables) => tables.next(index, scan, bound).await,
        }
    }
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// The records that `scan` selects.
    pub(super) async fn records(
        &self,
        scan: &Scan<Vec<u8>>,
    ) -> Result<Records<Vec<u8>, Vec<u8>>, IndexError> {
        self.check_scan(scan)?;
        if scan.limit == 0 {
            return Ok(Vec::new());
        }
        let view = self.view().await?;
        let version = self.shard.pin();
        let bound = view.bound;
        drop(view); // the version has everything
        self.records_in(&version, bound, scan, usize::MAX).await
    }

    /// Checks the lengths of the keys that bound a scan.
    pub(super) fn check_scan(&self, scan: &Scan<Vec<u8>>) -> Result<(), IndexError> {
        for key in [&scan.lower, &scan.upper].into_iter().filter_map(key_of) {
            self.shard.options.memtable.check(key.len(), 0)?;
        }
        Ok(())
    }

    /// Begins a scan of this tree, and of all that share its numbers.
    pub(super) async fn view(&self) -> Result<View, IndexError> {
        let snapshot = Snapshot::take(&self.shard.sequences);
        let bound = snapshot.bound();
        let snapshot = (!self.fabric().breaks(SNAPSHOT_HELD)).then_some(snapshot);
        if !self.fabric().breaks(SCANS_SETTLED) {
            self.until_settled(bound).await?;
        }
        Ok(View { bound, _snapshot: snapshot })
    }

    /// The records that `scan` selects as of `bound`, which was settled before `version` was
    /// pinned, in a view of this tree. Ends once there are two records or more that have more than
    /// `most_bytes` bytes together.
    pub(super) async fn records_in(
        &self,
        version: &TreeVersion,
        bound: u64,
        scan: &Scan<Vec<u8>>,
        most_bytes: usize,
    ) -> Result<Records<Vec<u8>, Vec<u8>>, IndexError> {
        let memtables = version.memtables().map(|table| {
            let mut cursor = table.cursor(bound);
            seek(&mut cursor, scan);
            Source::MemTable(cursor)
        });
        let (level0, others) = version.levels.split_first().expect("there is a level 0");
        let levels = level0.chunks(1).chain(others.iter().map(Vec::as_slice));
        let tables = levels.map(|tables| Source::Tables(TableSource::new(tables, scan)));
        let mut sources: Vec<Source<'_>> = memtables.chain(tables).collect();
        let first = all(sources.iter_mut().map(|source| source.next(self, scan, bound))).await;
        let mut heads = first.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < scan.limit && (records.len() < 2 || bytes <= most_bytes) {
            let comes_first = |one: &Entry, other: &Entry| {
                let order = one.key.cmp(&other.key);
                let order = if scan.reverse { order.reverse() } else { order };
                order.then(other.sequence.cmp(&one.sequence))
            };
            let places = (0..heads.len()).filter(|place| heads[*place].is_some());
            let next = places.min_by(|one, other| match (&heads[*one], &heads[*other]) {
                (Some(one), Some(other)) => comes_first(one, other),
                _ => Ordering::Equal,
            });
            let Some(next) = next else { break };
            let following = sources[next].next(self, scan, bound).await?;
            let Some(entry) = std::mem::replace(&mut heads[next], following) else { break };
            // Older versions of the key.
            for (source, head) in sources.iter_mut().zip(&mut heads) {
                if head.as_ref().is_some_and(|head| head.key == entry.key) {
                    *head = source.next(self, scan, bound).await?;
                }
            }
            if let Some(value) = entry.value {
                bytes += entry.key.len() + value.len();
                records.push((entry.key, value));
            }
        }
        Ok(records)
    }
}
