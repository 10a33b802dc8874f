//! An index is opened with value blocks if it was created with them, and only then.

use super::blocks::with_blocks;
use super::designs::{caches, dex};
use farleaf_dex::Dex;
use farleaf_dex::blocks::DexWithBlocks;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::{Cluster, ServerId};
use farleaf_index::{Design, IndexError, RangeIndex};
use farleaf_page::{Bytes, SuperblockError};
use farleaf_suites::providers::local;

type Small = Bytes<128>;

fn refused<T>(error: SuperblockError) -> Result<T, IndexError> {
    Err(IndexError::BadPool { server: ServerId::new(0), error })
}

/// Values would lose a byte or pass for references, and references for values.
#[test]
fn each_form_of_values_is_refused_by_the_other() {
    let provider = &local(LocalConfig::default());
    let setup = dex(provider, caches()[1]);
    let with = &with_blocks(dex(provider, caches()[1]));
    let in_leaves = || <Dex as Design<Small>>::compute(&setup.options).unwrap();
    let in_blocks = || <DexWithBlocks as Design<Small>>::compute(&with.options).unwrap();
    let (leaves, blocks) = (&in_leaves(), &in_blocks());

    setup.with_index::<Small, Dex>().run_one(|fabric| async move {
        let opened = <DexWithBlocks as Design<Small>>::open(fabric.clone(), blocks).await;
        assert_eq!(opened.map(drop), refused(SuperblockError::NoBlocks));
        let index = <Dex as Design<Small>>::open(fabric, leaves).await.unwrap();
        index.insert(b"key", &[1; 19]).await.unwrap();
        assert_eq!(index.get(b"key").await, Ok(Some(vec![1; 19])));
    });

    let (leaves, blocks) = (&in_leaves(), &in_blocks());
    with.with_index::<Small, DexWithBlocks>().run_one(|fabric| async move {
        let opened = <Dex as Design<Small>>::open(fabric.clone(), leaves).await;
        assert_eq!(opened.map(drop), refused(SuperblockError::HasBlocks));
        let index = <DexWithBlocks as Design<Small>>::open(fabric, blocks).await.unwrap();
        index.insert(b"key", &[1; 3_000]).await.unwrap();
        assert_eq!(index.get(b"key").await, Ok(Some(vec![1; 3_000])));
    });

    // Without an index, the design says that there is none.
    let (leaves, blocks) = (&in_leaves(), &in_blocks());
    setup.start::<Small>().run_one(|fabric| async move {
        let plain = <Dex as Design<Small>>::open(fabric.clone(), leaves).await.map(drop);
        let above = <DexWithBlocks as Design<Small>>::open(fabric, blocks).await.map(drop);
        assert!(plain.is_err());
        assert_eq!(above, plain);
    });

    for error in [SuperblockError::NoBlocks, SuperblockError::HasBlocks] {
        let line = error.to_string();
        assert!(line.contains("value blocks: ") && !line.contains("  "), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}
