//! Real records in an LSM tree, against a `BTreeMap`. `FARLEAF_RECORDS` names a file with a line
//! `hexadecimal key,hexadecimal value` each; `scripts/real-data` makes such files of dictionaries
//! and of WordNet. Without it the test says so and does nothing.

use super::tree::{compute, setup};
use farleaf_dlsm::{CompactionPlace, Dlsm, DlsmOptions};
use farleaf_fabric::Cluster;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_index::{Design, IndexAdmin, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_suites::providers::{AnyProvider, local, sim, tcp};
use std::collections::BTreeMap;

/// Pages of 4 KiB.
type Large = Bytes<512>;
type Records = Vec<(Vec<u8>, Vec<u8>)>;

fn records() -> Option<Records> {
    let Some(path) = std::env::var_os("FARLEAF_RECORDS") else {
        eprintln!("skipped: FARLEAF_RECORDS names no file");
        return None;
    };
    let text = std::fs::read_to_string(path).expect("FARLEAF_RECORDS names a file");
    let bytes = |digits: &str| -> Vec<u8> {
        let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("a digit");
        (0..digits.len()).step_by(2).map(pair).collect()
    };
    let record = |line: &str| {
        let (key, value) = line.split_once(',').expect("a comma");
        (bytes(key), bytes(value))
    };
    Some(text.lines().map(record).collect())
}

fn check(provider: &AnyProvider, merges: CompactionPlace, records: &Records) {
    // So small that the records fill and merge many tables.
    let mut setup =
        setup(provider, DlsmOptions { merges, ..DlsmOptions::with_table_bytes(256 << 10) });
    setup.server.pool_bytes = 512 << 20;
    let (cluster, tree) = (setup.with_index::<Large, Dlsm>(), &compute(&setup.options));
    cluster.run_one(|fabric| async move {
        let index = <Dlsm as Design<Large>>::open(fabric.clone(), tree).await.unwrap();
        let mut model = BTreeMap::new();
        // In another order than that of the keys. 7919 is a prime, so each record comes once,
        // unless their number is a multiple of it.
        for number in 0..records.len() {
            let (key, value) = &records[number * 7919 % records.len()];
            index.upsert(key, value).await.unwrap();
            model.insert(key.clone(), value.clone());
        }
        assert!(records.len().is_multiple_of(7919) || model.len() == records.len());
        for (key, _) in records.iter().step_by(10) {
            assert_eq!(index.remove(key).await.unwrap(), model.remove(key).is_some());
        }
        for is_settled in [false, true] {
            if is_settled {
                index.collect().await.unwrap();
            }
            let expected: Records = model.clone().into_iter().collect();
            assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), expected);
            let mut down = index.scan(&ScanRequest::range(..).reverse()).await.unwrap();
            down.reverse();
            assert_eq!(down, expected);
            for (key, _) in records.iter().step_by(37) {
                assert_eq!(index.get(key).await.unwrap().as_ref(), model.get(key));
            }
        }
        let counts = tree.counts();
        assert!(counts.flushes > 3 && counts.merges > 0, "{counts:?}");
        eprintln!("{} records, {} left, {counts:?}", records.len(), model.len());
    });
}

#[test]
fn real_records_are_those_of_a_map() {
    let Some(records) = records() else { return };
    check(&local(LocalConfig::default()), CompactionPlace::Compute, &records);
    check(&sim(SimConfig::default()), CompactionPlace::ByCost, &records);
    check(&tcp(), CompactionPlace::Memory, &records);
}
