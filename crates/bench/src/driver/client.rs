//! One client of a run: a closed loop over an endpoint of its own.
//!
//! *Thread safety*: belongs to its thread.

use super::moment::Due;
use super::{Amount, Measurement, PROGRESS_EVERY, Progress};
use crate::timeline::Recorder;
use crate::workload::{Operation, OperationStream};
use farleaf_core::index::{Exchange, IndexAdmin, IndexError, RangeIndex, Scan};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::{AtomicU64, Ordering};
use std::ops::Bound;

/// The state of one client's loop.
pub(super) struct Client<'a, F> {
    pub(super) fabric: &'a F,
    pub(super) stream: OperationStream,
    pub(super) measured: Measurement,
    pub(super) progress: Progress<'a>,
    pub(super) compute_server: u16,
    /// When the hotspot is to shift, and how far.
    pub(super) shift: Option<(Due, f64)>,
    /// When it shifted.
    pub(super) shifted_at_ns: Option<u64>,
    /// The client's part of the timeline, if one is recorded.
    pub(super) recorder: Option<Recorder>,
    /// Where the client publishes its operation count, if background tasks wait for it.
    pub(super) clock: Option<&'a AtomicU64>,
    /// Ask only for keys that the client's compute server owns.
    pub(super) own_keys: bool,
}

impl<F: Fabric> Client<'_, F> {
    pub(super) async fn work<I>(&mut self, index: &I, amount: Amount)
    where
        I: IndexAdmin<Key = u64, Value = u64>,
    {
        let start_ns = self.fabric.now_ns();
        let (operations, until_ns) = match amount {
            Amount::Operations(operations) => (operations, u64::MAX),
            Amount::Nanoseconds(ns) => (u64::MAX, start_ns.saturating_add(ns)),
        };
        let mut done = 0;
        let mut now_ns = start_ns;
        while done < operations && now_ns < until_ns {
            if let Some((due, by)) = self.shift
                && (done >= due.operations || now_ns >= due.ns)
            {
                self.stream.shift_hotspot(by);
                self.shift = None;
                self.shifted_at_ns = Some(now_ns);
            }
            if self.own_keys && !self.owns_something(index) {
                // With a fixed number of operations, as in a warm-up, do not wait: the compute
                // server may never own a key.
                if until_ns == u64::MAX {
                    break;
                }
                self.fabric.sleep(NAP_NS).await;
                now_ns = self.fabric.now_ns();
                continue;
            }
            let Some(operation) = self.next(index) else {
                // No time passes here, so this must count as an operation for the loop to end.
                let full = IndexError::InvalidArgument("the key space has no room for a new key");
                self.measured.record(Err(full), 0);
                done += 1;
                now_ns = self.fabric.now_ns();
                if let Some(recorder) = &mut self.recorder {
                    recorder.record(self.compute_server, now_ns, true);
                }
                continue;
            };
            let begin_ns = self.fabric.now_ns();
            let result = execute(index, operation, self.stream.batch()).await;
            now_ns = self.fabric.now_ns();
            if let (Operation::Insert { .. }, Ok(true)) = (operation, &result) {
                self.stream.inserted();
                self.measured.inserted += 1;
            }
            if let Some(recorder) = &mut self.recorder {
                let owner = first_key(&operation, self.stream.batch())
                    .and_then(|key| index.compute_server_of(&key))
                    .unwrap_or(self.compute_server);
                recorder.record(owner, now_ns, result.is_err());
            }
            self.measured.record(result, now_ns - begin_ns);
            done += 1;
            if let Some(clock) = self.clock {
                clock.store(done, Ordering::Release);
            }
            if done.is_multiple_of(PROGRESS_EVERY) {
                (self.progress)(PROGRESS_EVERY);
            }
        }
        (self.progress)(done % PROGRESS_EVERY);
    }
}

impl<F: Fabric> Client<'_, F> {
    /// Whether the client's compute server owns any keys.
    fn owns_something<I: IndexAdmin<Key = u64>>(&self, index: &I) -> bool {
        index.owned_by(self.compute_server).is_some()
    }

    /// Draws the next operation. With `own_keys`, it is one whose first key this compute server
    /// owns, if one is found within [`MOST_DRAWN`] draws.
    fn next<I: IndexAdmin<Key = u64>>(&mut self, index: &I) -> Option<Operation> {
        let mut operation = self.stream.next();
        for _ in 0..MOST_DRAWN {
            let Some(drawn) = operation.filter(|_| self.own_keys) else { break };
            let owner = first_key(&drawn, self.stream.batch())
                .and_then(|key| index.compute_server_of(&key));
            if owner.is_none_or(|owner| owner == self.compute_server) {
                break;
            }
            operation = self.stream.next();
        }
        operation
    }
}

/// Poll interval of a client while its compute server owns no keys, in nanoseconds.
const NAP_NS: u64 = 20_000;

/// Draws in search of an operation on an owned key. After these, the client takes any.
const MOST_DRAWN: u32 = 1_000;

pub fn first_key(operation: &Operation, batch: &[u64]) -> Option<u64> {
    match operation {
        Operation::Get { key }
        | Operation::Insert { key, .. }
        | Operation::Update { key, .. }
        | Operation::Upsert { key, .. }
        | Operation::Remove { key }
        | Operation::CompareExchange { key, .. }
        | Operation::ReadModifyWrite { key, .. }
        | Operation::Scan { from: key, .. }
        | Operation::ScanInterval { from: key, .. } => Some(*key),
        Operation::MultiGet => batch.first().copied(),
    }
}

/// Executes one operation. Returns whether it found what it wanted: a record, or no record for an
/// insertion. `batch` has the keys of [`Operation::MultiGet`].
///
/// # Errors
/// Those of the index. In a read-modify-write only the write can be indeterminate.
#[inline]
pub async fn execute<I>(index: &I, operation: Operation, batch: &[u64]) -> Result<bool, IndexError>
where
    I: RangeIndex<Key = u64, Value = u64>,
{
    Ok(match operation {
        Operation::Get { key } => index.get(&key).await?.is_some(),
        Operation::Insert { key, value } => index.insert(&key, &value).await?,
        Operation::Update { key, value } => index.update(&key, &value).await?,
        Operation::Upsert { key, value } => {
            index.upsert(&key, &value).await?;
            true
        }
        Operation::Remove { key } => index.remove(&key).await?,
        Operation::CompareExchange { key, expected, new } => {
            index.compare_exchange(&key, &expected, &new).await? == Exchange::Exchanged
        }
        Operation::ReadModifyWrite { key, value } => {
            index.get(&key).await?.is_some() && index.update(&key, &value).await?
        }
        Operation::Scan { from, limit, reverse } => {
            !index.scan(&scan_from(from, limit, reverse)).await?.is_empty()
        }
        Operation::ScanInterval { from, below } => {
            !index.scan(&Scan::range(from..below)).await?.is_empty()
        }
        Operation::MultiGet => index.multi_get(batch).await?.iter().all(Option::is_some),
    })
}

/// A scan of at most `limit` records from a key on, ascending or descending.
pub fn scan_from(from: u64, limit: u32, reverse: bool) -> Scan<u64> {
    let (lower, upper) = match reverse {
        false => (Bound::Included(from), Bound::Unbounded),
        true => (Bound::Unbounded, Bound::Included(from)),
    };
    Scan { lower, upper, reverse, limit: limit as usize }
}
