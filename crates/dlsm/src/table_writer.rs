//! Writes one table into extents: records as they come, in large WRITEs, then its index.
//!
//! *Thread safety*: belongs to one operation.

use super::handle::DlsmIndex;
use super::version::SsTable;
use crate::remote::{ExtentUse, ExtentWriter, TRANSFER_WORDS};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_index::IndexError;
use farleaf_page::Layout;
use farleaf_page::table::{
    CompactionError, ExtentRun, IndexKind, RecordKind, RefusedRecord, SsTableBuilder, SsTableIndex,
    TableKey,
};

/// Number of keys of a new index between two yields to other tasks: some 100 µs.
const STEP_KEYS: usize = 4_096;

/// A table that is being written.
pub(super) struct SsTableWriter<'h, F: Fabric, L: Layout> {
    index: &'h DlsmIndex<F, L>,
    pub(super) builder: SsTableBuilder,
    /// Words of the table that are not written yet.
    pub(super) out: Vec<u64>,
    extents: ExtentWriter<'h, F, L>,
    purpose: ExtentUse,
    /// Records, and their words, whose writing has been charged.
    charged: (u64, u32),
}

impl<'h, F: Fabric, L: Layout> SsTableWriter<'h, F, L> {
    pub(super) fn new(index: &'h DlsmIndex<F, L>, purpose: ExtentUse) -> Self {
        let shard = &index.shard;
        Self {
            index,
            builder: SsTableBuilder::new(shard.table_id(), 0, shard.options.index),
            out: Vec::new(),
            extents: index.extents.writer_for(purpose),
            purpose,
            charged: (0, 0),
        }
    }

    /// Begins another table. Returns this one.
    pub(super) fn replace(&mut self) -> Self {
        let next = Self::new(self.index, self.purpose);
        std::mem::replace(self, next)
    }

    /// Appends a record.
    pub(super) fn add(
        &mut self,
        key: TableKey<'_>,
        sequence: u64,
        kind: RecordKind,
        value: &[u8],
    ) -> Result<(), RefusedRecord> {
        self.builder.add(key, sequence, kind, value, &mut self.out)
    }

    /// Posts as many of the buffered words as fill whole WRITEs.
    pub(super) async fn send(&mut self) -> Result<(), IndexError> {
        let whole = self.out.len() / TRANSFER_WORDS * TRANSFER_WORDS;
        if whole > 0 {
            self.charge().await;
            self.extents.append(&self.out[..whole]).await?;
            self.out.drain(..whole);
            self.index.shard.step();
        }
        Ok(())
    }

    /// Abandons the table. Waits until all WRITEs have landed, so that the extents can be used
    /// again. Those that a WRITE may still reach wait for the handle's `settle` (K3).
    pub(super) async fn abandon(self) {
        drop(self.extents.finish().await);
    }

    async fn charge(&mut self) {
        let now = (self.builder.records(), self.builder.data_words());
        let (records, words) = (now.0 - self.charged.0, now.1 - self.charged.1);
        self.charged = now;
        let fabric = self.index.fabric();
        fabric.charge(Work::CopyBytes(u64::from(words) * 8)).await;
        if self.index.shard.options.index == IndexKind::Compact {
            fabric.charge(Work::IndexKeys(records as u32)).await;
        }
    }

    /// Writes the rest, waits until everything has landed (F1), and opens the table. `None` if it
    /// has no records.
    pub(super) async fn finish(mut self, level: u8) -> Result<Option<SsTable>, IndexError> {
        self.charge().await;
        let Self { index, builder, mut out, mut extents, .. } = self;
        let id = builder.table();
        let mut finishing = builder.finishing(level);
        let finished = loop {
            match finishing.step(STEP_KEYS, &mut out) {
                Some(meta) => break meta,
                None => index.fabric().sleep(0).await,
            }
        };
        let Some(mut meta) = finished else { return Ok(None) };
        let written = extents.words() as usize;
        let sections = out[meta.footer.data_words as usize - written..].to_vec();
        extents.append(&out).await?;
        let lease = extents.finish().await?;
        for &extent in lease.extents() {
            match meta.extents.last_mut() {
                Some(run) if run.first + run.count == extent => run.count += 1,
                _ => meta.extents.push(ExtentRun { first: extent, count: 1 }),
            }
        }
        match SsTableIndex::open(sections, id) {
            Ok(index) => Ok(Some(SsTable { meta, index: Arc::new(index), lease: Arc::new(lease) })),
            Err(_) => Err(IndexError::InvalidArgument("the index of a new table does not open")),
        }
    }
}

/// The error for a record that no table can hold. It is not expected: MemTables refuse such
/// records, and their tables stay below the limit.
pub(super) fn refused(_: RefusedRecord) -> IndexError {
    IndexError::InvalidArgument("a table cannot take a record; use smaller MemTables")
}

/// The error of a compaction of tables with these ids at these places.
pub(super) fn merge_error(error: CompactionError, inputs: &[(u64, GlobalAddr)]) -> IndexError {
    match error {
        CompactionError::Damaged(damaged) => {
            let found = inputs.iter().find(|(table, _)| *table == damaged.table);
            IndexError::Damaged { at: found.map_or(GlobalAddr::NULL, |(_, place)| *place) }
        }
        CompactionError::Refused(why) => refused(why),
        CompactionError::KeyTooLarge => IndexError::InvalidArgument(
            "the versions of one key do not fit in a table; drop snapshots, and merge again",
        ),
    }
}
