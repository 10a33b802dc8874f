//! dLSM's MemTable beside a lock-free skip list, which other engines use for theirs. All records
//! are written, a list of 64 MiB after the other, and then looked up in the same way.
//!
//! *Thread safety*: both may be used by several threads.

use super::engines::on_threads;
use super::records::{KEY_BYTES, VALUE_BYTES, WrittenRecords};
use super::{MEMTABLE, Phases, SKIPLIST, measured};
use anyhow::{Context, ensure};
use crossbeam_skiplist::SkipMap;
use farleaf_dlsm::{
    LinkOutcome, MemTable, MemTableOptions, MemTableWriter, SearchKey, Sequences, VersionKind,
    WriterSlot,
};
use farleaf_fabric::sync::Arc;
use std::ops::Range;

/// Records of a list: what the paper's MemTable of 64 MiB holds, with nodes.
const LIST_RECORDS: usize = 128_000;

/// A list of records, which may be shared.
trait RecordList: Sized + Sync {
    /// What a thread keeps between its writes.
    type Writer;

    /// The list that follows `previous`, which gets no more records.
    fn after(previous: Option<&Self>) -> anyhow::Result<Self>;
    fn writer(&self) -> anyhow::Result<Self::Writer>;
    fn insert(
        &self,
        writer: &mut Self::Writer,
        key: &[u8; KEY_BYTES],
        value: [u8; VALUE_BYTES],
    ) -> anyhow::Result<()>;
    /// Appends the value of `key` to `value`. Returns whether there is one.
    fn find(&self, key: &[u8; KEY_BYTES], value: &mut Vec<u8>) -> bool;
}

struct FarleafMemTable {
    table: MemTable,
    sequences: Arc<Sequences>,
}

impl RecordList for FarleafMemTable {
    type Writer = MemTableWriter;

    fn after(previous: Option<&Self>) -> anyhow::Result<Self> {
        const SEATS: usize = 64;
        let options = MemTableOptions::default();
        let memory = options.memory()?;
        let Some(Self { table, sequences }) = previous else {
            let sequences = Arc::new(Sequences::new(SEATS));
            return Ok(Self { table: MemTable::new(&sequences, memory, options), sequences });
        };
        let table = table.next(sequences, memory, options);
        Ok(Self { table, sequences: Arc::clone(sequences) })
    }

    fn writer(&self) -> anyhow::Result<MemTableWriter> {
        let seat = WriterSlot::take(&self.sequences).context("no seat for a writer")?;
        Ok(MemTableWriter::new(seat, 1))
    }

    #[inline]
    fn insert(
        &self,
        writer: &mut MemTableWriter,
        key: &[u8; KEY_BYTES],
        value: [u8; VALUE_BYTES],
    ) -> anyhow::Result<()> {
        let link = self.table.upsert(writer, &SearchKey::new(key), VersionKind::Value, &value);
        ensure!(matches!(link, LinkOutcome::Done(_)), "the MemTable has no room: {link:?}");
        Ok(())
    }

    #[inline]
    fn find(&self, key: &[u8; KEY_BYTES], value: &mut Vec<u8>) -> bool {
        let newest = self.table.newest(&SearchKey::new(key));
        newest.inspect(|version| version.append_value_to(value)).is_some()
    }
}

impl RecordList for SkipMap<[u8; KEY_BYTES], [u8; VALUE_BYTES]> {
    type Writer = ();

    fn after(_previous: Option<&Self>) -> anyhow::Result<Self> {
        Ok(SkipMap::new())
    }

    fn writer(&self) -> anyhow::Result<()> {
        Ok(())
    }

    #[inline]
    fn insert(
        &self,
        (): &mut (),
        key: &[u8; KEY_BYTES],
        value: [u8; VALUE_BYTES],
    ) -> anyhow::Result<()> {
        SkipMap::insert(self, *key, value);
        Ok(())
    }

    #[inline]
    fn find(&self, key: &[u8; KEY_BYTES], value: &mut Vec<u8>) -> bool {
        let entry = self.get(key);
        entry.inspect(|entry| value.extend_from_slice(entry.value())).is_some()
    }
}

/// The places of each list.
fn lists(records: &WrittenRecords) -> impl Iterator<Item = Range<usize>> {
    (0..records.len())
        .step_by(LIST_RECORDS)
        .map(|first| first..records.len().min(first + LIST_RECORDS))
}

fn measure<L: RecordList>(
    name: &'static str,
    records: &WrittenRecords,
    threads: u16,
    phases: &mut Phases,
) -> anyhow::Result<()> {
    let share = |list: &Range<usize>, thread: usize| {
        let begin = |thread| list.start + list.len() * thread / usize::from(threads);
        begin(thread)..begin(thread + 1)
    };
    let mut filled: Vec<(Range<usize>, L)> = Vec::new();
    let inserts = measured(|| {
        for places in lists(records) {
            let list = L::after(filled.last().map(|(_, list)| list))?;
            on_threads(threads.into(), |thread| {
                let mut writer = list.writer()?;
                for place in share(&places, thread) {
                    list.insert(&mut writer, records.key(place), records.value(place))?;
                }
                Ok(())
            })?;
            filled.push((places, list));
        }
        Ok(())
    });
    phases.add("insert", threads, name, inserts?);
    let finds = measured(|| {
        on_threads(threads.into(), |thread| {
            let mut value = Vec::with_capacity(VALUE_BYTES);
            for (places, list) in &filled {
                let mine = share(places, thread);
                // A step that has no factor in common with a list's records, so that each is found.
                let step = 7_919;
                for number in 0..mine.len() {
                    let place = mine.start + number * step % mine.len();
                    value.clear();
                    ensure!(list.find(records.key(place), &mut value), "{place} is not found");
                    records.check(place, &value)?;
                }
            }
            Ok(())
        })
    });
    phases.add("find", threads, name, finds?);
    Ok(())
}

/// Measures dLSM's MemTable and the other one, the other one first if `other_first`.
pub(super) fn live(
    records: &WrittenRecords,
    threads: u16,
    other_first: bool,
    phases: &mut Phases,
) -> anyhow::Result<()> {
    let other = |phases: &mut Phases| {
        measure::<SkipMap<[u8; KEY_BYTES], [u8; VALUE_BYTES]>>(SKIPLIST, records, threads, phases)
    };
    if other_first {
        other(phases)?;
    }
    measure::<FarleafMemTable>(MEMTABLE, records, threads, phases)?;
    if other_first { Ok(()) } else { other(phases) }
}
