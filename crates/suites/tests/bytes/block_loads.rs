//! Bulk loads of values in blocks that fail: they leave no block, and the index as it was.

use super::blocks::with_blocks;
use super::designs::{caches, dex};
use farleaf_dex::blocks::DexWithBlocks;
use farleaf_fabric::Cluster;
use farleaf_fabric::local::LocalConfig;
use farleaf_index::{Design, IndexError, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_pool::wire::Refusal;
use farleaf_suites::providers::local;

type Small = Bytes<128>;
type Records = Vec<(Vec<u8>, Vec<u8>)>;

fn records(count: u16, length: usize) -> Records {
    let record = |number: u16| (number.to_be_bytes().to_vec(), vec![number as u8; length]);
    (0..count).map(record).collect()
}

#[test]
fn a_failed_load_leaves_no_block() {
    let provider = &local(LocalConfig::default());
    let mut setup = with_blocks(dex(provider, caches()[1]));
    setup.server.pool_bytes = 1 << 20;
    let cluster = setup.with_index::<Small, DexWithBlocks>();
    let compute = &<DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <DexWithBlocks as Design<Small>>::open(fabric, compute).await.unwrap();
        let in_use = || compute.usage().blocks_in_use;

        let mut unsorted = records(40, 500);
        unsorted.push((vec![0, 3], vec![9; 500]));
        let failed = index.bulk_load(unsorted.into_iter(), 0.7).await;
        assert_eq!(failed, Err(IndexError::NotSorted { position: 40 }));
        assert!(compute.usage().chunk_bytes > 0, "some blocks were written");
        assert_eq!(in_use(), 0);

        // The index has records when the load gets there; all of its blocks are written by then.
        index.insert(b"there", &[7; 800]).await.unwrap();
        let failed = index.bulk_load(records(40, 500).into_iter(), 0.7).await;
        assert!(
            matches!(failed, Err(IndexError::Refused { refusal: Refusal::NotEmpty, .. })),
            "{failed:?}"
        );
        assert_eq!(in_use(), 1);

        // Memory runs out in the middle of a group of blocks.
        let failed = index.bulk_load(records(5_000, 1_000).into_iter(), 0.7).await;
        assert!(matches!(failed, Err(IndexError::OutOfMemory { .. })), "{failed:?}");
        assert_eq!(in_use(), 1);
        let mut expected = vec![(b"there".to_vec(), vec![7; 800])];
        assert_eq!(index.scan(&ScanRequest::range(..)).await.as_ref(), Ok(&expected));

        // What the failed loads had is used again.
        for (key, value) in records(5, 1_000) {
            assert_eq!(index.insert(&key, &value).await, Ok(true));
        }
        assert_eq!(in_use(), 6);
        expected.splice(0..0, records(5, 1_000));
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(expected));
    });
}
