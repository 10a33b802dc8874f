//! How `farleaf client load` sends the rows of a file without `--bulk`.
//!
//! *Invariants*
//! - sending.LD1. Of several rows with one key the last one wins: all rows of a key go through one
//!   lane, which sends one request at a time, in the order of the rows.
//! - sending.LD2. A row counts as loaded only once a flush has succeeded after it was set. Until
//!   then it is kept, and if a compute server has lost what it acknowledged, all kept rows are sent
//!   again.
//!
//! *Thread safety*: belongs to its client's thread.

use farleaf_cluster::client::ClusterClient;
use farleaf_cluster::layouts::ClusterLayout;
use farleaf_index::{Encoded, IndexError, RangeIndex};
use farleaf_page::{Layout, OwnedRecord};
use std::cell::RefCell;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Number of lanes, and so of requests in flight; below, the records of a request.
const LANES: usize = 8;
const RECORDS_PER_BATCH: usize = 1024;
/// Maximum number and size of the rows that are kept between two flushes.
const KEPT_RECORDS: usize = 1 << 20;
const KEPT_BYTES: usize = 64 << 20;
/// How often the kept rows are sent again, and how often a flush that takes longer than the
/// deadline is repeated.
const ATTEMPTS: u32 = 8;

/// Why a load stopped, and what it has loaded.
#[derive(Debug)]
pub(super) struct StoppedLoad {
    pub(super) error: IndexError,
    /// Number of rows, from the first one on, that are loaded.
    pub(super) loaded: u64,
    /// Number of rows after those that may be loaded.
    pub(super) unknown: u64,
}

impl fmt::Display for StoppedLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&before(self.loaded, self.unknown))?;
        write!(f, ": {}", self.error)
    }
}

impl std::error::Error for StoppedLoad {}

/// Says how many rows were loaded before an error.
pub(super) fn before(loaded: u64, unknown: u64) -> String {
    let loaded = farleaf_command_line::output::grouped(loaded);
    match unknown {
        0 => format!("records loaded before this: {loaded}"),
        _ => {
            let unknown = farleaf_command_line::output::grouped(unknown);
            format!(
                "records loaded before this: {loaded}; any of the next {unknown} may be loaded, too"
            )
        }
    }
}

/// The rows since the last flush.
struct UnflushedRows<'a, L: Layout> {
    rows: &'a mut dyn FnMut() -> Option<OwnedRecord<L>>,
    lanes: Vec<SendLane<L>>,
    records: usize,
    bytes: usize,
    /// There are no more rows.
    is_over: bool,
    error: Option<IndexError>,
}

struct SendLane<L: Layout> {
    records: Vec<OwnedRecord<L>>,
    sent: usize,
}

impl<L: Layout> UnflushedRows<'_, L> {
    /// The lane of a key (LD1).
    fn lane_of(key: &L::Key) -> usize {
        let mut hasher = DefaultHasher::new();
        key.encoded().as_ref().hash(&mut hasher);
        (hasher.finish() % LANES as u64) as usize
    }

    /// Reads one more row into its lane; returns whether there was one, and room for it.
    fn read(&mut self) -> bool {
        if self.is_over || self.records >= KEPT_RECORDS || self.bytes >= KEPT_BYTES {
            return false;
        }
        let Some((key, value)) = (self.rows)() else {
            self.is_over = true;
            return false;
        };
        self.records += 1;
        self.bytes += L::key_bytes(L::key(&key)) + L::value_length(L::value(&value));
        self.lanes[Self::lane_of(L::key(&key))].records.push((key, value));
        true
    }

    /// The next rows of a lane. Empty if all of them are sent, or if sending has failed.
    fn next(&mut self, lane: usize) -> Vec<OwnedRecord<L>> {
        if self.error.is_some() {
            return Vec::new();
        }
        while self.lanes[lane].unsent().len() < RECORDS_PER_BATCH && self.read() {}
        let lane = &mut self.lanes[lane];
        let some = lane.unsent();
        let some = some[..some.len().min(RECORDS_PER_BATCH)].to_vec();
        lane.sent += some.len();
        some
    }

    fn forget(&mut self) {
        for lane in &mut self.lanes {
            lane.records.clear();
            lane.sent = 0;
        }
        (self.records, self.bytes) = (0, 0);
    }
}

impl<L: Layout> SendLane<L> {
    fn unsent(&self) -> &[OwnedRecord<L>] {
        &self.records[self.sent..]
    }
}

/// Sets the records that `rows` returns, until it returns none, and flushes them. Reports the
/// number of each request's records to `count`. Returns the number of all.
///
/// # Errors
/// [`StoppedLoad`].
pub(super) async fn send<L: ClusterLayout>(
    client: &ClusterClient<L>,
    rows: &mut dyn FnMut() -> Option<OwnedRecord<L>>,
    count: &dyn Fn(u64),
) -> Result<u64, StoppedLoad> {
    let lane = || SendLane { records: Vec::new(), sent: 0 };
    let lanes = (0..LANES).map(|_| lane()).collect();
    let kept = UnflushedRows { rows, lanes, records: 0, bytes: 0, is_over: false, error: None };
    let kept = RefCell::new(kept);
    let mut loaded = 0;
    while !kept.borrow().is_over {
        let outcome = send_kept(client, &kept, count).await;
        let records = kept.borrow().records as u64;
        if let Err(error) = outcome {
            return Err(StoppedLoad { error, loaded, unknown: records });
        }
        loaded += records;
        kept.borrow_mut().forget();
    }
    Ok(loaded)
}

/// Sets rows until enough are kept, and flushes them (LD2).
async fn send_kept<L: ClusterLayout>(
    client: &ClusterClient<L>,
    kept: &RefCell<UnflushedRows<'_, L>>,
    count: &dyn Fn(u64),
) -> Result<(), IndexError> {
    let mut attempts = 0;
    loop {
        let is_first = attempts == 0;
        let lanes = (0..LANES).map(async |lane| {
            loop {
                let records = kept.borrow_mut().next(lane);
                let sent = records.len() as u64;
                if sent == 0 {
                    return;
                }
                match client.upsert_all(records).await {
                    Ok(()) if is_first => count(sent),
                    Ok(()) => {}
                    // The other lanes end after their requests in flight.
                    Err(error) => _ = kept.borrow_mut().error.get_or_insert(error),
                }
            }
        });
        futures_util::future::join_all(lanes).await;
        if let Some(error) = kept.borrow_mut().error.take() {
            return Err(error);
        }
        attempts += 1;
        match flush(client).await {
            Err(IndexError::ChangesLost { .. }) if attempts < ATTEMPTS => {
                kept.borrow_mut().lanes.iter_mut().for_each(|lane| lane.sent = 0);
            }
            outcome => return outcome,
        }
    }
}

/// Flushes, although that may take longer than the deadline of an operation.
async fn flush<L: ClusterLayout>(client: &ClusterClient<L>) -> Result<(), IndexError> {
    for _ in 1..ATTEMPTS {
        match client.flush().await {
            Err(IndexError::Indeterminate(_)) => {}
            outcome => return outcome,
        }
    }
    client.flush().await
}
