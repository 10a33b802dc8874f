//! Commands on ranges of keys. None is a snapshot: each key is looked at once, in order.
//!
//! *Invariants*: resp.G1. A page continues behind the last key of the page before, so a key that is
//! there throughout is returned exactly once.
//!
//! *Thread safety*: as that of the store.

use super::Deadline;
use crate::command::RecordFields;
use crate::glob;
use crate::reply::RespReply;
use crate::shared::{EndedCount, RespShared};
use crate::store::{RespStore, StoreError, StoreRange, StoredRecord};
use futures_util::StreamExt;
use futures_util::stream;
use std::future::ready;
use std::ops::Bound;

/// How many records are read at a time.
const PAGE_RECORDS: usize = 256;
/// What a record costs in a reply besides its bytes.
const RECORD_OVERHEAD_BYTES: usize = 64;
/// A flush removes so many keys one by one; if there are more, it makes the index anew.
const MAX_FLUSHED_SINGLY: usize = 1024;

/// The pages of a range.
struct PageReader {
    range: StoreRange,
    left: usize,
    is_over: bool,
    is_prefix: bool,
}

impl PageReader {
    fn new(range: StoreRange, limit: usize) -> Self {
        let is_over = range.is_empty() || limit == 0;
        Self { range, left: limit, is_over, is_prefix: false }
    }

    /// Those of a pattern's literal beginning, or of a part of it.
    fn of_prefix(range: StoreRange, limit: usize) -> Self {
        Self { is_prefix: true, ..Self::new(range, limit) }
    }

    /// The next records; none at the end.
    async fn next<S: RespStore>(&mut self, store: &S) -> Result<Vec<StoredRecord>, StoreError> {
        if self.is_over {
            return Ok(Vec::new());
        }
        let wanted = self.left.min(PAGE_RECORDS);
        let page = match store.scan(self.range.clone(), wanted).await {
            // No key is as long as the prefix.
            Err(StoreError::Invalid(_)) if self.is_prefix => Vec::new(),
            page => page?,
        };
        self.left -= page.len().min(wanted);
        match page.last() {
            Some((last, _)) if page.len() >= wanted && self.left > 0 => {
                self.range = self.range.clone().after(last.clone());
                self.is_over = self.range.is_empty();
            }
            _ => self.is_over = true,
        }
        Ok(page)
    }
}

/// The part of a prefix's range behind `key`.
fn continued(range: StoreRange, key: Vec<u8>) -> StoreRange {
    match &range.lower {
        // The pattern is not the one that the cursor was given for.
        Bound::Included(lower) if *lower > key => range,
        _ => range.after(key),
    }
}

/// SCAN.
pub(super) async fn scan<S: RespStore>(
    store: &S,
    shared: &RespShared,
    cursor: u64,
    pattern: Option<Vec<u8>>,
    count: usize,
    has_strings: bool,
) -> RespReply {
    let (prefix, is_prefix) = pattern.as_deref().map_or((Vec::new(), true), glob::literal_prefix);
    let mut range = StoreRange::prefix(&prefix);
    if cursor != 0 {
        let Some(behind) = shared.cursor(cursor) else {
            return RespReply::error(
                "invalid cursor: this gateway did not give it, or has forgotten it; begin again at 0",
            );
        };
        range = continued(range, behind);
    }
    let (mut reader, mut keys, mut read, mut last) = (
        PageReader::of_prefix(range, if has_strings { count } else { 0 }),
        Vec::new(),
        0,
        Vec::new(),
    );
    loop {
        let page = match reader.next(store).await {
            Ok(page) => page,
            Err(error) => return error.of_read(),
        };
        read += page.len();
        let Some((newest, _)) = page.last() else { break };
        last.clone_from(newest);
        let is_wanted = |key: &Vec<u8>| match &pattern {
            Some(pattern) if !is_prefix => glob::matches(pattern, key),
            _ => true,
        };
        keys.extend(page.into_iter().map(|(key, _)| key).filter(is_wanted));
    }
    // Fewer than wanted: the range has ended.
    let next = if has_strings && read == count { shared.give_cursor(last, cursor) } else { 0 };
    RespReply::Array(vec![
        RespReply::text(next.to_string()),
        RespReply::Array(keys.into_iter().map(RespReply::Bulk).collect()),
    ])
}

fn too_large(max: usize, advice: &str) -> RespReply {
    RespReply::error(format!("the reply has more than {max} bytes: {advice}"))
}

/// KEYS.
pub(super) async fn keys<S: RespStore>(
    store: &S,
    shared: &RespShared,
    pattern: &[u8],
) -> RespReply {
    let (prefix, is_prefix) = glob::literal_prefix(pattern);
    let mut reader = PageReader::of_prefix(StoreRange::prefix(&prefix), usize::MAX);
    let (mut found, mut bytes) = (Vec::new(), 0);
    loop {
        let page = match reader.next(store).await {
            Ok(page) if page.is_empty() => return RespReply::Array(found),
            Ok(page) => page,
            Err(error) => return error.of_read(),
        };
        for (key, _) in page {
            if is_prefix || glob::matches(pattern, &key) {
                bytes += key.len() + RECORD_OVERHEAD_BYTES;
                found.push(RespReply::Bulk(key));
            }
        }
        if bytes > shared.config.limits.reply_bytes {
            return too_large(shared.config.limits.reply_bytes, "use SCAN");
        }
    }
}

/// RI.SCAN and RI.RANGE.
pub(super) async fn records<S: RespStore>(
    store: &S,
    shared: &RespShared,
    range: StoreRange,
    limit: usize,
    fields: RecordFields,
) -> RespReply {
    let mut reader = PageReader::new(range, limit);
    let (mut found, mut bytes) = (Vec::new(), 0);
    loop {
        let page = match reader.next(store).await {
            Ok(page) if page.is_empty() => return RespReply::Array(found),
            Ok(page) => page,
            Err(error) => return error.of_read(),
        };
        found.reserve(page.len());
        for (key, value) in page {
            bytes += RECORD_OVERHEAD_BYTES;
            bytes += if fields == RecordFields::Value { 0 } else { key.len() };
            bytes += if fields == RecordFields::Key { 0 } else { value.len() };
            let (key, value) = (RespReply::Bulk(key), RespReply::Bulk(value));
            found.push(match fields {
                RecordFields::Key => key,
                RecordFields::Value => value,
                RecordFields::Both => RespReply::Array(vec![key, value]),
            });
        }
        if bytes > shared.config.limits.reply_bytes {
            return too_large(shared.config.limits.reply_bytes, "use LIMIT or COUNT");
        }
    }
}

async fn counted<S: RespStore>(store: &S, range: StoreRange) -> Result<u64, StoreError> {
    let (mut reader, mut records) = (PageReader::new(range, usize::MAX), 0);
    loop {
        match reader.next(store).await?.len() {
            0 => return Ok(records),
            page => records += page as u64,
        }
    }
}

fn number(count: u64) -> RespReply {
    RespReply::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

/// RI.COUNT.
pub(super) async fn count<S: RespStore>(store: &S, range: StoreRange) -> RespReply {
    counted(store, range).await.map_or_else(StoreError::of_read, number)
}

/// DBSIZE.
pub(super) async fn count_all<S: RespStore>(
    store: &S,
    shared: &RespShared,
    is_exact: bool,
) -> RespReply {
    let begun = store.now();
    let counted = match shared.begin_count(begun, is_exact).await {
        Ok(known) => known,
        Err(guard) => {
            // It may have waited.
            let begun = store.now();
            let keys = counted(store, StoreRange::ALL).await;
            guard.end(EndedCount { keys: keys.clone(), begun, ended: store.now() });
            keys
        }
    };
    counted.map_or_else(StoreError::of_read, number)
}

fn keys_of(page: Vec<StoredRecord>) -> Vec<Vec<u8>> {
    page.into_iter().map(|(key, _)| key).collect()
}

/// Removes the keys of a page; returns how many existed.
async fn remove_page<S: RespStore>(
    store: &S,
    page: Vec<Vec<u8>>,
    deadline: Deadline,
) -> (u64, Option<StoreError>) {
    let (mut removed, mut failed, mut ended) = (0, None, 0);
    let mut outcomes = stream::iter(&page)
        .take_while(|_| ready(!deadline.is_over(store)))
        .map(|key| store.remove(key))
        .buffer_unordered(PAGE_RECORDS / 4);
    while let Some(outcome) = outcomes.next().await {
        ended += 1;
        match outcome {
            Ok(existed) => removed += u64::from(existed),
            // What is unknown about one key is unknown about all.
            Err(error @ StoreError::Indeterminate(_)) => failed = Some(error),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    if ended < page.len() {
        failed = failed.or(Some(deadline.error()));
    }
    (removed, failed)
}

/// What a removal of many keys replies that has failed on the way.
fn stopped(removed: u64, error: StoreError) -> RespReply {
    match removed == 0 && !matches!(error, StoreError::Indeterminate(_)) {
        true => error.into(),
        false => {
            let why = format!("{removed} keys or more are removed: {error}");
            StoreError::Indeterminate(why).into()
        }
    }
}

/// RI.DELRANGE: every key that is in the range throughout is removed; of those that are written
/// meanwhile, some.
pub(super) async fn remove<S: RespStore>(
    store: &S,
    shared: &RespShared,
    range: StoreRange,
    limit: usize,
) -> RespReply {
    let deadline = Deadline::begin(store, shared);
    let (mut reader, mut removed) = (PageReader::new(range, limit), 0);
    loop {
        let page = match reader.next(store).await {
            Ok(page) if page.is_empty() => return number(removed),
            Ok(page) => page,
            // The scan itself changes nothing.
            Err(StoreError::Indeterminate(why)) => {
                return stopped(removed, StoreError::Unavailable(why));
            }
            Err(error) => return stopped(removed, error),
        };
        let (existed, failed) = remove_page(store, keys_of(page), deadline).await;
        removed += existed;
        if let Some(error) = failed {
            return stopped(removed, error);
        }
    }
}

/// FLUSHDB and FLUSHALL.
pub(super) async fn clear<S: RespStore>(store: &S, shared: &RespShared) -> RespReply {
    let deadline = Deadline::begin(store, shared);
    let (mut reader, mut removed) = (PageReader::new(StoreRange::ALL, MAX_FLUSHED_SINGLY + 1), 0);
    let (mut records, mut pages) = (0, Vec::new());
    loop {
        match reader.next(store).await {
            Ok(page) if page.is_empty() => break,
            Ok(page) => {
                records += page.len();
                pages.push(keys_of(page));
            }
            Err(error) => return error.of_read(),
        }
    }
    if records > MAX_FLUSHED_SINGLY {
        return store.clear().await.map_or_else(RespReply::from, |()| RespReply::OK);
    }
    for page in pages {
        let (existed, failed) = remove_page(store, page, deadline).await;
        removed += existed;
        if let Some(error) = failed {
            return stopped(removed, error);
        }
    }
    RespReply::OK
}
