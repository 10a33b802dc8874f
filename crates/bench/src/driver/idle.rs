//! An index that does nothing, for measuring the cost of the harness itself.
//!
//! *Thread safety*: a plain value.

use farleaf_index::{IndexAdmin, IndexError, KeyedRecords, RangeIndex, ScanRequest};
use farleaf_page::{EditAnswer, LeafEdit};

/// Every operation succeeds immediately, and every key is present.
#[derive(Debug)]
pub(super) struct IdleIndex;

impl RangeIndex for IdleIndex {
    type Key = u64;
    type Value = u64;

    async fn get(&self, key: &u64) -> Result<Option<u64>, IndexError> {
        Ok(Some(*key))
    }

    async fn execute(&self, edit: LeafEdit<&u64, &u64>) -> Result<EditAnswer<u64>, IndexError> {
        Ok(EditAnswer { applied: true, found: Some(*edit.key) })
    }

    async fn execute_all(
        &self,
        edits: &[LeafEdit<&u64, &u64>],
    ) -> Vec<Result<EditAnswer<u64>, IndexError>> {
        let applied =
            |edit: &LeafEdit<&u64, &u64>| EditAnswer { applied: true, found: Some(*edit.key) };
        edits.iter().map(|edit| Ok(applied(edit))).collect()
    }

    async fn scan(&self, _scan: &ScanRequest<u64>) -> Result<KeyedRecords<u64, u64>, IndexError> {
        Ok(Vec::new())
    }

    async fn bulk_load_from(
        &self,
        mut source: impl Iterator<Item = Result<(u64, u64), IndexError>>,
        _fill: f64,
    ) -> Result<u64, IndexError> {
        source.try_fold(0, |count, record| record.map(|_| count + 1))
    }

    async fn flush(&self) -> Result<(), IndexError> {
        Ok(())
    }
}

impl IndexAdmin for IdleIndex {
    async fn collect(&self) -> Result<(), IndexError> {
        Ok(())
    }
}
