//! How many bytes a bulk load takes per record, on all levels, and what memory it needs.

use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{Design, IndexError, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::SuiteSetup;
use farleaf_suites::providers::local;
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use std::path::PathBuf;

type Small = Bytes<128>;
type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// Loads the records, reads them back, and returns the number of bytes per record in WRITEs.
fn loaded<D: Design<Small>>(
    options: D::Options,
    memory_servers: u16,
    fill: f64,
    records: &Records,
) -> f64 {
    let provider = &local(LocalConfig::default());
    let server = MemoryServerConfig { pool_bytes: 64 << 20, ..Default::default() };
    let setup = SuiteSetup { provider, options, memory_servers, server };
    let cluster = setup.with_index::<Small, D>();
    let compute = &D::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = D::open(fabric.clone(), compute).await.unwrap();
        let before = fabric.counters().snapshot();
        let count = index.bulk_load(records.iter().cloned(), fill).await.unwrap();
        let cost = fabric.counters().snapshot() - before;
        assert_eq!(count, records.len() as u64);
        assert!(index.scan(&ScanRequest::range(..)).await.unwrap() == *records);
        for (key, value) in records.iter().step_by(7) {
            assert_eq!(index.get(key).await.unwrap().as_ref(), Some(value));
        }
        cost.bytes_written as f64 / records.len() as f64
    })
}

fn dex(boundaries: Vec<Vec<u8>>) -> DexOptions<Vec<u8>> {
    let cache = CacheOptions { bytes: 16 << 20, ..CacheOptions::default() };
    DexOptions::with_boundaries(boundaries, cache)
}

/// Without heads, which would take pages of their own.
fn fine() -> FineOptions {
    FineOptions { leaves_per_head: 0, ..FineOptions::default() }
}

/// The paths of the toolchain's documentation; `None` if it is not installed.
fn paths() -> Option<Records> {
    let sysroot = std::process::Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot.stdout).trim());
    let root = sysroot.join("share/doc/rust/html");
    let (mut folders, mut records) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "html") {
                let path = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                records.push((format!("/rust/html/{path}").into_bytes(), vec![1; 8]));
            }
        }
    }
    records.retain(|(key, _)| key.len() <= Small::max_key());
    records.sort();
    (records.len() > 10_000).then_some(records)
}

/// Prefixes are removed first, and pages are then filled as far as the load requests.
#[test]
fn a_load_cuts_prefixes_off_before_it_fills_pages() {
    let numbers = |step: u64| -> Records {
        (0..20_000_u64).map(|n| ((n * step).to_be_bytes().to_vec(), vec![1; 8])).collect()
    };
    let spread = numbers(u64::MAX / 20_000);
    let mut sets = vec![("u64 spread", spread, 41.1), ("u64 dense", numbers(1), 26.9)];
    match paths() {
        Some(records) => sets.push(("paths", records, 60.3)),
        None => println!("without paths: the toolchain's documentation is not installed"),
    }
    for (name, records, table) in sets {
        let dex = loaded::<Dex>(dex(vec![]), 1, 0.7, &records);
        let fine = loaded::<Fine>(fine(), 1, 0.7, &records);
        for (design, bytes) in [("dex", dex), ("fine", fine)] {
            println!("{name}, {design}: {bytes:.1} bytes a record, {table} in the table");
            assert!(bytes <= table * 1.05, "{name}, {design}: {bytes} instead of {table}");
        }
    }
}

/// Neighbours that share nearly all of a key alternate with keys that share nothing with them, so
/// pages lose their prefix at their end; also, boundaries divide such neighbours.
#[test]
fn a_page_that_loses_its_prefix_gives_its_last_record_back() {
    let mut records = Records::new();
    for group in 0..120_u8 {
        // From 1 to 40 records, so that some groups end when their page is nearly full.
        for number in 0..1 + group % 40 {
            let mut key = vec![group; Small::max_key() - 3];
            key.extend_from_slice(&[number, group ^ number]);
            records.push((key, vec![number; usize::from(group % 24)]));
        }
    }
    let thirds = || vec![records[800].0.clone(), records[1_600].0.clone()];
    let partitioning = || Partitioning::Range { boundaries: thirds() };
    for fill in [0.5, 0.7, 0.9, 1.0] {
        loaded::<Dex>(dex(vec![]), 1, fill, &records);
        loaded::<Dex>(dex(thirds()), 2, fill, &records);
        loaded::<Fine>(FineOptions::default(), 2, fill, &records);
        loaded::<Hybrid>(HybridOptions::with_boundaries(thirds()), 3, fill, &records);
        loaded::<Coarse>(CoarseOptions { partitioning: partitioning() }, 3, fill, &records);
    }
}

/// The last page of a server loses its prefix at the end of a load, and so may need one more page.
/// By then, the other server may have published its part, so memory must run out earlier or not at
/// all.
#[test]
fn a_load_that_runs_out_of_memory_shows_nothing() {
    let mut records: Records = vec![(vec![0], vec![0; 8])];
    records.extend((0..=255_u8).map(|number| {
        let mut key = vec![9; Small::max_key() - 1];
        key.push(number);
        (key, vec![number; 64])
    }));
    let boundaries = vec![vec![5]];
    let options = CoarseOptions { partitioning: Partitioning::Range { boundaries } };
    let mut ended = [0, 0];
    for pages in [8, 12, 16, 24] {
        for count in 2..records.len() {
            let provider = &local(LocalConfig::default());
            let server = MemoryServerConfig {
                pool_bytes: (pages + 4) << 10,
                chunk_bytes: 4 << 10,
                ..Default::default()
            };
            let options = options.clone();
            let setup = SuiteSetup { provider, options, memory_servers: 2, server };
            let cluster = setup.with_index::<Small, Coarse>();
            let records = &records[..count];
            let was_loaded = cluster.run_one(|fabric| async move {
                let index = <Coarse as Design<Small>>::open(fabric, &()).await.unwrap();
                let loaded = index.bulk_load(records.iter().cloned(), 0.9).await;
                let found = index.scan(&ScanRequest::range(..)).await.unwrap();
                match loaded {
                    Ok(loaded) => assert!(loaded == count as u64 && found == records),
                    Err(error) => assert!(found.is_empty(), "{error}, {} records", found.len()),
                }
                // The memory that a failed load took is free again.
                if found.is_empty() {
                    assert_eq!(index.bulk_load(records[..2].iter().cloned(), 0.9).await, Ok(2));
                }
                !found.is_empty()
            });
            ended[usize::from(was_loaded)] += 1;
        }
    }
    println!("{} loads ran out of memory, {} did not", ended[0], ended[1]);
    assert!(ended.iter().all(|&count| count > 50), "{ended:?}");
}

/// A leaf takes up to five WRITEs: an entry in two pieces, a mark, the leaf and its stamp. An
/// endpoint that always refused one of them could never write it.
#[test]
fn an_endpoint_has_room_for_all_writes_of_a_leaf() {
    for depth in [4, 5] {
        let provider = &local(LocalConfig { depth, ..LocalConfig::default() });
        let (options, server) = (dex(vec![]), MemoryServerConfig::default());
        let setup = SuiteSetup { provider, options, memory_servers: 1, server };
        let cluster = setup.start::<Small>();
        let options = &setup.options;
        let compute = &<Dex as Design<Small>>::compute(options).unwrap();
        cluster.run_one(|fabric| async move {
            <Dex as Design<Small>>::create(&fabric, options).await.unwrap();
            let opened = <Dex as Design<Small>>::open(fabric, compute).await.map(drop);
            match depth {
                5 => assert_eq!(opened, Ok(())),
                _ => assert!(matches!(opened, Err(IndexError::InvalidArgument(_))), "{opened:?}"),
            }
        });
    }
}
