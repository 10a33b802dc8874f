//! Runs over byte strings: every key that a workload uses is present, with the value that the
//! workload gave it, and costs match the layout.

use farleaf_bench::driver::{BenchRun, Testbed, WorkAmount};
use farleaf_bench::strings::{KeyForm, StringForm};
use farleaf_bench::workload::OperationMix;
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::ServerId;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_index::{AnyDesign, Naming, ScanRequest};
use farleaf_page::Bytes;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};

type Small = StringForm<128>;

fn testbed(strings: &Small, cache_bytes: u64) -> Testbed<Small> {
    let config = MemoryServerConfig { pool_bytes: 64 << 20, ..Default::default() };
    let server = |number| MemoryServer::<Bytes<128>>::new(ServerId::new(number), &config).unwrap();
    let services = (0..2).map(|number| Arc::new(server(number))).collect();
    let boundary = strings.key_named(strings.keys().boundaries(&[1, 1])[0]);
    let cache = CacheOptions { bytes: cache_bytes, ..CacheOptions::default() };
    let options = DexOptions::with_boundaries(vec![boundary], cache);
    let provider = SimConfig::default();
    let design = AnyDesign::of::<Dex>(options);
    let mut testbed = Testbed::start_with(&provider, services, &design, strings.clone()).unwrap();
    testbed.load(strings.keys(), 0.7, &|_| ()).unwrap();
    testbed
}

fn run_of(mix: &str, strings: &Small, operations: u64) -> BenchRun {
    let amount = WorkAmount::Operations(operations);
    super::driver::run_of(&OperationMix::named(mix).unwrap(), strings.keys(), amount)
}

#[test]
fn every_workload_finds_its_keys() {
    for (form, values) in [(KeyForm::Ycsb, 60..=190), (KeyForm::Dlsm, 8..=8)] {
        let strings = StringForm::new(&form, 5_000, values, true).unwrap();
        let mut testbed = testbed(&strings, 1 << 20);
        for mix in ["write-intensive", "insert-intensive", "ycsb-e", "ycsb-f", "read-only"] {
            let before = testbed.records();
            let run = run_of(mix, &strings, 2_000);
            for run in [run.clone(), BenchRun { batch: 8, ..run }] {
                let measured = testbed.measure(&run, &|_| ()).unwrap();
                assert_eq!((measured.errors, measured.misses), (0, 0), "{mix} on {form}");
            }
            let inserts = mix == "insert-intensive" || mix == "ycsb-e";
            assert_eq!(testbed.records() > before, inserts, "{mix}");
        }
        // Every record has a name, or the scan would panic, and none is missing.
        let records = testbed.scan(&ScanRequest::range(..)).unwrap();
        assert_eq!(records.len() as u64, testbed.records());
        let key = strings.keys().key(17);
        let found = records.iter().find(|(found, _)| *found == key);
        assert_eq!(testbed.get(key).unwrap(), found.map(|(_, value)| *value));
    }
}

/// A page without common prefixes would hold fewer URLs, and the same cache fewer of them.
#[test]
fn prefixes_save_reads() {
    let lines: String = (0..500)
        .map(|page| format!("doc.example.org/library/module{}/page{page:03}.html\n", page / 50))
        .collect();
    let path = std::env::temp_dir().join(format!("farleaf-lines-{}", std::process::id()));
    std::fs::write(&path, lines).unwrap();
    let form = KeyForm::File(path.clone());
    let urls = StringForm::new(&form, 40_000, 8..=8, false).unwrap();
    let words = StringForm::new(&KeyForm::Dlsm, 40_000, 8..=8, false).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(urls.record_bytes().0 > 2.0 * words.record_bytes().0);
    let reads = |strings: &Small| {
        let mut testbed = testbed(strings, 256 << 10);
        let measured = testbed.measure(&run_of("read-only", strings, 40_000), &|_| ()).unwrap();
        assert_eq!((measured.errors, measured.misses), (0, 0));
        measured.counters.reads as f64 / measured.operations as f64
    };
    let (of_urls, of_words) = (reads(&urls), reads(&words));
    assert!(of_urls < 1.1 * of_words, "{of_urls} READs of URLs, {of_words} of words");
}
