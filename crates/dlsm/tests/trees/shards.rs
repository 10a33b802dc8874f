//! dLSM with several shards: the suite of all designs, scans as of one moment, and what the next
//! life of a compute server finds.

use super::tree::{KINDS, setup, tiny};
use farleaf_dlsm::{
    CompactionPlace, Dlsm, DlsmOptions, DlsmServerOptions, ShardedDlsm, ShardedOptions,
};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, LastWords, SimConfig};
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::{Cluster, Fabric, Work};
use farleaf_index::partition::{ComputePool, end_former_incarnation, fence_former_incarnation};
use farleaf_index::{
    AcknowledgeName, Design, InLeaves, IndexAdmin, IndexError, PartIndex, PartValues, Partitioned,
    RangeIndex, ScanRequest,
};
use farleaf_page::{Bytes, EditAction, LeafEdit, NamedLayout};
use farleaf_pool::wire::RecordRoom;
use farleaf_suites::conformance::{self, SuiteSetup};
use farleaf_suites::providers::{AnyProvider, local, rough, sim, simulated, tcp};
use std::collections::BTreeMap;

pub(crate) type Small = Bytes<128>;
pub(crate) type Options = ShardedOptions<Vec<u8>>;

pub(crate) fn at(part: u64, parts: u64) -> Vec<u8> {
    Small::key_named(u64::MAX / parts * part)
}

/// `servers` compute servers with `shards` shards in all, some of which have no keys of the suite.
pub(crate) fn options(servers: u64, shards: u64) -> Options {
    let server = DlsmServerOptions { tree: tiny(KINDS[0]), ..DlsmServerOptions::default() };
    let boundaries = (1..servers).map(|part| at(part, servers)).collect::<Vec<_>>();
    let within = (1..shards).map(|part| at(part, shards));
    let within = within.filter(|key| !boundaries.contains(key)).collect();
    ShardedOptions { within, ..ShardedOptions::with_boundaries(boundaries, server) }
}

pub(crate) fn sharded(
    provider: &AnyProvider,
    options: Options,
) -> SuiteSetup<'_, AnyProvider, Options> {
    let SuiteSetup { memory_servers, server, .. } = setup(provider, tiny(KINDS[0]));
    SuiteSetup { provider, options, memory_servers, server }
}

fn conforms(provider: &AnyProvider, servers: u64, shards: u64) {
    conformance::run::<Small, ShardedDlsm, _>(&sharded(provider, options(servers, shards)));
}

#[test]
fn shards_conform_locally() {
    let provider = local(LocalConfig::default());
    [(1, 1), (1, 4), (2, 4)].into_iter().for_each(|(servers, shards)| {
        conforms(&provider, servers, shards);
    });
}

#[test]
fn shards_conform_simulated() {
    conforms(&sim(SimConfig::default()), 2, 4);
    (1..3).for_each(|seed| conforms(&rough(seed), 1, 4));
}

#[test]
fn shards_conform_on_tcp() {
    conforms(&tcp(), 1, 4);
}

/// The shard map is the root of the pool, and once took 1 KiB. A root must have at least the size
/// of a page, so memory servers with pages of 4 KiB refused it. A cluster with such pages that was
/// to hold WordNet used up its memory and retried for ever.
#[test]
fn a_map_of_shards_is_as_large_as_a_page() {
    type Large = Bytes<512>;
    let provider = local(LocalConfig::default());
    let setup = sharded(&provider, options(1, 3));
    let cluster = setup.with_index::<Large, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Large>>::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Large>>::open(fabric, compute).await.unwrap();
        index.upsert(b"key", b"value").await.unwrap();
        assert_eq!(index.get(b"key").await.unwrap(), Some(b"value".to_vec()));
    });
}

/// Each shard's tables are on one memory server, which merges them.
#[test]
fn shards_conform_with_merges_on_memory_servers() {
    let provider = local(LocalConfig::default());
    let mut options = options(1, 3);
    options.server.tree.merges = CompactionPlace::Memory;
    conformance::run::<Small, ShardedDlsm, _>(&sharded(&provider, options.clone()));
    let setup = sharded(&provider, options.clone());
    let cluster = setup.with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Small>>::open(fabric, compute).await.unwrap();
        for number in 0..3_000 {
            let key = Small::key_named(number * (u64::MAX / 3_000));
            index.upsert(&key, b"some value").await.unwrap();
        }
        index.collect().await.unwrap();
    });
    let shards = compute.servers()[0].state().shards();
    assert_eq!(shards.iter().map(|shard| shard.id()).collect::<Vec<_>>(), [0, 1, 2]);
    for (number, shard) in shards.iter().enumerate() {
        assert!(shard.counts().near_merges > 0, "{:?}", shard.counts());
        let tables = shard.tables();
        let pieces = tables.iter().flat_map(|table| &table.pieces);
        assert!(pieces.clone().all(|(at, _)| at.server().index() == number), "{tables:?}");
        assert!(pieces.count() > 0);
    }
}

/// A scan that took a bound for each shard would see the second of two writes without the first.
#[test]
fn a_scan_sees_all_shards_as_of_one_moment() {
    for seed in 0..20 {
        let provider = sim(SimConfig { seed, ..SimConfig::default() });
        let options = options(1, 4);
        let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
        let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
        let (low, high) = (&Small::key_named(1), &Small::key_named(u64::MAX - 1));
        let scans = cluster.run(&[0, 0], |fabric, number| async move {
            let index =
                <ShardedDlsm as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
            let mut scans = 0;
            if number == 0 {
                // A scan READs the tables of the shards between those two, so that time passes.
                for part in 0..10 {
                    index.upsert(&at(part, 10), b"12345678").await.unwrap();
                }
                index.flush().await.unwrap();
                for round in 0_u64..300 {
                    index.upsert(low, &round.to_be_bytes()).await.unwrap();
                    index.upsert(high, &round.to_be_bytes()).await.unwrap();
                }
                return scans;
            }
            for round in 0..300 {
                let scan = ScanRequest::range(..);
                let scan = if round % 2 == 0 { scan } else { scan.reverse() };
                fabric.charge(Work::Client).await; // as drivers do, so that time passes
                let records = index.scan(&scan).await.unwrap();
                let round = |wanted: &Vec<u8>| {
                    let found = records.iter().find(|(key, _)| key == wanted);
                    found.map_or(0, |(_, value)| {
                        1 + u64::from_be_bytes(value[..].try_into().unwrap())
                    })
                };
                let (first, second) = (round(low), round(high));
                assert!(first == second || first == second + 1, "{first} {second}, seed {seed}");
                scans += u64::from(first > 0);
            }
            scans
        });
        assert!(scans[1].unwrap() > 0, "no scan has met a write");
    }
}

fn numbered(number: u64) -> Vec<u8> {
    Small::key_named(number * (u64::MAX / 100))
}

/// The next incarnation of a compute server finds everything that was flushed, and nothing else. It
/// must be begun: a process cannot take shards from one that serves them.
#[test]
fn the_next_incarnation_finds_what_was_flushed() {
    for provider in [local(LocalConfig::default()), rough(7)] {
        let options = options(1, 4);
        let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
        let compute = || <ShardedDlsm as Design<Small>>::compute(&options).unwrap();
        let (former, next, of_server) = (&compute(), &compute(), &options.server);
        let range = &former.map().range_of(0);
        let open = |compute, fabric| <ShardedDlsm as Design<Small>>::open(fabric, compute);
        cluster.run(&[0], |fabric, _| async move {
            let index = open(former, fabric.clone()).await.unwrap();
            for number in 0..50 {
                index.upsert(&numbered(number), b"flushed").await.unwrap();
            }
            index.flush().await.unwrap();
            for number in 25..75 {
                index.upsert(&numbered(number), b"lost").await.unwrap();
            }
            let refused = open(next, fabric).await.map(drop).unwrap_err();
            assert!(refused.to_string().contains("another process has this index"), "{refused}");
        });
        cluster.run(&[1], |fabric, _| async move {
            fence_former_incarnation(&fabric, 0).await.unwrap();
        });
        let found = cluster.run(&[0], |fabric, _| async move {
            end_former_incarnation::<ShardedDlsm, _, Small>(fabric.clone(), of_server, 0, range)
                .await
                .unwrap();
            // Its own beginning counts as a part of the life that is ended next.
            end_former_incarnation::<ShardedDlsm, _, Small>(fabric.clone(), of_server, 0, range)
                .await
                .unwrap();
            let index = open(next, fabric).await.unwrap();
            let found = index.scan(&ScanRequest::range(..)).await.unwrap();
            index.upsert(&numbered(99), b"new").await.unwrap();
            index.flush().await.unwrap();
            found
        });
        let flushed = (0..50).map(|number| (numbered(number), b"flushed".to_vec()));
        assert_eq!(found[0], Some(flushed.collect::<Vec<_>>()));
    }
}

/// A single tree once took `written`, and answered as with `cached`.
#[test]
fn answers_of_one_tree_cannot_wait() {
    let acknowledge = AcknowledgeName::Written;
    let options = DlsmOptions { acknowledge, ..tiny(KINDS[0]) };
    let refused = <Dlsm as Design<Small>>::compute(&options).map(drop).unwrap_err();
    assert!(refused.to_string().contains("only an index of shards has a write-ahead log"));
}

/// The directory may still make the change that shows what was loaded, so the outcome is unknown,
/// although it was refused. This once was told as a load that has failed.
#[test]
fn a_load_whose_change_stays_pending_is_indeterminate() {
    let provider = local(LocalConfig::default());
    let options = options(1, 1);
    let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    let of_server = &options.server;
    cluster.run_one(|fabric| async move {
        let index = <ShardedDlsm as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        // So that it has memory for the load.
        index.upsert(&numbered(1), b"one").await.unwrap();
        index.flush().await.unwrap();
        index.remove(&numbered(1)).await.unwrap();
        index.collect().await.unwrap();
        let range = &compute.map().range_of(0);
        end_former_incarnation::<ShardedDlsm, _, Small>(fabric, of_server, 0, range).await.unwrap();
        let loaded = index.bulk_load([(numbered(1), b"new".to_vec())].into_iter(), 0.7).await;
        assert!(compute.servers()[0].state().shards()[0].is_changing());
        assert!(matches!(loaded, Err(IndexError::Indeterminate(_))), "{loaded:?}");
    });
}

#[test]
fn what_does_not_fit_the_shards_is_refused() {
    let provider = local(LocalConfig::default());
    let made = options(2, 4);
    let cluster = sharded(&provider, made.clone()).with_index::<Small, ShardedDlsm>();
    // The range of a compute server ends within a shard.
    let other = Options::with_boundaries(vec![at(1, 3)], made.server.clone());
    for (options, text) in [(other, "ends within one"), (made.clone(), "")] {
        let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
        cluster.run_one(|fabric| async move {
            let opened = <ShardedDlsm as Design<Small>>::open(fabric, compute).await;
            let index = match opened {
                Ok(index) => index,
                Err(error) => {
                    return assert!(
                        !text.is_empty() && error.to_string().contains(text),
                        "{error}"
                    );
                }
            };
            assert_eq!(text, "", "opened with other boundaries");
            index.upsert(&at(3, 4), b"one").await.unwrap();
            assert_eq!(index.get(&at(3, 4)).await.unwrap().as_deref(), Some(&b"one"[..]));
        });
    }
    // As one tree it would have only the first shard.
    let one = &<Dlsm as Design<Small>>::compute(&tiny(KINDS[0])).unwrap();
    let refused = cluster.run_one(|fabric| async move {
        <Dlsm as Design<Small>>::open(fabric, one).await.map(drop).unwrap_err()
    });
    assert!(refused.to_string().contains("divided into shards"), "{refused}");
    let most = made.server.tree.memtable.most_value_bytes();
    assert_eq!(made.check::<Small>(most), Ok(()));
    let small = made.check::<Small>(most + 1).unwrap_err();
    assert!(small.to_string().contains("a quarter of a MemTable"), "{small}");
    let server = DlsmServerOptions { memtable_bytes: Some(1 << 20), ..made.server.clone() };
    let small = Options { server, ..made.clone() }.check::<Small>(0).unwrap_err();
    assert!(small.to_string().contains("several of 64 KiB"), "{small}");
    let bad: [(Vec<Vec<u8>>, &str); 4] = [
        (vec![Vec::new()], "below the lowest key"),
        (vec![vec![1; 300]], "at most 256 bytes"),
        (vec![vec![1], vec![1]], "must ascend"),
        ((1..=1_024_u16).map(|low| low.to_be_bytes().to_vec()).collect(), "at most 1,024 shards"),
    ];
    for (within, text) in bad {
        let options = ShardedOptions { within, ..options(1, 1) };
        let unfit = options.check::<Small>(0).unwrap_err();
        assert!(unfit.to_string().contains(text), "{unfit}");
        let cluster = sharded(&provider, options.clone()).start::<Small>();
        let options = &options;
        let refused = cluster.run_one(|fabric| async move {
            <ShardedDlsm as Design<Small>>::create(&fabric, options).await.unwrap_err()
        });
        assert!(refused.to_string().contains(text), "{refused}");
    }
}

/// A scan for a reply once collected all records that it was asked for, of which the reply had room
/// for a few.
#[test]
fn a_scan_for_a_message_ends_when_the_message_is_full() {
    let provider = local(LocalConfig::default());
    let options = options(1, 4);
    let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
    let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
    cluster.run_one(|fabric| async move {
        let pool = ShardedDlsm::open_pool::<_, Small>(fabric).await.unwrap();
        let part = ShardedDlsm::open_part(compute.servers()[0].state(), &pool).await.unwrap();
        let value = [7; 100];
        for number in 0..80 {
            let key = numbered(number);
            let edit = LeafEdit { key: &key[..], action: EditAction::Upsert(&value[..]) };
            part.execute(edit).await.unwrap();
        }
        part.flush().await.unwrap();
        for reverse in [false, true] {
            let order = |place| numbered(if reverse { 79 - place } else { place });
            let mut scan = ScanRequest { reverse, ..ScanRequest::range(..).limit(1_000) };
            let mut out = Vec::new();
            part.scan_some(&scan, 1_000, &mut out).await.unwrap();
            let bytes = |out: &[(Vec<u8>, Vec<u8>)]| {
                out.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
            };
            // A further shard adds two records even if one would do.
            assert!(
                bytes(&out) > 1_000 && bytes(&out[..out.len() - 2]) <= 1_000,
                "{} records",
                out.len()
            );
            // Many replies have all records.
            let (mut found, mut replies) = (Vec::new(), 0);
            loop {
                let mut room = RecordRoom::for_records(20);
                let mut reply = Vec::new();
                let scanned = InLeaves.scan(&part, &scan, &mut room, &mut reply).await.unwrap();
                replies += 1;
                found.extend(reply);
                let Some(next) = scanned.next else { break };
                assert!(scanned.is_full);
                if reverse { scan.upper = next } else { scan.lower = next }
            }
            let expected = (0..80).map(|place| (order(place), value.to_vec()));
            assert_eq!(found, expected.collect::<Vec<_>>());
            assert!(replies > 20, "{replies}");
        }
    });
}

/// The memory of MemTables is divided among the shards.
#[test]
fn more_shards_need_no_more_memory() {
    let local_bytes = |shards| {
        let mut options = options(1, shards);
        options.server.tree.memtable.bytes = 16 << 20;
        // Less than the pool would allow.
        options.server.memtable_bytes = Some(6 << 20);
        let provider = local(LocalConfig::default());
        let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
        let compute: &Arc<ComputePool<ShardedDlsm, Small>> =
            &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
        cluster.run_one(|fabric| async move {
            let index = <ShardedDlsm as Design<Small>>::open(fabric, compute).await.unwrap();
            index.upsert(&numbered(1), b"one").await.unwrap();
        });
        compute.cached_bytes()
    };
    let (one, four) = (local_bytes(1), local_bytes(4));
    // The active ones: a third of the budget, apart from the rounding to whole pages.
    assert!(four <= one && one <= 2 << 20 && four > (2 << 20) - (64 << 10), "{one} {four}");
}

/// What is known of a key when its compute server has died.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The latest round whose write has begun, and the latest that has ended.
    begun: u64,
    ended: u64,
    /// The one that had ended when a flush began that has ended since.
    flushed: u64,
}

/// A compute server with four shards dies at any of its WRITEs, within flushes and merges of any
/// shard, and so does the next one. Each key has a value that was written to it, and none older
/// than the last flush.
#[test]
fn no_death_leaves_older_or_other_values() {
    const KEYS: u64 = 40;
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..60 {
        let faults = Faults { tear_probability: 1.0, ..Faults::rough() };
        let provider = sim(SimConfig {
            seed,
            faults,
            give_up_after_ns: 20_000_000_000,
            ..SimConfig::default()
        });
        let options = options(1, 4);
        let cluster = sharded(&provider, options.clone()).with_index::<Small, ShardedDlsm>();
        let (known, of_server) = (&Mutex::new([Known::default(); KEYS as usize]), &options.server);
        let key = |number: u64| Small::key_named(number * (u64::MAX / KEYS));
        // Tables of a few records each.
        let value =
            |number: u64, round: u64| [number, round].map(u64::to_be_bytes).concat().repeat(6);
        for life in 0..2 {
            let compute = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
            let control = simulated(&cluster);
            control.kill_compute_servers_at_write(vec![life], seed * 2, LastWords::Some);
            cluster.run(&[life], |fabric, _| async move {
                let opened = <ShardedDlsm as Design<Small>>::open(fabric.clone(), compute).await;
                let index = opened.unwrap();
                for round in (1..200).map(|round| u64::from(life) * 200 + round) {
                    let number = fabric.random() % KEYS;
                    lock(known)[number as usize].begun = round;
                    index.upsert(&key(number), &value(number, round)).await.unwrap();
                    lock(known)[number as usize].ended = round;
                    if fabric.random().is_multiple_of(8) {
                        let before = *lock(known);
                        index.flush().await.unwrap();
                        let mut known = lock(known);
                        (0..KEYS as usize).for_each(|key| known[key].flushed = before[key].ended);
                    }
                }
            });
            control.call_off_death();
            let range = &compute.map().range_of(0);
            let next = &<ShardedDlsm as Design<Small>>::compute(&options).unwrap();
            // The next incarnation, which itself ends without a flush.
            let found = cluster.run(&[life + 1], |fabric, _| async move {
                fence_former_incarnation(&fabric, life).await.unwrap();
                end_former_incarnation::<ShardedDlsm, _, Small>(
                    fabric.clone(),
                    of_server,
                    0,
                    range,
                )
                .await
                .unwrap();
                let index =
                    <ShardedDlsm as Design<Small>>::open(fabric.clone(), next).await.unwrap();
                let found = index.scan(&ScanRequest::range(..)).await.unwrap();
                end_former_incarnation::<ShardedDlsm, _, Small>(fabric, of_server, 0, range)
                    .await
                    .unwrap();
                found
            });
            let found: BTreeMap<_, _> = found[0].clone().unwrap().into_iter().collect();
            for number in 0..KEYS {
                let known = &mut lock(known)[number as usize];
                let round = found.get(&key(number)).map_or(0, |found| {
                    let round = u64::from_be_bytes(found[8..16].try_into().unwrap());
                    assert_eq!(*found, value(number, round), "seed {seed}, key {number}");
                    round
                });
                let possible = known.flushed..=known.begun;
                assert!(possible.contains(&round), "seed {seed}, key {number}: {round}, {known:?}");
                lost += u64::from(round < known.ended);
                kept += u64::from(round > 0);
                *known = Known { begun: round, ended: round, flushed: round };
            }
        }
    }
    assert!(lost > 50 && kept > 1_000, "{lost} lost, {kept} kept");
}
