//! Reads and replays recorded requests.
//!
//! *Invariants*
//! - trace.R1. A single client replays a trace in order, starting from an empty index. Afterwards
//!   the index has the contents that a `BTreeMap` would have.
//!
//! *Thread safety*: plain values.

use crate::InputError;
use crate::columns::{Columns, lines, shortened};
use crate::driver::{BenchError, Measurement, Testbed};
use crate::keys::KeySpace;
use crate::workload::Operation;
use farleaf_core::index::{Design, Scan};
use farleaf_core::page::Fixed8;
use farleaf_core::server::MemoryServer;
use farleaf_fabric::Provider;
use farleaf_fabric::sync::Arc;
use std::collections::BTreeSet;
use std::path::Path;

/// Columns of a trace file and the codes in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFormat {
    /// The column of keys, which are unsigned integers.
    pub key_column: String,
    /// The column with the code that distinguishes reads from writes.
    pub op_column: String,
    /// The code of a read.
    pub read: String,
    /// The code of a write.
    pub write: String,
}

impl Default for TraceFormat {
    /// The format of a block device's trace: SCSI operation codes and logical block numbers.
    fn default() -> Self {
        Self {
            key_column: "lbn".to_owned(),
            op_column: "op".to_owned(),
            read: "28".to_owned(),
            write: "2a".to_owned(),
        }
    }
}

/// Reads a trace. A read becomes a lookup; a write becomes an upsert of the request's position,
/// from 0.
///
/// # Errors
/// [`InputError`] if the file cannot be read, lacks a column, has no rows or a malformed one.
pub fn read_trace(path: &Path, format: &TraceFormat) -> Result<Vec<Operation>, InputError> {
    let mut columns = Columns::open(path)?;
    let key_column = columns.column(&format.key_column)?;
    let op_column = columns.column(&format.op_column)?;
    let mut operations = Vec::new();
    while columns.next_row()? {
        let key = columns.number(key_column)?;
        let op = columns.field(op_column);
        operations.push(match op {
            _ if op == format.read => Operation::Get { key },
            _ if op == format.write => Operation::Upsert { key, value: operations.len() as u64 },
            _ => {
                let TraceFormat { op_column, read, write, .. } = format;
                return Err(columns.bad_row(format!(
                    "column `{op_column}` is `{op}`, expected `{read}` for a read or `{write}` for a \
                     write"
                )));
            }
        });
    }
    if operations.is_empty() {
        return Err(columns.empty());
    }
    Ok(operations)
}

/// Reads the output of YCSB with its binding `basic`, which has lines such as `READ usertable
/// user42 [ … ]`. An insert or an update becomes an upsert of the request's position; a scan reads
/// as many records. The key is the number after the letters of YCSB's key. Other lines, such as
/// YCSB's own report, are skipped.
///
/// # Errors
/// [`InputError`] if the file cannot be read, has no requests or a malformed one.
pub fn read_ycsb(path: &Path) -> Result<Vec<Operation>, InputError> {
    let mut operations = Vec::new();
    for line in lines(path)? {
        let (line, text) = line?;
        let mut words = text.split_ascii_whitespace();
        let (Some(verb), Some(_table), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if !["READ", "INSERT", "UPDATE", "DELETE", "SCAN"].contains(&verb) {
            continue;
        }
        let bad_row = |what: &str, found: &str| InputError::BadRow {
            path: path.to_owned(),
            line,
            problem: format!("expected {what}, found `{}`", shortened(found)),
        };
        let digits = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        let Ok(key) = digits.parse() else {
            return Err(bad_row("a key such as user42", name));
        };
        operations.push(match verb {
            "READ" => Operation::Get { key },
            "DELETE" => Operation::Remove { key },
            "SCAN" => {
                let count = words.next().unwrap_or_default();
                let limit = count.parse().map_err(|_| bad_row("a number of records", count))?;
                Operation::Scan { from: key, limit, reverse: false }
            }
            _ => Operation::Upsert { key, value: operations.len() as u64 },
        });
    }
    match operations.is_empty() {
        true => Err(InputError::Empty { path: path.to_owned() }),
        false => Ok(operations),
    }
}

/// The distinct keys of a trace, as a key space that can be divided among servers.
///
/// # Panics
/// If the trace has no requests.
pub fn touched_keys(operations: &[Operation]) -> KeySpace {
    let touched = operations.iter().filter_map(|operation| match operation {
        Operation::Get { key }
        | Operation::Upsert { key, .. }
        | Operation::Remove { key }
        | Operation::Scan { from: key, .. } => Some(*key),
        _ => None,
    });
    let records: Vec<_> =
        touched.collect::<BTreeSet<_>>().into_iter().map(|key| (key, 0)).collect();
    KeySpace::listed(&records).expect("a set ascends, and a trace has requests")
}

/// Replays a trace on a newly created index. Returns the cost, and the index's contents at the end.
///
/// # Errors
/// [`BenchError`] if the index cannot be created, opened or scanned. Failed requests are counted
/// instead.
pub fn replay<D: Design<Fixed8>, P: Provider>(
    provider: &P,
    services: Vec<Arc<MemoryServer<Fixed8>>>,
    options: &D::Options,
    operations: &[Operation],
) -> Result<(Measurement, Vec<(u64, u64)>), BenchError> {
    let testbed = Testbed::<D, P>::start(provider, services, options)?;
    let measurement = testbed.replay(operations, &|_| ())?;
    let contents = testbed.scan(&Scan::range(..))?;
    Ok((measurement, contents))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::tests::{TestFile, gzip};

    #[test]
    fn reads_and_writes_are_told_apart() {
        let text = b"version,time,op,size,lbn\n1,5,2a,512,7\n1,6,28,512,7\n1,6,2a,512,3\n";
        let expected = [
            Operation::Upsert { key: 7, value: 0 },
            Operation::Get { key: 7 },
            Operation::Upsert { key: 3, value: 2 },
        ];
        for (name, content) in [("trace.csv", text.to_vec()), ("trace.csv.gz", gzip(text))] {
            let file = TestFile::new(name, &content);
            let operations = read_trace(file.path(), &TraceFormat::default()).unwrap();
            assert_eq!(operations, expected);
            assert_eq!(touched_keys(&operations).len(), 2);
        }
    }

    #[test]
    fn what_ycsb_prints_is_a_trace() {
        let text = "YCSB Client 0.17.0\n\
                    INSERT usertable user6284781860667377211 [ field0=%v1 field1=)~ ]\n\
                    READ usertable user7 [ <all fields>]\n\
                    SCAN usertable user7 12 [ <all fields>]\n\
                    UPDATE usertable user7 [ field3=x ]\n\
                    DELETE usertable user7\n\
                    [OVERALL], RunTime(ms), 121\n";
        let expected = [
            Operation::Upsert { key: 6_284_781_860_667_377_211, value: 0 },
            Operation::Get { key: 7 },
            Operation::Scan { from: 7, limit: 12, reverse: false },
            Operation::Upsert { key: 7, value: 3 },
            Operation::Remove { key: 7 },
        ];
        for content in [text.as_bytes().to_vec(), gzip(text.as_bytes())] {
            let file = TestFile::new("ycsb.txt", &content);
            let operations = read_ycsb(file.path()).unwrap();
            assert_eq!(operations, expected);
            assert_eq!(touched_keys(&operations).len(), 2);
        }
        for (text, expected) in [
            ("READ usertable userX [ ]\n", "line 1: expected a key such as user42, found `userX`"),
            ("\nSCAN t user1\n", "line 2: expected a number of records, found ``"),
            ("YCSB Client 0.17.0\n", "has no rows"),
        ] {
            let file = TestFile::new("bad-ycsb.txt", text.as_bytes());
            let error = read_ycsb(file.path()).unwrap_err().to_string();
            assert!(error.ends_with(expected), "{error}");
        }
    }

    #[test]
    fn an_unknown_request_is_an_error() {
        let file = TestFile::new("unknown.csv", b"op,lbn\n28,1\n35,2\n");
        let error = read_trace(file.path(), &TraceFormat::default()).unwrap_err().to_string();
        let expected = "line 3: column `op` is `35`, expected `28` for a read or `2a` for a write";
        assert!(error.ends_with(expected), "{error}");
    }
}
