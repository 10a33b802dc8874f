//! A file in each form of traces is read as its public description says, and replaying it leaves
//! the contents of a `BTreeMap`.
//!
//! Traces without a column of operations were refused, and those of reads only were replayed on an
//! empty index, with a hit ratio of 0.9999995 and no word about the records that were not there.

use farleaf_bench::driver::{KeyValueForm, NumberForm};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::strings::StringForm;
use farleaf_bench::trace::{FORMATS, Trace, TraceFormat, read_trace, replay};
use farleaf_bench::workload::WorkloadOperation;
use farleaf_fabric::ServerId;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_index::Design;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A file: its name, its form, changes to that, and its requests: R reads, W writes, D removes and
/// S scans, with `:N` for the number of records.
const FILES: [(&str, &str, &str, &str); 18] = [
    ("reads.csv", "csv", "", "R42932745 R31954535 R42932745"),
    ("libcachesim.csv", "csv", "", "W42932745 R31954535 R42932745"),
    ("libcachesim.csv", "libcachesim-csv", "", "W42932745 R31954535 R42932745"),
    ("libcachesim.csv", "csv", "key=5,op=3,read=28,write=2a", "W42932745 R31954535 R42932745"),
    ("keys.txt", "keys", "", "R42932745 R31954535 R42932745"),
    ("keys.txt", "words", "", "R42932745 R31954535 R42932745"),
    // 0x0a00000000000a0a: newlines are no ends of records.
    ("oracle-general.bin", "oracle-general", "", "R42932745 R720575940379281930 R42932745"),
    ("oracle-general.zst", "oracle-general", "", "R42932745 R720575940379281930 R42932745"),
    ("msr.csv", "msr", "", "R7014609920 W1317441536 R1317441536 W7014609920"),
    // Volume * 2^48 + offset.
    (
        "alibaba.csv",
        "alibaba",
        "",
        "R844551633776640 W844551633776640 R117938141945409536 W204069358484160512",
    ),
    (
        "tencent.csv",
        "tencent",
        "",
        "R299207900256338280 W306526249644064831 W299207900256338280 R306526249650815336",
    ),
    (
        "twitter.csv.zst",
        "twitter",
        "",
        "Rnz:u:eeW511W3dcH3de3d15ec Wnz:u:eeW511W3dcH3de3d15ec Rq-dV,14aa W\"a\" \
         Dnz:u:eeW511W3dcH3de3d15ec Wcnt Rnz:u:eeW511W3dcH3de3d15ec",
    ),
    (
        "meta-kvcache-2022.csv",
        "meta-kvcache",
        "",
        // 0x1668757755 and 0x1665497896.
        "W96241809237 R96241809237 R96241809237 R96241809237 R96188594326",
    ),
    (
        "meta-kvcache-2024.csv",
        "meta-kvcache",
        "",
        "R9372856500883409094 W9405602628224563753 R9372856500883409094 R9372856500883409094 \
         D9405602628224563753",
    ),
    // Plus 2^63.
    (
        "wikimedia.tsv.gz",
        "wikimedia",
        "",
        "R9223372038569249254 R9223372035965623416 R9223372038569249254",
    ),
    (
        "ibm.txt",
        "ibm",
        "",
        "W10182583386069383881 R4166243052150244831 R10182583386069383881 D10182583386069383881 \
         W886645276476748242",
    ),
    (
        "ycsb.txt",
        "ycsb",
        "",
        "W6284781860667377211 S6284781860667377211:12 R8517097267634966620 W6284781860667377211 \
         D8517097267634966620",
    ),
    (
        "go-ycsb.txt",
        "ycsb",
        "",
        "W2651405783436471187 R2651405783436471187 W2651404683924842976 S2651405783436471187:3",
    ),
];

fn read(name: &str, format: &str, changes: &str, hash_keys: bool) -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(name);
    let mut format: TraceFormat = format.parse().unwrap();
    if !changes.is_empty() {
        format = format.with(changes).unwrap();
    }
    read_trace(&path, &format, hash_keys, u64::MAX).unwrap()
}

/// The requests as in [`FILES`].
fn written(trace: &Trace) -> String {
    let key = |number: u64| match &trace.strings {
        None => number.to_string(),
        Some(strings) => {
            let (place, behind) = trace.keys().place_of(number).unwrap();
            assert_eq!(behind, 0);
            String::from_utf8(strings[place as usize].clone()).unwrap()
        }
    };
    let requests = (0..).zip(&trace.operations).map(|(position, operation)| match *operation {
        WorkloadOperation::Get { key: number } => format!("R{}", key(number)),
        WorkloadOperation::Upsert { key: number, value } => {
            assert_eq!(value, position);
            format!("W{}", key(number))
        }
        WorkloadOperation::Remove { key: number } => format!("D{}", key(number)),
        WorkloadOperation::Scan { from, limit, reverse: false } => {
            format!("S{}:{limit}", key(from))
        }
        other => panic!("a trace has no {other:?}"),
    });
    requests.collect::<Vec<_>>().join(" ")
}

/// Replays the trace on a map. Returns its contents, and how many lookups found something.
fn model(trace: &Trace, loaded: Option<&KeySpace>) -> (BTreeMap<u64, u64>, u64) {
    let mut map: BTreeMap<u64, u64> = loaded.into_iter().flat_map(KeySpace::records).collect();
    let mut found = 0;
    for operation in &trace.operations {
        match *operation {
            WorkloadOperation::Get { key } => found += u64::from(map.contains_key(&key)),
            WorkloadOperation::Scan { from, .. } => {
                found += u64::from(map.range(from..).next().is_some())
            }
            WorkloadOperation::Upsert { key, value } => drop(map.insert(key, value)),
            WorkloadOperation::Remove { key } => drop(map.remove(&key)),
            other => panic!("a trace has no {other:?}"),
        }
    }
    (map, found)
}

fn check<D: Design<O::Layout>, O: KeyValueForm>(trace: &Trace, options: &D::Options, form: &O) {
    let keys = trace.keys();
    for loaded in [None, Some(&keys)] {
        let config = MemoryServerConfig { pool_bytes: 8 << 20, ..MemoryServerConfig::default() };
        let server = |number| {
            Arc::new(MemoryServer::<O::Layout>::new(ServerId::new(number), &config).unwrap())
        };
        let services = (0..2).map(server).collect();
        let provider = SimConfig::default();
        let replayed =
            replay::<D, O>(&provider, services, options, form.clone(), &trace.operations, loaded);
        let (measured, contents) = replayed.unwrap();
        let (map, found) = model(trace, loaded);
        let lookups = trace.operations.iter().filter(|operation| operation.is_lookup()).count();
        assert_eq!((measured.operations, measured.errors), (trace.operations.len() as u64, 0));
        assert_eq!((measured.lookups, measured.found), (lookups as u64, found));
        assert!(contents.into_iter().eq(map), "trace.R1");
    }
}

#[test]
fn each_form_is_read_as_it_is_described_and_replays() {
    let hash = CoarseOptions { partitioning: Partitioning::Hash };
    for (name, format, changes, expected) in FILES {
        let trace = read(name, format, changes, false);
        assert_eq!(written(&trace), expected, "{name} as {format} {changes}");
        match trace.strings.clone() {
            None => {
                check::<Coarse, _>(&trace, &hash, &NumberForm);
                check::<Fine, _>(&trace, &FineOptions::default(), &NumberForm);
            }
            Some(keys) => {
                let form = StringForm::<128>::listed(keys, 8..=40, None, false).unwrap();
                check::<Fine, _>(&trace, &FineOptions::default(), &form);
            }
        }
    }
    let tested: BTreeSet<_> = FILES.iter().map(|(_, format, ..)| *format).collect();
    let named: BTreeSet<_> = FORMATS.iter().map(|(name, ..)| *name).collect();
    assert_eq!(tested, named, "each form has a file");
}

/// A cache's trace has reads only; on an empty index none of them finds anything.
#[test]
fn lookups_of_a_loaded_trace_find_their_keys() {
    let trace = read("reads.csv", "csv", "", false);
    assert!(trace.lacks_operations);
    let keys = trace.keys();
    assert_eq!((model(&trace, None).1, model(&trace, Some(&keys)).1), (0, 3));
}

#[test]
fn hashed_keys_are_numbers() {
    for (name, format, ..) in FILES {
        let (plain, hashed) = (read(name, format, "", false), read(name, format, "", true));
        assert!(hashed.strings.is_none());
        assert_eq!(hashed.keys().len(), plain.keys().len(), "{name}");
        let kinds =
            |trace: &Trace| trace.operations.iter().map(std::mem::discriminant).collect::<Vec<_>>();
        assert_eq!(kinds(&hashed), kinds(&plain), "{name}");
        let hash = CoarseOptions { partitioning: Partitioning::Hash };
        check::<Coarse, _>(&hashed, &hash, &NumberForm);
    }
}
