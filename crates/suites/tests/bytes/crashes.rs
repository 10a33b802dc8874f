//! Leaves of byte strings after a crash of a DEX compute server.

use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::sim::{Faults, LastWords, SimConfig};
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{Design, IndexError, RangeIndex, ScanRequest};
use farleaf_page::{Bytes, Layout};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::SuiteSetup;
use farleaf_suites::providers::{sim, simulated};

type Small = Bytes<128>;

fn config() -> MemoryServerConfig {
    MemoryServerConfig { pool_bytes: 32 << 20, chunk_bytes: 1 << 18, ..Default::default() }
}

fn options() -> DexOptions<Vec<u8>> {
    let cache = CacheOptions { bytes: 8 << 20, ..CacheOptions::default() };
    DexOptions { chunk_nodes_log2: 4, ..DexOptions::with_boundaries(vec![], cache) }
}

/// In the pool, a leaf is full to its last word. In the cache, its records have shrunk, others were
/// added, and a split gave it a high fence for which the copy in the pool has no room: nothing in
/// that copy lies above the fence. After a crash, the next incarnation trims the copy to that
/// fence. It once failed to do so, and a scan ended at the old fence.
#[test]
fn a_full_leaf_can_be_trimmed_to_a_longer_fence() {
    let provider = sim(SimConfig::default());
    let setup =
        SuiteSetup { provider: &provider, options: options(), memory_servers: 2, server: config() };
    let cluster = setup.with_index::<Small, Dex>();
    let options = &setup.options;
    let keys = |number: u8| [b'a' + number];
    // Four records of maximum size, and one that takes the last 4 of the 120 words.
    let longest = Small::longest_value_beside(1);
    let sizes = [longest, longest, longest, longest, 24];
    let long = |number: u8| [&[b'q'; 120][..], &[number; 4]].concat();
    cluster.run_one(|fabric| async move {
        let pool = <Dex as Design<Small>>::compute(options).unwrap();
        let index = <Dex as Design<Small>>::open(fabric.clone(), &pool).await.unwrap();
        for (number, size) in (0..).zip(sizes) {
            index.insert(&keys(number), &vec![1; size]).await.unwrap();
        }
        assert!(<Small as Layout>::check_record(&keys(0), &vec![1; longest + 1]).is_err());
        index.flush().await.unwrap();
        let writes = || fabric.counters().snapshot().writes;
        let before = writes();
        for number in 0..5 {
            index.update(&keys(number), b"").await.unwrap();
        }
        for number in 0..6 {
            index.insert(&long(number), &[2; 8]).await.unwrap();
        }
        assert_eq!(writes(), before, "one leaf holds them, and nothing is written back");
        index.insert(&long(6), &[2; 8]).await.unwrap();
        assert!(writes() > before, "the leaf was split");
        // The cache is lost at this point.
    });
    cluster.run_one(|fabric| async move {
        let pool = <Dex as Design<Small>>::compute(options).unwrap();
        let index = <Dex as Design<Small>>::open(fabric, &pool).await.unwrap();
        let found = index.scan(&ScanRequest::range(..)).await.unwrap();
        let mut reversed = index.scan(&ScanRequest::range(..).reverse()).await.unwrap();
        reversed.reverse();
        assert_eq!(found, reversed);
        for (key, value) in &found {
            assert_eq!(index.get(key).await.unwrap().as_ref(), Some(value));
        }
        // The upper half was written, and before it the lower half.
        let expected: Vec<Vec<u8>> =
            (0..5).map(|number| keys(number).to_vec()).chain((0..7).map(long)).collect();
        let missing = expected.iter().filter(|key| !found.iter().any(|(found, _)| found == *key));
        // The insert that met the full leaf may have been for the lower half.
        assert!(missing.count() <= 1 && found.len() >= 11, "{} records", found.len());
        for number in 0..5 {
            assert!(index.update(&keys(number), &[3; 100]).await.unwrap());
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), found.len());
    });
}

/// A value of `key` in `round`: all of its bytes are equal, and differ from those of other values.
fn value(key: u8, round: u8) -> Vec<u8> {
    let length = 9 + (usize::from(key) * 7 + usize::from(round) * 5) % 32;
    vec![key * 8 + round; length]
}

/// Values of several words replace others, of the same and of different lengths, until leaves get a
/// new layout; keys are so short that they fit entirely in slots. The compute server dies within a
/// WRITE. Afterwards a leaf is damaged, or each of its keys has one of the values that were written
/// to it: never a mixture of two, and never the value of another key.
#[test]
fn no_death_within_a_write_mixes_values() {
    let (mut damaged, mut changed) = (0, 0);
    for seed in 0..240_u64 {
        let faults = Faults { tear_probability: 1.0, ..Faults::rough() };
        let provider = sim(SimConfig {
            seed,
            faults,
            give_up_after_ns: 20_000_000_000,
            ..SimConfig::default()
        });
        let setup = SuiteSetup {
            provider: &provider,
            options: options(),
            memory_servers: 1,
            server: config(),
        };
        let cluster = setup.with_index::<Small, Dex>();
        let options = &setup.options;
        const KEYS: u8 = 16;
        cluster.run_one(|fabric| async move {
            let pool = <Dex as Design<Small>>::compute(options).unwrap();
            let index = <Dex as Design<Small>>::open(fabric, &pool).await.unwrap();
            for key in 0..KEYS {
                index.insert(&[key], &value(key, 0)).await.unwrap();
            }
            index.flush().await.unwrap();
        });
        simulated(&cluster).kill_compute_servers_at_write(vec![1], seed % 80, LastWords::Some);
        cluster.run(&[1], |fabric, _| async move {
            let pool = <Dex as Design<Small>>::compute(options).unwrap();
            let index = <Dex as Design<Small>>::open(fabric.clone(), &pool).await.unwrap();
            for round in 1..8 {
                for _ in 0..6 {
                    let key = (fabric.random() % u64::from(KEYS)) as u8;
                    index.update(&[key], &value(key, round)).await.unwrap();
                    if fabric.random().is_multiple_of(2) {
                        // A value of the same length overwrites the old one if there is no other
                        // room.
                        index
                            .update(&[key], &vec![key * 8 + 7; value(key, round).len()])
                            .await
                            .unwrap();
                    }
                    index.flush().await.unwrap();
                }
            }
        });
        simulated(&cluster).call_off_death();
        let found = cluster.run(&[2], |fabric, _| async move {
            let pool = <Dex as Design<Small>>::compute(options).unwrap();
            let index = <Dex as Design<Small>>::open(fabric, &pool).await.unwrap();
            let (mut damaged, mut changed) = (0, 0);
            for key in 0..KEYS {
                match index.get(&[key]).await {
                    Ok(found) => {
                        let found = found.unwrap();
                        let whole = found.windows(2).all(|pair| pair[0] == pair[1]);
                        assert!(whole && found[0] / 8 == key, "seed {seed}, {key}: {found:?}");
                        let lengths: Vec<_> = (0..8).map(|round| value(key, round).len()).collect();
                        assert!(lengths.contains(&found.len()), "seed {seed}, {key}: {found:?}");
                        changed += u64::from(found[0] % 8 != 0);
                    }
                    Err(IndexError::Damaged { .. }) => damaged += 1,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            (damaged, changed)
        });
        let found = found[0].unwrap();
        damaged += found.0;
        changed += found.1;
    }
    assert!(damaged > 0 && changed > 500, "{damaged} damaged, {changed} changed");
}

/// A leaf whose records consist only of slots is full when its last slot is its last word. The
/// WRITE of this slot was once mistaken for that of a new layout, and the thread panicked.
#[test]
fn the_last_slot_of_a_full_leaf_can_be_written_alone() {
    let provider = sim(SimConfig::default());
    let setup =
        SuiteSetup { provider: &provider, options: options(), memory_servers: 1, server: config() };
    let cluster = setup.with_index::<Small, Dex>();
    let options = &setup.options;
    cluster.run_one(|fabric| async move {
        let pool = <Dex as Design<Small>>::compute(options).unwrap();
        let index = <Dex as Design<Small>>::open(fabric, &pool).await.unwrap();
        for key in 0..130 {
            assert!(index.insert(&[key], b"").await.unwrap());
            index.flush().await.unwrap();
            assert!(index.update(&[key], b"").await.unwrap());
            index.flush().await.unwrap();
        }
        assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap().len(), 130);
    });
}
