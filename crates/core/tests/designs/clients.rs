//! Clients shared by the tests of several designs.

use farleaf_core::index::{IndexError, RangeIndex};
use farleaf_fabric::Fabric;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Inserts keys in random order until some are refused for lack of memory. Returns the accepted
/// records.
pub(crate) async fn fill_until_refused(
    index: &impl RangeIndex<Key = u64, Value = u64>,
) -> BTreeMap<u64, u64> {
    let mut model = BTreeMap::new();
    let mut refused = 0;
    for number in 0..2_000_u64 {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match index.insert(&key, &number).await {
            Ok(true) => drop(model.insert(key, number)),
            Err(IndexError::OutOfMemory { .. }) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(refused > 0 && model.len() > 50, "{refused} refused, {} accepted", model.len());
    model
}

/// A client's knowledge of a key: the last acknowledged value, and the value in flight.
pub(crate) type Known = BTreeMap<u64, (Option<u64>, Option<Option<u64>>)>;

/// A client that changes its own keys until it is told to stop, or dies.
pub(crate) async fn write_for_ever(
    fabric: &impl Fabric,
    index: &impl RangeIndex<Key = u64, Value = u64>,
    known: &Mutex<Known>,
    base: u64,
    stop: &Mutex<bool>,
) {
    while !*stop.lock().unwrap() {
        let key = base + fabric.random() % 60 * 4;
        let value = fabric.random();
        let removes = fabric.random().is_multiple_of(3);
        let after = (!removes).then_some(value);
        known.lock().unwrap().entry(key).or_default().1 = Some(after);
        if removes {
            index.remove(&key).await.unwrap();
        } else {
            index.upsert(&key, &value).await.unwrap();
        }
        known.lock().unwrap().insert(key, (after, None));
    }
}
