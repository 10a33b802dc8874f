//! An index is opened with value blocks if it was created with them, and only then.

use super::blocks::with_blocks;
use super::designs::{caches, dex, fine, hybrid};
use super::suite;
use farleaf_dex::Dex;
use farleaf_dlsm::{Dlsm, DlsmOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::{Cluster, ServerId};
use farleaf_index::blocks::Blocks;
use farleaf_index::{Design, IndexError, RangeIndex};
use farleaf_page::table::IndexKind;
use farleaf_page::{Bytes, SuperblockError};
use farleaf_suites::conformance::SuiteSetup;
use farleaf_suites::providers::{AnyProvider, local};
use farleaf_trees::coarse::Coarse;
use farleaf_trees::fine::Fine;
use farleaf_trees::hybrid::Hybrid;

type Small = Bytes<128>;

fn refused<T>(error: SuperblockError) -> Result<T, IndexError> {
    Err(IndexError::BadPool { server: ServerId::new(0), error })
}

/// Values would lose a byte or pass for references, and references for values. A refusal changes
/// nothing: dLSM lets in only the first process that opens an index.
fn each_form_refuses_the_other<D: Design<Small>>(setup: SuiteSetup<'_, AnyProvider, D::Options>) {
    let SuiteSetup { provider, memory_servers, .. } = setup;
    let (options, server) = (setup.options.clone(), setup.server.clone());
    let with = &with_blocks(SuiteSetup { provider, options, memory_servers, server });
    let in_leaves = || D::compute(&setup.options).unwrap();
    let in_blocks = || <Blocks<D> as Design<Small>>::compute(&with.options).unwrap();
    let (leaves, blocks) = (&in_leaves(), &in_blocks());

    setup.with_index::<Small, D>().run_one(|fabric| async move {
        let opened = <Blocks<D> as Design<Small>>::open(fabric.clone(), blocks).await;
        assert_eq!(opened.map(drop), refused(SuperblockError::NoBlocks), "{}", D::NAME);
        let index = D::open(fabric, leaves).await.unwrap();
        index.insert(b"key", &[1; 19]).await.unwrap();
        assert_eq!(index.get(b"key").await, Ok(Some(vec![1; 19])));
    });

    let (leaves, blocks) = (&in_leaves(), &in_blocks());
    with.with_index::<Small, Blocks<D>>().run_one(|fabric| async move {
        let opened = D::open(fabric.clone(), leaves).await;
        assert_eq!(opened.map(drop), refused(SuperblockError::HasBlocks), "{}", D::NAME);
        let index = <Blocks<D> as Design<Small>>::open(fabric, blocks).await.unwrap();
        index.insert(b"key", &[1; 3_000]).await.unwrap();
        assert_eq!(index.get(b"key").await, Ok(Some(vec![1; 3_000])));
    });

    // Without an index, the design says that there is none.
    let (leaves, blocks) = (&in_leaves(), &in_blocks());
    setup.start::<Small>().run_one(|fabric| async move {
        let plain = D::open(fabric.clone(), leaves).await.map(drop);
        let above = <Blocks<D> as Design<Small>>::open(fabric, blocks).await.map(drop);
        assert!(plain.is_err(), "{}", D::NAME);
        assert_eq!(above, plain, "{}", D::NAME);
    });
}

#[test]
fn each_form_of_values_is_refused_by_the_other() {
    let provider = &local(LocalConfig::default());
    let (options, server) = (suite::range::<Small>(), suite::server());
    each_form_refuses_the_other::<Coarse>(SuiteSetup {
        provider,
        options,
        memory_servers: 3,
        server,
    });
    each_form_refuses_the_other::<Fine>(fine(provider));
    each_form_refuses_the_other::<Hybrid>(hybrid(provider));
    each_form_refuses_the_other::<Dex>(dex(provider, caches()[1]));
    let (options, server) =
        (DlsmOptions { index: IndexKind::Compact, ..DlsmOptions::tiny() }, suite::server());
    each_form_refuses_the_other::<Dlsm>(SuiteSetup {
        provider,
        options,
        memory_servers: 3,
        server,
    });
    for error in [SuperblockError::NoBlocks, SuperblockError::HasBlocks] {
        let line = error.to_string();
        assert!(line.contains("value blocks: ") && !line.contains("  "), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}
