//! Bulk loads. The index below takes its records one by one and cannot wait for WRITEs meanwhile,
//! so all blocks are written first (blocks.X1), and the stored values are collected until then.
//!
//! *Thread safety*: the same as for the handle.

use super::BlockIndex;
use super::below::{BlockReferences, WholeIndex};
use farleaf_fabric::Fabric;
use farleaf_index::{IndexError, RangeIndex};
use farleaf_page::{Layout, StoredValue};

/// Records whose blocks are written together.
pub(super) const LOADED_PER_BATCH: usize = 16;

/// Keys and the stored values for them, one after the other, in few allocations.
#[derive(Default)]
struct CollectedRecords {
    bytes: Vec<u8>,
    /// By record: the lengths of its key and of its stored value.
    lengths: Vec<(u32, u32)>,
}

impl CollectedRecords {
    fn push(&mut self, key: &[u8], stored: &[u8]) {
        self.lengths.push((key.len() as u32, stored.len() as u32));
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(stored);
    }

    fn records(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        let mut rest = &self.bytes[..];
        self.lengths.iter().map(move |(key, stored)| {
            let (own, others) = rest.split_at((key + stored) as usize);
            rest = others;
            let (key, stored) = own.split_at(*key as usize);
            (key.to_vec(), stored.to_vec())
        })
    }
}

impl<F: Fabric, L: Layout<Key = [u8], Value = [u8]>> BlockIndex<F, L> {
    pub(super) async fn load(
        &self,
        source: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        let mut collected = CollectedRecords::default();
        let loaded = match self.collect_records(source, &mut collected).await {
            Ok(()) => self.design.bulk_load(collected.records(), fill).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &loaded
            && !WholeIndex::<F, L>::is_unknown(error)
        {
            // The index is empty, so no leaf refers to them.
            for (_, stored) in collected.records() {
                if let StoredValue::Block(block) = StoredValue::of(&stored) {
                    self.over().give_back(Some(block));
                }
            }
        }
        loaded
    }

    async fn collect_records(
        &self,
        mut source: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), IndexError>>,
        collected: &mut CollectedRecords,
    ) -> Result<(), IndexError> {
        let mut position = 0;
        let mut last: Option<Vec<u8>> = None;
        loop {
            let together = source.by_ref().take(LOADED_PER_BATCH).collect::<Result<Vec<_>, _>>()?;
            if together.is_empty() {
                return Ok(());
            }
            // Check the records before blocks are written for any that the index would refuse.
            for (key, value) in &together {
                Self::check(key, value)?;
                if last.as_ref().is_some_and(|last| last >= key) {
                    return Err(IndexError::NotSorted { position });
                }
                (last, position) = (Some(key.clone()), position + 1);
            }
            let written = self.over().store_all(&together).await;
            let mut outcome = Ok(());
            for ((key, _), stored) in together.iter().zip(written) {
                match stored {
                    Ok((stored, _)) => collected.push(key, &stored),
                    Err(error) => outcome = Err(error),
                }
            }
            outcome?;
        }
    }
}
