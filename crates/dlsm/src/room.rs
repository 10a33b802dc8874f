//! A full memory pool: which writes a tree still accepts, and compactions that free memory while
//! they need little of it.
//!
//! The extents of a tree are promised before they are needed. A MemTable takes writes only if the
//! extents for its flush are promised, and merges always find those for an output. In a full pool
//! this leaves what is needed to make room: flushes, merges, and a MemTable for operations after
//! which the merged tree is no larger.
//!
//! ```text
//!                            | promised to  | one output | a MemTable
//! extents of the tree        | MemTables    | of a merge | that shrinks
//! a MemTable that takes ...  |              |            |
//!     Intake::Everything     | needs        | yes        | yes
//!     Intake::Shrinking      | needs        | yes        |
//!     Intake::Nothing        | (none)       | needs      |
//! ```
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.S1. A MemTable takes writes only while extents for its flush are promised, and only
//!   flushes take those. A shard owns them: no other one can.
//! - lsm.S2. While the active MemTable takes writes, compactions can count on the extents of an
//!   output; if it takes everything, another MemTable that takes what shrinks the tree can be
//!   flushed beside.
//! - lsm.S3. After each output of a compaction in pieces, what it has read of its inputs is given
//!   back: the directory has the change first, and no version in use has the extents.
//! - lsm.S4. A write ends as out of memory only after everything was flushed and merged, and it has
//!   changed nothing.
//!
//! *Thread safety*: that of the handle.

use super::compact::{CompactionInput, CompactionRun, overlapping, range_of};
use super::handle::{BoundedWait, DlsmIndex};
use super::options::MAX_LEVEL0;
use super::shard::{CompactionRight, LsmShard, TreeRight};
use super::table_writer::SsTableWriter;
use super::version::{Intake, SsTable, TreeVersion};
use crate::remote::ExtentUse;
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_index::{EditAction, IndexError};
use farleaf_page::Layout;
use farleaf_page::rules::MERGED_PARTS_PINNED;
use farleaf_page::table::{CompactionOptions, CompactionProgress, KeyBuf, SsTableClip};
use farleaf_pool::remote::ROOT_SERVER;

/// Pause before memory servers that had no chunk left are asked again, in nanoseconds.
const FULL_NS: u64 = 1_000_000_000;
/// The same after a failure, for tasks in the background.
const UNREACHED_NS: u64 = 100_000_000;
/// Maximum number of waits for extents that operations in flight still read, before a smaller
/// output is begun.
const PINNED_WAITS: u32 = 50;
/// The length of such a wait, in nanoseconds.
const PINNED_NS: u64 = 1_000_000;
/// The tombstones that scans READ in vain are compacted if the tables have at most this many
/// records for each of them.
const HIDDEN_PART: u64 = 8;
/// Minimum number of extents that an output of a compaction in pieces is begun with.
const MIN_PIECE_EXTENTS: u64 = 4;

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Whether an operation may go on, with the version that it has. If not, it looks at the
    /// version again.
    ///
    /// # Errors
    /// [`IndexError::OutOfMemory`] if there is no room for it, and nothing to gain by merges.
    pub(super) async fn admit<'h>(
        &'h self,
        takes: Intake,
        (key, action): (&[u8], &EditAction<&[u8]>),
        wait: &mut Option<BoundedWait<'h, F>>,
    ) -> Result<bool, IndexError> {
        if self.shard.grow(Intake::Everything) {
            return Ok(false);
        }
        if takes == Intake::Shrinking {
            // Background tasks allocate ahead. Without any, ask the memory servers first: `shrinks`
            // has to look the key up.
            if self.shard.workers().0 == 0 {
                self.own_ahead().await;
                if self.shard.grow(Intake::Everything) {
                    return Ok(false);
                }
            }
            if self.shrinks(key, action).await? {
                return Ok(true);
            }
        }
        if takes == Intake::Nothing && self.shard.grow(Intake::Shrinking) {
            return Ok(false);
        }
        // Concurrent compactions will give extents back, so a write that shrinks the tree is not
        // refused at once.
        if self.until_room(wait, takes == Intake::Nothing).await? {
            return Ok(false);
        }
        Err(IndexError::OutOfMemory { server: ROOT_SERVER })
    }

    /// Whether the tree, once compacted, has no more bytes after an operation than before.
    async fn shrinks(&self, key: &[u8], action: &EditAction<&[u8]>) -> Result<bool, IndexError> {
        let found = self.value_of(key).await?;
        Ok(match (action, found) {
            (EditAction::Remove, Some(value)) => {
                self.shard.needs.note_gain((key.len() + value.len()) as u64);
                true
            }
            // They change nothing.
            (EditAction::Get | EditAction::Remove, _) | (EditAction::Insert(_), Some(_)) => true,
            (EditAction::Update(_) | EditAction::CompareExchange(..), None) => true,
            (EditAction::Insert(_) | EditAction::Upsert(_), None) => false,
            (
                EditAction::Update(new)
                | EditAction::Upsert(new)
                | EditAction::CompareExchange(_, new),
                Some(value),
            ) => {
                let is_no_longer = new.len() <= value.len();
                self.shard.needs.note_gain(value.len().saturating_sub(new.len()) as u64);
                is_no_longer
            }
        })
    }

    /// Frees memory, or waits until background tasks have. Returns whether to try again. If not, no
    /// more can be freed.
    async fn until_room<'h>(
        &'h self,
        wait: &mut Option<BoundedWait<'h, F>>,
        may_shrink: bool,
    ) -> Result<bool, IndexError> {
        let shard = &self.shard;
        let seen = shard.changed.count();
        let is_exhausted = shard.is_exhausted();
        if is_exhausted && !may_shrink {
            return Ok(false);
        }
        let wait = wait.get_or_insert_with(|| self.wait());
        if is_exhausted {
            if !wait.looks_again() {
                return Ok(false);
            }
            wait.for_change(shard, seen).await?;
            return Ok(true);
        }
        if wait.works_itself(shard) {
            match self.make_room().await {
                // Running compactions hold the extents, and will give them back.
                Err(IndexError::OutOfMemory { .. })
                    if shard.workers().0 > 0 && wait.looks_again() =>
                {
                    wait.for_change(shard, shard.changed.count()).await?;
                }
                made => made?,
            }
            return Ok(true);
        }
        shard.ask_for_room();
        wait.for_change(shard, seen).await?;
        Ok(true)
    }

    /// Makes sure that at least `extents` extents of the tree are free or resting. Returns false if
    /// the memory servers have no more memory.
    async fn own(&self, extents: u64) -> Result<bool, IndexError> {
        let now_ns = self.fabric().now_ns();
        if self.shard.space.available().0 >= extents {
            return Ok(true);
        }
        if self.shard.needs.is_pool_full(now_ns) {
            return Ok(false);
        }
        match self.extents.own(extents).await.map_err(IndexError::from) {
            Ok(()) => {
                self.shard.needs.note_room();
                Ok(true)
            }
            Err(IndexError::OutOfMemory { .. }) => {
                self.shard.needs.note_full_pool(now_ns + FULL_NS);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes sure that there are extents for the next MemTable, if the memory servers have some.
    pub(super) async fn own_next(&self) -> Result<bool, IndexError> {
        self.own(self.shard.wanted_extents()).await
    }

    /// Allocates what writers will need soon, if the memory servers have it.
    pub(super) async fn own_ahead(&self) {
        let needs = &self.shard.needs;
        if self.shard.epoch() == 0 || needs.is_unreached(self.fabric().now_ns()) {
            return;
        }
        match self.own_next().await {
            Ok(true) => _ = self.shard.grow(Intake::Everything),
            Ok(false) => {}
            // Writers that need the memory will get the error themselves.
            Err(_) => needs.note_unreached(self.fabric().now_ns() + UNREACHED_NS),
        }
    }

    /// Frees memory until the active MemTable can accept every write: allocates chunks, flushes,
    /// and compacts in pieces, until there is enough or everything is compacted.
    pub(super) async fn make_room(&self) -> Result<(), IndexError> {
        let is_exhausted = !self.find_room().await.inspect_err(|_| {
            self.shard.looked_for_room(false);
        })?;
        self.shard.looked_for_room(is_exhausted);
        Ok(())
    }

    /// Returns whether there is enough.
    async fn find_room(&self) -> Result<bool, IndexError> {
        let shard = &self.shard;
        if self.own_next().await? && shard.grow(Intake::Everything) {
            return Ok(true);
        }
        // The removals in the active MemTable may free more than its flush takes.
        if shard.has_gained() {
            let active = Arc::clone(&shard.pin().active);
            self.close_in_full_pool(&active)?;
        }
        let flushing = self.until_begun(TreeRight::Flush, LsmShard::begin_flush).await?;
        while self.flush_oldest(&flushing).await? {}
        drop(flushing);
        let merging = self.until_begun(TreeRight::Merge, LsmShard::begin_compaction).await?;
        self.settle_loans().await;
        loop {
            self.settle_change().await?;
            if shard.grow(Intake::Everything) {
                return Ok(true);
            }
            let Some((sources, into)) = next_for_room(&shard.pin()) else { break };
            self.compact_in_pieces(&merging, sources, (into, None)).await?;
        }
        // Extents that operations in flight still read will come back, too.
        for _ in 0..PINNED_WAITS {
            if shard.has_landed() {
                break;
            }
            self.fabric().sleep(PINNED_NS).await;
            if shard.grow(Intake::Everything) {
                return Ok(true);
            }
        }
        Ok(shard.grow(Intake::Everything))
    }

    /// Compacts the tombstones at the beginning of a range, and what they hide, if a scan has met
    /// many of them or a flush has written them. Scans of the head of a queue would otherwise READ
    /// them all, again and again. Returns whether it has.
    pub(super) async fn compact_hidden(&self) -> Result<bool, IndexError> {
        let shard = &self.shard;
        let Some((first, end, records)) = shard.needs.take_hidden() else { return Ok(false) };
        // The newest tombstones are in MemTables.
        Box::pin(self.flush_everything()).await?;
        let merging = self.until_begun(TreeRight::Merge, LsmShard::begin_compaction).await?;
        self.settle_change().await?;
        let Some((sources, into)) = self.before((first, &end), records) else { return Ok(false) };
        self.compact_in_pieces(&merging, sources, (into, Some(end))).await?;
        Ok(true)
    }

    /// The tables with keys before `end`, and the deepest level that has one. `None` if compacting
    /// them is not worth it, because they have many more records there than the `records` to be
    /// dropped.
    fn before(
        &self,
        (first, end): (KeyBuf, &KeyBuf),
        records: u64,
    ) -> Option<(Vec<Vec<Arc<SsTable>>>, usize)> {
        let version = self.shard.pin();
        // All tables that have keys between the lowest one of these tables and the end, so that all
        // versions of each key are merged (V4).
        let mut low = first;
        let is_before = |table: &Arc<SsTable>, low: &KeyBuf| {
            table.meta.largest >= *low && table.meta.smallest < *end
        };
        for _ in 0..version.levels.len() + version.levels[0].len() {
            let tables = version.tables().filter(|table| is_before(table, &low));
            low = tables.map(|table| table.meta.smallest.clone()).min()?.min(low);
        }
        let taken = |tables: &[Arc<SsTable>]| -> Vec<Arc<SsTable>> {
            tables.iter().filter(|table| is_before(table, &low)).cloned().collect()
        };
        let (level0, others) = version.levels.split_first()?;
        let level0 = taken(level0).into_iter().map(|table| vec![table]);
        let sources: Vec<_> = level0.chain(others.iter().map(|tables| taken(tables))).collect();
        let range = SsTableClip { lower: None, upper: Some(end.clone()) };
        let held = |table: &Arc<SsTable>| {
            let words = self.words_of(table, &range).map_or(0, |words| words.len() as u64);
            let footer = &table.meta.footer;
            words.saturating_mul(footer.records) / u64::from(footer.data_words.max(1))
        };
        let all: u64 = sources.iter().flatten().map(held).sum();
        if all > records.saturating_mul(HIDDEN_PART) {
            return None;
        }
        let into =
            others.iter().rposition(|tables| !taken(tables).is_empty()).map_or(1, |at| at + 1);
        let sources: Vec<_> = sources.into_iter().filter(|tables| !tables.is_empty()).collect();
        (!sources.is_empty()).then_some((sources, into))
    }

    /// Merges tables into a level, or their keys before `end`, with memory for one output at a
    /// time: after each output, what it was made from is given back (S3).
    pub(super) async fn compact_in_pieces(
        &self,
        merging: &CompactionRight,
        sources: Vec<Vec<Arc<SsTable>>>,
        (into, end): (usize, Option<KeyBuf>),
    ) -> Result<(), IndexError> {
        let mut run = {
            // Do not keep this version: it would pin what is given back.
            let version = self.shard.pin();
            let below = version.levels[into + 1..].iter().flatten();
            let options = CompactionOptions {
                range: version.clip.within(&SsTableClip { lower: None, upper: end.clone() }),
                // Later snapshots are newer than all inputs (J5).
                snapshots: self.snapshot_bounds(),
                below: self.below(below),
                cuts: Vec::new(),
                table_words: 0,
            };
            CompactionRun::new(self, &sources, options)?
        };
        let mut left: Vec<Arc<SsTable>> = sources.into_iter().flatten().collect();
        loop {
            run.merge.limit_tables(self.piece_words().await?);
            let mut writer = SsTableWriter::new(self, ExtentUse::Piece);
            let progress = match self.fill_output(&mut run, &mut writer).await {
                Ok(progress) => progress,
                Err(error) => {
                    writer.abandon().await;
                    return Err(error);
                }
            };
            let output = writer.finish(into as u8).await?;
            let is_done = progress == CompactionProgress::Done;
            let next = match is_done {
                true => end.clone(),
                // Without the next key, nothing may be taken away.
                false => Some(run.merge.next_key().ok_or(IndexError::Contended { retries: 0 })?),
            };
            let (removed, parts) = self.take_merged(&mut left, next.as_ref(), &mut run.sources)?;
            self.publish(merging.merged_part(removed, into, output, parts)).await?;
            if is_done {
                return Ok(());
            }
        }
    }

    /// Takes from the inputs of a merge what is below `next`, or all. Returns the tables of which
    /// nothing is left, and those of which a part is left, with that part.
    fn take_merged(
        &self,
        left: &mut Vec<Arc<SsTable>>,
        next: Option<&KeyBuf>,
        inputs: &mut [CompactionInput],
    ) -> Result<(Vec<Arc<SsTable>>, CompactedParts), IndexError> {
        let Some(next) = next else { return Ok((std::mem::take(left), Vec::new())) };
        let is_merged = |table: &mut Arc<SsTable>| table.meta.largest < *next;
        let removed = left.extract_if(.., is_merged).collect();
        let is_shared = self.shard.has_lent();
        let mut parts = Vec::new();
        for table in left.iter_mut().filter(|table| table.meta.smallest < *next) {
            let part = table.starting_at(next, is_shared).map_err(|_| Self::damaged(table))?;
            let whole = std::mem::replace(table, Arc::new(part));
            if self.fabric().breaks(MERGED_PARTS_PINNED) {
                whole.lease.end();
            }
            // The rest is READ from what is left.
            inputs.iter_mut().for_each(|input| input.replace(&whole, table));
            parts.push((whole, Arc::clone(table)));
        }
        Ok((removed, parts))
    }

    /// Words of records that the next output of a compaction in pieces may have.
    ///
    /// # Errors
    /// [`IndexError::OutOfMemory`] if that would be so few that the extent which no output fills
    /// takes more than the compaction gives back.
    async fn piece_words(&self) -> Result<u32, IndexError> {
        let (shard, options) = (&self.shard, &self.shard.options);
        let mut free = 0;
        for _ in 0..PINNED_WAITS {
            let (available, promised) = shard.space.available();
            free = available.saturating_sub(promised);
            if free >= shard.compaction_extents() || shard.has_landed() {
                break;
            }
            self.fabric().sleep(PINNED_NS).await;
        }
        if free < MIN_PIECE_EXTENTS {
            return Err(IndexError::OutOfMemory { server: ROOT_SERVER });
        }
        let words = free * shard.space.extent_bytes() / 8;
        let with_index = options.records_part(words);
        // It ends at the first key beyond, which may have the longest record.
        let words = with_index.saturating_sub(options.memtable.bytes as u64 / 32);
        Ok(u32::try_from(words.clamp(1, options.table_bytes / 8)).unwrap_or(u32::MAX))
    }
}

/// Tables of which a part was merged, with what is left.
type CompactedParts = Vec<(Arc<SsTable>, Arc<SsTable>)>;

/// The next compaction that makes room: of level 0 into the first level that has tables, then of
/// all levels into the deepest of these. `None` if all tables are in one level.
fn next_for_room(version: &TreeVersion) -> Option<(Vec<Vec<Arc<SsTable>>>, usize)> {
    let (level0, others) = version.levels.split_first()?;
    let filled: Vec<usize> =
        (1..=others.len()).filter(|l| !version.levels[*l].is_empty()).collect();
    if !level0.is_empty() {
        // The oldest ones are at the end (V4).
        let oldest = &level0[level0.len().saturating_sub(MAX_LEVEL0)..];
        let into = filled.first().copied().unwrap_or(1);
        let mut sources: Vec<_> = oldest.iter().map(|table| vec![Arc::clone(table)]).collect();
        let range = range_of(oldest.iter())?;
        let below = overlapping(&version.levels[into], (&range.0, &range.1));
        sources.push(below.to_vec());
        sources.retain(|tables| !tables.is_empty());
        return Some((sources, into));
    }
    let into = *filled.last()?;
    let sources = filled.iter().map(|level| version.levels[*level].clone()).collect();
    (filled.len() > 1).then_some((sources, into))
}
