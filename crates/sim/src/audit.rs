//! Reads an index after a crash: every key in every way, and all answers must agree (D7).
//!
//! *Thread safety*: private to one task.

use crate::scenario::WorkloadSpec;
use crate::workload;
use farleaf_fabric::GlobalAddr;
use farleaf_index::{IndexError, RangeIndex, ScanRequest};
use std::collections::{BTreeMap, BTreeSet};

/// The contents that were found.
#[derive(Default)]
pub(crate) struct AuditedContents {
    pub(crate) contents: BTreeMap<u64, u64>,
    /// Keys in damaged pages.
    pub(crate) damaged: BTreeSet<u64>,
}

/// Reads the keys of a workload.
pub(crate) struct Reader<'a, D> {
    pub(crate) spec: &'a WorkloadSpec,
    /// Whether the crash can have damaged the page at an address.
    pub(crate) may_be_damaged: D,
}

type AuditedRecords = Vec<(u64, u64)>;

impl<D: Fn(GlobalAddr) -> bool> Reader<'_, D> {
    /// Reads each key by a get of the first index, and by scans of that key alone. Then all keys by
    /// an ascending scan of the second and a descending one of the third.
    pub(crate) async fn read_all<I: RangeIndex<Key = u64, Value = u64>>(
        &self,
        [each, up, down]: [&I; 3],
    ) -> Result<AuditedContents, String> {
        let found = self.read_each(each).await?;
        let up = self.scan(up, ScanRequest::range(..)).await?;
        let down = self.scan(down, ScanRequest::range(..).reverse()).await?;
        let expected: AuditedRecords =
            found.contents.iter().map(|(key, value)| (*key, *value)).collect();
        let down = down.map(|down| down.into_iter().rev().collect::<Vec<_>>());
        for (what, records) in [("ascending", up), ("descending", down)] {
            match records {
                Some(records) if records == expected => {}
                None if !found.damaged.is_empty() => {}
                other => {
                    return Err(format!(
                        "after the crash an {what} scan finds {other:?}, gets {expected:?}"
                    ));
                }
            }
        }
        Ok(found)
    }

    /// Returns the answer, or `None` if a damaged page prevented one.
    fn unless_damaged<T>(&self, outcome: Result<T, IndexError>) -> Result<Option<T>, String> {
        match outcome {
            Ok(answer) => Ok(Some(answer)),
            Err(IndexError::Damaged { at }) if (self.may_be_damaged)(at) => Ok(None),
            Err(error) => Err(format!("after the crash: {error}")),
        }
    }

    async fn scan<I: RangeIndex<Key = u64, Value = u64>>(
        &self,
        index: &I,
        scan: ScanRequest<u64>,
    ) -> Result<Option<AuditedRecords>, String> {
        self.unless_damaged(index.scan(&scan).await)
    }

    async fn read_each<I: RangeIndex<Key = u64, Value = u64>>(
        &self,
        index: &I,
    ) -> Result<AuditedContents, String> {
        let mut found = AuditedContents::default();
        let places = 0..self.spec.key_space;
        for key in places.map(|place| workload::key_at(place, self.spec)) {
            let alone = ScanRequest::range(key..=key);
            let got = self.unless_damaged(index.get(&key).await)?;
            let up = self.scan(index, alone.clone()).await?;
            let down = self.scan(index, alone.reverse()).await?;
            let expected = got.map(|value| Vec::from_iter(value.map(|value| (key, value))));
            if up != expected || down != expected {
                return Err(format!(
                    "after the crash a get of {key} finds {expected:?}, scans {up:?} and {down:?}"
                ));
            }
            match got {
                Some(value) => found.contents.extend(value.map(|value| (key, value))),
                None => _ = found.damaged.insert(key),
            }
        }
        Ok(found)
    }
}
