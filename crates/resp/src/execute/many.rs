//! Commands on several keys: each key by itself, not atomic together.
//!
//! *Thread safety*: as that of the store.

use super::Deadline;
use super::modify::too_long;
use crate::reply::RespReply;
use crate::shared::RespShared;
use crate::store::{RespStore, StoreError};
use futures_util::StreamExt;
use futures_util::stream;
use std::collections::BTreeMap;
use std::future::ready;

/// Every store has keys of this length.
const SHORT_KEY_BYTES: usize = 128;
/// How many operations of one command are in flight together.
const MAX_IN_FLIGHT: usize = 64;

/// What has become of several changes.
#[derive(Default)]
struct ChangeTally {
    done: usize,
    ended: usize,
    failed: Option<StoreError>,
    is_unknown: bool,
}

impl ChangeTally {
    fn add<T>(&mut self, outcome: Result<T, StoreError>) -> Option<T> {
        self.ended += 1;
        match outcome {
            Ok(value) => {
                self.done += 1;
                Some(value)
            }
            Err(error) => {
                self.is_unknown |= matches!(error, StoreError::Indeterminate(_));
                self.failed.get_or_insert(error);
                None
            }
        }
    }

    /// The error of all of them. If some changes have happened, the command has happened in part.
    fn failure(self, wanted: usize, deadline: Deadline) -> Option<RespReply> {
        let error = match self.failed {
            Some(error) => error,
            None if self.ended < wanted => deadline.error(),
            None => return None,
        };
        let done = self.done;
        Some(match done > 0 || self.is_unknown {
            true => {
                let why = format!("done in part, at least {done} of {wanted} keys: {error}");
                StoreError::Indeterminate(why).into()
            }
            false => error.into(),
        })
    }
}

/// MGET.
pub(super) async fn get<S: RespStore>(
    store: &S,
    shared: &RespShared,
    keys: Vec<Vec<u8>>,
) -> RespReply {
    let (mut values, mut bytes) = (Vec::with_capacity(keys.len()), 0);
    for keys in keys.chunks(MAX_IN_FLIGHT) {
        match store.get_many(keys.to_vec()).await {
            Ok(found) => {
                bytes += found.iter().flatten().map(Vec::len).sum::<usize>();
                values.extend(found.into_iter().map(RespReply::value));
            }
            Err(error) => return error.of_read(),
        }
        if bytes > shared.config.limits.reply_bytes {
            let max = shared.config.limits.reply_bytes;
            return RespReply::error(format!("the reply has more than {max} bytes: ask for less"));
        }
    }
    RespReply::Array(values)
}

/// EXISTS and TOUCH: a key that is named twice counts twice.
pub(super) async fn exists<S: RespStore>(store: &S, keys: Vec<Vec<u8>>) -> RespReply {
    let mut found = 0;
    for keys in keys.chunks(MAX_IN_FLIGHT) {
        match store.get_many(keys.to_vec()).await {
            Ok(values) => found += values.iter().flatten().count(),
            Err(error) => return error.of_read(),
        }
    }
    RespReply::count(found)
}

/// DEL and UNLINK.
pub(super) async fn remove<S: RespStore>(
    store: &S,
    shared: &RespShared,
    keys: Vec<Vec<u8>>,
) -> RespReply {
    if let [key] = &keys[..] {
        return store.remove(key).await.map_or_else(RespReply::from, RespReply::flag);
    }
    let distinct: BTreeMap<Vec<u8>, ()> = keys.into_iter().map(|key| (key, ())).collect();
    let deadline = Deadline::begin(store, shared);
    let (mut tally, mut removed) = (ChangeTally::default(), 0);
    let mut outcomes = stream::iter(distinct.keys())
        .take_while(|_| ready(!deadline.is_over(store)))
        .map(|key| store.remove(key))
        .buffer_unordered(MAX_IN_FLIGHT);
    while let Some(outcome) = outcomes.next().await {
        removed += usize::from(tally.add(outcome) == Some(true));
    }
    tally.failure(distinct.len(), deadline).unwrap_or(RespReply::count(removed))
}

/// Refuses records that the store cannot hold, before any of them is set.
async fn check_lengths<S: RespStore>(
    store: &S,
    records: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Result<(), RespReply> {
    let longest = records.values().map(Vec::len).max().unwrap_or(0);
    too_long(store, longest)?;
    // The store knows how long a key can be, and says it in its error.
    match records.keys().max_by_key(|key| key.len()) {
        Some(key) if key.len() > SHORT_KEY_BYTES => {
            store.get(key).await.map_err(StoreError::of_read).map(drop)
        }
        _ => Ok(()),
    }
}

/// MSET: of a key that is named twice, the last value.
pub(super) async fn set<S: RespStore>(
    store: &S,
    shared: &RespShared,
    records: Vec<(Vec<u8>, Vec<u8>)>,
) -> RespReply {
    let distinct: BTreeMap<Vec<u8>, Vec<u8>> = records.into_iter().collect();
    let deadline = Deadline::begin(store, shared);
    if let Err(refusal) = check_lengths(store, &distinct).await {
        return refusal;
    }
    let mut tally = ChangeTally::default();
    let mut outcomes = stream::iter(&distinct)
        .take_while(|_| ready(!deadline.is_over(store)))
        .map(|(key, value)| store.upsert(key, value))
        .buffer_unordered(MAX_IN_FLIGHT);
    while let Some(outcome) = outcomes.next().await {
        tally.add(outcome);
    }
    tally.failure(distinct.len(), deadline).unwrap_or(RespReply::OK)
}
