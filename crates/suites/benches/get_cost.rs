//! The cost of a `get`: on `std`'s `BTreeMap`, on the memory server's tree called directly, through
//! index, fabric and RPC, inline on one thread, and on DEX with every node in its cache, one by one
//! and in groups of 16. All alternate within one run, so that their ratios hold on a noisy machine.
//!
//! `cargo bench -p farleaf-suites --bench get_cost -- [KEYS [ROUNDS [PERCENT]]]`; PERCENT limits
//! DEX's cache to that share of its nodes.
#![expect(clippy::disallowed_methods, reason = "this measures real time")]

use farleaf_dex::cache::{AdmissionName, CacheOptions};
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, InlineCpu, Provider, ServerId, now_or_never};
use farleaf_index::{Design, RangeIndex};
use farleaf_page::Fixed8;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

const LOOKUPS: u64 = 500_000;
const GROUP: usize = 16;

fn scatter(number: u64) -> u64 {
    (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number >> 17
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let keys = numbers.first().copied().unwrap_or(10_000_000);
    let rounds = numbers.get(1).copied().unwrap_or(9);
    let percent = numbers.get(2).copied();
    let step = u64::MAX / keys;
    let key = |number: u64| number % keys * step;

    let pool_bytes = (keys as usize * 30 + (8 << 20)).next_multiple_of(1 << 21);
    let config = MemoryServerConfig { pool_bytes, ..MemoryServerConfig::default() };
    let server = Arc::new(MemoryServer::<Fixed8>::new(ServerId::new(0), &config).unwrap());
    let cluster = LocalConfig::default().start(vec![Arc::clone(&server)]);
    let options: CoarseOptions<u64> =
        CoarseOptions { partitioning: Partitioning::Range { boundaries: vec![] } };
    cluster.run_one(|fabric| {
        let options = options.clone();
        async move {
            <Coarse as Design<Fixed8>>::create(&fabric, &options).await.unwrap();
            let index = <Coarse as Design<Fixed8>>::open(fabric, &()).await.unwrap();
            index.bulk_load((0..keys).map(|n| (n * step, n)), 0.7).await.unwrap();
        }
    });

    let memory = Arc::new(MemoryServer::<Fixed8>::new(ServerId::new(0), &config).unwrap());
    let dex_cluster = LocalConfig::default().start(vec![memory]);
    let cache = match percent {
        None => CacheOptions {
            bytes: pool_bytes as u64,
            admission: AdmissionName::Hot,
            ..CacheOptions::default()
        },
        Some(percent) => {
            // Leaves are 70% full.
            CacheOptions { bytes: keys * 23 * percent / 100, ..CacheOptions::default() }
        }
    };
    let options = DexOptions::with_boundaries(Vec::new(), cache);
    let compute = <Dex as Design<Fixed8>>::compute(&options).unwrap();
    dex_cluster.run_one(async |fabric| {
        <Dex as Design<Fixed8>>::create(&fabric, &options).await.unwrap();
        let index = <Dex as Design<Fixed8>>::open(fabric, &compute).await.unwrap();
        index.bulk_load((0..keys).map(|n| (n * step, n)), 0.7).await.unwrap();
        for number in 0..keys {
            black_box(index.get(&key(number)).await.unwrap());
        }
    });
    let map: BTreeMap<u64, u64> = (0..keys).map(|n| (n * step, n)).collect();

    let mut samples: [Vec<f64>; 5] = Default::default();
    for round in 0..rounds {
        let lookups = || (round * LOOKUPS..(round + 1) * LOOKUPS).map(|n| key(scatter(n)));
        let mut record = |which: usize, started: Instant, found: u64| {
            assert_eq!(found, LOOKUPS, "every key is there");
            samples[which].push(started.elapsed().as_secs_f64() * 1e9 / LOOKUPS as f64);
        };

        let started = Instant::now();
        let found = lookups().map(|key| u64::from(black_box(map.get(&key)).is_some())).sum();
        record(0, started, found);

        let (tree, cpu) = (server.tree(), InlineCpu::new(0));
        let started = Instant::now();
        let found = lookups()
            .map(|key| {
                let value = now_or_never(tree.get(&cpu, &key)).unwrap();
                u64::from(black_box(value).is_some())
            })
            .sum();
        record(1, started, found);

        let (elapsed, found) = cluster.run_one(|fabric| async move {
            let index = <Coarse as Design<Fixed8>>::open(fabric, &()).await.unwrap();
            let started = Instant::now();
            let mut found = 0;
            for key in lookups() {
                found += u64::from(black_box(index.get(&key).await.unwrap()).is_some());
            }
            (started.elapsed(), found)
        });
        record(2, Instant::now() - elapsed, found);

        let (elapsed, found) = dex_cluster.run_one(async |fabric| {
            let index = <Dex as Design<Fixed8>>::open(fabric, &compute).await.unwrap();
            let started = Instant::now();
            let mut found = 0;
            for key in lookups() {
                found += u64::from(black_box(index.get(&key).await.unwrap()).is_some());
            }
            (started.elapsed(), found)
        });
        record(3, Instant::now() - elapsed, found);

        let (elapsed, found) = dex_cluster.run_one(async |fabric| {
            let index = <Dex as Design<Fixed8>>::open(fabric, &compute).await.unwrap();
            let keys: Vec<u64> = lookups().collect();
            let started = Instant::now();
            let mut found = 0;
            for group in keys.chunks(GROUP) {
                let values = black_box(index.multi_get(group).await.unwrap());
                found += values.iter().flatten().count() as u64;
            }
            (started.elapsed(), found)
        });
        record(4, Instant::now() - elapsed, found);
    }
    let [map, direct, rpc, dex, group] = samples.each_mut().map(|samples| median(samples));
    println!("{keys} keys, {rounds} rounds of {LOOKUPS} uniform lookups, medians");
    println!("BTreeMap                        {map:7.1} ns");
    println!(
        "tree on the server, directly    {direct:7.1} ns   {:.2} x BTreeMap's throughput",
        map / direct
    );
    println!(
        "get over executor, fabric, RPC  {rpc:7.1} ns   {:.2} x the direct get's time",
        rpc / direct
    );
    println!(
        "get on DEX                      {dex:7.1} ns   {:.2} x BTreeMap's throughput",
        map / dex
    );
    println!(
        "the same in groups of {GROUP}        {group:7.1} ns   {:.2} x its single gets' throughput",
        dex / group
    );
}
