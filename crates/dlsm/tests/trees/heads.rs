//! Queues in dLSM: keys are added at the high end and removed at the low one.
//!
//! After 100,000 inserts and 99,900 removes at the low end, each scan of one record once READ all
//! removed records and their tombstones, some 3.5 MB, until a compaction was due for other reasons.

use super::tree::{compute, setup};
use super::work::{beside_workers, check_extents, key, open};
use farleaf_dlsm::{Dlsm, DlsmOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_suites::providers::spent;
use farleaf_suites::providers::{local, sim};

type Small = Bytes<128>;

const INSERTED: u64 = 100_000;
const REMOVED: u64 = 99_900;

/// READs and bytes of a scan of one record, which finds `number`.
async fn head<F: Fabric>(
    fabric: &F,
    index: &impl RangeIndex<Key = [u8], Value = [u8]>,
    number: u64,
) -> (u64, u64) {
    let cost = spent(fabric, async {
        let found = index.scan(&ScanRequest::range(..).limit(1)).await.unwrap();
        assert_eq!(found, [(key(number).to_vec(), number.to_be_bytes().to_vec())]);
    });
    let cost = cost.await;
    (cost.reads, cost.bytes_read)
}

fn small() -> DlsmOptions {
    DlsmOptions::with_table_bytes(640 << 10)
}

/// The first scan READs what the last MemTable hides, and has that merged.
#[test]
fn a_scan_of_the_head_reads_little() {
    let provider = &local(LocalConfig::default());
    let setup = setup(provider, small());
    let (cluster, tree) = (setup.with_index::<Small, Dlsm>(), &compute(&setup.options));
    cluster.run_one(|fabric| async move {
        let index = open(&fabric, tree).await;
        for number in 0..INSERTED {
            index.upsert(&key(number), &number.to_be_bytes()).await.unwrap();
        }
        for number in 0..REMOVED {
            assert!(index.remove(&key(number)).await.unwrap());
        }
        let first = head(&fabric, &index, REMOVED).await;
        let (reads, bytes) = head(&fabric, &index, REMOVED).await;
        println!("the first scan READs {first:?}, then {reads} READs, {bytes} bytes");
        assert!(reads <= 20 && bytes <= 64 << 10, "{reads} READs, {bytes} bytes");
        assert_eq!(
            index.scan(&ScanRequest::range(..)).await.unwrap().len() as u64,
            INSERTED - REMOVED
        );
        check_extents(tree);
        // A queue: each scan is cheap, and what is removed leaves nothing.
        let (mut most, mut all) = ((0, 0), 0);
        for number in 0..20_000 {
            let added = INSERTED + number;
            index.upsert(&key(added), &added.to_be_bytes()).await.unwrap();
            let spent = head(&fabric, &index, REMOVED + number).await;
            most = (most.0.max(spent.0), most.1.max(spent.1));
            all += spent.1;
            assert!(index.remove(&key(REMOVED + number)).await.unwrap());
        }
        println!("in a queue at most {most:?} a scan, {} bytes on average", all / 20_000);
        // Without background tasks, the scan that has met too much merges it as well.
        assert!(all / 20_000 <= 64 << 10, "{} bytes a scan", all / 20_000);
        assert_eq!(
            index.scan(&ScanRequest::range(..)).await.unwrap().len() as u64,
            INSERTED - REMOVED
        );
        check_extents(tree);
    });
}

/// With background tasks, scans of the head never merge, and soon READ little.
#[test]
fn background_tasks_merge_the_heads_of_queues() {
    let provider = &sim(SimConfig::default());
    let setup = setup(provider, small());
    let tree = &compute(&setup.options);
    beside_workers(&setup, tree, 1, &[1], async |fabric, _| {
        let index = open(fabric, tree).await;
        for number in 0..20_000 {
            index.upsert(&key(number), &number.to_be_bytes()).await.unwrap();
        }
        index.flush().await.unwrap();
        for number in 0..19_900 {
            assert!(index.remove(&key(number)).await.unwrap());
        }
        head(fabric, &index, 19_900).await;
        fabric.sleep(50_000_000).await;
        let (reads, bytes) = head(fabric, &index, 19_900).await;
        assert!(reads <= 20 && bytes <= 64 << 10, "{reads} READs, {bytes} bytes");
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 100);
    });
    check_extents(tree);
}
