//! What trees have in the write-ahead log of their compute server
//! (`docs/internals/write-ahead-log.md`), and what waits for it.
//!
//! A change of a MemTable is a record, with the number of its version. Its answer waits until that
//! number is durable, and so do lookups and scans that have seen a version in a MemTable. What is
//! in tables is durable: a flush waits before it publishes them. A process that leaves a shard, or
//! loads tables into it, ends the records of its keys by a barrier.
//!
//! *Thread safety*: that of the handle; [`LoggedTrees`] is for any number of threads.

use super::Sequences;
use super::handle::DlsmIndex;
use super::shard::LsmShard;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::{Fabric, Rule};
use farleaf_index::{EditAction, IndexError};
use farleaf_page::Layout;
use farleaf_page::rules::{LEAVERS_END_RECORDS, READS_AWAIT_LOG};
use farleaf_page::table::KeyBuf;
use farleaf_pool::remote::{WalRecord, WalSource};

/// The record of a change.
pub(super) fn record_of<'r>(key: &'r [u8], action: &EditAction<&'r [u8]>) -> WalRecord<'r> {
    match action.new_value() {
        Some(value) => WalRecord::Put { key, value },
        None => WalRecord::Tombstone { key },
    }
}

/// The trees of a compute server, as its log knows them.
#[derive(Debug)]
pub(super) struct LoggedTrees {
    sequences: Arc<Sequences>,
    trees: Mutex<Vec<Arc<LsmShard>>>,
}

impl LoggedTrees {
    pub(super) fn new(sequences: &Arc<Sequences>) -> Self {
        Self { sequences: Arc::clone(sequences), trees: Mutex::default() }
    }

    pub(super) fn add(&self, tree: &Arc<LsmShard>) {
        lock(&self.trees).push(Arc::clone(tree));
    }
}

impl WalSource for LoggedTrees {
    fn settled(&self) -> u64 {
        self.sequences.settled()
    }

    fn low(&self) -> u64 {
        // First the numbers: versions up to this one are linked, and a MemTable shows them.
        let settled = self.sequences.settled();
        let trees = lock(&self.trees);
        let oldest = trees.iter().filter_map(|tree| tree.oldest_unflushed());
        oldest.fold(settled + 1, u64::min)
    }
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Waits until the version with `number`, and all before it, are durable, as `rule` demands.
    pub(super) async fn until_durable(&self, number: u64, rule: Rule) -> Result<(), IndexError> {
        match &self.log {
            Some(log) if !self.fabric().breaks(rule) => Ok(log.until_durable(number).await?),
            _ => Ok(()),
        }
    }

    /// Waits until what an operation has seen, which changes nothing, is durable: everything up to
    /// `number`.
    pub(super) async fn until_seen_durable(&self, number: u64) -> Result<(), IndexError> {
        let waited = self.until_durable(number, READS_AWAIT_LOG).await;
        waited.map_err(|_| IndexError::Contended { retries: 0 })
    }

    /// A number above those of all versions that are linked already, which has none itself. Later
    /// versions have higher numbers. `None` where there is no log.
    pub(super) async fn bound_of_records(&self) -> Result<Option<u64>, IndexError> {
        if self.log.is_none() || self.fabric().breaks(LEAVERS_END_RECORDS) {
            return Ok(None);
        }
        let bound = self.writer().await?.number(|_| ());
        self.until_settled(bound).await?;
        Ok(Some(bound))
    }

    /// Ends the records of the tree's keys with numbers below this bound (log.L5): they are in
    /// tables, or are overwritten there.
    pub(super) async fn end_records(&self, below: Option<u64>) -> Result<(), IndexError> {
        let Some((log, below)) = self.log.as_ref().zip(below) else { return Ok(()) };
        let clip = self.shard.clip();
        let bytes = |key: &Option<KeyBuf>| key.as_ref().map(|key| key.key().to_vec());
        let (low, high) = (bytes(&clip.lower).unwrap_or_default(), bytes(&clip.upper));
        let barrier = WalRecord::Barrier { below, low: &low, high: high.as_deref() };
        let began_ns = self.fabric().now_ns();
        let _room = loop {
            let seen = log.changes();
            if let Some(room) = log.reserve(&barrier)? {
                break room;
            }
            log.tell_low().await?;
            log.until_progress(seen, began_ns).await?;
        };
        let number = self.writer().await?.number(|number| log.append(number, &barrier));
        Ok(log.until_durable(number).await?)
    }
}
