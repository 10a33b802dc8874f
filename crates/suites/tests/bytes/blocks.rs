//! Values in blocks: the suites of all designs on DEX, with even short values in blocks, so that
//! most operations involve some, and with values of many pieces; the cost of blocks; and planted
//! bugs.

use super::designs::{caches, dex};
use farleaf_dex::blocks::{BlockIndex, BlockOptions, DexWithBlocks};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig, Slow, Verb};
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{Design, Exchange, IndexAdmin, IndexError, RangeIndex, ScanRequest};
use farleaf_page::rules::KnownRule;
use farleaf_page::{Bytes, EditAction, EditAnswer, LeafEdit, LengthError, MAX_BLOCK_BYTES};
use farleaf_pool::remote::GRACE_NS;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::{self, SuiteSetup};
use farleaf_suites::providers::spent;
use farleaf_suites::providers::{AnyProvider, local, rough, sim, tcp};
use farleaf_suites::strings::{loads, random_operations};

type Small = Bytes<128>;

/// Blocks for all but very short values, with a small cache, and leaves that are written back
/// often.
fn blocks<O>(design: O) -> BlockOptions<O> {
    BlockOptions {
        inline_bytes: 12,
        cache_bytes: 20_000,
        chunk_bytes: 1 << 15,
        most_lost: 50,
        ..BlockOptions::new(design)
    }
}

/// A setup with blocks, and with room for the values of all tests.
pub(super) fn with_blocks<O: Clone>(
    setup: SuiteSetup<'_, AnyProvider, O>,
) -> SuiteSetup<'_, AnyProvider, BlockOptions<O>> {
    let SuiteSetup { provider, options, memory_servers, server } = setup;
    let server = MemoryServerConfig { pool_bytes: 64 << 20, ..server };
    SuiteSetup { provider, options: blocks(options), memory_servers, server }
}

fn providers() -> Vec<AnyProvider> {
    vec![local(LocalConfig::default()), sim(SimConfig::default()), rough(1), rough(2), tcp()]
}

/// With named values, most of which are in blocks.
#[test]
fn dex_conforms() {
    for provider in &providers() {
        for cache in caches() {
            conformance::run::<Small, DexWithBlocks, _>(&with_blocks(dex(provider, cache)));
        }
    }
}

/// Length of values of several pieces. An endpoint has few buffers for pieces of this size.
const LONG: u64 = 20_000;

#[test]
fn long_values_locally() {
    let provider = &local(LocalConfig::default());
    for cache in caches() {
        random_operations::<128, DexWithBlocks>(&with_blocks(dex(provider, cache)), 1_000, LONG);
        loads::<128, DexWithBlocks>(&with_blocks(dex(provider, cache)), 2_000);
    }
}

#[test]
fn long_values_simulated() {
    for seed in 0..3 {
        let provider = &rough(seed);
        for cache in caches() {
            random_operations::<128, DexWithBlocks>(&with_blocks(dex(provider, cache)), 400, LONG);
        }
        loads::<128, DexWithBlocks>(&with_blocks(dex(provider, caches()[1])), 1_000);
    }
}

/// The leaf is in DEX's cache, but the block is not.
#[test]
fn a_block_costs_one_read_of_its_words_and_one_write() {
    let provider = &sim(SimConfig::default());
    for (length, reads) in [(400, 1), (4_096, 1), (4_097, 2), (20_001, 5)] {
        let mut setup = with_blocks(dex(provider, caches()[1]));
        (setup.options.cache_bytes, setup.options.most_lost) = (0, 1_000);
        let cluster = setup.with_index::<Small, DexWithBlocks>();
        let compute = &<DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
        let (key, value) = (&b"key"[..], &vec![7; length][..]);
        cluster.run_one(|fabric| async move {
            let index =
                <DexWithBlocks as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
            index.upsert(key, value).await.unwrap();
            let bytes = length.next_multiple_of(8) as u64;
            let get = async { assert_eq!(index.get(key).await.unwrap().unwrap(), value) };
            let cost = spent(&fabric, get).await;
            assert_eq!((cost.reads, cost.bytes_read), (reads, bytes));
            assert_eq!((cost.writes, cost.atomics, cost.rpcs), (0, 0, 0));
            let cost = spent(&fabric, async { index.upsert(key, value).await.unwrap() }).await;
            assert_eq!((cost.writes, cost.bytes_written), (reads, bytes), "{length}");
            assert_eq!((cost.reads, cost.atomics), (0, 0));
            let cost = spent(&fabric, async {
                assert!(index.remove(key).await.unwrap());
                index.upsert(key, b"short").await.unwrap();
                assert_eq!(index.get(key).await.unwrap().unwrap(), b"short");
            });
            assert_eq!(cost.await.reads, 0, "no block is read to remove it");
        });
    }
}

/// A value that was read or written is in the cache, and reading it is free while it stays there.
#[test]
fn a_cached_block_costs_no_read() {
    let provider = &sim(SimConfig::default());
    let mut setup = with_blocks(dex(provider, caches()[1]));
    setup.options.cache_bytes = 1 << 20;
    let cluster = setup.with_index::<Small, DexWithBlocks>();
    let compute = || <DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
    let (first, second) = (&compute(), &compute());
    cluster.run_one(|fabric| async move {
        let index = <DexWithBlocks as Design<Small>>::open(fabric.clone(), first).await.unwrap();
        for number in 0..100_u8 {
            index.insert(&[number], &[number; 500]).await.unwrap();
        }
        let all = async |index: &BlockIndex<_, Small>| {
            for number in 0..100_u8 {
                assert_eq!(index.get(&[number]).await.unwrap(), Some(vec![number; 500]));
            }
        };
        assert_eq!(spent(&fabric, all(&index)).await.reads, 0);
        assert_eq!(index.cache_counters().block_hits, 100);
        index.flush().await.unwrap();
        drop(index);
        // In another process, the first round READs them and the second does not.
        let index = <DexWithBlocks as Design<Small>>::open(fabric.clone(), second).await.unwrap();
        all(&index).await;
        let counters = index.cache_counters();
        assert_eq!((counters.block_hits, counters.block_misses), (0, 100));
        assert_eq!(spent(&fabric, all(&index)).await.reads, 0);
        assert!(<DexWithBlocks as Design<Small>>::cached_bytes(second) > 50_000);
        // All keys in one call, including absent ones.
        let keys: Vec<[u8; 1]> = (0..200).map(|key| [key]).collect();
        let lookups: Vec<LeafEdit<&[u8], &[u8]>> =
            keys.iter().map(|key| LeafEdit { key: &key[..], action: EditAction::Get }).collect();
        let answers = index.execute_all(&lookups).await;
        assert_eq!(answers.len(), 200);
        for (number, answer) in (0_u8..).zip(answers) {
            let found = (number < 100).then(|| vec![number; 500]);
            assert_eq!(answer, Ok(EditAnswer { applied: number < 100, found }));
        }
    });
}

/// Endless updates within a bounded pool: the blocks that leaves lose are reused.
#[test]
fn replaced_blocks_are_used_again() {
    let provider = &sim(SimConfig::default());
    let mut setup = with_blocks(dex(provider, caches()[1]));
    setup.server.pool_bytes = 1 << 20;
    setup.options.chunk_bytes = 1 << 16;
    let cluster = setup.with_index::<Small, DexWithBlocks>();
    let compute = &<DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <DexWithBlocks as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        for round in 0..500_u64 {
            for key in 0..10_u8 {
                index
                    .upsert(&[key], &vec![round as u8; 5_000 + 300 * usize::from(key)])
                    .await
                    .unwrap();
            }
            if round % 10 == 9 {
                fabric.sleep(GRACE_NS).await;
            }
        }
        let usage = compute.usage();
        assert_eq!(usage.blocks_in_use, 10);
        assert!(usage.blocks_waiting < 200, "{usage:?}");
        for key in 0..10_u8 {
            assert!(index.remove(&[key]).await.unwrap());
        }
        assert_eq!(compute.usage().bytes_in_use, 0);
    });
}

/// The longest value, one byte more, and a pool without room for it.
#[test]
fn the_limit_is_a_mebibyte() {
    let provider = &local(LocalConfig::default());
    let mut setup = with_blocks(dex(provider, caches()[1]));
    (setup.server.pool_bytes, setup.memory_servers) = (3 << 20, 1);
    setup.options.design.boundaries = vec![];
    let cluster = setup.with_index::<Small, DexWithBlocks>();
    let compute = &<DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <DexWithBlocks as Design<Small>>::open(fabric, compute).await.unwrap();
        let most = MAX_BLOCK_BYTES;
        let (longest, long) = (vec![5; most], vec![5; most + 1]);
        let error = IndexError::from(LengthError::Value { bytes: most + 1, most });
        assert_eq!(index.insert(b"k", &long).await, Err(error.clone()));
        assert_eq!(index.compare_exchange(b"k", &long, b"").await, Err(error.clone()));
        assert_eq!(index.compare_exchange(b"k", b"", &long).await, Err(error.clone()));
        let short = (0..40_u8).map(|key| (vec![key], vec![7; 500]));
        let records = short.chain([(b"b".to_vec(), long)]);
        assert_eq!(index.bulk_load(records, 1.0).await, Err(error));
        assert!(compute.usage().chunk_bytes > 0, "some blocks were written");
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(vec![]));
        assert_eq!(compute.usage().blocks_in_use, 0, "a failed load leaves nothing");

        assert_eq!(index.insert(b"k", &longest).await, Ok(true));
        assert_eq!(index.get(b"k").await, Ok(Some(longest.clone())));
        let exchanged = index.compare_exchange(b"k", &longest, b"short").await;
        assert_eq!(exchanged, Ok(Exchange::Exchanged));
        let mut room = 0;
        let full = loop {
            match index.insert(&[room], &longest).await {
                Ok(inserted) => assert!(inserted),
                Err(error) => break error,
            }
            room += 1;
        };
        assert!(matches!(full, IndexError::OutOfMemory { .. }), "{full}");
        assert_eq!(room, 2, "the place of the exchanged value is used again");
        assert_eq!(index.insert(b"small", b"fits").await, Ok(true), "the index is intact");
        assert_eq!(index.get(&[0]).await, Ok(Some(longest)));
    });
}

/// Processes with different options store the same value in two ways, one after the other.
#[test]
fn an_exchange_compares_values_and_not_what_is_stored() {
    let provider = &local(LocalConfig::default());
    let setup = &with_blocks(dex(provider, caches()[1]));
    let cluster = setup.with_index::<Small, DexWithBlocks>();
    cluster.run_one(|fabric| async move {
        let open = async |inline_bytes| {
            let options = BlockOptions { inline_bytes, ..setup.options.clone() };
            let compute = <DexWithBlocks as Design<Small>>::compute(&options).unwrap();
            <DexWithBlocks as Design<Small>>::open(fabric.clone(), &compute).await.unwrap()
        };
        let (one, two) = (vec![1; 40], vec![2; 40]);
        for (of_writer, of_exchanger) in [(64, 12), (12, 64)] {
            let writer = open(of_writer).await;
            writer.upsert(b"k", &one).await.unwrap();
            writer.flush().await.unwrap();
            drop(writer);
            let exchanger = open(of_exchanger).await;
            let differs = exchanger.compare_exchange(b"k", &two, &one).await;
            assert_eq!(differs, Ok(Exchange::Differs(Some(one.clone()))));
            let exchanged = exchanger.compare_exchange(b"k", &one, &two).await;
            assert_eq!(exchanged, Ok(Exchange::Exchanged));
            assert_eq!(exchanger.get(b"k").await, Ok(Some(two.clone())));
            let absent = exchanger.compare_exchange(b"absent", &one, &two).await;
            assert_eq!(absent, Ok(Exchange::Differs(None)));
            assert_eq!(exchanger.get(b"absent").await, Ok(None));
            exchanger.flush().await.unwrap();
        }
    });
}

/// A provider with a planted bug, or without one.
fn simulated(bug: Option<&str>, faults: Faults) -> AnyProvider {
    let broken = bug.map(|bug| KnownRule::with_bug(bug).unwrap().rule);
    sim(SimConfig { broken, faults, give_up_after_ns: 60_000_000_000, ..SimConfig::default() })
}

/// A compute server dies whose cached leaf has lost a block, so the leaf in the pool still refers
/// to it. If the block had been reused, both the old and the new value would be lost.
///
/// With `most_lost` of 1 the leaf is written back before the block can rest.
fn value_after_a_crash(bug: Option<&str>, most_lost: usize) -> Result<Option<Vec<u8>>, IndexError> {
    let provider = &simulated(bug, Faults::default());
    let mut setup = with_blocks(dex(provider, caches()[1]));
    (setup.options.cache_bytes, setup.options.most_lost) = (0, most_lost);
    setup.options.design.boundaries = vec![];
    let cluster = setup.with_index::<Small, DexWithBlocks>();
    let compute = || <DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
    let (first, second) = (&compute(), &compute());
    let mut found = cluster.run(&[0], |fabric, _| async move {
        let index = <DexWithBlocks as Design<Small>>::open(fabric.clone(), first).await.unwrap();
        index.insert(b"key", &[1; 300]).await.unwrap();
        index.flush().await.unwrap();
        index.upsert(b"key", &[2; 300]).await.unwrap();
        fabric.sleep(2 * GRACE_NS).await;
        for other in 0..20 {
            index.insert(&[other], &[3; 300]).await.unwrap();
        }
        // The cache is lost at this point.
        let index = <DexWithBlocks as Design<Small>>::open(fabric, second).await.unwrap();
        index.get(b"key").await
    });
    found.pop().flatten().unwrap()
}

#[test]
fn a_crash_brings_no_lost_block_back_that_is_used_again() {
    assert_eq!(value_after_a_crash(None, 50), Ok(Some(vec![1; 300])));
    assert_eq!(value_after_a_crash(None, 1), Ok(Some(vec![2; 300])));
    let error = value_after_a_crash(Some("frees_blocks_early"), 50).unwrap_err();
    assert!(matches!(error, IndexError::Contended { .. }), "{error}");
}

/// Lookups whose READs take longer than the grace period, beside updates that reuse the blocks of
/// other keys. Returns how many lookups found another key's value, or one that was never written.
/// The scenario `dex-blocks-slow-reads` finds such values once the rule is broken.
fn wrong_values() -> usize {
    let slow = Slow {
        verbs: vec![Verb::Read],
        compute_servers: vec![],
        probability: 0.2,
        replies: false,
        max_ns: 4 * GRACE_NS,
    };
    let provider = &simulated(None, Faults { slow: vec![slow], ..Faults::default() });
    let mut setup = with_blocks(dex(provider, caches()[1]));
    (setup.options.cache_bytes, setup.options.most_lost) = (0, 1);
    setup.options.design.boundaries = vec![];
    let cluster = setup.with_index::<Small, DexWithBlocks>();
    let compute = &<DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
    let found = cluster.run(&[0; 6], |fabric, client| async move {
        let index = <DexWithBlocks as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        let mut wrong = 0;
        for round in 0..300_u64 {
            let key = round as u8 % 8;
            if client == 0 {
                let value = [&[key; 200][..], &round.to_le_bytes()].concat();
                index.upsert(&[key], &value).await.unwrap();
                fabric.sleep(GRACE_NS / 10).await;
            } else {
                let found = index.get(&[key]).await.unwrap();
                wrong += usize::from(found.is_some_and(|value| value[..200] != [key; 200]));
                // The leaf is cached, so lookups of keys that are not there yet take no time.
                fabric.sleep(GRACE_NS / 50).await;
            }
        }
        wrong
    });
    found.into_iter().flatten().sum()
}

#[test]
fn a_block_that_is_used_again_is_not_taken_for_the_old_one() {
    assert_eq!(wrong_values(), 0);
}
