//! Scans: a merge of cursors over MemTables and tables, in both directions, as of one bound.
//!
//! A scan takes a snapshot, waits until its bound is settled and pins a version *then*. Merges keep
//! what the snapshot sees, so nothing that the scan must see is missing in the version.
//!
//! *Thread safety*: that of the handle.

use super::handle::DlsmIndex;
use super::memtable::MemTableCursor;
use super::version::{SsTable, TreeVersion};
use super::{SearchKey, Snapshot};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, Work};
use farleaf_index::together::all;
use farleaf_index::{IndexError, KeyedRecords, ScanRequest};
use farleaf_page::Layout;
use farleaf_page::rules::{SCANS_CLIPPED, SCANS_SETTLED, SNAPSHOT_HELD};
use farleaf_page::table::{DamagedSsTable, IndexKind, KeyBuf, RecordKind, RecordRun, SsTableClip};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::{Bound, Range};

/// Maximum number of words of one READ of a table.
const MAX_WORDS: u64 = 32_768;
/// Records beyond a source's share of a scan that it READs at once: a scan may begin at the end of
/// a group, which has so many.
const SPARE_RECORDS: u64 = 16;

/// The newest version of a key up to the bound, in one source. Without a value it is a tombstone.
struct SourceEntry {
    key: Vec<u8>,
    sequence: u64,
    value: Option<Vec<u8>>,
}

/// What a scan sees. While it exists, flushes and compactions keep that in the newest version of
/// each tree.
pub(super) struct ScanView {
    /// The highest number that the scan sees, which is settled.
    pub(super) bound: u64,
    _snapshot: Option<Snapshot>,
}

enum ScanSource<'v> {
    MemTable(MemTableCursor<'v>),
    Tables(SsTableSource<'v>),
}

/// A run of tables with ascending keys, of which a part has been READ.
struct SsTableSource<'v> {
    /// The tables that are not begun, in the order of the scan.
    tables: Vec<&'v Arc<SsTable>>,
    /// The table that is read, and the words of it that the scan may want.
    now: Option<(&'v Arc<SsTable>, Range<u32>)>,
    run: Option<RecordRun<Vec<u64>>>,
    /// Number of records of `run` that were passed.
    passed: usize,
    /// Words of its tables inside the scan's bounds, and about how many records they have. All
    /// tables but the first one count as a whole.
    words: u64,
    records: u64,
    /// Estimated number of words that the scan still wants from this source.
    left: u64,
    /// Number of words to READ next, once `left` are READ. It doubles each time.
    more: u64,
    /// Ascending: the last key passed. Descending: the key's newest version so far.
    last: Option<SourceEntry>,
}

fn is_above(scan: &ScanRequest<Vec<u8>>, key: &[u8]) -> bool {
    match &scan.upper {
        Bound::Unbounded => false,
        Bound::Included(bound) => key > &bound[..],
        Bound::Excluded(bound) => key >= &bound[..],
    }
}

fn is_below(scan: &ScanRequest<Vec<u8>>, key: &[u8]) -> bool {
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

/// The part of a scan that is in `clip` (lsm.L3).
fn within<'s>(scan: &'s ScanRequest<Vec<u8>>, clip: &SsTableClip) -> Cow<'s, ScanRequest<Vec<u8>>> {
    let (lower, upper) = (clip.lower.as_ref(), clip.upper.as_ref());
    let lower = lower.map(|lower| lower.key().to_vec()).filter(|lower| !is_below(scan, lower));
    let upper = upper.map(|upper| upper.key().to_vec()).filter(|upper| !is_above(scan, upper));
    if lower.is_none() && upper.is_none() {
        return Cow::Borrowed(scan);
    }
    let mut scan = scan.clone();
    scan.lower = lower.map_or(scan.lower, Bound::Included);
    scan.upper = upper.map_or(scan.upper, Bound::Excluded);
    Cow::Owned(scan)
}

/// Whether `key` lies behind the range, in the direction of the scan.
fn is_behind(scan: &ScanRequest<Vec<u8>>, key: &[u8]) -> bool {
    if scan.reverse { is_below(scan, key) } else { is_above(scan, key) }
}

/// Whether `key` lies before the range, in the direction of the scan.
fn is_before(scan: &ScanRequest<Vec<u8>>, key: &[u8]) -> bool {
    if scan.reverse { is_above(scan, key) } else { is_below(scan, key) }
}

/// Moves a cursor to where the scan begins.
fn seek(cursor: &mut MemTableCursor<'_>, scan: &ScanRequest<Vec<u8>>) {
    let is_at = |cursor: &MemTableCursor<'_>, key: &[u8]| {
        cursor.key().is_some_and(|found| found.to_vec() == key)
    };
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
fn pass(cursor: &mut MemTableCursor<'_>, scan: &ScanRequest<Vec<u8>>) -> Option<SourceEntry> {
    let key = cursor.key()?.to_vec();
    if is_behind(scan, &key) {
        return None;
    }
    let version = cursor.version()?;
    let entry = SourceEntry { key, sequence: version.number(), value: version.value() };
    if scan.reverse {
        cursor.prev()
    } else {
        cursor.next()
    }
    Some(entry)
}

impl<'v> SsTableSource<'v> {
    /// The tables of one level, or one of level 0.
    fn new<F: Fabric, L: Layout>(
        tables: &'v [Arc<SsTable>],
        scan: &ScanRequest<Vec<u8>>,
    ) -> Result<Self, IndexError> {
        let starts_above = |table: &Arc<SsTable>| {
            key_of(&scan.upper).is_some_and(|key| table.meta.smallest > KeyBuf::from_bytes(key))
        };
        let ends_below = |table: &Arc<SsTable>| {
            key_of(&scan.lower).is_some_and(|key| table.meta.largest < KeyBuf::from_bytes(key))
        };
        let wanted = tables.iter().filter(|table| !starts_above(table) && !ends_below(table));
        let mut tables: Vec<_> = wanted.collect();
        if !scan.reverse {
            tables.reverse(); // the next one is the last of the list
        }
        let (mut words, mut records, mut now) = (0, 0, None);
        if let Some(table) = tables.pop() {
            // Count only what lies inside the bounds: a large table that mostly lies outside would
            // otherwise take the share of other sources.
            let range = Self::words_of::<F, L>(table, scan)?;
            let footer = &table.meta.footer;
            words = range.len() as u64;
            records =
                footer.records.saturating_mul(words).div_ceil(footer.data_words.max(1).into());
            now = Some((table, range));
        }
        for table in &tables {
            words += table.bytes() / 8;
            records += table.meta.footer.records;
        }
        let (run, last) = (None, None);
        Ok(Self { tables, now, run, passed: 0, words, records, left: 0, more: 1, last })
    }

    /// The words of `table` between the scan's bounds, in whole groups.
    fn words_of<F: Fabric, L: Layout>(
        table: &SsTable,
        scan: &ScanRequest<Vec<u8>>,
    ) -> Result<Range<u32>, IndexError> {
        let damaged = |_| DlsmIndex::<F, L>::damaged(table);
        let start = match key_of(&scan.lower) {
            Some(key) => table.index.seek(KeyBuf::from_bytes(key).key()).map_err(damaged)?,
            None => 0,
        };
        // The words of a table before its lower bound may have been given back (S3).
        let start = match &table.meta.clip.lower {
            Some(lower) => start.max(table.index.seek(lower.key()).map_err(damaged)?),
            None => start,
        };
        let end = match key_of(&scan.upper) {
            Some(key) => table.index.seek_behind(KeyBuf::from_bytes(key).key()).map_err(damaged)?,
            None => table.meta.footer.data_words,
        };
        Ok(start..end.max(start))
    }

    /// READs the next records. Returns whether there were any.
    async fn fetch<F: Fabric, L: Layout>(
        &mut self,
        index: &DlsmIndex<F, L>,
        scan: &ScanRequest<Vec<u8>>,
    ) -> Result<bool, IndexError> {
        loop {
            let Some((table, left)) = self.now.take() else {
                let Some(table) = self.tables.pop() else { return Ok(false) };
                self.now = Some((table, Self::words_of::<F, L>(table, scan)?));
                continue;
            };
            if left.is_empty() {
                continue;
            }
            let damaged = |_: DamagedSsTable| DlsmIndex::<F, L>::damaged(table);
            let words = if self.left > 0 { self.left } else { self.more }.min(MAX_WORDS) as u32;
            let range = match scan.reverse {
                false => table.index.after(left.start, words),
                true => table.index.before(left.end, words),
            };
            let range = range.map_err(damaged)?;
            let range = range.start.max(left.start)..range.end.min(left.end);
            if range.is_empty() {
                continue;
            }
            let rest = match scan.reverse {
                false => range.end..left.end,
                true => left.start..range.start,
            };
            if self.left == 0 {
                self.more = self.more.saturating_mul(2);
            }
            self.left = self.left.saturating_sub(range.len() as u64);
            self.now = Some((table, rest));
            let words = index.read(table, range).await?;
            let bytes = words.len() as u64 * 8;
            let run = RecordRun::new(words, table.id()).map_err(damaged)?;
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
        scan: &ScanRequest<Vec<u8>>,
        bound: u64,
    ) -> Result<Option<SourceEntry>, IndexError> {
        loop {
            let run = self.run.as_ref().filter(|run| self.passed < run.len());
            let Some((run, (table, _))) = run.zip(self.now.as_ref()) else {
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
            if is_before(scan, &key) || !table.meta.clip.has(record.key()) {
                continue;
            }
            if is_behind(scan, &key) {
                (self.run, self.now, self.tables) = (None, None, Vec::new());
                return Ok(self.last.take().filter(|_| scan.reverse));
            }
            let mut value = Vec::new();
            record.append_value(&mut value);
            let value = (record.kind() == RecordKind::Value).then_some(value);
            let entry = SourceEntry { key, sequence: record.sequence(), value };
            if scan.reverse {
                self.last = Some(entry); // unless a newer version of the key follows
            } else {
                let passed = SourceEntry { key: Vec::new(), sequence: 0, value: None };
                self.last.get_or_insert(passed).key.clone_from(&entry.key);
                return Ok(Some(entry));
            }
        }
    }
}

/// Divides what a scan wants, at most `limit` records and about `most_bytes` bytes, among the
/// sources, by what they have in its range.
fn share(sources: &mut [ScanSource<'_>], limit: usize, most_bytes: usize) {
    let tables = || sources.iter().filter_map(ScanSource::tables);
    let words: u64 = tables().map(|source| source.words).sum();
    let records: u64 = tables().map(|source| source.records).sum();
    let each = words.div_ceil(records.max(1));
    let wanted =
        each.saturating_mul(limit as u64).min((most_bytes as u64 / 8).saturating_add(each));
    let spare = each.saturating_mul(SPARE_RECORDS);
    for source in sources {
        if let ScanSource::Tables(source) = source {
            let share = u128::from(wanted) * u128::from(source.words) / u128::from(words.max(1));
            let share = u64::try_from(share).unwrap_or(u64::MAX);
            source.left = share.saturating_add(share / 4).saturating_add(spare);
            source.more = spare;
        }
    }
}

impl<'v> ScanSource<'v> {
    fn is_of_tables(&self) -> bool {
        matches!(self, Self::Tables(_))
    }

    fn tables(&self) -> Option<&SsTableSource<'v>> {
        match self {
            Self::MemTable(_) => None,
            Self::Tables(tables) => Some(tables),
        }
    }

    async fn next<F: Fabric, L: Layout>(
        &mut self,
        index: &DlsmIndex<F, L>,
        scan: &ScanRequest<Vec<u8>>,
        bound: u64,
    ) -> Result<Option<SourceEntry>, IndexError> {
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
        scan: &ScanRequest<Vec<u8>>,
    ) -> Result<KeyedRecords<Vec<u8>, Vec<u8>>, IndexError> {
        self.check_scan(scan)?;
        if scan.limit == 0 {
            return Ok(Vec::new());
        }
        let view = self.view().await?;
        let version = self.shard.pin();
        let bound = view.bound;
        drop(view); // the version has everything
        let records = self.records_in(&version, bound, scan, usize::MAX).await?;
        drop(version);
        if self.shard.workers().0 == 0 {
            // If it fails, the next scan tries again.
            let _ = self.compact_hidden().await;
        }
        Ok(records)
    }

    /// Checks the lengths of the keys that bound a scan.
    pub(super) fn check_scan(&self, scan: &ScanRequest<Vec<u8>>) -> Result<(), IndexError> {
        for key in [&scan.lower, &scan.upper].into_iter().filter_map(key_of) {
            self.shard.options.memtable.check(key.len(), 0)?;
        }
        Ok(())
    }

    /// Begins a scan of this tree, and of all that share its numbers.
    pub(super) async fn view(&self) -> Result<ScanView, IndexError> {
        let snapshot = Snapshot::take(&self.shard.sequences);
        let bound = snapshot.bound();
        let snapshot = (!self.fabric().breaks(SNAPSHOT_HELD)).then_some(snapshot);
        if !self.fabric().breaks(SCANS_SETTLED) {
            self.until_settled(bound).await?;
        }
        self.until_seen_durable(bound).await?;
        Ok(ScanView { bound, _snapshot: snapshot })
    }

    /// The records that `scan` selects as of `bound`, which was settled before `version` was
    /// pinned, in a view of this tree. Ends once there are two records or more that have more than
    /// `most_bytes` bytes together.
    pub(super) async fn records_in(
        &self,
        version: &TreeVersion,
        bound: u64,
        scan: &ScanRequest<Vec<u8>>,
        most_bytes: usize,
    ) -> Result<KeyedRecords<Vec<u8>, Vec<u8>>, IndexError> {
        let scan = &*match self.fabric().breaks(SCANS_CLIPPED) {
            true => Cow::Borrowed(scan),
            false => within(scan, &version.clip),
        };
        let memtables = version.memtables().map(|table| {
            let mut cursor = table.cursor(bound);
            seek(&mut cursor, scan);
            Ok(ScanSource::MemTable(cursor))
        });
        let (level0, others) = version.levels.split_first().expect("there is a level 0");
        let levels = level0.chunks(1).chain(others.iter().map(Vec::as_slice));
        let tables =
            levels.map(|tables| Ok(ScanSource::Tables(SsTableSource::new::<F, L>(tables, scan)?)));
        let mut sources =
            memtables.chain(tables).collect::<Result<Vec<ScanSource<'_>>, IndexError>>()?;
        share(&mut sources, scan.limit, most_bytes);
        let first = all(sources.iter_mut().map(|source| source.next(self, scan, bound))).await;
        let mut heads = first.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (mut records, mut bytes) = (Vec::new(), 0);
        // Removed records and tombstones in tables that were READ in vain before the first result.
        let (mut hidden, mut range_hidden) = (0, None);
        while records.len() < scan.limit && (records.len() < 2 || bytes <= most_bytes) {
            let comes_first = |one: &SourceEntry, other: &SourceEntry| {
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
            let is_first = records.is_empty() && !scan.reverse;
            let is_hidden = is_first && entry.value.is_none();
            if is_hidden {
                let range: &mut (Vec<u8>, Vec<u8>) =
                    range_hidden.get_or_insert_with(|| (entry.key.clone(), Vec::new()));
                range.1.clone_from(&entry.key);
            }
            hidden += u64::from(is_hidden && sources[next].is_of_tables());
            for (source, head) in sources.iter_mut().zip(&mut heads) {
                if head.as_ref().is_some_and(|head| head.key == entry.key) {
                    *head = source.next(self, scan, bound).await?;
                    hidden += u64::from(is_hidden && source.is_of_tables());
                }
            }
            if let Some(value) = entry.value {
                bytes += entry.key.len() + value.len();
                records.push((entry.key, value));
            }
        }
        if let Some((first, mut last)) = range_hidden {
            last.push(0); // the next key
            self.shard.note_hidden((&first, &last), hidden);
        }
        Ok(records)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// What sources of these words and records READ at first.
    fn shares(sizes: &[(u64, u64)], limit: usize, most_bytes: usize) -> Vec<u64> {
        let source = |&(words, records): &(u64, u64)| {
            let (tables, now, run, last) = (Vec::new(), None, None, None);
            let (passed, left, more) = (0, 0, 1);
            ScanSource::Tables(SsTableSource {
                tables,
                now,
                run,
                passed,
                words,
                records,
                left,
                more,
                last,
            })
        };
        let mut sources: Vec<_> = sizes.iter().map(source).collect();
        share(&mut sources, limit, most_bytes);
        sources.iter().filter_map(ScanSource::tables).map(|source| source.left).collect()
    }

    #[test]
    fn a_scan_is_divided_by_the_sizes_of_its_sources() {
        // Records of 10 words.
        let sizes = [(1_000, 100), (9_000, 900)];
        assert_eq!(shares(&sizes, 100, usize::MAX), [100 + 25 + 160, 900 + 225 + 160]);
        assert_eq!(shares(&sizes, usize::MAX, 8_000), [101 + 25 + 160, 909 + 227 + 160]);
        let everything = shares(&sizes, usize::MAX, usize::MAX);
        assert!(everything[0] > 1_000 && everything[1] > 9_000, "{everything:?}");
        assert_eq!(shares(&[(0, 0), (0, 0)], usize::MAX, usize::MAX), [0, 0]);
        assert_eq!(shares(&[(0, 0), (1_000, 100)], 10, usize::MAX), [160, 100 + 25 + 160]);
    }
}
