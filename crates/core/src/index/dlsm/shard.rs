//! The state that all handles of one tree share: the current version, and the right to change it.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.V2. One handle at a time flushes and merges, and flushes the oldest MemTable first. So
//!   level 0 is in the order of the numbers.
//! - lsm.V3. One change adds a table and takes away what it was made from.
//! - memtable.Q6. A new MemTable is in the current version before a write to it returns.
//!
//! *Thread safety*: any number of threads. One mutex holds everything that changes, and is never
//! held across a wait.

use super::version::{Table, TreeVersion};
use super::{DlsmOptions, MemTable, MemTableError, Sequences, Writer};
use crate::remote::{ExtentSpace, ExtentUsage};
use farleaf_fabric::Region;
use farleaf_fabric::sync::{Arc, Mutex, lock};

/// One LSM tree.
#[derive(Debug)]
pub struct Shard {
    pub(super) options: DlsmOptions,
    pub(super) sequences: Arc<Sequences>,
    pub(super) space: Arc<ExtentSpace>,
    /// Writers that no operation has. An idle handle keeps no seat from the others.
    pub(super) writers: Mutex<Vec<Writer>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    version: Arc<TreeVersion>,
    /// Flushed MemTables, whose memory is used again once nothing pins them.
    retired: Vec<Arc<MemTable>>,
    /// Tables and outputs so far.
    tables: u64,
    /// Whether a handle flushes or merges.
    is_working: bool,
    /// A number that names this process to the memory servers; 0 if none was drawn yet.
    owner: u64,
    counts: TreeCounts,
}

/// What a tree has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCounts {
    /// MemTables flushed.
    pub flushes: u64,
    /// Bytes of the tables, with their indexes, that these became.
    pub flushed_bytes: u64,
    /// Merges.
    pub merges: u64,
    /// Bytes of the tables, with their indexes, that merges wrote.
    pub merged_bytes: u64,
    /// Tables that went to the next level as they were.
    pub moved_tables: u64,
}

/// What became of a MemTable that no longer takes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switched {
    /// This call added the next one.
    Here,
    /// Another call did.
    Before,
    /// Too many closed ones wait for their flush.
    NoRoom,
}

impl Shard {
    /// A tree without records.
    pub(super) fn new(options: &DlsmOptions) -> Result<Self, MemTableError> {
        let sequences = Arc::new(Sequences::new(options.writers));
        let active = MemTable::new(&sequences, options.memtable.memory()?, options.memtable);
        let version = TreeVersion::new(Arc::new(active), options.levels);
        let state = State {
            version: Arc::new(version),
            retired: Vec::new(),
            tables: 0,
            is_working: false,
            owner: 0,
            counts: TreeCounts::default(),
        };
        Ok(Self {
            options: options.clone(),
            sequences,
            space: Arc::new(ExtentSpace::new(options.extent_bytes)),
            writers: Mutex::default(),
            state: Mutex::new(state),
        })
    }

    /// The current version, which stays as it is as long as the caller has it (V1).
    #[inline]
    pub(super) fn pin(&self) -> Arc<TreeVersion> {
        Arc::clone(&lock(&self.state).version)
    }

    /// The number that names this process: `drawn`, unless there is one already.
    pub(super) fn owner(&self, drawn: u64) -> u64 {
        let mut state = lock(&self.state);
        if state.owner == 0 {
            state.owner = drawn;
        }
        state.owner
    }

    /// What the tree has done so far.
    pub fn counts(&self) -> TreeCounts {
        lock(&self.state).counts
    }

    /// The extents of its tables.
    pub fn extents(&self) -> ExtentUsage {
        self.space.usage()
    }

    /// By level: the number of tables, and the bytes of their records.
    pub fn levels(&self) -> Vec<(usize, u64)> {
        let bytes = |tables: &Vec<Arc<Table>>| tables.iter().map(|table| table.bytes()).sum();
        self.pin().levels.iter().map(|tables| (tables.len(), bytes(tables))).collect()
    }

    /// Bytes of compute memory: of MemTables, and of the tables' indexes.
    pub fn local_bytes(&self) -> (u64, u64) {
        let version = self.pin();
        let each = (self.options.memtable.bytes + self.options.memtable.filter_bytes) as u64;
        let memtables = version.memtables().count() + lock(&self.state).retired.len();
        let indexes: usize = version.tables().map(|table| table.index.bytes()).sum();
        (memtables as u64 * each, indexes as u64)
    }

    /// Replaces `full`, if it is the active MemTable, by the next one.
    pub(super) fn switch(&self, full: &Arc<MemTable>) -> Result<Switched, MemTableError> {
        let mut state = lock(&self.state);
        if !Arc::ptr_eq(&state.version.active, full) {
            return Ok(Switched::Before);
        }
        if state.version.immutables.len() >= self.options.most_immutables {
            return Ok(Switched::NoRoom);
        }
        let options = self.options.memtable;
        let memory = match state.memory() {
            Some(memory) => memory,
            None => options.memory()?,
        };
        let mut next = TreeVersion::clone(&state.version);
        next.active = Arc::new(full.next(&self.sequences, memory, options));
        next.immutables.insert(0, Arc::clone(full));
        state.version = Arc::new(next);
        Ok(Switched::Here)
    }

    /// The id of a new table. Tables of a tree have different ids.
    pub(super) fn table_id(&self) -> u64 {
        let mut state = lock(&self.state);
        state.tables += 1;
        state.tables
    }

    /// The right to flush and merge. `None` if another handle has it (V2).
    pub(super) fn begin_work(shard: &Arc<Self>) -> Option<Working> {
        let mut state = lock(&shard.state);
        if state.is_working {
            return None;
        }
        state.is_working = true;
        Some(Working { shard: Arc::clone(shard) })
    }
}

impl State {
    /// The memory of a MemTable that nothing uses any more.
    fn memory(&mut self) -> Option<Arc<Region>> {
        let mut found = None;
        for table in std::mem::take(&mut self.retired) {
            if found.is_some() {
                self.retired.push(table);
                continue;
            }
            match Arc::try_unwrap(table) {
                Ok(table) => found = Some(table.into_memory()),
                Err(pinned) => self.retired.push(pinned),
            }
        }
        found
    }
}

/// The right to flush and merge, and to change the version accordingly. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Working {
    shard: Arc<Shard>,
}

impl Working {
    /// `table` takes the place of the oldest closed MemTable, which had nothing if there is none
    /// (V3).
    pub(super) fn flushed(&self, table: Option<Table>) {
        let mut state = lock(&self.shard.state);
        let mut next = TreeVersion::clone(&state.version);
        let flushed = next.immutables.pop();
        if let Some(table) = table {
            state.counts.flushes += 1;
            state.counts.flushed_bytes += u64::from(table.meta.footer.table_words()) * 8;
            next.levels[0].insert(0, Arc::new(table));
        }
        state.version = Arc::new(next);
        state.retired.extend(flushed);
        // Their memory is used again if nothing pins them. No more are kept than are needed.
        let most = self.shard.options.most_immutables;
        let surplus = state.retired.len().saturating_sub(most);
        state.retired.drain(..surplus);
    }

    /// `added` takes the place of `removed`, in `level` (V3).
    pub(super) fn merged(&self, removed: &[Arc<Table>], level: usize, added: Vec<Table>) {
        let mut state = lock(&self.shard.state);
        state.counts.merges += 1;
        let bytes = |table: &Table| u64::from(table.meta.footer.table_words()) * 8;
        state.counts.merged_bytes += added.iter().map(bytes).sum::<u64>();
        let added = added.into_iter().map(Arc::new).collect();
        state.version = Arc::new(state.version.with_merged(removed, level, added));
    }

    /// `table` goes to `level` as it is.
    pub(super) fn moved(&self, table: &Arc<Table>, level: usize) {
        let mut state = lock(&self.shard.state);
        state.counts.moved_tables += 1;
        let moved = [Arc::clone(table)];
        state.version = Arc::new(state.version.with_merged(&moved, level, moved.to_vec()));
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        lock(&self.shard.state).is_working = false;
    }
}
