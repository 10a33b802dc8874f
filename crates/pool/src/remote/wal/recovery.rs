//! The way back: what of a dead life's log counts, and the end of that log.
//!
//! *Thread safety*: belongs to one endpoint's thread.

use super::batch::{FoundBatch, FoundRecord, seed};
use super::rings::{read_words, rings, write_words};
use super::{NO_LIFE, RING_HEADER_WORDS};
use crate::remote::{RemoteError, RpcClient};
use farleaf_fabric::Fabric;
use farleaf_page::Layout;
use std::collections::BTreeMap;

/// What counts in the log of a dead life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredWal {
    /// The value of each key, `None` if it has been removed.
    pub records: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl RecoveredWal {
    /// What counts of these batches (log.L5).
    fn of(batches: &[FoundBatch]) -> Self {
        let low = batches.iter().map(|batch| batch.low).max().unwrap_or(0);
        let records = || batches.iter().flat_map(|batch| &batch.records);
        let barriers: Vec<_> = records()
            .filter_map(|(_, record)| match record {
                FoundRecord::Barrier(below, from, to) => Some((*below, from, to)),
                FoundRecord::Key(..) => None,
            })
            .collect();
        let is_ended = |number: u64, key: &Vec<u8>| {
            barriers.iter().any(|(below, from, to)| {
                number < *below && key >= *from && to.as_ref().is_none_or(|to| key < to)
            })
        };
        let mut latest = BTreeMap::<&Vec<u8>, (u64, &Option<Vec<u8>>)>::new();
        for (number, record) in records() {
            let FoundRecord::Key(key, value) = record else { continue };
            if *number < low || is_ended(*number, key) {
                continue;
            }
            let newest = latest.entry(key).or_insert((*number, value));
            if newest.0 < *number {
                *newest = (*number, value);
            }
        }
        let records = latest.into_iter().map(|(key, (_, value))| (key.clone(), value.clone()));
        Self { records: records.collect() }
    }
}

/// What counts in the log of a dead life of `compute_server`, which is fenced at all memory
/// servers. `None` if there is no log, or if it has ended.
///
/// # Errors
/// [`RemoteError`] if a memory server does not answer.
pub async fn recover_wal<F: Fabric, L: Layout>(
    rpc: &RpcClient<F, L>,
    compute_server: u16,
) -> Result<Option<RecoveredWal>, RemoteError> {
    let rings = rings(rpc, compute_server).await?;
    let Some((first, _)) = rings.first() else { return Ok(None) };
    let life = read_words(rpc.fabric(), *first, 1).await?[0];
    if life == NO_LIFE {
        return Ok(None);
    }
    let mut batches = Vec::new();
    for (at, bytes) in rings {
        let words = (bytes / 8 - RING_HEADER_WORDS) as usize;
        let ring = read_words(rpc.fabric(), at.plus(RING_HEADER_WORDS * 8), words).await?;
        let seed = seed(life, at);
        batches.extend((0..words).filter_map(|place| FoundBatch::at(&ring, place, seed)));
    }
    Ok(Some(RecoveredWal::of(&batches)))
}

/// Ends the log of a dead life: nothing in it counts any more (log.L7).
///
/// # Errors
/// [`RemoteError`]; then it may have ended.
pub async fn end_wal<F: Fabric, L: Layout>(
    rpc: &RpcClient<F, L>,
    compute_server: u16,
) -> Result<(), RemoteError> {
    let rings = rings(rpc, compute_server).await?;
    let Some((first, _)) = rings.first() else { return Ok(()) };
    Ok(write_words(rpc.fabric(), *first, &[NO_LIFE]).await?)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn put(number: u64, key: &str, value: &str) -> (u64, FoundRecord) {
        let bytes = |text: &str| text.as_bytes().to_vec();
        (number, FoundRecord::Key(bytes(key), Some(bytes(value))))
    }

    fn barrier(below: u64, low: &str, high: Option<&str>) -> (u64, FoundRecord) {
        let bytes = |text: &str| text.as_bytes().to_vec();
        (below + 3, FoundRecord::Barrier(below, bytes(low), high.map(bytes)))
    }

    fn counts(batches: &[(u64, Vec<(u64, FoundRecord)>)]) -> String {
        let found =
            |(low, records): &(u64, Vec<_>)| FoundBatch { low: *low, records: records.clone() };
        let batches: Vec<_> = batches.iter().map(found).collect();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let all = RecoveredWal::of(&batches).records;
        let each = all.iter().map(|(key, value)| {
            format!("{}={}", text(key), value.as_deref().map_or("-".to_owned(), text))
        });
        each.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_highest_number_of_each_key_counts() {
        let removed = (9, FoundRecord::Key(b"b".to_vec(), None));
        let batches = [
            (0, vec![put(3, "a", "new"), put(4, "b", "old"), put(5, "c", "c")]),
            (0, vec![put(2, "a", "old"), removed]),
        ];
        assert_eq!(counts(&batches), "a=new b=- c=c");
    }

    #[test]
    fn what_is_below_the_highest_low_does_not_count() {
        let batches = [
            (0, vec![put(3, "a", "1"), put(6, "b", "1")]),
            (5, vec![put(7, "a", "2")]),
            (4, vec![put(4, "c", "1"), put(5, "d", "1")]),
        ];
        assert_eq!(counts(&batches), "a=2 b=1 d=1");
    }

    #[test]
    fn a_barrier_ends_what_came_before_in_its_range() {
        let batches = [
            (0, vec![put(1, "a", "1"), put(2, "b", "1"), put(3, "d", "1")]),
            (0, vec![barrier(4, "b", Some("d")), put(5, "c", "1")]),
        ];
        assert_eq!(counts(&batches), "a=1 c=1 d=1");
        let ended = (0, vec![barrier(6, "", None)]);
        assert_eq!(counts(&[&batches[..], &[ended]].concat()), "");
    }
}
