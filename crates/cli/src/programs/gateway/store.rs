//! A cluster of byte strings as the store of RESP sessions.
//!
//! *Thread safety*: any number of threads.

use crate::programs::ClusterLocation;
use crate::programs::client::{OperationTimeout, locate};
use farleaf::{Error, Exchange, Index};
use farleaf_cluster::clock::MonotonicClock;
use farleaf_fabric::listener::start_thread;
use farleaf_pool::wire::MAX_VALUE_BYTES;
use farleaf_resp::{RespStore, StoreError, StoreExchange, StoreRange, StoredRecord};
use rustix::time::{ClockId, clock_gettime};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, oneshot};

/// Number of locks for the keys that are read and then changed. Two keys with one lock only wait.
const TURNS: usize = 1024;
/// How long the cluster may take to make a new index.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(60);

/// The store of one gateway.
#[derive(Debug)]
pub(super) struct IndexStore {
    index: Index<[u8]>,
    place: ClusterLocation,
    turns: Box<[Mutex<()>]>,
    /// Held while the cluster makes a new index.
    clearing: Arc<Mutex<()>>,
    clock: MonotonicClock,
}

impl IndexStore {
    pub(super) fn new(index: Index<[u8]>, place: ClusterLocation, clock: MonotonicClock) -> Self {
        let turns = (0..TURNS).map(|_| Mutex::new(())).collect();
        Self { index, place, turns, clearing: Arc::default(), clock }
    }
}

fn failed(error: Error) -> StoreError {
    let text = error.to_string();
    match error {
        Error::Unavailable(_) | Error::Connect(_) | Error::System(_) => {
            StoreError::Unavailable(text)
        }
        Error::Contended(_) => StoreError::Contended(text),
        Error::OutOfMemory(_) => StoreError::OutOfMemory(text),
        Error::Invalid(_) => StoreError::Invalid(text),
        Error::Damaged(_) => StoreError::Damaged(text),
        // Also of kinds that this program does not know.
        _ => StoreError::Indeterminate(text),
    }
}

impl RespStore for IndexStore {
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.index.get(key).await.map_err(failed)
    }

    async fn get_many(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.index.multi_get(keys).await.map_err(failed)
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.index.insert(key, value).await.map_err(failed)
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.index.update(key, value).await.map_err(failed)
    }

    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.index.upsert(key, value).await.map_err(failed)
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, StoreError> {
        self.index.remove(key).await.map_err(failed)
    }

    async fn compare_exchange(
        &self,
        key: &[u8],
        expected: &[u8],
        new: &[u8],
    ) -> Result<StoreExchange, StoreError> {
        match self.index.compare_exchange(key, expected, new).await.map_err(failed)? {
            Exchange::Exchanged => Ok(StoreExchange::Exchanged),
            Exchange::Differs(current) => Ok(StoreExchange::Differs(current)),
        }
    }

    async fn scan(&self, range: StoreRange, limit: usize) -> Result<Vec<StoredRecord>, StoreError> {
        let scan = self.index.scan((range.lower, range.upper)).limit(limit);
        let scan = if range.is_reverse { scan.reverse() } else { scan };
        let (mut records, mut found) = (scan.stream(), Vec::new());
        while let Some(record) = records.next().await {
            found.push(record.map_err(failed)?);
        }
        Ok(found)
    }

    async fn clear(&self) -> Result<(), StoreError> {
        let Ok(turn) = Arc::clone(&self.clearing).try_lock_owned() else {
            let why = "another client removes all keys: nothing was done";
            return Err(StoreError::Contended(why.to_owned()));
        };
        let (place, (sender, receiver)) = (self.place.clone(), oneshot::channel());
        // It asks the catalog again and again, and blocks meanwhile.
        let started = start_thread("clear".to_owned(), move || {
            let timeout = OperationTimeout::new(CLEAR_TIMEOUT);
            let cleared =
                locate(&place, &timeout, 1).and_then(|located| Ok(located.clear(CLEAR_TIMEOUT)?));
            // Held to here even if the client has gone.
            drop(turn);
            let _ = sender.send(cleared.map_err(|error| error.to_string()));
        });
        started.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        match receiver.await {
            Ok(cleared) => cleared.map_err(StoreError::Indeterminate),
            Err(_) => Err(StoreError::Indeterminate("the thread has failed".to_owned())),
        }
    }

    async fn turn(&self, key: &[u8], timeout: Duration) -> Option<impl Sized> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let turn = self.turns[hasher.finish() as usize % TURNS].lock();
        tokio::time::timeout(timeout, turn).await.ok()
    }

    fn max_value_bytes(&self) -> usize {
        MAX_VALUE_BYTES
    }

    fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    fn unix_time(&self) -> Duration {
        Duration::try_from(clock_gettime(ClockId::Realtime)).unwrap_or_default()
    }
}
