//! A handle of an LSM tree, and what all its operations use.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::shard::LsmShard;
use super::version::SsTable;
use super::{MemTableError, MemTableWriter};
use crate::remote::ExtentClient;
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_index::IndexError;
use farleaf_page::{Layout, LengthError};
use farleaf_pool::remote::WalWriter;
use std::cell::Cell;
use std::ops::{Deref, DerefMut, Range};
use std::rc::Rc;

/// Maximum time that an operation waits for others, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;
/// The first wait, in nanoseconds. It doubles up to [`MAX_WAIT_NS`].
const FIRST_WAIT_NS: u64 = 500;
const MAX_WAIT_NS: u64 = 100_000;
/// The longest sleep of a wait that flushes and compactions end, in nanoseconds.
const MAX_SLEEP_NS: u64 = 100_000_000;
/// Maximum number of times that an operation checks again whether running compactions have freed
/// memory.
const MAX_LOOKS: u32 = 64;

/// A handle of an LSM tree.
#[derive(Debug)]
pub struct DlsmIndex<F: Fabric, L: Layout> {
    pub(super) shard: Arc<LsmShard>,
    pub(super) extents: ExtentClient<F, L>,
    /// The epoch in which its compute server has joined the process; 0 if in none.
    pub(super) joined: Cell<u64>,
    /// The write-ahead log of the compute server, if it has one.
    pub(super) log: Option<Rc<WalWriter<F, L>>>,
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    pub(super) fn new(
        shard: &Arc<LsmShard>,
        extents: ExtentClient<F, L>,
        log: Option<Rc<WalWriter<F, L>>>,
    ) -> Self {
        Self { shard: Arc::clone(shard), extents, joined: Cell::new(0), log }
    }

    /// The tree, for tests and tools.
    pub fn shard(&self) -> &Arc<LsmShard> {
        &self.shard
    }

    pub(super) fn fabric(&self) -> &F {
        self.extents.fabric()
    }

    /// A wait for other operations, which begins now.
    pub(super) fn wait(&self) -> BoundedWait<'_, F> {
        let fabric = self.fabric();
        let (began_ns, steps) = (fabric.now_ns(), self.shard.steps());
        let (_, failures) = self.shard.workers();
        BoundedWait {
            fabric,
            began_ns,
            next_ns: FIRST_WAIT_NS,
            waits: 0,
            looks: 0,
            steps,
            failures,
        }
    }

    /// Waits until versions up to `bound` no longer appear (memtable.Q7).
    pub(super) async fn until_settled(&self, bound: u64) -> Result<(), IndexError> {
        let mut wait = None;
        while !self.shard.sequences.is_settled(bound) {
            wait.get_or_insert_with(|| self.wait()).again().await?;
        }
        Ok(())
    }

    /// A writer for one operation. Waits if all seats are taken.
    pub(super) async fn writer(&self) -> Result<BorrowedWriter<'_>, IndexError> {
        let mut wait = None;
        loop {
            if let Some(writer) = self.shard.writers.take(self.shard.id, || self.fabric().random())
            {
                return Ok(BorrowedWriter { writer: Some(writer), shard: &self.shard });
            }
            wait.get_or_insert_with(|| self.wait()).again().await?;
        }
    }

    /// READs words of a table.
    pub(super) async fn read(
        &self,
        table: &SsTable,
        words: Range<u32>,
    ) -> Result<Vec<u64>, IndexError> {
        let count = words.end.saturating_sub(words.start);
        Ok(self.extents.read(&table.lease, words.start, count).await?)
    }

    /// The error for words of a table that are not what they should be.
    pub(super) fn damaged(table: &SsTable) -> IndexError {
        IndexError::Damaged { at: table.lease.place() }
    }
}

impl From<MemTableError> for IndexError {
    fn from(error: MemTableError) -> Self {
        match error {
            MemTableError::KeyTooLong { bytes, most } => LengthError::Key { bytes, most }.into(),
            MemTableError::ValueTooLong { bytes, most } => {
                LengthError::Value { bytes, most }.into()
            }
            MemTableError::BadSize { .. } => {
                Self::InvalidArgument("a MemTable has at most 2^34 bytes")
            }
            MemTableError::Memory(_) => {
                Self::InvalidArgument("cannot get the memory of a MemTable; use smaller ones")
            }
        }
    }
}

/// A bounded wait with growing pauses.
#[derive(Debug)]
pub(super) struct BoundedWait<'f, F> {
    fabric: &'f F,
    began_ns: u64,
    next_ns: u64,
    waits: u32,
    /// Number of checks so far whether running compactions have freed memory.
    looks: u32,
    /// Progress of flushes and compactions ([`LsmShard::steps`]) at the last check.
    steps: u64,
    /// Number of failures of background tasks when the wait began.
    failures: u64,
}

impl<F: Fabric> BoundedWait<'_, F> {
    /// Whether to check once more whether running compactions have freed memory.
    pub(super) fn looks_again(&mut self) -> bool {
        self.looks += 1;
        self.looks <= MAX_LOOKS
    }

    /// Whether the operation does the work itself: there are no tasks in the background, or one has
    /// failed meanwhile, and it has to learn why.
    pub(super) fn works_itself(&self, shard: &LsmShard) -> bool {
        let (workers, failures) = shard.workers();
        workers == 0 || failures != self.failures
    }

    /// Sleeps until the tree's signal was raised more than `seen` times, or for [`MAX_SLEEP_NS`].
    /// The time limit of the wait starts anew whenever a flush or compaction makes progress.
    ///
    /// # Errors
    /// [`IndexError::Contended`] once nothing has made progress for too long.
    pub(super) async fn for_change(
        &mut self,
        shard: &LsmShard,
        seen: u64,
    ) -> Result<(), IndexError> {
        let (now_ns, steps) = (self.fabric.now_ns(), shard.steps());
        if steps != self.steps {
            (self.steps, self.began_ns) = (steps, now_ns);
        }
        self.check(now_ns)?;
        self.waits += 1;
        shard.changed.sleep(self.fabric, seen, MAX_SLEEP_NS).await;
        Ok(())
    }

    /// Waits once more.
    ///
    /// # Errors
    /// [`IndexError::Contended`] once it has taken too long.
    pub(super) async fn again(&mut self) -> Result<(), IndexError> {
        self.check(self.fabric.now_ns())?;
        self.fabric.sleep(self.next_ns).await;
        (self.next_ns, self.waits) = ((self.next_ns * 2).min(MAX_WAIT_NS), self.waits + 1);
        Ok(())
    }

    fn check(&self, now_ns: u64) -> Result<(), IndexError> {
        match now_ns.saturating_sub(self.began_ns) > PATIENCE_NS {
            true => Err(IndexError::Contended { retries: self.waits }),
            false => Ok(()),
        }
    }
}

/// A writer that one operation uses. Dropping it returns it to the idle ones.
#[derive(Debug)]
pub(super) struct BorrowedWriter<'h> {
    writer: Option<MemTableWriter>,
    shard: &'h LsmShard,
}

impl Deref for BorrowedWriter<'_> {
    type Target = MemTableWriter;

    fn deref(&self) -> &MemTableWriter {
        self.writer.as_ref().expect("it is lent until it is dropped")
    }
}

impl DerefMut for BorrowedWriter<'_> {
    fn deref_mut(&mut self) -> &mut MemTableWriter {
        self.writer.as_mut().expect("it is lent until it is dropped")
    }
}

impl Drop for BorrowedWriter<'_> {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            self.shard.writers.give(self.shard.id, writer);
        }
    }
}
