//! Reads and replays recorded requests.
//!
//! *Invariants*
//! - trace.R1. A single client replays a trace in order, starting from an empty index, or from one
//!   that holds each key that the trace touches. Afterwards the index has the contents that a
//!   `BTreeMap` would have.
//!
//! *Thread safety*: plain values.

mod format;
mod rows;

pub use format::{FORMATS, FormatError, TraceFormat};

use crate::InputError;
use crate::driver::{BenchError, KeyValueForm, Measurement, Testbed};
use crate::keys::{KeySpace, mix64};
use crate::workload::WorkloadOperation;
use farleaf_fabric::Provider;
use farleaf_fabric::sync::Arc;
use farleaf_index::{AnyDesign, ScanRequest};
use farleaf_pool::server::MemoryServer;
use format::TraceRequest;
use rows::{TraceKey, TraceKeyFormat, TraceShape};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The requests of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The requests, in order. A read is a lookup, and a write an upsert of the request's position,
    /// from 0.
    pub operations: Vec<WorkloadOperation>,
    /// Byte strings that are keys, ascending. The operations then have the numbers of
    /// [`KeySpace::spread`]. `None` if keys are numbers.
    pub strings: Option<Vec<Vec<u8>>>,
    /// Whether the file has more requests.
    pub is_cut: bool,
    /// Whether the file has no column of operations, so that all requests are lookups.
    pub lacks_operations: bool,
    /// Whether the file's first row was taken for a header; `None` for binary records.
    pub has_header: Option<bool>,
}

impl Trace {
    /// The distinct keys.
    ///
    /// # Panics
    /// If the trace has no requests.
    pub fn keys(&self) -> KeySpace {
        match &self.strings {
            Some(strings) => KeySpace::spread(strings.len() as u64),
            None => touched_keys(&self.operations),
        }
    }
}

/// Reads at most `most` requests of a trace, from a file that may be compressed, or from stdin for
/// `-`. With `hash_keys`, a key is the XXH3 of its text.
///
/// # Errors
/// [`InputError`] if the file cannot be read, lacks a column, has no requests or a malformed one.
pub fn read_trace(
    path: &Path,
    format: &TraceFormat,
    hash_keys: bool,
    most: u64,
) -> Result<Trace, InputError> {
    let mut operations: Vec<WorkloadOperation> = Vec::new();
    // Byte strings have numbers in the order of their appearance at first.
    let mut strings: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut is_cut = false;
    let keys = TraceKeyFormat { kind: format.keys, hashed: hash_keys };
    let shape = rows::read(path, format, keys, |row| {
        let key = match row.key {
            TraceKey::Number(number) => number,
            TraceKey::Text(text) => {
                let next = strings.len() as u64;
                match strings.entry(text) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => *new.insert(next),
                }
            }
        };
        for _ in 0..row.count {
            let value = operations.len() as u64;
            if value == most {
                is_cut = true;
                return false;
            }
            operations.push(match row.request {
                TraceRequest::Read => WorkloadOperation::Get { key },
                TraceRequest::Write => WorkloadOperation::Upsert { key, value },
                TraceRequest::Remove => WorkloadOperation::Remove { key },
                TraceRequest::Scan => {
                    WorkloadOperation::Scan { from: key, limit: row.limit, reverse: false }
                }
            });
        }
        true
    })?;
    if operations.is_empty() {
        let name = if path == Path::new("-") { Path::new("stdin") } else { path };
        return Err(InputError::Empty { path: name.to_owned() });
    }
    let strings = match format.has_text() && !hash_keys {
        true => Some(in_order(strings, &mut operations)),
        false => None,
    };
    let TraceShape { lacks_operations, has_header } = shape;
    Ok(Trace { operations, strings, is_cut, lacks_operations, has_header })
}

/// The byte strings in order, by which it renumbers the keys of the operations.
fn in_order(strings: BTreeMap<Vec<u8>, u64>, operations: &mut [WorkloadOperation]) -> Vec<Vec<u8>> {
    let sorted: Vec<_> = strings.into_iter().collect();
    let space = KeySpace::spread(sorted.len() as u64);
    let mut numbers = vec![0; sorted.len()];
    for (place, (_, number)) in (0..).zip(&sorted) {
        numbers[*number as usize] = space.key(place);
    }
    for operation in operations {
        if let WorkloadOperation::Get { key }
        | WorkloadOperation::Upsert { key, .. }
        | WorkloadOperation::Remove { key }
        | WorkloadOperation::Scan { from: key, .. } = operation
        {
            *key = numbers[*key as usize];
        }
    }
    sorted.into_iter().map(|(string, _)| string).collect()
}

/// The distinct keys of a trace, as a key space that can be divided among servers.
///
/// # Panics
/// If the trace has no requests.
pub fn touched_keys(operations: &[WorkloadOperation]) -> KeySpace {
    let touched = operations.iter().filter_map(|operation| match operation {
        WorkloadOperation::Get { key }
        | WorkloadOperation::Upsert { key, .. }
        | WorkloadOperation::Remove { key }
        | WorkloadOperation::Scan { from: key, .. } => Some(*key),
        _ => None,
    });
    let records: Vec<_> =
        touched.collect::<BTreeSet<_>>().into_iter().map(|key| (key, mix64(key))).collect();
    KeySpace::listed(&records).expect("a set ascends, and a trace has requests")
}

/// Fill of the pages of a loaded index.
const FILL: f64 = 0.7;

/// Replays a trace on a newly created index, which first loads `loaded`. Returns the cost, and the
/// index's contents at the end.
///
/// # Errors
/// [`BenchError`] if the index cannot be created, loaded, opened or scanned. Failed requests are
/// counted instead.
pub fn replay<O: KeyValueForm>(
    provider: &impl Provider,
    services: Vec<Arc<MemoryServer<O::Layout>>>,
    design: &AnyDesign<O::Layout>,
    form: O,
    operations: &[WorkloadOperation],
    loaded: Option<&KeySpace>,
) -> Result<(Measurement, Vec<(u64, u64)>), BenchError> {
    let mut testbed = Testbed::start_with(provider, services, design, form)?;
    if let Some(keys) = loaded {
        testbed.load(keys, FILL, &|_| ())?;
    }
    let measurement = testbed.replay(operations, &|_| ())?;
    let contents = testbed.scan(&ScanRequest::range(..))?;
    Ok((measurement, contents))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::tests::{TestFile, gzip};

    fn read(format: &TraceFormat, content: &[u8]) -> Result<Trace, String> {
        let file =
            TestFile::new(&format!("trace-{:x}", xxhash_rust::xxh3::xxh3_64(content)), content);
        read_trace(file.path(), format, false, u64::MAX).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_and_writes_are_told_apart() {
        let text = b"version,time,op,size,lbn\n1,5,2a,512,7\n1,6,28,512,7\n1,6,2a,512,3\n";
        let expected = [
            WorkloadOperation::Upsert { key: 7, value: 0 },
            WorkloadOperation::Get { key: 7 },
            WorkloadOperation::Upsert { key: 3, value: 2 },
        ];
        for content in [text.to_vec(), gzip(text)] {
            let trace = read(&TraceFormat::default(), &content).unwrap();
            assert_eq!(trace.operations, expected);
            assert_eq!((trace.keys().len(), trace.strings), (2, None));
        }
    }

    /// go-ycsb 1.0.3 prints a report each ten seconds among the requests, with the operation as its
    /// first word (`READ   - Takes(s): …`). The reader took `Takes(s):` for a key and gave up.
    #[test]
    fn what_ycsb_prints_is_a_trace() {
        let text = "YCSB Client 0.17.0\n\
                    INSERT usertable user6284781860667377211 [ field0=%v1 field1=)~ ]\n\
                    READ   - Takes(s): 10.0, Count: 2, OPS: 0.2, Avg(us): 55, Min(us): 20\n\
                    READ usertable user7 [ <all fields>]\n\
                    SCAN usertable user7 12 [ <all fields>]\n\
                    UPDATE - Takes(s): 10.0, Count: 1, OPS: 0.1, Avg(us): 55, Min(us): 20\n\
                    UPDATE usertable user7 [ field3=x ]\n\
                    DELETE usertable user7\n\
                    [OVERALL], RunTime(ms), 121\n";
        let expected = [
            WorkloadOperation::Upsert { key: 6_284_781_860_667_377_211, value: 0 },
            WorkloadOperation::Get { key: 7 },
            WorkloadOperation::Scan { from: 7, limit: 12, reverse: false },
            WorkloadOperation::Upsert { key: 7, value: 3 },
            WorkloadOperation::Remove { key: 7 },
        ];
        let format = "ycsb".parse().unwrap();
        for content in [text.as_bytes().to_vec(), gzip(text.as_bytes())] {
            let trace = read(&format, &content).unwrap();
            assert_eq!(trace.operations, expected);
            assert_eq!(trace.keys().len(), 2);
        }
        for (text, expected) in [
            (
                "READ usertable userX [ ]\n",
                "line 1: column `3` is `userX`, expected a key such as user42",
            ),
            (
                "READ usertable user1\nSCAN t user1\n",
                "line 2: expected a number of records, found ``",
            ),
            ("YCSB Client 0.17.0\n", "has no rows"),
        ] {
            let error = read(&format, text.as_bytes()).unwrap_err();
            assert!(error.ends_with(expected), "{error}");
        }
    }

    #[test]
    fn errors_say_which_row_and_what_was_expected() {
        for (format, content, expected) in [
            (
                "csv",
                "op,lbn\n28,1\n35,2\n",
                "line 3: column `op` is `35`, expected `28` or `read` or `get` for a read, `2a` or \
                 `write` or `set` or `put` or `update` or `insert` for a write, `delete` or \
                 `remove` for a removal",
            ),
            ("csv", "op,block\n28,1\n", "no column `key` or `lbn`; its columns are: op, block"),
            ("libcachesim-csv", "time,lbn\n5,1\n", "no column `op`; its columns are: time, lbn"),
            (
                "csv",
                "op,key\n28,x\n",
                "line 2: column `2` is `x`, expected a whole number below 2^64; --hash-keys takes any text",
            ),
            ("csv", "op,key\n28\n", "line 2: there are 1 columns, expected at least 2"),
            (
                "csv",
                "op,key\n28,\"1\n",
                "line 2: a separator within quotes, which a trace may not have",
            ),
            (
                "msr",
                "128166372003061629,usr,0,Flush,0,4096,5\n",
                "line 1: column `4` is `Flush`, expected `Read` for a read, `Write` for a write",
            ),
            (
                "alibaba",
                "70000,R,4096,512,1\n",
                "line 1: column `3` is `4096`, expected a number below 2^48 of a volume below 2^16; --hash-keys takes any",
            ),
            (
                "ibm",
                "5 REST.GET.OBJECT 8d4fcda3d675bac9f 10\n",
                "line 1: column `3` is `8d4fcda3d675bac9f`, expected up to 16 hexadecimal digits; --hash-keys takes any text",
            ),
            (
                "oracle-general",
                "123456789012345678901234567",
                "record 2: the file ends after 3 of its 24 bytes",
            ),
            ("keys", "\n\n", "has no rows"),
        ] {
            let error = read(&format.parse().unwrap(), content.as_bytes()).unwrap_err();
            assert!(error.ends_with(expected), "{error}");
        }
    }

    /// A trace without a column of operations was refused.
    #[test]
    fn without_operations_all_requests_are_lookups() {
        let trace = read(&TraceFormat::default(), b"\xef\xbb\xbfkey,time\r\n5,1\r\n7,2\r\n5,3\r\n")
            .unwrap();
        let get = |key| WorkloadOperation::Get { key };
        assert_eq!(
            (trace.operations, trace.lacks_operations),
            (vec![get(5), get(7), get(5)], true)
        );
        let trace = read(&TraceFormat::default(), b"\"op\",\"key\"\n\"get\",\"5\"\n").unwrap();
        assert_eq!((trace.operations, trace.lacks_operations), (vec![get(5)], false));
    }

    /// A file of keys without a header lost its first row: the form `csv` has a column `op`, which
    /// a file may lack, and its name made a header of any first row.
    #[test]
    fn numbers_are_no_header() {
        let get = |key| WorkloadOperation::Get { key };
        let by_place = TraceFormat::default().with("key=1").unwrap();
        for (rows, has_header) in [
            ("5\n7\n5\n", false),
            ("5,1\n7,2\n5,3\n", false),
            ("key,time\n5,1\n7,2\n5,3\n", true),
            ("id\n5\n7\n5\n", true),
        ] {
            let trace = read(&by_place, rows.as_bytes()).unwrap();
            assert_eq!(trace.operations, [get(5), get(7), get(5)], "{rows}");
            assert_eq!((trace.has_header, trace.lacks_operations), (Some(has_header), true));
        }
        let trace = read(&by_place, b"key,op\n5,get\n").unwrap();
        assert_eq!((trace.has_header, trace.lacks_operations), (Some(true), false));
        // The first row has a number, so it is a request, or an error.
        let said = read(&by_place, b"x,1\n5,2\n").unwrap_err();
        assert!(said.contains("line 1: column `1` is `x`"), "{said}");
    }

    #[test]
    fn a_header_is_skipped_where_columns_have_places() {
        let rows = "1577808000,R,4096,512,1\n";
        let header = "device_id,opcode,offset,length,timestamp\n";
        let format = "alibaba".parse::<TraceFormat>().unwrap().with("volume=3").unwrap();
        let plain = read(&format, rows.as_bytes()).unwrap();
        let headed = read(&format, format!("{header}{rows}").as_bytes()).unwrap();
        assert_eq!(plain.operations, headed.operations);
        assert_eq!((plain.has_header, headed.has_header), (Some(false), Some(true)));
        // A first row with a number is a request, or an error.
        assert!(read(&format, format!("1,x,4096,512,1\n{rows}").as_bytes()).is_err());
    }

    #[test]
    fn byte_strings_are_numbered_in_their_order() {
        let rows = "0,b,1,8,1,set,60\n0,a,b,1,8,1,get,0\n0,zz,2,8,1,delete,0\n0,b,1,8,1,gets,0\n";
        let trace = read(&"twitter".parse().unwrap(), rows.as_bytes()).unwrap();
        let strings: Vec<_> = ["a,b", "b", "zz"].map(|key| key.as_bytes().to_vec()).into();
        assert_eq!(trace.strings, Some(strings));
        let key = |place| KeySpace::spread(3).key(place);
        let expected = [
            WorkloadOperation::Upsert { key: key(1), value: 0 },
            WorkloadOperation::Get { key: key(0) },
            WorkloadOperation::Remove { key: key(2) },
            WorkloadOperation::Get { key: key(1) },
        ];
        assert_eq!(trace.operations, expected);
    }

    #[test]
    fn a_trace_is_read_up_to_a_limit() {
        let format = "meta-kvcache".parse().unwrap();
        let rows = b"key,op,size,op_count,key_size\n5,GET,1,2,8\n6,SET,1,0,8\nff,GET,1,3,8\n";
        let file = TestFile::new("limit.csv", rows);
        for (most, length, is_cut) in [(1, 1, true), (4, 4, true), (5, 5, false), (9, 5, false)] {
            let trace = read_trace(file.path(), &format, false, most).unwrap();
            assert_eq!((trace.operations.len(), trace.is_cut), (length, is_cut), "{most}");
        }
    }
}
