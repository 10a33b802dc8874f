//! What an operation costs when answers wait until they are written (`acknowledge = written`), and
//! what an answer then promises.
//!
//! Counts of remote operations are exact: there is only one client, and the local fabric completes
//! at once.

use super::clients::{NOTHING, setup, spent, verbs};
use farleaf_dex::cache::{AdmissionName, CacheOptions};
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::partition::ComputePool;
use farleaf_index::{AcknowledgeName, Design, EditAction, LeafEdit, RangeIndex, ScanRequest};
use farleaf_page::Fixed8;
use std::cell::Cell;
use std::sync::Arc;

/// 100 leaves of 42 records each, all of them cached.
fn options(acknowledge: AcknowledgeName) -> DexOptions<u64> {
    let cache = CacheOptions {
        bytes: 1_024 * 1_024,
        admission: AdmissionName::Hot,
        acknowledge,
        ..CacheOptions::default()
    };
    DexOptions::with_boundaries(vec![], cache)
}

type Pool = Arc<ComputePool<Dex, Fixed8>>;

/// A handle on an index whose keys are `apart`, and whose leaves are all cached.
async fn cached<F: Fabric>(
    fabric: &F,
    pool: &Pool,
    apart: u64,
) -> <Dex as Design<Fixed8>>::Index<F> {
    let index = <Dex as Design<Fixed8>>::open(fabric.clone(), pool).await.unwrap();
    index.bulk_load((0..4_200).map(|n| (n * apart, n)), 0.7).await.unwrap();
    for n in (0..4_200).step_by(42) {
        index.get(&(n * apart)).await.unwrap();
    }
    index
}

/// A change of a cached leaf is one WRITE of the words that it has changed, and nothing else. Who
/// reads afterwards pays nothing, and a flush finds nothing to write.
#[test]
fn a_change_is_one_write_and_a_lookup_of_a_clean_leaf_costs_nothing() {
    let provider = LocalConfig::default();
    let options = options(AcknowledgeName::Written);
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool: Pool = <Dex as Design<Fixed8>>::compute(&options).unwrap();
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = cached(&fabric, pool, 2).await;
        let key = 42 * 2 * 3 + 6; // the fourth record of the fourth leaf
        let update = async { assert_eq!(index.update(&key, &7).await, Ok(true)) };
        assert_eq!(verbs(spent(&fabric, update).await), (0, 1, 0, 0, 0, 8));
        let insert = async { assert_eq!(index.insert(&(key + 1), &8).await, Ok(true)) };
        // From word 4 to the end of the 43rd record.
        assert_eq!(verbs(spent(&fabric, insert).await), (0, 1, 0, 0, 0, (4 + 43 * 2) * 8));
        let remove = async { assert_eq!(index.remove(&(key + 1)).await, Ok(true)) };
        assert_eq!(verbs(spent(&fabric, remove).await), (0, 1, 0, 0, 0, 32));
        let reads = async {
            assert_eq!(index.get(&key).await, Ok(Some(7)));
            assert_eq!(index.get(&(key + 1)).await, Ok(None));
            assert_eq!(index.insert(&key, &9).await, Ok(false));
            let scan = ScanRequest::range(key..).limit(2);
            assert_eq!(index.scan(&scan).await, Ok(vec![(key, 7), (key + 2, key / 2 + 1)]));
            index.part(0).flush().await.unwrap();
        };
        assert_eq!(verbs(spent(&fabric, reads).await), NOTHING);
    });
}

/// Where a death can cut a WRITE short, a change that could damage its leaf is four WRITEs in one
/// doorbell: an entry, the mark, the words, the stamp. An update is one WRITE of a word.
#[test]
fn a_change_that_could_damage_a_leaf_has_an_entry() {
    let mut provider = SimConfig::default();
    provider.faults.tear_probability = 0.5;
    let options = options(AcknowledgeName::Written);
    let cluster = setup(&provider, 1, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool: Pool = <Dex as Design<Fixed8>>::compute(&options).unwrap();
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = cached(&fabric, pool, 2).await;
        let key = 42 * 2 * 3 + 6;
        let update = async { assert_eq!(index.update(&key, &7).await, Ok(true)) };
        assert_eq!(verbs(spent(&fabric, update).await), (0, 1, 0, 0, 0, 8));
        // Two words, then an address, a version and a run with its place, and words 1 to 127.
        let entry = (2 + 3 + 127) * 8;
        let insert = async { assert_eq!(index.insert(&(key + 1), &8).await, Ok(true)) };
        let inserted = spent(&fabric, insert).await;
        assert_eq!(verbs(inserted), (0, 4, 0, 0, 0, entry + 8 + (4 + 43 * 2) * 8 + 8));
        assert_eq!(inserted.doorbells, 1);
        let remove = async { assert_eq!(index.remove(&(key + 1)).await, Ok(true)) };
        assert_eq!(verbs(spent(&fabric, remove).await), (0, 4, 0, 0, 0, entry + 8 + 32 + 8));
    });
}

/// A group costs at most one WRITE for a change, and nothing else. Changes of a leaf that wait
/// together share one, as far as they do wait together.
#[test]
fn a_group_costs_at_most_a_write_for_each_change() {
    let provider = SimConfig::default();
    let options = options(AcknowledgeName::Written);
    let cluster = setup(&provider, 3, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
    let pool: Pool = <Dex as Design<Fixed8>>::compute(&options).unwrap();
    let pool = &pool;
    cluster.run_one(|fabric| async move {
        let index = cached(&fabric, pool, 1).await;
        // 30 updates of 3 leaves, 10 each.
        let keys: Vec<u64> = (0..30).map(|n| n / 10 * 420 + n % 10).collect();
        let edits: Vec<_> =
            keys.iter().map(|key| LeafEdit { key, action: EditAction::Update(&7_u64) }).collect();
        let done = Cell::new(0);
        let count = |_, outcome: Result<_, _>| {
            outcome.unwrap();
            done.set(done.get() + 1);
        };
        let group = async { index.part(0).execute_all(&edits, count).await };
        let (reads, writes, atomics, rpcs, ..) = verbs(spent(&fabric, group).await);
        assert_eq!((reads, atomics, rpcs, done.get()), (0, 0, 0, 30));
        assert!((3..30).contains(&writes), "{writes} writes of 3 leaves");
        let flush = async { index.part(0).flush().await.unwrap() };
        assert_eq!(verbs(spent(&fabric, flush).await), NOTHING);
    });
}

/// A compute server that forgets its cache without a flush has lost nothing that it has answered;
/// one that answers from its cache has.
#[test]
fn what_was_answered_is_in_the_memory_servers() {
    for (acknowledge, kept) in [(AcknowledgeName::Written, 500), (AcknowledgeName::Cached, 0)] {
        let provider = LocalConfig::default();
        let options = options(acknowledge);
        let cluster = setup(&provider, 2, 32 << 20, options.clone()).with_index::<Fixed8, Dex>();
        let compute = || -> Pool { <Dex as Design<Fixed8>>::compute(&options).unwrap() };
        let (pool, next) = (&compute(), &compute());
        cluster.run_one(|fabric| async move {
            let index = cached(&fabric, pool, 1).await;
            for key in 0..500 {
                assert_eq!(index.update(&key, &(key + 10_000)).await, Ok(true));
            }
            // The next life reads what the memory servers have.
            let index = <Dex as Design<Fixed8>>::open(fabric, next).await.unwrap();
            let found = index.scan(&ScanRequest::range(0..500)).await.unwrap();
            assert_eq!(found.iter().filter(|(key, value)| *value == key + 10_000).count(), kept);
        });
    }
}
